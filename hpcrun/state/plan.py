"""The plan: the frozen, compiled form of an experiment.

Written once at submission (`hpcrun.state.plan_file`), read by the supervisor and by everything that
observes. Standard library only, because it is also imported on compute nodes from the frozen
``hpcrun.zip``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.state.spec.blocks import RunSpec

FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """What a run executes; found at compile time, imported only by the workers.

    Attributes
    ----------
    kind
        ``function`` (called with a session), ``script`` (a Python file) or ``command``.
    module, function
        For a function: ``module`` is imported and ``function`` called.
    import_root
        For a function: the directory, relative to the code root, that ``module`` is imported from;
        None when the module is installed in the job's Python.
    file
        For a script: its path relative to the code root.
    argv
        For a script its arguments (flags of ``config``, then ``args``); for a command all of it.
        May hold ``${hpcrun:…}``, filled in as an attempt starts.
    """

    kind: str
    module: str | None = None
    function: str | None = None
    import_root: str | None = None
    file: str | None = None
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunPlan(RunSpec):
    """One fully resolved configuration.

    Attributes
    ----------
    number
        The run's number in its experiment, given at first submission; the directory's name.
    identity
        Hex digest of what the run computes and of its swept values.
    label
        Readable name from the swept values, such as ``lr=0.001,stage=2``; empty without a sweep.
    swept
        Full key -> swept value.
    entry
        What is executed.
    spec
        The resolved spec as plain data, ``deepspeed`` complete with the solved batch triple.
        ``${hpcrun:…}`` stays literal.
    """

    number: int
    identity: str
    label: str
    swept: dict[str, Any]
    entry: Entry
    spec: dict[str, Any]

    @property
    def trackers(self) -> tuple[str, ...]:
        """Names of the trackers that its metrics are forwarded to; those of their libraries."""
        blocks = self.spec.get("tracking") or {}
        return tuple(name for name, block in blocks.items() if block not in (None, False))


@dataclass(frozen=True)
class Array:
    """Runs of one shape that go to Slurm as one sbatch: an array, or a plain job for a single run.

    Attributes
    ----------
    runs
        Their numbers, ascending.
    script
        The rendered sbatch script; empty for the local executor.
    gpu_hours
        The most that these runs can use: runs x GPUs x time limit.
    offset
        What a run's number is above the index of its task: Slurm limits the index.
    parallel
        How many of these runs may run at once, its share of the plan's ``max_parallel``.
    after
        The index of the array that has to end first, where there are more arrays than that.
    """

    runs: tuple[int, ...]
    script: str
    gpu_hours: float
    offset: int = 0
    parallel: int | None = None
    after: int | None = None

    @property
    def is_array(self) -> bool:
        return len(self.runs) > 1


@dataclass(frozen=True)
class Dependence:
    """What runs wait for.

    Attributes
    ----------
    experiment
        The name of an experiment under the same root.
    runs
        Those of its runs that count.
    when
        ``success`` or ``end``.
    each
        Whether a run waits for the run of its own number alone.
    """

    experiment: str
    runs: tuple[int, ...]
    when: str = "success"
    each: bool = False

    def of(self, run: int) -> tuple[int, ...]:
        """The runs that one run waits for."""
        return (run,) if self.each else self.runs


@dataclass(frozen=True)
class Plan:
    """A compiled experiment.

    Attributes
    ----------
    name
        The experiment's name.
    spec_file
        Absolute path of the spec.
    code_root
        Absolute path of the directory that is frozen at submission.
    directory
        The spec's directory, relative to ``code_root``; the working directory of the workers.
    cluster
        The resolved cluster profile as plain data.
    max_parallel
        How many runs may run at once; None for as many as the cluster takes.
    runs, arrays
        Runs in the order of the sweep, and how they are submitted.
    repeats
        Full keys that only repeat a point, such as a seed: results average over them.
    depends_on
        What the runs wait for.
    """

    name: str
    spec_file: str
    code_root: str
    directory: str
    cluster: dict[str, Any]
    max_parallel: int | None
    runs: tuple[RunPlan, ...]
    arrays: tuple[Array, ...] = field(default=())
    repeats: tuple[str, ...] = ()
    depends_on: tuple[Dependence, ...] = ()

    @property
    def numbers(self) -> tuple[str, tuple[int, ...]]:
        """The experiment's name and its runs' numbers."""
        return self.name, tuple(run.number for run in self.runs)

    def run(self, number: int) -> RunPlan:
        """The run of that number.

        Raises
        ------
        UsageError
            The plan has no such run.
        """
        for run in self.runs:
            if run.number == number:
                return run
        raise UsageError(f"{self.name}: there is no run {number} in this plan")

    def to_data(self) -> dict[str, Any]:
        """Plain data with a stable order of keys."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Plan:
        """The plan that ``to_data`` described.

        Raises
        ------
        UsageError
            The data was written by another format of plan.
        """
        if data.get("format") != FORMAT:
            raise UsageError(
                f"this plan has format {data.get('format')!r}, this hpcrun reads {FORMAT}",
                hint="read it with the hpcrun that submitted it",
            )
        runs = tuple(RunPlan(**{**run, "entry": _entry(run["entry"])}) for run in data["runs"])
        arrays = tuple(Array(**{**array, "runs": tuple(array["runs"])}) for array in data["arrays"])
        given = ("format", "runs", "arrays", "repeats", "depends_on")
        rest = {key: data[key] for key in data if key not in given}
        return cls(
            **rest,
            runs=runs,
            arrays=arrays,
            repeats=tuple(data.get("repeats", ())),
            depends_on=dependences(data),
        )


def dependences(data: dict[str, Any]) -> tuple[Dependence, ...]:
    """``depends_on`` of a plan's plain data."""
    return tuple(
        Dependence(**{**each, "runs": tuple(each["runs"])}) for each in data.get("depends_on", ())
    )


def _entry(data: dict[str, Any]) -> Entry:
    return Entry(**{**data, "argv": tuple(data["argv"])})
