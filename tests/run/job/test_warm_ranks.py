"""Warm ranks of the local executor: who is called, and that none stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest

from hpcrun.run.rank import warm_up
from hpcrun.state import ledger
from hpcrun.state.plan import Entry, RunPlan
from tests.support.place import REPOSITORY, Place, command_of
from tests.support.waiting import until

Running: TypeAlias = "subprocess.Popen[str]"

RECOVERY = {"requeue": True, "in_place": 2, "warm_after": "00:00:01"}
DEVICES = {"CUDA_VISIBLE_DEVICES": "0,1"}


def workers(place: Place, *, warm: bool) -> list[int]:
    """Processes of ranks, in the order of ranks."""
    found = [process.pid for process in place.left()]
    commands = {pid: command_of(pid) for pid in found}
    ours = [pid for pid, words in commands.items() if b"hpcrun.run.worker" in words]
    return sorted((pid for pid in ours if (b"--warm" in commands[pid]) == warm), key=_rank)


def scripts(place: Place, kind: str) -> list[int]:
    """Processes of warm scripts; of functions, which are their workers, these."""
    if kind == "function":
        return workers(place, warm=True)
    return [each.pid for each in place.left() if b"hpcrun.run.script" in command_of(each.pid)]


def _rank(pid: int) -> bytes:
    return command_of(pid)[-2]


def wait(pids: list[int]) -> bool:
    """Whether processes wait for a lock."""
    return len(pids) == 2 and all("lock" in Path(f"/proc/{pid}/wchan").read_text() for pid in pids)


@pytest.fixture
def supervised(place: Place, request: pytest.FixtureRequest) -> Running:
    """A run that has warm ranks."""
    kind = getattr(request, "param", "function")
    place.submit_counting(100_000, kind=kind, recovery=RECOVERY)
    supervisor = place.start(**DEVICES)
    until(lambda: wait(workers(place, warm=True)) and wait(scripts(place, kind)), timeout=60)
    return supervisor


@pytest.mark.parametrize("supervised", ["function", "script"], indirect=True)
def test_warm_ranks_take_over_on_the_same_nodes(place: Place, supervised: Running) -> None:
    waiting = workers(place, warm=True)
    os.kill(workers(place, warm=False)[1], signal.SIGKILL)
    until(lambda: place.steps(2), timeout=60)
    assert workers(place, warm=True) == waiting
    assert workers(place, warm=False) == []
    found = ledger.read(place.run)
    assert [attempt.warm for attempt in found] == [False, True]
    assert (found[0].cause or {})["kind"] == "rank_crash"
    assert place.attempt(2).started["nodes"] == ["local0", "local1"]
    assert place.output(0, 2).startswith("begins\n")

    # The second attempt has warm ranks of its own, for the third.
    until(lambda: wait(sorted({*workers(place, warm=True)}.difference(waiting))), timeout=60)
    supervised.send_signal(signal.SIGUSR2)
    code, said = place.end(supervised)
    assert code == 75, said


def test_they_leave_with_the_run(place: Place, supervised: Running) -> None:
    supervised.send_signal(signal.SIGUSR2)
    code, said = place.end(supervised)
    assert code == 75, said
    assert len(ledger.read(place.run)) == 1
    assert "Traceback" not in place.run.attempt(1).warm_log.read_text()


def test_one_that_died_is_no_loss(place: Place, supervised: Running) -> None:
    os.kill(workers(place, warm=True)[0], signal.SIGKILL)
    os.kill(workers(place, warm=False)[0], signal.SIGKILL)
    until(lambda: place.steps(2), timeout=60)
    assert not place.attempt(2).warm
    supervised.send_signal(signal.SIGUSR2)
    code, said = place.end(supervised)
    assert code == 75, said


@pytest.mark.parametrize("supervised", ["function", "script"], indirect=True)
def test_they_leave_when_all_else_is_killed(place: Place, supervised: Running) -> None:
    agents = [each.pid for each in place.left() if b"hpcrun.run.agent" in command_of(each.pid)]
    for pid in [supervised.pid, *agents]:
        os.kill(pid, signal.SIGKILL)
    supervised.communicate(timeout=30)
    until(lambda: workers(place, warm=True) == [], timeout=10)


IMPORT = """
import os, signal, sys
from pathlib import Path
from hpcrun.run.rank import warm_up as warm
scratch, code = Path(sys.argv[1]), Path(sys.argv[2])
warm.import_all(scratch, {"OF_A_RANK": "1", "HOME": sys.argv[1]}, code, [str(code)])
assert "OF_A_RANK" not in os.environ and os.environ["HOME"] != sys.argv[1]
assert str(code) not in sys.path and "scipy" not in sys.modules
assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
print("torch.nn.quantized" in sys.modules)
"""


def importing(tmp_path: Path, *noted: str) -> subprocess.CompletedProcess[str]:
    for name in ("scratch", "code"):
        (tmp_path / name).mkdir()
    (tmp_path / "scratch" / "modules").write_text("\n".join(noted))
    for name in ("deepspeed.py", "sympy.py"):
        if name in noted:
            (tmp_path / "code" / name).write_text("")
    return subprocess.run(
        [sys.executable, "-c", IMPORT, tmp_path / "scratch", tmp_path / "code"],
        env={"PYTHONPATH": f"{REPOSITORY}:{tmp_path}", "HOME": "/", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_they_import_what_the_ranks_did(tmp_path: Path) -> None:
    done = importing(tmp_path, "torch", "torch.no_such_module", "torch.nn.quantized")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.parametrize("name", ["deepspeed.py", "sympy.py"])
def test_the_users_own_torch_is_not_mistaken(tmp_path: Path, name: str) -> None:
    done = importing(tmp_path, name, name.removesuffix(".py"))
    assert done.returncode == 1
    assert "is imported from the frozen code" in done.stderr


def test_what_takes_the_gpu_as_it_is_imported(tmp_path: Path) -> None:
    """Without a GPU torch can only be made to say that it uses one."""
    (tmp_path / "einops.py").write_text("import torch; torch.cuda._initialized = True")
    done = importing(tmp_path, "einops")
    assert done.returncode == 1
    assert "an import has begun to use the GPU" in done.stderr


@pytest.mark.parametrize(("framework", "expected"), [("auto", 1.0), ("mpi", None)])
def test_ranks_that_wait_for_each_other_as_they_import_are_never_warm(
    framework: str, expected: float | None
) -> None:
    entry = Entry("script", file="train.py", framework=framework)
    assert warm_up.after(RunPlan(0, "0", "", {}, entry, {"recovery": RECOVERY})) == expected
