"""A save that is killed anywhere leaves the older checkpoint or the new one, whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.place import REPOSITORY

pytest.importorskip("torch")

OLD, NEW = "step-00000001-a1", "step-00000002-a2"
COMMIT = f"replace checkpoints/{NEW}/manifest.json"


@dataclass(frozen=True)
class Torn:
    """What `tests.run.checkpoint.torn` printed."""

    expected: dict[str, Any]
    deaths: list[dict[str, Any]]
    whole: dict[str, Any]

    @property
    def operations(self) -> list[str]:
        """All file operations of a save, in their order."""
        found: list[str] = self.whole["operations"]
        return [re.sub(r"\.manifest\.json\.\w+", "temporary", line) for line in found]


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Torn:
    directory = tmp_path_factory.mktemp("torn")
    done = subprocess.run(
        [sys.executable, "-m", "tests.run.checkpoint.torn", str(directory)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    expected, *tries = [
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    ]
    return Torn(expected, tries[:-1], tries[-1])


def test_wherever_a_save_is_killed_a_whole_checkpoint_is_found(torn: Torn) -> None:
    """To the bit: weights, the loader's position, and the numbers that come next."""
    assert len(torn.deaths) == len(torn.operations) > 30
    found = []
    for death in torn.deaths:
        after = death["after"]
        assert death["died"]
        assert isinstance(after, dict), (death["operations"][-1], after)
        step, name = after["restored"]
        assert (step, name) in ((1, OLD), (2, NEW))
        assert {key: after[key] for key in ("state", "numbers")} == torn.expected[str(step)]
        assert after["reports"] == []
        found.append(step)
    committed = torn.operations.index(COMMIT) + 1
    assert found == [1] * committed + [2] * (len(found) - committed)


def test_what_a_killed_save_leaves_goes_with_the_next_one(torn: Torn) -> None:
    for death in [*torn.deaths, torn.whole]:
        assert death["after"]["left"] == ["step-00000009-a3"], death["operations"][-1]


def test_everything_is_durable_before_the_manifest_and_nothing_goes_before_it(torn: Torn) -> None:
    """In this order, so that a power cut leaves no manifest of files that are not there."""
    place = torn.operations.index
    order = [
        f"mkdir checkpoints/{NEW}",
        "fsync checkpoints",
        f"save checkpoints/{NEW}/rank-00000.pt",
        f"fsync checkpoints/{NEW}/rank-00000.pt",
        f"fsync checkpoints/{NEW}",
        f"fsync checkpoints/{NEW}/temporary.tmp",
        COMMIT,
    ]
    places = [place(line) for line in order]
    assert places == sorted(places)
    assert place(f"fsync checkpoints/{NEW}/model.json") < place(f"fsync checkpoints/{NEW}")
    rest = torn.operations[place(COMMIT) + 1 :]
    assert rest[1] == f"fsync checkpoints/{NEW}"
    moved = next(line for line in rest if line.startswith("rename"))
    assert moved.startswith(f"rename checkpoints/.trash-{OLD}"), rest
    before = torn.operations[: place(COMMIT)]
    assert not [line for line in before if OLD in line]
    assert "fsync ." in before
