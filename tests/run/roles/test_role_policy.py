"""What follows when a rank of a role ends badly, or its node is lost: every case."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.run.roles import role_policy
from hpcrun.run.roles.role_policy import (
    END_RUN,
    GO_ON,
    LEAVE,
    RESTART_RANK,
    RESTART_ROLE,
    RoleState,
)
from hpcrun.state import role_plan
from hpcrun.state.role_plan import RolePlan
from tests.support.roles import role


def _role(restart: str, *, main: bool = False, **given: Any) -> RolePlan:
    roles = {"trainer": role(0, restart=restart, **(given if main else {}))}
    if not main:
        roles["server"] = role(1, "true", restart=restart, **given)
    return role_plan.of({"roles": roles})[-1]


CALM = RoleState()
STOPPING = RoleState(stopping=True)
ASKED = RoleState(asked=True, main_is_over=True)


@pytest.mark.parametrize(
    ("restart", "state", "action"),
    [
        ("run", CALM, END_RUN),
        ("role", CALM, RESTART_ROLE),
        ("rank", CALM, RESTART_RANK),
        ("ignore", CALM, GO_ON),
        # As the run saves and leaves nobody is started anew, and nobody is to blame.
        *((restart, STOPPING, LEAVE) for restart in ("run", "role", "rank", "ignore")),
        *((restart, ASKED, LEAVE) for restart in ("run", "role", "rank", "ignore")),
        # One that is awaited after the main role's end is dealt with as before.
        ("rank", RoleState(main_is_over=True), RESTART_RANK),
        ("run", RoleState(main_is_over=True), END_RUN),
        ("rank", RoleState(restarts=9), RESTART_RANK),
        ("rank", RoleState(restarts=10), END_RUN),
        ("role", RoleState(restarts=10), END_RUN),
        ("ignore", RoleState(restarts=10), GO_ON),
    ],
)
def test_a_bad_end_of_a_further_role(restart: str, state: RoleState, action: str) -> None:
    assert role_policy.after_bad_end(_role(restart), state).action == action


@pytest.mark.parametrize(
    ("restart", "state", "saved", "action"),
    [
        ("run", CALM, False, END_RUN),
        ("rank", CALM, False, RESTART_RANK),
        ("role", CALM, False, RESTART_ROLE),
        # Ranks that saved leave together, and so do those that were asked to.
        ("rank", CALM, True, END_RUN),
        ("rank", STOPPING, False, END_RUN),
    ],
)
def test_a_bad_end_of_the_main_role(
    restart: str, state: RoleState, saved: bool, action: str
) -> None:
    found = role_policy.after_bad_end(_role(restart, main=True), state, saved=saved)
    assert found.action == action


def test_a_used_up_budget_is_told() -> None:
    found = role_policy.after_bad_end(_role("rank", budget=1), RoleState(restarts=1))
    assert found.why == "started anew 1 time; roles.server.budget is 1"
    never = role_policy.after_bad_end(_role("rank", budget=0), CALM)
    assert never.action == END_RUN


@pytest.mark.parametrize(
    ("restart", "given", "state", "others", "action"),
    [
        ("run", {}, CALM, True, END_RUN),
        ("role", {}, CALM, True, RESTART_ROLE),
        ("rank", {}, CALM, True, RESTART_RANK),
        ("rank", {}, CALM, False, END_RUN),
        ("rank", {"gpus_per_node": 1}, CALM, True, END_RUN),
        ("ignore", {"gpus_per_node": 1}, CALM, True, GO_ON),
        ("ignore", {}, CALM, False, GO_ON),
        ("rank", {}, STOPPING, True, END_RUN),
        ("rank", {}, RoleState(restarts=10), True, END_RUN),
        ("run", {}, ASKED, True, LEAVE),
        ("ignore", {}, RoleState(main_is_over=True), True, LEAVE),
    ],
)
def test_a_lost_node(
    restart: str, given: dict[str, Any], state: RoleState, others: bool, action: str
) -> None:
    found = role_policy.after_lost_node(_role(restart, **given), state, others=others)
    assert found.action == action


@pytest.mark.parametrize("restart", ["run", "role", "rank"])
def test_a_lost_node_of_the_main_role(restart: str) -> None:
    found = role_policy.after_lost_node(_role(restart, main=True), CALM, others=True)
    assert found.action == END_RUN


def test_restarts_wait_longer_and_longer() -> None:
    waits = [role_policy.delay(number) for number in range(8)]
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert role_policy.delay(5000) == 30.0
