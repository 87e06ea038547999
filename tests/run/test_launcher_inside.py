"""Sessions in the processes of a launcher that a rank's program is, such as torchrun."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpcrun
from hpcrun.errors import HpcrunError
from hpcrun.run.checkpoint.node_copy import NodeCopies
from hpcrun.run.protocol.launch import Launch, LaunchNode
from hpcrun.run.rank import samples
from hpcrun.run.rank.collectives import Collectives
from hpcrun.state import files, manifest
from tests.support.place import Place, launch_of
from tests.support.waiting import until

NODES = (
    LaunchNode("n1", "/n1/code", "/n1", "ib0", "10.9.0.1"),
    LaunchNode("n2", "/n2/code", "/n2", "ib0", "10.9.0.2"),
)
VARIABLES = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """An attempt of one rank a node, as torchrun's second process on the second node sees it."""
    spec = {"config": {"here": "${hpcrun:scratch}"}, "checkpoint": {"nearby_every": 2}}
    launch = launch_of(tmp_path, nodes=NODES, **spec)
    launch.write()
    scratch = {"HPCRUN_SCRATCH": str(tmp_path), "HPCRUN_NODE_RANK": "1"}
    for name, value in {**VARIABLES, **scratch, "HPCRUN_LAUNCH": str(launch.paths.launch)}.items():
        monkeypatch.setenv(name, value)
    return launch


@pytest.mark.parametrize("name", ["LOCAL_WORLD_SIZE", "LOCAL_SIZE"])
def test_a_session_knows_its_node_and_believes_the_launcher(
    launch: Launch, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed's launcher names it LOCAL_SIZE, and the other one is the worker's."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv(name, "2")
    session = hpcrun.session()
    assert session.config.here == "/n2"
    assert (session.rank, session.world_size) == (3, 4)
    assert (session.local_rank, session.local_world_size) == (1, 2)


@pytest.mark.parametrize(("world", "nodes"), [(2, (0, 1)), (4, (0, 0, 1, 1)), (3, None)])
def test_copies_on_nodes_go_by_the_launchers_ranks(
    launch: Launch, tmp_path: Path, world: int, nodes: tuple[int, ...] | None
) -> None:
    found = NodeCopies.of(launch, Collectives(0, world), tmp_path)
    assert (found and found._node_of) == nodes


def test_batch_sizes_that_the_configuration_leaves_open_are_the_engines() -> None:
    engine: Any = SimpleNamespace(
        train_batch_size=lambda: 16,
        train_micro_batch_size_per_gpu=lambda: 2,
        gradient_accumulation_steps=lambda: 2,
    )
    sizes = samples.batch_sizes({"train_batch_size": "auto"}, engine)
    assert list(samples.micro_batches(sizes, 2, 1)) == [[20, 21], [22, 23]]
    with pytest.raises(HpcrunError, match='has "auto" for train_batch_size, which a Trainer'):
        samples.without_auto({"train_batch_size": "auto", "gradient_accumulation_steps": 1})
    with pytest.raises(HpcrunError, match="the DeepSpeed configuration leaves open"):
        samples.batch_sizes({"train_batch_size": "auto"}, None)


TRAIN = """
import os, signal, time
import torch
import hpcrun
from tests.support.place import FakeEngine

torch.distributed.init_process_group("gloo")
session = hpcrun.session(total_steps=400)
engine = FakeEngine()
asked = session.scratch / "stop"
# In one piece: two ranks write to one log, unbuffered.
print(f"from {session.restore(engine)} {session.config.here}\\n", end="", flush=True)
while engine.global_steps < session.total_steps:
    engine.step()
    time.sleep(0.02)
    session.step({"loss": torch.tensor(float(session.rank))})
    if session.attempt == 1 and engine.global_steps == 6 and session.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    while session.attempt == 2 and engine.global_steps == 8 and not asked.exists():
        time.sleep(0.05)
"""
TORCHRUN = (
    f"exec {sys.executable} -m torch.distributed.run --nnodes $WORLD_SIZE --node-rank $NODE_RANK "
    "--nproc-per-node 2 --master-addr $MASTER_ADDR --master-port $MASTER_PORT train.py"
)


def test_two_ranks_on_each_of_two_nodes_under_torchrun(place: Place) -> None:
    """One is killed; then they go on where they saved, are asked to stop, save and leave."""
    (place.code / "train.py").write_text(TRAIN)
    config, every = {"here": "${hpcrun:scratch}"}, {"every": 4}
    place.submit(TORCHRUN, nodes=2, config=config, checkpoint=every, deepspeed={})
    assert place.supervise(90)[0] == 1
    assert place.cause(1)["kind"] == "rank_crash"
    assert "(SIGKILL)" in place.output(1)
    supervisor = place.start()
    second = place.run.attempt(2).metrics
    until(lambda: any(line["step"] >= 8 for line in files.read_lines(second)), timeout=90)
    supervisor.send_signal(signal.SIGTERM)
    _, said = place.end(supervisor)
    assert place.attempt(2).outcome == "stopped", said
    (_, newest), *_ = manifest.complete(place.run.checkpoints)
    assert (newest.attempt, newest.world_size) == (2, 4)
    assert 8 < newest.step < 400
    assert place.steps(1)[:6] == list(range(1, 7))
    assert place.steps(2) == list(range(5, newest.step + 1))
    assert {line["loss"] for line in files.read_lines(second)} == {1.5}
    began = [_began(place, rank) for rank in (0, 1)]
    for lines in began:
        assert [line.split()[1] for line in lines] == ["4", "4"]
        assert lines[0] == lines[1], "both know the node that they are on"
    assert began[0] != began[1]


def _began(place: Place, rank: int) -> list[str]:
    lines = place.output(rank, attempt=2).splitlines()
    return [line for line in lines if line.startswith("from ")]
