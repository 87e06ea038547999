"""The plan as it lies on disk: a run is what it changes of another, so large sweeps stay small.

A list of models holds whole specs; a run names a model, and has ``[path, value]`` for each value
that differs. Standard library only, as the plan.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.state import files
from hpcrun.state.patched import Patched
from hpcrun.state.plan import Array, Entry, Plan, RunPlan, dependences

FORMAT = 2
_MOST_CHANGES = 40
_CONTAINERS = (dict, list)

Changes = list[tuple[list[str], Any]]


def write(plan: Plan, path: Path) -> None:
    """Freeze a plan on disk, a line for each run."""
    data = pack(plan)
    runs = data.pop("runs")
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    head = json.dumps(data, separators=(",", ":"))
    files.write_bytes(path, f'{head[:-1]},"runs":[\n{lines}\n]}}\n'.encode())


def read(path: Path) -> Plan:
    """Read a frozen plan.

    Raises
    ------
    FileNotFoundError
        There is none.
    ValueError
        It is not JSON.
    UsageError
        As `unpack`.
    """
    return unpack(files.read_json(path))


def pack(plan: Plan) -> dict[str, Any]:
    """Plain data that `unpack` makes the same plan of."""
    rest = {
        field.name: getattr(plan, field.name)
        for field in dataclasses.fields(plan)
        if field.name not in ("runs", "arrays", "depends_on")
    }
    models: list[dict[str, Any]] = []
    runs: list[list[Any]] = []
    for run in plan.runs:
        data = {"entry": {**vars(run.entry), "argv": list(run.entry.argv)}, "spec": run.spec}
        changes = _changes(models[-1], data) if models else None
        if changes is None:
            models.append(data)
            changes = []
        runs.append([run.number, run.identity, run.label, run.swept, len(models) - 1, changes])
    arrays = [{**vars(array), "runs": list(array.runs)} for array in plan.arrays]
    needs = {"depends_on": [{**vars(one), "runs": list(one.runs)} for one in plan.depends_on]}
    return {"format": FORMAT, **rest, "models": models, "runs": runs, "arrays": arrays, **needs}


def unpack(data: dict[str, Any]) -> Plan:
    """The plan that was packed; runs share what they have in common, so nobody may change it.

    Raises
    ------
    UsageError
        The data was written by another format of plan.
    """
    if data.get("format") == 1:
        return Plan.from_data(data)
    if data.get("format") != FORMAT:
        raise UsageError(
            f"this plan has format {data.get('format')!r}, this hpcrun reads {FORMAT}",
            hint="read it with the hpcrun that submitted it",
        )
    runs = []
    for number, identity, label, swept, model, changes in data["runs"]:
        patched = Patched(data["models"][model])
        for path, value in changes:
            patched.put(path, value)
        own = patched.data
        entry = Entry(**{**own["entry"], "argv": tuple(own["entry"]["argv"])})
        runs.append(RunPlan(number, identity, label, swept, entry, own["spec"]))
    arrays = tuple(Array(**{**array, "runs": tuple(array["runs"])}) for array in data["arrays"])
    rest = {
        field.name: data[field.name]
        for field in dataclasses.fields(Plan)
        if field.name not in ("runs", "arrays", "repeats", "depends_on")
    }
    return Plan(
        **rest,
        runs=tuple(runs),
        arrays=arrays,
        repeats=tuple(data["repeats"]),
        depends_on=dependences(data),
    )


def _changes(model: Any, data: Any) -> Changes | None:
    """What to change in the model; None where that is much, or keys come in another order."""
    found: Changes = []
    pending: list[tuple[list[str], Any, Any]] = [([], model, data)]
    while pending:
        path, one, other = pending.pop()
        if one is other:
            continue
        if type(one) is dict and type(other) is dict and list(one) == list(other):
            pending += [([*path, name], one[name], other[name]) for name in one]
            continue
        if type(one) is list and type(other) is list and len(one) == len(other):
            places = enumerate(zip(one, other, strict=True))
            pending += [([*path, str(index)], *pair) for index, pair in places]
            continue
        if type(one) is type(other) and not isinstance(one, _CONTAINERS) and _is(one, other):
            continue
        if not path or len(found) == _MOST_CHANGES:
            return None
        found.append((path, other))
    return found


def _is(one: Any, other: Any) -> bool:
    """Whether two plain values of one type are written alike: 0.0 and -0.0 are not."""
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)
