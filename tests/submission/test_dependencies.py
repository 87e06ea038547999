"""What a run on this machine waits for; chains on Slurm are tested in tests/cli/test_chain.py."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from hpcrun.state import journal, layout, ledger
from hpcrun.state.plan import Dependence, Plan
from hpcrun.submission.dependencies import READY, WAITING, standing
from hpcrun.submission.local import processes
from tests.support.plans import command_plan


def _plan(directory: Path, when: str) -> Plan:
    waits = Dependence("first", (0,), when, False)
    return dataclasses.replace(command_plan(directory, {3: ["true"]}), depends_on=(waits,))


@pytest.mark.parametrize("when", ["success", "end"])
def test_a_run_on_this_machine_waits_while_those_before_live(tmp_path: Path, when: str) -> None:
    plan = _plan(tmp_path, when)
    first, second = (layout.experiment(tmp_path, name) for name in ("first", "second"))
    submission = first.submission(1)
    submission.directory.mkdir(parents=True)
    job = {"job_id": f"local:{os.getpid()}", **processes.this_process()}
    journal.write(submission, journal.SUBMITTED, 0, [0], **job)
    assert standing(plan, second, 3) == WAITING
    journal.write_end(submission, 0, exit_code=1)
    failed = "first/0, which it depends on, did not complete"
    assert standing(plan, second, 3) == (failed if when == "success" else READY)
    first.run(0).directory.mkdir(parents=True)
    for intent in ledger.GOOD_ENDS:
        ledger.set_intent(first.run(0), intent)
        assert standing(plan, second, 3) == READY


def test_a_run_that_was_never_submitted_before_is_not_waited_for(tmp_path: Path) -> None:
    second = layout.experiment(tmp_path, "second")
    assert "did not complete" in standing(_plan(tmp_path, "success"), second, 3)
    assert standing(_plan(tmp_path, "end"), second, 3) == READY
