"""Whoever watches over a job that runs share, with made-up answers of Slurm.

The real ones are in `tests.cluster.test_packing`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run import pack_watch
from hpcrun.run.pack_watch import PackWatch
from hpcrun.state import journal, ledger
from tests.support.place import Place


class Watched:
    """Job 7 of run 3 on n1 and n2, which the test's process watches over from n2."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        place.submit("true")
        self.paths = place.experiment.run(3)
        journal.write(place.submission, journal.SUBMITTED, 0, [3], job_id="7", packed=True)
        self.requeued: list[dict[str, Any]] = []
        self.shown = {"JobState": "RUNNING", "Restarts": "0", "NodeList": "n2"}
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
        monkeypatch.setattr(pack_watch.client, "show", lambda *_: self.shown)
        monkeypatch.setattr(pack_watch.job, "requeue", self._requeue)
        monkeypatch.setattr(pack_watch, "_LOOK_EVERY", 0.05)
        # Signals and streams are the test's own.
        monkeypatch.setattr(pack_watch.signal, "signal", lambda *_: None)
        monkeypatch.setattr(pack_watch.os, "dup2", lambda *_: None)
        self.watch = PackWatch(place.submission, "n1", 2)

    def _requeue(self, job: str, exclude: Any, **given: Any) -> bool:
        self.requeued.append({"job": job, "exclude": exclude, **given})
        return bool(given["between"]())

    def begin(self, nodes: list[str]) -> None:
        """Begin an attempt that has no end."""
        self.paths.attempt(1).directory.mkdir(parents=True)
        ledger.write(self.paths, ledger.STARTED, 1, job_id="7", submission=1, nodes=nodes)

    def noted(self) -> Any:
        path = self.paths.attempt(1).orphaned
        return json.loads(path.read_text())["lost_nodes"] if path.exists() else None


@pytest.fixture
def watched(place: Place, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(place, monkeypatch)


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The end that `hpcrun.run.packed_job` writes to."""
    read, write = os.pipe()
    with os.fdopen(read) as stream, os.fdopen(write, "wb", buffering=0) as end:
        monkeypatch.setattr(sys, "stdin", stream)
        yield end


@pytest.mark.parametrize(("nodes", "noted"), [(["n1", "n2"], ["n1"]), (["n2"], None)])
def test_without_its_batch_host_the_job_is_requeued(
    watched: Watched, stdin: Any, nodes: list[str], noted: list[str] | None
) -> None:
    watched.begin(nodes)
    watched.watch.watch()
    (asked,) = watched.requeued
    assert (asked["job"], asked["exclude"], asked["needed"]) == ("7", ("n1",), 2)
    assert watched.noted() == noted


def test_an_end_that_is_closed_says_nothing(watched: Watched, stdin: Any) -> None:
    """As where the batch host comes back soon, and knows nothing of its connections."""
    stdin.close()
    watched.watch.watch()
    assert len(watched.requeued) == 1


@pytest.mark.parametrize(
    "shown",
    [
        {"NodeList": "n[1-2]"},
        {"JobState": "COMPLETING"},
        {"JobState": "PENDING", "NodeList": "(null)"},
        {"Restarts": "1"},
        {"NodeList": "n[1"},
        {"NodeList": None},
    ],
    ids=["it has it", "it ends", "it waits", "it was requeued", "no list", "no answer"],
)
def test_any_other_job_is_left_alone(watched: Watched, shown: dict[str, Any]) -> None:
    found = {**watched.shown, **shown}
    watched.shown = {name: value for name, value in found.items() if value is not None}
    assert not watched.watch.is_orphaned()


def test_it_leaves_when_the_job_is_over(watched: Watched, stdin: Any) -> None:
    watched.shown["NodeList"] = "n[1-2]"
    stdin.write(pack_watch.OVER)
    watched.watch.watch()
    assert watched.requeued == []


def test_an_attempt_of_another_job_is_not_this_ones(watched: Watched, tmp_path: Path) -> None:
    watched.begin(["n1"])
    pack_watch.note_lost(watched.paths, ["n1"], ["n1"], "8")
    assert watched.noted() is None
