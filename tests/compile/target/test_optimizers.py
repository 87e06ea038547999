"""Optimizers by name x ZeRO stage x offload x device: what is refused, and what to use."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.compile.target.optimizers import OWN, TORCH, TORCH_ADAM
from hpcrun.errors import SpecError

BASE = "cluster: local\nresources: {ntasks_per_node: 2%s}\nentry: %s\n"
UNTESTED = "zero_allow_untested_optimizer: true, "
OFFLOAD = ", offload_optimizer: {device: cpu}"
LIBRARY = "pytorch_optimizer.Lion"


def _compiled(
    project: Any, name: str, *, params: str = "lr: 1.0", zero: str = "stage: 0", more: str = "",
    gpus: int = 0, entry: str = "train.py:main",
) -> tuple[str, ...]:  # fmt: skip
    resources = f", gpus_per_node: {gpus}" if gpus else ""
    if gpus:
        resources = resources.replace(",", "", 1)
    base = BASE % (resources, entry)
    if gpus:
        base = base.replace("ntasks_per_node: 2", "")
    text = (
        f"{base}deepspeed: {{train_batch_size: 8, {more}zero_optimization: {{{zero}}}, "
        f"optimizer: {{type: {name}, params: {{{params}}}}}}}\n"
    )
    return compile_spec(project.write("spec.yaml", text)).notes


ACCEPTED = [
    ("SGD", "stage: 0", ""),
    ("SGD", "stage: 3" + OFFLOAD, UNTESTED),
    ("AdamW", "stage: 3", ""),
    ("adam", "stage: 2" + OFFLOAD, ""),
    ("Adafactor", "stage: 0", ""),
    ("Muon", "stage: 2", ""),
    ("Muon", "stage: 3, reduce_scatter: false", ""),
    ("Lion", "stage: 1" + OFFLOAD, ""),
    (LIBRARY, "stage: 0", ""),
    (LIBRARY, "stage: 2", UNTESTED),
    (LIBRARY, "stage: 2" + OFFLOAD, UNTESTED + "zero_force_ds_cpu_optimizer: false, "),
    ("pytorch_optimizer.Lamb", "stage: 0", ""),
]


@pytest.mark.parametrize(("name", "zero", "more"), ACCEPTED)
def test_what_runs_on_processors_is_accepted(project: Any, name: str, zero: str, more: str) -> None:
    _compiled(project, name, zero=zero, more=more)


REFUSED = [
    ("SGD", "stage: 1", "", "set deepspeed.zero_allow_untested_optimizer to true"),
    ("Adafactor", "stage: 1", UNTESTED, "flat pieces of them"),
    ("pytorch_optimizer.Lamb", "stage: 2", UNTESTED, "flat pieces of them"),
    ("Muon", "stage: 3", "", "reduce_scatter to false"),
    ("Lion", "stage: 0", "", "pytorch_optimizer.Lion"),
    ("Lion", "stage: 2", "", "offload_optimizer.device to cpu"),
    ("Lamb", "stage: 0", "", "pytorch_optimizer.Lamb"),
    (LIBRARY, "stage: 2", "", "zero_allow_untested_optimizer"),
    (LIBRARY, "stage: 2" + OFFLOAD, UNTESTED, "zero_force_ds_cpu_optimizer to false"),
    ("OneBitAdam", "stage: 0", "", "use AdamW"),
    ("OneBitLamb", "stage: 0", "", "use Lamb"),
    ("ZeroOneAdam", "stage: 0", "", "use AdamW"),
    ("LBFGS", "stage: 0", "", "closure"),
    ("sgd", "stage: 0", "", "did you mean 'SGD'"),
    ("AdamV", "stage: 0", "", "did you mean 'Adam"),
    ("nothing", "stage: 0", "", "neither DeepSpeed 0.19.8 nor torch.optim"),
    ("[Adam]", "stage: 0", "", "accepted is a name"),
]


@pytest.mark.parametrize(("name", "zero", "more", "found"), REFUSED)
def test_what_does_not_run_is_refused(
    project: Any, name: str, zero: str, more: str, found: str
) -> None:
    with pytest.raises(SpecError) as caught:
        _compiled(project, name, zero=zero, more=more)
    assert found in str(caught.value)
    assert "deepspeed.optimizer.type" in str(caught.value)


def test_lion_and_lamb_have_operators_on_gpus(project: Any) -> None:
    _compiled(project, "Lion", zero="stage: 2", gpus=1)
    _compiled(project, "Lamb", gpus=1)


@pytest.mark.parametrize(
    ("name", "params", "found"),
    [
        ("SGD", "lr: 1.0, betas: [0.9, 0.95]", "SGD does not take 'betas'"),
        ("AdamW", "lr: 1.0, beta: [0.9, 0.95]", "did you mean 'betas'"),
        ("AdamW", "lr: 1.0, max_grad_norm: 2.0", "deepspeed.gradient_clipping: 2.0"),
        ("AdamW", "lr: 1.0, amsgrad: true", "torch_adam to true"),
        ("Muon", "lr: 1.0, nesterov: true", "Muon does not take 'nesterov'"),
    ],
)
def test_parameters_that_it_does_not_take(project: Any, name: str, params: str, found: str) -> None:
    with pytest.raises(SpecError, match=r"deepspeed\.optimizer\.params") as caught:
        _compiled(project, name, params=params)
    assert found in str(caught.value)


def test_a_script_is_told(project: Any) -> None:
    notes = _compiled(project, "SGD", params="lr: 1.0, betas: 1", entry="train.py")
    assert any("SGD does not take 'betas'" in one for one in notes)
    notes = _compiled(project, LIBRARY, entry="train.py")
    assert any("made by session.initialize" in one for one in notes)
    notes = _compiled(project, "Xyzzy", entry="train.py")
    assert any("has an optimizer 'Xyzzy'" in one for one in notes)


def test_the_table_is_that_of_torch() -> None:
    optim = importlib.import_module("torch").optim
    shown = {**TORCH, "AdamW": TORCH_ADAM}
    for name, accepted in shown.items():
        taken = set(inspect.signature(getattr(optim, name).__init__).parameters)
        own = {"torch_adam", "adam_w_mode", "fp32_optimizer_states"}
        assert set(accepted) - own == taken - {"self", "params"}, name


def test_the_table_has_what_deepspeed_s_classes_take() -> None:
    for module, name, own in (
        ("adam.fused_adam", "FusedAdam", "adam"),
        ("lamb.fused_lamb", "FusedLamb", "lamb"),
        ("lion.fused_lion", "FusedLion", "lion"),
    ):
        kind = getattr(importlib.import_module(f"deepspeed.ops.{module}"), name)
        taken = set(inspect.signature(kind.__init__).parameters) - {"self", "params"}
        assert taken - {"max_grad_norm"} <= OWN[own], name
