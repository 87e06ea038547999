"""Slurm's reasons for which a job waits, in words, with what to do. Pure.

A job that no time will start is told apart from one that waits: its words begin with `NEVER`.
"""

from __future__ import annotations

import re

NEVER = "does not start as it is: "
_AGAIN = "`hpcrun cancel` it, and submit it with"
_UPDATE = "`hpcrun update` gives it"
_RELEASE = "`scontrol release JOB` lets it go on"

_WORDS = {
    "Resources": "waits for free nodes",
    "Nodes required for job are DOWN": "waits for nodes: those that it could have are in use, kept "
    "for others, down or drained",
    "SchedDefer": "waits for Slurm's next look at the queue",
    "MaxPoweredUpNodes": "waits until fewer nodes are powered up",
    "MpiPortsBusy": "waits for free ports for MPI",
    "Priority": "waits behind jobs of higher priority",
    "BeginTime": "not eligible yet (Slurm delays a requeued job)",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": f"{NEVER}the job that it waits for did not end as it had to, or is "
    "unknown; `hpcrun cancel` it, and submit both again",
    "JobArrayTaskLimit": "as many runs of the array run as max_parallel allows",
    "JobHeldUser": f"{NEVER}its owner holds it; {_RELEASE}",
    "JobHeldAdmin": f"{NEVER}an administrator holds it, who alone can release it",
    "JobHoldMaxRequeue": f"{NEVER}it was requeued too often, and is held; {_RELEASE}",
    "launch failed requeued held": f"{NEVER}Slurm failed to start it, and holds it; {_RELEASE}",
    "job requeued in held state": f"{NEVER}it was requeued, and is held; {_RELEASE}",
    "ReqNodeNotAvail": "a node that it needs is not available; `sinfo --list-reasons` says why",
    "NodeDown": "a node that it needs is down; `sinfo --list-reasons` says why",
    "FrontEndDown": "no front end is up to start it",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition starts no jobs now",
    "PartitionNodeLimit": "its nodes are outside of the partition's limits, or too many of them "
    f"are down or drained; if `sinfo` shows none down, {_AGAIN} other resources.nodes",
    "PartitionTimeLimit": f"{NEVER}its time limit is longer than the partition's; {_UPDATE} less "
    "time, or another partition",
    "BadConstraints": f"{NEVER}no nodes have what it asks for together; {_AGAIN} other resources: "
    "`hpcrun check` tells which",
    "Constraints": f"{NEVER}no nodes have its features now; {_AGAIN} another resources.constraint",
    "PartitionConfig": f"{NEVER}its partition does not take what it asks for; {_AGAIN} other "
    "resources: `hpcrun check` tells which",
    "MaxMemPerLimit": f"{NEVER}it asks for more memory of a CPU than MaxMemPerCPU; {_AGAIN} more "
    "resources.cpus_per_task, or less mem",
    "AccountNotAllowed": f"{NEVER}the partition is closed to its account; {_AGAIN} another "
    "resources.account or partition",
    "InvalidAccount": f"{NEVER}its account is not one that you may charge; {_AGAIN} another "
    "resources.account",
    "InvalidQOS": f"{NEVER}there is no such QOS; {_UPDATE} another qos",
    "QOSNotAllowed": f"{NEVER}its account or partition is closed to its QOS; {_UPDATE} another qos",
    "QOSUsageThreshold": "its account has used more than its QOS wants to see; waits until that "
    f"usage has decayed, or {_UPDATE} another qos",
    "Reservation": "waits for its reservation",
    "ReservationDeleted": f"{NEVER}its reservation is gone; {_AGAIN} another "
    "resources.reservation, or none",
    "ReservationInvalid": f"{NEVER}its reservation is none that it may use; {_AGAIN} another "
    "resources.reservation, or none",
    "Licenses": "waits for a licence",
    "Prolog": "its nodes are being prepared by the site's prolog",
    "Cleaning": "Slurm cleans up after its previous start",
    "BurstBufferResources": "waits for room in the burst buffer",
    "BurstBufferStageIn": "its data are being copied to the burst buffer",
    "BurstBufferOperation": f"{NEVER}its burst buffer failed, and Slurm holds it; {_AGAIN} another "
    "resources.sbatch.bb",
    "AssociationTimeLimit": f"{NEVER}its account has used its time up; {_AGAIN} another "
    "resources.account",
    "AssociationJobLimit": "as many jobs of its account run as may",
    "AssociationResourceLimit": "jobs of its account have as much as they may",
    "QOSTimeLimit": f"{NEVER}its QOS's time is used up; {_UPDATE} another qos",
    "QOSJobLimit": "as many jobs of its QOS run as may",
    "QOSResourceLimit": "jobs of its QOS have as much as they may",
}
# What follows a reason's name after a comma.
_DETAILS = (
    (
        "Reserved for maintenance",
        "its nodes are reserved for maintenance before it would end: it waits until after that, "
        f"or {_UPDATE} less time",
    ),
    ("May be reserved for other job", "its nodes may be reserved for another job: it waits"),
    ("UnavailableNodes:", "nodes that it needs are not available: `sinfo --list-reasons`"),
)
# ``QOSMaxCpuPerUserLimit``, ``AssocGrpCPURunMinutesLimit``, ``MaxGRESPerAccount``, ``QOSMinNode``.
_LIMIT = re.compile(
    r"(?P<of>QOS|Assoc)?(?P<kind>Grp|Max|Min)(?P<what>[A-Z][A-Za-z]*?)(?P<run>Run)?"
    r"(?P<minutes>Minutes|Mins)?(?:Per(?P<each>User|Account|Job|Node))?(?:Limit|NotSatisfied)?"
)
# What a limit counts -> in words, and the key that asks for it.
_COUNTED = {
    "cpu": ("CPUs", "cpus_per_task"),
    "gres": ("GRES (GPUs)", "gpus_per_node"),
    "mem": ("memory", "mem"),
    "memory": ("memory", "mem"),
    "node": ("nodes", "nodes"),
    "wall": ("time", "time"),
    "wallduration": ("time", "time"),
    "bb": ("burst buffer", "sbatch"),
    "license": ("licences", "sbatch"),
    **dict.fromkeys(("job", "jobs", "submitjob", "submitjobs"), ("jobs", "")),
}


def in_words(reason: str) -> str:
    """Return the reason with what it means and what to do; as it is where that is not known."""
    plain = reason.strip("()")
    name, _, detail = plain.partition(",")
    detail = detail.strip()
    words = next((said for start, said in _DETAILS if detail.startswith(start)), None)
    # One is a sentence, of which some commands make a word.
    words = words or _WORDS.get(name.replace("_", " ")) or _of_limit(name)
    return reason if words is None else f"{plain}: {words}"


def of_job(words: str, job_id: str | None) -> str:
    """Return words of `in_words` in which what is to be typed has the job's number."""
    return words.replace(" JOB`", f" {job_id}`") if job_id else words


def _of_limit(name: str) -> str | None:
    """Return what a limit of a QOS or an account means; None if the name is that of no limit."""
    found = _LIMIT.fullmatch(name)
    if found is None:
        return None
    whose, key = ("account", "account") if found["of"] == "Assoc" else ("QOS", "qos")
    what, asked = _COUNTED.get(found["what"].lower(), (found["what"].lower(), ""))
    what += " x minutes" if found["minutes"] else ""
    less = f"resources.{asked}" if asked else "resources"
    if found["kind"] == "Min":
        return f"{NEVER}it asks for less {what} than its {whose} wants; {_AGAIN} more {less}"
    if found["each"] in ("Job", "Node"):
        each = found["each"].lower()
        return f"{NEVER}its {whose} allows a {each} less {what}; {_AGAIN} less {less}"
    if (found["minutes"] and not found["run"]) or (found["kind"] == "Grp" and asked == "time"):
        return (
            f"what is left of the budget of {what} of its {whose} is too little: it waits until "
            f"that is renewed, or {_AGAIN} less resources.time or another resources.{key}"
        )
    if found["each"] == "Account" or found["kind"] == "Grp":
        jobs = "all jobs of its account" if found["each"] else f"all jobs of its {whose}"
    else:
        jobs = "your jobs"
    if what == "jobs":
        return f"as many of {jobs} run as its {whose} allows: it waits for the end of one"
    return (
        f"{jobs} have the {what} that its {whose} allows: it waits for the end of one of them, and "
        "for ever if it alone asks for more"
    )
