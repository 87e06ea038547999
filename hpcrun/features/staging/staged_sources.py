"""The files and directories that ``staging.paths`` names, and the list of files in each."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from hpcrun.errors import UsageError
from hpcrun.run.copies.copied_files import CopySource, SourceFile, SourceProblem
from hpcrun.text import agreeing, one_line, runs_text

if TYPE_CHECKING:
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
