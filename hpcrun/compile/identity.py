"""The identity of a run: a digest of what it computes, and of nothing else.

Values of ``extendable`` keys may change without making another run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from hpcrun.compile.freeze import Compiled, CompiledRun
from hpcrun.compile.source.marked_tree import Key, Reporter, SourceMark, dotted
from hpcrun.compile.sweep.point import Point
from hpcrun.compile.sweep.references import (
    Interpolation,
    dependents,
    interpolations,
    may_name,
    overlap,
)
from hpcrun.compile.target import role_layout
from hpcrun.compile.target.deepspeed_keys import is_comment
from hpcrun.policy.batch import ACCUMULATION, AUTO, MICRO, TRAIN
from hpcrun.shared_dataclass import asdict
from hpcrun.state.plan import Entry, Plan, RunPlan
from hpcrun.state.role_plan import ROLES
from hpcrun.state.spec.run_blocks import Optimization
from hpcrun.text import whole_number

_MAY_EXTEND = ("config", "deepspeed")
_LATER = {"ema": None, "ema_every": 1, "compile": False}

Digester = Callable[[Sequence[str], dict[str, Any], dict[str, Any], dict[str, Any]], str]


def digester(
    found: Entry,
    code_root: Path,
    directory: Path,
    spec: dict[str, Any],
    count: Callable[[int], object] = int,
) -> Digester:
    """Return a function that digests arguments, config, swept values and roles: SHA-256, in hex.

    The name, resources, cluster, environment, recovery and the cadence of checkpoints do not
    matter, nor does the order of keys, nor how the global batch is divided into micro batches:
    another number of ranks goes on with the same run. The program's file and import root count
    relative to the spec's ``directory``: the code root moves, with ``git init``. ``count`` is
    called with the length of what each run computes, as text.
    """
    file, import_root = (
        None if path is None else os.path.relpath(code_root / path, directory)
        for path in (found.file, found.import_root)
    )
    origin = spec["checkpoint"].get("initialize_from")
    started = f',"origin":{_text(origin)}' if origin is not None else ""
    precision = spec.get("precision") or AUTO
    started += f',"precision":{_text(precision)}' if precision != AUTO else ""
    optimization = spec.get("optimization")
    if optimization is not None and optimization != asdict(Optimization()):
        # Keys that runs had no value of before there were such.
        told = {k: v for k, v in optimization.items() if k not in _LATER or v != _LATER[k]}
        started += f',"optimization":{_text(told)}'
    arguments, engine = _text(spec["args"]), _text(_undivided(spec["deepspeed"]))
    program = {"kind": found.kind, "module": found.module, "function": found.function}
    rest = _text({**program, "import_root": import_root, "file": file})[1:]

    def digest(
        argv: Sequence[str], config: dict[str, Any], swept: dict[str, Any], roles: dict[str, Any]
    ) -> str:
        others = f',"roles":{_text(roles)}' if roles else ""
        text = (
            f'{{"args":{arguments},"config":{_text(config)},"deepspeed":{engine},'
            f'"entry":{{"argv":[{",".join(map(_quoted, argv))}],{rest},'
            f'"swept":{_text(swept)}{started}{others}}}'
        )
        count(len(text))
        return hashlib.sha256(text.encode()).hexdigest()

    return digest


def computed(run: RunPlan) -> str:
    """Return the text that `digester` digests, without the swept values."""
    spec = run.spec
    blocks = {
        "deepspeed": _undivided(spec.get("deepspeed") or {}),
        "origin": (spec.get("checkpoint") or {}).get("initialize_from"),
        **{key: spec.get(key) for key in ("args", "config", "precision", "optimization", "roles")},
    }
    return _text({**blocks, "entry": asdict(run.entry)})


_quoted = json.encoder.encode_basestring_ascii
_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def _undivided(deepspeed: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration without what computes nothing."""
    train, divided = deepspeed.get(TRAIN), (MICRO, ACCUMULATION)
    left_out = [
        key
        for key in divided
        # Where the program fills in the global batch (``auto``), its parts make it.
        if TRAIN in deepspeed and (train != "auto" or deepspeed.get(key) == "auto")
    ]
    return _uncommented({k: v for k, v in deepspeed.items() if k not in left_out})


def _uncommented(block: dict[str, Any]) -> dict[str, Any]:
    return {
        k: _uncommented(v) if isinstance(v, dict) else v
        for k, v in block.items()
        if not is_comment(k)
    }


def extendable(
    report: Reporter, points: Iterable[Point], exists: Callable[[Key, SourceMark], bool]
) -> tuple[Key, ...]:
    """Return the keys that ``extendable`` names, and those whose values refer to them."""
    data = report.tree.data
    named = data.get("extendable")
    if not named or not isinstance(named, list):
        return ()
    found: list[Key] = []
    swept = {one.key for point in points for one in point if not one.is_set}
    for index, text in enumerate(named):
        at = f"extendable.{index}"
        key = tuple(text.split(".")) if isinstance(text, str) else ()
        if len(key) < 2 or key[0] not in _MAY_EXTEND:
            report.at(at, f"found {text!r}; accepted is a full key of config or deepspeed")
        elif any(overlap(key, other) for other in swept):
            report.at(at, f"{text} is swept: each of its values is a run of its own")
        elif exists(key, report.mark(at)):
            found.append(key)
    if not found:
        return ()
    parsed = [(key, text, Interpolation.parse(key, text)) for key, text in interpolations(data)]
    following = dependents([one for _, _, one in parsed if one is not None], found) or []
    found += [one.key for one in following if one.key not in found]
    for key, text, one in parsed:
        counts = key[0] in (*_MAY_EXTEND, "args", "entry") and key not in found
        if one is None and counts and may_name(text, found):
            message = f"{text} may refer to an extendable key, and cannot be followed"
            report.at(key, message, f"name {dotted(key)} in extendable too")
    return tuple(found)


def earlier_numbers(compiled: Compiled, plans: Iterable[Plan]) -> dict[str, int]:
    """Return identity -> number of an earlier run that differs from it in such values alone."""
    numbers: dict[str, int] = {}
    for plan in plans:
        numbers.update((_kin(plan, run, compiled.extendable), run.number) for run in plan.runs)
    kin = ((run.identity, _kin(compiled, run, compiled.extendable)) for run in compiled.runs)
    return {own: numbers[other] for own, other in kin if other in numbers}


def _kin(source: Compiled | Plan, run: CompiledRun | RunPlan, without: Collection[Key]) -> str:
    """Return the identity of a run without the values of some keys."""
    spec = {name: run.spec[name] for name in ("config", "deepspeed", "args", "entry")}
    spec["optimization"] = run.spec.get("optimization")
    for key in without:
        spec = _without(spec, key)
    spec["args"] = [str(each) for each in spec["args"]]
    spec["checkpoint"] = run.spec["checkpoint"]
    entry, directory = run.entry, Path(source.spec_file).parent
    digest = digester(entry, Path(source.code_root), directory, spec)
    roles = role_layout.computed(run.spec.get(ROLES) or {}, Path(source.code_root), directory)
    command = [*map(str, spec["entry"])] if isinstance(spec["entry"], list) else []
    return digest(command, spec["config"], run.swept, roles)


def _without(data: Any, key: Key) -> Any:
    """Return a copy without the value at the key."""
    first, rest = key[0], key[1:]
    if isinstance(data, dict) and first in data:
        if not rest:
            return {name: value for name, value in data.items() if name != first}
        return {**data, first: _without(data[first], rest)}
    index = whole_number(first)
    if isinstance(data, list) and index is not None and index < len(data):
        return [*data[:index], _without(data[index], rest) if rest else None, *data[index + 1 :]]
    return data
