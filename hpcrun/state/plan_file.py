"""The plan on disk: runs as differences, so that large sweeps stay small.

A list of models holds whole specs; a run names a model, and has ``[path, value]`` for each value
that differs.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from hpcrun import bounded_json
from hpcrun.errors import BrokenFile, HpcrunError, UsageError
from hpcrun.shared_dataclass import names, replace
from hpcrun.state import chosen_point, files
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.state.patched import Patched
from hpcrun.state.plan import SEARCH, Entry, Plan, RunPlan, check_spec
from hpcrun.state.role_plan import ROLES
from hpcrun.state.spec.blocks import BLOCKS
from hpcrun.text import size

FORMAT = 2
_MOST_CHANGES = 40
# More runs, and more values that runs do not share, than any plan has.
_MOST_RUNS = 200_000
_MOST_COPIED = 20_000_000
_CONTAINERS = (dict, list)

Changes = list[tuple[list[str], Any]]


def write(plan: Plan, path: Path) -> None:
    """Freeze a plan on disk, a line for each run; raise UsageError if it could not be read."""
    data = pack(plan)
    runs = data.pop("runs")
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    head = json.dumps(data, separators=(",", ":"))
    text = f'{head[:-1]},"runs":[\n{lines}\n]}}\n'.encode()
    try:
        bounded_json.check(text)
        if len(text) > files.MOST_JSON:
            raise ValueError(f"more than {size(files.MOST_JSON)}")
    except ValueError as error:
        raise UsageError(
            f"{plan.name}: the plan of {len(plan.runs):,} runs has {error}, and could not be read",
            hint="sweep fewer runs or keys in one experiment",
        ) from None
    files.write_bytes(path, text)


def read(path: Path, only: int | None = None) -> Plan:
    """Read a plan with the values that runs of a search have by now; as `read_frozen`."""
    return chosen_point.apply_points(
        read_frozen(path, only), SubmissionPaths(path.parent).experiment
    )


def read_frozen(path: Path, only: int | None = None) -> Plan:
    """Read a frozen plan, with ``only`` one of its runs where that is all that is asked for.

    The agent of each node asks so: the other runs of a sweep would cost it more than its start.
    Raises FileNotFoundError if there is no such file; BrokenFile if it cannot be read, or is not a
    plan; UsageError as from `unpack`.
    """
    try:
        content = files.read_bytes(path, files.MOST_JSON)
        return unpack(bounded_json.parse(content if only is None else _with_one(content, only)))
    except FileNotFoundError:
        raise
    except UsageError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from None
    except OSError as error:
        raise BrokenFile.of(path, error) from None
    except ValueError as error:
        raise BrokenFile(f"{path} is not a plan: {error}") from None
    except (LookupError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BrokenFile(f"{path} is not a plan: {why}") from None


def of_search(run: RunPlan, experiment: ExperimentPaths) -> Plan:
    """Return the frozen plan that has all runs of the search of a run, in their order.

    What `hpcrun requeue` submitted has some of them. Raises HpcrunError if no plan has the run.
    """
    found = None
    for one in experiment.submissions():
        with contextlib.suppress(UsageError, OSError):
            plan = read_frozen(one.plan)
            runs = tuple(each for each in plan.runs if SEARCH in each.spec)
            is_mine = any(each.number == run.number for each in runs)
            if is_mine and (found is None or len(runs) >= len(found.runs)):
                found = replace(plan, runs=runs)
    if found is None:
        raise HpcrunError(f"no submission of {experiment.directory} has run {run.number}")
    return found


def _with_one(content: bytes, number: int) -> bytes:
    """Return a plan's text with the line of one run alone; all of it if it has no such line."""
    head = content.partition(b"\n")[0]
    # A text in JSON has no line's end.
    place = content.find(b"\n[%d," % number)
    if not head.endswith(b',"runs":[') or place < 0:
        return content
    line = content[place + 1 :].partition(b"\n")[0]
    return b"%s\n%s\n]}\n" % (head, line.removesuffix(b","))


def pack(plan: Plan) -> dict[str, Any]:
    """Return plain data that `unpack` makes the same plan of."""
    rest = {
        name: getattr(plan, name)
        for name in names(Plan)
        if name not in ("runs", "arrays", "depends_on")
    }
    models: list[dict[str, Any]] = []
    runs: list[list[Any]] = []
    for run in plan.runs:
        resumed = None if run.entry.resumed is None else list(run.entry.resumed)
        entry = {**vars(run.entry), "argv": list(run.entry.argv), "resumed": resumed}
        data = {"entry": entry, "spec": run.spec}
        changes = _changes(models[-1], data) if models else None
        if changes is None:
            models.append(data)
            changes = []
        runs.append([run.number, run.identity, run.label, run.swept, len(models) - 1, changes])
    arrays = [{**vars(array), "runs": list(array.runs)} for array in plan.arrays]
    needs = {"depends_on": [{**vars(one), "runs": list(one.runs)} for one in plan.depends_on]}
    return {"format": FORMAT, **rest, "models": models, "runs": runs, "arrays": arrays, **needs}


def unpack(data: dict[str, Any]) -> Plan:
    """Return the plan that was packed; runs share what they have in common: do not change it.

    Raises UsageError if the data was written by another format of plan; ValueError, LookupError,
    TypeError or AttributeError if it is not a plan.
    """
    if data.get("format") != FORMAT:
        raise UsageError(
            f"this plan has format {data.get('format')!r}, this hpcrun reads {FORMAT}",
            hint="read it with the hpcrun that submitted it",
        )
    if len(data["runs"]) > _MOST_RUNS:
        raise ValueError(f"it has {len(data['runs']):,} runs")
    models = [(model, Entry.from_data(model["entry"])) for model in data["models"]]
    for model, _ in models:
        check_spec(model["spec"])
    left = [_MOST_COPIED]
    return Plan.of_runs((_run(models, left, *run) for run in data["runs"]), data)


def _run(
    models: list[tuple[dict[str, Any], Entry]],
    left: list[int],
    number: int,
    identity: str,
    label: str,
    swept: dict[str, Any],
    model: int,
    changes: Changes,
) -> RunPlan:
    original, entry = models[model]
    if changes == []:
        return RunPlan(number, identity, label, swept, entry, original["spec"])
    patched = Patched(original)
    touched: set[str] = set()
    for path, value in changes:
        patched.put(path, value)
        # Deeper in another part, everything may be there.
        if len(path) <= 2 or path[1] in BLOCKS or path[1] == ROLES:
            touched.update(path[1:2] or BLOCKS)
    left[0] -= patched.copied
    if left[0] < 0:
        raise ValueError("its runs differ in larger parts than any plan's")
    own = patched.data
    if own["entry"] is not original["entry"]:
        entry = Entry.from_data(own["entry"])
    if touched:
        check_spec(own["spec"], BLOCKS & touched)
    return RunPlan(number, identity, label, swept, entry, own["spec"])


def _changes(model: Any, data: Any) -> Changes | None:
    """Return the changes to the model; None if there are many, or keys come in another order."""
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
    """Check whether two plain values of one type are written alike: 0.0 and -0.0 are not."""
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)
