"""The site's stored baseline: what its nodes did when they were well.

One file for each root, ``.hpcrun/node-baseline.json``, or where ``--baseline`` says: partition ->
what ``hpcrun doctor --nodes --save-baseline`` measured there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcrun.errors import BrokenFile
from hpcrun.state import files

# Below this part of the baseline something is wrong.
ENOUGH = 0.9
_MOST = 1 << 20


@dataclass(frozen=True)
class NodeBaseline:
    """What nodes of one partition do; None and absent for what was not measured."""

    link: float | None = None
    """Bytes per second of one TCP stream between two nodes."""
    gemm: Mapping[str, float] = field(default_factory=dict)
    """GPU, or ``CPU`` and its model -> floating point operations per second of one."""
    busbw: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """``N nodes, M ranks`` -> bytes of an all-reduce -> bus bandwidth in bytes per second."""
    when: float = 0.0
    nodes: tuple[str, ...] = ()


def place(root: Path) -> Path:
    """Return the file of a root."""
    return root / ".hpcrun" / "node-baseline.json"


def read(path: Path, partition: str) -> NodeBaseline | None:
    """Return the baseline of a partition; None without a file, or without the partition in it.

    Raises BrokenFile if it is not what this module writes.
    """
    try:
        every = files.read_json(path, _MOST)
        one = every.get(partition)
        if one is None:
            return None
        return NodeBaseline(
            link=None if one["link"] is None else _rate(one["link"]),
            gemm={str(kind): _rate(rate) for kind, rate in one["gemm"].items()},
            busbw={
                str(shape): {str(int(size)): _rate(rate) for size, rate in rows.items()}
                for shape, rows in one["busbw"].items()
            },
            when=float(one["when"]),
            nodes=tuple(map(str, one["nodes"])),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BrokenFile.of(path, error) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BrokenFile.of(path, f"is no baseline: {error}") from None


def write(path: Path, partition: str, baseline: NodeBaseline) -> None:
    """Put the baseline of a partition into the file, beside those of others."""
    try:
        every: dict[str, Any] = files.read_json(path, _MOST)
    except (OSError, ValueError):
        every = {}
    every = every if isinstance(every, dict) else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, {**every, partition: {**asdict(baseline), "when": time.time()}})


def _rate(value: Any) -> float:
    number = float(value)
    if not 0 < number < 1e18:
        raise ValueError(f"found {value!r}; accepted is a rate above 0")
    return number
