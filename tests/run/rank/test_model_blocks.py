"""A model's blocks: which are found, and that compiled ones train as plain ones do.

The table of pairs (engine and its stage, precision, accumulation, activation checkpointing,
compiled): each is trained beside one process, or refused with its reason.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hpcrun
from hpcrun.errors import UsageError
from hpcrun.policy import training_ways
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.rank import model_blocks, replica_engine, sharded_engine
from hpcrun.run.weights import saved_weights
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths, checkpoint_name
from hpcrun.state.spec.blocks import SpecBlocks
from hpcrun.state.spec.run_blocks import Optimization
from tests.run.ranks import Ranks
from tests.run.two_blocks import Blocks, alone

training = pytest.mark.training
STEPS = 4
WANTED = Optimization(compile=True)
CPU = torch.device("cpu")
# What a test calls it -> engine, and the options that it is made with.
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"ZeRO {stage}": ("initialize", {"stage": stage}) for stage in range(4)},
    "FSDP2, stage 3": ("fully_shard", {"reshard": True}),
    "FSDP2, stage 2": ("fully_shard", {"reshard": False}),
    "FSDP2, hybrid": ("fully_shard", {"replicas": 2}),
    "replicas": ("replicas", {}),
    "replicas, hook fp16": ("replicas", {"hook": "fp16"}),
    "replicas, hook powersgd": ("replicas", {"hook": "powersgd"}),
    "replicas, local steps": ("replicas", {"every": 2}),
    "replicas, diloco": ("replicas", {"every": 2, "outer": "diloco", "outer_lr": 0.5}),
}
# (engine, half, accumulation, recomputes, compiled)
Way = tuple[str, bool, int, str, bool]
NAMES = ("engine", "half", "accumulation", "recomputes", "compiled")
# Pairs that no way has, and what is said to who asks for them.
REFUSED = {
    (
        ("engine", "ZeRO 3"),
        ("compiled", True),
    ): "with ZeRO 3 each module of a block has DeepSpeed's",
    **{
        (("engine", name), ("half", True)): "session.replicas holds the model whole and as it is"
        for name, (engine, _) in ENGINES.items()
        if engine == "replicas"
    },
}


def _refusal(way: Way) -> str | None:
    """Return the reason with which the code refuses a way."""
    name, half, _, _, compiled = way
    engine, options = ENGINES[name]
    config: dict[str, Any] = {"bf16": {"enabled": half}}
    layout = RankLayout({}, 2)
    try:
        if engine == "replicas":
            replica_engine.options_of(config, layout)
        elif engine == "fully_shard":
            sharded_engine.options_of(config, {}, layout)
        stage = options.get("stage")
        for found, _ in model_blocks._refused(*_of(Blocks()), stage) if compiled else ():
            return found
    except UsageError as error:
        return error.message
    return None


def _of(model: Any) -> tuple[Any, list[Any]]:
    return model, model_blocks.find(model)


def _pairs(way: Way) -> frozenset[Any]:
    return frozenset(itertools.combinations(zip(NAMES, way, strict=True), 2))


def _cover(among: list[Way]) -> list[Way]:
    """Few ways that have every pair that one of them has."""
    left, chosen = frozenset().union(*map(_pairs, among)), []
    while left:
        chosen.append(max(among, key=lambda way: len(_pairs(way) & left)))
        left -= _pairs(chosen[-1])
    return chosen


EVERY: list[Way] = [
    *itertools.product(ENGINES, (False, True), (1, 2), ("", "inside", "outside"), (False, True))
]
TRAINED = _cover([way for way in EVERY if _refusal(way) is None])


def test_every_pair_is_trained_or_refused_with_its_reason() -> None:
    trained = frozenset().union(*map(_pairs, TRAINED))
    assert trained | REFUSED.keys() == frozenset().union(*map(_pairs, EVERY))
    assert not trained & REFUSED.keys()
    for pair, said in REFUSED.items():
        told = [_refusal(way) or "" for way in EVERY if pair in _pairs(way)]
        assert told
        assert all(each.startswith(said) for each in told)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("inductor"))


@pytest.fixture(scope="module")
def ranks(own_operators: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    directory = tmp_path_factory.mktemp("ranks")
    started = Ranks(2, own_operators, directory, "tests.run.compiled_rank")
    yield started
    started.stop()


# Where it is no 1e-4: what compresses gradients, and what trains by itself between two steps.
TOLERANCE = {
    "replicas, hook fp16": 1e-3,
    **dict.fromkeys(("replicas, hook powersgd", "replicas, local steps"), 0.3),
    "replicas, diloco": 0.5,
}


def _tolerance(name: str, *, half: bool) -> float:
    if half:
        # Without ZeRO bf16 has no weights in fp32.
        return 0.15 if name == "ZeRO 0" else 2e-2
    return TOLERANCE.get(name, 1e-4)


@training
@pytest.mark.parametrize("way", TRAINED, ids=lambda way: "-".join(map(str, way)))
def test_each_pair_trains_as_one_process(ranks: Ranks, cache: str, way: Way) -> None:
    name, half, accumulation, _, compiled = way
    engine, options = ENGINES[name]
    named = dict(zip(NAMES[1:], way[1:], strict=True))
    # PowerSGD begins after ten steps.
    steps = 12 if name == "replicas, hook powersgd" else STEPS
    losses = []
    for each in ({}, {"compiled": False, "recomputes": ""})[: 1 + compiled]:
        told = ranks.tell("way", engine=engine, options=options, cache=cache, **{**named, **each})
        assert told == [None] * 2
        losses.append(ranks.tell("steps", number=steps)[0])
        # One for both blocks, which are alike.
        assert ranks.tell("graphs") == [int({**named, **each}["compiled"])] * 2
    expected = alone(steps, accumulation)
    assert losses[0] == pytest.approx(expected, rel=_tolerance(name, half=half))
    # PowerSGD draws in the order of the gradients, which compiled blocks give otherwise.
    rounding = 5e-3 if half or "powersgd" in name else 1e-4
    assert losses[0] == pytest.approx(losses[-1], rel=rounding)


@training
def test_killed_ranks_go_on_to_the_bit_and_others_from_their_checkpoints(
    ranks: Ranks, cache: str, tmp_path: Path
) -> None:
    """With dropout, recomputed in the backward pass; and plain ones take compiled checkpoints."""
    names = ("ZeRO 1", "FSDP2, stage 3", "replicas")
    ways = {name: dict(zip(("engine", "options"), ENGINES[name], strict=True)) for name in names}
    compiled = {"cache": cache, "compiled": True, "dropout": 0.2}
    runs, then = {name: RunPaths(tmp_path / name) for name in names}, {}
    for name, way in ways.items():
        runs[name].attempt(1).directory.mkdir(parents=True)
        ranks.tell("way", **way, **compiled)
        plainly = ranks.tell("steps", number=2)
        ranks.tell("way", **way, **compiled, recomputes="outside")
        assert ranks.tell("steps", number=2) == plainly
        ranks.tell("save", run=str(runs[name].directory), step=2)
        then[name] = ranks.tell("steps", number=3)
        assert not any("_orig_mod" in each for each in ranks.tell("names")[0])
        ((directory, entry),) = manifest.complete(runs[name].checkpoints)
        if name != "replicas":
            exported = saved_weights.collect(directory, entry.files).tensors
            assert exported.keys() == Blocks().state_dict().keys()
    ranks.stop()
    for name, way in ways.items():
        run = {"run": str(runs[name].directory)}
        ranks.tell("way", **way, **compiled, recomputes="outside", seed=5)
        assert ranks.tell("restore", **run) == [[2, checkpoint_name(2, 1)]] * 2
        assert ranks.tell("steps", number=3) == then[name]
        # Without dropout, whose numbers inductor draws otherwise.
        losses = []
        for each in (True, False):
            ranks.tell("way", **way, cache=cache, compiled=each, seed=6)
            ranks.tell("restore", **run)
            losses.append(ranks.tell("steps", number=3)[0])
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def _moved(shape: int) -> Any:
    return nn.Sequential(nn.Linear(shape, shape), nn.Tanh())


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: nn.Sequential(nn.Embedding(3, 4), _moved(4), _moved(4), nn.Linear(4, 3)), [1, 2]),
        (lambda: nn.Sequential(_moved(4), _moved(4)), [0, 1]),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), []),
    ],
)
def test_blocks_of_a_sequential(model: Callable[[], Any], expected: list[int]) -> None:
    made = model()
    assert model_blocks.find(made) == [made[number] for number in expected]


def _compiled_by_program() -> Any:
    model = Blocks()
    model.blocks[0].compile()
    return model


def _with_experts() -> Any:
    model = Blocks()
    model.first.weight.allreduce = False
    return model


def _staged() -> Any:
    model = Blocks()
    model.num_stages = 2
    return model


@pytest.mark.parametrize(
    ("model", "stage", "said"),
    [
        (lambda: nn.Linear(3, 3), None, "the model has no blocks"),
        (_compiled_by_program, None, "the program compiles the model, too"),
        (lambda: nn.Sequential(torch.compile(Blocks())), None, "the program compiles the model"),
        (_with_experts, None, "the model has layers of experts, which nobody has tried"),
        (_staged, None, "the model is a pipeline, which nobody has tried"),
        (Blocks, 3, "with ZeRO 3 each module of a block has DeepSpeed's hooks"),
    ],
)
def test_models_that_are_not_compiled(
    model: Callable[[], Any], stage: int | None, said: str
) -> None:
    made = model()
    with pytest.raises(UsageError, match=f"optimization.compile: {said}") as refused:
        model_blocks.compile_each(made, WANTED, CPU, stage=stage)
    assert refused.value.hint
    model_blocks.compile_each(made, Optimization(), CPU, stage=stage)


def test_a_node_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"optimization\.compile: torch finds no C\+\+") as error:
        model_blocks.compile_each(Blocks(), WANTED, CPU)
    assert "environment.setup" in str(error.value.hint)


def test_an_older_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit of shapes would leave the rest uncompiled without a word."""
    monkeypatch.setattr(torch, "compile", lambda model, *, dynamic=None: model)
    with pytest.raises(UsageError, match="cannot be told how many shapes") as error:
        model_blocks.compile_each(Blocks(), WANTED, CPU)
    assert "take torch 2.13" in str(error.value.hint)


def test_a_session_refuses_before_it_makes_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    session = hpcrun.session()
    monkeypatch.setattr(session, "_spec", SpecBlocks({"optimization": {"compile": True}}))
    with pytest.raises(UsageError, match="the model has no blocks"):
        session.replicas(nn.Linear(3, 3), None)
    for config, said in (
        ({"zero_optimization": {"stage": 3}}, "with ZeRO 3 each module"),
        ({"torch_autocast": {"enabled": True}}, r"torch_autocast.enabled found true, which nobody"),
    ):
        with pytest.raises(UsageError, match=said):
            session.initialize(model=Blocks(), config=config)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What dynamo sees, without inductor."""
    import torch._dynamo

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False):
        yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("traced")
def test_more_forms_than_torch_compiles_are_an_error() -> None:
    """It would run the rest uncompiled, which a restarted run would do with others."""
    model = Blocks()
    model_blocks.compile_each(model, WANTED, CPU)
    most = 8 * len(model.blocks)
    for size in range(1, most + 1):
        model(torch.zeros(size, 8))
    model(torch.zeros(most, 8))
    with pytest.raises(
        UsageError, match=r"blocks meet more shapes, .* than torch compiles"
    ) as error:
        model(torch.zeros(most + 1, 8))
    assert "by padding" in str(error.value.hint)


@pytest.mark.usefixtures("traced")
def test_blocks_of_torchs_own_classes_are_compiled_and_copies_are_not() -> None:
    from torch._dynamo.utils import counters

    model = nn.Sequential(_moved(4), _moved(4))
    model_blocks.compile_each(model, WANTED, CPU)
    counters.clear()
    before = [*model.state_dict()]
    found = model(torch.ones(2, 4, requires_grad=True))
    assert counters["stats"] == {"calls_captured": 2, "unique_graphs": 1}
    assert [*model.state_dict()] == before
    twin = copy.deepcopy(model)
    assert not model_blocks.is_compiled(twin)
    with torch.no_grad():
        model[0][0].weight.zero_()
    assert torch.equal(twin(torch.ones(2, 4)), found)


@pytest.mark.usefixtures("traced")
def test_each_block_may_be_a_form_of_its_own() -> None:
    """Such as by its number, which torch takes for a constant."""
    model = nn.Sequential(*(Blocks(dropout=number / 100) for number in range(12)))
    model_blocks.compile_each(model, WANTED, CPU)
    model(torch.zeros(2, 8))


@pytest.mark.parametrize(
    ("spec", "config", "key"),
    [
        ({"precision": "fp8"}, {}, "precision"),
        *(({"parallel": {axis: 2}}, {}, f"parallel.{axis}") for axis, *_ in training_ways.LAYOUTS),
        ({}, {"torch_autocast": {"enabled": True}}, "deepspeed.torch_autocast.enabled"),
        ({}, {"fp16": {"enabled": True}}, "deepspeed.fp16.enabled"),
        ({}, {"tensor_parallel": {"autotp_size": 2}}, "deepspeed.tensor_parallel.autotp_size"),
        ({}, {"activation_checkpointing": {"profile": True}}, "deepspeed.activation_checkpointing"),
        ({}, {"compile": {"deepcompile": True}}, "deepspeed.compile.deepcompile"),
        *(
            (
                {},
                {"zero_optimization": {"stage": 2, f"offload_{part}": {"device": "cpu"}}},
                f"deepspeed.zero_optimization.offload_{part}.device",
            )
            for part in ("optimizer", "param")
        ),
    ],
)
def test_settings_that_nobody_has_tried(
    spec: dict[str, Any], config: dict[str, Any], key: str
) -> None:
    wanted = {**spec, "optimization": {"compile": True}}
    (found,) = training_ways.of_compiled(wanted, config)
    assert found.key == key
    assert "with optimization.compile" in found.found
    assert found.hint
    assert not [*training_ways.of_compiled(spec, config)]
