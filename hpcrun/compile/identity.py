"""A run's identity: a digest of what it computes, and of nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcrun.policy.batch import ACCUMULATION, MICRO, TRAIN
from hpcrun.state.plan import Entry

Begun = Callable[[Entry, dict[str, Any], dict[str, Any]], str]


def begin(
    file: str | None,
    import_root: str | None,
    args: list[str],
    deepspeed: dict[str, Any],
    origin: str | None = None,
) -> Begun:
    """A function of entry, config and swept values: SHA-256, in hex, of what a run computes.

    The name, resources, cluster, environment, recovery and the cadence of checkpoints do not
    matter, nor does the order of keys, nor how the global batch is divided into micro batches:
    another number of ranks goes on with the same run.

    Parameters
    ----------
    file, import_root
        The entry's paths from the spec's directory, so that it does not matter either what else is
        frozen with it.
    origin
        What it starts from, ``checkpoint.initialize_from``.
    """
    begun = f',"origin":{_text(origin)}' if origin is not None else ""
    arguments, engine = _text(args), _text(_undivided(deepspeed))

    def digest(entry: Entry, config: dict[str, Any], swept: dict[str, Any]) -> str:
        own = {
            "kind": entry.kind,
            "module": entry.module,
            "function": entry.function,
            "import_root": import_root,
            "file": file,
            "argv": entry.argv,
        }
        text = (
            f'{{"args":{arguments},"config":{_text(config)},"deepspeed":{engine},'
            f'"entry":{_text(own)},"swept":{_text(swept)}{begun}}}'
        )
        return hashlib.sha256(text.encode()).hexdigest()

    return digest


def places(found: Entry, code_root: Path, directory: Path) -> tuple[str | None, str | None]:
    """The entry's file and import root from the spec's directory: the code root moves, with
    ``git init``."""
    file, base = (
        None if path is None else os.path.relpath(code_root / path, directory)
        for path in (found.file, found.import_root)
    )
    return file, base


def masked(found: Entry, command: Any) -> Entry:
    """The entry whose arguments are told by config, args and this ``entry`` of a spec alone."""
    argv = tuple(map(str, command)) if isinstance(command, list) else ()
    return dataclasses.replace(found, argv=argv)


_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def _undivided(deepspeed: dict[str, Any]) -> dict[str, Any]:
    if TRAIN not in deepspeed:
        return deepspeed
    return {key: value for key, value in deepspeed.items() if key not in (MICRO, ACCUMULATION)}
