"""Attempts, engines and submissions made by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrun.run.protocol.launch import Launch, LaunchNode
from hpcrun.state import files, ledger, plan_file
from hpcrun.state.layout import experiment
from hpcrun.state.plan import Array, Entry, Plan, RunPlan
from hpcrun.submission.local import processes
from tests.support.operators import PATH
from tests.support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]

RESOURCES = {
    "nodes": 1,
    "ntasks_per_node": 1,
    "gpus_per_node": 0,
    "cpus_per_task": 1,
    "time": "00:10:00",
}


def launch_of(
    root: Path,
    *,
    nodes: tuple[LaunchNode, ...] | None = None,
    ranks_per_node: int = 1,
    attempt: int = 1,
    entry: Entry | None = None,
    **spec: Any,
) -> Launch:
    """One attempt of run 3 of ``study`` under ``root``, its directory made."""
    if nodes is None:
        nodes = (LaunchNode("n1", "/code", "/scratch", "ib0", "10.9.0.1"),)
    resources = {**RESOURCES, "nodes": len(nodes), "ntasks_per_node": ranks_per_node}
    spec["resources"] = {**resources, **spec.get("resources", {})}
    launch = Launch(
        experiment="study",
        run=3,
        label="lr=1",
        attempt=attempt,
        directory=str(experiment(root, "study").run(3).directory),
        spec=spec,
        entry=entry or Entry("command", argv=("true",)),
        working_directory=".",
        world_size=len(nodes) * ranks_per_node,
        ranks_per_node=ranks_per_node,
        master_port=12345,
        nodes=nodes,
    )
    launch.paths.directory.mkdir(parents=True, exist_ok=True)
    return launch


class FakeEngine:
    """Counts steps, and rank 0 saves one number the way a DeepSpeed engine saves its model.

    For the rules around an engine; what DeepSpeed itself does is tested with DeepSpeed.
    """

    def __init__(self) -> None:
        self.global_steps = 0
        self.weight = 0.0
        self.torch_autocast_z0_gradscaler: Any = None
        self.optimizer: Any = None
        self.checkpoint_engine = _Writer()

    def step(self) -> None:
        self.global_steps += 1
        self.weight += 0.5

    def zero_optimization_stage(self) -> int:
        return 1

    def train_batch_size(self) -> int:
        return 8

    def save_checkpoint(
        self, directory: str, tag: str, client_state: dict[str, Any], save_latest: bool
    ) -> None:
        assert not save_latest
        if os.environ.get("RANK", "0") != "0":
            return
        state = {"weight": self.weight, "global_steps": self.global_steps}
        self.checkpoint_engine.save(state, str(Path(directory, tag, "model.json")))

    def load_checkpoint(self, directory: str, tag: str) -> tuple[str | None, dict[str, Any]]:
        path = Path(directory, tag, "model.json")
        state = self.checkpoint_engine.load(str(path))
        self.weight, self.global_steps = state["weight"], state["global_steps"]
        return str(path), {}


class _Writer:
    def save(self, state: Any, path: str) -> None:
        Path(path).write_text(json.dumps(state))

    def load(self, path: str, map_location: Any = None) -> Any:
        return json.loads(Path(path).read_text())


COUNTING = """
import time
import torch
from tests.support.place import FakeEngine

def train(session):
    print("begins", flush=True)
    torch.distributed.init_process_group("gloo")
    engine = FakeEngine()
    session.restore(engine)
    for step in session.steps(total=session.config.total_steps):
        engine.step()
        time.sleep(0.02)
        session.log({"loss": torch.tensor(float(step))}, step)

if __name__ == "__main__":
    import sys, hpcrun
    assert sys.argv == [__file__, "an argument"], sys.argv
    train(hpcrun.session())
"""


class Place:
    """Code, an experiment and a temporary directory, all under one directory of a test's.

    What it starts are the processes of the local executor: a supervisor, which starts its agents
    and ranks. None of them survives `close`.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.code = directory / "code"
        # Short, as workers of a DataLoader bind sockets in it.
        self.temporary = directory / "t"
        for path in (self.root, self.code, self.temporary):
            path.mkdir()
        self.experiment = experiment(self.root, "study")
        self.run = self.experiment.run(3)
        self.submission = self.experiment.submission(1)

    def submit(
        self,
        entry: Entry | str,
        *,
        nodes: int = 1,
        ranks: int = 1,
        directory: str = ".",
        fabric: dict[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        """Freeze the code and run 3, whose every rank executes ``entry`` (text: a shell's)."""
        if isinstance(entry, str):
            entry = Entry("command", argv=("bash", "-c", entry))
        resources = {**RESOURCES, "nodes": nodes, "ntasks_per_node": ranks}
        spec = {"resources": resources, "recovery": {"requeue": False}, **spec}
        run = RunPlan(3, "identity", "", {}, entry, spec)
        cluster = {"executor": "local", "fabric": fabric or {}}
        plan = Plan(
            name="study",
            spec_file=str(self.code / directory / "study.yaml"),
            code_root=str(self.code),
            directory=directory,
            cluster=cluster,
            max_parallel=None,
            runs=(run,),
            arrays=(Array((3,), "", 0.0),),
        )
        numbers = [each.number for each in self.experiment.submissions()]
        self.submission = self.experiment.submission(max(numbers, default=0) + 1)
        self.submission.directory.mkdir(parents=True)
        plan_file.write(plan, self.submission.plan)
        self.experiment.code.mkdir(exist_ok=True)
        archive = f"{self.submission.number}.tar.gz"
        with tarfile.open(self.experiment.code / archive, "w:gz") as stream:
            for path in sorted(self.code.rglob("*")):
                if path.is_symlink() or not path.is_dir():
                    stream.add(path, path.relative_to(self.code), recursive=False)
        files.write_json(self.submission.submission, {"code": {"archive": archive}})

    def submit_counting(
        self, total_steps: int, *, kind: str = "function", spares: int = 0, **spec: Any
    ) -> None:
        """Freeze a function or script that counts steps, on two nodes of one rank each."""
        (self.code / "counting.py").write_text(COUNTING)
        # With a GPU asked for, none of DeepSpeed's operators needs compiling.
        resources = {"nodes": 2, "ntasks_per_node": 1, "gpus_per_node": 1, "cpus_per_task": 1}
        resources["spare_nodes"] = spares
        self.submit(
            Entry("function", module="counting", function="train", import_root=".")
            if kind == "function"
            else Entry("script", file="counting.py", argv=("an argument",)),
            resources=resources,
            environment={"variables": {}},
            config={"total_steps": total_steps},
            **spec,
        )

    def steps(self, attempt: int) -> list[int]:
        """The steps that an attempt logged."""
        lines = files.read_lines(self.run.attempt(attempt).metrics)
        return [line["step"] for line in lines]

    def start(
        self, *, program: Sequence[str] = ("-m", "hpcrun.run.supervisor"), **variables: str
    ) -> subprocess.Popen[str]:
        """Start a supervisor of the newest submission."""
        environment = {
            "PATH": PATH,
            "HOME": str(Path.home()),
            "PYTHONPATH": str(REPOSITORY),
            "TMPDIR": str(self.temporary),
            processes.SUBMISSION: str(self.submission.directory),
            processes.RUN: "3",
            **variables,
        }
        return subprocess.Popen(
            [sys.executable, *program, str(self.submission.directory), "--run=3"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def kill_agent(self, node: str) -> None:
        for process in self.left():
            command = command_of(process.pid)
            if (
                b"hpcrun.run.agent" in command
                and command[command.index(b"--node") + 1] == node.encode()
            ):
                process.signal(signal.SIGKILL)

    def end(self, supervisor: subprocess.Popen[str], timeout: float = 60.0) -> tuple[int, str]:
        """Wait for a supervisor: its exit code and what it said. It leaves nothing on the node."""
        try:
            output, _ = supervisor.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{error}\n{self._explained()}") from error
        until(lambda: self.left() == [] and self.scratch() == [], timeout=10.0)
        return supervisor.returncode, output

    def supervise(self, timeout: float = 60.0, **variables: str) -> tuple[int, str]:
        """One attempt, from start to end."""
        return self.end(self.start(**variables), timeout)

    def _explained(self) -> str:
        """What every log of the run ends with, and where its processes stand."""
        logs = sorted(self.run.directory.glob("attempts/*/*.log"))
        parts = [f"--- {log}\n{log.read_text(errors='replace')[-2000:]}" for log in logs]
        for one in self.left():
            told = subprocess.run(
                ["eu-stack", "-p", str(one.pid)], capture_output=True, text=True, check=False
            )
            parts.append(f"--- process {one.pid}\n{told.stdout[-4000:]}")
        return "\n".join(parts)

    def left(self) -> list[processes.LocalProcess]:
        """Processes that still work for the submission."""
        return list(processes.of_submission(self.submission.directory))

    def scratch(self) -> list[str]:
        """Node-local directories of attempts."""
        return [path.name for path in self.temporary.iterdir() if path.name.startswith("hpcrun-")]

    def close(self) -> None:
        """Leave no process behind, whatever a test did."""
        for submission in self.experiment.submissions():
            processes.kill_all(submission.directory)

    def attempt(self, number: int = 1) -> ledger.Attempt:
        """What the ledger says of an attempt."""
        return {each.number: each for each in ledger.read(self.run)}[number]

    def cause(self, number: int = 1) -> dict[str, Any]:
        """Why an attempt did not complete."""
        cause = self.attempt(number).cause
        assert cause is not None
        return cause

    def output(self, rank: int = 0, attempt: int = 1) -> str:
        """The log of a rank."""
        return self.run.attempt(attempt).rank_log(rank).read_text()


def command_of(pid: int) -> list[bytes]:
    """The command line of a process; empty where it is gone by now."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
