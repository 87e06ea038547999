"""Saving: DeepSpeed says what, hpcrun writes it and decides when a checkpoint exists.

At once, or behind the training: then the ranks only copy their states to memory, and a thread of
each writes them while the training goes on. Either way the ranks agree that everything is durable
before the manifest lands. Every function here is collective (`hpcrun.run.rank.collectives`).
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcrun.errors import CheckpointError
from hpcrun.policy.retention import Retention
from hpcrun.run.checkpoint import checkpoint_files, checksums, deepspeed_io, rank_state, resize
from hpcrun.run.checkpoint.checkpoint_files import Memory
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import process_groups
from hpcrun.run.rank.collectives import Together, raise_first
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths
from hpcrun.state.manifest import File, Manifest

# What the thread that writes yields to the training, in nice levels.
_NICE = 10


@dataclass(frozen=True)
class Saved:
    """How a save ended.

    Attributes
    ----------
    step
        Of which it is.
    seconds
        From its beginning until the checkpoint was complete, or given up.
    manifest
        None where it failed.
    error
        Why it failed.
    """

    step: int
    seconds: float
    manifest: Manifest | None = None
    error: CheckpointError | None = None


class Saver:
    """The saves of one rank of one attempt.

    Parameters
    ----------
    passed_over
        Checkpoints that could not be restored, which do not count for ``retention``.
    """

    def __init__(
        self,
        run: RunPaths,
        attempt: int,
        together: Together,
        fence: AttemptFence,
        retention: Retention,
        passed_over: set[Path],
    ) -> None:
        self._run, self._attempt = run, attempt
        self._together, self._fence = together, fence
        self._retention, self._passed_over = retention, passed_over
        self._memories: list[Memory] = []
        self._thread: threading.Thread | None = None
        self._tidying: threading.Thread | None = None
        self._outcome: Saved | None = None

    def save(
        self, engine: Any, step: int, states: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> Manifest:
        """Save the engine, this rank's generators and ``states``; the manifest lands last.

        Parameters
        ----------
        engine
            A DeepSpeed engine.
        step
            Finished optimizer steps.
        states
            Names to objects with ``state_dict()``, saved per rank.
        metrics
            The last values of the run's metrics; rank 0's go into the manifest.

        Raises
        ------
        CheckpointError
            Some rank could not write; the older checkpoints are untouched.
        """
        draft = self._begin(engine, step, states, metrics)
        files: dict[str, File] = {}

        def write(state: Any, path: Path) -> None:
            files[path.name] = checkpoint_files.save(state, path)

        directory = self._run.checkpoint(step, self._attempt)
        error = hand_over(engine, states, directory, self._together.rank, write, files)
        return self._conclude(draft, files, error, self._together)

    def save_behind(
        self, engine: Any, step: int, states: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        """As `save`, but only the copy to memory is waited for; see `outcome`.

        The save before must have been waited for.

        Raises
        ------
        CheckpointError
            Some rank could not copy its state.
        """
        assert self._thread is None
        draft = self._begin(engine, step, states, metrics)
        directory = self._run.checkpoint(step, self._attempt)
        files: dict[str, File] = {}
        copies: dict[Path, Memory] = {}

        def copy(state: Any, path: Path) -> None:
            memory = copies[path] = copies.get(path) or self._memory(len(copies))
            memory.begin()
            checkpoint_files.save_into(memory, state)

        began = time.monotonic()
        error = hand_over(engine, states, directory, self._together.rank, copy, files)
        errors = self._together.gather(error)
        if any(errors):
            self._conclude(draft, files, error, self._together)
        behind = self._together.on(process_groups.of_the_saves())

        def write() -> None:
            with suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            found: Manifest | None = None
            failed: CheckpointError | None = None
            try:
                wrong: str | None = None
                try:
                    files.update({path.name: each.copy(path) for path, each in copies.items()})
                except Exception as problem:
                    wrong = rank_state.text(problem)
                found = self._conclude(draft, files, wrong, behind)
            except CheckpointError as problem:
                failed = problem
            except Exception as problem:  # a peer is gone
                failed = CheckpointError(f"step {step} was not saved: {problem}")
            self._outcome = Saved(step, time.monotonic() - began, found, failed)

        self._outcome = None
        self._thread = threading.Thread(target=write, name="hpcrun-save", daemon=True)
        self._thread.start()

    def outcome(self, *, patience: float | None = 0.0) -> Saved | None:
        """How the last `save_behind` ended, once; None while it goes on.

        Parameters
        ----------
        patience
            Seconds to wait for it; None until it has ended: then all ranks are told the same.
        """
        if self._thread is None:
            return None
        self._thread.join(patience)
        if self._thread.is_alive():
            return None
        self._thread = None
        return self._outcome

    def wait_for_removals(self) -> None:
        """Wait until old checkpoints are gone, which `save` and `save_behind` do not."""
        if self._tidying is not None:
            self._tidying.join()
            self._tidying = None

    def _memory(self, number: int) -> Memory:
        if number == len(self._memories):
            self._memories.append(Memory())
        return self._memories[number]

    def _begin(
        self, engine: Any, step: int, states: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> Manifest:
        """Make the directory; the manifest as far as it is known."""
        self._fence.check(always=True)
        self.wait_for_removals()
        directory = self._run.checkpoint(step, self._attempt)
        self._together.agree(self._make(directory), f"{directory} cannot be made")
        return Manifest(
            step=step,
            attempt=self._attempt,
            time=time.time(),
            world_size=self._together.world_size,
            zero_stage=int(engine.zero_optimization_stage()),
            train_batch_size=int(engine.train_batch_size()),
            files={},
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
            fixed_size=resize.refusal(engine),
            own_states=resize.own_states(states),
        )

    def _conclude(
        self,
        draft: Manifest,
        files: Mapping[str, File],
        error: str | None,
        together: Together,
    ) -> Manifest:
        """Agree that all ranks have written, and commit."""
        step = draft.step
        directory = self._run.checkpoint(step, self._attempt)
        gathered = together.gather((error, files))
        if together.rank == 0 and any(each is not None for each, _ in gathered):
            # All ranks are past writing. What there is would keep a full disk full.
            with suppress(OSError):
                manifest.discard(directory)
        raise_first([each for each, _ in gathered], f"step {step} was not saved")
        all_files = {name: file for _, part in gathered for name, file in part.items()}
        complete = replace(draft, files=all_files)
        wrong = self._commit(directory, complete) if together.rank == 0 else None
        together.agree(wrong, f"step {step} was not saved")
        if together.rank == 0:
            # To remove many gigabytes takes long, and the training waits for this.
            tidying = threading.Thread(target=self._tidy, name="hpcrun-tidy", daemon=True)
            try:
                tidying.start()
                self._tidying = tidying
            except RuntimeError:  # no more threads, or the interpreter is on its way out
                self._tidy()
        return complete

    def _make(self, directory: Path) -> str | None:
        if self._together.rank != 0:
            return None
        try:
            if manifest.read(directory) is not None:
                return "it is a complete checkpoint"
            if directory.exists():
                manifest.discard(directory)
            directory.mkdir(parents=True)
            for parent in (directory.parent, directory.parent.parent):
                manifest.sync_directory(parent)
        except OSError as error:
            return str(error)
        return None

    def _commit(self, directory: Path, complete: Manifest) -> str | None:
        """What went wrong, whatever it was: the other ranks wait to hear of it."""
        try:
            self._fence.check(always=True)
            complete.write(directory)
        except Exception as error:
            with suppress(OSError):
                manifest.discard(directory)
            return str(error)
        return None

    def _tidy(self) -> None:
        try:
            self._remove_what_is_not_kept()
        except OSError as error:
            tell(f"old checkpoints could not be removed: {error}")

    def _remove_what_is_not_kept(self) -> None:
        found = manifest.complete(self._run.checkpoints)
        sound = [(path, each) for path, each in found if path not in self._passed_over]
        unfinished = manifest.abandoned(self._run.checkpoints, self._attempt)
        for path in [*self._retention.superfluous(sound), *unfinished]:
            self._fence.check(always=True)
            manifest.discard(path)
        for trash in [self._run.universals, *manifest.trash(self._run.checkpoints)]:
            self._fence.check(always=True)
            shutil.rmtree(trash, ignore_errors=True)


def hand_over(
    engine: Any,
    states: Mapping[str, Any],
    directory: Path,
    rank: int,
    write: Callable[[Any, Path], None],
    files: dict[str, File],
) -> str | None:
    """Give all that a rank saves to ``write``; what went wrong.

    Parameters
    ----------
    directory
        Of the checkpoint, which exists.
    files
        Gets what a writer that is not torch's has written by itself.
    """
    errors: list[str] = []
    with deepspeed_io.redirected_writes(engine, write, errors) as others:
        engine.save_checkpoint(
            str(directory.parent), tag=directory.name, client_state={}, save_latest=False
        )
    try:
        state = rank_state.collect(deepspeed_io.with_scaler(engine, states))
        write(state, directory / rank_state.name(rank))
        for path in [*others, *deepspeed_io.offloaded(engine, directory, rank)]:
            files[str(path.relative_to(directory))] = checksums.describe(path, sync=True)
    except Exception as error:  # from the user's state_dict() too
        errors.append(rank_state.text(error))
    return errors[0] if errors else None
