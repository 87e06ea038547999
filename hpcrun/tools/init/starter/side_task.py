"""A question that is asked beside others, and that no command waits for when it is interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_Answer = TypeVar("_Answer")


class SideTask(Generic[_Answer]):
    """A function that runs in a thread from now on; Ctrl-C does not wait for it."""

    def __init__(self, work: Callable[[], _Answer]) -> None:
        self._answer: list[_Answer] = []
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._answer.append(work())
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self) -> _Answer:
        """Wait for the answer; raise what the function raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answer[0]
