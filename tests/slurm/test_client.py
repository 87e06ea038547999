"""Questions to Slurm when it is slow, half there or not there. The commands here are a shim."""

from __future__ import annotations

import pytest

from hpcrun.errors import ClusterRefused, ClusterUnreachable
from hpcrun.slurm import client
from tests.support.slurm_shim import Shim

RUNNING = "7|RUNNING|None|n1|1795179394|1795182994|0:06|(null)\n"
ENDED = "7|FAILED|None|n1|1795179394|1795179400|00:00:06|3:0|\n"
DOWN = {"err": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"}
KILL_ERROR = "scancel: error: Kill job error on job id 7:"
NO_DATABASE = {"err": "sacct: error: Problem talking to the database: Connection refused\n"}
SLOW = {"err": "slurm_load_jobs error: Socket timed out on send/recv operation\n", "code": 1}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSES", (0.0, 0.0))


def test_a_living_job_costs_one_call(shim: Shim) -> None:
    shim.answer("squeue", {"out": RUNNING})
    states = client.query(["7", "local:12"])
    assert states["7"].state == "RUNNING"
    assert not states.partial
    assert [call[0] for call in shim.calls] == ["squeue"]


def test_thousands_of_elements_are_one_question(shim: Shim) -> None:
    lines = "".join(f"7_{n}|PENDING|Priority||N/A|N/A|0:00|(null)\n" for n in range(1, 1001))
    shim.answer("squeue", {"out": lines})
    states = client.query([f"7_{n}" for n in range(1, 1001)])
    assert len(states) == 1000
    assert len(shim.calls) == 1
    assert "--jobs=7" in shim.calls[0]


def test_an_ended_job_is_asked_of_accounting(shim: Shim) -> None:
    shim.answer("squeue", {"err": "slurm_load_jobs error: Invalid job id specified\n", "code": 1})
    shim.answer("sacct", {"out": ENDED})
    states = client.query(["7"])
    assert states["7"].exit_code == 3
    assert not states.partial


def test_only_elements_asked_for_are_returned(shim: Shim) -> None:
    shim.answer("squeue", {"out": RUNNING.replace("7|", "7_1|") + RUNNING.replace("7|", "7_2|")})
    assert list(client.query(["7_2"])) == ["7_2"]
    assert sorted(client.query(["7"])) == ["7_1", "7_2"]


def test_slurmctld_down(shim: Shim) -> None:
    shim.answer("squeue", {**DOWN, "code": 1})
    shim.answer("sacct", {"out": ENDED})
    states = client.query(["7", "8"])
    assert states["7"].state == "FAILED"
    assert states.controller_is_down
    assert "slurmctld does not answer" in states.problems[0]


def test_slurmdbd_down(shim: Shim) -> None:
    shim.answer("squeue", {"out": RUNNING})
    shim.answer("sacct", {**NO_DATABASE, "code": 1})
    states = client.query(["7", "8"])
    assert list(states) == ["7"]
    assert states.partial
    assert not states.controller_is_down


def test_no_accounting_at_all_is_no_problem(shim: Shim) -> None:
    shim.answer("squeue", {"out": ""})
    shim.answer("sacct", {"err": "Slurm accounting storage is disabled\n", "code": 1})
    assert not client.query(["7"]).partial


def test_both_down(shim: Shim) -> None:
    shim.answer("squeue", {**DOWN, "code": 1})
    shim.answer("sacct", {**NO_DATABASE, "code": 1})
    with pytest.raises(ClusterUnreachable, match=r"slurmctld does not answer.*sacct"):
        client.query(["7"])


def test_a_pause_is_waited_out(shim: Shim) -> None:
    shim.answer("squeue", SLOW, SLOW, {"out": RUNNING})
    assert client.query(["7"])["7"].state == "RUNNING"
    assert len(shim.calls) == 3


def test_a_command_that_hangs(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT", 3)
    shim.answer("squeue", {"sleep": 30})
    shim.answer("sacct", {"out": ENDED})
    states = client.query(["7"])
    assert states.controller_is_down
    assert "no answer within 3 s" in states.problems[0]


def test_nothing_of_an_outer_job_reaches_slurm(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CPU_BIND", "SBATCH_PARTITION", "PMI_RANK", "PMIX_ID"):
        monkeypatch.setenv(name, "outer")
    for name in ("SQUEUE_USERS", "SACCT_FORMAT", "SLURM_CLUSTERS", "PMI2_X"):
        monkeypatch.setenv(name, "habit")
    monkeypatch.setenv("SLURM_CONF", "conf")
    monkeypatch.setenv("HOME_OF_SLURM_USERS", "kept")
    shim.answer("squeue", {"out": RUNNING})
    client.query(["7"])
    seen = shim.environments[0]
    assert seen["SLURM_CONF"] == "conf"
    assert seen["HOME_OF_SLURM_USERS"] == "kept"
    assert not {"outer", "habit"} & set(seen.values())


def test_cancel_of_what_has_ended_is_no_error(shim: Shim) -> None:
    shim.answer(
        "scancel",
        {
            "err": "scancel: error: Kill job error on job id 7: Invalid job id specified\n",
            "code": 1,
        },
    )
    client.cancel(["7", "7_3"])
    assert shim.calls == [["scancel", "7", "7_3"]]


def test_cancel_of_another_users_job(shim: Shim) -> None:
    shim.answer(
        "scancel",
        {
            "err": "scancel: error: Kill job error on job id 7: Access/permission denied\n",
            "code": 1,
        },
    )
    with pytest.raises(ClusterRefused, match="permission denied"):
        client.cancel(["7"])


def test_cancel_with_nobody_there_is_not_repeated(shim: Shim) -> None:
    shim.answer("scancel", {**SLOW, "code": 8})
    with pytest.raises(ClusterUnreachable, match="Socket timed out"):
        client.cancel(["7"])
    assert len(shim.calls) == 1


def test_no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert not client.available()
    with pytest.raises(ClusterUnreachable):
        client.query(["7"])
    assert client.partitions() == []
