"""``hpcrun requeue`` as it is typed: Slurm is a shim here, local processes are real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import files as state_files
from hpcrun.state import journal, ledger, plan_file
from hpcrun.state.layout import ExperimentPaths, experiment
from hpcrun.submission.local import processes
from tests.support import command
from tests.support.slurm_shim import Shim
from tests.support.waiting import until

PYTHON = sys.executable
REFUSED = {"err": "sbatch: error: Batch job submission failed: Invalid qos specification\n"}
DOWN = {"err": "error: Unable to contact slurm controller (connect failure)\n", "code": 1}


class Place:
    """A directory with a spec of four runs, and a root beside it."""

    def __init__(self, directory: Path) -> None:
        self.code = directory / "code"
        self.root = directory / "root"
        self.flag = directory / "flag"
        self.code.mkdir()
        self.write("exit(0 if os.path.exists(sys.argv[1]) else 3)")

    @property
    def paths(self) -> ExperimentPaths:
        return experiment(self.root, "e")

    def write(self, program: str) -> None:
        """The program, with which the spec's runs fail until the flag is there."""
        (self.code / "train.py").write_text(f"import os, sys\n{program}\n")
        spec = {
            "name": "e",
            "entry": "train.py",
            "args": [str(self.flag)],
            "config": {"x": 0},
            "environment": {"python": PYTHON},
            "resources": {"time": "00:10:00"},
            "recovery": {"requeue": False},
            "sweep": {"grid": {"config.x": [0, 1, 2, 3]}},
        }
        (self.code / "e.yaml").write_text(json.dumps(spec))

    def hpcrun(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        spec = ["e.yaml"] if name == "submit" else []
        return command.hpcrun(name, *spec, *arguments, "--root", self.root, cwd=self.code)

    def requeue(self, *arguments: str) -> list[dict[str, Any]]:
        answer = self.hpcrun("requeue", "--json", *arguments)
        assert answer.returncode == 0, answer.stderr
        found: list[dict[str, Any]] = json.loads(answer.stdout)
        return found

    def files(self) -> set[Path]:
        return set(self.root.rglob("*"))

    def code_of(self, submission: int) -> dict[str, Any]:
        code: dict[str, Any] = state_files.read_json(self.paths.submission(submission).submission)
        return dict(code["code"])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in ("HPCRUN_ROOT", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    found = Place(tmp_path)
    yield found
    for submission in found.paths.submissions():
        processes.kill_all(submission.directory)


@pytest.fixture
def shim(shim: Shim) -> Shim:
    """The scripted commands, each with an empty answer."""
    for program in ("srun", "sinfo", "squeue", "sacct", "scontrol"):
        shim.answer(program, {})
    return shim


def queue(*states: str) -> dict[str, object]:
    """squeue's answer for the elements of job 50; an empty state is a job that is gone."""
    lines = [f"50_{run}|{state}|None|n1|N/A\n" for run, state in enumerate(states)]
    return {"out": "".join(line for line, state in zip(lines, states, strict=True) if state)}


@pytest.fixture
def submitted(place: Place, shim: Shim) -> Place:
    """Job 50: run 0 has completed, run 1 runs, run 2 waits, run 3 is over and was cancelled."""
    shim.answer("sbatch", {"out": "Submitted batch job 50\n"}, {"out": "Submitted batch job 51\n"})
    answer = place.hpcrun("submit", "cluster=slurm")
    assert answer.returncode == 0, answer.stderr
    ledger.set_intent(place.paths.run(0), ledger.FINISHED)
    ledger.set_intent(place.paths.run(3), ledger.CANCELLED)
    shim.answer("squeue", queue("", "RUNNING", "PENDING", ""))
    (shim.directory / "calls").unlink()
    return place


def asked(shim: Shim) -> list[list[str]]:
    """The calls that change something."""
    changing = [call for call in shim.calls if call[0] in ("sbatch", "scontrol", "scancel")]
    return [call for call in changing if call[1] != "show"]


def test_each_run_by_where_it_stands(submitted: Place, shim: Shim) -> None:
    (submitted.code / "train.py").write_text("changed\n")
    done = submitted.requeue("e", "--yes")
    assert [(one["run"], one["action"], one["job_id"]) for one in done] == [
        (0, "left", "50_0"),
        (1, "requeued", "50_1"),
        (2, "left", "50_2"),
        (3, "submitted", "51"),
    ]
    assert [one["reason"] for one in done[1::2]] == [None, None]
    assert "`hpcrun submit SPEC --new`" in done[0]["reason"]
    assert done[2]["reason"] == "waits in the queue already"
    script = submitted.paths.submission(2).script(0)
    assert asked(shim) == [["sbatch", str(script)], ["scontrol", "requeue", "50_1"]]
    assert ledger.intent(submitted.paths.run(0)) == "finished"
    assert ledger.intent(submitted.paths.run(3)) is None


def test_an_intent_that_cannot_be_read_costs_its_own_row(submitted: Place, shim: Shim) -> None:
    intent = submitted.paths.run(2).intent
    intent.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(intent)
    done = submitted.requeue("e", "--yes")
    assert [(one["run"], one["action"]) for one in done] == [
        (0, "left"),
        (1, "requeued"),
        (3, "submitted"),
        (2, "left"),
    ]
    assert done[-1]["reason"] == f"{intent}: a FIFO, not a regular file"
    alone = submitted.hpcrun("requeue", "e/2")
    assert alone.returncode == 2
    assert f"{intent}: a FIFO" in alone.stderr


def test_the_plan_and_the_code_are_those_of_before(submitted: Place, shim: Shim) -> None:
    (submitted.code / "train.py").write_text("changed\n")
    submitted.requeue("e/3")
    first, second = (submitted.paths.submission(number) for number in (1, 2))
    before, after = plan_file.read(first.plan), plan_file.read(second.plan)
    assert after.runs == (before.run(3),)
    assert [array.runs for array in after.arrays] == [(3,)]
    script = second.script(0).read_text()
    assert script == after.arrays[0].script
    assert "--array" not in script
    assert "--run 3" in script
    assert str(first.directory) not in script
    assert submitted.code_of(2) == submitted.code_of(1)
    assert len(list(submitted.paths.code.iterdir())) == 1
    assert second.package.is_file()
    jobs = journal.newest_jobs(submitted.paths)
    assert (jobs[3].job_id, jobs[3].submission) == ("51", 2)
    assert [jobs[run].submission for run in (0, 1, 2)] == [1, 1, 1]
    assert [line["event"] for line in state_files.read_lines(second.journal)] == [
        "submitting", "submitted",
    ]  # fmt: skip
    assert state_files.read_json(second.submission)["argv"][1:3] == ["requeue", "--json"]


def test_several_runs_become_an_array(submitted: Place, shim: Shim) -> None:
    shim.answer("squeue", queue("", "FAILED", "PENDING", "CANCELLED"))
    done = submitted.requeue("e/1,3", "--yes")
    assert [(one["run"], one["job_id"]) for one in done] == [(1, "51_1"), (3, "51_3")]
    assert "#SBATCH --array=1,3\n" in submitted.paths.submission(2).script(0).read_text()


def test_several_runs_become_as_many_arrays_as_slurm_wants(submitted: Place, shim: Shim) -> None:
    shim.answer("squeue", queue("", "FAILED", "PENDING", "CANCELLED"))
    shim.answer("scontrol", {"out": "MaxArraySize = 1\n"})
    shim.answer("sbatch", *({"out": f"Submitted batch job {job}\n"} for job in (51, 52)))
    done = submitted.requeue("e/1,3", "--yes")
    assert [(one["run"], one["job_id"]) for one in done] == [(1, "51"), (3, "52")]


def test_again_from_what_was_requeued_before(submitted: Place, shim: Shim) -> None:
    shim.answer("sbatch", {"out": "Submitted batch job 51\n"}, {"out": "Submitted batch job 52\n"})
    shim.answer("squeue", {})
    submitted.requeue("e/3")
    submitted.requeue("e/1-3", "--yes")
    plans = [plan_file.read(submitted.paths.submission(number).plan) for number in (3, 4)]
    assert [[run.number for run in plan.runs] for plan in plans] == [[1, 2], [3]]
    assert [call[1] for call in asked(shim)[1:]] == [
        str(submitted.paths.submission(number).script(0)) for number in (3, 4)
    ]


def test_a_cancelled_run_is_waited_for(submitted: Place, shim: Shim) -> None:
    ending = queue("", "RUNNING", "PENDING", "COMPLETING")
    shim.answer("squeue", ending)
    (planned,) = submitted.requeue("e/3", "--dry-run")
    assert planned["action"] == "would submit"
    shim.answer("squeue", ending, ending, queue("", "RUNNING", "PENDING", ""))
    answer = submitted.hpcrun("requeue", "e/3")
    assert answer.stdout == "e/3: submitted again (job 51)\n"
    assert "waiting for 1 cancelled run to end" in answer.stderr


def test_a_pruned_run_goes_on_if_it_is_named_by_itself(submitted: Place, shim: Shim) -> None:
    ledger.set_intent(submitted.paths.run(3), ledger.PRUNED)
    done = submitted.requeue("e", "--yes")
    assert [one["action"] for one in done] == ["left", "requeued", "left", "left"]
    assert "was pruned; named by itself" in done[3]["reason"]
    assert submitted.requeue("e/3", "--dry-run")[0]["action"] == "would submit"
    assert ledger.intent(submitted.paths.run(3)) == "pruned"
    shim.answer("squeue", queue("", "RUNNING", "PENDING", "COMPLETING"), queue("", "", "", ""))
    answer = submitted.hpcrun("requeue", "e/3")
    assert answer.stdout == "e/3: submitted again (job 51)\n"
    assert "run 3: not pruned again" in answer.stderr
    assert ledger.intent(submitted.paths.run(3)) is None


def test_a_pruned_run_that_slurm_refuses_stays_pruned(submitted: Place, shim: Shim) -> None:
    ledger.set_intent(submitted.paths.run(3), ledger.PRUNED)
    shim.answer("sbatch", {**REFUSED, "code": 1})
    assert submitted.hpcrun("requeue", "e/3").returncode == 3
    assert ledger.intent(submitted.paths.run(3)) == "pruned"


def test_of_two_submissions_the_second_is_refused(submitted: Place, shim: Shim) -> None:
    shim.answer(
        "sbatch",
        {"out": "Submitted batch job 51\n"},
        {"out": "Submitted batch job 52\n"},
        {**REFUSED, "code": 1},
    )
    shim.answer("squeue", {})
    submitted.requeue("e/3")
    ledger.set_intent(submitted.paths.run(3), ledger.CANCELLED)
    answer = submitted.hpcrun("requeue", "e/1-3", "--yes")
    assert answer.returncode == 3
    assert "submitted job 52: runs 1-2" in answer.stderr
    assert [paths.number for paths in submitted.paths.submissions()] == [1, 2, 3]
    assert ledger.intent(submitted.paths.run(3)) == "cancelled"
    assert journal.newest_jobs(submitted.paths)[1].job_id == "52_1"


def test_of_two_submissions_the_first_is_refused(submitted: Place, shim: Shim) -> None:
    shim.answer("sbatch", {"out": "Submitted batch job 51\n"}, {**REFUSED, "code": 1})
    shim.answer("squeue", {})
    submitted.requeue("e/3")
    before = submitted.files()
    assert submitted.hpcrun("requeue", "e/1-3", "--yes").returncode == 3
    assert submitted.files() == before
    assert len(asked(shim)) == 2


def test_dry_run_changes_nothing(submitted: Place, shim: Shim) -> None:
    before = submitted.files()
    actions = [one["action"] for one in submitted.requeue("e", "--dry-run")]
    assert actions == ["left", "would requeue", "left", "would submit"]
    text = submitted.hpcrun("requeue", "e/1,3", "--dry-run").stdout.splitlines()
    assert text == [
        "e/1: would be requeued (job 50_1)",
        "e/3: would be submitted again (job 50_3)",
    ]
    assert asked(shim) == []
    assert submitted.files() == before
    assert ledger.intent(submitted.paths.run(3)) == "cancelled"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "wants to be told which runs"),
        (("e",), "this would requeue 2 runs: e/1,3; there is no terminal to ask on"),
        (("e/0",), "e/0 has completed, and a completed run is never started again"),
        (("e/9",), "e has no run 9"),
    ],
)
def test_wrong_input(
    submitted: Place, shim: Shim, arguments: tuple[str, ...], message: str
) -> None:
    before = submitted.files()
    answer = submitted.hpcrun("requeue", *arguments)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert asked(shim) == []
    assert submitted.files() == before


@pytest.mark.parametrize(
    ("answer", "code"), [({**REFUSED, "code": 1}, 3), (DOWN, 4)], ids=["refused", "down"]
)
def test_what_sbatch_does_not_take_leaves_nothing(
    submitted: Place, shim: Shim, answer: dict[str, object], code: int
) -> None:
    before = submitted.files()
    shim.answer("sbatch", answer)
    done = submitted.hpcrun("requeue", "e/1,3", "--yes")
    assert done.returncode == code, done.stderr
    assert submitted.files() == before
    assert ledger.intent(submitted.paths.run(3)) == "cancelled"
    assert [call[0] for call in asked(shim)] == ["sbatch"]


def test_code_that_is_gone(submitted: Place, shim: Shim) -> None:
    shutil.rmtree(submitted.paths.code)
    before = submitted.files()
    answer = submitted.hpcrun("requeue", "e/3")
    assert answer.returncode == 2
    assert "the code that was frozen at submission is gone" in answer.stderr
    assert "hint: `hpcrun submit` goes on with the code of now" in answer.stderr
    assert asked(shim) == []
    assert submitted.files() == before


@pytest.mark.parametrize(
    ("words", "code"),
    [("Access/permission denied for job 50_1", 3), ("Unable to contact slurm controller", 4)],
)
def test_scontrol_says_no(submitted: Place, shim: Shim, words: str, code: int) -> None:
    shim.answer("scontrol", {"err": words, "code": 1})
    answer = submitted.hpcrun("requeue", "e/1")
    assert answer.returncode == code
    assert f"scontrol requeue 50_1: {words}" in answer.stderr


def test_whether_a_job_lives_is_not_known(submitted: Place, shim: Shim) -> None:
    shim.answer("squeue", DOWN)
    shim.answer("sacct", DOWN)
    answer = submitted.hpcrun("requeue", "e/3")
    assert answer.returncode == 4
    assert asked(shim) == []


def test_an_allocation_of_the_users_is_left_alone(submitted: Place, shim: Shim) -> None:
    again = submitted.paths.submission(2)
    shutil.copytree(submitted.paths.submission(1).directory, again.directory)
    again.journal.unlink()
    journal.write(again, journal.SUBMITTED, 0, [1], job_id="60")
    shim.answer("squeue", {"out": "60|RUNNING|None|n1|N/A\n"})
    (done,) = submitted.requeue("e/1")
    assert (done["action"], done["job_id"]) == ("left", "60")
    assert "an allocation of yours" in done["reason"]
    assert asked(shim) == []


def test_on_this_machine(place: Place) -> None:
    assert place.hpcrun("submit", "cluster=local", "--wait").returncode == 1
    failed = [run.number for run in plan_file.read(place.paths.submission(1).plan).runs]
    assert failed == [0, 1, 2, 3]
    place.write("exit(4)")
    place.flag.write_text("")
    answer = place.hpcrun("requeue", "e/1-2", "--yes")
    assert answer.returncode == 0, answer.stderr
    assert [line.partition(" (job local:")[0] for line in answer.stdout.splitlines()] == [
        "e/1: submitted again",
        "e/2: submitted again",
    ]
    until(lambda: all(ledger.intent(place.paths.run(run)) == "finished" for run in (1, 2)))
    assert [len(place.paths.run(run).attempts()) for run in failed] == [1, 2, 2, 1]
    assert place.code_of(2) == place.code_of(1)


def test_a_cancelled_run_on_this_machine(place: Place) -> None:
    place.write("import time; time.sleep(0 if os.path.exists(sys.argv[1]) else 300)")
    assert place.hpcrun("submit", "cluster=local").returncode == 0
    until(lambda: place.paths.run(0).attempt(1).rank_log(0).exists())
    (busy,) = place.requeue("e/0")
    assert (busy["action"], busy["reason"].partition(";")[0]) == (
        "left", "waits or runs on this machine already",
    )  # fmt: skip
    assert place.hpcrun("cancel", "e", "--yes").returncode == 0
    place.flag.write_text("")
    (done,) = place.requeue("e/0")
    assert done["action"] == "submitted"
    until(lambda: ledger.intent(place.paths.run(0)) == "finished")
    assert [ledger.intent(place.paths.run(run)) for run in (1, 2, 3)] == ["cancelled"] * 3


def test_help_imports_nothing_slow() -> None:
    program = (
        "import sys; import hpcrun.cli.requeue, hpcrun.cli.why\n"
        "slow = {'torch', 'deepspeed', 'submitit', 'omegaconf', 'jinja2', 'rich', 'yaml'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    answer = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
