"""The seconds that each rank waits for its loaders, compared now and then over all ranks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcrun.run.rank import process_groups
from hpcrun.state import session_log

if TYPE_CHECKING:
    from hpcrun.run.data.sample_loader import SampleLoader
    from hpcrun.run.rank.collectives import Collectives
    from hpcrun.run.rank.session_writer import SessionLogWriter

# Steps of an attempt after which ranks compare; then after twice as many, and so on.
_FIRST = 8
# Of many ranks, those that waited longest are recorded.
_MOST = 8


class DataWaits:
    """One rank's waits for data; collective."""

    def __init__(self, ranks: Collectives, events: SessionLogWriter) -> None:
        self._ranks, self._events = ranks, events
        self._steps, self._due = 0, _FIRST
        self._waited = self._spent = 0.0
        self._compared, self._is_over = 0, False

    def after_step(
        self, step: int, loaders: Sequence[SampleLoader], seconds: float
    ) -> float | None:
        """Count a step that took so many seconds; return those of its waits, None without loaders.

        Ranks compare even where they have no loader, since others may have one; where none has one
        the first time, they do not wait for each other again.
        """
        waited = sum(loader.take_wait() for loader in loaders) if loaders else None
        self._steps += 1
        self._waited += waited or 0.0
        self._spent += seconds
        if self._steps == self._due and not self._is_over:
            if self._ranks.world_size == 1 or process_groups.distributed():
                self._compare(step, has_loader=bool(loaders))
            self._waited = self._spent = 0.0
            self._compared, self._due = self._steps, 2 * self._steps
        return waited

    def _compare(self, step: int, *, has_loader: bool) -> None:
        share = self._waited / self._spent if self._spent else 0.0
        found = self._ranks.gather(share if has_loader else None)
        self._is_over = not self._compared and all(one is None for one in found)
        shares = [one or 0.0 for one in found]
        if any(shares):
            longest = sorted(range(len(shares)), key=lambda rank: -shares[rank])[:_MOST]
            self._events.write(
                session_log.DATA_WAITS,
                step=step,
                steps=self._steps - self._compared,
                ranks=[[rank, round(shares[rank], 4)] for rank in longest],
                median=round(statistics.median(shares), 4),
                world_size=len(shares),
            )
