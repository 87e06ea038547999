"""The names of all files in a node's own directory.

::

    $TMPDIR/hpcrun-START/             one agent's
      lock                            held for as long as the agent lives
      sent-code.tar.gz                archives that sbcast sent; this one stays for all attempts,
      sent-environment.tar            this one until it is unpacked
      checkpoints/step-…/             saves of ``checkpoint.nearby_every``
        bundle-00000.json             the files there that rank 0 wrote
      inductor/, triton/              what torch.compile and Triton compiled, for all attempts
      call-attempt-1                  the launch file that warm ranks wait for
      attempt-1/                      an attempt's scratch directory
        code/                         the frozen code, unpacked
        torch_extensions/             compiled DeepSpeed operators
        hpcrun.zip                    hpcrun, where the environment is frozen
        python/sitecustomize.py       has the Pythons of programs write their stacks when asked
        stop                          the ranks are to save and leave
        left                          a session has saved and left, as it was asked to
        heard-SIGTERM                 the agent, and so the whole step, got this signal
        modules                       what warm ranks import
        rank-0.pid                    the leader of a rank's process group
        rank-0.pulse                  a rank's progress
        rank-0.end                    the exit code of one that was warm
        rank-0.stacks                 its stacks, when it was asked for them
    $TMPDIR/hpcrun-data-UID-KEY/      a copy of one source, shared by all jobs of a user; or
                                      data/environment, a frozen environment
      lock                            held by those that use it
      complete                        all of it is there
      data/NAME
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from hpcrun.state.environment.environment_names import COMPLETE
from hpcrun.state.layout import Directory, NamedFile, NamedFiles

PREFIX = "hpcrun-"


def bundle(checkpoint: Path, rank: int) -> Path:
    """Return the record of a rank's files in a checkpoint of the node's storage."""
    return checkpoint / f"bundle-{rank:05d}.json"


def bundles(checkpoints: Path) -> Iterator[Path]:
    """Yield the records of all checkpoints of the node's storage."""
    return checkpoints.glob("step-*/bundle-*.json")


def saved(checkpoints: Path) -> list[Path]:
    """Return the directories of the checkpoints of the node's storage."""
    return list(checkpoints.glob("step-*"))


class NodePaths(Directory):
    """The files of an agent's directory."""

    lock = NamedFile("lock")
    sent_code = NamedFile("sent-code.tar.gz")
    sent_environment = NamedFile("sent-environment.tar")
    checkpoints = NamedFile("checkpoints")
    inductor = NamedFile("inductor")
    triton = NamedFile("triton")
    attempt = NamedFiles[int]("attempt-{}")

    def attempts(self) -> list[Path]:
        return list(self.directory.glob("attempt-*"))


class SharedCopyPaths(Directory):
    """The files of a copy of data."""

    lock = NamedFile("lock")
    complete = NamedFile(COMPLETE)
    data = NamedFile("data")


class ScratchPaths(Directory):
    """The files of an attempt's scratch directory."""

    code = NamedFile("code")
    extensions = NamedFile("torch_extensions")
    package = NamedFile("hpcrun.zip")
    start_up = NamedFile("python")
    stop = NamedFile("stop")
    left = NamedFile("left")
    mpi_met = NamedFile("mpi-met")
    mpi_alone = NamedFile("mpi-alone")
    modules = NamedFile("modules")
    pid = NamedFiles[int]("rank-{}.pid")
    end = NamedFiles[int]("rank-{}.end")
    progress = NamedFiles[int]("rank-{}.pulse")
    stacks = NamedFiles[int]("rank-{}.stacks")

    @property
    def node(self) -> NodePaths:
        return NodePaths(self.directory.parent)

    @property
    def call(self) -> Path:
        """Beside the attempts' directories, which are removed when the next one begins."""
        return self.directory.with_name(f"call-{self.directory.name}")

    def heard(self, number: int) -> Path:
        return self.directory / f"heard-{signal.Signals(number).name}"

    def pids(self) -> Iterator[tuple[int, Path]]:
        return self._of_ranks("pid")

    def progresses(self) -> Iterator[tuple[int, Path]]:
        return self._of_ranks("pulse")

    def all_stacks(self) -> Iterator[tuple[int, Path]]:
        return self._of_ranks("stacks")

    def _of_ranks(self, kind: str) -> Iterator[tuple[int, Path]]:
        """Yield rank and file of each that exists."""
        for path in self.directory.glob(f"rank-*.{kind}"):
            with contextlib.suppress(ValueError):
                yield int(path.stem.removeprefix("rank-")), path
