"""Completion of names: experiments, runs and tags under the root that a line is about."""

from __future__ import annotations

import os
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.host import expand_home
from hpcrun.observe.read.selection import Finder, is_name
from hpcrun.state import layout
from hpcrun.state.root_place import default_root
from hpcrun.tools.completion.completion_answers import TypedLine, Word


def complete_names(line: TypedLine, incomplete: str) -> list[Word]:
    """Complete names of experiments under the root, and runs once a name is complete.

    A directory may be called anything, and a shell runs what it is given: only names that hpcrun
    itself would give are offered.
    """
    root = root_of(line)
    if "/" in incomplete:
        name = incomplete.partition("/")[0]
        try:
            known = Finder(root).history(layout.experiment(root, name)) if is_name(name) else None
        except HpcrunError:
            return []
        found = [f"{name}/{number}" for number in sorted(known.runs)] if known else []
    else:
        found = [one.name for one in layout.experiments(root) if is_name(one.name)]
    return [Word(name) for name in found if name.startswith(incomplete)]


def complete_tag(line: TypedLine, incomplete: str) -> list[Word]:
    """Complete ``+tag`` with tags that runs have, and names of runs."""
    if not incomplete.startswith("+"):
        return complete_names(line, incomplete)
    from hpcrun.observe.read import run_values
    from hpcrun.state import history

    there = layout.experiments(root_of(line))
    known = {
        tag for one in there for tag in run_values.all_tags(history.read(one).annotations.values())
    }
    return [Word(f"+{tag}") for tag in sorted(known) if tag.startswith(incomplete[1:])]


def root_of(line: TypedLine) -> Path:
    """Return the root that a line is about."""
    typed = line.given("root") or os.environ.get("HPCRUN_ROOT")
    return expand_home(typed) if typed else default_root()
