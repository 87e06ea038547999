"""The archives of frozen code and environment, sent to the disks of a job's many nodes.

Slurm's sbcast reads an archive once, here, and passes it on in a tree of slurmds, so that the nodes
do not read one file of shared storage all at once. Each goes once in a start of a job, spares
included, into the agents' own directories, where later attempts find it. Agents judge what they
find there (`hpcrun.run.copies.sent_code`, `environment_copy`), and read from shared storage where
nothing came, a part, or something else.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.protocol.output import say
from hpcrun.slurm import client
from hpcrun.slurm.background import BackgroundCall
from hpcrun.state import submission_facts
from hpcrun.state.environment import frozen_environment
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.node_layout import NodePaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import listed, size

# Fewer nodes read shared storage all at once.
FROM_NODES = 16
# Seconds for the agents of spares to be there, and for sbcast, beside the bytes at this rate.
SPARES_WITHIN = 5.0
PATIENCE, SLOWEST = 20.0, 20_000_000
_IS_LONG = 2.0


@dataclass(frozen=True)
class _Archive:
    what: str
    source: Path
    bytes: int
    is_environment: bool = False


class ArchiveSending:
    """Sends the archives of one start of a job."""

    def __init__(self, launcher: Launcher, submission: SubmissionPaths, run: RunPlan) -> None:
        self._launcher, self._submission, self._run = launcher, submission, run
        self.rooms: dict[str, tuple[int, int] | None] = {}
        """Node -> the bytes that its copy of the environment lacks, and that its disk has."""
        self._left: list[_Archive] | None = None
        self._call: BackgroundCall[str | None] | None = None

    def send(
        self, homes: Mapping[str, Path], lost: Sequence[str], turn: Callable[[], None]
    ) -> None:
        """Send what has not been sent, and tell how that ended.

        ``homes`` are the directories of the agents that have said hello; ``turn`` is called
        meanwhile, may add to them, and raises to end the attempt. The next one goes on from there.
        """
        nodes = self._launcher.nodes
        if self._left == [] or len(nodes) < FROM_NODES or self._launcher.whole_job is None:
            return
        if self._left is None:
            self._left = [*self._archives()]
        until = time.monotonic() + SPARES_WITHIN
        while self._left and {*nodes}.difference(homes, lost) and time.monotonic() < until:
            turn()
        while self._left:
            one = self._left[0]
            is_there = all(room is not None and not room[0] for room in self.rooms.values())
            if not (one.is_environment and is_there):
                began = time.monotonic()
                problem = self._obstacle(one, homes, lost) or self._send(one, homes, turn)
                if problem is None:
                    took = f"{time.monotonic() - began:.1f} s"
                    say(f"sbcast sent {one.what} to {len(nodes)} nodes in {took}")
                else:
                    say(f"{one.what} is read from shared storage by nodes that lack it: {problem}")
            del self._left[0]

    def _archives(self) -> Iterator[_Archive]:
        """Yield what is to be sent; agents tell what is gone."""
        with contextlib.suppress(HpcrunError, OSError):
            frozen = submission_facts.facts(self._submission).get("code")
            code = self._submission.experiment.frozen_code(frozen)
            if code is not None:
                bytes_ = code.stat().st_size
                yield _Archive(f"the frozen code ({size(bytes_)})", code, bytes_)
        with contextlib.suppress(HpcrunError, OSError):
            if self._run.environment.is_frozen:
                found, archive = frozen_environment.of_submission(self._submission)
                what = f"the frozen environment ({size(found.bytes)})"
                yield _Archive(what, archive, found.bytes, is_environment=True)

    def _obstacle(
        self, archive: _Archive, homes: Mapping[str, Path], lost: Sequence[str]
    ) -> str | None:
        """Return why an archive is not sent, or no longer; None if nothing stands against it."""
        nodes = self._launcher.nodes
        if lost:
            return f"node {lost[0]} is lost"
        if away := [node for node in nodes if node not in homes]:
            return f"the agent on node {away[0]} is not there"
        places = sorted({str(homes[node]) for node in nodes})
        if len(places) > 1:
            return f"agents have different directories, {listed(places, 2)}"
        for node in nodes if archive.is_environment else ():
            lacks, has = self.rooms.get(node) or (0, 0)
            if has < lacks + archive.bytes:
                return f"the disk of node {node} has no room for it beside its copy ({size(has)})"
        return None

    def _send(
        self, archive: _Archive, homes: Mapping[str, Path], turn: Callable[[], None]
    ) -> str | None:
        nodes, job = self._launcher.nodes, self._launcher.whole_job
        assert job is not None
        if self._call is None:
            paths, limit = NodePaths(homes[nodes[0]]), PATIENCE + archive.bytes / SLOWEST
            place = paths.sent_environment if archive.is_environment else paths.sent_code
            send = partial(client.broadcast, job, str(archive.source), str(place), limit)
            self._call = BackgroundCall(send)
        is_told = False
        while not self._call.wait(0.05):
            turn()
            if not is_told and self._call.took > _IS_LONG:
                is_told = True
                say(f"sbcast sends {archive.what} to {len(nodes)} nodes")
        found, self._call = self._call.result(), None
        return found
