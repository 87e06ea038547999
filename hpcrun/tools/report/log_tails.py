"""The ends of logs: of failed runs the traceback, of others what they printed last."""

from __future__ import annotations

from typing import NamedTuple

from hpcrun.observe.diagnosis.attempts import RunStory
from hpcrun.policy import log_excerpt
from hpcrun.policy.log_excerpt import LINES, folded
from hpcrun.state import files

# Characters of all ends together, the most and the least of one, and the longest line.
_ALL, _MOST, _LEAST, _LONGEST = 20_000, 5_000, 600, 300
# Of more runs only those that went wrong have an end: each costs opening a file.
_MOST_RUNS = 100
# Lines of a run with which nothing is wrong.
_FEW = 5
_READ = 1 << 16


class LogTail(NamedTuple):
    """The last lines of a rank's log, without colours."""

    title: str
    lines: tuple[str, ...]


def read(story: RunStory, runs: int) -> LogTail | None:
    """Return the end of the log that tells most, of one of so many runs; None if there is none."""
    bad = story.bad if story.kind else None
    tail = bad.attempt.cause.get("log_tail") if bad else None
    if bad and isinstance(tail, list) and tail:
        rank = bad.attempt.cause.get("rank")
        lines = [str(line) for line in tail[-2 * LINES :]]
        return _cut(f"rank {rank} of attempt {bad.attempt.number}", lines, runs)
    if runs > _MOST_RUNS or not story.attempts:
        return None
    number = story.attempts[-1].attempt.number
    try:
        path = story.selected.paths.attempt(number).rank_log(0)
        lines = log_excerpt.excerpt(files.read_tail(path, _READ))[-_FEW:]
    except OSError:
        return None
    return _cut(f"rank 0 of attempt {number}", lines, runs) if any(lines) else None


def _cut(title: str, lines: list[str], runs: int) -> LogTail:
    """Keep the last lines that there is room for, each once and without what colours it."""
    plain = [_plain(line) for line in lines]
    room = min(_MOST, max(_LEAST, _ALL // max(1, runs)))
    kept: list[str] = []
    for line in reversed(plain):
        room -= len(line) + 1
        if room < 0 and kept:
            break
        kept.insert(0, line)
    if len(kept) < len(plain):
        kept.insert(0, f"… ({len(plain) - len(kept)} lines before these)")
    return LogTail(f"The last lines of {title}", tuple(kept))


def _plain(line: str) -> str:
    import click

    shown = b"\n".join(folded(line.encode(errors="replace"))).decode(errors="replace")
    text = click.unstyle(shown)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
