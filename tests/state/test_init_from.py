"""What a spec names with ``checkpoint.initialize_from``, and what is said where it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.state.init_from import Origin
from hpcrun.state.layout import experiment
from hpcrun.state.manifest import File, Manifest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, runs in {"one": [0], "many": [0, 1, 7], "new": []}.items():
        paths = experiment(tmp_path, name)
        paths.submission(1).directory.mkdir(parents=True)
        for run in runs:
            paths.run(run).checkpoints.mkdir(parents=True)
    for run, attempt, step in (("one", 1, 10), ("one", 2, 20), ("many", 1, 5)):
        directory = experiment(tmp_path, run).run(0).checkpoint(step, attempt)
        directory.mkdir()
        Manifest(step, attempt, 0.0, 2, 1, 8, {"model.pt": File(1, "")}).write(directory)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("one", "one/runs/0/checkpoints/step-00000020-a2"),
        ("one/0@10", "one/runs/0/checkpoints/step-00000010-a1"),
        ("many/0", "many/runs/0/checkpoints/step-00000005-a1"),
        ("{root}/many/0", "many/runs/0/checkpoints/step-00000005-a1"),
        ("{root}/many/runs/0@5", "many/runs/0/checkpoints/step-00000005-a1"),
    ],
)
def test_what_is_found(root: Path, text: str, found: str) -> None:
    directory, entry = Origin.parse(text.format(root=root)).find(root)
    assert directory == root / found
    assert f"step-{entry.step:08d}" in found


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("none", "there is no experiment", "hpcrun list"),
        ("many", "many has several runs, 0-1, 7", "such as many/0"),
        ("new", "no run of new has begun", "hpcrun status"),
        ("many/3", "many has no run 3", "those that have: 0-1, 7"),
        ("many/7", "has no complete checkpoint", "once it has saved"),
        ("one@15", "has no checkpoint of step 15", "it has those of steps 10, 20"),
    ],
)
def test_what_is_not_there(root: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        Origin.parse(text).find(root)
    assert caught.value.message.startswith(f"checkpoint.initialize_from: {text}: ")
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "@3", "one@", "one@last", "/", "one@x@3"])
def test_what_is_no_such_thing(text: str) -> None:
    with pytest.raises(ValueError, match="accepted is a run and perhaps a step"):
        Origin.parse(text)
