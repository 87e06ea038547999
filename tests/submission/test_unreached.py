"""A change that a submit does not make to runs which are queued or running is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.desk import Desk


def _change(desk: Desk, **blocks: dict[str, Any]) -> None:
    spec = desk.directory / "code" / "e.yaml"
    tree = json.loads(spec.read_text())
    for name, block in blocks.items():
        tree[name] = {**tree.get(name, {}), **block}
    spec.write_text(json.dumps(tree))


def test_a_change_of_queued_runs_is_said_with_what_to_type(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (tmp_path / "code" / "train.py").write_text("print(1)\n")
    _change(desk, resources={"time": "01:00:00"})
    assert desk.submit().returncode == 0
    unchanged = desk.submit()
    assert "does not reach" not in unchanged.stderr
    (tmp_path / "code" / "train.py").write_text("print(2)\n")
    _change(
        desk, resources={"time": "02:00:00"}, environment={"variables": {"NEW": "\x1b[2Jvalue"}}
    )
    said = desk.submit().stderr.splitlines()
    (first,) = [number for number, line in enumerate(said) if "does not reach" in line]
    assert said[first].startswith(
        "runs 0-4 are queued or running as submitted before, and this does not reach them: "
    )
    changes = said[first].partition("them: ")[2].split(", ")
    assert sorted(changes) == [
        "environment.variables.NEW none -> \\x1b[2Jvalue",
        "resources.time 01:00:00 -> 02:00:00",
        "train.py changed",
    ]
    assert said[first + 1].strip() == (
        "to have them go on with it: `hpcrun update e/0-4 time=02:00:00`; for the rest "
        "`hpcrun cancel e/0-4`, then this command again"
    )
    assert "nothing to submit" in said[-1]
    dry = desk.submit("--dry-run").stderr
    assert "does not reach them: " in dry
    assert "resources.time 01:00:00 -> 02:00:00" in dry
