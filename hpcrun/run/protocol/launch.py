"""The attempt's ``launch.json``, written by the supervisor for the workers.

Workers read this file first, so that thousands of ranks never parse a whole plan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcrun import feature
from hpcrun.errors import HpcrunError
from hpcrun.shared_dataclass import asdict, dataclass, field, names
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.plan import Entry
from hpcrun.state.spec.blocks import SpecBlocks
from hpcrun.state.spec.recovery_block import NEWEST, NEWEST_DIRECTORY, NEWEST_STEP

VARIABLE = "HPCRUN_LAUNCH"
NODE_VARIABLE = "HPCRUN_NODE_RANK"
# Ports of each rank, and of all ranks of a node together: a socket is open for each.
_PORTS, _MOST_PORTS = 4, 256
_PLACEHOLDER = re.compile(r"\$\{hpcrun:([A-Za-z_]+)\}")


class Interface(NamedTuple):
    """An interface of a node over which other nodes may be reached."""

    name: str
    address: str
    """IPv4, or IPv6 where it has no other."""
    sign: str
    """Why it is taken for the fast one: ``type``, ``roce``, ``name``, or empty."""


@dataclass(frozen=True)
class LaunchNode:
    """One node as its agent prepared it."""

    name: str
    code: str
    """The node-local directory with the unpacked code."""
    scratch: str
    """A node-local directory that is removed when the attempt ends."""
    interface: str
    """The fast interface."""
    address: str
    """Its address."""
    hca: str | None = None
    """NCCL_IB_HCA."""
    extensions: str | None = None
    """The warm TORCH_EXTENSIONS_DIR."""
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES where hpcrun shares out the GPUs."""
    ports: int | None = None
    """The first of the ports that were kept free for its ranks: `ports_per_rank` for each in turn;
    None where there were not enough."""
    python: str | None = None
    """The Python of its copy of the frozen environment; None where ranks have the supervisor's."""
    adapters: dict[str, Any] | None = None
    """The report of `hpcrun.run.fabric.link_check`, for the supervisor; not in ``launch.json``."""


@dataclass(frozen=True)
class Launch(SpecBlocks):
    """One attempt as its workers see it."""

    experiment: str
    run: int
    label: str
    attempt: int
    directory: str
    """The run's directory."""
    spec: dict[str, Any]
    """As in the plan: ``${hpcrun:…}`` is literal, because its value may differ between nodes."""
    entry: Entry
    working_directory: str
    """The entry's, relative to the node's copy of the code."""
    world_size: int
    ranks_per_node: int
    master_port: int
    """The port of the rendezvous on the first node's fast address."""
    nodes: tuple[LaunchNode, ...]
    """In the order of NODE_RANK."""
    role: str | None = None
    """The role whose ranks these are: all else here is of that role, ``spec`` too, and its ranks
    are numbered from 0. None where a run has no roles."""
    first_rank: int = 0
    """The first of them among the run's ranks, by which logs and records are named; 0 in the main
    role alone."""
    places: tuple[int, ...] = ()
    """The node of each rank, by its index in ``nodes``; empty for ``ranks_per_node`` on each."""
    first_gpu: int = 0
    """The first of its GPUs among those of each node."""
    slots: int = 0
    """Ranks of a node for which ports are kept; 0 for ``ranks_per_node``."""
    first_slot: int | None = None
    """The place of its first rank among these, the same on every node; None in the main role."""
    addresses: dict[str, list[str]] = field(default_factory=dict)
    """Role -> HOST:PORT of each of its ranks, the first of the ports that were kept free for it."""
    resume: dict[str, Any] | None = None
    """How it goes on from earlier attempts: the ledger's event ``resume``, and the ``variables``
    that the ranks get then. None for a first attempt, and for functions."""
    left_out: tuple[tuple[int, int], ...] = ()
    """The first and last sample of each batch that is not trained on, in order."""
    tracked: str = ""
    """The identity by which trackers know the run, the same for all its attempts."""
    rank_python: dict[str, Any] | None = None
    """The fields of `hpcrun.container.rank_python.RankPython`; None without a container."""

    @property
    def run_paths(self) -> RunPaths:
        return RunPaths(Path(self.directory))

    @property
    def paths(self) -> AttemptPaths:
        return self.run_paths.attempt(self.attempt)

    def mirror(self, rank: int = 0) -> Path:
        """The directory on shared storage that mirrors the code's root for a rank."""
        paths = self.run_paths
        return paths.rank_work(self.number(rank)) if self.has_rank_directories else paths.work

    def directory_of(self, rank: int = 0) -> Path:
        """The working directory of a rank, the same in all attempts."""
        return self.mirror(rank) / self.working_directory

    def ports_of(self, rank: int) -> tuple[int, ...]:
        """Return the free ports of a rank on its node; empty where it has none."""
        first, each = self.node_of(rank).ports, ports_per_rank(self.slots or self.ranks_per_node)
        if first is None:
            return ()
        own = rank % self.ranks_per_node if self.first_slot is None else self.first_slot + rank
        return tuple(range(first + own * each, first + own * each + each))

    def number(self, rank: int) -> int:
        """Return a rank's number among all ranks of the run."""
        return self.first_rank + rank

    @property
    def is_main(self) -> bool:
        """These ranks train: they are all, or those of the main role."""
        return self.first_rank == 0

    def node_index(self, rank: int) -> int:
        """Return NODE_RANK of a rank."""
        return self.places[rank] if self.places else rank // self.ranks_per_node

    def node_of(self, rank: int) -> LaunchNode:
        return self.nodes[self.node_index(rank)]

    @property
    def own_node(self) -> LaunchNode:
        """The node of this process, as its worker says: a launcher inside has ranks of its own."""
        return self.nodes[int(os.environ.get(NODE_VARIABLE) or 0)]

    @property
    def file(self) -> Path:
        """The file that it is written to."""
        return self.paths.launch if self.is_main else self.paths.role_launch(str(self.role))

    def write(self) -> None:
        files.write_json(self.file, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Launch:
        """Read the file of an attempt; what only another version of hpcrun knows is passed over."""
        data = _fields(cls, files.read_json(path))
        nodes = tuple(LaunchNode(**_fields(LaunchNode, node)) for node in data["nodes"])
        own = {"entry": Entry.from_data(data["entry"]), "places": tuple(data.get("places") or ())}
        own["left_out"] = tuple(map(tuple, data.get("left_out") or ()))
        return cls(**{**data, **own, "nodes": nodes})

    @classmethod
    def current(cls) -> Launch | None:
        """Return the attempt that this process belongs to; None outside hpcrun."""
        path = os.environ.get(VARIABLE)
        return cls.read(Path(path)) if path else None

    def refers_to(self, name: str) -> bool:
        """Check whether ``${hpcrun:NAME}`` is used anywhere."""
        return f"${{hpcrun:{name}}}" in repr((self.spec, self.entry.argv))

    def fill(self, value: Any, node: LaunchNode) -> Any:
        """Replace ``${hpcrun:…}`` in strings, lists and mappings; raise HpcrunError if unknown."""
        if isinstance(value, dict):
            return {name: self.fill(item, node) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.fill(item, node) for item in value]
        if not isinstance(value, str) or "${hpcrun:" not in value:
            return value
        known = {
            "directory": self.directory,
            "deepspeed_config": str(self.paths.deepspeed),
            "work": str(self.run_paths.work / self.working_directory),
            "attempt": str(self.attempt),
            "code": node.code,
            "scratch": node.scratch,
        }
        for one in feature.every().values():
            known |= one.values(self, node)
        if newest := (self.resume or {}).get("source"):
            known[NEWEST], known[NEWEST_DIRECTORY] = newest, os.path.dirname(newest)  # noqa: PTH120

        if (step := (self.resume or {}).get("step")) is not None:
            known[NEWEST_STEP] = str(step)

        def replace(match: re.Match[str]) -> str:
            if match[1] not in known:
                raise HpcrunError(
                    f"${{hpcrun:{match[1]}}} is not known; there are {', '.join(known)}"
                )
            return known[match[1]]

        return _PLACEHOLDER.sub(replace, value)


def ports_per_rank(ranks_per_node: int) -> int:
    """Return how many ports are kept free for each rank of a node that has so many ranks."""
    return min(_PORTS, _MOST_PORTS // ranks_per_node)


def _fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in names(kind) if name in data}
