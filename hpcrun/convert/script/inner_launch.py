"""Launches around other launches: what stands before ``bash -c`` counts for the program in it."""

from __future__ import annotations

from hpcrun.convert.script.launch_line import ProgramLaunch


def within(outer: ProgramLaunch, inner: ProgramLaunch) -> None:
    """Put srun, containers and assignments around ``bash -c`` to the program in it."""
    inner.is_step = inner.is_step or outer.is_step
    inner.steps = {**outer.steps, **inner.steps}
    inner.wrapper = [*outer.wrapper, *inner.wrapper]
    inner.environment = {**outer.environment, **inner.environment}
    inner.not_needed = [*outer.not_needed, *inner.not_needed]
    inner.lost = [*outer.lost, *inner.lost]
    if outer.launcher:
        inner.launcher = inner.launcher or outer.launcher


def program_words(launch: ProgramLaunch) -> list[str]:
    """Return the program and its arguments."""
    return [launch.target, *launch.args] if launch.target else []
