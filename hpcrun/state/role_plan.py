"""The program of a run, and its roles as the plan has them: program, ranks, nodes, policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcrun.fields import FLAG, INDEX, MAPPING, PATH, TEXT, TEXTS, Kinds, wrong
from hpcrun.shared_dataclass import dataclass, field, names
from hpcrun.text import plural, range_text

ROLES = "roles"
"""The key of the spec's block."""

_ENTRY_KINDS: Kinds = {
    **dict.fromkeys(("kind", "module", "function", "framework", "recipe"), TEXT),
    **dict.fromkeys(("import_root", "file"), PATH),
    **dict.fromkeys(("argv", "resumed"), TEXTS),
}


@dataclass(frozen=True)
class Entry:
    """The program of a run; found at compile time, imported only by the workers."""

    kind: str
    """``function`` (called with a session), ``script`` (a Python file) or ``command``."""

    module: str | None = None
    """For a function: the module to import."""

    function: str | None = None
    """For a function: its name there."""

    import_root: str | None = None
    """For a function: the directory, relative to the code root, that ``module`` is imported from;
    None when the module is installed in the job's Python."""

    file: str | None = None
    """For a script: its path relative to the code root."""

    argv: tuple[str, ...] = ()
    """For a script its arguments (``args``, then the flags of ``config``); for a command all of it.
    May hold ``${hpcrun:…}``, filled in as an attempt starts."""

    framework: str = "none"
    """The framework that its ranks are prepared for, by its name in `hpcrun.policy.frameworks`: the
    spec's, or the one that was detected."""

    resumed: tuple[str, ...] | None = None
    """The same as ``argv`` of an attempt that resumes; None where the spec says nothing of that."""

    recipe: str | None = None
    """The recipe by which it resumes where the spec names neither one nor the framework: that of
    the framework that was detected."""

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Entry:
        """Return the entry of its fields as plain data; raise ValueError if they are not."""
        if problem := wrong(data, _ENTRY_KINDS, ("kind",)):
            raise ValueError(f"entry: {problem}")
        resumed = None if data.get("resumed") is None else tuple(data["resumed"])
        return cls(**{**data, "argv": tuple(data["argv"]), "resumed": resumed})


# Keys that a role has itself, where a run without roles has them in ``resources``.
SHAPE = ("nodes", "ntasks_per_node", "cpus_per_task", "gpus_per_node")
RUN, ROLE, RANK, IGNORE = "run", "role", "rank", "ignore"
STOP = "stop"

_KINDS: Kinds = {
    **dict.fromkeys(("nodes", "first_node", "ntasks_per_node", "gpus_per_node"), INDEX),
    **dict.fromkeys(("cpus_per_task", "budget", "stop_grace", "first_rank", "first_gpu"), INDEX),
    **dict.fromkeys(("config", "program", "resources"), MAPPING),
    **dict.fromkeys(("restart", "at_end"), TEXT),
    "main": FLAG,
    "args": TEXTS,
    "part": INDEX,
}
_NEEDED = ("nodes", "first_node", "ntasks_per_node", "first_rank", "restart", "budget", "at_end")


@dataclass(frozen=True, kw_only=True)
class RolePlan:
    """One role of a run; its ranks are numbered one after the other among those of the run."""

    name: str
    """The role's name."""
    is_main: bool
    """The run is done when it is."""
    first_rank: int
    """The first of its ranks among the run's."""
    nodes: int
    """The number of its nodes."""
    first_node: int
    """The first of them among the attempt's."""
    ranks_per_node: int
    """Its ranks on each of them."""
    gpus_per_node: int = 0
    """Its GPUs on each of them."""
    first_gpu: int = 0
    """The first of these among the node's."""
    cpus_per_task: int
    """CPUs of each rank."""
    restart: str
    """``run``, ``role``, ``rank`` or ``ignore``."""
    budget: int
    """How often its ranks may be started anew in one attempt."""
    at_end: str
    """``stop`` or ``finish``."""
    stop_grace: int = 0
    """Seconds between SIGTERM and SIGKILL."""
    config: dict[str, Any] = field(default_factory=dict)
    """Its configuration; that of the main role is the run's."""
    args: tuple[str, ...]
    """Its arguments before the flags."""
    entry: Entry | None
    """Its program; None in the main role, whose program is the run's."""
    part: int = 0
    """The part of a heterogeneous job that its nodes are; 0 for the one that roles share."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """The resources of a part of its own, in full; empty without one."""

    @property
    def size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def ranks(self) -> range:
        """Its ranks, as those of the run are numbered."""
        return range(self.first_rank, self.first_rank + self.size)

    @property
    def places(self) -> list[int]:
        """The node of each of its ranks, by its number among the attempt's nodes."""
        return [self.first_node + index // self.ranks_per_node for index in range(self.size)]

    def devices(self, *, gpu: bool) -> int:
        """Return the GPUs, or else the processors, that its ranks have on all nodes."""
        return self.nodes * self.gpus_per_node if gpu else self.size * self.cpus_per_task

    @property
    def may_move(self) -> bool:
        """Its ranks may go on on another node when theirs is lost."""
        return self.restart != RUN and not self.is_main and not self.gpus_per_node

    @property
    def described(self) -> str:
        """Return its ranks, nodes and policy in words."""
        where = range_text(range(self.first_node, self.first_node + self.nodes))
        gpus = f", {plural(self.gpus_per_node, 'GPU')} each" if self.gpus_per_node else ""
        ranks = f"{'rank' if self.size == 1 else 'ranks'} {range_text(self.ranks)}"
        partition = self.resources.get("partition")
        own = f" of its own{f' in {partition}' if partition else ''}" if self.part else ""
        nodes = f"{'node' if self.nodes == 1 else 'nodes'} {where}{own}{gpus}"
        end = "main" if self.is_main else f"at_end: {self.at_end}"
        return f"{ranks} on {nodes}; restart: {self.restart}; {end}"

    def shown(self, rank: int) -> str:
        """Return a rank of the run as one of the role: ``server 1``."""
        return f"{self.name} {rank - self.first_rank}"


def of(spec: Mapping[str, Any]) -> tuple[RolePlan, ...]:
    """Return the roles of a frozen spec, the main one first; empty where all ranks are alike."""
    return tuple(_role(name, data) for name, data in (spec.get(ROLES) or {}).items())


def role_of(roles: tuple[RolePlan, ...], rank: int) -> RolePlan | None:
    """Return the role of a rank of the run; None if there is none."""
    return next((role for role in roles if rank in role.ranks), None)


def check(spec: Mapping[str, Any]) -> None:
    """Raise ValueError if the roles of a frozen spec are not of their kinds."""
    following = 0
    for name, data in (spec.get(ROLES) or {}).items():
        problem = wrong(data, _KINDS, _NEEDED) if isinstance(data, dict) else "no mapping"
        if problem:
            raise ValueError(f"roles.{name}: {problem}")
        if data.get("program") is not None:
            Entry.from_data(data["program"])
        if data["first_rank"] != following or data["ntasks_per_node"] < 1 or data["nodes"] < 1:
            raise ValueError(f"roles.{name}: its ranks do not follow those before")
        following += data["nodes"] * data["ntasks_per_node"]


def _role(name: str, data: Mapping[str, Any]) -> RolePlan:
    given = {key: data[key] for key in names(RolePlan) if data.get(key) is not None}
    given |= {
        "name": name,
        "is_main": bool(data.get("main")),
        "ranks_per_node": data["ntasks_per_node"],
        "cpus_per_task": data.get("cpus_per_task") or 1,
        "args": tuple(data.get("args") or ()),
        "entry": None if data.get("program") is None else Entry.from_data(data["program"]),
    }
    return RolePlan(**given)
