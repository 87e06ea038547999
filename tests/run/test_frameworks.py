"""Ranks of frameworks, on the local executor: how they find each other, and that it shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcrun.observe.status import run_state
from hpcrun.state import files, ledger
from hpcrun.state.plan import Entry
from tests.support.place import Place

GLOO = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("met", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""
# What TensorFlow's workers do: each listens on its own address, and connects to the others.
WORKERS = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
workers, own = config["cluster"]["worker"], config["task"]["index"]
address = lambda one: (one.split(":")[0], int(one.split(":")[1]))
server = socket.create_server(address(workers[own]))
for other in workers:
    for _ in range(200):
        try:
            socket.create_connection(address(other)).close()
            break
        except OSError:
            time.sleep(0.05)
    else:
        raise SystemExit(f"nobody listens on {other}")
for _ in workers:
    server.accept()
print("met", len(workers), flush=True)
"""
# torchrun, on each of two nodes, starts these.
INSIDE = """
import os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")
print(*("inside", *(os.environ[name] for name in names)), flush=True)
"""


def _submit(place: Place, framework: str, code: str, **shape: int) -> None:
    (place.code / "program.py").write_text(code)
    argv = ("python", "program.py")
    environment = {"variables": {}}
    place.submit(Entry("command", argv=argv, framework=framework), environment=environment, **shape)


def _alone(place: Place) -> list[dict[str, Any]]:
    records = files.read_lines(place.run.ledger)
    return [record for record in records if record["event"] == ledger.NEVER_MET]


def _reason(place: Place) -> str | None:
    attempts = ledger.read(place.run)
    return run_state.decide(run_state.RunEvidence(attempts=attempts, intent="finished")).reason


def test_ranks_that_never_met_are_told(place: Place) -> None:
    _submit(place, "auto", "print('trained')", nodes=2, ranks=2)
    code, said = place.supervise()
    assert code == 0
    assert "the 4 ranks never met" in said
    (record,) = _alone(place)
    assert (record["attempt"], record["world_size"]) == (1, 4)
    assert place.attempt().outcome == "completed"
    assert _reason(place) == "its 4 ranks never met: each worked alone"


@pytest.mark.parametrize("alone", [False, True])
def test_a_finished_program_that_ends_at_once_had_met_before(place: Place, alone: bool) -> None:
    """It was said of runs that had trained together for hours."""
    _submit(place, "auto", "print('there is nothing left to do')", ranks=2)
    place.run.attempt(1).directory.mkdir(parents=True)
    events = [
        {"event": ledger.STARTED, "time": 1000.0, "job_id": "1", "submission": 1},
        {"event": ledger.WORKERS, "time": 1001.0},
        {"event": ledger.ENDED, "time": 9000.0, "outcome": "stopped"},
        {"event": ledger.NEVER_MET, "time": 8999.0, "world_size": 2},
    ]
    files.append(place.run.ledger, *({**one, "attempt": 1} for one in events[: 3 + alone]))
    code, said = place.supervise()
    assert code == 0, said
    assert place.attempt(2).outcome == "completed"
    assert [one["attempt"] for one in _alone(place)] == ([1, 2] if alone else [])


@pytest.mark.parametrize(("framework", "ranks"), [("none", 2), ("auto", 1), ("single", 1)])
def test_ranks_that_are_meant_to_work_alone(place: Place, framework: str, ranks: int) -> None:
    _submit(place, framework, "print('trained')", ranks=ranks)
    code, said = place.supervise()
    assert code == 0
    assert "never met" not in said
    assert _alone(place) == []
    assert _reason(place) is None


def test_ranks_of_torch_that_met(place: Place) -> None:
    _submit(place, "auto", GLOO, nodes=2)
    code, said = place.supervise(120)
    assert code == 0, said + place.output(0) + place.output(1)
    assert [place.output(rank) for rank in (0, 1)] == ["met 2\n", "met 2\n"]
    assert _alone(place) == []


def test_workers_of_tensorflow_find_each_other(place: Place) -> None:
    _submit(place, "tensorflow", WORKERS, nodes=2, ranks=2)
    code, said = place.supervise()
    assert code == 0, said
    assert {place.output(rank) for rank in range(4)} == {"met 4\n"}
    assert _alone(place) == []


def test_torchrun_on_each_node_finds_the_others(place: Place) -> None:
    (place.code / "program.py").write_text(INSIDE)
    argv = ("python", "-m", "torch.distributed.run", "--nproc-per-node=2", "program.py")
    place.submit(Entry("command", argv=argv, framework="torchrun"), nodes=2)
    code, said = place.supervise(180)
    assert code == 0, said + place.output(0) + place.output(1)
    lines = (place.output(0) + place.output(1)).splitlines()
    assert sorted(line for line in lines if line.startswith("inside")) == [
        *("inside 0 4 0 0", "inside 1 4 1 0", "inside 2 4 0 1", "inside 3 4 1 1"),
    ]
    assert _alone(place) == []


def test_variables_of_the_user_name_places_of_the_attempt(place: Place) -> None:
    variables = {"OUT": "${hpcrun:directory}/out", "JAX_PROCESS_ID": "mine"}
    code = "import json, os; print(json.dumps({n: os.environ.get(n) for n in %r}))"
    names = ["OUT", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"]
    (place.code / "program.py").write_text(code % names)
    entry = Entry("command", argv=("python", "program.py"), framework="jax")
    place.submit(entry, environment={"variables": variables})
    assert place.supervise(JAX_PROCESS_ID="mine")[0] == 0
    found = json.loads(place.output())
    assert found == {
        "OUT": f"{place.run.directory}/out",
        **{"JAX_PROCESS_ID": "mine", "JAX_NUM_PROCESSES": "1"},
    }
