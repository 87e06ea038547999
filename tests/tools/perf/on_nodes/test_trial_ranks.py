"""The session in a trial, around an engine that only counts."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.tools.perf.on_nodes import trial_log
from hpcrun.tools.perf.on_nodes.trial_log import TrialCandidate, TrialPlan
from hpcrun.tools.perf.on_nodes.trial_ranks import TrialOver, TrialSession, run_trials
from tests.support.place import FakeEngine, launch_of

pytest.importorskip("torch")

CANDIDATE = TrialCandidate({"width": 7}, {"train_batch_size": 4}, {"tensor": 1})


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the only rank."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HPCRUN_SCRATCH", str(tmp_path))


@pytest.fixture
def made(tmp_path: Path) -> TrialSession:
    launch = launch_of(tmp_path, config={"width": 1}, deepspeed={"train_batch_size": 2})
    return TrialSession(launch, CANDIDATE, lambda steps: len(steps) < 2)


def test_a_program_gets_the_candidates_configuration_and_leaves_no_trace(
    made: TrialSession,
) -> None:
    assert made.config.width == 7
    assert made.deepspeed_config == {"train_batch_size": 4}
    assert made._spec.spec["parallel"] == {"tensor": 1}
    engine = FakeEngine()
    assert made.restore(engine) == 0
    taken = []

    def train() -> None:
        for step in made.steps(total=50):
            engine.step()
            made.log({"loss": 1.0}, step=step)
            made.save()
            taken.append(step)

    with pytest.raises(TrialOver):
        train()
    # The first step is not measured.
    assert taken == [1, 2, 3]
    assert len(made.measured) == 2
    assert made.first_step is not None
    assert made.directory is not None
    assert not list(made.directory.rglob("*.jsonl"))
    assert made.release() is engine
    assert made.release() is None


def test_a_loop_of_the_programs_own_is_measured_too(made: TrialSession) -> None:
    engine = FakeEngine()
    made.restore(engine)
    calls = 0

    def train() -> None:
        nonlocal calls
        while True:
            calls += 1
            if calls % 2 == 0:
                engine.step()
            made.step({"loss": 1.0})

    with pytest.raises(TrialOver):
        train()
    assert (calls, len(made.measured)) == (6, 2)


def test_a_short_program_ends_with_its_steps(made: TrialSession) -> None:
    engine = FakeEngine()
    made.restore(engine)
    with pytest.raises(TrialOver):
        deque((engine.step() for _ in made.steps(total=2)), maxlen=0)
    assert len(made.measured) == 1


@pytest.mark.parametrize(
    ("message", "raised"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to", RuntimeError),
        ("mat1 and mat2 shapes cannot be multiplied", HpcrunError),
    ],
)
def test_an_end_out_of_memory_stays_one(
    message: str, raised: type[Exception], tmp_path: Path
) -> None:
    """The ledger then knows it, and larger micro batches are not tried."""
    launch = launch_of(tmp_path, **{trial_log.KEY: TrialPlan((CANDIDATE,)).to_data()})

    def program(session: TrialSession) -> None:
        raise RuntimeError(message)

    session = SimpleNamespace(rank=0, world_size=1, scratch=None)
    with pytest.raises(raised, match=message.split(":")[0]):
        run_trials(launch, program, session)
