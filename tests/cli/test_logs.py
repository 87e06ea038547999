"""``hpcrun logs`` as it is typed, over files on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrun.state import files, ledger, plan_file
from tests.support.command import hpcrun, start
from tests.support.experiment import Experiment, path_with, slurm_shim

MARK = "--- study/1: attempt 2 on node1, node2; attempt 1 ended: y ---"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    slurm_shim(tmp_path / "shim")
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    return tmp_path / "root"


@pytest.fixture
def study(root: Path) -> Experiment:
    """Two runs of two nodes and four ranks; run 1 had a first attempt that failed."""
    study = Experiment(root)
    study.submit((1, 2), swept={1: {"config.lr": 0.1}, 2: {"config.lr": 3e-4}}, world=4)
    for run, attempt in ((1, 1), (1, 2), (2, 1)):
        study.start(run, attempt, job_id=f"100_{run}", nodes=("node1", "node2"), world=4)
        for rank in range(4):
            text = "".join(f"a{attempt} r{rank} line {n}\n" for n in range(3))
            study.log(run, attempt, rank, text)
        study.run(run).attempt(attempt).agent_log("node1").write_text("agent says\n")
    study.paths.submission(1).batch_log("100_1").write_text("batch says\n")
    study.end(1, 1, outcome="failed", kind="x", message="y")
    study.end(1, 2)
    study.end(2, 1)
    return study


def lines(*arguments: str, root: Path) -> list[str]:
    done = hpcrun("logs", *arguments, root=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_newest_attempt_of_all_ranks(study: Experiment, root: Path) -> None:
    found = lines(root=root)
    assert len(found) == 2 * 4 * 3
    assert found[0] == "1 r0 | a2 r0 line 0"
    assert found[-1] == "2 r3 | a1 r3 line 2"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("study/1", "--rank", "2", "--tail", "1"), ["r2 | a2 r2 line 2"]),
        (("study/1", "--rank", "0,2-3", "--tail", "1"),
         ["r0 | a2 r0 line 2", "r2 | a2 r2 line 2", "r3 | a2 r3 line 2"]),
        (("study/1", "--attempt", "1", "--rank", "0", "--grep", "line [12]"),
         ["r0 | a1 r0 line 1", "r0 | a1 r0 line 2"]),
        (("study/1", "--attempt", "all", "--rank", "0", "--tail", "1"),
         ["r0 | a1 r0 line 2", MARK, "r0 | a2 r0 line 2"]),
        (("study/1", "--node", "node2", "--tail", "1"), ["r2 | a2 r2 line 2", "r3 | a2 r3 line 2"]),
        (("study/1", "--node", "0", "--tail", "1"), ["r0 | a2 r0 line 2", "r1 | a2 r1 line 2"]),
        (("100_2", "--rank", "0", "--tail", "1"), ["r0 | a1 r0 line 2"]),
        (("--where", "lr=0.0003", "--rank", "0", "--tail", "1"), ["r0 | a1 r0 line 2"]),
        (("study/1", "--stream", "agent"), ["agent node1 | agent says"]),
        (("study/1", "--stream", "batch"), ["batch | batch says"]),
        (("study/1", "--stream", "agent", "--node", "0"), ["agent node1 | agent says"]),
        (("study/1", "--stream", "agent", "--node", "1"), []),
        (("study/1", "--tail", "0"), []),
    ],
)  # fmt: skip
def test_choices(
    study: Experiment, root: Path, arguments: tuple[str, ...], expected: list[str]
) -> None:
    found = lines(*arguments, root=root)
    if arguments[-2:] in (("--rank", "9"), ("--attempt", "7")):
        found = [line for line in found if not line.startswith("batch")]
    assert found == expected


def test_agents_of_several_attempts_of_a_start_are_shown_once(root: Path) -> None:
    study = Experiment(root)
    study.submit((1,), world=1)
    for attempt in (1, 2, 3):
        study.start(1, attempt, world=1)
        study.log(1, attempt, 0, f"a{attempt}\n")
        study.end(1, attempt, outcome="failed", kind="x", message="y")
    study.run(1).attempt(1).agent_log("node1").write_text("agent says\n")
    study.run(1).attempt(1).tracker_log("wandb").write_text("no network\n")
    study.run(1).attempt(2).conversion_log.write_text("converted\n")
    (study.run(1).attempt(1).directory / "rank-00000.old.log").write_text("of no rank\n")
    found = lines("study/1", "--stream", "agent", "--attempt", "all", root=root)
    assert found == ["agent node1 | agent says"]
    for attempts in ((), ("--attempt", "all")):
        everything = lines("--stream", "all", *attempts, root=root)
        assert everything.count("agent node1 | agent says") == 1
        assert everything.count("tracker-wandb | no network") == 1
    assert lines("--stream", "other", "--attempt", "2", root=root) == [
        *("universal | converted", "tracker-wandb | no network"),
    ]


def test_json_lines(study: Experiment, root: Path) -> None:
    found = [json.loads(line) for line in lines("study/2", "--rank", "3", "--json", root=root)]
    assert found[0] == {
        **{"experiment": "study", "run": 2, "attempt": 1, "rank": 3, "stream": "worker"},
        **{"node": None, "line": "a1 r3 line 0"},
    }


def test_a_run_that_failed_before_its_workers_shows_why(root: Path) -> None:
    study = Experiment(root)
    paths = study.submit((1,))
    paths.batch_log("100").write_text("hpcrun: agent-node1.log: no space left\n")
    attempt = study.start(1, workers=False)
    attempt.agent_log("node1").write_text("no space left\n")
    study.end(1, outcome="failed", kind="launch", message="no space left")
    expected = ["agent node1 | no space left", "batch | hpcrun: agent-node1.log: no space left"]
    assert lines(root=root) == expected
    assert lines("-f", root=root) == expected


def test_local_executor_log(root: Path) -> None:
    study = Experiment(root)
    paths = study.submit((1,), job_id="local:1", host="x")
    paths.local_log(1).write_text("error: no such python\n")
    assert lines(root=root) == ["batch | error: no such python"]


def test_the_log_of_a_run_in_the_foreground_of_an_allocation(root: Path) -> None:
    study = Experiment(root)
    paths = study.submit((1,), job_id=None)
    entry = {"event": "submitted", "time": 1.0, "array": 0, "runs": [1], "job_id": "100"}
    files.append(paths.journal, entry)
    paths.local_log(1).write_text("the supervisor says\n")
    assert lines("--stream", "batch", root=root) == ["batch | the supervisor says"]


def test_nothing_yet(root: Path) -> None:
    Experiment(root).submit((1,))
    done = hpcrun("logs", root=root)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no lines yet" in done.stderr


def test_runs_without_output_beside_others_are_named(study: Experiment, root: Path) -> None:
    other = Experiment(root, "silent")
    other.submit(range(2))
    done = hpcrun("logs", "study", "silent", root=root)
    assert "a2 r0 line 0" in done.stdout
    assert done.stderr.splitlines()[-1] == "no output of silent/0, silent/1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rank", "x"), "--rank 'x' is not a list of ranks"),
        (("--rank", "3-1"), "--rank '3-1' is not a list of ranks"),
        (("--rank", "0-9999999999"), "--rank '0-9999999999': these are more than 1,000,000"),
        (("--rank", "²"), "--rank '²' is not a list of ranks"),
        (("--attempt", "²"), "--attempt '²' is neither a number"),
        (("--attempt", "0"), "neither a number from 1 nor 'all'"),
        (("--attempt", "last"), "neither a number from 1 nor 'all'"),
        (("--grep", "("), "is not a regular expression"),
        (("--tail", "-1"), "--tail"),
        (("--exclude", "["), "--exclude '[' is not a regular expression"),
        (("--highlight", "*"), "--highlight '*' is not a regular expression"),
        (("--raw", "--json"), "choose one"),
        (("--exit-with-run",), "is for -f"),
        (("--since", "yesterday"), "--since 'yesterday' is neither"),
        (("--stream", "wrkr"), "--stream"),
        (("nosuch",), "nothing under"),
    ],
)
def test_wrong_input(
    study: Experiment, root: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = hpcrun("logs", *arguments, root=root)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def wait_until(process: subprocess.Popen[str], path: Path, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)


def test_follow_picks_up_tasks_ranks_and_attempts_and_ends_with_the_runs(
    root: Path, tmp_path: Path
) -> None:
    study = Experiment(root)
    study.submit((1, 2))
    queue = "100_1|RUNNING|None|node1|N/A\n100_2|RUNNING|None|n|N/A\n"
    shim = slurm_shim(tmp_path / "shim", squeue=queue)
    process = start("logs", "-f", "--no-fold", root=root)
    wait_until(process, shim / "calls")
    expected = []
    for run, attempt in ((1, 1), (2, 1), (1, 2)):
        study.start(run, attempt, job_id=f"100_{run}")
        for rank in range(2):
            for number in range(5):
                study.log(run, attempt, rank, f"a{attempt} line {number}\n")
                expected.append(f"{run} r{rank} | a{attempt} line {number}")
        if (run, attempt) == (1, 1):
            study.end(1, 1, outcome="stopped", kind="saved", message="saved")
        time.sleep(1.2)
    study.log(2, 1, 0, "torn at the end")
    expected.append("2 r0 | torn at the end")
    study.end(1, 2)
    study.end(2, 1)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    mark = "--- study/1: attempt 2 on node1; attempt 1 ended: saved ---"
    found = out.splitlines()
    assert sorted(found) == sorted([*expected, mark])
    of_run_1 = [line for line in found if line.startswith("1 ") or line == mark]
    assert of_run_1.index(mark) == 10
    for key in {line.partition("|")[0] + line.split()[3] for line in expected[:-1]}:
        mine = [
            line for line in out.splitlines() if line.partition("|")[0] + line.split()[3] == key
        ]
        assert mine == [line for line in expected if line in mine]
    assert "waiting for 2 runs that have not begun (study/1, study/2)" in err


def test_follow_ends_when_the_run_is_cancelled(root: Path) -> None:
    study = Experiment(root)
    study.submit((1,), job_id="local:1", host=None)
    study.start(1, job_id="local:1")
    study.log(1, 1, 0, "begin\n")
    ledger.set_intent(study.run(1), ledger.CANCELLED)
    process = start("logs", "-f", root=root)
    time.sleep(1)
    study.end(1, outcome="cancelled", kind="cancelled", message="cancelled by the user")
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("r0 | begin\n", 0)


def test_interrupted_quietly(root: Path, tmp_path: Path) -> None:
    study = Experiment(root)
    study.submit((1,))
    study.start(1)
    study.log(1, 1, 0, "begin\n")
    slurm_shim(tmp_path / "shim", squeue="100|RUNNING|None|n|N/A\n")
    process = start("logs", "-f", root=root)
    assert process.stdout is not None
    assert process.stdout.readline() == "r0 | begin\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert (out, err) == ("", "")


def test_a_reader_that_leaves(study: Experiment, root: Path) -> None:
    study.log(1, 2, 0, "x" * 100 + "\n" + "line\n" * 200_000)
    process = start("logs", root=root)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


def test_lines_that_ranks_wrote_alike_are_shown_once(study: Experiment, root: Path) -> None:
    study.start(1, 3, world=4)
    for rank in range(4):
        texts = ["all of them", *(["only rank 1"] if rank == 1 else []), "two" if rank > 1 else "x"]
        study.log(1, 3, rank, "".join(f"{text}\n" for text in texts))
    expected = ["r0-3 (4) | all of them", "r1 | only rank 1", "r0-1 (2) | x", "r2-3 (2) | two"]
    assert lines("study/1", root=root) == expected
    assert lines("study/1", "--rank", "1", root=root) == [
        "r1 | all of them",
        *expected[1:2],
        "r1 | x",
    ]
    assert len(lines("study/1", "--no-fold", root=root)) == 9
    assert lines("study/1", "--raw", "--rank", "2", root=root) == ["all of them", "two"]
    assert lines("study/1", "--exclude", "all|two", root=root) == expected[1:3]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("study", "--rank", "4,7"), "no rank 4, 7: study/1 has 0-3 (and so of 1 more)"),
        (("study/1", "--rank", "7"), "no rank 7: study/1 has 0-3"),
        (("study/1", "--node", "nosuch"), "no node 'nosuch': study/1 has node1, node2"),
        (("study/1", "--attempt", "9"), "no attempt 9: study/1 has 1-2"),
        (("study/1", "--attempt", "all", "--rank", "9"), "no rank 9: study/1 has 0-3"),
    ],
)
def test_what_no_run_has_is_an_error(
    study: Experiment, root: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = hpcrun("logs", *arguments, root=root)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {says}\n")


def test_what_some_run_has_is_no_error(study: Experiment, root: Path) -> None:
    found = hpcrun("logs", "study/1", "--rank", "1,9", root=root)
    assert (found.returncode, "r1 | " in found.stdout) == (0, True)
    assert found.stderr == "no rank 9: there are 0-3\n"
    nothing = hpcrun("logs", "study/1", "--grep", "nosuch", root=root)
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "no lines match\n")


def test_a_run_that_has_not_begun_has_the_ranks_of_its_plan(root: Path) -> None:
    waiting = Experiment(root, "waiting")
    waiting.submit((0,), world=2)
    for arguments, says in (
        (("--rank", "7"), "no rank 7: waiting/0 has 0-1"),
        (("--attempt", "1"), "no attempt 1: waiting/0 has not begun"),
        (("--node", "n1"), "no node 'n1': waiting/0 has not begun"),
    ):
        done = hpcrun("logs", "waiting", *arguments, root=root)
        assert (done.returncode, done.stderr.startswith(f"error: {says}\n")) == (2, True)
    assert hpcrun("logs", "waiting", "--rank", "1", root=root).stderr == "no lines yet\n"


def test_the_ranks_of_torchrun_are_told(root: Path) -> None:
    study = Experiment(root)
    study.submit((1,), world=2)
    study.start(1, world=2)
    study.log(1, 1, 1, "[default3]:seven\n")
    assert hpcrun("logs", "study/1", "--rank", "1", root=root).stderr == ""
    plan = plan_file.read(study.paths.submission(1).plan)
    (run,) = plan.runs
    run = replace(run, entry=replace(run.entry, framework="torchrun"))
    plan_file.write(replace(plan, runs=(run,)), study.paths.submission(1).plan)
    done = hpcrun("logs", "study/1", "--rank", "1", root=root)
    assert done.stdout == "r1 | [default3]:seven\n"
    assert done.stderr.startswith("--rank counts torchrun's own processes, one a node: each log")
    assert "--rank counts" in hpcrun("logs", "study/1", "--rank", "7", root=root).stderr
    assert hpcrun("logs", "study/1", root=root).stderr == ""


def test_updates_of_a_progress_bar_are_one_line(study: Experiment, root: Path) -> None:
    """The last lines hold what was written before the bar, which a program writes line by line."""
    bars = [f" {n}%|██    | {n}/100 [00:01<00:07, 11.5it/s]" for n in range(100)]
    study.start(2, 3, world=4)
    study.log(
        2, 3, 1, "\n".join(["begin", *bars[:50], "saved", *bars[50:], "KeyError: 'lr'"]) + "\n"
    )
    folded = [
        f"{bars[49]}  (the last of 50 updates)",
        "saved",
        f"{bars[99]}  (the last of 50 updates)",
        "KeyError: 'lr'",
    ]
    for arguments in (("--rank", "1"), ()):
        found = lines("study/2", *arguments, root=root)
        assert found == [f"r1 | {line}" for line in ("begin", *folded)]
        last = lines("study/2", *arguments, "--tail", "4", root=root)
        assert last == found[1:]
    assert len(lines("study/2", "--no-fold", root=root)) == 103
    assert len(lines("study/2", "--tail", "4", "--no-fold", root=root)) == 4
    assert len(lines("study/2", "--grep", "it/s", root=root)) == 100
    assert len(lines("study/2", "--raw", root=root)) == 103


def test_followed_lines_that_ranks_wrote_alike_are_shown_once(root: Path, tmp_path: Path) -> None:
    study = Experiment(root)
    study.submit((1,), world=3)
    slurm_shim(tmp_path / "shim", squeue="100|RUNNING|None|n|N/A\n")
    study.start(1, world=3)
    process = start("logs", "-f", root=root)
    assert process.stdout is not None
    for number in range(3):
        for rank in (2, 0, 1):
            study.log(1, 1, rank, f"step {number}\n" + (f"own {rank}\n" if rank == 2 else ""))
        assert process.stdout.readline() == f"r0-2 (3) | step {number}\n"
        assert process.stdout.readline() == "r2 | own 2\n"
    study.log(1, 1, 0, "the last, of one alone, torn")
    study.end(1)
    out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("r0 | the last, of one alone, torn\n", 0), err


@pytest.mark.parametrize(("outcome", "code"), [("completed", 0), ("failed", 1)])
def test_exit_with_the_run(root: Path, outcome: str, code: int) -> None:
    study = Experiment(root)
    study.submit((1, 2))
    for run in (1, 2):
        study.start(run, job_id=f"100_{run}")
        study.end(run, outcome="completed" if run == 1 else outcome)
    process = start("logs", "-f", "--exit-with-run", root=root)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err


def test_lines_by_time(study: Experiment, root: Path) -> None:
    paths = study.run(1).attempt(2)
    now = round(time.time(), 1)
    files.append(paths.log_sizes, {"time": now - 3600, "sizes": {"0": 16}})
    files.append(paths.log_sizes, {"time": now - 60, "sizes": {"0": 32}})
    # Written then, by the storage's clock too.
    os.utime(paths.log_sizes, (now - 60, now - 60))
    mine = ("study/1", "--rank", "0")
    assert lines(*mine, "--since", "30m", root=root)[-2:] == [
        "r0 | a2 r0 line 1",
        "r0 | a2 r0 line 2",
    ]
    assert lines(*mine, "--since", "30s", root=root)[-1:] == ["r0 | a2 r0 line 2"]
    assert lines("study/1", "--rank", "0", "--since", "2h", root=root)[:3] == [
        f"r0 | a1 r0 line {number}" for number in range(3)
    ]
    timed = [json.loads(line) for line in lines(*mine, "--json", "--timestamps", root=root)]
    assert [one["time"] for one in timed[:2]] == [now - 3600, now - 60]
    assert timed[2]["time"] == pytest.approx(time.time(), abs=60)
    shown = lines(*mine, "--timestamps", root=root)[0]
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now - 3600))
    assert shown == f"{at} r0 | a2 r0 line 0"


def test_what_a_terminal_must_not_get(study: Experiment, root: Path) -> None:
    study.start(1, 3, world=4)
    study.log(
        1, 3, 0, "\x1b[2J\x1b[31mred\x1b[0m \x1b]0;title\x07bell\x07 \x1b(B tab\t\x00.\x9b2J\n"
    )
    assert lines("study/1", "--rank", "0", root=root) == ["r0 | red bell  tab\t.2J"]
    raw = lines("study/1", "--rank", "0", "--raw", root=root)
    assert raw[0].startswith("\x1b[2J")


def test_bytes_that_no_encoding_knows(study: Experiment, root: Path) -> None:
    with open(study.run(1).attempt(2).rank_log(0), "ab") as stream:
        stream.write(b"\xff\xfe bad\n")
    assert "r0 | \ufffd\ufffd bad" in lines("study/1", "--rank", "0", root=root)
    done = hpcrun("logs", "study/1", "--rank", "0", root=root, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
