"""An agent's side of the working directory: opened before its node's ranks start, closed after."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hpcrun.run.node.node_dir import NodeDir
from hpcrun.run.work import links
from hpcrun.run.work.kept_files import KeptFiles
from hpcrun.run.work.shared_writes import OpenFiles
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.plan import RunPlan


class NodeWork:
    """One node's part in the working directory of one attempt at a time.

    ``directory`` is the working directory, relative to the code.
    """

    def __init__(self, run: RunPlan, directory: str, node: str, node_dir: NodeDir) -> None:
        self._run, self._directory, self._node = run, directory, node
        self._node_dir = node_dir
        self._kept_files: KeptFiles | None = None
        self._open_files: OpenFiles | None = None
        # The working directory, this node's copy of the code, and its path in links to that.
        self._linked: tuple[Path, Path, Path] | None = None

    def open(self, attempt: AttemptPaths, scratch: Path, shown: Path, *, first: bool) -> None:
        """Link the run's ``work`` and this node's copy of the code to each other.

        All nodes find the code at ``shown``; the ``first`` of them links it. Raises HpcrunError or
        OSError if that cannot be.
        """
        work, code = attempt.run.work, ScratchPaths(scratch).code
        of_ranks = self._run.has_rank_directories
        if shown != code:
            self._node_dir.show(code, shown)
        if first and not of_ranks:
            links.fill(work, code, links.way(self._directory, self._run.entry), shown)
            self._linked = work, code, shown
        links.adopt(work, code, of_ranks=of_ranks)
        self._kept_files = KeptFiles(code, attempt.kept / self._node)
        self._open_files = OpenFiles(scratch, work)

    def writes(self) -> dict[str, list[int]]:
        """Return file -> ranks that were seen to write it, since the last call."""
        return {} if self._open_files is None else self._open_files.news()

    def close(self) -> list[str]:
        """Remove the links, and keep what was written in the copy of the code.

        Returns what could not be kept. Once no rank is left; again, it does nothing.
        """
        if self._linked is not None:
            work, code, shown = self._linked
            with contextlib.suppress(OSError):
                links.clear(work, code=code, only=[shown])
            self._linked = None
        kept, self._kept_files = self._kept_files, None
        self._open_files = None
        return [] if kept is None else kept.finish()
