"""Steps that go bad are found, and the right one is blamed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpcrun.errors import LossSpikeError, NonFiniteLossError, UsageError
from hpcrun.run.health import bad_steps
from hpcrun.run.health.bad_steps import LEAST_STEPS, BadSteps
from hpcrun.state.spec.experiment import Recovery

NAN, INF = math.nan, math.inf


class View:
    """A rank that keeps what is recorded."""

    def __init__(self, rank: int = 0, *, gave_samples: bool = True) -> None:
        self.rank, self.gave_samples = rank, gave_samples
        self.recorded: list[tuple[int, str]] = []

    def record_bad_step(self, step: int, cause: str, message: str) -> None:
        self.recorded.append((step, cause))


class Engine:
    """Tells whether a step was applied, and the norm."""

    def __init__(self, *, applied: bool = True, norm: float | None = 1.0) -> None:
        self.applied, self.norm = applied, norm

    def was_step_applied(self) -> bool:
        return self.applied

    def get_global_grad_norm(self) -> float | None:
        return self.norm


class Log:
    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, metrics: dict[str, Any], step: int, *, spare: bool) -> None:
        assert spare
        self.logged.append(metrics)


def _judged(values: list[dict[str, float]], view: View | None = None, **policy: Any) -> BadSteps:
    found = BadSteps(Recovery(**policy), frozenset({"loss", "accuracy"}), view or View())  # type: ignore[arg-type]
    for step, each in enumerate(values, 1):
        found.judge(step, dict(each))
    return found


def _losses(*values: float) -> list[dict[str, float]]:
    return [{"loss": value} for value in values]


@pytest.mark.parametrize(
    ("values", "blamed"),
    [
        (_losses(1, NAN, NAN, NAN), 2),
        (_losses(1, INF, -INF, NAN), 2),
        (_losses(1, NAN, NAN, 1), None),
        (_losses(NAN, 1, NAN, NAN), None),
        ([{"loss": 1, "gradient_norm": -1}, *_losses(NAN, NAN, NAN)], 1),
        ([{"loss": 1, "gradient_norm": NAN}, {"loss": 1, "gradient_norm": 2}], None),
        # Long before, and mended.
        (
            [
                *({"loss": 1, "gradient_norm": INF}, {"loss": 1, "gradient_norm": 2}),
                *({"loss": NAN, "gradient_norm": -1} for _ in range(3)),
            ],
            3,
        ),
        # An evaluation now and then.
        ([{"accuracy": NAN}, {}, {"accuracy": NAN}, {}, {"accuracy": NAN}], 1),
    ],
)
def test_the_step_with_which_it_begins_is_blamed(
    values: list[dict[str, float]], blamed: int | None
) -> None:
    view = View()
    found = _judged(values, view, on_nan="skip")
    if blamed is None:
        found.check()
        assert view.recorded == []
        return
    with pytest.raises(NonFiniteLossError):
        found.check()
    assert view.recorded == [(blamed, "non_finite_loss")]


def test_a_loss_scaler_s_overflow_is_nobody_s_fault() -> None:
    view = View()
    found = BadSteps(Recovery(on_nan="skip"), frozenset({"loss"}), view)  # type: ignore[arg-type]
    for step, (applied, norm) in enumerate([(True, 1.0), (False, INF), (True, 1.0)], 1):
        found.after_step(Engine(applied=applied, norm=norm), step, Log())  # type: ignore[arg-type]
        kept = found.judge(step, {"loss": 1.0, "gradient_norm": norm})
        assert ("gradient_norm" in kept) is applied
        assert found.reason is None


def test_a_norm_that_is_no_norm_is_not_logged() -> None:
    found = _judged([])
    assert found.judge(1, {"loss": 1.0, "gradient_norm": -1.0}) == {"loss": 1.0}


def test_without_a_norm_the_weights_are_looked_at() -> None:
    torch = pytest.importorskip("torch")
    engine: Any = Engine(norm=None)
    engine.module = torch.nn.Linear(2, 2)
    engine.module.weight.data[1, 1] = NAN
    log = Log()
    found = BadSteps(Recovery(on_nan="skip"), frozenset({"loss"}), View())  # type: ignore[arg-type]
    found.after_step(engine, 1, log)  # type: ignore[arg-type]
    (values,) = log.logged
    assert found.judge(1, {name: float(one) for name, one in values.items()}) == {}
    assert found.reason == "the gradients are not finite"


def test_a_step_without_weights_of_its_own_is_not_looked_at() -> None:
    log = Log()
    found = BadSteps(Recovery(on_nan="skip"), frozenset({"loss"}), View())  # type: ignore[arg-type]
    found.after_step(object(), 1, log)  # type: ignore[arg-type]
    assert log.logged == [{}]


@pytest.mark.parametrize("name", ["loss", "gradient_norm"])
def test_a_spike_is_that_many_times_the_median(name: str) -> None:
    view = View()
    values = [{name: 1.0 + step % 3 / 10} for step in range(LEAST_STEPS)]
    found = _judged([*values, {name: 5.4}], view, on_spike="stop")
    found.check()
    found.judge(LEAST_STEPS + 2, {name: 5.6})
    assert f"step 22: {name} is 5.6, 5.09 times the median of the 21 steps" in str(found.reason)
    with pytest.raises(LossSpikeError, match="step 22"):
        found.check()
    assert view.recorded == [(22, "loss_spike")]


@pytest.mark.parametrize(
    ("values", "policy"),
    [
        (_losses(*[1.0] * (LEAST_STEPS - 1), 900.0), {"on_spike": "stop"}),
        (_losses(*[1.0] * LEAST_STEPS, 900.0), {}),
        (_losses(*[1.0] * LEAST_STEPS, 900.0), {"on_spike": "stop", "spike": 1000}),
        # What may be negative has no such measure.
        (_losses(*[-1.0] * LEAST_STEPS, 900.0), {"on_spike": "stop"}),
        ([{"other": 1.0}] * LEAST_STEPS + [{"other": 900.0}], {"on_spike": "stop"}),
    ],
)
def test_what_is_no_spike(values: list[dict[str, float]], policy: dict[str, Any]) -> None:
    found = _judged(values, **policy)
    found.check()
    assert found.reason is None


def test_where_it_goes_on_a_spike_is_measured_as_before() -> None:
    values = [{"loss": 1.0 + step % 7, "gradient_norm": 2.0} for step in range(70)]
    whole = _judged(values, on_spike="stop")
    # Rank 1 is not told the norm, and a value is judged again after a save in the loop's body.
    other = _judged(_losses(*[1.0] * 70), View(rank=1), on_spike="stop")
    later = _judged([], on_spike="stop")
    later.load_state_dicts([whole.state_dict(), other.state_dict()])
    later.judge(70, {"loss": 900.0})
    assert later.reason is None
    for one in (whole, later):
        one.judge(71, {"loss": 19.9, "gradient_norm": 2.0})
        assert one.reason is None
        one.judge(72, {"loss": 1.0, "gradient_norm": 10.1})
    assert "5.05 times the median of the 50 steps" in str(whole.reason)
    assert later.reason == whole.reason


def test_batches_that_are_not_the_session_s_cannot_be_left_out() -> None:
    view = View(gave_samples=False)
    found = BadSteps(Recovery(on_spike="skip"), frozenset(), view)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the samples are not those of"):
        found.check_source(has_own_loader=True)
    with pytest.raises(UsageError, match="the samples are not those of"):
        found.after_step(Engine(), 1, Log())  # type: ignore[arg-type]
    _judged([], view, on_spike="stop").check_source(has_own_loader=True)


def test_other_ranks_leave_rank_0_the_time_to_record_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(bad_steps.time, "sleep", waits.append)
    for policy, waited in (({}, 0), ({"on_nan": "skip"}, 1)):
        view = View(rank=1)
        with pytest.raises(NonFiniteLossError):
            _judged(_losses(NAN, NAN, NAN), view, **policy).check()
        assert view.recorded == []
        assert len(waits) == waited


def test_at_the_end_one_is_enough_unless_it_never_is() -> None:
    _judged(_losses(1, NAN), non_finite_steps=0).check(most=1)
    found = _judged(_losses(1, NAN))
    found.check()
    with pytest.raises(NonFiniteLossError):
        found.check(most=1)
