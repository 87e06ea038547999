"""Whether a submit that names no cluster goes to another one than the submit before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcrun.compile.freeze import Compiled
from hpcrun.state import history
from hpcrun.state.layout import ExperimentPaths, experiment


@dataclass(frozen=True)
class OtherCluster:
    """The default cluster is not the one of an experiment's last submission to a queue."""

    experiment: str
    before: str
    now: str

    def __str__(self) -> str:
        return (
            f"{self.experiment} was last submitted to the cluster {self.before}; none is named "
            f"now, and the default here is {self.now}"
        )

    @property
    def hint(self) -> str:
        return f"name it: cluster={self.before} as before, or cluster={self.now}"


def other_cluster(chain: Sequence[Compiled]) -> OtherCluster | None:
    """Return the first experiment of a chain whose cluster is another, though none was named.

    What ran on this machine does not count: runs are tried there before they are queued.
    """
    for one in chain:
        if one.has_default_cluster:
            before, now = _last(experiment(one.root, one.name)), str(one.cluster.get("name"))
            if before not in (None, now):
                return OtherCluster(one.name, str(before), now)
    return None


def _last(paths: ExperimentPaths) -> str | None:
    for submission in reversed(paths.submissions()):
        plan = history.readable_plan(submission)
        if plan is not None and plan.executor.queues:
            return str(plan.cluster.get("name"))
    return None
