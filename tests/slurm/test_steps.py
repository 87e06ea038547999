"""What srun says and is told.

``recorded/srun-VERSION.txt`` is what real sruns of our test bed wrote to stderr.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpcrun.slurm import steps
from hpcrun.slurm.steps import TaskEnd, parse_task_end
from hpcrun.state.layout import slurm_path
from hpcrun.state.spec.experiment import Resources

RECORDED = Path(__file__).parent / "recorded"
VERSIONS = ["22.05", "24.11"]


def _recorded(version: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for line in (RECORDED / f"srun-{version}.txt").read_text().splitlines()[1:]:
        if line.startswith("## "):
            sections[line[3:]] = current = []
        else:
            current.append(line)
    return sections


@pytest.mark.parametrize("version", VERSIONS)
def test_every_end_that_srun_told_is_understood(version: str) -> None:
    """Nothing that tells of a task's end is passed over, and nothing else is taken for one."""
    for section, lines in _recorded(version).items():
        told = [line for line in lines if ": task" in line]
        assert told, section
        for line in lines:
            assert (parse_task_end(line) is not None) == (line in told), (section, line)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("section", "rank", "code", "signal"),
    [
        ("one exits 3", 1, 3, None),
        ("sparse exit 7", 0, 7, None),
        ("killed", 1, None, "SIGKILL"),
        ("terminated", 0, None, "SIGTERM"),
        ("segv", 0, None, "SIGSEGV"),
        ("abort with core", 0, None, "SIGABRT"),
        ("bus", 0, None, "SIGBUS"),
        ("fpe", 0, None, "SIGFPE"),
        ("ill", 0, None, "SIGILL"),
        ("int", 0, None, "SIGINT"),
        ("hup", 0, None, "SIGHUP"),
        ("usr1", 0, None, "SIGUSR1"),
        ("usr2", 0, None, "SIGUSR2"),
        ("pipe", 0, None, "SIGPIPE"),
        ("alarm", 0, None, "SIGALRM"),
        ("xcpu", 0, None, "SIGXCPU"),
        ("rt34", 0, None, "SIGRTMIN"),
        ("oom", 0, None, "SIGKILL"),
        ("not there", 0, 2, None),
        ("time limit", 0, None, "SIGKILL"),
    ],
)
def test_ends_by_code_and_by_signal(
    version: str, section: str, rank: int, code: int | None, signal: str | None
) -> None:
    ends = [end for line in _recorded(version)[section] if (end := parse_task_end(line))]
    assert len(ends) == 1
    assert ends[0].node in ("n1", "n2")
    assert (ends[0].ranks[0], ends[0].exit_code) == (rank, code)
    assert ends[0].signal == signal


@pytest.mark.parametrize("version", VERSIONS)
def test_several_tasks_of_a_node_come_as_one_line(version: str) -> None:
    ends = {parse_task_end(line) for line in _recorded(version)["all exit 1"]}
    assert ends == {
        TaskEnd("n1", (0, 1), "Exited with exit code 1", 1),
        TaskEnd("n2", (2, 3), "Exited with exit code 1", 1),
    }
    (sparse,) = filter(None, map(parse_task_end, _recorded(version)["sparse exit 7"]))
    assert sparse.ranks == (0, 2, 3)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "rank 3: srun: error: n1: task 1: Killed",
        "srun: error: n1: task x: Killed",
        "srun: error: Unable to create step for job 3: Job/step already completing or completed",
        "srun: error: Timed out waiting for job step to complete",
    ],
)
def test_other_lines_tell_of_no_end(line: str) -> None:
    assert parse_task_end(line) is None


def test_an_agents_step_shares_what_the_workers_have() -> None:
    argv = steps.agent_argv(
        ["n7"],
        slurm_path(Path("/log dir/50%/agent-n7.log")),
        "gpus-per-node=a100:4",
        ["python", "-m", "a", "b c"],
    )
    assert argv[0] == "srun"
    assert argv[-4:] == ["python", "-m", "a", "b c"]
    shared = ("--overlap", "--gpus-per-node=a100:4", "--mem=0")
    for flag in (*shared, "--export=ALL", "--nodelist=n7", "--nodes=1"):
        assert flag in argv
    assert {"--ntasks=1", "--ntasks-per-node=1", "--cpus-per-task=1"} <= set(argv)
    assert "--output=/log dir/50%%/agent-n7.log" in argv
    assert "--open-mode=append" in argv
    # Whatever the site's MpiDefault is: what an agent starts is no rank.
    assert "--mpi=none" in argv
    assert not {"--kill-on-bad-exit=0", "--wait=0"} & {*argv}


def test_agents_of_several_nodes_end_each_for_itself() -> None:
    argv = steps.agent_argv(["n7", "n8", "n9"], "/log/agent-%N.log", None, ["a"])
    wanted = {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--nodelist=n7,n8,n9"}
    assert {*wanted, "--kill-on-bad-exit=0", "--wait=0", "--input=all"} <= {*argv}
    assert "--output=/log/agent-%N.log" in argv


def _workers(**changes: object) -> list[str]:
    settings: dict[str, object] = {
        "ranks_per_node": 4,
        "cpus_per_task": 8,
        "gpus": "gpus-per-node=4",
        "log_pattern": "/a/rank-%5t.log",
        "name": "hpcrun-workers-1",
        "command": ["python", "-m", "w"],
    }
    return steps.workers_argv(["n1", "n2"], **{**settings, **changes})  # type: ignore[arg-type]


def test_the_workers_step_is_all_ranks_in_blocks() -> None:
    argv = _workers()
    assert argv[0] == "srun"
    assert argv[-3:] == ["python", "-m", "w"]
    for flag in (
        *("--overlap", "--export=ALL", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4"),
        *("--nodelist=n1,n2", "--distribution=block", "--cpus-per-task=8", "--gpus-per-node=4"),
        *("--output=/a/rank-%5t.log", "--job-name=hpcrun-workers-1", "--open-mode=append"),
    ):
        assert flag in argv
    # The supervisor ends the others, and srun waits for stragglers as long as that takes.
    assert {"--kill-on-bad-exit=0", "--wait=0"} <= set(argv)


def test_what_was_not_asked_for_is_not_passed() -> None:
    argv = _workers(gpus=None)
    assert not [flag for flag in argv if flag.startswith("--gpus")]


@pytest.mark.parametrize(
    ("way", "flags"),
    [
        ("gpus-per-node", ["--gpus-per-node=a100:4"]),
        ("gres", ["--gres=gpu:a100:4"]),
        ("none", []),
    ],
)
def test_steps_ask_for_gpus_as_the_job_does(way: Any, flags: list[str]) -> None:
    wanted = Resources(gpus_per_node=4, gpu_type="a100", gpu_request=way, node_has_gpus=8)
    gpus = wanted.gpus_option
    for argv in (
        _workers(gpus=gpus),
        steps.agent_argv(["n1"], "/log", gpus, ["a"]),
        steps.beside_argv("7", "n1", gpus, ["a"], terminal=False),
    ):
        assert [flag for flag in argv if re.match("--(gpus|gres)", flag)] == flags


def test_a_step_in_a_further_part_of_a_job() -> None:
    beside = {"terminal": False}
    for part, flags in ((0, []), (2, ["--het-group=2"])):
        for argv in (
            steps.agent_argv(["n1"], "log", None, ["a"], part=part),
            _workers(part=part),
            steps.beside_argv("7", "n1", None, ["a"], **beside, part=part),
        ):
            assert [word for word in argv if word.startswith("--het-group")] == flags


@pytest.mark.parametrize("tasks", ["0-9999999999", "1,,2", "3-"])
def test_a_report_of_srun_that_is_none(tasks: str) -> None:
    assert parse_task_end(f"srun: error: n1: tasks {tasks}: Exited with exit code 1") is None


def test_the_type_of_mpi_is_the_sites_unless_one_is_named() -> None:
    assert "--mpi=pmix" in _workers(mpi="pmix")
    assert not [one for one in _workers() if one.startswith("--mpi")]


def test_a_type_of_mpi_that_srun_does_not_know_is_a_refusal() -> None:
    line = "srun: error: Invalid MPI type 'foo', --mpi=list for acceptable types\n"
    assert steps.parse_refusal(line) == line.strip().removeprefix("srun: error: ")


def test_slurm_ends_the_step_itself() -> None:
    assert steps.is_abort("srun: Job step aborted: Waiting up to 12 seconds for job step to end.")
    assert not steps.is_abort("srun: error: n1: task 1: Killed")


@pytest.mark.parametrize(
    ("line", "tasks"),
    [
        ("srun: launch/slurm: _task_finish: n1: task 0: Completed", (0,)),
        ("srun: n3: tasks 2-3,5: Completed", (2, 3, 5)),
        ("srun: error: n3: task 2: Exited with exit code 3", ()),
        ("srun: n3: tasks 9-2: Completed", ()),
        ("srun: Node n3, 2 tasks started", ()),
    ],
)
def test_tasks_that_ended_well_are_told_by_a_step_that_outlives_nodes(
    line: str, tasks: tuple[int, ...]
) -> None:
    assert steps.parse_completed(line) == tasks


@pytest.mark.parametrize(
    ("line", "is_chatter"),
    [
        ("srun: defined options", True),
        ("srun: launch/slurm: _task_finish: n1: task 0: Completed", True),
        ("srun: error: n3: task 2: Exited with exit code 3", False),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", False),
        ("srun: jobid 1: nodes(3):`n[1-3]', cpu counts: 2(x3)", True),
        ("srun: Force Terminated StepId=1.2", False),
        ("srun: Job 7 step creation temporarily disabled, retrying", False),
        ("what a plugin of the site's says", False),
    ],
)
def test_what_srun_only_says_of_itself_is_not_passed_on(line: str, is_chatter: bool) -> None:
    assert steps.is_chatter(line) is is_chatter


@pytest.mark.parametrize(
    ("name", "is_part"),
    [
        ("hpcrun-workers-2-warm", True),
        ("hpcrun-workers-2-warm-group-3", True),
        ("hpcrun-workers-2-warm-rank-3", True),
        ("hpcrun-workers-2", False),
        ("hpcrun-workers-21-warm-group-3", False),
    ],
)
def test_a_steps_parts_have_its_name(name: str, is_part: bool) -> None:
    assert steps.is_of(name, steps.warm_name(1)) is is_part
    assert steps.warm_name(1, 3) == "hpcrun-workers-2-warm-group-3"


@pytest.mark.parametrize(
    ("name", "alone"),
    [
        ("hpcrun-run-3", "hpcrun-run-3"),
        ("hpcrun-run-3-agent", "hpcrun-agent"),
        ("hpcrun-run-3-workers-2-warm-group-3", "hpcrun-workers-2-warm-group-3"),
        ("hpcrun-run-33-agent", None),
        ("hpcrun-watch", None),
        ("batch", None),
    ],
)
def test_a_run_that_shares_its_job_has_names_of_its_own(name: str, alone: str | None) -> None:
    assert steps.name_alone(name, steps.packed_name(3)) == alone
    if alone is not None and alone != name:
        assert steps.name_in_pack(3, alone) == name


@pytest.mark.parametrize(("is_alone", "option"), [(False, "--exact"), (True, "--overlap")])
def test_the_step_of_a_run_that_shares_its_job(is_alone: bool, option: str) -> None:
    gpus = "gpus-per-node=1"
    shape: Any = {"cpus": 4, "mem": "2G", "gpus": gpus, "log": "/r/local-3.log", "name": "one"}
    argv = steps.packed_argv("n2", **shape, command=["true"], is_alone=is_alone)
    assert [one for one in argv if one in ("--exact", "--overlap")] == [option]
    assert {"--cpus-per-task=4", "--mem=2G", "--nodelist=n2", "--gpus-per-node=1"} < {*argv}
