"""The program of a run or of one of its roles, as the plan has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcrun.fields import PATH, TEXT, TEXTS, Kinds, wrong

# The block of a spec with further programs.
ROLES = "roles"
_KINDS: Kinds = {
    **dict.fromkeys(("kind", "module", "function", "framework", "recipe"), TEXT),
    **{"import_root": PATH, "file": PATH, "argv": TEXTS, "resumed": TEXTS},
}


@dataclass(frozen=True)
class Entry:
    """The program of a run; found at compile time, imported only by the workers."""

    kind: str
    """``function`` (called with a session), ``script`` (a Python file) or ``command``."""

    module: str | None = None
    """For a function: the module to import."""

    function: str | None = None
    """For a function: its name there."""

    import_root: str | None = None
    """For a function: the directory, relative to the code root, that ``module`` is imported from;
    None when the module is installed in the job's Python."""

    file: str | None = None
    """For a script: its path relative to the code root."""

    argv: tuple[str, ...] = ()
    """For a script its arguments (``args``, then the flags of ``config``); for a command all of it.
    May hold ``${hpcrun:…}``, filled in as an attempt starts."""

    framework: str = "none"
    """The framework that its ranks are prepared for, by its name in `hpcrun.policy.frameworks`: the
    spec's, or the one that was detected."""

    resumed: tuple[str, ...] | None = None
    """The same as ``argv`` of an attempt that resumes; None where the spec says nothing of that."""

    recipe: str | None = None
    """The recipe by which it resumes where the spec names neither one nor the framework: that of
    the framework that was detected."""

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Entry:
        """Return the entry of its fields as plain data; raise ValueError if they are not."""
        if problem := wrong(data, _KINDS, ("kind",)):
            raise ValueError(f"entry: {problem}")
        resumed = None if data.get("resumed") is None else tuple(data["resumed"])
        return cls(**{**data, "argv": tuple(data["argv"]), "resumed": resumed})
