"""What is done after an attempt, as a table over ledgers."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.policy import causes, recovery
from hpcrun.state.ledger import Attempt
from hpcrun.state.spec.experiment import Recovery

OUTCOMES = {None: "completed", "cancelled": "cancelled"}


def ledger(*ends: str | tuple[str, int], submission: int = 1) -> list[Attempt]:
    """Attempts that ended so: a kind, with the step that was checkpointed by then."""
    attempts = []
    for number, end in enumerate(ends, 1):
        kind, step = end if isinstance(end, tuple) else (end, 0)
        cause = {"kind": kind, "message": kind}
        if kind == causes.NODE_FAILURE:
            cause["nodes"] = [f"n{number}"]  # type: ignore[assignment]
        ended = {"outcome": "failed", "cause": cause, "checkpoint_step": step}
        started = {"submission": submission}
        attempts.append(Attempt(number, started, ended=ended))
    return attempts


CRASH = causes.RANK_CRASH
REQUEUE, STOP, NOTHING = recovery.REQUEUE, recovery.STOP, recovery.NOTHING
RESTART = recovery.RESTART

TABLE: dict[str, tuple[list[Attempt], Recovery, str]] = {
    "a crash": (ledger(CRASH), Recovery(), REQUEUE),
    "two crashes": (ledger(CRASH, CRASH), Recovery(), REQUEUE),
    "three crashes at the same place": (ledger(CRASH, CRASH, CRASH), Recovery(), STOP),
    "crashes of different kinds, no progress": (
        ledger(CRASH, causes.LAUNCH, causes.UNKNOWN),
        Recovery(),
        STOP,
    ),
    "time limits without a checkpoint": (ledger(*[causes.TIME_LIMIT] * 3), Recovery(), STOP),
    "time limits that each bring it further": (
        ledger(*[(causes.TIME_LIMIT, 100 * step) for step in range(1, 60)]),
        Recovery(),
        REQUEUE,
    ),
    "crashes, each a checkpoint further": (
        ledger((CRASH, 10), (CRASH, 20), (CRASH, 30), (CRASH, 40)),
        Recovery(),
        REQUEUE,
    ),
    "progress once, then none": (
        ledger((CRASH, 10), (CRASH, 10), (CRASH, 10), (CRASH, 10)),
        Recovery(),
        STOP,
    ),
    "progress between": (
        ledger((CRASH, 10), (CRASH, 10), (CRASH, 20), (CRASH, 20)),
        Recovery(),
        REQUEUE,
    ),
    "preemptions do not count": (ledger(*[causes.PREEMPTED] * 50), Recovery(), REQUEUE),
    "preemptions between crashes do not forgive them": (
        ledger(CRASH, causes.PREEMPTED, CRASH, causes.PREEMPTED, CRASH),
        Recovery(),
        STOP,
    ),
    "a preemption after three crashes that had progress": (
        ledger((CRASH, 1), (CRASH, 2), (causes.PREEMPTED, 2)),
        Recovery(),
        REQUEUE,
    ),
    "a node is lost again and again": (ledger(*[causes.NODE_FAILURE] * 20), Recovery(), STOP),
    "a budget of the user's": (
        ledger((causes.OUT_OF_MEMORY, 5)),
        Recovery(budgets={causes.OUT_OF_MEMORY: 1}),
        STOP,
    ),
    "a budget above the default": (
        ledger(*[(CRASH, step) for step in range(1, 15)]),
        Recovery(budgets={CRASH: 100}),
        REQUEUE,
    ),
    "ten crashes in spite of progress": (
        ledger(*[(CRASH, step) for step in range(1, 11)]),
        Recovery(),
        STOP,
    ),
    "an administrator's requeue": (ledger(CRASH, causes.REQUEUED), Recovery(), NOTHING),
    "requeue is switched off": (ledger(causes.PREEMPTED), Recovery(requeue=False), STOP),
    "max_failures of one": (ledger(CRASH), Recovery(max_failures=1), STOP),
    "submitted again by a person": (
        [*ledger(CRASH, CRASH, CRASH), *ledger(CRASH, submission=2)],
        Recovery(),
        REQUEUE,
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table(name: str) -> None:
    attempts, policy, expected = TABLE[name]
    assert recovery.decide(attempts, policy).kind == expected


@pytest.mark.parametrize("outcome", ["completed", "pruned", "cancelled"])
def test_a_run_that_is_over_stays_so(outcome: str) -> None:
    attempts = ledger(CRASH, CRASH)
    attempts[-1].ended = {"outcome": outcome, "cause": None}
    assert recovery.decide(attempts, Recovery()).kind == NOTHING


def test_nodes_that_were_lost_are_excluded() -> None:
    attempts = ledger(causes.NODE_FAILURE, CRASH, causes.NODE_FAILURE)
    assert recovery.decide(attempts, Recovery()).exclude == ("n1", "n3")


def test_nodes_that_could_not_be_used_are_excluded() -> None:
    attempts = ledger(causes.LAUNCH)
    assert recovery.decide(attempts, Recovery()).exclude == ()
    assert attempts[0].cause is not None
    attempts[0].cause["nodes"] = ["n7"]
    assert recovery.decide(attempts, Recovery()).exclude == ("n7",)


def test_a_node_that_was_lost_once_is_used_again_after_a_day() -> None:
    day = 86_400.0
    lost = ledger(causes.NODE_FAILURE, causes.NODE_FAILURE, CRASH, causes.NODE_FAILURE, CRASH)
    for attempt, time in zip(lost, (0.0, 0.5 * day, day, day, 1.4 * day), strict=True):
        assert attempt.ended is not None
        attempt.ended["time"] = time
    assert recovery.suspects(lost) == ("n2", "n4")
    assert lost[3].cause is not None
    lost[3].cause["nodes"] = ["n1"]
    assert recovery.suspects(lost) == ("n1", "n2"), "lost twice"
    assert recovery.suspects([]) == ()


def program(*ends: tuple[int | None, int | None, int | None, int]) -> list[Attempt]:
    """Attempts of a program without checkpoints of ours that crashed.

    Of each: the first and the last step that it logged, the step of its newest save if one was
    seen, and how many saves were.
    """
    attempts = ledger(*[CRASH] * len(ends))
    for attempt, (first, reached, saved, saves) in zip(attempts, ends, strict=True):
        assert attempt.ended is not None
        attempt.ended |= {
            **{"checkpoint_step": saved, "saves": saves},
            **{"first_step": first, "reached_step": reached},
        }
    return attempts


PROGRAMS: dict[str, tuple[list[Attempt], int, str]] = {
    "logged steps are not saved ones": (program((1, 50, None, 0)), 1, STOP),
    "steps of a plan that was made before they were told apart": (
        program((None, 50, None, 0)),
        1,
        STOP,
    ),
    "a save that was seen": (program((1, 50, 40, 4)), 1, REQUEUE),
    "a save at an unknown step": (program((None, None, None, 1)), 1, REQUEUE),
    "no save, three times from the beginning, each time further": (
        program((1, 10, None, 0), (1, 20, None, 0), (1, 30, None, 0)),
        3,
        STOP,
    ),
    "no save seen, but it went on each time": (
        program((1, 50, None, 0), (41, 90, None, 0), (81, 130, None, 0)),
        3,
        REQUEUE,
    ),
    "it logs every tenth step": (
        program((10, 50, None, 0), (50, 90, None, 0), (90, 130, None, 0)),
        3,
        REQUEUE,
    ),
    "it went on once, and then from the same step": (
        program((1, 50, None, 0), (41, 45, None, 0), (41, 45, None, 0), (41, 45, None, 0)),
        3,
        STOP,
    ),
    "the same save again and again": (
        program((1, 50, 40, 4), (1, 50, 40, 4), (1, 50, 40, 4), (1, 50, 40, 4)),
        3,
        STOP,
    ),
    "nothing is known of it": (program(*[(None, None, None, 0)] * 3), 3, STOP),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_measured_by_its_saves_and_by_where_it_went_on(name: str) -> None:
    attempts, most, expected = PROGRAMS[name]
    assert recovery.decide(attempts, Recovery(max_failures=most)).kind == expected


def test_where_attempts_of_a_program_began() -> None:
    attempts = program((10, 50, None, 0), (None, None, None, 0), (50, 90, None, 0))
    assert recovery.began_with(attempts) == [0, None, 40]
    assert recovery.kept_steps(attempts) == [40, 40, 40]


def test_attempts_that_counted_something_else_are_not_compared() -> None:
    """A pattern for epochs took the place of a bar's batches."""
    attempts = program((64, 192, 128, 1), (1, 3, 2, 1), (3, 4, None, 0))
    assert recovery.began_with(attempts) == [63, 0, 2]
    for one, unit in zip(attempts, ("bar of 64", "epochs", None), strict=True):
        assert one.ended is not None
        one.ended["unit"] = unit
    assert recovery.began_with(attempts) == [None, 0, 2]
    assert recovery.kept_steps(attempts) == [0, 2, 2]


def _here(*ends: str | tuple[str, int], starts: tuple[int, ...] = ()) -> list[Attempt]:
    """Attempts of which all but the last were followed by a restart in place.

    Parameters
    ----------
    starts
        How often the job had been requeued before each attempt; all were in one start if not given.
    """
    attempts = ledger(*ends)
    for attempt in attempts[:-1]:
        attempt.decided = {"action": recovery.RESTART}
    for attempt, count in zip(attempts, starts, strict=False):
        attempt.started["restart_count"] = count
    return attempts


MANY = Recovery(max_failures=10)
HERE: dict[str, tuple[list[Attempt], Recovery, str]] = {
    "a crash": (_here(CRASH), Recovery(), recovery.RESTART),
    "a second crash at the same place": (_here(CRASH, CRASH), Recovery(), recovery.RESTART),
    "a third": (_here(CRASH, CRASH, CRASH), Recovery(), STOP),
    "a third where more are allowed": (_here(CRASH, CRASH, CRASH), MANY, REQUEUE),
    "the first after that requeue": (
        _here(CRASH, CRASH, CRASH, CRASH, starts=(0, 0, 0, 1)),
        MANY,
        recovery.RESTART,
    ),
    "a third after progress": (
        _here((CRASH, 1), (CRASH, 2), (CRASH, 3)),
        MANY,
        recovery.RESTART,
    ),
    "switched off": (_here(CRASH), Recovery(in_place=0), REQUEUE),
    "requeue switched off": (_here(CRASH), Recovery(requeue=False), STOP),
    "a lost node": (_here(causes.NODE_FAILURE), Recovery(), recovery.RESTART),
    "many lost nodes": (_here(*[causes.NODE_FAILURE] * 9), Recovery(), recovery.RESTART),
    "a preemption": (_here(causes.PREEMPTED), Recovery(), REQUEUE),
    "its time limit": (_here(causes.TIME_LIMIT), Recovery(), REQUEUE),
    "a checkpoint that cannot be read": (_here(causes.BAD_CHECKPOINT), Recovery(), REQUEUE),
    "no node can be prepared": (_here(causes.LAUNCH), Recovery(), REQUEUE),
    "somebody else's requeue": (_here(causes.REQUEUED), Recovery(), NOTHING),
}


@pytest.mark.parametrize("name", HERE)
def test_where_the_allocation_can_be_used_again(name: str) -> None:
    attempts, policy, expected = HERE[name]
    assert recovery.decide(attempts, policy, here=True).kind == expected


def test_a_node_that_cannot_be_prepared_is_replaced_at_once() -> None:
    attempts = ledger(causes.LAUNCH)
    assert attempts[0].cause is not None
    attempts[0].cause["nodes"] = ["n7"]
    assert recovery.decide(attempts, Recovery(), here=True).kind == recovery.RESTART


def bad_node(response: str, count: int = 1) -> list[Attempt]:
    """Attempts that the check at their start ended, each on a node of its own."""
    attempts = ledger(*[causes.BAD_NODE] * count)
    for attempt in attempts:
        attempt.cause.update(nodes=[f"n{attempt.number}"], response=response)
    return attempts


@pytest.mark.parametrize(
    ("response", "here", "expected"),
    [
        ("replace", True, recovery.RESTART),
        ("replace", False, REQUEUE),
        ("exclude", True, REQUEUE),
        ("refuse", True, STOP),
    ],
)
def test_a_node_that_was_found_bad(response: str, here: bool, expected: str) -> None:
    action = recovery.decide(bad_node(response), Recovery(), here=here)
    assert action.kind == expected
    assert action.exclude == (("n1",) if expected == REQUEUE else ())


def test_bad_nodes_are_no_failures_of_the_run() -> None:
    assert recovery.decide(bad_node("exclude", 9), Recovery(max_failures=1)).kind == REQUEUE
    assert recovery.decide(bad_node("exclude", 20), Recovery()).kind == STOP
    off = recovery.decide(bad_node("exclude"), Recovery(requeue=False))
    assert (off.kind, off.reason) == (STOP, "recovery.requeue is false")


BOTH, DOWN = ["n1", "n2"], {"n1": "its ib0 is down"}
# Kind of the end, what is known of it; nodes that the next start does without, those whose hardware
# is broken, and those that fell silent.
FAULTS: dict[str, tuple[str, dict[str, Any], list[str], list[str], list[str]]] = {
    "silence": (causes.NODE_FAILURE, {"nodes": BOTH}, BOTH, [], BOTH),
    "cut off": (causes.NODE_FAILURE, {"nodes": ["n1"], "hardware": DOWN}, ["n1"], ["n1"], []),
    "Slurm lost a node": (causes.NODE_FAILURE, {}, [], [], []),
    "hardware": (causes.BAD_NODE, {"nodes": ["n1"], "hardware": DOWN}, ["n1"], ["n1"], []),
    "one of two is broken": (causes.BAD_NODE, {"nodes": BOTH, "hardware": DOWN}, BOTH, ["n1"], []),
    "its disk": (causes.BAD_NODE, {"nodes": ["n1"], "hardware": {}}, ["n1"], [], []),
    "an end of before hardware was told": (causes.BAD_NODE, {"nodes": ["n1"]}, ["n1"], [], []),
    "cannot be prepared, others can": (causes.LAUNCH, {"nodes": ["n1"]}, ["n1"], [], []),
    "no node can be prepared": (causes.LAUNCH, {"nodes": []}, [], [], []),
    "does not compile on it": (causes.LAUNCH, {"seen_on": ["n1"]}, ["n1"], [], []),
    "does not compile on two": (causes.LAUNCH, {"seen_on": BOTH}, [], [], []),
    "one does not see storage": (causes.STORAGE, {"nodes": ["n1"]}, [], [], []),
    "storage is away": (causes.STORAGE, {}, [], [], []),
    "an error of the program": (CRASH, {"seen_on": ["n1"], "node": "n1"}, ["n1"], [], []),
    "a hang": (causes.HANG, {"node": "n1"}, [], [], []),
    "a preemption": (causes.PREEMPTED, {"nodes": ["n1"]}, [], [], []),
}


@pytest.mark.parametrize("case", FAULTS)
def test_whose_fault_it_is(case: str) -> None:
    kind, cause, out, broken, silent = FAULTS[case]
    (attempt,) = ledger(kind)
    attempt.cause.pop("nodes", None)
    attempt.cause.update(cause)
    assert list(recovery.suspects([attempt])) == out
    assert list(recovery.broken(attempt)) == broken
    assert recovery.silent(attempt) == silent


def unseen(*nodes: str | None) -> list[Attempt]:
    """Attempts that ended as these nodes alone did not see shared storage; None for a crash."""
    attempts = ledger(*[causes.STORAGE if node is not None else CRASH for node in nodes])
    for attempt, node in zip(attempts, nodes, strict=True):
        attempt.cause.update({"nodes": node.split()} if node else {})
    return attempts


# Who did not see it in each attempt (empty: nobody did); what follows, and without which nodes.
UNSEEN: dict[str, tuple[list[Attempt], str, tuple[str, ...]]] = {
    "once": (unseen("n1"), recovery.RESTART, ()),
    "another one": (unseen("n1", "n2"), recovery.RESTART, ()),
    "twice in a row": (unseen("n1", "n1"), REQUEUE, ("n1",)),
    "twice in a row, of several": (unseen("n1 n2", "n2 n3"), REQUEUE, ("n2",)),
    "not in a row": (unseen("n1", None, "n1"), recovery.RESTART, ()),
    "nobody between": (unseen("n1", "", "n1"), recovery.RESTART, ()),
    "nobody sees it": (unseen(""), REQUEUE, ()),
    "nobody sees it, again": (unseen("", ""), REQUEUE, ()),
    "again and again": (unseen(*["n1", "n2"] * 5), STOP, ()),
    "after it was submitted again": (
        [*unseen("n1"), *ledger(causes.STORAGE, submission=2)],
        REQUEUE,
        (),
    ),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_storage_that_is_not_seen_is_no_nodes_fault_by_itself(case: str) -> None:
    attempts, kind, out = UNSEEN[case]
    action = recovery.decide(attempts, Recovery(max_failures=1), here=True)
    assert (action.kind, action.exclude) == (kind, out)


def test_what_compiles_nowhere_ends_the_run_at_once() -> None:
    (attempt,) = attempts = ledger(causes.LAUNCH)
    attempt.cause["permanent"] = "DeepSpeed's operators do not compile"
    found = recovery.decide(attempts, Recovery(), here=True)
    assert (found.kind, found.exclude) == (STOP, ())
    assert found.reason.startswith("not tried again, because DeepSpeed's operators do not compile")
    attempt.cause["seen_on"] = ["n1", "n2"]
    assert recovery.decide(attempts, Recovery(), here=True).kind == STOP
    # Of one node alone nobody knows yet.
    attempt.cause["seen_on"] = ["n1"]
    found = recovery.decide(attempts, Recovery(), here=True)
    assert (found.kind, found.exclude) == (REQUEUE, ("n1",))


def test_the_reason_names_the_setting() -> None:
    reason = recovery.decide(ledger(CRASH, CRASH, CRASH), Recovery()).reason
    assert "recovery.max_failures is 3" in reason
    reason = recovery.decide(ledger((CRASH, 5)), Recovery(budgets={CRASH: 1})).reason
    assert "recovery.budgets.rank_crash is 1" in reason


@pytest.mark.parametrize(
    ("attempts", "words"),
    [
        (ledger(CRASH), "it starts again"),
        (ledger((CRASH, 10), (causes.PREEMPTED, 10)), "it goes on from its newest checkpoint"),
    ],
)
def test_the_reason_says_where_it_begins(attempts: list[Attempt], words: str) -> None:
    assert recovery.decide(attempts, Recovery()).reason == words


@pytest.mark.parametrize("shown", [{"saves": 2}, {"first_step": 1}])
def test_no_checkpoint_is_promised_of_a_program(shown: dict[str, int]) -> None:
    attempts = ledger((CRASH, 10))
    assert attempts[0].ended is not None
    attempts[0].ended |= shown
    reason = recovery.decide(attempts, Recovery()).reason
    assert reason == "it starts again, and has saved something by itself"


def test_what_only_the_nodes_had_kept_is_progress() -> None:
    attempts = ledger(*[CRASH] * 6)
    for attempt, restored in zip(attempts, (0, 300, 600, 900, 900, 900), strict=True):
        assert attempt.ended is not None
        attempt.ended |= {"restored_step": restored}
    assert recovery.decide(attempts[:4], Recovery()).kind == REQUEUE
    assert recovery.decide(attempts[:5], Recovery()).kind == REQUEUE
    assert recovery.decide([*attempts, *ledger(CRASH)], Recovery()).kind == STOP


def permanent(*ends: tuple[str, ...] | int | None, submission: int = 1) -> list[Attempt]:
    """Attempts that ended by one error: the nodes that it was seen on; None for any node.

    A number is that of a step that was reached before another crash.
    """
    attempts = ledger(*[CRASH] * len(ends), submission=submission)
    for attempt, end in zip(attempts, ends, strict=True):
        assert attempt.ended is not None
        if isinstance(end, int):
            attempt.ended |= {"restored_step": 0, "reached_step": end}
            continue
        attempt.cause["permanent"] = "a module is missing (No module named 'x')"
        if end is not None:
            attempt.cause["seen_on"] = list(end)
    return attempts


# What was seen before -> the action, and the nodes that it excludes.
PERMANENT: dict[str, tuple[list[Attempt], str, tuple[str, ...]]] = {
    "in the code": (permanent(None), STOP, ()),
    "on two nodes": (permanent(("n1", "n2")), STOP, ()),
    "on one node": (permanent(("n1",)), REQUEUE, ("n1",)),
    "on one node, then on another": (permanent(("n1",), ("n2",)), STOP, ()),
    "twice on one node": (permanent(("n1",), ("n1",)), REQUEUE, ("n1",)),
    "after steps, in this submission": (permanent(7, None), REQUEUE, ()),
    "after a start without a step": (permanent(0, None), STOP, ()),
    "after steps, before the code was changed": (
        [*permanent(7), *permanent(None, submission=2)],
        STOP,
        (),
    ),
}


@pytest.mark.parametrize("name", PERMANENT)
def test_what_no_new_start_mends_is_not_tried_again(name: str) -> None:
    attempts, expected, exclude = PERMANENT[name]
    action = recovery.decide(attempts, Recovery(), here=not exclude and expected == STOP)
    assert (action.kind, action.exclude) == (expected, exclude)
    if expected == STOP:
        assert action.reason == (
            "not tried again, because a module is missing: mend that and submit it again"
        )


def test_arguments_that_resume_and_are_not_understood_are_left_out_in_the_next_start() -> None:
    attempts = permanent(0, None)
    attempts[-1].resume = {"resumes": True}
    assert recovery.decide(attempts, Recovery()).kind == STOP
    attempts[-1].cause["exit_code"] = 2
    assert recovery.decide(attempts, Recovery()).kind == REQUEUE
    attempts[-1].resume = {"resumes": False}
    assert recovery.decide(attempts, Recovery()).kind == STOP


@pytest.mark.parametrize(
    ("attempts", "left", "expected"),
    [
        (permanent(("n1",)), ("n1",), REQUEUE),
        (permanent(("n1",)), (), STOP),
        (permanent(("n1",), ("n1",)), (), STOP),
        (permanent(7, ("n1",)), (), REQUEUE),
        (ledger(CRASH), (), REQUEUE),
    ],
    ids=["another node", "no other node", "no other node, again", "after steps", "another error"],
)
def test_what_may_be_a_nodes_fault_is_tried_where_there_is_another_node(
    attempts: list[Attempt], left: tuple[str, ...], expected: str
) -> None:
    """Slurm may need the node back, as its partition is too small to do without."""
    decided = recovery.decide(attempts, Recovery())
    action = recovery.excluding(attempts, decided, left)
    assert action.kind == expected
    assert action.exclude == (left if expected == REQUEUE else ())
    if expected == STOP:
        assert "not tried again, because a module is missing" in action.reason


def test_what_may_be_a_nodes_fault_is_not_tried_there_again() -> None:
    assert recovery.decide(permanent(("n1",)), Recovery(), here=True).kind == REQUEUE


def test_the_reason_is_told_where_requeue_is_switched_off_too() -> None:
    action = recovery.decide(permanent(None), Recovery(requeue=False))
    assert "not tried again, because a module is missing" in action.reason
