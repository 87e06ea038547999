"""``checkpoint.initialize_from``: the checkpoint of another run, ``RUN[@step]``."""

from __future__ import annotations

import re
from pathlib import Path

from hpcrun.errors import UsageError
from hpcrun.host import expand_home
from hpcrun.shared_dataclass import dataclass
from hpcrun.state import manifest, plan_file
from hpcrun.state.layout import ExperimentPaths, RunPaths, named_run
from hpcrun.state.manifest import Manifest
from hpcrun.text import range_text

KEY = "checkpoint.initialize_from"
_SHOWN = 8


@dataclass(frozen=True)
class Origin:
    """A run and a step of it."""

    run: str
    """``NAME`` of an experiment of one run, ``NAME/3``, or either below another root."""

    step: int | None = None
    """Finished optimizer steps; None for the newest complete checkpoint."""

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Parse ``RUN[@step]``.

        Raises ValueError if it has another form; the message names the accepted ones.
        """
        run, at, step = text.rpartition("@")
        if not re.fullmatch("[0-9]{1,15}", step):
            run, at, step = text, "", ""
        if not run.strip("/ ") or ("@" in run and "/" not in run):
            raise ValueError(
                f"found {text!r}; accepted is a run and perhaps a step, such as pretrain/0 or "
                "pretrain/0@1200"
            )
        return cls(run.strip(), int(step) if at else None)

    def find(self, root: Path) -> tuple[Path, Manifest]:
        """Find the checkpoint, below ``root`` unless the name is an absolute path.

        Raises UsageError if there is no such checkpoint.
        """
        run = self._paths(root)
        try:
            found = manifest.complete(run.checkpoints)
        except OSError as error:
            why = f"{run.checkpoints} cannot be read: {error.strerror}"
            raise self._missing(why, "its owner can let you read it") from None
        if not found:
            raise self._missing(
                f"{run.directory} has no complete checkpoint",
                "`hpcrun status` tells how far it is; submit this once it has saved",
            )
        if self.step is None:
            return found[0]
        for directory, entry in found:
            if entry.step == self.step:
                return directory, entry
        steps = sorted({entry.step for _, entry in found})
        shown = ", ".join(map(str, steps[-_SHOWN:]))
        raise self._missing(
            f"{run.directory} has no checkpoint of step {self.step}",
            f"it has those of steps {'…, ' if len(steps) > _SHOWN else ''}{shown}; "
            "checkpoint.keep_every keeps more",
        )

    def _paths(self, root: Path) -> RunPaths:
        experiment, number = named_run(root / expand_home(self.run))
        path = experiment.directory
        if not experiment.exists:
            raise self._missing(f"there is no experiment {path}", "`hpcrun list` shows all")
        numbers = experiment.run_numbers()
        planned = _planned(experiment)
        if number is None and len(planned) > 1:
            several = f"{path.name} has several runs, {range_text(planned)}"
            raise self._missing(several, f"say which, such as {self.run}/{min(planned)}")
        if number is None and len(numbers) != 1:
            raise self._missing(f"no run of {path.name} has begun", "`hpcrun status` shows them")
        if number is not None and number not in numbers:
            raise self._missing(
                f"{path.name} has no run {number} that has begun",
                f"those that have: {range_text(numbers)}",
            )
        return experiment.run(numbers[0] if number is None else number)

    def _missing(self, message: str, hint: str) -> UsageError:
        step = "" if self.step is None else f"@{self.step}"
        return UsageError(f"{KEY}: {self.run}{step}: {message}", hint=hint)


def _planned(experiment: ExperimentPaths) -> set[int]:
    """Return the numbers of all runs that were ever planned."""
    found: set[int] = set()
    for submission in experiment.submissions():
        try:
            found |= {run.number for run in plan_file.read(submission.plan).runs}
        except (OSError, ValueError, UsageError):
            continue
    return found or {*experiment.run_numbers()}
