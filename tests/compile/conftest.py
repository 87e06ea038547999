"""A directory with a spec, its script and its DeepSpeed file, far from the user's own settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcrun.cli.main import main

SPEC = """\
name: demo
entry: train.py
cluster: slurm
config: {lr: 1.0e-3, model: {layers: 2}, seed: 0}
deepspeed_config: ds.json
deepspeed: {train_batch_size: 8}
resources: {nodes: 2, ntasks_per_node: 2}
environment: {python: /opt/python/bin/python}
"""
DEEPSPEED = {"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}


@dataclass
class Project:
    """Files in a directory that is also the current one."""

    directory: Path

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def files(self) -> set[str]:
        found = self.directory.parent.rglob("*")
        return {str(path.relative_to(self.directory.parent)) for path in found}


@dataclass(frozen=True)
class Answer:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with ``train.py``, ``ds.json`` and no spec yet; HOME is empty beside it."""
    directory = tmp_path / "project"
    directory.mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("HPCRUN_ROOT", "HPCRUN_CLUSTERS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(directory)
    made = Project(directory)
    made.write(
        "train.py", "def main(session):\n    return 1\n\n\nif __name__ == '__main__':\n    1\n"
    )
    made.write("ds.json", json.dumps(DEEPSPEED, indent=2))
    return made


@pytest.fixture
def hpcrun(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """The command line, in this process."""

    def call(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return call
