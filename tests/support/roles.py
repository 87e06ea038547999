"""Frozen roles made by hand, as `hpcrun.compile.target.role_layout` makes them."""

from __future__ import annotations

from typing import Any


def role(
    first_rank: int,
    command: str | None = None,
    *,
    nodes: int = 1,
    ranks: int = 1,
    **given: Any,
) -> dict[str, Any]:
    """Return a role whose every rank executes a shell's command; the main one has none."""
    program = {"kind": "command", "argv": ["bash", "-c", command], "framework": "none"}
    return {
        "main": first_rank == 0,
        "nodes": nodes,
        "first_node": 0,
        "ntasks_per_node": ranks,
        "gpus_per_node": 0,
        "cpus_per_task": 1,
        "restart": "run",
        "budget": 10,
        "at_end": "stop",
        "stop_grace": 5,
        "first_rank": first_rank,
        "first_gpu": 0,
        "config": {},
        "args": [],
        **({} if command is None else {"program": program}),
        **given,
    }
