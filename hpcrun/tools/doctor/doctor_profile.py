"""The cluster profile that the doctor judges with, and what its jobs are made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.compile.compiler import default_root
from hpcrun.compile.source.marked_tree import SourceMark
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.spec import profile, profile_files
from hpcrun.errors import SpecError
from hpcrun.host import expand_home
from hpcrun.state import permissions
from hpcrun.state.spec.executors import Executor

_SHIPPED = ("local", "slurm")


@dataclass(frozen=True)
class DoctorProfile:
    """A resolved profile, the root, and what the user should know of the choice."""

    data: dict[str, Any]
    root: Path
    notes: tuple[str, ...] = ()
    is_named: bool = False
    """The user named it; otherwise it is what fits this machine."""
    foreign: str | None = None
    """Whose the file is, if it is another user's: its setup lines are then not run here."""

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def is_slurm(self) -> bool:
        return Executor.of(self.data).queues


def load(name: str | None, root: Path | None) -> DoctorProfile:
    """Load the profile ``name``; with None the only one of the user's, or what Slurm's place has.

    Raises SpecError for a profile that is wrong or not there.
    """
    beside = Path.cwd()
    chosen, notes = (name, ()) if name else _choose(beside)
    problems = Problems()
    loaded = profile.load(chosen, beside, SourceMark("command line", None, beside), problems)
    if problems.found or loaded is None:
        raise SpecError(problems.found)
    file = profile_files.available(beside)[chosen]
    return DoctorProfile(
        data=loaded.data,
        root=(expand_home(root) if root else default_root(loaded.data)).absolute(),
        notes=(*notes, *loaded.notes),
        is_named=name is not None,
        foreign=permissions.foreign([file]),
    )


def _choose(beside: Path) -> tuple[str, tuple[str, ...]]:
    default = profile.default_name()
    own = sorted(set(profile_files.available(beside)) - set(_SHIPPED))
    if default == profile.LOCAL:
        return default, ("there is no sbatch on PATH: this machine is examined, as cluster=local",)
    if not own:
        return default, ()
    if len(own) == 1:
        return own[0], (f"with the cluster profile {own[0]}; --cluster NAME chooses another",)
    return default, (f"with the profile {default}; --cluster chooses another: {', '.join(own)}",)
