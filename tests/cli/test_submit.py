"""`hpcrun submit` and `hpcrun run` as commands, on this machine and without Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.ask_python import MARK
from hpcrun.compile import compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.state import files, ledger, plan_file
from hpcrun.state.layout import experiment
from hpcrun.submission.local import processes
from tests.support import command
from tests.support.waiting import until

PYTHON = sys.executable
SAY = "import os, sys; print('rank', os.environ['RANK'], *sys.argv[1:])"


class Place:
    """A directory with a spec, and a root beside it."""

    def __init__(self, directory: Path) -> None:
        self.code = directory / "code"
        self.root = directory / "root"
        self.code.mkdir()

    @property
    def paths(self) -> Any:
        return experiment(self.root, "e")

    def spec(self, entry: list[str] | str, **more: Any) -> None:
        spec = {
            "name": "e",
            "entry": entry,
            "environment": {"python": PYTHON},
            "resources": {"time": "00:10:00", "ntasks_per_node": 2},
        }
        (self.code / "e.yaml").write_text(json.dumps({**spec, **more}))

    def _arguments(self, name: str, *arguments: str) -> list[str]:
        spec = ["e.yaml"] if name in ("submit", "run", "plan") else []
        return [name, *spec, *arguments, "--root", str(self.root)]

    def argv(self, name: str, *arguments: str) -> list[str]:
        return command.argv(*self._arguments(name, *arguments))

    def hpcrun(
        self, name: str, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        given = self._arguments(name, *arguments)
        return command.hpcrun(*given, cwd=self.code, env=environment)

    def actions(self, *arguments: str) -> list[tuple[int, str]]:
        answer = self.hpcrun("submit", "cluster=local", "--json", *arguments)
        assert answer.returncode == 0, answer.stderr
        return [(run["run"], run["action"]) for run in json.loads(answer.stdout)["runs"]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.delenv("HPCRUN_ROOT", raising=False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    found = Place(tmp_path)
    yield found
    for submission in found.paths.submissions():
        processes.kill_all(submission.directory)


def test_submit_and_submit_again(place: Place) -> None:
    place.spec(
        [PYTHON, "-c", SAY, "${config.x}"], config={"x": 0}, sweep={"grid": {"config.x": [1, 2]}}
    )
    answer = place.hpcrun("submit", "cluster=local", "--wait")
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr.startswith("e: 2 runs (2 new); on this machine, 1 at a time\n")
    assert answer.stdout.startswith("local:")
    assert place.paths.run(1).attempt(1).rank_log(1).read_text() == "rank 1 2\n"
    assert place.actions() == [(0, "completed"), (1, "completed")]
    assert place.actions("--sweep", "config.x=2,3", "--wait") == [(1, "completed"), (2, "new")]
    assert place.actions("--new", "--wait") == [(3, "new"), (4, "new")]
    assert place.actions() == [(3, "completed"), (4, "completed")]


def test_a_run_that_failed_goes_on(place: Place) -> None:
    flag = place.code.parent / "flag"
    place.spec(["test", "-e", str(flag)])
    answer = place.hpcrun("submit", "cluster=local", "--wait")
    assert answer.returncode == 1
    assert "did not complete: e/0;" in answer.stderr
    flag.write_text("")
    assert place.actions("--wait") == [(0, "resumed")]
    assert place.actions() == [(0, "completed")]


def test_what_ran_other_code_is_told(place: Place) -> None:
    flag = place.code.parent / "flag"
    (place.code / "job.py").write_text("print('first')\n")
    place.spec(
        ["sh", "-c", f"cat job.py && (test ${{config.x}} = 1 || test -e {flag})"],
        config={"x": 0},
        sweep={"grid": {"config.x": [1, 2]}},
    )
    assert place.hpcrun("submit", "cluster=local", "--wait").returncode == 1
    flag.write_text("")
    (place.code / "job.py").write_text("print('second')\n")
    (place.code / "more.py").write_text("")
    answer = place.hpcrun("submit", "cluster=local", "--wait")
    changed = "job.py changed, more.py added"
    assert f"other code than these runs stopped with: run 1: {changed}\n" in answer.stderr
    assert f"completed under older code: run 0: {changed} (--new" in answer.stderr
    assert "second" in place.paths.run(1).attempts()[-1].rank_log(0).read_text()
    again = place.hpcrun("submit", "cluster=local", "--json")
    assert [run["older_code"] for run in json.loads(again.stdout)["runs"]] == [True, False]
    assert f"completed under older code: run 0: {changed}" in again.stderr
    (place.code / "job.py").write_text("print('first')\n")
    (place.code / "more.py").unlink()
    last = place.hpcrun("submit", "cluster=local")
    assert "completed under older code: run 1: job.py changed, more.py removed" in last.stderr


def test_a_completed_run_is_lengthened(place: Place) -> None:
    """Also by a key that was made extendable only when the run had completed."""
    (place.code / "job.py").write_text("import sys\nprint(sys.argv[1:])\n")
    config = {"total": 3, "warmup": "${config.total}", "x": 0}
    sweep = {"grid": {"config.x": [1, 2]}}

    def spec(total: int, **more: Any) -> None:
        place.spec("job.py", config={**config, "total": total}, sweep=sweep, **more)

    def said(run: int) -> str:
        return place.paths.run(run).attempts()[-1].rank_log(0).read_text()

    spec(3)
    assert place.actions("--wait") == [(0, "new"), (1, "new")]
    assert said(1) == "['--total=3', '--warmup=3', '--x=2']\n"
    spec(5, extendable=["config.total"])
    dry = place.hpcrun("submit", "cluster=local", "--dry-run", "--json")
    assert [array["runs"] for array in json.loads(dry.stdout)["arrays"]] == [[0, 1]]
    answer = place.hpcrun("submit", "cluster=local", "--only", "x=2", "--wait")
    assert answer.returncode == 0, answer.stderr
    assert (
        "2 runs (1 had completed, and goes on with another value, 1 left out by --only)"
        in answer.stderr
    )
    assert said(1) == "['--total=5', '--warmup=5', '--x=2']\n"
    assert place.actions("--wait") == [(0, "extended"), (1, "completed")]
    assert place.actions() == [(0, "completed"), (1, "completed")]
    spec(3, extendable=["config.total"])
    assert place.actions("--only", "x=1", "--wait") == [(0, "extended"), (1, "skipped")]
    spec(7)
    assert place.actions("--only", "failed") == [(2, "skipped"), (3, "skipped")]


def test_only_some_of_the_runs(place: Place) -> None:
    flag = place.code.parent / "flag"
    place.spec(
        ["sh", "-c", f"test ${{config.x}} = 1 || test -e {flag}"],
        config={"x": 0},
        sweep={"grid": {"config.x": [1, 2, 3]}},
    )
    assert place.actions("--only", "x=2", "--only", "failed") == [(n, "skipped") for n in range(3)]
    assert place.hpcrun("submit", "cluster=local", "--only", "x=1", "--wait").returncode == 0
    said = place.hpcrun("submit", "cluster=local", "--only", "x=2", "--wait")
    assert said.returncode == 1
    assert "3 runs (1 new, 1 completed already, 1 left out by --only)" in said.stderr
    flag.write_text("")
    dry = place.hpcrun("submit", "cluster=local", "--only", "failed", "--dry-run", "--json")
    told = json.loads(dry.stdout)
    assert [array["runs"] for array in told["arrays"]] == [[1]]
    assert [run["number"] for run in told["runs"]] == [1]
    assert told["counts"] == {"completed": 1, "resumed": 1, "skipped": 1}
    assert told["decisions"][2] == {"run": 2, "action": "skipped"}
    assert place.actions("--only", "failed", "--wait") == [
        (0, "completed"),
        (1, "resumed"),
        (2, "skipped"),
    ]
    assert place.actions("--only", "new", "--wait")[2] == (2, "new")
    wrong = place.hpcrun("submit", "cluster=local", "--only", "faild")
    assert (wrong.returncode, "accepted are new, failed" in wrong.stderr) == (2, True)
    absent = place.hpcrun("submit", "cluster=local", "--only", "x=9")
    assert (absent.returncode, "its values are 1, 2, 3" in absent.stderr) == (2, True)


def test_attach_cancel_and_submit_again(place: Place) -> None:
    place.spec(["sleep", "300"])
    assert place.actions() == [(0, "new")]
    assert place.actions() == [(0, "attached")]
    until(lambda: place.paths.run(0).attempt(1).rank_log(1).exists())
    assert place.hpcrun("cancel", "e").returncode == 0
    until(lambda: not list(processes.of_submission(place.paths.submission(1).directory)))
    place.spec(["true"])
    assert place.actions("--wait") == [(1, "new")]
    place.spec(["sleep", "300"])
    assert place.actions() == [(0, "resumed")]


def test_what_a_killed_submit_has_started_is_stayed_with(place: Place) -> None:
    """Killed as it had started the runs, and not yet written which process has them."""
    place.spec(["sleep", "300"])
    assert place.actions() == [(0, "new")]
    until(lambda: place.paths.run(0).attempt(1).rank_log(1).exists())
    journal = place.paths.submission(1).journal
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"submitting"' in line))
    assert place.actions() == [(0, "attached")]
    processes.kill_all(place.paths.submission(1).directory)
    assert place.actions() == [(0, "resumed")]


def test_two_submits_at_once_give_no_number_twice(place: Place) -> None:
    place.spec(["true"], config={"x": 0})
    started = [
        subprocess.Popen(
            place.argv("submit", "cluster=local", "--json", f"config.x={number}"),
            cwd=place.code,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in range(3)
    ]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in started]
    assert sorted(answer["runs"][0]["run"] for answer in answers) == [0, 1, 2]
    assert not place.paths.submit_lock.exists()


@pytest.mark.parametrize(
    ("words", "listed", "counts"),
    [
        ((), ["1", "2", "3"], "2 start again, 1 new"),
        (("failed",), ["1"], "1 starts again, 1 completed already, 2 left out"),
        (("cancelled",), ["2"], "1 starts again, 1 completed already, 2 left out"),
        (("new",), ["3"], "1 new, 1 completed already, 2 left out"),
        (("new", "failed"), ["1", "3"], "1 completed already, 1 left out"),
        (("x=1",), [], "1 completed already, 3 left out by --only); nothing to submit"),
        (("x=4", "failed"), [], "3 left out by --only); nothing to submit"),
    ],
)
def test_a_dry_run_lists_what_would_be_submitted(
    place: Place, words: tuple[str, ...], listed: list[str], counts: str
) -> None:
    """Run 0 completed, 1 failed, 2 was cancelled and 3 is new."""
    place.spec(["true"], config={"x": 0}, sweep={"grid": {"config.x": [1, 2, 3, 4]}})
    for run in range(3):
        place.paths.run(run).attempt(1).directory.mkdir(parents=True)
    ledger.set_intent(place.paths.run(0), ledger.FINISHED)
    ledger.set_intent(place.paths.run(2), ledger.CANCELLED)
    only = [part for word in words for part in ("--only", word)]
    dry = place.hpcrun("submit", "cluster=local", "--dry-run", *only)
    assert dry.returncode == 0, dry.stderr
    rows = dry.stdout.partition("run  swept")[2].splitlines()[1:]
    assert [row.split()[0] for row in rows if "1 node" in row] == listed
    assert all(part in dry.stderr for part in counts.split(", ")), dry.stderr


def test_a_dry_run_leaves_out_what_is_running(place: Place) -> None:
    place.spec(["sleep", "60"], config={"x": 0}, sweep={"grid": {"config.x": [1, 2]}})
    assert place.actions() == [(0, "new"), (1, "new")]
    dry = place.hpcrun("submit", "cluster=local", "--dry-run", "--json", "--sweep", "config.x=2,3")
    told = json.loads(dry.stdout)
    assert [run["label"] for run in told["runs"]] == ["x=3"]
    assert told["counts"] == {"attached": 1, "new": 1}


def test_a_dry_run_says_where_slurm_is_silent(place: Place, tmp_path: Path) -> None:
    """What is queued or running is not known then, and the rest is shown all the same."""
    place.spec(["true"], cluster="slurm")
    shim = tmp_path / "shim"
    shim.mkdir()
    for name in ("sbatch", "squeue", "sacct"):
        (shim / name).write_text("#!/bin/sh\nexec sleep 30\n")
        (shim / name).chmod(0o755)
    submission = place.paths.submission(1)
    submission.directory.mkdir(parents=True)
    plan_file.write(freeze(compile_spec(place.code / "e.yaml", root=place.root)), submission.plan)
    entry = {"event": "submitted", "time": 1.0, "array": 0, "runs": [0], "job_id": "77"}
    files.append(submission.journal, {**entry, "event": "submitting", "host": "h"}, entry)
    path = f"{shim}:{os.environ['PATH']}"
    began = time.monotonic()
    dry = place.hpcrun("submit", "--dry-run", PATH=path)
    assert time.monotonic() - began < 10
    assert dry.returncode == 0, dry.stderr
    assert "not known is which runs are queued or running" in dry.stderr
    assert "1 node x 2 ranks" in dry.stdout


def test_dry_run_is_plan_and_writes_nothing(place: Place) -> None:
    place.spec(["true"], cluster="slurm", sweep={"grid": {"resources.nodes": [1, 2]}})
    before = sorted(place.code.iterdir())
    dry = place.hpcrun("submit", "--dry-run", PATH="/nonexistent")
    assert dry.returncode == 0, dry.stderr
    assert "#SBATCH --nodes=2" in dry.stdout
    assert dry.stdout == place.hpcrun("plan").stdout
    assert not place.root.exists()
    assert sorted(place.code.iterdir()) == before


@pytest.mark.parametrize("command", ["submit", "run"])
def test_help_imports_nothing_slow(command: str) -> None:
    program = (
        f"import sys; import hpcrun.cli.{command}\n"
        "slow = {'torch', 'deepspeed', 'submitit', 'omegaconf', 'jinja2', 'rich', 'yaml'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    answer = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_the_root_is_recorded_without_links(place: Place, tmp_path: Path) -> None:
    place.spec(["true"])
    place.root.mkdir()
    (tmp_path / "link").symlink_to("root")
    argv = [PYTHON, "-m", "hpcrun", "submit", "e.yaml", "--dry-run", "--json", "cluster=local"]
    answer = subprocess.run(
        [*argv, "--root", "../code/../link"], cwd=place.code, capture_output=True, check=True
    )
    assert json.loads(answer.stdout)["root"] == str(place.root)


def test_dry_run_imports_neither_torch_nor_submitit(place: Place) -> None:
    place.spec(["true"], cluster="slurm")
    program = (
        "import sys; from hpcrun.cli.main import group\n"
        "group.main(['submit', 'e.yaml', '--dry-run'], standalone_mode=False)\n"
        "print(sorted({'torch', 'deepspeed', 'submitit'} & set(sys.modules)), file=sys.stderr)"
    )
    answer = subprocess.run(
        [PYTHON, "-c", program], cwd=place.code, capture_output=True, text=True, check=True
    )
    assert answer.stderr.endswith("\n[]\n")


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"cluster": "slurm"}, 4, "no sbatch on PATH"),
        ({"environment": {"python": "/nonexistent/python"}}, 2, "/nonexistent/python"),
        ({"entry": "absent.py"}, 2, "absent.py"),
    ],
)
def test_what_cannot_be_submitted_leaves_nothing(
    place: Place, change: dict[str, Any], code: int, says: str
) -> None:
    place.spec(**{"entry": ["true"], "cluster": "local", **change})
    answer = place.hpcrun("submit", PATH="/nonexistent")
    assert answer.returncode == code, answer.stderr
    assert says in answer.stderr
    assert not place.root.exists()


def test_code_that_is_too_large_leaves_nothing(place: Place) -> None:
    place.spec(["true"])
    with (place.code / "weights.pt").open("wb") as stream:
        stream.truncate(101_000_000)
    answer = place.hpcrun("submit", "cluster=local")
    assert answer.returncode == 2
    assert "weights.pt" in answer.stderr
    assert not place.root.exists()


@pytest.mark.parametrize("inside", ["", "deeper/still"])
def test_a_root_that_is_a_file(place: Place, inside: str) -> None:
    place.spec(["true"])
    place.root.write_text("")
    place.root = place.root / inside
    answer = place.hpcrun("submit", "cluster=local")
    assert answer.returncode == 2, answer.stderr
    assert "--root DIR" in answer.stderr


def test_interrupted_while_it_waits(place: Place) -> None:
    place.spec(["sleep", "300"])
    process = subprocess.Popen(
        place.argv("submit", "cluster=local", "--wait"),
        cwd=place.code,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: place.paths.run(0).attempt(1).rank_log(1).exists())
    process.send_signal(signal.SIGINT)
    assert "`hpcrun status --root" in process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert place.actions() == [(0, "attached")]


def test_run_shows_the_ranks(place: Place) -> None:
    place.spec(
        [PYTHON, "-c", SAY, "${config.x}"], config={"x": 0}, sweep={"grid": {"config.x": [1, 2]}}
    )
    answer = place.hpcrun("run")
    assert answer.returncode == 0, answer.stderr
    assert sorted(answer.stdout.splitlines()) == [
        f"{run} r{rank} | rank {rank} {run + 1}" for run in (0, 1) for rank in (0, 1)
    ]
    assert "--- e/1 x=2" in answer.stderr
    again = place.hpcrun("run")
    assert again.returncode == 0
    assert again.stdout == ""
    assert "2 completed already); nothing to submit (--new runs them again)" in again.stderr


def test_run_of_what_fails_shows_why(place: Place) -> None:
    place.spec(["/nonexistent/program"], resources={"time": "00:10:00"})
    answer = place.hpcrun("run")
    assert answer.returncode == 1
    assert "/nonexistent/program" in answer.stdout
    assert f"not completed; `hpcrun why --root {place.root} e` tells more" in answer.stderr


def test_what_a_script_raised_is_the_cause_of_its_end(place: Place) -> None:
    """It is read from the log: a program in a process of its own leaves no record."""
    (place.code / "job.py").write_text("print('begun')\nopen('data/x.csv')\n")
    place.spec("job.py", recovery={"max_failures": 1})
    assert place.hpcrun("run").returncode == 1
    why = place.hpcrun("why", "e").stdout
    assert "raised FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'" in why
    assert "Next: FileNotFoundError is the program's own: fix it" in why


def test_run_of_what_runs_already(place: Place) -> None:
    place.spec(["sleep", "300"])
    assert place.actions() == [(0, "new")]
    answer = place.hpcrun("run")
    assert answer.returncode == 2
    assert "e/0 is queued or running already (job local:" in answer.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_that_is_stopped_leaves_nothing(place: Place, number: signal.Signals) -> None:
    place.spec(["sh", "-c", "trap '' TERM INT; echo begun; sleep 300 & wait; sleep 300"])
    process = subprocess.Popen(
        place.argv("run"),
        cwd=place.code,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "begun" in process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
    directory = place.paths.submission(1).directory
    until(lambda: not list(processes.of_submission(directory)))
    place.spec(["true"])
    assert place.hpcrun("run").returncode == 0


def test_a_tracker_that_is_not_installed_is_told_before_anything_is_submitted(place: Place) -> None:
    python = place.code.parent / "python"
    answer = '{"executable": "/x/python", "version": "3.11.2", "torch": null, "deepspeed": null}'
    python.write_text(f"#!/bin/sh\necho '{MARK}{answer}'\n")
    python.chmod(0o755)
    place.spec(
        ["true"],
        environment={"python": str(python)},
        tracking={"tensorboard": True, "wandb": {"mode": "offline"}},
    )
    told = place.hpcrun("submit", "cluster=local")
    assert told.returncode == 2
    missing = "has no tensorboard and wandb, which tracking.tensorboard and tracking.wandb need\n"
    assert missing in told.stderr
    assert "hint: `/x/python -m pip install tensorboard wandb`" in told.stderr
    assert place.paths.submissions() == []
