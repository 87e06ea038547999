"""The mounts that a run's container needs beside the user's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hpcrun.container.runtimes import Mount
from hpcrun.host import expand_home
from hpcrun.state.environment.environment_block import Container
from hpcrun.state.init_from import Origin
from hpcrun.state.layout import SubmissionPaths, named_run
from hpcrun.state.plan import Plan, RunPlan


def mounts(
    container: Container, submission: SubmissionPaths, plan: Plan, run: RunPlan
) -> list[Mount]:
    """Return the mounts of a run, hpcrun's own first; each node adds its temporary directory.

    What a mount of the user's shows at its own path has none besides.

    The root of experiments has the run's directory, hpcrun itself and compiled operators.
    """
    own = [Mount(str(submission.experiment.directory.parent), "")]
    for link in run.code.link:
        own.append(Mount(os.path.realpath(plan.place(link)), ""))
    for source in run.staging.paths:
        while any(sign in source for sign in "*?["):
            # The directory above a glob holds all that it names.
            source = os.path.dirname(source)  # noqa: PTH120
        own.append(Mount(source, "", True))
    if run.environment.secrets_file:
        own.append(Mount(str(expand_home(run.environment.secrets_file)), "", True))
    if run.checkpoint.initialize_from:
        path = expand_home(Origin.parse(run.checkpoint.initialize_from).run)
        if path.is_absolute():
            own.append(Mount(str(named_run(path)[0].directory), "", True))
    users = [Mount.parse(text) for text in container.mounts]
    shown = {one.source for one in users if one.source == one.target and not one.read_only}
    wanted = [one for one in own if shown.isdisjoint(map(str, Path(one.source, "_").parents))]
    return [*without_covered(wanted), *users]


def without_covered(found: Iterable[Mount]) -> list[Mount]:
    """Return mounts at their own paths, without those that another one shows anyway."""
    kept: list[Mount] = []
    for mount in sorted(found, key=lambda mount: (mount.source.count("/"), mount.read_only)):
        path = Path(mount.source)
        above = {str(path), *map(str, path.parents)}
        if not any(one.source in above for one in kept):
            kept.append(Mount(mount.source, mount.source, mount.read_only))
    return kept
