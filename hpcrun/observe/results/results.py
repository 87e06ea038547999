"""Swept values beside metrics: one row a run, or one a group of runs."""

from __future__ import annotations

import csv
import io
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.observe.read import metric_curves
from hpcrun.observe.read.filter import equal, show
from hpcrun.observe.read.metric_curves import Curve
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status.status import RunStatus
from hpcrun.observe.tables import number
from hpcrun.state.layout import RunPaths

Value = Any

# Beside the swept keys, what rows can be grouped by.
EXPERIMENT = "experiment"

_CONDITION = re.compile(r"\s*(?P<key>[^<>=!]*[^<>=!\s])\s*(?P<sign><=|>=|!=|==?|<|>)(?P<value>.*)")
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Results:
    """A table of results.

    Attributes
    ----------
    columns
        Names, in order: the run, swept keys, state, step, then ``METRIC`` (last), ``METRIC.first``,
        ``METRIC.best`` and ``METRIC.best_step`` of the objective, and other metrics' last values.
        With groups, the swept keys grouped by, ``runs`` (how many), and ``METRIC`` (mean) and
        ``METRIC.se`` (standard error of the mean).
    rows
        Column -> value; None where there is none.
    """

    columns: tuple[str, ...]
    rows: tuple[dict[str, Value], ...]

    @property
    def numeric(self) -> frozenset[str]:
        """Columns in which there is a number."""
        return frozenset(
            column
            for column in self.columns
            if any(isinstance(row.get(column), (int, float)) for row in self.rows)
        )

    def sort(self, key: str) -> Results:
        """Rows ascending by a column (descending with ``-`` before it), empty cells last.

        Raises
        ------
        UsageError
            There is no such column.
        """
        column = find_column(self.columns, key.removeprefix("-"))
        filled = [row for row in self.rows if not _empty(row.get(column))]
        empty = [row for row in self.rows if _empty(row.get(column))]
        numeric = all(isinstance(row[column], (int, float)) for row in filled)
        filled.sort(
            key=lambda row: row[column] if numeric else show(row[column]),
            reverse=key.startswith("-"),
        )
        return Results(self.columns, (*filled, *empty))

    def filter(self, conditions: Sequence[str]) -> Results:
        """The rows that meet every condition, such as ``loss<2.5`` or ``state=completed``.

        Parameters
        ----------
        conditions
            A column (the end of its name is enough), one of ``< <= > >= = !=``, and a value. Only
            numbers are less or more than another: an empty cell is neither.

        Raises
        ------
        UsageError
            A condition has another form, there is no such column, or no row meets all of them.
        """
        rows = self.rows
        for condition in conditions:
            column, meets = _condition(condition, self.columns)
            before, rows = rows, tuple(row for row in rows if meets(row.get(column)))
            if not rows:
                raise UsageError(
                    f"--filter {condition!r}: no run meets it; {column} is {_range(before, column)}"
                )
        return Results(self.columns, rows)

    def choose(self, names: Sequence[str]) -> Results:
        """The same rows with these columns alone, in this order.

        Raises
        ------
        UsageError
            There is no such column.
        """
        return Results(tuple(find_column(self.columns, name) for name in names), self.rows)

    def to_data(self) -> list[dict[str, Value]]:
        """Rows as JSON can hold them."""
        return [{column: _plain(row.get(column)) for column in self.columns} for row in self.rows]

    def cells(self, row: dict[str, Value]) -> list[str]:
        """A row as text, numbers to six digits."""
        return [_text(row.get(column)) for column in self.columns]

    def csv(self) -> str:
        """Comma-separated values with a header, numbers in full."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            writer.writerow([_full(row.get(column)) for column in self.columns])
        return stream.getvalue()

    def latex(self) -> str:
        """A ``tabular`` for the booktabs package; a mean and its standard error share a cell."""
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


def collect(
    selected: Sequence[Selected],
    statuses: Sequence[RunStatus],
    read: Callable[[RunPaths], Curve] = metric_curves.read,
) -> Results:
    """One row a run, with the metrics of all its attempts.

    Parameters
    ----------
    read
        What reads the metrics of a run that has begun; called once for each, in their order.
    """
    swept = swept_keys(selected)
    rows: list[dict[str, Value]] = []
    objectives: list[str] = []
    others: list[str] = []
    for one, status in zip(selected, statuses, strict=True):
        row: dict[str, Value] = {
            **{EXPERIMENT: one.experiment.name, "run": one.name},
            **{"state": status.state, "step": status.step},
        }
        row.update(one.run.swept)
        curve = read(one.paths) if status.attempt is not None else Curve()
        objective = one.run.spec.get("objective") or {}
        name = objective.get("metric")
        for metric in curve.names:
            row[metric] = curve.last(metric)
            (objectives if metric == name else others).append(metric)
        if name in curve.names:
            best = curve.best(name, str(objective.get("mode") or "min"))
            row[f"{name}.first"] = curve.first(name)
            row[f"{name}.best"], row[f"{name}.best_step"] = (
                (best[1], best[0]) if best else (None,) * 2
            )
        rows.append(row)
    columns = ["run", *swept, "state", "step"]
    for name in dict.fromkeys(objectives):
        columns += [f"{name}.first", name, f"{name}.best", f"{name}.best_step"]
    columns += [name for name in dict.fromkeys(others) if name not in columns]
    return Results(tuple(columns), tuple(rows))


def group(results: Results, keys: Sequence[str], swept: Sequence[str]) -> Results:
    """One row for each combination of the values of ``keys``: means and standard errors.

    Parameters
    ----------
    keys
        Swept keys, or unique suffixes of them, or ``experiment``.
    swept
        All swept keys.

    Raises
    ------
    UsageError
        A key is not swept.
    """
    by = [find_column((*swept, EXPERIMENT), key, "swept key") for key in keys]
    groups: dict[tuple[str, ...], list[dict[str, Value]]] = {}
    for row in results.rows:
        groups.setdefault(tuple(show(row.get(key)) for key in by), []).append(row)
    left_out = {"run", "state", *swept}
    measured = [
        column
        for column in results.columns
        if column not in left_out and not column.endswith(".best_step")
    ]
    columns = (*by, "runs", *(c for name in measured for c in (name, f"{name}.se")))
    rows = []
    for members in groups.values():
        summary: dict[str, Value] = {key: members[0].get(key) for key in by}
        summary["runs"] = len(members)
        for name in measured:
            values = [
                float(row[name]) for row in members if isinstance(row.get(name), (int, float))
            ]
            summary[name], summary[f"{name}.se"] = mean_and_error(values)
        rows.append(summary)
    return Results(columns, tuple(rows))


def keys_but_repeats(selected: Sequence[Selected]) -> list[str]:
    """What to group by for means over the keys of ``sweep.repeat``: the other swept keys.

    Several experiments are not mixed.

    Raises
    ------
    UsageError
        No run was repeated.
    """
    repeats = {key for one in selected for key in one.plan.repeats}
    if not repeats:
        raise UsageError(
            f"--over-repeats: {selected[0].experiment.name} was swept without `sweep.repeat`",
            hint="--group-by KEY averages over all swept keys but KEY",
        )
    swept = [key for key in swept_keys(selected) if key not in repeats]
    return [EXPERIMENT, *swept] if len({one.experiment for one in selected}) > 1 else swept


def swept_keys(selected: Sequence[Selected]) -> list[str]:
    """The keys that any of the runs was swept over, in their order."""
    return list(dict.fromkeys(key for one in selected for key in one.run.swept))


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean, and standard error of the mean from the sample's variance; None where undefined."""
    if not values:
        return None, None
    mean = math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
    if len(values) < 2 or math.isnan(mean):
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def find_column(columns: Sequence[str], key: str, what: str = "column") -> str:
    """The column of that name, or the only one whose last parts are ``key``.

    Raises
    ------
    UsageError
        There is none, or several.
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


def _condition(text: str, columns: Sequence[str]) -> tuple[str, Callable[[Value], bool]]:
    """The column that a condition is about, and whether a value of it meets the condition."""
    found = _CONDITION.fullmatch(text)
    if not found:
        raise UsageError(
            f"--filter {text!r} is not a column, one of < <= > >= = !=, and a value",
            hint="such as 'loss<2.5' or state=completed, in quotes because of the shell",
        )
    column, sign, wanted = find_column(columns, found["key"]), found["sign"], found["value"].strip()
    if sign in ("=", "=="):
        return column, lambda value: equal(value, wanted)
    if sign == "!=":
        return column, lambda value: not equal(value, wanted)
    try:
        bound = float(wanted)
    except ValueError:
        raise UsageError(
            f"--filter {text!r}: found {wanted!r} after {sign}; accepted is a number"
        ) from None
    order = _ORDER[sign]
    return column, lambda value: isinstance(value, (int, float)) and order(value, bound)


def _range(rows: Sequence[dict[str, Value]], column: str) -> str:
    """The values of a column in words."""
    values = [row[column] for row in rows if not _empty(row.get(column))]
    if not values:
        return "empty"
    if all(isinstance(value, (int, float)) for value in values):
        return f"from {_text(min(values))} to {_text(max(values))}"
    return ", ".join(sorted({_text(value) for value in values})[:12])


def _empty(value: Value) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _plain(value: Value) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value


def _text(value: Value) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else show(value)


def _full(value: Value) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else show(value)


_TEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)
