"""What holds for every command."""

from __future__ import annotations

import subprocess
import sys

from tests.support.command import hpcrun


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
