"""Combinations of layout and DeepSpeed settings are refused, and say the key to change."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.policy.training_ways import LAYOUTS, refusals


@pytest.mark.parametrize(
    ("axes", "config", "key", "found"),
    [
        ("pipeline", {"zero_optimization": {"stage": 2}}, "zero_optimization.stage", "found 2"),
        ("pipeline", {}, "zero_optimization.stage", "clips all stages"),
        ("pipeline", {"torch_autocast": {"enabled": True}}, "zero_optimization.stage", "clips all"),
        (
            "pipeline sequence",
            {"gradient_clipping": 0},
            "zero_optimization.stage",
            "never over parallel.sequence",
        ),
        (
            "tensor pipeline sequence",
            {"bf16": {"enabled": True}},
            "zero_optimization.stage",
            "never over parallel.sequence",
        ),
        ("expert", {"zero_optimization": {"stage": 3}}, "zero_optimization.stage", "found 3"),
        ("expert", {}, "zero_optimization.stage", "does not clip"),
        ("tensor", {"fp16": {"enabled": True}}, "fp16.enabled", "found true, which nobody has"),
        (
            "sequence",
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            "zero_optimization.offload_param.device",
            "found nvme",
        ),
        (
            "sequence",
            {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}},
            "zero_optimization.zero_hpz_partition_size",
            "found 2",
        ),
        (
            "tensor",
            {"zero_optimization": {"stage": 1, "zenflow": {"topk_ratio": 0.1}}},
            "zero_optimization.zenflow",
            "found a block",
        ),
        ("tensor", {"communication_data_type": "bf16"}, "communication_data_type", "found bf16"),
    ],
)
def test_it_is_refused_with_what_to_type(
    axes: str, config: dict[str, Any], key: str, found: str
) -> None:
    (refused,) = refusals(dict.fromkeys(axes.split(), 2), config)
    assert refused.key == f"deepspeed.{key}"
    assert found in refused.found
    assert refused.hint


def test_experts_go_with_no_other_axis() -> None:
    config = {"zero_optimization": {"stage": 1}}
    (refused,) = refusals({"expert": 2, "tensor": 2}, config)
    assert refused.key == "parallel.expert"
    assert "parallel.tensor" in refused.found


@pytest.mark.parametrize("axes", LAYOUTS, ids=" x ".join)
def test_zero_1_goes_with_every_layout(axes: tuple[str, ...]) -> None:
    config = {
        "zero_optimization": {
            "stage": 1,
            "offload_optimizer": {"device": "cpu"},
            "zero_hpz_partition_size": 1,
        },
        "bf16": {"enabled": True},
        "fp16": {"enabled": "auto"},
        "gradient_clipping": "auto",
    }
    assert list(refusals(dict.fromkeys(axes, 2), config)) == []


def test_nothing_is_refused_without_a_layout() -> None:
    config = {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}}
    assert list(refusals({"tensor": 1, "data": 4}, config)) == list(refusals(None, config)) == []
