"""Runs that were last submitted with other code than the code of now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrun import activity
from hpcrun.errors import UsageError
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import Plan
from hpcrun.submission.code import code_files, snapshot
from hpcrun.submission.code.code_diff import CodeDiff
from hpcrun.submission.run_actions import Decision
from hpcrun.text import listed, runs_text

_SHOWN = 5


@dataclass(frozen=True)
class ChangedCode:
    """Runs whose frozen code differs alike from the code of now."""

    runs: tuple[int, ...]
    files: tuple[str, ...]
    """Such as ``train.py changed``, by name."""

    def told(self, what: str) -> str:
        """``WHAT: runs 0-3: train.py changed``."""
        return f"{what}: {runs_text(self.runs)}: {listed(self.files, _SHOWN)}"


def find(
    experiment: ExperimentPaths, plan: Plan, *groups: Sequence[Decision]
) -> list[list[ChangedCode]]:
    """Compare the code of now with the code that runs were last submitted with, group by group.

    The spec itself does not count: what a run computes from it is its identity. Raise UsageError if
    the code of now or the frozen code cannot be read.
    """
    archives = [_archives(experiment, decisions) for decisions in groups]
    if not any(archives):
        return [[] for _ in groups]
    with activity.doing(f"comparing {plan.code_root} with the code that runs were submitted with"):
        now = snapshot.look(Path(plan.code_root), **code_files.scope(plan, experiment))
        changed = {
            archive: tuple(
                f"{name} {how}"
                for name, how in CodeDiff(snapshot.read(archive), now).files.items()
                if Path(plan.code_root, name) != Path(plan.spec_file)
            )
            for archive in {each for group in archives for each in group}
        }
    return [
        [
            ChangedCode(tuple(sorted(runs)), changed[one])
            for one, runs in group.items()
            if changed[one]
        ]
        for group in archives
    ]


def _archives(experiment: ExperimentPaths, decisions: Sequence[Decision]) -> dict[Path, list[int]]:
    """Map frozen archives to the runs that were last submitted with them."""
    found: dict[Path, list[int]] = {}
    by_submission: dict[int, list[int]] = {}
    for decision in decisions:
        if decision.job is not None:
            by_submission.setdefault(decision.job.submission, []).append(decision.run)
    for number, runs in by_submission.items():
        earlier = experiment.submission(number)
        try:
            archive = earlier.experiment.code / snapshot.recorded(earlier)["archive"]
        except UsageError:
            continue
        found.setdefault(archive, []).extend(runs)
    return found
