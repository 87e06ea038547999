"""sbatch's answers, good and bad. The sbatch here is a shim; refusals are recorded ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.errors import ClusterRefused, ClusterUnreachable
from hpcrun.slurm import client
from hpcrun.submission import sbatch
from tests.support.slurm_shim import Shim

RECORDED = Path(__file__).parents[1] / "slurm/recorded"
ACCEPTED = {"out": "Submitted batch job 4711\n"}
TIMED_OUT = {
    "err": "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n",
    "code": 1,
}


@pytest.fixture(autouse=True)
def _client(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSES", (0.0, 0.0))
    shim.answer("srun", {})
    shim.answer("sinfo", {"out": "main\nhigh\n"})


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "a directory" / "script-0.sbatch"
    path.parent.mkdir()
    path.write_text("#!/bin/bash\nexit 0\n")
    return path


def test_an_accepted_script(shim: Shim, script: Path, tmp_path: Path) -> None:
    shim.answer("sbatch", ACCEPTED)
    assert sbatch.submit(script) == "4711"
    assert shim.calls == [["sbatch", str(script)]]
    assert list(script.parent.iterdir()) == [script]


def test_options_beside_the_script(shim: Shim, script: Path) -> None:
    shim.answer("sbatch", ACCEPTED)
    assert sbatch.submit(script, "afterok:7", "n[1-2],n7") == "4711"
    assert sbatch.submit(script, None, "n7") == "4711"
    first, second = shim.calls
    assert first == [
        "sbatch",
        "--dependency=afterok:7",
        sbatch.KILL,
        "--exclude=n[1-2],n7",
        str(script),
    ]
    assert second == ["sbatch", "--exclude=n7", str(script)]


def test_a_note_before_the_answer(shim: Shim, script: Path) -> None:
    note = "sbatch: lua: your job goes to partition main\n"
    shim.answer("sbatch", {"out": f"--- welcome to job town ---\n{ACCEPTED['out']}", "err": note})
    assert sbatch.submit(script) == "4711"


@pytest.mark.parametrize(
    "answer",
    [
        "your job 12 of 50 today\nSubmitted batch job 4711\n",
        "job 7 is the last of this month; Submitted batch job 8 was yesterday\n"
        "Submitted batch job 4711\n",
        "Submitted batch job 4711 \r\njob 3 waits\n",
        "Submitted batch job 4711\nSubmitted batch job 4711\n",
    ],
)
def test_numbers_in_what_a_wrapper_says_are_no_job(shim: Shim, script: Path, answer: str) -> None:
    shim.answer("sbatch", {"out": answer})
    assert sbatch.submit(script) == "4711"
    assert [call[0] for call in shim.calls] == ["sbatch"]


@pytest.mark.parametrize(
    "answer",
    [
        "queued as job 12\n",
        "",
        "Submitted batch job 12\nSubmitted batch job 13\n",
        "\x1b[32mSubmitted batch job 12\x1b[0m\n",
        "Submitted batch job 12 (your 4th of 10)\n",
    ],
)
def test_an_answer_that_is_not_sbatchs_is_looked_up_by_the_script(
    shim: Shim, script: Path, answer: str
) -> None:
    other = script.with_name("script-1.sbatch")
    shim.answer("sbatch", {"out": answer})
    shim.answer("squeue", {"out": f"12|12|{other}\n4711|4711|{script}\n"})
    assert sbatch.submit(script) == "4711"
    shim.answer("squeue", {"out": f"12|12|{other}\n"})
    with pytest.raises(sbatch.NoAnswer, match="names no job, or several") as told:
        sbatch.submit(script)
    assert "squeue --me" in str(told.value.hint)


def test_a_job_on_another_cluster_is_not_followed(shim: Shim, script: Path) -> None:
    shim.answer("sbatch", {"out": "Submitted batch job 4711 on cluster blue\n"})
    with pytest.raises(ClusterRefused, match="job 4711 is on blue") as told:
        sbatch.submit(script)
    assert "scancel --clusters=blue 4711" in str(told.value.hint)


def test_the_environment_of_sbatch(
    shim: Shim, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPU_BIND", "outer")
    monkeypatch.setenv("SBATCH_EXPORT", "ALL")
    monkeypatch.setenv("SLURM_CONF", "conf")
    before = dict(os.environ)
    shim.answer("sbatch", ACCEPTED)
    sbatch.submit(script)
    assert dict(os.environ) == before
    seen = shim.environments[0]
    assert seen["SLURM_CONF"] == "conf"
    assert "SLURM_CPU_BIND" not in seen
    assert "SBATCH_EXPORT" not in seen


@pytest.mark.parametrize("version", ["22.05", "24.11"])
@pytest.mark.parametrize(
    ("case", "hint"),
    [
        ("sbatch-partition", "resources.partition; accepted are high, main"),
        ("sbatch-feature", "resources.constraint"),
        ("sbatch-reservation", "resources.reservation"),
        ("sbatch-array", "MaxArraySize"),
        ("sbatch-gres", "resources.nodes, gpus_per_node"),
        ("sbatch-mem", "memory"),
        ("sbatch-gtype", "resources.gpus_per_node"),
    ],
)
def test_recorded_refusals(shim: Shim, script: Path, version: str, case: str, hint: str) -> None:
    answer = json.loads((RECORDED / version / "refusals.json").read_text())[case]
    shim.answer("sbatch", {"err": answer["words"] + "\n", "code": answer["code"]})
    with pytest.raises(ClusterRefused, match=r"^Slurm refused the job: \w") as caught:
        sbatch.submit(script)
    assert "sbatch: error" not in caught.value.message
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("Invalid account or account/partition combination specified", "resources.account"),
        ("Invalid qos specification", "resources.qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "resources.time"),
        ("Node count specification invalid", "resources.nodes"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "",
        ),
        ("something nobody has seen before", ""),
    ],
)
def test_other_refusals(shim: Shim, script: Path, words: str, hint: str) -> None:
    message = f"sbatch: error: Batch job submission failed: {words}\n"
    shim.answer("sbatch", {"err": message, "code": 1})
    with pytest.raises(ClusterRefused) as caught:
        sbatch.submit(script)
    assert words in caught.value.message
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_no_controller(shim: Shim, script: Path, version: str) -> None:
    answer = json.loads((RECORDED / version / "refusals.json").read_text())["sbatch-down"]
    shim.answer("sbatch", {"err": answer["words"], "code": 1})
    with pytest.raises(ClusterUnreachable, match="Unable to contact slurm controller") as caught:
        sbatch.submit(script)
    assert not isinstance(caught.value, sbatch.NoAnswer)
    assert "repeat" in str(caught.value.hint)


def test_slurm_without_a_cluster(shim: Shim, script: Path) -> None:
    """Its packages are installed on this machine, and there is no slurm.conf."""
    words = "sbatch: fatal: Could not establish a configuration source\n"
    shim.answer("sbatch", {"err": words, "code": 1})
    with pytest.raises(ClusterUnreachable, match="configuration source") as caught:
        sbatch.submit(script)
    assert "`cluster=local` for runs on this machine" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("words", "reason", "own", "retried"),
    [
        ("sbatch: error: AssocMaxSubmitJobLimit", "AssocMaxSubmitJobLimit", True, False),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit", "QOSMaxSubmitJobPerUserLimit", True, False),
        ("sbatch: error: AssocGrpSubmitJobsLimit", "AssocGrpSubmitJobsLimit", False, False),
        (
            "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
            "Slurm temporarily unable to accept job",
            False,
            True,
        ),
    ],
)
def test_a_queue_without_room(
    shim: Shim, script: Path, words: str, reason: str, own: bool, retried: bool
) -> None:
    shim.answer(
        "sbatch", {"err": f"{words}\nsbatch: error: Batch job submission failed\n", "code": 1}
    )
    shim.answer("squeue", {"out": ""})
    with pytest.raises(sbatch.QueueFull) as caught:
        sbatch.submit(script)
    full = caught.value
    assert (full.reason, full.is_own, full.is_retried) == (reason, own, retried)


def test_a_lost_answer_is_looked_for(shim: Shim, script: Path) -> None:
    shim.answer("sbatch", TIMED_OUT)
    shim.answer("squeue", {"out": f"12|12|/elsewhere\n99+0|99|{script}\n99+1|100|{script}\n"})
    # The first part of a heterogeneous job has its id.
    assert sbatch.submit(script) == "99"
    assert [call[0] for call in shim.calls] == ["sbatch", "squeue"]


def test_a_lost_answer_to_a_job_that_was_not_taken(shim: Shim, script: Path) -> None:
    shim.answer("sbatch", TIMED_OUT)
    shim.answer("squeue", {"out": "12|12|/elsewhere\n"})
    with pytest.raises(ClusterUnreachable, match="did not take the job") as caught:
        sbatch.submit(script)
    assert not isinstance(caught.value, sbatch.NoAnswer)


def test_a_lost_answer_and_nobody_to_ask(shim: Shim, script: Path) -> None:
    shim.answer("sbatch", TIMED_OUT)
    shim.answer("squeue", {"err": "slurm_load_jobs error: Socket timed out\n", "code": 1})
    with pytest.raises(sbatch.NoAnswer, match="the job may be queued"):
        sbatch.submit(script)


def test_an_answer_without_an_id(shim: Shim, script: Path) -> None:
    shim.answer("sbatch", {"out": "thank you\n"})
    shim.answer("squeue", {"out": f"4711|4711|{script}\n"})
    assert sbatch.submit(script) == "4711"


def test_an_sbatch_that_hangs(shim: Shim, script: Path) -> None:
    shim.answer("sbatch", {"sleep": 60})
    shim.answer("squeue", {"out": ""})
    with pytest.raises(ClusterUnreachable, match="exit code 124"):
        sbatch.submit(script, timeout=1)


def test_no_sbatch(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ClusterUnreachable, match="no sbatch on PATH"):
        sbatch.submit(script)


def test_nothing_else_imports_submitit() -> None:
    modules = (
        "hpcrun.submission.submit, hpcrun.submission.sbatch, hpcrun.cli.submit, hpcrun.cli.run"
    )
    program = (
        f"import sys, {modules}; print([m for m in sys.modules if m in {{'submitit', 'torch'}}])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout.strip() == "[]", answer.stderr
