"""The last lines of ``hpcrun run`` and ``submit --wait``: what became of the runs, what to type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrun import activity
from hpcrun.cli.options import Output, root_option
from hpcrun.state.layout import ExperimentPaths
from hpcrun.text import agreeing, brief, duration, listed, one_line, plural

if TYPE_CHECKING:
    from hpcrun.observe.diagnosis.attempts import RunStory

_SHOWN = 8


def tell(experiment: ExperimentPaths, runs: Sequence[int], seconds: float, output: Output) -> None:
    """Say in one line what became of runs and why, and in another what to type next."""
    from hpcrun.observe.diagnosis import unread_progress
    from hpcrun.observe.diagnosis.narrative import headline
    from hpcrun.observe.status import run_state

    name, root = experiment.name, root_option(experiment.root)
    found = _stories(experiment, runs, output)
    each = [(one.selected, one.status) for one in found]
    for note in unread_progress.notes(each):
        output.say(note)
    lacking = [one for one in found if one.tracker_problems]
    for one in lacking[:1]:
        tracker, problem = next(iter(one.tracker_problems.items()))
        more = f", nor of {plural(len(lacking) - 1, 'other run')}" if lacking[1:] else ""
        output.say(
            f"{tracker} has not got all metrics of {one.status.name}{more}: {brief(problem, 300)}; "
            f"`hpcrun why{root} {one.status.name}` has the command that sends them"
        )
    bad = [one for one in found if one.status.state not in run_state.GOOD_ENDS]
    if not bad:
        pruned = sum(one.status.state == run_state.PRUNED for one in found)
        done = headline(found[0]) if len(found) == 1 else all_over(len(found), pruned)
        if len(found) > 1:
            _say_causes([one for one in found if one.status.reason], output)
        where = f"{name}/{runs[0]}" if len(found) == 1 else name
        reads = ["logs"]
        if any(one.status.metrics for one in found):
            reads = ["logs", "results"]
        output.say(f"{done}, {duration(seconds)}")
        if kept := next(filter(None, map(_written_files, found)), None):
            more = f", of the others beside it: runs/RUN/{kept.name}" if found[1:] else ""
            output.say(f"files that it wrote: {kept}{more}")
        output.say(f"next: {'   '.join(f'hpcrun {each}{root} {where}' for each in reads)}")
        return
    # What failed is told to those too who want errors only.
    output = replace(output, verbosity=max(0, output.verbosity))
    if len(found) > 1:
        number = Counter(one.status.state for one in found)
        counts = ", ".join(f"{number[each]} {each}" for each in run_state.STATES if number[each])
        output.say(f"{name}: {plural(len(found), 'run')}: {counts}")
    _say_causes(bad, output)
    names = listed([one.status.name for one in bad], _SHOWN)
    do = agreeing(len(bad), "has", "have")
    output.say(f"{names} {do} not completed; `hpcrun why{root} {name}` tells more")


def all_over(count: int, pruned: int) -> str:
    """Say that all of so many runs ended well, some of them as they were pruned."""
    if pruned:
        return f"all {count} runs are over, {pruned} of them pruned"
    return "the run has completed" if count == 1 else f"all {count} runs have completed"


def _written_files(one: RunStory) -> Path | None:
    """Return the directory of what a program wrote to relative paths; None where it wrote none."""
    work = one.selected.paths.work
    try:
        return work if any(work.iterdir()) else None
    except OSError:
        return None


def say_causes(experiment: ExperimentPaths, runs: Sequence[int], output: Output) -> None:
    """Say why each of some runs did not complete."""
    if runs:
        _say_causes(_stories(experiment, runs, output), output)


def _stories(experiment: ExperimentPaths, runs: Sequence[int], output: Output) -> list[RunStory]:
    from hpcrun.observe.diagnosis.attempts import stories
    from hpcrun.observe.read.selection import Finder

    with activity.doing("reading what became of it"):
        return stories(Finder(experiment.root).runs(experiment, runs), warn=output.say, values=True)


def _say_causes(bad: Sequence[RunStory], output: Output) -> None:
    from hpcrun.observe.diagnosis.narrative import headline

    for one in bad[:_SHOWN]:
        # `why` tells the last attempt's cause in lines of its own.
        told, reason = headline(one), one_line(one.status.reason or "")
        output.say(brief(told, 600) if reason in told else f"{brief(told, 600)}; {brief(reason)}")
    if len(bad) > _SHOWN:
        output.say(f"and {len(bad) - _SHOWN} more")
