"""The rules of the session, around an engine that only counts; test_checkpoint has real ones."""

from __future__ import annotations

import errno
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcrun
from hpcrun import shared_look
from hpcrun.errors import CheckpointError, HpcrunError, NonFiniteLossError, UsageError
from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.run.session import Session
from hpcrun.state import files, manifest
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.spec.blocks import SpecBlocks
from tests.support.place import FakeEngine, launch_of

torch = pytest.importorskip("torch")

VARIABLES = ("HPCRUN_LAUNCH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

Start = Callable[..., Session]


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start an attempt of one rank in this process."""

    def start(attempt: int = 1, total_steps: int | None = None, **spec: Any) -> Session:
        launch = launch_of(tmp_path, attempt=attempt, **spec)
        launch.write()
        monkeypatch.setenv("HPCRUN_LAUNCH", str(launch.paths.launch))
        monkeypatch.setenv("HPCRUN_SCRATCH", "/scratch")
        return hpcrun.session(total_steps)

    return start


def _attempt(session: Session) -> AttemptPaths:
    assert session.directory is not None
    return AttemptPaths(session.directory / "attempts" / str(session.attempt))


def _events(session: Session) -> list[tuple[str, int | None]]:
    found = files.read_lines(_attempt(session).session)
    return [(record["event"], record.get("step")) for record in found]


def _metrics(session: Session) -> list[dict[str, Any]]:
    return list(files.read_lines(_attempt(session).metrics))


def _checkpoints(session: Session) -> list[str]:
    assert session.directory is not None
    return [path.name for path, _ in manifest.complete(session.directory / "checkpoints")]


def test_outside_hpcrun_everything_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = hpcrun.session(total_steps=3)
    assert (session.rank, session.world_size, session.attempt) == (0, 1, 0)
    assert (session.directory, session.scratch, session.seed) == (None, None, 0)
    assert dict(session.config) == {}
    assert session.deepspeed_config == {}
    engine = FakeEngine()
    assert session.restore(engine) == 0
    for _ in range(3):
        engine.step()
        session.step({"loss": torch.tensor(1.0)})
    session.save()
    session.finish()
    assert list(tmp_path.iterdir()) == []


def test_outside_hpcrun_the_loop_of_steps_works_as_well(tmp_path: Path) -> None:
    session = hpcrun.session()
    engine = FakeEngine()
    session.restore(engine)
    for step in session.steps(total=2):
        engine.step()
        session.log({"loss": 1.0}, step=step)
    assert engine.global_steps == 2


def test_a_plain_launcher_outside_hpcrun_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES[1:], ("3", "4", "1", "2"), strict=True):
        monkeypatch.setenv(name, value)
    session = hpcrun.session()
    assert (session.rank, session.world_size) == (3, 4)
    assert (session.local_rank, session.local_world_size) == (1, 2)


def test_an_engine_that_the_spec_s_parallel_did_not_divide_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    session = start(ranks_per_node=2, parallel={"tensor": 2})
    with pytest.raises(UsageError, match=r"divides the model \(tensor 2\), .* divided by nothing"):
        session.restore(FakeEngine())


def test_what_the_spec_says(start: Start) -> None:
    session = start(
        config={"seed": 11, "out": "${hpcrun:directory}/out", "at": "${hpcrun:attempt}"},
        deepspeed={"train_batch_size": 8, "csv_monitor": {"output_path": "${hpcrun:scratch}"}},
    )
    assert session.config.out == f"{session.directory}/out"
    assert session.config.at == "1"
    assert (session.seed, session.attempt) == (11, 1)
    assert session.scratch == Path("/scratch")
    first = session.deepspeed_config
    assert first["csv_monitor"]["output_path"] == "/scratch"
    first["csv_monitor"]["output_path"] = "changed"
    assert session.deepspeed_config["csv_monitor"]["output_path"] == "/scratch"


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("method", ["steps", "step"])
def test_steps_before_restore_are_an_error(start: Start, inside: bool, method: str) -> None:
    session = start() if inside else hpcrun.session()
    with pytest.raises(HpcrunError, match=rf"session\.{method}\(\) was called before") as caught:
        list(session.steps(total=2)) if method == "steps" else session.step()
    assert "hint: call session.restore(engine" in str(caught.value)


def test_a_session_has_one_engine(start: Start) -> None:
    """Of a second one nothing would be saved, or nothing of the first."""
    session = start()
    with pytest.raises(UsageError, match="found a Linear, which is no engine"):
        session.restore(torch.nn.Linear(1, 1))
    session.restore(FakeEngine())
    with pytest.raises(UsageError, match="called a second time") as caught:
        session.restore(FakeEngine())
    assert "session.restore(engine, other=…)" in str(caught.value.hint)


@pytest.mark.parametrize("every", [2, None])
def test_a_loop_that_is_left_early_is_saved(start: Start, every: int | None) -> None:
    session, engine = start(checkpoint={"every": every}), FakeEngine()
    session.restore(engine)
    for step in session.steps(total=9):
        engine.step()
        if step == 3:
            break
    session.finish()
    assert _checkpoints(session)[0] == "step-00000003-a1"
    assert _events(session)[-1] == ("finished", 3)
    again = start(attempt=2)
    assert again.restore(FakeEngine()) == 3
    before = _checkpoints(again)
    again.finish()
    assert _checkpoints(again) == before


OPTIMIZER = {"optimizer": {"type": "SGD", "params": {"lr": 0.5}}}


@pytest.mark.parametrize(
    ("deepspeed", "optimization", "given", "said"),
    [
        (OPTIMIZER, {}, "optimizer", "deepspeed.optimizer.type is SGD, and the program gives an"),
        ({}, {"weight_decay_on": "matrices"}, "optimizer", "makes parameter groups, and the prog"),
        (OPTIMIZER, {"warmup": 4}, "lr_scheduler", "makes a schedule, and the program gives an"),
        ({}, {}, None, "neither the spec .deepspeed.optimizer. nor the program gives an optimizer"),
        ({}, {}, "word", "the optimizer is 'AdamW'; accepted are a torch optimizer, a function"),
    ],
)
def test_what_spec_and_program_both_say_is_refused(
    start: Start,
    deepspeed: dict[str, Any],
    optimization: dict[str, Any],
    given: str | None,
    said: str,
) -> None:
    session, model = start(deepspeed=deepspeed, optimization=optimization), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    options: dict[str, Any] = {
        "optimizer": {"optimizer": optimizer},
        "lr_scheduler": {"lr_scheduler": schedule},
        "word": {"optimizer": "AdamW"},
    }
    with pytest.raises(UsageError, match=said):
        session.replicas(model, **(options[given] if given else {}))


def test_replicas_take_optimizer_groups_and_schedule_of_the_spec(start: Start) -> None:
    wanted = {"warmup": 4, "weight_decay_on": "matrices"}
    session, model = start(deepspeed=OPTIMIZER, optimization=wanted), torch.nn.Linear(2, 2)
    engine = session.replicas(model)
    assert [group["lr"] for group in engine.optimizer.param_groups] == [0.125, 0.125]
    assert [len(group["params"]) for group in engine.optimizer.param_groups] == [1, 1]


@pytest.mark.parametrize("times", [0, 2])
def test_another_number_of_optimizer_steps_is_found_at_once(start: Start, times: int) -> None:
    session = start()
    engine = FakeEngine()
    session.restore(engine)
    seen = []
    message = f"after step 1 the engine counts {times} optimizer steps"

    def loop() -> None:
        for step in session.steps(total=5):
            seen.append(step)
            for _ in range(times):
                engine.step()

    with pytest.raises(HpcrunError, match=message) as caught:
        loop()
    assert seen == [1]
    assert "engine.step() once for each of session.micro_batches(step)" in str(caught.value)
    assert _checkpoints(session) == []


def test_a_state_that_cannot_be_saved_is_refused_at_restore(start: Start) -> None:
    session = start()
    with pytest.raises(TypeError, match=r"restore\(loader=…\): list has no state_dict\(\)"):
        session.restore(FakeEngine(), loader=[1, 2])
    with pytest.raises(TypeError, match=r"restore\(ema=…\): int"):
        session.restore(FakeEngine(), ema=3)


def _train(session: Session, total: int) -> FakeEngine:
    engine = FakeEngine()
    session.restore(engine)
    for step in session.steps(total=total):
        engine.step()
        session.log({"loss": engine.weight, "noise": torch.rand(())}, step=step)
    session.finish()
    return engine


def test_a_whole_run(start: Start) -> None:
    session = start(checkpoint={"every": 2, "keep": 2})
    _train(session, 5)
    assert _events(session) == [
        *(("restored", 0), ("started", None)),
        *(("saved", 2), ("saved", 4), ("saved", 5), ("finished", 5)),
    ]
    assert _checkpoints(session) == ["step-00000005-a1", "step-00000004-a1"]
    started = list(files.read_lines(_attempt(session).session))[1]
    assert started["versions"]["torch"] == torch.__version__
    assert started["versions"]["python"] == platform.python_version()
    assert [line["step"] for line in _metrics(session)] == [1, 2, 3, 4, 5]
    assert [line["loss"] for line in _metrics(session)] == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert all(line["step_seconds"] >= 0 for line in _metrics(session))


def test_a_stopped_run_goes_on_where_it_was(start: Start) -> None:
    """The last step is saved although none is due, and a longer run goes on from there."""
    whole = _metrics_of_whole(start)
    first = start(attempt=1, checkpoint={"every": 100})
    _train(first, 3)
    second = start(attempt=2, checkpoint={"every": 100})
    engine = _train(second, 6)
    assert _events(second)[0] == ("restored", 3)
    assert (engine.global_steps, engine.weight) == (6, 3.0)
    both = _metrics(first) + _metrics(second)
    assert [(line["step"], line["loss"], line["noise"]) for line in both] == whole


def _metrics_of_whole(start: Start) -> list[tuple[int, float, float]]:
    session = start(attempt=9, checkpoint={"every": 100})
    _train(session, 6)
    lines = [(line["step"], line["loss"], line["noise"]) for line in _metrics(session)]
    assert session.directory is not None
    shutil.rmtree(session.directory)
    assert len({noise for _, _, noise in lines}) == 6
    return lines


def test_a_finished_run_takes_no_further_step(start: Start) -> None:
    _train(start(attempt=1), 3)
    second = start(attempt=2)
    _train(second, 3)
    assert ("saved", 3) not in _events(second)
    assert _metrics(second) == []
    assert _checkpoints(second) == ["step-00000003-a1"]


def test_progress_without_a_checkpoint_is_never_started_again_at_step_0(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_look, "SEEN_WITHIN", 0.5)
    first = start(attempt=1)
    _train(first, 3)
    assert first.directory is not None
    shutil.rmtree(first.directory / "checkpoints")
    with pytest.raises(CheckpointError, match="not started again at step 0 by itself") as caught:
        _train(start(attempt=2), 3)
    assert "--new" in str(caught.value)


def test_a_run_that_is_to_go_on_from_another_never_starts_at_step_0(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has removed the checkpoint with which it was to begin."""
    monkeypatch.setattr(shared_look, "SEEN_WITHIN", 0.5)
    with pytest.raises(CheckpointError, match="not started again at step 0 by itself"):
        start(search={"parent": "4@3"}).restore(FakeEngine())


def test_an_attempt_that_never_saved_is_no_progress(start: Start) -> None:
    start(attempt=1).restore(FakeEngine())
    assert start(attempt=2).restore(FakeEngine()) == 0


def test_a_periodic_save_that_fails_does_not_end_the_run(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = start(checkpoint={"every": 1})
    assert session._store is not None
    save = session._store.saver.save

    def fail_once(engine: Any, step: int, states: Any, metrics: Any) -> Any:
        if step == 2:
            raise CheckpointError("no room")
        return save(engine, step, states, metrics)

    monkeypatch.setattr(session._store.saver, "save", fail_once)
    _train(session, 3)
    assert ("save_failed", 2) in _events(session)
    assert _checkpoints(session) == ["step-00000003-a1", "step-00000001-a1"]
    assert "no room; training goes on" in capsys.readouterr().out


def test_periodic_saves_behind_the_training(start: Start) -> None:
    session = start(checkpoint={"every": 2, "asynchronous": True})
    _train(session, 5)
    assert [step for event, step in _events(session) if event == "saved"] == [2, 4, 5]
    assert _checkpoints(session) == ["step-00000005-a1", "step-00000004-a1"]
    for event in files.read_lines(_attempt(session).session):
        if event["event"] == "saved":
            assert 0 < event["blocked"] <= event["seconds"] + 0.1
    assert start(attempt=2).restore(FakeEngine()) == 5


def test_a_save_behind_the_training_that_fails_does_not_end_the_run(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = start(checkpoint={"every": 2, "asynchronous": True})
    copy = checkpoint_files.MemoryFile.copy

    def fail_once(memory: checkpoint_files.MemoryFile, path: Path) -> Any:
        if path.parent.name.startswith("step-00000002"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return copy(memory, path)

    monkeypatch.setattr(checkpoint_files.MemoryFile, "copy", fail_once)
    _train(session, 5)
    assert ("save_failed", 2) in _events(session)
    assert _checkpoints(session) == ["step-00000005-a1", "step-00000004-a1"]
    assert "No space left on device; training goes on" in capsys.readouterr().out


def test_a_disk_that_is_full_for_a_while_does_not_end_the_run(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = start(checkpoint={"every": 1})

    def full(path: Path, *lines: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "append", full)
        with pytest.raises(OSError, match="No space left"):
            _train(session, 2)
    session.finish()
    assert [line["step"] for line in _metrics(session)] == [1, 2]
    assert [event for event, _ in _events(session)][:2] == ["restored", "started"]
    assert "its lines wait" in capsys.readouterr().out


def test_the_last_save_that_fails_does_end_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start()
    assert session._store is not None

    def fail(*arguments: Any) -> Any:
        raise CheckpointError("no room")

    monkeypatch.setattr(session._store.saver, "save", fail)
    with pytest.raises(CheckpointError, match="no room"):
        _train(session, 3)


def test_a_save_in_the_body_of_the_loop_has_the_step_of_the_engine(start: Start) -> None:
    session, engine = start(), FakeEngine()
    session.restore(engine)
    for step in session.steps(total=3):
        engine.step()
        if step == 2:
            session.save()
            break
    assert _checkpoints(session) == ["step-00000002-a1"]
    again, engine = start(attempt=2), FakeEngine()
    assert again.restore(engine) == engine.global_steps == 2


class _Engine(FakeEngine):
    def get_global_grad_norm(self) -> float:
        return 2.0 + self.global_steps


@pytest.mark.parametrize("in_body", [False, True])
def test_what_is_usual_is_known_again_as_of_the_saved_step(start: Start, in_body: bool) -> None:
    spec: dict[str, Any] = {"recovery": {"on_spike": "stop"}, "checkpoint": {"every": 3}}
    session, engine = start(**spec), _Engine()
    session.restore(engine)
    for step in session.steps(total=6):
        engine.step()
        session.log({"loss": float(step)}, step)
        if in_body and step == 6:
            session.save()
            break
    again = start(attempt=2, **spec)
    assert again.restore(_Engine()) == 6
    usual = again._bad_steps.state_dict()
    assert usual["loss"] == {step: float(step) for step in range(1, 7)}
    assert usual["gradient_norm"] == {step: 2.0 + step for step in range(1, 7)}


def test_a_norm_that_is_not_finite_forbids_a_save_in_the_body(start: Start) -> None:
    session, engine = start(recovery={"on_nan": "stop"}), _Engine()
    engine.get_global_grad_norm = lambda: -1.0  # type: ignore[method-assign]
    session.restore(engine)
    for _ in session.steps(total=3):
        engine.step()
        session.save()
        break
    assert _checkpoints(session) == []


def test_a_save_of_before_goes_on_without_what_is_usual(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    _train(start(), 3)
    again = start(attempt=2, recovery={"on_spike": "stop"})
    assert again.restore(FakeEngine()) == 3
    assert "no state of 'hpcrun_usual_values' was saved; it begins anew" in capfd.readouterr().out


def test_a_training_in_evaluation_mode_is_told_once(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    session, model = start(), torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.5))
    engine = session.replicas(model, torch.optim.SGD(model.parameters(), lr=0.1))
    session.restore(engine)
    told = []
    for step in session.steps(total=5):
        if step == 2:
            engine.eval()
            before = torch.get_rng_state()
            session.eval_batch(torch.rand(1, 1) for _ in range(2))
            assert torch.equal(torch.get_rng_state(), before)
            engine.train()
        if step == 3:
            engine.eval()
        engine.backward(engine(torch.ones(1, 1)).sum())
        engine.step()
        told.append(capfd.readouterr().out.count("trained in evaluation mode"))
    assert told == [0, 0, 1, 0, 0]


def test_weights_that_are_not_finite_are_not_saved(start: Start) -> None:
    """The last step's own update may spoil them while its loss is still finite."""
    session, engine = start(checkpoint={"every": 1}), FakeEngine()
    engine.module = torch.nn.Linear(1, 1)  # type: ignore[attr-defined]
    session.restore(engine)

    def loop() -> None:
        for step in session.steps(total=2):
            engine.step()
            if step == 2:
                torch.nn.init.constant_(engine.module.weight, float("nan"))  # type: ignore[attr-defined]
            session.log({"loss": 1.0}, step)

    with pytest.raises(NonFiniteLossError, match="after step 2, the last, the weights are not fin"):
        loop()
    assert _checkpoints(session) == ["step-00000001-a1"]
    assert ("save_skipped", 2) in _events(session)


def test_an_existing_loop_in_three_lines(start: Start) -> None:
    """`step` acts when the engine has taken a step, so it may stand inside accumulation."""
    session = start(total_steps=3, checkpoint={"every": 2})
    engine = FakeEngine()
    session.restore(engine)
    micro = 0
    while engine.global_steps < 3:
        micro += 1
        if micro % 4 == 0:
            engine.step()
        session.step({"loss": float(micro)})
    session.finish()
    assert [(line["step"], line["loss"]) for line in _metrics(session)] == [
        *((1, 4.0), (2, 8.0), (3, 12.0)),
    ]
    assert _events(session) == [
        *(("restored", 0), ("started", None), ("saved", 2), ("saved", 3), ("finished", 3)),
    ]


class _Loader:
    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def test_states_are_saved_with_the_engine(start: Start) -> None:
    first = start(attempt=1)
    loader = _Loader()
    engine = FakeEngine()
    first.restore(engine, loader=loader)
    for _ in first.steps(total=2):
        engine.step()
        loader.position += 5
    later = _Loader()
    assert start(attempt=2).restore(FakeEngine(), loader=later) == 2
    assert later.position == 10


def _sampler(rank: int, world: int, micro: int, accumulation: int) -> Session:
    session = Session(None)
    session.rank, session.world_size = rank, world
    session._spec = SpecBlocks(
        {
            "deepspeed": {
                "train_batch_size": micro * accumulation * world,
                "train_micro_batch_size_per_gpu": micro,
                "gradient_accumulation_steps": accumulation,
            }
        }
    )
    return session


_SMALL = st.integers(1, 6)


@given(world=_SMALL, micro=_SMALL, accumulation=_SMALL, step=st.integers(1, 50))
def test_every_sample_of_a_global_batch_exactly_once(
    world: int, micro: int, accumulation: int, step: int
) -> None:
    batch = world * micro * accumulation
    seen: list[int] = []
    for rank in range(world):
        micros = list(_sampler(rank, world, micro, accumulation).micro_batches(step))
        assert [len(indices) for indices in micros] == [micro] * accumulation
        seen += [index for indices in micros for index in indices]
    assert sorted(seen) == list(range((step - 1) * batch, step * batch))


@given(st.data())
def test_a_ranks_share_does_not_depend_on_how_it_is_cut(data: st.DataObject) -> None:
    world, step = data.draw(_SMALL), data.draw(st.integers(1, 50))
    share = data.draw(st.sampled_from([4, 6, 12, 24]))
    rank = data.draw(st.integers(0, world - 1))
    divisors = [micro for micro in range(1, share + 1) if share % micro == 0]
    shares = {
        tuple(index for part in session.micro_batches(step) for index in part)
        for micro in divisors
        for session in [_sampler(rank, world, micro, share // micro)]
    }
    assert len(shares) == 1


@given(step=st.integers(1, 50), worlds=st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), min_size=2))
def test_a_global_batch_holds_the_same_samples_at_any_world_size(
    step: int, worlds: list[int]
) -> None:
    batches = {
        frozenset(
            index
            for rank in range(world)
            for part in _sampler(rank, world, 12 // world, 2).micro_batches(step)
            for index in part
        )
        for world in worlds
    }
    assert len(batches) == 1
