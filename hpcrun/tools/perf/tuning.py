"""A tuning: candidates, the run that tries them, and the result."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpcrun.compile import Compiled, CompiledRun, compile_spec
from hpcrun.errors import HpcrunError
from hpcrun.policy import batch
from hpcrun.slurm.parse import parse_duration
from hpcrun.state.patched import Patched
from hpcrun.text import Say, brief, duration, plural, size
from hpcrun.tools.perf import trial_candidates, trial_run, written_file
from hpcrun.tools.perf.on_nodes import trial_log
from hpcrun.tools.perf.on_nodes.trial_log import TrialPlan, TrialRecord, TrialScore
from hpcrun.tools.perf.trial_candidates import SpacePoint

NAME = "tune"
# The part of a job's time limit that trials may take.
_OF_LIMIT = 0.9
_SPEC_MARK = "# Written by hpcrun tune"


@dataclass(frozen=True)
class TuneWishes:
    """What was asked beside the spec."""

    spec: str
    overrides: tuple[str, ...]
    space: tuple[str, ...]
    root: Path | None
    seconds: float | None = None
    """The time for all trials; None for what the job's time limit allows."""
    out: str | None = None
    """The path of the spec to write."""


@dataclass
class Tuning:
    """A tuning; `Tuning.try_all` makes the trials."""

    base: Compiled
    combinations: list[SpacePoint]
    order: list[int]
    """Places of the combinations that are tried."""
    path: Path
    """Of the spec to write."""
    notes: list[str]
    scores: dict[int, TrialScore] = field(default_factory=dict)
    """Place of a combination -> its score."""
    run: str | None = None
    """``NAME/3``."""
    seconds: float | None = None
    """From the submission to the end of the trials."""
    interrupted: bool = False
    left: tuple[str, ...] = ()
    """Jobs that an interrupt has left behind."""
    completed: bool = True
    written: bool = False

    @property
    def best(self) -> int | None:
        """The place of the fastest combination."""
        places = list(self.scores)
        found = trial_log.best([self.scores[place] for place in places])
        return None if found is None else places[found]

    @property
    def slowdown(self) -> float | None:
        """How many times as long as the fastest the spec as it is takes; None if not measured."""
        place, own = self.best, self.scores.get(0)
        if place is None or own is None or not (own.is_final and own.step_seconds):
            return None
        return own.step_seconds / (self.scores[place].step_seconds or math.inf)

    @property
    def train(self) -> int:
        """Samples of an optimizer step."""
        return int(self.base.runs[0].deepspeed[batch.TRAIN])

    def try_all(self, wishes: TuneWishes, argv: Sequence[str], say: Say) -> None:
        """Make the trials, and write the spec of the fastest unless interrupted."""
        order = self.order
        plan = TrialPlan(
            tuple(self.combinations[place].candidate for place in order),
            seconds=self._budget(wishes),
            baseline=order.index(0) if 0 in order else None,
        )
        run = trial_run.with_trials(self.base.runs[0], plan, NAME)
        compiled = dataclasses.replace(
            self.base, name=f"{self.base.name}-{NAME}", runs=(run,), prerequisites=()
        )

        def told(_: int, record: TrialRecord) -> None:
            quiet = (trial_log.BEGAN, trial_log.SKIPPED)
            if record.outcome not in quiet and record.candidate < len(order):
                say(self._line(order[record.candidate], record))

        began = time.monotonic()
        done = trial_run.bring_to_end(compiled, argv, say, told)
        self.seconds = time.monotonic() - began
        self.interrupted, self.completed = done.interrupted, done.completed
        self.left = done.left
        self.run = f"{done.experiment.name}/{done.numbers[0]}"
        scores = trial_log.scores(done.records[0], len(order))
        self.scores = dict(zip(order, scores, strict=True))
        if self.best is not None and not self.interrupted:
            self._write(wishes)

    def status(self, place: int) -> str:
        """Return the fate of a combination, in words."""
        one, score = self.combinations[place], self.scores.get(place)
        if one.pruned is not None:
            return f"not tried: {one.pruned}"
        if score is None:
            return ""
        if not score.records:
            return "not tried: the trials did not come so far"
        if score.records[-1].outcome == trial_log.SKIPPED:
            return f"not tried: {brief(score.records[-1].reason or '')}"
        if score.failure is not None:
            kind = (score.failure.kind or "failed").replace("_", " ")
            return f"{kind}: {brief(score.failure.reason)}" if score.failure.reason else kind
        if place == self.best:
            return "fastest"
        if score.is_final:
            return "measured again"
        return "ended early: slower" if score.is_slower else "slower"

    def to_data(self) -> dict[str, Any]:
        """Return plain data; unknown is null."""
        return {
            "experiment": f"{self.base.name}-{NAME}",
            "run": self.run,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "train_batch_size": self.train,
            "spec": str(self.path) if self.written else None,
            "best": None if self.best is None else self._row(self.best),
            "candidates": [self._row(place) for place in self.ranked()],
            "notes": self.notes,
        }

    def ranked(self) -> list[int]:
        """Return the places of all combinations, the fastest first, those not tried last."""

        def key(place: int) -> tuple[Any, ...]:
            score = self.scores.get(place)
            seconds = None if score is None else score.step_seconds
            tried = place in self.order
            order = self.order.index(place) if tried else place
            is_final = score is not None and score.is_final
            return (not tried, seconds is None, not is_final, seconds or 0.0, order)

        return sorted(range(len(self.combinations)), key=key)

    def _row(self, place: int) -> dict[str, Any]:
        one, score = self.combinations[place], self.scores.get(place)
        seconds = None if score is None else score.step_seconds
        return {
            "label": self.label(place),
            "values": one.values,
            "step_seconds": seconds,
            "steps": [] if score is None else list(score.steps),
            "samples_per_second": self.train / seconds if seconds else None,
            "confirmed": score is not None and score.is_final,
            "estimated_bytes": None if one.memory is None else round(one.memory),
            "peak_bytes": None if score is None else score.peak_bytes,
            "pruned": one.pruned,
            "status": self.status(place),
        }

    def label(self, place: int) -> str:
        """Return a combination's values in short, and which is the spec as it is."""
        told = trial_candidates.label(self.combinations[place].values)
        return f"{told} (as it is)" if told and place == 0 else told or "as it is"

    def _line(self, place: int, record: TrialRecord) -> str:
        what = f"{self.label(place)}: "
        if record.outcome == trial_log.FAILED:
            kind = (record.kind or "failed").replace("_", " ")
            return what + kind + (f", {brief(record.reason)}" if record.reason else "")
        seconds = record.step_seconds or 0.0
        more = ", ended early" if record.outcome == trial_log.SLOWER else ""
        more = ", again" if record.round == trial_log.FINAL else more
        return f"{what}{seconds:.4g} s a step{more}"

    def _budget(self, wishes: TuneWishes) -> float:
        limit = parse_duration(self.base.runs[0].resources.time)
        allowed = math.inf if limit is None else limit * _OF_LIMIT
        return min(allowed, wishes.seconds if wishes.seconds is not None else math.inf)

    def _write(self, wishes: TuneWishes) -> None:
        place = self.best
        assert place is not None
        one = self.combinations[place]
        assert one.run is not None
        tried = sum(bool(score.steps) for score in self.scores.values())
        took = duration(self.seconds or 0.0)
        comments = [f"{self.run}: {plural(tried, 'configuration')} measured in {took}."]
        comments += [f"{self.figures(place)}: {self.label(place)}."]
        if place != 0 and self.slowdown is not None:
            comments.append(f"{self.figures(0)}: the spec as it was.")
        content = spec_text(self.path, self.base, wishes.overrides, one.values, one.run, comments)
        write_spec(self.path, content, one.run, self.base.root)
        self.written = True

    def figures(self, place: int) -> str:
        """Return a combination's step time and its spread, and samples a second."""
        score = self.scores[place]
        seconds, steps = score.step_seconds, score.steps
        assert seconds is not None
        told = f"{seconds:.4g} s a step (median of {len(steps)}, {min(steps):.4g} to "
        told += f"{max(steps):.4g}), {self.train / seconds:,.4g} samples/s"
        if score.peak_bytes is not None:
            told += f", {size(score.peak_bytes)} of a GPU"
        return told


def plan(wishes: TuneWishes, say: Say) -> Tuning:
    """Compile, prune and order the candidates; nothing is tried or written yet.

    Raises
    ------
    UsageError
        The program cannot be tried, the space is wrong, or nothing of it can be tried.
    """
    given = trial_candidates.parse_space(wishes.space)
    base = compile_spec(wishes.spec, wishes.overrides, root=wishes.root)
    notes = list(base.notes)
    if len(base.runs) > 1:
        notes.append(f"the spec has {plural(len(base.runs), 'run')}; the first is tuned")
        base = dataclasses.replace(base, runs=base.runs[:1])
    trial_run.check(base)
    path = spec_place(wishes.spec, base, wishes.out)
    keys = given or trial_candidates.usual_space(base.runs[0])
    values = trial_candidates.combinations(keys)
    say(trial_candidates.space_text(keys))
    found = trial_candidates.compiled(wishes.spec, wishes.overrides, values, wishes.root, base)
    found, note = trial_candidates.estimated(found, base)
    notes += [note] if note else []
    order = trial_candidates.in_order(found)
    if not order:
        raise HpcrunError("no combination is left to try", hint=found[0].pruned)
    return Tuning(base, found, order, path, notes)


def spec_place(spec: str, base: Compiled, wanted: str | None) -> Path:
    """Return the path of the spec to write: beside SPEC, or here where that ships with hpcrun.

    Raises UsageError if a file is there that no tuning wrote, or the directory is missing.
    """
    if wanted is not None:
        path = Path(wanted).absolute()
    elif os.path.realpath(spec) == base.file:
        own = Path(spec)
        path = own.with_name(f"{own.stem}.tuned.yaml").absolute()
    else:
        path = Path.cwd() / f"{base.name}.tuned.yaml"
    written_file.check(path, _SPEC_MARK, "tune")
    return path


def spec_text(
    path: Path,
    base: Compiled,
    typed: Sequence[str],
    values: Mapping[str, str],
    run: CompiledRun,
    comments: Sequence[str],
) -> str:
    """Return the spec: the typed overrides, a candidate's values and its batch sizes."""
    target = Path(base.file)
    near = path.parent in target.parents
    extends = os.path.relpath(target, path.parent) if near else str(target)
    spec = Patched({"name": f"{base.name}-tuned", "extends": extends})
    pairs = [one.removeprefix("+").partition("=")[::2] for one in typed]
    pairs += [(key.removeprefix("+"), value) for key, value in values.items()]
    for key, value in pairs:
        spec.put(key.split("."), yaml.safe_load(value))
    for key in batch.KEYS:
        if isinstance(run.deepspeed.get(key), int):
            spec.put(["deepspeed", key], run.deepspeed[key])
    head = f"{_SPEC_MARK}: the fastest configuration that was measured."
    lines = [head, *(f"# {one}" for one in comments)]
    body = yaml.safe_dump(spec.data, sort_keys=False, width=100, allow_unicode=True)
    return "\n".join(lines) + "\n" + body


def write_spec(path: Path, content: str, run: CompiledRun, root: Path) -> None:
    """Write the spec; raise HpcrunError if it does not compile to the configuration measured."""
    written_file.write(path, content)
    found = compile_spec(path, root=root).runs[0]
    if (found.config, found.deepspeed) != (run.config, run.deepspeed):
        raise HpcrunError(
            f"{path}: compiles to another configuration than the one that was measured",
            hint="compare: hpcrun plan with this file, and with the values of the table",
        )
