"""Programs without a session that hang, on the local executor, with real processes."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcrun.run.health.program_hangs import RankActivity
from hpcrun.run.health.progress import GONE, RankProgress
from hpcrun.run.health.straggler import Straggler, StragglerDetector
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.hang_watch import HangWatch, Hung
from hpcrun.state import ledger
from hpcrun.state.plan import Entry, RunPlan
from tests.support.place import Place
from tests.support.waiting import until

AFTER = 4
RECOVERY = {"hang_after": f"00:00:{AFTER:02}"}

# Rank 1 is stopped by the test in attempt 1.
LOGS = """
import os, time

def train():
    for step in range(600 if os.environ["HPCRUN_ATTEMPT"] == "1" else 3):
        print("step", step, "of process", os.getpid(), flush=True)
        time.sleep(0.2)

train()
"""
# A build of torch's that was ended in attempt 1 of this run; later, torch is not asked to build.
BUILDS = """
import os, pathlib

def builds():
    if os.environ["HPCRUN_ATTEMPT"] == "2":
        print("builds in", os.environ["TORCH_EXTENSIONS_DIR"])
        return
    from torch.utils import cpp_extension
    directory = pathlib.Path(cpp_extension._get_build_directory("adder", False))
    (directory / "lock").touch()
    cpp_extension.load_inline("adder", "int add(int a, int b) { return a + b; }", functions="add")

builds()
"""


def _script(place: Place, text: str, **spec: Any) -> None:
    (place.code / "train.py").write_text(text)
    place.submit(Entry("script", file="train.py"), recovery=RECOVERY, **spec)


def _stacks(place: Place, rank: int) -> str:
    return place.run.attempt(1).stacks(rank).read_text()


def test_a_script_of_which_one_rank_is_stopped(place: Place) -> None:
    _script(place, LOGS, nodes=2)
    supervisor = place.start()
    until(lambda: place.run.attempt(1).rank_log(1).exists() and "step 3" in place.output(1))
    pid = int(place.output(1).split()[-1])
    os.kill(pid, signal.SIGSTOP)
    stopped = time.time()
    code, said = place.end(supervisor)
    assert code == 0, said
    first = place.attempt(1)
    assert first.cause["kind"] == "hang"
    assert (first.cause["rank"], first.cause["node"]) == (1, "local1")
    assert first.cause["message"].startswith("rank 1 has been stopped (SIGSTOP) for ")
    assert AFTER <= first.end["time"] - stopped < AFTER + 20
    assert first.action == "restart"
    assert place.attempt(2).outcome == "completed"
    # The start-up file has the other one tell where it is; the one that is stopped cannot.
    assert ", line 7 in train" in _stacks(place, 0)
    assert _stacks(place, 1).startswith("Native ")


def test_a_build_of_torchs_that_was_ended(place: Place, tmp_path: Path) -> None:
    """As an attempt that is ended while it compiles leaves it; in the user's own cache."""
    _script(place, BUILDS, ranks=2)
    code, said = place.supervise(timeout=120, HOME=str(tmp_path), USER="nobody")
    assert code == 0, said
    (lock,) = (tmp_path / ".cache/torch_extensions").glob("*/adder/lock")
    cause = place.attempt(1).cause
    assert cause["kind"] == "hang"
    assert cause["lock"] == str(lock)
    assert (cause["rank"], cause["node"]) == (0, "local0")
    assert "no rank has written or computed anything" in cause["message"]
    assert f"it waits for {lock}, which a build that was ended has left" in cause["message"]
    assert "in wait" in _stacks(place, 0)
    # The lock may be another node's, so it stays; the next attempt does without that directory.
    assert place.attempt(2).outcome == "completed"
    for rank in (0, 1):
        assert "attempt-2/torch_extensions" in place.output(rank, 2)
    agent = place.run.attempt(1).agent_log("local0").read_text()
    assert f"{lock}: no process here holds it; torch builds in the attempt's own directory" in agent


def test_a_lock_in_a_directory_of_the_users_is_told(place: Place, tmp_path: Path) -> None:
    (tmp_path / "mine/adder").mkdir(parents=True)
    lock = tmp_path / "mine/adder/lock"
    lock.touch()
    place.submit('echo "builds in $TORCH_EXTENSIONS_DIR"')
    place.supervise(TORCH_EXTENSIONS_DIR=str(tmp_path / "mine"))
    assert place.output() == f"builds in {tmp_path / 'mine'}\n"
    agent = place.run.attempt(1).agent_log("local0").read_text()
    assert f"{lock}: no process here holds it; torch waits for it unless it is removed" in agent
    assert lock.exists()


def test_a_lock_in_the_runs_directory_is_removed(place: Place) -> None:
    own = place.run.directory / "extensions"
    (own / "adder").mkdir(parents=True)
    (own / "adder/lock").touch()
    variables = {"TORCH_EXTENSIONS_DIR": "${hpcrun:directory}/extensions"}
    place.submit("ls $TORCH_EXTENSIONS_DIR/adder", environment={"variables": variables})
    assert place.supervise()[0] == 0
    assert place.output() == ""


def test_a_rank_that_hung_while_another_had_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents send what has changed, which nothing does in a rank that waits for ever."""
    living = RankProgress(1, 5, 0, 0, 0, "S", 0)
    agents = SimpleNamespace(
        pulses={0: living},
        programs={1: RankActivity(0, 10, 0, "S")},
        **{"traffic": {}, "locks": {}, "stacks": dict},
        places=SimpleNamespace(node_of=lambda _rank: "n1"),
    )
    spec = {"resources": {"nodes": 2, "ntasks_per_node": 1}, "recovery": {"hang_after": "00:01:00"}}
    run = RunPlan(0, "x", "", {}, Entry("command", argv=("true",)), spec)
    clock = itertools.count(time.monotonic())
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    watch = HangWatch(run, cast(Agents, agents), pytest.fail)
    watch.turn()
    agents.pulses[0] = replace(living, state=GONE)
    with pytest.raises(Hung, match="no rank has written or computed anything for 6"):
        deque((watch.turn() for _ in range(65)), 0)


def test_a_rank_that_holds_up_the_others_is_recorded(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = Straggler(1, waits=0.0, others_wait=0.5)
    monkeypatch.setattr(StragglerDetector, "update", lambda *_: slow)
    places = SimpleNamespace(node_of=lambda _rank: "n1")
    agents = SimpleNamespace(pulses={}, programs={}, traffic={}, places=places)
    run = RunPlan(0, "x", "", {}, Entry("command", argv=("true",)), {"resources": {"nodes": 2}})
    found: list[Any] = []
    watch = HangWatch(
        run, cast(Agents, agents), lambda event, **details: found.append((event, details))
    )
    watch.turn()
    assert found == [(ledger.STRAGGLER, {**vars(slow), "node": "n1"})]
    assert "rank 1 on n1 holds up the others" in capfd.readouterr().out


def test_the_end_of_a_program_that_waits_names_the_key_that_allows_it(place: Place) -> None:
    (place.code / "train.py").write_text(
        "import os, time\ntime.sleep(120 if os.environ['HPCRUN_ATTEMPT'] == '1' else 0)\n"
    )
    place.submit(Entry("script", file="train.py"), recovery={"hang_after": "00:00:02"})
    code, said = place.supervise()
    assert code == 0, said
    message = place.attempt(1).cause["message"]
    assert message.startswith("no rank has written or computed anything for ")
    assert message.endswith(
        "; the limit is recovery.hang_after, 00:00:02 (null for a program that waits by design)"
    )


# What looks like a hang for a while; each takes longer than `recovery.hang_after`.
SLOW = {
    "computes in silence": "import time; end = time.time() + 9\nwhile time.time() < end: pass",
    "a shell waits for its child": "import os, sys; code = 'for _ in range(4 * 10**8): pass'\n"
    "os.execvp('bash', ['bash', '-c', 'timeout 9 $0 -c \"$1\"; true', sys.executable, code])",
    "writes slowly": "import time\nwith open('/dev/null', 'wb', 0) as stream:\n"
    "    for _ in range(45):\n        stream.write(bytes(100_000))\n        time.sleep(0.2)",
    "prints now and then": "import time\nfor _ in range(5): print('x', flush=True); time.sleep(2)",
    "waits by design": "import time; time.sleep(9)",
}


def test_programs_that_are_only_slow(tmp_path: Path) -> None:
    places = {}
    for name, program in SLOW.items():
        (tmp_path / name).mkdir()
        places[name] = Place(tmp_path / name)
        (places[name].code / "train.py").write_text(program)
        recovery = RECOVERY if name != "waits by design" else {"hang_after": None}
        places[name].submit(Entry("script", file="train.py"), recovery=recovery)
    try:
        supervisors = {name: place.start() for name, place in places.items()}
        for name, place in places.items():
            code, said = place.end(supervisors[name], 120)
            assert (code, [one.outcome for one in ledger.read(place.run)]) == (0, ["completed"]), (
                name,
                said,
            )
    finally:
        for place in places.values():
            place.close()


@pytest.mark.parametrize("stacks", ["1", "0"])
def test_the_start_up_file_can_be_left_out(place: Place, stacks: str) -> None:
    place.submit("echo ${PYTHONPATH%%:*}", recovery=RECOVERY)
    place.supervise(HPCRUN_STACKS=stacks)
    assert place.output().endswith("/attempt-1/python\n") == (stacks == "1")
