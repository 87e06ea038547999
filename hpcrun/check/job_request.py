"""What one sbatch of a plan asks for, read from the options in its script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrun.site import slurm_records as records
from hpcrun.slurm.hostlist import parse_ranges
from hpcrun.slurm.parse import parse_duration
from hpcrun.state import role_plan
from hpcrun.state.plan import Array

_DIRECTIVE = "#SBATCH "
_KEYS = {
    "gpus-per-node": "resources.gpus_per_node",
    "cpus-per-task": "resources.cpus_per_task",
    "ntasks-per-node": "resources.ntasks_per_node",
    "array": "sweep",
    "job-name": "name",
    **{
        name: f"resources.{name}"
        for name in (
            *("partition", "account", "qos", "constraint", "reservation", "exclude", "mem"),
            *("time", "nodes"),
        )
    },
}
# What stands between features, and how many nodes are to have one.
_NO_FEATURE = re.compile(r"[&|,()\[\]]|\*\d+")
_FEATURE = re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class JobRequest:
    """One sbatch, as Slurm will be asked for it."""

    runs: tuple[int, ...]
    script: str
    options: dict[str, str] = field(default_factory=dict)
    """sbatch's long options -> values; empty for one without a value."""
    role: str | None = None
    """The role with nodes of its own that it is the part of; None for the first part, or all."""

    @classmethod
    def parts(cls, array: Array, roles: Sequence[str] = ()) -> list[JobRequest]:
        """Return the request of an array, and those of further parts, which ``roles`` have."""
        found: list[dict[str, str]] = [{}]
        for line in array.script.splitlines():
            if line == f"{_DIRECTIVE}hetjob":
                found.append({})
            elif line.startswith(_DIRECTIVE):
                for word in shlex.split(line[len(_DIRECTIVE) :]):
                    name, _, value = word.removeprefix("--").partition("=")
                    found[-1][name] = value
        return [
            cls(array.runs, array.script, options, role)
            for options, role in zip(found, (None, *roles), strict=True)
        ]

    def __getitem__(self, option: str) -> str:
        return self.options.get(option, "")

    def key(self, option: str) -> str:
        """Return the key of the spec by which an option is set."""
        key = _KEYS.get(option, f"resources.sbatch.{option}")
        if self.role is None:
            return key
        own = key.removeprefix("resources.")
        return f"roles.{self.role}.{own if own in role_plan.SHAPE else key}"

    @property
    def partitions(self) -> tuple[str, ...]:
        """Partitions, of which Slurm takes the first that can start it; empty for the default."""
        return records.words(self["partition"])

    @property
    def nodes(self) -> int:
        return records.count(self["nodes"].partition("-")[0]) or 1

    @property
    def ranks_per_node(self) -> int:
        return records.count(self["ntasks-per-node"]) or 1

    @property
    def cpus_per_node(self) -> int:
        if "overcommit" in self.options:
            return 1
        return self.ranks_per_node * (records.count(self["cpus-per-task"]) or 1)

    @property
    def gpus_per_node(self) -> int:
        return self._gpus[1]

    @property
    def gpu_type(self) -> str | None:
        return self._gpus[0] or None

    @property
    def _gpus(self) -> tuple[str, int]:
        """The type and the number of a node, as either option has them."""
        asked = self["gpus-per-node"]
        found = records.gpus(f"gpu:{asked}" if asked else self["gres"])
        return next(iter(found.items()), ("", 0))

    @property
    def memory_per_node(self) -> float | None:
        """MB; None for the partition's default, and for all that a node has (``0``)."""
        per_node = records.megabytes(self["mem"])
        per_cpu, per_gpu = (records.megabytes(self[f"mem-per-{one}"]) for one in ("cpu", "gpu"))
        if per_node is None and per_cpu is not None:
            per_node = per_cpu * self.cpus_per_node
        if per_node is None and per_gpu is not None:
            per_node = per_gpu * self.gpus_per_node
        return per_node or None

    @property
    def seconds(self) -> int | None:
        """The time limit."""
        return parse_duration(self["time"])

    @property
    def elements(self) -> int:
        """Jobs that Slurm counts: the elements of the array."""
        return len(self.runs)

    @property
    def highest_index(self) -> int | None:
        """The highest index of the array; None for a plain job."""
        try:
            spans = parse_ranges(self["array"].partition("%")[0]) if self["array"] else []
        except ValueError:
            return None
        return max((span[-1] for span in spans if span), default=None)

    @property
    def features(self) -> frozenset[str]:
        """The features that its constraint names."""
        words = _NO_FEATURE.sub(" ", self["constraint"]).split()
        return frozenset(word for word in words if _FEATURE.fullmatch(word))

    def accepts(self, features: frozenset[str]) -> bool:
        """Check whether a node with these features may be used; True where that is not plain."""
        text = self["constraint"]
        if not text or set(text) & set("[]()*!,:="):
            return True
        return any(set(part.split("&")) <= features for part in text.split("|"))

    def amounts(self) -> dict[str, float]:
        """Return what limits count of one job: cpu, node, mem (MB) and GPUs."""
        found: dict[str, float] = {"node": self.nodes, "cpu": self.nodes * self.cpus_per_node}
        if self.memory_per_node is not None:
            found["mem"] = self.nodes * self.memory_per_node
        if self.gpus_per_node:
            gpus = self.nodes * self.gpus_per_node
            found["gres/gpu"] = gpus
            if self.gpu_type:
                found[f"gres/gpu:{self.gpu_type}"] = gpus
        return found

    def licenses(self) -> dict[str, int]:
        """Return license -> how many of it."""
        found: dict[str, Any] = {}
        for part in re.split(r"[,;|&]", self["licenses"]):
            name, _, number = part.partition(":")
            if name:
                found[name] = records.count(number) or 1
        return found
