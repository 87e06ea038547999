"""Lines of runs' logs, as Python programs get them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LogLine:
    """A line of a log and where it comes from; None stands for what does not apply to its stream.

    Attributes
    ----------
    experiment, run
        The run's name is ``experiment/run``.
    attempt
        The attempt's number, from 1.
    rank
        The rank that wrote it.
    stream
        ``worker`` (ranks), ``agent``, ``batch`` or ``other``.
    node
        The name of the node, of an agent's line.
    line
        The text, without its end.
    """

    experiment: str
    run: int
    attempt: int | None
    rank: int | None
    stream: str
    node: str | None
    line: str
