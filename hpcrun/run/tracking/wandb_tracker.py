"""Weights & Biases: one of its runs per run, online or offline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrun.run.protocol.output import say
from hpcrun.run.tracking import wandb_file
from hpcrun.run.tracking.interface import RunDescription
from hpcrun.state.metrics_file import Line

# Seconds in which wandb's process has written what it was sent.
_STILL_WRITTEN = 30.0


class WandbTracker:
    """Resumes one run of Weights & Biases in each forwarding process.

    Its steps can only grow, so steps that are done again keep the values sent first. Offline, each
    process leaves a directory; ``wandb beta sync`` makes one run of them.
    """

    def __init__(
        self, run: RunDescription, directory: Path, state: dict[str, Any], step: int
    ) -> None:
        import wandb

        self._wandb = wandb
        wanted = run.tracking["wandb"]
        directory.parent.mkdir(parents=True, exist_ok=True)
        arrived = _arrived(directory, state) if wanted["mode"] == "offline" else None
        self._run = wandb.init(
            id=run.identity,
            resume="allow",
            project=wanted["project"] or run.experiment,
            entity=wanted["entity"],
            group=wanted["group"] or run.experiment,
            name=run.name,
            tags=wanted["tags"],
            config=run.parameters,
            mode=wanted["mode"],
            # wandb adds its own name.
            dir=str(directory.parent),
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
            ),
        )
        # Rows in flight when a process was killed may never have arrived. On resume, the server
        # reports the step after its last one.
        self._sent = max(0, int(self._run.starting_step) - 1) if arrived is None else arrived
        self.starts_over = self._sent < int(state.get("sent", 0))
        self._before, self._directory = self._sent, Path(self._run.dir).parent.name
        self._open: int | None = None

    @property
    def state(self) -> dict[str, Any]:
        return {"sent": self._sent, "before": self._before, "directory": self._directory}

    def send(self, lines: Sequence[Line], kept: int | None) -> None:
        if kept is not None:
            self._open = None
        for line in lines:
            if line.step > self._sent or line.step == self._open:
                when = {} if line.time is None else {"_timestamp": line.time}
                self._run.log({**line.values, **when}, step=line.step)
                self._sent = self._open = line.step

    def close(self, ended: str | None) -> None:
        self._run.finish(exit_code=int(ended == "failed"))
        self._wandb.teardown()


def _arrived(directory: Path, state: dict[str, Any]) -> int:
    """Return the newest step in the offline files: a process that is killed loses its last rows.

    The directory of the last process has been synchronised and removed where it is gone: all that
    it sent counts then.
    """
    own, sent = str(state.get("directory", "")), int(state.get("sent", 0))
    try:
        paths = wandb_file.files(directory)
        # What was sent by a process that was killed may still be on its way into the file.
        deadline = time.monotonic() + _STILL_WRITTEN
        while wandb_file.is_written(paths) and time.monotonic() < deadline:
            time.sleep(0.1)
        is_gone = bool(own) and not any(path.parent.name == own for path in paths)
        found = sent if is_gone else int(state.get("before", 0))
        for path in paths:
            if path.parent.name >= own:
                records = wandb_file.read(path)
                steps = (one.history.step.num for one in records if one.HasField("history"))
                found = max(found, *steps, 0)
        return found
    except Exception as error:
        say(f"wandb: its files cannot be read back ({error}); what was sent is taken for there")
        return sent
