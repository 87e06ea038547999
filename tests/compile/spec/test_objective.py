"""Less or more: known by the metric's name, and said, or asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError

SPEC = "cluster: slurm\nentry: train.py\nobjective: "
PYTHON = "environment.python=/opt/bin/python"


def mode_of(project: Any, objective: str) -> Any:
    project.write("train.py", "")
    (run,) = compile_spec(project.write("spec.yaml", SPEC + objective), [PYTHON]).runs
    return run.spec["objective"]["mode"]


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        *(("loss", "min"), ("eval/loss", "min"), ("val_loss", "min"), ("eval_perplexity", "min")),
        *(("accuracy", "max"), ("val/acc", "max"), ("eval_f1", "max"), ("test.top1", "max")),
        *(("episode_reward_mean", "max"), ("mAP", "max"), ("top5-error", None), ("zeta", None)),
        *(("acc_loss", None), ("placebo", None), ("WER", "min"), ("epoch", None)),
    ],
)
def test_what_is_better_follows_from_the_name_or_is_asked_for(
    project: Any, metric: str, mode: str | None
) -> None:
    if mode is not None:
        assert mode_of(project, f"{{metric: {metric}}}") == mode
        return
    with pytest.raises(SpecError, match=r"objective\.mode: is not given, and .* 'min' and 'max'"):
        mode_of(project, f"{{metric: {metric}}}")


def test_what_is_given_counts(project: Any) -> None:
    assert mode_of(project, "{metric: accuracy, mode: min}") == "min"
    assert mode_of(project, "{metric: zeta, mode: max}") == "max"


def test_plan_says_what_was_taken(project: Any, hpcrun: Callable[..., Any]) -> None:
    project.write("train.py", "")
    project.write("spec.yaml", SPEC + "{metric: val/accuracy}")
    answer = hpcrun("plan", "spec.yaml", PYTHON)
    assert "objective.mode: max: more of 'val/accuracy' is better" in answer.err
    assert hpcrun("plan", "spec.yaml", PYTHON, "objective.mode=max").err == ""
