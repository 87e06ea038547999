"""The blocks and keys of a spec.

The reference page docs/spec.md is generated from this file, the other blocks of this folder and
`hpcrun.state.environment`.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from hpcrun.state.environment.environment_block import Environment
from hpcrun.state.spec.notify_block import Notify
from hpcrun.state.spec.parallel_block import Parallel
from hpcrun.state.spec.recovery_block import Recovery
from hpcrun.state.spec.role_block import Role
from hpcrun.state.spec.spec_dataclass import spec_dataclass, with_features
from hpcrun.state.spec.sweep_block import Sweep


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
    it, of the file ``latest``, or a number in its name, else the last one known. Null for
    ``recovery.resume.when``, or without it for ``checkpoint-*``, ``*.ckpt``, ``latest``,
    ``ckpt*.pt``, ``checkpoint*.pt*``."""

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
    """Each layer has this much of the next one's learning rate: ``0.8``; the last ones have all of
    it."""

    weight_decay_on: Literal["all", "matrices"] = "all"
    """The parameters whose weights decay; ``matrices`` leaves out biases and norms (less than two
    dimensions)."""

    ema: float | None = None
    """Keep an exponential moving average of the weights with this decay, such as ``0.999``, in fp32
    on every rank. Not for ZeRO 3 and models that are divided."""

    ema_every: int = 1
    """Optimizer steps between two updates of the average."""


@spec_dataclass
class Wandb:
    """Weights & Biases, by the package ``wandb`` of the job's Python. Each run is one of its runs,
    through all attempts."""

    project: str | None = None
    """The project; null for the experiment's name."""

    entity: str | None = None
    """The user or team; null for the account's default."""

    mode: Literal["online", "offline"] = "online"
    """``online`` sends to the server, with the ``WANDB_API_KEY`` of ``environment.secrets_file``;
    ``offline`` keeps what ``wandb sync`` sends later."""

    group: str | None = None
    """The runs' group; null for the experiment's name."""

    tags: list[str] = field(default_factory=list)
    """Tags of the runs."""


@spec_dataclass
class Mlflow:
    """MLflow, by the package ``mlflow`` or ``mlflow-skinny`` of the job's Python. Each run is one
    of its runs, through all attempts."""

    uri: str = ""
    """Its server or database: ``https://…``, ``sqlite:////shared/mlflow.db``;
    ``${oc.env:MLFLOW_TRACKING_URI}`` takes that of your shell. ``MLFLOW_TRACKING_PASSWORD`` or
    ``MLFLOW_TRACKING_TOKEN`` belong into ``environment.secrets_file``."""

    experiment: str | None = None
    """MLflow's experiment; null for this experiment's name."""

    tags: dict[str, str] = field(default_factory=dict)
    """Tags of the runs."""


@spec_dataclass
class Tracking:
    """Where the logged metrics go, beside the run's own files. This neither stops nor slows the
    training."""

    tensorboard: bool = False
    """Event files in the run's ``tracking/tensorboard``, by the package ``tensorboard`` of the
    job's Python."""

    wandb: Wandb | None = None
    """Weights & Biases; ``{}`` is enough, null is without."""

    mlflow: Mlflow | None = None
    """MLflow; ``{uri: …}`` is enough, null is without."""


@spec_dataclass
class Estimate:
    """What ``hpcrun estimate`` and the metric ``mfu`` are told of the model. Without it the
    function ``build_model(config)`` of a function's module is looked for, then a Hugging Face model
    in ``config``."""

    model: str | None = None
    """What makes the model: a function ``package.module:function`` or ``file.py:function`` that is
    called with ``config`` on the meta device and returns a ``torch.nn.Module``; or a Hugging Face
    name or directory."""

    parameters: str | None = None
    """The number of parameters instead, such as ``7.5B``; ``--parameters`` wins."""

    layers: int | None = None
    """Layers of a transformer. With ``hidden_size`` and ``sequence_length`` its activations are
    known by formula."""

    hidden_size: int | None = None
    """Width of a transformer."""

    heads: int | None = None
    """Attention heads of a transformer; only told."""

    vocabulary: int | None = None
    """Tokens that a language model knows."""

    sequence_length: int | None = None
    """Tokens of a sample; null for what the model or ``config`` says, and for no metric ``mfu``."""

    activation_checkpointing: bool | None = None
    """Whether the program computes activations again in backward; null for what
    ``config.gradient_checkpointing`` or ``deepspeed.pipeline.activation_checkpoint_interval``
    says."""

    total_steps: int | None = None
    """Optimizer steps of a run; null for what ``config`` or ``progress.total`` says."""

    timeout: str = "00:05:00"
    """How long following the model may take, in one of Slurm's forms."""


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
@with_features
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
