"""What hpcrun promises on Slurm, each promise judged by what Slurm tells of itself. Pure.

`SLURM_PROMISES` is the table: a name, the promise, and a function of the site and the cluster
profile that judges it. What Slurm does was seen on 22.05 and 24.11, or stands in its manuals.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hpcrun.site.slurm_site import SlurmPartition, SlurmSite
from hpcrun.slurm.parse import parse_text, requeued_codes
from hpcrun.text import agreeing, duration, listed, plural
from hpcrun.tools.doctor.promise import (
    ADMINS,
    YOU,
    JudgedPromise,
    Judgement,
    fails,
    less,
    unknown,
    works,
)

Profile = Mapping[str, Any]
Judge = Callable[[SlurmSite, Profile], Judgement]

TESTED = ((22, 5), (24, 11))
_OVERLAP, _DEAD_NODE_MENDED = (20, 11), (24, 11)
# Slurm's default; cred_expire of AuthInfo.
_CRED_EXPIRE = 120
# Seconds: to stop ranks that are cancelled, until Slurm finds a node down, of a grace.
_KILL_WAIT, _NODE_DOWN, _GRACE = 10, 120, 30
_MIN_JOB_AGE = 30
_SHOWN = 4


def judge(site: SlurmSite, profile: Profile) -> list[JudgedPromise]:
    """Judge every promise of the table."""
    return [JudgedPromise(name, told, of(site, profile)) for name, told, of in SLURM_PROMISES]


def version(site: SlurmSite) -> tuple[int, int]:
    """Return ``(24, 11)``; ``(0, 0)`` where Slurm did not tell."""
    found = re.match(r"(\d{1,3})\.(\d{1,3})", site.version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _version(site: SlurmSite, profile: Profile) -> Judgement:
    number = version(site)
    others = Counter(node.version for node in site.nodes.values() if node.version)
    others.pop(site.version, None)
    mixed = f", and nodes with {listed(sorted(others), _SHOWN)}" if others else ""
    found = f"{site.version or 'unknown'}{mixed}"
    if not any(number):
        return unknown(f"Slurm does not tell its version: {found}")
    if number < _OVERLAP:
        return fails(
            f"{found}: srun --overlap, which agents need, came with 20.11",
            "Slurm 22.05 or newer",
            ADMINS,
        )
    if number < TESTED[0]:
        return less(
            f"{found}: hpcrun is tested with 22.05 and 24.11", "Slurm 22.05 or newer", ADMINS
        )
    return works(found)


def _requeue(site: SlurmSite, profile: Profile) -> Judgement:
    asked = site.settings.get("JobRequeue", "")
    if not asked:
        return unknown("Slurm does not tell JobRequeue")
    if asked == "0":
        return works("JobRequeue=0, and hpcrun's jobs ask for it (--requeue)")
    return works(f"JobRequeue={asked}")


def _exit_codes(site: SlurmSite, profile: Profile) -> Judgement:
    settings = {name: site.settings.get(name, "") for name in ("RequeueExit", "RequeueExitHold")}
    try:
        taken = requeued_codes(settings)
    except ValueError as error:
        return unknown(str(error))
    if not taken:
        return works("no exit code of a job has Slurm put it back or hold it")
    told = " and ".join(f"{name}={value}" for name, value in settings.items() if parse_text(value))
    if taken >= {*range(1, 256)}:
        return fails(
            f"{told}: Slurm puts each job that failed back by itself, for ever, or holds it",
            "leave an exit code out of it in slurm.conf",
            ADMINS,
        )
    return works(f"{told}: hpcrun's jobs that fail end with another code")


def requeue_delay(site: SlurmSite) -> int:
    """Return the seconds before which a requeued job is not eligible."""
    found = re.search(r"cred_expire=(\d{1,6})", site.settings.get("AuthInfo", ""))
    return (int(found[1]) if found else _CRED_EXPIRE) + 1


def _requeue_delay(site: SlurmSite, profile: Profile) -> Judgement:
    seconds = requeue_delay(site)
    found = f"a requeued job waits {duration(seconds)} at least (cred_expire of AuthInfo)"
    change = "AuthInfo=cred_expire=30 in slurm.conf makes it half a minute"
    if seconds > _CRED_EXPIRE + 1:
        return less(found, change, ADMINS)
    if seconds > 60:
        more = f"{found}; restarts in place take seconds"
        return works(more, f"{change}, if requeues are frequent", ADMINS)
    return works(found)


def _open(site: SlurmSite, profile: Profile) -> list[SlurmPartition]:
    """Return the partitions of the profile's jobs: those that it names, else the default one."""
    named = str((profile.get("resources") or {}).get("partition") or "")
    found = [site.partitions[name] for name in named.split(",") if name in site.partitions]
    default = site.default_partition()
    return found or ([default] if default else list(site.partitions.values()))


def _modes(site: SlurmSite, profile: Profile) -> dict[str, str]:
    """Return partition -> PreemptMode, of the profile's partitions."""
    common = site.settings.get("PreemptMode", "OFF").upper()
    return {one.name: (one.preempt_mode or common).upper() for one in _open(site, profile)}


def _preempts(site: SlurmSite) -> bool:
    kind = site.settings.get("PreemptType", "preempt/none")
    return kind not in ("preempt/none", "(null)", "")


def _preemption(site: SlurmSite, profile: Profile) -> Judgement:
    if not _preempts(site):
        return works("nobody is preempted here (PreemptType)")
    modes = _modes(site, profile)
    bad = [name for name, mode in modes.items() if "SUSPEND" in mode or "GANG" in mode]
    if bad:
        return less(
            f"{listed(bad, _SHOWN)}: PreemptMode={modes[bad[0]]} stops the processes of a job "
            "where they are: its collectives and trackers may time out meanwhile",
            "PreemptMode=REQUEUE for partitions with training jobs",
            ADMINS,
        )
    told = ", ".join(f"{mode} in {name}" for name, mode in list(modes.items())[:_SHOWN])
    if any("CANCEL" in mode for mode in modes.values()):
        return works(f"{told}: hpcrun puts a cancelled job back itself, while Slurm ends it")
    return works(told)


def _grace(site: SlurmSite, profile: Profile) -> Judgement:
    if not _preempts(site):
        return works("nobody is preempted here")
    modes = _modes(site, profile)
    given = {
        one.name: one.grace_seconds
        for one in _open(site, profile)
        if modes.get(one.name) not in ("OFF", "")
    }
    if not given:
        return works("jobs of these partitions are not preempted")
    none = [name for name, seconds in given.items() if not seconds]
    if none:
        return less(
            f"GraceTime=0 in {listed(none, _SHOWN)}: a preempted run goes back to its newest "
            "checkpoint, as it has no time to save",
            f"GraceTime=120 for {none[0]} in slurm.conf; until then a small checkpoint.every",
            ADMINS,
        )
    name, seconds = min(given.items(), key=lambda one: one[1])
    if seconds < _GRACE:
        return less(
            f"GraceTime={seconds} s in {name}: enough only for checkpoints that take less",
            f"GraceTime=120 for {name} in slurm.conf; checkpoint.asynchronous and a small "
            "checkpoint.every help",
            ADMINS,
        )
    return works(f"GraceTime={seconds} s in {name}")


def _warning(site: SlurmSite, profile: Profile) -> Judgement:
    given = site.settings.get("PreemptParameters", "")
    if "send_user_signal" in given:
        return works("PreemptParameters has send_user_signal; hpcrun needs Slurm's TERM alone")
    return works("no send_user_signal in PreemptParameters, and none is needed: agents hear TERM")


def _kill_wait(site: SlurmSite, profile: Profile) -> Judgement:
    seconds = site.number("KillWait")
    if seconds is None:
        return unknown("Slurm does not tell KillWait")
    if seconds < _KILL_WAIT:
        return less(
            f"KillWait={seconds} s: a job that is ended at its time limit may not record why",
            f"KillWait={max(30, _KILL_WAIT)} in slurm.conf",
            ADMINS,
        )
    return works(f"KillWait={seconds} s")


def _dead_node(site: SlurmSite, profile: Profile) -> Judgement:
    seconds = site.number("SlurmdTimeout")
    if seconds is None:
        return unknown("Slurm does not tell SlurmdTimeout")
    found = f"hpcrun notices within 10 s, Slurm after SlurmdTimeout={seconds} s"
    if version(site) < _DEAD_NODE_MENDED and seconds > _NODE_DOWN:
        return less(
            f"{found}; before Slurm 24.11 a requeue waits for that",
            "resources.spare_nodes: 1 goes on without it; or SlurmdTimeout=60 (administrators)",
            YOU,
        )
    return works(found)


def _processes(site: SlurmSite, profile: Profile) -> Judgement:
    kind = site.settings.get("ProctrackType", "")
    if kind.endswith(("/pgid", "/linuxproc")):
        return less(
            f"ProctrackType={kind}: processes that begin a session of their own may outlive a job "
            "and keep GPUs busy",
            "ProctrackType=proctrack/cgroup in slurm.conf",
            ADMINS,
        )
    return works(f"ProctrackType={kind}") if kind else unknown("Slurm does not tell ProctrackType")


def _memory(site: SlurmSite, profile: Profile) -> Judgement:
    constrained = site.settings.get("ConstrainRAMSpace", "").lower() == "yes"
    plugin = site.settings.get("TaskPlugin", "")
    if constrained and "cgroup" in plugin:
        return works("each job's memory is limited by its cgroup, so the job that takes it is told")
    if "MEMORY" not in site.settings.get("SelectTypeParameters", "").upper():
        found = "memory is no resource here (SelectTypeParameters): jobs can starve each other"
    else:
        found = "memory is not limited by cgroups: a job that takes too much can end others"
    return less(found, "ConstrainRAMSpace=yes in cgroup.conf, and TaskPlugin=task/cgroup", ADMINS)


def _arrays(site: SlurmSite, profile: Profile) -> Judgement:
    if site.array_size is None:
        return unknown("Slurm does not tell MaxArraySize")
    found = f"arrays of up to {site.array_size} runs (MaxArraySize, max_array_tasks)"
    return works(f"{found}: submit makes several of a larger sweep")


def _queue(site: SlurmSite, profile: Profile) -> Judgement:
    most = site.number("MaxJobCount")
    own = [one.limits.max_submit for one in site.associations or () if one.limits.max_submit]
    told = [f"MaxJobCount={most:,} of all users"] if most else []
    told += [f"at most {min(own):,} of yours"] if own else []
    if not told:
        return unknown("Slurm tells no limit on the number of jobs")
    return works(f"{', '.join(told)}; `submit` sends the rest as jobs end")


def _accounting(site: SlurmSite, profile: Profile) -> Judgement:
    age = site.number("MinJobAge")
    if not site.without_accounting:
        kept = "" if site.enforces("limits") else "; limits are not enforced"
        return works(f"slurmdbd answers{kept}")
    lost = "how jobs ended is known from Slurm's queue and batch logs alone"
    if age is not None and age < _MIN_JOB_AGE:
        lost += f", which forgets jobs after {age} s (MinJobAge)"
    return less(f"{site.without_accounting}: {lost}", "slurmdbd, or MinJobAge=300", ADMINS)


def _plugins(site: SlurmSite, profile: Profile) -> Judgement:
    found = {
        name: value
        for name in ("JobSubmitPlugins", "CliFilterPlugins")
        if (value := site.settings.get(name, "(null)")) not in ("(null)", "")
    }
    if not found:
        return works("no plugin of the site's changes jobs as they are submitted")
    told = ", ".join(f"{name}={value}" for name, value in found.items())
    return unknown(
        f"{told}: the site may change or refuse jobs by rules that Slurm does not tell",
        "`hpcrun check SPEC` has Slurm try a job without submitting it",
        YOU,
    )


def _gpus(site: SlurmSite, profile: Profile) -> Judgement:
    kinds: Counter[str] = Counter()
    for node in site.nodes.values():
        kinds.update(dict(node.gpus))
    wanted = profile.get("resources") or {}
    if wanted.get("gpu_request") == "none":
        each = f"{wanted['node_has_gpus']} on each node, by the profile"
        if not kinds:
            return works(f"{each}: Slurm knows none, and jobs with GPUs have their nodes alone")
        return less(
            f"{each}, and Slurm is not asked for those that it knows: it may hide them",
            "take gpu_request: none out of the profile, or keep it for partitions without GRES",
            YOU,
        )
    if not kinds:
        return less(
            "Slurm knows no GPUs on this cluster: resources.gpus_per_node is refused, and runs are "
            "on CPUs",
            "where nodes have GPUs, the profile's resources: {gpu_request: none, node_has_gpus: N}"
            ", by which jobs have their nodes alone; or GresTypes=gpu, gres.conf and Gres= in "
            "slurm.conf",
            YOU,
        )
    told = ", ".join(f"{count} {kind or 'without a type'}" for kind, count in kinds.items())
    if "" in kinds:
        return less(
            f"{told}: resources.gpu_type cannot ask for a kind of GPU",
            "Gres=gpu:TYPE:N on the nodes in slurm.conf; until then resources.constraint or a "
            "partition may choose the kind",
            ADMINS,
        )
    return works(told)


def _topology(site: SlurmSite, profile: Profile) -> Judgement:
    plugin = site.settings.get("TopologyPlugin", "")
    if plugin.endswith(("/tree", "/block", "/3d_torus", "/hypercube")):
        return works(f"TopologyPlugin={plugin}")
    nodes = len(site.nodes)
    if nodes <= _SHOWN:
        return works(f"TopologyPlugin={plugin or 'none'}, of {plural(nodes, 'node')}")
    return less(
        f"TopologyPlugin={plugin or 'none'}: Slurm knows no switches, so a run's nodes may lie "
        "anywhere, and --switches asks in vain",
        "topology.conf and TopologyPlugin=topology/tree (or block)",
        ADMINS,
    )


def _nodes(site: SlurmSite, profile: Profile) -> Judgement:
    mine = {node.name: node for one in _open(site, profile) for node in site.nodes_of(one)}
    if not mine:
        return fails(
            "no partition with nodes is open to you",
            "name one in the profile's resources.partition, or ask for access",
            YOU,
        )
    out = sorted(name for name, node in mine.items() if node.is_out)
    if not out:
        return works(f"{plural(len(mine), 'node')}, all in service")
    one = mine[out[0]]
    why = f" ({one.name}: {one.reason.strip('[]')[:80]})" if one.reason else ""
    found = f"{len(out)} of {plural(len(mine), 'node')} {agreeing(len(out), 'is', 'are')} out of "
    found += f"service: {listed(out, _SHOWN)}{why}"
    if len(out) * 10 <= len(mine):
        return works(found)
    return less(
        found, "`sinfo -R` tells why; they return by scontrol update … state=resume", ADMINS
    )


SLURM_PROMISES: tuple[tuple[str, str, Judge], ...] = (
    ("Slurm", "hpcrun works with this version of Slurm", _version),
    ("nodes", "nodes of your partitions can take jobs", _nodes),
    ("requeue", "a run that cannot go on in place is put back into the queue", _requeue),
    ("exit codes", "Slurm puts no job back, or holds it, that hpcrun has ended", _exit_codes),
    ("requeue delay", "a requeued run starts again soon", _requeue_delay),
    ("preemption", "a preempted run comes back", _preemption),
    ("grace", "a preempted run saves first", _grace),
    ("warning", "a run hears that it is to stop", _warning),
    ("kill wait", "a run that is ended has time to record it", _kill_wait),
    ("dead node", "a run goes on soon after a node dies", _dead_node),
    ("processes", "nothing of a job outlives it", _processes),
    ("memory", "a job without memory is told from others", _memory),
    ("arrays", "a sweep is one job array, or few", _arrays),
    ("queue", "a sweep of any size can be submitted", _queue),
    ("accounting", "how jobs ended is known", _accounting),
    ("plugins", "jobs reach the queue as hpcrun writes them", _plugins),
    ("GPUs", "runs can ask for GPUs, and for their type", _gpus),
    ("topology", "a run's nodes can be asked to lie near each other", _topology),
)
