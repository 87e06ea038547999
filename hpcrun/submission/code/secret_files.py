"""Secrets among the files of the code: they are left out of what is frozen, and named.

A file is left out if

- it is ``environment.secrets_file``, by whatever link or hard link, or a hard link to one of the
  usual secrets in the user's home;
- it is named like a secret (`hpcrun.policy.secret_names.is_file`): ``.env``, ``id_rsa``, ``*.pem``;
- it is a private key, the JSON of a service account, or one token, whatever its name;
- its owner alone may read it although others may read the code around it. That is the case if the
  umask lets others read new files, and the spec and the entry may be read by others too. Under a
  umask of 077 all files are their owner's alone, which then tells nothing about any of them: all go
  in, and the archive is its owner's alone. Modules (``.py``), programs, and what the arguments or
  the configuration name (a model: transformers writes weights for their owner alone) go in
  whatever their mode, because the job fails without them.

What goes in keeps its readers: an archive can be read only by those who may read all files in it
(`readers`). A file that is left out by its name or mode is frozen if ``code.exclude`` has its name
or path after a ``!``, without wildcards.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from hpcrun.host import expand_home
from hpcrun.policy import secret_names
from hpcrun.state import permissions
from hpcrun.submission.code.code_files import CodeScope

HOLDS = "it is a key or token"
NAMED = "it is named like a secret"
PRIVATE = "only you may read it"
READERS = stat.S_IRGRP | stat.S_IROTH
_AT_HOME = """
.ssh/* .aws/* .azure/* .kube/config .docker/config.json .config/gcloud/* .netrc .git-credentials
.pgpass .cache/huggingface/token
"""


class NamedSecrets:
    """The part of the rule that needs only names: those of frozen code too."""

    def __init__(self, exclude: Sequence[str], required: Collection[str]) -> None:
        named = {one[1:].removeprefix("./").lstrip("/") for one in exclude if one[:1] == "!"}
        self._asked = named | {*required}

    def named(self, name: str) -> bool:
        """Return whether a file is left out because of its name."""
        return secret_names.is_file(name) and not self._is_asked_for(name)

    def _is_asked_for(self, name: str) -> bool:
        return not self._asked.isdisjoint((name, name.rpartition("/")[2]))


class SecretFiles(NamedSecrets):
    """The rule, for one tree."""

    def __init__(self, scope: CodeScope) -> None:
        super().__init__(scope.exclude, [*scope.required, *scope.include])
        self._secrets = _identities(scope.secrets)
        self._named_paths = {*scope.named, *scope.include}
        readers = READERS & ~permissions.umask()
        for path in scope.required:
            with contextlib.suppress(OSError):
                readers &= (scope.root / path).stat().st_mode
        self._modes_tell = bool(readers)

    def holds_one(self, name: str, data: bytes) -> bool:
        """Return whether a file is left out because all of it is a token or a key."""
        return secret_names.is_content(data) and not self._is_asked_for(name)

    def why(self, name: str, found: os.stat_result) -> str | None:
        """Return why a file is left out; None if it is not.

        ``found`` is the status of the file that was opened.
        """
        identity = (found.st_dev, found.st_ino)
        if identity in self._secrets:
            return "it is environment.secrets_file"
        if found.st_nlink > 1 and identity in _secrets_at_home():
            return "it is a hard link to a secret in your home directory"
        if self._is_asked_for(name):
            return None
        if secret_names.is_file(name):
            return NAMED
        is_program = name.endswith(".py") or found.st_mode & stat.S_IXUSR
        if not self._modes_tell or found.st_mode & READERS or is_program:
            return None
        around = {name, *map(str, PurePosixPath(name).parents)}
        return PRIVATE if self._named_paths.isdisjoint(around) else None


@functools.lru_cache(maxsize=1)
def _secrets_at_home() -> frozenset[tuple[int, int]]:
    home = expand_home("~")
    return _identities([path for pattern in _AT_HOME.split() for path in home.glob(pattern)])


def _identities(paths: Sequence[Path]) -> frozenset[tuple[int, int]]:
    found = set()
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            found.add((status.st_dev, status.st_ino))
    return frozenset(found)
