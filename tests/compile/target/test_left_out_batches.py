"""``recovery.on_nan`` and ``on_spike`` are refused where no batch could be left out."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError


def _notes(project: Any, recovery: str, rest: str = "entry: train.py\n") -> list[str]:
    text = f"cluster: local\n{rest}recovery: {{{recovery}}}\n"
    notes = compile_spec(project.write("spec.yaml", text)).notes
    return [one for one in notes if "recovery.on_" in one]


def test_a_program_that_may_have_no_session_is_told(project: Any) -> None:
    (note,) = _notes(project, "on_nan: skip, on_spike: stop, spike: 3")
    assert note.startswith("recovery.on_nan and on_spike: the losses of hpcrun.session()")
    assert _notes(project, "on_nan: null") == []
    assert _notes(project, "on_nan: skip", "entry: train.py:main\n") == []


@pytest.mark.parametrize(
    ("recovery", "rest", "found"),
    [
        ("on_nan: skip", "framework: lightning\n", "the batches of lightning are the program's"),
        ("on_spike: skip", "framework: huggingface\n", "the batches of huggingface are"),
        ("on_nan: stop, non_finite_steps: 0", "", "non_finite_steps is 0"),
        ("on_spike: stop, spike: 1", "", "accepted are numbers above 1"),
        ("on_nan: leave", "", "recovery.on_nan"),
    ],
)
def test_what_cannot_be_done_is_refused(project: Any, recovery: str, rest: str, found: str) -> None:
    with pytest.raises(SpecError) as caught:
        _notes(project, recovery, "entry: train.py\n" + rest)
    assert found in str(caught.value)


def test_a_trainer_may_stop(project: Any) -> None:
    (note,) = _notes(project, "on_nan: stop", "entry: train.py\nframework: lightning\n")
    assert "those that a program prints are not" in note
