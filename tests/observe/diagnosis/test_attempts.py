"""What ended attempts, from ledgers on disk: sentences, advice, groups and JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hpcrun.observe.diagnosis import narrative
from hpcrun.observe.diagnosis.advice import advise
from hpcrun.observe.diagnosis.attempts import CauseGroup, RunStory, grouped, normalized, stories
from hpcrun.observe.read.selection import Finder
from hpcrun.observe.status.jobs import Answers
from hpcrun.slurm.queue import JobState
from hpcrun.state import files, ledger
from hpcrun.state.plan import Entry
from tests.support.command import hpcrun
from tests.support.experiment import T0, Experiment, path_with, slurm_shim

CRASH = {
    "kind": "rank_crash",
    "message": "rank 1 on node2 raised ValueError: batch 17 is bad",
    "rank": 1,
    "node": "node2",
    "exception": "ValueError",
    "log_tail": ["Traceback (most recent call last):", "ValueError: batch 17 is bad"],
}
NODE = {
    "kind": "node_failure",
    "message": "node node2 did not answer any more",
    "nodes": ["node2"],
}
REQUEUE = {"action": "requeue", "reason": "it goes on from its newest checkpoint", "exclude": []}
STOP = {
    "action": "stop",
    "reason": "it ended by rank_crash 10 times; recovery.budgets.rank_crash is 10",
    "exclude": [],
}


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path / "root")


def end(
    study: Experiment,
    run: int = 0,
    attempt: int = 1,
    outcome: str = "failed",
    *,
    cause: dict[str, Any] | None = None,
    came: tuple[int | None, int | None, int | None] = (0, 0, 0),
    decided: dict[str, Any] | None = None,
    when: float = T0 + 100,
    **more: Any,
) -> None:
    """What a supervisor records of an end: ``came`` is where it began, reached and had saved."""
    paths = study.run(run)
    fields = dict(zip(("restored_step", "reached_step", "checkpoint_step"), came, strict=True))
    head = {"event": ledger.ENDED, "time": when, "attempt": attempt, **more}
    files.append(
        paths.ledger, {**head, "outcome": outcome, "exit_code": 1, "cause": cause, **fields}
    )
    if decided:
        files.append(paths.ledger, {**head, "event": ledger.DECIDED, **decided})
    if outcome == "completed":
        ledger.set_intent(paths, ledger.FINISHED)


def event(study: Experiment, kind: str, run: int = 0, attempt: int = 1, **fields: Any) -> None:
    session = study.run(run).attempt(attempt).session
    files.append(session, {"event": kind, "time": T0, **fields})


def told(study: Experiment, state: str = "FAILED", reason: str = "", **jobs: Any) -> list[RunStory]:
    """The stories of all runs; Slurm answers ``state`` for every job."""
    gone = JobState("", state, reason=reason, start=T0)

    def ask(processes: Any) -> Answers:
        return Answers(jobs={process.job_id: gone for process in processes}, **jobs)

    return stories(Finder(study.paths.directory.parent).runs(study.paths), ask=ask)


def one(study: Experiment, state: str = "FAILED") -> RunStory:
    (found,) = told(study, state)
    return found


def lines(run: RunStory, number: int = 1, now: float = T0 + 400) -> list[str]:
    return narrative.attempt(run.attempts[number - 1], run, now)


def advice(run: RunStory) -> str:
    return advise(run, run.status.name) or ""


def test_what_only_the_nodes_had_saved_is_not_lost(study: Experiment) -> None:
    study.submit((0,))
    study.start(0, 1)
    end(study, cause=CRASH, came=(0, 57, 30), decided=REQUEUE)
    study.start(0, 2, when=T0 + 112)
    assert one(study, "RUNNING").attempts[0].lost == 27
    event(study, "restored", attempt=2, step=55, checkpoint="of the nodes' storage")
    run = one(study, "RUNNING")
    assert run.attempts[0].lost == 2
    assert "It began at step 0 and reached step 57" in " ".join(lines(run))
    assert "newest checkpoint was of step 55: 2 steps lost." in " ".join(lines(run))


def test_a_crash_and_what_followed(study: Experiment) -> None:
    study.submit((0,))
    study.start(0, 1, nodes=("node1", "node2"))
    event(study, "save_failed", step=40, message="No space left on device")
    event(study, "save_failed", step=50, message="No space left on device")
    event(study, "save_skipped", step=57, message="the loss is not finite")
    end(study, cause=CRASH, came=(0, 57, 30), decided=REQUEUE)
    study.start(0, 2, when=T0 + 112)
    run = one(study, "RUNNING")
    first, *rest = lines(run)
    assert first.startswith("Attempt 1 failed 5 min ago (2023-11-1")
    assert first.endswith("), rank_crash: rank 1 on node2 raised ValueError: batch 17 is bad.")
    assert rest == [
        "It began at step 0 and reached step 57; its newest checkpoint was of step 30: "
        "27 steps lost.",
        "Saves at steps 40, 50 failed: No space left on device.",
        "Nothing was saved at step 57: the loss is not finite.",
        "hpcrun requeued it; attempt 2 began 12 s later.",
    ]
    assert lines(run, 2)[0].startswith("Attempt 2 began 5 min ago")
    assert lines(run, 2)[0].endswith("; it is running.")
    assert narrative.headline(run) == "study/0: running, attempt 2"
    assert advice(run).startswith("It goes on by itself. Should it end so again: ValueError is")


@pytest.mark.parametrize(
    ("came", "sentence"),
    [
        ((40, 57, 50), "It began at step 40 and reached step 57; its newest checkpoint was of"),
        ((0, 7, 0), "It began at step 0 and reached step 7; nothing was saved: 7 steps lost."),
        ((0, 1, 0), "It began at step 0 and reached step 1; nothing was saved: 1 step lost."),
        ((40, 50, 50), "checkpoint was of step 50: nothing lost."),
        ((None, 1200, None), "It reached step 1,200."),
        ((None, 2, 2), "as its last save that was seen says; what was lost is not known."),
        ((None, None, None), ""),
    ],
)
def test_how_far_it_came(
    study: Experiment, came: tuple[int | None, int | None, int | None], sentence: str
) -> None:
    study.submit((0,))
    study.start()
    end(study, cause=CRASH, came=came)
    text = " ".join(lines(one(study))[1:])
    assert sentence in text
    assert bool(text) == bool(sentence)


def test_a_batch_that_is_left_out_is_told(study: Experiment) -> None:
    study.submit((0,))
    study.start(0, 1)
    bad = {"step": 35, "cause": "non_finite_loss", "message": "x", "batch": 35}
    bad |= {"samples": [136, 139], "epoch": 0}
    cause = {"kind": "non_finite_loss", "message": "the loss has not been finite since step 35"}
    came, decided = (0, 37, 30), {**REQUEUE, "left_out": bad["samples"]}
    end(study, cause=cause, came=came, decided=decided, bad_step=bad)
    study.start(0, 2, when=T0 + 112)
    run = one(study, "RUNNING")
    wanted = "Left out from then on: global batch 35, samples 136 to 139 of epoch 1, on which step"
    assert f"{wanted} 35 trained." in lines(run)
    assert "1 global batch left out" in str(run.status.reason)
    data = run.attempts[0].to_data()
    assert (data["decided"]["left_out"], data["bad_step"]) == ([136, 139], bad)


def test_ranks_that_were_never_started(study: Experiment) -> None:
    study.submit((0,))
    study.start(workers=False)
    cause = {"kind": "launch", "message": "node1: the port is taken"}
    end(study, cause=cause, came=(None, None, None), decided=STOP)
    run = one(study)
    assert lines(run)[1] == "Its ranks were never started."
    assert "`hpcrun logs study/0 --stream batch`" in advice(run)


def test_a_rank_that_the_message_does_not_name(study: Experiment) -> None:
    study.submit((0,))
    study.start()
    end(study, cause={**CRASH, "message": "boom"})
    assert lines(one(study))[0].endswith(", rank_crash: boom (first: rank 1 on node2).")


def test_completed_in_several_attempts(study: Experiment) -> None:
    study.submit((0,))
    study.start(0, 1)
    excluding = {**REQUEUE, "exclude": ["node2"]}
    end(study, 0, 1, "stopped", cause=NODE, came=(0, 57, 40), decided=excluding)
    study.start(0, 2, when=T0 + 160)
    end(study, 0, 2, cause=CRASH, came=(40, 45, 40), decided=REQUEUE, when=T0 + 200)
    study.start(0, 3, when=T0 + 260)
    end(study, 0, 3, "completed", came=(40, 100, 100), when=T0 + 300)
    run = one(study)
    assert narrative.headline(run) == "study/0: completed in 3 attempts; 22 steps replayed"
    assert [found.replayed for found in run.attempts] == [0, 5, 17]
    assert [found.lost for found in run.attempts] == [17, 5, None]
    assert lines(run, 1)[-1] == "hpcrun requeued it, excluding node2; attempt 2 began 60 s later."
    assert "did 5 steps over again and reached step 45" in lines(run, 2)[1]
    assert lines(run, 3)[0].startswith("Attempt 3 completed the run 100 s ago")
    assert advise(run, "study/0") is None


def test_stopped_and_submitted_again(study: Experiment) -> None:
    study.submit((0,))
    study.start()
    end(study, cause=CRASH, came=(0, 5, 0), decided=STOP)
    run = one(study)
    assert lines(run)[-1] == f"hpcrun stopped it: {STOP['reason']}."
    assert narrative.headline(run) == "study/0: failed after 1 attempt"
    assert "`hpcrun requeue study/0` and `hpcrun submit` start the count anew" in advice(run)
    study.submit((0,), job_id="200", when=T0 + 3000)
    study.start(0, 2, job_id="200", submission=2, when=T0 + 7300)
    said = lines(one(study, "RUNNING"))[-1]
    assert said.endswith("attempt 2 began 2 h later, after it was submitted again.")


def test_an_attempt_without_an_end(study: Experiment) -> None:
    study.submit((0,))
    study.start()
    study.metrics(0, 1, [10, 20], loss=1.0)
    run = one(study, "NODE_FAIL")
    (first, progress) = lines(run)
    assert "and its end is not on record: its job is over (Slurm: NODE_FAIL)" in first
    assert progress == "It began at step 0 and reached step 20."
    assert run.kind == "no_end"
    assert "`hpcrun requeue study/0` goes on with the code that was frozen" in advice(run)


def test_an_attempt_that_is_asked_to_leave(study: Experiment) -> None:
    study.submit((0,))
    study.start()
    ledger.write(study.run(), ledger.STOPPING, 1, reason="preempted", signal="SIGTERM")
    run = one(study, "RUNNING")
    assert lines(run)[0].endswith("it is asked to save and leave (preempted, SIGTERM).")
    assert run.kind is None
    assert advise(run, "study/0") is None


def test_a_run_without_an_attempt(study: Experiment) -> None:
    study.submit((0,))
    run = one(study)
    assert run.attempts == ()
    assert run.kind == "failed"
    assert "the job ended (Slurm: FAILED) before an attempt began" in narrative.headline(run)
    assert "`hpcrun requeue study/0`" in advice(run)
    assert told(study, "PENDING")[0].kind is None


DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 1},
    "optimizer": {"params": {"lr": 0.003}},
    "fp16": {"enabled": True},
}
GPU = {
    "kind": "out_of_memory",
    "message": "rank 0 on node1 raised OutOfMemoryError: CUDA out of memory. Tried to allocate "
    "2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.06 GiB is free.",
    "exception": "OutOfMemoryError",
}
HOST = {
    "kind": "out_of_memory",
    "message": "rank 0 on node1 was killed because its job was out of memory (it asked for 4G)",
    "signal": "SIGKILL",
}


@pytest.mark.parametrize(
    ("cause", "spec", "parts"),
    [
        (
            CRASH,
            {},
            ["ValueError is the program's own", "from the checkpoint of step 40 with the code of"],
        ),
        (
            {**CRASH, "exception": "HpcrunError", "message": "the command 'x' cannot be started"},
            {},
            ["Change what the message above names and `hpcrun submit` again"],
        ),
        (
            {**CRASH, "exception": None, "signal": "SIGSEGV"},
            {},
            ["`hpcrun logs study/0 --rank 1`", "with the code of now"],
        ),
        (
            GPU,
            {"deepspeed": DEEPSPEED},
            [
                "it tried to allocate 2.50 GiB, the GPU has 79.15 GiB, 1.06 GiB were free",
                "train_micro_batch_size_per_gpu=4 with deepspeed.gradient_accumulation_steps=8 "
                "(now 8 and 4), which keeps the global batch of 64",
                "stage is 1: over the 2 ranks, 2 shards gradients too, 3 shards parameters too",
                "offload_optimizer={device: cpu}",
                "activation checkpointing",
                "recovery.shrink_micro_batch=3 lets the next attempt halve the micro batch",
                "changed, it begins at step 0",
            ],
        ),
        (
            HOST,
            {"resources": {"mem": "4G", "nodes": 1, "ntasks_per_node": 2, "gpus_per_node": 0}},
            ["resources.mem is 4G", "2 ranks share a node", "(resources.ntasks_per_node)"],
        ),
        (HOST, {}, ["resources.mem is not set", "goes on from the checkpoint of step 40"]),
        (
            {"kind": "non_finite_loss", "message": "x"},
            {"deepspeed": DEEPSPEED},
            [
                "The checkpoint of step 40 was saved while the loss was still finite",
                "(deepspeed.optimizer.params.lr is 0.003)",
                "deepspeed.gradient_clipping=1.0 (now none)",
                "deepspeed.bf16.enabled=true in place of fp16",
            ],
        ),
        (
            GPU,
            {
                "deepspeed": {
                    "train_micro_batch_size_per_gpu": 4,
                    "gradient_accumulation_steps": "auto",
                    "zero_optimization": "auto",
                }
            },
            ["a smaller deepspeed.train_micro_batch_size_per_gpu (now 4)"],
        ),
        (
            {"kind": "non_finite_loss", "message": "x"},
            {"deepspeed": {"optimizer": "auto", "fp16": "auto"}},
            ["a lower learning rate", "deepspeed.gradient_clipping=1.0 (now none)"],
        ),
        (
            {"kind": "loss_spike", "message": "x"},
            {},
            ["recovery.on_spike=skip has it leave out the batch", "`hpcrun requeue study/0`"],
        ),
        (
            {"kind": "time_limit", "message": "x"},
            {"resources": {"time": "00:10:00"}},
            ["`hpcrun requeue study/0`", "resources.time is 00:10:00"],
        ),
        (NODE, {}, ["did nothing wrong (node2 was lost)", "`hpcrun requeue study/0`"]),
        ({"kind": "preempted", "message": "x"}, {}, ["did nothing wrong"]),
        ({"kind": "supervisor_lost", "message": "x"}, {}, ["did nothing wrong"]),
        ({"kind": "bad_checkpoint", "message": "x"}, {}, ["Set aside as damaged: step-00000040"]),
        (
            {"kind": "hang", "message": "x"},
            {},
            ["attempts/1/stacks-*.txt", "a longer recovery.hang_after", "session.log() between"],
        ),
        (
            {"kind": "hang", "message": "x", "rank": 0, "lock": "/home/me/my {cache}/lock"},
            {},
            ["`rm '/home/me/my {cache}/lock'`", "environment.variables.TORCH_EXTENSIONS_DIR"],
        ),
        ({"kind": "unknown", "message": "x"}, {}, ["`hpcrun logs study/0 --stream all"]),
    ],
)
def test_the_next_step(
    study: Experiment, cause: dict[str, Any], spec: dict[str, Any], parts: list[str]
) -> None:
    study.submit((0,), spec=spec)
    study.start()
    event(study, "quarantined", checkpoint="step-00000040-a1", message="a file is missing")
    end(study, cause=cause, came=(0, 57, 40))
    text = advice(one(study))
    assert [part for part in parts if part not in text] == []
    assert ("aside" in text) == (cause["kind"] == "bad_checkpoint")


def test_a_pattern_that_took_too_long_is_told(study: Experiment) -> None:
    study.submit((0,))
    study.start()
    event(study, "pattern_dropped", message="it was 3 times not done")
    end(study, cause=CRASH, came=(None, 57, None))
    assert "Of progress.pattern: it was 3 times not done." in lines(one(study))


@pytest.mark.parametrize("framework", ["lightning", "auto"])
def test_a_program_without_steps_is_told_how_to_show_them(
    study: Experiment, framework: str
) -> None:
    study.submit((0,))
    study.start()
    event(study, "read_from", source=None)
    end(study, outcome="completed", came=(None, None, None))
    found = one(study, "COMPLETED")
    entry = dataclasses.replace(found.selected.run.entry, framework=framework)
    run = dataclasses.replace(found.selected.run, entry=entry)
    changed = dataclasses.replace(found, selected=dataclasses.replace(found.selected, run=run))
    (sentence,) = [line for line in lines(changed) if "shows no steps" in line]
    assert ("CSVLogger or Lightning's TQDMProgressBar" in sentence) == (framework == "lightning")
    assert "set progress.pattern" in sentence


def test_a_micro_batch_of_one_is_not_made_smaller(study: Experiment) -> None:
    spec = {"deepspeed": {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}}
    study.submit((0,), spec=spec)
    study.start()
    end(study, cause=GPU)
    text = advice(one(study))
    assert "micro_batch" not in text
    assert "stage is" not in text
    assert "offload_param={device: cpu}" in text


def _smaller(study: Experiment, micro: int, accumulation: int, attempt: int = 2) -> None:
    """The start of an attempt with smaller micro batches."""
    batch = {"micro_batch": micro, "accumulation": accumulation, "planned_micro_batch": 8}
    started = {"event": ledger.STARTED, "time": T0, "attempt": attempt, "nodes": ["node1"]}
    files.append(study.run(0).ledger, {**started, "job_id": "100", "submission": 1, **batch})


def test_advice_on_memory_is_of_the_batch_that_the_attempt_had(study: Experiment) -> None:
    study.submit((0,), spec={"deepspeed": DEEPSPEED, "recovery": {"shrink_micro_batch": 3}})
    study.start()
    end(study, cause=GPU)
    _smaller(study, 1, 32)
    end(study, attempt=2, cause=GPU)
    run = one(study)
    assert "It had micro batches of 1 (32 accumulated) in place of 8: memory ran out." in lines(
        run, 2
    )
    assert [one.to_data()["micro_batch"] for one in run.attempts] == [None, 1]
    text = advice(run)
    assert "micro_batch" not in text
    assert "activation checkpointing" in text
    assert "more nodes, which share" in text


def test_out_of_memory_before_anything_was_saved(study: Experiment) -> None:
    study.submit((0,))
    study.start()
    end(study, cause=HOST, came=(0, 5, 0), decided=STOP)
    told = advice(one(study))
    assert "goes on from step 0, as nothing was saved. recovery.grow: {mem: 1.5} has" in told
    assert "2 ranks share" in told


def test_a_run_that_is_never_requeued_has_no_count(study: Experiment) -> None:
    study.submit((0,), spec={"recovery": {"requeue": False}})
    study.start()
    stop = {**STOP, "reason": "recovery.requeue is false"}
    end(study, cause=CRASH, came=(0, 5, 0), decided=stop)
    assert advice(one(study)) == (
        "ValueError is the program's own: fix it and `hpcrun submit` again, which goes on from "
        "step 0, as nothing was saved, with the code of now."
    )


@pytest.mark.parametrize(
    ("recovery", "began", "crashed", "timed_out"),
    [
        (
            {},
            None,
            "which starts it again (from nothing, unless it resumes by itself; recovery.resume can",
            "`hpcrun requeue study/0` starts it again with the code that was frozen",
        ),
        (
            {"resume": {"when": ["out/*.pt"], "args": ["--resume"]}},
            None,
            "which resumes it, as recovery.resume says, with the code of now.",
            "`hpcrun requeue study/0` resumes it with the code that was frozen",
        ),
        (
            {"resume_args": ["--resume"]},
            0,
            "which goes on from the checkpoint of step 40 with the code of now.",
            "`hpcrun requeue study/0` goes on with the code that was frozen",
        ),
    ],
    ids=["nothing is known", "recovery.resume", "a session"],
)
def test_nothing_is_promised_of_programs_that_save_by_themselves(
    study: Experiment, recovery: dict[str, Any], began: int | None, crashed: str, timed_out: str
) -> None:
    study.submit((0,), spec={"recovery": recovery})
    study.start()
    end(study, cause=CRASH, came=(began, 57, None if began is None else 40))
    assert crashed in advice(one(study))
    study.start(0, 2)
    end(study, 0, 2, cause={"kind": "time_limit", "message": "x"}, came=(began, 57, None))
    text = advice(one(study))
    assert timed_out in text
    assert ("checkpoint" in text) == (began is not None)


@pytest.mark.parametrize("kind", ["preempted", "node_failure", "time_limit"])
def test_what_goes_on_by_itself(study: Experiment, kind: str) -> None:
    study.submit((0,))
    study.start()
    cause = {"kind": kind, "message": "x"}
    end(study, outcome="stopped", cause=cause, decided=REQUEUE)
    run = one(study, "PENDING")
    assert lines(run)[-1] == "hpcrun requeued it; the next attempt has not begun."
    assert advice(run) == "Nothing needs to be done: it goes on by itself."


def test_what_is_held_does_not_go_on_by_itself(study: Experiment) -> None:
    study.submit((0, 1))
    cause = {"kind": "requeued", "message": "taken away"}
    for run in (0, 1):
        study.start(run)
        end(study, run, outcome="stopped", cause=cause, decided=REQUEUE)
    waits, held = told(study, "PENDING", "Priority")[0], told(study, "PENDING", "JobHeldUser")[1]
    assert [_runs(group) for group in grouped([waits, held])] == [[0], [1]]
    assert advice(waits) == "Nothing needs to be done: it goes on by itself."
    number = held.status.job_id
    typed = f"`scontrol release {number}` lets it go on"
    assert advice(held) == f"It does not start as it is: its owner holds it; {typed}."
    assert typed in narrative.headline(held)
    assert ("expects" in narrative.headline(waits), "expects" in narrative.headline(held)) == (
        True,
        False,
    )


def test_several_that_wait_are_told_apart_by_why(
    study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.submit((0, 1, 2))
    reasons = ("Priority", "JobHeldUser", "Priority")
    rows = [f"100_{run}|PENDING|{why}||N/A\n" for run, why in enumerate(reasons)]
    monkeypatch.setenv("PATH", path_with(slurm_shim(tmp_path / "shim", squeue="".join(rows))))
    done = hpcrun("why", root=tmp_path / "root")
    assert done.stdout.splitlines() == [
        "2 runs pending (Priority: waits behind jobs of higher priority): study/0,2",
        "1 run pending (JobHeldUser: does not start as it is: its owner holds it; "
        "`scontrol release JOB` lets it go on): study/1",
    ]


def test_a_cancelled_run(study: Experiment) -> None:
    study.submit((0,))
    study.start()
    cause = {"kind": "cancelled", "message": "cancelled by the user"}
    nothing = {"action": "nothing", "reason": "the run is cancelled", "exclude": []}
    end(study, outcome="cancelled", cause=cause, decided=nothing)
    ledger.set_intent(study.run(), ledger.CANCELLED)
    run = one(study)
    assert "Attempt 1 was cancelled" in lines(run)[0]
    assert not any("left it to others" in line for line in lines(run))
    assert "`hpcrun requeue study/0` goes on with the code that was frozen" in advice(run)


@pytest.mark.parametrize(
    ("one_message", "another"),
    [
        ("rank 1 on node2 raised E: 17 is bad", "rank 30 on alpha raised E: 4.5e-3 is bad"),
        ("node node2 did not answer any more", "nodes node2, alpha did not answer any more"),
        ("at 0x7f00ab", "at 0x9"),
    ],
)
def test_messages_that_are_the_same(one_message: str, another: str) -> None:
    nodes = ("node2", "alpha")
    assert normalized(one_message, nodes) == normalized(another, nodes)


def test_a_message_is_the_same_with_more_ranks() -> None:
    many = "rank 1 on a1 (and ranks 0, 2-3, 5, 7 and 9 more on a1, b2 and 3 more) raised A: x (y)"
    assert normalized(many, ["a1"]) == normalized("rank 0 on a1 raised A: x (y)", ["a1"])
    some = "rank 1 on a1 (and rank 2) ended with exit code 3"
    assert normalized(some, ["a1"]) == normalized("rank 4 on a1 ended with exit code 3", ["a1"])


def test_messages_that_are_not_the_same() -> None:
    assert normalized("rank 1 raised A: x") != normalized("rank 1 raised B: x")
    assert normalized("alphabet", ["alpha"]) == "alphabet"


def _sweep(study: Experiment) -> None:
    """Runs 0, 1, 3 crash alike, 2 otherwise, 4 and 5 complete (5 in two attempts)."""
    study.submit(range(6))
    for run in range(6):
        study.start(run, job_id=f"100_{run}", nodes=(f"host{run}",))
    for run in (0, 1, 3):
        message = f"rank {run} on host{run} raised ValueError: batch {run} is bad"
        end(study, run, cause={**CRASH, "message": message}, came=(0, 9, 0), decided=STOP)
    end(study, 2, cause=HOST)
    end(study, 4, outcome="completed", came=(0, 100, 100))
    end(study, 5, cause=CRASH, came=(0, 9, 0), decided=REQUEUE)
    study.start(5, 2, job_id="100_5")
    end(study, 5, 2, "completed", came=(0, 100, 100))


def _runs(group: CauseGroup) -> list[int]:
    return [run.status.run for run in group.runs]


def test_groups(study: Experiment) -> None:
    _sweep(study)
    groups = grouped(told(study))
    assert [(group.kind, group.over, _runs(group)) for group in groups] == [
        ("rank_crash", True, [0, 1, 3]),
        ("out_of_memory", True, [2]),
    ]


def test_the_command_for_several(
    study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sweep(study)
    monkeypatch.setenv("PATH", path_with(slurm_shim(tmp_path / "shim", fail="Unable to contact")))
    done = hpcrun("why", root=tmp_path / "root")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "3 runs, rank_crash: study/0-1,3"
    assert said[1].startswith("  study/0: Attempt 1 failed ")
    assert said[2].startswith(
        "  Next: ValueError is the program's own: fix it and `hpcrun submit` again, which goes on "
        "from the newest checkpoint with the code of now."
    )
    assert "`hpcrun requeue study/0-1,3`" in said[2]
    assert said[4] == "1 run, out_of_memory: study/2"
    assert said[-2:] == [
        "1 run completed: study/4",
        "1 run completed in several attempts: study/5; 9 steps replayed",
    ]
    assert done.stdout.count("Next: ") == 2
    assert "Slurm does not answer" in done.stderr


def test_the_command_for_one(study: Experiment, tmp_path: Path) -> None:
    _sweep(study)
    done = hpcrun("why", "study/3", root=tmp_path / "root", env={"PATH": "/nonexistent"})
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "study/3: failed after 1 attempt"
    assert "The last lines of rank 1 in attempt 1:" in said
    assert "  | ValueError: batch 17 is bad" in said
    assert said[-1].startswith("Next: ValueError is the program's own")
    completed = hpcrun("why", "study/5", root=tmp_path / "root").stdout
    assert "study/5: completed in 2 attempts; 9 steps replayed" in completed
    assert "Next" not in completed
    assert "The last lines" not in completed


def test_a_machine_without_a_queue_takes_nothing_back_into_it(study: Experiment) -> None:
    study.submit((0,))
    study.start(0, 1, job_id="local:77")
    end(study, outcome="stopped", cause={**NODE, "kind": "signal"}, decided=REQUEUE)
    assert lines(one(study))[-1] == (
        "hpcrun left it as it was: this machine has no queue to put it back into."
    )
    # As in a drill, whose run is brought to its end here.
    study.start(0, 2, job_id="local:77")
    assert lines(one(study))[-1].startswith("hpcrun started it again; attempt 2 began")


def test_a_guess_about_the_network_is_told_once(study: Experiment, tmp_path: Path) -> None:
    words = "ranks talk over ib0, for its name: fabric.fast_interface decides"
    study.submit((0,))
    for attempt in (1, 2):
        study.start(0, attempt, notice=words)
        end(study, attempt=attempt, cause=CRASH, decided=STOP)
    done = hpcrun("why", "study/0", root=tmp_path / "root", env={"PATH": "/nonexistent"})
    assert done.stdout.count(f"Of the network: {words}.") == 1


def test_what_is_wrong_with_links_is_a_warning(study: Experiment, tmp_path: Path) -> None:
    finding = {"node": "n2", "port": "mlx5_3:1", "kind": "down", "message": "mlx5_3:1 is DOWN"}
    choices = ["n1, n2: NCCL_IB_HCA is =mlx5_0:1, as read there"]
    study.submit((0,))
    study.start(0, 1)
    details = {"choices": choices, "findings": [finding] * 7, "count": 9}
    ledger.write(study.run(0), ledger.FABRIC, 1, **details)
    study.end(0)
    settings: dict[str, Any] = {"root": tmp_path / "root", "env": {"PATH": "/nonexistent"}}
    done = hpcrun("why", "study/0", **settings)
    assert done.stdout.count("  Warning, node n2: mlx5_3:1 is DOWN.\n") == 6
    assert "  … and 3 more; the job's log has them.\n  n1, n2: NCCL_IB_HCA is" in done.stdout
    shown = hpcrun("show", "study/0", **settings)
    assert f"{choices[0]}; 9 warnings: hpcrun why has them" in shown.stdout
    found = json.loads(hpcrun("show", "study/0", "--json", **settings).stdout)
    assert found["fabric"] == details
    found = json.loads(hpcrun("why", "study/0", "--json", **settings).stdout)
    assert found[0]["attempts"][0]["fabric"].items() >= details.items()


@pytest.mark.parametrize(
    ("action", "nodes", "told"),
    [
        ("go_on", [], "node n2: its clock is 60 s ahead; it went on: that is only warned of."),
        ("replace", ["n2"], "a spare takes its place."),
    ],
)
def test_the_check_of_the_nodes(
    study: Experiment, tmp_path: Path, action: str, nodes: list[str], told: str
) -> None:
    finding = {"node": "n2", "kind": "clock", "message": "its clock is 60 s ahead"}
    reason = "that is only warned of" if action == "go_on" else "a spare takes its place"
    details = {"action": action, "reason": reason, "nodes": nodes, "findings": [finding]}
    study.submit((0,))
    study.start(0, 1)
    ledger.write(study.run(0), ledger.HEALTH, 1, **details, count=1)
    cause = {"kind": "bad_node", "message": "node n2: bad", "nodes": ["n2"], "response": action}
    end(study, cause=cause, decided=STOP)
    settings: dict[str, Any] = {"root": tmp_path / "root", "env": {"PATH": "/nonexistent"}}
    why = hpcrun("why", "study/0", **settings).stdout
    assert f"  The check of its nodes: {told}\n" in why
    assert "The check at its start found n2 bad: tell those who run the site." in why
    found = json.loads(hpcrun("why", "study/0", "--json", **settings).stdout)
    assert found[0]["attempts"][0]["health"].items() >= details.items()
    shown = hpcrun("show", "study/0", **settings).stdout
    assert f"1 finding: {reason}; hpcrun why has them" in shown
    found = json.loads(hpcrun("show", "study/0", "--json", **settings).stdout)
    assert found["health"] == {**details, "count": 1}


def test_a_refused_node_is_advised_on(study: Experiment, tmp_path: Path) -> None:
    cause = {"kind": "bad_node", "message": "bad", "nodes": ["n2"], "response": "refuse"}
    study.submit((0,))
    study.start(0, 1)
    end(study, cause=cause, decided=STOP)
    why = hpcrun("why", "study/0", root=tmp_path / "root", env={"PATH": "/nonexistent"}).stdout
    assert "refuses such nodes: submit it again with resources.exclude=n2" in why


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (["n2"], "Shared storage could not be used on n2, while other nodes of the job could"),
        ([], "Shared storage could not be used. "),
    ],
)
def test_storage_that_is_not_seen_is_advised_on(
    study: Experiment, tmp_path: Path, nodes: list[str], told: str
) -> None:
    cause = {"kind": "storage", "message": "gone", **({"nodes": nodes} if nodes else {})}
    study.submit((0,))
    study.start(0, 1)
    end(study, cause=cause, decided=STOP)
    why = hpcrun("why", "study/0", root=tmp_path / "root", env={"PATH": "/nonexistent"}).stdout
    assert told in why


def test_a_progress_bar_in_an_older_ledger_is_one_line(study: Experiment, tmp_path: Path) -> None:
    bars = [f" {n}%|██    | {n}/100 [00:01<00:07, 11.5it/s]" for n in range(18)]
    cause = {**CRASH, "log_tail": ["ValueError: batch 17 is bad", *bars]}
    study.submit((0,))
    study.start(0, 1)
    end(study, cause=cause, decided=STOP)
    done = hpcrun("why", "study/0", root=tmp_path / "root", env={"PATH": "/nonexistent"})
    assert [line for line in done.stdout.splitlines() if line.startswith("  | ")] == [
        "  | ValueError: batch 17 is bad",
        f"  | {bars[-1]}  (the last of 18 updates)",
    ]


def test_json(study: Experiment, tmp_path: Path) -> None:
    _sweep(study)
    event(study, "save_failed", 0, step=8, message="No space left on device")
    done = hpcrun("why", "study", "--json", root=tmp_path / "root", env={"PATH": "/nonexistent"})
    found = json.loads(done.stdout)
    assert [run["run"] for run in found] == list(range(6))
    first, last = found[0], found[5]
    assert set(first) >= {"experiment", "run", "state", "attempts", "advice"}
    assert (first["experiment"], first["state"]) == ("study", "failed")
    (attempt,) = first["attempts"]
    assert (attempt["started"], attempt["ended"]) == (T0 + 60, T0 + 100)
    assert (attempt["restored_step"], attempt["reached_step"], attempt["checkpoint_step"]) == (
        0, 9, 0,
    )  # fmt: skip
    assert attempt["cause"]["log_tail"] == CRASH["log_tail"]
    assert attempt["decided"]["action"] == "stop"
    assert attempt["stopping"] is None
    assert [one["step"] for one in attempt["events"]] == [8]
    assert "program's own" in first["advice"]
    assert last["advice"] is None
    assert [one["outcome"] for one in last["attempts"]] == ["failed", "completed"]


def test_an_attempt_that_resumed_and_showed_no_step(study: Experiment) -> None:
    """HelloDeepSpeed refused its arguments with exit code 0: a run at step 40 of 120 was done."""
    study.submit((0,))
    study.start(0, 1)
    end(study, came=(None, 40, 20), cause={"kind": "preempted", "message": "preempted"})
    study.start(0, 2)
    end(study, attempt=2, outcome="completed", came=(None, None, None), when=T0 + 200)
    run = one(study, "COMPLETED")
    (sentence,) = [line for line in lines(run, 2) if "no step" in line]
    assert sentence.startswith("It showed no step, though step 40 had been reached before")
    assert "`hpcrun logs study/0 --attempt 2`" in sentence
    assert not [line for line in lines(run) if "no step" in line]


@pytest.mark.parametrize(("kind", "is_told"), [("script", True), ("function", False)])
def test_of_a_program_whose_steps_are_not_read_nobody_knows_whether_it_went_on(
    study: Experiment, kind: str, is_told: bool
) -> None:
    study.submit((0,), entry=Entry(kind, file="train.py"))
    for number, outcome in ((1, "failed"), (2, "completed")):
        study.start(0, number)
        end(study, attempt=number, outcome=outcome, came=(None, None, None))
    run = one(study, "COMPLETED")
    told = "It began over, or went on from what it finds by itself: which of the two is not known"
    assert [told in " ".join(lines(run, number)) for number in (1, 2)] == [False, is_told]


@pytest.mark.parametrize(("starting", "useful"), [(10.0, 51.0), (30.0, 40.0)])
def test_what_took_long_to_start_may_take_long_to_leave(
    study: Experiment, starting: float, useful: float
) -> None:
    study.submit((0,))
    begun = T0 + 100
    paths = study.start(when=begun - starting - 1)
    paths.metrics.write_text(
        "".join(json.dumps({"step": n, "time": begun + n}) + "\n" for n in range(1, 41))
    )
    event(study, "seen", time=begun + 40)
    event(study, "finished", time=begun + 51)
    end(study, outcome="completed", came=(None, 40, None), when=begun + 52)
    found = one(study, "COMPLETED").goodput(begun + 60)
    assert found is not None
    assert found.useful == useful


def test_ranks_that_mpi_took_for_the_only_one(study: Experiment) -> None:
    study.submit((0,), entry=Entry("script", file="train.py", framework="mpi"))
    study.start(0, 1)
    end(study, 0, outcome="completed", came=(None, None, None))
    ledger.write(study.run(0), ledger.NEVER_MET, 1, world_size=4)
    (sentence,) = [line for line in lines(one(study, "COMPLETED")) if "never met" in line]
    assert "their MPI does not know what srun prepared" in sentence
    assert "resources.mpi" in sentence


@pytest.mark.parametrize(
    ("more", "says"), [({}, False), ({"loads": 0.04}, False), ({"loads": 0.92}, True)]
)
def test_a_rank_that_holds_up_the_others_is_named_and_its_loader(
    study: Experiment, more: dict[str, float], says: bool
) -> None:
    found = {"rank": 3, "node": "n2", "waits": 0.01, "others_wait": 0.9, **more}
    study.submit((0,))
    study.start(0, 1)
    ledger.write(study.run(0), ledger.STRAGGLER, 1, **found)
    said = "\n".join(lines(one(study, "RUNNING")))
    assert "Rank 3 on n2 held up the others: each of them waited for 90% of the time" in said
    assert ("It waited for its data for 92%: more num_workers" in said) is says


def test_a_run_whose_ranks_never_met(study: Experiment) -> None:
    study.submit((0, 1))
    for run in (0, 1):
        study.start(run, 1)
        end(study, run, outcome="completed", came=(None, None, None))
    ledger.write(study.run(1), ledger.NEVER_MET, 1, world_size=4)
    fine, alone = told(study, "COMPLETED")
    assert narrative.headline(fine) == "study/0: completed in 1 attempt"
    assert narrative.headline(alone) == (
        "study/1: completed in 1 attempt; its 4 ranks never met: each worked alone"
    )
    (sentence,) = [line for line in lines(alone) if "never met" in line]
    assert "'framework: accelerate'" in sentence
    assert "'framework: none' says that this is meant" in sentence
    assert not [line for line in lines(fine) if "never met" in line]


def test_of_several_runs_those_whose_ranks_never_met_are_apart(
    study: Experiment, tmp_path: Path
) -> None:
    study.submit((0, 1, 2))
    for run in (0, 1, 2):
        study.start(run, 1)
        end(study, run, outcome="completed")
    ledger.write(study.run(1), ledger.NEVER_MET, 1, world_size=4)
    said = hpcrun("why", "study", root=tmp_path / "root", env={"PATH": "/nonexistent"}).stdout
    assert "2 runs completed: study/0,2" in said
    assert "1 run completed, but its 4 ranks never met: each worked alone: study/1" in said


def test_attempts_that_count_something_else_are_not_compared(study: Experiment) -> None:
    """190 steps were lost of a run of 8."""
    study.submit((0,))
    study.start(0, 1)
    end(study, came=(None, 192, 128), cause=CRASH, decided=REQUEUE, unit="bar of 64")
    study.start(0, 2, when=T0 + 112)
    end(
        study,
        attempt=2,
        came=(None, 2, None),
        cause=CRASH,
        when=T0 + 200,
        unit="epochs",
        first_step=1,
    )
    run = one(study)
    first, second = run.attempts
    assert (first.reached, first.kept, first.lost, first.other_unit) == (
        None,
        None,
        None,
        "bar of 64",
    )
    assert (second.reached, second.replayed) == (2, 0)
    told = " ".join(lines(run))
    assert "192" not in told
    assert (
        "Its steps (bar of 64) are not those that later attempts count, and are left out." in told
    )
