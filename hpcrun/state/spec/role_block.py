"""The ``roles`` block of a spec."""

from __future__ import annotations

from typing import Any, Literal

from hpcrun.shared_dataclass import field
from hpcrun.state.spec.spec_dataclass import spec_dataclass


@spec_dataclass
class Role:
    """One kind of process of a run, with a program and ranks of its own; see docs/roles.md."""

    main: bool = False
    """The run is done when this role is; by default that is the first one. It alone has steps,
    metrics, checkpoints and the DeepSpeed configuration."""

    entry: str | list[str] = ""
    """What its ranks execute: a script or a command, and in the main role a function too. Empty for
    that of the top level."""

    args: list[str] = field(default_factory=list)
    """Arguments; where it has no ``entry`` after the top level's."""

    config: dict[str, Any] = field(default_factory=dict)
    """Its configuration, which becomes flags; where it has no ``entry`` over the top level's."""

    nodes: int | None = None
    """How many of the run's nodes its ranks are on. Null for ``resources.nodes`` in the main role,
    else for as many as divide ``ntasks`` evenly, or one; with ``resources`` for one."""

    first_node: int = 0
    """The first of them, counted from 0. Roles share nodes unless this sets them apart."""

    ntasks_per_node: int | None = None
    """Its ranks on each of these nodes; null for one a GPU, else one."""

    ntasks: int | None = None
    """All of its ranks, in place of ``ntasks_per_node``."""

    gpus_per_node: int | None = None
    """GPUs of each of its nodes, which it shares with no other role. Null for
    ``resources.gpus_per_node`` in the main role, else none."""

    cpus_per_task: int | None = None
    """CPUs of each of its ranks; null for ``resources.cpus_per_task``."""

    restart: Literal["run", "role", "rank", "ignore"] = "run"
    """What follows when one of its ranks ends badly: ``run`` ends the attempt; ``role`` starts all
    ranks of the role anew, ``rank`` the one that ended, while the others go on; ``ignore`` goes on
    without it. With a lost node the last three move its ranks to another node, if they have no
    GPUs."""

    budget: int = 10
    """How many times in one attempt its ranks are started anew; then as ``restart: run``."""

    at_end: Literal["stop", "finish"] = "stop"
    """When the main role is done: ``stop`` ends it (SIGTERM, later SIGKILL), ``finish`` waits until
    its programs end."""

    stop_grace: int = 15
    """Seconds between the two signals."""

    resources: dict[str, Any] = field(default_factory=dict)
    """For nodes of its own, of another kind: keys of the top level's ``resources`` that are other
    for it. The job is then a heterogeneous job of Slurm's. Empty for the nodes of the others."""
