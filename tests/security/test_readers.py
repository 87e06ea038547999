"""Readers: whatever lies in the place of a file costs its own row, in words, and nothing else.

What an attacker, a crash or a full disk has left is read by every command, and by the supervisor
before it starts a run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun import tools
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.observe import diff, results
from hpcrun.observe.diagnosis import advice, cost, narrative
from hpcrun.observe.diagnosis.attempts import grouped, stories
from hpcrun.observe.read import detail
from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status.jobs import Answers
from hpcrun.observe.status.status import statuses
from hpcrun.state import files, init_from, layout, manifest
from hpcrun.state.layout import RunPaths
from tests.support import command, users
from tests.support.experiment import T0, Experiment, path_with, slurm_shim
from tests.support.needs_tool import needs_tool
from tests.support.place import Place
from tests.support.users import ME, STRANGER

RUNS = range(6)
# Of an address space, so that what is read into memory has an end: Python and its libraries take
# half of it.
MOST_MEMORY = 1 << 30
NESTED = b"[" * 100_000 + b"]" * 100_000


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        # The path of a socket is short.
        directory = os.open(path.parent, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)


def dev_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def thirty_gigabytes(path: Path) -> None:
    with open(path, "wb") as stream:
        stream.truncate(30 << 30)


def a_directory(path: Path) -> None:
    path.mkdir()


def a_loop(path: Path) -> None:
    path.symlink_to(path)


def brackets(path: Path) -> None:
    path.write_bytes(b'{"a":' + NESTED + b"}\n" + NESTED + b"\n")


PLANTED = (a_fifo, a_socket, dev_zero, thirty_gigabytes, a_directory, a_loop, brackets)
EVERY = [
    *(("status",), ("status", "--json"), ("status", "--cost"), ("why",), ("results",), ("list",)),
    *(("logs", "--tail", "2"), ("logs", "--stream", "all", "--attempt", "all", "--timestamps")),
    *(
        ("clean", "--dry-run", "study"),
        ("show", "study/0"),
    ),
    *([("report", "-o", "-")] if tools.has("report") else []),
    *([("export", "--dry-run", "-o", "out.tar.gz")] if tools.has("export") else []),
]


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    """Six completed runs, each with all that a run has."""
    found = Experiment(tmp_path / "root")
    found.submit(RUNS, swept={run: {"config.lr": run / 8} for run in RUNS})
    for run in RUNS:
        attempt = found.start(run, job_id=f"100_{run}")
        found.metrics(run, 1, range(1, 6), loss=lambda step: 1 / step)
        found.log(run, 1, 0, f"run {run} speaks\n")
        files.append(attempt.telemetry("node1"), {"time": T0, "cpu": 3.0})
        files.append(attempt.log_sizes, {"time": T0, "sizes": {"0": 5}})
        files.write_json(attempt.deepspeed, {"train_batch_size": 8})
        found.end(run)
    return found


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """A reader that blocks fails its test in place of blocking all others."""

    def fail(number: int, frame: object) -> None:
        pytest.fail("a reader blocks")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(90)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An experiment whose attempts are run by the local executor's processes."""
    made = Place(tmp_path)
    yield made
    made.close()


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


def hpcrun(study: Experiment, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that has ten times the five seconds, as machines of CI are slow, and 1 GB."""
    shim = slurm_shim(study.paths.root.parent / "bin")
    env = {"PATH": path_with(shim), "XDG_CACHE_HOME": str(study.paths.root.parent)}
    options: dict[str, Any] = {"cwd": study.paths.root.parent, "preexec_fn": limited}
    done = command.hpcrun(*arguments, root=study.paths.root, env=env, timeout=50, **options)
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done


def plant(paths: RunPaths, name: str, kind: Callable[[Path], None]) -> Path:
    path = getattr(paths, name, None) or getattr(paths.attempt(1), name)
    if callable(path):
        path = path("node1") if name == "telemetry" else path(0)
    path.unlink()
    kind(path)
    return path


@pytest.mark.parametrize("kind", PLANTED, ids=lambda kind: kind.__name__)
def test_in_the_place_of_any_file_of_a_run_it_costs_no_command_and_no_other_row(
    study: Experiment, kind: Callable[[Path], None]
) -> None:
    ledger = plant(study.run(1), "ledger", kind)
    metrics = plant(study.run(2), "metrics", kind)
    for name in ("session", "telemetry", "log_sizes", "deepspeed", "rank_log", "intent"):
        plant(study.run(3), name, kind)
    found = json.loads(hpcrun(study, "status", "--json").stdout)
    assert [one["state"] for one in found] == ["completed", "unknown", *["completed"] * 4]
    assert found[1]["reason"].startswith(str(ledger))
    done = hpcrun(study, "results")
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert all(f"study/{run}" in rows for run in RUNS)
    assert "0.2" in rows["study/0"]
    if kind is not brackets:
        # Lines that are no records are passed over, as those that a crash has torn.
        assert f"study/2: {metrics}: " in done.stderr
    said = hpcrun(study, "logs", "--tail", "2").stdout
    assert [run for run in RUNS if f"run {run} speaks" in said] == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("arguments", EVERY, ids=" ".join)
def test_every_command_that_reads_answers_beside_what_would_block_it(
    study: Experiment, arguments: tuple[str, ...]
) -> None:
    planted = (a_fifo, a_socket, thirty_gigabytes, a_directory, brackets)
    for run, kind in enumerate(planted, start=1):
        plant(study.run(run), "ledger", kind)
    plant(study.run(1), "session", a_fifo)
    plant(study.run(2), "intent", a_fifo)
    before = time.monotonic()
    done = hpcrun(study, *arguments)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - before < 25
    assert done.stdout or "unknown, not over" in done.stderr


@pytest.mark.parametrize("name", ["plan", "journal", "submission"])
@pytest.mark.parametrize("kind", [a_fifo, thirty_gigabytes, brackets])
def test_a_broken_submission_costs_no_other_experiment(
    study: Experiment, tmp_path: Path, name: str, kind: Callable[[Path], None]
) -> None:
    other = Experiment(tmp_path / "root", "other")
    paths = other.submit((0,))
    path = getattr(paths, name)
    path.unlink(missing_ok=True)
    kind(path)
    for arguments in (("status", "other", "study"), ("list",)):
        done = hpcrun(study, *arguments)
        assert done.returncode == 0, done.stderr
        assert "study" in done.stdout
    if name == "plan" or (name == "journal" and kind is not brackets):
        assert str(path) in hpcrun(study, "status", "other", "study", "--json").stderr


@pytest.mark.parametrize("name", ["\u00b2", "007", "\u0663", "-1", "9" * 30, "n" * 255, "1 "])
def test_a_directory_that_is_almost_a_number_is_none(study: Experiment, name: str) -> None:
    for parent in ("submissions", "runs", "runs/0/attempts"):
        (study.paths.directory / parent / name).mkdir()
    (study.paths.directory / "runs" / "0" / "attempts" / "1" / "rank-\u00b2.log").touch()
    assert [one.number for one in study.paths.submissions()] == [1]
    assert study.paths.run_numbers() == [*RUNS]
    assert [one.number for one in study.run(0).attempts()] == [1]
    assert list(study.run(0).attempt(1).rank_logs()) == [0]
    assert layout.named_run(study.paths.directory / name)[1] in (None, 0)
    inside = layout.enclosing(study.paths.directory / "runs" / name)
    assert inside == (study.paths, None)


def test_ten_thousand_entries_are_listed_in_a_moment(study: Experiment) -> None:
    for parent in ("", "submissions", "runs", "runs/0/attempts"):
        directory = study.paths.directory / parent if parent else study.paths.root
        for number in range(2_500):
            os.mknod(directory / f"x{number}")
    before = time.monotonic()
    assert len(Finder(study.paths.root).resolve(["study"])) == len(RUNS)
    assert [one.name for one in layout.experiments(study.paths.root)] == ["study"]
    assert time.monotonic() - before < 3


WRONG: list[Any] = [
    *("x", "", "\0", "../" * 9, -1, 1.5, 10**12, 10**290, True, [], {}, [[]], [None], ["\0", 3]),
    *({"a": {"a": {}}}, 1e308, float("nan"), float("inf")),
]


def look(root: Path) -> list[str]:
    """All that the commands make of what lies under a root; the states of the runs."""
    selected = Finder(root).resolve(["study"])
    silent = Answers()
    found = statuses(selected, ask=lambda refs: silent)
    told = stories(selected, ask=lambda refs: silent, values=True)
    now = T0 + 5000
    for one in told:
        advice.advise(one, "study")
        narrative.headline(one)
        for attempt in one.attempts:
            narrative.attempt(attempt, one, now)
        json.dumps([one.to_data(now), one.status.to_data()])
        cost.of_run("study", one.plan_of, one.spans(now))
        detail.summary(one.selected, one.status)
    grouped(told)
    collected = results.collect(selected, found)
    collected.csv()
    collected.to_data()
    diff.difference(selected[:1], selected[1:2])
    if tools.has("report"):
        from hpcrun.tools.report import report

        report.collect(selected)
    return [one.state for one in found]


def kept(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize("file", ["ledger", "session", "metrics", "telemetry"])
def test_a_field_of_another_kind_in_a_record_is_no_traceback(study: Experiment, file: str) -> None:
    paths = study.run(1)
    path: Path = paths.ledger
    if file != "ledger":
        path = getattr(paths.attempt(1), file)
        path = path("node1") if callable(path) else path
    records = [json.loads(line) for line in path.read_text().splitlines()]
    fields = [(place, name) for place, one in enumerate(records[:3]) for name in one]
    for number, (place, name) in enumerate(fields):
        for value in WRONG[number % 9 :: 9]:
            broken = [*records]
            broken[place] = {**records[place], name: value}
            kept(path, "".join(json.dumps(one) + "\n" for one in broken).encode())
            states = look(study.paths.root)
            assert states[0] == states[2] == "completed"
            assert states[1] in ("completed", "unknown", "running")


@pytest.mark.parametrize("file", ["plan", "journal", "submission"])
def test_a_field_of_another_kind_in_a_submission_is_no_traceback(
    study: Experiment, file: str
) -> None:
    path: Path = getattr(study.paths.submission(1), file)
    lines = path.read_text().splitlines() if file == "journal" else [path.read_text()]
    records = [json.loads(line) for line in lines]
    for place, record in enumerate(records):
        for number, where in enumerate(_leaves(record)):
            for value in WRONG[number % 16 :: 16]:
                broken = json.loads(lines[place])
                around = broken
                for step in where[:-1]:
                    around = around[step]
                around[where[-1]] = value
                text = [*lines[:place], json.dumps(broken), *lines[place + 1 :]]
                kept(path, ("\n".join(text) + "\n").encode())
                # In words, where nothing of the experiment is left.
                with contextlib.suppress(UsageError):
                    look(study.paths.root)


def _leaves(data: Any) -> list[tuple[Any, ...]]:
    """The places of all values in plain data."""
    inside = data.items() if isinstance(data, dict) else enumerate(data)
    found: list[tuple[Any, ...]] = []
    for name, value in inside:
        found.append((name,))
        if isinstance(value, (dict, list)):
            found += [(name, *rest) for rest in _leaves(value)]
    return found


def test_a_plan_of_few_bytes_takes_no_memory_for_its_runs(study: Experiment) -> None:
    path = study.paths.submission(1).plan
    data = json.loads(path.read_bytes())
    data["models"][0]["spec"]["config"] = {"x": [0] * 100_000}
    change = [["spec", "config", "x", "7"], 1]
    run = data["runs"][0]
    data["runs"] = [[number, *run[1:5], [change]] for number in range(20_000)]
    path.write_text(json.dumps(data))
    done = hpcrun(study, "status", "study")
    assert done.returncode == 2
    assert f"{path} is not a plan" in done.stderr


@pytest.mark.parametrize("data", [b"\0" * 4096, b"#!/bin/sh\n", NESTED + b"\n"])
def test_a_run_whose_ledger_is_gone_to_waste_does_not_begin_at_step_0(
    place: Place, data: bytes
) -> None:
    place.submit("true")
    place.run.attempt(1).directory.mkdir(parents=True)
    place.run.ledger.write_bytes(data)
    code, said = place.supervise()
    assert code == 1
    assert f"{place.run.ledger}:1: it holds no event of a run" in said
    assert [one.number for one in place.run.attempts()] == [1]


def test_a_run_whose_ledger_nobody_wrote_does_not_begin_at_step_0(place: Place) -> None:
    place.submit("true")
    place.run.attempt(1).directory.mkdir(parents=True)
    end = {"event": "attempt_ended", "attempt": 1, "outcome": "stopped", "reached_step": "many"}
    files.append(place.run.ledger, end)
    code, said = place.supervise()
    assert code == 1
    assert f"{place.run.ledger}:1: reached_step is 'many', not a whole number" in said
    assert [one.number for one in place.run.attempts()] == [1]


@pytest.mark.parametrize("kind", [a_fifo, a_directory, brackets])
def test_a_manifest_that_is_none_is_no_checkpoint(
    study: Experiment, kind: Callable[[Path], None]
) -> None:
    checkpoint = study.run(0).checkpoint(5, 1)
    checkpoint.mkdir(parents=True)
    (checkpoint.parent / "step-\u00b2\u00b2-a1").mkdir()
    kind(checkpoint / manifest.NAME)
    assert isinstance(manifest.inspect(checkpoint), manifest.Fault)
    with pytest.raises(UsageError, match="has no complete checkpoint"):
        init_from.Origin.parse("study/0").find(study.paths.root)
    with pytest.raises(HpcrunError):
        init_from.Origin.parse("study/0@\u00b2").find(study.paths.root)


@needs_tool("completion")
def test_completion_answers_beside_what_would_block_it(study: Experiment, tmp_path: Path) -> None:
    a_fifo(Experiment(tmp_path / "root", "other").submit((0,), job_id=None).journal)
    plan = Experiment(tmp_path / "root", "third").submit((0,)).plan
    plan.unlink()
    a_fifo(plan)
    for typed, expected in (("hpcrun status ", "study"), ("hpcrun status third/", "")):
        done = subprocess.run(
            [sys.executable, "-m", "hpcrun"],
            env={
                **os.environ,
                **{"HPCRUN_ROOT": str(study.paths.root), "_HPCRUN_COMPLETE": "bash_complete"},
                **{"COMP_WORDS": typed, "COMP_CWORD": "2"},
            },
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert expected in done.stdout


@users.needs_root
def test_a_file_that_one_may_not_read_costs_its_own_row(open_place: Path) -> None:
    found = Experiment(open_place / "root")
    found.submit((0, 1, 2))
    for run in (0, 1, 2):
        found.start(run, job_id=f"100_{run}")
        found.metrics(run, 1, range(1, 6), loss=1.0)
        found.end(run)
    secret = Experiment(open_place / "root", "secret").submit((0,))
    STRANGER.owns(open_place / "root")
    found.run(1).ledger.chmod(0o600)
    found.run(2).attempt(1).metrics.chmod(0)
    secret.directory.parent.chmod(0o700)
    arguments = {"home": open_place, "root": open_place / "root", "timeout": 50}
    done = ME.hpcrun("results", "study", "secret", **arguments)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert "completed" in rows["study/0"]
    assert "unknown" in rows["study/1"]
    assert f"study/2: {found.run(2).attempt(1).metrics}: Permission denied" in done.stderr
    assert f"passed over: {secret.directory.parent}: Permission denied" in done.stderr
    done = ME.hpcrun("status", "study", **arguments)
    assert f"{found.run(1).ledger}: Permission denied" in done.stdout
    assert ME.hpcrun("list", **arguments).returncode == 0
