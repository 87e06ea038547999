"""Random numbers from (seed, step, rank)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.run.rank import rng

KNOWN = {
    (0, 1, 0): 6800740342394023656,
    (0, 1, 1): 6747227488690969046,
    (7, 4200, 15): 7027539707472841917,
    (-3, 10**12, 0): 3554397758634717085,
}


@pytest.mark.parametrize(("parts", "value"), KNOWN.items())
def test_seeds_are_what_they_always_were(parts: tuple[int, ...], value: int) -> None:
    """Another value would change what every run computes after an update."""
    assert rng.derive(*parts) == value


def test_seeds_are_the_same_in_another_process() -> None:
    program = "from hpcrun.run.rank import rng; print(rng.derive(7, 4200, 15))"
    environment = {"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)}
    answer = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert int(answer) == rng.derive(7, 4200, 15)


@given(st.lists(st.integers(), min_size=1, max_size=4))
def test_seeds_fit_what_takes_them(parts: list[int]) -> None:
    assert 0 <= rng.derive(*parts) < 2**63


def test_steps_and_ranks_have_seeds_of_their_own() -> None:
    seeds = {rng.derive(s, t, r) for s in range(10) for t in range(20) for r in range(16)}
    assert len(seeds) == 3200


def test_every_generator_is_seeded_and_put_back() -> None:
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")

    def draw() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    rng.seed_all(5)
    first = draw()
    saved = rng.state()
    second = draw()
    assert first != second
    rng.restore(saved)
    assert draw() == second
    rng.seed_all(5)
    assert draw() == first
    rng.seed_all(6)
    assert all(one != other for one, other in zip(draw(), first, strict=True))


@pytest.mark.parametrize("drawn", [0, 1, 2, 3])
def test_what_is_drawn_in_a_block_changes_nothing_after_it(drawn: int) -> None:
    """Pairs of normal numbers are drawn together: one of them is kept outside NumPy's words."""
    pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")

    def draw(count: int) -> list[float]:
        return [float(numpy.random.randn()) for _ in range(count)]

    rng.seed_all(5)
    expected = draw(drawn + 4)
    rng.seed_all(5)
    found = draw(drawn)
    for _ in range(2):
        with rng.host_kept():
            rng.seed_host(9)
            draw(3)
        found += draw(2)
    assert found == expected


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_generator_of_numpys_is_kept_too() -> None:
    pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    rng.seed_all(5)
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(1))
    try:
        first = float(numpy.random.rand())
        with rng.host_kept():
            numpy.random.rand()
        second = float(numpy.random.rand())
        numpy.random.set_bit_generator(numpy.random.PCG64(1))
        assert [float(numpy.random.rand()) for _ in range(2)] == [first, second]
    finally:
        numpy.random.set_bit_generator(before)


class _Device:
    """What torch.cuda, or an accelerator of DeepSpeed's, is to `rng`: numbers instead of states."""

    def __init__(self, name: str, states: list[int]) -> None:
        self.name = name
        self.states = states

    def device_name(self) -> str:
        return self.name

    def manual_seed_all(self, seed: int) -> None:
        self.states = [seed for _ in self.states]

    def get_rng_state(self) -> int:
        return self.states[0]

    def set_rng_state(self, state: int) -> None:
        self.states[0] = state


@pytest.mark.parametrize(
    ("seen", "after"),
    [([0, 0, 0], [10, 11, 12]), ([0], [11])],
    ids=["all devices", "this rank's own device alone"],
)
def test_every_gpu_has_its_generator_put_back(
    monkeypatch: pytest.MonkeyPatch, seen: list[int], after: list[int]
) -> None:
    torch = pytest.importorskip("torch")
    cuda = _Device("cuda", [10, 11, 12])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cuda.states))
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(cuda.states))
    monkeypatch.setattr(torch.cuda, "set_rng_state", cuda.set_rng_state)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state_all", lambda states: setattr(cuda, "states", list(states))
    )
    saved = rng.state()
    cuda.states = seen
    rng.restore(saved)
    assert cuda.states == after


def test_a_gpu_that_was_never_used_is_not_woken_by_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert set(rng.state()) <= {"python", "torch", "numpy", "tracker"}


def test_another_accelerator_and_deepspeeds_named_generators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    xpu, named = _Device("xpu", [3]), {"model-parallel-rng": 5}
    tracker = SimpleNamespace(get_states=lambda: dict(named), set_states=named.update)
    for name, module in {
        "deepspeed.accelerator": SimpleNamespace(get_accelerator=lambda: xpu),
        "deepspeed.runtime.activation_checkpointing.checkpointing": SimpleNamespace(
            get_cuda_rng_tracker=lambda: tracker
        ),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    saved = rng.state()
    rng.seed_all(7)
    assert xpu.states == [7]
    named["model-parallel-rng"] = 6
    rng.restore(saved)
    assert (xpu.states, named) == ([3], {"model-parallel-rng": 5})


def test_what_deepspeed_is_asked_for_is_there() -> None:
    """`rng` looks for DeepSpeed's modules by name, and finds nothing where a name has changed."""
    program = (
        "import deepspeed; from hpcrun.run.rank import rng; "
        "assert rng._tracker().get_states() == {}; "
        "assert rng._other_accelerator() is None; "
        "import sys; assert 'deepspeed.accelerator' in sys.modules"
    )
    pytest.importorskip("deepspeed")
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "DS_ACCELERATOR": "cpu"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
