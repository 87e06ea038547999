"""What becomes of each line of a script: a key of the spec, a line of a shell file, nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hpcrun.policy import secret_names
from hpcrun.text import one_line

SPEC, SHELL, DROPPED, ASKED = "in the spec", "as it is", "dropped", "asked for"
_MOST_SHOWN = 160
_SECRET_WORD = re.compile(
    r"((?:login|--token|--api[-_]key|--password|-p)[ =]+)(?!\$)(\S+)", re.IGNORECASE
)
_ASSIGNED = re.compile(r"(?<![\w$])([A-Za-z_]\w*)=(?!\$)('[^']*'|\"[^\"$]*\"|[^\s;&'\"]+)")


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

    def to_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return dict(vars(self))


def quoted(text: str) -> str:
    """Return a line of a script as it is shown: in one line, and without secrets."""

    def hide(found: re.Match[str]) -> str:
        return f"{found[1]}=…" if secret_names.is_name(found[1]) else found[0]

    joined = " ".join(text[: 4 * _MOST_SHOWN].replace("\\\n", " ").split())
    masked = _ASSIGNED.sub(hide, joined)
    if has_secret(masked):
        masked = f"{masked.split(' ')[0]} …"
    masked = _SECRET_WORD.sub(r"\1…", masked) if re.search(r"\blogin\b", masked) else masked
    shown = one_line(masked)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 1]}…"


def has_secret(text: str) -> bool:
    """Check whether a line holds what looks like a secret."""
    return any(True for _ in secret_names.places(text[:4000].replace("…", "").split(" "), "line"))
