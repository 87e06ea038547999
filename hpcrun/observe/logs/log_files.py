"""The log files of selected runs, by stream, rank, node and attempt."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.errors import BrokenFile, UsageError
from hpcrun.fields import TIME, WHOLE
from hpcrun.observe.logs.tail import SizeMark, Source
from hpcrun.observe.read.selection import Selected, have_begun
from hpcrun.shared_dataclass import dataclass
from hpcrun.slurm.hostlist import parse_ranges, write_out
from hpcrun.state import files, ledger
from hpcrun.state.layout import AttemptPaths, SubmissionPaths
from hpcrun.state.ledger import Attempt
from hpcrun.text import listed, parse_age, range_text, shortened, whole_number

# More than any run has: sets of them fit into memory whatever a plan says.
MOST_RANKS = 1 << 20
_MOST_BYTES = 1 << 25


@dataclass(frozen=True)
class LogChoice:
    """A choice among the logs of runs."""

    streams: str = "worker"
    """``worker``, ``agent``, ``batch``, ``other`` (trackers, conversions, ranks that waited) or
    ``all``. A run without worker output (when following: once it is over) shows the agents' and the
    batch step's logs instead."""
    ranks: frozenset[int] | None = None
    """Only these ranks; None for all."""
    node: str | None = None
    """Only this node, by name or by its index in the attempt; None for all."""
    attempt: int | str | None = None
    """A number, None for the newest (when following also those that come after), or ``all``."""


NEWEST = LogChoice()


def sources(selected: Sequence[Selected], choice: LogChoice = NEWEST) -> list[Source]:
    """Return the log files that exist now, by run, attempt and rank."""
    found: list[Source] = []
    for one, is_there in zip(selected, have_begun(selected), strict=True):
        attempts = one.paths.attempts() if is_there else []
        if choice.attempt is None:
            attempts = attempts[-1:]
        elif choice.attempt != "all":
            attempts = [attempt for attempt in attempts if attempt.number == choice.attempt]
        logs = RunLogs(one, choice)
        is_there = bool(attempts) or choice.attempt in (None, "all")
        found += logs.of(attempts, is_silent=is_there and logs.is_silent(attempts))
    return found


def check(selected: Sequence[Selected], choice: LogChoice, *, follow: bool = False) -> str | None:
    """Raise UsageError if none of the runs has the attempt, the node or a rank of a choice.

    Returns which of the ranks none has. A run that has not begun has the ranks of its plan; one
    that is followed, and has not finished, may come to other attempts.
    """
    if (choice.attempt in (None, "all")) and choice.node is None and choice.ranks is None:
        return None
    lacking: list[str] = []
    most = 0
    for one, is_there in zip(selected, have_begun(selected), strict=True):
        found, ranks = _lacking(one, choice, is_there, follow)
        if found is None and choice.ranks is None:
            return None
        lacking += [found] if found else []
        most = max(most, ranks)
    if len(lacking) == len(selected):
        more = f" (and so of {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise UsageError(f"{lacking[0]}{more}", hint="leave the option out to see all of it")
    over = sorted(rank for rank in choice.ranks or () if rank >= most)
    return f"no rank {range_text(over)}: there are {range_text(range(most))}" if over else None


def _lacking(
    one: Selected, choice: LogChoice, is_there: bool, follow: bool
) -> tuple[str | None, int]:
    """Return the part of a choice that a run lacks, and the number of its ranks."""
    attempts = {each.number: each for each in one.paths.attempts()} if is_there else {}
    number = choice.attempt if isinstance(choice.attempt, int) else max(attempts, default=0)
    logs = RunLogs(one, choice)
    numbers = [*attempts] if choice.attempt == "all" and attempts else [number]
    nodes = [node for each in numbers for node in logs.seats(each)[0]]
    ranks = max(logs.seats(each)[1] for each in numbers)
    for each in numbers if choice.ranks else ():
        written = attempts[each].rank_logs() if each in attempts else {}
        ranks = max(ranks, *(rank + 1 for rank in written), 0)
    follow = follow and logs.goes_on
    found = None
    if isinstance(choice.attempt, int) and number not in attempts and not follow:
        there = f"has {range_text(attempts)}" if attempts else "has not begun"
        found = f"no attempt {number}: {one.name} {there}"
    elif choice.node and not nodes and not attempts and not follow:
        found = f"no node {choice.node!r}: {one.name} has not begun"
    elif choice.node and nodes and choice.node not in (*nodes, *map(str, range(len(nodes)))):
        found = f"no node {choice.node!r}: {one.name} has {listed(nodes, 8)}"
    elif choice.ranks is not None and not any(rank < ranks for rank in choice.ranks):
        asked = range_text(choice.ranks)
        found = f"no rank {asked}: {one.name} has {range_text(range(ranks))}"
    return found, ranks


def parse_ranks(text: str) -> frozenset[int]:
    """``0,4-7`` -> {0, 4, 5, 6, 7}.

    Raises UsageError if it is not a list of ranks and ranges.
    """
    try:
        spans = parse_ranges(",".join(part.strip() for part in text.split(",")))
    except ValueError:
        spans = [range(0)]
    shown = shortened(text, 200)
    if not all(spans):
        raise UsageError(f"--rank {shown!r} is not a list of ranks such as 0,4-7")
    try:
        return frozenset(write_out(spans))
    except ValueError as error:
        raise UsageError(f"--rank {shown!r}: {error}") from None


def ranks_of_role(
    selected: Sequence[Selected], role: str, among: frozenset[int] | None
) -> frozenset[int]:
    """Return the ranks of a role, as those of the run are numbered; ``among`` are the role's own.

    Raises UsageError if a run has no such role, or the runs number its ranks differently.
    """
    found: set[frozenset[int]] = set()
    for one in selected:
        plans = {each.name: each for each in one.run.role_plans}
        if role not in plans:
            there = listed([*plans], 8) if plans else "none: its ranks are all alike"
            raise UsageError(f"no role {shortened(role, 200)!r}: {one.name} has {there}")
        first, size = plans[role].first_rank, min(plans[role].size, MOST_RANKS)
        own = range(size) if among is None else [rank for rank in among if rank < size]
        if not own:
            asked = range_text(among or ())
            raise UsageError(f"no rank {asked} of {role}: {one.name} has {range_text(range(size))}")
        found.add(frozenset(first + rank for rank in own))
    if len(found) > 1:
        hint = "choose runs of one shape, or the ranks with --rank"
        raise UsageError(f"the runs number the ranks of {role} differently", hint=hint)
    return found.pop()


class RunLogs:
    """The log files of one run; reads its ledger once, and only where it is needed."""

    def __init__(self, one: Selected, choice: LogChoice = NEWEST) -> None:
        self._one, self._choice = one, choice
        self._source = partial(Source, experiment=one.experiment.name, run=one.run.number)
        self._attempts: list[Attempt] | None = None

    @property
    def _ledger(self) -> list[Attempt]:
        # No `cached_property`: before Python 3.12 one lock holds up those of all runs.
        if self._attempts is None:
            # Its logs can be read all the same.
            self._attempts = []
            with contextlib.suppress(BrokenFile):
                self._attempts = ledger.read(self._one.paths)
        return self._attempts

    @property
    def goes_on(self) -> bool:
        """The run has neither finished nor was cancelled, as far as is known."""
        with contextlib.suppress(BrokenFile):
            return ledger.intent(self._one.paths) is None
        return True

    def is_silent(self, attempts: Sequence[AttemptPaths]) -> bool:
        """Check whether workers are wanted, and those of the last attempt have written nothing."""
        if self._choice.streams != "worker":
            return False
        for attempt in attempts[-1:]:
            for path in attempt.rank_logs().values():
                with contextlib.suppress(OSError):
                    # Opened: a size that is known without that may be of before it wrote.
                    if files.read_tail(path, 1):
                        return False
        return True

    def of(self, attempts: Sequence[AttemptPaths], *, is_silent: bool) -> list[Source]:
        """Return the log files of attempts, oldest first.

        ``is_silent`` adds the agents' logs of the last attempt and the batch step's.
        """
        wanted = {self._choice.streams, *(("agent", "batch") if is_silent else ())}
        found: list[Iterable[Source]] = []
        for stream, logs, some in (
            ("worker", self._workers, attempts),
            ("agent", self._agents, attempts[-1:] if is_silent else attempts),
            ("other", self._others, attempts),
        ):
            if wanted & {stream, "all"}:
                found += map(logs, some)
        if wanted & {"batch", "all"}:
            found.append(self._batch(attempts))
        # Attempts of one start of a job share their agents' and trackers' logs.
        once: dict[Path, Source] = {}
        for source in chain.from_iterable(found):
            once.setdefault(source.path, source)
        return list(once.values())

    def seats(self, attempt: int) -> tuple[list[str], int]:
        """Return an attempt's nodes, in the order of NODE_RANK, and its world size."""
        planned = min(self._one.run.world_size, MOST_RANKS)
        for found in self._ledger:
            if found.number == attempt and found.nodes:
                ranks = int(found.started.get("world_size") or planned)
                return found.nodes, min(ranks, MOST_RANKS)
        return [], planned

    def _workers(self, attempt: AttemptPaths) -> Iterator[Source]:
        allowed = self._choice.ranks
        if self._choice.node is not None:
            on_node = self._ranks_of_node(attempt)
            allowed = on_node if allowed is None else allowed & on_node
        for rank, path in attempt.rank_logs().items():
            if allowed is None or rank in allowed:
                yield self._source(path, attempt=attempt.number, stream="worker", rank=rank)

    def _agents(self, attempt: AttemptPaths) -> Iterator[Source]:
        pattern = attempt.agent_log("*").name
        before, _, after = pattern.partition("*")
        wanted = self._node(attempt)
        for path in sorted(self._first_of_start(attempt).directory.glob(pattern)):
            node = path.name[len(before) : len(path.name) - len(after)]
            if wanted in (None, node):
                yield self._source(path, attempt=attempt.number, stream="agent", node=node)

    def _others(self, attempt: AttemptPaths) -> Iterator[Source]:
        """Yield the logs of trackers, of a checkpoint's conversion, and of ranks that waited."""
        own = (attempt.conversion_log, attempt.warm_log)
        for path in (*filter(Path.is_file, own), *self._first_of_start(attempt).tracker_logs()):
            yield self._source(path, attempt=attempt.number, stream=path.stem)

    def _batch(self, attempts: Sequence[AttemptPaths]) -> Iterator[Source]:
        """Yield the log of the newest job, or those of the jobs that attempts were part of."""
        newest, number = self._one.submission, self._one.run.number
        jobs: dict[tuple[int, str], SubmissionPaths] = {}
        if self._choice.attempt is not None:
            wanted = {one.number for one in attempts}
            for one in self._ledger:
                if one.number in wanted and isinstance(one.submission, int) and one.job_id:
                    paths = self._one.experiment.submission(one.submission)
                    jobs.setdefault((one.submission, one.job_id), paths)
        if newest is not None and newest.job_id and not isinstance(self._choice.attempt, int):
            jobs.setdefault((newest.submission, newest.job_id), newest.paths)
        for (submission, job), paths in jobs.items():
            here = job.startswith("local:")
            if newest is not None and newest.submission == submission:
                here = here or newest.foreground or newest.is_packed
            path = paths.local_log(number) if here else paths.batch_log(job)
            if shared_look.is_there(path) and os.path.isfile(path):  # noqa: PTH113 - `is_file` may raise
                yield self._source(path, attempt=None, stream="batch")

    def _first_of_start(self, attempt: AttemptPaths) -> AttemptPaths:
        """Return the attempt into whose directory this one's agents and trackers write."""
        return self._one.paths.attempt(ledger.first_of_start(self._ledger, attempt.number))

    def _node(self, attempt: AttemptPaths) -> str | None:
        """Return the name of the node that is wanted; None for all."""
        node = self._choice.node or None
        if node is None or (index := whole_number(node)) is None:
            return node
        names, _ = self.seats(attempt.number)
        return names[index] if index < len(names) else node

    def _ranks_of_node(self, attempt: AttemptPaths) -> frozenset[int]:
        names, ranks = self.seats(attempt.number)
        node = self._node(attempt)
        if node not in names:
            return frozenset()
        if self._one.run.role_plans:
            return self._ranks_of_roles(attempt.number, names, node)
        each = ranks // len(names)
        index = names.index(node)
        return frozenset(range(index * each, (index + 1) * each))

    def _ranks_of_roles(
        self, attempt: int, names: Sequence[str], node: str | None
    ) -> frozenset[int]:
        """Return the ranks that are on a node now, or were as they ended."""
        at = {rank: names[place] for rank, place in enumerate(self._one.run.places[:MOST_RANKS])}
        for found in self._ledger:
            for event in found.roles if found.number == attempt else ():
                at.update(dict.fromkeys(event["ranks"] if event.get("node") else (), event["node"]))
        return frozenset(rank for rank, place in at.items() if place == node)


def size_marks(source: Source) -> list[SizeMark]:
    """Return a log's recorded sizes, oldest first; empty unless it is a rank's."""
    if source.rank is None:
        return []
    rank = str(source.rank)
    return [
        SizeMark(when, sizes[rank])
        for when, sizes in _sizes_over_time(source.path.parent)
        if sizes.get(rank)
    ]


def marks_until_now(source: Source) -> list[SizeMark]:
    """Return the recorded sizes and, last, the size and the time of the last write of now."""
    try:
        found = os.stat(source.path)
    except OSError:
        return size_marks(source)
    now = SizeMark(found.st_mtime, found.st_size)
    return [*(mark for mark in size_marks(source) if mark.size < now.size), now]


def offset_since(source: Source, moment: float) -> int:
    """Return the offset of what was written at ``moment`` (seconds since the epoch) and later.

    Some lines may be older, by the seconds between two lines of the record: ten and more where
    there are hundreds of ranks. For a log without a record it is the beginning, or the end of one
    that has not been written to since then.
    """
    try:
        found = os.stat(source.path)
    except OSError:
        return 0
    if found.st_mtime < moment:
        return found.st_size
    return next((mark.size for mark in reversed(size_marks(source)) if mark.time <= moment), 0)


def parse_moment(text: str, now: float | None = None, option: str = "--since") -> float:
    """Return the time of ``90s``, ``10m``, ``2h``, ``1d``, ``2w`` ago, or of a local date and time.

    It is in seconds since the epoch. Raises UsageError if the text is neither.
    """
    if (seconds := parse_age(text)) is not None:
        return (time.time() if now is None else now) - seconds
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{option} {text!r} is neither so long ago nor a time",
            hint="write 90s, 10m, 2h, 1d or 2w, or 2026-11-22T14:30",
        ) from None


@lru_cache(maxsize=4)
def _sizes_over_time(directory: Path) -> list[tuple[float, dict[str, int]]]:
    found: list[tuple[float, dict[str, int]]] = []
    # A file that cannot be read tells no times.
    with contextlib.suppress(OSError):
        path = AttemptPaths(directory).log_sizes
        for line in files.read_lines(path, _MOST_BYTES):
            when: Any = line.get("time")
            sizes = line.get("sizes")
            if TIME.accepts(when) and isinstance(sizes, dict):
                whole = {rank: size for rank, size in sizes.items() if WHOLE.accepts(size)}
                found.append((float(when), whole))
        if found and (ahead := shared_look.clock_ahead(found[-1][0], path.stat().st_mtime)):
            # The logs' own times are the storage's, too.
            return [(when - ahead, sizes) for when, sizes in found]
    return found
