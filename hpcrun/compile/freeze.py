"""Freezes checked runs into a plan: numbers, job arrays and scripts."""

from __future__ import annotations

import bisect
import heapq
import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.compile.source.marked_tree import Key
from hpcrun.compile.target import packing, sbatch_script
from hpcrun.errors import UsageError
from hpcrun.shared_dataclass import dataclass
from hpcrun.slurm.parse import parse_duration
from hpcrun.state import layout
from hpcrun.state.plan import Array, Dependence, Entry, Plan, RunPlan
from hpcrun.state.role_plan import ROLES
from hpcrun.state.spec.blocks import RunSpec
from hpcrun.state.spec.executors import Executor

MOST_ARRAYS = 5_000


@dataclass(frozen=True)
class CompiledRun(RunSpec):
    """A run without its number; the fields are those of ``hpcrun.state.plan.RunPlan``."""

    identity: str
    label: str
    swept: dict[str, Any]
    entry: Entry
    spec: dict[str, Any]


@dataclass(frozen=True)
class Prerequisite:
    """An experiment that comes before: its spec, and as `hpcrun.state.plan.Dependence`."""

    spec: Path
    when: str
    each: bool

    @property
    def file(self) -> str:
        """Return the spec's own path, without links."""
        return os.path.realpath(self.spec)


@dataclass(frozen=True)
class Compiled:
    """A checked spec whose runs have no numbers yet."""

    name: str
    """The experiment's name."""
    root: Path
    """The directory of experiments: this one's is ``root / name``."""
    # As in ``hpcrun.state.plan.Plan``.
    spec_file: str
    code_root: str
    directory: str
    cluster: dict[str, Any]
    max_parallel: int | None
    runs: tuple[CompiledRun, ...]
    """In the order of the sweep."""
    repeats: tuple[str, ...] = ()
    extendable: tuple[Key, ...] = ()
    """Keys whose values may change without making another run."""
    prerequisites: tuple[Prerequisite, ...] = ()
    """The experiments that come before this one."""
    sources: tuple[Path, ...] = ()
    """The YAML files that it was compiled from."""
    notes: tuple[str, ...] = ()
    """Messages for the user about a spec that is right."""
    has_default_cluster: bool = False
    """Nothing names the cluster."""
    doubts: tuple[str, ...] = ()
    """What a person is asked about before it is submitted, as it may not be meant."""
    names_array_size: bool = True
    """The profile's own file has ``limits.max_array_size``."""
    text: str | None = None
    """The spec, where it was made of a command line and is no file."""
    no_flags: tuple[str, ...] = ()
    """Full keys of ``config`` that a command refers to, so that they are no flags."""

    @property
    def executor(self) -> Executor:
        return Executor.of(self.cluster)

    @property
    def file(self) -> str:
        """Return the spec's own path, without links."""
        return os.path.realpath(self.spec_file)


def freeze(
    compiled: Compiled,
    *,
    submission: int = 1,
    numbers: Mapping[str, int] | None = None,
    select: Collection[int] | None = None,
    depends_on: tuple[Dependence, ...] = (),
) -> Plan:
    """Number the runs, group them into job arrays and render the arrays' scripts.

    ``numbers`` are those of runs that exist already, by identity: new ones get the numbers after
    the highest, in the order of the sweep. ``select`` are those that go into arrays, None for all;
    the plan holds all. ``depends_on`` is what the prerequisites have become.
    """
    known = dict(numbers or {})
    following = max(known.values(), default=-1) + 1
    runs = []
    for one in compiled.runs:
        if one.identity not in known:
            known[one.identity] = following
            following += 1
        number = known[one.identity]
        runs.append(RunPlan(number, one.identity, one.label, one.swept, one.entry, one.spec))
    paths = layout.experiment(compiled.root, compiled.name).submission(submission)
    shapes: dict[str, list[RunPlan]] = {}
    texts: dict[tuple[int, ...], str] = {}
    for run in runs:
        if select is None or run.number in select:
            # Most runs of a sweep share these, the same objects.
            shared = tuple(id(run.spec.get(name)) for name in _SHAPING)
            if shared not in texts:
                texts[shared] = _shape(run)
            shapes.setdefault(texts[shared], []).append(run)
    return Plan(
        name=compiled.name,
        spec_file=compiled.spec_file,
        code_root=compiled.code_root,
        directory=compiled.directory,
        cluster=compiled.cluster,
        max_parallel=compiled.max_parallel,
        runs=tuple(runs),
        arrays=_arrays(compiled, shapes.values(), paths),
        repeats=compiled.repeats,
        depends_on=depends_on,
    )


# The blocks of a spec that `_shape` reads.
_SHAPING = ("resources", "environment", "recovery", "notify", ROLES)


def _shape(run: RunPlan) -> str:
    """Return a text that is the same for runs that may be in one array."""
    own = [run.spec["resources"], run.spec["environment"], len(run.own_parts)]
    return json.dumps([*own, run.outlives_nodes, sbatch_script.mail(run)])


def _arrays(
    compiled: Compiled, shapes: Iterable[list[RunPlan]], paths: layout.SubmissionPaths
) -> tuple[Array, ...]:
    every = (chunk for group in shapes for chunk in _chunks(compiled, group))
    chunks = list(itertools.islice(every, MOST_ARRAYS + 1))
    if len(chunks) > MOST_ARRAYS:
        size = compiled.cluster["limits"]["max_array_size"]
        raise UsageError(
            f"{compiled.name}: the runs would be more than {MOST_ARRAYS:,} jobs and arrays, each "
            f"with a script of its own (the cluster profile's limits.max_array_size is {size})",
            hint="sweep fewer values of resources and environment, or submit parts with --only",
        )
    most = compiled.max_parallel
    limits = shares([len(runs) for runs, _ in chunks], most)
    found = []
    for index, ((runs, offset), limit) in enumerate(zip(chunks, limits, strict=True)):
        wanted, pack = runs[0].resources, runs[0].pack if compiled.executor.queues else None
        at_once = len(runs)
        if pack is not None:
            at_once = packing.shape(pack, runs[0].nodes, len(runs), limit).seats
        hours = at_once * (parse_duration(wanted.time) or 0) / 3600
        text = ""
        if compiled.executor.queues:
            name, cluster = compiled.name, compiled.cluster
            text = sbatch_script.script(name, cluster, runs, limit, paths, offset)
        numbers = tuple(run.number for run in runs)
        gpu_hours, cpu_hours = (
            round(devices * hours, 3) for devices in (runs[0].all_gpus, runs[0].all_cpus)
        )
        after = index - most if most is not None and index >= most else None
        shared = pack is not None
        found.append(Array(numbers, text, gpu_hours, offset, limit, after, cpu_hours, shared))
    return tuple(found)


def shares(sizes: Sequence[int], most: int | None) -> list[int | None]:
    """Divide ``most`` runs at once among arrays: return each one's limit, None for no limit.

    In proportion to the arrays' sizes, and at least one each: where there are more arrays than
    that, an array has to wait for the end of the one ``most`` before it.
    """
    if most is None or sum(sizes) <= most:
        return [None] * len(sizes)
    given = [1] * len(sizes)
    heap = [(-size / 2, index) for index, size in enumerate(sizes) if size > 1]
    heapq.heapify(heap)
    for _ in range(most - len(sizes)):
        _, index = heapq.heappop(heap)
        given[index] += 1
        if given[index] < sizes[index]:
            heapq.heappush(heap, (-sizes[index] / (given[index] + 1), index))
    return list(given)


def _chunks(compiled: Compiled, group: list[RunPlan]) -> Iterator[tuple[list[RunPlan], int]]:
    """Cut runs of one shape by Slurm's limit on a task's index; yield chunks and offsets."""
    runs = sorted(group, key=lambda run: run.number)
    numbers = [run.number for run in runs]
    queues = compiled.executor.queues
    most = compiled.cluster["limits"]["max_array_size"] - 1
    if queues and runs[0].own_parts:
        # A heterogeneous job cannot be an array.
        yield from (([run], 0) for run in runs)
        return
    if queues and (pack := runs[0].pack) is not None:
        yield from ((part, 0) for part in packing.shares(runs, pack, compiled.max_parallel))
        return
    begin = 0
    while begin < len(runs):
        first, offset = numbers[begin], 0
        end = bisect.bisect_right(numbers, most) if queues else len(runs)
        if end <= begin:
            end = bisect.bisect_right(numbers, first + most)
            offset = first if end - begin > 1 else 0
        yield runs[begin:end], offset
        begin = end
