"""Evaluation over ranks: no sample is dropped or doubled, and sums do not depend on the ranks."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

import hpcrun
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.run.data import evaluation
from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import Place

VALUES = [random.Random(number).uniform(-1, 1) * 10.0 ** (number % 30) for number in range(1_003)]


@pytest.mark.parametrize(("count", "size"), [(1, 1), (7, 3), (60, 4), (61, 4), (1_003, 16)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_each_sample_is_on_one_rank(count: int, size: int, ranks: int) -> None:
    shares = [list(evaluation.batches(count, size, rank, ranks)) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    whole = [batch for turn in zip(*shares, strict=True) for batch in turn if batch]
    assert whole == list(evaluation.batches(count, size, 0, 1))
    assert [index for batch in whole for index in batch] == list(range(count))


@pytest.mark.parametrize(("count", "size"), [(0, 1), (5, 0), (-1, 2)])
def test_a_share_of_nothing_is_refused(count: int, size: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        list(evaluation.batches(count, size, 0, 1))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_totals_are_exact_on_any_number_of_ranks(ranks: int) -> None:
    said = []
    for rank in range(ranks):
        batches = evaluation.batches(999, 1, rank, ranks)
        share = [VALUES[index] for batch in batches for index in batch]
        said.append((rank, {"loss": evaluation.partial_sums(share), "n": [float(len(share))]}))
    plain = sum(VALUES[:999])
    assert evaluation.totals(said) == {"loss": math.fsum(VALUES[:999]), "n": 999.0}
    assert plain != math.fsum(VALUES[:999]), "values that any sum adds up right show nothing"


def test_what_values_may_be() -> None:
    torch = pytest.importorskip("torch")
    assert evaluation.partial_sums(torch.tensor([[1.5, 2], [3, 4]])) == [10.5]
    assert evaluation.partial_sums(torch.tensor(7)) == [7.0]
    assert evaluation.partial_sums(True) == [1.0]
    assert evaluation.partial_sums([]) == evaluation.partial_sums(torch.zeros(0)) == []
    assert evaluation.partial_sums([math.inf, 1.0]) == [math.inf]
    assert math.isnan(evaluation.partial_sums([math.inf, -math.inf])[0])
    assert math.isnan(evaluation.totals([(0, {"x": [1.0]}), (1, {"x": [math.nan]})])["x"])


def test_ranks_that_share_a_model_count_once() -> None:
    said = [(0, {"n": [3.0]}), (0, {"n": [3.0]}), (1, {"n": [4.0]}), (1, {"n": [4.0]})]
    assert evaluation.totals(said) == {"n": 7.0}


def test_other_names_on_a_rank_are_refused() -> None:
    with pytest.raises(HpcrunError, match="rank 0 has loss, and rank 1 has none"):
        evaluation.totals([(0, {"loss": []}), (1, {})])


PROGRAM = """
import json

def train(session):
    import deepspeed
    import torch
    deepspeed.init_distributed("gloo")
    before = torch.get_rng_state()
    own, drawn = [], []
    for batch in session.shard(100, 7):
        own += batch
        drawn += torch.rand(len(batch), dtype=torch.float64).tolist()
    assert (torch.get_rng_state() == before).all()
    loss = [0.1 * 1.7**index for index in own]
    found = session.total({"loss": loss, "n": len(own), "drawn": drawn})
    print("FOUND", json.dumps(found), flush=True)
"""


@pytest.mark.training
def test_ranks_of_a_run_agree(place: Place, warm_operators: Path) -> None:
    (place.code / "evaluating.py").write_text(PROGRAM)
    operators.link(warm_operators, place.root)
    place.submit(Entry("function", module="evaluating", function="train", import_root="."), ranks=2)
    code, said = place.supervise(timeout=200)
    assert code == 0, said + place.output()
    wanted = {"loss": math.fsum(0.1 * 1.7**index for index in range(100)), "n": 100.0}
    torch, drawn = pytest.importorskip("torch"), []
    for batch in hpcrun.session().shard(100, 7):
        drawn += torch.rand(len(batch), dtype=torch.float64).tolist()
    assert len({*drawn}) == 100
    wanted["drawn"] = math.fsum(drawn)
    for rank in range(2):
        [line] = [line for line in place.output(rank).splitlines() if line.startswith("FOUND")]
        assert json.loads(line.removeprefix("FOUND")) == wanted
