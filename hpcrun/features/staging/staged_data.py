"""What ``staging.paths`` names, and what is staged as a node's ranks find it.

A directory of links by the sources' names::

    $TMPDIR/hpcrun-START/
      staged/NAME      a link to the copy of a source, or to shared storage where there is none
      staged.json      {path of a source: NAME}
"""

from __future__ import annotations

import glob
import os
import shutil
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrun.errors import UsageError
from hpcrun.run.copies.copied_files import CopySource, SourceFile, SourceProblem
from hpcrun.state import files
from hpcrun.state.layout import Directory, NamedFile
from hpcrun.text import agreeing, one_line, runs_text

if TYPE_CHECKING:
    from hpcrun.run.protocol.launch import Launch, LaunchNode
    from hpcrun.state.plan import RunPlan


class StagedSource(CopySource):
    """A file or directory of shared storage, and its name among what is staged."""

    def files(self) -> list[SourceFile]:
        try:
            return super().files()
        except SourceProblem as error:
            raise SourceProblem(f"staging.paths: {error.message}", hint=error.hint) from error


def find(patterns: Sequence[str]) -> list[StagedSource]:
    """Return what absolute paths and globs name, in their order.

    Raises SourceProblem if a path does not exist, a glob matches nothing, or two sources have one
    name.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        matches = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
        if not matches:
            raise SourceProblem(
                f"staging.paths: nothing matches {one_line(pattern)}",
                hint="correct the glob; `*` matches within one directory",
            )
        for path in matches:
            _check(path)
            name = os.path.basename(path)  # noqa: PTH119
            if found.setdefault(name, path) != path:
                raise SourceProblem(
                    f"staging.paths: {one_line(found[name])} and {one_line(path)} would both be "
                    f"${{hpcrun:staged}}/{one_line(name)}",
                    hint="stage the directory that holds them, or rename one of them",
                )
    return [StagedSource(name, path) for name, path in found.items()]


def above_glob(path: str) -> str:
    """Return a path, of a glob that of the directory above it, which holds all that it names."""
    while any(sign in path for sign in "*?["):
        path = os.path.dirname(path)  # noqa: PTH120
    return path


def check(runs: Sequence[RunPlan], coming: Collection[str], say: Callable[[str], object]) -> None:
    """Raise UsageError if what runs are to stage is not there or cannot be read.

    Where runs wait for other experiments, which may make it, that is only reported.
    """
    wanted: dict[tuple[str, ...], list[int]] = {}
    for run in runs:
        wanted.setdefault(tuple(run.block("staging").paths), []).append(run.number)
    for patterns, numbers in wanted.items():
        try:
            find(patterns)
        except UsageError as error:
            if not coming:
                raise
            say(
                f"{error.message}; {runs_text(numbers)} will be refused by their nodes unless "
                f"{', '.join(sorted(coming))} {agreeing(len(coming), 'makes', 'make')} it"
            )


def _check(path: str) -> None:
    """Raise SourceProblem unless a path is a file or directory that can be read."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise SourceProblem(
            f"staging.paths: {one_line(path)} cannot be staged: {error.strerror}",
            hint="correct the path; relative ones begin at the spec's directory",
        ) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SourceProblem(f"staging.paths: {one_line(path)} is no file and no directory")
    wanted = os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)
    if not os.access(path, wanted):
        raise SourceProblem(
            f"staging.paths: {one_line(path)} cannot be read by you",
            hint="ask its owner, or correct the path",
        )


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
        return find(self._patterns)

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
