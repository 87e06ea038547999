"""The data that the scripts of a report's page draw, and filter by."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from hpcrun.observe.read import said
from hpcrun.observe.read.node_usage import SERIES
from hpcrun.observe.read.run_values import MISSING, lookup, show
from hpcrun.observe.read.value_columns import swept_keys
from hpcrun.text import shortened
from hpcrun.tools.report import curves
from hpcrun.tools.report.report import Report

# Keys by which one can filter and colour, and the longest value of one.
_MOST_KEYS, _LONGEST = 40, 120


def encoded(found: Report) -> str:
    """Return the data, deflated, in base64: nothing in it can end its element."""
    text = json.dumps(to_data(found), separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def to_data(found: Report) -> dict[str, Any]:
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
                "tags": [*said.values(run.selected, said.TAG)],
                "notes": [*said.values(run.selected, said.NOTE)],
                "telemetry": run.telemetry.to_data() if run.telemetry.samples else None,
            }
            for run in found.runs
        ],
        "curves": curves.to_data([run.curves for run in found.runs], found.metrics),
        "parameters": parameters(found),
        "slots": found.slots,
        "ranked": found.ranked,
        "shown": found.shown,
    }


def parameters(found: Report) -> dict[str, Any]:
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
