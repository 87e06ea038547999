"""Fault injection: the faults of `hpcrun drill`, one in each attempt.

The plan has the faults to inject, as ``drill`` of the run's spec; the ledger has those that were
injected. Each comes only after the run has made progress, so that it recovers from one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hpcrun.policy import faults
from hpcrun.run.job.agents import Agents
from hpcrun.run.protocol.output import say
from hpcrun.state import ledger, manifest, metrics_file
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.plan import RunPlan

# Seconds before a fault in a program that shows no steps.
_BLIND = 60.0
_LOOK_EVERY = 0.5


class FaultInjection:
    """The next fault of one attempt; ``signal`` simulates a signal to the supervisor."""

    def __init__(
        self, run: RunPlan, attempt: AttemptPaths, agents: Agents, signal: Callable[[str], None]
    ) -> None:
        wanted = run.spec.get(faults.KEY) or {}
        done = len(ledger.faults(attempt.run)) if wanted else 0
        self._faults: list[str] = list(wanted.get("faults") or ())[done:]
        self._steps = int(wanted.get("steps") or faults.STEPS)
        self._run, self._attempt, self._agents, self._signal = run, attempt, agents, signal
        self._began = time.monotonic()
        self._first: int | None = None
        self._look_at = 0.0

    def turn(self) -> None:
        """Inject the fault if it is due; it ends the attempt, so there is one at most."""
        if not self._faults or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_EVERY
        if not self._is_due(self._faults[0]):
            return
        fault, self._faults = self._faults[0], []
        rank = 0 if fault == faults.CORRUPT_CHECKPOINT else self._run.world_size - 1
        node = str(self._agents.places.node_of(rank))
        say(f"drill: {faults.FAULTS[fault]}")
        told = {"fault": fault, "rank": rank, "node": node}
        ledger.write(self._attempt.run, ledger.FAULT, self._attempt.number, **told)
        if fault == faults.PREEMPT:
            self._signal("SIGTERM")
        elif fault == faults.LOSE_NODE:
            self._agents.send(node, {"type": "fall_silent"})
        else:
            if fault == faults.CORRUPT_CHECKPOINT:
                flip(newest(self._attempt.run))
            number = "SIGSTOP" if fault == faults.STOP_RANK else "SIGKILL"
            self._agents.send(node, {"type": "hurt", "rank": rank, "signal": number})

    def _is_due(self, fault: str) -> bool:
        """Check that the run has made enough steps, and that the fault can be injected."""
        pulses = self._agents.pulses.values()
        if not pulses and self._run.entry.kind != "function":
            step = metrics_file.last_step(self._attempt.metrics) or 0
            if fault == faults.CORRUPT_CHECKPOINT or step == 0:
                waited = time.monotonic() - self._began > _BLIND
                return waited and fault != faults.CORRUPT_CHECKPOINT
        elif len(pulses) < self._run.main_ranks:
            return False
        else:
            step = min(pulse.step for pulse in pulses)
        if step == 0:
            return False
        if self._first is None:
            self._first = step
        if fault == faults.CORRUPT_CHECKPOINT:
            # Without an older one there would be nothing to go back to.
            return len(manifest.complete(self._attempt.run.checkpoints)) > 1
        return step - self._first >= self._steps


def newest(paths: RunPaths) -> Path:
    """Return the largest file of the newest complete checkpoint."""
    directory, found = manifest.complete(paths.checkpoints)[0]
    return directory / max(found.files, key=lambda name: found.files[name].bytes)


def flip(path: Path) -> None:
    with open(path, "r+b") as stream:
        middle = path.stat().st_size // 2
        stream.seek(middle)
        byte = stream.read(1)
        stream.seek(middle)
        stream.write(bytes([byte[0] ^ 4]))
