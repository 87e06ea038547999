"""Saves of checkpoints: hpcrun writes DeepSpeed's state, then the manifest.

A save is synchronous or asynchronous: then the ranks only copy their states to memory, and a thread
of each writes them while the training goes on. Either way the ranks agree that everything is
durable before the manifest lands. All methods are collective.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.errors import CheckpointError
from hpcrun.policy.retention import Retention
from hpcrun.run.checkpoint import checkpoint_files, deepspeed_io, rank_state, resize
from hpcrun.run.checkpoint.checkpoint_files import MemoryFile
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import process_groups
from hpcrun.run.rank.collectives import Collectives, raise_first
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths
from hpcrun.state.manifest import Fault, File, Manifest

# Nice levels that the writing thread adds to the training's.
_NICE = 10


@dataclass(frozen=True)
class SaveOutcome:
    """The end of an asynchronous save: ``manifest`` or ``error``, and the seconds it took."""

    step: int
    seconds: float
    manifest: Manifest | None = None
    error: CheckpointError | None = None


class CheckpointSaver:
    """The saves of one rank of one attempt.

    ``passed_over`` are checkpoints that could not be restored; they do not count for ``retention``.
    """

    def __init__(
        self,
        run: RunPaths,
        attempt: int,
        ranks: Collectives,
        fence: AttemptFence,
        retention: Retention,
        passed_over: set[Path],
    ) -> None:
        self._run, self._attempt = run, attempt
        self._ranks, self._fence = ranks, fence
        self._retention, self._passed_over = retention, passed_over
        self._memories: list[MemoryFile] = []
        self._writer: threading.Thread | None = None
        self._removal: threading.Thread | None = None
        self._outcome: SaveOutcome | None = None
        self._began = time.monotonic()
        # Rank 0's, without their files.
        self._known: dict[Path, Manifest] = {}

    def save(
        self, engine: Any, step: int, states: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> Manifest:
        """Save the engine, this rank's generators and ``states``; the manifest lands last.

        ``states`` have a ``state_dict()`` and are saved per rank; rank 0's ``metrics`` go into the
        manifest, which has all files on rank 0, and on another rank its own. Raises
        CheckpointError if some rank could not write; older checkpoints stay.
        """
        draft = self._begin(engine, step, states, metrics)
        files: dict[str, File] = {}

        def write(state: Any, path: Path) -> None:
            files[path.name] = checkpoint_files.save(state, path)

        directory = self._run.checkpoint(step, self._attempt)
        error = write_shards(engine, states, directory, self._ranks.rank, write, files)
        return self._conclude(draft, files, error, self._ranks)

    def save_async(
        self, engine: Any, step: int, states: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        """As `save`, but wait for the copy to memory only; `outcome` returns how it ended.

        The save before must have been waited for. Raises `CheckpointError` if some rank could not
        copy its state.
        """
        assert self._writer is None
        draft = self._begin(engine, step, states, metrics)
        directory = self._run.checkpoint(step, self._attempt)
        files: dict[str, File] = {}
        copies: dict[Path, MemoryFile] = {}

        def copy(state: Any, path: Path) -> None:
            if path not in copies:
                if len(copies) == len(self._memories):
                    self._memories.append(MemoryFile())
                copies[path] = self._memories[len(copies)]
            copies[path].begin()
            checkpoint_files.save_into(copies[path], state)

        began = time.monotonic()
        error = write_shards(engine, states, directory, self._ranks.rank, copy, files)
        if self._ranks.first(error) is not None:
            self._conclude(draft, files, error, self._ranks)
        ranks = self._ranks.on(process_groups.own_group(process_groups.SAVES))

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
                found = self._conclude(draft, files, wrong, ranks)
            except CheckpointError as problem:
                failed = problem
            except Exception as problem:  # a peer is gone
                failed = CheckpointError(f"step {step} was not saved: {problem}")
            self._outcome = SaveOutcome(step, time.monotonic() - began, found, failed)

        self._outcome = None
        self._writer = threading.Thread(target=write, name="hpcrun-save", daemon=True)
        self._writer.start()

    def outcome(self, *, patience: float | None = 0.0) -> SaveOutcome | None:
        """Return once how the last `save_async` ended; None if it goes on after some seconds.

        With ``patience=None``, wait until it has ended: then the outcome is the same on all ranks.
        """
        if self._writer is None:
            return None
        self._writer.join(patience)
        if self._writer.is_alive():
            return None
        self._writer = None
        return self._outcome

    def wait_for_removals(self) -> None:
        """Wait until old checkpoints are removed, which happens after a save in the background."""
        if self._removal is not None:
            self._removal.join()
            self._removal = None

    def _begin(
        self, engine: Any, step: int, states: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> Manifest:
        """Make the directory, and return the manifest without its files."""
        self._fence.check(always=True)
        self.wait_for_removals()
        self._ranks.doing = f"saving step {step}"
        directory = self._run.checkpoint(step, self._attempt)
        self._ranks.agree(self._make(directory), f"{directory} cannot be made")
        # Rank 0's host has made it; others may believe that it, or one above it, is absent.
        shared_look.refresh(directory)
        return Manifest(
            step=step,
            attempt=self._attempt,
            time=time.time(),
            world_size=self._ranks.world_size,
            zero_stage=int(engine.zero_optimization_stage()),
            train_batch_size=int(engine.train_batch_size()),
            files={},
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
            fixed_size=resize.refusal(engine),
            parallel=deepspeed_io.parallel(engine),
            own_states=resize.own_states(states),
        )

    def _conclude(
        self, draft: Manifest, files: Mapping[str, File], error: str | None, ranks: Collectives
    ) -> Manifest:
        """Agree that all ranks have written, and commit; rank 0's manifest has all files.

        What rank 0 needs of the others goes up a tree, and the verdict down again.
        """
        step = draft.step
        directory = self._run.checkpoint(step, self._attempt)
        own = None if error is None else (ranks.rank, error)
        ranks.doing = f"completing the checkpoint of step {step}"
        everyone = ranks.reduce(
            (own, dict(files)), lambda one, other: (one[0] or other[0], {**one[1], **other[1]})
        )
        complete = replace(draft, files=dict(files))
        wrong: tuple[int, str] | None = None
        if ranks.rank == 0:
            wrong, all_files = everyone
            complete = replace(draft, files=all_files)
            if wrong is not None:
                # No rank writes any more, and what there is would keep a full disk full.
                with suppress(OSError):
                    manifest.discard(directory)
            elif (problem := self._commit(directory, complete)) is not None:
                wrong = 0, problem
        raise_first(ranks.from_rank_0(lambda: wrong, str(directory)), f"step {step} was not saved")
        if ranks.rank == 0:
            self._known[directory] = replace(complete, files={})
            # In the background: many gigabytes take long to remove.
            removal = threading.Thread(target=self._remove_old, name="hpcrun-tidy", daemon=True)
            try:
                removal.start()
                self._removal = removal
            except RuntimeError:  # no more threads, or the interpreter is on its way out
                self._remove_old()
        return complete

    def _make(self, directory: Path) -> str | None:
        if self._ranks.rank != 0:
            return None
        try:
            if manifest.read(directory) is not None:
                return "it is a complete checkpoint"
            with suppress(FileNotFoundError):
                manifest.discard(directory)
            directory.mkdir(parents=True)
            for parent in (directory.parent, directory.parent.parent):
                manifest.sync_directory(parent)
        except OSError as error:
            return str(error)
        return None

    def _commit(self, directory: Path, complete: Manifest) -> str | None:
        """Write the manifest; return any error, since the other ranks wait for the outcome."""
        try:
            self._fence.check(always=True)
            complete.write(directory)
        except Exception as error:
            with suppress(OSError):
                manifest.discard(directory)
            return str(error)
        return None

    def _remove_old(self) -> None:
        try:
            found = self._complete()
            sound = [(path, each) for path, each in found if path not in self._passed_over]
            # A later one of an earlier attempt may be whole: another host's, not seen here yet.
            settled = time.monotonic() - self._began > shared_look.SEEN_WITHIN
            newest = math.inf if settled or not found else found[0][1].step
            unfinished = manifest.abandoned(
                self._run.checkpoints, self._attempt, newest, dict(found).keys()
            )
            for path in [*self._retention.superfluous(sound), *unfinished]:
                self._fence.check(always=True)
                manifest.discard(path)
            for trash in [self._run.universals, *manifest.trash(self._run.checkpoints)]:
                self._fence.check(always=True)
                manifest.remove(trash)
        except OSError as error:
            tell(f"old checkpoints could not be removed: {error}")

    def _complete(self) -> list[tuple[Path, Manifest]]:
        """Return the complete checkpoints, newest first, without their files.

        A manifest does not change: each is read once, and then looked for.
        """
        known: dict[Path, Manifest] = {}
        for path in manifest.newest_first(self._run.checkpoints):
            entry: Manifest | Fault | None = self._known.get(path)
            if entry is None or not shared_look.is_there(path / manifest.NAME):
                entry = manifest.inspect_named(path)
            if isinstance(entry, Manifest):
                known[path] = replace(entry, files={})
        self._known = known
        return list(known.items())


def write_shards(
    engine: Any,
    states: Mapping[str, Any],
    directory: Path,
    rank: int,
    write: Callable[[Any, Path], None],
    files: dict[str, File],
) -> str | None:
    """Pass all that a rank saves to ``write``; return the first error, or None.

    Files that DeepSpeed writes past ``write`` (another writer than torch's, NVMe offload) are added
    to ``files``.
    """
    errors: list[str] = []
    with deepspeed_io.redirected_writes(engine, write, errors) as others:
        engine.save_checkpoint(
            str(directory.parent), tag=directory.name, client_state={}, save_latest=False
        )
    try:
        state = rank_state.collect(deepspeed_io.with_scaler(engine, states))
        write(state, directory / rank_state.name(rank))
        for path in [*others, *deepspeed_io.nvme_files(engine, directory, rank)]:
            files[str(path.relative_to(directory))] = checkpoint_files.describe(path, sync=True)
    except Exception as error:  # from the user's state_dict() too
        errors.append(rank_state.text(error))
    return errors[0] if errors else None
