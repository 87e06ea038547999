"""``python -m hpcrun`` and the command ``hpcrun``: no module comes from the current directory.

People type commands in directories of other people, where a ``json.py`` may lie.
"""

import os
import sys


def _forget_current_directory() -> None:
    """Drop from ``sys.path`` what ``-m`` puts first, and relative entries of PYTHONPATH."""
    text = os.environ.get("PYTHONPATH", "")
    named = text.split(os.pathsep) if text else []
    relative: set[str] = set()
    if not all(entry.startswith("/") for entry in named):
        # Without pathlib, which might be imported from there.
        here = os.getcwd()  # noqa: PTH109
        full = (os.path.join(here, entry) for entry in named)  # noqa: PTH118
        relative = {os.path.normpath(entry) for entry in full} - {*named}
    if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    sys.path[:] = [entry for entry in sys.path if entry.startswith("/") and entry not in relative]


_forget_current_directory()

from hpcrun.cli.main import main  # noqa: E402 - not before the line above

if __name__ == "__main__":
    main()
