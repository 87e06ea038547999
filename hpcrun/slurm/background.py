"""A slow call, such as a query of Slurm, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Runs an action in a daemon thread, started at once.

    Once it is done, ``processor`` has the seconds of processor time that it took; other threads
    waited meanwhile.
    """

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._began = time.monotonic()
        self._ended: float | None = None
        self.processor = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def took(self) -> float:
        """Seconds until now, or until it was done."""
        return (self._ended or time.monotonic()) - self._began

    def wait(self, seconds: float | None = None) -> bool:
        """Wait at most so many seconds, None for as long as it takes; return whether it is done."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait for the action's result, or raise its exception."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _run(self) -> None:
        try:
            self._result.append(self._action())
        except BaseException as error:
            self._error = error
        self.processor = time.thread_time()
        self._ended = time.monotonic()
