"""The action after an attempt has ended: restart, requeue or stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcrun.policy import causes
from hpcrun.state.ledger import Attempt, same_start

if TYPE_CHECKING:
    from hpcrun.state.spec.recovery_block import Recovery

# Seconds for which a node that was lost once is not used.
_SUSPECTED = 86_400.0

RESTART = "restart"
REQUEUE = "requeue"
STOP = "stop"
NOTHING = "nothing"

# The run goes on by itself.
GOES_ON = frozenset({RESTART, REQUEUE})

# Ends of one kind within one submission after which a run stops. What is not listed has no end.
BUDGETS: dict[str, int] = {
    causes.NODE_FAILURE: 20,
    causes.SUPERVISOR_LOST: 10,
    causes.RANK_CRASH: 10,
    causes.OUT_OF_MEMORY: 3,
    causes.NON_FINITE: 2,
    causes.BAD_CHECKPOINT: 2,
    causes.HANG: 10,
    causes.LAUNCH: 5,
    causes.UNKNOWN: 3,
}


# Ends after which the same allocation can be used again at once, with spares for lost nodes.
_IN_PLACE = frozenset(
    {
        *(causes.RANK_CRASH, causes.OUT_OF_MEMORY, causes.NON_FINITE, causes.HANG, causes.UNKNOWN),
        *(causes.NODE_FAILURE, causes.LAUNCH),
    }
)


@dataclass(frozen=True)
class Action:
    """An action on a run whose attempt has ended."""

    kind: str
    """``restart`` (in the same allocation); ``requeue``; ``stop``; ``nothing`` (the run is over, or
    somebody else has requeued it)."""
    reason: str
    """A sentence for the ledger and for ``hpcrun why``."""
    exclude: tuple[str, ...] = ()
    """Nodes that the next start must not use."""


def decide(attempts: Sequence[Attempt], policy: Recovery, *, here: bool = False) -> Action:
    """Decide the action after the end of the last attempt.

    The last of the attempts has an end. ``here``: the allocation has enough nodes that can be used,
    and enough time.
    """
    last = attempts[-1]
    kind = str(last.kind)
    if last.outcome in (causes.COMPLETED, causes.CANCELLED):
        return Action(NOTHING, f"the run is {last.outcome}")
    if kind == causes.REQUEUED:
        return Action(NOTHING, "Slurm starts it again, as it was told to")
    if not policy.requeue:
        return Action(STOP, "recovery.requeue is false")
    mine = _of_submission(attempts)
    number = sum(attempt.kind == kind for attempt in mine)
    budget = {**BUDGETS, **policy.budgets}.get(kind)
    if budget is not None and number >= budget:
        return Action(STOP, f"{_times(number, kind)}; recovery.budgets.{kind} is {budget}")
    failures = _without_progress(mine)
    if kind in causes.OWN and failures >= policy.max_failures:
        return Action(
            STOP,
            f"{failures} ends in a row that the run itself caused, with no new checkpointed step; "
            f"recovery.max_failures is {policy.max_failures}",
        )
    kept = any(progress(attempt) for attempt in attempts)
    reason = "it goes on from its newest checkpoint" if kept else "it starts again"
    # What is wrong with all nodes at once takes longer to mend.
    stays = kind in _IN_PLACE and not (kind == causes.LAUNCH and not last.cause.get("nodes"))
    if here and stays and _may_stay(mine, policy):
        return Action(RESTART, reason)
    return Action(REQUEUE, reason, suspects(attempts))


def _may_stay(attempts: Sequence[Attempt], policy: Recovery) -> bool:
    """Check that the run has not been restarted too often in this start of its job."""
    last = attempts[-1]
    if last.kind not in causes.OWN:
        # Each lost node takes a spare, and they run out.
        return policy.in_place > 0
    furthest, restarts = 0, 0
    for attempt in attempts:
        reached = _kept(attempt)
        if reached > furthest or not same_start(attempt, last):
            restarts = 0
        furthest = max(furthest, reached)
        restarts += attempt.action == RESTART
    return restarts < policy.in_place


def _of_submission(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts since a person last submitted the run."""
    submission = attempts[-1].submission
    return [attempt for attempt in attempts if attempt.submission == submission]


def _without_progress(attempts: Sequence[Attempt]) -> int:
    """Count the ends that the run itself caused since it last got further than ever before."""
    furthest, failures = 0, 0
    for attempt in attempts:
        reached = _kept(attempt)
        if reached > furthest:
            furthest, failures = reached, 0
        elif attempt.kind in causes.OWN:
            failures += 1
    return failures


def progress(attempt: Attempt) -> int:
    """Return the step up to which nothing is lost: the newest checkpoint's.

    For a program without hpcrun's checkpoints, the last step that it logged.
    """
    end = attempt.end
    kept = end.get("checkpoint_step")
    return int(kept if kept is not None else end.get("reached_step") or 0)


def _kept(attempt: Attempt) -> int:
    """Return `progress`, or where the attempt began: that was kept, if only on the nodes."""
    return max(progress(attempt), int(attempt.end.get("restored_step") or 0))


def suspects(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Return the nodes that the next start must not use.

    Those that were lost, or unusable while others were usable, within a day of the last end or
    twice since a person last submitted the run. A node that was repaired is used again: a run of
    weeks would else wait for ever on a small cluster.
    """
    if not attempts:
        return ()
    lost: dict[str, list[float]] = {}
    latest = 0.0
    for attempt in _of_submission(attempts):
        cause, ended = attempt.cause, float(attempt.end.get("time") or 0.0)
        latest = max(latest, ended)
        if cause.get("kind") in (causes.NODE_FAILURE, causes.LAUNCH):
            for node in cause.get("nodes") or ():
                lost.setdefault(node, []).append(ended)
    return tuple(
        node for node, times in lost.items() if len(times) > 1 or latest - times[0] <= _SUSPECTED
    )


def _times(number: int, kind: str) -> str:
    return f"it ended by {kind} " + ("once" if number == 1 else f"{number} times")
