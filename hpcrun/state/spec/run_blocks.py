"""The blocks of a spec that a frozen run is read by, on each of its nodes.

The others, and the keys of a spec, are in `hpcrun.state.spec.experiment`.
"""

from __future__ import annotations

from typing import Any, Literal

from hpcrun.shared_dataclass import field
from hpcrun.state.spec.spec_dataclass import spec_dataclass


@spec_dataclass
class Progress:
    """How the steps, metrics and saves of a script or command are read from what it shows.
    Functions and programs that use ``hpcrun.session()`` need none of this."""

    source: Literal[
        "auto",
        "none",
        "metrics_file",
        "log",
        "trainer_state",
        "tensorboard",
        "lightning",
    ] = "auto"
    """Where steps and metrics are read: ``metrics_file`` (JSON lines with a ``step`` that the
    program appends to $HPCRUN_METRICS_FILE), ``log`` (``pattern``, else the bars of Keras or tqdm,
    in what rank 0 prints), ``trainer_state`` (of Hugging Face), ``tensorboard`` (event files),
    ``lightning`` (metrics.csv), ``none``. ``auto`` takes the first that shows steps; ``hpcrun why``
    says which, and docs/observing.md what follows."""

    directory: str | None = None
    """Where the program writes such files, if neither below its working directory nor below the
    run's: relative to the working directory, and may hold ``${hpcrun:directory}``."""

    pattern: str | None = None
    """A regular expression, in Python's notation, on the lines (1,000 characters) that rank 0
    prints: the group ``step`` is the number of finished steps, ``total`` that of all, groups of
    other names are metrics: ``'step (?P<step>\\d+)/(?P<total>\\d+).* loss (?P<loss>\\S+)'``. Where
    steps are counted anew in each epoch, ``epoch`` and ``epoch_total`` (its steps) tell how many
    there were before, and ``epochs`` how many epochs there will be. With ``epoch`` and without
    ``step`` epochs are the steps. Where lines have no number, a group ``one_step`` counts them, on
    from the save that the program resumes from. A pattern that takes half a second three times is
    not used any more."""

    saved: str | list[str] | None = None
    """Globs of the program's own saves, absolute or relative to its working directory. A save
    counts once it has not changed for five seconds; its step is that of a ``trainer_state.json`` in
    it, of the file ``latest``, or a number in its name, else the last known. Null for
    ``recovery.resume.when``, else ``checkpoint-*``, ``*.ckpt``, ``latest``, ``ckpt*.pt``,
    ``checkpoint*.pt*``, ``snapshot*.pt*``, ``last.pt*``, ``latest.pt*``."""

    total: int | None = None
    """How many steps there will be; null for what the source says."""


@spec_dataclass
class Optimization:
    """What ``session.initialize`` makes of the learning rate and the weight decay that
    ``deepspeed.optimizer.params`` gives; see docs/optimizers.md. A number of steps below 1 is a
    fraction of ``total_steps``."""

    warmup: float = 0
    """Optimizer steps over which the learning rate rises in equal parts."""

    decay: Literal["constant", "linear", "cosine", "step"] | None = None
    """What follows: no change, a line or half a cosine down to ``end``, or a factor at each of
    ``milestones``. Null makes no schedule without a ``warmup``, and a constant rate after one."""

    end: float = 0
    """The part of the learning rate that is left after ``total_steps``."""

    milestones: list[float] = field(default_factory=list)
    """Steps of ``step``, in ascending order, after each of which the rate is multiplied by
    ``factor``: ``[0.5, 0.75]``."""

    factor: float = 0.1
    """See ``milestones``."""

    total_steps: int | None = None
    """Optimizer steps of the run, such as ``${config.total_steps}``, where they are needed."""

    scale_lr: Literal["linear", "sqrt"] | None = None
    """Multiply the learning rates of the DeepSpeed configuration by the global batch divided by
    ``reference_batch``, or by the square root of that."""

    reference_batch: int | None = None
    """The global batch that the learning rate is right for."""

    layer_decay: float | None = None
    """Each layer has this much of the next one's learning rate, the last all of it: ``0.8``."""

    weight_decay_on: Literal["all", "matrices"] = "all"
    """Parameters that decay; ``matrices`` leaves out biases and norms (under two dimensions)."""

    ema: float | None = None
    """Keep an exponential moving average of the weights with this decay, such as ``0.999``, in fp32
    on every rank. Not for ZeRO 3 and models that ``parallel`` divides."""

    ema_every: int = 1
    """Optimizer steps between two updates of the average."""

    compile: bool = False
    """Compile the model's blocks as its engine is made: docs/precision.md."""


@spec_dataclass
class Pack:
    """Runs that share a job, each with its own part of a node, or nodes of its own: for sites that
    give whole nodes, or limit the jobs of a user. ``sweep.max_parallel`` says how many run at once
    in all jobs."""

    runs_per_node: int = 1
    """Runs on a node at once: the job asks for so many times their CPUs, GPUs and memory. Where one
    ends, the next begins. 1 for runs of several nodes."""

    nodes_per_job: int = 1
    """Nodes of such a job: a multiple of those of a run."""


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

    pack: Pack | None = None
    """Runs that share a job, whose time limit is ``time``; null for a job each."""

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
