"""Launch files of roles: each is a run of its own, on ports that nobody else has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.launch import Launch, LaunchNode
from hpcrun.run.rank.rank_environment import environment
from hpcrun.run.roles.role_launch import RoleLaunches
from hpcrun.state.plan import Entry, RunPlan
from tests.support.place import RESOURCES, launch_of
from tests.support.roles import role

NODES = tuple(
    LaunchNode(f"n{index}", "/code", "/scratch", "ib0", f"10.9.0.{index}", ports=20_000 + index)
    for index in range(3)
)


def _launches(
    directory: Path, roles: dict[str, Any], nodes: tuple[LaunchNode, ...] = NODES
) -> RoleLaunches:
    spec = {
        "resources": {**RESOURCES, "nodes": len(nodes), "ntasks_per_node": 4},
        "config": {"lr": 1},
        "roles": roles,
    }
    run = RunPlan(3, "identity", "", {}, Entry("command", argv=("train",)), spec)
    launch = launch_of(directory, nodes=nodes, **spec)
    return RoleLaunches(run, launch, nodes)


ROLES = {
    "trainer": role(0, nodes=2, ranks=2),
    "server": role(4, "serve", nodes=2, restart="rank", config={"x": 2}, cpus_per_task=3),
    "eval-uator": role(6, "evaluate", first_node=2, restart="rank"),
}


def test_each_role_has_ranks_nodes_and_addresses_of_its_own(tmp_path: Path) -> None:
    launches = _launches(tmp_path, ROLES)
    launches.write()
    main = Launch.read(launches.main.paths.launch)
    assert (main.world_size, main.ranks_per_node, main.is_main) == (4, 2, True)
    assert [node.name for node in main.nodes] == ["n0", "n1"]
    assert main.config == {"lr": 1}
    assert main.entry.argv == ("true",)
    server = Launch.read(main.paths.role_launch("server"))
    assert (server.world_size, server.first_rank, server.is_main) == (2, 4, False)
    assert server.config == {"x": 2}
    assert server.entry.argv == ("bash", "-c", "serve")
    evaluator = Launch.read(main.paths.role_launch("eval-uator"))
    assert [evaluator.node_of(0).name, evaluator.number(0)] == ["n2", 6]
    found = environment(server, 1)
    assert (found["RANK"], found["WORLD_SIZE"], found["NODE_RANK"]) == ("1", "2", "1")
    assert (found["HPCRUN_ROLE"], found["OMP_NUM_THREADS"]) == ("server", "3")
    assert found["HPCRUN_LAUNCH"] == str(server.file)
    assert "HPCRUN_METRICS_FILE" not in found
    assert "HPCRUN_METRICS_FILE" in environment(main, 0)
    addresses = json.loads(main.paths.addresses.read_text())
    assert {name: len(each) for name, each in addresses.items()} == {
        "trainer": 4,
        "server": 2,
        "eval-uator": 1,
    }
    assert found["HPCRUN_ADDRESSES_SERVER"] == ",".join(addresses["server"])
    assert found["HPCRUN_ADDRESSES_EVAL_UATOR"] == addresses["eval-uator"][0]
    assert addresses["server"][1].startswith("10.9.0.1:")
    port = int(addresses["server"][1].rpartition(":")[2])
    assert server.ports_of(1)[0] == port
    assert found["MASTER_ADDR"] == "10.9.0.0"
    assert int(found["MASTER_PORT"]) in server.ports_of(0)


def test_no_two_ranks_of_a_node_share_a_port(tmp_path: Path) -> None:
    launches = _launches(tmp_path, ROLES)
    taken: dict[str, list[int]] = {}
    for name in ROLES:
        launch = launches._launches[name]
        for rank in range(launch.world_size):
            taken.setdefault(launch.node_of(rank).name, []).extend(launch.ports_of(rank))
    assert all(len(ports) == len(set(ports)) for ports in taken.values())
    assert sorted(map(len, taken.values())) == [4, 12, 12]


def test_a_rank_that_moves_keeps_its_number_and_gets_another_address(tmp_path: Path) -> None:
    launches = _launches(tmp_path, ROLES)
    launches.write()
    before = dict(launches.main.addresses)
    # Two of the trainer's ranks and a server's are on each of the others.
    assert launches.move([5], ["n1"]) == {5: "n2"}
    server = Launch.read(launches.main.paths.role_launch("server"))
    assert [server.node_of(rank).name for rank in (0, 1)] == ["n0", "n2"]
    assert environment(server, 1)["RANK"] == "1"
    after = json.loads(launches.main.paths.addresses.read_text())
    assert after["server"][0] == before["server"][0]
    assert after["server"][1].startswith("10.9.0.2:")
    assert after["server"][1].rpartition(":")[2] != before["server"][1].rpartition(":")[2]
    assert Launch.read(launches.main.paths.launch).addresses == after
    # The evaluator's is taken then: the next one goes to the node that has the least.
    assert launches.move([6], ["n1", "n2"]) == {6: "n0"}


def test_gpus_are_shared_out_by_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roles = {
        "trainer": role(0, ranks=3, gpus_per_node=3),
        "judge": role(3, "judge", gpus_per_node=1, first_gpu=3),
        "server": role(4, "serve"),
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    launches = _launches(tmp_path, roles, NODES[:1])
    devices = [environment(one, 0)["CUDA_VISIBLE_DEVICES"] for one in launches._launches.values()]
    assert devices == ["4,5,6", "7", ""]
    assert "DS_ACCELERATOR" not in environment(launches.main, 0)


def test_a_node_without_free_ports_is_named(tmp_path: Path) -> None:
    nodes = (NODES[0], LaunchNode("n9", "/code", "/scratch", "ib0", "10.9.0.9"))
    with pytest.raises(HpcrunError, match="node n9 has no 4 free TCP ports"):
        _launches(tmp_path, {"a": role(0, nodes=2), "b": role(2, "b", ranks=3)}, nodes)
