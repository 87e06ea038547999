"""What was read of a program, in the files that a session would write.

Lines go to ``metrics.jsonl``, events to ``session.jsonl``, unless the program itself writes there.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from hpcrun.run.program.progress_source import EarlierProgress
from hpcrun.run.protocol.output import say
from hpcrun.state import files, metrics_file, session_log
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.metrics_file import Line

# Lines that are all kept; then an attempt that is e times as old has as many more.
MOST_DENSE = 2_000
_MOST_SAVES = 200


class Thinning:
    """Chooses lines so that a long attempt has few of them: about `MOST_DENSE` a factor of e."""

    def __init__(self, dense: int = MOST_DENSE) -> None:
        self._dense = dense
        self._kept = 0
        self._first: float | None = None
        self._last = 0.0

    def keeps(self, moment: float) -> bool:
        """Check whether what happened at a time is kept."""
        self._first = moment if self._first is None else self._first
        if self._kept >= self._dense and moment - self._last < (moment - self._first) / self._dense:
            return False
        self._kept, self._last = self._kept + 1, moment
        return True


class SeenProgressWriter:
    """Writer of one attempt's lines and events, as long as nobody else writes them."""

    def __init__(self, paths: AttemptPaths) -> None:
        self._paths = paths
        self._metrics = files.Appender(paths.metrics, say)
        self._events = files.Appender(paths.session, say)
        # Bytes of the files after this wrote to them.
        self._sizes = {paths.metrics: 0, paths.session: 0}
        self._thinning, self._saves = Thinning(), Thinning(_MOST_SAVES)
        self._left: list[Line] = []

    @property
    def is_foreign(self) -> bool:
        """The program writes ``metrics.jsonl`` itself."""
        return _size(self._paths.metrics) != self._sizes[self._paths.metrics]

    @property
    def has_session(self) -> bool:
        """The program uses a session, which writes both files."""
        if _size(self._paths.session) == self._sizes[self._paths.session]:
            return False
        log = session_log.read_any(self._paths)
        return any(log.of(session_log.STARTED, session_log.RESTORED))

    def lines(self, found: list[Line]) -> None:
        """Append lines, some of them where they are very many."""
        kept = [line for line in found if self._thinning.keeps(line.time or 0.0)]
        self._append(kept)
        self._left = [] if kept and kept[-1] is found[-1] else found[-1:]

    def last(self) -> None:
        """Append the last line of all where it was left out: it says how far the program came."""
        self._append(self._left)

    def _append(self, lines: list[Line]) -> None:
        if lines:
            path = self._paths.metrics
            self._metrics.write(*({"step": s, "time": t, **values} for s, t, values in lines))
            self._sizes[path] = _size(path)

    def event(self, kind: str, **details: Any) -> None:
        """Append an event of now, or of the ``time`` among its details."""
        path = self._paths.session
        before = _size(path)
        self._events.write({**session_log.record(kind), **details})
        if before == self._sizes[path]:
            self._sizes[path] = _size(path)

    def saved(self, step: int | None, path: str, size: int, moment: float) -> None:
        """Append a save that the program made."""
        if self._saves.keeps(moment):
            at = {} if step is None else {"step": step}
            self.event(session_log.SAVED, **at, checkpoint=path, bytes=size, time=round(moment, 3))


def earlier_progress(paths: AttemptPaths) -> EarlierProgress:
    """Return what the attempts before one showed, in the unit of the newest that showed steps."""
    before = [one for one in paths.run.attempts() if one.number < paths.number]
    logs = [(one, session_log.read_any(one)) for one in before]
    known = [(one, log) for one, log in logs if log.unit is not None]
    if not known:
        return EarlierProgress()
    newest = known[-1][1]
    alike = [one.metrics for one, log in known if log.unit == newest.unit]
    firsts, lasts = map(metrics_file.first_step, alike), map(metrics_file.last_step, alike)
    epochs = [(log.read_from or {}).get("first_epoch") for _, log in known]
    return EarlierProgress(
        source=str((newest.read_from or {}).get("source")),
        unit=newest.unit,
        total=max((log.total_steps or 0 for _, log in known if log.unit == newest.unit)) or None,
        first_epoch=next((one for one in epochs if one in (0, 1)), None),
        first=min((step for step in firsts if step is not None), default=0),
        reached=max((step for step in lasts if step is not None), default=0),
    )


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_size
    return 0
