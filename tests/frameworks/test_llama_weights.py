"""`hpcrun weights` of a Llama of Hugging Face's, read by `from_pretrained`, on two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.run.node import op_cache
from tests.frameworks.test_programs import BY_HAND, python_of
from tests.run.ranks import Ranks
from tests.support import operators
from tests.support.command import hpcrun
from tests.support.experiment import Experiment

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ranks(warm_operators: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    directory = tmp_path_factory.mktemp("ranks")
    own = directory / "operators"
    own.mkdir()
    op_cache.copy(warm_operators, operators.key(), own)
    python = python_of("frameworks")
    made = Ranks(2, own, directory, module="tests.frameworks.llama_rank", python=python)
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("stage", "tensor"),
    [pytest.param(3, 1, marks=BY_HAND), pytest.param(0, 2, marks=BY_HAND), (3, 2)],
)
def test_a_llama(ranks: Ranks, tmp_path: Path, stage: int, tensor: int) -> None:
    study = Experiment(tmp_path / "root")
    python = python_of("frameworks")
    study.submit(spec={"environment": {"python": python, "setup": [], "variables": {}}})
    run = study.paths.run(0)
    run.directory.mkdir(parents=True)
    assert set(ranks.tell("llama", stage=stage, tensor=tensor)) == {None}
    ranks.tell("advance", steps=3)
    ranks.tell("write_config", directory=str(run.work / "export"))
    assert isinstance(ranks.tell("save", run=str(run.directory), step=3)[0], dict)
    (loss,) = set(ranks.tell("loss"))
    out = tmp_path / "out"
    ended = hpcrun("weights", "study/0", "-o", out, root=tmp_path / "root")
    assert ended.returncode == 0, ended.stderr
    tied = "tied weights: lm_head.weight is model.embed_tokens.weight" in ended.stderr
    # AutoTP divides a head that is tied, and does not gather what it gives.
    assert tied == (tensor == 1)
    (plain,) = set(ranks.tell("exported_loss", directory=str(out)))
    if tensor == 1:
        assert plain == loss
    else:
        # The slices add up in another order than the whole; divided anew they add up in the same.
        assert float.fromhex(plain) == pytest.approx(float.fromhex(loss), rel=1e-6)
        assert set(ranks.tell("llama", stage=0, tensor=2, weights=str(out))) == {None}
        assert set(ranks.tell("loss")) == {loss}
