"""The texts of a starter project: a spec, its training function and the JSON Schema. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hpcrun import resources
from hpcrun.compile.spec import json_schema
from hpcrun.compile.target.slurm_options import LONGEST_NAME
from hpcrun.tools.init.starter import job_choice
from hpcrun.tools.init.starter.commented_yaml import CommentedYaml
from hpcrun.tools.init.starter.job_choice import JobChoice
from hpcrun.tools.init.starter.python_search import RUNNING, FoundPython

SPEC, PROGRAM, SCHEMA = "experiment.yaml", "train.py", "spec.schema.json"
# In the spec's second line; a project that has it is a starter, whatever became of it.
MARK = "Written by `hpcrun init`"
_LOCAL_RANKS = 2


def experiment_name(directory: str) -> str:
    """Return the name of the experiment of a directory of this name."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", directory).strip("-.")[:LONGEST_NAME]
    return plain if plain[:1].isalpha() else f"starter-{plain}"[:LONGEST_NAME].rstrip("-.")


def spec(
    name: str,
    cluster: str,
    job: JobChoice | None,
    python: FoundPython | None,
    kept: Mapping[str, Any] | None = None,
) -> str:
    """Return the spec of a starter project.

    Parameters
    ----------
    job
        None on this machine alone.
    python
        None where none can train.
    kept
        What an older profile says of jobs, so that the spec says the rest; None for a new one.
    """
    out = CommentedYaml()
    out.comment(
        f"yaml-language-server: $schema={SCHEMA}",
        f"{MARK}, and yours from now on. All keys: hpcrun help specs",
        _how(job),
    )
    out.add("name", name, "its directory below the root")
    out.add("cluster", cluster, "its profile" if job else "this machine; no Slurm is asked")
    out.add("entry", f"{PROGRAM}:train", "a function that is called on every rank")
    out.line("config: {seed: 0, width: 64, total_steps: 200}", "session.config of the function")
    out.line("deepspeed:", "DeepSpeed's own configuration")
    out.line("  train_micro_batch_size_per_gpu: 8")
    out.line("  gradient_accumulation_steps: 1")
    out.line("  zero_optimization: {stage: 1}")
    out.line("  optimizer: {type: AdamW, params: {lr: 3.0e-3, torch_adam: true}}")
    out.line("resources:", "of one run; what is not here the cluster's profile says" if job else "")
    _resources(out, job, kept)
    out.line("checkpoint: {every: 50}", "steps; a run that is stopped goes on from the newest")
    out.line("objective: {metric: loss, mode: min}", 'what "best" means in hpcrun results')
    if python is None:
        lacking = "no Python with torch and deepspeed was found: give the path of one"
        out.line("# environment: {python: /path/to/bin/python}", lacking)
    elif python.origin != RUNNING:
        out.line("environment:")
        out.add("  python", python.executable, f"{python.origin}; the job's Python")
    return out.text()


def _how(job: JobChoice | None) -> str:
    if job is None:
        return "hpcrun submit trains on this machine."
    here = "cluster=local gpus_per_node=0" if job.gpus_per_node else "cluster=local"
    return (
        "hpcrun check looks for what the cluster would refuse, hpcrun submit trains there, hpcrun "
        f"run {here} here."
    )


def _resources(out: CommentedYaml, job: JobChoice | None, kept: Mapping[str, Any] | None) -> None:
    if job is None:
        out.add("  ntasks_per_node", _LOCAL_RANKS, "ranks")
        out.add("  time", "00:15:00", "the time limit")
        return
    chosen = {"partition": job.use.name, "account": job.use.account, "qos": job.use.qos}
    for key, given in chosen.items():
        if kept is not None and given and not kept.get(key):
            out.add(f"  {key}", given, "of which the profile says nothing")
    few = "" if job.nodes >= job_choice.NODES else ": no more can be had for a first job"
    out.add("  nodes", job.nodes, f"scontrol: {job.use.name} has them{few}")
    if job.gpus_per_node:
        out.add(
            "  gpus_per_node", job.gpus_per_node, "scontrol: Gres of its nodes; a rank for each"
        )
    else:
        out.add("  ntasks_per_node", 1, "ranks of a node, on its CPUs")
    out.add("  cpus_per_task", job.cpus_per_task, "scontrol: CPUTot of its nodes; CPUs of a rank")
    if job.mem is not None:
        out.add("  mem", job.mem, "scontrol: RealMemory of its nodes; memory of a node")
    else:
        out.line("  # mem:", "scontrol: SelectTypeParameters does not divide memory")
    out.add("  time", f"00:{job.minutes:02}:00", f"scontrol: within MaxTime of {job.use.name}")


def program() -> str:
    """Return the training function that ships."""
    return (resources.directory("jobs") / "starter.py").read_text(encoding="utf-8")


def schema(of: str) -> str:
    """Return the JSON Schema of ``spec`` or ``profile``, as `hpcrun schema` prints it."""
    return json.dumps(json_schema.of(of), indent=1) + "\n"
