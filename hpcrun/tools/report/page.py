"""The HTML page of a report: one file that loads nothing.

What comes from specs, logs and the ledger is escaped by jinja2 (text) or ElementTree (drawings), or
is base64 (the data of the interactive charts). A content security policy in the page forbids it to
load anything and to run any script but the two whose digests it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from hpcrun import __version__, resources
from hpcrun.fields import TIME
from hpcrun.host import current_user
from hpcrun.observe import step_profile
from hpcrun.observe.diagnosis import attempts, cost, narrative
from hpcrun.observe.diagnosis.advice import advise
from hpcrun.observe.diagnosis.goodput import WORDS
from hpcrun.observe.read import detail, metric_curves, run_values
from hpcrun.observe.read.node_usage import MOST_READ, SERIES
from hpcrun.observe.read.run_values import MISSING, lookup, show, swept_keys
from hpcrun.observe.read.selection import Selected, as_where
from hpcrun.observe.tables import number
from hpcrun.text import agreeing, listed, plural, runs_text, shortened, visible
from hpcrun.tools.report import all_experiments, comparison, curves, pdf, search_charts, svg
from hpcrun.tools.report.all_experiments import AllExperiments
from hpcrun.tools.report.report import CodeVersion, Report, RunReport
from hpcrun.tools.report.svg import ChartLine, TimelineMark

GENERATOR = "hpcrun report"

_STATIC_CHARTS = 4
_MOST_TITLED = 200  # runs whose timelines name each span
_MOST_ATTEMPTS = 30  # of a run, in sentences
_UNREAD = re.compile(r"^(?: *//.*\n| +)", re.MULTILINE)  # of scripts: comments, indentation
_MOST_FAILURES = 20  # groups of runs that went wrong
_SCRIPTS = (
    *("tables.js", "filter.js", "colors.js", "axes.js", "charts.js"),
    *("importance.js", "relations.js", "report.js"),
)
# Keys by which one can filter and colour, and the longest value of one.
_MOST_KEYS, _LONGEST = 40, 120
WANDB = "https://wandb.ai"
# The columns that only this table has, after the state: numbers that are no metrics.
_OWN_COLUMNS: dict[str, Callable[[RunReport], int]] = {
    "attempts": lambda run: len(run.story.attempts)
}
# An address that a page may link to: what a spec names is another's text.
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.-]{1,253}(?::\d{1,5})?(?:/[\w./~%+-]*)?")


def render(found: Report, live: float | None = None, *, printed: bool = False) -> str:
    """Render the page; a ``live`` one asks its server for a newer one every so many seconds.

    One to be ``printed`` has no scripts.
    """
    import yaml

    scripts = [
        f"/*\n{_own('uPlot.LICENSE')}*/\n{_own('uPlot.iife.min.js')}",
        _own(*_SCRIPTS, *(["live.js"] if live else [])),
    ]
    sampled = [(run, node) for run in found.runs for node in run.telemetry.summary]
    series = [one for one in SERIES if any(one.key in node.values for _, node in sampled)]
    return _rendered(
        "report.html.j2",
        [] if printed else scripts,
        live,
        report=found,
        title=listed(list(found.bases), 3),
        style=_own("uPlot.min.css", "report.css"),
        data="" if printed else _encoded(found),
        kinds=WORDS,
        series=series,
        states=Counter(run.story.status.state for run in found.runs),
        best=_best(found),
        failures=_failures(found),
        columns=_columns(found),
        compared=comparison.rows(found),
        rows=[_row(found, place) for place in range(len(found.runs))],
        charts=_charts(found),
        searches=[*search_charts.draw(found)],
        timeline=_timeline(found),
        totals=[
            (total, svg.shares("Where it went", vars(total.hours).items()))
            for total in found.totals
        ],
        rows_of_hours=[*found.totals, *_sums(found)],
        causes=[
            (total, kind, hours)
            for total in found.totals
            for kind, hours in sorted(total.causes.items(), key=lambda pair: -pair[1])
        ],
        bases={
            name: yaml.safe_dump(one.run.spec, sort_keys=False, allow_unicode=True)
            for name, one in found.bases.items()
        },
        runs=[_run(found, run) for run in found.runs],
        profiles=[step_profile.section(run.profile) for run in found.runs if run.profile],
        sampled=[
            (run, node, [_mean_and_peak(node.values.get(one.key)) for one in series])
            for run, node in sampled
        ],
        code=[_code(version) for version in found.code],
        notes=_notes(found),
    )


def render_all_experiments(found: AllExperiments, *, printed: bool = False) -> str:
    """Render the page of all experiments; one to be ``printed`` has no scripts."""
    scripts = [] if printed else [_own(*all_experiments.SCRIPTS)]
    style = _own("report.css")
    return _rendered(
        "all_experiments.html.j2", scripts, None, style=style, **all_experiments.content(found)
    )


def _rendered(template: str, scripts: list[str], live: float | None, **content: Any) -> str:
    """Render a template of templates/report with its scripts, none of which is from elsewhere."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_directory()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.filters.update(moment=_moment, day=_day, hours=_hours, name_parts=_name_parts)
    text: str = environment.get_template(template).render(
        generator=GENERATOR,
        version=__version__,
        made_by=current_user(),
        policy=_policy(scripts, live),
        live=live,
        scripts=scripts,
        **content,
    )
    return visible(text)


def _directory() -> Path:
    return resources.directory("templates") / "report"


def _own(*names: str) -> str:
    """Return files of templates/report, without comments and indentation."""
    return _UNREAD.sub("", "\n".join((_directory() / name).read_text() for name in names))


def is_report(head: bytes) -> bool:
    """Check whether a file with this beginning is a report."""
    if head.startswith(pdf.MAGIC):  # whose title is that of the page
        return GENERATOR.encode() in head
    return f'<meta name="generator" content="{GENERATOR}'.encode() in head


def _policy(scripts: list[str], live: float | None) -> str:
    """Return a policy that allows styles, these scripts and, live, its server; nothing else."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()) for script in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests) or "'none'"
    server = "; connect-src 'self'" if live else ""
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}{server}"


def _columns(found: Report) -> list[dict[str, Any]]:
    """Return the table's columns; a swept key is shortened to its last part if that is unique."""
    swept = {key for one in found.runs for key in one.selected.run.swept}
    ends = Counter(key.rpartition(".")[2] for key in found.results.columns)
    numeric = found.results.numeric
    columns = []
    for key in found.results.columns:
        end = key.rpartition(".")[2]
        name = end if key in swept and ends[end] == 1 else key
        kind = {"swept": key in swept, "number": key in numeric, "own": False}
        columns.append({"key": key, "name": name, **kind})
        if key == "state":
            kind = {"swept": False, "number": True, "own": True}
            columns += [{"key": own, "name": own, **kind} for own in _OWN_COLUMNS]
    return columns


def _row(found: Report, place: int) -> dict[str, Any]:
    run, row = found.runs[place], found.results.rows[place]
    cells = found.results.cells(row)
    at = found.results.columns.index("state") + 1
    own = [str(of(run) or "") for of in _OWN_COLUMNS.values()]
    color, dashes = svg.style_of(found.slots[place])
    return {
        "run": run,
        "cells": [*cells[:at], *own, *cells[at:]],
        "shown": place in found.shown,
        "best": place == next(iter(found.ranked), None),
        "color": color,
        "dashed": bool(dashes),
    }


def _charts(found: Report) -> list[tuple[str, str]]:
    names = [name for name in found.metrics if name != curves.TOKENS]
    return [
        (
            name,
            svg.chart(
                f"{name} against step",
                [
                    ChartLine(run.name, found.slots[place], run.curves.metrics[name])
                    for place in found.shown
                    if name in (run := found.runs[place]).curves.metrics
                ],
            ),
        )
        for name in names[:_STATIC_CHARTS]
    ]


def _timeline(found: Report) -> dict[str, Any]:
    edges = [edge for run in found.runs for span in run.spans for edge in (span.start, span.end)]
    start, end = min(edges, default=found.made), max(edges, default=found.made)
    titles = len(found.runs) <= _MOST_TITLED
    bars = []
    for run in found.runs:
        marks = list(_marks(run, found.made))
        label = f"Timeline of {run.name}"
        bar = svg.timeline(label, run.spans, marks, start, end, titles) if run.spans else ""
        bars.append((run, bar))
    return {"start": start, "end": end, "bars": bars}


def _marks(run: RunReport, now: float) -> Iterator[TimelineMark]:
    for one in run.story.attempts:
        ended = one.attempt.end
        if one.ended_badly and TIME.accepts(ended.get("time")):
            text = narrative.end(one, run.story, now)
            yield TimelineMark(ended["time"], str(ended.get("outcome")), text)


def _run(found: Report, run: RunReport) -> dict[str, Any]:
    spent = run.goodput
    return {
        "run": run,
        "headline": narrative.headline(run.story),
        "attempts": _attempts(run, found.made),
        "spent": narrative.spent(spent) if spent.wall else "",
        "changes": [
            (change.key, _value(change.before), _value(change.after)) for change in run.changes
        ],
        "entry": detail.entry(run.selected),
        "trackers": tracker_links(run.selected),
    }


def _failures(found: Report) -> list[dict[str, Any]]:
    """Describe what went wrong, by cause, each with the end of one log."""
    logs = {run.name: run.log for run in found.runs}
    groups = attempts.grouped(run.story for run in found.runs)
    wrong = [one for one in groups if one.kind != attempts.CANCELLED]
    return [
        {
            "kind": group.kind,
            "over": group.over,
            "runs": [run.status.name for run in group.runs],
            "message": shortened(group.example.message),
            "advice": advise(
                group.example,
                as_where(run.selected for run in group.runs),
                several=len(group.runs) > 1,
            ),
            "example": group.example.status.name,
            "log": logs[group.example.status.name],
        }
        for group in wrong[:_MOST_FAILURES]
    ]


def _attempts(run: RunReport, now: float) -> list[list[str]]:
    """Describe the attempts; of very many the first ones and the last ones."""
    attempts, first = [*run.story.attempts], _MOST_ATTEMPTS // 3
    left_out = max(0, len(attempts) - _MOST_ATTEMPTS)
    del attempts[first : first + left_out]
    found = [narrative.attempt(one, run.story, now) for one in attempts]
    if left_out:
        found.insert(
            first,
            [
                f"{plural(left_out, 'attempt', ',')} between these "
                f"{agreeing(left_out, 'is', 'are')} left out here."
            ],
        )
    return found


def _code(version: CodeVersion) -> dict[str, Any]:
    facts, paths = version.facts, version.runs[0].planned.paths
    frozen, python = _mapping(facts.get("code")), _mapping(facts.get("python"))
    versions = {"": python.get("version"), "torch ": python.get("torch")}
    versions |= {"DeepSpeed ": python.get("deepspeed"), "hpcrun ": facts.get("hpcrun")}
    argv = facts.get("argv")
    return {
        "submission": f"{paths.experiment.name} {paths.number}",
        "runs": runs_text([one.run.number for one in version.runs]),
        "facts": facts,
        "digest": frozen.get("digest"),
        "files": frozen.get("files"),
        "git": _mapping(frozen.get("git")),
        "versions": ", ".join(f"{name}{found}" for name, found in versions.items() if found),
        "command": shlex.join(map(str, argv)) if isinstance(argv, list) else "",
        "differs": version.differs,
    }


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _value(value: Any) -> str:
    return "(not there)" if value is MISSING else show(value)


def _best(found: Report) -> tuple[str, str] | None:
    """Return the best run and its value."""
    if not found.ranked:
        return None
    row = found.results.rows[found.ranked[0]]
    return str(row["run"]), number(row[f"{found.objective}.best"])


def _notes(found: Report) -> list[str]:
    """Describe what the report leaves out."""
    notes = []
    logged = sum(run.curves.logged for run in found.runs)
    kept = sum(run.curves.kept for run in found.runs)
    if kept < logged:
        notes.append(
            f"Curves show {kept:,} of {logged:,} logged values: those that keep the shape of a "
            "curve best (largest triangles). The results table is made of all."
        )
    notes.append(
        f"Values in charts have {metric_curves.DIGITS} significant digits, the results table 6; "
        "`hpcrun results --format csv` has all. Drawings for print have "
        f"{svg.POINTS:,} points at most."
    )
    if bad := sum(run.curves.not_finite for run in found.runs):
        notes.append(f"{plural(bad, 'value')} that are not finite are not drawn.")
    if len(found.shown) < len(found.runs):
        notes.append(
            f"The charts begin with {len(found.shown)} of {len(found.runs):,} runs, the best ones "
            "where there is an objective; without JavaScript they show no others."
        )
    if samples := sum(run.telemetry.samples for run in found.runs):
        notes.append(f"Telemetry is averaged from {samples:,} samples.")
    if cut := [run.name for run in found.runs if run.telemetry.is_cut]:
        notes.append(
            f"Of {listed(cut, 6)}, only the first {MOST_READ:,} samples of telemetry were read."
        )
    if unread := [reason for run in found.runs for reason in run.telemetry.unread]:
        notes.append(f"Telemetry that cannot be read is left out: {listed(unread, 6)}.")
    if nodes := sum(run.telemetry.left_out for run in found.runs):
        notes.append(f"The charts of telemetry leave out {plural(nodes, 'node')}.")
    return notes


def _mean_and_peak(pair: tuple[float, float] | None) -> str:
    return " / ".join(f"{v:,.0f}" if v >= 1000 else f"{v:.3g}" for v in pair) if pair else ""


def _sums(found: Report) -> list[cost.Cost]:
    """Return the hours of all experiments together, where there are several."""
    is_one = len({one.experiment for one in found.totals}) < 2
    return [] if is_one else cost.grouped(("together", one) for one in found.totals)


def _hours(value: float) -> str:
    """``40 s``, ``12 min``, ``5.2 h``, ``1,234 h`` of devices; empty for none."""
    seconds = 3600 * value
    if seconds < 59.5:
        return (f"{seconds:.0f} s" if seconds >= 0.5 else "<1 s") if value else ""
    if seconds < 3570:
        return f"{seconds / 60:.0f} min"
    return f"{value:,.1f} h" if value < 1000 else f"{value:,.0f} h"


def _name_parts(text: str) -> list[str]:
    """Split a name where a line may break: ``eval/``, ``loss.``, ``best_``, ``step``."""
    return re.split(r"(?<=[./_])(?=\w)", text)


def _moment(when: Any) -> str:
    if not TIME.accepts(when):
        return "at an unknown time"
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(when)).strip()


def _day(when: Any) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(when)) if TIME.accepts(when) else ""


def _encoded(found: Report) -> str:
    """Return the data, deflated, in base64: nothing in it can end its element."""
    text = json.dumps(page_data(found), separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def page_data(found: Report) -> dict[str, Any]:
    """Return plain data: runs, their curves and telemetry, and what they were given."""
    return {
        "metrics": found.metrics,
        "metric": next((name for name in found.metrics if name != curves.TOKENS), None),
        "objective": [found.objective, found.mode],
        "series": [[one.key, one.title, one.unit] for one in SERIES],
        "runs": [
            {
                "name": run.name,
                "label": run.selected.run.label,
                "cause": run.story.kind or "",
                "tags": [*run_values.annotation_texts(run.selected, run_values.TAG)],
                "notes": [*run_values.annotation_texts(run.selected, run_values.NOTE)],
                "telemetry": run.telemetry.to_data() if run.telemetry.samples else None,
            }
            for run in found.runs
        ],
        "curves": curves.to_data([run.curves for run in found.runs], found.metrics),
        "parameters": _parameters(found),
        "slots": found.slots,
        "ranked": found.ranked,
        "shown": found.shown,
    }


def _parameters(found: Report) -> dict[str, Any]:
    """Return the keys in which the runs differ, swept ones first, and their values by key."""
    selected = [run.selected for run in found.runs]
    swept = swept_keys(selected)
    differing = dict.fromkeys(change.key for run in found.runs for change in run.changes)
    keys = list(dict.fromkeys([*swept, *differing]))[:_MOST_KEYS]
    repeats = {key for one in selected for key in one.plan.repeats}
    return {
        "keys": keys,
        "swept": len(swept),
        "repeats": [key for key in keys if key in repeats],
        "values": [
            [_plain(one.run.swept.get(key, lookup(one.run.spec, key))) for one in selected]
            for key in keys
        ],
    }


def _plain(value: Any) -> Any:
    """Return a value as a number, a truth or a short text; None where there is none."""
    if value is MISSING or isinstance(value, bool):
        return None if value is MISSING else value
    if isinstance(value, (int, float)) and abs(value) < 1 << 53:  # and so neither NaN nor infinite
        return value
    return shortened(show(value), _LONGEST)


class TrackerLink(NamedTuple):
    """One place: an address to open, a command to type, or words alone."""

    name: str
    text: str
    address: str = ""
    command: str = ""


def tracker_links(one: Selected) -> list[TrackerLink]:
    """Return where a run's metrics are forwarded to, by its spec."""
    tracking = _mapping(one.run.spec.get("tracking"))
    found = []
    if tracking.get("tensorboard"):
        directory = shlex.quote(str(one.paths.tracking / "tensorboard"))
        found.append(TrackerLink("TensorBoard", "", command=f"tensorboard --logdir {directory}"))
    if isinstance(tracking.get("wandb"), dict):
        found.append(_wandb(one, tracking["wandb"]))
    if isinstance(tracking.get("mlflow"), dict):
        found.append(_mlflow(one, tracking["mlflow"]))
    return found


def _wandb(one: Selected, block: dict[str, Any]) -> TrackerLink:
    project = str(block.get("project") or one.experiment.name)
    if block.get("mode") == "offline":
        directory = shlex.quote(str(one.paths.tracking / "wandb"))
        return TrackerLink("W&B", "kept offline:", command=f"wandb beta sync {directory}")
    entity = block.get("entity")
    text = f"{entity}/{project}" if entity else f"project {project}, run {one.run.identity}"
    variables = _mapping(_mapping(one.run.spec.get("environment")).get("variables"))
    base = str(variables.get("WANDB_BASE_URL") or WANDB)
    if not entity or not _ADDRESS.fullmatch(base):
        return TrackerLink("W&B", text)
    parts = (str(entity), project, "runs", one.run.identity)
    address = "/".join([base.rstrip("/"), *(quote(part, safe="") for part in parts)])
    return TrackerLink("W&B", text, address)


def _mlflow(one: Selected, block: dict[str, Any]) -> TrackerLink:
    server = str(block.get("uri") or "")
    text = f"experiment {block.get('experiment') or one.experiment.name}"
    if server.startswith("sqlite:"):
        command = f"mlflow ui --backend-store-uri {shlex.quote(server)}"
        return TrackerLink("MLflow", text, command=command)
    return TrackerLink("MLflow", text, server if _ADDRESS.fullmatch(server) else "")
