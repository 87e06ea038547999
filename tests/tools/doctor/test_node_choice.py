"""Which nodes are tested, for each way to ask."""

from __future__ import annotations

import pytest

from hpcrun.errors import UsageError
from hpcrun.site.slurm_site import SlurmSite
from hpcrun.tools.doctor.node_choice import IDLE, choose
from tests.support import made_site

GPU = "gpu:a100:8"


def there() -> SlurmSite:
    """`gpu`: six nodes, three of them idle; `cpu`: another one, and one of those; `big`: many."""
    return made_site.site(
        [
            made_site.partition("gpu", "g[1-6]", Default="YES"),
            made_site.partition("cpu", "c1,g1", MaxNodes=1),
            made_site.partition("big", "b[1-40]"),
        ],
        [
            *made_site.nodes(["g1", "g2", "g3"], Gres=GPU),
            *made_site.nodes(["g4"], Gres=GPU, State="ALLOCATED"),
            *made_site.nodes(["g5"], Gres="gpu:a100:4", State="MIXED"),
            *made_site.nodes(["g6"], Gres=GPU, State="DOWN+DRAIN", Reason="dimm"),
            *made_site.nodes(["c1"]),
            *made_site.nodes([f"b{n}" for n in range(1, 41)]),
        ],
    )


def test_so_many() -> None:
    choice = choose("4", None, there())
    assert (choice.partition, choice.count, choice.names) == ("gpu", 4, ())
    # What all nodes have that it may get.
    assert choice.gpus == 4


@pytest.mark.parametrize(("partition", "count"), [(None, 3), ("cpu", 1), ("big", 16)])
def test_those_that_are_idle(partition: str | None, count: int) -> None:
    choice = choose(IDLE, partition, there())
    assert (choice.count, choice.notes) == (count, ())


@pytest.mark.parametrize(
    ("state", "is_idle"),
    [
        *(("IDLE+CLOUD", True), ("IDLE+DYNAMIC_NORM", True), ("IDLE+CLOUD+POWERED_DOWN", True)),
        *(("IDLE+PLANNED", False), ("IDLE+RESERVED", False), ("IDLE+COMPLETING", False)),
        *(("IDLE+CLOUD+POWERING_DOWN", False), ("IDLE+MAINTENANCE", False), ("MIXED", False)),
        *(("IDLE+DRAIN", False), ("IDLE+NOT_RESPONDING", False), ("ALLOCATED+CLOUD", False)),
    ],
)
def test_what_an_idle_node_is(state: str, is_idle: bool) -> None:
    there = made_site.site(
        [made_site.partition("gpu", "g[1-5]", Default="YES")],
        [
            *made_site.nodes(["g1", "g2", "g3"], State=state),
            *made_site.nodes(["g4", "g5"], State="ALLOCATED"),
        ],
    )
    choice = choose(IDLE, None, there)
    assert (choice.count, bool(choice.notes)) == (3 if is_idle else 2, not is_idle)


def test_none_is_idle() -> None:
    busy = made_site.site(
        [made_site.partition("gpu", "g[1-3]", Default="YES")],
        made_site.nodes(["g1", "g2", "g3"], State="ALLOCATED"),
    )
    choice = choose(IDLE, None, busy)
    assert choice.count == 2
    assert choice.notes == ("no node of gpu is idle: the job waits for 2",)


def test_names() -> None:
    choice = choose("g[1-2],g6", None, there())
    assert (choice.partition, choice.count, choice.names) == ("gpu", 3, ("g1", "g2", "g6"))
    assert choice.gpus == 8
    assert choice.notes == ("g6 is DOWN+DRAIN: the job waits until it is back",)
    # One that only another partition has.
    assert choose("c1", None, there()).partition == "cpu"
    assert choose("g1", "cpu", there()).partition == "cpu"


@pytest.mark.parametrize(
    ("words", "partition", "message"),
    [
        ("0", None, "accepted is 1 to 512"),
        ("7", None, "the partition gpu has 5 nodes in service"),
        ("g[5-2]", None, "accepted is a number, or names such as node"),
        ("x9,g1", None, "there is no node x9"),
        ("2", "gpus", "there is no partition 'gpus'"),
        ("g2,c1", None, "no partition has all of g2, c1"),
        ("g2", "cpu", "no partition cpu has all of g2"),
    ],
)
def test_what_is_refused(words: str, partition: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose(words, partition, there())
