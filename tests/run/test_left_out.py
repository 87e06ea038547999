"""A run whose data hold a NaN goes on without that batch, and trains as if it had never been."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import EXIT_SAVED
from hpcrun.observe.status import bad_batches
from hpcrun.run.protocol.launch import Launch
from hpcrun.state import ledger
from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import Place

pytestmark = [pytest.mark.training]

# Samples 16 to 19 are global batch 5: without them, the data go on with 20.
PROGRAM = """
import os, signal, torch
from torch import nn

class Data(torch.utils.data.Dataset):
    def __init__(self, config):
        self.config = config
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        if self.config.removed and index >= 16:
            index += 4
        x = torch.full((4,), 1 + index % 7 / 10)
        if index in self.config.nan:
            x[2] = float("nan")
        return x * (100 if index in self.config.large else 1)

def train(session):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    engine, *_ = session.initialize(model=model, model_parameters=model.parameters())
    session.restore(engine)
    data = Data(session.config)
    loader = session.loader(data, shuffle=False) if session.config.loader else None
    for step in session.steps(total=session.config.total):
        if session.attempt == session.config.killed_in and step == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if session.config.own:
            numbers = [list(range(4))]
        elif loader is None:
            numbers = list(session.micro_batches(step))
        read = loader(step) if loader else (torch.stack([data[i] for i in one]) for one in numbers)
        for x in read:
            x = x.to(model.weight.dtype)
            loss = (engine(x) - x.flip(-1)).square().mean()
            # A gradient may be none where the loss is one still.
            if session.config.root and 26 in numbers[0]:
                loss = loss + (model.weight.sum() * 0).sqrt()
            engine.backward(loss)
            engine.step()
        session.log({"loss": loss}, step)
"""
DEEPSPEED = {
    "train_batch_size": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
}
CONFIG: dict[str, Any] = {
    **{"removed": False, "nan": [], "large": [], "root": False, "loader": True},
    **{"total": 12, "killed_in": 0, "own": False},
}
NAN = [18]


@dataclass
class Trained:
    """A run after its supervisor has left."""

    place: Place
    code: int

    @property
    def attempts(self) -> list[ledger.Attempt]:
        return ledger.read(self.place.run)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The last line of each step, in order."""
        found: dict[int, dict[str, float]] = {}
        for attempt in self.place.run.attempts():
            # One that was killed early has none.
            text = attempt.metrics.read_text() if attempt.metrics.exists() else ""
            for record in map(json.loads, text.splitlines()):
                found[record["step"]] = record
        return [line for _, line in sorted(found.items())]

    @property
    def losses(self) -> list[float]:
        return [line["loss"] for line in self.metrics]

    @property
    def kinds(self) -> list[str | None]:
        return [one.kind for one in self.attempts]

    def explained(self) -> str:
        return self.place.output(attempt=self.attempts[-1].number)


Train = Callable[..., Trained]


@pytest.fixture
def train(tmp_path: Path, warm_operators: Path) -> Iterator[Train]:
    """Submit a run and supervise it to its end."""
    places: list[Place] = []
    entry = Entry("function", module="mine", function="train", import_root="lib")

    def train(
        ranks: int = 1, deepspeed: dict[str, Any] | None = None, *, every: int = 4, **given: Any
    ) -> Trained:
        config = {**CONFIG, **{name: given.pop(name) for name in CONFIG if name in given}}
        directory = tmp_path / str(len(places))
        directory.mkdir()
        place = Place(directory)
        places.append(place)
        library = place.code / "lib"
        library.mkdir()
        (library / "mine.py").write_text(PROGRAM)
        operators.link(warm_operators, place.root)
        sizes = {"train_micro_batch_size_per_gpu": 4 // ranks, "gradient_accumulation_steps": 1}
        place.submit(
            entry,
            ranks=ranks,
            deepspeed={**DEEPSPEED, **sizes, **(deepspeed or {})},
            config=config,
            checkpoint={"every": every},
            recovery={"warm_after": None, **given},
        )
        code, _ = place.supervise(timeout=170.0)
        return Trained(place, code)

    yield train
    for place in places:
        place.close()


def test_by_default_it_is_replayed_until_the_budget_ends(train: Train) -> None:
    found = train(nan=NAN)
    assert found.code != 0
    assert found.kinds == ["non_finite_loss"] * 2, found.explained()
    first, last = found.attempts
    assert "budgets.non_finite_loss is 2" in (last.decided or {})["reason"]
    assert first.end["bad_step"]["samples"] == [16, 19]
    assert "left_out" not in (first.decided or {})


def test_it_stops_at_once_if_that_is_wanted(train: Train) -> None:
    found = train(nan=NAN, on_nan="stop")
    assert found.code != 0
    assert found.kinds == ["non_finite_loss"], found.explained()
    (only,) = found.attempts
    assert (only.decided or {})["reason"] == "recovery.on_nan is stop"
    told = "Step 5 trained on global batch 5, samples 16 to 19 of epoch 1."
    assert bad_batches.of_attempt(only) == told


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_batch_is_left_out_also_where_its_steps_are_replayed(train: Train, ranks: int) -> None:
    never = train(ranks, removed=True)
    assert never.kinds == [None], never.explained()
    # Killed at step 7 of attempt 2, it goes on from step 4 once more.
    found = train(ranks, nan=NAN, on_nan="skip", killed_in=2)
    assert found.kinds == ["non_finite_loss", "rank_crash", None], found.explained()
    assert [one.end["restored_step"] for one in found.attempts] == [0, 4, 4]
    assert [(one.decided or {}).get("left_out") for one in found.attempts] == [[16, 19], None, None]
    assert found.losses == never.losses
    assert len(found.losses) == 12
    told = "Left out from then on: global batch 5, samples 16 to 19 of epoch 1, on which step 5"
    assert bad_batches.of_attempt(found.attempts[0]).startswith(told)
    assert bad_batches.left_out(found.attempts) == "1 global batch left out"


def test_a_requeue_leaves_it_out_too(train: Train) -> None:
    found = train(nan=NAN, on_nan="skip", in_place=0, total=8)
    assert (found.code, found.kinds) == (EXIT_SAVED, ["non_finite_loss"]), found.explained()
    code, _ = found.place.supervise(timeout=170.0)
    assert (code, found.kinds) == (0, ["non_finite_loss", None]), found.explained()
    launches = [Launch.read(one.launch).left_out for one in found.place.run.attempts()]
    assert launches == [(), ((16, 19),)]
    assert len(found.losses) == 8


ZERO = {"zero_optimization": {"stage": 1}}
# Other kinds of ZeRO leave such steps out by themselves.
UNCHECKED = {"enabled": True, "check_grad_overflow": False}


@pytest.mark.parametrize("deepspeed", [{}, {**ZERO, "bf16": UNCHECKED}], ids=["0", "1"])
def test_a_gradient_that_is_not_finite_is_blamed_for_the_loss_after_it(
    train: Train, deepspeed: dict[str, Any]
) -> None:
    """Without ZeRO DeepSpeed tells no norm: the weights show it. Else it tells one of -1."""
    found = train(1, deepspeed, root=True, on_nan="skip", loader=False, total=9)
    assert found.kinds == ["non_finite_loss", None], found.explained()
    message = found.attempts[0].cause["message"]
    assert "not been finite since step 8, after a gradient at step 7" in message
    assert found.attempts[0].end["bad_step"]["samples"] == [24, 27]


def test_a_step_that_deepspeed_leaves_out_itself_ends_nothing(train: Train) -> None:
    found = train(1, ZERO, nan=NAN, on_nan="stop")
    assert found.kinds == [None], found.explained()
    assert "gradient_norm" not in found.metrics[4]


def test_all_that_is_bad_in_a_row_is_not_left_out(train: Train) -> None:
    found = train(nan=[*range(16, 400)], on_nan="skip", in_place=5)
    # The first of them came after a save.
    assert found.kinds == ["non_finite_loss"] * 4, found.explained()
    assert "recovery.max_failures is 3" in (found.attempts[-1].decided or {})["reason"]


def test_a_spike_is_left_out(train: Train) -> None:
    wanted = {"large": [101], "total": 32, "every": 10}
    calm = train(**wanted)
    assert calm.kinds == [None]
    found = train(**wanted, on_spike="skip")
    assert found.kinds == ["loss_spike", None], found.explained()
    assert found.attempts[0].cause["message"].startswith("rank 0")
    assert found.attempts[0].end["bad_step"]["samples"] == [100, 103]
    assert max(found.losses[20:]) < max(calm.losses[20:]) / 10


def test_what_the_engine_knows_is_logged(train: Train) -> None:
    zero = {**ZERO, "gradient_clipping": 1.0}
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 4}}
    found = train(2, {**zero, "scheduler": {**schedule}}, total=4)
    assert found.code == 0, found.explained()
    assert all(0 < line["gradient_norm"] < 100 for line in found.metrics)
    rates = [line["learning_rate"] for line in found.metrics]
    assert rates == sorted(rates)
    assert rates[-1] < 0.1
    assert "mfu" not in found.metrics[0]


def test_samples_of_ones_own_cannot_be_left_out(train: Train) -> None:
    found = train(on_nan="skip", own=True, loader=False, total=3, max_failures=1)
    assert found.kinds == ["rank_crash"]
    assert "the samples are not those of session.loader" in found.attempts[0].cause["message"]
