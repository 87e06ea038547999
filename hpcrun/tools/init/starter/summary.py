"""What `hpcrun init` has found and done, as rows of a table and as plain data. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcrun.text import listed, plural
from hpcrun.tools.init.starter import job_choice
from hpcrun.tools.init.starter.init_plan import InitPlan


def rows(plan: InitPlan) -> Iterator[tuple[str, str, str]]:
    """Yield what was found, in words, and what told it."""
    site, seen = plan.survey.slurm, plan.survey
    if site is None:
        why = "--local" if plan.request.is_local else "no sbatch in PATH"
        yield "cluster", f"{plan.cluster}: this machine", why
    else:
        yield "cluster", f"{site.name}, Slurm {site.version}", "scontrol show config"
        names = [one.name for one in plan.uses if not one.problem]
        told = f"{len(names)} of {len(plan.uses)} open to you: {listed(names, 6)}"
        yield "partitions", told if names else "none is open to you", "scontrol show partition"
    if site is not None and plan.job is not None:
        use = plan.job.use
        nodes = job_choice.nodes_in_words(site, use.partition)
        yield "partition", f"{use.name}: {nodes}", plan.job.why
        account = use.account or "left to Slurm"
        yield "account", f"{account}{f', QOS {use.qos}' if use.qos else ''}", "sacctmgr"
        gpus = plan.job.gpus_per_node
        each = f"{gpus} GPU a node" if gpus else f"{plural(plan.job.cpus_per_task, 'CPU')} a node"
        yield "first job", f"{plural(plan.job.nodes, 'node')}, {each}", "as hpcrun check judges"
    yield "root", plan.root.path, plan.root.why
    python = seen.python
    if python is None:
        yield "Python", "none with torch and deepspeed", f"{len(seen.pythons)} were looked at"
    else:
        has = f"torch {python.torch}, DeepSpeed {python.deepspeed}"
        yield "Python", f"{python.executable}: {has}", python.origin
    if seen.software.modules:
        yield "modules", listed(seen.software.modules, 6), "MODULEPATH"
    if seen.software.images:
        yield "images", listed(seen.software.images, 3), "files .sif, .sqsh"
    if site is not None and seen.network.interfaces:
        of = f"/sys of {seen.host}; nodes look for their own"
        yield "networks", listed([*seen.network.interfaces, *seen.network.adapters], 6), of


def data(plan: InitPlan, *, dry_run: bool) -> dict[str, Any]:
    """Return it as plain data; unknown is null."""
    site, seen, job = plan.survey.slurm, plan.survey, plan.job
    return {
        "cluster": plan.cluster,
        "slurm": site.version if site else None,
        "profile": str(plan.profile) if plan.profile else None,
        "root": plan.root.path,
        "partitions": [
            {
                "name": one.name,
                "default": one.partition.is_default,
                "hidden": one.partition.is_hidden,
                "nodes": len(one.partition.nodes),
                "max_seconds": one.partition.max_time,
                "account": one.account or None,
                "qos": one.qos or None,
                "problem": one.problem or None,
            }
            for one in plan.uses
        ],
        "job": job
        and {
            "partition": job.use.name,
            "account": job.use.account or None,
            "qos": job.use.qos or None,
            "nodes": job.nodes,
            "gpus_per_node": job.gpus_per_node,
            "cpus_per_task": job.cpus_per_task,
            "mem": job.mem,
            "minutes": job.minutes,
        },
        "pythons": [
            {
                "executable": one.executable,
                "origin": one.origin,
                "version": one.version,
                "torch": one.torch,
                "deepspeed": one.deepspeed,
                "build": one.build or None,
                "problem": one.problem or None,
                "chosen": one == seen.python,
            }
            for one in seen.pythons
        ],
        "storage": [
            {
                "path": one.path,
                "source": one.source,
                "type": one.kind or None,
                "shared": one.is_shared,
                "free_bytes": one.free if one.is_usable else None,
                "problem": one.problem or None,
            }
            for one in seen.storage
        ],
        "modules": list(seen.software.modules),
        "images": list(seen.software.images),
        "interfaces": list(seen.network.interfaces),
        "adapters": list(seen.network.adapters),
        "files": [
            {"path": str(one.path), "action": one.action, **({"text": one.text} if dry_run else {})}
            for one in plan.files
        ],
        "notes": plan.notes,
        "next": plan.next_lines(),
    }
