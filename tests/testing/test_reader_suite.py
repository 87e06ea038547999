"""The suite for progress readers: hpcrun's own pass it, and it names what is wrong with others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcrun.extensions import READERS
from hpcrun.run.program.progress_source import Found, Look, ReaderStart
from hpcrun.state.metrics_file import Line
from hpcrun.testing import check_progress_reader
from tests.support import event_files

BARS = [f"{step}%|##| {step}/100 [00:{step}<00:10,  1.0it/s]" for step in (10, 20, 30)]
KERAS = [
    "Epoch 1/3",
    *(f"{step:3}/100 [==>...] - ETA: 4s - loss: 0.5" for step in (10, 20)),
]
STATE = {"max_steps": 50, "log_history": [{"step": 5, "loss": 2.0}, {"step": 10, "loss": 1.0}]}
# Reader -> what a program shows, and the steps of that.
SHOWN: dict[str, tuple[dict[str, Any], list[int]]] = {
    "trainer_state": (
        {"files": {"out/checkpoint-10/trainer_state.json": json.dumps(STATE).encode()}},
        [5, 10],
    ),
    "tensorboard": (
        {
            "files": {
                "logs/events.out.tfevents.1.host": b"".join(
                    event_files.event(step, 1.7e9 + step, loss=0.5) for step in (1, 2)
                )
            }
        },
        [1, 2],
    ),
    "lightning": (
        {"files": {"logs/metrics.csv": b"epoch,step,loss\n0,49,1.5\n0,99,1.0\n"}},
        [49, 99],
    ),
    "keras_bar": ({"text": KERAS}, [10, 20]),
    "progress_bar": ({"text": BARS}, [10, 20, 30]),
}


@pytest.mark.parametrize("name", READERS.own)
def test_own_readers(name: str) -> None:
    shown, steps = SHOWN[name]
    check_progress_reader(READERS.load(name), steps, **shown)


class StepLines:
    """A right one: ``step 3 loss 0.5``."""

    @classmethod
    def begin(cls, start: ReaderStart) -> StepLines:
        return cls()

    def poll(self, look: Look) -> Found:
        words = [text.split() for text in look.text]
        return Found([Line(int(word[1]), look.time, {"loss": float(word[3])}) for word in words])


class WithoutBegin:
    def poll(self, look: Look) -> Found:
        return Found()


class BeginsNothing(StepLines):
    @classmethod
    def begin(cls, start: ReaderStart) -> Any:
        return None


class FoundNowhere(StepLines):
    def poll(self, look: Look) -> Found:
        return Found([Line(1, look.time, {})])


class LinesAlone(StepLines):
    def poll(self, look: Look) -> Any:
        return super().poll(look).lines


class OwnUnit(StepLines):
    def poll(self, look: Look) -> Found:
        return Found(unit="batches")


class TextSteps(StepLines):
    def poll(self, look: Look) -> Found:
        found = super().poll(look)
        found.lines = [line._replace(step=str(line.step)) for line in found.lines]
        return found


class TimeOfAText(StepLines):
    def poll(self, look: Look) -> Found:
        found = super().poll(look)
        found.lines = [line._replace(time="now") for line in found.lines]
        return found


class ReservedName(StepLines):
    def poll(self, look: Look) -> Found:
        found = super().poll(look)
        found.lines = [line._replace(values={"step": 1.0}) for line in found.lines]
        return found


class FirstAlone(StepLines):
    def poll(self, look: Look) -> Found:
        found = super().poll(look)
        return Found(found.lines[:1])


class OldFiles(StepLines):
    def poll(self, look: Look) -> Found:
        found = super().poll(look)
        return Found([*found.lines, *(Line(7, look.time, {}) for _ in look.files or ())])


TEXT = ["step 1 loss 0.5", "step 2 loss 0.4"]


def test_a_right_one() -> None:
    check_progress_reader(StepLines, [1, 2], text=TEXT)


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (WithoutBegin, "WithoutBegin has no begin"),
        (BeginsNothing, "begin returns None, which has no poll"),
        (FoundNowhere, "is found where the program shows nothing"),
        (LinesAlone, r"poll returns \[\]; expected is a Found"),
        (OwnUnit, "unit is 'batches'; known are steps"),
        (TextSteps, "has the step '1'; expected is a whole number"),
        (TimeOfAText, "has the time 'now'; expected are seconds"),
        (ReservedName, r"has \['step'\]; expected are names of metrics"),
        (FirstAlone, r"the steps \[1\] are found at once; the program shows \[1, 2\]"),
    ],
)
def test_it_says_what_is_wrong(reader: type, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_progress_reader(reader, [1, 2], text=TEXT)


def test_files_of_an_earlier_attempt() -> None:
    with pytest.raises(AssertionError, match="in files that were there before the program began"):
        check_progress_reader(OldFiles, [1, 2, 7], text=TEXT, files={"log": b"x"})
