"""The attempt's ``launch.json``, written by the supervisor for the workers.

Workers read this file first, so that thousands of ranks never parse a whole plan.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.plan import Entry
from hpcrun.state.spec.blocks import SpecBlocks

VARIABLE = "HPCRUN_LAUNCH"
_PLACEHOLDER = re.compile(r"\$\{hpcrun:([A-Za-z_]+)\}")


@dataclass(frozen=True)
class LaunchNode:
    """One node as its agent prepared it.

    Attributes
    ----------
    name
        Slurm's name of the node.
    code, scratch
        Node-local directories: the unpacked code, and one that is removed when the attempt ends.
    interface, address
        The fast interface and its IPv4 address.
    hca, extensions
        NCCL_IB_HCA and the warm TORCH_EXTENSIONS_DIR, or None.
    devices
        CUDA_VISIBLE_DEVICES where hpcrun shares out the GPUs, else None.
    """

    name: str
    code: str
    scratch: str
    interface: str
    address: str
    hca: str | None = None
    extensions: str | None = None
    devices: str | None = None


@dataclass(frozen=True)
class Launch(SpecBlocks):
    """One attempt as its workers see it.

    Attributes
    ----------
    directory
        The run's directory.
    spec, entry
        From the plan; ``${hpcrun:…}`` is still literal, because its value may differ between nodes.
    working_directory
        The working directory of the entry, relative to the node's copy of the code.
    master_port
        The port of the rendezvous on the first node's fast address.
    nodes
        In the order of NODE_RANK.
    """

    experiment: str
    run: int
    label: str
    attempt: int
    directory: str
    spec: dict[str, Any]
    entry: Entry
    working_directory: str
    world_size: int
    ranks_per_node: int
    master_port: int
    nodes: tuple[LaunchNode, ...]

    @property
    def run_paths(self) -> RunPaths:
        return RunPaths(Path(self.directory))

    @property
    def paths(self) -> AttemptPaths:
        return self.run_paths.attempt(self.attempt)

    @property
    def successor(self) -> Path:
        """The directory whose existence means that the next attempt has been claimed."""
        return self.run_paths.attempt(self.attempt + 1).directory

    def node_of(self, rank: int) -> LaunchNode:
        """Return the node on which a rank runs."""
        return self.nodes[rank // self.ranks_per_node]

    def write(self) -> None:
        """Write the attempt's ``launch.json``."""
        files.write_json(self.paths.launch, dataclasses.asdict(self))

    @classmethod
    def read(cls, path: Path) -> Launch:
        """Read a ``launch.json``."""
        data = files.read_json(path)
        entry = Entry(**{**data["entry"], "argv": tuple(data["entry"]["argv"])})
        nodes = tuple(LaunchNode(**node) for node in data["nodes"])
        return cls(**{**data, "entry": entry, "nodes": nodes})

    @classmethod
    def current(cls) -> Launch | None:
        """Return the attempt that this process belongs to; None outside hpcrun."""
        path = os.environ.get(VARIABLE)
        return cls.read(Path(path)) if path else None

    def fill(self, value: Any, node: LaunchNode) -> Any:
        """Replace ``${hpcrun:…}`` in strings, lists and mappings.

        Raises
        ------
        HpcrunError
            There is no such name.
        """
        if isinstance(value, dict):
            return {name: self.fill(item, node) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.fill(item, node) for item in value]
        if not isinstance(value, str) or "${hpcrun:" not in value:
            return value
        known = {
            "directory": self.directory,
            "deepspeed_config": str(self.paths.deepspeed),
            "attempt": str(self.attempt),
            "code": node.code,
            "scratch": node.scratch,
        }

        def replace(match: re.Match[str]) -> str:
            if match[1] not in known:
                raise HpcrunError(
                    f"${{hpcrun:{match[1]}}} is not known; there are {', '.join(known)}"
                )
            return known[match[1]]

        return _PLACEHOLDER.sub(replace, value)
