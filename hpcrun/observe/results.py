"""The table of results: swept values beside metrics, by run or by group."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hpcrun import activity, shared_look
from hpcrun.errors import BrokenFile, UsageError
from hpcrun.observe.read import filter, metric_curves
from hpcrun.observe.read.metric_curves import Curve
from hpcrun.observe.read.run_values import column_value, further_columns, show, swept_keys
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status.status import Observed, RunStatus
from hpcrun.observe.tables import number
from hpcrun.policy import next_attempt
from hpcrun.shared_dataclass import dataclass, replace
from hpcrun.state.layout import RunPaths
from hpcrun.state.plan import SEARCH, RunPlan
from hpcrun.text import Say, listed, one_line

# Column -> column_value; None for an empty cell.
Row = dict[str, Any]

# Rows can be grouped by this too, not only by swept keys.
EXPERIMENT = "experiment"

PARETO = "pareto"
"""The column that has a star for the runs of a search of several objectives that no other run is
better than in all of them."""

# The columns between the values of a run and its metrics, and those of them that groups average.
_FACTS: dict[str, Callable[[RunStatus], Any]] = {
    "state": lambda status: status.state,
    "step": lambda status: status.step,
}
_AVERAGED = frozenset({"step"})

# Text that spreadsheets compute, and numbers, which begin alike.
# A spreadsheet that parts cells at semicolons sees another cell after one, and after a line break.
_FORMULA = re.compile(r"(\A|[;\n\r])(?=\s*[=+@|%\uff1d\uff0b\uff0d\uff20\u2212-]|[\t\r])")
_NUMBER = re.compile(r"[+-]?(?:\d[\d.]*(?:e[+-]?\d+)?|inf|nan)", re.IGNORECASE)
_TEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


@dataclass(frozen=True)
class Results:
    """A table of results."""

    columns: tuple[str, ...]
    """Names, in order: the run, swept keys, state, step, then ``METRIC`` (last), ``METRIC.first``,
    ``METRIC.best`` and ``METRIC.best_step`` of the objective, other metrics' last values and, of a
    search of several objectives, ``pareto``. With groups, the swept keys grouped by, ``runs`` (how
    many), and ``METRIC`` (mean) and ``METRIC.se`` (standard error of the mean)."""
    rows: tuple[Row, ...]
    """One for each run or group."""

    @property
    def numeric(self) -> frozenset[str]:
        """The columns that hold numbers."""
        return frozenset(
            column
            for column in self.columns
            if any(isinstance(row.get(column), (int, float)) for row in self.rows)
        )

    def sort(self, key: str) -> Results:
        """Sort by a column, descending if ``-`` is before it; empty cells come last.

        Raises UsageError if there is no such column.
        """
        column = find_column(self.columns, key.removeprefix("-"))
        filled = [row for row in self.rows if not _is_empty(row.get(column))]
        empty = [row for row in self.rows if _is_empty(row.get(column))]
        numeric = all(isinstance(row[column], (int, float)) for row in filled)
        filled.sort(
            key=lambda row: row[column] if numeric else show(row[column]),
            reverse=key.startswith("-"),
        )
        return Results(self.columns, (*filled, *empty))

    def choose(self, names: Sequence[str]) -> Results:
        """Keep only these columns, in this order.

        Raises UsageError if there is no such column.
        """
        return Results(tuple(find_column(self.columns, name) for name in names), self.rows)

    def to_data(self) -> list[Row]:
        """Return rows with all columns; None for an empty cell."""
        return [{column: row.get(column) for column in self.columns} for row in self.rows]

    def cells(self, row: Row) -> list[str]:
        """Return a row as text, numbers to six digits."""
        return [_text(row.get(column)) for column in self.columns]

    def csv(self) -> str:
        """Return comma-separated values with a header, numbers in full.

        A spreadsheet computes no text: what it would take for a formula gets a quote before it.
        """
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(map(_literal, self.columns))
        for row in self.rows:
            writer.writerow([_literal(_text(row.get(column), repr)) for column in self.columns])
        return stream.getvalue()

    def latex(self) -> str:
        """Return a ``tabular`` for booktabs; a mean and its standard error share a cell."""
        columns = [column for column in self.columns if not column.endswith(".se")]
        numeric = self.numeric
        lines = [
            "\\begin{tabular}{" + "".join("r" if c in numeric else "l" for c in columns) + "}",
            "\\toprule",
            " & ".join(_tex(column) for column in columns) + r" \\",
            "\\midrule",
        ]
        for row in self.rows:
            cells = []
            for column in columns:
                error = row.get(f"{column}.se")
                cell = _tex(_text(row.get(column)))
                cells.append(f"${cell} \\pm {number(error)}$" if error is not None else cell)
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def smaller_batches(observed: Sequence[Observed]) -> list[str]:
    """Return a sentence for each kind of smaller micro batches that runs had, with their names."""
    runs: dict[str, list[str]] = {}
    for one in observed:
        sizes = map(next_attempt.smaller_batch, reversed(one.attempts))
        last = next((words for words in sizes if words), None)
        if last is not None:
            runs.setdefault(last, []).append(one.status.name)
    return [f"{listed(names, 8)}: {words}" for words, names in runs.items()]


def collect(
    selected: Sequence[Selected],
    statuses: Sequence[RunStatus],
    read: Callable[[RunPaths], Curve] = metric_curves.read,
    warn: Say = lambda message: None,
    keys: Sequence[str] | None = None,
) -> Results:
    """Return one row for each run, with the metrics of all its attempts.

    ``keys`` are those of the values that it has, the swept ones and tags by default.

    ``read`` reads the metrics of a run that has begun; it is called once for each, also of several
    at once.
    ``warn`` is called for each run whose metrics cannot be read: its row is without.
    """
    keys = [*swept_keys(selected), *further_columns(selected)] if keys is None else keys
    rows: list[Row] = []
    objectives: list[str] = []
    others: list[str] = []

    def look(pair: tuple[Selected, RunStatus]) -> Curve | BrokenFile:
        one, status = pair
        try:
            return read(one.paths) if status.attempt is not None else Curve()
        except BrokenFile as error:
            return error

    each = [*zip(selected, statuses, strict=True)]
    looks = shared_look.each(look, each)
    for (one, status), found in zip(activity.count(each, "reading metrics"), looks, strict=True):
        row: Row = {EXPERIMENT: one.experiment.name, "run": one.name}
        row |= {name: of(status) for name, of in _FACTS.items()}
        row |= {key: column_value(one, key) for key in keys}
        curve, objective = Curve(), None
        try:
            objective = one.run.objective
            if isinstance(found, BrokenFile):
                raise found
            curve = found
        except BrokenFile as error:
            warn(f"{one.name}: {error.message}")
        name = objective.metric if objective else None
        for metric in curve.names:
            row[metric] = curve.last(metric)
            (objectives if metric == name else others).append(metric)
        if objective and name in curve.names:
            row[f"{name}.first"] = curve.first(objective.metric)
            best = curve.best(objective.metric, objective.better) or (None, None)
            row[f"{name}.best_step"], row[f"{name}.best"] = best
        rows.append(row)
    columns = ["run", *keys, *_FACTS]
    for name in dict.fromkeys(objectives):
        columns += [f"{name}.first", name, f"{name}.best", f"{name}.best_step"]
    columns += [name for name in dict.fromkeys(others) if name not in columns]
    if mark_front((one.run, row) for (one, _), row in zip(each, rows, strict=True)):
        columns.append(PARETO)
    return Results(tuple(columns), tuple(rows))


def mark_front(rows: Iterable[tuple[RunPlan, Row]]) -> bool:
    """Put a star into the rows of runs of the front; return whether a search asks for one.

    A row has ``experiment``, ``state`` and the last value of each metric. Those that are not
    completed, or lack a finite value, are left out. Runs are compared within their experiment.
    """
    groups: dict[str, list[tuple[list[float], Row]]] = {}
    for run, row in rows:
        objective, search = run.spec.get("objective"), run.spec.get(SEARCH) or {}
        if not objective or not search.get("more_objectives"):
            continue
        wanted = [objective, *search["more_objectives"]]
        group = groups.setdefault(json.dumps([row["experiment"], wanted]), [])
        signed = [_signed(row.get(one["metric"]), one["mode"]) for one in wanted]
        values = [one for one in signed if one is not None]
        if row["state"] == "completed" and len(values) == len(wanted):
            group.append((values, row))
    for group in groups.values():
        front: list[list[float]] = []
        # A later one is better than none before it.
        for values, row in sorted(group, key=lambda pair: pair[0]):
            if not any(_is_better(other, values) for other in front):
                front.append(values)
                row[PARETO] = "*"
    return bool(groups)


def _signed(value: Any, mode: str) -> float | None:
    """Return a value of which less is better; None for what is no finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return -value if mode == "max" else value


def _is_better(one: list[float], other: list[float]) -> bool:
    """Check whether one is as good in all, and better in some."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def narrowed(
    results: Results,
    conditions: Sequence[str],
    selected: Sequence[Selected],
    statuses: Sequence[RunStatus],
    keys: Sequence[str],
    say: Say = lambda message: None,
) -> Results:
    """Keep the rows of runs that meet all conditions, in the language of ``--where``.

    ``results`` has a row for each run, with the values of ``keys``. Metrics have their values as in
    the table, so that ``loss.best<2`` is a condition too. Raises UsageError as
    `hpcrun.observe.read.filter.narrow` does.
    """
    metrics = [one for one in results.columns if one not in {"run", *_FACTS, *keys}]
    places = {id(one): place for place, one in enumerate(selected)}

    def look(runs: Sequence[Selected], _values: bool) -> list[RunStatus]:
        found = []
        for place in (places[id(one)] for one in runs):
            row = results.rows[place]
            known = {name: row[name] for name in metrics if row.get(name) is not None}
            found.append(replace(statuses[place], metrics=known))
        return found

    left = filter.narrow(selected, conditions, "--filter", look, say)
    return Results(results.columns, tuple(results.rows[places[id(one)]] for one in left))


def group(results: Results, keys: Sequence[str], swept: Sequence[str]) -> Results:
    """Return means and standard errors for each combination of the values of ``keys``.

    ``keys`` are among the ``swept`` keys or unique suffixes of them, or ``experiment``. Raises
    UsageError if a key is not swept.
    """
    by = [find_column((*swept, EXPERIMENT), key, "swept key") for key in keys]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in results.rows:
        groups.setdefault(tuple(show(row.get(key)) for key in by), []).append(row)
    left_out = {"run", PARETO, *(_FACTS.keys() - _AVERAGED), *swept}
    measured = [
        column
        for column in results.columns
        if column not in left_out and not column.endswith(".best_step")
    ]
    rows = []
    for members in groups.values():
        summary: Row = {key: members[0].get(key) for key in by} | {"runs": len(members)}
        for name in measured:
            values = [row[name] for row in members if isinstance(row.get(name), (int, float))]
            summary[name], summary[f"{name}.se"] = mean_and_error([*map(float, values)])
        rows.append(summary)
    columns = (*by, "runs", *(c for name in measured for c in (name, f"{name}.se")))
    return Results(columns, tuple(rows))


def keys_but_repeats(selected: Sequence[Selected]) -> list[str]:
    """Return the swept keys without those of ``sweep.repeat``, to group by for means over these.

    Several experiments are not mixed. Raises UsageError if no run was repeated.
    """
    repeats = {key for one in selected for key in one.plan.repeats}
    if not repeats:
        raise UsageError(
            f"--over-repeats: {selected[0].experiment.name} was swept without `sweep.repeat`",
            hint="--group-by KEY averages over all swept keys but KEY",
        )
    swept = [key for key in swept_keys(selected) if key not in repeats]
    return [EXPERIMENT, *swept] if len({one.experiment for one in selected}) > 1 else swept


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean, and its standard error from the sample's variance; None if undefined."""
    if not values:
        return None, None
    mean = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
    if len(values) < 2 or math.isnan(mean):
        return mean, None
    variance = math.fsum((column_value - mean) ** 2 for column_value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def find_column(columns: Sequence[str], key: str, what: str = "column") -> str:
    """Return the column of that name, or the only one whose last parts are ``key``.

    Raises UsageError if no column matches, or several do.
    """
    if key in columns:
        return key
    matching = [column for column in columns if column.endswith((f".{key}", f"/{key}"))]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"{key!r} is ambiguous: it could be {', '.join(matching)}")
    raise UsageError(
        f"there is no {what} {key!r}", hint=f"there are {', '.join(columns) or 'none'}"
    )


def _is_empty(column_value: Any) -> bool:
    return column_value is None or (isinstance(column_value, float) and math.isnan(column_value))


def _text(column_value: Any, of_float: Callable[[float], str] = number) -> str:
    if column_value is None:
        return ""
    return of_float(column_value) if isinstance(column_value, float) else show(column_value)


def _literal(text: str) -> str:
    return text if _NUMBER.fullmatch(text) else _FORMULA.sub(r"\1'", text)


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in one_line(text))
