"""Checkpoints in the nodes' own storage, for restarts in the same allocation.

Each rank writes to a directory of its node that outlives the attempt, and sends a copy to a rank of
the next node, so that the loss of one node loses nothing. They cost no shared storage, end with the
allocation, and never replace a checkpoint on shared storage. All methods are collective.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from hpcrun.run.checkpoint import checkpoint_files, deepspeed_io
from hpcrun.run.checkpoint.save import write_shards
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import peer_messages, process_groups
from hpcrun.run.rank.collectives import Collectives, raise_first
from hpcrun.run.rank.sharded_engine import ShardedEngine
from hpcrun.state import files as state_files
from hpcrun.state import node_layout
from hpcrun.state.layout import checkpoint_name
from hpcrun.state.manifest import File
from hpcrun.state.node_layout import ScratchPaths

# Prefix of DeepSpeed's files that all ranks read.
_SHARED = "mp_rank_"


@dataclass(frozen=True)
class RankFiles:
    """The files that one rank saved: names in the checkpoint's directory -> size and checksum."""

    rank: int
    world_size: int
    step: int
    attempt: int
    files: Mapping[str, File]

    def record(self, directory: Path) -> str | None:
        """Write this record beside its files, which exist; return an error, if any."""
        # Not made durable: that would wait for the files too.
        path = node_layout.bundle(directory, self.rank)
        temporary = path.with_name(f".{path.stem}")
        try:
            temporary.write_text(json.dumps(asdict(self)))
            temporary.replace(path)
        except OSError as error:
            return str(error)
        return None

    def damage(self, directory: Path) -> str | None:
        """Compare the files in a directory with this record; return what is wrong, or None."""
        faults = (checkpoint_files.damage(directory, *entry) for entry in self.files.items())
        return next((fault.message for fault in faults if fault), None)

    @classmethod
    def read(cls, path: Path) -> RankFiles:
        """Read a record; any of five errors (see `_here`) if it is not one."""
        data = state_files.read_json(path, state_files.MOST_LINE)
        files = {str(name): File(**file) for name, file in data.pop("files").items()}
        return cls(**data, files=files)

    def shared(self) -> RankFiles:
        """Return only the files that all ranks read."""
        files = {name: file for name, file in self.files.items() if name.startswith(_SHARED)}
        return replace(self, files=files)

    @property
    def key(self) -> tuple[int, int]:
        return self.step, self.attempt


# The files of each rank, and the nodes that have them.
_Copies: TypeAlias = Mapping[int, RankFiles]
_Holders: TypeAlias = Mapping[int, set[int]]
# Files that are sent, and the rank that they go to or come from.
_Sent: TypeAlias = tuple[Mapping[str, File], int]

# Bytes that are sent at once.
_BLOCK = 1 << 24


class NodeCopies:
    """The checkpoints of one run in its nodes' storage, as one rank sees them.

    ``directory`` is on this rank's node and kept through all attempts of one start of the job;
    ``node_of`` maps a rank to the index of its node.
    """

    def __init__(
        self,
        directory: Path,
        attempt: int,
        ranks: Collectives,
        node_of: tuple[int, ...],
        every: int = 1,
    ) -> None:
        self._directory, self._attempt, self._every = directory, attempt, every
        self._ranks, self._node_of = ranks, node_of
        self._is_first = node_of.index(node_of[ranks.rank]) == ranks.rank
        self._told = False
        self._group: Any = None

    @classmethod
    def of(cls, launch: Launch, ranks: Collectives, scratch: Path) -> NodeCopies | None:
        """Follow the spec's ``checkpoint.nearby_every``; None if it is not set."""
        every = launch.checkpoint.nearby_every
        if not every:
            return None
        # A launcher inside the ranks' programs, such as torchrun, starts more of them.
        per_node, rest = divmod(ranks.world_size, len(launch.nodes))
        if rest:
            what = f"{ranks.world_size} ranks are not as many on each of {len(launch.nodes)} nodes"
            tell(f"nothing is saved in the nodes' storage: {what}")
            return None
        nodes = tuple(rank // per_node for rank in range(ranks.world_size))
        # Beside the attempts' directories, so that it outlives them.
        return cls(ScratchPaths(scratch).node.checkpoints, launch.attempt, ranks, nodes, every)

    def is_due(self, engine: Any, step: int) -> bool:
        """Check whether a step is to be saved here."""
        if step % self._every:
            return False
        problem = _refusal(engine)
        if problem is not None and not self._told and self._ranks.rank == 0:
            tell(f"nothing is saved in the nodes' storage: {problem}")
        self._told = True
        return problem is None

    def save(self, engine: Any, step: int, states: Mapping[str, Any]) -> int:
        """Save the engine, this rank's generators and ``states``; return the bytes of all ranks.

        Raises `CheckpointError` if some rank could not; the previous checkpoint is still there.
        """
        directory = self._directory / checkpoint_name(step, self._attempt)
        files: dict[str, File] = {}

        def write(state: Any, path: Path) -> None:
            files[path.name] = checkpoint_files.save(state, path, durable=False)

        what = f"step {step} was not saved in the nodes' storage"
        self._ranks.doing = f"saving step {step} in the nodes' storage"
        self._prepare()
        self._ranks.agree(_make(directory), what)
        error = write_shards(engine, states, directory, self._ranks.rank, write, files)
        self._agree(error, directory, what)
        gathered = self._ranks.gather(files)
        copies = [
            RankFiles(rank, len(gathered), step, self._attempt, part)
            for rank, part in enumerate(gathered)
        ]
        self._agree(self._keep(directory, copies), directory, what)
        if self._is_first:
            for path in node_layout.saved(self._directory):
                if path != directory:
                    shutil.rmtree(path, ignore_errors=True)
        return sum(file.bytes for copy in copies for file in copy.files.values())

    def find(self, newer_than: int) -> tuple[Path, RankFiles] | None:
        """Find the newest checkpoint after a step of which every rank's files are on some node.

        Returns its directory and this rank's files, or None. All that this rank will read is then
        on its node and has the right checksums.
        """
        self._prepare()
        found: dict[tuple[int, int], dict[int, RankFiles]] = {}
        holders: dict[tuple[int, int], dict[int, set[int]]] = {}
        gathered = self._ranks.gather(list(self._here()))
        for node, copies in zip(self._node_of, gathered, strict=True):
            for each in copies:
                if each.world_size == self._ranks.world_size:
                    found.setdefault(each.key, {})[each.rank] = each
                    holders.setdefault(each.key, {}).setdefault(each.rank, set()).add(node)
        everyone = set(range(self._ranks.world_size))
        for key in sorted(found, reverse=True):
            if key[0] > newer_than and found[key].keys() == everyone:
                directory = self._directory / checkpoint_name(*key)
                if self._assemble_sound(directory, found[key], holders[key]):
                    return directory, found[key][self._ranks.rank]
        return None

    def _assemble_sound(self, directory: Path, copies: _Copies, holders: _Holders) -> bool:
        """Repeat `_assemble` without damaged files: another node may have them whole."""
        damaged: set[tuple[int, int]] = set()
        while True:
            sound = {
                rank: {node for node in nodes if (rank, node) not in damaged}
                for rank, nodes in holders.items()
            }
            if not all(sound.values()):
                return False
            if self._assemble(directory, copies, sound):
                return True
            found = self._damaged(directory, copies, holders)
            if found <= damaged:
                return False
            damaged |= found

    def _assemble(self, directory: Path, copies: _Copies, holders: _Holders) -> bool:
        """Fetch the files that nodes lack; check whether all that ranks will read is sound."""
        rank = self._ranks.rank
        error = _make(directory)
        for wanted, source, node in self._transfers(holders):
            copy = copies[wanted]
            part = copy if self._node_of[wanted] == node else copy.shared()
            sender, receiver = self._node_of.index(source), self._node_of.index(node)
            if rank == sender:
                exchange(self._group, directory, (part.files, receiver), None)
            elif rank == receiver:
                wrong = exchange(self._group, directory, None, (part.files, sender))
                error = error or wrong
                if part is copy and error is None:
                    error = copy.record(directory)
        # The first rank of a node has fetched for the others.
        if self._ranks.first(error) is not None:
            return False
        error = copies[rank].damage(directory)
        if self._is_first and error is None:
            error = copies[0].shared().damage(directory)
        return self._ranks.first(error) is None

    def _damaged(self, directory: Path, copies: _Copies, holders: _Holders) -> set[tuple[int, int]]:
        """Return rank and node of all files that a node should have and are missing or damaged."""
        node = self._node_of[self._ranks.rank]
        mine = [
            (rank, node)
            for rank, copy in copies.items()
            if self._is_first
            and (node in holders[rank] or node == self._node_of[rank])
            and copy.damage(directory) is not None
        ]
        return {each for found in self._ranks.gather(mine) for each in found}

    def _transfers(self, holders: _Holders) -> Iterator[tuple[int, int, int]]:
        """Yield the transfers: a rank whose files are sent, and the two nodes.

        The order is the same on all ranks, so that there is no deadlock.
        """
        for wanted, node in enumerate(self._node_of):
            if node not in holders[wanted]:
                yield wanted, min(holders[wanted]), node
        # All ranks read some of rank 0's files: each node that has them sends them to two others.
        have = sorted({*holders[0], self._node_of[0]})
        for number, node in enumerate(sorted(set(self._node_of).difference(have))):
            yield 0, have[number // 2], node
            have.append(node)

    def _prepare(self) -> None:
        """Make the process group, which has a timeout of its own."""
        if self._group is None:
            self._group = process_groups.own_group(process_groups.COPIES)
            self._ranks = self._ranks.on(self._group)

    def _keep(self, directory: Path, copies: list[RankFiles]) -> str | None:
        """Exchange copies with the neighbouring nodes, and record what is here."""
        rank, world = self._ranks.rank, self._ranks.world_size
        nodes = len(set(self._node_of))
        if nodes == 1:
            return copies[rank].record(directory)
        distance = world // nodes
        to, of = (rank + distance) % world, (rank - distance) % world
        there, back = (copies[rank].files, to), (copies[of].files, of)
        error = exchange(self._group, directory, there, back)
        return error or copies[rank].record(directory) or copies[of].record(directory)

    def _agree(self, error: str | None, directory: Path, what: str) -> None:
        """Remove the unfinished checkpoint and raise on all ranks if one has an error."""
        found = self._ranks.first(error)
        if found is not None and self._is_first:
            shutil.rmtree(directory, ignore_errors=True)
        raise_first(found, what)

    def _here(self) -> Iterator[RankFiles]:
        for path in node_layout.bundles(self._directory):
            try:
                yield RankFiles.read(path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue


def _refusal(engine: Any) -> str | None:
    """Return why a rank's own files and rank 0's are not enough to resume; None if they are."""
    if (what := deepspeed_io.model_division(engine)) is not None:
        return what
    if isinstance(engine, ShardedEngine):
        return "each rank of session.fully_shard reads files of others"
    if deepspeed_io.offloads_to_nvme(engine):
        return "the optimizer is offloaded to NVMe"
    if getattr(engine.optimizer, "elastic_checkpoint", False):
        return "with zero_optimization.elastic_checkpoint each rank reads what all wrote"
    if getattr(engine, "use_node_local_storage", bool)():
        return "checkpoint.use_node_local_storage has every node write the same names"
    if not deepspeed_io.writes_with_torch(engine):
        return "the DeepSpeed configuration names a writer of its own"
    return None


def _make(directory: Path) -> str | None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return str(error)
    return None


def exchange(group: Any, directory: Path, out: _Sent | None, into: _Sent | None) -> str | None:
    """Send files of a directory to one rank, while receiving others from a second one.

    ``group`` is a gloo process group; ``out`` and ``into`` have the rank that the files go to or
    come from. Both ends know how many bytes will come, so that a read or write error stops nothing;
    the first is returned.
    """
    error: str | None = None
    for outgoing, incoming in zip_longest(_blocks(out), _blocks(into)):
        sent = []
        if outgoing is not None:
            data, wrong = _read(directory, outgoing)
            error = error or wrong
            sent.append(peer_messages.give(group, data, outgoing.peer))
        if incoming is not None:
            data = peer_messages.take(group, incoming.size, incoming.peer)
            error = error or _write(directory, incoming, data)
        peer_messages.wait(sent)
    return error


class _Block(NamedTuple):
    """A part of a file that is sent at once."""

    name: str
    offset: int
    size: int
    peer: int


def _blocks(sent: _Sent | None) -> Iterator[_Block]:
    named, peer = sent or ({}, 0)
    for name, file in sorted(named.items()):
        for offset in range(0, file.bytes, _BLOCK):
            yield _Block(name, offset, min(_BLOCK, file.bytes - offset), peer)


def _read(directory: Path, block: _Block) -> tuple[bytes, str | None]:
    """Return the bytes and an error, if any; on error they are zeros."""
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
