"""Run a prepared submission in the foreground, one run after another."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from hpcrun.errors import EXIT_INTERRUPTED
from hpcrun.slurm.allocation import VARIABLES as allocation_variables
from hpcrun.state import journal
from hpcrun.submission import lock
from hpcrun.submission.local import executor, processes
from hpcrun.submission.submission_dir import Prepared
from hpcrun.text import Say

_INTERRUPTS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def bring_to_end(
    prepared: Prepared, allocation: str | None, *, announce: Callable[[int], None], say: Say
) -> tuple[int, str | None]:
    """Run a prepared submission here; return 0 if all runs completed, and what interrupted it.

    On this machine the journal names this process for every run, as waiting while it lives. An
    allocation may outlive this process, so there a run is recorded only as it starts; one that was
    submitted by another command meanwhile is left out. After Ctrl-C, as the terminal is closed and
    after SIGTERM nothing is left running: what runs saves first, and what has not completed is
    cancelled; 130 is returned.

    ``allocation`` is its job id, None on this machine; ``announce`` is called with the number of
    each run as it starts.
    """
    runs = tuple(run for array in prepared.plan.arrays for run in array.runs)
    prepared.take_back_intents(runs)
    begun: list[int] = []
    if allocation is None:
        entry = {"job_id": f"local:{os.getpid()}", **processes.this_process()}
        for run in runs:
            journal.write(prepared.submission, journal.SUBMITTED, 0, [run], **entry)

    def before(run: int) -> bool:
        if allocation and not _record_start(prepared, run, allocation, say):
            return False
        begun.append(run)
        announce(run)
        return True

    passed = {**processes.clean_environment(), "HPCRUN_FOREGROUND": "1"}
    if allocation is not None:
        names = allocation_variables & os.environ.keys()
        passed.update((name, os.environ[name]) for name in names)
    runner = executor.Runner(prepared.submission, runs, passed=passed, before=before, say=say)
    earlier = {number: signal.getsignal(number) for number in _INTERRUPTS}
    for number, handler in earlier.items():
        # `nohup` ignores the end of the terminal.
        if number == signal.SIGINT or handler != signal.SIG_IGN:
            signal.signal(number, runner.interrupt)
    try:
        code = runner.bring_to_end()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        if allocation:
            prepared.restore_intents([run for run in runs if run not in begun])
    return code, None if runner.heard is None else signal.Signals(runner.heard).name


def _record_start(prepared: Prepared, run: int, allocation: str, say: Say) -> bool:
    """Record a run that starts now in the journal; return False if a later submission has it."""
    with lock.hold(prepared.experiment, say):
        job = journal.newest_jobs(prepared.experiment).get(run)
        if job is not None and job.submission > prepared.submission.number:
            say(f"{prepared.plan.name}/{run} was submitted meanwhile (job {job.job_id}); left out")
            return False
        journal.write(prepared.submission, journal.SUBMITTED, 0, [run], job_id=allocation)
    return True
