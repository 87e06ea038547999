"""Whether there is what runs are to begin with, told before the queue."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpcrun.errors import UsageError
from hpcrun.state.init_from import Origin
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import runs_text


def check(
    runs: Sequence[RunPlan], experiment: ExperimentPaths, coming: Collection[str] = ()
) -> None:
    """Look for the checkpoints that runs without one of their own are initialized from.

    Parameters
    ----------
    coming
        Experiments that the runs wait for, which will have theirs by then.

    Raises
    ------
    UsageError
        One is not there.
    """
    wanted: dict[str, list[int]] = {}
    for run in runs:
        text = run.spec["checkpoint"].get("initialize_from")
        if text is None or Origin.parse(text).run.partition("/")[0] in coming:
            continue
        if not experiment.run(run.number).checkpoints.is_dir():
            wanted.setdefault(text, []).append(run.number)
    for text, numbers in wanted.items():
        try:
            Origin.parse(text).find(experiment.directory.parent)
        except UsageError as error:
            raise UsageError(f"{runs_text(numbers)}: {error.message}", hint=error.hint) from None
