"""Discovery of the files of followed runs, and of when all runs are over.

::

    watch = Watch(selected)
    watch.show(Presenter(printer), sys.stdout.buffer)
    failed = watch.not_completed()
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from hpcrun import shared_look
from hpcrun.errors import BrokenFile
from hpcrun.observe.logs.follow import CHECK, Follower, Pace, pace_of
from hpcrun.observe.logs.log_files import MOST_RANKS, NEWEST, LogChoice, RunLogs
from hpcrun.observe.logs.log_places import LogPlaces
from hpcrun.observe.logs.render import Presenter
from hpcrun.observe.logs.tail import Source, Tail
from hpcrun.observe.read.selection import Finder, Selected, have_begun
from hpcrun.observe.status import run_state
from hpcrun.observe.status.jobs import Answers, JobRef
from hpcrun.observe.status.slurm_cache import LastAnswers
from hpcrun.observe.status.status import Ask, RunStatus, deciding_job, statuses
from hpcrun.state.journal import SUBMITTED
from hpcrun.state.layout import ExperimentPaths
from hpcrun.text import Say, age

# Seconds of silence after which a run is over: this host may not see its files sooner.
UNKNOWN_FOR = shared_look.SEEN_WITHIN
# Seconds between two looks at later submissions, while a run is not submitted yet.
RENEW = 10.0
FAILURES = 5
# Seconds between two looks at a log of which the user is told.
LONG = 30.0
LAST_WORDS = 5.0


@dataclass(eq=False)
class _Run:
    """A followed run; times are monotonic."""

    selected: Selected
    # Attempts: the oldest followed, the newest whose ranks' logs were all found, the newest.
    first: int = 0
    full: int = 0
    newest: int = 0
    # The job that decides; None until it was read.
    job: JobRef | None = None
    unknown_since: float | None = None
    status: RunStatus | None = None
    ended: float | None = None
    # Nothing more is expected of its attempts.
    closed: bool = False
    renewed: float = float("-inf")
    failed_before: bool = False
    ledger_size: int = 0
    looked: float = 0.0
    # Attempt -> world size, of those that were there at first.
    sizes: dict[int, int] = field(default_factory=dict)

    @property
    def is_submitted(self) -> bool:
        submission = self.selected.submission
        return submission is not None and submission.event == SUBMITTED


@dataclass(eq=False)
class Watch:
    """Finds the log files of runs as they appear, and asks the cluster which runs are over.

    A run whose state is unknown, or that was never submitted, counts as over after half a minute.
    """

    selected: InitVar[Sequence[Selected]]
    choice: LogChoice = NEWEST
    _: KW_ONLY
    ask: Ask = field(default_factory=lambda: LastAnswers(follows=True).ask)
    """Asks the cluster; called once a question, whatever the number of runs."""
    warn: Say = lambda message: None
    """Takes a message once the cluster does not answer, and once it does again."""
    pace: Pace | None = None
    """By default as the storage of the runs needs it."""
    after: Mapping[Path, int] = field(default_factory=dict)
    """A run's directory -> its last attempt that is not shown."""
    is_over: Callable[[], bool] | None = None
    """Returns True once all runs are over, where the caller knows and the cluster is not asked."""
    places: LogPlaces | None = None
    """Where the reader is, if it is to be told."""

    def __post_init__(self, selected: Sequence[Selected]) -> None:
        self._shown = self.places.attempts if self.places else {}
        self._pace = self.pace or pace_of(one.experiment.directory for one in selected)
        paths = {one.paths.directory: one for one in selected}
        self._runs = {
            path: _Run(one, first=self._shown.get(path, self.after.get(path, -1) + 1))
            for path, one in paths.items()
        }
        self._asked_for = list(self._runs.values())
        self._not_begun = dict(self._runs)
        self._pressing: deque[_Run] = deque()
        self._turns: deque[_Run] = deque()
        self._just_ended: deque[_Run] = deque()
        self._came_back: deque[_Run] = deque()
        self._looked: float | None = None
        self._renew_at = time.monotonic() + RENEW
        self._failures = 0
        self._ledgers = 0
        self._is_silent = False

    def show(
        self,
        presenter: Presenter,
        out: BinaryIO,
        *,
        begin: Callable[[Tail], object] | None = None,
        check: float = CHECK,
        raw: bool = False,
    ) -> None:
        """Write the runs' lines as they come, until all runs are over (see `Follower`)."""

        places = self.places

        def idle() -> None:
            out.write(presenter.due())
            if places is not None and presenter.is_empty:
                out.write(places.moved_line())
            out.flush()

        def start(tail: Tail) -> None:
            if not (places is not None and places.begin(tail)) and begin is not None:
                begin(tail)

        follower = Follower(
            self.discover,
            self.over,
            ended=self.ended,
            begin=start,
            idle=idle,
            pace=self._pace,
            check=check,
            raw=raw,
            moved=places.moved if places is not None else lambda tail: None,
        )
        for block in follower.blocks():
            out.write(presenter.block(block))
        out.write(presenter.rest())
        out.flush()

    def discover(self, final: bool) -> Iterator[Source]:
        """Yield the sources of the runs whose turn it is: new runs first, so many a second."""
        now = time.monotonic()
        first = self._looked is None
        allowed = len(self._runs) if first else int(self._pace.runs * (now - (self._looked or 0.0)))
        self._looked, count = now, 0
        if self._not_begun:
            paths = sorted(self._not_begun)
            if self.choice.streams in ("worker", "agent"):
                there = have_begun([self._not_begun[path].selected for path in paths])
                paths = list(itertools.compress(paths, there))
            self._pressing.extend(self._not_begun.pop(path) for path in paths)
        while self._just_ended:
            yield from self._sources(self._just_ended.popleft(), final=True)
        if final:
            if self.is_over is not None:
                self._renew(self._runs.values())
            for run in self._runs.values():
                yield from self._sources(run, final=True)
            return
        for queue, most in (
            (self._pressing, allowed - min(len(self._turns), allowed // 2)),
            (self._turns, allowed),
        ):
            turn = min(len(queue), most, allowed)
            allowed -= turn
            runs = [queue.popleft() for _ in range(turn)]
            looks = shared_look.each(partial(self._sources, first=first), runs)
            for run, found in zip(runs, looks, strict=True):
                count += len(found)
                yield from found
                (self._turns if run.full or run.closed else self._pressing).append(run)
        if first:
            self._tell_of_turns(count)

    def _tell_of_turns(self, count: int) -> None:
        """Tell how long a line may go unseen, where there are more logs than looks at them."""
        quiet = count / self._pace.cold_looks
        if quiet > LONG:
            busy = age(max(count / self._pace.hot_looks, self._pace.interval))
            self.warn(
                f"{count:,} logs, to spare the storage, are looked at by turns: one that grows "
                f"every {busy}, a quiet one every {age(quiet)}; lines of fewer runs, or of fewer "
                "ranks (-r 0), come sooner"
            )

    def over(self) -> bool:
        """Check whether all runs are over, with one query of the cluster.

        A run's end is read once the cluster says that its job is over, or knows no such job. Raises
        OSError if the storage could not be read several times in a row.
        """
        if self.is_over is not None:
            return self.is_over()
        try:
            self._ask_for_ends()
            self._failures = 0
        except (OSError, BrokenFile):
            self._failures += 1
            if self._failures > FAILURES:
                raise
        if self._asked_for or self._came_back:
            return False
        last = max((run.ended or 0.0 for run in self._runs.values()), default=0.0)
        # Other logs than the ranks' are written until the job's last moment.
        return self.choice.streams == "worker" or time.monotonic() - last > LAST_WORDS

    def _ask_for_ends(self) -> None:
        while self._came_back:
            self._asked_for.append(self._came_back.popleft())
        self._ledgers = self._pace.ledgers
        # If there are more ledgers than that, those looked at longest ago come first.
        self._asked_for.sort(key=lambda run: run.looked)
        now = time.monotonic()
        if now >= self._renew_at:
            self._renew_at = now + RENEW
            self._renew([run for run in self._asked_for if not run.is_submitted])

        def look(run: _Run) -> None:
            run.ledger_size = _size(run.selected.paths.ledger)
            run.job = deciding_job(run.selected)

        for _ in shared_look.each(look, [run for run in self._asked_for if run.job is None]):
            pass
        answers = self.ask([run.job for run in self._asked_for if run.job])
        if self._is_silent != (answers.problem is not None):
            self._is_silent = not self._is_silent
            unknown = f"{answers.problem}: whether runs are over is known only from disk"
            self.warn(unknown if self._is_silent else "Slurm answers again")
        doubtful = [run for run in self._asked_for if self._is_doubtful(run, answers)]
        self._renew([run for run in doubtful if now - run.renewed >= RENEW])
        found = statuses([run.selected for run in doubtful], ask=lambda _: answers, values=False)
        for run, status in zip(doubtful, found, strict=True):
            job = answers.state_of(run.job) if run.job else None
            run.job = None
            run.status = status
            is_unknown = status.state == run_state.UNKNOWN and answers.problem is None
            if is_unknown or status.state == run_state.PLANNED:
                run.unknown_since = run.unknown_since or now
                is_over = now - run.unknown_since >= UNKNOWN_FOR
            else:
                run.unknown_since = None
                is_over = status.over
            # Between the end of an attempt and the decision about it, a run looks failed.
            may_go_on = status.state == run_state.FAILED and job is not None and job.is_alive
            if is_over and (run.failed_before or not may_go_on):
                run.ended = now
                self._just_ended.append(run)
            run.failed_before = may_go_on
        self._asked_for = [run for run in self._asked_for if run.ended is None]

    def _renew(self, runs: Iterable[_Run]) -> None:
        """Select these runs again, to see later submissions."""
        by_experiment: dict[ExperimentPaths, list[_Run]] = {}
        for run in runs:
            by_experiment.setdefault(run.selected.experiment, []).append(run)
        for experiment, some in by_experiment.items():
            numbers = [run.selected.run.number for run in some]
            again = Finder(experiment.root).runs(experiment, numbers)
            found = {one.run.number: one for one in again}
            for run in some:
                run.renewed = time.monotonic()
                run.selected = found.get(run.selected.run.number, run.selected)

    def _is_doubtful(self, run: _Run, answers: Answers) -> bool:
        """Check whether a run may be over: its job does not live, or its ledger has grown."""
        if run.job is None:
            return True
        job = answers.state_of(run.job)
        is_silent = answers.silence(run.job.job_id) is not None
        if (job is None or not job.is_alive) and not is_silent:
            return True
        if (job is not None and job.is_waiting and not is_silent) or self._ledgers <= 0:
            return False
        self._ledgers -= 1
        run.looked = time.monotonic()
        size = _size(run.selected.paths.ledger)
        grown, run.ledger_size = size != run.ledger_size, size
        return grown

    def ended(self, source: Source) -> bool:
        """Check whether the run of a source has been over for a while, and writes no more."""
        run = self._runs.get(source.run_key)
        if run is None or run.ended is None:
            return False
        return time.monotonic() - run.ended > LAST_WORDS

    def ranks(self, source: Source) -> frozenset[int]:
        """Return the wanted ranks of a source's run."""
        run = self._runs.get(source.run_key)
        if run is None:
            return frozenset()
        attempt = source.attempt or 0
        size = run.sizes.get(attempt) or RunLogs(run.selected).seats(attempt)[1]
        return self._ranks_of(run) & frozenset(range(size))

    def not_completed(self) -> list[RunStatus]:
        """Return the runs that have not completed, as far as their states are known."""
        found = [run.status for run in self._runs.values()]
        return [one for one in found if one is not None and one.state not in run_state.GOOD_ENDS]

    def _sources(self, run: _Run, *, final: bool = False, first: bool = False) -> list[Source]:
        """Return a run's sources; none while its files cannot be read."""
        try:
            return self._files(run, final=final, first=first)
        except (OSError, BrokenFile):
            return []

    def _files(self, run: _Run, *, final: bool, first: bool) -> list[Source]:
        selected, choice = run.selected, self.choice
        attempts = selected.paths.attempts()
        newest = attempts[-1].number if attempts else 0
        if run.closed:
            if newest <= run.newest or run.ended is None:
                return []
            # Somebody requeued it, or submitted it again.
            run.closed, run.ended = False, None
            self._renew([run])
            self._came_back.append(run)
        run.newest = newest
        if isinstance(choice.attempt, int):
            attempts = [one for one in attempts if one.number == choice.attempt]
        elif first and choice.attempt is None and selected.paths.directory not in self._shown:
            run.first = newest
        if newest == run.full and newest and not final:
            return []
        logs = RunLogs(selected, choice)
        is_silent = final and logs.is_silent(attempts)
        attempts = [one for one in attempts if one.number >= run.first]
        found = logs.of(attempts, is_silent=is_silent)
        if first and found:
            # Of many runs at once; `ranks` is asked for one after the other.
            run.sizes[newest] = logs.seats(newest)[1]
        if choice.attempt is None or choice.attempt == "all":
            # Attempts before the newest create no more files.
            run.first = max(run.first, newest)
        ranks = [one for one in found if one.attempt == newest and one.rank is not None]
        if choice.streams == "worker" and len(ranks) >= len(self._ranks_of(run)):
            run.full = newest
        run.closed = final
        return found

    def _ranks_of(self, run: _Run) -> frozenset[int]:
        ranks = frozenset(range(min(run.selected.run.world_size, MOST_RANKS)))
        return ranks if self.choice.ranks is None else ranks & self.choice.ranks


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
