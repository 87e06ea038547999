"""Where agents report ranks of a launcher inside, such as torchrun, and who is named for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.run.check_in.node_links import NodeLinks
from hpcrun.run.health.hang_detector import Hang
from hpcrun.run.health.progress import STEPPING, RankProgress
from hpcrun.run.job import agents
from hpcrun.run.job.hang_watch import HangWatch, Hung
from hpcrun.run.job.rank_places import RankPlaces
from hpcrun.state.plan import Entry


def _progress(step: int = 3) -> dict[str, Any]:
    return vars(RankProgress(7, step, STEPPING, 2, 5, "S", 12))


def _agents(kind: str) -> Any:
    """The supervisor's view of two nodes with a rank each, without any agent."""
    found: Any = agents.Agents.__new__(agents.Agents)
    entry = Entry(kind, argv=("torchrun",))
    found._run = SimpleNamespace(entry=entry, ranks_per_node=1, world_size=2, role_plans=())
    found.working, found._number = ("n1", "n2"), 1
    found.places = RankPlaces(found._run, found.working)
    found.pulses, found.programs, found.traffic, found.locks = {}, {}, {}, {}
    found.log_sizes, found.links = {}, NodeLinks()
    found._answers, found._broken = {}, set()
    return found


def _pulse(*ranks: int) -> dict[str, Any]:
    found = {str(rank): _progress() for rank in ranks}
    return {"type": "pulse", "attempt": 1, "ranks": found, "logs": {}, "fabric": None}


def test_ranks_are_where_their_agents_say() -> None:
    found = _agents("command")
    found._take_in_if_valid("n2", _pulse(2, 3))
    found._take_in_if_valid("n1", _pulse(0, 1))
    assert sorted(found.pulses) == [0, 1, 2, 3]
    assert [found.places.node_of(rank) for rank in range(5)] == ["n1", "n1", "n2", "n2", None]
    # A rank is on one node: what another says of it does not count.
    found._take_in_if_valid("n1", _pulse(3))
    assert found.places.node_of(3) == "n2"
    found._take_in_if_valid("n2", {"type": "killed", "attempt": 1, "gone": [3]})
    texts = {"type": "stacks", "attempt": 1, "ranks": {"2": "here", "0": "not mine"}}
    found._take_in_if_valid("n2", texts)
    assert (found._answers["killed"], found._answers["stacks"]) == (
        {"n2": [3]},
        {"n2": {2: "here"}},
    )
    assert found._broken == set()


def test_a_functions_ranks_are_as_planned(capfd: pytest.CaptureFixture[str]) -> None:
    found = _agents("function")
    found._take_in_if_valid("n2", _pulse(2))
    assert found.pulses == {}
    assert found._broken == {"n2"}
    assert [found.places.node_of(rank) for rank in range(3)] == ["n1", "n2", None]


def test_a_hang_of_more_ranks_than_were_planned_names_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _agents("command")
    found._run.recovery = SimpleNamespace(hang_after="00:01:00")
    found._take_in_if_valid("n2", _pulse(2, 3))
    monkeypatch.setattr(found, "stacks", dict, raising=False)
    watch = HangWatch(found._run, found, pytest.fail)
    monkeypatch.setattr(watch._hangs, "hang", lambda now: Hang("rank 3 is stopped", 3))
    with pytest.raises(Hung) as caught:
        watch.turn()
    assert (caught.value.found["rank"], caught.value.found["node"]) == (3, "n2")
