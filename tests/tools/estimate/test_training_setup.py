from __future__ import annotations

from typing import Any

import pytest

from hpcrun.tools.estimate import training_setup
from hpcrun.tools.estimate.training_setup import global_batch, read


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({}, {"stage": 0, "precision": "fp32", "accumulation_dtype": "fp32", "micro": 1}),
        ({"bf16": {"enabled": True}}, {"precision": "bf16", "accumulation_dtype": "bf16"}),
        ({"fp16": {"enabled": True}}, {"precision": "fp16", "accumulation_dtype": "fp16"}),
        ({"bf16": {"enabled": False}}, {"precision": "fp32"}),
        (
            {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
            {"accumulation_dtype": "fp32"},
        ),
        ({"zero_optimization": {"stage": 3}}, {"stage": 3, "overlap": True}),
        ({"zero_optimization": {"stage": 2}}, {"stage": 2, "overlap": False}),
        ({"zero_optimization": {"stage": 2, "overlap_comm": True}}, {"overlap": True}),
        (
            {"zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8}},
            {"reduce_bucket": 2 * 10**8},
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            {"offload_optimizer": "cpu"},
        ),
        # Where DeepSpeed ignores it.
        (
            {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}},
            {"offload_optimizer": "none"},
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
            {"offload_param": "none"},
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            {"offload_param": "nvme"},
        ),
        ({"optimizer": {"type": "SGD", "params": {}}}, {"numbers": 0, "is_torch": True}),
        ({"optimizer": {"type": "SGD", "params": {"momentum": 0.9}}}, {"numbers": 1}),
        ({"optimizer": {"type": "AdamW"}}, {"numbers": 2, "is_torch": False}),
        ({"optimizer": {"type": "Adam", "params": {"torch_adam": True}}}, {"is_torch": True}),
        ({"optimizer": {"type": "Adam", "params": {"amsgrad": True}}}, {"numbers": 3}),
        ({"optimizer": {"type": "RMSprop", "params": {"centered": True}}}, {"numbers": 2}),
    ],
)
def test_read(config: dict[str, Any], found: dict[str, Any]) -> None:
    setup = read(config, 8)
    assert {name: getattr(setup, name) for name in found} == found


def test_what_had_to_be_assumed_is_said() -> None:
    config = {
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "Sophia"},
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto"},
    }
    notes = "\n".join(read(config, 8).notes)
    for word in ("bf16.enabled is auto", "Sophia", "train_micro_batch", "stage3_prefetch"):
        assert word in notes
    assert "no optimizer" in "\n".join(read({}, 8).notes)


def test_model_parallel_ranks_do_not_see_other_samples() -> None:
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    setup = read(config, 16, 4)
    assert (setup.ranks, setup.model_ranks) == (4, 4)
    assert global_batch(config, setup) == 32
    assert global_batch({**config, "train_batch_size": 64}, setup) == 64


def test_every_optimizer_of_the_installed_deepspeed_is_known() -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    known = {name.lower() for name in config.DEEPSPEED_OPTIMIZERS}
    gone = {"onebitadam", "zerooneadam", "onebitlamb", "muadam", "muadamw", "musgd"}
    assert known - gone <= {*training_setup.STATES}
