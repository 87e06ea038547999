"""Runs that share a job (``resources.pack``): what may, and the shape of such a job.

`hpcrun.run.packed_job` runs them. What no test has run so is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hpcrun.compile.source.marked_tree import get_at
from hpcrun.policy import frameworks
from hpcrun.shared_dataclass import dataclass, replace
from hpcrun.slurm.parse import megabytes
from hpcrun.state.plan import RunPlan
from hpcrun.state.spec.recovery_block import Recovery
from hpcrun.state.spec.run_blocks import Pack, Resources

if TYPE_CHECKING:
    from hpcrun.compile.target.draft import SpecDraft

# Each run has a client on the job's first node.
MOST_SEATS = 512
# Keys of a spec -> what they are where a run can share its job.
_REFUSED: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("resources", "spare_nodes"): (0,),
    ("resources", "gpu_request"): ("gpus-per-node", "gres"),
    ("resources", "mpi"): (None,),
    ("environment", "container"): (None,),
    ("environment", "venv"): ("live",),
    ("checkpoint", "nearby_every"): (None,),
    ("recovery", "grow"): (None,),
    ("roles",): (None, {}),
}
# Options of sbatch by processor or GPU, which a step does not share out as a job does.
_OPTIONS = ("mem-per-cpu", "mem-per-gpu", "gres", "core-spec", "thread-spec", "tres-per-task")


@dataclass(frozen=True)
class PackShape:
    """The job of runs that share one."""

    nodes: int
    per_node: int
    """Runs on a node at once."""
    seats: int
    """Runs at once on all nodes."""
    nodes_per_run: int = 1
    """Nodes of each run, which has them alone if they are several."""

    def tasks(self, ranks: int) -> int:
        """Return how many tasks a node has: one a run, or the ranks of one with several nodes."""
        return self.per_node if self.nodes_per_run == 1 else ranks

    def outlives_nodes(self, recovery: Recovery) -> bool:
        """Check whether the job goes on without a node that was lost."""
        return self.nodes > 1 and recovery.requeue

    def resources(self, run: Resources, ranks: int) -> Resources:
        """Return what the job asks for on each node, for runs of so many ranks a node."""
        if self.nodes_per_run > 1:
            return run
        size = megabytes((run.mem or "").upper())
        return replace(
            run,
            gpus_per_node=run.gpus_per_node * self.per_node,
            cpus_per_task=ranks * (run.cpus_per_task or 1),
            mem=f"{math.ceil(size * self.per_node)}M" if size else run.mem,
        )


def shape(pack: Pack, nodes_per_run: int, runs: int, parallel: int | None) -> PackShape:
    """Return the shape of the job of some runs, of which at most ``parallel`` run at once.

    It has no nodes and no places on them that none of the runs would come to.
    """
    seats = min(runs, parallel or runs, _most_seats(pack, nodes_per_run))
    if nodes_per_run > 1:
        return PackShape(seats * nodes_per_run, 1, seats, nodes_per_run)
    nodes = min(pack.nodes_per_job, math.ceil(seats / pack.runs_per_node))
    return PackShape(nodes, math.ceil(seats / nodes), seats)


def _most_seats(pack: Pack, nodes_per_run: int) -> int:
    return pack.nodes_per_job * pack.runs_per_node // nodes_per_run


def shares(runs: list[RunPlan], pack: Pack, parallel: int | None) -> Iterator[list[RunPlan]]:
    """Divide runs among as few jobs as let ``parallel`` of them run at once."""
    at_once = min(len(runs), parallel or len(runs))
    jobs = math.ceil(at_once / _most_seats(pack, runs[0].nodes))
    begin = 0
    for index in range(jobs):
        end = len(runs) * (index + 1) // jobs
        yield runs[begin:end]
        begin = end


def check(draft: SpecDraft, sbatch: Mapping[str, Any]) -> None:
    """Report what of a spec does not go together with runs that share a job.

    ``sbatch`` has the options of the cluster's profile. Note what runs share all the same.
    """
    spec, report = draft.spec, draft.report
    pack = spec["resources"]["pack"]
    if pack is None or report.problems.under("resources"):
        return
    below, nodes = report.below("resources.pack"), spec["resources"]["nodes"]
    for name in ("runs_per_node", "nodes_per_job"):
        below.at_least(name, pack[name], 1)
    if nodes > 1 and pack["runs_per_node"] > 1:
        told = f"found {pack['runs_per_node']}, and runs of {nodes} nodes have theirs alone"
        below.at("runs_per_node", told, "leave runs_per_node out, or take resources.nodes: 1")
    elif rest := pack["nodes_per_job"] % nodes:
        few = pack["nodes_per_job"] - rest
        fits = " or ".join(str(one) for one in (few, few + nodes) if one)
        told = f"found {pack['nodes_per_job']}, which is no multiple of resources.nodes: {nodes}"
        below.at("nodes_per_job", told, f"take {fits}")
    if (seats := pack["runs_per_node"] * pack["nodes_per_job"] // max(nodes, 1)) > MOST_SEATS:
        hint = "take fewer nodes_per_job: as many jobs are made as sweep.max_parallel lets run"
        below.at((), f"{seats:,} runs of a job at once; accepted are {MOST_SEATS}", hint)
    if seats == 1 and not report.problems.under("resources.pack"):
        draft.note(
            "resources.pack: a job has one run, as it would without; runs_per_node and "
            "nodes_per_job say how many share one"
        )
    for key, accepted in _REFUSED.items():
        if (found := get_at(spec, key)) not in accepted:
            dotted = ".".join(key)
            shown = "{…}" if isinstance(found, dict) else found
            told = f"does not go together with {dotted}: {shown}, as no test has run that"
            below.at((), told, f"leave {dotted} out, or give the runs jobs of their own")
    for name in _OPTIONS:
        if {**sbatch, **spec["resources"]["sbatch"]}.get(name):
            hint = "give a run's memory by resources.mem, its GPUs by resources.gpus_per_node"
            below.at((), f"does not go together with sbatch's --{name}", hint)
    if draft.framework == frameworks.MPI or frameworks.of(draft.framework).one_per_run:
        told = f"does not go together with framework: {draft.framework}, whose ranks srun starts"
        below.at((), told, "give the runs jobs of their own")
    if pack["runs_per_node"] > 1 and not megabytes((spec["resources"]["mem"] or "").upper()):
        draft.note(
            "resources.pack: the runs of a node share its job's memory, as resources.mem does not "
            "say how much each has"
        )
