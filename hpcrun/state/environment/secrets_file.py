"""Reader of ``environment.secrets_file``; the values are written nowhere, and in no message."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.host import expand_home
from hpcrun.state import files

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST = 1 << 20
KEY = "environment.secrets_file"


def read(file: str | None) -> dict[str, str]:
    """Return the variables of a file of ``NAME=value`` lines; empty if ``file`` is None.

    Empty lines and comments (``#``) are skipped; a leading ``export`` and quotes around a value are
    removed. Raises HpcrunError unless it is a regular file of this user's that nobody else can
    read, and all of its lines are such lines. It waits for nothing.
    """
    if not file:
        return {}
    path = expand_home(file)
    try:
        return _variables(path, _text(path))
    except OSError as error:
        raise HpcrunError(
            f"{KEY}: {path} cannot be read on {os.uname().nodename}: {error.strerror}",
            hint="put it where the compute nodes see it too",
        ) from error


def _text(path: Path) -> bytes:
    with files.open_stream(path) as stream:
        found = os.fstat(stream.fileno())
        if found.st_uid != os.geteuid():
            from hpcrun.state import permissions  # ranks have no other use for it

            owner = permissions.user_name(found.st_uid)
            raise HpcrunError(
                f"{KEY}: {path} belongs to {owner}, who can change it",
                hint="copy what you need of it into a file of your own",
            )
        if found.st_mode & 0o077:
            raise HpcrunError(
                f"{KEY}: {path} can be read by others than its owner", hint=f"chmod 600 {path}"
            )
        data = stream.read(_MOST + 1)
    if len(data) > _MOST:
        raise HpcrunError(f"{KEY}: {path} is larger than 1 MB, which is no file of secrets")
    return data


def _variables(path: Path, data: bytes) -> dict[str, str]:
    found = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            text = line.decode().strip().removeprefix("export ").lstrip()
        except UnicodeDecodeError:
            raise HpcrunError(f"{KEY}: {path}:{number} is not UTF-8") from None
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name.strip()) or "\0" in value:
            raise HpcrunError(f"{KEY}: {path}:{number} is not NAME=value")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[name.strip()] = value
    return found
