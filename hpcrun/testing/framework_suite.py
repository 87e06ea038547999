"""What is expected of a framework and of a recipe of resuming.

See `hpcrun.policy.frameworks.Framework` and `hpcrun.policy.resume.Recipe`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Formatter
from typing import Any

from hpcrun.compile.target.slurm_options import VARIABLE_NAME
from hpcrun.extensions import FRAMEWORKS, READERS, RECIPES
from hpcrun.policy import resume
from hpcrun.policy.frameworks import AUTO, NONE, Framework, RankPlace
from hpcrun.policy.resume import Recipe
from hpcrun.state.spec.recovery_block import NEWEST, NEWEST_DIRECTORY, NEWEST_STEP
from hpcrun.testing.expectation import expect, expect_attributes, expecting

# Runs of unlike shapes; what a framework returns must hold for each of their ranks.
PLACES = (
    RankPlace(0, 1, ("10.0.0.1",), 15000),
    RankPlace(0, 2, ("10.0.0.1", "10.0.0.2"), 15000, (15001, 15002, 16001, 16002), 2, "study/3"),
    RankPlace(0, 2, ("fd00::1", "fd00::2"), 15000, (), 2, "study/3", "/runs/3/deepspeed.json", 3),
)
_PLACEHOLDERS = {NEWEST, NEWEST_DIRECTORY, NEWEST_STEP, "directory"}
_PLACEHOLDER = re.compile(r"\$\{hpcrun:(\w+)\}")


def check_framework(framework: Any) -> None:
    """Check that an object is a framework: by what it gives the ranks of several runs."""
    expect(
        isinstance(framework, Framework),
        f"{framework!r} is no Framework (hpcrun.policy.frameworks)",
    )
    expect_attributes(framework, FRAMEWORKS.needs)
    for shape in PLACES:
        for rank in range(shape.world_size):
            _check_of_rank(framework, replace(shape, rank=rank))
    hidden = framework.hidden
    expect(
        isinstance(hidden, frozenset) and all(map(_is_variable, hidden)),
        f"hidden is {hidden!r}; expected is a frozenset of names of variables",
    )
    expect(
        not (framework.one_per_node and framework.one_per_run),
        "one_per_node and one_per_run are both True",
    )
    progress = framework.progress
    expect(
        progress in (AUTO, NONE) or progress in READERS,
        f"progress is {progress!r}; expected is auto, none or a reader: {', '.join(READERS.names)}",
    )
    name = framework.resume
    expect(
        name is None or name in RECIPES,
        f"resume is {name!r}; expected is None or a recipe: {', '.join(RECIPES.names)}",
    )


def _check_of_rank(framework: Framework, place: RankPlace) -> None:
    with expecting(f"variables({place})"):
        variables = framework.variables(place)
    wrong = not isinstance(variables, dict) or [
        name
        for name, value in variables.items()
        if not _is_variable(name) or not isinstance(value, str)
    ]
    expect(not wrong, f"variables({place}) is {variables!r}; expected is a dictionary of texts")
    with expecting(f"arguments({place})"):
        arguments = framework.arguments(place)
    expect(
        isinstance(arguments, list) and all(isinstance(one, str) for one in arguments),
        f"arguments({place}) is {arguments!r}; expected is a list of texts",
    )


def _is_variable(name: object) -> bool:
    return isinstance(name, str) and VARIABLE_NAME.fullmatch(name) is not None


def check_resume_recipe(recipe: Any, argv: Sequence[str] = (), saved: Sequence[str] = ()) -> None:
    """Check that an object is a recipe.

    Parameters
    ----------
    argv
        The arguments of a program that it is for.
    saved
        The files that such a program has saved, relative to where it runs: one of them at least
        must be matched.
    """
    expect(isinstance(recipe, Recipe), f"{recipe!r} is no Recipe (hpcrun.policy.resume)")
    expect_attributes(recipe, RECIPES.needs)
    expect(
        isinstance(recipe.when, tuple) and bool(recipe.when),
        f"when is {recipe.when!r}; expected is a tuple of patterns",
    )
    for pattern in recipe.when:
        named = {name for _, name, _, _ in Formatter().parse(pattern) if name is not None}
        expect(
            named <= recipe.options.keys(),
            f"the pattern {pattern!r} has {sorted(named - recipe.options.keys())}, which is no key "
            f"of options, {[*recipe.options]}",
        )
    expect(
        isinstance(recipe.config, Mapping) and bool(recipe.config),
        f"config is {recipe.config!r}; expected are the flags by which the program resumes",
    )
    for option in (*recipe.config, *recipe.options):
        expect(
            not option.startswith("-"),
            f"found the option {option!r}; expected is its name, without dashes",
        )
    used = {one for value in recipe.config.values() for one in _PLACEHOLDER.findall(str(value))}
    expect(
        used <= _PLACEHOLDERS,
        f"config has ${{hpcrun:{min(used - _PLACEHOLDERS, default='')}}}; known are "
        f"{', '.join(sorted(_PLACEHOLDERS))}",
    )
    lacks = resume.missing_option(recipe, argv)
    expect(lacks is None or not saved, f"argv, {[*argv]}, lacks the option {lacks}")
    if saved:
        _check_saved(recipe, argv, saved)


def _check_saved(recipe: Recipe, argv: Sequence[str], saved: Sequence[str]) -> None:
    patterns = resume.patterns(recipe, argv)
    with tempfile.TemporaryDirectory() as directory:
        for name in saved:
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        found = [path for pattern in patterns for path in Path(directory).glob(pattern)]
    expect(bool(found), f"none of {[*saved]} is matched by {patterns}")
