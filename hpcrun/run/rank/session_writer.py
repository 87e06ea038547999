"""The session's events: `session.jsonl` of an attempt, which rank 0 writes."""

from __future__ import annotations

import platform
import sys
from typing import Any

import hpcrun
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import tell
from hpcrun.state import files, session_log


class Diary:
    """One rank's; nothing is written of ranks other than 0, or outside hpcrun (no ``launch``)."""

    def __init__(self, launch: Launch | None, rank: int, fence: AttemptFence | None) -> None:
        self._launch, self._fence = launch, fence
        writes = launch is not None and rank == 0
        self._file = files.Appender(launch.paths.session, tell) if launch and writes else None

    def write(self, event: str, **details: Any) -> None:
        """Add an event of now."""
        if self._file is not None and self._fence is not None:
            self._fence.check()
            self._file.write(session_log.record(event, **details))

    @property
    def error(self) -> OSError | None:
        """Why events that should be in the file are not; None when they are."""
        return self._file.error if self._file is not None else None

    def has_progress(self) -> bool:
        """Whether an earlier attempt saved: then a start at step 0 would lose it."""
        return self._launch is not None and any(
            any(session_log.read(attempt).of(session_log.SAVED))
            for attempt in self._launch.run_paths.attempts()
        )


def versions() -> dict[str, str]:
    """Of Python, hpcrun and what this process has imported of torch, CUDA and DeepSpeed."""
    torch, deepspeed = sys.modules.get("torch"), sys.modules.get("deepspeed")
    found = {
        "python": platform.python_version(),
        "hpcrun": hpcrun.__version__,
        "torch": getattr(torch, "__version__", None),
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "deepspeed": getattr(deepspeed, "__version__", None),
    }
    return {name: str(version) for name, version in found.items() if version}
