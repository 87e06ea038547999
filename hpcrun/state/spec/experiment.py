"""The blocks and keys of a spec.

The reference page docs/spec.md is generated from this file, the other blocks of this folder,
`cluster_profile` and `hpcrun.state.environment`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from hpcrun.state.environment.environment_block import Environment
from hpcrun.state.roles.role_block import Role
from hpcrun.state.spec.estimate_block import Estimate
from hpcrun.state.spec.notify_block import Notify
from hpcrun.state.spec.optimization_block import Optimization
from hpcrun.state.spec.parallel_block import Parallel
from hpcrun.state.spec.progress_block import Progress
from hpcrun.state.spec.recovery_block import Recovery
from hpcrun.state.spec.spec_dataclass import spec_dataclass
from hpcrun.state.spec.sweep_block import Sweep
from hpcrun.state.spec.tracking_block import Tracking


@spec_dataclass
class Resources:
    """What one run asks of Slurm; the names are those of sbatch's options."""

    nodes: int = 1
    """Nodes of each run."""

    spare_nodes: int = 0
    """Nodes that stand by, and are charged: one takes the place of a node that is lost or cannot be
    used, within seconds and without a requeue."""

    ntasks_per_node: int | None = None
    """Ranks on each node without GPUs. With GPUs there is one rank per GPU, or 1 for a launcher or
    a ``framework`` with one process a node, which has all GPUs of its node."""

    gpus_per_node: int = 0
    """GPUs on each node; 0 trains on CPUs."""

    gpu_type: str | None = None
    """Type of these GPUs as the cluster calls it, such as ``a100``; null for any."""

    gpu_request: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    """How Slurm is asked for them: ``--gpus-per-node``, ``--gres=gpu:N``, or not at all, where it
    knows no GPUs: a job then has its nodes alone (``--exclusive``). A matter for the cluster
    profile."""

    node_has_gpus: int | None = None
    """GPUs that a node has; ``gpu_request: none`` needs it, and counts GPU-hours of all."""

    cpus_per_task: int | None = None
    """CPUs of each rank; null for one, and with ``framework: batch`` for what Slurm gives."""

    mem: str | None = None
    """Memory of each node, such as ``64G``; null for the partition's default, ``0`` for all."""

    time: str = "01:00:00"
    """Time limit in one of Slurm's forms, in quotes: ``"12:00:00"``, ``"2-00:00:00"``."""

    partition: str | None = None
    """Partition, or several separated by commas."""

    account: str | None = None
    """Account that is charged."""

    qos: str | None = None
    """Quality of service."""

    constraint: str | None = None
    """Features that the nodes must have, in sbatch's notation: ``"a100&nvlink"``."""

    reservation: str | None = None
    """Reservation to run in."""

    exclude: str | None = None
    """Nodes not to use, as a host list: ``node[3,7-9]``."""

    mpi: str | None = None
    """Type of MPI that srun prepares the ranks for, of ``srun --mpi=list``. Null: with ``framework:
    mpi`` one that the program's MPI knows, with ``auto`` and ``none`` the site's MpiDefault, else
    ``none``."""

    sbatch: dict[str, Any] = field(default_factory=dict)
    """Any other long option of sbatch without its dashes: ``{licenses: "fs:1", exclusive: true}``;
    ``gres`` for what is no GPU. One of a plugin keeps its dashes and is not checked: ``{"--image":
    "nersc/pytorch"}``."""

    @property
    def gpus_option(self) -> str | None:
        """Return sbatch's and srun's option for GPUs, such as ``gpus-per-node=a100:4``.

        None without GPUs, and where Slurm is not asked for them.
        """
        if not self.gpus_per_node or self.has_whole_nodes:
            return None
        kind = f"{self.gpu_type}:" if self.gpu_type else ""
        option = "gres=gpu:" if self.gpu_request == "gres" else "gpus-per-node="
        return f"{option}{kind}{self.gpus_per_node}"

    @property
    def has_whole_nodes(self) -> bool:
        """Its job has GPUs that Slurm does not know, by having the nodes alone."""
        return self.gpus_per_node > 0 and self.gpu_request == "none"

    @property
    def held_gpus(self) -> int:
        """GPUs of a node that no other job can have meanwhile."""
        return (self.has_whole_nodes and self.node_has_gpus) or self.gpus_per_node


@spec_dataclass
class Checkpoint:
    """When the session saves by itself, and what is kept."""

    every: int | None = None
    """Optimizer steps between saves; null saves only at the end of the run and when asked to
    stop."""

    nearby_every: int | None = None
    """Optimizer steps between saves in the nodes' own storage ($TMPDIR, /tmp without), copied to
    the next node, for restarts in the same allocation; null for none. Needs room for four times
    what a node's ranks save."""

    asynchronous: bool = False
    """Write periodic saves behind the training, from a copy of the ranks' state in memory, which
    each node must have room for."""

    initialize_from: str | None = None
    """Another run whose weights alone this one starts with, as ``NAME/3`` (its newest complete
    checkpoint) or ``NAME/3@1200`` (a step), of any number of ranks and ZeRO stage; a path names a
    run under another root. ``session.restore`` takes them when the run has no checkpoint of its
    own."""

    keep: int = 2
    """Newest complete checkpoints that are kept."""

    keep_every: int | None = None
    """Also kept: every checkpoint whose step is a multiple of this."""

    keep_best: int = 0
    """Also kept: so many of the best by ``objective``."""


@spec_dataclass
class Objective:
    """What "best" means, everywhere."""

    metric: str = "loss"
    """Name of a logged metric."""

    mode: Literal["min", "max"] | None = None
    """The better direction; it may be left out where the metric's name tells (loss, perplexity;
    accuracy, f1, …)."""

    @property
    def better(self) -> str:
        """``min`` or ``max``, the former for the objective of a spec that has none."""
        return self.mode or "min"


@spec_dataclass
class Telemetry:
    """What each node's processors, memory, network, fabric and GPUs do while a run trains."""

    every: int | None = 10
    """Seconds between two samples of a node; null for none. GPUs need the package ``nvidia-ml-py``
    in the job's Python."""


@spec_dataclass
class Dependency:
    """An experiment that comes before this one; ``spec: X`` alone may be written as ``X``."""

    spec: str = ""
    """Its spec, relative to this file."""

    when: Literal["success", "end"] = "success"
    """Wait until it has completed, or until it has ended in whatever way."""

    each: bool = False
    """Each run waits for the run of the same number alone, rather than for all of them."""


@spec_dataclass
class Code:
    """The code that is frozen at submission."""

    root: str | None = None
    """Directory that is frozen; null for the git checkout that holds the entry, else the spec's
    directory."""

    exclude: list[str] = field(default_factory=list)
    """Patterns, as in .gitignore, of files that are left out. So are files that look like secrets
    (``.env``, ``*.pem``), but for those named here after a ``!``: ``['!.env']``."""

    link: list[str] = field(default_factory=list)
    """Paths below ``code.root``, relative to this file, such as data sets, that the job sees
    through a link in place of a frozen copy."""

    include: list[str] = field(default_factory=list)
    """Files and directories below ``code.root``, relative to this file, that are frozen although
    git ignores them."""


@spec_dataclass
class Staging:
    """Data that each node copies to its own disk before its ranks start; see docs/data.md."""

    paths: list[str] = field(default_factory=list)
    """Files, directories and globs, relative to this file. Each has its last name in
    ``${hpcrun:staged}``, which is ``HPCRUN_STAGED`` of the ranks; ``session.staged(path)`` finds
    it, too."""


@spec_dataclass
class Spec:
    """An experiment."""

    name: str = ""
    """The experiment's name, its directory under the root; by default the file's name without
    ``.yaml``. Letters, digits, ``.``, ``_`` and ``-``, a letter first. Not inherited."""

    extends: str | list[str] | None = None
    """Files that this one builds on, relative to it; later ones win, this file over all of them."""

    tags: list[str] = field(default_factory=list)
    """Words by which runs are found again: ``--where tag=baseline``; see ``hpcrun tag``."""

    notes: str | None = None
    """A remark, for people; see ``hpcrun note``."""

    cluster: str | None = None
    """Name of a cluster profile; null for ``slurm`` where there is an sbatch, else ``local``."""

    entry: str | list[str] = ""
    """What is executed, relative to this file: a script ``train.py``, a function
    ``package.module:function`` or ``path/file.py:function``, or a list, which is a command."""

    args: list[str] = field(default_factory=list)
    """Arguments of a script or command, before the flags of ``config``."""

    batch_script: str | None = None
    """A shell file, relative to this file and in its directory, that the job runs once an attempt,
    on its first node and in the working directory. Its line ``sh "$HPCRUN_RANKS" || exit`` starts
    the ranks with what the lines before it exported, and waits; what follows runs after they ended
    well."""

    framework: Literal[
        "auto",
        "none",
        "accelerate",
        "batch",
        "composer",
        "deepspeed",
        "huggingface",
        "jax",
        "lightning",
        "mpi",
        "single",
        "tensorflow",
        "torchrun",
    ] = "auto"
    """What the program trains with: what ranks find in their environment, and the defaults of
    progress and resume; see docs/frameworks.md. ``auto`` looks at the entry's words and imports and
    says what it found. ``torchrun`` and ``single`` start one process a node, which has all its
    GPUs; ``mpi`` is ``srun --mpi``; ``batch`` starts one a run, for an entry that calls srun or
    mpirun itself."""

    config: dict[str, Any] = field(default_factory=dict)
    """The entry's own configuration, free in form: flags of a script or command, ``session.config``
    for a function. A key that ``entry``, ``args`` or ``environment.variables`` of a command refer
    to, as by ``${config.lr}``, is no flag."""

    flags: Literal["--key=value", "--key value", "key=value", "none"] = "--key=value"
    """How ``config`` becomes flags, which come after ``args``. With dashes, true is bare, false and
    null are left out (a program whose own default is true wants ``'False'``, in quotes, or
    ``no-key: true``) and a list is ``a,b`` (``--key=value``) or several words (``--key value``).
    ``key=value`` is what Hydra reads: all values, lists as ``[a,b]``, nested mappings as dotted
    keys."""

    working_directory: Literal["run", "rank"] = "run"
    """Where ranks run. ``run``: all of them in ``work`` of the run's directory, at the place of
    this file's directory in the code. ``rank``: each in one of its own, ``work/rank-00000``. What a
    program writes there stays for the next attempt; files of the code are found by links."""

    extendable: list[str] = field(default_factory=list)
    """Full keys of ``config`` and ``deepspeed`` whose values may change without making another run,
    such as ``config.total_steps``. A completed run goes on from its last checkpoint when such a
    value was changed and the spec is submitted again."""

    resources: Resources = field(default_factory=Resources)
    """What one run asks of Slurm."""

    roles: dict[str, Role] = field(default_factory=dict)
    """Name -> one of several kinds of process of a run; see docs/roles.md."""

    parallel: Parallel | None = None
    """How a model and its batch are divided between ranks; null for data parallel alone."""

    model_parallel_size: int | None = None
    """Ranks that hold one copy of the model, for a program that divides it itself; null for what
    ``parallel`` or the DeepSpeed configuration says, else 1."""

    deepspeed_config: str | None = None
    """A DeepSpeed JSON file, relative to this file, or a preset that ships: ``zero0``, ``zero1``,
    ``zero2``, ``zero3``."""

    deepspeed: dict[str, Any] = field(default_factory=dict)
    """DeepSpeed configuration over the file's; null removes a key. Of ``train_batch_size``,
    ``train_micro_batch_size_per_gpu`` and ``gradient_accumulation_steps``, those absent or ``auto``
    are solved; for a script or command, only if one of them is given here. Any other ``auto`` stays
    for a Trainer."""

    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8"] = "auto"
    """What the run computes in; see docs/precision.md. ``auto``: as the DeepSpeed configuration and
    the program say. The others fill in DeepSpeed's keys, and are refused where these say something
    else, or the GPU has no such units."""

    optimization: Optimization = field(default_factory=Optimization)
    """The learning rate over steps, batch sizes and layers."""

    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    """When the session saves by itself."""

    recovery: Recovery = field(default_factory=Recovery)
    """What happens when an attempt ends before the run is finished."""

    progress: Progress = field(default_factory=Progress)
    """How the progress of a script or command is read."""

    staging: Staging = field(default_factory=Staging)
    """Data that each node copies to its own disk."""

    environment: Environment = field(default_factory=Environment)
    """Where and with what the job runs."""

    objective: Objective | None = None
    """What "best" means."""

    estimate: Estimate | None = None
    """What ``hpcrun estimate`` is told of the model."""

    notify: Notify = field(default_factory=Notify)
    """Who is told how a run ended."""

    telemetry: Telemetry = field(default_factory=Telemetry)
    """What each node does while a run trains."""

    tracking: Tracking = field(default_factory=Tracking)
    """Where the logged metrics go, beside the run's own files."""

    depends_on: list[Dependency] = field(default_factory=list)
    """Experiments that come before this one: submitted with it, and waited for."""

    sweep: Sweep | None = None
    """Fans the spec out into runs."""

    code: Code = field(default_factory=Code)
    """The code that is frozen at submission."""
