"""Where a rank finds a path that was staged."""

from __future__ import annotations

from pathlib import Path

from hpcrun.run.staging import staged_path
from hpcrun.state import files
from hpcrun.state.node_layout import NodePaths


def test_paths_at_and_below_sources_are_on_the_node(tmp_path: Path) -> None:
    data, node = tmp_path / "data", NodePaths(tmp_path / "hpcrun-start")
    (data / "tokens").mkdir(parents=True)
    node.staged.mkdir(parents=True)
    (tmp_path / "link").symlink_to(data)
    files.write_json(node.staged_list, {f"{data}/tokens": "tokens"})
    assert staged_path.local(node.staged, data / "tokens") == node.staged / "tokens"
    found = staged_path.local(node.staged, tmp_path / "link" / "tokens" / "a" / "0.bin")
    assert found == node.staged / "tokens" / "a" / "0.bin"
    for other in (data, data / "tokens-2", Path("tokens")):
        assert staged_path.local(node.staged, other) == other
