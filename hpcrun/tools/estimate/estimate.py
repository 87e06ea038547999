"""Estimates an experiment: groups its runs by what they need, and asks and computes for each group.

It reads the history under the root and asks Slurm once what earlier jobs took, and once when the
largest job would start; nothing is written or submitted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcrun import activity, gpu_catalogue
from hpcrun.compile.freeze import Compiled
from hpcrun.compile.sweep import late_run
from hpcrun.errors import UsageError
from hpcrun.gpu_catalogue import Gpu
from hpcrun.observe.diagnosis.price_list import PriceList
from hpcrun.policy import batch
from hpcrun.site import slurm_records
from hpcrun.slurm import client, patience, queue, site_queries
from hpcrun.slurm.parse import parse_duration
from hpcrun.slurm.queue import LargestTask
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.state.spec.parallel_block import EXPERT, divided_axes, laid_out
from hpcrun.text import one_line, runs_text
from hpcrun.tools.estimate import (
    earlier_runs,
    fitting,
    memory_formulas,
    run_costs,
    training_setup,
)
from hpcrun.tools.estimate.earlier_runs import EarlierRun, MemoryTaken
from hpcrun.tools.estimate.fitting import Nearest, Setting
from hpcrun.tools.estimate.memory_formulas import Memory
from hpcrun.tools.estimate.model_facts import ModelFacts
from hpcrun.tools.estimate.model_source import ModelSource, sequence_length
from hpcrun.tools.estimate.run_costs import JobShape, RunCosts, TrainingPace
from hpcrun.tools.estimate.training_setup import TrainingSetup

_STEPS = ("total_steps", "max_steps", "num_steps", "train_steps", "num_train_steps", "steps")
# Jobs of one question to accounting.
_MOST_JOBS = 200


@dataclass(frozen=True)
class Wishes:
    """What was asked beside the spec."""

    gpu: str | None = None
    parameters: str | None = None
    fit: bool = False
    utilization: float = run_costs.UTILIZATION
    taken: bool = False
    """Look what earlier runs took of memory, and ask accounting."""


@dataclass(frozen=True)
class ShapeEstimate:
    """The estimate of runs that need the same."""

    runs: tuple[int, ...]
    label: str
    """The swept values that they share."""
    setup: TrainingSetup
    ranks_per_node: int
    nodes: int
    gpu: Gpu | None
    """None: its ranks use processors, or the spec does not say which GPU."""
    on_cpu: bool
    model: ModelFacts | None = None
    problem: str | None = None
    """Why the model is not known."""
    hint: str | None = None
    memory: Memory | None = None
    largest_micro: int | None = None
    """The largest micro batch that fits its GPU, 0 if none does; None if unknown."""
    fits: bool | None = None
    host_memory: int | None = None
    """Bytes that the job asks for on each node; None for the partition's default."""
    fits_host: bool | None = None
    settings: Sequence[Setting] = ()
    """All others, judged for --fit."""
    nearest: Nearest | None = None
    elsewhere: Sequence[tuple[str, bool]] = ()
    """GPUs of the catalogue, and whether it fits them, if the spec names none."""
    costs: RunCosts | None = None
    taken: MemoryTaken | None = None
    """The memory that the likest earlier run of the program took."""
    taken_note: str | None = None
    """Why accounting does not tell, where telemetry does not either."""
    notes: tuple[str, ...] = ()

    @property
    def took_fits_host(self) -> bool | None:
        """The memory of an earlier run's node fits what is asked now; None if unknown."""
        taken, asked = self.taken, self.host_memory
        if taken is None or asked is None:
            return None
        if taken.least > asked:
            return False
        return True if taken.node and taken.node[0] <= asked and taken.is_whole else None

    @property
    def took_fits_gpu(self) -> bool | None:
        """The same of a GPU."""
        taken, gpu = self.taken, self.gpu
        if taken is None or taken.gpu is None:
            return None
        used, total = taken.gpu
        # What a driver tells is some per cent more than what the data sheet says.
        fits = gpu is None or total <= 1.1 * gpu.memory or used <= gpu.memory
        return None if fits and not taken.is_whole else fits

    def to_data(self) -> dict[str, Any]:
        """Return plain data; unknown is null."""
        memory, taken = self.memory, None
        if self.taken is not None:
            fits = {"fits_host": self.took_fits_host, "fits_gpu": self.took_fits_gpu}
            taken = {**self.taken.to_data(), **fits}
        return {
            "runs": list(self.runs),
            "label": self.label,
            "setup": self.setup.to_data(),
            "nodes": self.nodes,
            "ranks_per_node": self.ranks_per_node,
            "gpu": None if self.gpu is None else self.gpu.to_data(),
            "model": None if self.model is None else self.model.to_data(),
            "problem": self.problem,
            "memory": None if memory is None else memory.to_data(),
            "fits": self.fits,
            "fits_host": self.fits_host,
            "largest_micro_batch": self.largest_micro,
            "settings": [one.to_data() for one in self.settings],
            "nearest": None if self.nearest is None else self.nearest.to_data(),
            "fits_on": dict(self.elsewhere),
            "costs": None if self.costs is None else self.costs.to_data(),
            "taken": taken,
            "taken_note": self.taken_note,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class EstimateReport:
    """The estimate of an experiment."""

    experiment: str
    cluster: str
    shapes: Sequence[ShapeEstimate]
    expected_start: float | None = None
    """Seconds since the epoch; None if unknown."""
    start_note: str | None = None
    """Why it is not known."""

    @property
    def is_empty(self) -> bool:
        """The model of no run is known, and no earlier one tells what it takes."""
        return all(one.model is None and one.taken is None for one in self.shapes)

    def to_data(self) -> dict[str, Any]:
        """Return plain data; unknown is null."""
        return {
            "experiment": self.experiment,
            "cluster": self.cluster,
            "shapes": [one.to_data() for one in self.shapes],
            "expected_start": self.expected_start,
            "start_note": self.start_note,
        }


def estimate(compiled: Compiled, plan: Plan, wishes: Wishes) -> EstimateReport:
    """Estimate all runs of an experiment.

    Raise UsageError for a GPU that the catalogue does not have, or a senseless number.
    """
    asked = gpu_catalogue.find(wishes.gpu) if wishes.gpu else None
    plan = replace(plan, runs=tuple(map(late_run.with_upper_bounds, plan.runs)))
    source = ModelSource(plan, compiled.sources, wishes.parameters)
    shapes: dict[str, list[ShapeEstimate]] = {}
    with activity.doing(f"making the model of {plan.name} in the job's Python, to count it"):
        for run in plan.runs:
            shape = _memory(plan, run, source, wishes, asked)
            needs = [run.spec["resources"], _steps(run), run.deepspeed.get(batch.TRAIN)]
            same = {**shape.to_data(), "runs": 0, "label": ""}
            key = json.dumps([needs, same], default=str)
            shapes.setdefault(key, []).append(shape)
    runs = {run.number: run for run in plan.runs}
    found: list[ShapeEstimate] = []
    with activity.doing("reading what earlier runs measured"):
        earlier = [*earlier_runs.submitted_runs(compiled.root, plan.name)]
        for group in shapes.values():
            numbers = tuple(number for one in group for number in one.runs)
            shape = replace(group[0], runs=numbers, label=_label([runs[one] for one in numbers]))
            found.append(_with_costs(earlier, plan, runs[numbers[0]], shape, source, wishes))
        nearest = [
            earlier_runs.memory(earlier, run, source.same_model(run))
            for run in (runs[one.runs[0]] for one in found if wishes.taken)
        ]
    if wishes.taken:
        found = _with_taken(found, nearest)
    start, note = _expected_start(plan)
    return EstimateReport(plan.name, str(plan.cluster.get("name")), found, start, note)


def _label(runs: Sequence[RunPlan]) -> str:
    """Return the swept values that all of these runs share."""
    shared = {
        key: value
        for key, value in runs[0].swept.items()
        if all(one.swept.get(key) == value for one in runs)
    }
    if len(runs) == 1:
        return runs[0].label
    return ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in shared.items())


def _memory(
    plan: Plan, run: RunPlan, source: ModelSource, wishes: Wishes, asked: Gpu | None
) -> ShapeEstimate:
    """Return the part of the estimate that the run's own plan decides."""
    notes: list[str] = []
    gpus = run.resources.gpus_per_node
    per_node = gpus or run.ranks_per_node
    setup = training_setup.of_run(run)
    if EXPERT in laid_out(run.spec.get("parallel")):
        notes.append("all experts are counted on each rank, and parallel.expert divides them")
    if "sequence" in divided_axes(run.spec.get("parallel")):
        notes.append("activations are those of whole sequences, which parallel.sequence divides")
    elif training_setup.whole(run.deepspeed.get("sequence_parallel_size")) > 1:
        notes.append("activations are those of whole sequences, which their ranks divide")
    gpu = asked or _own_gpu(plan, run, notes)
    on_cpu = not gpus and asked is None
    notes += setup.notes
    megabytes = slurm_records.megabytes(run.resources.mem)
    shape = ShapeEstimate(
        (run.number,),
        run.label,
        setup,
        per_node,
        run.nodes,
        gpu,
        on_cpu,
        host_memory=int(megabytes * 2**20) if megabytes else None,
        notes=tuple(notes),
    )
    try:
        model = source.of(run, setup.precision)
    except UsageError as error:
        return replace(shape, problem=error.message, hint=error.hint)
    return _judge(replace(shape, model=model), model, wishes)


def _judge(shape: ShapeEstimate, model: ModelFacts, wishes: Wishes) -> ShapeEstimate:
    """Add what fits."""
    setup, gpu, host = shape.setup, shape.gpu, shape.host_memory
    notes = [*shape.notes, *model.notes]
    memory = memory_formulas.rank_memory(model, setup)
    if memory.least is not None:
        notes.append(
            f"how {setup.model_ranks} ranks divide the model is not known "
            f"({_why(model, setup)}): it takes from even parts to whole activations, embedding and "
            "head on each rank, and what fits is judged by the most"
        )
    if memory.stage is not None:
        begun = memory_formulas.parts(model, setup)[memory.stage][0].in_flight
        notes.append(
            f"the figures are of stage {memory.stage + 1} of {setup.stages}, which holds most: of "
            f"{begun} micro batches at once"
        )
    if not memory.knows_activations:
        notes.append(
            "activations are not in it: give estimate.layers, hidden_size and sequence_length, or "
            "a function sample_batch(config, micro_batch) beside build_model"
        )
    of_rank = memory.host.peak + (memory.gpu.peak if shape.on_cpu else 0)
    fits_host = None if host is None else of_rank * shape.ranks_per_node <= host
    shape = replace(shape, memory=memory, fits_host=fits_host)
    if gpu is None:
        elsewhere: list[tuple[str, bool]] = []
        if not shape.on_cpu:
            elsewhere = [(one.name, fitting.fits(memory, one)) for one in gpu_catalogue.GPUS]
        if wishes.fit:
            notes.append("--fit needs a GPU: --gpu h100, or resources.gpu_type in the spec")
        return replace(shape, elsewhere=elsewhere, notes=tuple(dict.fromkeys(notes)))
    if setup.precision == training_setup.BF16 and not gpu.bf16:
        notes.append(f"{gpu.name} has no bf16 units: fp16 is what trains fast there")
    fits = fitting.fits(memory, gpu)
    settings: Sequence[Setting] = ()
    nearest = None
    if wishes.fit or not fits:
        settings = fitting.settings(model, setup, gpu, shape.ranks_per_node, host)
        nearest = fitting.nearest(model, settings, gpu, gpu_catalogue.GPUS)
    own = fitting.setting(model, setup, gpu, shape.ranks_per_node, host)
    return replace(
        shape,
        largest_micro=own.micro if own.memory.knows_activations else None,
        fits=fits,
        settings=settings,
        nearest=nearest,
        notes=tuple(dict.fromkeys(notes)),
    )


def _own_gpu(plan: Plan, run: RunPlan, notes: list[str]) -> Gpu | None:
    """Return the GPU of the spec or the profile, if the catalogue has it."""
    name = run.resources.gpu_type or (plan.cluster.get("resources") or {}).get("gpu_type")
    if not run.resources.gpus_per_node:
        return None
    if not name:
        notes.append("the spec does not say which GPU it gets: resources.gpu_type, or --gpu h100")
        return None
    try:
        gpu = gpu_catalogue.find(name, "resources.gpu_type")
    except UsageError as error:
        notes.append(f"{error.message}; {error.hint}")
        return None
    if gpu_catalogue.is_ambiguous(name):
        notes.append(f"{name} is taken as {gpu.name}, which is careful; --gpu says otherwise")
    return gpu


def _why(model: ModelFacts, setup: TrainingSetup) -> str:
    """Return why it is not known how ranks divide a model."""
    if setup.model_ranks > setup.tensor * setup.stages:
        return "it is the program's"
    if not model.sizes:
        return "the model is a number"
    if setup.stages > 1 and not model.stages:
        return "no torch.nn.Sequential was followed"
    return "the model has no tensor_parallel_plan, and its matrices are DeepSpeed's choice"


def _steps(run: RunPlan) -> int | None:
    block = run.spec.get("estimate") or {}
    given = [block.get("total_steps"), run.progress.total, *(run.config.get(one) for one in _STEPS)]
    return next((one for one in given if type(one) is int and one > 0), None)


def _with_taken(
    shapes: Sequence[ShapeEstimate], nearest: Sequence[Sequence[MemoryTaken]]
) -> list[ShapeEstimate]:
    """Add what earlier runs took, the likest that is known; accounting is asked once."""
    jobs = {job: mark for taken in nearest for one in taken for job, mark in one.jobs.items()}
    tasks: dict[str, LargestTask] = {}
    problem = None
    with activity.doing("asking Slurm what earlier runs took"), patience.reading():
        try:
            tasks = queue.largest_tasks(dict([*jobs.items()][:_MOST_JOBS]))
        except client.CommandFailed as error:
            problem = one_line(str(error))
    found = []
    for shape, taken in zip(shapes, nearest, strict=True):
        asked = [
            replace(one, largest=max(filter(None, map(tasks.get, one.jobs)), default=None))
            for one in taken
        ]
        best = next((one for one in asked if one.node or one.gpu or one.largest), None)
        note = None
        if problem and taken and taken[0].jobs and (best is None or best.node is None):
            note = f"what {taken[0].run} took of its nodes is not known: {problem}"
        found.append(replace(shape, taken=best, taken_note=note))
    return found


def _with_costs(
    earlier: Sequence[EarlierRun],
    plan: Plan,
    run: RunPlan,
    shape: ShapeEstimate,
    source: ModelSource,
    wishes: Wishes,
) -> ShapeEstimate:
    """Add time, hours, energy and money."""
    model, setup = shape.model, shape.setup
    if model is None:
        return shape
    length = model.sequence_length or sequence_length(run.config)
    samples = training_setup.global_batch(run.deepspeed, setup)
    tokens = samples * length if length else None
    notes = list(shape.notes)
    asked_other = wishes.gpu is not None
    pace, saved = TrainingPace(None, None, ""), None
    is_same = source.same_model(run)
    for found in earlier:
        if not is_same(found.plan):
            continue
        if saved is None and found.save_seconds is not None:
            saved = found.save_seconds, f"measured by {found.name}"
        if not asked_other and pace.step_seconds is None:
            pace = _measured_pace(found, run, setup, tokens) or pace
        if saved and pace.step_seconds:
            break
    if pace.step_seconds is None:
        pace = run_costs.assumed_pace(model, setup, shape.gpu, tokens, wishes.utilization)
    if pace.step_seconds is None:
        notes.append(
            "its speed is not known: no earlier run of the same model measured it"
            + ("" if shape.on_cpu else ", and GPU and tokens of a sample are needed to assume one")
        )
    if _steps(run) is None:
        notes.append("how many steps it makes is not known: estimate.total_steps")
    per_node = shape.ranks_per_node
    job = JobShape(
        nodes=run.nodes,
        gpus=0 if shape.on_cpu else run.all_nodes * max(per_node, run.resources.held_gpus),
        cpus=run.all_cpus,
        gpu_type=shape.gpu.name if asked_other and shape.gpu else run.resources.gpu_type,
        limit_seconds=parse_duration(run.resources.time),
        steps=_steps(run),
        tokens_per_step=tokens,
    )
    price = PriceList.of(plan.cluster)
    costs = run_costs.costs(model, setup, job, pace, price, shape.gpu, saved)
    return replace(shape, costs=costs, notes=tuple(dict.fromkeys(notes)))


def _measured_pace(
    found: EarlierRun, run: RunPlan, setup: TrainingSetup, tokens: int | None
) -> TrainingPace | None:
    """Return the pace of another run of the same model, on the same kind of device."""
    mine, its = run.resources, found.plan.resources
    alike = (bool(mine.gpus_per_node), mine.gpu_type) == (bool(its.gpus_per_node), its.gpu_type)
    measured, measured_rate = found.pace
    if measured is None or not alike:
        return None
    other = found.setup
    own, its_own = setup.micro * setup.accumulation, other.micro * other.accumulation
    step = measured * own / its_own
    said = f"measured by {found.name}"
    if replace(other, notes=()) != replace(setup, notes=()):
        said += f", which has {other.ranks} ranks x {its_own} samples and {other}"
    rate = tokens / step if tokens else None
    if rate is None and measured_rate is not None and own == its_own:
        rate = measured_rate * setup.ranks / other.ranks
    return TrainingPace(step, rate, said)


def _expected_start(plan: Plan) -> tuple[float | None, str | None]:
    """Return when the largest job would start, or why that is not known."""
    if plan.executor.is_here or not plan.arrays:
        return None, "it runs on this machine: nothing is queued"
    if not client.available():
        return None, "when it would start is not asked: there is no sbatch on PATH"
    runs = {run.number: run for run in plan.runs}
    largest = max(plan.arrays, key=lambda array: runs[array.runs[0]].all_nodes)
    with activity.doing("asking Slurm when it would start"):
        try:
            start = site_queries.start_time(site_queries.expected_start(largest.script))
        except client.CommandFailed as error:
            said = " ".join(str(error).split())
            return None, f"Slurm does not say when it would start: {said}; see `hpcrun check`"
    if start is None:
        return None, f"Slurm does not say when {runs_text(largest.runs)} would start"
    return start, None
