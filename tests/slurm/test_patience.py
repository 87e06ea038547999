"""The time that a command waits for a Slurm that is silent, and what it leaves. Slurm is a shim."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import pytest

from hpcrun.errors import ClusterUnreachable, UsageError
from hpcrun.slurm import client, patience, queue
from tests.support.slurm_shim import Shim
from tests.support.waiting import until

RUNNING = "7|RUNNING|None|n1|1795179394\n"
HANGS: dict[str, object] = {"sleep": 100}


def test_all_questions_of_a_reader_have_one_limit(shim: Shim) -> None:
    shim.answer("squeue", HANGS)
    shim.answer("sacct", HANGS)
    began = time.monotonic()
    with patience.reading(limit=1.5):
        for _ in range(3):
            with pytest.raises(
                ClusterUnreachable, match="slurmctld and slurmdbd have not answered"
            ):
                queue.query(["7"])
        with pytest.raises(ClusterUnreachable, match="slurmctld has not answered for"):
            client.queued()
        assert client.nodes("main") == []
        assert patience.current().is_silent("slurmctld")
    assert time.monotonic() - began < 2.5
    # None of them was asked again.
    assert sorted(call[0] for call in shim.calls) == ["sacct", "squeue"]


def test_answers_that_take_long_together_use_up_the_limit(shim: Shim) -> None:
    shim.answer("squeue", {"out": RUNNING, "sleep": 0.4})
    with patience.reading(limit=1.0):
        for _ in range(2):
            assert queue.query(["7"])["7"].state == "RUNNING"
        with pytest.raises(ClusterUnreachable):
            queue.query(["7"])


def test_a_daemon_that_answers_is_believed_beside_one_that_does_not(shim: Shim) -> None:
    shim.answer("squeue", {"out": ""})
    shim.answer("sacct", HANGS)
    with patience.reading(limit=0.5):
        states = queue.query(["7"])
    assert not states.controller_is_down
    assert re.fullmatch(r"slurmdbd has not answered for 0\.\d s", states.problems[0])
    shim.answer("squeue", HANGS)
    shim.answer("sacct", {"out": "7|FAILED|None|n1|1795179394|3:0|1795179999\n"})
    with patience.reading(limit=1.5):
        states = queue.query(["7"])
    assert (states["7"].state, states.controller_is_down) == ("FAILED", True)
    assert re.fullmatch(r"slurmctld has not answered for 1(\.\d)? s", states.problems[0])


def test_the_variable_gives_readers_another_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with patience.reading():
        assert patience.current().limit == 3.0
    monkeypatch.setenv(patience.VARIABLE, "60")
    with patience.reading():
        assert patience.current().limit == 60.0
    for wrong in ("soon", "0", "-1", "nan", "inf", "1e9"):
        monkeypatch.setenv(patience.VARIABLE, wrong)
        with pytest.raises(UsageError, match="HPCRUN_SLURM_TIMEOUT="), patience.reading():
            pass


def test_a_command_that_acts_waits_and_says_so_once(
    shim: Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_UNSAID", 0.1)
    shim.answer("squeue", {"out": RUNNING, "sleep": 0.5})
    shim.answer("scancel", {"sleep": 0.5})
    said: list[str] = []
    with patience.reading(said.append, limit=0.2):
        patience.act()
        assert queue.query(["7"])["7"].state == "RUNNING"
        client.cancel(["7"])
    assert said == [
        "waiting for slurmctld to answer squeue, 60 s at most",
        "waiting for slurmctld to answer scancel, 60 s at most",
    ]


def test_compute_nodes_have_no_such_limit() -> None:
    assert patience.current().limit is None
    with patience.reading(limit=1):
        found: list[float | None] = []
        thread = threading.Thread(target=lambda: found.append(patience.current().limit))
        thread.start()
        thread.join()
    assert found == [None]


def test_what_a_sites_wrapper_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "squeue"
    wrapper.write_text(f"#!/bin/sh\nsleep 100 &\necho $$ $! > '{tmp_path}/pids'\nwait\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    began = time.monotonic()
    with patience.reading(limit=1.0), pytest.raises(ClusterUnreachable):
        client.queued()
    assert time.monotonic() - began < 4
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    until(lambda: not any(_runs(pid) for pid in pids), "both gone", 10)


def _runs(pid: str) -> bool:
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except OSError:
        return False
    # A child of a process that has ended is its own reaper's business.
    return stat.rpartition(")")[2].split()[0] != "Z" or int(stat.split()[3]) == os.getpid()
