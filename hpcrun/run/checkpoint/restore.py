"""Restoring of the newest sound checkpoint of a run, on all ranks alike.

All functions are collective (`hpcrun.run.rank.collectives`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from hpcrun import shared_look
from hpcrun.errors import CheckpointError
from hpcrun.policy.retention import Retention
from hpcrun.run.checkpoint import (
    checkpoint_files,
    deepspeed_io,
    rank_state,
    resize,
    shard_files,
    trust,
)
from hpcrun.run.checkpoint.deepspeed_io import UnreadableFile, local_reads
from hpcrun.run.checkpoint.node_copy import NodeCopies
from hpcrun.run.checkpoint.save import CheckpointSaver
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank.collectives import Collectives, raise_first
from hpcrun.shared_look import is_there
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths
from hpcrun.state.manifest import Fault, File, Manifest

# Seconds before each retry of a checkpoint that could not be read.
PAUSES = (1.0, 3.0)


class CheckpointStore:
    """The checkpoints of one run, as one rank of one attempt sees them.

    ``saver`` makes new ones; ``shared_step`` has the finished steps of the restored one on shared
    storage, 0 without one.
    """

    def __init__(
        self,
        run: RunPaths,
        attempt: int,
        ranks: Collectives,
        fence: AttemptFence,
        retention: Retention,
        node_copies: NodeCopies | None = None,
    ) -> None:
        self._run, self._attempt = run, attempt
        self._ranks, self._fence, self._node_copies = ranks, fence, node_copies
        self._passed_over: set[Path] = set()
        self._engine: Any = None
        self._states: Mapping[str, Any] = {}
        # Of the checkpoint that is tried: all its files, on rank 0, and DeepSpeed's numbers.
        self._whole: Manifest | Fault = Fault("no checkpoint was looked for")
        self._mp_ranks: Sequence[str] = ()
        self.shared_step = 0
        self.saver = CheckpointSaver(run, attempt, ranks, fence, retention, self._passed_over)

    def restore(
        self,
        engine: Any,
        states: Mapping[str, Any],
        *,
        expected: bool,
        report: Callable[..., None] | None = None,
    ) -> tuple[int, str | None]:
        """Restore the newest checkpoint whose files match its manifest.

        A damaged checkpoint is quarantined as ``bad-…``; one that cannot be read is retried after
        a moment, and then passed over. The next older one follows. For each of them, rank 0 calls
        ``report("quarantined" or "passed_over", checkpoint=NAME, message=WHY)``.

        Returns its step and name; ``(0, None)`` for a fresh start. Raises CheckpointError if
        nothing can be restored although the run has progress (``expected``: on record), or the
        checkpoint was made for another model, or for another number of ranks and cannot be divided
        anew.
        """
        expected = self._ranks.first(expected or None) is not None
        checkpoints = self._run.checkpoints
        found: Iterator[tuple[Path, Manifest | Fault]] = iter(())

        def look() -> bool:
            nonlocal found
            put_aside, found = _look(checkpoints, expected=expected)
            return put_aside

        put_aside = self._ranks.from_rank_0(look, self._unreadable)
        self._engine, self._states = engine, deepspeed_io.with_scaler(engine, states)
        faults: dict[str, Fault] = {}
        while (newest := self._share(lambda: next(found, None))) is not None:
            directory, entry = newest
            if isinstance(entry, Manifest):
                near = self._restore_from_nodes(entry.step, faults)
                if near is not None:
                    return near
            tried = self._try(directory, entry)
            if isinstance(tried, Manifest):
                self.shared_step = tried.step
                return tried.step, directory.name
            faults[directory.name] = tried
            self._pass_over(directory, tried, report)
        if (near := self._restore_from_nodes(0, faults)) is not None:
            return near
        if expected or faults or put_aside:
            whole = [name for name, fault in faults.items() if not fault.lasting]
            reasons = "".join(f"\n  {name}: {fault.message}" for name, fault in faults.items())
            raise CheckpointError(
                f"{checkpoints} holds no checkpoint that can be restored, but this run "
                f"has made progress; it is not started again at step 0 by itself{reasons}",
                hint=f"{', '.join(whole)} may be whole: once it can be read, hpcrun requeue"
                if whole
                else "submit with --new to start afresh",
            )
        return 0, None

    def _restore_from_nodes(
        self, newer_than: int, faults: dict[str, Fault]
    ) -> tuple[int, str] | None:
        """Restore from the nodes' own storage; add copies that cannot be used to the faults."""
        if self._node_copies is None or (near := self._node_copies.find(newer_than)) is None:
            return None
        directory, entry = near
        name = f"{directory.name} of the nodes' storage"
        if name in faults:
            return None
        try:
            fault = self._load_as_saved(directory, entry.files, None)
        except CheckpointError as error:  # on all ranks
            fault = Fault(error.message, lasting=False)
        if fault is None:
            return entry.step, name
        faults[name] = fault
        if self._ranks.rank == 0:
            tell(f"{directory} cannot be used and is passed over: {fault.message}")
        return None

    def _try(self, directory: Path, entry: Manifest | Fault) -> Manifest | Fault:
        """Restore one checkpoint, with retries; return its manifest, or its fault.

        ``entry`` has this rank's share of the files.
        """
        for pause in (*PAUSES, None):
            fault: Fault | None
            if isinstance(entry, Fault):
                fault = entry
            elif (foreign := self._strangers(directory, entry)) is not None:
                return foreign
            elif (fault := verify(directory, entry, self._ranks)) is None:
                same = entry.world_size == self._ranks.world_size
                if same and entry.parallel == deepspeed_io.parallel(self._engine):
                    fault = self._load_as_saved(directory, entry.files, self._mp_ranks)
                else:
                    fault = self._load_resized(directory, entry)
            if fault is None or fault.lasting or pause is None:
                break
            # A file server that restarts gives errors of a few seconds.
            time.sleep(pause)
            shared = self._share(lambda: (directory, manifest.inspect(directory) or self._whole))
            entry = shared[1] if shared else entry
        return fault or entry

    def _share(
        self, ask: Callable[[], tuple[Path, Manifest | Fault] | None]
    ) -> tuple[Path, Manifest | Fault] | None:
        """Return the checkpoint that ``ask`` finds on rank 0, with each rank's share of its files.

        No other rank reads a manifest, or is sent all of one.
        """

        def divide() -> list[Any]:
            found = ask()
            if found is not None:
                self._whole = found[1]
            if found is None or isinstance(found[1], Fault):
                return [(found, ())] * self._ranks.world_size
            _check_maker(self._engine, found[0], found[1])
            mp_ranks = deepspeed_io.mp_ranks(found[1].files)
            parts = shares(found[1], self._ranks.world_size)
            return [((found[0], part), mp_ranks) for part in parts]

        found: tuple[Path, Manifest | Fault] | None
        found, self._mp_ranks = self._ranks.scatter_from_rank_0(divide, self._unreadable)
        return found

    def _load_as_saved(
        self, directory: Path, files: Iterable[str], mp_ranks: Sequence[str] | None
    ) -> Fault | None:
        """Restore a checkpoint of the same number of ranks; return its fault, if any."""
        with local_reads(self._engine, mp_ranks) as rest:

            def load() -> tuple[Mapping[str, Any], Callable[[], None]]:
                path, _ = self._engine.load_checkpoint(str(directory.parent), tag=directory.name)
                if path is None:
                    raise CheckpointError("DeepSpeed loaded nothing")
                return rank_state.read(directory / rank_state.name(self._ranks.rank)), rest

            return self._load(load, self._states, directory, files)

    def _load_resized(self, directory: Path, entry: Manifest) -> Fault | None:
        """Restore a checkpoint of another number of ranks; return its fault, if any."""
        engine = self._engine
        parallel = deepspeed_io.parallel(engine)
        now = manifest.ranks_text(self._ranks.world_size, parallel)
        alike = entry.parallel == parallel
        if entry.fixed_size is not None:
            raise CheckpointError(
                f"{directory} was saved by {entry.ranks}, and this attempt's {now} cannot go on "
                f"from it: {entry.fixed_size}",
                hint=f"ask for {entry.ranks} again, or submit with --new",
            )
        converts = engine.zero_optimization_stage() > 0 or deepspeed_io.saves_whole(engine)
        if not alike and not converts:
            raise CheckpointError(
                f"{directory} was saved by {entry.ranks}, and this attempt's {now} cannot go on "
                "from it: DeepSpeed converts the saves of ZeRO 1 to 3 alone",
                hint=f"ask for {entry.ranks} again, or submit with --new",
            )
        if self._ranks.rank == 0:
            tell(f"{directory.name} of {entry.ranks} is divided anew")
        states, rank = self._states, self._ranks.rank
        own = resize.states_of_all(directory, entry.world_size, states, self._ranks)
        universal = self._run.universal(directory.name)
        divided = engine.zero_optimization_stage() > 0
        if divided:
            log = self._run.attempt(self._attempt).conversion_log
            resize.convert(directory, universal, log, self._ranks)
        with (resize.local_reads if divided else local_reads)(engine) as rest:

            def load() -> tuple[Mapping[str, Any], Callable[[], None]]:
                frozen: dict[str, Any] = {}
                if divided:
                    frozen = resize.load(engine, directory, universal, rank, alike=alike)
                else:
                    engine.load_checkpoint(str(directory.parent), tag=directory.name)
                generators = None
                if rank < entry.world_size:
                    generators = rank_state.read(directory / rank_state.name(rank))["rng"]

                def rest_and_scatter() -> None:
                    rest()
                    resize.scatter(engine, frozen)

                return {"rng": generators, "states": own}, rest_and_scatter

            return self._load(load, resize.receivers(states), directory, entry.files)

    def _load(
        self,
        load: Callable[[], tuple[Mapping[str, Any], Callable[[], None]]],
        states: Mapping[str, Any],
        directory: Path,
        files: Iterable[str],
    ) -> Fault | None:
        """Have the engine load a checkpoint; return its fault, if any.

        ``files`` are this rank's to look for; each of the checkpoint's is some rank's.
        ``load`` does the part that is not collective, and returns this rank's own state and a
        function for the collective rest.
        """
        fault: Fault | None = None
        refusal: tuple[int, str] | None = None
        saved: Mapping[str, Any] = {}
        rest: Callable[[], object] = bool
        # DeepSpeed looks for its files' names.
        shared_look.refresh(directory)
        try:
            saved, rest = load()
        except UnreadableFile as error:
            fault = Fault(str(error), lasting=False)
        except Exception as error:
            refusal = self._ranks.rank, rank_state.text(error)
        fault, refusal = self._ranks.all_reduce(
            (fault, refusal), lambda one, other: (_graver(one[0], other[0]), one[1] or other[1])
        )
        if fault is None and refusal is not None:
            # Files that vanish meet an assertion or an index error in DeepSpeed.
            gone = next((name for name in files if not is_there(directory / name)), None)
            if (missing := self._ranks.first(gone)) is not None:
                fault = Fault(f"{missing[1]} has vanished", lasting=False)
        if fault is not None:
            return fault
        raise_first(refusal, f"{directory} cannot be loaded")
        rest()
        wrong = rank_state.apply(saved, states, tells=self._ranks.rank == 0)
        self._ranks.agree(wrong, f"{directory} cannot be loaded")
        return None

    def _strangers(self, directory: Path, entry: Manifest) -> Fault | None:
        """Return the fault of a file that is another user's: each rank looks at its share.

        Rank 0 looks at what is there and no manifest names, too.
        """
        try:
            paths = [directory / name for name in entry.files]
            if isinstance(self._whole, Manifest):
                paths += trust.unnamed(directory, self._whole.files)
            own = trust.fault(directory, paths)
        except OSError as error:
            own = Fault(f"{directory.name} cannot be read: {error.strerror}", lasting=False)
        found = self._ranks.first(own)
        return None if found is None else found[1]

    @property
    def _unreadable(self) -> str:
        return f"{self._run.checkpoints} cannot be read"

    def _pass_over(self, directory: Path, fault: Fault, report: Callable[..., None] | None) -> None:
        self._passed_over.add(directory)
        if self._ranks.rank != 0:
            return
        message = f"cannot be used this time and is passed over: {fault.message}"
        if fault.lasting:
            self._fence.check(always=True)
            message = f"is damaged and put aside: {fault.message}"
            try:
                target = manifest.quarantine(directory)
                if is_there(target):
                    shutil.rmtree(target)
                directory.rename(target)
            except OSError as error:
                kept = f"(it cannot be put aside: {error.strerror})"
                message = f"is damaged and passed over: {fault.message} {kept}"
        tell(f"{directory.name} {message}")
        if report is not None:
            event = "quarantined" if fault.lasting else "passed_over"
            report(event, checkpoint=directory.name, message=message)


def _look(
    checkpoints: Path, *, expected: bool
) -> tuple[bool, Iterator[tuple[Path, Manifest | Fault]]]:
    """Return whether a checkpoint was put aside, and those that have a manifest, read in turn.

    Where there is to be one, it is waited for: another node has made it, perhaps a moment ago.
    """
    began = time.monotonic()
    while True:
        put_aside, found = bool(manifest.quarantined(checkpoints)), manifest.scan(checkpoints)
        newest = next(found, None)
        waited = time.monotonic() - began
        if put_aside or newest or not expected or waited > shared_look.SEEN_WITHIN:
            return put_aside, chain([newest] if newest else [], found)
        time.sleep(PAUSES[0])


def _check_maker(engine: Any, directory: Path, entry: Manifest) -> None:
    """Raise CheckpointError for a checkpoint of another kind of engine, as its files tell."""
    own = getattr(engine, "made_by", "session.initialize")
    made_by = {
        "session.fully_shard": shard_files.INDEX in entry.files,
        "session.replicas": any(name.startswith("replica-") for name in entry.files),
        "session.initialize": bool(deepspeed_io.mp_ranks(entry.files)),
    }
    other = next((name for name, is_so in made_by.items() if is_so and name != own), None)
    if other is not None:
        raise CheckpointError(
            f"{directory} is of an engine of {other}, and this program's is of {own}",
            hint=f"make the engine with {other} again; or submit with --new and "
            "checkpoint.initialize_from, which takes the weights",
        )


def shares(entry: Manifest, ranks: int) -> list[Manifest]:
    """Return the manifest once for each rank, with the files that this one checks."""
    names = sorted(entry.files)
    return [
        replace(entry, files={name: entry.files[name] for name in names[rank::ranks]})
        for rank in range(ranks)
    ]


def verify(directory: Path, entry: Manifest, ranks: Collectives) -> Fault | None:
    """Check all files, each rank its share (`shares`), and return the fault of the lowest rank.

    It lasts only if rank 0's node finds it too: what one node alone sees may be that node's.
    """
    own = None
    for name, file in entry.files.items():
        if (fault := checkpoint_files.damage(directory, name, file)) is not None:
            own = Damage(fault, ranks.rank, name, file)
            break
    found: Damage | None = ranks.all_reduce(own, _graver)
    if found is None or not found.fault.lasting or found.rank == 0:
        return found and found.fault
    again: Fault | None = ranks.from_rank_0(
        lambda: checkpoint_files.damage(directory, found.name, found.file),
        f"{found.name} of {directory}",
    )
    return again or replace(found.fault, lasting=False)


class Damage(NamedTuple):
    """A fault that a rank found in a file."""

    fault: Fault
    rank: int
    name: str
    file: File

    @property
    def lasting(self) -> bool:
        return self.fault.lasting


def _graver(one: Any, other: Any) -> Any:
    """Return the fault or damage that lasts, else that of the lower rank; None without any."""
    return min(filter(None, (one, other)), key=lambda found: not found.lasting, default=None)
