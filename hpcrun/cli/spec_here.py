"""SPEC where none is typed: ``experiment.yaml`` of the current directory."""

from __future__ import annotations

from pathlib import Path

from hpcrun import resources
from hpcrun.errors import UsageError
from hpcrun.host import expand_home, is_there
from hpcrun.state import permissions
from hpcrun.text import Say, shortened

FILE = "experiment.yaml"
_MAKE_ONE = (
    "`hpcrun init` writes one for this machine, `hpcrun run hello` is a first run without a file"
)


def found(spec: str | None, overrides: tuple[str, ...], say: Say) -> tuple[str, tuple[str, ...]]:
    """Return SPEC and the overrides; SPEC is `FILE`, and is said, where none was typed.

    Raises
    ------
    UsageError
        None was typed, and this directory has no such file, or another user's.
    """
    if spec is not None and not is_override(spec):
        return spec, overrides
    if spec is not None:
        overrides = (spec, *overrides)
    if not is_there(Path(FILE).is_file):
        typed = f" before {shortened(spec, 60)!r}" if spec is not None else ""
        raise UsageError(
            f"no SPEC was typed{typed}, and there is no {FILE} in {Path.cwd()}; accepted is the "
            "path of a spec, or the name of an experiment that ships",
            hint=_MAKE_ONE,
        )
    owner = permissions.stranger(FILE)
    if owner is not None:
        raise UsageError(
            f"no SPEC was typed, and {FILE} in {Path.cwd()} is {owner}'s, whose code you would run",
            hint=f"type ./{FILE} if you mean it",
        )
    say(f"spec: {FILE} of this directory")
    return FILE, overrides


def is_override(word: str) -> bool:
    """Check whether a word in SPEC's place is ``key=value``, and no file of that name is there."""
    if "=" not in word and not word.startswith("+"):
        return False
    return word not in resources.configs("experiments") and not is_there(expand_home(word).exists)
