"""Models that FSDP2 divides between real ranks: as DDP and ZeRO 3, and exact when restored."""

from __future__ import annotations

import hashlib
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcrun.errors import CheckpointError, UsageError
from hpcrun.run.checkpoint import shard_files
from hpcrun.run.checkpoint.deepspeed_io import UnreadableFile
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.rank import model_blocks, optimization, sharded_engine
from hpcrun.run.weights import saved_weights
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths, checkpoint_name, experiment
from hpcrun.state.spec.run_blocks import Optimization
from tests.run.ranks import ONE, THREE, Ranks, Worlds

training = pytest.mark.training
SCHEDULE = {"warmup": 2, "decay": "cosine", "total_steps": 20}
BATCH = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
}


@pytest.fixture(scope="module")
def worlds(own_operators: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    started: dict[int, Ranks] = {}

    def world(size: int) -> Ranks:
        if size not in started:
            directory = tmp_path_factory.mktemp("ranks")
            started[size] = Ranks(size, own_operators, directory, "tests.run.sharded_rank")
        return started[size]

    yield world
    for ranks in started.values():
        ranks.stop()


PLAN = {
    **{f"layers.*.{name}": "colwise" for name in ("query", "key", "value", "up")},
    **{f"layers.*.{name}": "rowwise" for name in ("out", "down")},
}
WIDER = {**PLAN, "words": "embedding_rowwise", "head": "colwise_gather_output"}
TENSOR = {"model": "attending", "tensor": 2, "tensor_plan": PLAN}
NOTED, HYBRID = {"model": "noted"}, {"model": "noted", "replicas": 2}
DIFFER, OTHERS = "of ranks that should hold the same differ:", "are not those of 3 other ranks"


@training
@pytest.mark.parametrize("size", [2, 4])
def test_losses_are_those_of_ddp_and_zero_3(worlds: Worlds, size: int) -> None:
    ranks = worlds(size)
    ranks.tell("plain")
    ddp = ranks.tell("train_mixed", steps=100)[0]
    assert ranks.tell("sharded", gradient_clipping=0.5) == [None] * size
    own = ranks.tell("train_mixed", steps=100)[0]
    assert own == pytest.approx(ddp, rel=1e-4)
    assert own[-1] < own[0] / 2
    ranks.tell("zero", stage=3)
    assert ranks.tell("train_mixed", steps=100)[0] == pytest.approx(own, rel=1e-4)


@training
def test_a_checkpoint_goes_on_exactly_and_on_any_number_of_ranks(
    worlds: Worlds, tmp_path: Path
) -> None:
    """4 -> 2 -> 4 ranks, with schedule, buffers and hybrid sharding; saved behind the training."""
    run, many, few = RunPaths(tmp_path / "3"), worlds(4), worlds(2)
    options: dict[str, Any] = {"model": "noted", "optimization": SCHEDULE, "gradient_clipping": 0.5}
    run.attempt(2).directory.mkdir(parents=True)
    where = {"run": str(run.directory)}
    one, three = checkpoint_name(1, 2), checkpoint_name(3, 2)
    many.tell("sharded", **options)
    many.tell("train_mixed", steps=1)
    first = many.tell("held")
    assert len(set(first)) == 1
    assert many.tell("save_behind", **where, step=1, attempt=2) == [None] * 4
    losses = many.tell("train_mixed", steps=4)
    assert many.tell("settle") == [[1, True]] * 4
    assert many.tell("sharded", seed=5, **options) == [None] * 4
    assert many.tell("restore", **where) == [[1, one]] * 4
    assert many.tell("held") == first
    assert many.tell("train_mixed", steps=4) == losses
    few.tell("sharded", seed=6, **options)
    assert few.tell("restore", **where) == [[1, one]] * 2
    assert few.tell("held") == first[:2]
    assert few.tell("train_mixed", steps=2)[0] == pytest.approx(losses[0][:2], rel=1e-5)
    then = few.tell("held")
    few.tell("save", **where, step=3, attempt=2)
    # A rank that cannot write fails the save, and what was saved before stays.
    few.tell("full_disk", rank=1)
    assert (
        "step 4 was not saved: rank 1: OSError" in few.tell("save", **where, step=4, attempt=2)[0]
    )
    few.tell("sharded", optimization={"weight_decay_on": "matrices"}, model="mixed")
    assert "is of another model: " in few.tell("restore", **where)[1]
    few.tell("sharded", optimization=SCHEDULE | {"layer_decay": 0.9}, model="noted")
    assert "has other groups of parameters" in few.tell("restore", **where)[1]
    (newest, *_) = manifest.complete(run.checkpoints)
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata"} <= newest[1].files.keys()
    many.tell("sharded", seed=7, replicas=2, **options)
    assert many.tell("restore", **where) == [[3, three]] * 4
    assert many.tell("held") == then * 2
    assert many.tell("train_mixed", steps=2)[0] == pytest.approx(losses[0][2:], rel=1e-5)
    few.tell("zero", stage=1, model="noted")
    (said, _) = few.tell("restore", **where)
    assert "is of an engine of session.fully_shard, and this program's is of session.init" in said
    # A part that is cut short is put aside, and the save before is taken.
    part = newest[0] / "__1_0.distcp"
    part.write_bytes(part.read_bytes()[:-1])
    many.tell("sharded", seed=8, **options)
    assert many.tell("restore", **where) == [[1, one]] * 4
    assert many.tell("held") == first


@training
@pytest.mark.parametrize(
    ("size", "options", "micro"),
    [
        (4, {}, 1),
        (4, {"tensor_plan": WIDER, "accumulation": 2, "recomputes": True}, 2),
        (4, {"tensor_plan": "sequence", "foreach": True}, 1),
        (4, {"accumulation": 2, "reshard": False, "half": True}, 2),
        (2, {}, 1),
    ],
)
def test_a_tensor_group_trains_as_one_process(
    worlds: Worlds, size: int, options: dict[str, Any], micro: int
) -> None:
    ranks = worlds(size)
    alone = ranks.tell("alone", steps=20, clipping=0.8)[0]
    ranks.tell("sharded", **{**TENSOR, "gradient_clipping": 0.8, **options})
    found = ranks.tell("read_words", steps=20, micro=micro)
    assert found == [found[0]] * size
    losses, norms = ([each[place] for each in found[0]] for place in (0, 1))
    rel = 2e-2 if "half" in options else 1e-4
    assert losses == pytest.approx([loss for loss, _ in alone], rel=rel)
    assert norms == pytest.approx([norm for _, norm in alone], rel=10 * rel)
    assert max(norms) > 0.8 > min(norms)
    assert max(ranks.tell("apart")) < (5e-2 if "half" in options else 1e-4)
    assert ranks.tell("compare") == [None] * size


@training
def test_a_tensor_groups_checkpoint_fits_other_layouts(worlds: Worlds, tmp_path: Path) -> None:
    """2 x 2 ranks -> a tensor group of 2 -> 4 ranks with other samples; and its weights."""
    run, many, few = experiment(tmp_path, "pre").run(0), worlds(4), worlds(2)
    for one in (run, experiment(tmp_path, "own").run(0)):
        (one.experiment.directory / "submissions").mkdir(parents=True)
        one.directory.mkdir(parents=True)
    options = {**TENSOR, "optimization": SCHEDULE, "gradient_clipping": 0.5}
    where = {"run": str(run.directory)}
    many.tell("sharded", **options)
    many.tell("read_words", steps=1)
    first = many.tell("held")
    many.tell("save", **where, step=1)
    losses = many.tell("read_words", steps=4)
    many.tell("sharded", seed=5, **options)
    assert many.tell("restore", **where) == [[1, ONE]] * 4
    assert many.tell("held") == first
    assert many.tell("read_words", steps=4) == losses
    few.tell("sharded", seed=6, **options | {"tensor_plan": WIDER})
    assert few.tell("restore", **where) == [[1, ONE]] * 2
    assert few.tell("held") == first[:2]
    assert _flat(few.tell("read_words", steps=2)[0]) == pytest.approx(
        _flat(losses[0][:2]), rel=1e-4
    )
    then, weights = few.tell("held"), few.tell("weights")[0]
    few.tell("save", **where, step=3)
    many.tell("sharded", seed=7, **options | {"tensor": 1})
    assert many.tell("restore", **where) == [[3, THREE]] * 4
    assert many.tell("held") == then * 2
    assert _flat(many.tell("read_words", steps=2)[0]) == pytest.approx(
        _flat(losses[0][2:]), rel=1e-4
    )
    (newest, entry), _ = manifest.complete(run.checkpoints)
    assert entry.parallel == {"tensor": 2}
    # What is exported, and what another run begins with.
    exported = saved_weights.collect(newest, entry.files).tensors
    found = {name: [repr(one.contiguous().tolist())] for name, one in exported.items()}
    hashed = {name: [hashlib.sha256(text.encode()).hexdigest()] for name, [text] in found.items()}
    assert {**hashed, "seen": found["seen"]} == weights
    own = str(experiment(tmp_path, "own").run(0).directory)
    many.tell("sharded", seed=8, **options)
    assert many.tell("begin", run=own, origin="pre/0") == [[THREE, 3]] * 4
    assert many.tell("weights")[0] == weights


def _flat(pairs: list[list[float]]) -> list[float]:
    return [*itertools.chain(*pairs)]


@training
def test_what_a_tensor_group_would_train_wrong_is_refused(worlds: Worlds) -> None:
    ranks = worlds(4)
    ranks.tell("sharded", **TENSOR | {"model": "scaled"})
    for said in ranks.tell("read_words", steps=1):
        assert "have gradients of their own of layers.0.of_heads.weight, layers.0.of" in said
    for said in ranks.tell("sharded", **TENSOR, replicas=2):
        assert "replicas is 2, which nobody has tried with parallel.tensor" in said


@training
def test_weights_go_from_zero_and_back(worlds: Worlds, tmp_path: Path) -> None:
    ranks = worlds(2)
    runs = {name: experiment(tmp_path, name).run(0) for name in ("pre", "mid", "end", "own")}
    for run in runs.values():
        (run.experiment.directory / "submissions").mkdir(parents=True)
        run.directory.mkdir(parents=True)

    def save(name: str) -> None:
        ranks.tell("save", run=str(runs[name].directory), step=3)

    def begin(name: str, origin: str) -> None:
        found = ranks.tell("begin", run=str(runs[name].directory), origin=origin)
        assert found == [[THREE, 3]] * 2

    ranks.tell("zero", stage=3, model="noted")
    ranks.tell("train_mixed", steps=3)
    weights = ranks.tell("weights")[0]
    save("pre")
    ranks.tell("sharded", seed=4, model="noted")
    begin("mid", "pre/0")
    assert ranks.tell("weights")[0] == weights
    ranks.tell("train_mixed", steps=3)
    trained = ranks.tell("weights")[0]
    save("mid")
    ranks.tell("zero", stage=3, seed=5, model="noted")
    begin("end", "mid/0")
    assert ranks.tell("weights")[0] == trained
    ranks.tell("sharded", seed=6, model="noted")
    begin("own", "mid/0")
    assert ranks.tell("weights")[0] == trained
    ((directory, entry),) = manifest.complete(runs["mid"].checkpoints)
    found = saved_weights.collect(directory, entry.files)
    assert found.tied == {"again.weight": "first.weight"}
    assert found.buffers == {"seen"}
    assert [repr(found.tensors["seen"].contiguous().tolist())] == trained["seen"]
    assert found.tensors["first.weight"].shape == (13, 7)
    # A frozen layer, odd sizes, a single number.
    ranks.tell("sharded", model="mixed", optimization={"weight_decay_on": "matrices"})
    losses = ranks.tell("train_mixed", steps=3)[0]
    assert losses[2] < losses[0]


@training
@pytest.mark.parametrize(
    ("options", "what", "name", "said"),
    [
        (HYBRID, "weights", None, f"the weights {DIFFER} rank 1"),
        (HYBRID, "moments", None, f"the moments {DIFFER} rank 1"),
        (NOTED, "hyperparameters", None, f"the hyperparameters of rank 1 (n1) {OTHERS}"),
        (NOTED, "buffers", None, f"the buffers of rank 1 (n1) {OTHERS}"),
        (TENSOR, "weights", "layers.0.norm.weight", f"the weights {DIFFER} rank 0 (n0), rank 1"),
        (TENSOR, "weights", "layers.1.down.bias", f"the weights {DIFFER} rank 0 (n0), rank 1"),
        (TENSOR, "moments", "norm.weight", f"the moments {DIFFER} rank 0 (n0), rank 1 (n1)"),
        (TENSOR, "hyperparameters", None, f"the hyperparameters of rank 1 (n1) {OTHERS}"),
        (TENSOR, "buffers", None, f"the buffers of rank 1 (n1) {OTHERS}"),
    ],
)
def test_a_planted_drift_is_found(
    worlds: Worlds, options: dict[str, Any], what: str, name: str | None, said: str
) -> None:
    ranks = worlds(4)
    ranks.tell("sharded", **options)
    ranks.tell("train_mixed", steps=1)
    assert ranks.tell("compare") == [None] * 4
    ranks.tell("plant", kind=what, rank=1, name=name)
    found = ranks.tell("compare")
    assert said in found[0]
    assert len(set(found)) == 1


@training
def test_an_optimizer_that_cannot_be_saved_is_refused_after_one_step(worlds: Worlds) -> None:
    ranks = worlds(2)
    ranks.tell("sharded", factored=True)
    for said in ranks.tell("train_mixed", steps=1):
        assert "Factored keeps rows in a form of its own on each rank" in said


@training
def test_statistics_are_rank_0_s_and_layers_are_called_in_one_order(worlds: Worlds) -> None:
    """Ranks that call others gather parts of several layers as one, and no loss tells."""
    ranks = worlds(2)
    ranks.tell("sharded", model="normed")
    for _ in range(2):
        ranks.tell("train_mixed", steps=1)
        assert ranks.tell("compare") == [None] * 2
    ranks.tell("swap")
    ranks.tell("train_mixed", steps=1)
    assert f"the calls {DIFFER} rank 0 (n0), rank 1 (n1)" in ranks.tell("compare")[0]


@training
@pytest.mark.parametrize(("size", "options"), [(2, {}), (4, TENSOR)])
def test_the_average_of_the_weights(worlds: Worlds, size: int, options: dict[str, Any]) -> None:
    ranks = worlds(size)
    ranks.tell("sharded", **options)
    found = ranks.tell("average", updates=3)
    assert [name for each in found for name, is_so in each.items() if not is_so] == []


@training
def test_gradients_are_reduced_once_a_step(worlds: Worlds) -> None:
    ranks = worlds(2)
    ranks.tell("sharded", accumulation=3)
    # Two blocks, and what is in none.
    assert ranks.tell("exchanges", steps=2, micro=3) == [6, 6]


PAIRS = [
    # replicas, reshard, half, micro batches, recomputes
    (1, True, False, 1, False),
    (1, False, True, 3, True),
    (2, True, True, 3, False),
    (2, False, False, 1, True),
    (2, True, False, 3, True),
    (1, False, False, 3, False),
    (2, False, True, 1, False),
    (1, True, True, 1, True),
]


def test_each_pair_is_in_the_table() -> None:
    for one, other in itertools.combinations(range(5), 2):
        values = [sorted({row[place] for row in PAIRS}) for place in (one, other)]
        assert {(row[one], row[other]) for row in PAIRS} == {*itertools.product(*values)}


@training
@pytest.mark.parametrize(("replicas", "reshard", "half", "micro", "recomputes"), PAIRS)
def test_each_pair_trains_as_one_process(
    worlds: Worlds, replicas: int, reshard: bool, half: bool, micro: int, recomputes: bool
) -> None:
    ranks = worlds(4)
    ranks.tell("plain")
    plain = ranks.tell("train_mixed", steps=5)[0]
    options = {"reshard": reshard, "half": half, "recomputes": recomputes}
    ranks.tell("sharded", replicas=replicas, accumulation=micro, gradient_clipping=0.5, **options)
    found = ranks.tell("accumulate", steps=5, micro=micro)[0]
    assert found == pytest.approx(plain, rel=2e-2 if half else 1e-5)
    assert (found == pytest.approx(plain, rel=1e-5)) != half


@pytest.mark.parametrize(
    ("config", "spec", "parallel", "said"),
    [
        ({"fp16": {"enabled": True}}, {}, {}, "deepspeed.fp16.enabled is true, and it has no loss"),
        ({"torch_autocast": {"enabled": True}}, {}, {}, "torch_autocast.enabled is true, which no"),
        ({"scheduler": {"type": "WarmupLR"}}, {}, {}, "deepspeed.scheduler is a schedule of Deep"),
        ({"zero_optimization": {"stage": 1}}, {}, {}, "stage is 1; accepted are 3, and 2"),
        ({"zero_optimization": {"stage": 4}}, {}, {}, "stage is 4; accepted are 3, and 2"),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            *({}, {}, "deepspeed.zero_optimization.offload_optimizer means nothing to it"),
        ),
        (
            {"zero_optimization": {"zero_hpz_partition_size": 2}},
            *({}, {}, "deepspeed.zero_optimization.zero_hpz_partition_size means nothing to it"),
        ),
        (
            {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
            *({}, {}, "deepspeed.bf16.bf16_master_weights_and_grads means nothing to it"),
        ),
        ({"compile": {"deepcompile": True}}, {}, {}, "deepspeed.compile means nothing to it"),
        ({"tensor_parallel": {"autotp_size": 2}}, {}, {}, "deepspeed.tensor_parallel means not"),
        ({"prescale_gradients": True}, {}, {}, "deepspeed.prescale_gradients means nothing to it"),
        ({}, {"precision": "fp8"}, {}, "precision is fp8, which nobody has tried with it"),
        *(
            ({}, {}, {axis: 2}, "parallel is .*, and it knows tensor and data alone")
            for axis in ("pipeline", "sequence", "expert")
        ),
    ],
)
def test_what_it_does_not_do_is_refused(
    config: dict[str, Any], spec: dict[str, Any], parallel: dict[str, int], said: str
) -> None:
    with pytest.raises(UsageError, match=f"session.fully_shard: .*{said}") as refused:
        sharded_engine.options_of({**BATCH, **config}, spec, RankLayout(parallel, 2))
    assert refused.value.hint


def test_batch_clipping_and_precision_come_from_the_spec() -> None:
    config = {
        **BATCH,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": True,
            "offload_param": {"device": "none"},
        },
    }
    of_spec = {"accumulation": 2, "train_batch": 8, "half": True, "reshard": False}
    found = sharded_engine.options_of(config, {"precision": "bf16"}, RankLayout({}, 2))
    # What DeepSpeed clips at where nothing is said.
    assert found == {**of_spec, "gradient_clipping": 1.0}
    found = sharded_engine.options_of({**config, "gradient_clipping": 0}, {}, RankLayout({}, 2))
    assert found == {**of_spec, "gradient_clipping": 0.0}
    alone = sharded_engine.options_of({}, {}, RankLayout({}, 2))
    assert alone == {"half": False, "reshard": True}


def _shared() -> Any:
    layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]
    layers[1].weight = layers[0].weight
    return torch.nn.Sequential(*layers)


def _scalar() -> Any:
    model = torch.nn.Linear(3, 3)
    model.scale = torch.nn.Parameter(torch.ones(()))
    return model


def _with_more_state() -> Any:
    class Own(torch.nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"scale": 1}

    return Own(3, 3)


def _transposed() -> Any:
    model = torch.nn.Linear(3, 2)
    model.weight = torch.nn.Parameter(torch.ones(3, 2).t())
    return model


def _expert() -> Any:
    model = torch.nn.Linear(3, 3)
    model.weight.allreduce = False
    return model


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: torch.nn.Linear(3, 3, device="meta"), "weight is on the device meta"),
        (lambda: torch.nn.Linear(3, 3).bfloat16(), "weight is no fp32"),
        (_shared, "0.weight is shared between blocks"),
        (_scalar, "scale is a single number without a dimension"),
        (_expert, "weight is of an expert"),
        (_with_more_state, r"the model has a get_extra_state\(\), which is not saved"),
        (_transposed, "weight is not contiguous in memory"),
    ],
)
def test_models_that_would_train_wrong_are_refused(model: Any, said: str) -> None:
    made = model()
    with pytest.raises(UsageError, match=f"session.fully_shard: {said}") as refused:
        sharded_engine._check(made, model_blocks.find(made, None))
    assert refused.value.hint


def test_blocks_are_layers_or_what_is_named() -> None:
    layer = torch.nn.TransformerEncoderLayer(4, 1, 4)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    assert model_blocks.find(model, None) == [*model.layers]
    assert model_blocks.find(model, [torch.nn.MultiheadAttention]) == [
        each.self_attn for each in model.layers
    ]
    model._no_split_modules = ["TransformerEncoderLayer"]
    assert model_blocks.find(model, None) == [*model.layers]
    with pytest.raises(UsageError, match="blocks names Block, and the model has no such module"):
        model_blocks.find(model, ["Block"])


@pytest.mark.parametrize(
    ("named", "kind", "decay"),
    [
        ({"type": "AdamW", "params": {"torch_adam": True}}, "AdamW", 0.01),
        ({"type": "AdamW", "params": {"lr": 0.1}}, "AdamW", 0.0),
        ({"type": "Adam", "params": {"weight_decay": 0.2}}, "AdamW", 0.2),
        ({"type": "Adam", "params": {"adam_w_mode": False}}, "Adam", 0.0),
        ({"type": "SGD", "params": {"lr": 0.1}}, "SGD", 0),
    ],
)
def test_the_optimizer_is_the_one_that_deepspeed_would_take(
    named: dict[str, Any], kind: str, decay: float
) -> None:
    made = optimization.torch_optimizer({"optimizer": named})(torch.nn.Linear(2, 2).parameters())
    assert (type(made).__name__, made.param_groups[0]["weight_decay"]) == (kind, decay)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "neither the spec .* nor the program gives an optimizer"),
        ({"optimizer": {"type": "Lamb"}}, "deepspeed.optimizer.type is Lamb, which torch does not"),
        ({"optimizer": {"type": "Muon"}}, "deepspeed.optimizer.type is Muon, which torch does not"),
    ],
)
def test_optimizers_that_torch_does_not_have(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        optimization.torch_optimizer(config)


def test_an_optimizer_of_the_program_gets_the_divided_parameters() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    divided = {id(one): torch.nn.Parameter(one.detach()) for one in model.parameters()}
    sharded_engine._replace(optimizer, divided)
    assert all(any(one is each for each in divided.values()) for one in _parameters(optimizer))
    sum(one.sum() for one in _parameters(optimizer)).backward()
    optimizer.step()
    with pytest.raises(UsageError, match="the optimizer has state already"):
        sharded_engine._replace(optimizer, {id(one): one for one in _parameters(optimizer)})


def _parameters(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def test_an_index_that_would_execute_something_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / shard_files.INDEX).write_bytes(pickle.dumps(print))
    with pytest.raises(UnreadableFile, match=r"it names builtins\.print, which no index does"):
        shard_files.index(tmp_path)
    with pytest.raises(CheckpointError, match=r"it names builtins\.print"):
        saved_weights.collect(tmp_path, [shard_files.INDEX])


@training
def test_all_engines_have_what_a_session_asks_for() -> None:
    from deepspeed.runtime.engine import DeepSpeedEngine

    wanted = {
        *("__call__", "backward", "step", "train", "eval", "get_global_grad_norm"),
        *("zero_optimization_stage", "train_batch_size", "train_micro_batch_size_per_gpu"),
        *("gradient_accumulation_steps", "bfloat16_enabled", "save_checkpoint", "load_checkpoint"),
    }
    for kind in (DeepSpeedEngine, sharded_engine.ShardedEngine):
        assert [name for name in wanted if not callable(getattr(kind, name, None))] == []
    assert Optimization().ema is None
