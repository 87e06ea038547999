"""Which files of followed runs are found when, and when a run counts as over."""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcrun.observe.logs import follow
from hpcrun.observe.logs import watch as module
from hpcrun.observe.logs.follow import LOCAL, REMOTE
from hpcrun.observe.logs.log_files import LogChoice
from hpcrun.observe.logs.render import Presenter, Printer
from hpcrun.observe.logs.watch import Watch
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.observe.status.jobs import Answers, JobRef
from hpcrun.slurm.queue import JobState
from hpcrun.state import files, ledger
from tests.support.experiment import Experiment


class Cluster:
    """Answers for the cluster; counts the questions."""

    def __init__(self, **states: JobState) -> None:
        self.jobs = {job.replace("j", "", 1): state for job, state in states.items()}
        self.problem: str | None = None
        self.asked: list[int] = []

    def __call__(self, refs: Sequence[JobRef]) -> Answers:
        self.asked.append(len(refs))
        return Answers(jobs=dict(self.jobs), problem=self.problem)


RUNNING, PENDING = JobState("", "RUNNING"), JobState("", "PENDING")
GONE = JobState("", "COMPLETED")


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    study = Experiment(tmp_path)
    study.submit((1, 2), world=2)
    return study


def selected(study: Experiment) -> list[Selected]:
    return Finder(study.paths.directory.parent).resolve([study.name])


def names(watch: Watch, *, final: bool = False) -> list[str]:
    found = watch.discover(final)
    return [f"{one.run}.{one.attempt} {one.path.stem}" for one in found]


def begin(study: Experiment, run: int, attempt: int = 1, ranks: Sequence[int] = (0, 1)) -> None:
    study.start(run, attempt, job_id=f"100_{run}")
    for rank in ranks:
        study.log(run, attempt, rank, "x\n")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if enough time had passed for every run to be looked at."""
    monkeypatch.setattr(follow, "LOCAL", dataclasses.replace(LOCAL, runs=1e12))


@pytest.mark.usefixtures("at_once")
def test_runs_ranks_and_attempts_are_found_as_they_come(study: Experiment) -> None:
    begin(study, 1, ranks=[0])
    watch = Watch(selected(study), ask=Cluster(j100_1=RUNNING, j100_2=PENDING))
    assert names(watch) == ["1.1 rank-00000"]
    study.log(1, 1, 1, "x\n")
    begin(study, 2)
    assert set(names(watch)) >= {"1.1 rank-00001", "2.1 rank-00000", "2.1 rank-00001"}
    # A run all of whose ranks are known is looked at for new attempts alone.
    assert names(watch) == []
    begin(study, 1, 2)
    assert names(watch) == ["1.1 rank-00000", "1.1 rank-00001", "1.2 rank-00000", "1.2 rank-00001"]
    assert names(watch) == []


@pytest.mark.usefixtures("at_once")
def test_attempts_before_the_newest_are_not_shown(study: Experiment) -> None:
    begin(study, 1)
    begin(study, 1, 2)
    every = Watch(selected(study), LogChoice(attempt="all"))
    assert [name[:3] for name in names(every)] == ["1.1", "1.1", "1.2", "1.2"]
    assert [name[:3] for name in names(Watch(selected(study)))] == ["1.2", "1.2"]
    assert [name[:3] for name in names(Watch(selected(study), LogChoice(attempt=1)))] == [
        "1.1",
        "1.1",
    ]


def test_so_many_runs_are_looked_at_a_second(tmp_path: Path) -> None:
    study = Experiment(tmp_path)
    study.submit(range(200), world=1)
    for run in range(200):
        begin(study, run, ranks=[0])
    watch = Watch(selected(study), pace=REMOTE)
    assert len(names(watch)) == 200
    for run in range(200):
        begin(study, run, 2, ranks=[0])
    watch._looked = time.monotonic()
    assert names(watch) == []
    watch._looked = time.monotonic() - 1.0
    assert len({name.split(".")[0] for name in names(watch)}) == REMOTE.runs


@pytest.mark.usefixtures("at_once")
def test_over_as_the_jobs_end(study: Experiment) -> None:
    begin(study, 1)
    cluster = Cluster(j100_1=RUNNING, j100_2=PENDING)
    watch = Watch(selected(study), ask=cluster)
    sources = list(watch.discover(False))
    assert not watch.over()
    study.end(1)
    cluster.jobs["100_1"] = GONE
    assert not watch.over()
    assert not watch.ended(sources[0])
    cluster.jobs["100_2"] = JobState("", "CANCELLED")
    study.start(2, job_id="100_2")
    study.end(2, outcome="cancelled", kind="cancelled", message="x")
    assert watch.over()
    assert [one.name for one in watch.not_completed()] == ["study/2"]
    assert len(cluster.asked) == 3


@pytest.mark.usefixtures("at_once")
def test_a_run_is_over_before_the_allocation_that_it_ran_in(study: Experiment) -> None:
    for run in (1, 2):
        begin(study, run)
    watch = Watch(selected(study), ask=Cluster(j100_1=RUNNING, j100_2=RUNNING))
    assert not watch.over()
    assert not watch.over()
    study.end(1)
    study.end(2)
    assert watch.over()


@pytest.mark.usefixtures("at_once")
def test_between_an_attempt_s_end_and_what_is_decided_nothing_is_over(study: Experiment) -> None:
    begin(study, 1)
    begin(study, 2)
    study.end(2)
    watch = Watch(selected(study), ask=Cluster(j100_1=RUNNING, j100_2=GONE))
    study.end(1, outcome="failed", kind="rank_crash", message="x")
    assert not watch.over()
    ledger.write(study.run(1), ledger.DECIDED, 1, action="restart", reason="x", exclude=[])
    assert not watch.over()
    begin(study, 1, 2)
    assert not watch.over()
    assert any(name.startswith("1.2") for name in names(watch))


@pytest.mark.usefixtures("at_once")
def test_a_run_that_was_requeued_after_its_end_is_shown_again(study: Experiment) -> None:
    begin(study, 1)
    begin(study, 2)
    cluster = Cluster(j100_1=GONE, j100_2=RUNNING)
    watch = Watch(selected(study), ask=cluster)
    study.end(1, outcome="failed", kind="x", message="x")
    names(watch)
    assert not watch.over()
    names(watch)
    assert names(watch) == []
    assert "study/1" in {one.name for one in watch.not_completed()}
    study.submit((1,), world=2, job_id="200")
    study.start(1, 2, job_id="200", submission=2)
    study.log(1, 2, 0, "x\n")
    cluster.jobs["200"] = RUNNING
    assert names(watch) == ["1.1 rank-00000", "1.1 rank-00001", "1.2 rank-00000"]
    study.end(2)
    cluster.jobs["100_2"] = GONE
    assert not watch.over()
    study.end(1, 2)
    cluster.jobs["200"] = GONE
    assert watch.over()
    assert watch.not_completed() == []


def test_a_run_that_is_held_back_is_asked_for_once_it_is_submitted(
    study: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RENEW", 0.0)
    other = Experiment(study.paths.directory.parent, "other")
    other.submit((1,), job_id=None)
    found = Finder(study.paths.directory.parent).resolve(["other"])
    cluster = Cluster(j300=JobState("", "FAILED"))
    watch = Watch(found, ask=cluster)
    assert not watch.over()
    entry = {"event": "submitted", "time": 1.0, "array": 0, "runs": [1], "job_id": "300"}
    files.append(other.paths.submission(1).journal, entry)
    assert watch.over()
    assert cluster.asked[-1] == 1


def test_nothing_is_concluded_while_slurm_is_silent(study: Experiment) -> None:
    begin(study, 1)
    begin(study, 2)
    cluster = Cluster()
    cluster.problem = "slurmctld is away"
    watch = Watch(selected(study), ask=cluster)
    assert not watch.over()
    assert watch.not_completed() == []


def test_while_slurm_is_silent_an_end_on_disk_counts_and_is_told_of(study: Experiment) -> None:
    begin(study, 1)
    begin(study, 2)
    cluster = Cluster(j100_1=RUNNING, j100_2=RUNNING)
    said: list[str] = []
    watch = Watch(selected(study), ask=cluster, warn=said.append)
    assert not watch.over()
    cluster.problem, cluster.jobs = "slurmctld has not answered for 3 s", {}
    study.end(1)
    for _ in range(2):
        assert not watch.over()
    assert said == [f"{cluster.problem}: whether runs are over is known only from disk"]
    study.end(2)
    assert watch.over()
    assert watch.not_completed() == []


def test_unknown_counts_as_over_after_a_while(
    study: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(study, 1)
    begin(study, 2)
    watch = Watch(selected(study), ask=Cluster())
    assert not watch.over()
    monkeypatch.setattr(module, "UNKNOWN_FOR", 0.0)
    assert watch.over()


@pytest.mark.usefixtures("at_once")
def test_what_a_run_without_output_leaves_is_shown_at_its_end(study: Experiment) -> None:
    study.paths.submission(1).batch_log("100_1").write_text("no such python\n")
    cluster = Cluster(j100_1=JobState("", "FAILED"), j100_2=PENDING)
    watch = Watch(selected(study), ask=cluster)
    assert names(watch) == []
    watch.over()
    assert names(watch) == ["1.None slurm-100_1"]
    assert names(watch) == []
    study.paths.submission(1).batch_log("100_2").write_text("no such python\n")
    assert names(watch, final=True) == ["2.None slurm-100_2"]


def test_what_a_caller_runs_is_shown_until_the_caller_says_that_it_is_over(
    study: Experiment,
) -> None:
    begin(study, 1)
    begin(study, 1, 2)
    study.log(1, 2, 0, "new\n")
    found = selected(study)
    over = iter([False, False, True])
    watch = Watch(
        found,
        LogChoice(attempt="all"),
        ask=lambda jobs: pytest.fail("the cluster was asked"),
        after={study.run(1).directory: 1},
        is_over=lambda: next(over),
    )
    # Submitted while it is followed: the batch step's log is found by that.
    study.submit((2,), world=2, job_id="200")
    study.paths.submission(2).batch_log("200").write_text("no such python\n")
    out = io.BytesIO()
    watch.show(Presenter(Printer(found)), out, check=0.0)
    assert sorted(out.getvalue().decode().splitlines()) == [
        "1 r0 | new",
        "1 r0 | x",
        "1 r1 | x",
        "2 batch | no such python",
    ]


@pytest.mark.parametrize(("quiet", "told"), [(0.05, True), (1.0, False)])
def test_how_long_lines_may_go_unseen_is_told(quiet: float, told: bool, study: Experiment) -> None:
    begin(study, 1)
    said: list[str] = []
    pace = dataclasses.replace(REMOTE, hot_looks=1, cold_looks=quiet)
    watch = Watch(selected(study), ask=Cluster(), warn=said.append, pace=pace)
    assert len(names(watch)) == 2
    assert all("one that grows every 2 s, a quiet one every 40 s" in one for one in said)
    assert len(said) == told
    names(watch)
    assert len(said) == told
