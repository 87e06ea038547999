"""Runs whose code was another than that of now: those that completed, and those that go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrun import text
from hpcrun.errors import UsageError
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import Plan
from hpcrun.submit.code import snapshot
from hpcrun.submit.run_actions import Decision
from hpcrun.submit.submission_dir import code_of, scope

_SHOWN = 5


@dataclass(frozen=True)
class Older:
    """Runs, and the files of their code that are not what they were.

    Attributes
    ----------
    runs
        Their numbers.
    files
        Such as ``train.py changed``, by name.
    """

    runs: tuple[int, ...]
    files: tuple[str, ...]

    def told(self, what: str) -> str:
        """``WHAT: runs 0-3: train.py changed``."""
        more = f" and {len(self.files) - _SHOWN} more" if len(self.files) > _SHOWN else ""
        return f"{what}: {text.runs(self.runs)}: {', '.join(self.files[:_SHOWN])}{more}"


def find(experiment: ExperimentPaths, plan: Plan, *groups: Sequence[Decision]) -> list[list[Older]]:
    """Compare the code of now with what runs were last submitted with, for each group of them.

    The spec itself does not count: what a run computes of it is its identity.

    Raises
    ------
    UsageError
        The code of now or of then cannot be read.
    """
    archives = [_archives(experiment, decisions) for decisions in groups]
    if not any(archives):
        return [[] for _ in groups]
    now = snapshot.look(Path(plan.code_root), **scope(plan, experiment))
    spec = Path(plan.spec_file)
    changed: dict[Path, tuple[str, ...]] = {}
    for archive in {each for group in archives for each in group}:
        then = snapshot.read(archive)
        changed[archive] = tuple(
            f"{name} {_how(name, then, now)}"
            for name in sorted({*then, *now})
            if then.get(name) != now.get(name) and Path(plan.code_root, name) != spec
        )
    return [
        [Older(tuple(sorted(runs)), changed[one]) for one, runs in group.items() if changed[one]]
        for group in archives
    ]


def _archives(experiment: ExperimentPaths, decisions: Sequence[Decision]) -> dict[Path, list[int]]:
    """Frozen code -> the runs that were last submitted with it."""
    found: dict[Path, list[int]] = {}
    by_submission: dict[int, list[int]] = {}
    for decision in decisions:
        if decision.job is not None:
            by_submission.setdefault(decision.job.submission, []).append(decision.run)
    for number, runs in by_submission.items():
        earlier = experiment.submission(number)
        try:
            archive = earlier.experiment.code / code_of(earlier)["archive"]
        except UsageError:
            continue
        found.setdefault(archive, []).extend(runs)
    return found


def _how(name: str, then: Mapping[str, bytes], now: Mapping[str, bytes]) -> str:
    if name not in then:
        return "added"
    return "changed" if name in now else "removed"
