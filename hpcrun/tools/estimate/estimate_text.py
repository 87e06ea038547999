"""An estimate as text: a table of several shapes, or all about one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcrun.observe.diagnosis.price_list import money_text
from hpcrun.observe.tables import Table
from hpcrun.text import duration, hours_text, plural, runs_text, size
from hpcrun.tools.estimate.earlier_runs import MemoryTaken
from hpcrun.tools.estimate.estimate import EstimateReport, ShapeEstimate
from hpcrun.tools.estimate.fitting import Setting
from hpcrun.tools.estimate.memory_formulas import Held, with_context

_NAMES = ("parameters", "gradients", "optimizer", "buffers", "gathered", "activations")
# Less of what there is, and the rest is told.
_LITTLE = 0.6
_WORDS = {
    "optimizer": "optimizer states, master weights",
    "gathered": "parameters gathered for layers",
    "buffers": "communication buckets, buffers",
}


def count_text(number: float) -> str:
    """``7.50 B``, ``350 M``, ``12.3 k``."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number:.0f}"


def overview(report: EstimateReport) -> Table:
    """Return a row for each shape."""
    headers = ["RUNS", "SHAPE", "SETTING", "RANKS", "MEMORY", "FITS", "MICRO<=", "STEP"]
    headers += ["HOURS", "MONEY", "CHECKPOINT"]
    table = Table(headers, right=frozenset(headers[3:]), spare=("CHECKPOINT", "STEP", "SETTING"))
    for one in report.shapes:
        costs, memory = one.costs, one.memory
        cells = [""] * 7
        if memory is not None:
            largest = one.largest_micro
            cells[:3] = [_needed(one), _fits(one), "" if largest is None else str(largest)]
        if costs is not None:
            hours = costs.hours if costs.hours is not None else costs.limit_hours
            money = costs.money if costs.hours is not None else costs.limit_money
            most = "" if costs.hours is not None else "<= "
            step = costs.pace.step_seconds
            cells[3:] = [
                "" if step is None else f"{step:.3g} s",
                "" if hours is None else f"{most}{hours_text(hours)}",
                "" if money is None else most + money_text(money, costs.currency),
                size(round(costs.checkpoint_bytes)),
            ]
        numbers = runs_text(one.runs).partition(" ")[2]
        ranks = str(one.setup.ranks * one.setup.model_ranks)
        table.add(numbers, one.label, str(one.setup), ranks, *cells)
    return table


def lines(one: ShapeEstimate) -> Iterator[str]:
    """Yield all about one shape."""
    yield _head(one)
    yield from _earlier_lines(one)
    if one.model is None or one.memory is None:
        yield f"  {one.problem}"
        if one.hint:
            yield f"  hint: {one.hint}"
        return
    model = one.model
    frozen = f", {count_text(model.frozen)} of them frozen" if model.frozen else ""
    tied = f"; tied parameters ({model.tied}) count once" if model.tied else ""
    yield f"  model: {count_text(model.parameters)} parameters{frozen} ({model.source}{tied})"
    yield from _memory(one)
    yield from _fitting(one)
    yield from _costs(one)
    for note in one.notes:
        yield f"  note: {note}"


def _earlier_lines(one: ShapeEstimate) -> Iterator[str]:
    """Yield what an earlier run took, and what follows for what is asked now."""
    taken = one.taken
    if one.taken_note:
        yield f"  {one.taken_note}"
    if taken is None:
        return
    shape = f"{plural(taken.nodes, 'node')} x {plural(taken.ranks_per_node, 'rank')}"
    micro = "" if taken.micro is None else f", {taken.setup}, micro batch {taken.micro}"
    ended = ", ran out of memory" if taken.ran_out else ""
    cut = "; of its telemetry the newest part was read" if taken.is_cut else ""
    yield f"  measured by {taken.run}: {shape}{micro}{ended}{cut}"
    if taken.differs:
        yield f"    other than now: {'; '.join(taken.differs)}"
    if taken.node is not None:
        whose = "" if taken.is_of_job else ", with all else that ran there"
        yield f"    memory of a node: {_part(taken.node)}{whose}"
    if taken.largest is not None:
        most, step = taken.largest
        yield f"    largest task: {size(most)} (sacct's MaxRSS of {step})"
    if taken.gpu is not None:
        yield f"    memory of a GPU: {_part(taken.gpu)}"
    yield from (f"    {line}" for line in _following(one, taken))


def _part(taken: tuple[int, int]) -> str:
    return f"{size(taken[0])} of {size(taken[1])} at most"


def _following(one: ShapeEstimate, taken: MemoryTaken) -> Iterator[str]:
    """Yield what does not fit, and what of as much was never used."""
    is_alike, asked, node, gpu = not taken.differs, one.host_memory or 0, taken.node, taken.gpu
    if one.took_fits_host is False:
        more = f"more than resources.mem asks now, {size(asked)}"
        yield f"{more}: it would not fit as it ran; resources.mem={_roomy(taken.least)} has room"
    elif one.took_fits_host and is_alike and node and node[0] < _LITTLE * asked:
        never = f"{size(asked - node[0])} of resources.mem, {size(asked)}, were never used"
        yield f"{never}; resources.mem={_roomy(node[0])} has room"
    if one.took_fits_gpu is False and one.gpu is not None:
        yield f"more than {one.gpu.name} has, {size(one.gpu.memory)}: it would not fit as it ran"
    elif one.took_fits_gpu and is_alike and gpu and gpu[0] < _LITTLE * gpu[1]:
        batch = "batch" if taken.micro is None else "deepspeed.train_micro_batch_size_per_gpu"
        yield f"{size(gpu[1] - gpu[0])} of a GPU were never used; a larger {batch} may fit"


def _roomy(used: int) -> str:
    """Return a quarter more memory than was used, as Slurm's ``mem`` has it."""
    return f"{-(-used * 5 // (4 << 30))}G"


def taken_of_all(report: EstimateReport) -> Iterator[str]:
    """Yield a line for each shape of which a measurement tells more than its row."""
    for one in report.shapes:
        if one.taken and (one.model is None or any(_following(one, one.taken))):
            told = "; ".join(line.strip() for line in _earlier_lines(one))
            yield f"{runs_text(one.runs)}: {told}"


def _head(one: ShapeEstimate) -> str:
    setup = one.setup
    devices = plural(one.ranks_per_node, "rank" if one.on_cpu else "GPU")
    if one.gpu is not None:
        devices = f"{one.ranks_per_node} {one.gpu.name}"
    shape = f"{plural(one.nodes, 'node')} x {devices}"
    label = f" ({one.label})" if one.label else ""
    return (
        f"{runs_text(one.runs)}{label}: {shape}; {setup}, {setup.precision}, {setup.optimizer}, "
        f"micro batch {setup.micro} x accumulation {setup.accumulation}"
    )


def _needed(one: ShapeEstimate) -> str:
    """Return the memory that a rank needs: a figure, or the least and the most."""
    memory = one.memory
    assert memory is not None
    needed = memory.gpu.peak if one.on_cpu else memory.on_gpu
    if memory.least is None:
        return size(round(needed))
    least = memory.least if one.on_cpu else with_context(memory.least)
    return f"{size(round(least))} to {size(round(needed))}"


def _fits(one: ShapeEstimate) -> str:
    if one.fits is None:
        return {None: "?", True: "yes", False: "no"}[one.fits_host if one.on_cpu else None]
    if one.fits and one.fits_host is False:
        return "not the node"
    return "yes" if one.fits else "no"


def _memory(one: ShapeEstimate) -> Iterator[str]:
    memory = one.memory
    assert memory is not None
    if one.on_cpu:
        yield f"  memory of a rank, in its node's: {_needed(one)}"
    elif one.gpu is None:
        yield f"  memory of a GPU: {_needed(one)}"
    else:
        verdict = "fits" if one.fits else "does not fit"
        yield f"  memory of a GPU: {_needed(one)} of {size(one.gpu.memory)}: {verdict}"
    yield from _memory_lines(memory.gpu)
    if not one.on_cpu:
        own = memory.on_gpu - memory.gpu.peak
        yield f"    {size(round(own)):>8}  CUDA, NCCL, fragmentation (a guess)"
    if memory.host.peak:
        yield f"  memory of a rank in its node's, by offload: {size(round(memory.host.peak))}"
        yield from _memory_lines(memory.host)
    if memory.nvme:
        yield f"  on NVMe, of a rank: {size(round(memory.nvme))}"
    of_node = memory.host.peak + (memory.gpu.peak if one.on_cpu else 0)
    if of_node:
        total = size(round(of_node * one.ranks_per_node))
        if one.host_memory is None:
            asked = "resources.mem does not say how much the job gets"
        else:
            fits = "fits" if one.fits_host else "does not fit"
            asked = f"{fits} resources.mem, {size(one.host_memory)}"
        yield f"  memory of a node: {total}; {asked}"


def _memory_lines(held: Held) -> Iterator[str]:
    in_step = held.step > held.backward
    for name in _NAMES:
        value = getattr(held, name)
        if value and not (in_step and name in ("gradients", "gathered", "activations")):
            yield f"    {size(round(value)):>8}  {_WORDS.get(name, name)}"
    if in_step:
        yield f"    {size(round(held.stepping)):>8}  gradients as the optimizer steps, the most"


def _fitting(one: ShapeEstimate) -> Iterator[str]:
    gpu = one.gpu
    if gpu is None:
        if one.elsewhere:
            good = [name for name, fits in one.elsewhere if fits]
            yield f"  fits on: {', '.join(good) or 'no GPU of the catalogue'}"
        return
    if one.largest_micro:
        yield f"  largest micro batch: {one.largest_micro} (now {one.setup.micro})"
    if any(each.fits for each in one.settings):
        yield f"  settings that fit {gpu.name}, what moves least data first:"
        yield from (f"    {row}" for row in _settings(one.settings).plain().splitlines())
    yield from (f"  {line}" for line in nearest_lines(one))


def nearest_lines(one: ShapeEstimate) -> Iterator[str]:
    """Yield what comes nearest where nothing fits."""
    near = one.nearest
    if near is None or one.gpu is None:
        return
    yield f"nothing fits {one.gpu.name}; nearest is {near.setting.setup}, micro batch 1:"
    if near.short:
        yield f"  a GPU lacks {size(round(near.short))}"
    if not near.setting.host_fits:
        node = size(round(near.setting.host_per_node))
        yield f"  a node would hold {node}, more than resources.mem"
    if near.ranks is not None and near.ranks > one.setup.ranks * one.setup.model_ranks:
        yield f"  it fits with {near.ranks:,} GPUs"
    if near.gpus:
        yield f"  it fits on {', '.join(near.gpus)}"


def _settings(settings: Sequence[Setting]) -> Table:
    right = frozenset({"MICRO<=", "GPU", "NODE"})
    table = Table(["SETTING", "MICRO<=", "GPU", "NODE", "FITS"], right=right)
    for one in settings:
        table.add(
            str(one.setup),
            str(one.micro) if one.memory.knows_activations and one.micro else "",
            size(round(one.memory.on_gpu)),
            size(round(one.host_per_node)) if one.host_per_node else "",
            "yes" if one.fits else "no" if not one.micro else "not the node",
        )
    return table


def _costs(one: ShapeEstimate) -> Iterator[str]:
    costs = one.costs
    if costs is None:
        return
    saves = duration(costs.save_seconds) if costs.save_seconds >= 1 else "less than a second"
    yield (
        f"  checkpoint: {size(round(costs.checkpoint_bytes))}; a save takes {saves} "
        f"({costs.save_source})"
    )
    pace = costs.pace
    if pace.step_seconds is not None:
        rate = pace.tokens_per_second
        tokens = f", {rate:,.0f} tokens/s" if rate is not None else ""
        yield f"  speed: {pace.step_seconds:.3g} s a step{tokens} ({pace.source})"
    each = "each run" if len(one.runs) > 1 else "the run"
    if costs.hours is not None and costs.seconds is not None and costs.steps is not None:
        parts = [f"{hours_text(costs.hours)} {costs.unit}"]
        if costs.energy_kwh is not None:
            parts.append(f"{hours_text(costs.energy_kwh)} kWh (at {costs.energy_source})")
        if costs.money is not None:
            parts.append(money_text(costs.money, costs.currency))
        yield (
            f"  {each}: {costs.steps:,} steps in {duration(costs.seconds)} of training: "
            + ", ".join(parts)
        )
        if costs.starts is not None and costs.starts > 1:
            yield (
                f"    that is {costs.starts} starts of {duration(costs.limit_seconds or 0)}, its "
                "time limit"
            )
    if costs.limit_hours is not None:
        money = ""
        if costs.limit_money is not None:
            money = f", {money_text(costs.limit_money, costs.currency)}"
        most = f"{hours_text(costs.limit_hours)} {costs.unit}{money}"
        yield f"  one start, at most, by its time limit: {most}"
    if len(one.runs) > 1 and costs.hours is not None:
        total = costs.hours * len(one.runs)
        money = ""
        if costs.money is not None:
            money = f", {money_text(costs.money * len(one.runs), costs.currency)}"
        yield f"  all {len(one.runs)} runs: {hours_text(total)} {costs.unit}{money}"


def total(report: EstimateReport) -> str | None:
    """Return the hours and the money of all runs together; None if some are not known."""
    hours: dict[str, float] = {}
    money, currency, counted = 0.0, "", True
    for one in report.shapes:
        costs = one.costs
        if costs is None or costs.hours is None:
            return None
        hours[costs.unit] = hours.get(costs.unit, 0.0) + costs.hours * len(one.runs)
        counted = counted and costs.money is not None
        money += (costs.money or 0) * len(one.runs)
        currency = costs.currency
    told = " and ".join(f"{hours_text(value)} {unit}" for unit, value in hours.items())
    return told + (f", {money_text(money, currency)}" if counted else "")


def nearest_of_all(report: EstimateReport) -> Iterator[str]:
    """Yield a line for each shape of several that fits in no way."""
    for one in report.shapes:
        first, *more = [*nearest_lines(one)] or [""]
        if first:
            yield f"{runs_text(one.runs)}: {first} {'; '.join(line.strip() for line in more)}"


def notes(report: EstimateReport) -> list[str]:
    """Return the notes of all shapes, once each, and the problems of those not known."""
    found: list[str] = []
    for one in report.shapes:
        if one.problem:
            hint = one.hint or "see `hpcrun help estimates`"
            found.append(f"not estimated: {one.problem}\nhint: {hint}")
        found += one.notes
    return [*dict.fromkeys(found)]
