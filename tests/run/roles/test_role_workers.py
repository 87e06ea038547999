"""Runs with roles on the local executor, with real processes that are killed, stopped, awaited."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.job.rank_places import RankEnd, Workers
from hpcrun.run.roles.role_launch import RoleLaunches
from hpcrun.run.roles.role_workers import RoleWorkers
from hpcrun.state import ledger
from hpcrun.state.plan import Entry, RunPlan
from tests.run.roles.test_role_launch import NODES
from tests.support.place import RESOURCES, Place, command_of, launch_of
from tests.support.roles import role
from tests.support.waiting import until

# Ends well once there is a file of that name.
UNTIL = "until [ -e {} ]; do sleep 0.05; done"
# Notes its start, and serves for ever.
SERVE = "echo $$ >> served-$RANK; exec sleep 300"


def _submit(place: Place, main: str, roles: dict[str, Any], nodes: int = 1, **spec: Any) -> None:
    place.submit(
        main,
        nodes=nodes,
        ranks=sum(r["ntasks_per_node"] for r in roles.values()),
        roles=roles,
        **spec,
    )


def _work(place: Place, name: str) -> Path:
    return place.run.work / name


def _lines(place: Place, name: str) -> int:
    path = _work(place, name)
    return len(path.read_text().splitlines()) if path.exists() else 0


def _pid(place: Place, rank: int) -> int:
    """The process id of a rank's worker."""
    (path,) = place.temporary.glob(f"hpcrun-*/attempt-*/rank-{rank}.pid")
    return int(path.read_text())


def test_a_killed_server_and_a_killed_worker_are_started_anew_alone(place: Place) -> None:
    worker = "echo up >> worked-$RANK; " + UNTIL.format("done")
    roles = {
        "worker": role(0, ranks=4, restart="rank"),
        "server": role(4, SERVE, ranks=2, restart="rank"),
    }
    _submit(place, worker, roles)
    running = place.start()
    until(lambda: all(_lines(place, f"worked-{n}") for n in range(4)))
    until(lambda: all(_lines(place, f"served-{n}") for n in range(2)))
    # The worker alone: its program, which would hold a port, is ended before the next one begins.
    os.kill(_pid(place, 5), signal.SIGKILL)
    until(lambda: _lines(place, "served-1") == 2)
    old, new = map(int, _work(place, "served-1").read_text().split())
    assert b"sleep" not in command_of(old)
    until(lambda: b"sleep" in command_of(new))
    os.killpg(_pid(place, 2), signal.SIGKILL)
    until(lambda: _lines(place, "worked-2") == 2)
    _work(place, "done").touch()
    code, said = place.end(running)
    assert code == 0, said
    counts = [_lines(place, f"worked-{n}") for n in range(4)]
    assert (counts, [_lines(place, f"served-{n}") for n in range(2)]) == ([1, 1, 2, 1], [1, 2])
    attempt = place.attempt()
    assert attempt.outcome == "completed"
    assert attempt.started["world_size"] == 6
    first, second = attempt.roles
    assert (first["role"], first["what"], first["ranks"]) == ("server", "restarted", [5])
    assert (first["rank"], first["signal"], first["why"]) == (
        5,
        "SIGKILL",
        "server 1 ended by SIGKILL",
    )
    assert (second["role"], second["ranks"], second["number"]) == ("worker", [2], 1)
    assert "role server: server 1 ended by SIGKILL; restarted, on local0" in said
    assert place.run.attempt(1).exit_records() == []


def test_all_ranks_of_a_role_are_started_anew_together(place: Place) -> None:
    roles = {"trainer": role(0), "server": role(1, SERVE, ranks=2, restart="role")}
    _submit(place, UNTIL.format("done"), roles)
    running = place.start()
    until(lambda: all(_lines(place, f"served-{n}") for n in range(2)))
    os.killpg(_pid(place, 2), signal.SIGKILL)
    until(lambda: all(_lines(place, f"served-{n}") == 2 for n in range(2)))
    _work(place, "done").touch()
    code, said = place.end(running)
    assert code == 0, said
    (event,) = place.attempt().roles
    assert (event["ranks"], event["what"], event["rank"]) == ([1, 2], "restarted", 2)


def test_a_main_role_is_started_anew_together(place: Place) -> None:
    main = f"echo up >> trained-$RANK; {UNTIL.format('go-$RANK')}; "
    main += "[ $RANK = 0 ] || [ $(wc -l < trained-1) -ge 2 ]"
    roles = {"trainer": role(0, ranks=2, restart="role"), "server": role(2, SERVE)}
    _submit(place, main, roles)
    running = place.start()
    until(lambda: all(_lines(place, f"trained-{n}") for n in range(2)))
    _work(place, "go-1").touch()
    until(lambda: all(_lines(place, f"trained-{n}") == 2 for n in range(2)))
    _work(place, "go-0").touch()
    code, said = place.end(running)
    assert code == 0, said
    assert _lines(place, "served-0") == 1
    (event,) = place.attempt().roles
    assert (event["role"], event["ranks"], event["exit_code"]) == ("trainer", [0, 1], 1)


def test_a_role_that_is_ignored(place: Place) -> None:
    roles = {"trainer": role(0), "evaluator": role(1, "echo no data; exit 7", restart="ignore")}
    _submit(place, f"{UNTIL.format('done')}; true", roles)
    running = place.start()
    until(lambda: place.run.ledger.exists() and place.attempt().roles)
    _work(place, "done").touch()
    code, said = place.end(running)
    assert code == 0, said
    (event,) = place.attempt().roles
    assert (event["what"], event["exit_code"]) == ("ignored", 7)
    assert "role evaluator: ended with exit code 7; ignored, on local0" in said


def test_by_default_a_bad_end_of_any_role_ends_the_attempt(place: Place) -> None:
    roles = {"trainer": role(0), "server": role(1, "echo lost its mind; exit 9", ranks=2)}
    _submit(place, "exec sleep 300", roles)
    code, _ = place.supervise()
    assert code == 9
    cause = place.cause()
    assert cause["kind"] == "rank_crash"
    assert cause["role"] == f"server {cause['rank'] - 1}"
    where = f"rank {cause['rank']} ({cause['role']}) on local0"
    # The other one may have been ended before it could.
    others = ("", f" (and rank {3 - cause['rank']} on local0)")
    assert cause["message"] in [f"{where}{other} ended with exit code 9" for other in others]
    assert cause["log_tail"] == ["lost its mind"]
    assert place.attempt().roles == []


def test_a_role_that_always_fails_uses_up_its_budget(place: Place) -> None:
    roles = {"trainer": role(0), "server": role(1, "exit 4", restart="rank", budget=2)}
    _submit(place, "exec sleep 300", roles)
    code, said = place.supervise()
    assert code == 4
    assert [event["number"] for event in place.attempt().roles] == [1, 2]
    assert "was started anew 2 times; roles.server.budget is 2" in said
    assert place.cause()["role"] == "server 0"


def test_the_others_are_stopped_or_awaited_when_the_main_role_is_done(place: Place) -> None:
    asked = (
        "trap 'echo asked >> asked; exit 0' TERM; echo up >> served-0; while :; do sleep 0.05; done"
    )
    deaf = "trap '' TERM; echo up >> served-1; while :; do sleep 0.05; done"
    roles = {
        "trainer": role(0),
        "server": role(1, asked),
        "deaf": role(2, deaf, stop_grace=1),
        "evaluator": role(3, f"{UNTIL.format('evaluate')}; echo yes > evaluated", at_end="finish"),
    }
    _submit(place, UNTIL.format("done"), roles)
    running = place.start()
    until(lambda: all(_lines(place, f"served-{n}") for n in range(2)))
    _work(place, "done").touch()
    until(lambda: _lines(place, "asked"))
    time.sleep(1.5)
    assert running.poll() is None
    _work(place, "evaluate").touch()
    code, said = place.end(running)
    assert code == 0, said
    assert _lines(place, "evaluated") == 1
    assert place.attempt().roles == []
    assert place.run.attempt(1).exit_records() == []


def test_a_run_that_is_asked_to_stop_saves_while_its_servers_serve(place: Place) -> None:
    main = (
        "trap 'cat served-0 > saved; exit 75' USR1; echo up > begun; while :; do sleep 0.05; done"
    )
    roles = {"trainer": role(0), "server": role(1, SERVE, restart="rank")}
    _submit(place, main, roles, recovery={"stop_signal": "SIGUSR1"})
    running = place.start()
    until(lambda: _lines(place, "begun") and _lines(place, "served-0"))
    os.kill(running.pid, signal.SIGTERM)
    code, said = place.end(running)
    assert code == 75, said
    assert _lines(place, "saved") == 1
    assert place.cause()["kind"] == "signal"
    # The server was ended, and neither started anew nor blamed.
    assert place.attempt().roles == []


def test_an_evaluator_that_is_cut_short_is_not_taken_for_done(place: Place) -> None:
    roles = {"trainer": role(0), "evaluator": role(1, "exec sleep 300", at_end="finish")}
    _submit(place, "true", roles, recovery={})
    running = place.start()
    until(lambda: place.run.attempt(1).session.exists())
    os.kill(running.pid, signal.SIGTERM)
    code, said = place.end(running)
    assert code == 75, said
    assert place.attempt().outcome == "stopped"
    assert ledger.intent(place.run) is None


class _Silent(Workers):
    """Ranks that say nothing more."""

    gone = False

    def failure(self) -> RankEnd | None:
        return None

    def exit_code(self) -> int | None:
        return None

    def abandon(self) -> None:
        self.gone = True

    def kill(self, *, nodes_are_lost: bool = False) -> None:
        self.gone = True


class _Bench:
    """Role workers whose processes are silent, and what they do about lost nodes."""

    def __init__(self, directory: Path, roles: dict[str, Any]) -> None:
        spec = {"resources": {**RESOURCES, "nodes": 3, "ntasks_per_node": 4}, "roles": roles}
        run = RunPlan(3, "identity", "", {}, Entry("command", argv=("train",)), spec)
        launch = launch_of(directory, nodes=NODES, **spec)
        self.started: list[tuple[int, str]] = []
        self.made: list[_Silent] = []
        self.moved: dict[int, str] = {}
        self.events: list[dict[str, Any]] = []
        self.launches = RoleLaunches(run, launch, NODES)
        self.workers = RoleWorkers(
            *(run, launch.paths, self, self.launches, self),  # type: ignore[arg-type]
            lambda event, **details: self.events.append({"event": event, **details}),
            lambda: False,
        )
        self.places = self

    def start_role(
        self, _role: Any, attempt: Any, _launch: Path, places: dict[int, str]
    ) -> Workers:
        self.started += places.items()
        self.made.append(_Silent(attempt))
        return self.made[-1]

    def move(self, rank: int, node: str) -> None:
        self.moved[rank] = node

    def send(self, _node: str, _message: dict[str, Any]) -> None:
        pass


def test_ranks_of_a_lost_node_move_to_another_one(tmp_path: Path) -> None:
    roles = {
        "trainer": role(0, nodes=2, ranks=2),
        "server": role(4, "serve", first_node=2, ranks=2, restart="rank"),
        "evaluator": role(6, "evaluate", first_node=2, restart="ignore"),
    }
    bench = _Bench(tmp_path, roles)
    trainer = [(0, "n0"), (1, "n0"), (2, "n1"), (3, "n1")]
    assert bench.started == [*trainer, (4, "n2"), (5, "n2"), (6, "n2")]
    assert bench.workers.outlives(["n2"])
    assert bench.moved == {4: "n0", 5: "n1"}
    # The evaluator is given up, the servers are started where they went.
    assert [one.gone for one in bench.made] == [False, True, True, True]
    assert bench.workers.exit_code() is None
    assert bench.started[7:] == [(4, "n0"), (5, "n1")]
    assert [(one["role"], one["what"], one["ranks"]) for one in bench.events] == [
        ("server", "moved", [4, 5]),
        ("evaluator", "ignored", [6]),
    ]
    assert bench.events[0]["why"] == "node n2 was lost"
    assert {*bench.workers.outlived} == {"n2"}
    # The next one has the trainer's ranks.
    assert not bench.workers.outlives(["n1"])
    assert {*bench.workers.outlived} == {"n2"}


@pytest.mark.parametrize("restart", ["run", "rank"])
def test_a_lost_node_that_ends_the_attempt(tmp_path: Path, restart: str) -> None:
    roles = {
        "trainer": role(0, nodes=2),
        "server": role(2, "serve", first_node=2, restart=restart, gpus_per_node=1),
    }
    bench = _Bench(tmp_path, roles)
    assert not bench.workers.outlives(["n2"])
    assert (bench.moved, bench.events) == ({}, [])
