"""The ledger's events of roles, in words."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.state.roles import role_log


def _event(what: str, ranks: list[int], **given: Any) -> dict[str, Any]:
    return {
        "role": "server",
        "what": what,
        "ranks": ranks,
        "why": "server 1 ended by SIGKILL",
        **given,
    }


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (_event("restarted", [5], node="n2"), "rank 5 started anew on n2"),
        (_event("moved", [4, 5], node="n2"), "ranks 4-5 moved to n2"),
        (_event("ignored", [5]), "the run goes on without rank 5"),
        (_event("promoted", [5]), "promoted"),
    ],
)
def test_words(event: dict[str, Any], words: str) -> None:
    assert role_log.told(event) == f"role server: server 1 ended by SIGKILL; {words}"


def test_a_summary() -> None:
    events = [_event("restarted", [5]), _event("restarted", [4]), _event("moved", [4])]
    assert role_log.summary(events) == "server restarted 2x, server moved 1x"
