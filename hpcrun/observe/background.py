"""What may take long, such as a question to Slurm, in a thread beside its caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """Begins at once; a process that ends does not wait for it.

    Parameters
    ----------
    action
        What is done.

    Attributes
    ----------
    took
        Seconds until now, or until it was done.
    processor
        Seconds of processor time that it took, once it is done; Python does nothing else meanwhile.
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
        return (self._ended or time.monotonic()) - self._began

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; whether it is done."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> T:
        """What came of it, once it is done.

        Raises
        ------
        BaseException
            What it raised.
        """
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
