"""The formulas of memory: the ZeRO paper's table, and what real DeepSpeed ranks hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcrun.tools.estimate import memory_formulas, training_setup
from hpcrun.tools.estimate.memory_formulas import is_known, rank_memory, share
from hpcrun.tools.estimate.model_facts import FollowedModel, FollowedStep, ModelFacts, of_number
from hpcrun.tools.estimate.training_setup import TrainingSetup

B = 10**9
# Table 1 of the ZeRO paper (arXiv:1910.02054): GB of model states on each GPU, by the number of
# GPUs, with Pos, Pos+g and Pos+g+p.
PAPER: dict[float, dict[int, tuple[float, float, float]]] = {
    7.5: {
        1: (120, 120, 120),
        4: (52.5, 41.3, 30),
        16: (35.6, 21.6, 7.5),
        64: (31.4, 16.6, 1.88),
        256: (30.4, 15.4, 0.47),
        1024: (30.1, 15.1, 0.12),
    },
    128: {
        1: (2048, 2048, 2048),
        4: (896, 704, 512),
        16: (608, 368, 128),
        64: (536, 284, 32),
        256: (518, 263, 8),
        1024: (513, 257, 2),
    },
    1000: {
        1: (16000, 16000, 16000),
        4: (7000, 5500, 4000),
        16: (4750, 2875, 1000),
        64: (4187, 2218, 250),
        256: (4046, 2054, 62.5),
        1024: (4011, 2013, 15.6),
    },
}


def zero_paper(parameters: float, ranks: int, stage: int) -> float:
    """Return the bytes of model states on each GPU, by the paper (arXiv:1910.02054, section 3).

    Mixed precision: 2 bytes of parameters, 2 of gradients and 12 of Adam's states (K) a parameter,
    of which each stage divides one more.
    """
    weights, gradients, states = 2.0, 2.0, 12.0
    return parameters * (
        (weights / ranks if stage == 3 else weights)
        + (gradients / ranks if stage >= 2 else gradients)
        + (states / ranks if stage >= 1 else states)
    )


@pytest.mark.parametrize("billions", PAPER)
@pytest.mark.parametrize("ranks", [1, 4, 16, 64, 256, 1024])
def test_the_papers_table(billions: float, ranks: int) -> None:
    for stage, printed in enumerate(PAPER[billions][ranks], 1):
        found = zero_paper(billions * B, ranks, stage) / B
        # It rounds most figures and cuts some off: to the digits that are printed.
        digit = 1.0 if printed == int(printed) else 0.1 if printed > 10 else 0.01
        digit = 0.1 if printed in (52.5, 7.5, 62.5, 15.6) else digit
        assert -digit / 2 <= found - printed < digit, (stage, found, printed)


def test_the_papers_figures_for_64_gpus() -> None:
    found = [zero_paper(7.5 * B, 64, stage) / B for stage in (0, 1, 2, 3)]
    assert [round(one, 2 if one < 10 else 1) for one in found] == [120.0, 31.4, 16.6, 1.88]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [4, 64, 1024])
def test_what_deepspeed_holds_is_the_papers_where_they_agree(stage: int, ranks: int) -> None:
    """bf16, no accumulation, Adam. Stage 1 of DeepSpeed divides the gradients at the end, too."""
    model = of_number(int(7.5 * B), "given", {})
    setup = TrainingSetup(stage, ranks, precision="bf16", accumulation_dtype="bf16", overlap=False)
    memory = rank_memory(model, setup)
    as_stage = max(stage, 2)
    assert memory.gpu.states == pytest.approx(zero_paper(7.5 * B, ranks, as_stage), rel=1e-6)


def _setup(**more: Any) -> TrainingSetup:
    return TrainingSetup(**{"stage": 2, "ranks": 2, "accumulation": 2, **more})


def test_frozen_parameters_have_neither_gradients_nor_states() -> None:
    whole = ModelFacts(1000, 1000, "given")
    half = replace(whole, trainable=500)
    for stage in (0, 1, 2, 3):
        setup = _setup(stage=stage)
        a, b = rank_memory(whole, setup).gpu, rank_memory(half, setup).gpu
        assert b.parameters == a.parameters
        assert b.gradients == pytest.approx(a.gradients / 2, abs=8)
        assert b.optimizer == pytest.approx(a.optimizer / 2, abs=24)


def test_offload_moves_the_optimizer_to_the_node() -> None:
    model = of_number(10**9, "given", {})
    for stage in (1, 2, 3):
        setup = _setup(stage=stage, ranks=8, precision="bf16", accumulation_dtype="bf16")
        here = rank_memory(model, setup)
        away = rank_memory(model, replace(setup, offload_optimizer="cpu"))
        assert away.gpu.optimizer == 0
        assert away.host.optimizer == here.gpu.optimizer
        assert away.gpu.peak < here.gpu.peak
        nvme = rank_memory(model, replace(setup, offload_optimizer="nvme"))
        assert nvme.nvme == here.gpu.optimizer
    both = rank_memory(model, replace(setup, offload_optimizer="cpu", offload_param="cpu"))
    assert both.gpu.parameters == 0
    assert both.host.parameters == 2 * 10**9 / 8


def test_stage_3_gathers_no_more_than_it_may() -> None:
    model = of_number(10**9, "given", {})
    setup = _setup(stage=3, ranks=8, precision="bf16")
    assert rank_memory(model, setup).gpu.gathered == 2 * 10**9
    less = replace(setup, max_live=10**8, prefetch_bucket=10**7)
    assert rank_memory(model, less).gpu.gathered == 2 * (10**8 + 10**7)


def test_activations_by_formula_and_by_what_was_followed() -> None:
    shape = {"layers": 10, "hidden_size": 1000, "sequence_length": 100, "vocabulary": 0}
    model = of_number(10**9, "given", shape)
    setup = _setup(precision="bf16", micro=3)
    # 34 s b h of each layer.
    assert memory_formulas.activation_bytes(model, setup) == 34 * 100 * 3 * 1000 * 10
    less = memory_formulas.activation_bytes(model, replace(setup, checkpointing=True))
    assert less == 3 * (10 * 2 * 100 * 1000 + 34 * 100 * 1000)
    steps = (FollowedStep([(peak, 0)], (0, 0)) for peak in (1000, 1800))
    followed = replace(model, whole=FollowedModel(*steps))
    assert memory_formulas.activation_bytes(followed, setup) == 2600
    assert memory_formulas.activation_bytes(of_number(10**9, "given", {}), setup) is None


# The models of arXiv:2205.05198: their shape, stages of the pipeline, micro batch, and the GiB of
# activations of a GPU with tensor parallelism of 8 alone, and no scores of attention.
@pytest.mark.parametrize(
    ("layers", "width", "stages", "micro", "printed"),
    [
        (48, 6144, 1, 4, 29.2),
        (96, 12288, 8, 1, 29.2),
        (105, 20480, 35, 1, 53.3),
        (128, 25600, 64, 1, 81.2),
    ],
)
def test_activations_of_the_papers_models(
    layers: int, width: int, stages: int, micro: int, printed: float
) -> None:
    model = of_number(B, "", {"layers": layers, "hidden_size": width, "sequence_length": 2048})
    setup = _setup(
        **{"model_ranks": 8 * stages, "tensor": 8, "stages": stages, "precision": "bf16"},
        **{"micro": micro, "accumulation": 512},
    )
    found = memory_formulas.activation_bytes(model, setup)
    assert found is not None
    assert abs(found / 2**30 - printed) <= 0.1
    # With fewer micro batches than stages the first stage holds these alone.
    half = memory_formulas.activation_bytes(model, replace(setup, accumulation=stages // 2 or 1))
    assert half == pytest.approx(found * max(stages // 2, 1) / stages)


def test_logits_are_whole_and_of_the_last_stage() -> None:
    shape = {"layers": 8, "hidden_size": 64, "sequence_length": 32, "vocabulary": 10**5}
    model = of_number(B, "given", shape)
    setup = _setup(precision="bf16", model_ranks=4, tensor=2, stages=2)
    found = memory_formulas.activation_bytes(model, setup)
    assert found == 4 * (10 + 24 / 2) * 32 * 64 + 10 * 32 * 10**5


def test_what_ranks_divide_in_a_way_that_is_not_known_is_a_range() -> None:
    model = of_number(7 * B, "given", {"hidden_size": 4096, "vocabulary": 32000})
    setup = _setup(stage=0, precision="bf16", model_ranks=8, tensor=8)
    memory = rank_memory(model, setup)
    assert memory.least is not None
    whole = 2 * 4096 * 32000
    assert memory.gpu.parameters == pytest.approx(2 * ((7 * B - whole) / 8 + whole), rel=1e-6)
    assert memory.least < memory.gpu.peak
    # Activations that were followed are between a part and all.
    steps = FollowedStep([(10**12, 0)], (0, 0)), FollowedStep([(2 * 10**12, 0)], (0, 0))
    followed = replace(model, whole=FollowedModel(*steps))
    assert rank_memory(followed, setup).gpu.activations == 10**12
    assert memory_formulas.activation_bytes(followed, setup, even=True) == 10**12 / 8
    assert rank_memory(model, replace(setup, model_ranks=1, tensor=1)).least is None


def test_the_stage_that_holds_most_is_told() -> None:
    def stage(number: int, kept: int) -> ModelFacts:
        steps = FollowedStep([(kept + 5, 0)], (kept, 0)), FollowedStep([(2 * kept, 0)], (kept, 0))
        return ModelFacts(number, number, "", sizes=(number,), whole=FollowedModel(*steps))

    model = ModelFacts(600, 600, "", stages=(stage(200, 10**6), stage(300, 0), stage(100, 0)))
    setup = _setup(stage=0, model_ranks=3, stages=3, accumulation=8)
    memory = rank_memory(model, setup)
    assert (memory.stage, memory.gpu.activations, memory.least) == (0, 3 * 10**6 + 5, None)
    assert memory.gpu.parameters == 4 * 200
    memory = rank_memory(model, replace(setup, accumulation=2))
    assert memory.gpu.activations == 2 * 10**6 + 5
    # Of a model whose stages are not known it is a range.
    assert rank_memory(replace(model, stages=()), setup).least is not None


def test_buckets_have_their_full_size() -> None:
    model = of_number(10**6, "given", {})
    setup = _setup(precision="bf16", accumulation_dtype="bf16")
    assert rank_memory(model, setup).gpu.buffers == 10**9
    assert rank_memory(model, replace(setup, overlap=True)).gpu.buffers == 2 * 10**9


@pytest.fixture(scope="module")
def measured(
    warm_operators: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Cases, and what two real ranks held of each: one start of DeepSpeed for all of them."""
    from bench import estimate
    from hpcrun.run.node import op_cache
    from tests.support import operators

    extensions = tmp_path_factory.mktemp("operators")
    op_cache.copy(warm_operators, operators.key(), extensions)
    cpu = {"offload_optimizer": {"device": "cpu"}}
    cases = [
        estimate.case(f"ZeRO {stage} {precision}{' offload' * offload}", made)
        for stage in (0, 1, 2, 3)
        for precision in ("fp32", "bf16")
        for offload in (False, True)
        if stage or not offload
        for made in [estimate.config(stage, precision, **(cpu if offload else {}))]
    ]
    cases += [
        estimate.case("ZeRO 1 fp32 sums", estimate.config(1, fp32_sums=True)),
        estimate.case("ZeRO 2 frozen", estimate.config(2), frozen=2),
        estimate.case("ZeRO 3 tied", estimate.config(3), tied=True),
        estimate.case(
            "ZeRO 3 offload all", estimate.config(3, **cpu, offload_param={"device": "cpu"})
        ),
        estimate.case(
            "ZeRO 1 momentum", estimate.config(1, optimizer="SGD", options={"momentum": 0.9})
        ),
    ]
    small = {"layers": 2, "width": 192, "heads": 4, "context": 16}
    cases = [{**one, "shape": small, "everything": False} for one in cases]
    answers = estimate.launch(
        cases,
        2,
        tmp_path_factory.mktemp("ranks"),
        timeout=500,
        TORCH_EXTENSIONS_DIR=str(extensions),
        DS_ACCELERATOR="cpu",
        GLOO_SOCKET_IFNAME="lo",
    )
    return cases, answers


@pytest.mark.training
@pytest.mark.timeout(600)
def test_what_real_ranks_hold(
    measured: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    """Parameters, gradients and optimizer within 5 %, and the checkpoint's size within 5 %."""
    from bench import estimate

    cases, answers = measured
    assert len(cases) == 19
    wrong = {}
    for one in cases:
        found = estimate.compare(one, answers)
        assert "error" not in found, found
        assert min(found["measured"][kind] for kind in estimate.KINDS) > 0
        far = {kind: apart for kind, apart in found["apart"].items() if abs(apart) > 0.05}
        # What a step holds at its most is no less than the gradients that were counted in it.
        if found["measured"]["stepping"] > found["predicted"]["stepping"] * 1.05 and (
            "offload" not in one["name"]
        ):
            far["stepping"] = found["measured"]["stepping"]
        if far:
            wrong[one["name"]] = far
    assert wrong == {}


def test_defaults_are_those_of_the_installed_deepspeed() -> None:
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    made, own = config.DeepSpeedZeroConfig(), TrainingSetup(0, 1)
    for name, field in training_setup.BUCKETS.items():
        assert getattr(made, name.removeprefix("stage3_")) == getattr(own, field), name


def test_partitions_touch_whole_parameters() -> None:
    # Ranks have elements 0 to 8, and 8 to 16: the second parameter lies in both.
    model = ModelFacts(16, 16, "given", sizes=(6, 6, 4))
    own = share(model, _setup())
    assert (own.part, own.touched, own.largest) == (8, 12, 6)
    # One that is longer than a partition is all that those in its middle touch.
    assert share(ModelFacts(100, 100, "given", sizes=(2, 98)), _setup(ranks=10)).touched == 100


def test_stage_3_pads_each_parameter_and_keeps_small_ones() -> None:
    model = ModelFacts(1013, 1013, "given", sizes=(1000, 13))
    own = share(model, _setup(stage=3, ranks=4, persistence=100))
    assert (own.part, own.persistent) == (250 + 4, 13)
    assert share(model, _setup(stage=3, ranks=1, persistence=100)).persistent == 0


def test_a_tensor_group_divides_what_its_plan_names() -> None:
    model = ModelFacts(
        *(1300, 1200, "given"), sizes=(1000, 100, 100), frozen_sizes=(100,), divided=(0, 1, 1)
    )
    setup = _setup(model_ranks=4, tensor=4)
    assert not is_known(ModelFacts(1200, 1200, "given"), setup)
    assert is_known(model, setup)
    assert not is_known(model, _setup(model_ranks=8, tensor=4))
    own = share(model, setup)
    assert (own.whole, own.largest) == (1000 + 25 + 25, 1000)
    # Without a plan the two largest may be whole on each rank.
    unknown = ModelFacts(1200, 1200, "given", sizes=(1000, 100, 50, 50))
    assert share(unknown, setup).whole == 1100 + 100 // 4 + 1
    assert share(unknown, setup, even=True).whole == 250 + 25 + 13 + 13
