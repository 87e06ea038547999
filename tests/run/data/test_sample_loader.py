"""``session.loader``: this rank's micro batches, the same whoever reads them and when."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcrun
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.run.data.mixture import Mixture
from hpcrun.run.data.sample_order import examples_of
from hpcrun.run.session import Session
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from tests.support.place import FakeEngine, launch_of

torch = pytest.importorskip("torch")

SEED = 5
Start = Callable[..., Session]


class Numbers:
    """Examples that say who they are, and what their reader draws."""

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        import numpy

        assert 0 <= index < self.length
        drawn = [random.random(), float(numpy.random.rand()), torch.rand(()).item()]
        return {"index": index, "drawn": torch.tensor(drawn, dtype=torch.float64)}


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start an attempt, as one of its ranks sees it: global batches of 8."""

    def start(
        rank: int = 0, world: int = 1, micro: int = 2, attempt: int = 1, **spec: Any
    ) -> Session:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        sizes = {
            "train_batch_size": 8,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": 8 // micro // world,
        }
        launch = launch_of(
            tmp_path,
            ranks_per_node=world,
            attempt=attempt,
            **{"config": {"seed": SEED}, "deepspeed": sizes, **spec},
        )
        launch.write()
        monkeypatch.setenv("HPCRUN_LAUNCH", str(launch.paths.launch))
        monkeypatch.setenv("HPCRUN_SCRATCH", str(tmp_path))
        return hpcrun.session()

    return start


def _read(batches: Iterator[Any]) -> list[tuple[int, tuple[float, ...]]]:
    """Index and drawn numbers of each example."""
    return [
        (int(index), tuple(drawn.tolist()))
        for batch in batches
        for index, drawn in zip(batch["index"], batch["drawn"], strict=True)
    ]


def _samples(step: int) -> list[int]:
    return examples_of(range((step - 1) * 8, step * 8), 10, SEED)


def test_a_step_has_its_samples_whoever_reads_them(start: Start) -> None:
    """With 0, 2 and 4 workers, other micro batches, on 1, 2 and 4 ranks: order and draws too."""
    loader = start().loader(Numbers())
    whole = [_read(loader(step)) for step in (1, 2, 3, 4, 5)]
    assert [[index for index, _ in step] for step in whole] == [
        _samples(step) for step in (1, 2, 3, 4, 5)
    ]
    assert len({drawn for step in whole for _, drawn in step}) == 40
    for workers, world, micro in ((2, 1, 4), (4, 2, 2), (2, 4, 1), (0, 2, 1)):
        loaders = [
            start(rank, world, micro).loader(Numbers(), num_workers=workers)
            for rank in range(world)
        ]
        found = [[one for each in loaders for one in _read(each(step))] for step in (1, 2, 3, 4, 5)]
        assert found == whole, (workers, world, micro)


def test_a_jump_begins_at_the_right_sample_and_reads_no_earlier_one(start: Start) -> None:
    seen: list[int] = []

    class Watched(Numbers):
        def __getitem__(self, index: int) -> dict[str, Any]:
            seen.append(index)
            return super().__getitem__(index)

    loader = start().loader(Watched())
    assert [index for index, _ in _read(loader(1_000_000))] == _samples(1_000_000) == seen
    assert [index for index, _ in _read(loader(2))] == _samples(2)
    # A step that was left in the middle is begun anew, or passed.
    for _ in loader(3):
        break
    assert [index for index, _ in _read(loader(4))] == _samples(4)
    assert [index for index, _ in _read(loader(4))] == _samples(4)


def test_a_jump_with_workers_drops_what_they_had_read_ahead(start: Start) -> None:
    loader = start().loader(Numbers(), num_workers=2, prefetch_factor=4)
    for step in (1, 7, 8, 3):
        assert [index for index, _ in _read(loader(step))] == _samples(step)


def test_the_training_draws_what_it_draws_without_a_loader(start: Start) -> None:
    def draws(session: Session) -> list[float]:
        torch.manual_seed(1)
        random.seed(1)
        loader = session.loader(Numbers(), num_workers=session.config.workers)
        return [torch.rand(()).item() + random.random() for _ in loader(1)]

    found = [draws(start(config={"workers": workers})) for workers in (0, 2)]
    torch.manual_seed(1)
    random.seed(1)
    assert found == [[torch.rand(()).item() + random.random() for _ in range(4)]] * 2


def _train(session: Session, total: int, **options: Any) -> list[list[int]]:
    engine = FakeEngine()
    session.restore(engine)
    loader = session.loader(Numbers(), **options)
    found = []
    for step in session.steps(total):
        found.append([index for index, _ in _read(loader(step))])
        engine.step()
    session.finish()
    return found


def test_a_stopped_run_goes_on_with_its_next_sample(start: Start) -> None:
    assert _train(start(), 3) == [_samples(1), _samples(2), _samples(3)]
    second = start(attempt=2)
    assert _train(second, 5, num_workers=2) == [_samples(4), _samples(5)]
    assert second.directory is not None
    attempt = AttemptPaths(second.directory / "attempts" / "2")
    [event] = [each for each in files.read_lines(attempt.session) if each["event"] == "data"]
    assert (event["loader"], event["samples"], event["seed"]) == (0, 10, SEED)
    for line in files.read_lines(attempt.metrics):
        assert 0 < line["data_seconds"] <= line["step_seconds"]


def test_a_loop_of_ones_own(start: Start) -> None:
    """Iterated, a loader goes on after the engine's last step, to the last of the run."""
    for attempt, (total, expected) in enumerate(((2, [1, 2]), (4, [3, 4])), start=1):
        session = start(attempt=attempt)
        session.total_steps = total
        engine = FakeEngine()
        session.restore(engine)
        found = []
        for number, batch in enumerate(session.loader(Numbers()), start=1):
            found += batch["index"].tolist()
            if number % 4 == 0:
                engine.step()
            session.step()
        session.finish()
        assert found == [index for step in expected for index in _samples(step)]


def test_the_last_step_ends_the_reading_ahead(start: Start, tmp_path: Path) -> None:
    class Written(Numbers):
        def __getitem__(self, index: int) -> dict[str, Any]:
            with open(tmp_path / "read", "a") as stream:
                stream.write(f"{index}\n")
            return super().__getitem__(index)

    session = start()
    engine = FakeEngine()
    session.restore(engine)
    loader = session.loader(Written(), num_workers=2, prefetch_factor=8)
    for step in session.steps(2):
        assert len(_read(loader(step))) == 8
        engine.step()
    assert len((tmp_path / "read").read_text().split()) == 16


def test_a_pool_that_grows(start: Start) -> None:
    """A curriculum: the samples of a step are of the first examples, as many as it says."""

    def pool(step: int) -> int:
        return 4 if step < 3 else 10

    loader = start().loader(Numbers(), pool=pool)
    found = {step: [index for index, _ in _read(loader(step))] for step in (1, 2, 3, 4)}
    assert sorted(found[1]) == sorted(found[2]) == sorted([*range(4), *range(4)])
    assert found[3] + found[4] == _samples(3) + _samples(4)
    again = start().loader(Numbers(), pool=pool, num_workers=2)
    assert [index for index, _ in _read(again(2))] == found[2]
    with pytest.raises(UsageError, match=r"pool\(1\) of session.loader is 11, .* from 1 to the 10"):
        list(start().loader(Numbers(), pool=lambda step: 11)(1))


def test_another_length_is_refused_after_progress(start: Start) -> None:
    session = start()
    _train(session, 2)
    for length, hint in ((12, "pass length=10 to session.loader"), (9, "give it its 10 examples")):
        session = start(attempt=2)
        session.restore(FakeEngine())
        loader = session.loader(Numbers(length))
        with pytest.raises(UsageError, match=rf"has {length} examples, and had 10 when") as caught:
            next(loader(3))
        assert hint in str(caught.value)
    session = start(attempt=2)
    loader = session.loader(Numbers(12), length=10)
    assert [index for index, _ in _read(loader(3))] == _samples(3)
    loader = start(attempt=3).loader(Numbers(), shuffle=False)
    with pytest.raises(UsageError, match="has shuffle=False, and had True when this run took"):
        next(loader(3))
    # Nothing was done yet: nothing is promised.
    assert len(_read(start(attempt=4).loader(Numbers(12))(1))) == 8


def test_another_mixture_is_refused_after_progress(start: Start) -> None:
    def mixture(length: int = 10, weight: float = 0.3, **more: Any) -> Mixture:
        return Mixture({"web": (Numbers(length), 0.7), "code": (Numbers(5), weight), **more})

    session = start()
    loader = session.loader(mixture())
    assert loader.epoch_of(3) is None
    engine = FakeEngine()
    session.restore(engine)
    for step in session.steps(total=2):
        assert len(_read(loader(step))) == 8
        engine.step()
    before = r"web of 10 \(0.7\), code of 5 \(0.3\) when this run took its earlier steps"
    for other in (mixture(11), mixture(weight=0.4), mixture(more=(Numbers(), 1)), Numbers()):
        session = start(attempt=2)
        session.restore(FakeEngine())
        with pytest.raises(UsageError, match=before):
            next(session.loader(other)(3))
    session = start(attempt=2)
    session.restore(FakeEngine())
    assert len(_read(session.loader(mixture(), num_workers=1)(3))) == 8


def test_an_example_of_a_mixture_that_cannot_be_read_is_named(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> dict[str, Any]:
            raise ValueError("torn")

    loader = start().loader(Mixture({"web": (Broken(1), 1)}))
    with pytest.raises(ValueError, match="torn"):
        next(loader(1))
    said = capfd.readouterr()
    assert "sample 0 of the run, web[0], cannot be read: ValueError: torn" in said.out + said.err


class _Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class _Endless:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (Numbers(0), {}, r"an empty dataset \(Numbers of length 0\)"),
        (_Stream(), {}, r"_Stream has no samples by number[\s\S]*StatefulDataLoader"),
        (iter([1]), {}, r"list_iterator has no samples by number"),
        (_Endless(), {}, r"_Endless has none[\s\S]*StatefulDataLoader"),
        (Numbers(), {"length": 11}, r"length=11\): the dataset has 10 examples"),
        (Numbers(), {"batch_size": 4}, r"takes no batch_size: .*[\s\S]*train_batch_size"),
        (Numbers(), {"num_workers": -1}, r"session.loader: num_workers"),
        (Numbers(), {"no_such": 1}, r"session.loader: .*no_such"),
        (Mixture({"a": ([1], 1)}), {"length": 1}, r"no length and no pool for a Mixture"),
    ],
    ids=[
        *("empty", "iterable", "iterator", "endless"),
        *("longer", "batch size", "negative workers", "unknown", "mixture"),
    ],
)
def test_bad_input(start: Start, dataset: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        start().loader(dataset, **options)


def test_outside_hpcrun_the_batch_sizes_are_missed() -> None:
    with pytest.raises(HpcrunError, match=r"hpcrun run SPEC"):
        next(hpcrun.session().loader(Numbers())(1))


def test_more_workers_than_processors_are_told(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    own = len(os.sched_getaffinity(0))
    start().loader(Numbers(), num_workers=own)
    assert capsys.readouterr().out == ""
    start().loader(Numbers(), num_workers=own + 1)
    assert f"{own + 1} workers of each rank share {own} processor" in capsys.readouterr().out


def test_a_long_tmpdir_is_refused_before_a_rank_waits_for_its_workers(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's socket below it would have too long a path, and only the worker would fail."""
    monkeypatch.setattr("tempfile.tempdir", f"/{'t' * 75}")
    session = start()
    with pytest.raises(UsageError, match=r"with a TMPDIR of 76 bytes [\s\S]*TMPDIR: /tmp"):
        session.loader(Numbers(), num_workers=1)
    session.loader(Numbers())
    monkeypatch.setattr("tempfile.tempdir", f"/{'t' * 74}")
    session.loader(Numbers(), num_workers=1)


class _Deadly(Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_worker_that_dies(start: Start) -> None:
    with pytest.raises(HpcrunError, match=r"a data worker of rank 0 died .* for step 1: ") as at:
        list(start().loader(_Deadly(), num_workers=1)(1))
    assert "fewer of num_workers" in str(at.value)


class _Torn(Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        raise OSError(f"torn file {index}")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_example_that_cannot_be_read_is_named(
    start: Start, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    index = _samples(2)[0]
    with pytest.raises(OSError, match=f"torn file {index}"):
        list(start().loader(_Torn(), num_workers=workers)(2))
    said = f"sample 8 of the run, dataset[{index}], cannot be read: OSError: torn file {index}"
    assert said in capfd.readouterr().out


def test_batches_of_any_shape_are_moved() -> None:
    from collections import namedtuple

    from hpcrun.run.data.sample_loader import _moved

    pair = namedtuple("pair", "left right")
    one = torch.zeros(2)
    batch = {"a": one, "b": [one, "text"], "c": (one, None), "d": pair(one, 3)}
    moved = _moved(batch, torch.device("meta"))
    assert (moved["a"].device.type, moved["b"][0].device.type) == ("meta", "meta")
    assert (moved["b"][1], moved["c"][1], moved["d"].right) == ("text", None, 3)
    assert (type(moved["d"]), moved["d"].left.device.type) == (pair, "meta")
