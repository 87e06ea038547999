"""The keys of a cluster profile."""

from __future__ import annotations

from typing import Any, Literal

from hpcrun.shared_dataclass import field
from hpcrun.state.spec.run_blocks import Resources
from hpcrun.state.spec.spec_dataclass import spec_dataclass


@spec_dataclass
class Fabric:
    """The site's networks; null is found out on the nodes."""

    management_interface: str | None = None
    """Interface for hpcrun's own traffic, such as ``eth0``."""

    fast_interface: str | None = None
    """Interface for rendezvous and gradients, such as ``ib0``; null for the first that all nodes of
    a run have, of type InfiniBand, else with such a name, else that of the default route."""

    hca: list[str] = field(default_factory=list)
    """InfiniBand adapters for NCCL, such as ``[mlx5_0, mlx5_1]``; empty for the active ports of one
    rate, without those of storage."""


@spec_dataclass
class Limits:
    """What the site's Slurm refuses; checked before anything is submitted."""

    max_array_size: int = 1001
    """More runs than that become several arrays, where Slurm's own limit is not smaller."""

    max_time: str | None = None
    """Longest time limit, in one of Slurm's forms."""

    max_nodes: int | None = None
    """Most nodes of one run."""


@spec_dataclass
class ConfirmAbove:
    """The hours above which ``submit`` and ``requeue`` ask first; without a terminal they want
    ``--yes``. Hours are the most that one start of each run can use: nodes, spare ones too, times
    GPUs times the time limit."""

    gpu_hours: float | None = None
    """The most GPU-hours of runs with GPUs; null never asks."""

    cpu_hours: float | None = None
    """The most CPU-hours of runs without GPUs: nodes times ranks times CPUs times the time
    limit."""


@spec_dataclass
class Suspects:
    """Nodes whose hardware failed a user's own job, or that ``hpcrun doctor --nodes`` found broken
    for him, within hours."""

    avoid: bool = True
    """His submissions leave them out, unless ``submit --no-suspects`` says so."""


@spec_dataclass
class Health:
    """The check of each node as an attempt begins, and what follows where a node is bad."""

    check: bool = True
    """Check the nodes: GPUs, fabric, interfaces, clocks, room, and a transfer of a few MB between
    neighbours."""

    on_fault: Literal["replace", "exclude", "refuse", "warn"] = "replace"
    """What follows what a job cannot do with: interface or port down, no GPU, no room, a slow link.
    ``replace`` gives its place to a spare (``resources.spare_nodes``) and without one requeues the
    job without the node, ``exclude`` always does that, ``refuse`` stops the run, ``warn`` goes
    on."""

    on_doubt: Literal["replace", "exclude", "refuse", "warn"] = "warn"
    """The same for what may be meant so: a port slower than its peers, nodes that differ, a busy
    GPU, clocks that are apart."""

    budget: int = 3
    """So many times a submission of a run does without nodes; then it goes on with what it has."""


@spec_dataclass
class Prices:
    """What hours cost: in ``hpcrun estimate``, ``hpcrun status --cost`` and ``hpcrun report``. Each
    submission keeps those of its time."""

    currency: str = ""
    """What is written after amounts, such as ``EUR``, or ``credits``."""

    gpu_hour: float | None = None
    """Price of an hour of a GPU with its share of its node; null tells no amounts."""

    gpu_types: dict[str, float] = field(default_factory=dict)
    """The same by ``resources.gpu_type``: ``{h100: 2.5, a100: 1.2}``; others cost ``gpu_hour``."""

    cpu_hour: float | None = None
    """Price of an hour of a processor, for runs without GPUs."""

    gpu_watts: float | None = None
    """Power of a GPU with its share of its node while it trains; null for the GPU's own limit."""

    cpu_watts: float | None = None
    """Power of a processor with its share of its node."""


@spec_dataclass
class Profile:
    """A cluster profile: what is true of a site, written once."""

    name: str = ""
    """The profile's name; by default the file's name without ``.yaml``."""

    executor: Literal["slurm", "local"] = "slurm"
    """``slurm`` submits with sbatch; ``local`` starts the same processes on this machine."""

    host: str | None = None
    """Its login node, as ssh takes it, where ``--on`` runs commands. Null for this
    machine."""

    root: str = "${oc.env:HOME}/hpcrun-runs"
    """Where experiments live, unless --root or HPCRUN_ROOT says so; storage that all nodes see."""

    umask: str | None = None
    """Mode bits that files of experiments do not get, in octal and in quotes: ``"0027"`` lets the
    group read; null for the submitting shell's."""

    group: str | None = None
    """Group of the files of experiments, of which the submitting user is a member, and whose
    directories above the root may be another member's; null for the user's own."""

    resources: Resources = field(default_factory=Resources)
    """Defaults for what specs do not say: partition, account, time, …"""

    setup: list[str] = field(default_factory=list)
    """Shell lines before those of the spec."""

    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of every job."""

    fabric: Fabric = field(default_factory=Fabric)
    """The site's networks."""

    limits: Limits = field(default_factory=Limits)
    """What the site's Slurm refuses."""

    health: Health = field(default_factory=Health)
    """The check of each node as an attempt begins, and what follows."""

    suspects: Suspects = field(default_factory=Suspects)
    """Nodes whose hardware failed a user's own job within hours."""

    check: bool = True
    """``submit`` asks the cluster first what it would refuse, as ``hpcrun check`` does."""

    confirm_above: ConfirmAbove = field(default_factory=ConfirmAbove)
    """The hours above which ``submit`` and ``requeue`` ask first."""

    prices: Prices = field(default_factory=Prices)
    """What hours cost."""

    sbatch: dict[str, Any] = field(default_factory=dict)
    """Further options of sbatch for every job, as in ``resources.sbatch``."""
