"""The tests' Python without imports that are half of the start of a rank of DeepSpeed.

See tests/testbed/light, which beds lay over their packages, too.
"""

from __future__ import annotations

import os
from contextlib import suppress

from tests.testbed import kernel, rootfs

_DONE = "HPCRUN_TESTS_LIGHT"


def lighten() -> None:
    """Lay it over the packages, in a mount namespace of this process and its children.

    Without the right to do so, all is as it was. The variable `_DONE` is set once it is done, and
    leaves it out where somebody has set it.
    """
    if _DONE in os.environ:
        return
    with suppress(OSError):
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        rootfs.lighten("", [("/", True)])
        os.environ[_DONE] = "1"
