"""The blocks and keys of a spec.

The reference page docs/spec.md is generated from this file, the other blocks of this folder and
`hpcrun.state.environment`.
"""

from __future__ import annotations

from typing import Any, Literal

from hpcrun.shared_dataclass import field
from hpcrun.state.environment.environment_block import Environment
from hpcrun.state.spec.notify_block import Notify
from hpcrun.state.spec.parallel_block import Parallel
from hpcrun.state.spec.recovery_block import Recovery
from hpcrun.state.spec.run_blocks import (
    Checkpoint,
    Code,
    Objective,
    Optimization,
    Progress,
    Resources,
    Telemetry,
)
from hpcrun.state.spec.spec_dataclass import spec_dataclass, with_features
from hpcrun.state.spec.sweep_block import Sweep


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
class Dependency:
    """An experiment that comes before this one; ``spec: X`` alone may be written as ``X``."""

    spec: str = ""
    """Its spec, relative to this file."""

    when: Literal["success", "end"] = "success"
    """Wait until it has completed, or until it has ended in whatever way."""

    each: bool = False
    """Each run waits for the run of the same number alone, rather than for all of them."""


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
