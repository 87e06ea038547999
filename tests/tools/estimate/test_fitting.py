from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hpcrun import gpu_catalogue
from hpcrun.tools.estimate import fitting, memory_formulas
from hpcrun.tools.estimate.model_facts import ModelFacts, of_number
from hpcrun.tools.estimate.training_setup import TrainingSetup

H100 = gpu_catalogue.find("h100")
SHAPE = {"layers": 32, "hidden_size": 4096, "sequence_length": 2048, "vocabulary": 32000}
SETUP = TrainingSetup(3, 8, precision="bf16", accumulation_dtype="bf16", overlap=True)


def model(billions: float, **shape: int) -> ModelFacts:
    return of_number(int(billions * 1e9), "given", {**SHAPE, **shape})


@given(st.floats(0.05, 20), st.integers(0, 3), st.booleans())
def test_the_largest_micro_batch_fits_and_one_more_does_not(
    billions: float, stage: int, checkpointing: bool
) -> None:
    setup = replace(SETUP, stage=stage, checkpointing=checkpointing)
    known = model(billions)
    most = fitting.largest_micro(known, setup, H100)
    if most:
        assert fitting.fits(memory_formulas.rank_memory(known, replace(setup, micro=most)), H100)
    more = memory_formulas.rank_memory(known, replace(setup, micro=most + 1))
    assert not fitting.fits(more, H100)


def test_what_moves_least_comes_first() -> None:
    found = fitting.settings(model(7), SETUP, H100, 8, 10**12)
    good = [one for one in found if one.fits]
    assert [*good, *(one for one in found if not one.fits)] == found
    assert (good[0].setup.stage, good[0].setup.offload_optimizer) == (1, "none")
    assert not good[0].setup.checkpointing
    assert good[-1].setup.offload_param == "cpu"
    # Replicated states of 112 GB do not.
    assert {one.setup.stage for one in found if not one.fits} == {0}


def test_a_node_can_be_too_small() -> None:
    found = fitting.settings(model(7), SETUP, H100, 8, 10**9)
    away = [one for one in found if one.setup.offload_optimizer == "cpu"]
    assert away
    assert not any(one.host_fits or one.fits for one in away)


def test_the_nearest_where_nothing_fits() -> None:
    known = model(400)
    found = fitting.settings(known, SETUP, H100, 8, 10**11)
    near = fitting.nearest(known, found, H100, gpu_catalogue.GPUS)
    assert near is not None
    assert near.short > 0
    assert near.setting.setup.stage == 3
    assert near.ranks is not None
    assert near.ranks > 8
    fitting_ranks = replace(near.setting.setup, ranks=near.ranks)
    assert fitting.fits(memory_formulas.rank_memory(known, fitting_ranks), H100)
    half = replace(near.setting.setup, ranks=near.ranks // 2)
    assert not fitting.fits(memory_formulas.rank_memory(known, half), H100)
    small = model(1)
    fine = fitting.settings(small, SETUP, H100, 8, None)
    assert fitting.nearest(small, fine, H100, gpu_catalogue.GPUS) is None


def test_without_activations_no_micro_batch_is_told() -> None:
    known = of_number(10**9, "given", {})
    found = fitting.settings(known, SETUP, H100, 8, None)
    assert {one.setup.checkpointing for one in found} == {False}
    assert {one.to_data()["largest_micro_batch"] for one in found} == {None}
