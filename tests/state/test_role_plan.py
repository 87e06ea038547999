"""Roles as a plan has them; plans may be other people's."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.state import role_plan
from hpcrun.state.plan import Entry, RunPlan, check_spec
from tests.support.place import RESOURCES
from tests.support.roles import role

ROLES = {
    "trainer": role(0, nodes=2, ranks=2),
    "server": role(4, "serve", nodes=2, restart="rank"),
    "evaluator": role(6, "evaluate", first_node=1, restart="ignore", at_end="finish"),
}


def _run(roles: dict[str, Any]) -> RunPlan:
    spec = {"resources": {**RESOURCES, "nodes": 2, "ntasks_per_node": 4}, "roles": roles}
    return RunPlan(0, "identity", "", {}, Entry("script", file="train.py"), spec)


def test_ranks_are_numbered_one_role_after_the_other() -> None:
    run = _run(ROLES)
    assert (run.world_size, run.main_ranks, run.ranks_per_node, run.slots) == (7, 4, 4, 5)
    assert run.places == [0, 0, 1, 1, 0, 1, 1]
    assert run.outlives_nodes
    trainer, server, evaluator = run.role_plans
    assert (trainer.ranks, server.ranks, evaluator.ranks) == (range(4), range(4, 6), range(6, 7))
    assert [one.may_move for one in run.role_plans] == [False, True, True]
    assert server.shown(5) == "server 1"
    assert server.described == "ranks 4-5 on nodes 0-1; restart: rank; at_end: stop"
    assert trainer.described == "ranks 0-3 on nodes 0-1; restart: run; main"
    assert role_plan.role_of(run.role_plans, 6) is evaluator
    assert role_plan.role_of(run.role_plans, 7) is None
    plain = _run({})
    assert (plain.world_size, plain.main_ranks, plain.slots, plain.role_plans) == (8, 8, 4, ())
    assert not plain.outlives_nodes


def test_a_role_with_nodes_of_its_own() -> None:
    """Its plan may be of a later version: an unknown key is passed over, null is the default."""
    asked = {"partition": "cpu", "gpus_per_node": None, "of_a_later_version": 1}
    own = {**role(4, "serve", nodes=2, first_node=2), "part": 1, "resources": asked}
    run = _run({"trainer": ROLES["trainer"], "server": own})
    assert (run.nodes, run.shared_nodes, [one.name for one in run.own_parts]) == (4, 2, ["server"])
    assert [run.resources_of(node).partition for node in range(4)] == [None, None, "cpu", "cpu"]
    assert run.resources_of(3).gpus_per_node == 0
    assert "on nodes 2-3 of its own in cpu; restart" in run.role_plans[1].described


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first_rank": 5}, "do not follow"),
        ({"first_rank": "4"}, "first_rank is '4'"),
        ({"nodes": None}, "nodes is missing"),
        ({"nodes": -1}, "nodes is -1"),
        ({"ntasks_per_node": 0}, "do not follow"),
        ({"program": {"argv": []}}, "kind is missing"),
        ({"program": {"kind": "command", "argv": [1]}}, "argv"),
        ({"config": []}, "config"),
        ({"resources": []}, r"roles.server: resources is \[\], not a mapping"),
        ({"resources": {"mem": 3}}, "roles.server.resources.mem is 3, not str"),
        ({"part": "1"}, "part is '1'"),
    ],
)
def test_roles_that_no_compiler_wrote(change: dict[str, Any], message: str) -> None:
    roles = {**ROLES, "server": {**ROLES["server"], **change}}
    with pytest.raises(ValueError, match=message):
        check_spec({"roles": roles})
    with pytest.raises(ValueError, match="roles"):
        check_spec({"roles": {"server": 3}})
