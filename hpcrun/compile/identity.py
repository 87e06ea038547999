"""A run's identity: a digest of what it computes, and of nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from hpcrun.batch import ACCUMULATION, MICRO, TRAIN
from hpcrun.plan import Entry


def identity(
    entry: Entry,
    config: dict[str, Any],
    args: list[str],
    deepspeed: dict[str, Any],
    swept: dict[str, Any],
) -> str:
    """SHA-256, in hex, of what a run computes and of its swept values.

    The name, resources, cluster, environment, recovery and the cadence of checkpoints do not
    matter, nor does the order of keys, nor how the global batch is divided into micro batches:
    another number of ranks goes on with the same run. The entry's paths are those from the spec's
    directory, so that it does not matter either what else is frozen with it.
    """
    computed = {
        "entry": dataclasses.asdict(entry),
        "config": config,
        "args": args,
        "deepspeed": _undivided(deepspeed),
        "swept": swept,
    }
    text = json.dumps(computed, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _undivided(deepspeed: dict[str, Any]) -> dict[str, Any]:
    if TRAIN not in deepspeed:
        return deepspeed
    return {key: value for key, value in deepspeed.items() if key not in (MICRO, ACCUMULATION)}
