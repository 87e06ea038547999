"""The plan: the frozen, compiled form of an experiment.

Written once at submission (`hpcrun.state.plan_file`), read by the supervisor and by everything that
observes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.fields import (
    FLAG,
    INDEX,
    INDICES,
    LIST,
    MAPPING,
    NAME,
    NUMBER,
    PATH,
    TEXT,
    TEXTS,
    WHOLE,
    Kind,
    Kinds,
    brief,
    wrong,
)
from hpcrun.shared_dataclass import dataclass, names
from hpcrun.state import role_plan
from hpcrun.state.role_plan import ROLES, Entry
from hpcrun.state.spec import blocks
from hpcrun.state.spec.blocks import BLOCKS, RunSpec
from hpcrun.state.spec.executors import Executor
from hpcrun.text import plural

__all__ = ["Array", "Dependence", "Entry", "Plan", "RunPlan"]
FORMAT = 1
# How the path of a spec ends that was made of a command line, and is no file.
TYPED = ".typed"
# The key of a spec by which a tool has its own function call the program: ``module:function``.
CALLED_BY = "called_by"
# The key of a spec that has how a run of a search gets its values.
SEARCH = "search"


@dataclass(frozen=True)
class RunPlan(RunSpec):
    """One fully resolved configuration."""

    number: int
    """The run's number in its experiment, given at first submission; the directory's name."""

    identity: str
    """Hex digest of what the run computes and of its swept values."""

    label: str
    """Readable name from the swept values, such as ``lr=0.001,stage=2``; empty without a sweep."""

    swept: dict[str, Any]
    """Full key -> swept value."""

    entry: Entry
    """The program."""

    spec: dict[str, Any]
    """The resolved spec as plain data, ``deepspeed`` complete with the solved batch triple.
    ``${hpcrun:…}`` stays literal."""

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names of the trackers that its metrics are forwarded to; those of their libraries."""
        blocks = self.spec.get("tracking") or {}
        return tuple(name for name, block in blocks.items() if block not in (None, False))


@dataclass(frozen=True)
class Array:
    """Runs of one shape that go to Slurm as one sbatch: an array, or a plain job for one run."""

    runs: tuple[int, ...]
    """Their numbers, ascending."""

    script: str
    """The rendered sbatch script; empty for the local executor."""

    gpu_hours: float
    """The most that these runs can use: runs x GPUs x time limit."""

    offset: int = 0
    """A run's number minus the index of its task: Slurm limits the index."""

    parallel: int | None = None
    """Most of these runs at once: its share of the plan's ``max_parallel``."""

    after: int | None = None
    """The index of the array that has to end first, if there are more arrays than that."""

    cpu_hours: float = 0.0
    """The same of processors: runs x ranks x CPUs of each x time limit; 0 in older plans."""

    packed: bool = False
    """They share one job, which `hpcrun.run.packed_job` runs."""

    @property
    def is_array(self) -> bool:
        return len(self.runs) > 1 and not self.packed


@dataclass(frozen=True)
class Dependence:
    """The runs of another experiment that runs wait for."""

    experiment: str
    """The name of an experiment under the same root."""

    runs: tuple[int, ...]
    """The runs of that experiment that count."""

    when: str = "success"
    """``success`` or ``end``."""

    each: bool = False
    """A run waits for the run of its own number alone."""

    def of(self, run: int) -> tuple[int, ...]:
        """Return the runs that one run waits for."""
        return (run,) if self.each else self.runs


@dataclass(frozen=True)
class Plan:
    """A compiled experiment."""

    name: str
    """The experiment's name."""

    spec_file: str
    """Absolute path of the spec."""

    code_root: str
    """Absolute path of the directory that is frozen at submission."""

    directory: str
    """The spec's directory, relative to ``code_root``; the working directory of the workers."""

    cluster: dict[str, Any]
    """The resolved cluster profile as plain data."""

    max_parallel: int | None
    """Most runs at once; None for as many as the cluster takes."""

    runs: tuple[RunPlan, ...]
    """In the order of the sweep."""

    arrays: tuple[Array, ...] = ()
    """The submission of these runs."""

    repeats: tuple[str, ...] = ()
    """Full keys that only repeat a point, such as a seed: results average over them."""

    depends_on: tuple[Dependence, ...] = ()
    """The runs that these wait for."""

    @property
    def executor(self) -> Executor:
        return Executor.of(self.cluster)

    @property
    def numbers(self) -> tuple[str, tuple[int, ...]]:
        """The experiment's name and its runs' numbers."""
        return self.name, tuple(run.number for run in self.runs)

    @property
    def most_hours(self) -> str:
        """``at most 16 GPU-hours``, or ``at most 64 CPU-hours (no GPUs)``."""
        gpu = sum(array.gpu_hours for array in self.arrays)
        cpu = sum(array.cpu_hours for array in self.arrays if not array.gpu_hours)
        parts = [f"{gpu:,.10g} GPU-hours" if gpu else "", f"{cpu:,.10g} CPU-hours" if cpu else ""]
        found = " and ".join(filter(None, parts))
        rest = "" if gpu else " (no GPUs)"
        return f"at most {found}{rest}" if found else f"without a limit of time{rest}"

    @property
    def is_typed(self) -> bool:
        """Its spec is no file of the user's: it was made of a command line."""
        return self.spec_file.endswith(TYPED)

    @property
    def shapes(self) -> str:
        """``2 arrays and 1 job``."""
        arrays = sum(array.is_array for array in self.arrays)
        counts = {"array": arrays, "job": len(self.arrays) - arrays}
        return " and ".join(plural(count, noun) for noun, count in counts.items() if count)

    def place(self, path: str) -> Path:
        """Return where a path of the spec, such as one of ``code.link``, lies at submission."""
        return Path(self.spec_file).parent / path

    def inside(self, path: str) -> str:
        """Return the place of such a path in the code, relative to its root."""
        return os.path.normpath(f"{self.directory}/{path}")

    def run(self, number: int) -> RunPlan:
        """Return the run of that number; raise UsageError if the plan has none."""
        for run in self.runs:
            if run.number == number:
                return run
        raise UsageError(f"{self.name}: there is no run {number} in this plan")

    def to_data(self) -> dict[str, Any]:
        """Return plain data with a stable order of keys, which shares values with this plan."""
        runs = [{**_fields(run), "entry": _fields(run.entry)} for run in self.runs]
        others = {name: [*map(_fields, getattr(self, name))] for name in ("arrays", "depends_on")}
        return {"format": FORMAT, **_fields(self), "runs": runs, **others}

    @classmethod
    def of_runs(cls, runs: Iterable[RunPlan], data: dict[str, Any]) -> Plan:
        """Return the plan of these runs; all else is in its plain data.

        Raises ValueError if a field is not of its kind.
        """
        needed = ("name", "spec_file", "code_root", "directory", "cluster")
        _check("the plan", data, _PLAN, needed)
        _check("cluster", data["cluster"], _CLUSTER)
        runs = tuple(runs)
        for run in runs:
            _check("a run", vars(run), _RUN, _RUN)
        for one in data["arrays"]:
            _check("an array", one, _ARRAY, ("runs", "script", "gpu_hours"))
        for one in data.get("depends_on") or ():
            _check("depends_on", one, _DEPENDENCE, ("experiment", "runs"))
        return cls(
            **{name: data[name] for name in (*needed, "max_parallel")},
            runs=runs,
            arrays=tuple(Array(**{**one, "runs": tuple(one["runs"])}) for one in data["arrays"]),
            repeats=tuple(data.get("repeats") or ()),
            depends_on=tuple(
                Dependence(**{**one, "runs": tuple(one["runs"])})
                for one in data.get("depends_on") or ()
            ),
        )


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in names(type(one))}


def check_spec(spec: Any, among: Collection[str] = BLOCKS) -> None:
    """Raise ValueError if a part of a run's spec, or a key in these blocks, is not of its kind."""
    _check("the spec of a run", spec, _SPEC)
    blocks.check(spec, among)
    if spec.get(ROLES):
        role_plan.check(spec)


def _check(what: str, data: Any, kinds: Kinds, needed: Collection[str] = ()) -> None:
    problem = wrong(data, kinds, needed) if isinstance(data, dict) else f"{brief(data)}, no mapping"
    if problem:
        raise ValueError(f"{what}: {problem}")


_UMASK = Kind(
    "an octal mask",
    lambda value: type(value) is str and 0 < len(value) < 5 and set(value) <= set("01234567"),
)
_RUN: Kinds = {"number": INDEX, "identity": TEXT, "label": TEXT, "swept": MAPPING, "spec": MAPPING}
_SPEC: Kinds = {
    **dict.fromkeys((*BLOCKS, "config", "deepspeed", "tracking", ROLES, SEARCH), MAPPING),
    **dict.fromkeys(("framework", "notes", "precision"), TEXT),
    "model_parallel_size": INDEX,
    "tags": TEXTS,
}
_CLUSTER: Kinds = {
    **dict.fromkeys(("name", "executor", "group"), TEXT),
    "umask": _UMASK,
    "root": PATH,
    "fabric": MAPPING,
    "resources": MAPPING,
}
_ARRAY: Kinds = {
    **dict.fromkeys(("gpu_hours", "cpu_hours"), NUMBER),
    "packed": FLAG,
    **dict.fromkeys(("parallel", "after"), INDEX),
    "runs": INDICES,
    "script": TEXT,
    "offset": WHOLE,
}
_DEPENDENCE: Kinds = {"experiment": NAME, "runs": INDICES, "when": TEXT, "each": FLAG}
_PLAN: Kinds = {
    **dict.fromkeys(("spec_file", "code_root", "directory"), PATH),
    **dict.fromkeys(("arrays", "depends_on"), LIST),
    "name": NAME,
    "cluster": MAPPING,
    "max_parallel": INDEX,
    "repeats": TEXTS,
}
