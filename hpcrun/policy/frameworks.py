"""Training frameworks: what their ranks find in their environment, and what is read of them.

The spec's ``framework`` names one. The constants below say what each gets; their names are in
`hpcrun.extensions`, and docs/frameworks.md is about them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcrun.extensions import FRAMEWORKS
from hpcrun.shared_dataclass import dataclass
from hpcrun.state.spec.blocks import BATCH as BATCH

if TYPE_CHECKING:
    from hpcrun.state.plan import RunPlan

AUTO, NONE, MPI = "auto", "none", "mpi"


# The type of MPI by which srun tells its tasks nothing of each other.
NO_PMI = "none"
# MPI's own, each of which starts ranks on all nodes of the job.
MPI_LAUNCHERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")


@dataclass(frozen=True)
class RankPlace:
    """One rank among all ranks of an attempt, as the variables of a framework need it."""

    rank: int
    ranks_per_node: int
    addresses: tuple[str, ...]
    """The nodes' fast addresses, in the order of NODE_RANK."""
    master_port: int
    """The port of the rendezvous on the first node."""
    ports: tuple[int, ...] = ()
    """The first free port of each rank, by rank; empty where none could be kept."""
    gpus_per_node: int = 0
    run: str = ""
    """The run, such as ``finetune/3``."""
    deepspeed_config: str | None = None
    """The path of the attempt's DeepSpeed JSON; None where the spec has no such configuration."""
    size: int = 0
    """The number of ranks, where some have moved to other nodes; 0 for all places of the nodes."""

    @property
    def nodes(self) -> int:
        return len(self.addresses)

    @property
    def world_size(self) -> int:
        return self.size or self.nodes * self.ranks_per_node

    @property
    def node_rank(self) -> int:
        return self.rank // self.ranks_per_node

    @property
    def local_rank(self) -> int:
        return self.rank % self.ranks_per_node


@dataclass(frozen=True)
class Framework:
    """The environment of one framework's ranks, beyond RANK, WORLD_SIZE, MASTER_ADDR and so on."""

    name: str
    variables: Callable[[RankPlace], dict[str, str]] = lambda place: {}
    """Further environment variables of a rank; the user's own of the same names win."""
    arguments: Callable[[RankPlace], list[str]] = lambda place: []
    """Arguments that a rank's program gets after all others."""
    hidden: frozenset[str] = frozenset()
    """Variables that its ranks do not find, though other programs' do."""
    progress: str = AUTO
    """The default of the spec's progress source."""
    resume: str | None = None
    """The default of ``recovery.resume``: a recipe's name. Where the framework was detected, it
    holds if the program reads an option that the recipe gives."""
    one_per_node: bool = False
    """One process a node is started and has all its GPUs, in place of one process a GPU."""
    pmi: str | None = NO_PMI
    """The type of MPI that srun prepares its ranks for (``--mpi``), where ``resources.mpi`` names
    none: `NO_PMI`, None for the site's default, or `MPI` for one that the program's MPI knows."""
    one_per_run: bool = False
    """One process a run is started, on the first node and in the environment of Slurm's batch
    script; it starts the others itself, by srun or mpirun, and finds nothing of hpcrun's ranks."""
    meets: bool = True
    """Its ranks meet at MASTER_ADDR:MASTER_PORT or at their own ports, so that ranks of which
    nobody ever did have trained alone."""


def _torchelastic(place: RankPlace) -> dict[str, str]:
    """Return what torchrun sets beside RANK and its like; Lightning then leaves Slurm alone."""
    return {
        "TORCHELASTIC_RUN_ID": place.run,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "GROUP_RANK": str(place.node_rank),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "ROLE_NAME": "default",
    }


def _on_cpus(place: RankPlace) -> dict[str, str]:
    """Return what Accelerate and the Trainer need: else each rank on CPUs believes to be alone."""
    return {} if place.gpus_per_node else {"ACCELERATE_USE_CPU": "true"}


def _accelerate(place: RankPlace) -> dict[str, str]:
    """Return what ``accelerate launch`` sets."""
    if not place.gpus_per_node or place.deepspeed_config is None:
        return _on_cpus(place)
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": place.deepspeed_config,
    }


def _torchrun(place: RankPlace) -> dict[str, str]:
    """Return torchrun's defaults, which its own arguments override."""
    found = {
        "PET_NNODES": str(place.nodes),
        "PET_NODE_RANK": str(place.node_rank),
        "PET_MASTER_ADDR": place.addresses[0],
        "PET_MASTER_PORT": str(place.master_port),
    }
    return {**found, "PET_NPROC_PER_NODE": str(place.gpus_per_node or 1), **_on_cpus(place)}


def _local_rank(place: RankPlace) -> list[str]:
    return [f"--local_rank={place.local_rank}"]


def _tensorflow(place: RankPlace) -> dict[str, str]:
    """Return TF_CONFIG, without which each rank of a MultiWorkerMirroredStrategy trains alone."""
    if not place.ports:
        return {}
    workers = [
        f"{place.addresses[rank // place.ranks_per_node]}:{port}"
        for rank, port in enumerate(place.ports)
    ]
    task = {"type": "worker", "index": place.rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}


def _jax(place: RankPlace) -> dict[str, str]:
    """Return the coordinator, which JAX reads itself, and the names that programs read the rest by.

    On Slurm JAX takes the number of processes and its own from srun.
    """
    return {
        "JAX_COORDINATOR_ADDRESS": f"{place.addresses[0]}:{place.master_port}",
        "JAX_NUM_PROCESSES": str(place.world_size),
        "JAX_PROCESS_ID": str(place.rank),
    }


_RANKS = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT"),
    }
)
UNKNOWN = Framework(AUTO, _on_cpus, pmi=None)
PLAIN = Framework(NONE, pmi=None, meets=False)
BATCH_SCRIPT = Framework(BATCH, hidden=_RANKS, one_per_run=True, meets=False)
ACCELERATE = Framework("accelerate", _accelerate)
COMPOSER = Framework("composer")
DEEPSPEED = Framework("deepspeed", arguments=_local_rank, resume="deepspeed-checkpoint")
HUGGINGFACE = Framework("huggingface", _on_cpus, progress="trainer_state", resume="hf-trainer")
JAX = Framework("jax", _jax)
LIGHTNING = Framework("lightning", _torchelastic, progress="lightning", resume="lightning")
# They meet by Slurm's PMI.
MPI_PROGRAM = Framework(MPI, pmi=MPI, meets=False)
SINGLE = Framework("single", hidden=_RANKS, one_per_node=True, meets=False)
TENSORFLOW = Framework("tensorflow", _tensorflow)
TORCHRUN = Framework("torchrun", _torchrun, one_per_node=True)


def ranks_meet(run: RunPlan) -> bool:
    """Check that a run's ranks are several, and are to meet.

    Ranks of a role that are started anew one by one do without.
    """
    if run.role_plans and run.role_plans[0].restart == "rank":
        return False
    return run.main_ranks > 1 and of(run.entry.framework).meets


def of(name: object) -> Framework:
    """Return the framework of that name, hpcrun's own or a package's; PLAIN for an unknown one."""
    return FRAMEWORKS.load(str(name)) if name is not None and name in FRAMEWORKS else PLAIN
