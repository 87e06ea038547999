"""Checkpoints in the nodes' own storage, for restarts in the same allocation.

Each rank writes what it saves to a directory of its node that outlives the attempt, and sends a
copy to a rank of the next node. So whatever one node takes with it is there a second time, and a
save costs no shared storage. They go with the allocation, and never stand in for a checkpoint on
shared storage.

Every function here is collective (`hpcrun.run.together`).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hpcrun.manifest import File, Manifest
from hpcrun.run import checksums, group, shards, writing
from hpcrun.run.launch import Launch
from hpcrun.run.saving import hand_over
from hpcrun.run.tell import tell
from hpcrun.run.together import Together, raise_first

_BLOCK = 1 << 24
# What DeepSpeed's names of files begin with that all ranks read.
_SHARED = "mp_rank_"
_BUNDLE = "bundle-{:05d}.json"


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
        text = json.dumps(asdict(self))
        temporary = directory / f".bundle-{self.rank}"
        temporary.write_text(text)
        temporary.replace(directory / _BUNDLE.format(self.rank))

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Raises OSError, ValueError, KeyError or TypeError for what is none."""
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
        directory = self._directory / f"step-{step:08d}-a{self._attempt}"
        files: dict[str, File] = {}

        def write(state: Any, path: Path) -> None:
            files[path.name] = writing.save(state, path, durable=False)

        what = f"step {step} was not saved in the nodes' storage"
        self._prepare()
        self._together.agree(_make(directory), what)
        error = hand_over(engine, states, directory, self._together.rank, write, files)
        told = {name: asdict(file) for name, file in files.items()}
        gathered = self._together.gather((error, told))
        self._agree([each for each, _ in gathered], directory, what)
        bundles = [
            Bundle(rank, len(gathered), step, self._attempt, _files(part))
            for rank, (_, part) in enumerate(gathered)
        ]
        error = self._keep(directory, bundles)
        self._agree(self._together.gather(error), directory, what)
        if self._is_first:
            self._remove_all_but(directory)
        return sum(file.bytes for bundle in bundles for file in bundle.files.values())

    def find(self, newer_than: int) -> tuple[Path, Manifest] | None:
        """The newest checkpoint beyond a step of which every rank's part is on some node.

        All that this rank will read is on its node then, and is what it was when it was saved.
        """
        self._prepare()
        here = list(self._here())
        gathered = self._together.gather([(each.key, each.rank, each.world_size) for each in here])
        world = self._together.world_size
        holders: dict[tuple[int, int], dict[int, set[int]]] = {}
        for node, found in zip(self._node_of, gathered, strict=True):
            for key, rank, size in found:
                if size == world:
                    holders.setdefault(key, {}).setdefault(rank, set()).add(node)
        for key in sorted(holders, reverse=True):
            whole = key[0] > newer_than and len(holders[key]) == world
            if whole and (found := self._assemble(key, holders[key], here)) is not None:
                return found
        return None

    def _assemble(
        self, key: tuple[int, int], holders: Mapping[int, set[int]], here: list[Bundle]
    ) -> tuple[Path, Manifest] | None:
        """Fetch what this node lacks, and check all that this rank will read."""
        step, attempt = key
        directory = self._directory / f"step-{step:08d}-a{attempt}"
        error = _make(directory)
        mine = {each.rank: each for each in here if each.key == key}
        for wanted, source, node in self._transfers(holders):
            sent = mine.get(wanted)
            whole = self._node_of[wanted] == node
            found, wrong = self._move(
                sent if whole or sent is None else sent.shared(),
                self._node_of.index(source),
                self._node_of.index(node),
                directory,
            )
            error = error or wrong
            if found is not None:
                mine[wanted] = found
                if whole and error is None:
                    error = _record(directory, [found])
        if any(self._together.gather(error)):
            return None
        # The first rank of the node may have fetched this rank's part.
        mine = {**mine, **{each.rank: each for each in self._here() if each.key == key}}
        own = mine.get(self._together.rank)
        error = _damage(directory, own)
        if self._is_first and error is None:
            error = _damage(directory, mine[0].shared())
        if any(self._together.gather(error)):
            return None
        assert own is not None
        return directory, Manifest(
            step=step,
            attempt=attempt,
            time=time.time(),
            world_size=own.world_size,
            zero_stage=-1,
            train_batch_size=0,
            files=dict(own.files),
        )

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
            self._processes = group.of_the_copies()
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
            error = _exchange(self._processes, directory, own, to, bundles[of], of)
            kept.append(bundles[of])
        return error or _record(directory, kept)

    def _move(
        self, bundle: Bundle | None, source: int, target: int, directory: Path
    ) -> tuple[Bundle | None, str | None]:
        """Send a bundle from one rank to another, where this rank is one of them."""
        import torch

        rank = self._together.rank
        if rank not in (source, target):
            return None, None
        processes = self._processes
        if rank == source:
            assert bundle is not None
            text = json.dumps(asdict(bundle)).encode()
            for data in (len(text).to_bytes(8, "little"), text):
                processes.send([_tensor(data)], target, 0).wait()
            return None, _exchange(processes, directory, bundle, target, None, None)
        size = torch.empty(8, dtype=torch.uint8)
        processes.recv([size], source, 0).wait()
        text_ = torch.empty(int.from_bytes(bytes(size.tolist()), "little"), dtype=torch.uint8)
        processes.recv([text_], source, 0).wait()
        data = json.loads(bytes(text_.tolist()))
        found = Bundle(**{**data, "files": _files(data["files"])})
        return found, _exchange(processes, directory, None, None, found, source)

    def _agree(self, errors: list[str | None], directory: Path, what: str) -> None:
        """Raise on all ranks where one has an error; nothing is left of the attempt at it."""
        if any(errors) and self._is_first:
            shutil.rmtree(directory, ignore_errors=True)
        raise_first(errors, what)

    def _here(self) -> Iterator[Bundle]:
        for path in self._directory.glob("step-*/bundle-*.json"):
            try:
                yield Bundle.read(path)
            except (OSError, ValueError, KeyError, TypeError):
                continue

    def _remove_all_but(self, directory: Path) -> None:
        for path in self._directory.glob("step-*"):
            if path != directory:
                shutil.rmtree(path, ignore_errors=True)


def _refusal(engine: Any) -> str | None:
    """Why what this engine saves cannot be gone on from with each rank's part and rank 0's."""
    if (what := shards.divided(engine)) is not None:
        return what
    if getattr(engine, "zero_nvme_offload_optimizer", bool)():
        return "the optimizer is offloaded to NVMe"
    if getattr(engine.optimizer, "elastic_checkpoint", False):
        return "with zero_optimization.elastic_checkpoint each rank reads what all wrote"
    if getattr(engine, "use_node_local_storage", bool)():
        return "checkpoint.use_node_local_storage has every node write the same names"
    if not shards.is_of_torch(engine):
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


def _exchange(
    processes: Any,
    directory: Path,
    out: Bundle | None,
    to: int | None,
    into: Bundle | None,
    of: int | None,
) -> str | None:
    """Send the files of one bundle to a rank while those of another come from a second one.

    Both ends know how many bytes are to come, so what cannot be read or written is only told.
    """
    import torch

    error: str | None = None
    for outgoing, incoming in zip_longest(_blocks(out), _blocks(into)):
        sending = None
        if outgoing is not None:
            data, wrong = _read(directory, outgoing)
            error = error or wrong
            sending = processes.send([_tensor(data)], to, 0)
        if incoming is not None:
            received = torch.empty(incoming.size, dtype=torch.uint8)
            processes.recv([received], of, 0).wait()
            error = error or _write(directory, incoming, received.numpy())
        if sending is not None:
            sending.wait()
    return error


@dataclass(frozen=True)
class _Block:
    """A part of a file that goes over the wire at once."""

    name: str
    offset: int
    size: int


def _blocks(bundle: Bundle | None) -> Iterator[_Block]:
    for name, file in sorted(bundle.files.items() if bundle else ()):
        for offset in range(0, file.bytes, _BLOCK):
            yield _Block(name, offset, min(_BLOCK, file.bytes - offset))


def _read(directory: Path, block: _Block) -> tuple[bytes, str | None]:
    """Its bytes, and what went wrong: then they are zeros."""
    try:
        with open(directory / block.name, "rb") as stream:
            stream.seek(block.offset)
            return stream.read(block.size).ljust(block.size, b"\0"), None
    except OSError as error:
        return bytes(block.size), str(error)


def _write(directory: Path, block: _Block, data: Any) -> str | None:
    try:
        with open(directory / block.name, "r+b" if block.offset else "wb") as stream:
            stream.seek(block.offset)
            stream.write(data)
    except OSError as error:
        return str(error)
    return None


def _tensor(data: bytes) -> Any:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _files(data: Mapping[str, Any]) -> dict[str, File]:
    return {str(name): File(**file) for name, file in data.items()}


def _damage(directory: Path, bundle: Bundle | None) -> str | None:
    """What is wrong with the files of a bundle."""
    if bundle is None:
        return "a part is missing"
    faults = (checksums.damage(directory, name, file) for name, file in bundle.files.items())
    return next((fault.message for fault in faults if fault), None)
