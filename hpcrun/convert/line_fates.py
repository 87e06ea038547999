"""What becomes of each line of a script: a key of the spec, a line of a shell file, nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpcrun.policy import secret_names
from hpcrun.text import one_line

SPEC, SHELL, DROPPED, ASKED = "in the spec", "as it is", "dropped", "asked for"
_MOST_SHOWN = 160


@dataclass(frozen=True)
class LineFate:
    """What became of a command of the script, or of one of its #SBATCH lines."""

    line: int
    last: int
    text: str
    """The line as it is written, shortened, without the values of secrets."""
    fate: str
    """``in the spec``, ``as it is``, ``dropped`` or ``asked for``."""
    what: str
    """The key, the shell file, why it was dropped, or what is in the way."""


def quoted(text: str) -> str:
    """Return a line of a script as it is shown: in one line, and without a secret."""
    shown = " ".join(text[: 4 * _MOST_SHOWN].replace("\\\n", " ").split())
    if has_secret(shown):
        shown = re.split(r"[=\s]", re.sub(r"^export ", "", shown))[0] + " …"
    shown = one_line(shown)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 1]}…"


def has_secret(text: str) -> bool:
    """Check whether a line holds what looks like a secret."""
    return any(True for _ in secret_names.places(text[:4000].split(" "), "line"))
