"""The environment of a rank: what frameworks and fabric libraries read there."""

from __future__ import annotations

import os
from pathlib import Path

from hpcrun import feature
from hpcrun.policy import frameworks
from hpcrun.policy.frameworks import RankPlace
from hpcrun.run.node import rank_processes
from hpcrun.run.program import mpi_world
from hpcrun.run.protocol.launch import NODE_VARIABLE, VARIABLE, Launch, LaunchNode
from hpcrun.run.rank import device_precision
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.spec import profiling
from hpcrun.state.spec.blocks import is_late

_DEVICES = "CUDA_VISIBLE_DEVICES"
# Linux starts no program with a variable of 131,072 bytes.
_LONGEST_LIST = 32_000


def environment(launch: Launch, rank: int) -> dict[str, str]:
    """Return the variables that frameworks and fabric libraries read in this rank.

    Values that the user or the site set for the fabric libraries stay, and those of the spec's
    ``environment.variables`` for its framework.
    """
    place = rank_place(launch, rank)
    node = launch.node_of(rank)
    resources = launch.resources
    framework = frameworks.of(launch.entry.framework)
    forced = {
        "RANK": str(rank),
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(launch.ranks_per_node),
        "NODE_RANK": str(launch.node_index(rank)),
        "MASTER_ADDR": place.addresses[0],
        "MASTER_PORT": str(launch.master_port),
        VARIABLE: str(launch.file),
        NODE_VARIABLE: str(launch.node_index(rank)),
        "HPCRUN_DIRECTORY": launch.directory,
        "HPCRUN_ATTEMPT": str(launch.attempt),
        "HPCRUN_RUN": f"{launch.experiment}/{launch.run}",
        "HPCRUN_METRICS_FILE": str(launch.paths.metrics),
        "HPCRUN_NODES": str(place.nodes),
        "HPCRUN_HOSTS": ",".join(place.addresses),
        rank_processes.SCRATCH_VARIABLE: node.scratch,
        "PYTHONUNBUFFERED": "1",
    }
    if wanted := launch.spec.get(profiling.KEY):
        forced[profiling.VARIABLE] = f"{wanted['steps']},{wanted['warmup']}"
    if ports := launch.ports_of(rank):
        forced["HPCRUN_PORTS"] = ",".join(map(str, ports))
    if launch.entry.framework == frameworks.MPI:
        forced[mpi_world.VARIABLE] = "1"
    if launch.role is not None:
        forced |= _of_role(launch, launch.role)
    if not launch.is_main:
        # Whose lines are the run's steps.
        del forced["HPCRUN_METRICS_FILE"]
    for one in feature.every().values():
        forced |= {
            f"HPCRUN_{name.upper()}": text for name, text in one.values(launch, node).items()
        }
    container = launch.container
    if container is not None and not container.home:
        forced["HOME"] = node.scratch
    if node.extensions:
        forced["TORCH_EXTENSIONS_DIR"] = node.extensions
    devices = os.environ.get(_DEVICES) if node.devices is None else node.devices
    if launch.role is not None and devices is not None:
        end = launch.first_gpu + resources.gpus_per_node
        devices = ",".join(devices.split(",")[launch.first_gpu : end])
        forced[_DEVICES] = devices
    elif node.devices is not None:
        forced[_DEVICES] = node.devices
    # Those of a launcher share the processors of its task.
    processes = resources.gpus_per_node or 1 if framework.one_per_node else 1
    defaults = {
        "GLOO_SOCKET_IFNAME": node.interface,
        "NCCL_SOCKET_IFNAME": node.interface,
        "OMP_NUM_THREADS": str(max(1, (resources.cpus_per_task or 1) // processes)),
    }
    defaults |= device_precision.variables(launch.spec)
    defaults |= _of_wandb(launch, rank)
    if container is None:
        # A container may not see the node's directory.
        kept = ScratchPaths(Path(node.scratch)).node
        defaults["TORCHINDUCTOR_CACHE_DIR"] = str(kept.inductor)
        defaults["TRITON_CACHE_DIR"] = str(kept.triton)
    if node.hca:
        defaults["NCCL_IB_HCA"] = node.hca
    if wanted := launch.recovery.stop_signal:
        # By others torchrun ends, and its workers are killed.
        defaults["PET_SIGNALS_TO_HANDLE"] = f"SIGTERM,SIGINT,SIGHUP,SIGQUIT,{wanted}"
    if not resources.gpus_per_node:
        defaults["DS_ACCELERATOR"] = "cpu"
    if framework.one_per_run:
        # Its own ranks are to find what they would without hpcrun.
        defaults = {}
        forced.pop("TORCH_EXTENSIONS_DIR", None)
    users = late_variables(launch, node)
    own = framework.variables(place).items()
    found = {
        **{name: os.environ.get(name, value) for name, value in defaults.items()},
        **{name: value for name, value in own if name not in launch.environment.variables},
        **users,
        **forced,
    }
    return {name: value for name, value in found.items() if name not in framework.hidden}


def step_variables(launch: Launch, rank: int) -> dict[str, str]:
    """Return Slurm's variables of a step of all ranks, as they are in this one."""
    nodes, each = len(launch.nodes), launch.ranks_per_node
    tasks = f"{each}(x{nodes})" if nodes > 1 else str(each)
    first, size = launch.node_index(rank) * each, str(launch.world_size)
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": size,
        "SLURM_NPROCS": size,
        "SLURM_NNODES": str(nodes),
        "SLURM_NODEID": str(launch.node_index(rank)),
        "SLURM_GTIDS": ",".join(map(str, range(first, first + each))),
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": size,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_STEP_NODELIST": ",".join(node.name for node in launch.nodes),
    }


def _of_wandb(launch: Launch, rank: int) -> dict[str, str]:
    """Return the variables by which a program's own W&B run is one for all attempts."""
    hpcruns = (launch.spec.get("tracking") or {}).get("wandb")
    wanted = (launch.spec.get("recovery") or {}).get("wandb")
    if rank or not launch.is_main or hpcruns or not wanted or not launch.tracked:
        return {}
    return {"WANDB_RUN_ID": launch.tracked, "WANDB_RESUME": "allow"}


def _of_role(launch: Launch, role: str) -> dict[str, str]:
    """Return what a rank is told of the roles of its run; long lists are in the file alone."""
    found = {"HPCRUN_ROLE": role, "HPCRUN_ADDRESSES": str(launch.paths.addresses)}
    for name, addresses in launch.addresses.items():
        if len(listed := ",".join(addresses)) <= _LONGEST_LIST:
            found[f"HPCRUN_ADDRESSES_{name.upper().replace('-', '_')}"] = listed
    return found


def late_variables(launch: Launch, node: LaunchNode) -> dict[str, str]:
    """Return the user's variables that were known only as the attempt started.

    The job's script has set the others, and its setup lines may have added to them.
    """
    given = launch.environment.variables.items()
    wanted = {name: value for name, value in given if is_late(value)}
    wanted.update((launch.resume or {}).get("variables") or {})
    found: dict[str, str] = launch.fill(wanted, node)
    if "PYTHONPATH" in found:
        # The programs that a rank starts find hpcrun by it too.
        ours = os.environ.get("PYTHONPATH")
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [ours, found["PYTHONPATH"]]))
    return found


def rank_place(launch: Launch, rank: int) -> RankPlace:
    """Return a rank's place among the others, for what its framework is told."""
    ports = [launch.ports_of(other)[:1] for other in range(launch.world_size)]
    return RankPlace(
        rank=rank,
        ranks_per_node=launch.ranks_per_node,
        addresses=tuple(node.address for node in launch.nodes),
        master_port=launch.master_port,
        ports=tuple(port for (port,) in ports) if all(ports) else (),
        gpus_per_node=launch.resources.gpus_per_node,
        run=f"{launch.experiment}/{launch.run}",
        deepspeed_config=str(launch.paths.deepspeed) if launch.deepspeed else None,
        size=launch.world_size,
    )
