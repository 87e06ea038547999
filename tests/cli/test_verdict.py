"""No silence: what `run` and `submit --wait` say while they wait, and at the end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun import activity
from hpcrun.state import layout
from hpcrun.submission.local import processes
from tests.support import command
from tests.support.gaps import Heard, listen
from tests.support.slurm_shim import Shim

# Seconds of the longest silence, and what a busy machine adds.
SILENT, BUSY = 3.0, 2.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HPCRUN_ROOT", str(tmp_path / "root"))
    for name in ("SLURM_JOB_ID", activity.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    for submission in layout.experiment(tmp_path / "root", "e").submissions():
        processes.kill_all(submission.directory)


def _spec(place: Path, entry: list[str] | str, **more: Any) -> Path:
    path = place / "e.yaml"
    base = {"name": "e", "entry": entry, "cluster": "local", "resources": {"time": "00:10:00"}}
    path.write_text(json.dumps({**base, **more}))
    return path


def _heard(place: Path, *arguments: str | Path) -> Heard:
    heard = listen(command.argv(*arguments), cwd=place)
    assert heard.longest < SILENT + BUSY, f"silent after {heard.after!r}:\n{heard.text}"
    return heard


def test_a_slow_probe_slow_setup_and_a_silent_program_are_told(place: Path) -> None:
    """The setup lines are run at the probe, and again before the ranks."""
    setup = {"setup": ["sleep 4"], "python": sys.executable}
    spec = _spec(place, ["sh", "-c", "sleep 4; echo done"], environment=setup)
    heard = _heard(place, "run", spec)
    assert heard.returncode == 0, heard.text
    assert "starting the job's Python" in heard.text
    assert "after the setup lines" in heard.text
    assert "e/0 running" in heard.text
    done, advice = heard.text.splitlines()[-2:]
    assert done.startswith("e/0: completed in 1 attempt, ")
    assert advice == "next: hpcrun logs e/0"


def test_waiting_tells_how_far_the_runs_are(place: Path) -> None:
    program = """
import json, os, time
for step in range(1, 7):
    with open(os.environ["HPCRUN_METRICS_FILE"], "a") as stream:
        stream.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    time.sleep(0.7)
"""
    (place / "train.py").write_text(program)
    heard = _heard(place, "submit", _spec(place, "train.py"), "--wait")
    assert heard.returncode == 0, heard.text
    assert "e/0 running, step " in heard.text
    assert "the run has completed" in heard.text
    assert heard.text.splitlines()[-1] == "next: hpcrun results e   hpcrun logs e"


def test_a_failure_has_its_cause_in_a_line_and_the_next_step(place: Path) -> None:
    spec = _spec(place, ["sh", "-c", "echo broken; exit 3"], recovery={"max_failures": 1})
    run = command.hpcrun("run", spec, cwd=place)
    assert run.returncode == 1
    *_, cause, advice = run.stderr.splitlines()
    assert cause.startswith("e/0: failed after 1 attempt")
    assert "exit code 3" in cause
    assert advice == "e/0 has not completed; `hpcrun why e` tells more"
    waited = command.hpcrun("submit", spec, "--wait", "--json", cwd=place)
    assert waited.returncode == 1
    assert json.loads(waited.stdout)["experiment"] == "e"
    assert "e/0: failed after 2 attempts" in waited.stderr
    assert waited.stderr.splitlines()[-1] == "did not complete: e/0; `hpcrun why e` tells more"


def test_quiet_says_nothing_however_long_it_takes(place: Path) -> None:
    environment = {"setup": ["sleep 3"], "python": sys.executable}
    spec = _spec(place, ["true"], environment=environment)
    quiet = command.hpcrun("submit", spec, "-q", cwd=place)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert quiet.stdout.startswith("local:")


def test_hello_ends_in_a_verdict(place: Path) -> None:
    heard = listen(command.argv("run", "hello"), cwd=place, env=os.environ)
    assert heard.returncode == 0, heard.text
    assert "hello from rank 1 of 2" in heard.text
    assert re.search(
        r"(?m)^hello ships with hpcrun: /.*/configs/experiments/hello\.yaml$", heard.text
    )
    done, advice = heard.text.splitlines()[-2:]
    assert done.startswith("hello/0: completed in 1 attempt, ")
    assert advice == "next: hpcrun logs hello/0"


def test_steps_that_are_printed_and_not_read_are_told_with_the_line_that_reads_them(
    place: Path,
) -> None:
    printed = 'for n in range(1, 6): print(f"step {n}/5 loss {1 / n:.3f}", flush=True)\n'
    (place / "train.py").write_text(printed)
    spec = place / "e.yaml"
    spec.write_text('name: e\nentry: train.py\nresources: {time: "00:10:00"}\n')
    run = command.hpcrun("run", "e.yaml", cwd=place)
    assert run.returncode == 0, run.stderr
    assert "e/0 prints steps that hpcrun does not read" in run.stderr
    [line] = [one.strip() for one in run.stderr.splitlines() if "progress: {" in one]
    for reader in ("status", "why"):
        shown = command.hpcrun(reader, "e", cwd=place)
        assert line in shown.stdout + shown.stderr
    spec.write_text(f"{spec.read_text()}{line}\n")
    again = command.hpcrun("run", "e.yaml", "--new", cwd=place)
    assert again.returncode == 0, again.stderr
    assert "hpcrun does not read" not in again.stderr
    old, new = json.loads(command.hpcrun("status", "e", "--json", cwd=place).stdout)
    assert (old["step"], new["step"], new["total_steps"]) == (None, 5, 5)
    assert new["metrics"]["loss"] == 0.2


def test_what_is_read_from_a_scripts_lines_is_named_as_the_next_step(place: Path) -> None:
    progress = {"pattern": r"step (?P<step>\d+) loss (?P<loss>\S+)"}
    spec = _spec(place, ["sh", "-c", "echo step 1 loss 0.5"], progress=progress)
    run = command.hpcrun("run", spec, cwd=place)
    assert run.returncode == 0, run.stderr
    assert run.stderr.splitlines()[-1] == "next: hpcrun logs e/0   hpcrun results e/0"


def test_a_module_that_is_missing_is_told_before_the_run_and_tried_once(place: Path) -> None:
    (place / "train.py").write_text("import json\nimport no_such_module.inner\n")
    run = command.hpcrun("run", _spec(place, "train.py"), cwd=place)
    assert run.returncode == 1
    told, *_ = [one for one in run.stderr.splitlines() if "no_such_module" in one]
    assert told.startswith(f"train.py:2 imports no_such_module, which {sys.executable} does not")
    [status] = json.loads(command.hpcrun("status", "e", "--json", cwd=place).stdout)
    assert (status["state"], status["attempt"]) == ("failed", 1)


@pytest.mark.parametrize("left", [{}, {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_PROCID": "1"}])
def test_a_job_that_a_shell_has_left_is_nothing_to_a_run_on_this_machine(
    place: Path, shim: Shim, monkeypatch: pytest.MonkeyPatch, left: dict[str, str]
) -> None:
    shim.answer("srun", {})
    for name, value in {"SLURM_JOB_ID": "999", **left}.items():
        monkeypatch.setenv(name, value)
    spec = _spec(place, ["sh", "-c", "! env | grep ^SLURM_JOB && test $RANK = 0"])
    done = command.hpcrun("run", spec, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "on this machine" in done.stderr


def test_a_tracker_that_lacks_metrics_is_told(place: Path) -> None:
    """The library stands in for one whose server refuses a key."""
    library = place / "library"
    library.mkdir()
    refuses = "def __getattr__(name): raise RuntimeError('the API key is wrong')\n"
    (library / "wandb.py").write_text(refuses)
    spec = _spec(
        place,
        ["sh", "-c", """echo '{"step": 1, "loss": 1}' >> $HPCRUN_METRICS_FILE"""],
        tracking={"wandb": {"mode": "offline"}},
        environment={"variables": {"PYTHONPATH": str(library)}, "python": sys.executable},
    )
    run = command.hpcrun("run", spec, cwd=place)
    assert run.returncode == 0, run.stderr
    assert "wandb has not got all metrics of e/0: RuntimeError: the API key is wrong" in run.stderr
    shown = command.hpcrun("why", "e", cwd=place).stdout
    assert "--run 0 --once" in shown
    told = json.loads(command.hpcrun("why", "e", "--json", cwd=place).stdout)
    assert "the API key is wrong" in told[0]["tracker_problems"]["wandb"]
    [line] = [one for one in shown.splitlines() if "PYTHONPATH=" in one]
    variables = {**os.environ, "WANDB_CACHE_DIR": str(place / "cache")}
    typed = line.partition("PYTHONPATH=")[2]
    subprocess.run(["sh", "-c", f"PYTHONPATH={typed}"], check=True, cwd=place, env=variables)
    assert "has not got" not in command.hpcrun("why", "e", cwd=place).stdout
