"""What the nodes of an attempt were busy with, as their agents sampled it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths


def read(attempt: AttemptPaths) -> dict[str, list[dict[str, Any]]]:
    """Node -> its samples, in the order of time; empty where none were taken.

    Samples are as docs/architecture.md has them: ``time``, ``cpu`` (percent), ``memory`` (bytes),
    ``network`` and ``fabric`` (bytes/s received and sent), ``gpus``; what could not be read is
    absent.
    """
    found = {node: _samples(files.read_lines(path)) for node, path in attempt.telemetries()}
    return {node: samples for node, samples in found.items() if samples}


def latest(attempt: AttemptPaths, node: str) -> dict[str, Any] | None:
    """The last sample of one node; None without one."""
    return next(iter(_samples(files.read_back(attempt.telemetry(node), 4096))), None)


def _samples(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if isinstance(line.get("time"), (int, float))]
