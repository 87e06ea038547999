"""The results of `bench.on_gpu`, on disk after each thing that was found out."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DONE, FAILED, CUT, BEGUN, LEFT_OUT = "done", "failed", "cut", "begun", "left out"
# Seconds with which no part begins.
_LEAST = 5


class CutError(Exception):
    """A part's time was over."""


class NotHereError(Exception):
    """A part needs what this machine does not have."""


@dataclass
class Part:
    """One part: its time, and what it found.

    Attributes
    ----------
    name, about
        For the results.
    budget
        The seconds that it may take.
    """

    name: str
    about: str
    budget: float
    state: str = LEFT_OUT
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    _until: float = 0.0
    _write: Callable[[], None] = lambda: None

    @property
    def left(self) -> float:
        """Seconds that it still has; raise CutError where it has none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise CutError(f"its {self.budget:.0f} s were over")
        return left

    def say(self, line: str) -> None:
        """Add a line for a person, which is written at once."""
        self.lines.append(line)
        print(f"  {line}", file=sys.stderr, flush=True)
        self._write()

    def note(self, **data: Any) -> None:
        """Add results for a program, which are written at once."""
        self.data.update(data)
        self._write()

    def to_data(self) -> dict[str, Any]:
        """Return plain data."""
        found = {"part": self.name, "about": self.about, "state": self.state,
                 "seconds": round(self.seconds, 1), "budget": self.budget}  # fmt: skip
        return {**found, "error": self.error, "lines": self.lines, **self.data}


@dataclass
class Record:
    """All parts, and the files ``NAME.json`` and ``NAME.txt`` that have them.

    Attributes
    ----------
    directory, name
        Where they are.
    setting
        When and with what it was measured.
    seconds
        The time of all parts together.
    """

    directory: Path
    name: str
    setting: dict[str, Any]
    seconds: float
    parts: list[Part] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def run(self, part: Part, work: Callable[[Part], None]) -> None:
        """Do a part; its error is recorded, and the next one's turn comes."""
        began = time.monotonic()
        end = self._began + self.seconds
        part.state, part._write = BEGUN, self.write
        part._until = min(began + part.budget, end)
        print(f"{part.name}: {part.about}", file=sys.stderr, flush=True)
        try:
            if end - began < _LEAST:
                raise CutError(f"the {self.seconds:.0f} s of all parts were over")
            work(part)
            part.state = DONE
        except CutError as error:
            part.state, part.error = CUT, str(error)
        except NotHereError as error:
            part.state, part.error = LEFT_OUT, str(error)
        except Exception as error:  # of any kind, in what was never run on this machine before
            part.state, part.error = FAILED, f"{type(error).__name__}: {error}"[-4000:]
            traceback.print_exc()
        finally:
            if part.state == BEGUN:  # Ctrl-C, or the machine is taken away
                part.state = CUT
            part.seconds = time.monotonic() - began
            told = f": {part.error}" if part.error else ""
            print(f"  {part.state} in {part.seconds:.0f} s{told}", file=sys.stderr, flush=True)
            self.write()

    def write(self) -> None:
        """Write both files anew, each whole or not at all."""
        self.setting["seconds"] = round(time.monotonic() - self._began)
        data = {"setting": self.setting, "parts": [one.to_data() for one in self.parts]}
        self.directory.mkdir(parents=True, exist_ok=True)
        text = "\n".join(self.text()) + "\n"
        for suffix, content in (("json", json.dumps(data, indent=1) + "\n"), ("txt", text)):
            unfinished = self.directory / f".{self.name}.{suffix}.part"
            unfinished.write_text(content)
            os.replace(unfinished, self.directory / f"{self.name}.{suffix}")

    def text(self) -> Iterator[str]:
        """Yield the lines for a person."""
        yield from (f"{key}: {value}" for key, value in self.setting.items())
        for part in self.parts:
            yield ""
            took = f"{part.state}, {part.seconds:.0f} of {part.budget:.0f} s"
            yield f"{part.name} ({took}): {part.about}"
            yield from (f"  {line}" for line in part.lines)
            if part.error:
                yield from (f"  ! {line}" for line in part.error.splitlines())
