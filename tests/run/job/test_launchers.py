"""What the launchers say of how ranks ended. A shell stands in for srun."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.container.rank_python import RankPython
from hpcrun.errors import HpcrunError
from hpcrun.run.job import launchers
from hpcrun.run.job.launchers import LocalLauncher, SlurmLauncher, _SlurmWorkers
from hpcrun.slurm import steps
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.plan import Entry, RunPlan
from hpcrun.state.spec.executors import Executor
from tests.support.roles import role


def test_what_srun_says_last_is_read_before_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine so busy that srun is gone before its words have been read."""
    parse = steps.parse_task_end

    def slowly(line: str) -> Any:
        time.sleep(0.5)
        return parse(line)

    monkeypatch.setattr(steps, "parse_task_end", slowly)
    said = "echo 'srun: error: n2: task 1: Killed' >&2"
    workers = _SlurmWorkers(["sh", "-c", said], "1", "ranks", AttemptPaths(tmp_path), RankPython())
    workers.kill()
    end = workers.ends[1]
    assert (end.node, end.signal) == ("n2", "SIGKILL")


@pytest.mark.parametrize(
    ("is_slurm", "requeues", "nodes", "expected"),
    [
        (False, False, ("local0", "local1"), True),
        (True, True, ("n1",), False),
        (True, False, ("n1",), True),
        (True, False, ("n1", "n2"), False),
    ],
    ids=["this machine", "a job", "an allocation of one node", "an allocation of two"],
)
def test_where_there_is_another_node_to_try(
    is_slurm: bool, requeues: bool, nodes: tuple[str, ...], expected: bool
) -> None:
    kind = SlurmLauncher if is_slurm else LocalLauncher
    launcher = kind.__new__(kind)
    launcher.nodes, launcher.requeues = nodes, requeues
    assert launcher.is_one_machine == expected


def test_a_rank_that_slurm_ended_with_the_others_is_not_the_first(tmp_path: Path) -> None:
    """As Slurm does where a rank ends in the midst of MPI."""
    lines = (
        "srun: Job step aborted: Waiting up to 12 seconds for job step to finish.",
        "srun: error: n1: task 0: Killed",
        "srun: error: n1: task 1: Exited with exit code 5",
        "srun: error: n2: tasks 2-3: Killed",
    )
    said = "".join(f"echo '{line}' >&2;" for line in lines)
    workers = _SlurmWorkers(["sh", "-c", said], "1", "ranks", AttemptPaths(tmp_path), RankPython())
    workers.kill()
    failure = workers.failure()
    assert failure is not None
    assert (failure.rank, failure.exit_code) == (1, 5)
    assert [end.rank for end in workers.ends.values() if end.by_slurm] == [0, 2, 3]


@pytest.mark.parametrize(
    ("inherited", "expected"),
    [(None, "0,1"), ("", "0,1"), ("NoDevFiles", "0,1"), ("4,5,6,7", "4,5"), ("3", None)],
)
def test_ranks_have_the_gpus_that_slurm_does_not_know(
    monkeypatch: pytest.MonkeyPatch, inherited: str | None, expected: str | None
) -> None:
    launcher = SlurmLauncher.__new__(SlurmLauncher)
    launcher.nodes = ("n1", "n2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if inherited is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited)

    def run(**resources: Any) -> RunPlan:
        wanted = {"nodes": 2, "gpus_per_node": 2, **resources}
        return RunPlan(0, "", "", {}, Entry("command"), {"resources": wanted})

    for other in ({}, {"gpu_request": "gres"}, {"gpu_request": "none", "gpus_per_node": 0}):
        assert launcher.devices("n2", run(**other)) is None
    whole = run(gpu_request="none", node_has_gpus=8)
    if expected is None:
        with pytest.raises(HpcrunError, match="2 GPUs are needed"):
            launcher.devices("n2", whole)
    else:
        assert [launcher.devices(node, whole) for node in launcher.nodes] == [expected] * 2


def test_a_run_that_has_nodes_of_a_job_sees_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {
        **{"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-8]", "SLURM_NNODES": "8"},
        **{"SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "SLURMD_NODENAME": "n3"},
    }
    monkeypatch.setattr(os, "environ", {**before, "PATH": os.environ["PATH"]})
    wanted = {"nodes": 2, "ntasks_per_node": 2, "cpus_per_task": 3}
    run = RunPlan(5, "", "", {}, Entry("command", argv=("true",)), {"resources": wanted})
    kind = launchers.launcher_class(Executor.of({"executor": "slurm"}), has_part=True)
    launcher = kind(run, {}, RankPython(), ["n3", "n4"])
    assert (launcher.nodes, launcher.host, launcher.whole_job) == (("n3", "n4"), "n3", None)
    assert launcher.is_packed
    shown = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
    assert shown == {
        "SLURM_JOB_ID": "7",
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), "n3,n4"),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "2"),
        "SLURM_JOB_CPUS_PER_NODE": "6(x2)",
    }
    started: list[list[str]] = []
    monkeypatch.setattr(launchers.subprocess, "Popen", lambda argv, **_: started.append(argv))
    attempt = AttemptPaths(Path("/runs/a/runs/5/attempts/2"))
    launcher.start_agents(["n4"], attempt, ["agent"])
    assert "--job-name=hpcrun-run-5-agent" in started[0]
    monkeypatch.setattr(launchers, "_SlurmWorkers", lambda argv, job, name, *_: (job, name))
    assert launcher.start_workers(run, attempt, ["n3", "n4"]) == ("7", "hpcrun-run-5-workers-2")


def test_a_role_is_one_step_or_one_of_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "environ", {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2"}
    )
    roles = {"trainer": role(0, nodes=2, ranks=2), "server": role(4, "serve", first_node=1)}
    spec = {"resources": {"nodes": 2, "ntasks_per_node": 2}, "roles": roles}
    run = RunPlan(5, "", "", {}, Entry("command", argv=("true",)), spec)
    launcher, attempt = SlurmLauncher(run, {}, RankPython()), AttemptPaths(Path("/runs/a/2"))
    monkeypatch.setattr(launchers, "_SlurmWorkers", lambda argv, *_: argv)
    main, server = run.role_plans
    places = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}
    together: Any = launcher.start_role(main, attempt, attempt.launch, places)
    assert {"--nodelist=n1,n2", "--ntasks=4", "--job-name=hpcrun-workers-2"} <= {*together}
    assert "--rank" not in together
    alone: Any = launcher.start_role(server, attempt, attempt.launch, {4: "n2"})
    assert {"--nodelist=n2", "--ntasks=1", "--job-name=hpcrun-workers-2-rank-4"} <= {*alone}
    assert alone[-2:] == ["--rank", "4"]
