"""A debugger on a rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
def train():
    loss = 41
    breakpoint()
    print("loss", loss)

train()
"""


def test_a_breakpoint_waits_for_a_person_and_goes_on(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONBREAKPOINT": "hpcrun.testing.rank_debugger.wait",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TMPDIR": str(tmp_path),
        "RANK": "3",
        "HPCRUN_RUN": "study/0",
    }
    rank = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert rank.stdout is not None
    told = rank.stdout.readline()
    assert told.startswith("breakpoint: hpcrun exec study/0 --rank 3 python -m ")
    module, path = told.split()[-2:]
    assert Path(path).parent.stat().st_mode & 0o077 == 0
    person = subprocess.run(
        [sys.executable, "-m", module, path],
        **{"env": environment, "input": "p loss\nloss = 42\ncontinue\n", "text": True},
        capture_output=True,
        check=True,
    )
    assert "(Pdb) 41" in person.stdout
    assert rank.communicate(timeout=30)[0] == "loss 42\n"
    assert rank.returncode == 0
    assert list(tmp_path.iterdir()) == []
