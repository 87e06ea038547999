"""The spec of one run of a search: a plain one, that compiles to what the run had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.compile import compile_spec
from hpcrun.compile.spec.spec_text import TypedSpec
from hpcrun.errors import HpcrunError
from hpcrun.observe import diff
from hpcrun.observe.read.run_values import MISSING
from hpcrun.observe.read.selection import Selected
from hpcrun.state.patched import Patched
from hpcrun.state.plan import SEARCH
from hpcrun.text import listed, one_line

# Parts of a spec that are no part of what a run computes, or that a plain spec has not.
_OWN = ("name", "sweep", SEARCH)
# In these, what is no more to be there cannot be told from a key that is new in this version.
_FREE = ("config", "deepspeed")


def text(one: Selected, comments: Sequence[str]) -> str:
    """Return the spec as YAML, which extends that of the search.

    What has been changed there since, or was typed at submission, is written out. Raises
    HpcrunError if that does not come to what the run had.
    """
    import yaml

    source = one.planned.spec_file
    spec = Patched({"name": f"{one.experiment.name}-best", "extends": source, "sweep": None})
    for key, value in one.run.swept.items():
        spec.put(key.split("."), value)
    for is_last in (False, True):
        content = yaml.safe_dump(spec.data, sort_keys=False, width=100, allow_unicode=True)
        changes = _changes(one, content)
        if not changes:
            return "".join(f"# {one_line(line)}\n" for line in comments) + content
        if is_last or any(value is MISSING for value in changes.values()):
            raise HpcrunError(
                f"{source} does not come to what {one.name} had any more: {listed([*changes], 6)}",
                hint=f"`hpcrun show {one.name} --config` prints all that it had",
            )
        for key, value in changes.items():
            spec.put(key.split("."), value)
    raise AssertionError("the last round returns or raises")


def _changes(one: Selected, content: str) -> Mapping[str, Any]:
    """Return the keys in which a spec differs from a run, with the run's values."""
    try:
        (found,) = compile_spec(TypedSpec(content, Path.cwd() / "best.yaml")).runs
    except HpcrunError as error:
        raise HpcrunError(
            f"the spec of {one.name} does not compile any more: {error}",
            hint=f"`hpcrun show {one.name} --config` prints all that it had",
        ) from None
    changes = {
        change.key: change.after
        for change in diff.changes(found.spec, one.run.spec)
        if (part := change.key.partition(".")[0]) not in _OWN
        and (change.after is not MISSING or part in _FREE)
    }
    if not changes and found.entry != one.run.entry:
        return {"entry": MISSING}
    return changes
