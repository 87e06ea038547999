"""TensorBoard: event files in the run's directory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrun.run.tracking.interface import RunDescription, flat
from hpcrun.state.metrics_file import Line
from hpcrun.text import whole_number


class TensorBoardTracker:
    """Writes one event file per forwarding process, all in one directory per run.

    The state has the length of the last file. Whatever lies behind that length was written by a
    process that died before it could save its state: it is truncated, and sent again.
    """

    starts_over = False

    def __init__(
        self, run: RunDescription, directory: Path, state: dict[str, Any], step: int
    ) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams import summary_v2 as hparams
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._events, self._summaries = event_pb2, summary_pb2
        directory.mkdir(parents=True, exist_ok=True)
        number = int(state.get("file", 0))
        for path in directory.glob("events.out.tfevents.*.hpcrun"):
            text = path.name.split(".")[3]
            found = whole_number(text) or 0
            if found > number:
                path.unlink()
            elif found and found == number:
                os.truncate(path, int(state["size"]))
        self._number = number + 1
        name = f"events.out.tfevents.{self._number:010d}.hpcrun"
        self._stream = open(directory / name, "xb")  # noqa: SIM115
        self._writer = RecordWriter(self._stream)
        self._write(file_version="brain.Event:2")
        if number:
            self._purge_after(step)
        else:
            shown = dict(flat(run.parameters))
            self._write(step=0, summary=hparams.hparams_pb(shown, trial_id=run.name))

    @property
    def state(self) -> dict[str, Any]:
        return {"file": self._number, "size": self._stream.tell()}

    def send(self, lines: Sequence[Line], kept: int | None) -> None:
        if kept is not None:
            self._purge_after(kept)
        for line in lines:
            values = [
                self._summaries.Summary.Value(tag=name, simple_value=value)
                for name, value in line.values.items()
            ]
            self._write(line.time, step=line.step, summary=self._summaries.Summary(value=values))
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self, ended: str | None) -> None:
        self._stream.close()

    def _purge_after(self, step: int) -> None:
        """Have readers drop all later steps of what was written so far."""
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write(step=step + 1, session_log=start)

    def _write(self, when: float | None = None, **fields: Any) -> None:
        event = self._events.Event(wall_time=time.time() if when is None else when, **fields)
        self._writer.write(event.SerializeToString())
