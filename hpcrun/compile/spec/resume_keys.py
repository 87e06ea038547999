"""The checks of ``recovery.resume``: its recipe, its patterns and what stands for their match."""

from __future__ import annotations

import re
from typing import Any

from hpcrun.compile.source.marked_tree import leaves
from hpcrun.compile.source.problems import Reporter, did_you_mean
from hpcrun.compile.target.slurm_options import check_variables
from hpcrun.errors import HpcrunError
from hpcrun.extensions import RECIPES
from hpcrun.policy import resume
from hpcrun.state.spec.recovery_block import NEWEST, NEWEST_DIRECTORY, NEWEST_STEP

_PLACEHOLDER = re.compile(r"\$\{hpcrun:(\w+)\}")


def check(recovery: dict[str, Any], report: Reporter) -> None:
    """Report what is wrong with how a run resumes; ``recovery.resume.when`` becomes a list."""
    given = recovery["resume"]
    if given is None:
        only_where_it_resumes(recovery["resume_args"], report.below("resume_args"))
        return
    if recovery["resume_args"]:
        found = "is short for resume: {args: […]}, and both are given"
        report.at("resume_args", found, "move them to recovery.resume.args")
    name = given if isinstance(given, str) else given["recipe"]
    if name not in (None, resume.NONE):
        key = "resume" if isinstance(given, str) else "resume.recipe"
        if not _is_usable(name, report.below(key)):
            recovery["resume"] = None
            return
    if isinstance(given, str):
        return
    check_variables(given["environment"], report.below("resume.environment"))
    if isinstance(given["when"], str):
        given["when"] = [given["when"]]
    for index, pattern in enumerate(given["when"]):
        placeholders = _PLACEHOLDER.findall(pattern)
        if not pattern or "\x00" in pattern:
            report.at(f"resume.when.{index}", "is no pattern; accepted is such as out/*/last.pt")
        elif wrong := [one for one in placeholders if one != "directory"]:
            found = (
                f"found ${{hpcrun:{wrong[0]}}}; of these a pattern may have ${{hpcrun:directory}}"
            )
            report.at(f"resume.when.{index}", found)
    if not given["when"] and name in (None, resume.NONE):
        only_where_it_resumes(given, report.below("resume"), "give recovery.resume.when")


def _is_usable(name: str, report: Reporter) -> bool:
    """Check that there is a recipe, and that it can be loaded; report it if not."""
    if name not in RECIPES:
        accepted = (*RECIPES.names, resume.NONE)
        found = f"there is no recipe {name!r}; there are {', '.join(accepted)}"
        hint = did_you_mean(name, accepted)
        report.at((), found, hint or "say it yourself: resume: {when: PATTERN, args: […]}")
        return False
    try:
        RECIPES.load(name)
    except HpcrunError as error:
        report.at((), error.message, error.hint)
        return False
    return True


def only_where_it_resumes(
    data: Any, report: Reporter, hint: str = "it can be used in recovery.resume"
) -> None:
    """Report the placeholders of the newest match of ``recovery.resume.when``."""
    for key, value in leaves(data):
        for name in (NEWEST_DIRECTORY, NEWEST_STEP, NEWEST):
            if isinstance(value, str) and f"${{hpcrun:{name}}}" in value:
                found = f"found ${{hpcrun:{name}}}, which is a match of recovery.resume.when"
                report.at(key, found, hint)
