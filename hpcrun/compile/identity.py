"""The identity of a run: a digest of what it computes, and of nothing else."""

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

Digester = Callable[[Entry, dict[str, Any], dict[str, Any]], str]


def digester(
    file: str | None,
    import_root: str | None,
    args: list[str],
    deepspeed: dict[str, Any],
    origin: str | None = None,
) -> Digester:
    """Return a function of entry, config and swept values: SHA-256, in hex, of what a run computes.

    The name, resources, cluster, environment, recovery and the cadence of checkpoints do not
    matter, nor does the order of keys, nor how the global batch is divided into micro batches:
    another number of ranks goes on with the same run.

    Parameters
    ----------
    file, import_root
        The entry's paths from the spec's directory, so that it does not matter either what else is
        frozen with it.
    origin
        ``checkpoint.initialize_from``.
    """
    started = f',"origin":{_text(origin)}' if origin is not None else ""
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
            f'"entry":{_text(own)},"swept":{_text(swept)}{started}}}'
        )
        return hashlib.sha256(text.encode()).hexdigest()

    return digest


def entry_paths(found: Entry, code_root: Path, directory: Path) -> tuple[str | None, str | None]:
    """Return the entry's file and import root relative to the spec's directory.

    They are relative to that because ``git init`` moves the code root.
    """

    def relative(path: str | None) -> str | None:
        return None if path is None else os.path.relpath(code_root / path, directory)

    return relative(found.file), relative(found.import_root)


def with_command(found: Entry, command: Any) -> Entry:
    """Return the entry with the command of a spec's ``entry`` in place of its arguments."""
    argv = tuple(map(str, command)) if isinstance(command, list) else ()
    return dataclasses.replace(found, argv=argv)


_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def _undivided(deepspeed: dict[str, Any]) -> dict[str, Any]:
    if TRAIN not in deepspeed:
        return deepspeed
    return {key: value for key, value in deepspeed.items() if key not in (MICRO, ACCUMULATION)}
