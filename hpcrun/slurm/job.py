"""A job's view of itself: its end, its time limit and its requeue.

This runs in the batch step and in agents. Slurm may be down at the worst moment, so every question
has an answer that says "not known", and a requeue is tried until it is accepted or refused.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpcrun import slurm_state
from hpcrun.policy.causes import JobFacts
from hpcrun.shared_look import CLOCKS
from hpcrun.slurm import client, queue, requeue_nodes, steps
from hpcrun.slurm.parse import (
    megabytes,
    parse_duration,
    parse_size,
    parse_time,
    requeued_codes,
)
from hpcrun.slurm.queue import JobMark
from hpcrun.state import files as records
from hpcrun.text import Say, one_line, whole_number

_TAIL = 1 << 18
# Slurm's own default.
_KILL_WAIT = 30.0
# How the batch log's part of an attempt begins; of a job that runs share, that of its start.
ATTEMPT_MARK, START_MARK = "attempt ", "start "
_WORDS = re.compile(r"slurmstepd\S*: error: \*\*\* JOB \S+ ON \S+ CANCELLED AT \S+(.*)\*\*\*")
# Slurm has requeued the job already, even where it still shows another state.
_WAITS = re.compile(r"job is pending", re.IGNORECASE)
# All that Slurm says of a requeue that it will never carry out. Whatever else it says passes: a
# controller that is going down or coming up has many words for that.
_REFUSED = re.compile(
    r"invalid job id|access/permission denied|presently disabled|only supported for batch"
    r"|invalid user id",
    re.IGNORECASE,
)
# So begins what sbatch says of a job that asks for too much.
_TOO_MUCH = re.compile(r"allocation failure|batch job submission failed", re.IGNORECASE)
# scontrol's fields of what a job asks for, and sbatch's options; their forms by the spec's key.
_OPTIONS = {
    **{"MinMemoryNode": "--mem", "MinMemoryCPU": "--mem-per-cpu", "TimeLimit": "--time"},
    **{"Partition": "--partition", "QOS": "--qos", "Nice": "--nice"},
}
_FORMS: dict[str, Callable[[int], str]] = {
    "mem": lambda amount: f"{amount}M",
    "time": lambda minutes: f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}",
}
_SACCT = ("JobID", "State", "Start", "End", "MaxRSS", "ReqMem", "JobName")


def facts(
    job: str,
    began: float,
    words: str | None = None,
    *,
    attempt: int | None = None,
    warm: bool = False,
    over: bool = False,
    step: str | None = None,
    restarts: int | None = None,
) -> JobFacts:
    """Collect what Slurm reports on the start of a job in which hpcrun ran at ``began``.

    That start came after so many ``restarts``, if they are known: clocks of hosts may differ.

    The job is ``123`` or ``123_4``, never the raw id of an element; ``words`` is what `last_words`
    returned. Of the steps of ranks, only those of ``attempt`` count if it is given, which the one
    before started if it is ``warm``. ``over``: it is an earlier start, of which the controller
    knows nothing any more. ``step`` is the `steps.packed_name` of a run that shares its job.
    """
    shown = {} if over else client.show("job", job)
    rows = _rows(job, began, restarts)
    rows = _of_attempt(rows if step is None else _of_run(rows, step), attempt, warm)
    state, _, by = rows[0]["State"].partition(" by ") if rows else ("", "", "")
    if state in ("", slurm_state.RUNNING, slurm_state.RESIZING):
        state = shown.get("JobState", slurm_state.RUNNING if state else "")
    count = shown.get("Restarts", "")
    # Slurm 24.11 keeps the time of an earlier start's preemption.
    preempted = (parse_time(shown.get("PreemptTime", "")) or 0.0) >= (
        parse_time(shown.get("StartTime", "")) or began
    )
    return JobFacts(
        state=state,
        cancelled_by=_user(by) if state == slurm_state.CANCELLED else None,
        preempted=preempted or state == slurm_state.PREEMPTED,
        words=words,
        restarts=whole_number(count),
        out_of_memory=any(row["State"] == slurm_state.OUT_OF_MEMORY for row in rows),
        memory=_memory(rows),
        ends=parse_time(shown.get("EndTime") or (rows[0]["End"] if rows else "")),
    )


def last_words(
    batch_log: Path, attempt: int, first: int | None = None, *, mark: str = ATTEMPT_MARK
) -> str | None:
    """Read the reason in slurmstepd's line about an attempt, which needs no daemon to be up.

    The log holds every start of the job; an attempt's part begins with the line in which its
    supervisor announces it: ``mark``, its number, and a blank. Empty for a plain scancel, None
    without such a line. ``first`` is the first attempt of the same start: Slurm may have spoken
    before this one was announced.
    """
    try:
        text = records.read_tail(batch_log, _TAIL).decode(errors="replace")
    except OSError:
        return None
    parts = re.split(rf"hpcrun: {mark}(\d+) ", text)
    newest: dict[int, str] = {
        int(number): part for number, part in zip(parts[1::2], parts[2::2], strict=True)
    }
    mine = range(attempt if first is None else first, attempt + 1)
    found = _WORDS.findall("\n".join(newest.get(number, "") for number in mine))
    return found[-1].strip() if found else None


def end_time(job: str, *, fresh: bool = False) -> float | None:
    """Return when the time limit ends this start of the job, in seconds since the epoch.

    ``fresh`` asks Slurm rather than the environment: somebody may have changed the limit.
    """
    told = os.environ.get("SLURM_JOB_END_TIME", "")
    if (known := parse_time(told)) and not fresh:
        return known
    return parse_time(client.show("job", job).get("EndTime", ""))


def kill_wait() -> float:
    """Return the seconds between Slurm's TERM and its KILL."""
    return float(client.configuration().get("KillWait", _KILL_WAIT))


def final_code(code: int, say: Say) -> int:
    """Return the exit code for a job to end with, for which Slurm neither requeues nor holds it.

    That is ``code`` but where the site's RequeueExit or RequeueExitHold have it: a run that has
    failed for good would begin again, for ever.
    """
    taken: set[int] = set()
    with contextlib.suppress(ValueError):
        taken = requeued_codes(client.configuration()) if code else taken
    if code not in taken:
        return code
    found = next((other for other in range(1, 256) if other not in taken), code)
    say(f"Slurm puts jobs with exit code {code} back by itself: this one ends with {found}")
    return found


def requeue(
    job: str,
    exclude: Sequence[str] = (),
    *,
    mark: JobMark,
    kept: str | None = None,
    needed: int | None = None,
    lost: Sequence[str] = (),
    patience: float = 600.0,
    between: Callable[[], bool] = lambda: True,
    say: Say,
) -> bool:
    """Put this job back into the queue; Slurm then ends what is left of it.

    True if Slurm accepted it, or had requeued the job already.

    Parameters
    ----------
    exclude
        Nodes that the next start must not use, beside ``kept``, the job's own host list.
    needed
        Nodes of the job: no more are excluded than leave so many.
    lost
        Nodes of this start of the job that do not answer.
    patience
        Seconds in which a controller that refuses for now is asked again; one that cannot be
        reached is waited for as long as the job lives, because nobody else can have its nodes.
    between
        Called before each try; False gives up (somebody else did it, or the run was cancelled).
    """
    wanted_out = tuple(exclude)
    requeue_nodes.wait_until_known(
        lost, lambda: between() and _state(job) in (slurm_state.RUNNING, "")
    )
    deadline = time.monotonic() + patience
    while between():
        try:
            state = queue.current(job)
            if state is not None and (problem := mark.problem(state)):
                say(f"not requeued: {problem}")
                return False
            problem = client.requeue(job)
        except client.CommandFailed as error:
            problem = str(error)
        if problem is None or _WAITS.search(problem) or _state(job) in slurm_state.WAITING:
            if needed is not None:
                # Once more: Slurm may not have answered before.
                exclude = requeue_nodes.without(job, exclude, needed, kept=kept, say=say)
            if exclude:
                _exclude(job, ",".join(filter(None, (kept, *exclude))), say)
            for part in client.further_parts(job) if wanted_out else ():
                if out := requeue_nodes.of_part(part, wanted_out):
                    _exclude(part, ",".join(out), say)
            return True
        late = time.monotonic() > deadline and not client.is_unreachable(problem)
        if _REFUSED.search(problem) or late:
            say(f"Slurm did not requeue the job, `hpcrun requeue` starts a new one: {problem}")
            return False
        say(f"the requeue is tried again, Slurm says: {problem}")
        time.sleep(2)
    return False


def growth(job: str, key: str, factor: float, most: str | None) -> dict[str, str]:
    """Return what the next start of a job is to ask for in place of what was too little.

    That is the ``key`` (``mem`` or ``time``), ``was`` and ``now`` in Slurm's forms (``512M``,
    ``0-02:00``), and ``field``, as ``scontrol update`` calls it; or ``key`` and ``problem``, a
    clause. ``most`` limits it, in Slurm's forms too; None for what Slurm takes.
    """
    shown = client.show("job", job)
    field, was = _request_of(shown, key)
    if not was:
        return {"key": key, "problem": f"Slurm tells of no {key} that could grow"}
    limit = _amount(key, most) if most else None
    now = math.ceil(was * factor) if limit is None else min(math.ceil(was * factor), limit)
    form = _FORMS[key]
    if now <= was:
        return {"key": key, "problem": f"recovery.grow.most.{key} is {most}"}
    test = ["sbatch", "--test-only", f"{_OPTIONS[field]}={form(now)}", shown.get("Command", "")]
    problem = client.problem_of(test, client.SHORT)
    if problem is not None and _TOO_MUCH.search(problem) and not client.is_unreachable(problem):
        why = f"Slurm does not take {key} {form(now)} ({one_line(problem)})"
        return {"key": key, "problem": f"{why}; recovery.grow.most.{key} can say what it takes"}
    return {"key": key, "field": field, "was": form(was), "now": form(now)}


def _request_of(shown: Mapping[str, str], key: str) -> tuple[str, int | None]:
    """Return scontrol's field of a job's ``mem`` or ``time``, and how many MB or minutes it is."""
    fields = ("TimeLimit",) if key == "time" else ("MinMemoryCPU", "MinMemoryNode")
    return next(((name, _amount(key, shown[name])) for name in fields if name in shown), ("", None))


def _amount(key: str, text: str) -> int | None:
    """Return the minutes of a time, or the MB of a size; None of what is neither."""
    found = parse_duration(text) if key == "time" else megabytes(text.upper())
    return None if found is None else math.ceil(found / 60 if key == "time" else found)


def enlarge(job: str, more: Mapping[str, str]) -> str | None:
    """Have a requeued job ask for more, as `growth` says; return why Slurm does not change it.

    Slurm may refuse it at first, as the job does not wait in the queue yet. There is no time for
    more: what asks is ended with the job, within KillWait.
    """
    deadline = time.monotonic() + 3
    key, field = more["key"], more["field"]
    while True:
        # scontrol's megabytes have no unit; and it may end well without a change.
        problem = client.update(job, f"{field}={more['now'].rstrip('M')}")
        shown = client.show("job", job)
        if _amount(key, shown.get(field, "")) == _amount(key, more["now"]):
            return None
        if time.monotonic() > deadline or shown.get("JobState") == slurm_state.PENDING:
            return problem or f"{field} is still {shown.get(field, 'unknown')}"
        time.sleep(0.3)


def submit_enlarged(
    script: Path, asked: Mapping[str, str], output: str, exclude: Sequence[str]
) -> str:
    """Submit a script again that asks for more; return the job's id.

    ``asked`` maps scontrol's fields, as `growth` and `hpcrun update` name them, to what is asked
    for now; those that a job alone does not have are passed over. Without host lists to
    ``exclude``, the script says it. Raises CommandFailed or ClusterUnreachable if Slurm
    did not take it, or does not tell.
    """
    known = {field: now for field, now in asked.items() if field in _OPTIONS}
    options = [f"{_OPTIONS[field]}={now}" for field, now in known.items()]
    options += [f"--exclude={','.join(exclude)}"] if exclude else []
    said = client.command(["sbatch", *options, f"--output={output}", str(script)])
    told = {*re.findall(r"^Submitted batch job (\d+)\s*$", said, re.MULTILINE)}
    # A site's wrapper may say more, or something else: the script is this run's alone.
    found = told if len(told) == 1 else client.jobs_by_script().get(str(script), [])[-1:]
    if not found:
        raise client.CommandFailed(f"sbatch's answer names no job: {one_line(said)[:200]}")
    return next(iter(found))


def is_forgotten(job: str, mark: JobMark) -> bool:
    """Check whether slurmctld has forgotten a job; accounting may still call it running.

    So it has if the number is another job's.
    """
    try:
        state = queue.current(job)
    except client.CommandFailed:
        return False
    return state is None or mark.problem(state) is not None


def is_unreachable(job: str) -> bool:
    """Check whether no daemon answers a question about the job."""
    problem = client.job_problem(job)
    return problem is not None and client.is_unreachable(problem)


def _exclude(job: str, nodes: str, say: Say) -> None:
    """Exclude nodes, again until the job waits in the queue: Slurm refuses it before."""
    deadline = time.monotonic() + 60
    while (problem := client.exclude_nodes(job, nodes)) is not None:
        if time.monotonic() > deadline:
            say(f"nodes {nodes} could not be excluded: {problem}")
            return
        time.sleep(0.3)


def _state(job: str) -> str:
    return client.show("job", job).get("JobState", "")


def _rows(job: str, began: float, restarts: int | None) -> list[dict[str, str]]:
    """Return accounting's record of the start of the job around a moment, then its steps'.

    It is the one after so many ``restarts``, unless that is from a wholly different time.

    Accounting may not have heard of a new start yet; the record of the one before is not taken for
    it, because that one ended earlier.
    """
    starts: list[list[dict[str, str]]] = []
    for row in client.accounting(job, _SACCT):
        if client.FURTHER_PART.search(row["JobID"]):
            continue
        if "." not in row["JobID"]:
            starts.append([])
        if starts:
            starts[-1].append(row)
    first = [index for index, rows in enumerate(starts) if _is_first(rows, starts[:index])]
    if restarts is not None and restarts < len(first):
        mine = starts[first[restarts] :]
        found = _with_the_rest(mine)
        whole = {**found[0], "Start": mine[0][0]["Start"]}
        if _is_around(whole, began, CLOCKS, CLOCKS):
            return found
    for index, rows in reversed(list(enumerate(starts))):
        if _is_around(rows[0], began, 5, 1):
            return _with_the_rest(starts[index:])
    return []


def _is_around(row: Mapping[str, str], moment: float, early: float, late: float) -> bool:
    """Check whether a moment is in a start of a job, by its record, or so many seconds off."""
    start, end = parse_time(row["Start"]), parse_time(row["End"])
    return start is not None and start <= moment + early and (end is None or end >= moment - late)


def _is_first(record: list[dict[str, str]], before: Sequence[list[dict[str, str]]]) -> bool:
    """Check whether a record is the first of a start of its job."""
    goes_on = bool(before) and before[-1][0]["State"] == slurm_state.RESIZING
    return not goes_on and parse_time(record[0]["Start"]) is not None


def _with_the_rest(records: Sequence[list[dict[str, str]]]) -> list[dict[str, str]]:
    """Join the records of one start, newest first: each lost node begins a new record."""
    found = list(records[0])
    for before, rows in itertools.pairwise(records):
        if before[0]["State"] != slurm_state.RESIZING:
            break
        found = [*rows, *found]
    return found


def _of_run(rows: list[dict[str, str]], step: str) -> list[dict[str, str]]:
    """Drop the steps of other runs; the others have the names as in a job of the run's own."""
    jobs = [row for row in rows if "." not in row["JobID"]]
    named = [(row, steps.name_alone(row["JobName"], step)) for row in rows if "." in row["JobID"]]
    return [*jobs, *({**row, "JobName": name} for row, name in named if name is not None)]


def _of_attempt(
    rows: list[dict[str, str]], attempt: int | None, warm: bool
) -> list[dict[str, str]]:
    """Drop the ranks of other attempts in the same start of the job."""
    if attempt is None:
        return rows
    own = steps.warm_name(attempt - 1) if warm else steps.workers_name(attempt)
    return [
        row
        for row in rows
        if steps.is_of(row["JobName"], own) or not row["JobName"].startswith(steps.WORKERS)
    ]


def _memory(rows: Sequence[dict[str, str]]) -> str:
    asked = next((row["ReqMem"] for row in rows if row["ReqMem"]), "")
    sizes = [row["MaxRSS"] for row in rows if row["MaxRSS"] not in ("", "0")]
    most = max(sizes, key=parse_size, default="")
    used = f"one rank was seen to use {most}" if most else ""
    return ", ".join(filter(None, (f"it asked for {asked}" if asked else "", used)))


def _user(number: str) -> str:
    import pwd

    try:
        return pwd.getpwuid(int(number)).pw_name
    except (KeyError, ValueError):
        return f"user {number}" if number else "somebody"
