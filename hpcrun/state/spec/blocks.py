"""Typed views of a frozen spec's blocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpcrun import feature
from hpcrun.extensions import attribute_at
from hpcrun.fields import brief
from hpcrun.shared_dataclass import asdict

if TYPE_CHECKING:
    from hpcrun.state.environment.environment_block import Container, Environment
    from hpcrun.state.role_plan import RolePlan
    from hpcrun.state.spec.notify_block import Notify
    from hpcrun.state.spec.parallel_block import Parallel
    from hpcrun.state.spec.recovery_block import Recovery
    from hpcrun.state.spec.run_blocks import (
        Checkpoint,
        Code,
        Objective,
        Optimization,
        Pack,
        Progress,
        Resources,
        Telemetry,
    )

# The framework of an entry that starts the ranks of all nodes itself.
BATCH = "batch"
# The variable by which a `batch_script` finds the file that starts the ranks.
RANKS = "HPCRUN_RANKS"
_BLOCKS_TEXT = """
resources checkpoint recovery progress environment objective optimization notify parallel telemetry
code
"""
BLOCKS = frozenset((*_BLOCKS_TEXT.split(), *feature.blocks()))
# Not all in `experiment`, which has those of no run too: 500 agents of a job begin at once.
_RUN_BLOCKS = "hpcrun.state.spec.run_blocks"
_MODULES = {
    "container": "hpcrun.state.environment.environment_block",
    "environment": "hpcrun.state.environment.environment_block",
    "notify": "hpcrun.state.spec.notify_block",
    "parallel": "hpcrun.state.spec.parallel_block",
    "recovery": "hpcrun.state.spec.recovery_block",
}
# A plan that was frozen before such a key existed does without what it switches on.
_ABSENT: dict[str, dict[str, Any]] = {
    "recovery": {"hang_after": None, "warm_after": None},
    "telemetry": {"every": None},
}
# Blocks that may be null.
_OPTIONAL = ("objective", "parallel")


class SpecBlocks:
    """Typed views of a spec's blocks, each made when it is first asked for.

    Nothing is checked: the compiler did that, and `check` as the plan was read. So that plans of
    other versions can be read, unknown keys are ignored, and null stands for the default where the
    field has to have a value. ``spec`` is the resolved spec as plain data.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec

    @property
    def config(self) -> dict[str, Any]:
        """The entry's own configuration, free in form."""
        return self.spec.get("config") or {}

    @property
    def deepspeed(self) -> dict[str, Any]:
        """The DeepSpeed configuration."""
        return self.spec.get("deepspeed") or {}

    @property
    def container(self) -> Container | None:
        """The container that the ranks run in; None without one."""
        given = (self.spec.get("environment") or {}).get("container")
        return None if given is None else _block(_kind("container"), given)

    @property
    def effective_objective(self) -> Objective:
        """The objective, or the default one."""
        return self.objective or _block(_kind("objective"), {})

    def block(self, name: str) -> Any:
        """Return the block of a feature, which knows its type."""
        return getattr(self, name)

    if TYPE_CHECKING:
        resources: Resources
        checkpoint: Checkpoint
        recovery: Recovery
        progress: Progress
        environment: Environment
        objective: Objective | None
        optimization: Optimization
        notify: Notify
        parallel: Parallel | None
        telemetry: Telemetry
        code: Code
    else:

        def __getattr__(self, name):
            if name not in BLOCKS:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            given = self.spec.get(name)
            last = _LAST.get(name)
            if last is None or last[0] is not given or last[1] != given:
                last = _LAST[name] = given, copy(given), _make_block(name, given)
            self.__dict__[name] = last[2]
            return last[2]

    @property
    def has_rank_directories(self) -> bool:
        """Each rank has a working directory of its own."""
        return self.spec.get("working_directory") == "rank"


# A block's name -> the data of the last one, that data as it was then, and its view: the runs of a
# sweep share most of their blocks, and so their views.
_LAST: dict[str, tuple[Any, Any, Any]] = {}


def _make_block(name: str, given: dict[str, Any] | None) -> Any:
    if given is None and name in _OPTIONAL:
        return None
    return _block(_kind(name), {**_ABSENT.get(name, {}), **(given or {})})


def _kind(name: str) -> Any:
    """Return the dataclass of a block, or of one in a block."""
    if name in feature.blocks():
        return attribute_at(feature.every()[name].block)
    return attribute_at(f"{_MODULES.get(name, _RUN_BLOCKS)}:{name.capitalize()}")


def _block(kind: Any, data: Mapping[str, Any]) -> Any:
    types = kind.__annotations__
    return kind(
        **{
            key: value
            for key, value in data.items()
            if key in types and (value is not None or "None" in types[key])
        }
    )


class RunSpec(SpecBlocks):
    """The blocks of one run, and the shape of its job, which follows from them."""

    @cached_property
    def pack(self) -> Pack | None:
        """How it shares its job with other runs; None where it has one of its own."""
        given = (self.spec.get("resources") or {}).get("pack")
        return None if given is None else _block(_kind("pack"), given)

    @property
    def nodes(self) -> int:
        """Nodes with ranks, of all parts of its job."""
        return self.resources.nodes + sum(role.nodes for role in self.own_parts)

    @property
    def spare_nodes(self) -> int:
        """Further nodes of its job, which stand by."""
        return self.resources.spare_nodes

    @property
    def all_nodes(self) -> int:
        """Nodes of its job."""
        return self.nodes + self.spare_nodes

    @property
    def shared_nodes(self) -> int:
        """Nodes of its job, without those that a role has for itself."""
        return self.resources.nodes + self.spare_nodes

    @property
    def own_parts(self) -> tuple[RolePlan, ...]:
        """The roles with nodes of their own: further parts of a heterogeneous job, in its order."""
        return tuple(role for role in self.role_plans if role.part)

    @property
    def all_gpus(self) -> int:
        """GPUs of its job, those of whole nodes that it leaves idle included."""
        parts = ((role.nodes, self.resources_of(role.first_node)) for role in self.own_parts)
        others = sum(nodes * wanted.held_gpus for nodes, wanted in parts)
        return self.shared_nodes * self.resources.held_gpus + others

    @property
    def all_cpus(self) -> int:
        """Processors of its job."""
        others = sum(role.devices(gpu=False) for role in self.own_parts)
        per_node = self.ranks_per_node * (self.resources.cpus_per_task or 1)
        return self.shared_nodes * per_node + others

    def resources_of(self, node: int) -> Resources:
        """Return what was asked of Slurm for one of the job's nodes, by its number."""
        own = (role for role in self.own_parts if role.first_node <= node)
        last = max(own, key=lambda role: role.first_node, default=None)
        return self.resources if last is None else _block(_kind("resources"), last.resources)

    @property
    def outlives_nodes(self) -> bool:
        """The job is to go on without a node that was lost."""
        if self.own_parts:
            # Slurm would start the part that lost its last node apart from the others.
            return False
        moves = self.nodes > 1 and any(role.may_move for role in self.role_plans)
        return self.spare_nodes > 0 or moves or (self.recovery.shrink and self.nodes > 1)

    @cached_property
    def role_plans(self) -> tuple[RolePlan, ...]:
        """Its roles, the main one first; empty where all ranks are alike."""
        if not self.spec.get("roles"):
            return ()
        from hpcrun.state import role_plan

        return role_plan.of(self.spec)

    @property
    def ranks_per_node(self) -> int:
        """One per GPU, or as many as ``ntasks_per_node`` asks for; with roles a node's most."""
        return self.resources.ntasks_per_node or self.resources.gpus_per_node or 1

    @property
    def world_size(self) -> int:
        """Ranks of all roles; the tasks of a batch script's own steps are none."""
        if self.role_plans:
            return sum(role.size for role in self.role_plans)
        if self.spec.get("framework") == BATCH:
            return 1
        return self.nodes * self.ranks_per_node

    @property
    def main_ranks(self) -> int:
        """Ranks that train: those of the main role where there are roles."""
        return self.role_plans[0].size if self.role_plans else self.world_size

    @property
    def slots(self) -> int:
        """Ranks of a node for which ports are kept: those of any role may come to be there."""
        if not self.role_plans:
            return self.ranks_per_node
        return self.role_plans[0].ranks_per_node + self.world_size - self.main_ranks

    @property
    def places(self) -> list[int]:
        """The node of each rank as planned, by its number among the attempt's nodes."""
        if self.role_plans:
            return [place for role in self.role_plans for place in role.places]
        return [rank // self.ranks_per_node for rank in range(self.world_size)]


def when_absent() -> dict[str, Any]:
    """Return what a plan does that was frozen before a key existed, as the data of a whole spec."""
    from hpcrun.state.spec.experiment import Spec

    spec = asdict(Spec())
    for name, absent in _ABSENT.items():
        spec[name].update(absent)
    return spec


def check(spec: Mapping[str, Any], blocks: Collection[str] = BLOCKS) -> None:
    """Raise ValueError if a value in these blocks of a spec is not of its key's type.

    A plan may be another user's. Null and unknown keys may be there, as above.
    """
    from hpcrun.state.role_plan import ROLES

    given = {name: spec.get(name) or {} for name in blocks}
    kinds: dict[str, Any] = {name: _kind(name) for name in blocks if given[name]}
    environment = given.get("environment", {})
    if isinstance(environment, dict) and isinstance(environment.get("container"), dict):
        key = "environment.container"
        given[key], kinds[key] = environment["container"], _kind("container")
    for name, role in (spec.get(ROLES) or {}).items():
        if isinstance(role, dict) and isinstance(role.get("resources"), dict):
            key = f"{ROLES}.{name}.resources"
            given[key], kinds[key] = role["resources"], _kind("resources")
    for name, kind in kinds.items():
        types = kind.__annotations__
        for key, value in given[name].items():
            if key in types and value is not None and not _fits(value, types[key]):
                raise ValueError(f"{name}.{key} is {brief(value)}, not {types[key]}")


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "None": (),
}


def _fits(value: Any, kind: str) -> bool:
    """Check that a value is of a type, as the spec's dataclasses write it."""
    if kind in _TYPES:
        return type(value) in _TYPES[kind]
    if " | " in kind:
        return any(_fits(value, one) for one in kind.split(" | "))
    name, _, inner = kind.rstrip("]").partition("[")
    if name == "list":
        return isinstance(value, list) and all(_fits(one, inner) for one in value)
    if name == "Literal":
        return isinstance(value, str)
    if name == "dict" and isinstance(value, dict):
        of_values = inner.rpartition(", ")[2]
        return of_values == "Any" or all(_fits(one, of_values) for one in value.values())
    # A block in a block.
    return isinstance(value, dict)


def is_late(value: object) -> bool:
    """Check whether a value holds ``${hpcrun:…}``, which is known only as an attempt starts."""
    return isinstance(value, str) and "${hpcrun:" in value


def early(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that the job's script can set; ranks get the others."""
    return {name: value for name, value in variables.items() if not is_late(value)}
