"""Checkpoints in the nodes' own storage, of real DeepSpeed engines and real ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hpcrun.state.layout import RunPaths
from tests.run.ranks import THREE, Ranks, Worlds

pytestmark = [pytest.mark.training]

WORLD = 3
FIVE = "step-00000005-a1 of the nodes' storage"


@pytest.fixture(scope="module")
def started(worlds: Worlds) -> Ranks:
    world = worlds(WORLD)
    world.start()
    return world


@pytest.fixture
def nodes(tmp_path: Path) -> list[str]:
    """One for each rank."""
    return [str(tmp_path / f"node-{number}") for number in range(WORLD)]


def begin(ranks: Ranks, run: RunPaths, nodes: list[str], stage: int) -> tuple[list, list]:  # type: ignore[type-arg]
    """Save step 3 on shared storage and step 5 nearby; the state then, and the losses after it."""
    ranks.tell("engine", stage=stage)
    ranks.tell("train", steps=3)
    ranks.tell("save", run=str(run.directory), step=3)
    ranks.tell("train", steps=2)
    digest = ranks.tell("digest")
    sizes = ranks.tell("save_nearby", nodes=nodes, step=5)
    assert sizes[0] > 1000
    assert len(set(sizes)) == 1
    after = ranks.tell("train", steps=2)
    ranks.tell("engine", stage=stage, seed=5)
    return digest, after


def go_on(ranks: Ranks, run: RunPaths, nodes: list[str]) -> list[str]:
    """`begin`, restore, and take one step more; the state at step 5."""
    digest, _ = begin(ranks, run, nodes, 1)
    ranks.tell("restore", run=str(run.directory), nodes=nodes)
    ranks.tell("train", steps=1)
    return digest


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(
    "what", ["nothing is lost", "first node", "last node", "others, in another order"]
)
def test_what_one_lost_node_had_is_there_a_second_time(
    started: Ranks, tmp_path: Path, nodes: list[str], stage: int, what: str
) -> None:
    run = RunPaths(tmp_path / "3")
    digest, after = begin(started, run, nodes, stage)
    now = list(nodes)
    if what == "first node":
        shutil.rmtree(nodes[0])
    elif what == "last node":
        shutil.rmtree(nodes[-1])
    elif what != "nothing is lost":
        # A spare after the others takes the first one's place.
        now = [*nodes[1:], str(tmp_path / "node-9")]
    found = started.tell("restore", run=str(run.directory), nodes=now)
    assert found == [[5, FIVE]] * WORLD
    assert started.tell("digest") == digest
    assert started.tell("train", steps=2) == after
    # All is where it belongs now, so that the next node may be lost.
    for rank, node in enumerate(now):
        assert (Path(node) / FIVE.split()[0] / f"bundle-{rank:05d}.json").exists()


def test_ranks_that_have_just_begun(started: Ranks, tmp_path: Path, nodes: list[str]) -> None:
    """Two of the three have something to send and to receive."""
    run = RunPaths(tmp_path / "3")
    digest, _ = begin(started, run, nodes, 1)
    started.stop()
    shutil.rmtree(nodes[2])
    started.tell("engine", stage=1, seed=5)
    assert started.tell("restore", run=str(run.directory), nodes=nodes) == [[5, FIVE]] * WORLD
    assert started.tell("digest") == digest


def test_without_zero(started: Ranks, tmp_path: Path, nodes: list[str]) -> None:
    """Rank 0 alone saves what all of them read."""
    run = RunPaths(tmp_path / "3")
    started.tell("mixed", stage=0)
    started.tell("train_mixed", steps=2)
    saved = started.tell("contents")
    started.tell("save_nearby", nodes=nodes, step=2)
    started.tell("mixed", stage=0, seed=5)
    shutil.rmtree(nodes[0])
    (found, *_) = started.tell("restore", run=str(run.directory), nodes=nodes)
    assert found[0] == 2
    # Buffers are rank 0's, as DeepSpeed saves them.
    assert started.tell("contents")[0] == saved[0]


def test_two_lost_nodes_take_the_last_steps_with_them(
    started: Ranks, tmp_path: Path, nodes: list[str]
) -> None:
    run = RunPaths(tmp_path / "3")
    begin(started, run, nodes, 1)
    for node in nodes[:2]:
        shutil.rmtree(node)
    assert started.tell("restore", run=str(run.directory), nodes=nodes) == [[3, THREE]] * WORLD


def test_the_shared_one_is_used_where_it_is_newer(
    started: Ranks, tmp_path: Path, nodes: list[str]
) -> None:
    run = RunPaths(tmp_path / "3")
    go_on(started, run, nodes)
    started.tell("save", run=str(run.directory), step=6)
    found = started.tell("restore", run=str(run.directory), nodes=nodes)
    assert found == [[6, "step-00000006-a1"]] * WORLD


def harm(place: Path, damage: str) -> None:
    """Rank 1's part there."""
    record = place / "bundle-00001.json"
    file = place / max(json.loads(record.read_text())["files"])
    if damage == "flip":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "remove":
        file.unlink()
    else:
        record.write_text("1" if damage == "number" else '{"rank": 1')


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "record", "number"])
def test_what_is_damaged_is_not_used(
    started: Ranks, tmp_path: Path, nodes: list[str], damage: str
) -> None:
    run = RunPaths(tmp_path / "3")
    digest, _ = begin(started, run, nodes, 1)
    of_its_own, of_its_neighbour = (Path(nodes[at]) / FIVE.split()[0] for at in (1, 2))
    harm(of_its_own, damage)
    assert started.tell("restore", run=str(run.directory), nodes=nodes) == [[5, FIVE]] * WORLD
    assert started.tell("digest") == digest
    harm(of_its_own, damage)
    harm(of_its_neighbour, damage)
    found = started.tell("restore", run=str(run.directory), nodes=nodes)
    assert found == [[3, THREE]] * WORLD


def test_one_is_kept_and_one_that_fails_leaves_the_one_before(
    started: Ranks, tmp_path: Path, nodes: list[str]
) -> None:
    run = RunPaths(tmp_path / "3")
    go_on(started, run, nodes)
    started.tell("save_nearby", nodes=nodes, step=6, attempt=2)
    assert [path.name for path in Path(nodes[0]).glob("step-*")] == ["step-00000006-a2"]
    started.tell("train", steps=1)
    (Path(nodes[1]) / "step-00000007-a2").write_text("in the way")
    said = started.tell("save_nearby", nodes=nodes, step=7, attempt=2)
    assert all("step 7 was not saved in the nodes' storage: rank 1: " in one for one in said)
    found = started.tell("restore", run=str(run.directory), nodes=nodes)
    assert found == [[6, "step-00000006-a2 of the nodes' storage"]] * WORLD


def test_ranks_of_one_node_have_no_neighbour(
    started: Ranks, tmp_path: Path, nodes: list[str]
) -> None:
    run = RunPaths(tmp_path / "3")
    together = [nodes[0]] * WORLD
    digest, _ = begin(started, run, together, 1)
    assert started.tell("restore", run=str(run.directory), nodes=together) == [[5, FIVE]] * WORLD
    assert started.tell("digest") == digest


def test_one_that_is_older_than_a_damaged_shared_one_comes_next(
    started: Ranks, tmp_path: Path, nodes: list[str]
) -> None:
    run = RunPaths(tmp_path / "3")
    digest = go_on(started, run, nodes)
    started.tell("save", run=str(run.directory), step=6)
    for path in run.checkpoint(6, 1).glob("*.pt"):
        path.write_bytes(b"damaged")
    assert started.tell("restore", run=str(run.directory), nodes=nodes) == [[5, FIVE]] * WORLD
    assert started.tell("digest") == digest
    assert run.checkpoints.joinpath("bad-step-00000006-a1").exists()
