"""Decides what a run's next attempt has otherwise than its plan: batches, samples, memory, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpcrun.policy import causes
from hpcrun.policy.batch import Triple
from hpcrun.state.ledger import Attempt
from hpcrun.text import agreeing

if TYPE_CHECKING:
    from hpcrun.state.job_changes import JobChange
    from hpcrun.state.spec.recovery_block import Recovery

# Kinds of ends by what a step computed -> the key of `recovery` that says what follows.
ANSWERS = {causes.NON_FINITE: "on_nan", causes.LOSS_SPIKE: "on_spike"}
# Its values.
STOPS, SKIP = "stop", "skip"
# The keys of `recovery.grow`, and the fields of a record of what has grown.
_MAY_GROW, _OF_GROWTH = ("mem", "time"), ("key", "field", "was", "now")


def to_leave_out(attempt: Attempt, policy: Recovery) -> tuple[int, int] | None:
    """Return the first and last sample of the batch with which an attempt went bad.

    None where it did not, or the spec does not say to leave it out.
    """
    bad = attempt.end.get("bad_step") or {}
    samples = bad.get("samples") or ()
    wanted = answer(policy, str(bad.get("cause"))) == SKIP
    return (samples[0], samples[-1]) if wanted and samples else None


def answer(policy: Recovery, kind: str) -> str | None:
    """Return what the spec says follows an end by what a step computed: ``stop``, ``skip``."""
    key = ANSWERS.get(kind)
    found: str | None = getattr(policy, key) if key else None
    return found


def left_out(attempts: Sequence[Attempt]) -> list[tuple[int, int]]:
    """Return the first and last sample of each batch that was decided to be left out, in order.

    Whatever the spec says now: the batches after them have moved up.
    """
    found = ((one.decided or {}).get("left_out") for one in attempts)
    return sorted({(samples[0], samples[-1]) for samples in found if samples})


def left_out_words(attempts: Sequence[Attempt]) -> str:
    """Return in words how many batches a run leaves out; empty for none."""
    number = len(left_out(attempts))
    return f"{number:,} global {agreeing(number, 'batch', 'batches')} left out" if number else ""


def halvings(attempts: Sequence[Attempt], policy: Recovery, planned: Triple | None) -> int:
    """Return how often the next attempt halves the micro batch that was frozen.

    Once for each end out of memory among the attempts, which are those since a person last
    submitted the run, but for those that more memory answered; as often as
    ``recovery.shrink_micro_batch`` allows, and down to 1.
    """
    if planned is None:
        return 0
    ends = sum(one.kind == causes.OUT_OF_MEMORY and not growth(one) for one in attempts)
    return min(ends, policy.shrink_micro_batch, planned.most_halvings)


def answered_by_halving(
    attempts: Sequence[Attempt], policy: Recovery, planned: Triple | None
) -> frozenset[int]:
    """Return the numbers of the attempts after which the micro batch was, or is, halved."""
    ends = [attempt.number for attempt in attempts if attempt.kind == causes.OUT_OF_MEMORY]
    return frozenset(ends[: halvings(attempts, policy, planned)])


def growth(attempt: Attempt) -> Mapping[str, str]:
    """Return what the start after an attempt asks for in place of what was too little.

    ``key`` (``mem`` or ``time``), ``field`` (as `hpcrun.slurm.job.growth` says), ``was``, ``now``;
    empty where it asks for the same, or the ledger's record is not whole.
    """
    found: Mapping[str, str] = (attempt.decided or {}).get("grow") or {}
    is_whole = found.get("key") in _MAY_GROW and all(map(found.get, _OF_GROWTH))
    return found if is_whole else {}


def growths(
    attempts: Sequence[Attempt], submission: int, changes: Mapping[str, JobChange] | None = None
) -> list[Mapping[str, str]]:
    """Return `growth` of each attempt of a submission that has it, in order.

    Without those of a key in ``changes`` that a person has given another value since.
    """
    mine = (one for one in attempts if one.submission == submission)
    return [
        found
        for one in mine
        if (found := growth(one))
        and not (
            (since := (changes or {}).get(found["key"]))
            and since.time > (one.end.get("time") or 0.0)
        )
    ]


def growth_words(growth: Mapping[str, str]) -> str:
    """Return ``, with mem 750M in place of 500M``, or why it is no more; empty of nothing."""
    if growth.get("problem"):
        return f", with no more than before: {growth['problem']}"
    if not all(map(growth.get, _OF_GROWTH)):
        return ""
    return f", with {growth['key']} {growth['now']} in place of {growth['was']}"


def smaller_batch(attempt: Attempt) -> str | None:
    """Return in words that an attempt had smaller micro batches than planned; None if not."""
    micro, planned = (attempt.started.get(key) for key in ("micro_batch", "planned_micro_batch"))
    if micro is None or planned is None:
        return None
    times = attempt.started.get("accumulation")
    return f"micro batches of {micro} ({times} accumulated) in place of {planned}: memory ran out"
