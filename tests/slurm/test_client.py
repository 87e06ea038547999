"""Commands of Slurm when it is slow or not there. The commands here are a shim."""

from __future__ import annotations

import os
from collections import UserDict
from collections.abc import Iterator

import pytest

from hpcrun.errors import ClusterRefused, ClusterUnreachable
from hpcrun.slurm import client, queue
from tests.support.slurm_shim import Shim

RUNNING = "7|RUNNING|None|n1|1795179394\n"
ENDED = "7|FAILED|None|n1|1795179394|3:0|1795179999\n"
DOWN = {"err": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"}
KILL_ERROR = "scancel: error: Kill job error on job id 7:"
NO_DATABASE = {"err": "sacct: error: Problem talking to the database: Connection refused\n"}
SLOW = {"err": "slurm_load_jobs error: Socket timed out on send/recv operation\n", "code": 1}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSES", (0.0, 0.0))


class Environment(UserDict[str, str]):
    """Variables, one of which another thread takes away as they are gone through."""

    def __iter__(self) -> Iterator[str]:
        yield from ("SLURM_CONF", "GONE", "PATH", "SLURM_JOB_ID")


def test_a_variable_may_go_as_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run that shares a job takes Slurm's variables away, and a clock asks Slurm."""
    there = {"SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin", "SLURM_JOB_ID": "7"}
    monkeypatch.setattr(os, "environ", Environment(there))
    assert client.scrubbed_environment() == {"SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin"}


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
        queue.query(["7"])
    assert client.partitions() == []


def test_commands_without_a_configuration_say_what_is_missing() -> None:
    words = (
        "scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "scontrol: fatal: Could not establish a configuration source"
    )
    error = client.refusal(f"scontrol: {words}")
    assert isinstance(error, ClusterUnreachable)
    assert error.message == "Slurm's commands find no configuration of a cluster here"
    assert "SLURM_CONF" in str(error.hint)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({}, None),
        (
            {
                "err": "sbcast: error: REQUEST_FILE_BCAST(n3): File exists\n"
                "sbcast: error: REQUEST_FILE_BCAST(n4): File exists\n",
                "code": 17,
            },
            "REQUEST_FILE_BCAST(n3): File exists (the first of 2 lines)",
        ),
        ({"sleep": 20}, "sbcast gave no answer within 0.5 s"),
    ],
)
def test_why_a_file_is_not_on_all_nodes(
    shim: Shim, answer: dict[str, object], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBCAST_FORCE", "1")
    shim.answer("sbcast", answer)
    assert client.broadcast("7", "/shared/a", "/tmp/b", 0.5) == told
    assert shim.calls == [["sbcast", "--fanout=4", "--jobid=7", "/shared/a", "/tmp/b"]]
    assert "SBCAST_FORCE" not in shim.environments[0]


def test_a_site_without_sbcast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert client.broadcast("7", "/a", "/b", 5) == "sbcast: No such file or directory"
