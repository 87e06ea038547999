"""The rows of the screen's views."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hpcrun.control.wait import described
from hpcrun.observe.read.selection import Finder, where_arguments
from hpcrun.observe.status.status import statuses
from hpcrun.observe.status.status_table import Trends
from hpcrun.tools.top import views
from hpcrun.tools.top.views import Picture, node_samples, take
from tests.support.top_study import TopStudy


@pytest.fixture
def picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Picture:
    study = TopStudy(tmp_path)
    for name, value in study.env.items():
        monkeypatch.setenv(name, value)

    def look(warn):  # type: ignore[no-untyped-def]
        warn("one\n  two")
        selected = Finder(study.root).resolve([])
        return selected, statuses(selected, warn=warn)

    found = take(look)
    assert found.problems == ("one two",)
    return found


def _order(picture: Picture, sort: str, backwards: bool = False) -> list[int]:
    view = views.of_runs(picture, range(8), sort, backwards)
    return [place for (place,) in view.targets]


def test_runs_are_sorted_by_what_the_cells_stand_for(picture: Picture) -> None:
    assert _order(picture, "STATE") == [0, 1, 2, 4, 3, 5, 6, 7]
    assert _order(picture, "RUN", True) == [*range(7, -1, -1)]
    assert _order(picture, "lr", True)[:2] == [7, 6]
    assert _order(picture, "STEP")[:3] == [4, 2, 1]
    # 1 min, 5 min, 8 min; and what has no value is last, either way.
    assert _order(picture, "ETA") == [0, 1, 2, 3, 4, 5, 6, 7]
    assert _order(picture, "ETA", True) == [2, 1, 0, 3, 4, 5, 6, 7]
    assert _order(picture, "loss")[0] == 3
    assert _order(picture, "no such column") == [*range(8)]


def test_the_queue_has_a_row_for_what_waits_for_one_reason(picture: Picture) -> None:
    view = views.of_queue(picture, range(8))
    assert view.targets == [(6, 7)]
    row = dict(zip(view.table.headers, view.table.rows[0], strict=True))
    assert row == {
        "JOB": "100",
        "RUNS": "ablation/6-7",
        "STATE": "pending",
        "WAITED": "40 min",
        "NODES": "2",
        "EXPECTED": "2030-01-02 03:04",
        "WHY": "Priority: waits behind jobs of higher priority",
    }


def test_nodes_have_their_runs_and_their_last_telemetry(picture: Picture) -> None:
    samples = node_samples(picture, ["gpu-a01", "gpu-a02", "gpu-a99"])
    assert sorted(samples) == ["gpu-a01", "gpu-a02"]
    view = views.of_nodes(picture, range(8), samples)
    # Those of runs that are over are given back.
    assert [row[0] for row in view.table.rows] == [f"gpu-a0{number}" for number in range(1, 7)]
    row = dict(zip(view.table.headers, view.table.rows[0], strict=True))
    assert row["RUNS"] == "ablation/0"
    assert (row["GPUS"], row["GPU"], row["GPU-MEM"]) == ("8", "92%", "73 GiB")
    assert (row["CPU"], row["MEMORY"]) == ("21%", "212 GiB")
    assert view.table.rows[2][3] == ""
    assert "no telemetry" in view.details[2]
    # Only nodes of the runs that are shown.
    assert len(views.of_nodes(picture, [1], {}).targets) == 2


def test_curves_are_read_for_the_rows_that_are_shown(picture: Picture) -> None:
    found = views.courses(Trends(), picture, [0, 6])
    assert list(found) == [picture.found[0].directory]
    assert len(found[picture.found[0].directory]) == 90


def test_runs_as_arguments(picture: Picture) -> None:
    assert where_arguments(picture.selected[place] for place in (0, 1, 2, 5)) == ["ablation/0-2,5"]


def test_a_long_reason_is_one_short_line(picture: Picture) -> None:
    long = "x.cpp: error\n" * 400
    found = [dataclasses.replace(one, reason=long) for one in picture.found]
    shown = dataclasses.replace(picture, found=found)
    details = [*views.of_runs(shown, range(8), "RUN", False).details]
    queue = views.of_queue(shown, range(8))
    details += [*queue.details, *(row[-1] for row in queue.table.rows)]
    assert len(details) > 9
    assert max(map(len, details)) < 500
    assert max(len(described(one)) for one in found) < 400


def test_the_end_of_a_log(picture: Picture) -> None:
    title, *lines = views.log_end(picture, 0, 4)
    assert title.startswith("ablation/0, rank 0 of attempt 1, its last lines")
    assert lines == ["step 88 of 100", "step 89 of 100", "step 90 of 100"]
    # Of a run that failed, of the rank that did.
    assert views.log_end(picture, 4, 9) == ["ablation/4, rank 3 of attempt 1 has no log yet"]
    assert views.log_end(picture, 6, 9) == ["ablation/6 has no log: no attempt has begun"]
    log = picture.selected[1].paths.attempt(2).rank_log(0)
    log.write_bytes(b"\x1b[31mred\x1b[0m\x1b]0;title\x07\n\xff\n" + b"x" * 3000 + b"\n")
    _, red, bad, long = views.log_end(picture, 1, 9)
    assert "\x1b" not in red
    assert red.startswith("red")
    assert bad == "\ufffd"
    assert len(long) == 2_000
