"""Evidence for `hpcrun.policy.causes`, from the files that an attempt left."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.errors import EXIT_SAVED
from hpcrun.fields import FLAG, INDEX, TEXT, TEXTS, TIME, WHOLE, Kinds, wrong
from hpcrun.policy import log_excerpt, permanent_errors
from hpcrun.policy.causes import KILLING
from hpcrun.policy.permanent_errors import PermanentError
from hpcrun.run.health.progress import COLLECTIVE
from hpcrun.run.job.rank_places import RankEnd
from hpcrun.run.protocol.output import say
from hpcrun.state import files, ledger, manifest, metrics_file, session_log, submission_facts
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.plan import RunPlan
from hpcrun.state.session_log import SessionLog
from hpcrun.text import one_line, shortened, signal_name

# Progress bars may write that much after the cause.
_TAIL_BYTES = 1 << 20
_LONGEST_REASON = 400
# What a shell ends with is this and the number of the signal that ended its command.
_BY_SIGNAL = 128
_OF_SHELLS = {_BY_SIGNAL + number for number in (4, 6, 7, 8, 9, 11)}
_HIDDEN = "does a pipe or a later command hide the program's? (bash: set -eo pipefail)"
# Ranks whose logs are read although they ended well.
_DOUBTED = 8
# Logs, and bytes of each, that are read for a call of MPI_Abort; MPICH's line, and Open MPI's.
_LOOKED_THROUGH, _ABORT_BYTES = 512, 1 << 14
_MPI_ABORT = re.compile(
    rb"(?m)^Abort\((\d{1,9})\) on node \d"
    rb"|MPI_ABORT was invoked on rank \d[^\0]{,300}?errorcode (\d{1,9})"
)
# Ends that say nothing of a rank's own fault (`_how`), and logs that are read for like ones.
_OF_PEERS = {
    ("SIGABRT", None),
    ("SIGTERM", None),
    *((None, code) for code in (None, 0, 1, EXIT_SAVED)),
}
_ALIKE_LOGS = 64
_KILLED_FOR_MEMORY = re.compile(rb"[Dd]etected \d+ oom[-_ ]kill")
_OOM_KILL = re.compile(r"oom[-_ ]kill", re.IGNORECASE)


@dataclass(frozen=True)
class AttemptProgress:
    """Progress of an attempt in finished optimizer steps; None where unknown."""

    restored_step: int | None
    reached_step: int | None
    checkpoint_step: int | None
    """That of the run's newest complete checkpoint; for a program that saves by itself that of its
    newest save, None if none was seen whose step is known."""
    first_step: int | None = None
    """The first that was logged: what an attempt began with, of a program that saves by itself."""
    saves: int = 0
    """How many of such a program's saves were seen."""
    total_steps: int | None = None
    unit: str | None = None
    """That of the steps of a program, `SessionLog.unit`."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The last value of each metric, so that readers of many ended runs open only the ledger."""
    logged: float | None = None
    """The time of its last metrics, in seconds since the epoch."""


def progress(run: RunPaths, attempt: AttemptPaths) -> AttemptProgress:
    """Return the progress that an attempt's files show.

    Best effort, as an end is to be recorded: the user's program may have put other things there.
    """
    log = session(attempt)
    reached, logged, first = log.reached_step, None, None
    values: dict[str, float] = {}
    for line in metrics_file.parse(_lines(attempt.metrics)):
        first = line.step if first is None else first
        reached = max(reached or 0, line.step)
        logged = line.time or logged
        values.update(line.values)
    known = (log.restored_step, reached)
    rest: dict[str, Any] = {"total_steps": log.total_steps, "metrics": values}
    if log.restored_step is not None:
        found = manifest.complete(run.checkpoints)
        return AttemptProgress(*known, found[0][1].step if found else 0, logged=logged, **rest)
    saves = sum(1 for _ in log.of(session_log.SAVED))
    kept = log.saved_step if saves else _saved_before(run, attempt, log.unit)
    logged = logged or max((time for _, time in log.sightings), default=None)
    return AttemptProgress(*known, kept, first, saves, unit=log.unit, logged=logged, **rest)


def _saved_before(run: RunPaths, attempt: AttemptPaths, unit: str | None) -> int | None:
    """Return the step of the newest save that earlier attempts made, if it counts as this one."""
    earlier = (one for one in reversed(run.attempts()) if one.number < attempt.number)
    for log in map(session, earlier):
        if any(log.of(session_log.SAVED)):
            return log.saved_step if None in (unit, log.unit) or log.unit == unit else None
    return None


def session(attempt: AttemptPaths) -> SessionLog:
    """Return an attempt's events; none if the file cannot be read."""
    return session_log.parse(_lines(attempt.session))


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return list(files.read_lines(path))
    except OSError as error:
        say(f"{path} is not read: {error}")
        return []


def orphaned(attempt: AttemptPaths) -> dict[str, Any] | None:
    """Return the record of an agent that had lost its supervisor; None if there is none."""
    return _sound_record(attempt.orphaned, {"lost_nodes": TEXTS})


def failure(
    attempt: AttemptPaths,
    seen: RankEnd | None,
    ends: Mapping[int, RankEnd] | None = None,
    gone: Collection[int] = (),
) -> dict[str, Any] | None:
    """Return the first rank that ended badly, with the last lines of its log; None if none did.

    A rank that a signal killed writes no record, and its peers fail moments later: so a signal that
    the launcher saw precedes any record. So does a rank that was gone without a record, if all
    records are of ranks that waited for others. Ranks that saved leave together: where one of them
    ended otherwise, that one counts.

    ``seen`` is the first rank that the launcher saw fail, and ``ends`` has all of them. Ranks in
    ``gone`` should have left a record and were gone before any was ended.
    """
    found = _first(attempt, seen, ends or {}, gone)
    if found is None:
        return None
    if found.get("by_slurm"):
        found = {**found, **_of_aborted(attempt)}
    data = _end_of(attempt.rank_log(found["rank"]))
    found = _as_told(found, data)
    lines = log_excerpt.excerpt(data)
    by_kernel = any(_OOM_KILL.search(line) for line in lines)
    return {
        **found,
        "log_tail": lines,
        "out_of_memory": found.get("signal") in KILLING
        and (by_kernel or bool(found.get("out_of_memory"))),
    }


def alike(
    attempt: AttemptPaths, found: Mapping[str, Any], ends: Iterable[RankEnd]
) -> dict[int, str | None]:
    """Return the other ranks, with their nodes, that ended by themselves as a `failure`'s did.

    They raised the same, but for numbers, or ended by the same signal or exit code: which of them
    was first, by milliseconds, tells nothing. ``ends`` are those of before any rank was ended. An
    exit code of 1, an abort and a SIGTERM may be what the first one's end did to a peer.
    """
    how = _how(found)
    if how in _OF_PEERS or found.get("by_slurm"):
        return {}
    same: dict[int, str | None] = {}
    known = {end.rank: dict(vars(end)) for end in ends if not end.by_slurm}
    for path in islice(attempt.exit_records(), _LOOKED_THROUGH):
        if record := _exit_record(path):
            known[record["rank"]] = record
    left = _ALIKE_LOGS
    for rank, record in sorted(known.items()):
        if rank == found["rank"]:
            continue
        if found.get("exception") and not record.get("exception") and left:
            left -= 1
            record = _as_told(record, _end_of(attempt.rank_log(rank)))
        if _how(record) == how and (_of_its_own(record) or not _of_its_own(found)):
            same[rank] = record.get("node")
    return same


def _how(record: Mapping[str, Any]) -> tuple[Any, ...]:
    if record.get("exception"):
        return record["exception"], re.sub(r"\d+", "N", str(record.get("message") or ""))
    return record.get("signal"), None if record.get("signal") else record.get("exit_code")


def _of_aborted(attempt: AttemptPaths) -> dict[str, Any]:
    """Return the rank for which Slurm ended them all, where a log tells: by MPI_Abort, or raising.

    Ranks that are ended so leave no record. Empty where no log tells.
    """
    raised: dict[str, Any] = {}
    for rank, path in sorted(attempt.rank_logs().items())[:_LOOKED_THROUGH]:
        data = _end_of(path, _ABORT_BYTES)
        by = {"rank": rank, "node": None, "signal": None, "by_slurm": False}
        if abort := _MPI_ABORT.search(data):
            return {**by, "exit_code": int(abort[1] or abort[2])}
        if not raised and log_excerpt.end(data).exception:
            raised = {**by, "exit_code": 1}
    return raised


def _as_told(found: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Add what the log tells of a process that leaves no record: a Python program, a launcher's.

    A launcher ends with a code of its own; that of its process, or the signal, takes the place.
    """
    code = found.get("exit_code")
    if not code or code == EXIT_SAVED or found.get("exception") or found.get("signal"):
        return found
    told = log_excerpt.end(data)
    code = told.exit_code or code
    signal = told.signal or (signal_name(code - _BY_SIGNAL) if code in _OF_SHELLS else None)
    said = {"exception": told.exception, "message": told.message} if code == 1 else {}
    return {**found, "exit_code": code, "signal": signal, **said}


def doubt(attempt: AttemptPaths) -> str | None:
    """Return a clause that says why a program's exit code 0 may be wrong; None if nothing does.

    A pipe and a later command of a shell have an exit code of their own; a process that the kernel
    kills may be missed by nobody.
    """
    for rank, path in sorted(attempt.rank_logs().items())[:_DOUBTED]:
        data = _end_of(path)
        if _KILLED_FOR_MEMORY.search(data):
            return f"a process of rank {rank} was killed as memory ran out, and its exit code is 0"
        told = log_excerpt.end(data)
        if told.signal == "SIGTERM":  # a helper that a script ends
            continue
        if told.signal or told.exit_code:
            how = told.signal or f"exit code {told.exit_code}"
            return f"a process of rank {rank} ended with {how}, and its exit code is 0: {_HIDDEN}"
        if told.exception:
            said = shortened(f"{told.exception}: {told.message}".rstrip(": "), _LONGEST_REASON)
            return f"the log of rank {rank} ends with {said}; its exit code is 0: {_HIDDEN}"
    left = next(session(attempt).of(session_log.LEFT_RUNNING), None)
    if left is not None and progress(attempt.run, attempt).reached_step is None:
        # Where it made steps, it may be a helper.
        said = shortened(one_line(str(left.record.get("command"))), _LONGEST_REASON)
        return f"rank 0 ended while its `{said}` went on, which was ended too: it is to wait for it"
    return None


def permanent(
    run: RunPlan,
    attempt: AttemptPaths,
    found: Mapping[str, Any],
    ends: Mapping[int, RankEnd],
    *,
    one_machine: bool,
) -> dict[str, Any]:
    """Return ``permanent`` and ``seen_on``, as the ledger has them, of a `failure`.

    Empty for one that another start may mend, and once the attempt has made a step. On
    ``one_machine`` there is no other node to try; a module that was missing where the run was
    submitted is no fault of a node.
    """
    came = progress(attempt.run, attempt)
    if came.reached_step not in (None, came.restored_step):
        return {}
    named = [*run.entry.argv, *_texts(run.config)]
    error = _permanent_error(attempt, found, named)
    if error is None:
        return {}
    if error.of_rank_0 and found["rank"]:
        end = ends.get(0)
        if end is None or _permanent_error(attempt, _record(attempt, end), named) != error:
            return {}
    reason = shortened(error.reason, _LONGEST_REASON)
    if error.anywhere or one_machine or _is_missing_elsewhere(attempt, found):
        return {"permanent": reason}
    seen_on = [found["node"]]
    for end in ends.values():
        if end.exit_code and end.node not in (None, *seen_on):
            other = _permanent_error(attempt, _record(attempt, end), named)
            seen_on += [end.node] if other == error else []
        if len(seen_on) > 1:
            break
    return {"permanent": reason, "seen_on": seen_on}


def _is_missing_elsewhere(attempt: AttemptPaths, found: Mapping[str, Any]) -> bool:
    """Check whether the run's Python lacked the missing module where it was submitted, too."""
    module = permanent_errors.missing_module(found)
    for one in ledger.read(attempt.run) if module else ():
        if one.number == attempt.number and isinstance(one.submission, int):
            facts = submission_facts.describe(attempt.run.experiment.submission(one.submission))
            missing = facts.get("python", {}).get("missing")
            return isinstance(missing, list) and module in missing
    return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from _texts(one)
    if isinstance(value, str):
        yield value


def _permanent_error(
    attempt: AttemptPaths, found: Mapping[str, Any], named: Collection[str]
) -> PermanentError | None:
    data = _end_of(attempt.rank_log(found["rank"]))
    last = log_excerpt.folded(data)[-permanent_errors.LINES :] if data else []
    lines = [shortened(line.decode(errors="replace")) for line in last]
    return permanent_errors.find(found, lines, named)


def _record(attempt: AttemptPaths, end: RankEnd) -> dict[str, Any]:
    """Return the record that a rank left, or else how its launcher saw it end."""
    found = _exit_record(attempt.exit_record(end.rank)) or dict(vars(end))
    return _as_told(found, _end_of(attempt.rank_log(end.rank)))


def _first(
    attempt: AttemptPaths, seen: RankEnd | None, ends: Mapping[int, RankEnd], gone: Collection[int]
) -> dict[str, Any] | None:
    if seen is not None and seen.signal and not seen.by_slurm:
        return dict(vars(seen))
    found = [record for path in attempt.exit_records() if (record := _exit_record(path))]
    silent = sorted(set(gone).difference(record["rank"] for record in found))
    if silent and not any(map(_of_its_own, found)):
        # The launcher knows how it ended, unless it took that for a good end.
        told = (ends.get(rank, RankEnd(rank, None, 0, None)) for rank in silent)
        return dict(vars(min(told, key=_unlikely_first)))
    if not found:
        return None if seen is None else dict(vars(seen))
    return min(found, key=lambda record: (_saved(record), _moment(attempt, record)))


def _moment(attempt: AttemptPaths, record: Mapping[str, Any]) -> float:
    """Return when a rank ended; those of nodes whose clocks are apart are of one clock."""
    told = float(record.get("time") or 0.0)
    with contextlib.suppress(OSError):
        modified = attempt.exit_record(record["rank"]).stat().st_mtime
        return told - shared_look.clock_ahead(told, modified)
    return told


# Written by the process that runs the user's code.
_EXIT_RECORD = {
    **{"rank": INDEX, "exit_code": WHOLE, "time": TIME, "out_of_memory": FLAG},
    **dict.fromkeys(("node", "signal", "exception", "message", "traceback"), TEXT),
}


def _exit_record(path: Path) -> dict[str, Any] | None:
    """Read the record of a rank's end, as far as a worker writes it; None without a sound one."""
    return _sound_record(path, _EXIT_RECORD, ["rank"])


def _sound_record(path: Path, kinds: Kinds, needed: Collection[str] = ()) -> dict[str, Any] | None:
    """Return these fields of a record that has all that is needed; None without a sound one."""
    try:
        record = files.read_json(path, files.MOST_LINE)
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or wrong(record, kinds, needed):
        return None
    return {key: record[key] for key in kinds if key in record}


def _of_its_own(record: Mapping[str, Any]) -> bool:
    """Check that a rank failed by itself, and not because it waited for one that had."""
    if _saved(record):
        return False
    return not COLLECTIVE.search(str(record.get("traceback") or ""))


def _unlikely_first(end: RankEnd) -> int:
    """Return the order of blame: libraries abort a rank whose peers are gone."""
    if end.signal is None:
        return 1
    return 2 if end.signal == "SIGABRT" else 0


def _saved(record: Mapping[str, Any]) -> bool:
    return record.get("exit_code") == EXIT_SAVED


def _end_of(log: Path, most: int = _TAIL_BYTES) -> bytes:
    try:
        return files.read_tail(log, most)
    except OSError:
        return b""
