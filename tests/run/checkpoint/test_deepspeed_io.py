"""What is known of an engine whose model is divided: what can be converted, and copied alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.checkpoint_scale import engine_of
from hpcrun.run.checkpoint import deepspeed_io
from tests.run.thread_ranks import Wire

torch = pytest.importorskip("torch")


def _engine(stage: int = 1, module: Any = None, **known: Any) -> Any:
    module = torch.nn.Linear(2, 2) if module is None else module
    return SimpleNamespace(zero_optimization_stage=lambda: stage, module=module, **known)


def _divided(parallel: dict[str, int], **given: Any) -> Any:
    engine = _engine(**given)
    deepspeed_io.note_parallel(engine, parallel)
    return engine


def test_a_whole_model() -> None:
    for engine in (_engine(), _engine(stage=0), _divided({}), _engine(mp_world_size=1)):
        assert deepspeed_io.parallel(engine) == {}
        assert deepspeed_io.model_division(engine) is None
        assert deepspeed_io.unconverted(engine) is None


def test_engines_that_were_not_made_by_parallel() -> None:
    pipeline = _engine(pipeline_parallelism=True, num_stages=2, mp_world_size=2)
    assert deepspeed_io.parallel(pipeline) == {"pipeline": 2}
    assert deepspeed_io.unconverted(pipeline) is None
    tensor = _engine(autotp_size=lambda: 4, mp_world_size=4)
    assert deepspeed_io.parallel(tensor) == {"tensor": 4}
    assert deepspeed_io.unconverted(tensor) is None
    unknown = _engine(mp_world_size=2)
    assert deepspeed_io.unconverted(unknown) == "the model is divided between ranks"
    one = _engine(pipeline_parallelism=True, num_stages=1)
    assert deepspeed_io.unconverted(one) == "the model is a pipeline"


def test_ranks_of_a_divided_model_read_each_other_s_files() -> None:
    for parallel in ({"tensor": 2}, {"pipeline": 2}, {"sequence": 2}):
        assert deepspeed_io.model_division(_divided(parallel)) is not None


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (_divided({"tensor": 2, "pipeline": 2}), None),
        (_divided({"tensor": 2}, stage=3), None),
        (_divided({"tensor": 2}, stage=0), "ZeRO 0"),
        (_divided({"tensor": 2, "sequence": 2}), "parallel.sequence"),
        (_divided({"tensor": 2}, has_moe_layers=True), "mixture-of-experts"),
        (_divided({"tensor": 2}, module=torch.nn.BatchNorm1d(2)), "buffers"),
        (_divided({"tensor": 2}, module=torch.nn.Linear(2, 2).requires_grad_(False)), "frozen"),
    ],
    ids=["both", "ZeRO 3", "ZeRO 0", "sequence", "experts", "buffers", "frozen"],
)
def test_what_is_converted(engine: Any, why: str | None) -> None:
    said = deepspeed_io.unconverted(engine)
    assert said is None if why is None else why in (said or "")


@pytest.mark.parametrize("stage_3", [False, True])
@pytest.mark.parametrize("tensor", [1, 4, 101])
def test_deepspeed_is_told_the_names_that_it_would_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor: int, stage_3: bool
) -> None:
    from deepspeed import comm

    monkeypatch.setattr(comm, "get_rank", lambda group=None: 1)
    monkeypatch.setattr("deepspeed.runtime.engine.dist.get_rank", lambda group=None: 1)
    engine = engine_of(Wire(2), 1)
    engine.zero_optimization_partition_weights = lambda: stage_3
    engine.checkpoint_mp_rank = tensor - 1
    (tmp_path / "step").mkdir()
    prefixes = [f"zero_pp_rank_{rank}_" for rank in (0, 1)]
    names = [
        f"{prefix}mp_rank_{number:02d}_model_states.pt"
        for prefix in (prefixes if stage_3 else [""])
        for number in range(tensor)
    ]
    shards = [f"{prefix}mp_rank_{tensor - 1:02d}_optim_states.pt" for prefix in prefixes]
    for name in (*names, *shards, "rank-00000.pt"):
        (tmp_path / "step" / name).touch()
    place = str(tmp_path), "step"
    found = engine._get_all_ckpt_names(*place)
    (_, own) = engine._get_all_zero_checkpoint_names(*place, False)
    with deepspeed_io.local_reads(engine, deepspeed_io.mp_ranks([*names, *shards])):
        assert engine._get_all_ckpt_names(*place) == found
        assert len(found) == tensor
        assert engine._get_all_zero_checkpoint_names(*place, False) == [None, own]
    assert "_get_all_ckpt_names" not in vars(engine)
