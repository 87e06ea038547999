"""A search whose runs are on two hosts: clocks 30 s apart, and caches that are late.

Each host believes what it saw for longer than the test takes, unless it asks the server
(`tests.support.nfs`). What it decides is what it would decide on a local disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpcrun.compile.sweep import optuna_space
from hpcrun.feature import Enough
from hpcrun.features.point_search import budget, inherited, population, pruning, study
from hpcrun.features.point_search.pruning import Pruning
from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.state import chosen_point, ledger, manifest, permissions, plan_file
from hpcrun.state.chosen_point import ChosenPoint
from hpcrun.state.plan import SEARCH
from tests.features.point_search.test_population import Population
from tests.support.experiment import TRAIN, Experiment
from tests.support.nfs import Host
from tests.support.waiting import until

TRIALS, SKEW = 24, 30.0
SPACE = {"config.x": {"uniform": [0, 1]}}


@contextmanager
def ahead(seconds: float) -> Iterator[None]:
    """The clock of a host that is so far ahead."""
    clock = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: clock() + seconds)
        yield


class Seat:
    """A host, as its supervisors see the search."""

    def __init__(self, root: Path, seconds: float) -> None:
        self.search, self._ahead = Experiment(root), seconds

    def submit(self) -> None:
        asked = {"space": SPACE, "sampler": "tpe", "seed": 0, "first": [], "prune": "median"}
        resources = {"nodes": 1, "gpus_per_node": 1, "time": "01:00:00"}
        with ahead(self._ahead):
            self.search.submit(
                range(TRIALS),
                spec={SEARCH: asked, "progress": {"total": 3}, "resources": resources},
                when=time.time(),
            )

    def ask(self, number: int) -> dict[str, Any]:
        with ahead(self._ahead):
            plan = plan_file.read(self.search.paths.submission(1).plan)
            values = study.choose(plan.run(number), self.search.paths)
            point = ChosenPoint(f"x={values['config.x']}", values, {}, TRAIN)
            chosen_point.write(self.search.run(number), point)
            return values

    def begin(self, number: int, attempt: int = 1) -> None:
        with ahead(self._ahead):
            self.search.start(number, attempt, when=time.time())

    def step(self, number: int, loss: float, attempt: int = 1) -> None:
        self.search.metrics(number, attempt, [1, 2], loss=loss)

    def end(self, number: int, attempt: int = 1) -> None:
        with ahead(self._ahead):
            self.search.end(number, attempt)

    def trials(self) -> list[tuple[str, float | None, dict[str, Any]]]:
        with ahead(self._ahead):
            plan = plan_file.read(self.search.paths.submission(1).plan)
            space = {key: optuna_space.distribution(form) for key, form in SPACE.items()}
            others = [one for one in plan.runs if one.swept]
            told = study._trials(others, self.search.paths, space)
            return [
                (one.state.name, one.values[0] if one.values else None, one.params) for one in told
            ]

    def hours(self) -> float:
        with ahead(self._ahead):
            plan = plan_file.read(self.search.paths.submission(1).plan)
            return budget.hours(plan.runs, self.search.paths)

    def is_pruned(self, number: int, monkeypatch: pytest.MonkeyPatch) -> bool:
        monkeypatch.setattr(pruning, "_EVERY", 0.0)
        plan = plan_file.read(self.search.paths.submission(1).plan)
        paths = self.search.run(number)

        def record(event: str, **fields: Any) -> None:
            ledger.write(paths, event, 1, **fields)

        part = Pruning(plan.run(number), paths.attempt(1), record)
        with ahead(self._ahead):
            part.turn()
            until(lambda: part._looking is not None and part._looking.wait(0), "a look", 10)
            try:
                part.turn()
            except Enough:
                return True
        return False


@pytest.mark.parametrize("skew", [SKEW, -SKEW])
def test_it_goes_on_rightly(
    two_hosts: tuple[Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """Each trial is told once, at once, on both hosts; none is pruned for what is not so."""
    there, here = (Seat(host.path, by) for host, by in zip(two_hosts, (skew, 0.0), strict=True))
    local = Seat(tmp_path / "local", 0.0)
    for seat in (there, local):
        seat.submit()
    told: list[Any] = []
    for number in range(TRIALS):
        mine, other = (there, here) if number % 2 else (here, there)
        # Both look before there is anything, and remember that.
        for seat in (mine, other):
            assert seat.trials() == told
            assert chosen_point.read(seat.search.run(number)) is None
            assert ledger.intent(seat.search.run(number)) is None
        values = mine.ask(number)
        assert values == local.ask(number)
        # It is started once more, on the other host, before it has begun.
        assert chosen_point.read(other.search.run(number)).swept == values  # type: ignore[union-attr]
        chosen_point.write(other.search.run(number), ChosenPoint("", {"config.x": 2}, {}, TRAIN))
        assert [seat.trials()[-1] for seat in (mine, other)] == [("RUNNING", None, values)] * 2
        loss = (values["config.x"] - 0.3) ** 2
        for seat in (mine, local):
            seat.begin(number)
            seat.step(number, loss)
        answers = [seat.is_pruned(number, monkeypatch) for seat in (mine, local)]
        assert answers[0] == answers[1]
        for seat in (mine, local):
            seat.end(number)
        told.append(("PRUNED" if answers[0] else "COMPLETE", pytest.approx(loss), values))
        assert mine.trials() == other.trials() == local.trials() == told
    assert {state for state, _, _ in told} == {"PRUNED", "COMPLETE"}


@pytest.mark.parametrize("skew", [SKEW, -SKEW])
def test_a_run_that_goes_on_on_the_other_host(two_hosts: tuple[Host, Host], skew: float) -> None:
    """Its second attempt may begin before the first one did, by their clocks."""
    there, here = (Seat(host.path, by) for host, by in zip(two_hosts, (skew, 0.0), strict=True))
    there.submit()
    values = there.ask(0)
    there.begin(0)
    there.step(0, 0.5)
    running: Callable[[Seat], Any] = lambda seat: seat.trials()  # noqa: E731
    assert running(here) == running(there) == [("RUNNING", None, values)]
    # The hours that it has held its node for: none yet, whoever looks.
    assert all(0 <= seat.hours() <= (abs(skew) + 5) / 3600 for seat in (there, here))
    here.begin(0, 2)
    here.step(0, 0.4, 2)
    assert running(here) == running(there) == [("RUNNING", None, values)]
    here.end(0, 2)
    assert running(here) == running(there) == [("COMPLETE", 0.4, values)]
    assert all(0 <= seat.hours() <= (abs(skew) + 5) / 3600 for seat in (there, here))


def test_a_trial_that_goes_on_on_the_other_host(
    two_hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hosts looked before the parents had saved, and as the trial had no values."""
    # Files of root are nobody's there.
    monkeypatch.setattr(permissions, "stranger", lambda path: None)
    there, here = (Population(host.path) for host in two_hosts)
    there.submit()
    assert here.ask(3) is None
    for number in range(2):
        there.begin(number)
    assert here.ask(4) == there.ask(4) == population.ANEW
    for number in range(2):
        there.save(number, 20, float(number))
    assert here.ask(4) == "0@20"
    assert there.point(4) == here.point(4)
    # The parent has newer ones of its own; the run starts on the other host.
    manifest.discard(there.experiment.run(0).checkpoints / "step-00000020-a1")
    inherited.settle(there.experiment.run(4))
    for seat in (there, here):
        ((directory, entry),) = manifest.complete(seat.experiment.run(4).checkpoints)
        faults = [checkpoint_files.damage(directory, *pair) for pair in entry.files.items()]
        assert [*filter(None, faults)] == []
