"""A run of a search with the values that were chosen for it, made on a compute node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun.compile.source.marked_tree import Reporter, Tree, dotted
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.sweep.point import label
from hpcrun.compile.sweep.references import UNKNOWN, Interpolation
from hpcrun.compile.target import entry
from hpcrun.errors import HpcrunError
from hpcrun.shared_dataclass import replace
from hpcrun.state.chosen_point import ChosenPoint
from hpcrun.state.patched import Patched
from hpcrun.state.plan import SEARCH, RunPlan
from hpcrun.text import short_ends

if TYPE_CHECKING:
    from hpcrun.compile.freeze import CompiledRun

# Lists of words.
_WORDS = ("entry", "args")
# Parts of the spec that may follow from a value: what the program is given.
LATE = ("config", "deepspeed", "entry", "args")


def complete(run: RunPlan | CompiledRun, values: Mapping[str, Any]) -> ChosenPoint:
    """Return a run of a search with its values, by full key; raise HpcrunError if it cannot be."""
    frozen = run.spec[SEARCH]
    patched = Patched({name: run.spec[name] for name in run.spec if name != SEARCH})
    # A key that the run does not have keeps what the spec says of it.
    for name, value in {**frozen.get("base", {}), **values}.items():
        patched.put(name.split("."), value)
    for data in frozen["follows"]:
        node = Interpolation.from_data(data)
        value = node.value(patched.data)
        if value is UNKNOWN:
            raise HpcrunError(f"{dotted(node.key)} does not follow from {', '.join(values)}")
        patched.put(node.key, str(value) if node.key[0] in _WORDS else value)
    spec, problems = patched.data, Problems()
    located: dict[str, Any] = {
        name: Path(one) if one is not None and name in ("file", "import_root") else one
        for name, one in frozen["located"].items()
    }
    program, _ = entry.finish(
        entry.LocatedEntry(**located),
        Path(frozen["root"]),
        spec,
        spec["config"],
        Reporter(Tree(spec), problems),
        [tuple(key) for key in frozen["referred"]],
        frozen["framework"],
        frozen["recipe"],
    )
    problems.check()
    swept = dict(values)
    late = {name: spec[name] for name in LATE if name in spec}
    return ChosenPoint(label(swept, short_ends(frozen["space"])), swept, late, program)


def with_upper_bounds(run: RunPlan) -> RunPlan:
    """Return a run of a search that has no values yet with the upper bounds of its space."""
    if SEARCH not in run.spec or run.swept:
        return run
    point = complete(run, run.spec[SEARCH]["upper"])
    return replace(point.apply_to(run), label=run.label, swept={})
