"""Reader of the user's secrets file; the values are written nowhere."""

from __future__ import annotations

import os
import re

from hpcrun.errors import HpcrunError
from hpcrun.host import expand_home

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read(file: str | None) -> dict[str, str]:
    """Return the variables of a file of ``NAME=value`` lines; empty if ``file`` is None.

    Empty lines and comments (``#``) are skipped; a leading ``export`` and quotes around a value are
    removed. No value ever appears in a message. Raises HpcrunError if the file cannot be read,
    others than its owner can read it, or a line has no ``NAME=``.
    """
    if not file:
        return {}
    path = expand_home(file)
    try:
        if path.stat().st_mode & 0o077:
            raise HpcrunError(
                f"environment.secrets_file: {path} can be read by others than its owner",
                hint=f"chmod 600 {path}",
            )
        lines = path.read_text().splitlines()
    except OSError as error:
        raise HpcrunError(
            f"environment.secrets_file: {path} cannot be read on {os.uname().nodename}: "
            f"{error.strerror}",
            hint="put it where the compute nodes see it too",
        ) from error
    found = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip().removeprefix("export ").lstrip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name.strip()):
            raise HpcrunError(f"environment.secrets_file: {path}:{number} is not NAME=value")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name.strip()] = value
    return found
