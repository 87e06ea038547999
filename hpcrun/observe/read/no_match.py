"""The error for a word of WHERE that names nothing, with what its author may have meant."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from hpcrun.errors import UsageError
from hpcrun.observe.read.filter import FACTS, METRIC
from hpcrun.observe.read.run_values import flatten
from hpcrun.observe.status.run_state import STATES
from hpcrun.state import layout
from hpcrun.text import listed, range_text, shortened

if TYPE_CHECKING:
    from hpcrun.observe.read.selection import Finder

_COLON = re.compile(r"([\w.]+):(\S+)")
# A name and numbers as other programs write them: study[0-3], study_0, study:0.
_RUN_OF = re.compile(r"(.+?)(?:\[|[_:#@])([0-9][0-9,-]*)\]?")


def error(finder: Finder, argument: str) -> UsageError:
    """Return the error for a word that none of the forms of a WHERE fits."""
    names = [experiment.name for experiment in layout.experiments(finder.root)]
    name = argument.partition("/")[0]
    if name in names:
        numbers = range_text(finder.history(layout.experiment(finder.root, name)).runs)
        return UsageError(
            f"{argument!r} is not a run of {name}; its runs are {numbers}",
            hint=f"write {name}/0 or {name}/0-3",
        )
    words = argument.split()
    if name.lower() == "all":
        hint = "all experiments are '*', all runs of one are its name"
    elif (colon := _COLON.fullmatch(argument)) and _key(finder, colon[1]):
        hint = f"a condition has another sign: {colon[1]}={colon[2]}"
    elif (near := _RUN_OF.fullmatch(argument)) and near[1] in names:
        hint = f"did you mean {near[1]}/{near[2]}?"
    elif len(words) > 1 and not set(STATES).isdisjoint(map(str.lower, words)):
        states = (f"state={word.lower()}" if word.lower() in STATES else word for word in words)
        hint = f"did you mean '{' '.join(states)}'?"
    elif argument.startswith(METRIC):
        hint = f"in quotes, as the shell takes < and > for files: '{argument}<VALUE'"
    elif argument.lower() in STATES:
        hint = f"for the runs in that state: state={argument.lower()}"
    elif argument and (key := _key(finder, argument)):
        hint = (
            f"{key} is a key: write {argument}=VALUE, or '{argument}>=VALUE' in quotes, as the "
            "shell takes < and > for files"
        )
    elif argument.endswith((".yaml", ".yml")):
        hint = f"nothing was submitted from that file: hpcrun submit {argument}"
    elif close := get_close_matches(name, names, n=3, cutoff=0.5):
        hint = f"did you mean {', '.join(close)}?"
    elif names:
        hint = f"experiments there: {listed(names, 8)}"
    else:
        hint = "there are no experiments; --root names another root"
    return UsageError(
        f"nothing under {finder.root} matches {shortened(argument, 200)!r}", hint=hint
    )


def _key(finder: Finder, word: str) -> str | None:
    """Return a key of the newest experiment that a word is short for."""
    try:
        run = finder.runs(finder.newest())[0].run
    except (UsageError, IndexError):
        return None
    keys = (*run.swept, *FACTS, *flatten(run.spec))
    return next((key for key in keys if f".{key}".endswith(f".{word}")), None)
