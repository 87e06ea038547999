"""Settings that DeepSpeed refuses or ignores together are told before the queue."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.compile.source.marked_tree import Reporter, Tree
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.target import engine_settings
from hpcrun.compile.target.draft import SpecDraft

BF16 = {"bf16": {"enabled": True}}


def judged(config: dict[str, Any], gpus: int = 4, ranks: int | None = 8) -> list[str]:
    problems = Problems()
    notes: list[str] = []
    spec = {"deepspeed": config, "resources": {"gpus_per_node": gpus}}
    draft = SpecDraft(spec, "function", "auto", Reporter(Tree(spec), problems), notes.append)
    engine_settings.check(draft, ranks)
    return [f"{one.key}: {one.message}" for one in problems.found] + notes


def zero(stage: int, **more: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **more}}


CPU, NVME = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/scratch"}


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"communication_data_type": "int8"}, "accepted are fp16, bf16, fp32"),
        ({**BF16, "data_types": {"grad_accum_dtype": "fp32"}}, "beside bf16 parameters"),
        ({**BF16, "data_types": {"grad_accum_dtype": "fp8"}}, "found 'fp8'; accepted are fp32"),
        ({**BF16, "data_types": {"param_dtype": "fp32"}}, "the parameters are bf16"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "found stage 0"),
        (
            {**zero(1), "bf16": {"enabled": True, "bf16_optimizer_states": True}},
            "needs bf16.bf16_master_weights_and_grads",
        ),
        (zero(0, offload_optimizer=CPU), "found device cpu with ZeRO stage 0; it needs stage 1, 2"),
        (zero(2, offload_param=CPU), "found device cpu with ZeRO stage 2; it needs stage 3"),
        (zero(2, offload_optimizer=NVME), "found device nvme with ZeRO stage 2; it needs stage 3"),
        (zero(3, offload_optimizer={"device": "nvme"}), "found nvme without nvme_path"),
        (zero(2, offload_optimizer={**CPU, "ratio": 0.5}), "found 0.5 with ZeRO stage 2"),
        (zero(1, zero_quantized_gradients=True), "found true with ZeRO stage 1"),
        (zero(2, zero_hpz_partition_size=4), "found 4 with ZeRO stage 2, where it does nothing"),
        (zero(3, zero_hpz_partition_size=3), "found 3, which does not divide the 8 ranks"),
        (
            {**zero(3, zero_quantized_weights=True), "torch_autocast": {"enabled": True}},
            "DeepSpeed refuses it beside torch_autocast",
        ),
        (
            {**zero(2), "torch_autocast": {"enabled": True, "dtype": "float16"}},
            "never lowers the loss scale",
        ),
        ({"activation_checkpointing": {"cpu_checkpointing": True}}, "the program has to call"),
    ],
)
def test_what_does_not_go_together_is_told(config: dict[str, Any], found: str) -> None:
    assert [found in one for one in judged(config)] == [True]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {**zero(1), **BF16, "data_types": {"grad_accum_dtype": "fp32"}},
        {**BF16, "data_types": {"grad_accum_dtype": "bf16", "param_dtype": "bfloat16"}},
        {**zero(3, zero_hpz_partition_size=4, zero_quantized_weights=True)},
        zero(3, offload_optimizer=NVME, offload_param=CPU),
        zero(2, offload_optimizer=CPU, offload_param={"device": "none"}),
        {**zero(2), "communication_data_type": "fp16"},
        {"zero_optimization": {"stage": "auto", "zero_quantized_weights": True}},
        {"data_types": {"grad_accum_dtype": "auto"}, "zero_optimization": "auto"},
    ],
)
def test_what_goes_together_passes(config: dict[str, Any]) -> None:
    assert judged(config) == []


def test_quantised_communication_needs_gpus() -> None:
    (found,) = judged(zero(3, zero_quantized_gradients=True), gpus=0)
    assert "by kernels of GPUs" in found
