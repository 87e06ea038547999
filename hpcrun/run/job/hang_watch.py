"""A run that hangs: noticed, asked what it is doing, and told apart from one that is only slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.run.health import stack_summary
from hpcrun.run.health.hang_detector import HangDetector
from hpcrun.run.health.straggler import StragglerDetector
from hpcrun.run.job.agents import Agents
from hpcrun.slurm.duration import seconds
from hpcrun.state.plan import RunPlan

_LOOK_EVERY = 1.0


class Hung(HpcrunError):
    """The ranks get nowhere any more.

    Attributes
    ----------
    found
        ``message``, and ``rank`` and ``node`` of the one that holds up the others, None where that
        cannot be told.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__(str(found["message"]))
        self.found = found


class HangWatch:
    """The ranks of one attempt, as their agents report on them.

    Parameters
    ----------
    tell
        Told of a rank that holds up the others, as details of ``ledger.STRAGGLER``.
    """

    def __init__(
        self, run: RunPlan, agents: Agents, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        wanted = run.recovery.hang_after
        self._run, self._agents, self._tell = run, agents, tell
        self._stragglers = StragglerDetector()
        self._liveness = HangDetector(seconds(wanted) or 0.0 if wanted else 0.0, time.monotonic())
        self._look_at = 0.0

    def look(self) -> bool:
        """See whether they get anywhere.

        Returns
        -------
        bool
            One of them is gone, and its launcher took that for a good end.

        Raises
        ------
        Hung
            They do not.
        """
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY
        self._liveness.update(self._agents.pulses, now)
        if (slow := self._stragglers.update(self._agents.pulses)) is not None:
            self._tell({**vars(slow), "node": self._node(slow.rank)})
        # What is no function may end when it likes.
        if self._run.entry.kind == "function" and self._liveness.vanished(now):
            return True
        hang = self._liveness.hang(now)
        if hang is None:
            return False
        texts = self._agents.stacks()
        steps = {rank: pulse.step for rank, pulse in self._agents.pulses.items()}
        everybody = range(self._run.world_size)
        places = {rank: stack_summary.place(texts.get(rank, "")) for rank in everybody}
        who = hang.rank if hang.rank is not None else stack_summary.culprit(places, steps)
        where = stack_summary.told(places, None if hang.rank is not None else who)
        message = "; ".join(filter(None, [hang.message, where]))
        raise Hung({"message": message, "rank": who, "node": self._node(who)})

    def _node(self, rank: int | None) -> str | None:
        nodes = self._agents.working
        return None if rank is None else nodes[rank // self._run.ranks_per_node]
