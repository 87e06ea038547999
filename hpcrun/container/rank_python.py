"""The words before a command that have it run in a run's container."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from hpcrun.container import run_mounts, runtimes
from hpcrun.container.runtimes import Mount
from hpcrun.state.environment.environment_block import Container
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import Plan, RunPlan

PROGRAM = "hpcrun.run.enter"
# Begins the line in which a probe tells why it was not made.
NOT_PROBED = "hpcrun-probe-not:"
# Before the names of variables that do not go inside.
OUTSIDE = "HPCRUN_OUTSIDE_"
PYTHONPATH = "PYTHONPATH"


@dataclass(frozen=True)
class RankPython:
    """The Python of a run's ranks, in a container or beside their agent, and how it is started."""

    prefix: tuple[str, ...] = ()
    """Put before a command on a node; empty without a container, and for Pyxis."""
    srun: tuple[str, ...] = ()
    """Further options of the srun that starts it."""
    python: tuple[str, ...] = field(default_factory=lambda: (sys.executable,))
    """Starts the ranks' Python there."""

    @property
    def is_container(self) -> bool:
        return bool(self.prefix or self.srun)

    @property
    def is_anywhere(self) -> bool:
        """A command can be started there without srun."""
        return not self.srun

    def command(self, *words: str) -> list[str]:
        """Return the command line of the ranks' Python with these arguments."""
        return [*self.prefix, *self.python, *words]

    @classmethod
    def of(cls, submission: SubmissionPaths, plan: Plan, run: RunPlan) -> RankPython:
        """Return the words of a submitted run."""
        container = run.container
        if container is None:
            return cls()
        given = {**(plan.cluster.get("variables") or {}), **run.environment.variables}
        mounts = run_mounts.mounts(container, submission, plan, run)
        return of_container(container, mounts, given, str(submission.package))


def image_facts(container: Container) -> dict[str, str]:
    """Return what tells whether an image of one file was replaced, to be compared as packages."""
    try:
        found = os.stat(container.image)
    except OSError:
        return {}
    if not stat.S_ISREG(found.st_mode):
        return {}
    written = datetime.fromtimestamp(found.st_mtime).isoformat(" ", "seconds")
    return {"container image": f"of {written}, {found.st_size:,} bytes"}


def of_container(
    container: Container,
    mounts: Sequence[Mount],
    given: Mapping[str, str],
    package: str | None,
    *,
    probes: bool = False,
) -> RankPython:
    """Return the words of a container.

    Parameters
    ----------
    given
        The user's variables, which hold inside whatever they are.
    package
        Where Python finds hpcrun; None where it need not.
    probes
        Before the queue, where a node may lack what those of the job have: it is told in the
        words of `hpcrun.submission.python_probe`, and no program of another user is started.
    """
    paths = [one for one in (package, given.get(PYTHONPATH)) if one]
    path = f"{PYTHONPATH}={os.pathsep.join(paths)}"
    python = ("env", path if paths else f"-u{PYTHONPATH}", container.python)
    runtime = runtimes.of(container)
    if runtime.is_of_srun:
        base = tempfile.gettempdir()
        shown = [Mount(base, base), *mounts]
        return RankPython((), tuple(runtime.srun_options(container, shown)), python)
    told: dict[str, Any] = {"container": asdict(container), "given": sorted(given)}
    told["probes"] = probes
    told["mounts"] = [[one.source, one.target, one.read_only] for one in mounts]
    return RankPython((sys.executable, "-m", PROGRAM, json.dumps(told), "--"), (), python)
