"""Slurm's last answers, kept for the next question: asked seldom, and known while it is silent."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcrun.observe.status import jobs
from hpcrun.observe.status.jobs import Answers, Process
from hpcrun.observe.status.run_state import Job
from hpcrun.state import files

# Slurm is left alone for so many seconds, and for so many times what its last answer took.
LEAST_PAUSE, PAUSES, MOST_PAUSE = 1.0, 5.0, 30.0
# For which the end of a job that accounting has told is not asked for again, in seconds: only a
# requeue by hand takes it back, and squeue tells of that.
ENDS_HOLD = 600.0
# For which a cluster is taken to keep no accounts after it has said so.
NO_ACCOUNTS_HOLD = 3600.0
# Seconds that it is waited for where its last answer can be shown instead; twice as long each time
# that it was too short.
LEAST_PATIENCE, PATIENCES, MOST_PATIENCE = 3.0, 3.0, 60.0
MOST_JOBS = 50_000


@dataclass
class _Known:
    """What is on file.

    Attributes
    ----------
    asked
        When Slurm answered last, in seconds since the epoch.
    took
        How long that took, in seconds.
    about
        The jobs that it was asked about.
    no_accounting
        When it said that it keeps no accounts; 0 where it never did.
    patience
        Seconds that its next answer is waited for.
    jobs
        Job id -> where it stood, and when that was.
    """

    asked: float = 0.0
    took: float = 0.0
    about: frozenset[str] = frozenset()
    no_accounting: float = 0.0
    patience: float = LEAST_PATIENCE
    jobs: dict[str, tuple[float, Job]] = field(default_factory=dict)


class LastAnswers:
    """Asks Slurm as `hpcrun.observe.status.jobs.ask` does, but not more often than it can bear.

    A question that was answered a moment ago, here or by another process of this user on this host,
    gets the same answer. Where Slurm does not answer, each job is told as it was known last, with
    ``known_at``.

    Parameters
    ----------
    path
        The file; None for the user's own (under XDG_CACHE_HOME) for this cluster and host.
    clock
        Seconds since the epoch.
    """

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path or default_path()
        self._clock = clock

    def ask(self, processes: Iterable[Process]) -> Answers:
        """Where jobs stand; as `hpcrun.observe.status.jobs.ask`."""
        return jobs.ask(processes, self._about)

    def _about(self, job_ids: set[str], answers: Answers) -> None:
        known, now = _read(self._path), self._clock()
        pause = min(max(LEAST_PAUSE, PAUSES * known.took), MOST_PAUSE)
        if 0 <= now - known.asked < pause and job_ids <= known.about:
            answers.jobs.update(self._of(known, job_ids))
            return
        settled = {
            job_id
            for job_id in job_ids & known.jobs.keys()
            if _is_settled(*known.jobs[job_id], now)
        }
        accounts = now - known.no_accounting >= NO_ACCOUNTS_HOLD
        fresh = Answers()
        patience = known.patience if job_ids <= known.jobs.keys() else None
        keeps = jobs.ask_slurm(
            job_ids, fresh, settled=settled, accounting=accounts, patience=patience
        )
        answers.problem, answers.detail = fresh.problem, fresh.detail
        for job_id, job in self._of(known, job_ids).items():
            if job_id in settled and (job_id not in fresh.jobs or fresh.jobs[job_id].ended):
                # squeue tells less of an end than accounting did.
                answers.jobs[job_id] = job
                fresh.jobs.pop(job_id, None)
            elif fresh.problem is not None:
                answers.jobs[job_id] = replace(job, known_at=known.jobs[job_id][0])
        answers.jobs.update(fresh.jobs)
        if fresh.problem is None:
            # What Slurm has forgotten is forgotten here too.
            asked = self._of(known, job_ids).keys() - settled
            after = {name: told for name, told in known.jobs.items() if name not in asked}
            after.update((name, (now, job)) for name, job in fresh.jobs.items())
            newest = sorted(after.items(), key=lambda pair: -pair[1][0])[:MOST_JOBS]
            refused = known.no_accounting if not accounts else 0.0 if keeps else now
            took = self._clock() - now
            patience = min(max(LEAST_PATIENCE, PATIENCES * took), MOST_PATIENCE)
            about = frozenset(job_ids)
            _write(self._path, _Known(now, took, about, refused, patience, dict(newest)))
        elif known.jobs:
            patience = min(2 * known.patience, MOST_PATIENCE)
            _write(self._path, replace(known, patience=patience))

    def _of(self, known: _Known, job_ids: set[str]) -> dict[str, Job]:
        """What is on file of jobs; of a whole array its elements too."""
        return {
            job_id: job
            for job_id, (_, job) in known.jobs.items()
            if job_id in job_ids or job_id.partition("_")[0] in job_ids
        }


def _is_settled(told: float, job: Job, now: float) -> bool:
    # squeue tells no exit code.
    return job.ended and job.exit_code is not None and 0 <= now - told < ENDS_HOLD


def default_path() -> Path:
    """The file of this user for the cluster that its commands reach from this host."""
    reach = "\n".join(
        [
            os.uname().nodename,
            os.environ.get("SLURM_CONF", ""),
            os.environ.get("SLURM_CLUSTERS", ""),
            shutil.which("squeue") or "",
        ]
    )
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "hpcrun" / f"slurm-{hashlib.sha256(reach.encode()).hexdigest()[:12]}.json"


def _read(path: Path) -> _Known:
    try:
        data = json.loads(path.read_bytes())
        return _Known(
            float(data["asked"]),
            float(data["took"]),
            frozenset(data["about"]),
            float(data["no_accounting"]),
            float(data["patience"]),
            {name: (float(told), Job(*fields)) for name, (told, fields) in data["jobs"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Known()


def _write(path: Path, known: _Known) -> None:
    """A cache that cannot be written is none: the answer was given already."""
    data = {
        **{name: getattr(known, name) for name in ("asked", "took", "no_accounting", "patience")},
        "about": sorted(known.about),
        "jobs": {name: [told, [*vars(job).values()]] for name, (told, job) in known.jobs.items()},
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, json.dumps(data, separators=(",", ":")).encode())
