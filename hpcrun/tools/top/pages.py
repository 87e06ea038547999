"""Pages over the runs: the output of a command, help, and a question."""

from __future__ import annotations

import queue
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Log, Static

import hpcrun
from hpcrun import host
from hpcrun.text import visible

_LINES = 10_000
# Seconds between two looks at what a command has printed, and the most lines of one look.
_EVERY, _AT_ONCE = 0.1, 1_000


class Question(ModalScreen[bool]):
    """A question that only ``y`` answers with yes."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question Static { width: 90%; max-width: 100; height: auto; max-height: 80%;
        border: solid ansi_default; padding: 1 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape,q", "answer(False)", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{visible(self._text)}\n\ny  yes     n  no"))

    def action_answer(self, answer: bool) -> None:
        """Give the answer."""
        self.dismiss(answer)


class Page(ModalScreen[None]):
    """A page that fills the screen, under a title, until ``q`` or Escape."""

    DEFAULT_CSS = """
    Page Static.title { height: 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    Page Static.keys { height: 1; text-style: dim; text-wrap: nowrap; text-overflow: ellipsis; }
    Page Log { height: 1fr; background: ansi_default; }
    Page VerticalScroll { height: 1fr; background: ansi_default; }
    Page VerticalScroll Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape,backspace", "back", show=False),
        Binding("j", "scroll('down')", show=False),
        Binding("k", "scroll('up')", show=False),
        Binding("g", "scroll('home')", show=False),
        Binding("G", "scroll('end')", show=False),
        Binding("space", "scroll('page_down')", show=False),
    ]
    KEYS = "q back   arrows, PgUp, PgDn, Home, End scroll"

    def __init__(self, title: str, text: str = "") -> None:
        super().__init__()
        self._heading, self._text, self._said = title, text, self.KEYS
        self._follows = False

    def compose(self) -> ComposeResult:
        yield Static(Text(visible(self._heading)), classes="title")
        if self._follows:
            yield Log(max_lines=_LINES)
        else:
            with VerticalScroll():
                yield Static(Text(visible(self._text)), id="text")
        yield Static(Text(self._said), classes="keys")

    def action_back(self) -> None:
        """Close the page."""
        self.dismiss()

    def action_scroll(self, where: str) -> None:
        """Scroll what is shown."""
        getattr(self._body, f"scroll_{where}")(animate=False)

    @property
    def _body(self) -> Widget:
        return self.query("VerticalScroll, Log").first()


class CommandPage(Page):
    """The output of one of our own commands, line by line as it comes.

    ``follows`` keeps the end in view, until one scrolls up. Closing the page ends the command,
    unless it ``acts``: then it is waited for.
    """

    def __init__(self, arguments: Sequence[str], *, follows: bool = False, acts: bool = False):
        super().__init__(shlex.join(["hpcrun", *arguments]))
        self._arguments = arguments
        self._follows, self._acts = follows, acts
        self._lines: queue.Queue[str] = queue.Queue(_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._said = "reading …"

    def on_mount(self) -> None:
        # Not from the directory of the moment, which may hold a module of any name.
        self._process = host.start_piped(
            [sys.executable, "-m", "hpcrun", *self._arguments],
            cwd=Path(hpcrun.__file__).parent.parent,
        )
        for stream in (self._process.stdout, self._process.stderr):
            reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
            reader.start()
            self._readers.append(reader)
        self._body.focus()
        self._timer = self.set_interval(_EVERY, self._drain)

    def _read(self, stream: object) -> None:
        try:
            for line in stream:  # type: ignore[attr-defined]
                self._lines.put(line)
        except (OSError, ValueError):
            pass  # closed with the page

    def _drain(self) -> None:
        if self._process is None:
            return
        # Before the lines, so that what was printed last is shown.
        is_over = self._process.poll() is not None and not any(
            reader.is_alive() for reader in self._readers
        )
        lines: list[str] = []
        while len(lines) < _AT_ONCE and not self._lines.empty():
            lines.append(visible(self._lines.get().rstrip("\n")))
        if lines and self._follows:
            log = self.query_one(Log)
            log.write_lines(lines, scroll_end=log.is_vertical_scroll_end)
        elif lines:
            self._text += "\n".join(lines) + "\n"
            self.query_one("#text", Static).update(Text(self._text))
        code = self._process.returncode
        if is_over and self._lines.empty():
            self._timer.stop()
            self._say("ended" if not code else f"ended with exit code {code}")
        elif self._follows:
            self._say(
                "following" if self.query_one(Log).is_vertical_scroll_end else "End follows again"
            )

    def _say(self, state: str) -> None:
        said = f"{self.KEYS}   [{state}]"
        if said != self._said:
            self._said = said
            self.query_one(".keys", Static).update(Text(said))

    @property
    def is_acting(self) -> bool:
        """The command acts on runs, and has not ended."""
        return self._acts and self._process is not None and self._process.poll() is None

    def action_back(self) -> None:
        """Close the page, and end a command that only reads."""
        if self.is_acting:
            self._say("it is at work: wait for its end")
            return
        self.close()
        self.dismiss()

    def close(self) -> None:
        """End the command, unless it acts."""
        if self._process is not None and not self.is_acting:
            process, self._process = self._process, None
            self._timer.stop()
            # At once: the screen may be left with the page, and takes its threads along.
            process.kill()
            # A reader may wait for room in the queue, and storage may not answer.
            threading.Thread(target=self._end, args=(process,), daemon=True).start()

    def on_unmount(self) -> None:
        self.close()

    def _end(self, process: subprocess.Popen[str]) -> None:
        while any(reader.is_alive() for reader in self._readers):
            while not self._lines.empty():
                self._lines.get_nowait()
            for reader in self._readers:
                reader.join(0.05)
        host.end_session(process)
