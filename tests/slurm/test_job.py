"""What a job learns of its own end, from answers recorded on Slurm 22.05 and 24.11.

A recording was made 0.3 s after the job heard SIGTERM: of a job that was cancelled, requeued by its
owner, preempted with a grace (under PreemptMode REQUEUE and CANCEL) or stopped at its time limit,
and cancelled while slurmdbd was down.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcrun.policy import causes
from hpcrun.policy.causes import Evidence, JobFacts
from hpcrun.slurm import client, job
from hpcrun.slurm.queue import JobMark

MARK = JobMark(Path("/root/study/submissions/1"))
RECORDED = Path(__file__).parent / "recorded" / "own_job"
KINDS = {
    "scancel": "cancelled",
    "scancel-nodb": "cancelled",
    "requeue": causes.REQUEUED,
    "preempt-main": causes.PREEMPTED,
    "preempt-cancel": causes.PREEMPTED,
    "limit": causes.TIME_LIMIT,
}
CASES = sorted(path.stem for path in RECORDED.glob("*.txt"))


class Recording:
    """One file: when the job's program began, two answers of Slurm, and the batch log."""

    def __init__(self, name: str) -> None:
        began, rest = (RECORDED / f"{name}.txt").read_text().split("--- scontrol\n")
        self.began = float(began.split()[1])
        self.scontrol, rest = rest.split("--- sacct\n")
        self.sacct, self.log = rest.split("--- log\n")

    def answer(self, argv: Sequence[str], *, timeout: float | None = None) -> str:
        text = self.scontrol if argv[0] == "scontrol" else self.sacct
        if not text:
            raise client.CommandFailed(f"{argv[0]}: connection refused")
        return text


@pytest.fixture
def facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> JobFacts:
    recording = Recording(request.param)
    monkeypatch.setattr(client, "command", recording.answer)
    log = tmp_path / "slurm-1.log"
    log.write_text(f"2026-11-20T17:00:00 hpcrun: attempt 1 of e/0 on n1\n{recording.log}")
    return job.facts("1", recording.began, job.last_words(log, 1))


@pytest.mark.parametrize(("facts", "name"), [(name, name) for name in CASES], indirect=["facts"])
def test_the_cause_follows_from_what_slurm_says(facts: JobFacts, name: str) -> None:
    version, _, case = name.partition("-")
    assert version in ("22.05", "24.11")
    assert causes.decide(Evidence(supervisor_lost=True, job=facts)).kind == KINDS[case]


def test_both_versions_were_recorded() -> None:
    cases = {name.partition("-")[2] for name in CASES}
    assert cases == set(KINDS)
    for case in KINDS:
        assert {f"22.05-{case}", f"24.11-{case}"} <= set(CASES)


ATTEMPTS = """\
2026-11-20T16:37:16 hpcrun: attempt 1 of e/0 on n1, n2
slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-20T16:38:54 DUE TO PREEMPTION ***
2026-11-20T16:39:01 hpcrun: attempt 2 of e/0 on n1, n2
slurmstepd-n1: error: *** STEP 1.3 ON n1 CANCELLED AT 2026-11-20T16:39:20 ***
2026-11-20T16:39:21 hpcrun: attempt 2 failed: rank 1 on n2 was ended by SIGSEGV
2026-11-20T16:40:01 hpcrun: attempt 3 of e/0 on n1, n2
slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-20T16:41:54 ***
"""


def test_each_attempt_has_its_own_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert job.last_words(log, 1) is None
    log.write_text(ATTEMPTS)
    assert job.last_words(log, 1) == "DUE TO PREEMPTION"
    assert job.last_words(log, 2) is None
    assert job.last_words(log, 3) == ""
    assert job.last_words(log, 4) is None


def test_what_slurm_said_before_a_restart_in_place_was_announced(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(ATTEMPTS)
    assert job.last_words(log, 2, 1) == "DUE TO PREEMPTION"
    assert job.last_words(log, 3, 2) == ""


def test_an_earlier_start_is_not_taken_for_the_one_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounting hears of a new start a moment after it."""
    rows = "7|PREEMPTED|1000|1100|||\n7.0|OUT_OF_MEMORY|1000|1100|5K||\n"
    shown = "JobId=7 JobState=RUNNING Restarts=1 StartTime=1200 EndTime=9000 PreemptTime=1090\n"

    def answer(argv: Sequence[str], *, timeout: float | None = None) -> str:
        return shown if argv[0] == "scontrol" else rows

    monkeypatch.setattr(client, "command", answer)
    now = job.facts("7", 1201)
    assert (now.state, now.preempted, now.out_of_memory, now.restarts) == (
        "RUNNING",
        False,
        False,
        1,
    )
    before = job.facts("7", 1002, over=True)
    assert (before.state, before.preempted, before.out_of_memory) == ("PREEMPTED", True, True)
    assert before.ends == 1100


def test_ranks_of_another_attempt_in_the_same_start_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (
        "7|RUNNING|1000|Unknown||2G|study\n"
        "7.0|RUNNING|1001|Unknown|1K||hpcrun-agent\n"
        "7.1|OUT_OF_MEMORY|1002|1010|9K||hpcrun-workers-1\n"
        "7.2|FAILED|1011|1020|5K||hpcrun-workers-2\n"
        "7.3|OUT_OF_MEMORY|1005|1020|7K||hpcrun-workers-3-warm\n"
    )
    monkeypatch.setattr(client, "command", lambda argv, timeout: rows)
    first = job.facts("7", 1003, attempt=1, over=True)
    second = job.facts("7", 1003, attempt=2, over=True)
    assert (first.out_of_memory, first.memory) == (
        True,
        "it asked for 2G, one rank was seen to use 9K",
    )
    assert (second.out_of_memory, second.memory) == (
        False,
        "it asked for 2G, one rank was seen to use 5K",
    )
    assert job.facts("7", 1003, attempt=3, warm=True, over=True).out_of_memory
    assert not job.facts("7", 1003, attempt=3, over=True).out_of_memory
    assert job.facts("7", 1003, over=True).out_of_memory


def test_steps_of_other_runs_of_the_job_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        "7|RUNNING|1000|Unknown||2G|study\n"
        "7.0|RUNNING|1001|Unknown|1K||hpcrun-run-3\n"
        "7.1|OUT_OF_MEMORY|1002|1010|9K||hpcrun-run-3-workers-1\n"
        "7.2|RUNNING|1011|1020|5K||hpcrun-run-3-workers-2\n"
        "7.3|OUT_OF_MEMORY|1005|1020|7K||hpcrun-run-33-workers-2\n"
        "7.4|OUT_OF_MEMORY|1005|1020|7K||hpcrun-run-4\n"
    )
    monkeypatch.setattr(client, "command", lambda argv, timeout: rows)
    of_run: Any = {"over": True, "step": "hpcrun-run-3"}
    first, second = (job.facts("7", 1003, attempt=number, **of_run) for number in (1, 2))
    assert (first.out_of_memory, second.out_of_memory) == (True, False)
    assert "use 9K" in first.memory
    assert job.facts("7", 1003, attempt=2, over=True, step="hpcrun-run-4").out_of_memory


def test_a_job_that_outlived_a_lost_node_is_one_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounting begins another record as the node goes; before and after it there are others."""
    rows = (
        "7|NODE_FAIL|1000|1100||2G|study\n"
        "7|RESIZING|1200|1300||2G|study\n"
        "7.1|CANCELLED|1210|1290|9K||hpcrun-workers-2\n"
        "7|CANCELLED by 0|1300|1400||2G|study\n"
        "7.2|OUT_OF_MEMORY|1291|1400|5K||hpcrun-workers-3\n"
        "7|RUNNING|1500|Unknown||2G|study\n"
    )
    monkeypatch.setattr(client, "command", lambda argv, timeout: rows)
    found = job.facts("7", 1201, attempt=3, over=True)
    assert (found.state, found.cancelled_by, found.ends) == ("CANCELLED", "root", 1400)
    assert found.out_of_memory
    assert not job.facts("7", 1201, attempt=2, over=True).out_of_memory
    assert job.facts("7", 1001, over=True).state == "NODE_FAIL"
    assert job.facts("7", 1501, over=True).state == "RUNNING"


@pytest.mark.parametrize("ahead", [-30, 0, 30])
def test_a_start_is_known_by_its_number_where_clocks_are_apart(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """Each start lasted shorter than its node's clock is wrong by."""
    rows = (
        "7|NODE_FAIL|1000|1010||2G|study\n"
        "7|RESIZING|1016|1020||2G|study\n"
        "7|PREEMPTED|1020|1025||2G|study\n"
        "7|REQUEUED|Unknown|1031||2G|study\n"
        "7|CANCELLED by 0|1032|1040||2G|study\n"
    )
    monkeypatch.setattr(client, "command", lambda argv, timeout: rows)
    for restarts, (began, state) in enumerate(
        [(1001, "NODE_FAIL"), (1017, "PREEMPTED"), (1033, "CANCELLED")]
    ):
        found = job.facts("7", began + ahead, over=True, restarts=restarts)
        assert found.state == state
    # Accounts that lost starts, or of another job with this number.
    assert job.facts("7", 1033, over=True, restarts=7).state == "CANCELLED"
    assert job.facts("7", 9000, over=True, restarts=1).state == ""


def test_a_heterogeneous_job_is_its_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm 22.05 and 24.11 print it, after a requeue and the loss of the second part's node."""
    rows = (
        "5+0|REQUEUED|1000|1100||2G|study\n"
        "5+0.0|CANCELLED|1001|1100|1K||hpcrun-workers-1\n"
        "5+1|REQUEUED|1000|1100||2G|study\n"
        "5+1.1|OUT_OF_MEMORY|1001|1100|9K||hpcrun-workers-1-rank-2\n"
        "5+0|RESIZING|1200|1300||2G|study\n"
        "5+1|NODE_FAIL|1200|1300||2G|study\n"
        "5+0|RUNNING|1300|Unknown||2G|study\n"
    )
    monkeypatch.setattr(client, "command", lambda argv, timeout: rows)
    first = job.facts("5", 1001, attempt=1, over=True)
    assert (first.state, first.out_of_memory, first.ends) == ("REQUEUED", True, 1100)
    assert job.facts("5", 1201, attempt=2, over=True).state == "RUNNING"


def test_all_parts_of_a_requeued_job_exclude_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {
        "7": "JobId=7 HetJobIdSet=7-9 JobState=PENDING Partition=big NumNodes=2",
        "8": "JobId=8 HetJobIdSet=7-9 Partition=small NumNodes=1 ExcNodeList=n9",
        "9": "JobId=9 HetJobIdSet=7-9 Partition=tiny NumNodes=1 ExcNodeList=(null)",
    }
    nodes = {"small": "n2|idle|4|8|x|y\nn3|idle|4|8|x|y\n", "tiny": "n2|idle|4|8|x|y\n"}
    asked: list[str] = []

    def answer(argv: Sequence[str], *, timeout: float | None = None) -> str:
        if argv[0] == "squeue":
            return f"7|RUNNING|None|n2|1 N/A 1 {os.getuid()} {MARK.directory}"
        if argv[0] == "sinfo":
            return nodes[argv[3].removeprefix("--partition=")]
        if argv[1] == "--oneliner":
            return shown[argv[-1]]
        asked.append(" ".join(argv[1:]))
        return ""

    monkeypatch.setattr(client, "command", answer)
    assert job.requeue("7", ["n2"], mark=MARK, say=lambda message: None)
    assert asked == [
        *("requeue 7", "update jobid=7 ExcNodeList=n2"),
        "update jobid=8 ExcNodeList=n9,n2",
    ]


class Controller:
    """Answers `scontrol` from a list, and remembers what it was asked.

    To `squeue` the job is in the directory of its submission.
    """

    def __init__(self, *answers: str | None, directory: Path | None = None) -> None:
        self.answers, self.asked = list(answers), []
        self.directory = MARK.directory if directory is None else directory

    def __call__(self, argv: Sequence[str], *, timeout: float | None = None) -> str:
        if argv[1] == "--oneliner":
            return "JobId=7 JobState=RUNNING"
        if argv[0] == "squeue":
            rest = f"RUNNING|None|n2|1 N/A 1 {os.getuid()} {self.directory}"
            return "".join(f"{job}|{rest}\n" for job in ("7", "7_2", "7_3"))
        self.asked.append(" ".join(argv))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise client.CommandFailed(answer)
        return ""


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job.time, "sleep", lambda seconds: None)


@pytest.mark.parametrize(
    ("settings", "code", "ends_with"),
    [
        ({}, 7, 7),
        ({"RequeueExit": "(null)", "RequeueExitHold": "(null)"}, 1, 1),
        ({"RequeueExit": "1-3,70-255"}, 1, 4),
        ({"RequeueExit": "1-3,70-255"}, 70, 4),
        ({"RequeueExit": "1", "RequeueExitHold": "2,75"}, 75, 3),
        ({"RequeueExit": "1-255"}, 9, 9),
        ({"RequeueExit": "some"}, 1, 1),
        ({"RequeueExit": "1-255"}, 0, 0),
    ],
)
def test_a_job_ends_with_a_code_that_slurm_lets_be(
    settings: dict[str, str], code: int, ends_with: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(client, "configuration", lambda: settings)
    assert job.final_code(code, said.append) == ends_with
    assert bool(said) == (code != ends_with or (code > 0 and settings == {"RequeueExit": "1-255"}))


def test_a_requeue_waits_out_a_controller_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    down = "slurm_requeue error: Unable to contact slurm controller (connect failure)"
    halfway = "Unexpected message received for job 7_3"
    controller = Controller(down, halfway, None)
    monkeypatch.setattr(client, "command", controller)
    assert job.requeue("7_3", mark=MARK, say=lambda message: None)
    assert controller.asked == ["scontrol requeue 7_3"] * 3


def test_a_job_that_slurm_has_requeued_itself_gets_its_nodes_excluded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = Controller("7_2: Job is pending execution", None)
    monkeypatch.setattr(client, "command", controller)
    assert job.requeue("7_2", ["n2"], mark=MARK, say=lambda message: None)
    assert controller.asked == ["scontrol requeue 7_2", "scontrol update jobid=7_2 ExcNodeList=n2"]


def test_a_requeue_excludes_nodes_beside_those_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(None, "Requested operation is presently disabled", None)
    monkeypatch.setattr(client, "command", controller)
    assert job.requeue("7", ["n2"], mark=MARK, kept="n[8-9]", say=lambda message: None)
    update = "scontrol update jobid=7 ExcNodeList=n[8-9],n2"
    assert controller.asked == ["scontrol requeue 7", update, update]


def test_a_requeue_that_is_refused_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller("Requested operation is presently disabled for job 7")
    monkeypatch.setattr(client, "command", controller)
    said: list[str] = []
    assert not job.requeue("7", mark=MARK, say=said.append)
    assert "presently disabled" in said[0]


@pytest.mark.parametrize(
    ("problem", "accepted"),
    [("Unable to contact slurm controller (connect failure)", True), ("Job is odd", False)],
)
def test_a_controller_that_is_away_is_waited_for_however_long(
    monkeypatch: pytest.MonkeyPatch, problem: str, accepted: bool
) -> None:
    monkeypatch.setattr(client, "command", Controller(problem, problem, None))
    said: list[str] = []
    assert job.requeue("7", mark=MARK, patience=-1, say=said.append) is accepted
    assert accepted or "`hpcrun requeue` starts a new one" in said[0]


@pytest.mark.parametrize(
    ("answer", "forgotten"),
    [
        (client.CommandFailed("slurm_load_jobs error: Invalid job id specified"), True),
        (client.CommandFailed("Unable to contact slurm controller (connect failure)"), False),
        (f"7|RUNNING|None|n2|1 N/A 1 {os.getuid()} {MARK.directory}\n", False),
        (f"7|RUNNING|None|n2|1 N/A 1 {os.getuid()} /elsewhere/of/mine\n", True),
    ],
)
def test_only_the_controller_says_that_a_job_is_gone(
    monkeypatch: pytest.MonkeyPatch, answer: str | client.CommandFailed, forgotten: bool
) -> None:
    def command(argv: Sequence[str], *, timeout: float | None = None) -> str:
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr(client, "command", command)
    assert job.is_forgotten("7", MARK) is forgotten


def test_the_job_that_has_the_number_now_is_not_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(directory=Path("/root/other/submissions/1"))
    monkeypatch.setattr(client, "command", controller)
    said: list[str] = []
    assert not job.requeue("7", mark=MARK, say=said.append)
    assert controller.asked == []
    assert "given the number 7 to another" in said[0]
    assert "/root/other/submissions/1" in said[0]


def test_a_requeue_that_nobody_wants_any_more_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = Controller()
    monkeypatch.setattr(client, "command", controller)
    assert not job.requeue("7", mark=MARK, between=lambda: False, say=lambda message: None)
    assert controller.asked == []


SHOWN = "JobId=7 TimeLimit=00:10:00 MinMemoryNode=500M Command=/e/script-0.sbatch Restarts=0\n"


@pytest.mark.parametrize(
    ("shown", "key", "factor", "most", "expected"),
    [
        (SHOWN, "mem", 1.5, None, ("MinMemoryNode", "500M", "750M")),
        (SHOWN, "mem", 1.5, "0.6G", ("MinMemoryNode", "500M", "615M")),
        (SHOWN, "mem", 3, "1g", ("MinMemoryNode", "500M", "1024M")),
        (SHOWN, "time", 2, None, ("TimeLimit", "0-00:10", "0-00:20")),
        (SHOWN, "time", 300, None, ("TimeLimit", "0-00:10", "2-02:00")),
        (SHOWN, "time", 9, "1:00:00", ("TimeLimit", "0-00:10", "0-01:00")),
        (
            SHOWN.replace("MinMemoryNode=500M", "MinMemoryCPU=1.50G"),
            "mem",
            2,
            None,
            ("MinMemoryCPU", "1536M", "3072M"),
        ),
        (SHOWN, "mem", 1.5, "500M", "recovery.grow.most.mem is 500M"),
        (SHOWN.replace("00:10:00", "UNLIMITED"), "time", 2, None, "no time that could grow"),
        (SHOWN.replace("=500M", "=0"), "mem", 2, None, "no mem that could grow"),
        ("", "mem", 2, None, "no mem that could grow"),
    ],
)
def test_growth(
    monkeypatch: pytest.MonkeyPatch,
    shown: str,
    key: str,
    factor: float,
    most: str | None,
    expected: tuple[str, str, str] | str,
) -> None:
    def answer(argv: Sequence[str], **_: object) -> str:
        return shown if argv[0] == "scontrol" else ""

    monkeypatch.setattr(client, "command", answer)
    found = job.growth("7", key, factor, most)
    if isinstance(expected, str):
        assert expected in found["problem"]
        assert "now" not in found
    else:
        assert (found["field"], found["was"], found["now"]) == expected


@pytest.mark.parametrize(
    ("words", "is_problem"),
    [
        ("allocation failure: Requested node configuration is not available", True),
        ("allocation failure: Unable to contact slurm controller (connect failure)", False),
        ("sbatch: No such file or directory", False),
    ],
)
def test_growth_beyond_what_slurm_takes(
    monkeypatch: pytest.MonkeyPatch, words: str, is_problem: bool
) -> None:
    """What it has no answer to is no reason to ask for the same again."""

    def answer(argv: Sequence[str], **_: object) -> str:
        if argv[0] == "scontrol":
            return SHOWN
        assert [*argv][1:] == ["--test-only", "--mem=750M", "/e/script-0.sbatch"]
        raise client.CommandFailed(words)

    monkeypatch.setattr(client, "command", answer)
    found = job.growth("7", "mem", 1.5, None)
    assert ("problem" in found) == is_problem
    assert is_problem == ("Slurm does not take mem 750M" in found.get("problem", ""))


@pytest.mark.parametrize(
    ("said", "queued", "expected"),
    [
        ("Submitted batch job 42\n", {}, "42"),
        ("Quota: job 7 of 9\nSubmitted batch job 42\nSubmitted jobs today: 8\n", {}, "42"),
        ("your job is 42\n", {"/e/script-0-1000003.sbatch": ["40", "42"]}, "42"),
        ("your job is 42\n", {"/e/script-0.sbatch": ["42"]}, None),
    ],
)
def test_a_job_that_asks_for_more(
    monkeypatch: pytest.MonkeyPatch, said: str, queued: dict[str, list[str]], expected: str | None
) -> None:
    """Its number is what sbatch says in a line of its own, or the newest job of the script."""
    asked: list[Sequence[str]] = []

    def answer(argv: Sequence[str], **_: object) -> str:
        asked.append(argv)
        return said

    monkeypatch.setattr(client, "command", answer)
    monkeypatch.setattr(client, "jobs_by_script", lambda: queued)
    script = Path("/e/script-0-1000003.sbatch")
    more = {"MinMemoryNode": "750M", "TimeLimit": "0-02:00", "QOS": "low", "Priority": "3"}
    if expected is None:
        with pytest.raises(client.CommandFailed, match="names no job: your job is 42"):
            job.submit_enlarged(script, more, "/e/%j.log", ())
        return
    assert job.submit_enlarged(script, more, "/e/%j.log", ("n[1-2]", "n7")) == expected
    wanted = ["sbatch", "--mem=750M", "--time=0-02:00", "--qos=low", "--exclude=n[1-2],n7"]
    assert [*asked[0]] == [*wanted, "--output=/e/%j.log", str(script)]
