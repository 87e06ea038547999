"""What holds for every command."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.command import argv, hpcrun


def test_a_reader_that_leaves_early_is_no_failure() -> None:
    command = f"{sys.executable} -m hpcrun plan language-model cluster=local --json | true"
    done = subprocess.run(
        ["bash", "-c", f'{command}; exit "${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_misspelt_command_is_answered_with_the_near_one() -> None:
    done = hpcrun("statsu")
    assert done.returncode == 2
    assert "Did you mean 'status'?" in done.stderr


def test_closed_streams_are_no_failure_and_no_other_file(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("entry: ['true']\ncluster: local\n")
    for closed in (">&-", "<&- >&- 2>&-", "<&-"):
        command = f"{shlex.join(argv('plan', str(spec)))} {closed}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), closed
        assert ("experiment  spec" in done.stdout) == (">" not in closed)
    command = f"{shlex.join(argv('plan', str(tmp_path / 'none')))} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no spec" in done.stderr
