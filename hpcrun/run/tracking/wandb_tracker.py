"""Weights & Biases: one of its runs per run, online or offline.

Offline files are read here, for which wandb has no Python API: the rows that a killed process had
sent and wandb had not written yet would be lost else. The format is that of LevelDB's log files,
after a header of seven bytes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcrun.host import process_directories
from hpcrun.run.protocol.output import say
from hpcrun.run.tracking.interface import RunDescription
from hpcrun.state.metrics_file import Line

# Seconds in which wandb's process has written what it was sent.
_STILL_WRITTEN = 30.0
# Of its files.
_HEADER, _BLOCK = 7, 1 << 15
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


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
        paths = offline_files(directory)
        # What was sent by a process that was killed may still be on its way into the file.
        deadline = time.monotonic() + _STILL_WRITTEN
        while is_written(paths) and time.monotonic() < deadline:
            time.sleep(0.1)
        is_gone = bool(own) and not any(path.parent.name == own for path in paths)
        found = sent if is_gone else int(state.get("before", 0))
        for path in paths:
            if path.parent.name >= own:
                records = read_records(path)
                steps = (one.history.step.num for one in records if one.HasField("history"))
                found = max(found, *steps, 0)
        return found
    except Exception as error:
        say(f"wandb: its files cannot be read back ({error}); what was sent is taken for there")
        return sent


def offline_files(directory: Path) -> list[Path]:
    """Return the files of the offline directories, oldest first."""
    return sorted(directory.glob("offline-run-*/run-*.wandb"))


def is_written(paths: Collection[Path]) -> bool:
    """Check whether a process of this user on this host has one of the files open.

    wandb writes by a process of its own, which may outlive the one that was killed.
    """
    wanted = {os.path.realpath(path) for path in paths}
    for process in process_directories():
        # Another user's, or gone by now.
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) in wanted:
                        return True
    return False


def read_records(path: Path) -> Iterator[Any]:
    """Yield the records of a file (wandb's own ``Record``), up to where its writer was killed."""
    from wandb.proto import wandb_internal_pb2

    data, place, held = path.read_bytes(), _HEADER, b""
    while place + _HEADER <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + _HEADER : place + _HEADER + length]
        is_whole = len(part) == length and crc == zlib.crc32(bytes([kind]) + part)
        if not is_whole or kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST):
            return
        held = part if kind in (_WHOLE, _FIRST) else held + part
        if kind in (_WHOLE, _LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(held)
            yield record
        place += _HEADER + length
