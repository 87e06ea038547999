"""The words before a command that have it run in a run's container, and what that one mounts."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpcrun import feature
from hpcrun.container import runtimes
from hpcrun.container.runtimes import Mount
from hpcrun.host import expand_home
from hpcrun.shared_dataclass import asdict, dataclass, field
from hpcrun.state.environment.environment_block import Container
from hpcrun.state.layout import SubmissionPaths, named_run
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
        mounts = run_mounts(container, submission, plan, run)
        return of_container(container, mounts, given, str(submission.package))


def image_facts(container: Container) -> dict[str, str]:
    """Return what tells whether an image of one file was replaced, to be compared as packages."""
    try:
        found = os.stat(container.image)
    except OSError:
        return {}
    if not stat.S_ISREG(found.st_mode):
        return {}
    from datetime import datetime

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
    """Return the words of a container in which the user's ``given`` variables hold.

    Python finds hpcrun in ``package``; None where it need not. ``probes``: before the queue, where
    a node may lack what those of the job have, which is told in the words of
    `hpcrun.submission.python_probe`, and no program of another user is started.
    """
    paths = [one for one in (package, given.get(PYTHONPATH)) if one]
    path = f"{PYTHONPATH}={os.pathsep.join(paths)}"
    python = ("env", path if paths else f"-u{PYTHONPATH}", container.python)
    runtime = runtimes.of(container)
    if runtime.is_of_srun:
        import tempfile

        base = tempfile.gettempdir()
        shown = [Mount(base, base), *mounts]
        return RankPython((), tuple(runtime.srun_options(container, shown)), python)
    told = {
        "container": asdict(container),
        "given": sorted(given),
        "probes": probes,
        "mounts": [[one.source, one.target, one.read_only] for one in mounts],
    }
    return RankPython((sys.executable, "-m", PROGRAM, json.dumps(told), "--"), (), python)


def run_mounts(
    container: Container, submission: SubmissionPaths, plan: Plan, run: RunPlan
) -> list[Mount]:
    """Return the mounts of a run, hpcrun's own first; each node adds its temporary directory.

    What a mount of the user's shows at its own path has none besides. The root of experiments has
    the run's directory, hpcrun itself and compiled operators.
    """
    own = [Mount(str(submission.experiment.directory.parent), "")]
    for link in run.code.link:
        own.append(Mount(os.path.realpath(plan.place(link)), ""))
    for one in feature.every().values():
        own += [Mount(path, "", True) for path in one.mounts(run)]
    if run.environment.secrets_file:
        own.append(Mount(str(expand_home(run.environment.secrets_file)), "", True))
    if run.checkpoint.initialize_from:
        from hpcrun.state.init_from import Origin

        path = expand_home(Origin.parse(run.checkpoint.initialize_from).run)
        if path.is_absolute():
            own.append(Mount(str(named_run(path)[0].directory), "", True))
    users = [Mount.parse(text) for text in container.mounts]
    shown = {one.source for one in users if one.source == one.target and not one.read_only}
    wanted = [one for one in own if shown.isdisjoint(map(str, Path(one.source, "_").parents))]
    return [*_without_covered(wanted), *users]


def _without_covered(found: Iterable[Mount]) -> list[Mount]:
    """Return mounts at their own paths, without those that another one shows anyway."""
    kept: list[Mount] = []
    for mount in sorted(found, key=lambda mount: (mount.source.count("/"), mount.read_only)):
        path = Path(mount.source)
        above = {str(path), *map(str, path.parents)}
        if not any(one.source in above for one in kept):
            kept.append(Mount(mount.source, mount.source, mount.read_only))
    return kept
