"""What a rank's device computes in; stand-ins for GPUs and for the libraries of fp8."""

from __future__ import annotations

import sys
import types
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hpcrun.errors import UsageError
from hpcrun.policy import permanent_errors
from hpcrun.run.rank import device_precision
from hpcrun.run.rank.rank_environment import environment
from tests.support.place import launch_of

V100, A100, H100 = (7, 0), (8, 0), (9, 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(capability: tuple[int, int]) -> torch.device:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla Example")
        return torch.device("cuda", 0)

    return of


@pytest.mark.parametrize(
    ("capability", "precision", "config", "found"),
    [
        (V100, "bf16", {}, "precision asks for bf16"),
        (V100, "auto", {"bf16": {"enabled": True}}, "deepspeed.bf16.enabled asks for bf16"),
        (V100, "auto", {"torch_autocast": {"enabled": True}}, "torch_autocast.enabled asks for"),
        (V100, "auto", {"torch_autocast": {"enabled": True, "dtype": "float16"}}, None),
        (V100, "auto", {"bf16": {"enabled": False}}, None),
        (V100, "fp16", {"fp16": {"enabled": True}}, None),
        (V100, "tf32", {}, "precision asks for tf32"),
        (A100, "tf32", {"bf16": {"enabled": True}}, None),
        (A100, "fp8", {}, "has to be 8.9 or more"),
        (H100, "fp8", "a file", None),
    ],
)
def test_a_gpu_without_the_units_is_refused_at_start(
    gpu: Any, capability: tuple[int, int], precision: str, config: Any, found: str | None
) -> None:
    spec, device = {"precision": precision}, gpu(capability)
    if found is None:
        assert device_precision.check(spec, config, device) is None  # type: ignore[func-returns-value]
        return
    with pytest.raises(UsageError) as caught:
        device_precision.check(spec, config, device)
    assert found in str(caught.value)
    assert "Tesla Example" in str(caught.value)
    failure = {"exit_code": 1, "exception": "UsageError", "message": str(caught.value)}
    assert permanent_errors.find(failure, []) is not None


def test_a_processor_has_bf16() -> None:
    device_precision.check({"precision": "bf16"}, {}, torch.device("cpu"))


@pytest.mark.parametrize(
    ("precision", "gpus", "expected"),
    [
        ("fp32", 1, {"NVIDIA_TF32_OVERRIDE": "0"}),
        ("tf32", 1, {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}),
        ("fp32", 0, {}),
        ("auto", 1, {}),
    ],
)
def test_tf32_is_a_variable_of_the_ranks(
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    gpus: int,
    expected: dict[str, str],
) -> None:
    names = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    launch = launch_of(tmp_path, precision=precision, resources={"gpus_per_node": gpus})
    found = environment(launch, 0)
    assert {name: found[name] for name in names if name in found} == expected


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        made = types.ModuleType(".".join(parts[:length]))
        made.__path__ = []
        monkeypatch.setitem(sys.modules, made.__name__, made)
    vars(made).update(contents)


def test_torchao_converts_the_layers_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.Linear(48, 10))
    converted = []

    def convert(module: torch.nn.Module, module_filter_fn: Any) -> None:
        converted.extend(
            name for name, one in module.named_children() if module_filter_fn(one, name)
        )

    _module(monkeypatch, "torchao.float8", convert_to_float8_training=convert)
    assert device_precision.in_fp8(model, {"precision": "fp8"}) is model
    assert converted == ["0"]


def test_layers_of_transformer_engine_run_in_its_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = []

    @contextmanager
    def autocast(enabled: bool) -> Any:
        inside.append(enabled)
        yield

    monkeypatch.setitem(sys.modules, "torchao", None)
    _module(monkeypatch, "transformer_engine.pytorch", autocast=autocast)
    plain = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="no layer of Transformer Engine"):
        device_precision.in_fp8(plain, {"precision": "fp8"})
    own = type("Linear", (torch.nn.Linear,), {"__module__": "transformer_engine.pytorch"})
    model = torch.nn.Sequential(own(2, 2))
    assert device_precision.in_fp8(model, {"precision": "fp8"})(torch.ones(1, 2)).shape == (1, 2)
    assert inside == [True]


def test_fp8_without_a_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchao", "transformer_engine"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="torchao is not installed"):
        device_precision.in_fp8(torch.nn.Linear(2, 2), {"precision": "fp8"})
    assert device_precision.in_fp8("as it is", {}) == "as it is"
