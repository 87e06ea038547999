"""Reads what earlier runs under the root measured of a training: its speed, saves and memory."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.fields import WHOLE, Kinds, wrong
from hpcrun.policy import stop_lead_time
from hpcrun.policy.batch import MICRO
from hpcrun.policy.causes import OUT_OF_MEMORY
from hpcrun.site import slurm_records
from hpcrun.slurm.queue import JobMark, LargestTask
from hpcrun.state import files, history, ledger, metrics_file
from hpcrun.state.layout import (
    ExperimentPaths,
    SubmissionPaths,
    experiment,
    experiments,
    is_slurm_id,
)
from hpcrun.state.metrics_file import Line
from hpcrun.state.plan import RunPlan
from hpcrun.text import listed, plural
from hpcrun.tools.estimate import training_setup
from hpcrun.tools.estimate.model_source import without_seeds
from hpcrun.tools.estimate.training_setup import TrainingSetup

# Lines of metrics, the newest, of which the median is taken; a run's first steps are slow.
_LINES, _LEAST = 200, 3
_MOST_EXPERIMENTS, _MOST_RUNS = 20, 50
# Runs whose telemetry is looked at, its files, and the bytes of all of them together and of each.
_MOST_LOOKED_AT, _MOST_FILES, _MOST_READ, _LEAST_READ = 20, 512, 1 << 25, 1 << 16
_MEMORY: Kinds = {"memory": WHOLE, "memory_total": WHOLE}


@dataclass(frozen=True)
class MemoryTaken:
    """The memory that an earlier run of the program really took; None is not known."""

    run: str
    """``NAME/3``."""
    nodes: int
    ranks_per_node: int
    micro: int | None
    """Its micro batch; None of a program that DeepSpeed's configuration says nothing of."""
    setup: str
    node: tuple[int, int] | None
    """The most bytes that telemetry saw in use on a node, and those that there are."""
    is_of_job: bool
    """These are the job's own; else all that ran on the node may be in them."""
    gpu: tuple[int, int] | None
    """The same of a GPU."""
    is_cut: bool
    """There is more telemetry, and the newest was read."""
    ran_out: bool
    """An attempt of it ended out of memory."""
    jobs: Mapping[str, JobMark]
    """Its jobs in Slurm."""
    largest: LargestTask | None = None
    """Its largest task, by accounting."""
    differs: tuple[str, ...] = ()
    """The ways in which it differs from the run that is estimated."""

    @property
    def is_whole(self) -> bool:
        """It took no more than this, as far as it was sampled."""
        return not (self.is_cut or self.ran_out)

    @property
    def least(self) -> int:
        """Bytes that its job had on a node at least."""
        node = self.node[0] if self.node and self.is_of_job else 0
        return max(node, self.largest.size if self.largest else 0)

    def to_data(self) -> dict[str, Any]:
        """Return plain data; unknown is null."""
        node, gpu = self.node or (None, None), self.gpu or (None, None)
        task = self.largest
        return {
            "run": self.run,
            "nodes": self.nodes,
            "ranks_per_node": self.ranks_per_node,
            "micro_batch": self.micro,
            "setup": self.setup,
            "differs": [*self.differs],
            "node_bytes": node[0],
            "node_total_bytes": node[1],
            "is_of_job": self.is_of_job,
            "gpu_bytes": gpu[0],
            "gpu_total_bytes": gpu[1],
            "max_rss_bytes": None if task is None else task.size,
            "max_rss_step": None if task is None else task.step,
            "is_cut": self.is_cut,
            "ran_out_of_memory": self.ran_out,
        }


@dataclass(frozen=True)
class EarlierRun:
    """A run that was submitted before."""

    experiment: ExperimentPaths
    submission: SubmissionPaths
    """The newest that has it."""
    plan: RunPlan

    @property
    def name(self) -> str:
        """``NAME/3``."""
        return f"{self.experiment.name}/{self.plan.number}"

    @cached_property
    def setup(self) -> TrainingSetup:
        """Its batch, precision, stage and layout."""
        return training_setup.of_run(self.plan)

    @cached_property
    def pace(self) -> tuple[float | None, float | None]:
        """Its seconds of a step, and tokens a second; None is not measured."""
        lines: list[Line] = []
        for attempt in reversed(self.experiment.run(self.plan.number).attempts()):
            newest = itertools.islice(files.read_back(attempt.metrics), _LINES)
            lines = [*metrics_file.parse(newest)]
            if len(lines) >= _LEAST:
                break
        return _step_seconds(lines), _median(lines, "tokens_per_second")

    @cached_property
    def save_seconds(self) -> float | None:
        """Its longest save."""
        return stop_lead_time.measure(self.experiment.run(self.plan.number))[0]

    @cached_property
    def taken(self) -> MemoryTaken | None:
        """The memory that it took, by its telemetry; None if it never began."""
        run, plan, number = self.experiment.run(self.plan.number), self.plan, self.submission.number
        # Nodes that a role has for itself are of another kind.
        main = min((role.first_node for role in plan.own_parts), default=None)
        try:
            attempts = [one for one in ledger.read(run) if one.submission == number]
            # After out of memory the micro batch is another one than planned.
            micro = attempts[-1].started.get("micro_batch") if attempts else None
            same = [one for one in attempts if one.started.get("micro_batch") == micro]
            lengths = {
                path: path.stat().st_size
                for one in same
                for node, path in run.attempt(one.number).telemetries()
                if main is None or node in (one.nodes or ())[:main]
            }
        except (UsageError, OSError):
            return None
        if not attempts:
            return None
        most = max(_LEAST_READ, _MOST_READ // max(1, len(lengths)))
        of_node: tuple[int, int] | None = None
        of_gpu: tuple[int, int] | None = None
        for path in [*lengths][-_MOST_FILES:]:
            for line in files.read_back(path, most):
                of_node, gpus = _larger(of_node, line), line.get("gpus")
                for gpu in gpus if isinstance(gpus, list) else ():
                    of_gpu = _larger(of_gpu, gpu)
        # Accounting does not tell attempts of one job from another, nor runs that share one.
        jobs = {one.job_id for one in same} - {one.job_id for one in attempts if one not in same}
        jobs = set() if plan.pack is not None else jobs
        asked = slurm_records.megabytes(plan.resources.mem)
        mark = JobMark(self.submission.directory)
        return MemoryTaken(
            self.name,
            plan.nodes,
            plan.ranks_per_node,
            (micro or self.setup.micro) if MICRO in plan.deepspeed else None,
            str(self.setup),
            node=of_node,
            # A limit that is not the job's is the node's memory.
            is_of_job=bool(of_node and asked and of_node[1] <= asked * 2**20 * 1.01),
            gpu=of_gpu,
            is_cut=len(lengths) > _MOST_FILES or max(lengths.values(), default=0) > most,
            ran_out=any(one.kind == OUT_OF_MEMORY for one in same),
            jobs={str(job): mark for job in jobs if is_slurm_id(job)},
            differs=(f"micro batch {micro}, after it ran out of memory",) if micro else (),
        )


def submitted_runs(root: Path, name: str) -> Iterator[EarlierRun]:
    """Yield the runs that were submitted: of this experiment first, the newest runs first."""
    own = experiment(root, name)
    others = [one for one in experiments(root) if one.name != name]
    others.sort(key=_age)
    for paths in [own, *others[:_MOST_EXPERIMENTS]]:
        try:
            found = history.read(paths).runs
        except (UsageError, OSError):
            continue
        for number in sorted(found, reverse=True)[:_MOST_RUNS]:
            planned, plan = found[number]
            yield EarlierRun(paths, planned.paths, plan)


def _age(paths: ExperimentPaths) -> float:
    try:
        return -paths.directory.stat().st_mtime
    except OSError:
        return 0.0


def _median(lines: list[Line], name: str) -> float | None:
    found = [line.values[name] for line in lines if 0 < line.values.get(name, 0) < 1e15]
    return statistics.median(found) if len(found) >= _LEAST else None


def _step_seconds(lines: list[Line]) -> float | None:
    """Return the median of the steps' own times, else the time between the lines of a script."""
    if (own := _median(lines, "step_seconds")) is not None:
        return own
    timed = [(line.step, line.time) for line in lines if line.time is not None]
    if len(timed) < _LEAST:
        return None
    (last, end), (first, begin) = max(timed), min(timed)
    return (end - begin) / (last - first) if last > first and end > begin else None


def memory(
    runs: Iterable[EarlierRun], run: RunPlan, suits: Callable[[RunPlan], bool]
) -> list[MemoryTaken]:
    """Return the memory of those runs of the same program that are likest to a run, likest first.

    The last one may be the first of which telemetry knows; ``suits`` tells the same model.
    """
    nearest, program, own = [], _program(run), training_setup.of_run(run)
    for one in runs:
        if _program(one.plan) == program:
            differs = _differences(run, own, one)
            nearest.append(((not suits(one.plan), len(differs)), one, differs))
    found: list[MemoryTaken] = []
    for _, one, differs in sorted(nearest, key=lambda each: each[0])[:_MOST_LOOKED_AT]:
        if (taken := one.taken) is not None:
            found.append(replace(taken, differs=(*differs, *taken.differs)))
            if taken.node or taken.gpu:
                break
    return found


def _program(run: RunPlan) -> list[Any]:
    """Return the mark of a program: of a command its first words, without options, two at most."""
    entry, words = run.entry, run.entry.argv if run.entry.kind == "command" else ()
    named = [*itertools.takewhile(lambda word: not word.startswith("-"), words)][:2]
    return [entry.kind, entry.module, entry.function, entry.file, *(named or words[:1])]


def _differences(run: RunPlan, own: TrainingSetup, earlier: EarlierRun) -> tuple[str, ...]:
    """Return the differences between two runs on which memory may depend, in words."""
    found, other, its = [], earlier.plan, earlier.setup
    if _layout(other) != _layout(run):
        found.append(f"{_layout(other)} (now {_layout(run)})")
    if (its.micro, its.accumulation) != (own.micro, own.accumulation):
        batches = [f"{each.micro} x {each.accumulation}" for each in (its, own)]
        found.append(f"micro batch x accumulation {batches[0]} (now {batches[1]})")
    alike = replace(its, micro=own.micro, accumulation=own.accumulation, ranks=own.ranks)
    if replace(alike, notes=()) != replace(own, notes=()):
        found.append(f"{its}, {its.precision} (now {own}, {own.precision})")
    if other.resources.gpu_type != run.resources.gpu_type and run.resources.gpus_per_node:
        found.append(f"GPUs {other.resources.gpu_type} (now {run.resources.gpu_type})")
    before, now = without_seeds(other.config), without_seeds(run.config)
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if keys:
        found.append(f"other values of {listed([f'config.{key}' for key in keys], 4)}")
    if run.entry.kind == "command" and not keys and other.entry.argv != run.entry.argv:
        found.append("other arguments")
    return tuple(found)


def _layout(run: RunPlan) -> str:
    return f"{plural(run.nodes, 'node')} x {plural(run.ranks_per_node, 'rank')}"


def _larger(known: tuple[int, int] | None, sample: Any) -> tuple[int, int] | None:
    """Return the larger of what is known and of a sample; one that is not valid counts nothing."""
    if not isinstance(sample, dict) or wrong(sample, _MEMORY, tuple(_MEMORY)):
        return known
    used, total = sample["memory"], sample["memory_total"]
    return (used, total) if 0 < used <= total and (known is None or used > known[0]) else known
