"""Programs whose error no new start mends are started once, others until the budget is spent."""

from __future__ import annotations

import pytest

from hpcrun.policy import recovery
from hpcrun.state.plan import Entry
from tests.support.place import RESOURCES, Place

ARGUMENTS = "import argparse; argparse.ArgumentParser().parse_args()"
FUNCTION = Entry("function", module="train", function="main", import_root=".")


def _script(*argv: str) -> Entry:
    return Entry("script", file="train.py", argv=argv)


# The program, its entry -> a part of the reason, the exit code.
TABLE: dict[str, tuple[str, Entry | str, str, int]] = {
    "a function without its module": (
        "import wandbb\ndef main(session): pass",
        FUNCTION,
        "a module is missing",
        1,
    ),
    "a script without its module": ("import wandbb", _script(), "a module is missing", 1),
    "a script that refuses an argument": (
        ARGUMENTS,
        _script("--rl=3"),
        "the program refuses its arguments",
        2,
    ),
    "a shell without its command": ("", "acelerate launch", "a command is not found", 127),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_no_new_start_mends_is_started_once(place: Place, name: str) -> None:
    program, entry, reason, expected = TABLE[name]
    (place.code / "train.py").write_text(program)
    # With a GPU asked for, none of DeepSpeed's operators needs compiling.
    place.submit(entry, recovery={}, resources={**RESOURCES, "gpus_per_node": 1})
    code, said = place.supervise()
    assert code == expected
    assert len(place.run.attempts()) == 1
    decided = place.attempt().decided or {}
    assert decided["action"] == recovery.STOP
    assert decided["reason"] == f"not tried again, because {reason}: mend that and submit it again"
    assert f"stop: {decided['reason']}" in said
    assert place.cause()["kind"] == "rank_crash"


def test_what_another_start_may_mend_is_started_again(place: Place) -> None:
    """It had made a step, so that the command was there before."""
    step = """echo '{"step": 1, "loss": 1.0}' >> $HPCRUN_METRICS_FILE"""
    place.submit(f"{step}; acelerate launch", recovery={"max_failures": 2})
    code, _ = place.supervise()
    assert code == 127
    assert len(place.run.attempts()) == 2
