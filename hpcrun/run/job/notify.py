"""The user's ``notify.command``, run once for a run's end. Best effort."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrun.policy import causes, recovery
from hpcrun.run.protocol import stop_flag
from hpcrun.state import ledger
from hpcrun.state.layout import RunPaths
from hpcrun.state.plan import RunPlan
from hpcrun.state.spec.notify_block import FAILED, FINISHED, NEEDS_PERSON
from hpcrun.text import Say, brief, json_line, one_line, signal_name

# Seconds that the command has; the nodes are held for as long.
TIMEOUT = 60.0

# Characters of a variable: the kernel refuses much longer ones.
_LONGEST = 4096


def tell(
    experiment: str,
    run: RunPlan,
    paths: RunPaths,
    say: Say,
    *,
    goes_on: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """Run the command if it wants the event that the run's last attempt ended in.

    The ledger has that before, so that the command never runs twice for one end; if it cannot be
    written, the command does not run at all. With ``goes_on``, the run starts again by itself.
    """
    wanted = run.notify
    attempts = ledger.read(paths)
    if not wanted.command or not attempts or ledger.intent(paths) == ledger.CANCELLED:
        return
    last = attempts[-1]
    event = event_of(last, goes_on=goes_on)
    if event is None or event not in wanted.events or last.notified is not None:
        return
    try:
        ledger.write(paths, ledger.NOTIFIED, last.number, what=event)
    except OSError as error:
        say(f"notify.command is not run, as the ledger cannot be written: {error}")
        return
    problem = _call(wanted.command, _facts(event, experiment, run, last, paths), timeout)
    say(problem or f"notify.command was told: {event}")
    if problem:
        with contextlib.suppress(OSError):
            ledger.write(paths, ledger.NOTIFIED, last.number, what=event, problem=problem)


def _facts(
    event: str, experiment: str, run: RunPlan, last: ledger.Attempt, paths: RunPaths
) -> dict[str, Any]:
    end, cause, message = last.end, last.cause, last.cause.get("message")
    if last.outcome == causes.PRUNED:
        message = f"pruned: {message}"
    return {
        "event": event,
        "experiment": experiment,
        "run": run.number,
        "label": run.label,
        "directory": str(paths.directory),
        "attempt": last.number,
        "step": end.get("reached_step"),
        "job_id": last.job_id,
        "message": message,
        "reason": (last.decided or {}).get("reason"),
        "cause": {key: cause[key] for key in cause if key != "log_tail"} or None,
    }


def _call(command: list[str], facts: Mapping[str, Any], timeout: float) -> str | None:
    """Run the command and return what went wrong in words, if anything did."""
    variables = {
        "HPCRUN_EVENT": facts["event"],
        "HPCRUN_RUN": f"{facts['experiment']}/{facts['run']}",
        "HPCRUN_DIRECTORY": facts["directory"],
        "HPCRUN_ATTEMPT": facts["attempt"],
        "HPCRUN_STEP": facts["step"],
        "HPCRUN_MESSAGE": brief(facts["message"]) if facts["message"] else None,
    }
    environment = {name: _text(value) for name, value in variables.items() if value is not None}
    # Slurm signals every process of the batch step; the command inherits what is ignored here.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in stop_flag.SIGNALS}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            cwd=Path(facts["directory"]),
            env={**os.environ, **environment},
            start_new_session=True,
        )
    except OSError as error:
        return f"notify.command: {command[0]} cannot be run: {error.strerror}"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    try:
        process.communicate(json_line(facts).encode() + b"\n", timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"notify.command was killed: it took more than {timeout:g} seconds"
    code = process.returncode
    how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"notify.command {how}" if code else None


def _text(value: Any) -> str:
    """Return a value as the head of a mail may hold it: one line, of a variable's length."""
    return one_line(str(value)[:_LONGEST])[:_LONGEST]


def event_of(last: ledger.Attempt, *, goes_on: bool) -> str | None:
    """Decide the event that the end of an attempt is; ``goes_on``: it is started again by itself.

    Return ``finished``; ``failed``, where it stops for what it did itself; ``needs_person``, where
    it stops for what it could not help, or was to be started again and is not. None while it goes
    on, and where a person has ended it.
    """
    if last.outcome in causes.GOOD_ENDS:
        return FINISHED
    action = last.action
    if last.outcome in (None, causes.CANCELLED) or goes_on:
        return None
    if action == recovery.STOP:
        return FAILED if last.kind in causes.OWN else NEEDS_PERSON
    return NEEDS_PERSON if action in recovery.GOES_ON else None
