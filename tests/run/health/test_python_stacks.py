"""Stacks of Pythons that have the start-up file, and of those that have not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.run.health import python_stacks, stack_summary
from hpcrun.run.health.progress import STACKS_SIGNAL
from hpcrun.run.health.stack_summary import ThreadPosition
from tests.support.waiting import until

PROGRAM = """
import os, sys, time

def waits():
    print("here", flush=True)
    time.sleep(60)

waits()
"""
WAITS = "train.py:6 (waits)"


class Programs:
    """Starts Pythons in a directory with the start-up file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.start_up = directory / "python"
        self.started: list[subprocess.Popen[str]] = []
        python_stacks.write_start_up(self.start_up)
        (directory / "train.py").write_text(PROGRAM)

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Start a program, and wait for its first line."""
        path = os.pathsep.join(filter(None, [str(self.start_up), variables.pop("PYTHONPATH", "")]))
        process = subprocess.Popen(
            command or (sys.executable, "train.py"),
            cwd=self.directory,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        process.first = process.stdout.readline()  # type: ignore[attr-defined]
        return process

    def output(self, code: str, **variables: str) -> str:
        """What a Python with the start-up file prints, its errors included."""
        path = os.pathsep.join(filter(None, [str(self.start_up), variables.pop("PYTHONPATH", "")]))
        return subprocess.run(
            [sys.executable, "-c", code],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        ).stdout


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def _position(pids: list[int]) -> ThreadPosition | None:
    return stack_summary.position(python_stacks.stacks(pids, 1.0))


def test_a_program_that_waits(programs: Programs) -> None:
    process = programs.start()
    until(lambda: _position([process.pid]) == ThreadPosition("waits", WAITS, collective=False))
    for _ in range(2):
        text = python_stacks.stacks([process.pid], 1.0)
        assert text.startswith(f"Process {process.pid}:\n")
        assert text.count("in waits") == 1
    assert process.poll() is None


def test_the_process_that_works_comes_last(programs: Programs) -> None:
    """torchrun and its child; a forked data loader below that is none of them."""
    child = "import os, runpy, time; os.fork() or time.sleep(60); runpy.run_path('train.py')"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = programs.start(sys.executable, "-c", parent)
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    child_pid = int(tasks.read_text())
    fork = int(Path(f"/proc/{child_pid}/task/{child_pid}/children").read_text())
    pids = [process.pid, child_pid, fork]
    assert python_stacks.pythons(pids) == [fork, process.pid, child_pid]
    until(lambda: _position(pids) == ThreadPosition("waits", WAITS, collective=False))
    text = python_stacks.stacks(pids, 1.0)
    assert text.index(f"Process {process.pid}") < text.index(f"Process {child_pid}")
    assert f"Process {fork}:" not in text
    os.kill(fork, signal.SIGKILL)
    os.kill(child_pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-I", "train.py"],
        [sys.executable, "-S", "train.py"],
        [sys.executable, "-c", "import os; os.execvp('sh', ['sh', '-c', 'echo x; sleep 60'])"],
        [
            *(sys.executable, "-c"),
            "import os, sys; os.execv(sys.executable, [sys.executable, '-I', 'train.py'])",
        ],
        [
            *(sys.executable, "-c"),
            "import os, runpy; os.closerange(3, 999); runpy.run_path('train.py')",
        ],
    ],
    ids=["isolated", "without site", "became a shell", "became another Python", "closed its files"],
)
def test_the_signal_ends_nobody(programs: Programs, command: list[str]) -> None:
    """Who cannot answer is not asked: the signal would end it."""
    process = programs.start(*command)
    assert python_stacks.stacks([process.pid], 1.0) == ""
    time.sleep(0.3)
    assert process.poll() is None


def test_a_process_that_is_stopped_or_gone(programs: Programs) -> None:
    process = programs.start()
    process.send_signal(signal.SIGSTOP)
    until(lambda: "T (stopped)" in Path(f"/proc/{process.pid}/status").read_text())
    assert python_stacks.stacks([process.pid], 1.0) == ""
    process.kill()
    process.wait()
    assert python_stacks.stacks([process.pid], 1.0) == ""


def test_a_sitecustomize_of_the_users_runs(programs: Programs, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; print('mine'); sys.mine = __file__")
    code = "import sitecustomize, sys; print(sitecustomize.__file__ == sys.mine, sys.path)"
    mine, path = programs.output(code, PYTHONPATH=str(own)).split("\n", 1)
    assert mine == "mine"
    assert path.startswith("True")
    assert str(programs.start_up) not in path


def test_a_sitecustomize_that_fails_is_told_as_ever(programs: Programs, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import no_such_module")
    said = programs.output("print('on')", PYTHONPATH=str(own))
    assert "Error in sitecustomize" in said
    assert "no_such_module" in said
    assert said.endswith("on\n")


@pytest.mark.parametrize("is_initialized", [True, False])
def test_who_leaves_with_a_process_group_lets_gloos_threads_end_last(
    programs: Programs, tmp_path: Path, is_initialized: bool
) -> None:
    """After the program's own exit handlers; torch is a stand-in that says what it is asked."""
    stand_in = f"""
import time
class distributed:
    is_available = staticmethod(lambda: True)
    is_initialized = staticmethod(lambda: print("asked") or {is_initialized})
time.sleep = lambda seconds: print("waits", seconds)
"""
    (tmp_path / "torch.py").write_text(stand_in)
    code = "import atexit, torch; atexit.register(print, 'own')"
    said = programs.output(code, PYTHONPATH=str(tmp_path)).splitlines()
    assert said == ["own", "asked", *(["waits 0.1"] if is_initialized else [])]
    assert programs.output("print('on')") == "on\n"


def test_nothing_else_changes(programs: Programs) -> None:
    """The path, the descriptors that a program gets, and almost all modules."""
    code = """
import os, sys, json
print(json.dumps([sys.path, os.open("/dev/null", 0), sorted(sys.modules)]))
"""
    found = json.loads(programs.output(code))
    programs.start_up = programs.directory / "elsewhere"
    path, descriptor, modules = json.loads(programs.output(code))
    assert found[:2] == [[name for name in path if "elsewhere" not in name], descriptor]
    assert set(found[2]) - set(modules) <= {"atexit", "faulthandler", "fcntl", "sitecustomize"}


@pytest.mark.parametrize(
    ("code", "noted"),
    [
        ("import json, einops", ["einops", "timm"]),
        ("import einops, timm; import einops", ["einops", "timm"]),
        ("import json", []),
        # What is tried in vain is tried again, in vain.
        ("try: import peft\nexcept ImportError: pass", ["peft"]),
        (
            "import os; os.environ['HF_HOME'] = '/'; import einops",
            ["einops HF_HOME", "timm HF_HOME"],
        ),
        ("import os, timm; del os.environ['PATH']; import einops", ["timm", "einops PATH"]),
        ("import sys; sys.path.insert(0, '/x'); import timm", ["timm sys.path"]),
        ("import sys; sys.path.append('/x'); import timm", ["timm sys.path"]),
        # A worker of a data loader's; another program has what it imports for itself.
        ("import os\nif os.fork() == 0: import timm\nelse: os.wait()", ["timm"]),
        ("import subprocess, sys; subprocess.run([sys.executable, '-c', 'import timm'])", []),
        ("import os; os.remove({noted!r}); import einops; print('on')", None),
    ],
)
def test_imports_of_slow_packages_are_noted(
    programs: Programs, tmp_path: Path, code: str, noted: list[str] | None
) -> None:
    """Those of the first process, in their order, with what it had changed by then."""
    path = tmp_path / "noted"
    python_stacks.write_start_up(programs.start_up, path)
    own = tmp_path / "own"
    own.mkdir()
    (own / "einops.py").write_text("import timm")
    (own / "timm.py").write_text("")
    said = programs.output(code.replace("{noted!r}", repr(str(path))), PYTHONPATH=str(own))
    assert said == ("" if noted is not None else "on\n")
    assert not path.exists() if noted is None else path.read_text().splitlines() == noted


def test_py_spy_where_there_is_no_start_up_file(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = programs.start(sys.executable, "-I", "train.py")
    frames = [
        {"name": "wait", "filename": "/x/site-packages/torch/utils/file_baton.py", "line": 53},
        {"name": "builds", "filename": "/code/train.py", "line": 4},
    ]
    told = [
        {"thread_name": "MainThread", "frames": frames},
        {"thread_name": None, "frames": frames[:1]},
    ]
    (tmp_path / "told.json").write_text(json.dumps(told))
    spy = tmp_path / "bin/py-spy"
    spy.parent.mkdir()
    spy.write_text(f'#!/bin/sh\n[ "$5" = {process.pid} ] && cat {tmp_path}/told.json')
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{spy.parent}:{os.environ['PATH']}")
    text = python_stacks.stacks([process.pid], 5.0)
    found = ThreadPosition("wait", "train.py:4 (builds)", collective=False)
    assert stack_summary.position(text) == found
    (tmp_path / "told.json").write_text('[{"frames": 3}]')
    assert python_stacks.stacks([process.pid], 5.0) == ""


def test_the_signal_is_that_of_sessions(programs: Programs) -> None:
    assert f"register({int(STACKS_SIGNAL)}," in (programs.start_up / "sitecustomize.py").read_text()
