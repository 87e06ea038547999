"""Checkpoints in the nodes' own storage, for restarts in the same allocation.

Each rank writes what it saves to a directory of its node that outlives the attempt, and sends a
copy to a rank of the next node. So whatever one node takes with it is there a second time, and a
save costs no shared storage. They go with the allocation, and never stand in for a checkpoint on
shared storage.

Every function here is collective (`hpcrun.run.rank.collectives`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpcrun.run.checkpoint import checkpoint_files, checksums, deepspeed_io, transfer
from hpcrun.run.checkpoint.save import hand_over
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import process_groups
from hpcrun.run.rank.collectives import Together, raise_first
from hpcrun.state.manifest import File

# What DeepSpeed's names of files begin with that all ranks read.
_SHARED = "mp_rank_"


@dataclass(frozen=True)
class Bundle:
    """What one rank saved.

    Attributes
    ----------
    files
        Names, relative to the checkpoint's directory, to sizes and checksums.
    """

    rank: int
    world_size: int
    step: int
    attempt: int
    files: Mapping[str, File]

    def write(self, directory: Path) -> None:
        """Put it beside its files, which are there."""
        # Not made durable: that would wait for the files beside it too.
        temporary = directory / f".bundle-{self.rank}"
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(directory / f"bundle-{self.rank:05d}.json")

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Raises OSError, ValueError, KeyError, TypeError or AttributeError for what is none."""
        data = json.loads(path.read_text())
        files = {str(name): File(**file) for name, file in data.pop("files").items()}
        return cls(**data, files=files)

    def shared(self) -> Bundle:
        """Without what this rank alone reads again."""
        files = {name: file for name, file in self.files.items() if name.startswith(_SHARED)}
        return replace(self, files=files)

    @property
    def key(self) -> tuple[int, int]:
        return self.step, self.attempt


class Nearby:
    """The checkpoints of one run in its nodes' storage, as one rank sees them.

    Parameters
    ----------
    directory
        Of this rank's node; kept from attempt to attempt of one start of the job.
    node_of
        Rank -> the index of its node in this attempt.
    every
        Optimizer steps between saves.
    """

    def __init__(
        self,
        directory: Path,
        attempt: int,
        together: Together,
        node_of: tuple[int, ...],
        every: int = 1,
    ) -> None:
        self._directory, self._attempt, self._every = directory, attempt, every
        self._told = False
        self._processes: Any = None
        self._together, self._node_of = together, node_of
        rank = together.rank
        self._is_first = node_of.index(node_of[rank]) == rank

    @classmethod
    def of(cls, launch: Launch, together: Together, scratch: Path) -> Nearby | None:
        """As the spec wants it: ``checkpoint.nearby_every``."""
        every = (launch.spec.get("checkpoint") or {}).get("nearby_every")
        if not every:
            return None
        nodes = tuple(rank // launch.ranks_per_node for rank in range(launch.world_size))
        # Beside the attempts' directories, so that it outlives them.
        return cls(scratch.parent / "checkpoints", launch.attempt, together, nodes, int(every))

    def is_due(self, engine: Any, step: int) -> bool:
        """Whether a step is to be saved here."""
        if step % self._every:
            return False
        problem = _refusal(engine)
        if problem is not None and not self._told and self._together.rank == 0:
            tell(f"nothing is saved in the nodes' storage: {problem}")
        self._told = True
        return problem is None

    def save(self, engine: Any, step: int, states: Mapping[str, Any]) -> int:
        """Save the engine, this rank's generators and ``states``; how many bytes all ranks wrote.

        Raises
        ------
        CheckpointError
            Some rank could not; the one before is still there.
        """
        directory = self._of(step, self._attempt)
        files: dict[str, File] = {}

        def write(state: Any, path: Path) -> None:
            files[path.name] = checkpoint_files.save(state, path, durable=False)

        what = f"step {step} was not saved in the nodes' storage"
        self._prepare()
        self._together.agree(_make(directory), what)
        error = hand_over(engine, states, directory, self._together.rank, write, files)
        gathered = self._together.gather((error, files))
        self._agree([each for each, _ in gathered], directory, what)
        bundles = [
            Bundle(rank, len(gathered), step, self._attempt, part)
            for rank, (_, part) in enumerate(gathered)
        ]
        error = self._keep(directory, bundles)
        self._agree(self._together.gather(error), directory, what)
        if self._is_first:
            self._remove_all_but(directory)
        return sum(file.bytes for bundle in bundles for file in bundle.files.values())

    def find(self, newer_than: int) -> tuple[Path, Bundle] | None:
        """The newest checkpoint beyond a step of which every rank's part is on some node.

        Its directory, and this rank's part. All that this rank will read is on its node then, and
        is what it was when it was saved.
        """
        self._prepare()
        found: dict[tuple[int, int], dict[int, Bundle]] = {}
        holders: dict[tuple[int, int], dict[int, set[int]]] = {}
        gathered = self._together.gather(list(self._here()))
        for node, bundles in zip(self._node_of, gathered, strict=True):
            for each in bundles:
                if each.world_size == self._together.world_size:
                    found.setdefault(each.key, {})[each.rank] = each
                    holders.setdefault(each.key, {}).setdefault(each.rank, set()).add(node)
        everyone = set(range(self._together.world_size))
        for key in sorted(found, reverse=True):
            if key[0] > newer_than and found[key].keys() == everyone:
                directory = self._of(*key)
                if self._assemble_sound(directory, found[key], holders[key]):
                    return directory, found[key][self._together.rank]
        return None

    def _assemble_sound(
        self, directory: Path, bundles: Mapping[int, Bundle], holders: Mapping[int, set[int]]
    ) -> bool:
        """As `_assemble`; what one node has damaged another may have whole."""
        damaged: set[tuple[int, int]] = set()
        while True:
            sound = {
                rank: {node for node in nodes if (rank, node) not in damaged}
                for rank, nodes in holders.items()
            }
            if not all(sound.values()):
                return False
            if self._assemble(directory, bundles, sound):
                return True
            known, damaged = damaged, self._damaged(directory, bundles, holders)
            if damaged <= known:
                return False
            damaged |= known

    def _of(self, step: int, attempt: int) -> Path:
        return self._directory / f"step-{step:08d}-a{attempt}"

    def _assemble(
        self, directory: Path, bundles: Mapping[int, Bundle], holders: Mapping[int, set[int]]
    ) -> bool:
        """Fetch what this node lacks; whether all that the ranks will read is sound."""
        rank = self._together.rank
        error = _make(directory)
        for wanted, source, node in self._transfers(holders):
            bundle = bundles[wanted]
            part = bundle if self._node_of[wanted] == node else bundle.shared()
            sender, receiver = self._node_of.index(source), self._node_of.index(node)
            if rank == sender:
                transfer.exchange(self._processes, directory, (part.files, receiver), None)
            elif rank == receiver:
                wrong = transfer.exchange(self._processes, directory, None, (part.files, sender))
                error = error or wrong
                if part is bundle and error is None:
                    error = _record(directory, [bundle])
        # The first rank of a node has fetched for all of them.
        if any(self._together.gather(error)):
            return False
        error = _damage(directory, bundles[rank])
        if self._is_first and error is None:
            error = _damage(directory, bundles[0].shared())
        return not any(self._together.gather(error))

    def _damaged(
        self, directory: Path, bundles: Mapping[int, Bundle], holders: Mapping[int, set[int]]
    ) -> set[tuple[int, int]]:
        """Rank and node of each part that a node should have, and has not as it was saved."""
        node = self._node_of[self._together.rank]
        mine = [
            (rank, node)
            for rank, bundle in bundles.items()
            if self._is_first
            and (node in holders[rank] or node == self._node_of[rank])
            and _damage(directory, bundle) is not None
        ]
        return {each for found in self._together.gather(mine) for each in found}

    def _transfers(self, holders: Mapping[int, set[int]]) -> Iterator[tuple[int, int, int]]:
        """What goes from one node to another: a rank's part, and the two nodes.

        In an order that is the same on all ranks, so that none waits for one that waits for it.
        """
        for wanted, node in enumerate(self._node_of):
            if node not in holders[wanted]:
                yield wanted, min(holders[wanted]), node
        # What rank 0 saved, all ranks read a part of: who has it passes it on to two others.
        have = sorted({*holders[0], self._node_of[0]})
        for number, node in enumerate(sorted(set(self._node_of).difference(have))):
            yield 0, have[number // 2], node
            have.append(node)

    def _prepare(self) -> None:
        """All ranks have to make the group; nobody knows how long a transfer takes."""
        if self._processes is None:
            self._processes = process_groups.of_the_copies()
            self._together = self._together.on(self._processes)

    def _keep(self, directory: Path, bundles: list[Bundle]) -> str | None:
        """Exchange copies with the neighbours, and put on record what is here."""
        rank, world = self._together.rank, self._together.world_size
        nodes = len(set(self._node_of))
        own = bundles[rank]
        error: str | None = None
        kept = [own]
        if nodes > 1:
            distance = world // nodes
            to, of = (rank + distance) % world, (rank - distance) % world
            there, back = (own.files, to), (bundles[of].files, of)
            error = transfer.exchange(self._processes, directory, there, back)
            kept.append(bundles[of])
        return error or _record(directory, kept)

    def _agree(self, errors: list[str | None], directory: Path, what: str) -> None:
        """Raise on all ranks where one has an error; nothing is left of the attempt at it."""
        if any(errors) and self._is_first:
            shutil.rmtree(directory, ignore_errors=True)
        raise_first(errors, what)

    def _here(self) -> Iterator[Bundle]:
        for path in self._directory.glob("step-*/bundle-*.json"):
            try:
                yield Bundle.read(path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue

    def _remove_all_but(self, directory: Path) -> None:
        for path in self._directory.glob("step-*"):
            if path != directory:
                shutil.rmtree(path, ignore_errors=True)


def _refusal(engine: Any) -> str | None:
    """Why what this engine saves cannot be gone on from with each rank's part and rank 0's."""
    if (what := deepspeed_io.divided(engine)) is not None:
        return what
    if getattr(engine, "zero_nvme_offload_optimizer", bool)():
        return "the optimizer is offloaded to NVMe"
    if getattr(engine.optimizer, "elastic_checkpoint", False):
        return "with zero_optimization.elastic_checkpoint each rank reads what all wrote"
    if getattr(engine, "use_node_local_storage", bool)():
        return "checkpoint.use_node_local_storage has every node write the same names"
    if not deepspeed_io.is_of_torch(engine):
        return "the DeepSpeed configuration names a writer of its own"
    return None


def _make(directory: Path) -> str | None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return str(error)
    return None


def _record(directory: Path, bundles: Sequence[Bundle]) -> str | None:
    try:
        for bundle in bundles:
            bundle.write(directory)
    except OSError as error:
        return str(error)
    return None


def _damage(directory: Path, bundle: Bundle) -> str | None:
    """What is wrong with the files of a bundle."""
    faults = (checksums.damage(directory, name, file) for name, file in bundle.files.items())
    return next((fault.message for fault in faults if fault), None)
