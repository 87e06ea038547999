"""The root of a profile, which the commands that read do not know."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HPCRUN = [sys.executable, "-m", "hpcrun"]


@pytest.mark.parametrize("given", ["profile", "home", "link", "variable", "variable and option"])
def test_what_submit_says_finds_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    home, shared = tmp_path / "home", tmp_path / "shared root"
    clusters = home / ".config/hpcrun/clusters"
    clusters.mkdir(parents=True)
    named = f"root: {shared}\n" if given == "profile" else ""
    (clusters / "mine.yaml").write_text(f"executor: local\n{named}")
    code = home / "code"
    code.mkdir()
    (code / "e.yaml").write_text(
        f"cluster: mine\nentry: ['true']\nenvironment: {{python: {sys.executable}}}\n"
    )
    monkeypatch.chdir(code)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("HPCRUN_ROOT", raising=False)
    if given == "link":
        shared.mkdir()
        (home / "hpcrun-runs").symlink_to(shared)
    option: list[str] = []
    if given.startswith("variable"):
        monkeypatch.setenv("HPCRUN_ROOT", str(tmp_path / "of variable"))
    if given.endswith("option"):
        option = ["--root", str(shared)]
    answer = subprocess.run(
        [*HPCRUN, "submit", "e.yaml", "--wait", *option],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    hint = next(line for line in answer.stderr.splitlines() if line.startswith("hpcrun status"))
    assert ("--root" in hint) == (given in ("profile", "variable and option"))
    status = hint.partition("   ")[0].removeprefix("hpcrun ")
    found = subprocess.run(
        [*HPCRUN, *shlex.split(status)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "completed" in found.stdout
