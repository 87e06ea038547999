"""What scontrol is given, and what its answers and those of squeue mean."""

from __future__ import annotations

import pytest

from hpcrun.errors import ClusterUnreachable
from hpcrun.slurm import job_update
from tests.support.slurm_shim import Shim


def test_one_call_for_an_array_or_some_of_its_tasks(shim: Shim) -> None:
    shim.answer("scontrol", {})
    assert job_update.update("12", (), {"time": "90", "partition": "gpu"}) == []
    assert job_update.update("12", (7, 2, 3), {"nice": "5"}) == []
    assert shim.calls == [
        ["scontrol", "update", "jobid=12", "TimeLimit=90", "Partition=gpu"],
        ["scontrol", "update", "jobid=12_[2-3,7]", "Nice=5"],
    ]
    assert job_update.update("12; rm", (), {"nice": "5"}) == ["'12; rm' is not the id of a job"]


def test_messages_lose_ids_and_what_is_no_error(shim: Shim) -> None:
    # Slurm 22.05.
    text = "12_0-1: Access/permission denied\n12_2-7: No error\n"
    shim.answer("scontrol", {"err": text, "code": 1})
    assert job_update.update("12", (), {"time": "90"}) == ["Access/permission denied"]
    # Both, of an array whose limit was changed all the same.
    shim.answer("scontrol", {"err": "12_1: Job has already finished\n", "code": 1})
    assert job_update.update("12", (), {"max_parallel": "3"}) == []
    down = "slurm_update error: Unable to contact slurm controller (connect failure)\n"
    shim.answer("scontrol", {"err": down, "code": 1})
    with pytest.raises(ClusterUnreachable):
        job_update.update("12", (), {"time": "90"})


def test_what_slurm_shows_is_compared_as_it_keeps_it(shim: Shim) -> None:
    rows = "12_5|PENDING|1:30:00|gpu,cpu|low|4294901757|3\n12_0|RUNNING|UNLIMITED|gpu|low|1|0\n"
    shim.answer("squeue", {"out": rows})
    found = job_update.values_in_queue(["12_5", "12_0", "nonsense"])
    assert "--jobs=12" in shim.calls[0]
    assert job_update.has(found["12_5"], "time", "90")
    assert job_update.has(found["12_5"], "time", "01:29:30")
    assert not job_update.has(found["12_5"], "time", "91")
    assert not job_update.has(found["12_0"], "time", "90")
    assert job_update.has(found["12_5"], "partition", "gpu,cpu")
    assert job_update.has(found["12_5"], "nice", "3")
    assert job_update.values_in_queue([]) == {}


@pytest.mark.parametrize(
    ("name", "value", "messages", "state", "told"),
    [
        ("partition", "x", ["Invalid partition name specified"], "PENDING", "there are gpu"),
        ("partition", "x", ["Job is no longer pending execution"], "RUNNING", "it runs already"),
        ("qos", "x", [], "PENDING", "`sacctmgr show assoc user=$USER format=account,qos`"),
        ("priority", "9", ["Access/permission denied"], "PENDING", "nice=100 lowers it"),
        ("nice", "-9", ["Access/permission denied"], "PENDING", "above 0 is yours"),
        ("time", "9", ["Access/permission denied"], "RUNNING", "only an administrator raises"),
        ("time", "9", ["Access/permission denied"], "PENDING", "`sinfo -o '%P %l'`"),
        ("time", "9", ["Burned down"], "PENDING", "time 9: Burned down"),
        ("time", "9", [], "PENDING", "does not say why"),
    ],
)
def test_a_refusal_says_what_a_user_may_do(
    name: str, value: str, messages: list[str], state: str, told: str, shim: Shim
) -> None:
    shim.answer("sinfo", {"out": "gpu\n"})
    assert told in job_update.in_words(name, value, messages, state)
