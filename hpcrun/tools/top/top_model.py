"""The model of the screen: its rows, and the runs that a key acts on, without a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.errors import UsageError
from hpcrun.observe.read.filter import narrow
from hpcrun.observe.read.selection import Selected, as_where, where_arguments
from hpcrun.observe.status import run_state, status_table
from hpcrun.observe.status.status import RunStatus
from hpcrun.observe.tables import Table
from hpcrun.submission import most_hours
from hpcrun.text import one_line, plural, shortened
from hpcrun.tools.top import views
from hpcrun.tools.top.views import NODES, QUEUE, RUNS, NodeSample, Picture, TopView

_NOTHING = {
    RUNS: "no runs",
    QUEUE: "nothing waits: no run is planned, waiting or in the queue",
    NODES: "no run holds a node now",
}


def _text(one: Selected, found: RunStatus) -> str:
    """Return the text of a run in which words of the filter are searched."""
    words = (one.name, one.run.label, found.state, found.last_cause, found.job_id)
    return " ".join(filter(None, words))


class TopModel:
    """The last picture, the runs of it that a filter leaves, and their rows in a view."""

    def __init__(self) -> None:
        self.picture: Picture | None = None
        self.view = TopView(RUNS, Table(()), (), ())
        self.viewed = RUNS
        """The name of the view."""
        self.sorted_by, self.is_backwards = "STATE", False
        """The header of the column that the runs are sorted by."""
        self.condition = ""
        """The filter as it was typed, in the language of ``--where``; empty for all runs."""
        self.applied = ""
        """The filter that the runs meet."""
        self.unmet = ""
        """The error of the filter, or a message that no run meets it."""
        self.marked: set[str] = set()
        """The directories of the marked runs."""
        self.samples: dict[str, NodeSample] = {}
        """The newest telemetry of nodes, as far as it was read."""
        # The runs that the filter leaves, and for each row the directory of its first run.
        self._places: Sequence[int] = ()
        self._directories: Sequence[str] = ()

    def take(self, picture: Picture, *, is_typed: bool) -> None:
        """Show another picture."""
        self.picture = picture
        self.select(is_typed=is_typed)

    def select(self, *, is_typed: bool) -> None:
        """Find the runs that meet the filter.

        While it is typed, one that is wrong or meets nothing leaves the last that was neither.
        """
        picture = self.picture
        if picture is None:
            return
        self.unmet, wanted = "", self.condition
        places = self._narrowed(picture, wanted)
        if places is None:
            self.unmet += " (not applied)" if is_typed else " (no run is shown)"
            wanted = self.applied if is_typed else wanted
            unmet, places = self.unmet, self._narrowed(picture, wanted) or ()
            self.unmet = unmet
        self.applied, self._places = wanted, places

    def _narrowed(self, picture: Picture, condition: str) -> Sequence[int] | None:
        """Return the places of the runs that meet a condition; None if it is wrong, or none do."""
        if not condition:
            return range(len(picture.found))
        known = {id(one): found for one, found in zip(picture.selected, picture.found, strict=True)}
        try:
            left = narrow(
                picture.selected,
                [condition],
                "filter",
                lambda runs, values: [known[id(one)] for one in runs],
                text_of=lambda one: _text(one, known[id(one)]),
            )
        except UsageError as error:
            self.unmet = f"filter: {one_line(error.message)}"
            return None
        shown = {id(one) for one in left}
        return [place for place, one in enumerate(picture.selected) if id(one) in shown]

    def renew(self, cursor: int) -> int:
        """Make the rows anew; return the row to which a cursor goes that was on row ``cursor``."""
        picture = self.picture
        if picture is None:
            return cursor
        before = self.directory(cursor)
        if self.viewed == RUNS:
            self.view = views.of_runs(picture, self._places, self.sorted_by, self.is_backwards)
        elif self.viewed == QUEUE:
            self.view = views.of_queue(picture, self._places)
        else:
            self.view = views.of_nodes(picture, self._places, self.samples)
        self._directories = [picture.found[row[0]].directory for row in self.view.targets]
        return self._directories.index(before) if before in self._directories else cursor

    def directory(self, row: int) -> str | None:
        """Return the directory of the first run of a row."""
        return self._directories[row] if row < len(self._directories) else None

    @property
    def marked_rows(self) -> frozenset[int]:
        """The rows of which all runs are marked."""
        return frozenset(
            row
            for row, places in enumerate(self.view.targets)
            if self.marked and all(one.directory in self.marked for one in self.statuses(places))
        )

    def mark(self, row: int) -> None:
        """Mark the runs of a row, or take their marks away."""
        directories = {one.directory for one in self.statuses(self.places(row))}
        are_marked = directories <= self.marked
        self.marked = self.marked - directories if are_marked else self.marked | directories

    def sort(self, columns: int) -> None:
        """Sort by the next column that has values, or by one further on."""
        if self.picture is None:
            return
        table = self.picture.table
        there = [i for i in range(len(table.headers)) if any(row[i] for row in table.rows)]
        headers = [table.headers[i] for i in there]
        here = headers.index(self.sorted_by) if self.sorted_by in headers else 0
        self.sorted_by = headers[(here + columns) % len(headers)] if headers else "RUN"

    def places(self, row: int) -> Sequence[int]:
        """Return the places of the runs of a row."""
        return self.view.targets[row] if row < len(self.view.targets) else ()

    def chosen(self, row: int) -> Sequence[int]:
        """Return the places of all marked runs; without marks, of those of the row."""
        found = self.picture.found if self.picture else ()
        marked = [place for place, one in enumerate(found) if one.directory in self.marked]
        return marked or self.places(row)

    def statuses(self, places: Sequence[int]) -> list[RunStatus]:
        """Return what is known of the runs at these places."""
        return [self.picture.found[place] for place in places] if self.picture else []

    def command(self, verb: str, places: Sequence[int], *options: str) -> list[str]:
        """Return the arguments of a command on these runs.

        Raises UsageError if there is none, or no one command takes them all.
        """
        if self.picture is None or not places:
            raise UsageError("there is no run in this row")
        selected = [self.picture.selected[place] for place in places]
        roots = {one.experiment.root for one in selected}
        if len(roots) > 1:
            raise UsageError("these runs lie under several roots: mark those of one")
        return [verb, *where_arguments(selected), *options, "--root", str(roots.pop())]

    def acts_on(self, verb: str, places: Sequence[int]) -> Sequence[int]:
        """Return those of the places on which ``cancel`` or ``requeue`` acts.

        Raises UsageError if it leaves all of them alone.
        """
        left_alone = [
            one.over if verb == "cancel" else one.state == run_state.COMPLETED
            for one in self.statuses(places)
        ]
        if places and all(left_alone):
            first = self.statuses(places)[0]
            raise UsageError(f"nothing to {verb}: {first.name} is {first.state}")
        return [place for place, is_left in zip(places, left_alone, strict=True) if not is_left]

    def question(self, verb: str, places: Sequence[int]) -> str:
        """Return what is asked before an action: the runs and, above the profile's limit, hours."""
        selected = [self.picture.selected[place] for place in places] if self.picture else []
        above = most_hours.above_limit((one.run, one.plan.cluster) for one in selected)
        cost = f", {above}" if above and verb == "requeue" else ""
        names = shortened(as_where(selected), 600)
        return f"{verb.capitalize()} {plural(len(selected), 'run')}{cost}?  {names}"

    def counts(self, visible_rows: range) -> str:
        """Describe in one line what is shown of what there is."""
        if self.picture is None:
            return "looking …"
        found = self.picture.found
        parts = [plural(len(found), "run", ",")]
        count = len(self.view.targets)
        if len(visible_rows) < count:
            first, last = visible_rows.start + 1, visible_rows.stop
            parts.append(f"rows {first:,}-{last:,} of {count:,}")
        if self.applied:
            parts.append(f"filter {one_line(self.applied)}: {len(self._places):,}")
        if self.marked:
            parts.append(f"{len(self.marked)} marked")
        if self.viewed == RUNS:
            parts.append(f"by {self.sorted_by}" + ", reversed" * self.is_backwards)
        parts.append(status_table.counts(found))
        return " | ".join(parts)

    def detail(self, row: int) -> str:
        """Return what there is to say about a row, or why there is none."""
        if row < len(self.view.details):
            return self.view.details[row]
        return "" if self.picture is None or self.unmet else _NOTHING[self.viewed]
