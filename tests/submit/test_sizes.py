"""Runs that are to go on with another number of ranks, at submission."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.manifest import File, Manifest
from hpcrun.state.plan import Entry, RunPlan
from hpcrun.submit import sizes


def run_of(number: int, nodes: int) -> RunPlan:
    resources = {"nodes": nodes, "ntasks_per_node": 2, "gpus_per_node": 0}
    return RunPlan(number, "", "", {}, Entry("command", argv=("true",)), {"resources": resources})


@pytest.fixture
def saved(tmp_path: Path) -> ExperimentPaths:
    """Run 3 was saved by 4 ranks, run 4 too, which cannot be divided; run 5 never."""
    paths = ExperimentPaths(tmp_path)
    for number, fixed in ((3, None), (4, "the model is a pipeline")):
        directory = paths.run(number).checkpoint(7, 1)
        directory.mkdir(parents=True)
        Manifest(7, 1, 0.0, 4, 1, 8, {"model.pt": File(1, "")}, fixed_size=fixed).write(directory)
    return paths


def test_the_same_number_of_ranks_is_no_news(saved: ExperimentPaths) -> None:
    sizes.check([run_of(number, 2) for number in (3, 4, 5)], saved, pytest.fail)


def test_what_is_converted_is_told(saved: ExperimentPaths) -> None:
    said: list[str] = []
    sizes.check([run_of(3, 1), run_of(5, 1)], saved, said.append)
    assert said == [
        "checkpoints that are converted for another number of ranks as the jobs start: "
        "run 3, 4 to 2 ranks"
    ]


def test_what_cannot_be_converted_is_refused(saved: ExperimentPaths) -> None:
    with pytest.raises(UsageError) as caught:
        sizes.check([run_of(3, 1), run_of(4, 4)], saved, pytest.fail)
    assert "run 4, 4 to 8 ranks: the model is a pipeline" in str(caught.value)
    assert "hint: ask for as many ranks as before, or start afresh with --new" in str(caught.value)
