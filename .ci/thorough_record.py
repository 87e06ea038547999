"""A plug-in of pytest for `.ci/thorough`: notes how each test ended, as soon as it has."""

import json
import os
from pathlib import Path

import pytest

RECORD = Path(os.environ["HPCRUN_RECORD"])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    done = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    one = done.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
    if report.when == "setup":
        # What it ended as at another time.
        one.update({"outcome": "passed", "seconds": 0.0})
    one["seconds"] = round(one["seconds"] + report.duration, 1)
    if report.outcome != "passed":
        one["outcome"] = report.outcome
    temporary = RECORD.with_suffix(".new")
    temporary.write_text(json.dumps(done))
    temporary.replace(RECORD)
