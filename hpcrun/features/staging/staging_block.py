"""The block ``staging`` of a spec, and its checks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun.shared_dataclass import field
from hpcrun.state.spec.spec_dataclass import spec_dataclass

if TYPE_CHECKING:
    from hpcrun.compile.source.marked_tree import Reporter


@spec_dataclass
class Staging:
    """Data that each node copies to its own disk before its ranks start; see docs/data.md."""

    paths: list[str] = field(default_factory=list)
    """Files, directories and globs, relative to this file. Each has its last name in
    ``${hpcrun:staged}``, which is ``HPCRUN_STAGED`` of the ranks; ``session.staged(path)`` finds
    it, too."""


def check(data: dict[str, Any], report: Reporter) -> None:
    """`settle` the paths; report the directory of staged data where a spec stages none."""
    from hpcrun.compile.source.marked_tree import leaves

    if paths := data["staging"]["paths"]:
        settle(paths, report)
        return
    for key, value in leaves(data):
        if isinstance(value, str) and "${hpcrun:staged}" in value:
            found = "found ${hpcrun:staged}, and staging.paths names nothing"
            report.at(key, found, "staging: {paths: [/data/tokens]} names it")


def settle(paths: list[str], report: Reporter) -> None:
    """Make paths absolute, in place; report those without a name to be called by."""
    for index, path in enumerate(paths):
        key = f"staging.paths.{index}"
        if Path(path).name in ("", "..") or "\0" in path:
            hint = "its last name is what it is called on the node"
            report.at(key, f"found {path!r}; accepted is the path of data, or a glob", hint)
        else:
            paths[index] = str(report.mark(key).path(path))
