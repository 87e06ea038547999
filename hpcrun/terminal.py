"""The standard streams of a command, which show control characters and never send them."""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TextIO

from hpcrun.text import visible


class VisibleStream(io.TextIOWrapper):
    """A stream on which all text is made `visible`, whoever prints it: messages, tracebacks, click.

    Colours go around it, through `styled`.
    """

    def __init__(self, plain: io.TextIOWrapper) -> None:
        plain.reconfigure(errors="replace")
        super().__init__(
            plain.buffer,
            # click would write around an ASCII stream, in UTF-8.
            encoding="utf-8" if codecs.lookup(plain.encoding).name == "ascii" else plain.encoding,
            errors="replace",
            line_buffering=plain.line_buffering,
            write_through=plain.write_through,
        )
        self.plain = plain

    def write(self, text: str, /) -> int:
        super().write(visible(text))
        return len(text)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Make visible all that is printed during the block."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    guards = {
        name: VisibleStream(stream)
        for name, stream in before.items()
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, VisibleStream)
    }
    try:
        for name, guard in guards.items():
            setattr(sys, name, guard)
        yield
    finally:
        for name, guard in guards.items():
            setattr(sys, name, before[name])
            with contextlib.suppress(OSError):
                guard.detach()


def styled(stream: TextIO) -> TextIO:
    """Return the stream that takes escape sequences, for libraries that write colours.

    All text that they are given has to be `visible` already.
    """
    stream.flush()
    return stream.plain if isinstance(stream, VisibleStream) else stream
