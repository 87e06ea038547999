"""The session of a training function, as ``hpcrun.session()`` returns it.

It is small and optional. Outside hpcrun the same code runs with a session that restores nothing,
saves nothing and logs nowhere.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcrun.errors import EXIT_SAVED, HpcrunError, NonFiniteLossError, UsageError
from hpcrun.policy.retention import Retention
from hpcrun.run.checkpoint import init_weights, rank_state
from hpcrun.run.checkpoint.node_copy import NodeCopies
from hpcrun.run.checkpoint.own_settings import OwnSettings
from hpcrun.run.checkpoint.restore import CheckpointStore
from hpcrun.run.checkpoint.save_policy import SavePolicy
from hpcrun.run.health import bad_steps, progress
from hpcrun.run.health.bad_steps import BadSteps
from hpcrun.run.health.replica_check import ReplicaCheck
from hpcrun.run.parallel import engine_setup, train_batch
from hpcrun.run.profile import engine_metrics
from hpcrun.run.profile.engine_metrics import EngineMetrics
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.rank import (
    device_precision,
    model_blocks,
    optimization,
    process_groups,
    rng,
    samples,
    warm_up,
)
from hpcrun.run.rank.metrics import MetricsLog
from hpcrun.run.rank.rank_view import RankView
from hpcrun.run.rank.session_writer import versions
from hpcrun.run.weights import averaged_weights
from hpcrun.state import chosen_point, manifest
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.spec import profiling

# Seconds that a failing rank waits for an asynchronous save.
_LAST_SAVE = 10.0


class Session(RankView):
    """One rank's view of the attempt it belongs to.

    Attributes
    ----------
    config
        The entry's own ``config`` block, resolved and read-only.
    deepspeed_config
        The complete DeepSpeed configuration; a fresh copy at each access.
    rank, world_size, local_rank, local_world_size
        As in torch.distributed; 0, 1, 0, 1 outside a launcher.
    attempt
        The attempt's number, from 1; 0 outside hpcrun.
    directory
        The run's directory on shared storage; None outside hpcrun.
    scratch
        A node-local directory that is removed when the attempt ends; None outside hpcrun.
    seed
        ``config.seed``, or 0.
    restored_step
        Finished optimizer steps that `restore` found; None before it was called.
    """

    def __init__(self, launch: Launch | None, total_steps: int | None = None) -> None:
        super().__init__(launch)
        self.total_steps = total_steps
        self.restored_step: int | None = None
        self._states: dict[str, Any] = {}
        self._last_step = 0
        self._step_began = time.perf_counter()
        self._own_seconds = self._step_seconds = 0.0
        self._metrics: MetricsLog | None = None
        self._progress = progress.writer(self.scratch, self.rank)
        self._measured = EngineMetrics(self._spec.spec.get("estimate") or {}, self)
        self._store: CheckpointStore | None = None
        self._saves: SavePolicy | None = None
        fence = self._fence
        if launch and self.scratch and fence:
            checkpoint, recovery = self._spec.checkpoint, self._spec.recovery
            watched = frozenset({"loss", self._spec.effective_objective.metric})
            self._bad_steps = BadSteps(recovery, watched, self)
            self._metrics = MetricsLog(
                launch.paths.metrics,
                self.rank,
                self.world_size,
                fence,
                self._bad_steps.judge,
                ScratchPaths(self.scratch).stop.exists,
            )
            copies = NodeCopies.of(launch, self._ranks, self.scratch)
            retention = Retention.of(self._spec)
            run, attempt = launch.run_paths, launch.attempt
            every, node = recovery.check_replicas, launch.own_node.name
            self._replicas = ReplicaCheck(self._ranks, self.layout, node, every)
            self._store = CheckpointStore(run, attempt, self._ranks, fence, retention, copies)
            self._saves = SavePolicy(
                self._store.saver,
                self._ranks,
                self._metrics,
                self._events,
                self._progress,
                self._replicas,
                self._bad_steps,
                every=checkpoint.every,
                asynchronous=checkpoint.asynchronous,
                node_copies=copies,
            )
            stop_flag.outlive_signals(self.scratch)

    def initialize(
        self, *, model: Any, loss: Callable[..., Any] | None = None, **arguments: Any
    ) -> tuple[Any, Any, Any, Any]:
        """``deepspeed.initialize`` by this run's configuration and ``parallel``; collective.

        Parameters
        ----------
        model
            A ``torch.nn.Module`` that returns the loss; with ``loss``, one that returns outputs. A
            pipeline is made of a ``torch.nn.Sequential``.
        loss
            A function of the model's outputs and the labels.
        **arguments
            Anything else that ``deepspeed.initialize`` takes.

        Returns
        -------
        tuple
            engine, optimizer, data loader and learning rate scheduler, as DeepSpeed returns them.

        Raises
        ------
        UsageError
            The model cannot be divided so, or would train wrong without a word; the rank's GPU
            lacks the precision that is asked for (`device_precision`).
        """
        import deepspeed

        if self._launch is not None and "config" not in arguments:
            arguments["config"] = samples.without_auto(self.deepspeed_config)
        if self.world_size > 1 or self._launch is not None:
            deepspeed.init_distributed(dist_init_required=None)
        device_precision.check(self._spec.spec, arguments.get("config"), self.device)
        model = device_precision.in_fp8(model, self._spec.spec)
        wanted, config = self._spec.optimization, arguments.get("config")
        stage = engine_setup.checked_stage(self._spec.spec, config)
        model_blocks.compile_each(model, wanted, self.device, stage=stage)
        arguments = optimization.fill(model, arguments, wanted)
        made = engine_setup.initialize(model, loss, arguments, self.layout)
        self._engine = made[0]
        return made

    def restore(self, engine: Any, loader: Any = None, **states: Any) -> int:
        """Restore the newest complete checkpoint, on which all ranks agree.

        Without one, the model gets the weights of ``checkpoint.initialize_from``, where given.

        Parameters
        ----------
        engine
            The DeepSpeed engine.
        loader, **states
            Anything with ``state_dict()`` and ``load_state_dict()``; saved and restored per rank.

        Returns
        -------
        int
            Finished optimizer steps; 0 for a fresh start.

        Raises
        ------
        CheckpointError
            There was progress and none of it can be restored.
        """
        if not hasattr(engine, "save_checkpoint"):
            raise UsageError(
                f"session.restore(): found a {type(engine).__name__}, which is no engine",
                hint="give it what session.initialize(…), fully_shard(…) or replicas(…) returns",
            )
        if self.restored_step is not None:
            raise UsageError(
                "session.restore() was called a second time: a session saves and restores the one "
                "engine of its first",
                hint="train what belongs together as one torch.nn.Module in one engine; anything "
                "else with a state goes into the same call: session.restore(engine, other=…)",
            )
        self._engine = engine
        self._states = {**({"loader": loader} if loader is not None else {}), **states}
        rank_state.check(self._states)
        if self._saves is not None:
            self._bad_steps.check_source(has_own_loader=loader is not None)
            if self._spec.recovery.on_spike is not None:
                self._states[bad_steps.STATE] = self._bad_steps
        self._averaged = averaged_weights.of(self._spec.optimization, engine, self.rank)
        if self._averaged is not None:
            # First, as restoring it is collective, and a state of the user's may fail.
            self._states = {averaged_weights.STATE: self._averaged, **self._states}
        engine_setup.check_division(engine, self.layout)
        step, began = 0, time.perf_counter()
        name: str | None = None
        if self._launch is not None and self._store is not None and self._saves is not None:
            write = self._events.write
            with self._progress.during(progress.RESTORING):
                has_parent = chosen_point.parent_of(self._spec) is not None
                expected = has_parent or self._events.has_progress()
                own = OwnSettings(engine, self._states) if has_parent else None
                step, name = self._store.restore(
                    engine, self._states, expected=expected, report=write
                )
                if own is not None and name is not None and manifest.is_inherited(name):
                    own.put_back()
                origin = self._spec.checkpoint.initialize_from
                if name is None and origin is not None:
                    run = self._launch.run_paths
                    path, at = init_weights.initialize(engine, origin, run, self._ranks)
                    write("initialized", checkpoint=str(path), step=at)
            self._saves.step = self._store.shared_step
        self.restored_step = self._last_step = step
        self._measured.begin(engine)
        if self.rank == 0:
            train_batch.watch_mode(engine)
        seconds = time.perf_counter() - began
        self._events.write("restored", step=step, checkpoint=name, seconds=seconds)
        self._step_began = time.perf_counter()
        return step

    def steps(self, total: int) -> Iterator[int]:
        """Yield the optimizer steps still to do: restored step + 1, …, total.

        Before each step, Python, NumPy and torch are seeded from (seed, step, rank); after it, the
        metrics go out and a checkpoint is saved if due. The last step is always saved. When the run
        is asked to stop, all ranks save after the same step and leave with ``SystemExit(75)``.

        Parameters
        ----------
        total
            Optimizer steps in the whole run.

        Raises
        ------
        HpcrunError
            `restore` was not called, or the loop's body did not take exactly one optimizer step.
        NonFiniteLossError, LossSpikeError, ReplicasDifferError
            As ``recovery.non_finite_steps``, ``on_spike`` and ``check_replicas`` say.
        """
        if self.restored_step is None:
            raise HpcrunError(
                "session.steps() was called before session.restore(engine)",
                hint="call session.restore(engine) after session.initialize(…)",
            )
        self._announce(total)
        for step in range(self.restored_step + 1, total + 1):
            self._step_began = time.perf_counter()
            # Ranks of a tensor group have the same activations, so also the same dropout.
            rng.seed_all(
                rng.derive(self.seed, step, self.rank - self.layout.place(self.rank, "tensor"))
            )
            self._own_seconds += time.perf_counter() - self._step_began
            yield step
            began = time.perf_counter()
            taken = int(self._engine.global_steps)
            if taken != step:
                raise HpcrunError(
                    f"after step {step} the engine counts {taken} optimizer steps",
                    hint="call engine.step() once for each of session.micro_batches(step)",
                )
            self._after_step(step, began)
        self._save_last()
        self._progress.write(progress.ENDING)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log metrics of a finished step.

        Parameters
        ----------
        metrics
            Names to numbers (rank 0's are kept) or one-element tensors (averaged over all ranks).
            Every rank gives the same names in the same order.
        step
            The optimizer step, from 1.
        """
        if self._metrics is None:
            return
        began = time.perf_counter()
        self._metrics.log(metrics, step)
        self._progress.write(self._progress.phase, step)
        self._own_seconds += time.perf_counter() - began

    def step(self, metrics: Mapping[str, Any] | None = None) -> None:
        """Log, and save if due, in a loop of one's own: call it after ``engine.step()``.

        Acts only when ``engine.global_steps`` has changed, so that it may be called inside an
        accumulation loop.

        Raises
        ------
        HpcrunError
            `restore` was not called.
        """
        if self.restored_step is None:
            raise HpcrunError(
                "session.step() was called before session.restore(engine)",
                hint="call session.restore(engine, loader=…) before the loop",
            )
        taken = int(self._engine.global_steps)
        if self._store is None or taken == self._last_step:
            return
        if self._last_step == self.restored_step and self.total_steps is not None:
            self._announce(self.total_steps)
        if metrics:
            self.log(metrics, taken)
        self._after_step(taken, time.perf_counter())
        if taken == self.total_steps:
            self._save_last()
            self._progress.write(progress.ENDING)

    def save(self) -> None:
        """Save a checkpoint of the step that the engine has just taken; collective.

        Nothing is saved while the loss or a weight is not finite: such a checkpoint would replace
        a good one. (With ZeRO 3, whose parts are padded, only the loss is checked.)

        Raises CheckpointError if some rank could not write.
        """
        if self._saves is None:
            return
        # In the body of the loop the engine is a step ahead.
        step = max(self._last_step, int(getattr(self._engine, "global_steps", 0)))
        if self._metrics is not None and step > self._last_step:
            self._metrics.log(engine_metrics.norm(self._engine), step, spare=True)
            self._bad_steps.note(self._engine, step, self._metrics)
        self._saves.save(self._engine, step, self._states)

    def leave(self, *, failing: bool | None = None) -> None:
        """Write pending metrics and saves as the process ends, since loops stop when they like.

        Other ranks may be gone, so this waits for them a moment at most. Then gloo's threads get
        time to end: one that drops its last tensor during the interpreter's teardown aborts the
        rank (pytorch#190489), and destroying the groups ends no thread while DeepSpeed holds them.
        With ``failing``, this rank leaves while its peers do not; None: if an exception was raised.
        """
        if self._metrics is not None and self._saves is not None:
            if failing is None:
                failing = hasattr(sys, "last_value")
            self._saves.wait(_LAST_SAVE if failing else None)
            self._metrics.leave(patience=0.5, failing=failing)
        if process_groups.distributed():
            time.sleep(process_groups.GLOO_SETTLES)

    def finish(self) -> None:
        """Write what is pending and mark the run finished, once the entry has returned."""
        self._last_step = max(self._last_step, self.finished_steps)
        if self._saves is not None:
            can_save = self.world_size == 1 or process_groups.distributed()
            # Of a rank that left from inside of a save the others take the next one for this.
            can_save = can_save and not self._saves.is_under_way
            is_profile = self._spec.spec.get(profiling.KEY)
            if can_save and not is_profile and self.restored_step not in (None, self._last_step):
                # What a loop that was left early did after its last save.
                self._save_last()
            self._saves.wait()
        self._progress.write(progress.ENDING)
        if self._metrics is not None:
            self._metrics.flush()
        process_groups.barrier()
        spent = {"step_seconds": self._step_seconds, "own_seconds": self._own_seconds}
        self._events.write("finished", step=self._last_step, **spent)
        for file in (self._metrics, self._events):
            if file is not None and file.error:
                raise file.error

    def _after_step(self, step: int, began: float) -> None:
        if self._last_step == self.restored_step and self._launch and self.rank == 0:
            warm_up.note_modules(self._launch)
        self._last_step = step
        if self._averaged is not None:
            self._averaged.update(step)
        self._progress.write(progress.STEPPING, step)
        if self._metrics is None or self._saves is None:
            return
        seconds = {"step_seconds": began - self._step_began}
        waited = self._waits.after_step(step, self._loaders, seconds["step_seconds"])
        if waited is not None:
            seconds["data_seconds"] = waited
        self._metrics.log(seconds, step)
        known = self._measured.after_step(self._engine, seconds["step_seconds"])
        self._metrics.log(known, step, spare=True)
        self._bad_steps.after_step(self._engine, step, self._metrics)
        self._replicas.after_step(self._engine, step, began - self._step_began)
        last = step == self.total_steps
        leaving = self._metrics.stop_agreed(step) and not last
        self._own_seconds += time.perf_counter() - began
        self._step_seconds += time.perf_counter() - self._step_began
        self._saves.after_step(self._engine, step, self._states, leaving=leaving, last=last)
        if leaving:
            stop_flag.leave(self.scratch)
            self._events.write("left", step=step)
            raise SystemExit(EXIT_SAVED)
        self._step_began = time.perf_counter()

    def _save_last(self) -> None:
        if self._metrics is not None:
            self._metrics.flush()
            self._bad_steps.check(most=1)
        if self._last_step:
            self.save()
            if self._saves is not None and self._saves.step < self._last_step:
                raise NonFiniteLossError(
                    f"after step {self._last_step}, the last, the weights are not finite, and were "
                    "not saved",
                    hint="lower the learning rate or clip gradients, and log the loss at each "
                    "step, which ends a run as it begins",
                )

    def _announce(self, total: int) -> None:
        self.total_steps = total
        size, loaded = self.world_size, versions()
        self._events.write("started", total_steps=total, world_size=size, versions=loaded)


def session(total_steps: int | None = None) -> Session:
    """Return the session of this process.

    Parameters
    ----------
    total_steps
        Optimizer steps in the whole run, for a loop of one's own that calls ``session.step``.
    """
    launch = Launch.current()
    if launch is not None and not launch.is_main:
        raise UsageError(
            f"role {launch.role!r} asks for hpcrun.session(), which the main role alone has"
        )
    current = Session(launch, total_steps)
    atexit.register(current.leave)
    return current
