"""The ``optimization`` block: rates scaled with the batch, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError

BASE = "cluster: local\nresources: {ntasks_per_node: 2}\nconfig: {total_steps: 100}\n"
ADAM = "optimizer: {type: AdamW, params: {lr: 1.0e-4}}"
DEEPSPEED = f"deepspeed: {{train_batch_size: 1024, {ADAM}}}\n"
FUNCTION = "entry: train.py:main\n"
TOTAL = "total_steps: '${config.total_steps}'"


def _compiled(project: Any, block: str, more: str = FUNCTION + DEEPSPEED, *sweeps: str) -> Any:
    text = f"{BASE}{more}optimization: {{{block}}}\n"
    return compile_spec(project.write("spec.yaml", text), sweeps=sweeps)


@pytest.mark.parametrize(
    ("scale", "rate", "told"),
    [("linear", 4e-4, "0.0004 = 0.0001 x 1024/256"), ("sqrt", 2e-4, "x sqrt(1024/256)")],
)
def test_the_rate_is_scaled_with_the_batch(
    project: Any, scale: str, rate: float, told: str
) -> None:
    found = _compiled(project, f"scale_lr: {scale}, reference_batch: 256")
    assert found.runs[0].spec["deepspeed"]["optimizer"]["params"]["lr"] == pytest.approx(rate)
    assert any(told in one for one in found.notes)


def test_rates_of_the_scheduler_follow(project: Any) -> None:
    schedule = "scheduler: {type: WarmupLR, params: {warmup_max_lr: 1.0e-4, warmup_num_steps: 3}}"
    more = FUNCTION + DEEPSPEED.replace(ADAM, f"{ADAM}, {schedule}")
    found = _compiled(project, "scale_lr: linear, reference_batch: 256", more)
    params = found.runs[0].spec["deepspeed"]["scheduler"]["params"]
    assert params == {"warmup_max_lr": pytest.approx(4e-4), "warmup_num_steps": 3}
    assert any("so are deepspeed.scheduler.params.warmup_max_lr" in one for one in found.notes)


def test_its_keys_are_swept_and_make_other_runs(project: Any) -> None:
    found = _compiled(project, f"decay: linear, {TOTAL}", FUNCTION + DEEPSPEED,
                      "optimization.decay=linear,cosine", "optimization.warmup=0,10")  # fmt: skip
    assert len({run.identity for run in found.runs}) == 4
    assert found.runs[0].spec["optimization"]["total_steps"] == 100


def test_without_it_a_run_is_the_one_that_it_was(project: Any) -> None:
    plain = compile_spec(project.write("spec.yaml", BASE + FUNCTION + DEEPSPEED))
    assert plain.runs[0].identity == _compiled(project, "").runs[0].identity


SCHEDULER = FUNCTION + DEEPSPEED.replace(
    ADAM, ADAM + ", scheduler: {type: WarmupDecayLR, params: {total_num_steps: 5}}"
)
WRONG = [
    ("decay: cosine", "", "optimization.decay", "total_steps: ${config.total_steps}"),
    ("warmup: 0.1", "", "optimization.warmup", "needs optimization.total_steps"),
    ("warmup: 2.5", "", "optimization.warmup", "whole number of steps"),
    (f"warmup: 200, {TOTAL}", "", "optimization.warmup", "found 200, and total_steps 100"),
    ("end: 0.1", "", "optimization.end", "use linear or cosine"),
    (f"decay: cosine, {TOTAL}, end: 2", "", "optimization.end", "from 0 to 1"),
    ("decay: step", "", "optimization.milestones", "go together"),
    ("decay: step, milestones: [9, 5]", "", "optimization.milestones", "ascending"),
    ("decay: constant", SCHEDULER, "optimization.decay", "deepspeed.scheduler to null"),
    ("scale_lr: linear", "", "optimization.reference_batch", "go together"),
    ("scale_lr: linear, reference_batch: 0", "", "optimization.reference_batch", "found 0"),
    ("scale_lr: sqrt, reference_batch: 8", FUNCTION, "optimization.scale_lr", "needs a number"),
    ("layer_decay: 1.5", "", "optimization.layer_decay", "above 0, up to 1"),
    ("layer_decay: 0.8", FUNCTION, "optimization.layer_decay", "optimizer.params.lr"),
    ("layer_decay: 0.8", SCHEDULER, "optimization.layer_decay", "gives all layers one rate"),
    ("warmup: 3", "entry: train.py\nframework: huggingface\n" + DEEPSPEED,
     "optimization.warmup", "huggingface makes its own"),
    ("ema: 1.5", "", "optimization.ema", "between 0 and 1"),
    ("ema_every: 2", "", "optimization.ema_every", "does nothing without"),
    ("ema: 0.9, ema_every: 0", "", "optimization.ema_every", "found 0"),
    ("ema: 0.9", FUNCTION + DEEPSPEED.replace(ADAM, ADAM + ", zero_optimization: {stage: 3}"),
     "optimization.ema", "with ZeRO 3 no rank has them"),
    ("ema: 0.9", FUNCTION + "resources: {ntasks_per_node: 2}\nparallel: {tensor: 2}\n" + DEEPSPEED,
     "optimization.ema", "parallel.tensor divides the model"),
    ("compile: true", "entry: train.py\nframework: huggingface\n" + DEEPSPEED,
     "optimization.compile", "huggingface makes its own"),
    ("compile: true", FUNCTION + "parallel: {tensor: 2}\n" + DEEPSPEED,
     "parallel.tensor", "which nobody has tried with optimization.compile"),
    ("decay: line", "", "optimization.decay", "did you mean 'linear'"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "more", "key", "found"), WRONG)
def test_what_is_wrong_is_refused(
    project: Any, block: str, more: str, key: str, found: str
) -> None:
    with pytest.raises(SpecError) as caught:
        _compiled(project, block, more or FUNCTION + DEEPSPEED)
    assert key in str(caught.value)
    assert found in str(caught.value)


def test_a_script_is_told_that_it_has_to_ask_the_session(project: Any) -> None:
    notes = _compiled(project, "warmup: 3", "entry: train.py\n" + DEEPSPEED).notes
    assert any("optimization.warmup is made by session.initialize" in one for one in notes)
    notes = _compiled(project, "ema: 0.9", "entry: train.py\n" + DEEPSPEED).notes
    assert any("optimization.ema is made by session.restore" in one for one in notes)
    zero = DEEPSPEED.replace(ADAM, ADAM + ", zero_optimization: {stage: 3}")
    notes = _compiled(project, "compile: true", "entry: train.py\n" + zero).notes
    assert any("with ZeRO stage 3 is for session.fully_shard(…) alone" in one for one in notes)
    assert any("optimization.compile is made by session.initialize" in one for one in notes)
