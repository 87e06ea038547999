"""Change jobs that wait in the queue, and see what has become of it.

Slurm ends well with changes that it did not make: a QOS that does not exist, where accounting does
not enforce them. Of an array it changes some tasks and refuses others. So what Slurm then shows of
each job counts, and its messages are the reasons for what it does not show.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from hpcrun import slurm_state
from hpcrun.slurm import client
from hpcrun.slurm.parse import parse_duration, parse_rows
from hpcrun.state import job_changes
from hpcrun.state.layout import is_slurm_id
from hpcrun.text import ranges

_SHOWN = {
    job_changes.TIME: "%l",
    job_changes.PARTITION: "%P",
    job_changes.QOS: "%q",
    job_changes.PRIORITY: "%Q",
    job_changes.NICE: "%y",
}
# The ids before a message of scontrol's, and what it says of tasks that it did change, or that it
# passes over in an array as they have ended.
_PREFIX = re.compile(r"^[\d_\[\],-]+: ")
_NO_PROBLEM = ("No error", "Job has already finished")


def update(job: str, tasks: Collection[int], changes: Mapping[str, str]) -> list[str]:
    """Have Slurm change a job, or an array (all of it without ``tasks``); return its messages.

    ``changes`` maps names of `hpcrun.state.job_changes` to values. Raises ClusterUnreachable if
    Slurm does not answer.
    """
    if not is_slurm_id(job):
        return [f"{job!r} is not the id of a job"]
    which = f"{job}_[{','.join(ranges(tasks))}]" if tasks else job
    words = [f"{job_changes.KEYS[name].field}={value}" for name, value in changes.items()]
    problem = client.problem_of(["scontrol", "update", f"jobid={which}", *words], client.TIMEOUT)
    if problem is None:
        return []
    if client.is_unanswered(problem):
        raise client.refusal(f"scontrol update: {problem}")
    lines = [_PREFIX.sub("", line.strip()) for line in problem.splitlines()]
    return list(dict.fromkeys(line for line in lines if line and line not in _NO_PROBLEM))


def values_in_queue(jobs: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return what slurmctld shows of jobs now, each task of an array by itself.

    Maps an id to the values by name of those in `_SHOWN`, and ``state``. Raises CommandFailed.
    """
    ids = sorted({job.partition("_")[0] for job in jobs if is_slurm_id(job)}, key=int)
    if not ids:
        return {}
    fields = ("id", "state", *_SHOWN)
    form = "|".join(("%i", "%T", *_SHOWN.values()))
    argv = ["squeue", "--noheader", "--array", f"--jobs={','.join(ids)}", f"--format={form}"]
    rows = parse_rows(client.ask(argv), fields)
    return {row["id"].strip(): {name: row[name].strip() for name in fields[1:]} for row in rows}


def has(shown_now: Mapping[str, str], name: str, value: str) -> bool:
    """Check whether Slurm shows a value of a job; times count in minutes, as Slurm keeps them."""
    found = shown_now.get(name, "")
    if name != job_changes.TIME:
        return found == value
    there, wanted = parse_duration(found), parse_duration(value)
    return there is not None and wanted is not None and -(-there // 60) == -(-wanted // 60)


def in_words(name: str, value: str, messages: Collection[str], state: str) -> str:
    """Return why Slurm did not make a change, with what a user may do."""
    said = "; ".join(messages)
    if state not in slurm_state.WAITING and name in (job_changes.PARTITION, job_changes.QOS):
        return f"it runs already, where its {name} stays"
    if name == job_changes.PARTITION and re.search("invalid partition", said, re.IGNORECASE):
        known = ", ".join(client.partitions())
        return f"there is no partition {value}" + (f"; there are {known}" if known else "")
    if name == job_changes.QOS and (not said or re.search("invalid qos", said, re.IGNORECASE)):
        return (
            f"Slurm did not take the QOS {value}: `sacctmgr show assoc user=$USER "
            "format=account,qos` lists yours"
        )
    if name == job_changes.PRIORITY:
        return f"Slurm leaves priorities to its administrators{_quoted(said)}; nice=100 lowers it"
    if name == job_changes.NICE and int(value) < 0:
        return f"a nice below 0 is an administrator's{_quoted(said)}; above 0 is yours"
    if name == job_changes.TIME and re.search("denied", said, re.IGNORECASE):
        if state in slurm_state.WAITING:
            return f"beyond a limit{_quoted(said)}: `sinfo -o '%P %l'` lists those of partitions"
        return (
            f"only an administrator raises the limit of a job that runs{_quoted(said)}; at the "
            "limit it saves and is requeued, and in the queue its limit can be raised"
        )
    if said:
        return f"{name} {value}: {said}"
    return f"Slurm did not take {name} {value}, and does not say why"


def _quoted(said: str) -> str:
    return f" ({said})" if said else ""
