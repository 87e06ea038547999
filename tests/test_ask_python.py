"""A question to another Python: its answer, and how it ends without one."""

from __future__ import annotations

import sys

import pytest

from hpcrun import ask_python
from hpcrun.ask_python import MARK, PythonAnswer


def _ask(source: str, timeout: float = 30.0, given: str | None = None) -> PythonAnswer:
    command = [sys.executable, *ask_python.program(source)]
    return ask_python.ask(command, timeout=timeout, given=given)


def test_an_answer_is_found_among_what_else_is_printed() -> None:
    found = _ask("print('noise', end='')\nanswer = [input(), '\u00e9']", given="question")
    assert (found.data, found.code) == (["question", "\u00e9"], 0)
    assert found.output.startswith("noise\n")


def test_it_says_why_there_is_no_answer() -> None:
    found = _ask("import sys\nsys.exit('one\\ntwo\\nthree')")
    assert (found.data, found.code) == (None, 1)
    assert found.last_errors(2) == "; it said:\n  two\n  three"
    assert _ask("answer = 1").last_errors(2) == ""


def test_it_is_ended_when_it_takes_too_long() -> None:
    assert _ask("import time\ntime.sleep(60)", timeout=0.2) == PythonAnswer()


@pytest.mark.parametrize("rest", ["", "{", "[1"])
def test_a_marked_line_that_is_no_json_is_no_answer(rest: str) -> None:
    assert _ask(f"import os\nprint('{MARK}{rest}', flush=True)\nos._exit(0)").data is None


def test_a_command_that_is_not_there_cannot_be_asked() -> None:
    with pytest.raises(FileNotFoundError):
        ask_python.ask(["/nowhere/python"], timeout=1)
