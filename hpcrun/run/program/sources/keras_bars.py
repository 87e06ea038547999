"""Progress by the bars of Keras in what rank 0 prints: one for each epoch, below its number.

``Epoch 2/10`` comes first, then ``12/313 ━━━━ 4s 14ms/step - accuracy: 0.9 - loss: 0.3`` again and
again, in older versions ``12/313 [=>....] - ETA: 4s - loss: 0.3``; with ``verbose=2`` there is
``313/313 - 5s - loss: 0.3`` at the end of each epoch alone.
"""

from __future__ import annotations

import re

from hpcrun.run.program.progress_source import MOST_LINE, Found, Look, ReaderStart, numbers, plain
from hpcrun.state.metrics_file import Line

# Seconds between two lines.
_EVERY = 1.0
_EPOCH = re.compile(r"Epoch (\d{1,9})/(\d{1,9})")
_BAR = re.compile(
    r"\s*(\d{1,12})/(\d{1,12}|Unknown)\s+(?:━|\[[=>.]+\]|-? ?\d[\d:]*s\b)", re.IGNORECASE
)
_VALUE = re.compile(r" - ([A-Za-z_][\w./-]{0,60}): ([-+.\w]{1,40})")


class KerasBars:
    """The steps of ``fit``: those of all epochs, whose number and length its bars tell.

    Bars of another length are those of evaluations and predictions.
    """

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._epochs = 0
        # The steps of an epoch, where they are known, and those of the epochs before.
        self._length: int | None = None
        self._before = 0
        # Of these the steps of an earlier `fit`.
        self._earlier = 0
        # The steps of this epoch, and whether its bar has not begun yet.
        self._done, self._is_new = 0, False
        # The newest update, unless it was returned, and the time of the last one that was.
        self._newest: Line | None = None
        self._told = 0.0

    @classmethod
    def begin(cls, start: ReaderStart) -> KerasBars:
        """Return a reader of one attempt."""
        return cls()

    def poll(self, look: Look) -> Found:
        """Return a line for each update, at most one a second, and for the end of each epoch."""
        found = Found(unit="steps")
        for at, raw in enumerate(look.text, 1):
            text = plain(raw[:MOST_LINE])
            if (header := _EPOCH.fullmatch(text.strip())) is not None:
                found.lines += self._take_newest()
                self._begin(int(header[1]), int(header[2]))
            elif self._epoch is not None and (match := _BAR.match(text)) is not None:
                moment = look.since + at / len(look.text) * (look.time - look.since)
                found.lines += self._update(match, text, moment)
        if look.is_last:
            found.lines += self._take_newest()
        if self._epoch is not None and self._length:
            left = self._epochs - self._epoch + 1
            found.total = self._before + left * self._length
        return found

    def _begin(self, epoch: int, epochs: int) -> None:
        if self._epoch is not None and epoch <= self._epoch:
            # Another rank's, unless it is another `fit`, whose steps come after those before.
            if epoch > 1 or self._done != self._length:
                return
            self._earlier = self._before = self._before + self._done
            self._length = None
        elif self._epoch is not None:
            self._before += (epoch - self._epoch) * (self._length or self._done)
        self._epoch, self._epochs, self._done, self._is_new = epoch, epochs, 0, True

    def _update(self, match: re.Match[str], text: str, moment: float) -> list[Line]:
        done, length = int(match[1]), None if match[2].isalpha() else int(match[2])
        if self._is_new and length is not None and length >= (self._length or 0) / 2:
            if self._length is None and self._epoch is not None:
                # `fit` begins with a later epoch where it goes on.
                self._before = self._earlier + (self._epoch - 1) * length
            self._length = length
        if length not in (None, self._length) or done < self._done or not done:
            return []
        if length is not None and done > length:
            return []
        self._done, self._is_new = done, False
        values = numbers(_VALUE.findall(text[match.end(1) :]))
        self._newest = Line(self._before + done, moment, values)
        is_due = done == length or moment - self._told >= _EVERY
        return self._take_newest() if is_due else []

    def _take_newest(self) -> list[Line]:
        """Return the newest update, if it was not returned yet."""
        newest, self._newest = self._newest, None
        if newest is None:
            return []
        self._told = newest.time or 0.0
        return [newest]
