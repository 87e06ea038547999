"""A run whose data hold a NaN goes on without that batch, and trains as if it had never been."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import EXIT_SAVED
from hpcrun.observe.diagnosis import narrative
from hpcrun.policy import next_attempt
from hpcrun.run.checkpoint import rank_state
from hpcrun.run.health import bad_steps
from hpcrun.run.protocol.launch import Launch
from hpcrun.state import ledger, manifest
from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import Place

pytestmark = [pytest.mark.training]

PROGRAM = """
import numpy, os, random, signal, torch
from torch import nn

class Data(torch.utils.data.Dataset):
    def __init__(self, config):
        self.config = config
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        for first in self.config.removed:
            index += 4 * (index >= first)
        x = torch.full((4,), 1 + index % 7 / 10)
        if index in self.config.nan:
            x[2] = float("nan")
        return x * (100 if index in self.config.large else 1)

def evaluate(session, engine, dtype):
    engine.eval()
    found = []
    with torch.no_grad():
        for indices in session.shard(6, 2):
            noise = torch.rand(len(indices), 4) + random.random() + numpy.random.rand()
            x = (torch.tensor(indices).view(-1, 1) + noise).to(dtype)
            found += engine(x).square().mean(1).tolist()
    engine.train()
    return session.total({"loss": found})["loss"]

def train(session):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    if session.config.engine == "initialize":
        import deepspeed
        # DeepSpeed forbids fp16 on CPUs that compute it slowly.
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
        engine, *_ = session.initialize(model=model, model_parameters=model.parameters())
    else:
        engine = getattr(session, session.config.engine)(model)
    session.restore(engine)
    data = Data(session.config)
    loader = session.loader(data, shuffle=False) if session.config.loader else None
    for step in session.steps(total=session.config.total):
        is_last = session.rank == session.world_size - 1
        if is_last and session.config.killed_at.get(f"attempt {session.attempt}") == step:
            os.kill(os.getpid(), signal.SIGKILL)
        if session.config.evaluated == "before":
            session.log({"eval/loss": evaluate(session, engine, model.weight.dtype)}, step)
        if session.config.own:
            numbers = [list(range(4))]
        elif loader is None:
            numbers = list(session.micro_batches(step))
        read = loader(step) if loader else (torch.stack([data[i] for i in one]) for one in numbers)
        for x in read:
            x = x.to(model.weight.dtype)
            loss = (engine(torch.dropout(x, 0.1, True)) - x.flip(-1)).square().mean()
            # A gradient may be none where the loss is one still.
            if session.config.root and 26 in numbers[0]:
                loss = loss + (model.weight.sum() * 0).sqrt()
            engine.backward(loss)
            engine.step()
        session.log({"loss": loss.detach()}, step)
        if session.config.evaluated == "after":
            session.log({"eval/loss": evaluate(session, engine, model.weight.dtype)}, step)
"""
DEEPSPEED = {
    "train_batch_size": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
}
CONFIG: dict[str, Any] = {
    **{"removed": [], "nan": [], "large": [], "root": False, "loader": True},
    **{"total": 12, "killed_at": {}, "own": False, "engine": "initialize"},
    "evaluated": "",
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
    assert narrative.bad_batch(only) == told


# Steps: in the attempt after that with the NaN, and at once in that after the spike.
KILLED = {"attempt 2": 23, "attempt 4": 25}


@pytest.mark.parametrize(
    ("engine", "ranks", "killed_at"),
    [("initialize", 2, KILLED), ("fully_shard", 1, {"attempt 2": 23}), ("replicas", 1, {})],
)
def test_what_is_left_out_is_as_if_it_had_never_been_whatever_is_killed(
    train: Train, engine: str, ranks: int, killed_at: dict[str, int]
) -> None:
    """A NaN in global batch 22, and a spike in 26, which step 25 has once the first is left out."""
    options: dict[str, Any] = {"engine": engine, "total": 28}
    never = train(ranks, removed=[84, 100], evaluated="after", **options)
    assert never.kinds == [None], never.explained()
    bad = {"nan": [86], "large": [101], "on_nan": "skip", "on_spike": "skip"}
    found = train(ranks, **bad, killed_at=killed_at, evaluated="before", **options)
    ends = [
        ("non_finite_loss", 0, [84, 87]),
        *([("rank_crash", 20, None)] if "attempt 2" in killed_at else []),
        # Five steps after it was restored, it still knows what is usual.
        ("loss_spike", 20, [100, 103]),
        *([("rank_crash", 24, None)] if "attempt 4" in killed_at else []),
        (None, 24, None),
    ]
    assert found.kinds == [kind for kind, *_ in ends], found.explained()
    assert [one.end["restored_step"] for one in found.attempts] == [step for _, step, _ in ends]
    assert [(one.decided or {}).get("left_out") for one in found.attempts] == [
        samples for *_, samples in ends
    ]
    assert found.losses == never.losses
    assert len(found.losses) == 28
    # Dropout of the training does not see that there is an evaluation, nor that a restart.
    assert [line["eval/loss"] for line in found.metrics[1:]] == [
        line["eval/loss"] for line in never.metrics[:-1]
    ]
    told = "Left out from then on: global batch 22, samples 84 to 87 of epoch 1, on which step 22"
    assert narrative.bad_batch(found.attempts[0]).startswith(told)
    assert next_attempt.left_out_words(found.attempts) == "2 global batches left out"
    losses = {line["step"]: line["loss"] for line in found.metrics}
    for directory, saved in manifest.complete(found.place.run.checkpoints):
        for rank in range(ranks):
            states = rank_state.read(directory / rank_state.name(rank))["states"]
            known = {step: loss for step, loss in losses.items() if step <= saved.step}
            assert states[bad_steps.STATE]["loss"] == known


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


def test_all_that_is_bad_in_a_row_is_not_left_out(train: Train) -> None:
    found = train(nan=[*range(16, 400)], on_nan="skip", in_place=5)
    # The first of them came after a save.
    assert found.kinds == ["non_finite_loss"] * 4, found.explained()
    assert "recovery.max_failures is 3" in (found.attempts[-1].decided or {})["reason"]


def test_what_the_engine_knows_is_logged_and_saved(train: Train) -> None:
    """Gradients of the first steps overflow until the loss scale has halved often enough.

    A step that DeepSpeed leaves out itself, as that on the NaN, ends nothing.
    """
    half = {"enabled": True, "initial_scale_power": 20, "hysteresis": 1}
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 4}}
    options = {**ZERO, "gradient_clipping": 1.0, "fp16": half, "scheduler": schedule}
    found = train(2, options, nan=NAN, on_nan="stop", killed_at={"attempt 1": 6})
    assert found.kinds == ["rank_crash", None], found.explained()
    assert found.attempts[1].end["restored_step"] == 4
    assert "gradient_norm" not in found.metrics[4]
    scale, skipped = 2.0**20, 0
    for line in found.metrics:
        if "gradient_norm" in line:
            assert 0 < line["gradient_norm"] < 100
        else:
            scale, skipped = scale / 2, skipped + 1
        assert (line["loss_scale"], line["skipped_steps"]) == (scale, skipped)
    assert 0 < skipped < 12
    rates = [line["learning_rate"] for line in found.metrics]
    assert rates == sorted(rates)
    assert 0 < rates[-1] <= 0.1
    assert "mfu" not in found.metrics[0]
    (_, saved), *_ = manifest.complete(found.place.run.checkpoints)
    for name in ("loss_scale", "gradient_norm", "skipped_steps"):
        assert saved.metrics[name] == found.metrics[-1][name]


def test_samples_of_ones_own_cannot_be_left_out(train: Train) -> None:
    found = train(on_nan="skip", own=True, loader=False, total=3, max_failures=1)
    assert found.kinds == ["rank_crash"]
    assert "the samples are not those of session.loader" in found.attempts[0].cause["message"]
