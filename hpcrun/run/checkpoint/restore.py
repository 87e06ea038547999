"""Restoring: which checkpoint of a run its ranks go on from.

Every function here is collective: all ranks call it at the same point
(`hpcrun.run.rank.collectives`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcrun.errors import CheckpointError
from hpcrun.policy.retention import Retention
from hpcrun.run.checkpoint import checksums, deepspeed_io, rank_state, resize
from hpcrun.run.checkpoint.deepspeed_io import Unreadable, local_reads
from hpcrun.run.checkpoint.node_copy import Nearby
from hpcrun.run.checkpoint.save import Saver
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank.collectives import Together, raise_first
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths
from hpcrun.state.manifest import Fault, Manifest

# Seconds before each further look at a checkpoint that could not be read.
PAUSES = (1.0, 3.0)


class Store:
    """The checkpoints of one run, as one rank of one attempt sees them.

    Parameters
    ----------
    run
        The run's files.
    together
        The ranks of the attempt.
    fence
        Checked before a save begins and before it is committed.
    retention
        What is kept.
    nearby
        Those in the nodes' own storage, where there may be any.

    Attributes
    ----------
    saver
        Makes new ones.
    shared_step
        Finished steps of the one on shared storage that was restored; 0 where none was.
    """

    def __init__(
        self,
        run: RunPaths,
        attempt: int,
        together: Together,
        fence: AttemptFence,
        retention: Retention,
        nearby: Nearby | None = None,
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._together = together
        self._fence = fence
        self._passed_over: set[Path] = set()
        self._nearby = nearby
        self.shared_step = 0
        self.saver = Saver(run, attempt, together, fence, retention, self._passed_over)

    def restore(
        self,
        engine: Any,
        states: Mapping[str, Any],
        *,
        expected: bool,
        report: Callable[..., None] | None = None,
    ) -> tuple[int, str | None]:
        """Restore the newest checkpoint whose files are what its manifest says.

        One that is damaged is put aside as ``bad-…``. One that only cannot be read is tried again
        after a moment, and passed over. Then the one before it is tried.

        Parameters
        ----------
        expected
            The run has progress on record, so starting afresh would lose it.
        report
            Called on rank 0 for each one that is not used, as ``report("quarantined",
            checkpoint=NAME, message=WHY)`` or ``report("passed_over", …)``.

        Returns
        -------
        tuple
            The restored step and the checkpoint's name; ``(0, None)`` for a fresh start.

        Raises
        ------
        CheckpointError
            Nothing can be restored although the run has progress, or the checkpoint was made for
            another model, or for another number of ranks and cannot be divided anew.
        """
        expected = any(self._together.gather(expected))
        found, put_aside = self._from_rank_0(self._look)
        states = deepspeed_io.with_scaler(engine, states)
        faults: list[tuple[str, Fault]] = []
        for directory, entry in found:
            if isinstance(entry, Manifest):
                near = self._restore_nearby(engine, states, entry.step, faults)
                if near is not None:
                    return near
            tried = self._try_patiently(engine, states, directory, entry)
            if isinstance(tried, Manifest):
                self.shared_step = tried.step
                return tried.step, directory.name
            faults.append((directory.name, tried))
            self._pass_over(directory, tried, report)
        if (near := self._restore_nearby(engine, states, 0, faults)) is not None:
            return near
        if expected or faults or put_aside:
            whole = [name for name, fault in faults if not fault.lasting]
            reasons = "".join(f"\n  {name}: {fault.message}" for name, fault in faults)
            raise CheckpointError(
                f"{self._run.checkpoints} holds no checkpoint that can be restored, but this run "
                f"has made progress; it is not started again at step 0 by itself{reasons}",
                hint=f"{', '.join(whole)} may be whole: once it can be read, hpcrun requeue"
                if whole
                else "submit with --new to start afresh",
            )
        return 0, None

    def _restore_nearby(
        self,
        engine: Any,
        states: Mapping[str, Any],
        newer_than: int,
        faults: list[tuple[str, Fault]],
    ) -> tuple[int, str] | None:
        """Restore from the nodes' own storage; what cannot be used joins the faults, once."""
        near = self._nearby.find(newer_than) if self._nearby is not None else None
        if near is None:
            return None
        directory, entry = near
        name = f"{directory.name} of the nodes' storage"
        if name in dict(faults):
            return None
        try:
            fault = self._load_as_saved(engine, states, directory, entry.files)
        except CheckpointError as error:  # on all ranks
            fault = Fault(error.message, lasting=False)
        if fault is None:
            return entry.step, name
        faults.append((name, fault))
        if self._together.rank == 0:
            tell(f"{directory} cannot be used and is passed over: {fault.message}")
        return None

    def _look(self) -> tuple[list[tuple[Path, Manifest | Fault]], bool]:
        put_aside = bool(manifest.quarantined(self._run.checkpoints))
        return manifest.scan(self._run.checkpoints), put_aside

    def _try_patiently(
        self, engine: Any, states: Mapping[str, Any], directory: Path, entry: Manifest | Fault
    ) -> Manifest | Fault:
        """Restore one checkpoint; its manifest, or what is wrong with it."""
        for pause in (*PAUSES, None):
            fault = self._try(engine, states, directory, entry)
            if fault is None or fault.lasting or pause is None:
                break
            # A file server that restarts gives errors of a few seconds.
            time.sleep(pause)
            entry = self._from_rank_0(lambda: manifest.inspect(directory)) or entry
        return fault or entry

    def _try(
        self, engine: Any, states: Mapping[str, Any], directory: Path, entry: Manifest | Fault
    ) -> Fault | None:
        """Restore one checkpoint; what is wrong with it, on which all ranks agree."""
        if isinstance(entry, Fault):
            return entry
        fault = verify(directory, entry, self._together)
        if fault is not None:
            return fault
        if entry.world_size != self._together.world_size:
            return self._load_resized(engine, states, directory, entry)
        return self._load_as_saved(engine, states, directory, entry.files)

    def _load_as_saved(
        self, engine: Any, states: Mapping[str, Any], directory: Path, files: Iterable[str]
    ) -> Fault | None:
        """Restore what as many ranks saved; what is wrong with it."""
        with local_reads(engine) as rest:

            def load() -> tuple[Mapping[str, Any], Callable[[], None]]:
                path, _ = engine.load_checkpoint(str(directory.parent), tag=directory.name)
                if path is None:
                    raise CheckpointError("DeepSpeed loaded nothing")
                return rank_state.read(directory / rank_state.name(self._together.rank)), rest

            return self._load(load, states, directory, files)

    def _load_resized(
        self, engine: Any, states: Mapping[str, Any], directory: Path, entry: Manifest
    ) -> Fault | None:
        """Restore what another number of ranks saved; what is wrong with it."""
        if entry.fixed_size is not None:
            raise CheckpointError(
                f"{directory} was saved by {entry.world_size} ranks, and this attempt's "
                f"{self._together.world_size} cannot go on from it: {entry.fixed_size}",
                hint=f"ask for {entry.world_size} ranks again, or submit with --new",
            )
        if self._together.rank == 0:
            tell(f"{directory.name} of {entry.world_size} ranks is divided anew")
        own = resize.states_of_all(directory, entry.world_size, states, self._together)
        universal = self._run.universal(directory.name)
        rank = self._together.rank
        divided = engine.zero_optimization_stage() > 0
        if divided:
            log = self._run.attempt(self._attempt).conversion_log
            resize.convert(directory, universal, log, self._together)
        with (resize.local_reads if divided else local_reads)(engine) as rest:

            def load() -> tuple[Mapping[str, Any], Callable[[], None]]:
                frozen: dict[str, Any] = {}
                if divided:
                    frozen = resize.load(engine, directory, universal, rank)
                else:
                    engine.load_checkpoint(str(directory.parent), tag=directory.name)
                generators = None
                if rank < entry.world_size:
                    generators = rank_state.read(directory / rank_state.name(rank))["rng"]

                def all_of_it() -> None:
                    rest()
                    resize.scatter(engine, frozen)

                return {"rng": generators, "states": own}, all_of_it

            return self._load(load, resize.receivers(states), directory, entry.files)

    def _load(
        self,
        load: Callable[[], tuple[Mapping[str, Any], Callable[[], None]]],
        states: Mapping[str, Any],
        directory: Path,
        files: Iterable[str],
    ) -> Fault | None:
        """Have the engine load a checkpoint; what is wrong with it.

        Parameters
        ----------
        load
            Does what is not collective; the rank's own state, and the rest of the load.
        files
            The names of those that should be there.
        """
        fault, refusal = None, None
        saved: Mapping[str, Any] = {}
        rest: Callable[[], object] = bool
        try:
            saved, rest = load()
        except Unreadable as error:
            fault = Fault(str(error), lasting=False)
        except Exception as error:
            # Files that vanish meet an assertion or an index error in DeepSpeed.
            fault = _gone(directory, files)
            refusal = rank_state.text(error)
        answers = self._together.gather((fault, refusal))
        fault = _first([each for each, _ in answers])
        if fault is not None:
            return fault
        raise_first([each for _, each in answers], f"{directory} cannot be loaded")
        rest()
        wrong = rank_state.apply(saved, states, tells=self._together.rank == 0)
        self._together.agree(wrong, f"{directory} cannot be loaded")
        return None

    def _from_rank_0(self, ask: Callable[[], Any]) -> Any:
        return self._together.from_rank_0(ask, f"{self._run.checkpoints} cannot be read")

    def _pass_over(self, directory: Path, fault: Fault, report: Callable[..., None] | None) -> None:
        self._passed_over.add(directory)
        if self._together.rank != 0:
            return
        message = f"cannot be used this time and is passed over: {fault.message}"
        if fault.lasting:
            self._fence.check(always=True)
            message = f"is damaged and put aside: {fault.message}"
            try:
                target = manifest.quarantine(directory)
                if target.exists():
                    shutil.rmtree(target)
                directory.rename(target)
            except OSError as error:
                message = (
                    f"is damaged and passed over: {fault.message} (it cannot be put aside: "
                    f"{error.strerror})"
                )
        tell(f"{directory.name} {message}")
        if report is not None:
            event = "quarantined" if fault.lasting else "passed_over"
            report(event, checkpoint=directory.name, message=message)


def verify(directory: Path, entry: Manifest, together: Together) -> Fault | None:
    """The first damage that any rank finds; each rank reads its share of the files."""
    share = sorted(entry.files)[together.rank :: together.world_size]
    faults = (checksums.damage(directory, name, entry.files[name]) for name in share)
    return _first(together.gather(next((fault for fault in faults if fault), None)))


def _first(faults: list[Fault | None]) -> Fault | None:
    """That of the lowest rank, one that lasts before others."""
    found = [fault for fault in faults if fault is not None]
    return min(found, key=lambda fault: not fault.lasting, default=None)


def _gone(directory: Path, files: Iterable[str]) -> Fault | None:
    for name in files:
        if not (directory / name).exists():
            return Fault(f"{name} has vanished", lasting=False)
    return None
