"""A rank's environment, and the record of its end. Real ranks are in test_supervisor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import EXIT_SAVED, HpcrunError
from hpcrun.run import worker
from hpcrun.run.node import rank_processes
from hpcrun.run.protocol.launch import Launch, LaunchNode
from hpcrun.run.rank import rank_environment
from hpcrun.state import files
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.plan import Entry
from tests.support.place import launch_of
from tests.support.waiting import until

NODES = (
    LaunchNode("n1", "/n1/code", "/n1", "ib0", "10.9.0.1", hca="=mlx5_0:1", extensions="/n1/ext"),
    LaunchNode("n2", "/n2/code", "/n2", "ib1", "10.9.0.2"),
)
DEFAULTS = (
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "OMP_NUM_THREADS",
    "DS_ACCELERATOR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*DEFAULTS, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return launch_of(tmp_path, nodes=NODES, ranks_per_node=2, attempt=4)


def test_every_variable_of_a_rank(launch: Launch) -> None:
    attempt = f"{launch.directory}/attempts/4"
    assert rank_environment.environment(launch, 1) == {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "MASTER_ADDR": "10.9.0.1",
        "MASTER_PORT": "12345",
        "HPCRUN_LAUNCH": f"{attempt}/launch.json",
        "HPCRUN_NODE_RANK": "0",
        "HPCRUN_DIRECTORY": launch.directory,
        "HPCRUN_ATTEMPT": "4",
        "HPCRUN_RUN": "study/3",
        "HPCRUN_METRICS_FILE": f"{attempt}/metrics.jsonl",
        "HPCRUN_SCRATCH": "/n1",
        "HPCRUN_NODES": "2",
        "HPCRUN_HOSTS": "10.9.0.1,10.9.0.2",
        "PYTHONUNBUFFERED": "1",
        "TORCH_EXTENSIONS_DIR": "/n1/ext",
        "GLOO_SOCKET_IFNAME": "ib0",
        "NCCL_SOCKET_IFNAME": "ib0",
        "NCCL_IB_HCA": "=mlx5_0:1",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "TORCHINDUCTOR_CACHE_DIR": "/inductor",
        "TRITON_CACHE_DIR": "/triton",
    }


def test_a_rank_of_another_node(launch: Launch) -> None:
    found = rank_environment.environment(launch, 2)
    assert (found["RANK"], found["NODE_RANK"], found["LOCAL_RANK"]) == ("2", "1", "0")
    assert found["MASTER_ADDR"] == "10.9.0.1"
    assert found["GLOO_SOCKET_IFNAME"] == "ib1"
    assert found["HPCRUN_SCRATCH"] == "/n2"
    assert "NCCL_IB_HCA" not in found
    assert "TORCH_EXTENSIONS_DIR" not in found


def test_what_the_user_set_for_the_fabric_stays(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in DEFAULTS:
        monkeypatch.setenv(name, f"my-{name}")
    found = rank_environment.environment(launch, 0)
    assert {name: found[name] for name in DEFAULTS} == {name: f"my-{name}" for name in DEFAULTS}


def test_torchrun_is_told_to_hand_the_stop_signal_on(tmp_path: Path) -> None:
    """It ended by SIGUSR1, and its workers were killed before they had saved."""
    asked, others = launch_of(tmp_path, recovery={"stop_signal": "SIGUSR1"}), launch_of(tmp_path)
    found = rank_environment.environment(asked, 0)["PET_SIGNALS_TO_HANDLE"]
    assert found == "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    assert "PET_SIGNALS_TO_HANDLE" not in rank_environment.environment(others, 0)


def test_what_says_which_rank_this_is_never_stays(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    for name in forced:
        monkeypatch.setenv(name, "stale")
    found = rank_environment.environment(launch, 0)
    assert [found[name] for name in forced] == ["0", "4", "0", "0", "10.9.0.1", "12345"]


def _of(tmp_path: Path, framework: str, **spec: Any) -> Launch:
    nodes = (replace(NODES[0], ports=15000), replace(NODES[1], ports=16000))
    entry = Entry("command", argv=("train", "-x"), framework=framework)
    return launch_of(tmp_path, nodes=nodes, ranks_per_node=2, entry=entry, **spec)


def test_each_rank_has_free_ports_of_its_own(tmp_path: Path) -> None:
    launch = _of(tmp_path, "auto")
    found = [rank_environment.environment(launch, rank)["HPCRUN_PORTS"] for rank in range(4)]
    assert found == [
        *("15000,15001,15002,15003", "15004,15005,15006,15007"),
        *("16000,16001,16002,16003", "16004,16005,16006,16007"),
    ]


def test_slurms_variables_of_a_step_are_those_of_a_step_of_all_ranks(tmp_path: Path) -> None:
    """As 22.05 and 24.11 had them in a step on n1 and n3, which they write n[1,3]."""
    names = [replace(NODES[0], name="n1"), replace(NODES[1], name="n3")]
    launch = replace(_of(tmp_path, "auto"), nodes=tuple(names))
    said = (
        "SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_NNODES=2 SLURM_NODEID=1 "
        "SLURM_GTIDS=2,3 SLURM_TASKS_PER_NODE=2(x2) SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4 "
        "SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_STEP_NODELIST=n1,n3"
    )
    found = rank_environment.step_variables(launch, 3)
    assert found == dict(one.split("=", 1) for one in said.split())


def test_tensorflow_gets_the_first_port_of_every_rank(tmp_path: Path) -> None:
    found = json.loads(rank_environment.environment(_of(tmp_path, "tensorflow"), 2)["TF_CONFIG"])
    assert found["cluster"]["worker"] == [
        *("10.9.0.1:15000", "10.9.0.1:15004", "10.9.0.2:16000", "10.9.0.2:16004"),
    ]
    assert found["task"] == {"type": "worker", "index": 2}


def test_lightning_finds_a_launcher_that_is_not_slurm(tmp_path: Path) -> None:
    found = rank_environment.environment(_of(tmp_path, "lightning"), 3)
    assert (found["TORCHELASTIC_RUN_ID"], found["GROUP_RANK"], found["RANK"]) == (
        "study/3",
        "1",
        "3",
    )


def test_accelerate_gets_the_configuration_of_the_attempt(tmp_path: Path) -> None:
    resources = {"gpus_per_node": 2}
    launch = _of(tmp_path, "accelerate", resources=resources, deepspeed={"train_batch_size": 8})
    found = rank_environment.environment(launch, 0)
    assert found["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == str(launch.paths.deepspeed)
    assert "ACCELERATE_USE_CPU" not in found


def test_the_users_own_variable_wins_over_a_frameworks(tmp_path: Path) -> None:
    variables = {"ACCELERATE_USE_CPU": "false", "OUT": "${hpcrun:directory}/out", "A": "b"}
    launch = _of(tmp_path, "accelerate", environment={"variables": variables})
    found = rank_environment.environment(launch, 0)
    # What needs no filling in was set by the job's script, whose setup lines may have changed it.
    assert not {"ACCELERATE_USE_CPU", "A"} & found.keys()
    assert found["OUT"] == f"{launch.directory}/out"


def test_a_single_process_finds_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ, RANK="7", MASTER_PORT="1"))
    node = LaunchNode("n1", str(tmp_path), str(tmp_path), "lo", "127.0.0.1")
    entry = Entry("command", argv=("true",), framework="single")
    resources = {"gpus_per_node": 4, "cpus_per_task": 8}
    worker.take_place(launch_of(tmp_path, nodes=(node,), entry=entry, resources=resources), 0)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_PORT")
    assert not os.environ.keys() & set(names)
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_an_older_deepspeed_script_gets_its_local_rank_last(tmp_path: Path) -> None:
    launch = _of(tmp_path, "deepspeed")
    assert worker.command(launch, 3) == ["train", "-x", "--local_rank=1"]
    # As the supervisor has it resume.
    again = replace(launch, entry=replace(launch.entry, argv=("train", "-x", "--resume")))
    assert worker.command(again, 2) == ["train", "-x", "--resume", "--local_rank=0"]


def test_with_gpus_deepspeed_finds_them_itself(tmp_path: Path) -> None:
    node = LaunchNode("n1", "/c", "/s", "ib0", "10.9.0.1", devices="2,3")
    resources = {"gpus_per_node": 2, "cpus_per_task": 7}
    launch = launch_of(tmp_path, nodes=(node,), ranks_per_node=2, resources=resources)
    found = rank_environment.environment(launch, 1)
    assert "DS_ACCELERATOR" not in found
    assert found["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert found["OMP_NUM_THREADS"] == "7"


def test_where_slurm_shares_out_the_gpus_nothing_is_said_of_them(launch: Launch) -> None:
    assert "CUDA_VISIBLE_DEVICES" not in rank_environment.environment(launch, 0)


def test_the_rank_is_the_local_executors_or_slurms(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker.rank_of(launch, 3) == 3
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "2")
    assert worker.rank_of(launch, None) == 2
    # Of the step, not of the job, where Slurm says both.
    monkeypatch.setenv("SLURM_NTASKS", "99")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert worker.rank_of(launch, None) == 2


@pytest.mark.parametrize("tasks", ["3", "5", None])
def test_another_number_of_tasks_than_ranks_is_an_error(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tasks: str | None
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    if tasks:
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
    message = f"Slurm started {tasks or 0} tasks where 4 ranks are needed"
    with pytest.raises(HpcrunError, match=message):
        worker.rank_of(launch, None)


@pytest.mark.parametrize(
    ("code", "recorded"),
    [(3, (3, None)), (-9, (None, "SIGKILL")), (-15, (None, "SIGTERM")), (75, (75, None))],
)
def test_the_record_of_an_end(
    launch: Launch, code: int, recorded: tuple[int | None, str | None]
) -> None:
    worker.record_end(launch, 2, code)
    record = files.read_json(launch.paths.exit_record(2))
    assert (record["exit_code"], record["signal"]) == recorded
    assert (record["rank"], record["node"], record["exception"]) == (2, "n2", None)


def test_an_exception_that_no_terminal_can_show_is_recorded(launch: Launch) -> None:
    error = ValueError("cannot decode caf\udce9")
    worker.record_end(launch, 0, 1, error)
    record = files.read_json(launch.paths.exit_record(0))
    assert record["message"] == "cannot decode caf\\udce9"
    assert record["traceback"].encode()


def test_an_exception_that_counts_as_false_is_recorded(launch: Launch) -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    worker.record_end(launch, 0, 1, Empty("nothing found"))
    record = files.read_json(launch.paths.exit_record(0))
    assert (record["exception"], record["message"]) == ("Empty", "nothing found")
    assert "nothing found" in record["traceback"]


_LEFT_BEHIND = """
import atexit, threading, time
from concurrent.futures import ThreadPoolExecutor
from hpcrun.run.worker import wait_for_threads_and_exit_handlers

pool = ThreadPoolExecutor(1)  # as torch.compile has one, which nothing shuts down
pool.submit(print, "in the pool", flush=True).result()
threading.Thread(target=lambda: (time.sleep(0.2), print("in a thread", flush=True))).start()
atexit.register(print, "at the exit", flush=True)
wait_for_threads_and_exit_handlers()
"""


def test_threads_end_before_the_exit_handlers_and_a_pool_holds_up_none() -> None:
    """A rank that had compiled its model was seen to wait for the compiler's threads for ever."""
    argv = [sys.executable, "-c", _LEFT_BEHIND]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["in the pool", "in a thread", "at the exit"]


def test_all_attempts_of_a_program_that_logs_to_wandb_are_one_of_its_runs(launch: Launch) -> None:
    def found(rank: int, **spec: Any) -> dict[str, str]:
        recovery = {"wandb": True, **spec.pop("recovery", {})}
        given = {**launch.spec, "recovery": recovery, **spec}
        tracked = replace(launch, spec=given, tracked="0123456789abcdef")
        made = rank_environment.environment(tracked, rank)
        return {name: value for name, value in made.items() if name.startswith("WANDB_")}

    assert found(0) == {"WANDB_RUN_ID": "0123456789abcdef", "WANDB_RESUME": "allow"}
    # Whoever logs in every rank has a run for each.
    assert found(1) == {}
    assert found(0, recovery={"wandb": False}) == {}
    assert found(0, tracking={"wandb": {"project": "p"}}) == {}


def test_a_program_has_the_descriptor_by_which_mpi_finds_the_others(tmp_path: Path) -> None:
    """Slurm's PMI2 opens one for each task; a shell passes it on, too."""
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    entry = Entry("command", argv=("bash", "-c", f"bash -c 'echo met >&{theirs}' | cat"))
    child = worker._start(launch_of(tmp_path, entry=entry), 0)
    assert child.wait(timeout=30) == 0
    os.close(theirs)
    with open(ours) as stream:
        assert stream.read() == "met\n"


_RANK = """
import sys
from pathlib import Path
from hpcrun.run import worker
from hpcrun.run.protocol.launch import LaunchNode
from hpcrun.state.plan import Entry
from tests.support.place import launch_of
node = LaunchNode("n1", "/code", sys.argv[1], "ib0", "10.9.0.1")
entry = Entry("command", argv=("sh", "-c", sys.argv[2]))
spec = {"recovery": {"stop_signal": "SIGTERM"}, "roles": sys.argv[3:]}
launch = launch_of(Path(sys.argv[1]), nodes=(node,), entry=entry, **spec)
sys.exit(worker.run_child(launch, node, 0))
"""
_SAVES = """
import pathlib, signal, subprocess, sys, time
helper = subprocess.Popen(["sleep", "600"])
def save(number, frame):
    time.sleep(0.3)
    with open("saved", "a") as stream:
        print("saved", "with its helper" if helper.poll() is None else "alone", file=stream)
    helper.kill()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path("begun").touch()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("shell", "left", "roles"),
    [
        ("sleep 600 &", "sleep 600", ()),
        ("setsid sleep 600 &", "sleep 600", ()),
        ("setsid sleep 600 &", None, ("server",)),
        ("sleep 0.3 &", None, ()),
    ],
)
def test_what_a_program_leaves_running_is_recorded(
    tmp_path: Path, shell: str, left: str | None, roles: tuple[str, ...]
) -> None:
    """A program that goes on in the background had completed, and was killed without a word."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        rank_processes.START_VARIABLE: "test-worker",
        rank_processes.SCRATCH_VARIABLE: str(tmp_path),
    }
    words = [sys.executable, "-c", _RANK, str(tmp_path), shell, *roles]
    try:
        subprocess.run(words, cwd=tmp_path, env=variables, start_new_session=True, check=True)
    finally:
        rank_processes.kill(tmp_path)
    (log,) = tmp_path.rglob("session.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event.get("command") for event in events if event["event"] == "left_running"] == (
        [left] if left else []
    )
    assert events[-1]["event"] == "finished"


@pytest.mark.parametrize(
    "shell", [f"{sys.executable} saves.py; true", f"exec {sys.executable} saves.py"]
)
def test_a_stop_signal_reaches_the_program_of_a_shell_without_a_trap(
    tmp_path: Path, shell: str
) -> None:
    """The shell ended by it at once, and its program was killed before it had saved."""
    (tmp_path / "saves.py").write_text(_SAVES)
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        rank_processes.START_VARIABLE: "test-worker",
        rank_processes.SCRATCH_VARIABLE: str(tmp_path),
    }
    words = [sys.executable, "-c", _RANK, str(tmp_path), shell]
    with subprocess.Popen(words, cwd=tmp_path, env=variables, start_new_session=True) as rank:
        try:
            until((tmp_path / "begun").exists, "the program's start", 30)
            ScratchPaths(tmp_path).stop.touch()
            assert rank.wait(30) == EXIT_SAVED
        finally:
            rank_processes.kill(tmp_path)
            rank.kill()
    assert (tmp_path / "saved").read_text() == "saved with its helper\n", (
        "once, and it alone was asked"
    )
