"""What is remembered of Slurm's answers; its clients are stand-ins, not Slurm."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from hpcrun.observe.status import slurm_cache
from hpcrun.observe.status.jobs import JobRef
from hpcrun.observe.status.slurm_cache import LastAnswers, default_path
from hpcrun.slurm import patience
from tests.support.experiment import path_with, shim_calls, slurm_shim
from tests.support.waiting import until


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "shim"


@pytest.fixture
def clock() -> Clock:
    return Clock()


# Of another time; some tests put other things in the place of its words.
SOUND = (
    b'{"asked": 1.0, "took": 0.1, "no_accounting": 0.0, "patience": 3.0, "about": ["100_0"], '
    b'"jobs": {"100_0": [1.0, ["RUNNING", false, false, "", "n1", null, 9.5, null]]}}'
)


def line(job: str, state: str, reason: str = "None") -> str:
    return f"{job}|{state}|{reason}||N/A\n"


def past(job: str, state: str, code: str = "0:0") -> str:
    return f"{job}|{state}|None|node1|Unknown|{code}|2020-01-02T03:04:05\n"


def commands(shim: Path) -> list[str]:
    return [call.split()[0] for call in shim_calls(shim)]


WANTED = [JobRef("100_0"), JobRef("100_1")]


def test_asked_again_at_once_slurm_is_left_alone(shim: Path, clock: Clock) -> None:
    slurm_shim(shim, squeue=line("100_[0-1]", "PENDING", "Priority"))
    first = LastAnswers(spares=True, clock=clock).ask(WANTED)
    slurm_shim(shim, squeue=line("100_[0-1]", "RUNNING"))
    clock.now += 0.5
    assert LastAnswers(spares=True, clock=clock).ask(WANTED).jobs == first.jobs
    assert LastAnswers(spares=True, clock=clock).ask(WANTED[:1]).jobs == {
        "100_0": first.jobs["100_0"]
    }
    assert commands(shim) == ["squeue"]
    clock.now += 1.0
    assert LastAnswers(spares=True, clock=clock).ask(WANTED).jobs["100_1"].state == "RUNNING"
    assert LastAnswers(spares=True, clock=clock).ask([JobRef("101")]).jobs == {}
    assert commands(shim).count("squeue") == 3


def test_a_slow_controller_is_asked_more_rarely(shim: Path) -> None:
    slurm_shim(shim, squeue=line("100_0", "RUNNING") + line("100_1", "RUNNING"))
    moments = iter([1000.0, 1004.0, 1019.0, 1024.5, 1024.6])
    asker = LastAnswers(spares=True, clock=lambda: next(moments))
    for _ in range(3):
        asker.ask(WANTED)
    assert commands(shim) == ["squeue", "squeue"]


def test_an_end_that_accounting_told_is_not_asked_for_again(shim: Path, clock: Clock) -> None:
    slurm_shim(shim, squeue=line("100_0", "RUNNING"), sacct=past("100_1", "FAILED", "3:0"))
    asker = LastAnswers(clock=clock)
    for _ in range(3):
        found = asker.ask(WANTED)
        assert (found.jobs["100_1"].state, found.jobs["100_1"].exit_code) == ("FAILED", 3)
        clock.now += 5
    assert commands(shim) == ["squeue", "sacct", "squeue", "squeue"]
    slurm_shim(shim, squeue=line("100_0", "RUNNING") + line("100_1", "PENDING", "BeginTime"))
    assert asker.ask(WANTED).jobs["100_1"].is_waiting
    clock.now += 1000
    slurm_shim(shim, squeue=line("100_0", "RUNNING"), sacct=past("100_1", "COMPLETED"))
    assert asker.ask(WANTED).jobs["100_1"].state == "COMPLETED"


def test_squeue_does_not_take_back_what_accounting_told(shim: Path, clock: Clock) -> None:
    ended = line("100_0", "RUNNING") + line("100_1", "FAILED")
    slurm_shim(shim, squeue=ended, sacct=past("100_1", "FAILED", "3:0"))
    found = [LastAnswers(clock=clock).ask(WANTED)]
    clock.now += 5
    found.append(LastAnswers(clock=clock).ask(WANTED))
    clock.now += 5
    found.append(LastAnswers(clock=clock).ask(WANTED))
    assert [one.jobs["100_1"].exit_code for one in found] == [3, 3, 3]
    assert commands(shim) == ["squeue", "sacct", "squeue", "squeue"]


def test_a_cluster_without_accounts_is_not_asked_for_them(shim: Path, clock: Clock) -> None:
    slurm_shim(shim, squeue=line("100_0", "RUNNING"))
    (shim / "sacct").write_text(
        f"#!/bin/sh\necho sacct >> '{shim}/calls'\n"
        "echo 'Slurm accounting storage is disabled' >&2; exit 1\n"
    )
    asker = LastAnswers(clock=clock)
    for _ in range(3):
        found = asker.ask(WANTED)
        assert (list(found.jobs), found.problem) == (["100_0"], None)
        clock.now += 5
    assert commands(shim) == ["squeue", "sacct", "squeue", "squeue"]


def test_while_slurm_is_silent_what_it_said_last_is_told_with_its_time(
    shim: Path, clock: Clock
) -> None:
    slurm_shim(shim, squeue=line("100_[0-1]", "PENDING", "Priority"))
    LastAnswers(clock=clock).ask(WANTED)
    said = clock.now
    clock.now += 300
    slurm_shim(shim, fail="Unable to contact slurm controller (connect failure)")
    found = LastAnswers(clock=clock).ask([*WANTED, JobRef("7")])
    assert found.problem == "Slurm does not answer"
    told = {name: (job.reason, job.known_at) for name, job in found.jobs.items()}
    assert told == dict.fromkeys(("100_0", "100_1"), ("Priority", said))


def hang(shim: Path, seconds: float = 100, *, then: str = "exit 1") -> None:
    for name in ("squeue", "sacct"):
        (shim / name).write_text(
            f"#!/bin/sh\necho {name} >> '{shim}/calls'\nsleep {seconds}\n{then}\n"
        )


def test_a_controller_that_hangs_is_waited_for_as_long_as_a_reader_may(
    shim: Path, clock: Clock
) -> None:
    slurm_shim(shim, squeue=line("100_0", "RUNNING") + line("100_1", "RUNNING"))
    LastAnswers(clock=clock).ask(WANTED)
    said = clock.now
    hang(shim)
    for limit in (0.2, 1.0):
        clock.now += 60
        with patience.reading(limit=limit):
            found = LastAnswers(clock=clock).ask(WANTED)
        silent = "slurmctld and slurmdbd have" if limit > 0.7 else "slurmctld"
        assert str(found.problem).startswith(silent)
        assert re.search(r"not answered for [01](\.\d)? s", str(found.problem))
        assert [job.known_at for job in found.jobs.values()] == [said, said]


def test_a_follower_goes_on_while_a_slow_slurm_has_its_question(
    shim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_cache, "FIRST_LOOK", 0.2)
    slurm_shim(shim, squeue=line("100_0", "RUNNING") + line("100_1", "RUNNING"))
    hang(shim, 1.0, then=f"exec cat '{shim}'/squeue.answer")
    asker = LastAnswers(follows=True)
    began = time.monotonic()
    found = [asker.ask(WANTED) for _ in range(3)]
    assert time.monotonic() - began < 0.9
    assert all("Slurm has not answered for" in str(one.problem) for one in found)
    until(lambda: asker.ask(WANTED).problem is None, "an answer", 20)
    # Its own question and sacct's beside it, however often it was looked for.
    assert commands(shim) == ["squeue", "sacct"]
    assert LastAnswers().ask(WANTED).jobs["100_1"].state == "RUNNING"


def test_a_follower_asks_a_slurm_that_is_away_ever_more_rarely(
    shim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_shim(shim, fail="Unable to contact slurm controller (connect failure)")
    asker = LastAnswers(follows=True)
    now = 1000.0
    monkeypatch.setattr("hpcrun.observe.status.slurm_cache.time.monotonic", lambda: now)
    asked = []
    for _ in range(30):
        found = asker.ask(WANTED)
        assert found.problem == "Slurm does not answer"
        asked.append(commands(shim).count("squeue"))
        now += 2
    assert asked[0] == 1
    assert 3 <= asked[-1] <= 5
    slurm_shim(shim, squeue=line("100_0", "RUNNING") + line("100_1", "RUNNING"))
    now += 60
    assert asker.ask(WANTED).problem is None


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b'{"asked": 1}', b"\xff\xfe", b'{"jobs": 3}', b"[" * 100_000),
        *(SOUND.replace(b'"RUNNING"', b"[1]"), SOUND.replace(b"9.5", b"{}")),
    ],
)
def test_a_damaged_file_is_no_file(shim: Path, clock: Clock, content: bytes) -> None:
    slurm_shim(shim, squeue=line("100_0", "RUNNING") + line("100_1", "RUNNING"))
    path = default_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert len(LastAnswers(spares=True, clock=clock).ask(WANTED).jobs) == 2
    assert len(LastAnswers(spares=True, clock=clock).ask(WANTED).jobs) == 2
    assert commands(shim) == ["squeue"]


def test_nowhere_to_write_is_no_trouble(
    shim: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    slurm_shim(shim, squeue=line("100_0", "RUNNING") + line("100_1", "RUNNING"))
    assert len(LastAnswers(clock=clock).ask(WANTED).jobs) == 2


def test_each_cluster_has_a_file_of_its_own(shim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = default_path()
    monkeypatch.setenv("SLURM_CONF", os.devnull)
    assert default_path() != one


def test_local_jobs_are_never_remembered(shim: Path, clock: Clock) -> None:
    slurm_shim(shim, squeue=line("100_0", "RUNNING"))
    local = JobRef("local:999999999", start_ticks=1, host=os.uname().nodename)
    found = LastAnswers(clock=clock).ask([WANTED[0], local])
    assert found.jobs["local:999999999"].state == "GONE"
    assert "local" not in default_path().read_text()


def test_a_job_that_slurm_has_forgotten_is_not_remembered(shim: Path, clock: Clock) -> None:
    slurm_shim(shim, squeue=line("100_0", "RUNNING") + line("100_1", "RUNNING"))
    LastAnswers(clock=clock).ask(WANTED)
    slurm_shim(shim, squeue=line("100_0", "RUNNING"))
    clock.now += 5
    for _ in range(2):
        assert list(LastAnswers(clock=clock).ask(WANTED).jobs) == ["100_0"]
        clock.now += 0.1
