"""Warm ranks of the local executor: who is called, and that none stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.policy import causes
from hpcrun.run.health import python_stacks
from hpcrun.run.job.rank_places import RankEnd, Workers
from hpcrun.run.job.warm_ranks import CalledRanks, RanksOfAgents, WarmGroup, WarmRanks
from hpcrun.run.protocol.launch import Launch, LaunchNode
from hpcrun.run.rank import warm_up
from hpcrun.state import files, ledger
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.plan import Entry, RunPlan
from tests.support.place import REPOSITORY, RESOURCES, Place, command_of
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


def wait(pids: list[int], count: int = 2) -> bool:
    """Whether so many processes wait for a lock."""
    return len(pids) == count and all(
        "lock" in Path(f"/proc/{pid}/wchan").read_text() for pid in pids
    )


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


@pytest.mark.parametrize("kind", ["function", "script"])
def test_one_on_a_spare_takes_the_place_of_a_lost_node(place: Place, kind: str) -> None:
    place.submit_counting(100_000, kind=kind, spares=1, recovery=RECOVERY)
    supervisor = place.start(**{"CUDA_VISIBLE_DEVICES": "0,1,2"})
    until(lambda: wait(workers(place, warm=True), 3) and wait(scripts(place, kind), 3), timeout=60)
    waiting = workers(place, warm=True)
    place.kill_agent("local0")
    until(lambda: place.steps(2), timeout=60)
    # The agent of local0 was theirs.
    assert workers(place, warm=True) == waiting[1:]
    second = place.attempt(2)
    assert (second.warm, second.started["nodes"]) == (True, ["local1", "local2"])
    for rank, node in enumerate(second.started["nodes"]):
        assert place.output(rank, 2).startswith("begins\n"), node
    supervisor.send_signal(signal.SIGUSR2)
    said, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 75, said
    until(lambda: place.left() == [])


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


PLAIN = """
import os, sys, time

assert (__name__, sys.argv) == ("__main__", [__file__, "an argument"]), sys.argv
began = time.time()
{imports}
print("begins", time.time() - began < 1, os.environ["HPCRUN_ATTEMPT"], flush=True)
for step in range(1, 100_000):
    time.sleep(0.05)
    print("{prints}", step, "loss", 1 / step, flush=True)
"""
PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+)"


def start_plain(place: Place, imports: str, prints: str = "step", spares: int = 0) -> Running:
    """Start a script that knows nothing of hpcrun, where a package takes two seconds to import."""
    (place.code / "train.py").write_text(PLAIN.format(imports=imports, prints=prints))
    packages = place.code.parent / "packages"
    packages.mkdir()
    (packages / "einops.py").write_text("import time\ntime.sleep(2)")
    (packages / "timm.py").write_text("")
    place.submit(
        Entry("script", file="train.py", argv=("an argument",)),
        nodes=2,
        resources={**RESOURCES, "nodes": 2, "spare_nodes": spares},
        recovery=RECOVERY,
        progress={"pattern": PATTERN},
    )
    return place.start(PYTHONPATH=f"{REPOSITORY}:{packages}")


def waiting_for(place: Place, attempt: int) -> list[int]:
    """The warm scripts that an attempt has, once they wait."""
    launch = str(place.run.attempt(attempt).launch).encode()
    found = [pid for pid in scripts(place, "script") if launch in command_of(pid)]
    return found if wait(found, len(found)) else []


@pytest.mark.parametrize(("lost", "spares"), [("rank", 0), ("node", 1)])
def test_a_script_that_knows_nothing_of_hpcrun(place: Place, lost: str, spares: int) -> None:
    supervisor = start_plain(place, "import einops, timm", spares=spares)
    until(lambda: len(waiting_for(place, 1)) == 2 + spares, timeout=60)
    warm = waiting_for(place, 1)
    if lost == "rank":
        os.kill(workers(place, warm=False)[1], signal.SIGKILL)
    else:
        place.kill_agent("local0")
    until(lambda: len(place.steps(2)) > 2, timeout=60)
    second = place.attempt(2)
    assert second.warm
    assert second.started["nodes"] == [f"local{(lost == 'node') + place}" for place in range(2)]
    # The import took no second, and nothing of the program was run ahead.
    assert [place.output(0, attempt).split()[:3] for attempt in (1, 2)] == [
        ["begins", "False", "1"],
        ["begins", "True", "2"],
    ]
    assert place.steps(2)[:3] == [1, 2, 3]
    # Who was warm can say where it hangs, and goes on noting for the third attempt.
    took_over = [pid for pid in warm if pid in scripts(place, "script")]
    assert len(took_over) == 2
    assert all("train.py" in python_stacks.stacks([pid], 5.0) for pid in took_over)
    until(lambda: len(waiting_for(place, 2)) == 2, timeout=60)
    supervisor.send_signal(signal.SIGUSR2)
    supervisor.communicate(timeout=60)
    until(lambda: place.left() == [])


@pytest.mark.parametrize(
    ("imports", "prints", "says"),
    [
        ("import json", "step", "no warm ranks: rank 0 was not seen to import a package that"),
        ("import einops", "at", ""),
    ],
    ids=["imports nothing slow", "prints no steps"],
)
def test_a_script_without_warm_ranks(place: Place, imports: str, prints: str, says: str) -> None:
    supervisor = start_plain(place, imports, prints)
    log = place.run.attempt(1).rank_log(0)
    until(lambda: log.exists() and log.read_text().count("\n") > 120, timeout=60)
    assert workers(place, warm=True) == []
    supervisor.send_signal(signal.SIGUSR2)
    _, said = place.end(supervisor)
    assert said.count("no warm ranks") == bool(says)
    assert says in said


IMPORT = """
import os, signal, sys
from pathlib import Path
from hpcrun.run.rank import warm_up as warm
noted, code = Path(sys.argv[1]), Path(sys.argv[2])
warm.import_all(noted, {"OF_A_RANK": "1", "HOME": sys.argv[1]}, code, [str(code)])
assert "OF_A_RANK" not in os.environ and os.environ["HOME"] != sys.argv[1]
assert str(code) not in sys.path and "scipy" not in sys.modules
assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
print(*(name for name in sys.argv[3:] if name in sys.modules))
"""


def importing(tmp_path: Path, *noted: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "noted").write_text("\n".join(noted))
    names = [one.split()[0] for one in noted]
    return subprocess.run(
        [sys.executable, "-c", IMPORT, tmp_path / "noted", tmp_path / "code", *names],
        env={"PYTHONPATH": f"{REPOSITORY}:{tmp_path}", "HOME": "/", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_they_import_what_the_ranks_did(tmp_path: Path) -> None:
    done = importing(tmp_path, "torch", "torch.no_such_module", "torch.nn.quantized")
    assert (done.returncode, done.stdout) == (0, "torch torch.nn.quantized\n"), done.stderr


@pytest.mark.parametrize(
    ("noted", "expected", "says"),
    [
        # einops sets OWN, and imports timm; nobody reads NCCL's variables as it is imported.
        (["einops", "timm OWN", "peft OWN"], "einops timm peft", ""),
        (["einops NCCL_DEBUG TOKENIZERS_PARALLELISM"], "einops", ""),
        (["peft", "einops HF_HOME"], "peft", "sets HF_HOME before it imports einops"),
        (["einops", "peft OWN sys.path"], "einops", "sets sys.path before it imports peft"),
        (["einops sys.path"], None, "nothing can be imported before the program begins"),
        ([], None, "nothing can be imported before the program begins"),
    ],
)
def test_what_a_program_sets_before_it_imports_is_not_passed_over(
    tmp_path: Path, noted: list[str], expected: str | None, says: str
) -> None:
    (tmp_path / "einops.py").write_text("import os, timm\nos.environ['OWN'] = '1'\n")
    for name in ("timm", "peft"):
        (tmp_path / f"{name}.py").write_text("")
    done = importing(tmp_path, *noted)
    assert (done.returncode == 0) == (expected is not None), done.stderr
    assert says in done.stdout + done.stderr
    assert expected is None or done.stdout.splitlines()[-1] == expected


def test_a_package_of_the_users_own_is_never_run(tmp_path: Path) -> None:
    """Whatever its name: it may be the program. A directory without an __init__ hides none."""
    scratch, attempt = ScratchPaths(tmp_path), AttemptPaths(tmp_path / "1")
    for path in (scratch.code / "src/datasets", scratch.code / "src/timm", attempt.directory):
        path.mkdir(parents=True)
    for name in ("datasets/__init__.py", "peft.py"):
        (scratch.code / "src" / name).write_text("")
    assert warm_up.publish("src/train.py", tmp_path, attempt) == 0
    assert not attempt.modules.exists()
    names = ["peft HF_HOME", "peft.models", "datasets", "datasets.own", "timm", "timm.layers PATH"]
    scratch.modules.write_text("\n".join([*names, ""]))
    assert warm_up.publish("src/train.py", tmp_path, attempt) == 2
    assert attempt.modules.read_text() == "timm\ntimm.layers PATH"


def test_the_users_own_torch_is_not_mistaken(tmp_path: Path) -> None:
    """Where a package imports it by another way."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/helper.py").write_text("")
    (tmp_path / "einops.py").write_text("import helper")
    done = importing(tmp_path, "einops")
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


class Step(Workers):
    """A step of two nodes of two tasks each, as its srun tells of it."""

    def __init__(self, **ends: int | None) -> None:
        super().__init__(AttemptPaths(Path("1")))
        self.code: int | None = None
        self.killed: list[str] = []
        self.well: set[int] = set()
        for name, code in ends.items():
            task = int(name[1:])
            if code:
                self.ends[task] = RankEnd(task, "n", code, None)
            else:
                self.well.add(task)

    def has_ended(self, rank: int) -> bool:
        return rank in self.well or super().has_ended(rank)

    def exit_code(self) -> int | None:
        return self.code

    def failure(self) -> RankEnd | None:
        raise NotImplementedError

    def abandon(self) -> None:
        self.killed.append("abandoned")

    def kill(self, *, nodes_are_lost: bool = False) -> None:
        self.killed.append("lost" if nodes_are_lost else "killed")


def called(step: Step, nodes: dict[str, int]) -> CalledRanks:
    group = WarmGroup(step, ["n1", "n2"], 2).called(nodes)
    return CalledRanks(AttemptPaths(Path("2")), [group])


@pytest.mark.parametrize(
    ("ends", "expected", "failed"),
    [
        ({}, None, None),
        ({"t2": 0}, None, None),
        ({"t2": 0, "t3": 0}, 0, None),
        # Those of the other node, on which the attempt is not, say nothing.
        ({"t0": 1, "t2": 0, "t3": 0}, 0, None),
        ({"t0": 1, "t3": 7}, None, (5, 7)),
        ({"t2": 0, "t3": 7}, 7, (5, 7)),
    ],
)
def test_an_end_is_that_of_the_tasks_that_were_called(
    ends: dict[str, int], expected: int | None, failed: tuple[int, int] | None
) -> None:
    """Whatever the step's own srun waits for: the tasks of a node that is lost."""
    step = Step(**ends)
    ranks = called(step, {"n2": 4})
    assert ranks.count == 2
    assert ranks.exit_code() == expected
    found = ranks.failure()
    assert (found and (found.rank, found.exit_code)) == failed
    assert step.killed == (["lost"] if expected is not None else [])


def test_a_step_that_ended_without_a_word_is_a_failure() -> None:
    step = Step()
    step.code = 3
    assert called(step, {"n1": 0, "n2": 2}).exit_code() == 3


@pytest.mark.parametrize(
    ("nodes", "expected"), [({"n1": 0, "n2": 2}, "killed"), ({"n1": 0}, "lost")]
)
def test_nobody_waits_for_a_step_with_tasks_of_a_lost_node(
    nodes: dict[str, int], expected: str
) -> None:
    step = Step()
    called(step, nodes).kill()
    assert step.killed == [expected]


NODES = [
    LaunchNode(name, f"/tmp/h/{name}/code", f"/tmp/h/{name}", "lo", "127.0.0.1")
    for name in ("n1", "n2")
]


class Told:
    """Agents of a new supervisor, and what they are asked."""

    def __init__(self, **ends: int | None) -> None:
        self.ends = {int(name[1:]): code for name, code in ends.items()}
        self.places = self
        self.calls: list[Any] = []

    def node_of(self, rank: int) -> str:
        return f"n{rank}"

    def call_others(self, *call: object) -> None:
        self.calls.append(call)


@pytest.mark.parametrize(
    ("ends", "expected", "failed"),
    [
        ({}, None, None),
        ({"r0": 0}, None, None),
        ({"r0": 0, "r1": 0}, 0, None),
        ({"r0": 7}, None, (0, 7, None)),
        ({"r0": 7, "r1": None}, 7, (1, None, causes.UNSEEN)),
        ({"r0": 0, "r1": None}, 1, (1, None, causes.UNSEEN)),
    ],
)
def test_ends_that_agents_tell_of(
    ends: dict[str, int | None], expected: int | None, failed: tuple[Any, ...] | None
) -> None:
    agents: Any = Told(**ends)
    ranks = RanksOfAgents(AttemptPaths(Path("2")), agents, 2)
    assert ranks.exit_code() == expected
    found = ranks.failure()
    assert (found and (found.rank, found.exit_code, found.signal)) == failed
    assert [ranks.has_ended(rank) for rank in (0, 1)] == [f"r{rank}" in ends for rank in (0, 1)]
    # One that is gone, and of whose end nobody has told, did not leave well for all that is known.
    codes = [ends.get(f"r{rank}") for rank in (0, 1)]
    assert [ranks.end_of(rank).exit_code for rank in (0, 1)] == codes
    signals = [causes.UNSEEN if code is None else None for code in codes]
    assert [ranks.end_of(rank).signal for rank in (0, 1)] == signals


WAITING = {"n2": "/tmp/a/attempt-1", "n3": "/tmp/b/attempt-1"}


@pytest.mark.parametrize(
    ("record", "calls"),
    [
        (WAITING, [(1, 2, WAITING)]),
        # One of its nodes has none: the others leave.
        ({"n3": "/tmp/b"}, [(1, None, {"n3": "/tmp/b"})]),
        ({"n2": 3}, []),
        ([], []),
        (None, []),
    ],
)
def test_warm_ranks_of_the_supervisor_before(tmp_path: Path, record: Any, calls: Any) -> None:
    """A record beside the attempt in which they were started tells where they wait."""
    first, second = (RunPaths(tmp_path).attempt(number) for number in (1, 2))
    first.directory.mkdir(parents=True)
    if record is not None:
        files.write_json(first.warm_ranks, record)
    agents, run = Told(), SimpleNamespace(world_size=2, ranks_per_node=1)
    given: Any = agents
    warm = WarmRanks(SimpleNamespace(), given)  # type: ignore[arg-type]
    warm.adopt(first)
    for expected in (RanksOfAgents if calls == [(1, 2, WAITING)] else None, None):
        found = warm.take(run, second, ["n2", "n3"], SimpleNamespace())  # type: ignore[arg-type]
        assert (found and type(found)) == expected
        assert agents.calls == calls


def test_another_agent_of_the_node_calls(tmp_path: Path) -> None:
    """The one that holds the lock sees it; where there is none, nothing happens."""
    scratch = tmp_path / "attempt-1"
    warm_up.call_for(scratch, "/launch.json")
    assert not ScratchPaths(scratch).call.exists()
    lock = warm_up.WarmRanksLock(scratch)
    assert not lock.is_written()
    warm_up.call_for(scratch, "/launch.json")
    assert lock.is_written()
    lock.close()
    assert ScratchPaths(scratch).call.read_text() == "/launch.json"


def launch_on(*nodes: LaunchNode) -> Launch:
    entry = Entry("function", module="train", function="main")
    return Launch(
        *("study", 0, "0", 1, "/runs/0", {}, entry, "."),
        world_size=4,
        ranks_per_node=2,
        master_port=1,
        nodes=nodes,
    )


@pytest.mark.parametrize(
    ("task", "nodes", "spares", "now", "scratch", "then"),
    [
        (1, ["n1", "n2"], [], 1, "/tmp/h/n1", None),
        (3, ["n1", "n2"], [], 3, "/tmp/h/n2", 1),
        (1, ["n2"], [], 3, "/tmp/h/n2", 1),
        (3, ["n2", "n3"], ["n3=/tmp/a=b"], 1, "/tmp/a=b", 3),
        (1, ["n4"], ["n3=/tmp/a", "n4=/tmp/b"], 1, "/tmp/b", None),
    ],
)
def test_a_warm_rank_becomes_that_of_its_node_in_the_next_attempt(
    task: int, nodes: list[str], spares: list[str], now: int, scratch: str, then: int | None
) -> None:
    place = warm_up.WarmPlace(launch_on(*NODES), task, nodes, spares)
    assert (place.rank, str(place.scratch)) == (now, scratch)
    assert place.rank_in(launch_on(NODES[1], replace(NODES[0], name="n3"))) == then


def test_a_node_of_which_nobody_knows_has_no_warm_rank() -> None:
    with pytest.raises(HpcrunError, match="node n9 is none of attempt 1"):
        warm_up.WarmPlace(launch_on(*NODES), 0, ["n9"])
