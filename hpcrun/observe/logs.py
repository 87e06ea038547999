"""Which log files belong to selected runs, and how their lines are told apart.

To follow runs from another command::

    for line in logs.follow(selected, over=logs.Over(selected)).lines():
        output(printer.format(line))
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hpcrun import ledger
from hpcrun.errors import UsageError
from hpcrun.layout import AttemptPaths
from hpcrun.observe import jobs, state
from hpcrun.observe.follow import Follower, Line, Source
from hpcrun.observe.status import Ask, statuses
from hpcrun.observe.where import Selected

STREAMS = ("worker", "agent", "batch", "all")
UNKNOWN_FOR = 30.0

_COLORS = ("36", "33", "35", "32", "34", "31", "96", "93", "95", "92", "94", "91")


@dataclass(frozen=True)
class Choice:
    """Which of a run's logs are wanted.

    Attributes
    ----------
    streams
        ``worker``, ``agent``, ``batch`` or ``all``. Of a run that has no worker output, and (when
        following) is over, the agents' and the batch step's logs are given instead.
    ranks
        Only these ranks; None for all.
    node
        Only this node, by name or by its index in the attempt; None for all.
    attempt
        A number, None for the newest (when following also those that come after), or ``all``.
    """

    streams: str = "worker"
    ranks: frozenset[int] | None = None
    node: str | None = None
    attempt: int | str | None = None


def sources(
    selected: Sequence[Selected], choice: Choice = Choice(), *, fallback: bool = True
) -> list[Source]:
    """The log files that exist now, by run, attempt and rank.

    Parameters
    ----------
    fallback
        Give the agents' and batch step's logs of runs without any worker output.
    """
    found: list[Source] = []
    begun: dict[str, set[str]] = {}
    for one in selected:
        runs = one.paths.directory.parent
        if str(runs) not in begun:
            begun[str(runs)] = {path.name for path in runs.iterdir()} if runs.is_dir() else set()
        exists = one.paths.directory.name in begun[str(runs)]
        found += _of_run(one, choice, fallback, exists)
    return found


def follow(
    selected: Sequence[Selected],
    choice: Choice = Choice(),
    *,
    over: Callable[[], bool] = lambda: False,
    tail: int | None = None,
    idle: Callable[[], object] = lambda: None,
) -> Follower:
    """A follower of runs, of those that have not begun too.

    Parameters
    ----------
    over
        Whether nothing more will be written, such as `Over`.
    tail
        Begin with so many lines of what exists at the start; None for all.
    idle
        Called when all lines there are have been given: the time to flush.
    """
    newest = {one.paths.directory: _newest(one) for one in selected}

    def discover(final: bool) -> Iterable[Source]:
        for source in sources(selected, _from_now_on(choice), fallback=final):
            first = newest.get(source.path.parent.parent.parent)
            if choice.attempt is None and source.attempt and first and source.attempt < first:
                continue
            yield source

    return Follower(discover, over, tail=tail, idle=idle)


def read(
    selected: Sequence[Selected], choice: Choice = Choice(), *, tail: int | None = None
) -> Iterator[Line]:
    """The lines that are there now, file by file."""
    return Follower(lambda _final: sources(selected, choice), tail=tail, follow=False).lines()


class Over:
    """Whether nothing more will happen to any of the runs by itself; one query of Slurm a call.

    A run of which nothing is known, or that was never submitted, counts as over after it has stayed
    so for half a minute.
    """

    def __init__(self, selected: Sequence[Selected], ask: Ask = jobs.ask) -> None:
        self._left = list(selected)
        self._ask = ask
        self._unknown: dict[str, float] = {}

    def __call__(self) -> bool:
        found = statuses(self._left, ask=self._ask, values=False)
        now = time.monotonic()
        left = []
        for one, status in zip(self._left, found, strict=True):
            if status.state in (state.UNKNOWN, state.PLANNED):
                since = self._unknown.setdefault(status.name, now)
                if now - since < UNKNOWN_FOR:
                    left.append(one)
            elif not status.over:
                self._unknown.pop(status.name, None)
                left.append(one)
        self._left = left
        return not left


class Printer:
    """Gives each line the prefix that tells where it comes from.

    Parameters
    ----------
    selected
        What the lines may come from; decides which parts the prefix needs.
    color
        Colour the prefix, the same for a run each time (for a rank, where there is one run).
    as_json
        JSON lines ``{experiment, run, attempt, rank, stream, node, line}`` instead.
    """

    def __init__(
        self, selected: Sequence[Selected], *, color: bool = False, as_json: bool = False
    ) -> None:
        experiments = {one.experiment.directory for one in selected}
        self._experiment = len(experiments) > 1
        self._run = len(selected) > 1
        self._rank = any(one.run.world_size > 1 for one in selected)
        self._ranks_wide = len(str(max((one.run.world_size for one in selected), default=1) - 1))
        self._runs_wide = len(str(max((one.run.number for one in selected), default=0)))
        self._color, self._json = color, as_json

    def format(self, line: Line) -> str:
        """The line as it is printed, without its end."""
        source = line.source
        if self._json:
            fields = ("experiment", "run", "attempt", "rank", "stream", "node")
            record = {name: getattr(source, name) for name in fields}
            return json.dumps({**record, "line": line.text}, ensure_ascii=False)
        prefix = self.prefix(source)
        if not prefix:
            return line.text
        if not self._color:
            return f"{prefix} | {line.text}"
        reset = "\x1b[0m" if "\x1b" in line.text else ""
        color = _COLORS[(source.run if self._run else source.rank or 0) % len(_COLORS)]
        return f"\x1b[{color}m{prefix} |\x1b[0m {line.text}{reset}"

    def prefix(self, source: Source) -> str:
        """``NAME/3 r0``, as far as several are shown."""
        parts = []
        if self._experiment:
            parts.append(f"{source.experiment}/{source.run}")
        elif self._run:
            parts.append(f"{source.run:>{self._runs_wide}}")
        if source.stream == "worker":
            if self._rank:
                parts.append(f"r{source.rank:<{self._ranks_wide}}")
        else:
            parts.append(f"{source.stream} {source.node}" if source.node else source.stream)
        return " ".join(parts)


def parse_ranks(text: str) -> frozenset[int]:
    """``0,4-7`` -> {0, 4, 5, 6, 7}.

    Raises
    ------
    UsageError
        It is not a list of ranks and ranges.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"--rank {text!r} is not a list of ranks such as 0,4-7")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)


def _from_now_on(choice: Choice) -> Choice:
    if choice.attempt is not None:
        return choice
    return Choice(choice.streams, choice.ranks, choice.node, "all")


def _newest(selected: Selected) -> int | None:
    attempts = selected.paths.attempts()
    return attempts[-1].number if attempts else None


def _of_run(one: Selected, choice: Choice, fallback: bool, exists: bool) -> list[Source]:
    attempts = one.paths.attempts() if exists else []
    if choice.attempt is None:
        attempts = attempts[-1:]
    elif choice.attempt != "all":
        attempts = [attempt for attempt in attempts if attempt.number == choice.attempt]
    found: list[Source] = []
    if choice.streams in ("worker", "all"):
        for attempt in attempts:
            found += _workers(one, attempt, choice)
    silent = fallback and choice.streams == "worker" and not _has_output(attempts[-1:])
    if choice.streams in ("agent", "all") or silent:
        for attempt in attempts[-1:] if silent else attempts:
            found += _agents(one, attempt, choice)
    if choice.streams in ("batch", "all") or silent:
        found += _batch(one)
    return found


def _workers(one: Selected, attempt: AttemptPaths, choice: Choice) -> Iterator[Source]:
    allowed = choice.ranks
    if choice.node is not None:
        on_node = _ranks_of_node(one, attempt.number, choice.node)
        allowed = on_node if allowed is None else allowed & on_node
    for rank, path in attempt.rank_logs().items():
        if allowed is None or rank in allowed:
            yield Source(
                path, one.experiment.name, one.run.number, attempt.number, "worker", rank=rank
            )


def _agents(one: Selected, attempt: AttemptPaths, choice: Choice) -> Iterator[Source]:
    pattern = attempt.agent_log("*").name
    before, _, after = pattern.partition("*")
    # Agents that serve several attempts write into the first one's directory.
    writing = one.paths.attempt(ledger.first_of_start(one.paths, attempt.number))
    for path in sorted(writing.directory.glob(pattern)):
        node = path.name[len(before) : len(path.name) - len(after)]
        if choice.node in (None, node):
            yield Source(
                path, one.experiment.name, one.run.number, attempt.number, "agent", node=node
            )


def _batch(one: Selected) -> Iterator[Source]:
    submission = one.submission
    if submission is None or submission.job_id is None:
        return
    if submission.is_local or submission.foreground:
        path = submission.paths.local_log(one.run.number)
    else:
        path = submission.paths.batch_log(submission.job_id)
    if path.is_file():
        yield Source(path, one.experiment.name, one.run.number, None, "batch")


def _ranks_of_node(one: Selected, attempt: int, node: str) -> frozenset[int]:
    for found in ledger.read(one.paths):
        nodes = found.started.get("nodes")
        if found.number != attempt or not isinstance(nodes, list) or not nodes:
            continue
        if node in nodes:
            index = nodes.index(node)
        elif node.isdigit() and int(node) < len(nodes):
            index = int(node)
        else:
            continue
        each = int(found.started.get("world_size") or one.run.world_size) // len(nodes)
        return frozenset(range(index * each, (index + 1) * each))
    return frozenset()


def _has_output(attempts: Iterable[AttemptPaths]) -> bool:
    for attempt in attempts:
        for path in attempt.rank_logs().values():
            try:
                if path.stat().st_size > 0:
                    return True
            except OSError:
                continue
    return False
