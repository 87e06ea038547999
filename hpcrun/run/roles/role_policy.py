"""Decide what follows when a rank of a role ends badly, or its node is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hpcrun.state.role_plan import IGNORE, RANK, ROLE, RUN, RolePlan
from hpcrun.text import plural

# What follows.
END_RUN, RESTART_RANK, RESTART_ROLE, GO_ON, LEAVE = RUN, RANK, ROLE, IGNORE, "leave"
# Seconds before the second restart of a role in an attempt; each further one waits twice as long.
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 30.0


@dataclass(frozen=True)
class RoleState:
    """The state of an attempt, as it matters for one role."""

    restarts: int = 0
    """The number of restarts of its ranks in this attempt."""
    stopping: bool = False
    """All ranks were asked to save and leave."""
    main_is_over: bool = False
    """No rank of the main role is left."""
    asked: bool = False
    """Its ranks were asked to end."""


class Response(NamedTuple):
    """An action, and why where it is not what the role's ``restart`` says."""

    action: str
    why: str | None = None


def after_bad_end(role: RolePlan, state: RoleState, *, saved: bool = False) -> Response:
    """Decide what follows a bad end of a rank; ``saved``: it left to be started again."""
    if role.is_main and (saved or state.stopping):
        return Response(END_RUN)
    if state.asked or state.stopping:
        return Response(LEAVE)
    return _response(role, state)


def after_lost_node(role: RolePlan, state: RoleState, *, others: bool) -> Response:
    """Decide what follows the loss of a node with ranks of a role.

    ``others``: the attempt has other nodes. Those that may not move end the attempt, and the run is
    restarted on a spare, or requeued.
    """
    if state.asked or (state.main_is_over and role.restart == IGNORE):
        return Response(LEAVE)
    if role.is_main or state.stopping:
        return Response(END_RUN)
    if role.restart == IGNORE:
        return Response(GO_ON)
    if not role.may_move or not others:
        return Response(END_RUN)
    return _response(role, state)


def delay(restarts: int) -> float:
    """Return how many seconds a restart waits, after so many before it in the attempt."""
    if restarts == 0:
        return 0.0
    return min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(restarts - 1, 10))


def _response(role: RolePlan, state: RoleState) -> Response:
    action = role.restart if role.restart in (RANK, ROLE, IGNORE) else END_RUN
    if action in (RESTART_RANK, RESTART_ROLE) and state.restarts >= role.budget:
        times = plural(state.restarts, "time")
        return Response(END_RUN, f"started anew {times}; roles.{role.name}.budget is {role.budget}")
    return Response(action)
