"""What `hpcrun why` and `hpcrun status` say of copies, from the records of an attempt."""

from __future__ import annotations

from typing import Any

from hpcrun.features.object_storage import FEATURE
from hpcrun.features.object_storage.copy_records import (
    COPIED,
    EVENTS,
    FETCHED,
    NOT_COPIED,
    PASSED_OVER,
    TROUBLE,
    copies,
    not_copied_message,
    passed_over,
)
from hpcrun.fields import wrong
from hpcrun.state import ledger
from hpcrun.state.ledger import Attempt
from tests.support import command
from tests.support.place import Place

PLACE = "s3://bucket/e/0-aa"


def _copied(step: int, **more: Any) -> dict[str, Any]:
    name = f"step-{step:08d}-a1"
    found = {"checkpoint": name, "step": step, "place": PLACE, "digest": "d", "bytes": 5}
    return {"event": COPIED, **found, "time": float(step), **more}


def _attempt(*records: dict[str, Any]) -> Attempt:
    return Attempt(1, of_features={one["event"]: one for one in records})


def test_status_says_how_far_copies_are_and_why_there_are_none() -> None:
    assert FEATURE.notice(_attempt()) is None
    assert FEATURE.notice(_attempt(_copied(40))) == "checkpoints copied up to step 40"
    assert FEATURE.notice(_attempt(_copied(40, newest=50))) == "checkpoints copied up to step 50"
    trouble = {"event": TROUBLE, "message": "no\nbucket", "time": 41.0}
    told = FEATURE.notice(_attempt(_copied(40), trouble))
    assert told is not None
    assert told.startswith("checkpoints are not copied: no")
    assert "\n" not in told
    # What was copied after it ended it.
    assert FEATURE.notice(_attempt(trouble, _copied(50))) == "checkpoints copied up to step 50"


def test_why_tells_what_came_back_and_what_was_passed_over() -> None:
    fetched = {"event": FETCHED, "checkpoint": "step-00000040-a1", "place": PLACE}
    told = FEATURE.tell(
        _attempt(
            {"event": PASSED_OVER, "checkpoint": "step-00000050-a1", "message": "it is damaged"},
            {**fetched, "bytes": 2_000_000, "seconds": 3.0},
            _copied(60),
            {"event": NOT_COPIED, "message": "step-00000070-a1 was not copied."},
        )
    )
    assert told == [
        "The copy of step-00000050-a1 was not used: it is damaged.",
        f"The root had lost step-00000040-a1: it was fetched from {PLACE} (2.0 MB in 3 s).",
        f"Copied to {PLACE}, up to step 60.",
        "step-00000070-a1 was not copied.",
    ]


def test_a_copy_that_was_passed_over_is_no_copy_until_it_is_made_again() -> None:
    refused = {"event": PASSED_OVER, "checkpoint": "step-00000040-a1", "message": "gone"}
    before = [_copied(30), _copied(40), refused]
    assert [one["step"] for one in copies(before)] == [30]
    assert passed_over(before) == {"step-00000040-a1"}
    assert [one["step"] for one in copies([*before, _copied(40)])] == [40, 30]


def test_delete_says_that_copies_stay(place: Place) -> None:
    place.submit("true")
    place.run.directory.mkdir(parents=True)
    ledger.write(place.run, ledger.STARTED, 1)
    fields = {name: value for name, value in _copied(40).items() if name not in ("event", "time")}
    ledger.write(place.run, COPIED, 1, **fields)
    ledger.set_intent(place.run, ledger.CANCELLED)
    name = place.run.experiment.name
    said = command.hpcrun("delete", name, "--dry-run", root=place.run.experiment.root).stderr
    assert f"copies of its checkpoints in {PLACE} stay there" in said


def test_records_of_another_kind_are_refused() -> None:
    known = EVENTS[COPIED]
    assert not wrong(_copied(1) | {}, {**known.fields, "event": known.fields["place"]}, ())
    assert wrong({"checkpoint": "../x"}, known.fields, known.needed)
    assert wrong({**_copied(1), "step": "1"}, known.fields, known.needed)


def test_what_is_left_is_said_at_the_end() -> None:
    assert "the next start" in not_copied_message(["step-00000010-a1"], goes_on=True)
    assert "no session has saved" in not_copied_message([], goes_on=False)
