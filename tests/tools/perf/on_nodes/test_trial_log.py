"""The block ``trials`` of a plan, and the records of trials."""

from __future__ import annotations

import json
import math
from pathlib import Path

from hpcrun.tools.perf.on_nodes import trial_log
from hpcrun.tools.perf.on_nodes.trial_log import TrialCandidate, TrialPlan, TrialRecord


def test_a_plan_survives_json() -> None:
    candidate = TrialCandidate({"a": 1}, {"train_batch_size": 8}, {"tensor": 2}, "y", 4)
    for seconds in (12.5, math.inf):
        plan = TrialPlan((candidate,), seconds=seconds, baseline=0)
        assert TrialPlan.from_data(json.loads(json.dumps(plan.to_data()))) == plan


def test_records_are_read_as_they_were_written_and_others_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    assert trial_log.read(path) == []
    written = [
        TrialRecord(0, trial_log.SCREEN, trial_log.BEGAN, 1.0),
        TrialRecord(0, trial_log.SCREEN, trial_log.MEASURED, 2.0, (0.5, 0.25, 1.0), 3.0, 7),
        TrialRecord(1, trial_log.SCREEN, trial_log.FAILED, 3.0, kind="hang", reason="silent"),
    ]
    for one in written:
        trial_log.append(path, one)
    with path.open("a") as stream:
        for bad in (
            {},
            {"candidate": -1},
            {"candidate": 0, "steps": ["x"]},
            {"candidate": 0, "steps": 5},
            {"candidate": "0"},
        ):
            line = {"round": "screen", "outcome": "measured", "time": 1.0, **bad}
            stream.write(json.dumps(line) + "\n")
        stream.write('{"candidate": 0, "rou')
    assert trial_log.read(path) == written
    first, second, third = trial_log.scores(trial_log.read(path), 3)
    assert (first.step_seconds, first.peak_bytes) == (0.5, 7)
    assert (second.step_seconds, third.step_seconds, third.records) == (None, None, ())
    assert trial_log.best([first, second, third]) == 0


def test_those_measured_again_come_before_those_measured_once() -> None:
    records = [
        TrialRecord(0, trial_log.SCREEN, trial_log.MEASURED, 1.0, (0.1,)),
        TrialRecord(1, trial_log.SCREEN, trial_log.MEASURED, 1.0, (0.2,)),
        TrialRecord(1, trial_log.FINAL, trial_log.MEASURED, 1.0, (0.3, 0.5, 0.4)),
    ]
    scores = trial_log.scores(records, 2)
    assert trial_log.best(scores) == 1
    assert scores[1].step_seconds == 0.4
