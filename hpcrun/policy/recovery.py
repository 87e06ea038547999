"""The action after an attempt has ended: restart, requeue or stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from hpcrun.policy import causes, next_attempt, node_health
from hpcrun.policy.batch import Triple
from hpcrun.shared_dataclass import dataclass, replace
from hpcrun.state.ledger import Attempt, same_start
from hpcrun.text import plural

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
    # `health.budget` comes first.
    causes.BAD_NODE: 20,
    causes.STORAGE: 10,
    causes.SUPERVISOR_LOST: 10,
    causes.RANK_CRASH: 10,
    causes.OUT_OF_MEMORY: 3,
    causes.NON_FINITE: 2,
    causes.LOSS_SPIKE: 2,
    causes.REPLICAS_DIFFER: 3,
    causes.BAD_CHECKPOINT: 2,
    causes.HANG: 10,
    causes.LAUNCH: 5,
    causes.UNKNOWN: 3,
}
# The same where batches are left out: each is another one, and the run gets on in between.
SKIPS = 10
# Ends after which the same allocation can be used again at once, with spares for lost nodes.
_IN_PLACE = frozenset(
    {
        *(causes.RANK_CRASH, causes.OUT_OF_MEMORY, causes.NON_FINITE, causes.HANG, causes.UNKNOWN),
        *(causes.LOSS_SPIKE, causes.REPLICAS_DIFFER),
        *(causes.NODE_FAILURE, causes.BAD_NODE, causes.LAUNCH, causes.STORAGE),
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
    grow: Mapping[str, str] | None = None
    """What the next start asks for in place of what was too little, or why it is no more:
    `hpcrun.slurm.job.growth`; None if nothing was, or nothing is to grow."""
    left_out: tuple[int, int] | None = None
    """The first and last sample of a batch that no later attempt trains on; None without one."""

    @property
    def grows(self) -> bool:
        """The next start asks for more."""
        return self.grow is not None and "now" in self.grow


def decide(
    attempts: Sequence[Attempt],
    policy: Recovery,
    *,
    here: bool = False,
    planned: Triple | None = None,
    growth: Mapping[str, str] | None = None,
) -> Action:
    """Decide the action after the end of the last attempt, and which batch is left out from now on.

    The last of the attempts has an end. ``here``: the allocation has enough nodes that can be used,
    and enough time. ``planned``: the run's batch as it was frozen; None where a part is open.
    ``growth``: what `hpcrun.slurm.job.growth` tells of what was too little.
    """
    action = _decide(attempts, policy, here, planned, growth)
    return replace(action, left_out=next_attempt.to_leave_out(attempts[-1], policy))


def _decide(
    attempts: Sequence[Attempt],
    policy: Recovery,
    here: bool,
    planned: Triple | None,
    growth: Mapping[str, str] | None,
) -> Action:
    last = attempts[-1]
    kind = str(last.kind)
    if last.outcome in (*causes.GOOD_ENDS, causes.CANCELLED):
        return Action(NOTHING, f"the run is {last.outcome}")
    if kind == causes.REQUEUED:
        return Action(NOTHING, "Slurm starts it again, as it was told to")
    mine = _of_submission(attempts)
    if _is_permanent(mine):
        return _not_again(last)
    if kind == causes.BAD_NODE and last.cause.get("response") == node_health.REFUSE:
        return Action(STOP, "health in the cluster profile refuses such a node")
    answer = next_attempt.answer(policy, kind)
    if answer == next_attempt.STOPS:
        return Action(STOP, f"recovery.{next_attempt.ANSWERS[kind]} is {answer}")
    if not policy.requeue:
        return Action(STOP, "recovery.requeue is false")
    grows = growth is not None and "now" in growth
    grown = {one.number for one in mine if next_attempt.growth(one)}
    grown |= {last.number} if grows else set()
    others = [one for one in mine if one.number not in grown]
    halved = next_attempt.answered_by_halving(others, policy, planned)
    answered = halved | grown
    number = sum(attempt.kind == kind and attempt.number not in answered for attempt in mine)
    usual = {**BUDGETS, kind: SKIPS} if answer == next_attempt.SKIP else BUDGETS
    budget = {**usual, **policy.budgets}.get(kind)
    if budget is not None and number >= budget:
        return Action(STOP, f"{_times(number, kind)}; recovery.budgets.{kind} is {budget}")
    known = dict(zip((one.number for one in attempts), kept_steps(attempts), strict=True))
    failures = _without_progress(mine, known, answered)
    if kind in causes.OWN and failures >= policy.max_failures:
        return Action(
            STOP,
            f"{plural(failures, 'end')} in a row that the run itself caused, with no new "
            f"checkpointed step; recovery.max_failures is {policy.max_failures}",
        )
    kept = any(known.values()) or any(map(_saved_somewhere, attempts))
    reason = "it goes on from its newest checkpoint" if kept else "it starts again"
    if kept and any(map(_saves_itself, attempts)):
        reason = "it starts again, and has saved something by itself"
    reason += next_attempt.growth_words(growth or {})
    if grows:
        return Action(REQUEUE, reason, suspects(attempts), growth)
    if planned is not None and last.number in halved:
        reason += f", with micro batches of {planned.halved(len(halved)).micro}"
    if next_attempt.to_leave_out(last, policy):
        reason += f", without the batch of step {last.end['bad_step'].get('step')}"
    # What is wrong with all nodes at once takes longer to mend.
    is_of_all = kind in (causes.LAUNCH, causes.STORAGE) and not last.cause.get("nodes")
    stays = kind in _IN_PLACE and not is_of_all
    # A node that is left out needs another.
    stays = stays and not (kind == causes.STORAGE and unseeing(mine))
    # What may be the fault of its node is tried on another.
    stays = stays and not last.cause.get("seen_on")
    # One that a spare is not to replace.
    stays = stays and last.cause.get("response") != node_health.EXCLUDE
    if here and stays and _may_stay(mine, policy, known):
        return Action(RESTART, reason, grow=growth)
    return Action(REQUEUE, reason, suspects(attempts), growth)


def excluding(attempts: Sequence[Attempt], action: Action, nodes: Sequence[str]) -> Action:
    """Return the action where Slurm can do without these nodes alone.

    What may be the fault of a node is not tried again where there is no other.
    """
    cause, has_stepped = attempts[-1].cause, any(map(_has_stepped, _of_submission(attempts)))
    seen_on = cause.get("seen_on") if cause.get("permanent") and not has_stepped else None
    if action.kind == REQUEUE and seen_on and {*seen_on}.isdisjoint(nodes):
        return _not_again(attempts[-1])
    return replace(action, exclude=tuple(nodes))


def _not_again(last: Attempt) -> Action:
    # The cause's message has the details.
    why = str(last.cause["permanent"]).partition(" (")[0]
    return Action(STOP, f"not tried again, because {why}: mend that and submit it again")


def _is_permanent(attempts: Sequence[Attempt]) -> bool:
    """Check whether the last attempt ended by an error that no new start mends.

    What may be the fault of a node has to be seen on two. A submission that has made a step before
    can do without what is missing now, or had it.
    """
    last = attempts[-1].cause
    reason = last.get("permanent")
    if not reason or any(map(_has_stepped, attempts)):
        return False
    if (attempts[-1].resume or {}).get("resumes") and last.get("exit_code") == causes.USAGE:
        # The next start does without the arguments that resume.
        return False
    same = (one.cause for one in attempts if one.cause.get("permanent") == reason)
    nodes = {node for cause in same for node in cause.get("seen_on") or ()}
    return last.get("seen_on") is None or len(nodes) > 1


def _has_stepped(attempt: Attempt) -> bool:
    reached = attempt.end.get("reached_step")
    return reached is not None and reached != attempt.end.get("restored_step")


def _may_stay(attempts: Sequence[Attempt], policy: Recovery, known: Mapping[int, int]) -> bool:
    """Check that the run has not been restarted too often in this start of its job."""
    last = attempts[-1]
    if last.kind not in causes.OWN:
        # Each lost node takes a spare, and they run out.
        return policy.in_place > 0
    furthest, restarts = 0, 0
    for attempt in attempts:
        reached = known[attempt.number]
        is_new = reached > furthest or _saved_somewhere(attempt)
        if is_new or not same_start(attempt, last):
            restarts = 0
        furthest = max(furthest, reached)
        restarts += attempt.action == RESTART
    return restarts < policy.in_place


def _of_submission(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the attempts since a person last submitted the run."""
    submission = attempts[-1].submission
    return [attempt for attempt in attempts if attempt.submission == submission]


def _without_progress(
    attempts: Sequence[Attempt], known: Mapping[int, int], answered: Set[int]
) -> int:
    """Count the ends that the run itself caused since it last got further than ever before.

    Those that a halved micro batch, or more memory or time, answered are no failures.
    """
    furthest, failures = 0, 0
    for attempt in attempts:
        reached = known[attempt.number]
        if reached > furthest or _saved_somewhere(attempt):
            furthest, failures = max(furthest, reached), 0
        elif attempt.kind in causes.OWN and attempt.number not in answered:
            failures += 1
    return failures


def kept_steps(attempts: Sequence[Attempt]) -> list[int]:
    """Return the step that each attempt is known to have left behind it, 0 if none is.

    It is that of the newest checkpoint, or of the newest save that a program was seen to make; else
    the step with which the attempt began, or the next one did: that was kept, if only on the nodes.
    Steps that were logged alone are not.
    """
    found, later = [], 0
    unit = unit_of(attempts)
    for attempt, began in zip(reversed(attempts), reversed(began_with(attempts)), strict=True):
        saved = int(attempt.end.get("checkpoint_step") or 0) if counts_in(unit, attempt) else 0
        found.append(max(saved, began or 0, later))
        later = later if began is None else began
    return found[::-1]


def began_with(attempts: Sequence[Attempt]) -> list[int | None]:
    """Return the finished steps with which each attempt began; None if that is unknown.

    A session says so. A program that saves by itself shows it by the first step that it logs: what
    this is beyond the first step of a fresh start.
    """
    unit = unit_of(attempts)
    firsts = [one.end.get("first_step") if counts_in(unit, one) else None for one in attempts]
    fresh = min((int(first) for first in firsts if first is not None), default=0)
    found: list[int | None] = []
    for attempt, first in zip(attempts, firsts, strict=True):
        restored = attempt.end.get("restored_step")
        if restored is None and first is not None:
            restored = int(first) - fresh
        found.append(restored)
    return found


def unit_of(attempts: Sequence[Attempt]) -> str | None:
    """Return in what the newest attempt counts whose unit of steps is on record; None of none."""
    units = (one.end.get("unit") for one in reversed(attempts))
    return next((str(unit) for unit in units if unit is not None), None)


def counts_in(unit: str | None, attempt: Attempt) -> bool:
    """Check that the steps of an attempt can be compared with those of a unit.

    A person may have changed ``progress.pattern`` between two submissions.
    """
    return unit is None or attempt.end.get("unit") in (None, unit)


def _saves_itself(attempt: Attempt) -> bool:
    """Check whether it was of a program without a session, as its traces show."""
    return bool(attempt.end.get("saves")) or attempt.end.get("first_step") is not None


def _saved_somewhere(attempt: Attempt) -> bool:
    """Check whether a program was seen to save, at a step that is not known."""
    return bool(attempt.end.get("saves")) and attempt.end.get("checkpoint_step") is None


def suspects(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Return the nodes that the next start must not use.

    Those that were lost, unusable while others were usable, or alone with an error that may be a
    node's fault (`hpcrun.policy.permanent_errors`), within a day of the last end or twice since a
    person last submitted the run; and those that did not see shared storage twice in a row while
    others did. A node that was repaired is used again: a run of weeks would else
    wait for ever on a small cluster.
    """
    if not attempts:
        return ()
    lost: dict[str, list[float]] = {}
    latest = 0.0
    for attempt in _of_submission(attempts):
        cause, ended = attempt.cause, float(attempt.end.get("time") or 0.0)
        latest = max(latest, ended)
        seen_on = cause.get("seen_on") or []
        for node in blamed(attempt) or (seen_on if len(seen_on) == 1 else []):
            lost.setdefault(node, []).append(ended)
    gone = [
        node for node, times in lost.items() if len(times) > 1 or latest - times[0] <= _SUSPECTED
    ]
    unseen = unseeing(_of_submission(attempts))
    return (*gone, *(node for node in unseen if node not in gone))


def blamed(attempt: Attempt) -> list[str]:
    """Return the nodes that ended an attempt: lost, found bad, or unusable while others were not.

    A program's error that only one node has is not among them: that may be the program's own.
    Neither is one of shared storage.
    """
    kinds = (causes.NODE_FAILURE, causes.BAD_NODE, causes.LAUNCH)
    return list(attempt.cause.get("nodes") or []) if attempt.kind in kinds else []


def unseeing(attempts: Sequence[Attempt]) -> list[str]:
    """Return the nodes that the last two attempts ended for, as these alone did not see storage."""
    ends = [one.cause.get("nodes") or [] if one.kind == causes.STORAGE else [] for one in attempts]
    return [node for node in ends[-1] if node in ends[-2]] if len(ends) > 1 else []


def broken(attempt: Attempt) -> dict[str, str]:
    """Return the nodes whose hardware ended an attempt -> what is wrong with it."""
    found = attempt.cause.get("hardware")
    return found if isinstance(found, dict) else {}


def silent(attempt: Attempt) -> list[str]:
    """Return the nodes that fell silent: they may have lost their power, or their network."""
    nodes = blamed(attempt) if attempt.kind == causes.NODE_FAILURE else []
    return [node for node in nodes if node not in broken(attempt)]


def _times(number: int, kind: str) -> str:
    return f"it ended by {kind} " + ("once" if number == 1 else f"{number} times")
