"""A run's identity: a digest of what it computes, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from hpcrun.batch import ACCUMULATION, MICRO, TRAIN
from hpcrun.plan import Entry

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


_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def _undivided(deepspeed: dict[str, Any]) -> dict[str, Any]:
    if TRAIN not in deepspeed:
        return deepspeed
    return {key: value for key, value in deepspeed.items() if key not in (MICRO, ACCUMULATION)}
