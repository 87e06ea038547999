"""A run's append-only event log, and the intent that every start reads.

Supervisors alone write the ledger. Each line has ``event``, ``time`` (seconds since the epoch) and
``attempt``; the events are

``attempt_started``
    ``job_id`` (``123``, ``123_4`` or ``local:PID``), ``submission``, ``nodes`` (list of names),
    ``spare_nodes`` (those that stand by, if any), ``restart_count``, ``host``, ``pid``,
    ``world_size``; after out of memory ``micro_batch``, ``accumulation``, ``planned_micro_batch``;
    ``packages_changed`` since submission (`hpcrun.python_packages`), frozen ``environment``;
    ``instead_of``, the node that was lost with the supervisor before.
``workers_started``
    The ranks were started; ``warm`` where they had been waiting. ``notice``: a guess.
``fabric``
    The links of the attempt's nodes, where they have adapters: ``choices`` (of NCCL_IB_HCA),
    ``findings`` (the first of `hpcrun.run.fabric.link_check`) and their ``count``.
``health``
    Its nodes' check, where it found something: ``findings`` (of `hpcrun.policy.node_health`), their
    ``count``, the ``action`` decided, its ``reason``, and the ``nodes`` that are not to be used.
``staged``
    What its nodes copied to their disks: ``nodes`` (how many), ``files`` and ``bytes`` of each, the
    bytes ``copied`` now on all of them, ``seconds`` on the ``slowest``, and ``notes``, the first of
    a ``count``: sources that ranks read where they are, and why.
``role``
    Ranks ended badly or lost their node, and the run goes on: ``role``, ``ranks`` (those that are
    started anew, or given up), ``what`` (``restarted``, ``moved`` to another node, ``ignored``),
    ``why`` (a clause), ``node`` (where they are now), ``number`` (of the role's restarts in the
    attempt so far), and of the rank that ended ``rank``, ``exit_code``, ``signal``.
``attempt_ended``
    ``outcome`` (``completed``, ``pruned``, ``failed``, ``cancelled``, ``stopped``), ``exit_code``
    and, unless completed, ``cause``: a mapping with ``kind`` (of `hpcrun.policy.causes`) and
    ``message``, and if known ``rank``, ``node``, ``exit_code``, ``signal``, ``exception``,
    ``log_tail`` (list of lines), ``nodes`` (those that were lost, bad, or could not be used),
    ``response`` (to bad ones; see `hpcrun.policy.node_health`), ``lock`` (a file that a rank that
    hangs waits for), ``permanent`` (why no new start mends the error, as a clause), ``seen_on``
    (the nodes that have it, where one may be at fault), ``failed_on`` (of all ranks that ended so).
    ``restored_step``, ``reached_step``, ``checkpoint_step``, ``first_step``, ``saves``,
    ``total_steps`` and ``unit`` are its progress, ``metrics`` the last values,
    ``logged`` their time (`AttemptProgress`). ``bad_step`` are the fields of
    that event (`hpcrun.state.session_log`), if there was one.
    The next supervisor records an end that its own did not live to, with ``time`` as Slurm has it.
``decided``
    The response, before Slurm is asked for it: ``action`` (``restart`` in the same allocation,
    ``requeue``, ``stop``, ``nothing``), ``reason``, ``exclude`` (nodes), ``left_out`` (samples) and
    ``grow`` (what the next start is to have more of: `hpcrun.slurm.job.growth`).
``resume``
    How a script or command goes on from what earlier attempts saved: whether it ``resumes``, the
    ``source`` (a path; None where none was asked for), its ``step`` or other number, new
    ``arguments``, ``message`` (after "attempt 2"). One that starts from nothing: step ``reached``.
``began_over``
    The first ``step`` logged is not beyond the first ever, though one was ``reached``; ``message``.
``straggler``
    The others wait for this ``rank`` on ``node``: the shares of the time that it ``waits`` and that
    the least of the ``others_wait``, and in which it reads data (``loads``).
``never_met``
    No rank ever listened on a port of the attempt: each of the ``world_size`` ranks worked alone.
``kept``
    What was written in nodes' copies of the code is in ``work``: ``files`` (how many), ``names``
    (of some), ``apart`` (written differently by nodes, new names), ``failed`` (and why).
``shared_write``
    Ranks write one file of their working directory: ``file`` (in ``work``), ``ranks``.
``fault``, ``notified``
    A drill is about to inject a ``fault`` (``rank``, ``node``); ``notify.command`` is about to be
    run for ``what``, of `hpcrun.state.spec.notify_block.EVENTS`; again with the ``problem`` if it
    failed.
``stopping``
    The ranks are asked to save and leave: ``reason`` (``time_limit``, ``preempted``, ``requeued``,
    ``signal``, ``interrupted``, ``pruned``), ``signal``.

Features have events of their own: `hpcrun.feature.Feature.events`.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from hpcrun import feature
from hpcrun.errors import BrokenFile
from hpcrun.feature import Event
from hpcrun.fields import (
    FLAG,
    INDEX,
    INDICES,
    METRICS,
    NUMBER,
    PATH,
    TEXT,
    TEXTS,
    TIME,
    WHOLE,
    Kind,
    Kinds,
    mapping,
    wrong,
)
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.state import files, session_log
from hpcrun.state.layout import RunPaths, is_job_id
from hpcrun.text import listed, plural, ranges, size, time_spent

STARTED = "attempt_started"
# A field of it.
INSTEAD_OF = "instead_of"
_OF_START = ("job_id", "restart_count", "submission")
WORKERS = "workers_started"
FABRIC = "fabric"
HEALTH = "health"
COPIED = "staged"
ENDED = "attempt_ended"
STOPPING = "stopping"
DECIDED = "decided"
FAULT = "fault"
STRAGGLER = "straggler"
NEVER_MET = "never_met"
KEPT = "kept"
SHARED_WRITE = "shared_write"
NOTIFIED = "notified"
RESUME = "resume"
BEGAN_OVER = "began_over"
ROLE = "role"

# An event -> the attempt's field that has its record, where that has another name.
_FIELD_OF = {STARTED: "started", ENDED: "ended", COPIED: "copied"}
# What became of a role's ranks that ended badly.
RESTARTED, MOVED, IGNORED = "restarted", "moved", "ignored"

_HEAD: Kinds = {"event": TEXT, "time": TIME, "attempt": INDEX}
# Whoever wrote the line, an option of scancel or a path is no job.
_JOB_ID = Kind("the id of a job", is_job_id)
_CAUSE: Kinds = {
    **dict.fromkeys(("kind", "message", "node", "exception", "lock", "permanent"), TEXT),
    **dict.fromkeys(("response", "role"), TEXT),
    **dict.fromkeys(("log_tail", "nodes", "seen_on", "failed_on"), TEXTS),
    "signal": Kind("a signal", lambda value: type(value) in (str, int), str),
    "rank": INDEX,
    "exit_code": WHOLE,
    "hardware": mapping({}),
}
_NAMED = ("node", "kind", "message")
_FINDING: Kinds = dict.fromkeys((*_NAMED, "port"), TEXT)
_FINDINGS = Kind(
    "a list of findings",
    lambda value: (
        type(value) is list
        and all(type(one) is dict and not wrong(one, _FINDING, _NAMED) for one in value)
    ),
)
_GROW: Kinds = dict.fromkeys(("key", "field", "was", "now", "problem"), TEXT)
# The fields of each event's record, beside those of every record.
_FIELDS: dict[str, Kinds] = {
    STARTED: {
        **dict.fromkeys(("nodes", "spare_nodes", "packages_changed"), TEXTS),
        **dict.fromkeys(("submission", "restart_count", "pid", "world_size"), INDEX),
        **dict.fromkeys(("micro_batch", "accumulation", "planned_micro_batch"), INDEX),
        "job_id": _JOB_ID,
        "host": TEXT,
        "environment": TEXT,
    },
    WORKERS: {"warm": FLAG, "notice": TEXT},
    FABRIC: {"choices": TEXTS, "findings": _FINDINGS, "count": INDEX},
    HEALTH: {
        "action": TEXT,
        "reason": TEXT,
        "nodes": TEXTS,
        "findings": _FINDINGS,
        "count": INDEX,
    },
    COPIED: {
        **dict.fromkeys(("nodes", "files", "count"), INDEX),
        **dict.fromkeys(("bytes", "copied"), WHOLE),
        "seconds": NUMBER,
        "slowest": TEXT,
        "notes": TEXTS,
    },
    ENDED: {
        **dict.fromkeys(("exit_code", "first_step", "total_steps"), WHOLE),
        **dict.fromkeys(("restored_step", "reached_step", "checkpoint_step"), WHOLE),
        **dict.fromkeys(("outcome", "unit", "doubt"), TEXT),
        "cause": mapping(_CAUSE),
        "saves": INDEX,
        "metrics": METRICS,
        "logged": TIME,
        "bad_step": mapping(session_log.BAD_STEP_KINDS),
    },
    STOPPING: {"reason": TEXT, "signal": TEXT},
    DECIDED: {
        "action": TEXT,
        "reason": TEXT,
        "exclude": TEXTS,
        "left_out": session_log.SAMPLES,
        "grow": mapping(_GROW),
    },
    STRAGGLER: {
        "rank": INDEX,
        "node": TEXT,
        **dict.fromkeys(("waits", "others_wait", "loads"), NUMBER),
    },
    NEVER_MET: {"world_size": INDEX},
    ROLE: {
        **dict.fromkeys(("role", "what", "why", "node", "signal"), TEXT),
        "ranks": INDICES,
        "number": INDEX,
        "rank": INDEX,
        "exit_code": WHOLE,
    },
    FAULT: {"fault": TEXT, "rank": INDEX, "node": TEXT},
    NOTIFIED: {"what": TEXT, "problem": TEXT},
    RESUME: {
        "resumes": FLAG,
        "source": PATH,
        "arguments": TEXTS,
        "step": WHOLE,
        "reached": WHOLE,
        "message": TEXT,
    },
    BEGAN_OVER: {"step": WHOLE, "reached": WHOLE, "message": TEXT},
    SHARED_WRITE: {"file": TEXT, "ranks": INDICES},
    KEPT: {"files": WHOLE, "names": TEXTS, "apart": TEXTS, "failed": TEXTS},
}
_KINDS = {event: {**_HEAD, **fields} for event, fields in _FIELDS.items()}
# The events whose record an attempt keeps, in the field of that name or of `_FIELD_OF`.
_KEPT = _FIELDS.keys() - {WORKERS, ROLE, NOTIFIED, FAULT}
# The fields that a record may not be without.
_NEEDED: dict[str, Collection[str]] = {
    FABRIC: ("choices", "findings"),
    HEALTH: ("findings", "action", "reason"),
    COPIED: _FIELDS[COPIED],
    ENDED: ("outcome",),
    STRAGGLER: ("rank", "node", "waits", "others_wait"),
    NEVER_MET: ("world_size",),
    ROLE: ("role", "what", "why", "ranks"),
    FAULT: ("attempt", "fault", "time"),
    RESUME: ("message",),
    BEGAN_OVER: ("message",),
    SHARED_WRITE: ("file", "ranks"),
    KEPT: ("files",),
}
# More than any run has.
_MOST_RECORDS, _MOST_BYTES, _MOST_INTENT = 300_000, 1 << 26, 1 << 20
# So many lines that are no records are looked at for one that was torn.
_MOST_BROKEN = 100
# Of what became of roles, so many parts are told.
_MOST_PARTS = 8

FINISHED = "finished"
CANCELLED = "cancelled"
PRUNED = "pruned"
# The intents of runs that are over, and nothing went wrong.
GOOD_ENDS = (FINISHED, PRUNED)


@dataclass
class Attempt:
    """The events of one attempt; None if there is no event of a kind."""

    number: int
    started: dict[str, Any] = field(default_factory=dict)
    workers_started: float | None = None
    ended: dict[str, Any] | None = None
    stopping: dict[str, Any] | None = None
    decided: dict[str, Any] | None = None
    straggler: dict[str, Any] | None = None
    never_met: dict[str, Any] | None = None
    resume: dict[str, Any] | None = None
    began_over: dict[str, Any] | None = None
    fabric: dict[str, Any] | None = None
    health: dict[str, Any] | None = None
    copied: dict[str, Any] | None = None
    kept: dict[str, Any] | None = None
    shared_write: dict[str, Any] | None = None
    notified: str | None = None
    not_told: str | None = None
    """Why ``notify.command`` told nobody of its end."""
    warm: bool = False
    roles: list[dict[str, Any]] = field(default_factory=list)
    notice: str | None = None
    of_features: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Event of a feature -> its newest record."""

    @property
    def job_id(self) -> str | None:
        """``123``, ``123_4`` or ``local:PID``."""
        return self.started.get("job_id")

    @property
    def submission(self) -> int | None:
        """The number of the submission that it belongs to."""
        return self.started.get("submission")

    @property
    def nodes(self) -> list[str] | None:
        """The names of its nodes."""
        return self.started.get("nodes")

    @property
    def spare_nodes(self) -> list[str] | None:
        """The names of the job's nodes that stood by as it began; None if it has not begun."""
        return self.started.get("spare_nodes", []) if self.started else None

    @property
    def began(self) -> float | None:
        """The time of its start, in seconds since the epoch."""
        return self.started.get("time")

    @property
    def end(self) -> dict[str, Any]:
        """The record of its end; empty while it goes on."""
        return self.ended or {}

    @property
    def outcome(self) -> str | None:
        """``completed``, ``pruned``, ``failed``, ``cancelled`` or ``stopped``."""
        return self.ended["outcome"] if self.ended else None

    @property
    def cause(self) -> dict[str, Any]:
        """The cause of its end; empty while it goes on, and if it completed."""
        return self.end.get("cause") or {}

    @property
    def kind(self) -> str | None:
        """The cause's kind, one of `hpcrun.policy.causes`."""
        return self.cause.get("kind")

    @property
    def alone(self) -> str | None:
        """A sentence if its ranks never met; None if they did, or were not to."""
        if self.never_met is None:
            return None
        return f"its {self.never_met['world_size']:,} ranks never met: each worked alone"

    @property
    def overwriting(self) -> str | None:
        """A sentence if several of its ranks write one file; None if that was not seen."""
        if (found := self.shared_write) is None:
            return None
        return f"its ranks {','.join(ranges(found['ranks']))} write one file, {found['file']}"

    @property
    def beginning(self) -> str | None:
        """How it goes on from earlier attempts, in words; None where nothing is known of that."""
        found = self.began_over or self.resume
        return f"attempt {self.number} {found['message']}" if found else None

    @property
    def action(self) -> str | None:
        """The action that was decided on after its end."""
        return (self.decided or {}).get("action")


def same_start(one: Attempt, other: Attempt) -> bool:
    """Check whether both belong to one start of a job, so that Slurm knows them as one."""
    if not any(INSTEAD_OF in attempt.started for attempt in (one, other)):
        return same_supervisor(one, other)
    return _alike(one, other, _OF_START)


def same_supervisor(one: Attempt, other: Attempt) -> bool:
    """Check whether one supervisor began both: a start of a job may have another after it."""
    return _alike(one, other, (*_OF_START, "pid", "host"))


def _alike(one: Attempt, other: Attempt, keys: Iterable[str]) -> bool:
    return all(one.started.get(key) == other.started.get(key) for key in keys)


def first_of_start(attempts: Sequence[Attempt], number: int) -> int:
    """Return the first attempt of the start of the job that an attempt belongs to."""
    mine = next((one for one in attempts if one.number == number), None)
    together = [one.number for one in attempts if mine is not None and same_start(one, mine)]
    return min(together, default=number)


def write(run: RunPaths, event: str, attempt: int, **details: Any) -> None:
    """Append an event of now."""
    stamped = {"event": event, "time": time.time(), "attempt": attempt}
    files.append(run.ledger, {**stamped, **details})


def read(run: RunPaths) -> list[Attempt]:
    """Read the attempts in the order of their numbers; empty for a run that never started.

    Raises BrokenFile if the ledger cannot be read, has a record that no supervisor wrote, or has
    none at all: a run whose history is not known is neither new nor over.
    """
    attempts: dict[int, Attempt] = {}
    for event, record in _records(run):
        number = record.get("attempt")
        if number is None:
            continue
        attempt = attempts.setdefault(number, Attempt(number))
        if event in _KEPT:
            setattr(attempt, _FIELD_OF.get(event, event), record)
        elif event == WORKERS:
            attempt.workers_started = record.get("time")
            attempt.warm = bool(record.get("warm"))
            attempt.notice = record.get("notice")
        elif event == ROLE:
            attempt.roles.append(record)
        elif event == NOTIFIED:
            attempt.notified, attempt.not_told = record.get("what"), record.get("problem")
        elif event in _of_features():
            attempt.of_features[event] = record
    return [attempts[number] for number in sorted(attempts)]


def _records(run: RunPaths) -> list[tuple[str, dict[str, Any]]]:
    """Return the events and their records; those torn by a crash are left out."""
    found: list[tuple[str, dict[str, Any]]] = []
    rest: list[tuple[int, bytes]] = []
    path = run.ledger
    try:
        for line, record in files.numbered_lines(path, _MOST_BYTES):
            if not isinstance(record, dict):
                rest += [(line, record)][len(rest) >= _MOST_BROKEN :]
                continue
            event = str(record.get("event"))
            if problem := wrong(record, *_fields(event)):
                raise BrokenFile.of(path, problem, line)
            found.append((event, record))
            if len(found) > _MOST_RECORDS:
                raise BrokenFile.of(path, f"it has more than {_MOST_RECORDS:,} records")
    except OSError as error:
        raise BrokenFile.of(path, error) from None
    if rest and not found and not any(map(_is_torn, rest)):
        raise BrokenFile.of(path, "it holds no event of a run", rest[0][0])
    return found


def _fields(event: str) -> tuple[Kinds, Collection[str]]:
    """Return the fields of an event's record, and those that it may not be without."""
    if event not in _KINDS and (found := _of_features().get(event)):
        return {**_HEAD, **found.fields}, found.needed
    return _KINDS.get(event, _HEAD), _NEEDED.get(event, ())


@functools.cache
def _of_features() -> dict[str, Event]:
    return {name: one for each in feature.every().values() for name, one in each.events.items()}


def _is_torn(line: tuple[int, bytes]) -> bool:
    """Check whether a supervisor may have been killed as it wrote a line."""
    beginning = b'{"event":"'
    return line[1][: len(beginning)] == beginning[: len(line[1])]


def faults(run: RunPaths) -> list[dict[str, Any]]:
    """Read the faults that drills have injected, in order; raise as `read` does."""
    return [record for event, record in _records(run) if event == FAULT]


def intent(run: RunPaths) -> str | None:
    """Read the intent: ``finished``, ``pruned``, ``cancelled`` or None.

    Raises BrokenFile if something else is in the file's place: who cannot tell whether a run was
    cancelled may not start it.
    """
    try:
        value = files.read_json(run.intent, _MOST_INTENT)
    except (FileNotFoundError, PermissionError, ValueError):
        # Colleagues may not be allowed to read it; those who start runs own the file.
        return None
    except OSError as error:
        raise BrokenFile.of(run.intent, error) from None
    found = value.get("intent") if isinstance(value, dict) else None
    return found if found in (*GOOD_ENDS, CANCELLED) else None


def set_intent(run: RunPaths, value: str | None) -> None:
    """Write an intent (one of those of `intent`) before anything acts on it, or remove it."""
    if value is None:
        run.intent.unlink(missing_ok=True)
        return
    run.directory.mkdir(parents=True, exist_ok=True)
    files.write_json(run.intent, {"intent": value, "time": time.time()})


def role_sentence(record: Mapping[str, Any]) -> str:
    """Describe what became of a role's ranks, from the record."""
    ranks, node = record["ranks"], record.get("node")
    on = f" on {node}" if node else ""
    one = "rank" if len(ranks) == 1 else "ranks"
    who = f"{one} {','.join(ranges(ranks))}"
    then = {
        RESTARTED: f"{who} started anew{on}",
        MOVED: f"{who} moved{on and f' to {node}'}",
        IGNORED: f"the run goes on without {who}",
    }
    return f"role {record['role']}: {record['why']}; {then.get(record['what'], record['what'])}"


def roles_summary(records: Iterable[Mapping[str, Any]]) -> str:
    """Return in words how often each role's ranks were restarted, moved or given up."""
    counts = Counter((record["role"], record["what"]) for record in records)
    parts = [f"{role} {what} {number}x" for (role, what), number in counts.items()]
    return listed(parts, _MOST_PARTS)


def copies_sentence(found: Mapping[str, Any]) -> str:
    """Describe what the copies on nodes came to, from their record."""
    nodes = found["nodes"]
    where = f"{plural(nodes, 'node')}" if nodes == 1 else f"each of {plural(nodes, 'node')}"
    what = f"{size(found['bytes'])} in {plural(found['files'], 'file', ',')}"
    text = f"staged {what} on {where} in {time_spent(found['seconds'])}"
    if nodes > 1:
        text += f" (the longest, on {found['slowest']})"
    if not found["copied"] and found["bytes"]:
        return f"{text}: all of it was there already"
    if found["copied"] < found["bytes"] * nodes:
        text += f", {size(found['copied'])} of it copied now"
    return text
