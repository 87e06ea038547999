"""Functions as entries on the local executor: they take DeepSpeed's operators to be compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.state import files
from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import Place, command_of
from tests.support.waiting import until

pytestmark = [pytest.mark.training]

FUNCTIONS = """
import os, sys

def path(session):
    print(session.config.out, session.deepspeed_config["x"], os.getcwd(), session.rank)

def broken(session):
    raise ValueError(f"bad value on {session.rank}")

def leaves(session):
    sys.exit({"zero": 0, "saved": 75, "words": "no data"}[session.config.how])
"""


def _function(name: str) -> Entry:
    return Entry("function", module="mine", function=name, import_root="lib")


@pytest.fixture
def functions(place: Place, warm_operators: Path) -> Place:
    library = place.code / "lib"
    library.mkdir()
    (library / "mine.py").write_text(FUNCTIONS)
    operators.link(warm_operators, place.root)
    return place


def test_a_function_gets_its_configuration(functions: Place) -> None:
    config = {"out": "${hpcrun:directory}/out"}
    functions.submit(_function("path"), ranks=2, config=config, deepspeed={"x": 1})
    assert functions.supervise()[0] == 0
    out, value, directory, rank = functions.output(1).split()
    assert (out, value, rank) == (f"{functions.run.directory}/out", "1", "1")
    assert directory == str(functions.run.work)
    events = [record["event"] for record in files.read_lines(functions.run.attempt(1).session)]
    assert events == ["finished"]


def test_a_function_that_raises(functions: Place) -> None:
    functions.submit(_function("broken"), ranks=1)
    assert functions.supervise()[0] == 1
    cause = functions.cause()
    assert cause["message"] == "rank 0 on local0 raised ValueError: bad value on 0"
    assert cause["log_tail"][-1] == "ValueError: bad value on 0"
    record = files.read_json(functions.run.attempt(1).exit_record(0))
    assert 'mine.py", line 8, in broken' in record["traceback"]


@pytest.mark.parametrize(
    ("how", "code", "outcome"),
    [("zero", 0, "completed"), ("saved", 1, "stopped"), ("words", 1, "failed")],
)
def test_a_function_that_leaves(functions: Place, how: str, code: int, outcome: str) -> None:
    functions.submit(_function("leaves"), config={"how": how})
    assert functions.supervise()[0] == code
    assert functions.attempt().outcome == outcome
    if how == "words":
        assert functions.cause()["log_tail"] == ["no data"]


def test_a_function_that_is_not_there(functions: Place) -> None:
    functions.submit(_function("absent"))
    assert functions.supervise()[0] == 1
    assert "raised AttributeError: module 'mine'" in functions.cause()["message"]


def test_cancelled_while_operators_compile(place: Place, tmp_path: Path) -> None:
    compiler = tmp_path / "slow-compiler"
    compiler.write_text("#!/bin/sh\n[ $1 = --version ] && exit\nsleep 300\n")
    compiler.chmod(0o755)
    (place.code / "mine.py").write_text("")
    place.submit(Entry("function", module="mine", function="main", import_root="."))
    supervisor = place.start(CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path / "home"))

    def compiles() -> bool:
        return any(
            any(b"slow-compiler" in word for word in command_of(process.pid))
            for process in place.left()
            if process.alive
        )

    until(compiles)
    supervisor.terminate()
    code, _ = place.end(supervisor)
    assert code == 1
    assert place.cause()["signal"] == "SIGTERM"
    for cache in (place.root / ".hpcrun" / "torch_extensions", tmp_path / "home/hpcrun/operators"):
        assert list(cache.iterdir()) == []
