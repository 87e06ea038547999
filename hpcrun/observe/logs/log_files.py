"""Which log files belong to selected runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrun.errors import UsageError
from hpcrun.observe.logs.tail import Source
from hpcrun.observe.read.selection import Selected, begun
from hpcrun.state import ledger
from hpcrun.state.layout import AttemptPaths


@dataclass(frozen=True)
class Choice:
    """Which of a run's logs are wanted.

    Attributes
    ----------
    streams
        ``worker``, ``agent``, ``batch``, ``other`` (trackers, conversions, ranks that waited) or
        ``all``. Of a run that has no worker output, and (when following) is over, the agents' and
        the batch step's logs are given instead.
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


NEWEST = Choice()


def sources(
    selected: Sequence[Selected], choice: Choice = NEWEST, *, fallback: bool = True
) -> list[Source]:
    """The log files that exist now, by run, attempt and rank.

    Parameters
    ----------
    fallback
        Give the agents' and batch step's logs of runs without any worker output.
    """
    found: list[Source] = []
    for one, is_there in zip(selected, begun(selected), strict=True):
        attempts = _chosen(one, choice) if is_there else []
        found += of_run(one, attempts, choice, fallback=fallback)
    return found


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


def of_run(
    one: Selected, attempts: Sequence[AttemptPaths], choice: Choice, *, fallback: bool
) -> list[Source]:
    """The log files of a run's attempts, oldest first."""
    found: list[Source] = []
    if choice.streams in ("worker", "all"):
        for attempt in attempts:
            found += _workers(one, attempt, choice)
    silent = fallback and choice.streams == "worker" and not _has_output(attempts[-1:])
    if choice.streams in ("agent", "all") or silent:
        for attempt in attempts[-1:] if silent else attempts:
            found += _agents(one, attempt, choice)
    if choice.streams in ("other", "all"):
        for attempt in attempts:
            found += _others(one, attempt)
    if choice.streams in ("batch", "all") or silent:
        found += _batch(one)
    # Attempts of one start of a job share their agents' and trackers' logs.
    once: dict[Path, Source] = {}
    for source in found:
        once.setdefault(source.path, source)
    return list(once.values())


def _chosen(one: Selected, choice: Choice) -> list[AttemptPaths]:
    attempts = one.paths.attempts()
    if choice.attempt is None:
        return attempts[-1:]
    if choice.attempt == "all":
        return attempts
    return [attempt for attempt in attempts if attempt.number == choice.attempt]


def _workers(one: Selected, attempt: AttemptPaths, choice: Choice) -> Iterator[Source]:
    allowed = choice.ranks
    if choice.node is not None:
        node = _name(one, attempt.number, choice.node)
        on_node = _ranks_of_node(one, attempt.number, node)
        allowed = on_node if allowed is None else allowed & on_node
    for rank, path in attempt.rank_logs().items():
        if allowed is None or rank in allowed:
            yield Source(
                path, one.experiment.name, one.run.number, attempt.number, "worker", rank=rank
            )


def _agents(one: Selected, attempt: AttemptPaths, choice: Choice) -> Iterator[Source]:
    pattern = attempt.agent_log("*").name
    before, _, after = pattern.partition("*")
    wanted = _name(one, attempt.number, choice.node) if choice.node else None
    for path in sorted(_first_of_start(one, attempt).directory.glob(pattern)):
        node = path.name[len(before) : len(path.name) - len(after)]
        if wanted in (None, node):
            yield Source(
                path, one.experiment.name, one.run.number, attempt.number, "agent", node=node
            )


def _others(one: Selected, attempt: AttemptPaths) -> Iterator[Source]:
    """What trackers, the conversion of a checkpoint, and ranks that waited have printed."""
    own = (attempt.conversion_log, attempt.warm_log)
    for path in (*filter(Path.is_file, own), *_first_of_start(one, attempt).tracker_logs()):
        yield Source(path, one.experiment.name, one.run.number, attempt.number, path.stem)


def _first_of_start(one: Selected, attempt: AttemptPaths) -> AttemptPaths:
    """Into whose directory the agents and trackers of an attempt write."""
    return one.paths.attempt(ledger.first_of_start(one.paths, attempt.number))


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
    names, world_size = seats(one, attempt)
    if node not in names:
        return frozenset()
    each = world_size // len(names)
    index = names.index(node)
    return frozenset(range(index * each, (index + 1) * each))


def _name(one: Selected, attempt: int, node: str) -> str:
    """A node's name, given by itself or by its index in an attempt."""
    names, _ = seats(one, attempt)
    return names[int(node)] if node.isdigit() and int(node) < len(names) else node


def seats(one: Selected, attempt: int) -> tuple[list[str], int]:
    """The nodes of an attempt, in the order of NODE_RANK, and its world size."""
    for found in ledger.read(one.paths):
        nodes = found.started.get("nodes")
        if found.number == attempt and isinstance(nodes, list):
            return nodes, int(found.started.get("world_size") or one.run.world_size)
    return [], one.run.world_size


def _has_output(attempts: Iterable[AttemptPaths]) -> bool:
    for attempt in attempts:
        for path in attempt.rank_logs().values():
            try:
                if path.stat().st_size > 0:
                    return True
            except OSError:
                continue
    return False
