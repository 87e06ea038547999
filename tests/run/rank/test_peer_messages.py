"""A rank that waits for one that is gone is told from ranks that fail by themselves."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hpcrun.run.checkpoint import node_copy
from hpcrun.run.health.progress import COLLECTIVE
from hpcrun.run.rank import async_allreduce, peer_messages
from hpcrun.run.rank.collectives import Collectives
from hpcrun.state.manifest import File

pytest.importorskip("torch")


class Gone:
    """A gloo group whose other ranks have left."""

    def send(self, *_: Any) -> Gone:
        return self

    recv = send

    def wait(self) -> None:
        raise RuntimeError("Connection reset by peer")


def _broken() -> Any:
    raise RuntimeError("a disk of this rank")


def _into(ranks: Collectives) -> Any:
    files = {"shard": File(8, "0")}, 0
    return node_copy.exchange(ranks._group, Path("absent"), None, files)


def _out_of(ranks: Collectives) -> Any:
    files = {"shard": File(8, "0")}, 0
    return node_copy.exchange(ranks._group, Path("absent"), files, None)


WAYS: list[tuple[int, Callable[[Collectives], Any]]] = [
    *((rank, lambda ranks: ranks.reduce(1, max)) for rank in (0, 1)),
    *((rank, lambda ranks: ranks.from_rank_0(lambda: 1, "one")) for rank in (0, 1)),
    *((rank, lambda ranks: ranks.agree(None, "nothing")) for rank in (0, 1)),
    *((0, way) for way in (_into, _out_of)),
]


def _traceback(act: Callable[[Collectives], Any], rank: int) -> str:
    with pytest.raises(RuntimeError) as raised:
        act(Collectives(rank, 2, Gone()))
    return "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(("rank", "act"), WAYS)
def test_a_rank_whose_peer_is_gone_counts_as_one_that_waited(
    rank: int, act: Callable[[Collectives], Any]
) -> None:
    assert COLLECTIVE.search(_traceback(act, rank))


def test_what_a_rank_does_between_messages_is_its_own() -> None:
    found = _traceback(lambda ranks: ranks.from_rank_0(_broken, "a file"), 0)
    assert not COLLECTIVE.search(found)


@pytest.mark.parametrize("module", [peer_messages, async_allreduce], ids=lambda one: one.__name__)
def test_frames_of_a_module_that_waits_count_as_waiting(module: ModuleType) -> None:
    assert COLLECTIVE.search(f'  File "{module.__file__}", line 1, in wait')
