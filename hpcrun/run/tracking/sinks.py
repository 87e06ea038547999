"""The trackers that metrics can be forwarded to; their libraries are the job's Python's."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.policy import batch
from hpcrun.run.protocol.log import say
from hpcrun.run.tracking import wandb_file
from hpcrun.state import ledger
from hpcrun.state.layout import RunPaths
from hpcrun.state.metrics_file import Line
from hpcrun.state.plan import RunPlan


@dataclass(frozen=True)
class About:
    """What a tracker is told of a run.

    Attributes
    ----------
    experiment, name
        The experiment's name, and the run's: ``study/3 lr=0.1``.
    identity
        The same for all attempts of this run, and for no other run.
    parameters
        ``config`` of the spec, the batch sizes under ``deepspeed``, and ``swept``.
    tracking
        The spec's block of this name.
    """

    experiment: str
    name: str
    identity: str
    parameters: dict[str, Any]
    tracking: dict[str, Any]

    @classmethod
    def of(cls, experiment: str, run: RunPlan, paths: RunPaths) -> About:
        """What the plan and the ledger tell.

        A directory that was removed and made again holds another run: the identity has the time of
        its first start. The plan's is none: that of a run that is lengthened changes.
        """
        first = next((one.started.get("time") for one in ledger.read(paths)), None)
        text = json.dumps([os.path.realpath(paths.directory), first])
        deepspeed = run.spec.get("deepspeed") or {}
        return cls(
            experiment=experiment,
            name=f"{experiment}/{run.number} {run.label}".rstrip(),
            identity=hashlib.sha256(text.encode()).hexdigest()[:16],
            parameters={
                "config": run.spec.get("config") or {},
                "deepspeed": {key: deepspeed[key] for key in batch.KEYS if key in deepspeed},
                "swept": run.swept,
            },
            tracking=run.spec.get("tracking") or {},
        )


class TensorBoard:
    """Event files, one for each process that forwards, in one directory a run.

    A file is known up to the length that the last state has. What lies behind was written by a
    process that died before it could say so: it is cut off, and comes again.
    """

    starts_over = False

    def __init__(self, about: About, directory: Path, state: dict[str, Any], step: int) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams import summary_v2 as hparams
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._events, self._summaries = event_pb2, summary_pb2
        directory.mkdir(parents=True, exist_ok=True)
        number = int(state.get("file", 0))
        for path in _event_files(directory):
            if _number(path) > number:
                path.unlink()
            elif _number(path) == number:
                os.truncate(path, int(state["size"]))
        self._number = number + 1
        name = f"events.out.tfevents.{self._number:010d}.hpcrun"
        self._stream = open(directory / name, "xb")  # noqa: SIM115
        self._writer = RecordWriter(self._stream)
        self._write(file_version="brain.Event:2")
        if number:
            self._rewind(step)
        else:
            flat = dict(_flat(about.parameters))
            self._write(step=0, summary=hparams.hparams_pb(flat, trial_id=about.name))

    @property
    def state(self) -> dict[str, Any]:
        return {"file": self._number, "size": self._stream.tell()}

    def send(self, lines: Sequence[Line], kept: int | None) -> None:
        if kept is not None:
            self._rewind(kept)
        for line in lines:
            values = [
                self._summaries.Summary.Value(tag=name, simple_value=value)
                for name, value in line.values.items()
            ]
            summary = self._summaries.Summary(value=values)
            self._write(line.time, step=line.step, summary=summary)
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()

    def _rewind(self, step: int) -> None:
        """Have what follows replace what there is of later steps."""
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write(step=step + 1, session_log=start)

    def _write(self, when: float | None = None, **fields: Any) -> None:
        event = self._events.Event(wall_time=time.time() if when is None else when, **fields)
        self._writer.write(event.SerializeToString())


class Wandb:
    """One run of Weights & Biases, taken up again by each process that forwards.

    Its steps only ever grow: those that are done over again were sent, and are left out. Offline,
    each process leaves a directory, of which ``wandb beta sync`` makes one run.
    """

    def __init__(self, about: About, directory: Path, state: dict[str, Any], step: int) -> None:
        import wandb

        self._wandb = wandb
        wanted = about.tracking["wandb"]
        directory.parent.mkdir(parents=True, exist_ok=True)
        arrived = _arrived(directory, state) if wanted["mode"] == "offline" else None
        self._run = wandb.init(
            id=about.identity,
            resume="allow",
            project=wanted["project"] or about.experiment,
            entity=wanted["entity"],
            group=wanted["group"] or about.experiment,
            name=about.name,
            tags=wanted["tags"],
            config=about.parameters,
            mode=wanted["mode"],
            # It adds its own name.
            dir=str(directory.parent),
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
            ),
        )
        # What was on its way when a process was killed may never have come anywhere. The server
        # tells the step after its last, as the run is taken up.
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

    def close(self) -> None:
        self._run.finish()
        self._wandb.teardown()


SINKS: dict[str, type[TensorBoard] | type[Wandb]] = {"tensorboard": TensorBoard, "wandb": Wandb}


def _arrived(directory: Path, state: dict[str, Any]) -> int:
    """What offline runs hold, as they tell themselves: a process that is killed loses the last."""
    try:
        return wandb_file.arrived(directory, state)
    except Exception as error:
        say(f"wandb: its files cannot be read back ({error}); what was sent is taken for there")
        return int(state.get("sent", 0))


def _event_files(directory: Path) -> list[Path]:
    return [path for path in directory.glob("events.out.tfevents.*.hpcrun") if _number(path)]


def _number(path: Path) -> int:
    text = path.name.split(".")[3]
    return int(text) if text.isdigit() else 0


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, bool | float | str]]:
    """Full key -> value, of what a table of hyperparameters can show."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (bool, int, float, str)):
        yield name, value
    elif value is not None:
        yield name, json.dumps(value)
