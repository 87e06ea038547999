"""The process of a job that runs share, with a shell in place of srun.

Steps, memory and GPUs of a real Slurm are in `tests.cluster.test_packing`.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import EXIT_FAILED, EXIT_OK, EXIT_SAVED
from hpcrun.run import packed_job
from hpcrun.run.packed_job import PackedJob
from hpcrun.slurm.allocation import Allocation
from hpcrun.state import journal, ledger, plan_file
from hpcrun.state.layout import RunPaths
from hpcrun.state.suspect_nodes import SuspectChoice, SuspectNode
from tests.support.place import Place

# A supervisor: begins an attempt, takes a moment, and ends as its run's file says.
SUPERVISOR = """
import json, pathlib, signal, sys, time
from hpcrun.state import ledger
from hpcrun.state.layout import ExperimentPaths
left = []
signal.signal(signal.SIGUSR1, lambda *_: left.append(1))
run = ExperimentPaths(pathlib.Path(sys.argv[1])).run(int(sys.argv[2]))
todo = json.loads((run.directory.parent.parent / f"{sys.argv[2]}.json").read_text())
number = len(run.attempts()) + 1
begins = todo.get("begins", sys.argv[3] != todo.get("not_on"))
if begins:
    run.attempt(number).directory.mkdir(parents=True)
    nodes = sys.argv[3].split(",")
    ledger.write(run, ledger.STARTED, number, job_id="7", submission=1, nodes=nodes)
until = time.monotonic() + todo.get("seconds", 0.1)
while time.monotonic() < until and not left:
    time.sleep(0.02)
action = "requeue" if left else todo.get("actions", ["nothing"] * 9)[number - 1]
if action == "killed":
    raise SystemExit(137)
if not begins:
    raise SystemExit(todo.get("code", 1))
outcome = "failed" if action == "stop" else "completed"
cause = {"kind": todo.get("kind"), "nodes": todo.get("lost")} if action != "nothing" else None
ledger.write(run, ledger.ENDED, number, outcome=outcome, cause=cause)
ledger.write(run, ledger.DECIDED, number, action=action, reason="", exclude=todo.get("exclude", []))
if action == "nothing":
    ledger.set_intent(run, ledger.FINISHED)
raise SystemExit({"nothing": 0, "requeue": 75}.get(action, 1))
"""


class Pack:
    """A job of runs 3 to N, on nodes n1 and n2, or of two nodes each on more."""

    def __init__(
        self,
        place: Place,
        monkeypatch: pytest.MonkeyPatch,
        runs: int,
        nodes: int = 2,
        each: int = 1,
    ) -> None:
        place.submit("true", recovery={"requeue": True})
        self.place, self.started, self.requeued = place, list[tuple[int, str]](), list[Any]()
        plan = plan_file.read(place.submission.plan)
        (first,) = plan.runs
        self.numbers = [*range(3, 3 + runs)]
        spec = {**first.spec, "resources": {**first.spec["resources"], "nodes": each}}
        every = (dataclasses.replace(first, number=number, spec=spec) for number in self.numbers)
        every = tuple(every)
        self.plan = dataclasses.replace(plan, runs=every, arrays=())
        details: dict[str, Any] = {"job_id": "7", "packed": True}
        journal.write(place.submission, journal.SUBMITTED, 0, self.numbers, **details)
        names = tuple(f"n{number + 1}" for number in range(nodes))
        self.allocation, self.per_node = Allocation("7", "7", names, 0), 2 if each == 1 else 1
        self.watched: list[tuple[str, ...]] = []

        def argv(node: str, **given: Any) -> list[str]:
            number = given["command"][-1]
            self.started.append((int(number), node))
            return [sys.executable, "-c", SUPERVISOR, str(place.experiment.directory), number, node]

        def agent_argv(nodes: Any, log: str, gpus: Any, command: Any, *, name: str) -> list[str]:
            if name == packed_job.steps.WATCHERS:
                self.watched.append((*nodes,))
                return ["sh", "-c", "read over"]
            own = command[command.index("--nodes") + 1]
            assert own.split(",")[0] == nodes[0]
            return argv(own, command=command)

        def requeue(job: str, exclude: Any = (), **given: Any) -> bool:
            self.requeued.append([*exclude])
            return bool(given["between"]())

        monkeypatch.setattr(packed_job.steps, "packed_argv", argv)
        monkeypatch.setattr(packed_job.steps, "agent_argv", agent_argv)
        self.lost: set[str] = set()
        monkeypatch.setattr(packed_job.requeue_nodes, "is_lost", self.lost.__contains__)
        monkeypatch.setattr(packed_job.requeue_nodes, "are_kept", lambda: False)
        monkeypatch.setattr(packed_job.client, "step_names", lambda _: {})
        monkeypatch.setattr(packed_job.job, "requeue", requeue)
        monkeypatch.setattr(packed_job.job, "end_time", lambda _: None)

    def says(self, number: int, **todo: Any) -> None:
        """Have the supervisor of a run do something."""
        (self.place.experiment.directory / f"{number}.json").write_text(json.dumps(todo))

    def job(self, at_once: int = 4) -> PackedJob:
        """The job's next start."""
        for number in self.numbers:
            if not (self.place.experiment.directory / f"{number}.json").exists():
                self.says(number)
        runs = [*self.numbers]
        place = self.place.submission, self.plan, self.allocation, self.per_node
        return PackedJob(*place, at_once, runs)

    def paths(self, number: int) -> RunPaths:
        return self.place.experiment.run(number)

    def over(self) -> dict[int, str | None]:
        """Runs that have ended for good, with what is told of them."""
        jobs = journal.read(self.place.submission)
        return {number: one.message for number, one in jobs.items() if one.ended}


@pytest.fixture
def pack(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Pack]:
    return lambda runs, *shape: Pack(place, monkeypatch, runs, *shape)


def test_the_next_begins_where_one_is_over(pack: Callable[..., Pack]) -> None:
    one = pack(7)
    assert one.job().bring_to_end() == EXIT_OK
    assert [number for number, _ in one.started] == one.numbers
    assert [node for _, node in one.started[:4]] == ["n1", "n2", "n1", "n2"]
    assert one.over() == dict.fromkeys(one.numbers)


def test_no_more_run_at_once_than_may(pack: Callable[..., Pack]) -> None:
    one = pack(3)
    for number in one.numbers:
        one.says(number, seconds=0.4)
    began = time.monotonic()
    assert one.job(at_once=1).bring_to_end() == EXIT_OK
    assert time.monotonic() - began > 3 * 0.4


def test_a_failed_run_is_over_and_the_job_failed(pack: Callable[..., Pack]) -> None:
    one = pack(2)
    one.says(3, actions=["stop"])
    assert one.job().bring_to_end() == EXIT_FAILED
    assert one.over() == {3: None, 4: None}
    assert one.requeued == []


def test_a_killed_supervisor_is_started_again(pack: Callable[..., Pack]) -> None:
    one = pack(1)
    one.says(3, actions=["killed", "nothing"])
    assert one.job().bring_to_end() == EXIT_OK
    assert len(one.started) == 2


def test_a_run_that_wants_another_node_gets_it(pack: Callable[..., Pack]) -> None:
    one = pack(1)
    one.says(3, actions=["requeue", "nothing"], exclude=["n1"])
    assert one.job().bring_to_end() == EXIT_OK
    assert one.started == [(3, "n1"), (3, "n2")]


def test_where_no_node_is_left_for_it_the_job_is_requeued(pack: Callable[..., Pack]) -> None:
    one = pack(2)
    one.says(3, actions=["requeue", "nothing"], exclude=["n1", "n2"])
    assert one.job().bring_to_end() == EXIT_SAVED
    assert one.requeued == [["n1", "n2"]]
    assert one.over() == {4: None}
    # The next start goes on with it alone.
    assert one.job().bring_to_end() == EXIT_OK
    assert [number for number, _ in one.started].count(4) == 1


def test_one_that_does_not_begin_is_tried_three_times(pack: Callable[..., Pack]) -> None:
    one = pack(1)
    one.says(3, begins=False, code=2)
    assert one.job().bring_to_end() == EXIT_FAILED
    assert len(one.started) == 3
    assert "ended before an attempt began" in str(one.over()[3])


def test_a_signal_has_all_save_and_the_job_requeued(pack: Callable[..., Pack]) -> None:
    one = pack(6)
    for number in one.numbers:
        one.says(number, seconds=20)
    job = one.job()

    def stop() -> None:
        while len(one.place.experiment.run_numbers()) < 4:
            time.sleep(0.05)
        time.sleep(0.5)
        job.stop(signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    assert job.bring_to_end() == EXIT_SAVED
    thread.join()
    assert one.over() == {}
    assert len(one.started) == 4
    assert len(one.requeued) == 1


@pytest.mark.parametrize(("kind", "started"), [("preempted", 2), ("signal", 4)])
def test_where_the_job_is_taken_away_no_further_run_is_started(
    pack: Callable[..., Pack], kind: str, started: int
) -> None:
    one = pack(3)
    one.says(3, actions=["requeue", "nothing"], kind=kind, seconds=0.1)
    one.says(4, seconds=1)
    one.job(at_once=2).bring_to_end()
    assert len(one.started) == started
    assert len(one.requeued) == (started == 2)


def test_what_was_cancelled_or_submitted_elsewhere_is_not_started(
    pack: Callable[..., Pack],
) -> None:
    one = pack(3)
    ledger.set_intent(one.paths(3), ledger.CANCELLED)
    later = one.place.experiment.submission(2)
    later.directory.mkdir()
    journal.write(later, journal.SUBMITTED, 0, [4], job_id="8")
    assert one.job().bring_to_end() == EXIT_OK
    assert [number for number, _ in one.started] == [5]
    assert one.over() == {3: None, 5: None}


def test_a_ledger_that_cannot_be_read_costs_no_other_run(pack: Callable[..., Pack]) -> None:
    one = pack(2)
    one.paths(3).directory.mkdir(parents=True)
    one.paths(3).ledger.write_text('{"event": "started", "attempt": "two"}\n')
    assert one.job().bring_to_end() == EXIT_FAILED
    assert [number for number, _ in one.started] == [4]
    assert "ledger.jsonl" in str(one.over()[3])


def test_a_run_that_is_cancelled_meanwhile_is_told(
    pack: Callable[..., Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_job, "_LOOK_EVERY", 0.3)
    one = pack(1)
    one.says(3, seconds=30)
    paths = one.paths(3)

    def cancel() -> None:
        while not paths.attempts():
            time.sleep(0.05)
        ledger.set_intent(paths, ledger.CANCELLED)

    thread = threading.Thread(target=cancel)
    thread.start()
    one.job().bring_to_end()
    thread.join()
    assert [*one.over()] == [3]


def test_without_time_left_a_run_waits_for_the_next_start(
    pack: Callable[..., Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pack(2)
    monkeypatch.setattr(packed_job.job, "end_time", lambda _: time.time() + 40)
    assert one.job().bring_to_end() == EXIT_SAVED
    assert one.started == []


def test_nothing_is_requeued_where_the_spec_says_so(
    pack: Callable[..., Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pack(1)
    run = dataclasses.replace(
        one.plan.runs[0], spec={**one.plan.runs[0].spec, "recovery": {"requeue": False}}
    )
    one.plan = dataclasses.replace(one.plan, runs=(run,))
    monkeypatch.setattr(packed_job.job, "end_time", lambda _: time.time() + 40)
    assert one.job().bring_to_end() == EXIT_FAILED
    assert "recovery.requeue" in str(one.over()[3])


def test_runs_of_two_nodes_have_nodes_of_their_own(pack: Callable[..., Pack]) -> None:
    one = pack(4, 4, 2)
    one.says(3, seconds=1.0)
    assert one.job(at_once=2).bring_to_end() == EXIT_OK
    assert one.started == [(3, "n1,n2"), (4, "n3,n4"), (5, "n3,n4"), (6, "n3,n4")]
    assert one.over() == dict.fromkeys(one.numbers)
    assert one.watched == [("n2", "n3", "n4")]


@pytest.mark.parametrize(
    ("todo", "noted"),
    [
        ({"actions": ["requeue", "nothing"], "kind": "node_failure", "lost": ["n3"]}, None),
        ({"actions": ["killed", "nothing"]}, ["n3"]),
        # srun may end well.
        ({"begins": False, "code": 0}, None),
    ],
    ids=["its supervisor says it", "Slurm says it", "before an attempt began"],
)
def test_a_run_that_lost_a_node_waits_for_others(
    pack: Callable[..., Pack], todo: dict[str, Any], noted: list[str] | None
) -> None:
    one = pack(3, 4, 2)
    one.lost.add("n3")
    one.says(3, seconds=0.5)
    one.says(4, **todo)
    assert one.job(at_once=2).bring_to_end() == EXIT_OK
    assert one.started[:2] == [(3, "n1,n2"), (4, "n3,n4")]
    assert all(nodes == "n1,n2" for _, nodes in one.started[2:])
    assert sorted(number for number, _ in one.started) == [3, 4, 4, 5]
    path = one.paths(4).attempt(1).orphaned
    assert (json.loads(path.read_text())["lost_nodes"] if path.exists() else None) == noted


def test_too_few_nodes_left_are_a_matter_of_the_next_start(pack: Callable[..., Pack]) -> None:
    one = pack(3, 3, 2)
    one.says(3, actions=["requeue", "nothing"], kind="node_failure", lost=["n1", "n2"])
    assert one.job(at_once=1).bring_to_end() == EXIT_SAVED
    assert (one.started, one.requeued) == ([(3, "n1,n2")], [["n1", "n2"]])


def test_where_slurm_gives_no_place_back_those_that_run_go_on(
    pack: Callable[..., Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pack(5)
    monkeypatch.setattr(packed_job.requeue_nodes, "are_kept", lambda: True)
    known = SuspectChoice((SuspectNode("n9", "slow", "bad_node", time.time()),))
    monkeypatch.setattr(packed_job.suspect_exclusion, "left_out", lambda *_: known)
    one.lost.add("n2")
    for number in one.numbers:
        one.says(number, seconds=0.5)
    one.says(4, actions=["killed", "nothing"])
    assert one.job().bring_to_end() == EXIT_SAVED
    assert one.requeued == [["n9", "n2"]]
    assert one.over() == dict.fromkeys((3, 5, 6))


def test_a_node_that_starts_no_run_is_no_runs_fault(pack: Callable[..., Pack]) -> None:
    """While the other node has no place free."""
    one = pack(2)
    one.per_node = 1
    one.says(3, not_on="n1", code=1)
    one.says(4, seconds=3)
    assert one.job().bring_to_end() == EXIT_OK
    assert [node for number, node in one.started if number == 3] == ["n1", "n1", "n1", "n2"]


def test_steps_of_a_supervisor_that_was_killed_are_ended(
    pack: Callable[..., Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {"7.3": "hpcrun-run-3-agent", "7.4": "hpcrun-run-33-agent", "7.5": "hpcrun-run-3"}
    ended: list[str] = []

    def signal_step(step: str, name: str) -> bool:
        ended.append(f"{step} {name}")
        return left.pop(step) is not None

    one = pack(1, 2, 2)
    monkeypatch.setattr(packed_job.client, "step_names", lambda _: {**left})
    monkeypatch.setattr(packed_job.client, "signal_step", signal_step)
    one.says(3, actions=["killed", "nothing"])
    assert one.job().bring_to_end() == EXIT_OK
    assert ended == ["7.3 KILL", "7.5 KILL"]


def test_those_that_watch_are_started_again(
    pack: Callable[..., Pack], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_job, "_WATCH_EVERY", 0.2)
    one = pack(1)
    own = packed_job.steps.agent_argv

    def gone(*given: Any, **named: Any) -> list[str]:
        own(*given, **named)
        return ["sh", "-c", "exit 1"]

    monkeypatch.setattr(packed_job.steps, "agent_argv", gone)
    one.says(3, seconds=1.0)
    assert one.job().bring_to_end() == EXIT_OK
    assert len(one.watched) > 1
