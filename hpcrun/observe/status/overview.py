"""What is running or queued in all experiments under a root; what is over is not read.

Journals and one question to the controller tell which runs may be at work, so that of ten thousand
finished ones no file is opened.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hpcrun import activity, shared_look
from hpcrun.errors import BrokenFile
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.jobs import Answers
from hpcrun.observe.status.slurm_cache import LastAnswers
from hpcrun.observe.status.status import RunStatus, statuses
from hpcrun.state import journal
from hpcrun.state.journal import Job
from hpcrun.state.layout import ExperimentPaths
from hpcrun.text import Say, plural

ACTIVE = frozenset(
    {
        run_state.WAITING,
        run_state.PENDING,
        run_state.RUNNING,
        run_state.RESTARTING,
        run_state.REQUEUED,
    }
)


@dataclass
class Overview:
    """Runs that are running or queued, then all of the newest experiment's."""

    selected: list[Selected] = field(default_factory=list)
    found: list[RunStatus] = field(default_factory=list)
    runs: int = 0
    experiments: int = 0
    """How many runs that are neither were left out, and of how many experiments."""

    @property
    def left_out(self) -> str | None:
        """One line on what was left out, and what shows it; None if nothing was."""
        if not self.runs:
            return None
        return (
            f"left out: {plural(self.runs, 'run', ',')} of {plural(self.experiments, 'experiment')}"
            ", neither running nor queued; `hpcrun status --all` shows all, `hpcrun list` a line "
            "of each experiment"
        )


def collect(
    finder: Finder,
    last: LastAnswers,
    warn: Say,
    *,
    everyone: bool = False,
    kept: Collection[Path] = (),
) -> Overview:
    """Return the overview of the caller's experiments, or of those of ``everyone``.

    ``kept`` are directories of runs that are shown whatever their state. Raises UsageError if there
    is no experiment.
    """
    *others, newest = finder.by_submission(everyone=everyone)
    whole = finder.with_chains(finder.runs(newest), ())
    chain = {one.experiment for one in whole}
    known = _last_words([one for one in others if one not in chain], finder.warn)
    queued = last.queued(_slurm_ids(known))
    selected: list[Selected] = []
    for experiment, jobs in known.items():
        numbers = {run for run, job in jobs.items() if _may_be_active(job, queued)}
        # A path of each run, of a hundred thousand, is made only where some are kept.
        numbers |= {run for run in jobs if kept and experiment.run(run).directory in kept}
        try:
            selected += finder.runs(experiment, numbers) if numbers else []
        except BrokenFile as error:
            finder.warn(f"passed over: {error.message}")
    count = len(selected)
    found = statuses([*selected, *whole], warn=warn, ask=partial(last.ask_more, queued))
    pairs = [
        (one, status)
        for place, (one, status) in enumerate(zip([*selected, *whole], found, strict=True))
        if place >= count or status.state in ACTIVE or one.paths.directory in kept
    ]
    overview = Overview([one for one, _ in pairs], [status for _, status in pairs])
    for experiment, jobs in known.items():
        shown = sum(one.experiment == experiment for one in overview.selected)
        overview.runs += len(jobs) - shown
        overview.experiments += len(jobs) > shown
    return overview


def _last_words(
    experiments: Collection[ExperimentPaths], warn: Say
) -> dict[ExperimentPaths, dict[int, Job]]:
    """Return what the journals say of the runs of each experiment that has some."""

    def look(one: ExperimentPaths) -> dict[int, Job] | BrokenFile:
        try:
            return journal.last_words(one)
        except BrokenFile as error:
            return error

    found = {}
    looks = shared_look.each(look, [*experiments])
    for one, words in zip(activity.counted([*experiments], "reading journals"), looks, strict=True):
        if isinstance(words, BrokenFile):
            warn(f"passed over: {words.message}")
        else:
            found[one] = words
    return found


def _slurm_ids(known: dict[ExperimentPaths, dict[int, Job]]) -> set[str]:
    jobs = (job for each in known.values() for job in each.values())
    return {job.job_id for job in jobs if job.job_id is not None and not job.is_local}


def _may_be_active(job: Job, queued: Answers) -> bool:
    """Check whether a run may be at work, whose files then tell."""
    if job.event == journal.REFUSED or job.ended:
        return False
    if job.job_id is None or job.is_local:
        return True
    state = queued.jobs.get(job.job_id)
    return queued.problem is not None if state is None else not state.is_over
