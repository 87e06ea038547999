"""The space of a tuning, and its candidates: compiled, pruned where they cannot work, and ordered.

Nothing is started but the program that counts the model for `hpcrun.tools.estimate`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrun import activity, tools
from hpcrun.compile import Compiled, CompiledRun, compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.errors import HpcrunError, SpecError, UsageError
from hpcrun.policy import batch
from hpcrun.run.node import cgroup
from hpcrun.text import one_line, plural, short_ends, shortened, size
from hpcrun.tools.perf.on_nodes.trial_log import TrialCandidate

if TYPE_CHECKING:
    from hpcrun.tools.estimate.estimate import ShapeEstimate


MICRO = f"deepspeed.{batch.MICRO}"
STAGE = "deepspeed.zero_optimization.stage"
OFFLOAD = "deepspeed.zero_optimization.offload_optimizer.device"
# The blocks of a spec that differ between trials of one allocation.
BLOCKS = ("config", "deepspeed", "parallel")
# Values of a key that are tried where the user gives none, and combinations of all keys.
_MOST_MICROS, MOST = 6, 2_000
_SECTION = "zero_optimization"


@dataclass(frozen=True)
class SpaceKey:
    """A key, with ``+`` where it is added, and the values that are tried, as they are typed."""

    key: str
    values: tuple[str, ...]


def parse_space(words: Sequence[str]) -> list[SpaceKey]:
    """Return the keys of ``--space key=a,b``; a comma within brackets or quotes is a value's.

    Raises UsageError for what is no key with values, or a key that needs another allocation.
    """
    found: dict[str, SpaceKey] = {}
    for word in words:
        key, equals, text = word.partition("=")
        key = key.strip()
        values = tuple(dict.fromkeys(one.strip() for one in _split(text)))
        if not equals or not all(key.split(".")) or "" in values:
            raise UsageError(
                f"--space: found {word!r}; accepted is key=a,b",
                hint=f"such as --space {STAGE}=0,1,2",
            )
        if key.removeprefix("+").partition(".")[0] not in BLOCKS:
            raise UsageError(
                f"--space: found {key}; accepted are keys below {', '.join(BLOCKS)}: all trials "
                "share one allocation",
                hint="compare numbers of nodes with `hpcrun scaling SPEC --nodes 1,2,4`",
            )
        if key.removeprefix("+") in found:
            raise UsageError(f"--space: {key} is given twice", hint=f"once: --space {key}=a,b")
        found[key.removeprefix("+")] = SpaceKey(key, values)
    return list(found.values())


def _split(text: str) -> Iterator[str]:
    depth, quote, start = 0, "", 0
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        else:
            depth += (sign in "[{") - (sign in "]}")
        if sign == "," and depth == 0 and not quote:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def usual_space(run: CompiledRun) -> list[SpaceKey]:
    """Return the keys that are tried by default: micro batch, ZeRO stage, and offload on GPUs."""
    found = []
    train = run.deepspeed.get(batch.TRAIN)
    ranks = run.main_ranks
    if isinstance(train, int):
        share = max(1, train // ranks)
        micros = [one for one in range(1, share + 1) if share % one == 0]
        found.append(SpaceKey(MICRO, tuple(map(str, micros[-_MOST_MICROS:]))))
    found.append(SpaceKey(STAGE, ("0", "1", "2", "3")))
    if run.resources.gpus_per_node:
        found.append(SpaceKey(OFFLOAD, ("none", "cpu")))
    return found


def combinations(keys: Sequence[SpaceKey]) -> list[dict[str, str]]:
    """Return every combination, key -> value; raise UsageError for more than `MOST`."""
    number = 1
    for one in keys:
        number *= len(one.values)
    if number > MOST:
        raise UsageError(
            f"the space has {number:,} combinations; accepted are at most {MOST:,}",
            hint="give fewer values: --space key=a,b",
        )
    if number < 1 or not keys:
        raise UsageError("there is nothing to vary", hint=f"such as --space {STAGE}=0,1,2")
    names = [one.key for one in keys]
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(one.values for one in keys))
    ]


def space_text(keys: Sequence[SpaceKey]) -> str:
    """Return the space in one line."""
    shown = " x ".join(f"{one.key.rpartition('.')[2]} ({len(one.values)})" for one in keys)
    return f"{plural(len(combinations(keys)), 'combination')}: {shown}"


@dataclass(frozen=True)
class SpacePoint:
    """A combination of the space, and what became of it before any trial."""

    values: dict[str, str]
    """Key -> value, as typed."""
    run: CompiledRun | None
    pruned: str | None = None
    """Why it is not tried."""
    memory: float | None = None
    """Bytes that a rank is estimated to need, on its GPU or of its node."""

    @property
    def candidate(self) -> TrialCandidate:
        """What the ranks need of it."""
        assert self.run is not None
        deepspeed = self.run.deepspeed
        parallel = self.run.spec.get("parallel")
        without = {key: value for key, value in deepspeed.items() if key not in batch.KEYS}
        alike = json.dumps([self.run.config, without, parallel], sort_keys=True, default=str)
        micro = deepspeed.get(batch.MICRO)
        return TrialCandidate(
            dict(self.run.config),
            dict(deepspeed),
            parallel,
            alike,
            micro if isinstance(micro, int) else 1,
        )


def fixed_batch(run: CompiledRun) -> list[str]:
    """Return the overrides that keep a run's global batch as the micro batch varies."""
    train = run.deepspeed.get(batch.TRAIN)
    if not isinstance(train, int):
        raise UsageError(
            f"deepspeed.{batch.TRAIN} is not known before the program starts, and trials are "
            "compared at an equal global batch",
            hint=f"give it: deepspeed.{batch.TRAIN}=64",
        )
    return [f"deepspeed.{batch.TRAIN}={train}", f"deepspeed.{batch.ACCUMULATION}=auto"]


def compiled(
    spec: str,
    overrides: Sequence[str],
    values: Sequence[Mapping[str, str]],
    root: Path | None,
    base: Compiled,
) -> list[SpacePoint]:
    """Compile each combination; one that the compiler refuses is pruned with its words.

    The first is the spec as it is, with no values of its own unless it equals a combination.
    """
    first = base.runs[0]
    fixed = fixed_batch(first)
    found = [SpacePoint({}, first)]
    known: dict[str, int] = {_content(first): 0}
    for one in activity.count(list(values), "compiling combinations"):
        typed = [f"{key}={value}" for key, value in one.items()]
        try:
            run = compile_spec(spec, [*overrides, *fixed, *typed], root=root).runs[0]
        except HpcrunError as error:
            found.append(SpacePoint(dict(one), None, refusal(error)))
            continue
        content = _content(run)
        place = known.setdefault(content, len(found))
        if place == 0 and not found[0].values:
            found[0] = SpacePoint(dict(one), first)
        elif place < len(found):
            same = label(found[place].values) or "the spec as it is"
            found.append(SpacePoint(dict(one), run, f"the same as {same}"))
        else:
            found.append(SpacePoint(dict(one), run))
    return found


def estimated(found: Sequence[SpacePoint], base: Compiled) -> tuple[list[SpacePoint], str | None]:
    """Prune what does not fit by the memory model; return a note where that is not known."""
    if not tools.has("estimate"):
        return list(found), "nothing is pruned by its memory: hpcrun has no `estimate` here"
    from hpcrun.tools.estimate.estimate import Wishes, estimate

    open_ones = [place for place, one in enumerate(found) if one.pruned is None]
    runs = tuple(
        dataclasses.replace(run, identity=f"candidate-{place}")
        for place in open_ones
        if (run := found[place].run) is not None
    )
    together = dataclasses.replace(base, runs=runs)
    report = estimate(together, freeze(together), Wishes())
    if report.is_empty:
        problem = report.shapes[0].problem if report.shapes else None
        return list(found), f"nothing is pruned by its memory: {problem}"
    judged = list(found)
    limit = None if runs[0].resources.mem else _memory_here(base)
    unknown = False
    for shape in report.shapes:
        memory, reason = _judgement(shape, limit)
        unknown |= memory is None
        for number in shape.runs:
            place = open_ones[number]
            judged[place] = dataclasses.replace(found[place], memory=memory, pruned=reason)
    return judged, "of some the memory is not known" if unknown else None


def in_order(found: Sequence[SpacePoint]) -> list[int]:
    """Return the places of those to try: what moves less data first, then large micro batches.

    Those that divide the model alike stay together, as others take new ranks.
    """
    layouts: dict[str, int] = {}
    keys = {}
    for place, one in enumerate(found):
        if one.pruned is not None:
            continue
        candidate = one.candidate
        parallel = json.dumps(candidate.parallel, sort_keys=True, default=str)
        group = layouts.setdefault(parallel, len(layouts))
        block = candidate.deepspeed.get(_SECTION) or {}
        offloads = sum(
            str((block.get(name) or {}).get("device", "none")) != "none"
            for name in ("offload_optimizer", "offload_param")
        )
        stage = block.get("stage", 0)
        keys[place] = (group, offloads, stage == 3, -candidate.micro, stage, place)
    return sorted(keys, key=lambda place: keys[place])


def _judgement(shape: ShapeEstimate, limit: int | None) -> tuple[float | None, str | None]:
    """Return a rank's bytes, and why it does not fit, if it does not."""
    from hpcrun.tools.estimate.memory_formulas import with_context

    memory = shape.memory
    if memory is None:
        return None, None
    needs = memory.gpu.peak if shape.on_cpu else memory.on_gpu
    least = with_context(memory.at_least)
    # What may fit is tried.
    if shape.gpu is not None and least > shape.gpu.memory:
        has = size(int(shape.gpu.memory))
        return needs, f"needs {size(int(least))} of a GPU, by estimate; {shape.gpu.name} has {has}"
    of_node = (memory.host.peak + (memory.at_least if shape.on_cpu else 0)) * shape.ranks_per_node
    host = shape.host_memory or limit
    if host is not None and of_node > host:
        return needs, f"needs {size(int(of_node))} of a node, by estimate; it has {size(host)}"
    return needs, None


def _memory_here(base: Compiled) -> int | None:
    """Return the memory of this machine, where the trials run on it."""
    if not base.executor.queues:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return cgroup.numbers(Path("/proc/meminfo"))["MemTotal:"] * 1024
    return None


def label(values: Mapping[str, str]) -> str:
    """Return a combination's values in short."""
    bare = {key.removeprefix("+"): value for key, value in values.items()}
    names = short_ends(bare)
    return ",".join(f"{names[key]}={value}" for key, value in bare.items())


def _content(run: CompiledRun) -> str:
    parts = [run.config, run.deepspeed, run.spec.get("parallel")]
    return json.dumps(parts, sort_keys=True, default=str)


def refusal(error: HpcrunError) -> str:
    """Return the compiler's words in one line: of several problems the first."""
    problem = error.problems[0] if isinstance(error, SpecError) else None
    told = error.message if problem is None else f"{problem.key}: {problem.message}"
    return shortened(one_line(told), 300)
