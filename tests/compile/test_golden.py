"""What ``hpcrun plan`` prints, held by files; ``UPDATE_GOLDEN=1 pytest …`` writes them anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import away

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "finetune": ("finetune.yaml",),
    "finetune.json": ("finetune.yaml", "--json"),
    "zero-study": ("zero-study.yaml",),
    "function-local": ("function.yaml",),
    "command-shapes": ("command.yaml", "--sweep", "resources.nodes=1,2"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_byte_for_byte_the_golden_file(
    name: str,
    project: Any,
    hpcrun: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(GOLDEN / "specs", project.directory, dirs_exist_ok=True)
    monkeypatch.setenv("HOME", "/home/ada")
    answers = [hpcrun("plan", *CASES[name], "--root", "/shared/ada/hpcrun") for _ in range(2)]
    assert answers[0].code == 0, answers[0].err
    assert answers[0] == answers[1]
    text = answers[0].out.replace(str(project.directory), "/home/ada/project")
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == away.without(path.read_text())
