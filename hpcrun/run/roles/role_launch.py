"""The launch files of a run's roles, and the addresses by which their ranks find each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.channel import endpoint
from hpcrun.run.protocol.launch import Launch, LaunchNode
from hpcrun.state import files
from hpcrun.state.plan import RunPlan
from hpcrun.state.role_plan import RolePlan


class RoleLaunches:
    """The roles of one attempt on its ``nodes``; the addresses are kept up to date on disk.

    ``launch`` is that of the run, as if all nodes were the main role's. Raises HpcrunError if a
    node has no free ports for them.
    """

    def __init__(self, run: RunPlan, launch: Launch, nodes: Sequence[LaunchNode]) -> None:
        self._run, self._nodes = run, tuple(nodes)
        if without := [node.name for node in nodes if node.ports is None]:
            raise HpcrunError(f"node {without[0]} has no {run.slots} free TCP ports for the roles")
        self._places = dict(enumerate(run.places))
        self._launches = {role.name: self._launch(role, launch) for role in run.role_plans}
        self._tell()

    @property
    def main(self) -> Launch:
        """That of the main role, with the addresses of all."""
        return self._launches[self._run.role_plans[0].name]

    def of(self, role: RolePlan) -> Launch:
        return self._launches[role.name]

    def node_of(self, rank: int) -> str:
        """Return the name of the node of a rank of the run."""
        return self._nodes[self._places[rank]].name

    def move(self, ranks: Collection[int], lost: Collection[str]) -> dict[int, str]:
        """Give ranks other nodes than those that were lost, the emptiest first; return theirs."""
        left = [index for index, node in enumerate(self._nodes) if node.name not in lost]
        for rank in ranks:
            taken = [*self._places.values()]
            self._places[rank] = min(left, key=taken.count)
        for role in self._run.role_plans[1:]:
            self._launches[role.name] = self._place(role, self._launches[role.name])
        self._tell()
        self.write()
        return {rank: self.node_of(rank) for rank in ranks}

    def write(self) -> None:
        """Write the launch files of all roles, and the addresses."""
        files.write_json(self.main.paths.addresses, self.main.addresses)
        for launch in self._launches.values():
            launch.write()

    def complete(self, main: Launch) -> None:
        """Take the main role's launch as it goes on from earlier attempts."""
        self._launches[str(main.role)] = main

    def _launch(self, role: RolePlan, launch: Launch) -> Launch:
        given = self._run.spec
        resources = {
            **(role.resources or given["resources"]),
            **{"nodes": role.nodes, "ntasks_per_node": role.ranks_per_node},
            **{"gpus_per_node": role.gpus_per_node, "cpus_per_task": role.cpus_per_task},
        }
        main: Mapping[str, Any] = {"config": given.get("config") or {}}
        own = main if role.is_main else {"config": role.config, "deepspeed": {}, "parallel": None}
        others = role.first_rank - self._run.main_ranks
        first_slot = None if role.is_main else self._run.role_plans[0].ranks_per_node + others
        found = replace(
            launch,
            spec={**given, **own, "resources": resources},
            entry=launch.entry if role.entry is None else role.entry,
            world_size=role.size,
            ranks_per_node=role.ranks_per_node,
            role=role.name,
            first_rank=role.first_rank,
            first_gpu=role.first_gpu,
            slots=self._run.slots,
            first_slot=first_slot,
        )
        if role.is_main:
            return replace(found, nodes=self._nodes[: role.nodes])
        return self._place(role, found)

    def _place(self, role: RolePlan, launch: Launch) -> Launch:
        """Return a role's launch with its nodes in the order of its ranks."""
        places = [self._places[rank] for rank in role.ranks]
        order = [*dict.fromkeys(places)]
        found = replace(
            launch,
            nodes=tuple(self._nodes[index] for index in order),
            places=tuple(order.index(place) for place in places),
        )
        return replace(found, master_port=found.ports_of(0)[-1])

    def _tell(self) -> None:
        addresses = {
            name: [
                endpoint(one.node_of(rank).address, one.ports_of(rank)[0])
                for rank in range(one.world_size)
            ]
            for name, one in self._launches.items()
        }
        for name, one in self._launches.items():
            self._launches[name] = replace(one, addresses=addresses)
