"""What an engine knows is logged; what it does not know is not made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun import gpu_catalogue
from hpcrun.run.profile import engine_metrics
from hpcrun.run.profile.engine_metrics import EngineMetrics, operations_per_step

torch = pytest.importorskip("torch")


def _view(device: str = "cpu", divided: frozenset[str] = frozenset()) -> Any:
    layout = SimpleNamespace(divided=divided)
    return SimpleNamespace(device=torch.device(device), layout=layout, world_size=4)


class Engine:
    """As much of DeepSpeed's as is read."""

    def __init__(self, norm: Any = None, lr: Any = 0.1, *, scheduled: bool = False) -> None:
        self.module = torch.nn.Linear(9, 10, bias=True)
        self.norm = norm
        self.optimizer = SimpleNamespace(param_groups=[{"lr": lr}])
        self.lr_scheduler = object() if scheduled else None
        self.has_moe_layers = False

    def get_global_grad_norm(self) -> Any:
        return self.norm

    def bfloat16_enabled(self) -> bool:
        return True

    def train_batch_size(self) -> int:
        return 8


def _steps(engine: Any, *rates: float) -> list[Any]:
    measured, found = EngineMetrics({}, _view()), []
    measured.begin(engine)
    for rate in rates:
        engine.optimizer.param_groups[0]["lr"] = rate
        found.append(measured.after_step(engine, 1.0).get("learning_rate"))
    return found


def test_the_norm_is_passed_on_as_it_is() -> None:
    norm = torch.tensor(2.5)
    measured = EngineMetrics({}, _view())
    assert measured.after_step(Engine(norm), 1.0)["gradient_norm"] is norm
    assert "gradient_norm" not in measured.after_step(Engine(), 1.0)
    assert measured.after_step(Engine(0.0), 1.0)["gradient_norm"] == 0.0


def test_the_loss_scale_is_told_where_there_is_one() -> None:
    engine, measured = Engine(), EngineMetrics({}, _view())
    assert measured.after_step(engine, 1.0).keys() == {"learning_rate"}
    # DeepSpeed's optimizer has one of 1 in bf16 and fp32.
    engine.optimizer.loss_scale = 1.0
    assert "loss_scale" not in measured.after_step(engine, 1.0)
    engine.fp16_enabled, engine.skipped_steps = (lambda: True), 3  # type: ignore[attr-defined]
    found = measured.after_step(engine, 1.0)
    assert (found["loss_scale"], found["skipped_steps"]) == (1.0, 3)
    engine.fp16_enabled = lambda: False  # type: ignore[attr-defined]
    scaler = engine.torch_autocast_z0_gradscaler = torch.amp.GradScaler("cpu")  # type: ignore[attr-defined]
    assert "loss_scale" not in measured.after_step(engine, 1.0)
    scaler.scale(torch.ones(()))
    assert measured.after_step(engine, 1.0)["loss_scale"] is scaler._scale
    assert scaler._scale == scaler.get_scale()


def test_the_learning_rate_is_that_of_the_step_and_not_of_the_next() -> None:
    assert _steps(Engine(), 0.2, 0.3) == [0.2, 0.3]
    assert _steps(Engine(scheduled=True), 0.2, 0.3) == [0.1, 0.2]


def test_a_rate_that_a_gpu_holds_is_not_waited_for() -> None:
    engine = Engine(lr=torch.tensor(0.1))
    measured = EngineMetrics({}, _view())
    measured.begin(engine)
    assert measured.after_step(engine, 1.0) == {}
    assert measured.after_step(object(), 1.0) == {}


def test_the_operations_of_a_step_are_the_estimate_s() -> None:
    engine = Engine()
    engine.module.bias.requires_grad_(False)
    told = {"sequence_length": 16, "layers": 2, "hidden_size": 3}
    token = gpu_catalogue.operations_per_token(90, 10, 2 * 3 * 16)
    assert token == 6 * 90 + 4 * 10 + 12 * 96
    assert operations_per_step(engine, told) == token * 16 * 8
    assert operations_per_step(engine, {"layers": 2}) is None
    engine.has_moe_layers = True
    assert operations_per_step(engine, told) is None


def test_mfu_is_of_gpus_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "NVIDIA H200"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    told = {"sequence_length": 1000}
    measured = EngineMetrics(told, _view("cuda"))
    measured.begin(Engine())
    found = measured.after_step(Engine(), 0.5)[engine_metrics.UTILIZATION]
    assert found == pytest.approx(6 * 100 * 8000 / 989.4e12 / 4 / 0.5)
    for view in (_view("cpu"), _view("cuda", frozenset({"tensor"}))):
        measured = EngineMetrics(told, view)
        measured.begin(Engine())
        assert engine_metrics.UTILIZATION not in measured.after_step(Engine(), 0.5)
    name = "A GPU of next year"
    measured = EngineMetrics(told, _view("cuda"))
    measured.begin(Engine())
    assert engine_metrics.UTILIZATION not in measured.after_step(Engine(), 0.5)
