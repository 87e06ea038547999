"""tqdm's bars, as programs print them."""

from __future__ import annotations

import pytest

from hpcrun.run.program.progress_source import Look
from hpcrun.run.program.sources.progress_bars import BAR_WAITS, ProgressBars, bar

TRAINING = "  2%|▏         | 12/500 [00:10<04:20,  3.7it/s]"


@pytest.mark.parametrize(
    ("text", "step", "total"),
    [
        (TRAINING, 12, 500),
        ("\x1b[A 37/1000", None, None),
        ("training: 100%|██████████| 8/8 [1:00:00<00:00, 2.00s/it, loss=1.2]", 8, 8),
        ("Epoch 2:  25%|██▌       | 25/100 [00:03<00:10,  7.1it/s, v_num=0]", 25, 100),
        ("Tokenizing train dataset:  50%|█████     | 1/2 [00:00<00:00]", None, None),
        ("Running tokenizer on train dataset: 50%|##| 1/2 [00:00<00:00]", None, None),
        ("Validation epoch 1: 50%|##| 1/2 [00:00<00:00]", None, None),
        ("Epoch 1 [val]: 50%|##| 1/2 [00:00<00:00]", None, None),
        (" 50%|#####     | 500/1000 [00:01<00:01, 900.00 examples/s]", None, None),
        (" 50%|#####     | 5120/10240 [00:01<00:01, 5.12kB/s]", None, None),
        (" 50%|#####     | 10/20 [00:01<00:01, 5.12MB/s]", None, None),
        (" 50%|#####     | 10/20 [00:01<00:01, 5.12iB/s]", None, None),
        (" 50%|#####     | 1/2 [00:01<00:01, 1.00s/file]", None, None),
        ("val_loss 0.31: 50%|##| 1/2 [00:00<00:00]", None, None),
        ("train_loss 0.3 val_loss 0.4: 50%|##| 1/2 [00:00<00:00]", 1, 2),
        ("loss 0.3124: 25%|██▌       | 25/100 [00:03<00:10, 7.1batch/s]", 25, 100),
        ("Map: 100%|██████████| 1000/1000 [00:01<00:00, 900 examples/s]", None, None),
        ("Loading checkpoint shards:  50%|█████     | 1/2 [00:00<00:00]", None, None),
        ("Validation DataLoader 0:  50%|█████     | 1/2 [00:00<00:00]", None, None),
        ("the loss fell by 12/500 [00:10<", None, None),
        ("50%|" + "x" * 5000 + "| 1/2 [00:00<", None, None),
    ],
)
def test_bars(text: str, step: int | None, total: int | None) -> None:
    found = bar(text)
    assert (found and found.step, found and found.own_total) == (step, total)


def test_the_bar_of_the_training_is_told_from_those_of_evaluations() -> None:
    bars = ProgressBars()
    looks = [
        (1.0, ("  0%|   | 0/500 [00:00<?, ?it/s]", "  1%|   | 1/500 [00:01<08:00,  1it/s]")),
        (20.0, (" 10%|   | 20/500 [00:20<08:00,  1it/s]", " 50%|   | 1/13 [00:00<00:01,  9it/s]")),
    ]
    for time, text in looks:
        assert bars.poll(Look(time, time, text)).lines == [], "it may be a preparation's"
    now = 1.0 + BAR_WAITS
    found = bars.poll(Look(now, 20.0, (" 12%|   | 30/500 [00:30<08:00,  1it/s]",)))
    assert [(line.step, line.time) for line in found.lines] == [(1, 1.0), (20, 20.0), (30, now)]
    assert found.total == 500
    ended = ("100%|###| 500/500 [08:20<00:00,  1it/s]", " 50%|   | 2/900 [00:00<00:01,  9it/s]")
    found = bars.poll(Look(500.0, 490.0, ended, is_last=True))
    assert [line.step for line in found.lines] == [500]


def test_a_program_that_ends_has_come_to_the_newest_update() -> None:
    bars = ProgressBars()
    texts = [f" {step}%|   | {step}/500 [00:{step:02}<08:00,  1it/s]" for step in (40, 41, 42)]
    assert [line.step for line in bars.poll(Look(100.0, 99.0, (texts[0],))).lines] == [40]
    last = bars.poll(Look(100.4, 100.2, tuple(texts), is_last=True))
    assert [line.step for line in last.lines] == [41, 42]
    assert bars.poll(Look(100.5, 100.4, (), is_last=True)).lines == []


@pytest.mark.parametrize(
    ("what", "ends", "steps"), [("", 8.0, [60]), ("", 9.0, []), ("epoch", 900.0, [60])]
)
def test_a_bar_after_which_more_is_done_than_with_it_was_a_preparations(
    what: str, ends: float, steps: list[int]
) -> None:
    """A script reads its files under a bar, and then prints the steps of its training."""
    bars = ProgressBars()
    bars.poll(Look(2.0, 1.0, (f"{what} 100%|###| 60/60 [00:01<00:00, 47.7it/s]",)))
    found = bars.poll(Look(ends, ends - 1, ("step 400/900 loss 0.1",), is_last=True))
    assert [line.step for line in found.lines] == steps
    again = ProgressBars()
    epochs = (f"{part}%|###| {part}/100 [00:0{part // 100}<00:00, 99it/s]" for part in (0, 100) * 2)
    again.poll(Look(2.0, 1.0, tuple(epochs)))
    found = again.poll(Look(900.0, 899.0, is_last=True))
    assert [line.step for line in found.lines][-1:] == [200], "there was one an epoch"


def test_a_short_training_shows_its_steps_at_its_end() -> None:
    bars = ProgressBars()
    found = bars.poll(Look(3.0, 2.0, (TRAINING,), is_last=True))
    assert [line.step for line in found.lines] == [12]


def _bar(step: int, total: int, elapsed: int, what: str = "", more: str = "") -> str:
    clock = f"{elapsed // 60:02}:{elapsed % 60:02}"
    return f"{what}{100 * step // total:3}%|##  | {step}/{total} [{clock}<00:10, 9.00it/s{more}]"


def _polled(bars: ProgressBars, *updates: tuple[float, str]) -> list[tuple[int, int | None]]:
    """The steps that a bar shows, each with the total that is known then."""
    shown = []
    for now, text in updates:
        found = bars.poll(Look(now, now - 0.5, (text,)))
        shown += [(line.step, bars.total) for line in found.lines]
    last = updates[-1][0] + 1
    shown += [
        (line.step, bars.total) for line in bars.poll(Look(last, last, (), is_last=True)).lines
    ]
    return shown


def test_metrics_beside_a_bar_are_read() -> None:
    found = bar(_bar(5, 10, 3, more=", loss=0.25, lr=1e-4, v_num=3, note=some"))
    assert found is not None
    assert found.values == {"loss": 0.25, "lr": 1e-4}


@pytest.mark.parametrize(
    ("names", "first", "steps"),
    [
        (("Epoch 0: ", "Epoch 1: "), None, [(10, None), (20, None)]),
        (("Epoch 1: ", "Epoch 2: "), None, [(10, None), (20, None)]),
        (("Epoch 1/2: ", "Epoch 2/2: "), None, [(10, 20), (20, 20)]),
        (("Epoch 0/2: ", "Epoch 1/2: "), None, [(10, 20), (20, 20)]),
        (("Epoch [1/2]: ", "Epoch [2/2]: "), None, [(10, 20), (20, 20)]),
        (("Epoch 3/4: ", "Epoch 4/4: "), 1, [(30, 40), (40, 40)]),
        (("Epoch 3: ", "Epoch 4: "), 0, [(40, None), (50, None)]),
    ],
)
def test_the_steps_of_all_epochs(
    names: tuple[str, str], first: int | None, steps: list[tuple[int, int | None]]
) -> None:
    bars = ProgressBars(first)
    updates = [(100.0 + 30 * at, _bar(0, 10, 0, name)) for at, name in enumerate(names)]
    updates += [(129.5 + 30 * at, _bar(10, 10, 29, name)) for at, name in enumerate(names)]
    assert _polled(bars, *sorted(updates)) == steps


def test_a_bar_that_begins_anew_in_each_epoch_goes_on() -> None:
    """It had come to 100 % after the first of them. Two ranks print it."""
    updates = [
        *((100.0, _bar(0, 50, 0)), (140.0, _bar(25, 50, 40)), (180.0, _bar(50, 50, 80))),
        *((181.0, _bar(49, 50, 80)), (182.0, _bar(0, 50, 0)), (182.5, _bar(50, 50, 80))),
        *((183.0, _bar(0, 50, 0)), (223.0, _bar(25, 50, 41)), (263.0, _bar(50, 50, 81))),
        *((264.0, _bar(1, 8, 1)), (266.0, _bar(8, 8, 3)), (268.0, _bar(0, 50, 0))),
        (310.0, _bar(30, 50, 42)),
    ]
    assert _polled(ProgressBars(), *updates) == [
        *((25, 50), (50, 50), (75, None), (100, None), (130, None))
    ]


def test_of_nested_bars_one_is_the_unit() -> None:
    """The outer one, which is there first; the inner one is as old only in the first epoch."""
    updates = [(100.0, _bar(0, 3, 0)), (100.1, _bar(0, 40, 0))]
    for epoch in range(3):
        began = 100 + 20 * epoch
        updates += [(began + at, _bar(2 * at, 40, at)) for at in (1, 10, 19)]
        updates += [(began + 20.0, _bar(epoch + 1, 3, 20 * epoch + 20))]
        updates += [(began + 20.1, _bar(0, 40, 0))]
    assert _polled(ProgressBars(), *updates) == [(1, 3), (2, 3), (3, 3)]


def test_an_end_that_changes_under_way() -> None:
    updates = [(100.0 + at, _bar(at, 50, at)) for at in (0, 20, 40)]
    updates += [(100.0 + at, _bar(at, 90, at)) for at in (41, 60, 90)]
    shown = _polled(ProgressBars(), *updates)
    assert [step for step, _ in shown] == [20, 40, 41, 60, 90]
    assert shown[-1][1] == 90


def test_epochs_of_unlike_length() -> None:
    updates = [
        (10.0 + 50 * epoch + at, _bar(step, total, at, f"Epoch {epoch + 1}/2: "))
        for epoch, total in enumerate((40, 30))
        for at, step in ((0, 0), (40, total))
    ]
    assert _polled(ProgressBars(), *updates) == [(40, 80), (70, 70)]


def test_a_description_that_comes_later_and_changes() -> None:
    updates = [(100.0, _bar(0, 50, 0)), (120.0, _bar(10, 50, 20, "loss 0.31: "))]
    updates += [(140.0, _bar(20, 50, 40, "loss 2e-05: "))]
    assert _polled(ProgressBars(), *updates) == [(10, 50), (20, 50)]
