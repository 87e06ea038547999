"""The identity of a run: a digest of what it computes, and of nothing else."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcrun.compile.target.deepspeed_keys import is_comment
from hpcrun.policy.batch import ACCUMULATION, AUTO, MICRO, TRAIN
from hpcrun.state.plan import Entry, RunPlan
from hpcrun.state.spec.experiment import Optimization

_LATER = {"ema": None, "ema_every": 1}

Digester = Callable[[Sequence[str], dict[str, Any], dict[str, Any], dict[str, Any]], str]


def digester(
    found: Entry,
    code_root: Path,
    directory: Path,
    spec: dict[str, Any],
    count: Callable[[int], object] = int,
) -> Digester:
    """Return a function of arguments, config, swept values and roles.

    It returns the SHA-256, in hex, of what a run computes.

    The name, resources, cluster, environment, recovery and the cadence of checkpoints do not
    matter, nor does the order of keys, nor how the global batch is divided into micro batches:
    another number of ranks goes on with the same run.

    Parameters
    ----------
    found
        The program; its arguments are those that the function is called with. File and import root
        count relative to the spec's ``directory``: the code root moves, with ``git init``.
    spec
        Gives ``args``, ``deepspeed``, ``precision``, ``optimization`` and
        ``checkpoint.initialize_from``.
    count
        Called with the length of what each run computes, as text.
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
