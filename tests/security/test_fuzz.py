"""No broken record, spec or argument raises a traceback, hangs, or costs another experiment a row.

Each day has cases of its own here, as many as twenty thousand take five days, which
HPCRUN_THOROUGH=1 runs at once; a million, now and then, by ``python -m tests.security.fuzz``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.security.fuzz import campaign
from tests.security.fuzz.campaign import CHECKOUT
from tests.security.fuzz.mutations import JSON_WAYS, LINE_WAYS, NUMBERS, SHAPES, WORDS, Draw, dump

CASES = 2_000
TODAY = int(time.time() // 86400) % 500 * CASES


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(TODAY, id="of today"),
        *(pytest.param(n * CASES, marks=pytest.mark.usually) for n in range(10)),
    ],
)
def test_nothing_breaks_a_reader(first: int) -> None:
    # The clock on the wall is for what waits, and CI runs other tests beside; the processor's is
    # not stretched.
    result = campaign.run(CASES, first=first, patience=4)
    told = [f"--replay {one.example}: {one.what}\n{one.detail}" for one in result.findings.values()]
    assert not told, "\n\n".join([f"python -m tests.security.fuzz tells of {len(told)}", *told])
    assert result.cases == CASES
    assert result.peak_mb < campaign.MEGABYTES
    assert result.slowest < campaign.SECONDS


def test_a_case_is_the_same_each_time_and_keeps_its_mutations_when_others_are_left_out() -> None:
    lines = [json.dumps({"event": "saved", "step": step}).encode() for step in range(50)]

    def broken(name: str, kept: frozenset[int] | None = None) -> tuple[list[bytes], list[str]]:
        draw = Draw(name, kept)
        return draw.mutate(list(lines), LINE_WAYS), draw.notes

    names = [f"1:{number}" for number in range(200)]
    assert [broken(name) for name in names] == [broken(name) for name in names]
    assert len({str(broken(name)) for name in names}) > 150
    several = next(name for name in names if len(broken(name)[1]) > 2)
    assert broken(several, frozenset({1}))[1] == broken(several)[1][1:2]
    assert broken(several, frozenset())[0] == lines


def test_no_case_changes_what_later_ones_draw() -> None:
    before = [repr(one) for one in (SHAPES, WORDS, NUMBERS)]
    model = {"a": [1, {"b": "c"}], "runs": [{"number": 0}], "time": 1.5, "x": None}
    for number in range(3000):
        draw = Draw(f"2:{number}")
        # A value never holds itself, whatever was swapped, or this raises.
        dump(draw.mutate(json.loads(json.dumps(model)), JSON_WAYS))
    assert [repr(one) for one in (SHAPES, WORDS, NUMBERS)] == before


# Targets that break each promise, beside one that keeps them.
PLANTED = """
import json, os, sys, time
from pathlib import Path
from tests.security.fuzz import campaign, targets

def key(world, draw): {}["absent"]
def slow(world, draw): time.sleep(9)
def large(world, draw): bytearray(10**9)
def fine(world, draw): pass

runner = campaign.Runner(Path(sys.argv[1]), patience=0.02)
campaign.limit_memory()
found = {}
for name, target in {"key": key, "slow": slow, "large": large, "fine": fine}.items():
    targets.TARGETS[name] = (1, target)
    one = runner.run(campaign.Case(1, 1, (name,)))
    found[name] = one and one.what.partition(" ")[0]
print(json.dumps(found))
os.chdir("/")
"""


def test_the_fuzzer_notices_what_it_looks_for(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", PLANTED, str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    expected = {"key": "KeyError", "slow": "Hang", "large": "MemoryError", "fine": None}
    assert json.loads(answer.stdout) == expected
