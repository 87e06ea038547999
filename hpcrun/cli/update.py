"""``hpcrun update``: change the limits of runs that are queued."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from hpcrun import activity
from hpcrun.cli.options import Output, common
from hpcrun.cli.where import acts_on_runs, ask_first, select
from hpcrun.errors import ClusterRefused, UsageError
from hpcrun.slurm import patience
from hpcrun.slurm.parse import parse_duration
from hpcrun.state.job_changes import KEYS, TIME, JobChange, apply
from hpcrun.text import duration, listed, plural

if TYPE_CHECKING:
    from hpcrun.control.update import UpdateStep
    from hpcrun.observe.read.selection import Selected

_WORD = re.compile(r"(?:--)?(?P<key>[A-Za-z][\w.-]*)=(?P<value>.*)", re.DOTALL)
# What specs, sbatch and scontrol call them.
_OTHER_NAMES = {
    **{".".join(one.spec): name for name, one in KEYS.items() if one.spec},
    **{one.field.lower(): name for name, one in KEYS.items()},
    **dict.fromkeys(("sweep.max_parallel", "parallel", "throttle"), "max_parallel"),
    **dict.fromkeys(("walltime", "limit", "time_limit"), "time"),
    "max-parallel": "max_parallel",
}
_CLOSE = 0.7


@click.command("update")
@acts_on_runs("changed")
@common
def command(
    where: tuple[str, ...], conditions: tuple[str, ...], dry_run: bool, yes: bool, output: Output
) -> None:
    """Change time, partition, qos, nice, priority or max_parallel of runs in the queue.

    {where}, and then key=value. A run that runs keeps all but a shorter time; max_parallel is of a
    whole array. What Slurm took holds for requeues, and for `hpcrun requeue` later. Any other
    value: `hpcrun cancel`, then `hpcrun submit` with it.
    """
    from hpcrun.control import update

    names, changes = _split(where)
    if not names:
        typed = " ".join(f"{key}={value}" for key, value in changes.items())
        raise UsageError(
            "this command wants to be told which runs to change",
            hint=f"hpcrun update NAME {typed}",
        )
    selected = select(output, names, conditions, verb="update")
    patience.act()
    number = plural(len(selected), "run")
    with activity.doing(f"asking Slurm how {number} may be changed"):
        steps = update.look(selected, changes, output.say)
    active = [step.selected for step in steps if step.changes]
    above = _hours(active, changes)
    if above and dry_run:
        output.say(f"update asks first: {above}")
    if not (dry_run or yes):
        ask_first("update", active, names, conditions, above)
    if active and not dry_run:
        with activity.doing(f"changing {number}"):
            steps = update.update(steps, changes)
    if output.json:
        output.data([step.to_data(dry_run) for step in steps])
    else:
        for step in steps:
            output.line(_line(step, dry_run))
    _judge(steps)


def _split(where: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split the words into those that choose runs, and the changes.

    Raises UsageError for a change that is none, or if there is none.
    """
    names: list[str] = []
    changes: dict[str, str] = {}
    for word in where:
        found = _WORD.fullmatch(word)
        key = found["key"] if found else ""
        key = _OTHER_NAMES.get(key.lower(), key)
        if found is None or key not in KEYS:
            names.append(word)
            continue
        value = found["value"].strip()
        if not KEYS[key].takes(value):
            raise UsageError(f"{key}: found {value!r}; accepted is {KEYS[key].accepted}")
        changes[key] = value
    _check_other_keys(names, changes)
    return names, changes


def _check_other_keys(names: Sequence[str], changes: Mapping[str, str]) -> None:
    """Raise UsageError for a word that was to be a change, and if nothing is changed."""
    for word in names:
        found = _WORD.fullmatch(word)
        close = get_close_matches(found["key"], [*KEYS, *_OTHER_NAMES], 1, _CLOSE) if found else []
        if found and close:
            meant = _OTHER_NAMES.get(close[0], close[0])
            raise UsageError(
                f"{found['key']!r} is none of what can be changed: {', '.join(KEYS)}",
                hint=f"did you mean {meant}={found['value']}? (a condition on runs: --where "
                f"'{word}')",
            )
    if not changes:
        other = next((word for word in names if _WORD.fullmatch(word)), None)
        rest = f"; {other} is none of what a queued job can have changed" if other else ""
        raise UsageError(
            f"nothing to change was typed{rest}; accepted are {', '.join(KEYS)}",
            hint="such as hpcrun update NAME time=04:00:00; for other values `hpcrun cancel NAME`, "
            "then `hpcrun submit SPEC key=value`",
        )


def _hours(active: Sequence[Selected], changes: Mapping[str, str]) -> str | None:
    """Return the most hours of runs with a new limit, if a profile wants to be asked first."""
    if TIME not in changes:
        return None
    from hpcrun.submission import most_hours

    new = {TIME: JobChange(changes[TIME], 0.0)}
    runs = [(replace(one.run, spec=apply(one.run.spec, new)), one) for one in active]
    return most_hours.above_limit((run, one.plan.cluster) for run, one in runs)


def _line(step: UpdateStep, dry_run: bool) -> str:
    job = f" (job {step.selected.job_id})" if step.selected.job_id else ""
    parts = []
    for name, value in step.changes.items():
        before = step.before(name)
        was = f"{before} -> " if before not in (None, value) else ""
        parts.append(f"{name} {was}{_with_unit(name, value)}")
    told = f"{'would be ' if dry_run else ''}changed: {', '.join(parts)}" if parts else ""
    told = "; ".join(filter(None, [told, *step.reasons.values()]))
    return f"{step.selected.name}: {step.reasons.get('', told)}{job}"


def _with_unit(name: str, value: str) -> str:
    """Return a time with what ``90`` and ``1:00`` are in Slurm; other values as they are."""
    has_hours = "-" in value or value.count(":") == 2
    seconds = parse_duration(value) if name == TIME and not has_hours else None
    return value if seconds is None else f"{value} ({duration(seconds)})"


def _judge(steps: Sequence[UpdateStep]) -> None:
    """Raise ClusterRefused if Slurm refused one, UsageError if there was nothing to ask it for."""
    from hpcrun.observe.read.selection import as_where

    refused = [step for step in steps if step.is_refused]
    if refused:
        reasons = dict.fromkeys(text for step in refused for text in step.reasons.values())
        told = listed([*reasons], 3, "; ")
        raise ClusterRefused(
            f"Slurm did not change {plural(len(refused), 'run')} as asked: {told}",
            hint="what Slurm does not give a queued job takes `hpcrun cancel`, and `hpcrun submit` "
            "with it",
        )
    if not any(step.changes for step in steps):
        whose: dict[str, list[Selected]] = {}
        for step in steps:
            for text in step.reasons.values():
                whose.setdefault(text, []).append(step.selected)
        lines = [f"{as_where(runs)}: {text}" for text, runs in whose.items()]
        raise UsageError(
            f"nothing was changed; {listed(lines, 3, '; ')}",
            hint="what is over, or runs, takes other values by `hpcrun cancel`, and `hpcrun submit "
            "SPEC key=value`",
        )
