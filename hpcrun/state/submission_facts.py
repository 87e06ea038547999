"""What ``submission.json`` says of a submission: who, when, and which code was frozen."""

from __future__ import annotations

from typing import Any

from hpcrun.errors import BrokenFile
from hpcrun.fields import FLAG, MAPPING, NAME, TEXT, TEXTS, TIME, WHOLE, Kinds, mapping, wrong
from hpcrun.state import files
from hpcrun.state.layout import SubmissionPaths

_KINDS: Kinds = {
    **dict.fromkeys(("user", "host", "hpcrun"), TEXT),
    **dict.fromkeys(("argv", "variables"), TEXTS),
    "time": TIME,
    "python": MAPPING,
    "code": mapping(
        {
            "archive": NAME,
            "digest": TEXT,
            "bytes": WHOLE,
            "files": WHOLE,
            "git": mapping({"commit": TEXT, "branch": TEXT, "dirty": FLAG}),
            "left_out": TEXTS,
        }
    ),
}


def describe(paths: SubmissionPaths) -> dict[str, Any]:
    """Read ``submission.json``; empty if it cannot be read, or is not what a submit wrote."""
    try:
        return facts(paths)
    except BrokenFile:
        return {}


def facts(paths: SubmissionPaths) -> dict[str, Any]:
    """Read ``submission.json``; raise BrokenFile if that is not possible."""
    path = paths.submission
    try:
        data = files.read_json(path, files.MOST_LINE)
        problem = wrong(data, _KINDS) if isinstance(data, dict) else "no mapping"
    except (OSError, ValueError) as error:
        raise BrokenFile.of(path, error) from None
    if problem:
        raise BrokenFile.of(path, problem)
    return dict(data)
