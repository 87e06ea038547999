"""The ``recovery`` block of a spec."""

from __future__ import annotations

from typing import Any, Literal

from hpcrun.shared_dataclass import field
from hpcrun.state.spec.spec_dataclass import spec_dataclass

# ``${hpcrun:…}`` for the newest match of ``resume.when``, for the directory that it lies in, and
# for the step or other number that it tells.
NEWEST, NEWEST_DIRECTORY, NEWEST_STEP = "newest", "newest_directory", "newest_step"


@spec_dataclass
class Resume:
    """How a script or command goes on from what it saved by itself, from attempt 2 on; the name of
    a recipe alone may be written as a string. ``status`` and ``why`` tell what was decided."""

    recipe: str | None = None
    """A recipe that ships, for what is not given here; ``none`` takes away that of
    ``framework``."""

    when: str | list[str] = field(default_factory=list)
    """Patterns of files or directories of which one must exist, relative to the working directory:
    ``out/checkpoint-*/trainer_state.json``, ``**/*.ckpt``. What was cut off as it was written does
    not count. Without any, an earlier attempt must have saved a step or left a file other than
    logs."""

    args: list[str] = field(default_factory=list)
    """Arguments added. ``${hpcrun:newest}`` is the newest match of ``when``, absolute,
    ``${hpcrun:newest_directory}`` the directory that it lies in, ``${hpcrun:newest_step}`` its
    step, else its epoch or the last number of its name."""

    instead: list[str] | None = None
    """Arguments in place of the spec's ``args``."""

    config: dict[str, Any] = field(default_factory=dict)
    """Keys of ``config`` that are replaced; null takes one away, from ``entry`` and ``args``
    too."""

    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the ranks, over ``environment.variables``."""


@spec_dataclass
class Grow:
    """What a run's next start asks of Slurm in place of what was too little: the job is requeued
    with more of it. Such an end counts for no budget. Not for the local executor and `hpcrun
    run`."""

    mem: float | None = None
    """Factor of `resources.mem` after a node's memory ran out (not a GPU's), such as 1.5."""

    time: float | None = None
    """Factor of `resources.time` after the time limit, such as 2."""

    most: dict[str, str] = field(default_factory=dict)
    """The most that may be asked for: ``{mem: 256G, time: "2-00:00:00"}``; without it, what Slurm
    takes. Then the run goes on with what it has."""


@spec_dataclass
class Recovery:
    """What happens when an attempt ends before the run is finished."""

    requeue: bool = True
    """Start the run again by itself, from its newest checkpoint: in its allocation, else by a
    requeue."""

    in_place: int = 2
    """How many times in a row, with no new checkpointed step, a run that failed is restarted in its
    allocation before it is requeued; 0 requeues it at once."""

    warm_after: str | None = "00:01:00"
    """How long a run trains, in one of Slurm's forms, before a second set of its ranks, of about
    300 MB each, is started, on spare nodes too, and waits for the next restart. For functions, and
    scripts with ``hpcrun.session()`` or steps that are read; null for none, as for one with a
    session that sets variables which torch reads as it is imported."""

    shrink: bool = False
    """Go on with fewer nodes where nodes were lost and no spare is left. The global batch stays, in
    micro batches that are no larger, and a requeue brings the full number back. The numerics change
    a little. Values that were interpolated from the batch or the nodes stay: ask
    ``session.deepspeed_config``."""

    shrink_micro_batch: int = 0
    """How many times a run that ended out of memory may halve its micro batch and accumulate the
    more. Such an end counts for nothing else. For functions, and programs that read
    ``${hpcrun:deepspeed_config}`` or ask ``session.deepspeed_config``; values that were
    interpolated from the batch stay."""

    grow: Grow | None = None
    """How much more is asked of Slurm after memory or time were too little."""

    max_failures: int = 3
    """Ends in a row that the run itself caused (a crash, out of memory, a time limit, …) and that
    brought no new checkpointed step, after which it stops."""

    budgets: dict[str, int] = field(default_factory=dict)
    """Kind of end -> how many of them stop the run, counted from its last submission. By default
    node_failure and bad_node 20, storage, supervisor_lost, rank_crash and hang 10, launch 5,
    out_of_memory, replicas_differ and unknown 3, bad_checkpoint 2, non_finite_loss and loss_spike 2
    (10 with ``skip``)."""

    hang_after: str | None = "00:05:00"
    """How long no rank may move while the run trains, in one of Slurm's forms, before it counts as
    hung and is restarted. Ten of its longest steps always fit in; a start, a save, a restore and
    one rank that moves have six times as long. Null for never, as for a server, or a program that
    waits by design. See docs/recovery.md, also for programs that do not use
    ``hpcrun.session()``."""

    stop_before: str | None = None
    """How long before its time limit a run is asked to save and leave, in one of Slurm's forms.
    Null for what its saves were measured to take, a minute at first."""

    stop_signal: str | None = None
    """Signal that tells a script or command to save and exit, such as ``SIGUSR1``; with null it is
    ended without one. Of ``SIGTERM``, ``SIGUSR1`` and ``SIGUSR2`` it begins with the others
    ignored. Programs that use ``hpcrun.session()`` need none."""

    resume: Resume | str | None = None
    """How a script or command goes on from what it saved by itself; null for what ``framework``
    says."""

    resume_args: list[str] = field(default_factory=list)
    """Short for ``resume: {args: […]}``, where an earlier attempt has saved something."""

    wandb: bool = True
    """A program that logs to Weights & Biases by itself finds ``WANDB_RUN_ID`` and
    ``WANDB_RESUME=allow`` in rank 0, so that all attempts are one of its runs. Not with
    ``tracking.wandb``."""

    check_replicas: int | Literal["auto"] | None = "auto"
    """Steps between two comparisons of what ranks hold alike; ``auto``: as many as keep the cost
    below a thousandth of the time, null for none. Ranks that differ end the attempt, and the run
    goes on from its last save. For ``hpcrun.session()``."""

    non_finite_steps: int = 3
    """Steps in a row with an infinite or undefined loss (or objective) after which the attempt
    fails; 0 for never."""

    on_nan: Literal["stop", "skip"] | None = None
    """What follows then. Null: the run goes back to its newest save, until the budget of
    non_finite_loss is spent. ``stop``: it stops at once. ``skip``: it goes back, and the global
    batch with which that began is left out; see docs/recovery.md. For samples of
    ``hpcrun.session()``."""

    on_spike: Literal["stop", "skip"] | None = None
    """The same where ``loss`` or ``gradient_norm`` is more than ``spike`` times the median of the
    last 50 steps (20 at least); null for never."""

    spike: float = 5.0
    """How many times the median is a spike; more than 1."""
