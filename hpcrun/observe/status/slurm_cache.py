"""Slurm's last answers: they spare Slurm, and stand in while it is silent."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from types import NoneType
from typing import Any

from hpcrun.fields import TIME
from hpcrun.host import user_cache
from hpcrun.observe.status import jobs
from hpcrun.observe.status.jobs import Answers, JobRef
from hpcrun.shared_dataclass import dataclass, field, replace
from hpcrun.slurm import client, patience
from hpcrun.slurm.background import BackgroundCall
from hpcrun.slurm.queue import JobState
from hpcrun.state import files

# Seconds between two queries: a multiple of the time that the last one took, within limits.
LEAST_PAUSE, PAUSES, MOST_PAUSE = 1.0, 5.0, 30.0
# Seconds for which an end reported by accounting holds: only a requeue by hand undoes it, and
# squeue reports that.
ENDS_HOLD = 600.0
# Seconds for which a cluster is taken to keep no accounts after it has said so.
NO_ACCOUNTS_HOLD = 3600.0
# Seconds that a follower waits for an open question: when it is new, and when Slurm was silent.
FIRST_LOOK, LOOK = patience.READER + 0.3, 0.1
MOST_JOBS = 50_000
# The fields of a job's state as the file has them, and their types.
_FIELDS: dict[str, Any] = {
    **{"state": str, "is_waiting": bool, "is_over": bool, "reason": str, "nodes": str},
    **{"exit_code": (int, NoneType)},
    **dict.fromkeys(("start", "ended", "submitted"), (int, float, NoneType)),
    **{"user": (int, NoneType), "directory": str},
}


@dataclass
class _Known:
    """The content of the cache; times are in seconds since the epoch."""

    # When Slurm answered last, how long that took, and the jobs of that query.
    asked: float = 0.0
    took: float = 0.0
    about: frozenset[str] = frozenset()
    # When Slurm said that it keeps no accounts; 0 for never.
    no_accounting: float = 0.0
    # Job id -> when its state was known, and the state.
    jobs: dict[str, tuple[float, JobState]] = field(default_factory=dict)

    def of(self, job_ids: set[str]) -> dict[str, JobState]:
        """Return the cached states of jobs; of a whole array, those of its elements too."""
        return {
            job_id: job
            for job_id, (_, job) in self.jobs.items()
            if job_id in job_ids or job_id.partition("_")[0] in job_ids
        }

    def is_settled(self, job_id: str, now: float) -> bool:
        """Check whether accounting has reported a job's end lately (squeue has no exit code)."""
        when, job = self.jobs.get(job_id, (0.0, None))
        return bool(
            job and job.is_over and job.exit_code is not None and 0 <= now - when < ENDS_HOLD
        )


# Slurm's answers, and whether the cluster keeps accounts.
_Told = tuple[Answers, bool]


@dataclass
class LastAnswers:
    """Asks Slurm as `jobs.ask` does; while it is silent, jobs have their last state.

    These have the time of that in ``known_at``, whichever command of this user on this host was
    given the answer.
    """

    clock: Callable[[], float] = time.time
    """Returns the seconds since the epoch."""
    spares: bool = False
    """Ask Slurm at a rate that it can bear: a question that was answered a moment ago, here or by
    another process, gets the same answer."""
    follows: bool = False
    """Never wait for Slurm for more than seconds, and leave the question open for the next call,
    however slow Slurm is."""
    _open: tuple[set[str], BackgroundCall[_Told]] | None = None
    # The limit of a follower's next question, when that is due, and what is said until then.
    _limit: float = patience.READER
    _due: float = 0.0
    _silent: Answers | None = None

    @cached_property
    def path(self) -> Path:
        """The file of the answers, which a command that asks Slurm nothing does not look for."""
        return default_path()

    def ask(self, refs: Iterable[JobRef]) -> Answers:
        """Return the states of jobs, as `jobs.ask` does."""
        return jobs.ask(refs, self._about)

    def queued(self, job_ids: set[str]) -> Answers:
        """Ask the controller alone about jobs; those that it has forgotten are not in the answer.

        While it is silent, jobs have their last known state.
        """
        answers = Answers()
        if not job_ids:
            return answers
        jobs.ask_slurm(job_ids, answers, settled=job_ids, accounting=False)
        known, now = _read(self.path), self.clock()
        before = known.of(job_ids)
        if answers.problem is not None:
            for job_id, job in before.items():
                answers.jobs[job_id] = replace(job, known_at=known.jobs[job_id][0])
            return answers
        alive = {name: (now, job) for name, job in answers.jobs.items() if job.is_alive}
        gone = {name for name, job in before.items() if job.is_alive and name not in alive}
        if alive or gone:
            after = {name: told for name, told in known.jobs.items() if name not in gone}
            _write(self.path, replace(known, jobs=_newest({**after, **alive})))
        return answers

    def ask_more(self, queued: Answers, refs: Iterable[JobRef]) -> Answers:
        """Return the states of jobs, as `ask` does, about which the controller was just asked.

        It is asked again only about those that it did not say to be alive; not if it was silent.
        """

        def about(job_ids: set[str], answers: Answers) -> None:
            told = {one: job for one in job_ids if (job := queued.jobs.get(one)) is not None}
            if queued.problem is not None:
                answers.problem, answers.detail = queued.problem, queued.detail
            else:
                told = {one: job for one, job in told.items() if job.is_alive}
                if rest := job_ids - told.keys():
                    self._about(rest, answers)
            answers.jobs.update(told)

        return jobs.ask(refs, about)

    def _about(self, job_ids: set[str], answers: Answers) -> None:
        known, now = _read(self.path), self.clock()
        pause = min(max(LEAST_PAUSE, PAUSES * known.took), MOST_PAUSE)
        if self.spares and 0 <= now - known.asked < pause and job_ids <= known.about:
            answers.jobs.update(known.of(job_ids))
            return
        settled = {job_id for job_id in job_ids if known.is_settled(job_id, now)}
        accounts = now - known.no_accounting >= NO_ACCOUNTS_HOLD

        def ask() -> _Told:
            found = Answers()
            keeps = jobs.ask_slurm(job_ids, found, settled=settled, accounting=accounts)
            return found, keeps

        fresh, keeps = self._followed(job_ids, ask) if self.follows else ask()
        answers.problem, answers.detail = fresh.problem, fresh.detail
        for job_id, job in known.of(job_ids).items():
            if job_id in settled and (job_id not in fresh.jobs or fresh.jobs[job_id].is_over):
                # squeue reports less of an end than accounting did.
                answers.jobs[job_id] = job
                fresh.jobs.pop(job_id, None)
            elif fresh.problem is not None:
                answers.jobs[job_id] = replace(job, known_at=known.jobs[job_id][0])
        answers.jobs.update(fresh.jobs)
        if fresh.problem is None:
            # What Slurm has forgotten is forgotten here too.
            asked = known.of(job_ids).keys() - settled
            after = {name: state for name, state in known.jobs.items() if name not in asked}
            after.update((name, (now, job)) for name, job in fresh.jobs.items())
            newest = _newest(after)
            refused = known.no_accounting if not accounts else 0.0 if keeps else now
            took = self.clock() - now
            _write(self.path, _Known(now, took, frozenset(job_ids), refused, newest))

    def _followed(self, job_ids: set[str], ask: Callable[[], _Told]) -> _Told:
        """Return the answer if it comes soon; a slow Slurm is given more time with each question.

        The time between two questions to a silent Slurm grows as well.
        """

        def patiently() -> _Told:
            with patience.reading(limit=self._limit):
                return ask()

        if self._open is None and self._silent is not None and time.monotonic() < self._due:
            return self._silent, True
        if self._open is None or not job_ids <= self._open[0]:
            self._open = (job_ids, BackgroundCall(patiently))
        call = self._open[1]
        if not call.wait(FIRST_LOOK if self._silent is None else LOOK):
            self._silent = Answers(problem=f"Slurm has not answered for {call.took:.0f} s")
            return self._silent, True
        self._open = None
        fresh, keeps = call.result()
        self._silent = None
        if fresh.problem is None:
            self._limit = patience.READER
        elif not fresh.problem.startswith("slurmdbd"):
            self._silent = Answers(problem=fresh.problem, detail=fresh.detail)
            self._due = time.monotonic() + self._limit
            self._limit = min(2 * self._limit, client.TIMEOUT)
        return fresh, keeps


def ask(refs: Iterable[JobRef]) -> Answers:
    """Return the states of jobs as `LastAnswers` does, for a command that asks once."""
    return LastAnswers().ask(refs)


def default_path() -> Path:
    """Return this user's cache file for the cluster that commands reach from this host."""
    import hashlib  # not for commands that ask nothing

    named = os.environ.get("SLURM_CONF", "")
    reach = "\n".join([os.uname().nodename, named, client.location()])
    return user_cache() / f"slurm-{hashlib.sha256(reach.encode()).hexdigest()[:12]}.json"


def _newest(jobs: dict[str, tuple[float, JobState]]) -> dict[str, tuple[float, JobState]]:
    """Return as many jobs as the cache holds, those whose state was known last."""
    return dict(sorted(jobs.items(), key=lambda pair: -pair[1][0])[:MOST_JOBS])


def _read(path: Path) -> _Known:
    try:
        data = files.read_json(path)
        return _Known(
            float(data["asked"]),
            float(data["took"]),
            frozenset(data["about"]),
            float(data["no_accounting"]),
            {
                name: (float(when), _from_fields(name, fields))
                for name, (when, fields) in data["jobs"].items()
                if TIME.accepts(when)
            },
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return _Known()


def _write(path: Path, known: _Known) -> None:
    """Write the cache; ignore errors, since it is optional."""
    fields_of = attrgetter(*_FIELDS)
    data = {
        **{name: getattr(known, name) for name in ("asked", "took", "no_accounting")},
        "about": sorted(known.about),
        "jobs": {name: [when, fields_of(job)] for name, (when, job) in known.jobs.items()},
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, json.dumps(data, separators=(",", ":")).encode())


def _from_fields(job_id: str, fields: list[Any]) -> JobState:
    found = dict(zip(_FIELDS, fields, strict=True))
    if not all(map(isinstance, fields, _FIELDS.values())):
        raise TypeError(f"the state of job {job_id} is not one")
    # These follow from the state.
    del found["is_waiting"], found["is_over"]
    return JobState(job_id, **found)
