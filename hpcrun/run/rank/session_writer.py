"""Writer of an attempt's `session.jsonl`: the session's events, from rank 0."""

from __future__ import annotations

import platform
import sys
from typing import Any

import hpcrun
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import tell
from hpcrun.state import files, session_log


class SessionLogWriter:
    """Appends events on rank 0; writes nothing on other ranks or outside hpcrun (no ``launch``)."""

    def __init__(self, launch: Launch | None, rank: int, fence: AttemptFence | None) -> None:
        self._launch, self._fence = launch, fence
        self._file = files.Appender(launch.paths.session, tell) if launch and not rank else None

    def write(self, event: str, **details: Any) -> None:
        """Append an event with the current time."""
        if self._file is not None and self._fence is not None:
            self._fence.check()
            self._file.write(session_log.record(event, **details))

    @property
    def error(self) -> OSError | None:
        """The error that keeps events out of the file; None if all are in it."""
        return self._file.error if self._file is not None else None

    def has_progress(self) -> bool:
        """Check whether an earlier attempt saved, so that a start at step 0 would lose it."""
        return self._launch is not None and any(
            any(session_log.read(attempt).of(session_log.SAVED))
            for attempt in self._launch.run_paths.attempts()
        )


def versions() -> dict[str, str]:
    """Return the versions of Python, hpcrun and, where imported, torch, CUDA and DeepSpeed."""
    torch, deepspeed = sys.modules.get("torch"), sys.modules.get("deepspeed")
    found = {
        "python": platform.python_version(),
        "hpcrun": hpcrun.__version__,
        "torch": getattr(torch, "__version__", None),
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "deepspeed": getattr(deepspeed, "__version__", None),
    }
    return {name: str(version) for name, version in found.items() if version}
