"""What is running or queued in all experiments under a root; what is over is not read.

Journals and one question to the controller tell which runs may be at work, so that of ten thousand
finished ones no file is opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hpcrun.errors import BrokenFile
from hpcrun.observe.read.journal_words import JournalWords
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.jobs import Answers
from hpcrun.observe.status.slurm_cache import LastAnswers
from hpcrun.observe.status.status import RunStatus, statuses
from hpcrun.state.layout import ExperimentPaths, RunPaths
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
    known: dict[ExperimentPaths, JournalWords] = {}
    for experiment in (one for one in others if one not in chain):
        words = finder.words()[experiment]
        if isinstance(words, BrokenFile):
            finder.warn(f"passed over: {words.message}")
        else:
            known[experiment] = words
    queued = last.queued({job for words in known.values() for job in words.jobs.values()})
    stay: dict[Path, set[int]] = {}
    for run in map(RunPaths, kept):
        stay.setdefault(run.experiment.directory, set()).add(run.number)
    selected: list[Selected] = []
    for experiment, words in known.items():
        numbers = {*words.without, *stay.get(experiment.directory, ())}
        numbers |= {int(run) for run, job in words.jobs.items() if _may_be_active(job, queued)}
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
    shown = Counter(one.experiment for one in overview.selected)
    for experiment, words in known.items():
        overview.runs += words.count - shown[experiment]
        overview.experiments += words.count > shown[experiment]
    return overview


def _may_be_active(job: str, queued: Answers) -> bool:
    """Check whether a job may be at work, whose run's files then tell."""
    state = queued.jobs.get(job)
    return queued.problem is not None if state is None else not state.is_over
