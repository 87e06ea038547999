"""``hpcrun plan``: compile, and print what would be submitted."""

from __future__ import annotations

import difflib
import itertools
import json
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from hpcrun import activity
from hpcrun.cli.options import Output, common, program_arguments
from hpcrun.cli.program_line import ProgramCommand
from hpcrun.errors import UsageError
from hpcrun.policy import batch, frameworks, resume
from hpcrun.slurm.parse import parse_duration
from hpcrun.state.plan import Entry, Plan, RunPlan
from hpcrun.state.role_plan import ROLES
from hpcrun.state.spec.parallel_block import divided_axes
from hpcrun.text import duration, listed, one_line, plural, runs_text

# Configurations that are compared, and the lines of two: the comparison takes their cube.
_MOST_SHOWN, _MOST_COMPARED = 100, 1_000
_MOST_COMMANDS, _MOST_KEYS = 12, 30
_CONFIG, _ABSENT = "config.", object()
# The blocks of a spec that `_shape` reads.
_SHAPING = ("resources", "deepspeed", "parallel", ROLES)


@click.command("plan", cls=ProgramCommand)
@program_arguments
@common
def command(spec: str, overrides: tuple[str, ...], sweeps: tuple[str, ...], output: Output) -> None:
    """Compile SPEC and print every run, its resources, the script and the DeepSpeed JSON.

    Pure: nothing is written, and neither Slurm nor the network is asked.
    """
    from hpcrun.compile.chain import in_order
    from hpcrun.compile.freeze import freeze
    from hpcrun.state import root_place
    from hpcrun.submission import most_hours

    chain = output.compiled(spec, overrides, sweeps)
    with activity.doing(f"rendering {plural(sum(len(one.runs) for one in chain), 'run')}"):
        *before, plan = in_order(chain, lambda one, waits: freeze(one, depends_on=waits))
    if above := most_hours.plans_above_limit((*before, plan)):
        output.say(f"submit asks first: {above}")
    try:
        root_place.check_not_earlier(chain[-1].root, chain[-1].name)
    except UsageError as error:
        output.say(f"submit refuses this: {error}")
    root = str(chain[-1].root)
    lacking = tell_unfrozen(plan, chain[-1].root, output)
    if output.json:
        commands = {run.number: _command(run, run.entry.argv) for run in plan.runs}
        more = {"root": root, "commands": commands, "unfrozen": lacking}
        output.data({**more, **plan.to_data()})
        return
    click.echo("\n".join(lines(plan, root, chain[-1].no_flags)))


def tell_unfrozen(plan: Plan, root: Path, output: Output) -> dict[str, Any] | None:
    """Say what the runs of a plan name that will not be in the frozen code; return it as data."""
    from hpcrun.state.layout import experiment
    from hpcrun.submission.code import unfrozen

    try:
        lacking = unfrozen.find(plan, experiment(root, plan.name))
    except UsageError as error:
        output.say(f"the code cannot be frozen: {error.message}")
        return None
    if lacking.paths:
        output.say(lacking.told)
    return lacking.to_data()


def lines(plan: Plan, root: str, no_flags: Collection[str] = ()) -> Iterator[str]:
    """Yield the lines of a plan; no value of the spec begins a line of its own."""
    yield from map(one_line, _head(plan, root))
    yield ""
    yield from _table([*_rows(plan.runs)])
    yield from _configuration(plan.runs)
    yield from _commands(plan, no_flags)
    yield from _roles(plan.runs)
    for index, array in enumerate(plan.arrays):
        if array.script:
            yield f"\n--- script {index}: {runs_text(array.runs)}"
            yield array.script.rstrip("\n")
    configurations: dict[str, list[int]] = {}
    # Most runs of a sweep share one, the same object.
    blocks = {id(run.spec["deepspeed"]): run.spec["deepspeed"] for run in plan.runs}
    texts = {place: json.dumps(block or {}, indent=2) for place, block in blocks.items()}
    for run in plan.runs:
        configurations.setdefault(texts[id(run.spec["deepspeed"])], []).append(run.number)
    (first, runs), *others = configurations.items()
    if first != "{}":
        yield f"\n--- DeepSpeed configuration of {runs_text(runs)}"
        yield first
    for text, runs in others[:_MOST_SHOWN]:
        yield f"\n--- DeepSpeed configuration of {runs_text(runs)}, where it differs"
        before, after = first.splitlines(), text.splitlines()
        if len(before) + len(after) > _MOST_COMPARED:
            yield f"({len(after):,} lines; --json has them)"
            continue
        yield from (line for line in difflib.ndiff(before, after) if line[:2] in ("- ", "+ "))
    if len(others) > _MOST_SHOWN:
        left = len(others) - _MOST_SHOWN
        yield f"\n--- {plural(left, 'more DeepSpeed configuration', ',')}; --json has them"


def _configuration(runs: Sequence[RunPlan]) -> Iterator[str]:
    """Yield each value of ``config``, and of the other blocks those that differ between runs."""
    compared = runs[:_MOST_COMPARED]
    leaves = _leaves("", [(run.spec, [place]) for place, run in enumerate(compared)])
    found: dict[str, dict[str, list[list[int]]]] = {}
    # In the order in which the runs have them, one run after the other.
    for key, value, places in sorted(leaves, key=lambda one: one[2][0]):
        text = json.dumps(value, ensure_ascii=False)
        found.setdefault(key, {}).setdefault(text, []).append(places)
    kept = {key: texts for key, texts in found.items() if len(texts) > 1 or key[:7] == _CONFIG}
    if kept:
        yield "\n--- configuration"
    differing_first = sorted(kept.items(), key=lambda item: len(item[1]) == 1)
    for key, texts in itertools.islice(differing_first, _MOST_KEYS):
        told = next(iter(texts))
        if len(texts) > 1:
            of_texts = (itertools.chain.from_iterable(groups) for groups in texts.values())
            numbers = ([compared[place].number for place in places] for places in of_texts)
            shown = [f"{text} ({runs_text(own)})" for text, own in zip(texts, numbers, strict=True)]
            told = listed(shown, 8)
        yield one_line(f"{key} = {told}")
    if len(kept) > _MOST_KEYS:
        yield f"{len(kept) - _MOST_KEYS:,} more; --json has them"


def _leaves(
    key: str, groups: Sequence[tuple[Any, list[int]]]
) -> Iterator[tuple[str, Any, list[int]]]:
    """Yield the values at and below a key, each with the places of the runs that have it.

    ``groups`` are the objects that runs have there, and the places of those that have each: most
    runs of a sweep share one. Outside of ``config`` only what may differ is yielded, and nothing of
    ``deepspeed``, which is shown by itself.
    """
    if key == "deepspeed" or (len(groups) == 1 and key and not f"{key}.".startswith(_CONFIG)):
        return
    blocks = [one for one in groups if isinstance(one[0], dict) and one[0]]
    yield from ((key, *one) for one in groups if not isinstance(one[0], dict) or not one[0])
    every = [place for _, places in blocks for place in places]
    for name in dict.fromkeys(itertools.chain.from_iterable(block for block, _ in blocks)):
        values = [block.get(name, _ABSENT) for block, _ in blocks]
        distinct = dict(zip(map(id, values), values, strict=True))
        inner = [(value, every) for value in distinct.values()]
        if len(inner) > 1:
            having: dict[int, list[int]] = {one: [] for one in distinct}
            for value, (_, places) in zip(values, blocks, strict=True):
                having[id(value)] += places
            having.pop(id(_ABSENT), None)
            inner = [(distinct[one], places) for one, places in having.items()]
        yield from _leaves(f"{key}.{name}" if key else name, inner)


def _command(run: RunPlan, argv: Sequence[str], program: Entry | None = None) -> list[str] | None:
    """Return what each rank executes; None for a function."""
    program = program or run.entry
    if program.kind == "function":
        return None
    python = str(run.environment.python) if run.container is None else run.container.python
    script = [] if program.file is None else [python, program.file]
    return [*script, *argv]


def _commands(plan: Plan, no_flags: Collection[str]) -> Iterator[str]:
    """Yield what the ranks of each run execute, as a shell would need it quoted."""
    commands: dict[tuple[str, ...], list[int]] = {}
    for run in plan.runs:
        if words := _command(run, run.entry.argv):
            commands.setdefault(tuple(words), []).append(run.number)
    if not commands:
        return
    yield "\n--- commands, one a rank"
    if no_flags:
        yield f"(no flags, as the command refers to them: {listed([*no_flags], 8)})"
    if left := _left_out(plan.runs, no_flags):
        yield f"(left out, as false or null: {listed(left, 8)}; the text 'False' would arrive)"
    for command_of, numbers in itertools.islice(commands.items(), _MOST_COMMANDS):
        yield one_line(f"{runs_text(numbers)}: {shlex.join(command_of)}")
    if len(commands) > _MOST_COMMANDS:
        yield f"{len(commands) - _MOST_COMMANDS:,} more; --json has them"
    first = plan.runs[0]
    if after := first.spec["recovery"]["hang_after"]:
        yield (
            f"(hung, and started again, after {after} in which no rank writes or computes: "
            "recovery.hang_after, null for never)"
        )
    found = resume.of_run(first)
    if found is None or first.entry.resumed is None:
        yield (
            "(begins over from attempt 2 on, unless the program finds what it saved by itself: "
            "recovery.resume says how)"
        )
        return
    there = f"where {' or '.join(found.when)} exists" if found.when else "once something was saved"
    yield ""
    yield one_line(f"--- a command that resumes, from attempt 2 on, {there}")
    words = _command(first, first.entry.resumed) or []
    yield one_line(f"{runs_text([first.number])}: {shlex.join(words)}")


def _roles(runs: Sequence[RunPlan]) -> Iterator[str]:
    """Yield the roles of the runs, and what the ranks of each execute."""
    found: dict[tuple[str, ...], list[int]] = {}
    for run in runs if runs[0].role_plans else ():
        lines = []
        for role in run.role_plans:
            program = role.entry or run.entry
            words = _command(run, program.argv, program) or [f"{program.module}:{program.function}"]
            lines.append(one_line(f"{role.name}: {role.described}: {shlex.join(words)}"))
        found.setdefault(tuple(lines), []).append(run.number)
    for lines_of, numbers in itertools.islice(found.items(), _MOST_COMMANDS):
        yield f"\n--- roles of {runs_text(numbers)}"
        yield from lines_of
    if len(found) > _MOST_COMMANDS:
        yield f"\n{len(found) - _MOST_COMMANDS:,} more; --json has them"


def _left_out(runs: Sequence[RunPlan], no_flags: Collection[str]) -> list[str]:
    """Return the keys of ``config`` that are no flags in some run, as their value is false."""
    is_left_out = {id(None), id(False)}
    found = {
        f"config.{name}": None
        for run in runs
        if run.spec["flags"].startswith("--")
        if not is_left_out.isdisjoint(map(id, run.config.values()))
        for name, value in run.config.items()
        if value is None or value is False
    }
    return [name for name in found if name not in no_flags]


def _head(plan: Plan, root: str) -> Iterator[str]:
    yield f"experiment  {plan.name}"
    yield f"spec        {'made of the command line' if plan.is_typed else plan.spec_file}"
    yield f"code        {plan.code_root}"
    yield f"cluster     {plan.cluster['name']} ({plan.executor.name})"
    yield f"root        {root}"
    if (container := plan.runs[0].container) is not None:
        image = container.image or container.command[0]
        yield f"container   {image} ({container.runtime}), for the ranks"
    if plan.runs[0].environment.is_frozen:
        from hpcrun.submission.environment import environment_freeze

        yield f"environment {environment_freeze.description(plan.runs[0])}"
    for one in plan.depends_on:
        yield f"after       {one.experiment} {runs_text(one.runs)} ({one.when})"
    yield f"summary     {summary(plan)}"


def summary(plan: Plan) -> str:
    """Return a line such as ``4 runs in 1 array, at most 16 GPU-hours``."""
    runs = sum(len(array.runs) for array in plan.arrays)
    where = f"in {plan.shapes}" if plan.executor.queues else "on this machine"
    parallel = f", at most {plan.max_parallel} at once" if plan.max_parallel else ""
    return f"{plural(runs, 'run')} {where}{parallel}, {plan.most_hours}"


def _rows(runs: Sequence[RunPlan]) -> Iterator[list[str]]:
    shapes: dict[tuple[int, ...], list[str]] = {}
    for run in runs:
        # Most runs of a sweep share these, the same objects.
        shared = tuple(id(run.spec.get(name)) for name in _SHAPING)
        if shared not in shapes:
            shapes[shared] = _shape(run)
        yield [str(run.number), run.label, *shapes[shared]]


def _shape(run: RunPlan) -> list[str]:
    """Return the shape of a run's job, its time and its global batch."""
    gpus = run.resources.gpus_per_node
    on = f" on {plural(gpus, 'GPU')} each" if gpus else ""
    spares = f" (and {run.spare_nodes} spare)" if run.spare_nodes else ""
    one = "task" if run.spec.get("framework") == frameworks.BATCH else "rank"
    where = f"{plural(run.nodes, 'node')}{spares} x {plural(run.ranks_per_node, one)}{on}"
    if roles := run.role_plans:
        ranks = f"{plural(run.world_size, 'rank')} of {plural(len(roles), 'role')}"
        where = f"{plural(run.nodes, 'node')}{spares}{on}, {ranks}"
    config = run.deepspeed
    product = ""
    if all(isinstance(config.get(key), int) for key in batch.KEYS):
        train, micro, accumulation = (config[key] for key in batch.KEYS)
        product = f"batch {train} = micro {micro} x accumulation {accumulation}"
        if axes := divided_axes(run.spec.get("parallel")):
            product += f" x data {train // (micro * accumulation)} ("
            product += ", ".join(f"{axis} {size}" for axis, size in axes.items()) + ")"
    return [where, _time(run.resources.time), product]


def _time(text: str) -> str:
    """Return a time limit, with what Slurm reads it as where that is not written out."""
    seconds = parse_duration(text)
    is_plain = seconds is None or text.count(":") == 2 or "-" in text
    return text if is_plain else f"{text} ({duration(seconds or 0)})"


def _table(rows: list[list[str]]) -> Iterator[str]:
    table = [["run", "swept", "shape", "time", ""], *([*map(one_line, row)] for row in rows)]
    used = [index for index in range(5) if any(row[index] for row in rows)]
    width = {index: max(len(row[index]) for row in table) for index in used}
    for row in table:
        yield "  ".join(row[index].ljust(width[index]) for index in used).rstrip()
