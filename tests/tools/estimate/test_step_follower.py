"""What is followed of a model that ranks divide, and what real ranks hold of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from hpcrun.tools.estimate import step_follower

torch = pytest.importorskip("torch")
SMALL = {"shape": {"layers": 4, "width": 64, "heads": 4}, "context": 64}


class PlannedBlock(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A feed-forward layer with a plan."""

    tensor_parallel_plan: ClassVar = {"expand": "colwise", "contract": "rowwise"}

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.contract = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        """(batch, 8) -> the same shape."""
        return x + self.contract(torch.nn.functional.gelu(self.expand(x)))


def test_what_a_divided_matrix_makes_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    # A follower has a process of its own, and takes this function away from all of it.
    own = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", own)
    with torch.device("meta"):
        model = torch.nn.Sequential(PlannedBlock(), torch.nn.Linear(8, 8))
        plan = step_follower.tensor_plan(model, {}, torch)
        assert plan == {
            "0.expand.weight": "column",
            "0.expand.bias": "column",
            "0.contract.weight": "row",
        }
        steps = step_follower.Steps(
            model, lambda count: torch.zeros(100 * count, 8), torch.sum, plan, torch
        )
        one, two = steps.whole()["whole"]
    # Of 32 features before and after the GELU; of the sum, the contraction and the end 8 each.
    assert one["kept"][1] == 2 * 100 * 32 * 4
    assert one["kept"][0] <= 3 * 100 * 8 * 4 + 4
    assert two["kept"][1] == 2 * one["kept"][1]


@pytest.mark.parametrize(
    ("block", "plan"),
    [
        ({"preset_model": "llama"}, None),
        ({"partition_config": {"layer_specs": []}}, None),
        (
            {
                "partition_config": {
                    "use_default_specs": False,
                    "layer_specs": [
                        {"patterns": [r".*contract\.weight$"], "partition_type": "row"}
                    ],
                }
            },
            {"0.contract.weight": "row"},
        ),
    ],
)
def test_the_configuration_wins(block: dict[str, Any], plan: Any) -> None:
    model = torch.nn.Sequential(PlannedBlock())
    assert step_follower.tensor_plan(model, block, torch) == plan


def test_the_plan_of_a_hugging_face_model() -> None:
    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        _tp_plan: ClassVar = {"lm_head": "colwise_gather_output"}

        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace(
                base_model_tp_plan={"layers.*.up": "colwise", "layers.*.down": "rowwise"}
            )
            block = torch.nn.ModuleDict(
                {"up": torch.nn.Linear(2, 4), "down": torch.nn.Linear(4, 2, bias=False)}
            )
            self.tokens = torch.nn.Embedding(9, 2)
            self.layers = torch.nn.ModuleList([block])
            self.lm_head = torch.nn.Linear(2, 9, bias=False)

    model = Model()
    blocks = {"layers.0.up.weight": "column", "layers.0.up.bias": "column"}
    blocks["layers.0.down.weight"] = "row"
    found = step_follower.tensor_plan(model, {}, torch)
    assert found is not None
    assert {name: found[name] for name in blocks} == blocks
    assert found["lm_head.weight"] == "gathered"
    assert "tokens.weight" not in found
    # DeepSpeed leaves a tied head whole.
    model.lm_head.weight = model.tokens.weight
    found = step_follower.tensor_plan(model, {}, torch)
    assert found is not None
    assert "lm_head.weight" not in found
    model.config.base_model_tp_plan["layers.*.up"] = "packed_colwise"
    assert step_follower.tensor_plan(model, {}, torch) is None


@pytest.mark.training
@pytest.mark.timeout(500)
def test_what_ranks_hold_of_a_model_that_they_divide(warm_operators: Path, tmp_path: Path) -> None:
    """Parameters exactly, and forward and backward within 10 %."""
    from bench import estimate, estimate_divided
    from hpcrun.run.node import op_cache
    from tests.support import operators

    extensions = tmp_path / "operators"
    op_cache.copy(warm_operators, operators.key(), extensions)

    cases = [
        estimate_divided.case({"tensor": 2}, checkpointing=False, **SMALL),
        estimate_divided.case({"pipeline": 2}, checkpointing=True, **SMALL),
    ]
    variables = {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    variables["TORCH_EXTENSIONS_DIR"] = str(extensions)
    answers = estimate.launch(
        cases, 2, tmp_path, timeout=450, module="bench.held_divided", **variables
    )
    found = [each for one in cases for each in estimate_divided.compare(one, answers)]
    assert len(found) == 4
    for one in found:
        assert "error" not in one, one
        assert one["apart"]["parameters"] == 0, one
        assert abs(one["apart"]["activations"]) < 0.1, one
