"""The identity of a run: a digest of what it computes, and of nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcrun.compile.target.deepspeed_keys import is_comment
from hpcrun.policy.batch import ACCUMULATION, AUTO, MICRO, TRAIN
from hpcrun.state.plan import Entry
from hpcrun.state.spec.optimization_block import Optimization

_LATER = {"ema": None, "ema_every": 1}

Digester = Callable[[Entry, dict[str, Any], dict[str, Any], dict[str, Any]], str]


def digester(
    found: Entry,
    code_root: Path,
    directory: Path,
    spec: dict[str, Any],
    count: Callable[[int], object] = int,
) -> Digester:
    """Return a function of entry, config and swept values: SHA-256, in hex, of what a run computes.

    The name, resources, cluster, environment, recovery and the cadence of checkpoints do not
    matter, nor does the order of keys, nor how the global batch is divided into micro batches:
    another number of ranks goes on with the same run.

    Parameters
    ----------
    found
        An entry with the file and import root of all that the function is called with. They count
        relative to the spec's ``directory``: the code root moves, with ``git init``.
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

    def digest(
        entry: Entry, config: dict[str, Any], swept: dict[str, Any], roles: dict[str, Any]
    ) -> str:
        own = {
            "kind": entry.kind,
            "module": entry.module,
            "function": entry.function,
            "import_root": import_root,
            "file": file,
            "argv": entry.argv,
        }
        others = f',"roles":{_text(roles)}' if roles else ""
        text = (
            f'{{"args":{arguments},"config":{_text(config)},"deepspeed":{engine},'
            f'"entry":{_text(own)},"swept":{_text(swept)}{started}{others}}}'
        )
        count(len(text))
        return hashlib.sha256(text.encode()).hexdigest()

    return digest


def with_command(found: Entry, command: Any) -> Entry:
    """Return the entry with the command of a spec's ``entry`` in place of its arguments."""
    argv = tuple(map(str, command)) if isinstance(command, list) else ()
    return dataclasses.replace(found, argv=argv)


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
