"""The live screen of ``hpcrun status --watch``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import status_table
from hpcrun.observe.status.metric_trend import Trends
from hpcrun.observe.status.status import RunStatus
from hpcrun.text import one_line, plural

if TYPE_CHECKING:
    from rich.console import Console, Group

# Most lines of reasons, and lines around the table.
_REASONS, _AROUND = 5, 5


class Screen:
    """Renders as many runs as fit on a terminal, active ones first."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._trends = Trends()

    def render(
        self,
        selected: Sequence[Selected],
        found: Sequence[RunStatus],
        problem: str | None = None,
    ) -> Group:
        """Render the screen; ``problem`` is why the cluster's answer is missing."""
        from rich.console import Group
        from rich.text import Text

        now = time.time()
        reasons = status_table.reasons(found)
        shown_reasons = reasons[:_REASONS]
        room = max(3, self._console.height - _AROUND - len(shown_reasons) - bool(problem))
        shown = status_table.most_telling(selected, found, room)
        table = status_table.build(*shown, now, terminal=True, trends=self._trends)
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        parts: list[object] = [Text(f"{clock}  {status_table.counts(found)}", style="bold")]
        if problem:
            parts.append(Text(one_line(problem), style="yellow"))
        fitted = table.fitted(self._console.width)
        parts.append(fitted or Text(table.plain(), no_wrap=True, overflow="crop"))
        hidden = len(found) - len(shown[1])
        if hidden:
            parts.append(Text(f"… {plural(hidden, 'more run')}", style="dim"))
        parts += [Text(one_line(line), no_wrap=True, overflow="ellipsis") for line in shown_reasons]
        if rest := len(reasons) - len(shown_reasons):
            parts.append(Text(f"… {plural(rest, 'more reason')}", style="dim"))
        parts.append(Text("Ctrl-C leaves; the runs go on", style="dim"))
        return Group(*parts)  # type: ignore[arg-type]
