"""Models that real ranks divide between them: DeepSpeed's AutoTP, and pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcrun.run.parallel.engine_setup import tensor_parallel_size
from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import Place

pytestmark = [pytest.mark.training]

PROGRAM = """
import json, pathlib
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return x + self.down_proj(torch.relu(self.up_proj(x)))

def batch(indices):
    generators = [torch.Generator().manual_seed(index) for index in indices]
    return torch.stack([torch.randn(8, generator=each) for each in generators])

def alone(steps, size):
    torch.manual_seed(0)
    model, losses = nn.Sequential(Block(), Block()), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(steps):
        loss = model(batch(range(step * size, (step + 1) * size))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses

def tensor(session):
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    engine, *_ = session.initialize(model=model, model_parameters=model.parameters())
    session.restore(engine)
    rows = next(model.modules()).get_submodule("0").up_proj.weight.shape[0]
    losses, seen = [], []
    for step in session.steps(total=4):
        for indices in session.micro_batches(step):
            seen.append(indices)
            loss = engine(batch(indices)).square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    mine = {"losses": losses, "seen": seen, "rows": rows, "alone": alone(4, 4)}
    pathlib.Path(session.config.out, f"{session.rank}.json").write_text(json.dumps(mine))

def pipeline(session):
    from deepspeed.pipe import PipelineModule
    import deepspeed
    deepspeed.init_distributed()
    model = PipelineModule([nn.Linear(8, 8), nn.Linear(8, 8)], num_stages=2, loss_fn=nn.MSELoss())
    engine, *_ = session.initialize(model=model, model_parameters=model.parameters())
    session.restore(engine)
    pathlib.Path(session.config.out, f"{session.rank}.json").write_text("{}")
"""
ADAM = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0, "torch_adam": True}}
LAYERS = {
    "use_default_specs": False,
    "layer_specs": [
        {"patterns": [".*down_proj.weight$"], "partition_type": "row"},
        {"patterns": [".*up_proj.weight$"], "partition_type": "column"},
    ],
}
TENSOR = {
    "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "tensor_parallel": {"autotp_size": 2, "partition_config": LAYERS},
    "optimizer": ADAM,
}
PIPELINE = {
    "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": ADAM,
}


@pytest.fixture
def divided(place: Place, warm_operators: Path) -> Place:
    library = place.code / "lib"
    library.mkdir()
    (library / "mine.py").write_text(PROGRAM)
    operators.link(warm_operators, place.root)
    return place


def _entry(name: str) -> Entry:
    return Entry("function", module="mine", function=name, import_root="lib")


def test_a_model_divided_by_autotp_trains_as_one_that_is_not(divided: Place) -> None:
    """By DeepSpeed's own key, without ``parallel``."""
    out = divided.root
    config = {**TENSOR, "zero_optimization": {"stage": 1}}
    divided.submit(_entry("tensor"), ranks=2, config={"out": str(out)}, deepspeed=config)
    assert divided.supervise()[0] == 0, divided.output(1)
    first, second = (json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["rows"] == second["rows"] == 8, "each rank holds half of the 16 rows"
    assert first["seen"] == second["seen"] == [[*range(4 * n, 4 * n + 4)] for n in range(4)]
    assert first["losses"] == pytest.approx(first["alone"], rel=1e-4)
    assert first["losses"] == pytest.approx(second["losses"], rel=1e-6)


@pytest.mark.parametrize(
    ("config", "is_refused"),
    [({}, True), ({"gradient_clipping": 0.0}, False)],
    ids=["as it comes", "without clipping"],
)
def test_a_pipeline_that_would_clip_by_one_stage_is_refused(
    divided: Place, config: dict[str, object], is_refused: bool
) -> None:
    deepspeed = {**PIPELINE, **config}
    out = {"out": str(divided.root)}
    divided.submit(_entry("pipeline"), ranks=2, config=out, deepspeed=deepspeed)
    assert divided.supervise()[0] == (1 if is_refused else 0), divided.output(1)
    assert (divided.root / "1.json").exists() is not is_refused
    if is_refused:
        cause = divided.cause()
        assert "takes the norm of the first stage for that of all" in cause["message"]
        assert "deepspeed.gradient_clipping to 0" in "".join(cause["log_tail"])


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({}, 1),
        ({"tensor_parallel": None}, 1),
        ({"tensor_parallel": {"autotp_size": 0}}, 1),
        ({"tensor_parallel": {"autotp_size": "auto"}}, 1),
        ({"tensor_parallel": {"autotp_size": 4}}, 4),
    ],
)
def test_the_size_of_autotp(config: dict[str, object], size: int) -> None:
    assert tensor_parallel_size(config) == size
