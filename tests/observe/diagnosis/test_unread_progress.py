"""The pattern that is proposed for the steps that a program prints, and where it is said."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest

from hpcrun.observe.diagnosis import narrative
from hpcrun.observe.diagnosis.attempts import stories
from hpcrun.observe.diagnosis.unread_progress import further, proposed, unmatched, unread_notes
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.observe.status.jobs import Answers
from hpcrun.observe.status.status import RunStatus, statuses
from hpcrun.run.program.progress_source import Look
from hpcrun.run.program.sources.log_lines import LogPattern
from hpcrun.slurm.queue import JobState
from hpcrun.state import files
from tests.support.experiment import T0, Experiment

# Lines of n = 1, 2, 3 (m begins anew) -> what the proposed pattern reads in those of 2; None: no
# proposal.
FORMS: dict[str, tuple[str, dict[str, str] | None]] = {
    "a plain loop": (
        "step {n}/5 loss 0.{n}",
        {"step": "2", "total": "5", "loss": "0.2"},
    ),
    "a logger": (
        "[2026-11-24 10:00:0{n},123] INFO train: Step {n} of 300, loss=1e-0{n}, lr: 0.1",
        {"step": "2", "total": "300", "loss": "1e-02", "lr": "0.1"},
    ),
    "nanoGPT": (
        "iter {n}: loss 2.30{n}, time 12.00ms, mfu 1.0%",
        {"step": "2", "loss": "2.302", "mfu": "1.0"},
    ),
    "epochs alone": ("epoch {n} val_loss: 0.{n}", {"epoch": "2", "val_loss": "0.2"}),
    "epochs and their number": (
        "Epoch {n}/10 loss 0.{n}23 acc 0.9",
        {"epoch": "2", "total": "10", "loss": "0.223", "acc": "0.9"},
    ),
    "epochs in a table": (
        "10:00:0{n} | epoch: {n} | train_loss=0.{n} | valid_acc=91.{n}%",
        {"epoch": "2", "train_loss": "0.2", "valid_acc": "91.2"},
    ),
    "epochs from 0, behind what a bar left": (
        "100%|##########| 10/10 [00:01<00:00, 9.00it/s]Epoch [{z}/3] Loss: 0.{n}",
        {"epoch": "1", "total": "3", "Loss": "0.2"},
    ),
    "a number alone": (
        "[{n}/10] loss: 0.{n}, accuracy: 0.9",
        {"step": "2", "total": "10", "loss": "0.2", "accuracy": "0.9"},
    ),
    "a number alone, from 0": (
        "({z}/3) loss: 0.{n}",
        {"epoch": "1", "total": "3", "loss": "0.2"},
    ),
    "a build": ("[{n}/10] Building CXX object x.cpp.o", None),
    "parts of epochs": ("{{'loss': 0.{n}, 'epoch': 0.{n}}}", {"one_step": "loss", "loss": "0.2"}),
    "parts of epochs, as text": (
        "{{'loss': '0.{n}', 'grad_norm': '1.5', 'epoch': '0.{n}'}}",
        {"one_step": "loss", "loss": "0.2"},
    ),
    "JSON lines": (
        '{{"time": 17.5, "step": {n}, "loss": 0.{n}, "lr": 1e-05}}',
        {"step": "2", "loss": "0.2", "lr": "1e-05"},
    ),
    "JSON lines whose step is last": (
        'INFO: {{"train_loss": 0.{n}, "epoch": {n}}}',
        {"train_loss": "0.2", "epoch": "2"},
    ),
    "a name that is hpcrun's own": ("step {n} time 0.5 acc 0.9", {"step": "2", "acc": "0.9"}),
    "steps that begin anew": (
        "Epoch [{e}/2], Step [{m}/2], Loss: 0.{n}",
        {"epoch": "1", "epochs": "2", "step": "2", "epoch_total": "2", "Loss": "0.2"},
    ),
    "steps of an epoch, no other is known": (
        "Epoch [1/2], Step [{n}/9], Loss: 0.{n}",
        {"epoch": "1", "epochs": "2", "step": "2", "total": "9", "Loss": "0.2"},
    ),
    "a table of epochs and batches": (
        "| epoch {e:3d} | {m:5d}/    2 batches | lr 20.00 | ms/batch 12.77 | loss  7.{n} | ppl  9",
        {
            **{"epoch": "1", "step": "2", "epoch_total": "2"},
            **{"lr": "20.00", "batch": "12.77", "loss": "7.2", "ppl": "9"},
        },
    ),
    "batches alone": (
        "{n}/10 batches, loss: 0.{n}",
        {"step": "2", "total": "10", "loss": "0.2"},
    ),
    "samples of an epoch, PyTorch's MNIST": (
        "Train Epoch: {e} [{m}/2 ({m}0%)]\tLoss: 0.{n}",
        {"epoch": "1", "step": "2", "epoch_total": "2", "Loss": "0.2"},
    ),
    "PyTorch's imagenet": (
        "Epoch: [{e}][   {m}/   2]\tLoss 0.{n} (0.5)",
        {"epoch": "1", "step": "2", "epoch_total": "2", "Loss": "0.2"},
    ),
    "batches in brackets": (
        "[Epoch {e}/2] [Batch {m}/2] [loss: 0.{n}]",
        {"epoch": "1", "epochs": "2", "step": "2", "epoch_total": "2", "loss": "0.2"},
    ),
    "Megatron": (
        " iteration        {n}/     300 | lm loss: {n}.0E+00 | grad norm: 1.2 |",
        {"step": "2", "total": "300", "loss": "2.0E+00", "norm": "1.2"},
    ),
    "Rich, which names the line of the source": (
        "[10:00:0{n}] step={n} loss=0.{n}                train.py:11",
        {"step": "2", "loss": "0.2"},
    ),
    "what was measured, before the name": (
        "Epoch {n} | Train Loss: 0.{n} | Val. Acc: 9{n}.5%",
        {"epoch": "2", "Train_Loss": "0.2", "Val_Acc": "92.5"},
    ),
    "thousands": (
        "step {n},000/9,000,000 loss 1,{n}34.5, tokens: 64,000",
        {"step": "2,000", "total": "9,000,000", "loss": "1,234.5", "tokens": "64,000"},
    ),
    "a comma before decimals": ("step {n}/9 loss 0,{n}25 lr 1,0000", {"step": "2", "total": "9"}),
    "times and sizes, no metrics": (
        "step {n}/9 eta: 0:12:3{n} mem 1024 MB loss 0.{n} took 12 s left: 3 min",
        {"step": "2", "total": "9", "loss": "0.2"},
    ),
    "what never changes before what does": (
        "step {n} world 8 batch 32 seed 1 heads 4 lr 0.1 loss 0.{n} acc 0.{n}5",
        {"step": "2", "world": "8", "batch": "32", "loss": "0.2", "acc": "0.25"},
    ),
    "files, no steps": ("reads {n}/10 batches", None),
    "steps of all epochs": (
        "Epoch {e} step {n}/4 loss 0.{n}",
        {"step": "2", "total": "4", "loss": "0.2"},
    ),
    "one step again and again": ("waiting at step 7 for 0.{n}", None),
    "prose": ("the next step is number {n}", None),
    "a version": ("uses step 1.{n}", None),
}


def _lines(form: str) -> list[str]:
    return [form.format(n=n, z=n - 1, m=(n - 1) % 2 + 1, e=(n + 1) // 2) for n in (1, 2, 3)]


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_unmistakable_is_proposed(name: str) -> None:
    form, expected = FORMS[name]
    lines = _lines(form)
    bars = [f"Epoch {n}:  50%|#####     | {n}/10 [00:01<00:01, 9.00it/s]" for n in range(9)]
    pattern = proposed(["reading data", *bars, *lines, "done"])
    if expected is None:
        assert pattern is None
        return
    assert pattern is not None
    assert "'" not in pattern
    found = re.search(pattern, lines[1])
    assert found is not None
    assert found.groupdict() == expected
    steps = [line.step for line in LogPattern(pattern).poll(Look(2.0, 1.0, tuple(lines))).lines]
    assert steps == [1000, 2000, 3000] if name == "thousands" else [1, 2, 3]


def test_headers_of_epochs_are_other_lines_than_their_ends() -> None:
    lines = [text for n in (1, 2, 3) for text in (f"Epoch {n}/3", f"Epoch {n}/3: loss=0.{n}")]
    pattern = proposed(lines)
    assert pattern is not None
    assert "loss" in pattern
    assert re.search(pattern, lines[0]) is None


def test_a_pattern_reads_every_line_or_is_not_proposed() -> None:
    lines = ["step 1 loss 0.1", "step 2", "step 3 loss 0.1"]
    assert proposed(lines) is None


def test_a_line_that_says_where_it_resumes_is_none_of_the_steps() -> None:
    lines = ["resumed at step 180", *(f"step={n} loss=0.1" for n in (200, 220, 240))]
    assert proposed(lines) == r"step=(?P<step>\d+).*?\bloss=(?P<loss>[-+.\w]+)"


def test_losses_of_training_and_validation_are_not_one_metric() -> None:
    lines = [f"epoch {n} {of} loss 0.{n}" for n in (1, 2, 3) for of in ("train", "val")]
    assert proposed(lines) is None


def test_an_epoch_that_has_only_begun_is_no_step() -> None:
    lines = [f"Epoch[{n}] Batch [{m}-{m + 1}] loss=0.1" for n in range(4) for m in range(5)]
    assert proposed(lines) is None


def test_without_metrics_it_is_of_no_use_beside_a_bar() -> None:
    lines = [f"step {n}/9 is done" for n in range(4)]
    assert proposed(lines) is not None
    assert proposed(lines, metrics=True) is None


def test_a_hostile_log_gives_no_other_text() -> None:
    lines = [f"step {n}/9 loss 0.1 \x1b[2J'; rm -rf / #" for n in range(1, 9)]
    pattern = proposed(lines)
    assert pattern == r"step +(?P<step>\d+)/(?P<total>\d+).*?\bloss +(?P<loss>[-+.\w]+)"


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    return Experiment(tmp_path / "root")


def _printed(study: Experiment, *lines: str, **progress: str) -> tuple[Selected, RunStatus]:
    """A run under way whose rank 0 has printed lines, of which nothing was read."""
    study.submit(spec={"progress": progress})
    study.start().launch.write_text("{}")
    study.log(0, 1, 0, "".join(f"{line}\n" for line in lines))
    selected = Finder(study.paths.directory.parent).runs(study.paths)
    (status,) = statuses(
        selected,
        ask=lambda jobs: Answers(jobs={job.job_id: JobState("", "RUNNING") for job in jobs}),
    )
    return selected[0], status


def test_a_pattern_that_finds_nothing_is_told_with_the_nearest_line(study: Experiment) -> None:
    bar = " 50%|#####     | 5/10 [00:01<00:01, 9.00it/s]"
    epochs = [f"Epoch {n}/3 loss 0.{n}" for n in (1, 2, 3)]
    selected, status = _printed(study, "reads 7 files", *epochs, bar, pattern=r"step (?P<step>\d+)")
    clause = unmatched(selected, 1, well=True)
    assert clause is not None
    assert "no step in 4 lines of rank 0, the nearest of which is 'Epoch 3/3 loss 0.3'" in clause
    assert r"this one would: 'Epoch +(?P<epoch>\d+)" in clause
    assert [*unread_notes([(selected, status)])] == [], "it may still come"


def test_while_it_runs_a_pattern_is_told_after_some_lines(study: Experiment) -> None:
    selected, status = _printed(study, *["epoch 1"] * 60, pattern=r"step (?P<step>\d+)")
    (note,) = unread_notes([(selected, status)])
    assert note.startswith("study/0: progress.pattern has found no step in 60 lines of rank 0, ")
    (story,) = stories([selected], ask=lambda jobs: Answers())
    sentences = narrative.attempt(story.attempts[0], story, T0)
    assert any(one.startswith("Its progress.pattern has found no step in 60") for one in sentences)
    read = {"event": "read_from", "time": T0, "source": "log"}
    files.append(study.run().attempt(1).session, read)
    assert [*unread_notes([(selected, status)])] == []


def test_after_a_time_few_lines_are_enough(study: Experiment) -> None:
    selected, status = _printed(study, "epoch 1", pattern=r"step (?P<step>\d+)")
    began = study.run().attempt(1).rank_log(0).stat().st_mtime - 400
    os.utime(study.run().attempt(1).launch, (began, began))
    assert len([*unread_notes([(selected, status)])]) == 1


def test_metrics_beside_a_bar_are_proposed(study: Experiment) -> None:
    selected, status = _printed(study, *(f"Epoch {n}/3 loss 0.{n}" for n in (1, 2, 3)))
    (note,) = unread_notes([(selected, dataclasses.replace(status, step=30))])
    assert "prints metrics that hpcrun does not read" in note
    assert "(?P<loss>" in note
    known = dataclasses.replace(status, step=30, metrics={"loss": 1.0})
    assert [*unread_notes([(selected, known)])] == []


def test_steps_beyond_those_of_its_files_are_told(study: Experiment) -> None:
    """Its events come with each evaluation, its lines every ten steps."""
    printed = [f"step {n} | loss 2.{n} | step time 6.45ms" for n in range(0, 1490, 10)]
    selected, _ = _printed(study, *printed, "saving")
    read = {"event": "read_from", "time": T0, "source": "tensorboard", "path": "out/events.1"}
    files.append(study.run().attempt(1).session, read)
    (story,) = stories([selected], ask=lambda jobs: Answers())
    told = " ".join(narrative.attempt(story.attempts[0], story, T0))
    assert "Its progress is read from out/events.1 (tensorboard). It prints steps up to " in told
    assert r"1,480: these are read in place of that file with progress: {pattern: 'step" in told
    assert further(selected, 1, 1480) is None
