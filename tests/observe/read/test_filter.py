"""Conditions on values, states and metrics: which runs meet them, and what is said of none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.observe.read.filter import narrow
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.state.annotation_log import Annotation, Note
from tests.support import filter_cases
from tests.support.experiment import Experiment


@dataclass(frozen=True)
class Known:
    state: str
    last_cause: str | None = None
    attempt: int | None = None
    step: int | None = None
    metrics: dict[str, float] | None = None
    age: float | None = None


DAY = 86400.0
FACTS = [
    Known("completed", None, 1, 100, {"loss": 1.5}, 40 * DAY),
    Known("failed", "out_of_memory", 3, 50, {"loss": 2.5}, 8 * DAY),
    Known("failed", "rank_crash", 1, None, None, 1800.0),
    Known("planned"),
]


class Looks:
    """Answers as the files of runs would, and remembers for which it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.values: list[bool] = []

    def __call__(self, runs: Sequence[Selected], values: bool) -> list[Known]:
        self.asked.append([one.run.number for one in runs])
        self.values.append(values)
        return [FACTS[one.run.number] for one in runs]


@pytest.fixture
def runs(tmp_path: Path) -> list[Selected]:
    study = Experiment(tmp_path, "study")
    grid = [(1e-3, "gpt"), (3e-4, "gpt"), (1e-3, "bert"), (3e-4, "bert")]
    study.submit(
        range(4),
        swept={
            n: {"config.lr": lr, "config.model.name": name} for n, (lr, name) in enumerate(grid)
        },
    )
    return Finder(tmp_path).resolve(["study"])


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("lr>=1e-3", [0, 2]),
        ("lr<.001", [1, 3]),
        ("lr!=3e-4", [0, 2]),
        ("lr=1e-3,3e-4", [0, 1, 2, 3]),
        ("state=failed", [1, 2]),
        ("run.state=failed", [1, 2]),
        ("state!=failed", [0, 3]),
        ("state=failed,planned", [1, 2, 3]),
        ("cause=out_of_memory", [1]),
        ("cause=null", [0, 3]),
        ("attempts>2", [1]),
        ("attempts=0", [3]),
        ("step>=50", [0, 1]),
        ("metric.loss<2", [0]),
        ("not metric.loss<2", [1, 2, 3]),
        ("state=failed and (lr=1e-3 or attempts>2)", [1, 2]),
        ("state=planned or model.name=gpt and not lr=1e-3", [1, 3]),
    ],
)
def test_who_meets_it(runs: list[Selected], condition: str, expected: list[int]) -> None:
    assert [one.run.number for one in narrow(runs, [condition], look=Looks())] == expected


def test_what_is_not_needed_is_not_read(runs: list[Selected]) -> None:
    look = Looks()
    narrow(runs, ["lr=1e-3"], look=look)
    assert look.asked == []
    # Whoever does not meet the cheap conditions is not read, wherever these stand.
    narrow(runs, ["state=failed and lr=1e-3", "model.name=bert"], look=look)
    assert (look.asked, look.values) == ([[2]], [False])
    narrow(runs, ["state=failed and attempts>0 and metric.loss>0"], look=look)
    assert (look.asked[1:], look.values[1:]) == ([[0, 1, 2, 3]], [True])


@pytest.mark.parametrize(
    ("condition", "message", "hint"),
    [
        ("state=running", "no run has state=running; its values are failed (2), completed", ""),
        ("state=runing", "there is no state 'runing'", "did you mean state=running? accepted are"),
        ("cause=oom", "there is no cause 'oom'", "did you mean cause=out_of_memory?"),
        ("state<3", "< compares numbers; state is failed (2)", "state=VALUE"),
        ("lr<many", "found 'many' after <; accepted is a number", ""),
        ("metric.los<2", "no run has logged a metric 'los'", "did you mean loss? logged are loss"),
        ("lr>5", "no run has config.lr>5; its values are 0.0003, 0.001", ""),
        ("lr>5 or state=running", "no run meets it; config.lr is 0.0003, 0.001; state is", ""),
        (
            "lr=1e-3 and cause=out_of_memory",
            "none of the 2 runs that meet the rest has cause=out_of_memory; its values are",
            "",
        ),
        ("nothing=3", "no swept or configured key ends in 'nothing'", "config.lr, config.model"),
        ("stat=failed", "key ends in 'stat'", "did you mean run.state?"),
    ],
)
def test_errors(runs: list[Selected], condition: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        narrow(runs, [condition], look=Looks())
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_runs_without_the_metric_are_named(runs: list[Selected]) -> None:
    said: list[str] = []
    narrow(runs, ["metric.loss<2"], look=Looks(), say=said.append)
    assert said == [
        "2 runs have no loss yet, and so are neither less nor greater: study/2, study/3"
    ]


def test_a_key_that_is_called_as_a_fact_is(tmp_path: Path) -> None:
    study = Experiment(tmp_path, "odd")
    study.submit(range(2), swept={n: {"config.step": n} for n in range(2)})
    runs = Finder(tmp_path).resolve(["odd"])
    with pytest.raises(UsageError, match=r"could be config\.step, run\.step"):
        narrow(runs, ["step>0"], look=Looks())
    assert [one.run.number for one in narrow(runs, ["config.step>0"], look=Looks())] == [1]
    assert [one.run.number for one in narrow(runs, ["run.step>60"], look=Looks())] == [0]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Selected]:
    """The runs of ``filter_cases``."""
    root = tmp_path_factory.mktemp("cases")
    Experiment(root).submit(range(4), swept=filter_cases.SWEPT, spec={})
    return [
        replace(one, annotation=Annotation((*tags,), (*map(Note, notes),)))
        for one, tags, notes in zip(
            Finder(root).resolve(["study"]), filter_cases.TAGS, filter_cases.NOTES, strict=True
        )
    ]


def _meeting(runs: list[Selected], text: str, **more: Any) -> list[int] | str:
    def look(some: Sequence[Selected], _values: bool) -> list[Known]:
        rows = [*zip(*filter_cases.FACTS.values(), filter_cases.METRICS, strict=True)]
        return [Known(*rows[one.run.number]) for one in some]

    try:
        return [one.run.number for one in narrow(runs, [text], look=look, **more)]
    except UsageError as error:
        return error.message


@pytest.mark.parametrize(("text", "expected"), filter_cases.CASES)
def test_cases(cases: list[Selected], text: str, expected: list[int] | None) -> None:
    """As the script of a report's page answers them, in tests/tools/report/test_browser.py."""
    found = _meeting(cases, text)
    searched = _meeting(cases, text, text_of=lambda one: filter_cases.text(one.run.number))
    if expected:
        assert found == searched == expected
    else:
        assert isinstance(found, str)
        assert isinstance(searched, str)


@pytest.mark.parametrize(("text", "expected"), filter_cases.SEARCHES)
def test_words_alone(cases: list[Selected], text: str, expected: list[int] | None) -> None:
    found = _meeting(cases, text, text_of=lambda one: filter_cases.text(one.run.number))
    assert found == expected if expected else isinstance(found, str)
    if "=" not in text:
        assert "is not of the form" in str(_meeting(cases, text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age>30d", [0]),
        ("run.age>=1w", [0, 1]),
        ("age<31m", [2]),
        ("age<1h", [2]),
        ("age>1799s", [0, 1, 2]),
        ("age>0.5d and age < 2w", [1]),
        ("state=failed,age>1d", [1]),
        # What was never submitted has no age.
        ("not age>30d", [1, 2, 3]),
        ("age>2000w", "no run has age>2000w; its values are 30 min to 40 d"),
        ("age>30", "'age>30': 30 has no unit; accepted are s, m (minutes), h, d and w"),
        ("age>30y", "found '30y' after >; accepted is a number and a unit: s, m (minutes), h, d"),
        ("age>-1d", "found '-1d' after >"),
        ("age=30d", "an age is compared by <, <=, > or >="),
        ("age~3", "an age is compared by <, <=, > or >="),
        ("age!=null", "an age is compared by <, <=, > or >="),
    ],
)
def test_age(runs: list[Selected], text: str, expected: list[int] | str) -> None:
    looks = Looks()
    if isinstance(expected, list):
        assert [one.run.number for one in narrow(runs, [text], look=looks)] == expected
        assert all(looks.values)
        return
    with pytest.raises(UsageError) as error:
        narrow(runs, [text], look=looks)
    assert expected in error.value.message


def test_a_bare_number_is_told_what_to_type(runs: list[Selected]) -> None:
    with pytest.raises(UsageError) as error:
        narrow(runs, ["age<=7"], look=Looks())
    assert error.value.hint == "for days: 'age<=7d'"
    only_planned = [one for one in runs if one.run.number == 3]
    with pytest.raises(UsageError, match="its values are not known"):
        narrow(only_planned, ["age>1d"], look=Looks())


def test_a_swept_key_that_is_called_so_is_told_apart(tmp_path: Path) -> None:
    Experiment(tmp_path, "ages").submit((0, 1), swept={n: {"config.age": n} for n in (0, 1)})
    ages = Finder(tmp_path).resolve(["ages"])
    assert [one.run.number for one in narrow(ages, ["config.age>0"], look=Looks())] == [1]
    with pytest.raises(UsageError, match="ambiguous"):
        narrow(ages, ["age>0"], look=Looks())
