"""The names in a node's directory, which agents and ranks of one attempt agree on."""

from __future__ import annotations

import signal
from pathlib import Path

from hpcrun.state import node_layout
from hpcrun.state.node_layout import NodePaths, ScratchPaths

NODE = NodePaths(Path("/tmp/hpcrun-5e1f"))


def test_every_name() -> None:
    scratch = ScratchPaths(NODE.attempt(3))
    assert scratch.node == NODE
    found = (
        *(NODE.lock, NODE.checkpoints, node_layout.bundle(NODE.checkpoints / "step-1-a1", 7)),
        *(scratch.call, scratch.code, scratch.extensions, scratch.stop, scratch.modules),
        *(scratch.heard(signal.SIGTERM), scratch.pid(0), scratch.progress(0), scratch.stacks(12)),
    )
    assert [str(path.relative_to(NODE.directory)) for path in found] == [
        *("lock", "checkpoints", "checkpoints/step-1-a1/bundle-00007.json"),
        *("call-attempt-3", "attempt-3/code", "attempt-3/torch_extensions"),
        *("attempt-3/stop", "attempt-3/modules", "attempt-3/heard-SIGTERM"),
        *("attempt-3/rank-0.pid", "attempt-3/rank-0.pulse", "attempt-3/rank-12.stacks"),
    ]


def test_what_is_there(tmp_path: Path) -> None:
    scratch = ScratchPaths(tmp_path)
    for path in (scratch.pid(3), scratch.progress(3), scratch.stacks(4), tmp_path / "rank-x.pid"):
        path.touch()
    assert list(scratch.pids()) == [(3, scratch.pid(3))]
    assert list(scratch.progresses()) == [(3, scratch.progress(3))]
    assert list(scratch.all_stacks()) == [(4, scratch.stacks(4))]
    assert not any(node_layout.bundles(tmp_path))
