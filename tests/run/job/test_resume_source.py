"""What an attempt of a script resumes from: looked for in files, and seen by real programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.job.resume_source import StartOver, decided
from hpcrun.run.protocol.launch import Launch, LaunchNode
from hpcrun.state import files, ledger, session_log
from hpcrun.state.layout import ExperimentPaths, experiment
from hpcrun.state.plan import Entry
from hpcrun.submission.local import processes
from tests.support import command
from tests.support.place import launch_of
from tests.support.saves import archive
from tests.support.users import STRANGER, needs_root


def aged(path: Path, seconds: float) -> None:
    moment = path.stat().st_mtime - seconds
    os.utime(path, (moment, moment))


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """The second attempt of a command, whose first has logged nothing and left nothing."""
    code = tmp_path / "node" / "hpcrun-1" / "attempt-2" / "code"
    code.mkdir(parents=True)
    node = LaunchNode("n1", str(code), str(code.parent), "lo", "127.0.0.1")
    entry = Entry("command", argv=("train", "--lr=1", "--out_dir=out"))
    made = launch_of(tmp_path, nodes=(node,), attempt=2, entry=entry, recovery={})
    replace(made, attempt=1).paths.directory.mkdir()
    replace(made, attempt=1).write()
    made.directory_of().mkdir(parents=True)
    return made


def with_resume(launch: Launch, resume: Any = None, **recovery: Any) -> Launch:
    block = {"resume": resume, **recovery} if resume is not None else recovery
    return replace(launch, spec={**launch.spec, "recovery": block})


def logged(launch: Launch, *steps: int, attempt: int = 1) -> None:
    files.append(launch.run_paths.attempt(attempt).metrics, *({"step": step} for step in steps))


def told(launch: Launch) -> str:
    assert launch.resume is not None
    return str(launch.resume["message"])


def test_the_newest_match_is_filled_in_for_all_ranks(launch: Launch) -> None:
    work = launch.directory_of()
    for step, age in ((500, 10), (1000, 0), (900, 20)):
        archive(work / f"out/checkpoint-{step}/optimizer.pt")
        state = work / f"out/checkpoint-{step}/trainer_state.json"
        state.write_text('{"global_step": 1}')
        aged(state, age)
    # Killed while it saved: the Trainer writes its state last.
    archive(work / "out/checkpoint-1500/optimizer.pt")
    resume = {
        "when": ["out/checkpoint-*/trainer_state.json"],
        "args": ["--resume", "${hpcrun:newest_directory}"],
        "environment": {"FROM": "${hpcrun:newest}"},
    }
    found = decided(with_resume(launch, resume))
    newest = work / "out/checkpoint-1000"
    assert told(found) == "resumes from out/checkpoint-1000"
    assert found.resume is not None
    assert found.resume["source"] == str(newest / "trainer_state.json")
    assert found.resume["arguments"] == ["--resume", str(newest)]
    filled = found.fill(list(found.entry.argv), found.nodes[0])
    assert filled == [*launch.entry.argv, "--resume", str(newest)]
    variables = found.fill(found.resume["variables"], found.nodes[0])
    assert variables == {"FROM": str(newest / "trainer_state.json")}
    found.write()
    assert Launch.read(found.paths.launch) == found


@pytest.mark.parametrize(
    ("pattern", "names", "expected"),
    [
        # Names in the order in which they were touched.
        (
            "out/checkpoint-*/trainer_state.json",
            "out/checkpoint-{}/trainer_state.json",
            (300, 100, 200),
        ),
        ("**/*.ckpt", "logs/epoch=1-step={}.ckpt", (300, 100, 200)),
        ("**/*.ckpt", "logs/version_{}/epoch=9-val_loss=0.31.ckpt", (3, 1, 2)),
        ("**/*.ckpt", "logs/epoch={}-val_loss=0.31.ckpt", (3, 1, 2)),
        ("out/epoch_*/random_states_0.pkl", "out/epoch_{}/random_states_0.pkl", (10, 1, 9)),
        ("out/model*.pt", "out/model{}.pt", (10, 1, 9)),
        ("out/*.pth", "out/resnet50_{}_0.31.pth", (10, 1, 9)),
        ("runs/*/model.pt", "runs/r{}/model.pt", (10, 1, 9)),
    ],
)
def test_the_step_decides_and_not_the_time_at_which_a_save_was_touched(
    launch: Launch, pattern: str, names: str, expected: tuple[int, ...]
) -> None:
    work = launch.directory_of()
    for age, step in zip((30, 20, 10), expected, strict=True):
        path = work / names.format(step)
        archive(path)
        if path.suffix == ".json":
            path.write_text(json.dumps({"global_step": step}))
        aged(path, age)
    resumed = decided(with_resume(launch, {"when": pattern, "args": ["${hpcrun:newest}"]}))
    assert resumed.resume is not None
    if "version_" in names:
        # A later version of a log is no later save.
        assert told(resumed) == f"resumes from {names.format(expected[-1])}"
    else:
        assert told(resumed) == f"resumes from {names.format(max(expected))}"


def test_a_save_without_a_number_is_taken_by_its_time_and_the_step_passed_over_is_told(
    launch: Launch,
) -> None:
    work = launch.directory_of()
    for name, age in (("last.ckpt", 5), ("epoch=1-step=30.ckpt", 20), ("epoch=0-step=20.ckpt", 10)):
        archive(work / name)
        aged(work / name, age)
    resume = {"when": "*.ckpt", "args": ["${hpcrun:newest}"]}
    expected = "resumes from last.ckpt (newer than epoch=1-step=30.ckpt of step 30)"
    assert told(decided(with_resume(launch, resume))) == expected
    aged(work / "last.ckpt", 30)
    assert told(decided(with_resume(launch, resume))) == "resumes from epoch=1-step=30.ckpt"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("model_000500.pt", 500),
        ("epoch=2-step=30.ckpt", 30),
        ("d20/model_7.pt", 7),
        ("optim_000060_rank0.pt", 60),
        ("60-model-00001-of-00003.pt", 60),
        ("gpu4_90.pt", 90),
        ("80_mp_rank_03.pt", 80),
    ],
)
def test_a_program_that_wants_a_number_gets_that_of_the_newest(
    launch: Launch, name: str, number: int
) -> None:
    work = launch.directory_of()
    archive(work / name)
    archive(work / "last.pt")
    resume = {
        "when": ["*.ckpt", "**/*.pt"],
        "args": ["--resume-from-step=${hpcrun:newest_step}"],
    }
    found = decided(with_resume(launch, resume))
    assert found.resume is not None
    assert found.resume["arguments"] == [f"--resume-from-step={number}"]
    assert "last.pt tells no step" in told(found)


def test_the_number_is_the_one_that_differs(launch: Launch) -> None:
    work = launch.directory_of()
    resume = {"when": ["*.pt"], "args": ["--step=${hpcrun:newest_step}"]}
    for name in ("7b-000030-v2.pt", "7b-000060-v2.pt"):
        archive(work / name)
    found = decided(with_resume(launch, resume))
    assert found.resume is not None
    assert found.resume["arguments"] == ["--step=60"]


def test_nothing_matches(launch: Launch) -> None:
    (launch.directory_of() / "out").mkdir()
    given = with_resume(launch, {"when": ["out/*.pt", "last.pt"], "args": ["--resume"]})
    found = decided(given)
    assert found.entry == launch.entry
    assert found.resume == {
        "resumes": False,
        "message": "starts from nothing: no file matches out/*.pt or last.pt",
        "reached": None,
    }
    logged(launch, 10, 93)
    assert told(decided(given)).endswith("out/*.pt or last.pt; step 93 had been reached")


def test_a_first_attempt_and_a_spec_that_says_nothing_have_nothing_to_tell(launch: Launch) -> None:
    archive(launch.directory_of() / "last.pt")
    first = replace(with_resume(launch, {"when": ["*.pt"], "args": ["-r"]}), attempt=1)
    assert decided(first) == first
    assert decided(launch) == launch


def test_what_was_cut_off_is_passed_over(launch: Launch) -> None:
    work = launch.directory_of()
    archive(work / "good.pt")
    aged(work / "good.pt", 5)
    archive(work / "torn.pt", cut=30)
    resume = {"when": ["*.pt"], "args": ["--resume=${hpcrun:newest}"]}
    found = decided(with_resume(launch, resume))
    words = "resumes from good.pt (torn.pt was cut off as it was written)"
    assert told(found) == words
    (work / "good.pt").unlink()
    nothing = "starts from nothing: of *.pt torn.pt was cut off as it was written"
    assert told(decided(with_resume(launch, resume))) == nothing


@pytest.mark.parametrize("name", ["rng_state_1.pth", "global_step9/zero_pp_rank_1.pt"])
def test_a_directory_whose_last_file_is_there_may_have_torn_ones(launch: Launch, name: str) -> None:
    """Each attempt died of it: a rank of a lost node had not written all of its own file."""
    work = launch.directory_of()
    for step, age in ((5, 10), (9, 0)):
        archive(work / f"out/checkpoint-{step}" / name, cut=30 * (not age))
        state = work / f"out/checkpoint-{step}/trainer_state.json"
        state.write_text("{}")
        aged(state, age)
    told_of = f"has {Path(name).name}, which was cut off as it was written"
    words = f"resumes from out/checkpoint-5 (out/checkpoint-9/trainer_state.json {told_of})"
    trainer = replace(launch, entry=Entry("command", argv=("train", "--output_dir=out")))
    assert told(decided(with_resume(trainer, {"recipe": "hf-trainer"}))) == words
    given = with_resume(launch, {"when": ["out/*/*.json"], "args": ["${hpcrun:newest_directory}"]})
    assert told(decided(given)) == words
    # The program reads the file alone.
    given = with_resume(launch, {"when": ["out/*/*.json"], "args": ["${hpcrun:newest}"]})
    assert told(decided(given)) == "resumes from out/checkpoint-9/trainer_state.json"
    # Other saves lie in a directory that no wildcard chooses.
    archive(work / "out/good.pt")
    given = with_resume(launch, {"when": ["out/*.pt"], "args": ["${hpcrun:newest_directory}"]})
    assert told(decided(given)) == "resumes from out"


@needs_root
@pytest.mark.parametrize("planted", ["", "a.pt", "inside/b.pt"])
def test_a_program_does_not_go_on_from_what_a_stranger_planted(
    launch: Launch, planted: str
) -> None:
    """In a directory where everybody may make files, the newest save is anybody's."""
    work = launch.directory_of()
    for step, age in ((5, 10), (9, 0)):
        for name in ("a.pt", "inside/b.pt"):
            archive(work / f"checkpoint-{step}" / name)
        aged(work / f"checkpoint-{step}", age)
    STRANGER.owns(work / "checkpoint-9" / planted)
    given = with_resume(launch, {"when": "checkpoint-*", "args": ["--resume=${hpcrun:newest}"]})
    whose = f"belongs to {STRANGER.name}"
    why = f"has {Path(planted).name}, which {whose}" if planted else whose
    assert told(decided(given)) == f"resumes from checkpoint-5 (checkpoint-9 {why})"


@needs_root
def test_a_save_in_a_strangers_directory_may_be_swapped_before_it_is_read(launch: Launch) -> None:
    work = launch.directory_of()
    for step in (5, 9):
        archive(work / f"out-{step}" / f"checkpoint-{step}.pt")
    os.chown(work / "out-9", STRANGER.uid, STRANGER.gid)
    given = with_resume(launch, {"when": "out-*/*.pt", "args": ["--resume=${hpcrun:newest}"]})
    why = f"may be anybody's: {work / 'out-9'} is {STRANGER.name}'s"
    assert told(decided(given)) == (
        f"resumes from out-5/checkpoint-5.pt (out-9/checkpoint-9.pt {why})"
    )


def test_files_of_the_code_are_no_saves(launch: Launch) -> None:
    code, work = Path(launch.nodes[0].code), launch.directory_of()
    archive(code / "pretrained/model.ckpt")
    (work / "pretrained").symlink_to(code / "pretrained")
    resume = {"when": ["pretrained/*.ckpt", "**/*.ckpt"], "args": ["--resume"]}
    assert "no file matches" in told(decided(with_resume(launch, resume)))
    archive(work / "logs/runs/1/checkpoints/last.ckpt")
    assert told(decided(with_resume(launch, resume))) == (
        "resumes from logs/runs/1/checkpoints/last.ckpt"
    )


def test_a_pattern_may_lie_elsewhere(launch: Launch) -> None:
    archive(launch.run_paths.directory / "output/last.pt")
    resume = {"when": ["${hpcrun:directory}/output/*.pt"], "args": ["--resume"]}
    expected = f"resumes from {launch.directory}/output/last.pt"
    assert told(decided(with_resume(launch, resume))) == expected


def _events(launch: Launch) -> None:
    for step in (5, 15):
        line = session_log.record(session_log.SAVED, step=step)
        files.append(launch.run_paths.attempt(1).session, line)


def _log_files(launch: Launch) -> None:
    (launch.directory_of() / "out").mkdir()
    for name in ("train.log", "out/events.out.tfevents.1", "out/metrics.csv", "out/.hidden"):
        (launch.directory_of() / name).write_text("x")
    (launch.directory_of() / "out/empty.pt").write_text("")


def _what_debuggers_and_caches_leave(launch: Launch) -> None:
    work = launch.directory_of()
    for name in ("core", "core.123", "vgcore.7", "out/trace.pt.trace.json", "out/loss.png"):
        archive(work / name)
    (work / "core-python-4711-n1-crash").write_bytes(b"\x7fELF\x02" + b"x" * 100)
    (work / "a_program").write_bytes(b"\x7fELF\x02" + b"x" * 100)
    for name in ("wandb/run-1/files/model", "hf_cache/hub/weights.bin", "mlruns/0/meta"):
        archive(work / name)


def _made_a_directory(launch: Launch) -> None:
    made = launch.directory_of() / "out"
    made.mkdir()
    (Path(launch.nodes[0].code) / "out").symlink_to(made)
    logged(launch, 1, 2)


def _has_a_directory_of_the_code(launch: Launch) -> None:
    for top in (launch.directory_of(), Path(launch.nodes[0].code)):
        (top / "data").mkdir()
    logged(launch, 1)


def _elsewhere(launch: Launch) -> None:
    archive(launch.run_paths.directory.parent / "far/model.pt")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda launch: None, "starts from nothing: no earlier attempt has left a file in "),
        (_events, "resumes: attempt 1 saved step 15"),
        (lambda launch: archive(launch.directory_of() / "out/ckpt.pt"), "resumes: an earlier "),
        (lambda launch: archive(launch.run_paths.directory / "output/a.pt"), "resumes: an earlier"),
        (_elsewhere, "resumes: an earlier attempt left "),
        (_log_files, "starts from nothing: "),
        (_what_debuggers_and_caches_leave, "starts from nothing: "),
        # As nanoGPT does, long before it saves.
        (_made_a_directory, "starts from nothing: "),
        (_has_a_directory_of_the_code, "resumes: attempt 1 logged steps, and writes elsewhere"),
        (lambda launch: logged(launch, 1), "resumes: attempt 1 logged steps, and writes elsewhere"),
    ],
)
def test_without_a_pattern_something_must_have_been_left(
    launch: Launch, prepare: Any, message: str
) -> None:
    far = launch.run_paths.directory.parent / "far"
    argv = (*launch.entry.argv, f"--save={far}")
    launch = replace(
        with_resume(launch, resume_args=["--resume"]), entry=Entry("command", argv=argv)
    )
    prepare(launch)
    found = decided(launch)
    assert told(found).startswith(message)
    added = ("--resume",) if message.startswith("resumes") else ()
    assert found.entry.argv == (*argv, *added)


@pytest.mark.parametrize(
    ("steps", "first", "resume", "words"),
    [
        ((10, 20, 93), 10, None, "began over at step 10, though step 93 had been reached; say how"),
        ((10, 20, 93), 10, {"resumes": True, "source": "/w/a.pt"}, "it did not go on from /w/a.pt"),
        ((10, 20, 93), 90, None, None),
        ((0, 1, 2), 0, None, "began over at step 0, though step 2"),
        # It may have saved before it logged for the first time.
        ((10,), 10, {"resumes": True}, None),
        # Told already.
        ((10, 20, 93), 10, {"resumes": False, "reached": 93}, None),
        ((), 10, None, None),
    ],
)
def test_a_program_that_begins_over(
    launch: Launch, steps: tuple[int, ...], first: int, resume: Any, words: str | None
) -> None:
    logged(launch, *steps)
    found: list[dict[str, Any]] = []
    watch = StartOver(
        replace(launch, resume=resume),
        lambda event, **details: found.append({"event": event, **details}),
    )
    watch.turn()
    logged(launch, first, attempt=2)
    watch.look()
    watch.look()
    assert [one["event"] for one in found] == [ledger.BEGAN_OVER] * (words is not None)
    if words is not None:
        assert words in found[0]["message"]


def resumed_and_failed(
    launch: Launch, attempt: int, source: str | None = None, **cause: Any
) -> None:
    run = launch.run_paths
    nodes, ids = ["n1"], {"job_id": "1", "submission": 1, "restart_count": 0, "host": "h", "pid": 1}
    ledger.write(run, ledger.STARTED, attempt, nodes=nodes, world_size=1, **ids)
    ledger.write(run, ledger.RESUME, attempt, resumes=True, source=source, message="resumes")
    cause = {"kind": "rank_crash", "message": "it failed", "exit_code": 1, **cause}
    ledger.write(run, ledger.ENDED, attempt, outcome="failed", exit_code=1, cause=cause)
    run.attempt(attempt).directory.mkdir(exist_ok=True)


def attempt_after(launch: Launch, number: int) -> str:
    return told(decided(replace(launch, attempt=number)))


def test_a_start_with_arguments_that_resume_and_kill_is_followed_by_one_without(
    launch: Launch,
) -> None:
    launch = with_resume(launch, resume_args=["--resume"])
    archive(launch.directory_of() / "weights.bin")
    logged(launch, 1, 2)
    assert attempt_after(launch, 2).startswith("resumes: ")
    resumed_and_failed(launch, 2)
    expected = "starts from nothing: attempt 2, which resumed, ended before its first step; step 2"
    assert attempt_after(launch, 3).startswith(expected)
    # Once: the next one resumes again.
    ledger.write(launch.run_paths, ledger.RESUME, 3, resumes=False, message="starts from nothing")
    assert attempt_after(launch, 4).startswith("resumes: ")


@pytest.mark.parametrize(
    ("cause", "steps", "again"),
    [
        ({"kind": "node_failure"}, (), True),
        ({"kind": "preempted"}, (), True),
        ({}, (3,), True),
        ({}, (), False),
        ({"exit_code": 2}, (), False),
    ],
)
def test_what_is_not_the_fault_of_the_arguments_changes_nothing(
    launch: Launch, cause: dict[str, Any], steps: tuple[int, ...], again: bool
) -> None:
    launch = with_resume(launch, resume_args=["--resume"])
    archive(launch.directory_of() / "weights.bin")
    logged(launch, 1, 2)
    resumed_and_failed(launch, 2, **cause)
    logged(launch, *steps, attempt=2)
    assert attempt_after(launch, 3).startswith("resumes: ") == again


def test_a_program_whose_steps_nobody_knows_is_judged_by_its_exit_code(launch: Launch) -> None:
    launch = with_resume(launch, resume_args=["--resume"])
    archive(launch.directory_of() / "weights.bin")
    resumed_and_failed(launch, 2)
    assert attempt_after(launch, 3).startswith("resumes: ")
    resumed_and_failed(launch, 3, exit_code=2)
    assert attempt_after(launch, 4).startswith("starts from nothing: attempt 3, which resumed")


def test_the_save_before_one_that_kills_is_next(launch: Launch) -> None:
    work = launch.directory_of()
    for step in (50, 100, 200):
        archive(work / f"ckpt-{step}.pt")
    logged(launch, 1, 250)
    launch = with_resume(launch, {"when": "ckpt-*.pt", "args": ["${hpcrun:newest}"]})
    assert attempt_after(launch, 2) == "resumes from ckpt-200.pt"
    resumed_and_failed(launch, 2, str(work / "ckpt-200.pt"))
    why = "is not taken again: attempt 2, which resumed, ended before its first step"
    assert attempt_after(launch, 3) == f"resumes from ckpt-100.pt (ckpt-200.pt {why})"
    resumed_and_failed(launch, 3, str(work / "ckpt-100.pt"))
    # A third would not find what two did not, and may be the last start that the run has.
    why = "attempts 2, 3, which resumed, ended before their first steps; step 250 had been reached"
    assert attempt_after(launch, 4) == f"starts from nothing: {why}"


# Real attempts, of programs that never heard of hpcrun.
HEAD = """
import json, os, signal, sys, zipfile
attempt = int(os.environ["HPCRUN_ATTEMPT"])
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
def log(step):
    with open(os.environ["HPCRUN_METRICS_FILE"], "a") as stream:
        stream.write(json.dumps({"step": step}) + "\\n")
def save(path, step):
    with zipfile.ZipFile(path, "w") as stream:
        stream.writestr("step", str(step))
def load(path):
    return int(zipfile.ZipFile(path).read("step"))
"""
# Killed before the first save, and after it.
NANOGPT = (
    HEAD
    + """
os.makedirs("out", exist_ok=True)
step = load("out/ckpt.pt") if given.get("init_from") == "resume" else 0
while step < 6:
    step += 1
    log(step)
    if (attempt, step) in ((1, 1), (2, 4)):
        os.kill(os.getpid(), signal.SIGKILL)
    if step % 2 == 0:
        save("out/ckpt.pt", step)
"""
)
# Killed in its second save, of which DeepSpeed's `latest` knows nothing yet.
HELLO_DEEPSPEED = (
    HEAD
    + """
assert ("checkpoint_dir" in given) != ("load_checkpoint_dir" in given), given
top = given.get("load_checkpoint_dir") or given["checkpoint_dir"] + "/bert.1"
os.makedirs(top, exist_ok=True)
step = 0
if "load_checkpoint_dir" in given:
    step = load(top + "/" + open(top + "/latest").read() + "/states.pt")
while step < 6:
    step += 1
    log(step)
    if step % 2 == 0:
        os.makedirs(f"{top}/global_step{step}", exist_ok=True)
        if attempt == 1 and step == 4:
            open(f"{top}/global_step4/states.pt", "wb").write(b"PK\\x03\\x04torn")
            os.kill(os.getpid(), signal.SIGKILL)
        save(f"{top}/global_step{step}/states.pt", step)
        open(top + "/latest", "w").write(f"global_step{step}")
"""
)


class Programs:
    """A directory with a program and its spec, and a root beside it."""

    def __init__(self, directory: Path) -> None:
        self.code, self.root = directory / "code", directory / "root"
        self.code.mkdir()

    @property
    def paths(self) -> ExperimentPaths:
        return experiment(self.root, "e")

    def run(self, program: str, **spec: Any) -> None:
        """Run it to its end on this machine."""
        (self.code / "train.py").write_text(program)
        own = {
            **{"name": "e", "entry": "train.py", "resources": {"time": "00:10:00"}},
            "environment": {"python": sys.executable},
        }
        (self.code / "e.yaml").write_text(json.dumps({**own, **spec}))
        self.ended = self.hpcrun("submit", "e.yaml", "cluster=local", "--wait")

    def hpcrun(self, *arguments: str) -> Any:
        return command.hpcrun(*arguments, "--root", self.root, cwd=self.code)

    def steps(self, attempt: int) -> list[int]:
        lines = files.read_lines(self.paths.run(0).attempt(attempt).metrics)
        return [line["step"] for line in lines]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    for name in ("HPCRUN_ROOT", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    found = Programs(tmp_path)
    yield found
    for submission in found.paths.submissions():
        processes.kill_all(submission.directory)


@pytest.mark.parametrize(
    "recovery",
    [{"resume_args": ["--init_from=resume"]}, {"resume": "nanogpt"}],
    ids=["resume_args", "recipe"],
)
def test_a_program_is_killed_before_its_first_save_and_after_it(
    programs: Programs, recovery: dict[str, Any]
) -> None:
    programs.run(NANOGPT, recovery=recovery)
    assert programs.ended.returncode == 0, programs.ended.stderr
    assert [programs.steps(number) for number in (1, 2, 3)] == [[1], [1, 2, 3, 4], [3, 4, 5, 6]]
    first, second, third = ledger.read(programs.paths.run(0))
    assert first.resume is None
    assert second.resume is not None
    assert third.resume is not None
    assert (second.resume["resumes"], second.resume["reached"]) == (False, 1)
    assert (third.resume["resumes"], third.resume["arguments"]) == (True, ["--init_from=resume"])
    told = programs.hpcrun("why", "e").stdout
    assert "It starts from nothing: no " in told
    assert "; step 1 had been reached." in told
    assert "out/ckpt.pt" in told.split("It resumes")[1].splitlines()[0]


def test_a_program_is_started_with_another_flag_in_place_of_one(programs: Programs) -> None:
    programs.run(
        HELLO_DEEPSPEED,
        config={"checkpoint_dir": "ckpt"},
        recovery={"resume": "deepspeed-checkpoint"},
    )
    assert programs.ended.returncode == 0, programs.ended.stderr
    assert [programs.steps(number) for number in (1, 2)] == [[1, 2, 3, 4], [3, 4, 5, 6]]
    resume = ledger.read(programs.paths.run(0))[1].resume
    assert resume is not None
    assert resume["message"] == "resumes from ckpt/bert.1"
    top = programs.paths.run(0).directory / "work/ckpt/bert.1"
    assert resume["arguments"] == [f"--load_checkpoint_dir={top}"]


def test_a_program_that_nobody_told_how_to_resume(programs: Programs) -> None:
    program = HEAD + "log(1); log(2); attempt > 1 or os.kill(os.getpid(), signal.SIGKILL)\n"
    programs.run(program)
    assert programs.ended.returncode == 0, programs.ended.stderr
    told = programs.hpcrun("why", "e").stdout
    assert "It began over at step 1, though step 2 had been reached; say how it goes on" in told
    (found,) = json.loads(programs.hpcrun("why", "e", "--json").stdout)
    assert (found["attempts"][1]["began_over"]["step"], found["attempts"][0]["resume"]) == (1, None)
