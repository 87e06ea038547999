"""Ranks, CPUs and GPUs of a run, from what the job asks for and what its launcher starts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hpcrun.convert.draft.job_resources import ScriptRequest
from hpcrun.convert.script import sbatch_lines
from hpcrun.convert.script.launch_line import ProgramLaunch


@dataclass
class RunShape:
    """The resources of one run, as hpcrun counts them."""

    nodes: int = 1
    ntasks_per_node: int | None = None
    gpus_per_node: int = 0
    cpus_per_task: int | None = None
    framework: str | None = None
    lost: list[str] = field(default_factory=list)
    """What differs from what the script started."""
    notes: list[str] = field(default_factory=list)


def shape(job: ScriptRequest, launch: ProgramLaunch) -> RunShape:
    """Return the shape of a run whose ranks hpcrun starts in the launcher's place."""
    nodes, tasks = _steps(job, launch)
    gpus = _gpus(job, launch, tasks)
    cpus = _whole(launch.steps.get("cpus-per-task")) or job.cpus_per_task
    found = RunShape(nodes, gpus_per_node=gpus)
    if launch.launcher == "mpirun":
        total = _whole(launch.options.get("np") or launch.options.get("n"))
        each = _whole(launch.options.get("npernode") or launch.options.get("ppn"))
        per_node = each or (max(1, total // nodes) if total else tasks)
    elif launch.launcher:
        per_node = _launched(launch, nodes, gpus) or gpus or 1
        started = _whole(_first(launch, "nnodes", "num-nodes", "num-machines"))
        if started and started != nodes:
            _other_nodes(found, started, nodes, launch)
        all_cpus = cpus * (tasks if launch.is_step and tasks > 1 else 1) if cpus else None
        if all_cpus and per_node > 1:
            cpus = max(1, all_cpus // per_node)
            found.notes.append(
                f"the {all_cpus} CPUs of each launcher are {cpus} for each of its {per_node} ranks"
            )
    elif launch.is_step:
        per_node = tasks
    else:
        per_node = 1
        if nodes > 1:
            found.lost.append(
                f"without srun the program ran on the first of the {nodes} nodes alone: "
                "resources.nodes is 1"
            )
            found.nodes = 1
        if tasks > 1:
            cpus = (cpus or 1) * tasks
            found.notes.append(f"the one process has the CPUs of all {tasks} tasks")
    found.cpus_per_task = cpus
    _ranks(found, per_node, job)
    return found


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,7}", text.strip()) else None


def _first(launch: ProgramLaunch, *names: str) -> str | None:
    return next((launch.options[name] for name in names if name in launch.options), None)


def _steps(job: ScriptRequest, launch: ProgramLaunch) -> tuple[int, int]:
    """Return the nodes and the tasks of a node that srun starts."""
    nodes = _whole(launch.steps.get("nodes")) or job.nodes
    tasks = _whole(launch.steps.get("ntasks-per-node"))
    total = _whole(launch.steps.get("ntasks"))
    if tasks is None and total is not None:
        tasks = max(1, total // nodes)
        if total < nodes:
            nodes = total
    return nodes, tasks or job.tasks_per_node


def _gpus(job: ScriptRequest, launch: ProgramLaunch, tasks: int) -> int:
    for name in ("gpus-per-node", "gpus-per-task", "gres", "gpus"):
        text = launch.steps.get(name)
        if not text or job.gpus_per_node:
            continue
        request = sbatch_lines.gres(text)[0] if name == "gres" else sbatch_lines.gpus(text)
        if request is not None:
            job.gpu_type = job.gpu_type or request.kind
            return request.count * (tasks if name == "gpus-per-task" else 1)
    return job.gpus_per_node


def _launched(launch: ProgramLaunch, nodes: int, gpus: int) -> int | None:
    """Return the processes that a launcher starts on each node."""
    text = _first(launch, "nproc-per-node", "num-gpus", "nproc", "num-gpus-per-node", "n")
    if text in ("gpu", "auto"):
        return gpus or None
    if (each := _whole(text)) is not None:
        return each
    total = _whole(_first(launch, "num-processes"))
    return max(1, total // nodes) if total else None


def _other_nodes(found: RunShape, started: int, nodes: int, launch: ProgramLaunch) -> None:
    if launch.is_step or started > nodes:
        found.lost.append(
            f"{launch.launcher} is told of {started} nodes, and the job has {nodes}: "
            f"resources.nodes is {nodes}"
        )
    else:
        found.lost.append(f"of the job's {nodes} nodes {launch.launcher} uses {started}")
        found.nodes = started


def _ranks(found: RunShape, per_node: int, job: ScriptRequest) -> None:
    gpus = found.gpus_per_node
    if not gpus:
        found.ntasks_per_node = per_node if per_node > 1 else None
        return
    if per_node == gpus:
        return
    if per_node == 1:
        if found.nodes == 1:
            found.framework = "single"
        else:
            found.ntasks_per_node = 1
    elif per_node < gpus:
        found.gpus_per_node = per_node
        found.lost.append(
            f"{per_node} ranks had the {gpus} GPUs of a node; hpcrun starts one rank a GPU, so "
            f"resources.gpus_per_node is {per_node}"
        )
    else:
        found.lost.append(
            f"{per_node} ranks shared the {gpus} GPUs of a node; hpcrun starts one rank a GPU"
        )
