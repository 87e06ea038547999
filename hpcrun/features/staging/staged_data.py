"""What was staged as a node's ranks find it: a directory of links by the sources' names.

::

    $TMPDIR/hpcrun-START/
      staged/NAME      a link to the copy of a source, or to shared storage where there is none
      staged.json      {path of a source: NAME}
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrun.features.staging import staged_sources
from hpcrun.run.copies.copied_files import CopySource
from hpcrun.state import files
from hpcrun.state.layout import Directory, NamedFile

if TYPE_CHECKING:
    from hpcrun.run.protocol.launch import Launch, LaunchNode


class StagedPaths(Directory):
    """The feature's files in the directory of a node's agent."""

    staged = NamedFile("staged")
    staged_list = NamedFile("staged.json")


class StagedData:
    """A node's part: the sources of its run, and the links to them."""

    def __init__(self, directory: Path, patterns: Sequence[str]) -> None:
        self._paths, self._patterns = StagedPaths(directory), patterns

    def sources(self) -> Sequence[CopySource]:
        """Return the sources, in order; raise SourceProblem."""
        return staged_sources.find(self._patterns)

    def show(self, places: Mapping[CopySource, Path]) -> None:
        """Link each source by its name to its place on this node."""
        shutil.rmtree(self._paths.staged, ignore_errors=True)
        self._paths.staged.mkdir()
        for source, place in places.items():
            (self._paths.staged / source.name).symlink_to(place)
        files.write_json(self._paths.staged_list, {one.path: one.name for one in places})


def place_on(node: LaunchNode) -> Path:
    """Return the directory of a node's links."""
    return StagedPaths(Path(node.scratch).parent).staged


def local(launch: Launch | None, path: str | Path) -> Path:
    """Return where this node has a path: its copy where ``staging.paths`` of the spec names it.

    Links and relative paths are followed. Other paths, and all of them outside hpcrun, are returned
    as they are.
    """
    path = Path(path)
    if launch is None or not launch.block("staging").paths:
        return path
    staged = place_on(launch.own_node)
    sources: dict[str, str] = files.read_json(StagedPaths(staged.parent).staged_list)
    for wanted in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):  # noqa: PTH100
        for source, name in sources.items():
            for own in dict.fromkeys((source, os.path.realpath(source))):
                if wanted == own:
                    return staged / name
                if wanted.startswith(f"{own}/"):
                    return staged / name / wanted[len(own) + 1 :]
    return path
