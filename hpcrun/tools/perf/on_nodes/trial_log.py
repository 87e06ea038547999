"""The block ``trials`` of a run's spec, and the run's ``trials.jsonl``: one line a trial."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.fields import COUNT, TEXT, TIME, Kind, Kinds, wrong
from hpcrun.state import files

# The key of the block in a run's spec; `hpcrun tune` puts it there.
KEY = "trials"

# Outcomes of a trial.
BEGAN, MEASURED, SLOWER, FAILED = "began", "measured", "slower", "failed"
# Of a candidate that was not tried; written once the search is over.
SKIPPED = "skipped"
# Rounds: all candidates a few steps each, then the best ones again.
SCREEN, FINAL = "screen", "final"
OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True)
class TrialCandidate:
    """A configuration to try."""

    config: dict[str, Any]
    """The program's ``config``."""
    deepspeed: dict[str, Any]
    """The complete DeepSpeed configuration."""
    parallel: dict[str, Any] | None = None
    """The block ``parallel``: ranks that were started for one cannot try another."""
    alike: str = ""
    """All but the micro batch: of candidates that are alike, a larger one needs more memory."""
    micro: int = 1


@dataclass(frozen=True)
class TrialPlan:
    """The block ``trials``: what is to be tried, and for how long."""

    candidates: tuple[TrialCandidate, ...]
    """In the order of the trials."""
    screen_steps: int = 2
    """Measured steps of each candidate, after one that is not measured."""
    final_steps: int = 5
    """Measured steps of a finalist, in each of the rounds."""
    final_rounds: int = 2
    finalists: int = 3
    slower: float = 1.3
    """A trial ends early whose steps take so many times the best's."""
    baseline: int | None = None
    """A candidate that is a finalist in any case: the spec as it is."""
    seconds: float = math.inf
    """The time for all trials; the last quarter is kept for the final rounds."""
    limit: float = 600.0
    """Seconds after which a trial that has not ended is failed."""

    def to_data(self) -> dict[str, Any]:
        """Return the block; infinity is null."""
        data = dataclasses.asdict(self)
        return {name: None if data[name] == math.inf else data[name] for name in data}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> TrialPlan:
        candidates = tuple(TrialCandidate(**one) for one in data["candidates"])
        endless = {name: math.inf for name in ("seconds", "slower") if data[name] is None}
        return cls(**{**data, **endless, "candidates": candidates})


@dataclass(frozen=True)
class TrialRecord:
    """A trial that began or ended."""

    candidate: int
    """Its place in the plan."""
    round: str
    outcome: str
    time: float
    """Of this record, in seconds since the epoch."""
    steps: tuple[float, ...] = ()
    """Seconds of each measured step: of the slowest rank."""
    start_seconds: float | None = None
    """From the trial's begin to the end of its first step, which is not measured."""
    peak_bytes: int | None = None
    """The most that PyTorch held on a GPU, of all ranks; None on processors."""
    kind: str | None = None
    """Of a failure: a cause as `hpcrun.policy.causes` names it."""
    reason: str | None = None

    @property
    def step_seconds(self) -> float | None:
        """The median of its steps."""
        return statistics.median(self.steps) if self.steps else None

    def to_data(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value not in (None, ())}


def append(path: Path, record: TrialRecord) -> None:
    files.append(path, record.to_data())


def read(path: Path) -> list[TrialRecord]:
    """Return the records of a run, in order; none without a file. Raises OSError if unreadable."""
    found = []
    for line in files.read_lines(path):
        if wrong(line, _RECORD, ("candidate", "round", "outcome", "time")) is None:
            own = {name: line[name] for name in _RECORD if line.get(name) is not None}
            found.append(TrialRecord(**{**own, "steps": tuple(own.get("steps", ()))}))
    return found


# Lines of other forms are none of ours. Seconds are bounded as times are.
_RECORD: Kinds = {
    **dict.fromkeys(("round", "outcome", "kind", "reason"), TEXT),
    **dict.fromkeys(("candidate", "peak_bytes"), COUNT),
    **dict.fromkeys(("time", "start_seconds"), TIME),
    "steps": Kind(
        "a list of seconds",
        lambda value: type(value) is list and all(map(TIME.accepts, value)),
    ),
}


@dataclass(frozen=True)
class TrialScore:
    """What all trials of a candidate came to."""

    records: tuple[TrialRecord, ...]
    """Those that ended."""

    @property
    def failure(self) -> TrialRecord | None:
        return next((one for one in self.records if one.outcome == FAILED), None)

    @property
    def steps(self) -> tuple[float, ...]:
        """Seconds of its steps: of the final rounds, where it was in them."""
        for name in (FINAL, SCREEN):
            found = [step for one in self.records if one.round == name for step in one.steps]
            if found:
                return tuple(found)
        return ()

    @property
    def is_slower(self) -> bool:
        """One of its trials ended early."""
        return any(one.outcome == SLOWER for one in self.records)

    @property
    def is_final(self) -> bool:
        """It was measured in a final round."""
        return any(one.round == FINAL and one.steps for one in self.records)

    @property
    def step_seconds(self) -> float | None:
        """The median of its steps; None if it failed or was not measured."""
        if self.failure is not None or not self.steps:
            return None
        return statistics.median(self.steps)

    @property
    def peak_bytes(self) -> int | None:
        """The most that a GPU held in one of its trials."""
        found = [one.peak_bytes for one in self.records if one.peak_bytes is not None]
        return max(found, default=None)


def scores(records: Iterable[TrialRecord], count: int) -> list[TrialScore]:
    """Return the score of each of ``count`` candidates."""
    found: list[list[TrialRecord]] = [[] for _ in range(count)]
    for one in records:
        if one.outcome != BEGAN and one.candidate < count:
            found[one.candidate].append(one)
    return [TrialScore(tuple(one)) for one in found]


def best(found: Sequence[TrialScore]) -> int | None:
    """Return the place of the fastest: of those in the final rounds, where there are any."""
    known = {place: one.step_seconds for place, one in enumerate(found)}
    times = {place: seconds for place, seconds in known.items() if seconds is not None}
    final = {place: seconds for place, seconds in times.items() if found[place].is_final}
    chosen = final or times
    return min(chosen, key=lambda place: chosen[place], default=None)
