"""Following the logs of a job array on a real Slurm, while its runs are hurt."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcrun.text import plural
from tests.cluster.ward import Ward
from tests.support.waiting import until
from tests.testbed import Cluster

pytestmark = pytest.mark.timeout(600)

RUNS, RANKS, LINES = 8, 4, 300
KILLED, PREEMPTED, CANCELLED = 1, 2, 5
SPEAKER = f"""
import os, pathlib, signal, sys, time
run, attempt, rank = (os.environ[name] for name in ("HPCRUN_RUN", "HPCRUN_ATTEMPT", "RANK"))
run = run.partition("/")[2]
path = pathlib.Path(sys.argv[1]) / f"{{run}}-{{attempt}}-{{rank}}"
copy = os.open(path, os.O_CREAT | os.O_WRONLY)
for number in range({LINES}):
    mine = f"line {{number}} of {{run}}-{{attempt}}-{{rank}} \\N{{snowman}}"
    for text in (mine, f"step {{number}}"):
        os.write(1, text.encode() + b"\\n")
        os.write(copy, text.encode() + b"\\n")
    if (run, attempt, rank, number) == ("{KILLED}", "1", "2", 100):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
"""

# Run, attempt, rank.
Lines = dict[tuple[int, int, int], list[str]]


def as_printed(text: str) -> Lines:
    """What a person reads: which lines are whose, from prefixes and the marks between attempts."""
    found: Lines = {}
    attempts = dict.fromkeys(range(RUNS), 1)
    for line in text.splitlines():
        if mark := re.match(r"--- spoken/(\d): attempt (\d+)", line):
            attempts[int(mark[1])] = int(mark[2])
            continue
        whose = re.match(r"(\d) r([\d,-]+) *(?:\((\d+)\) )?\| (.*)", line)
        assert whose, line
        run, ranks = int(whose[1]), list(expand(whose[2]))
        assert len(ranks) == int(whose[3] or 1)
        for rank in ranks:
            found.setdefault((run, attempts[run], rank), []).append(whose[4])
    return found


def as_records(text: str) -> Lines:
    """What a program reads."""
    found: Lines = {}
    for line in text.splitlines():
        one: dict[str, Any] = json.loads(line)
        found.setdefault((one["run"], one["attempt"], one["rank"]), []).append(one["line"])
    return found


def expand(ranks: str) -> Iterator[int]:
    for part in ranks.split(","):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


def as_written(directory: Path) -> Lines:
    """What the ranks themselves have written down."""
    return {
        tuple(map(int, path.name.split("-"))): path.read_text().splitlines()  # type: ignore[misc]
        for path in directory.iterdir()
    }


@pytest.mark.usually("22.05")
def test_every_line_of_every_attempt_once_and_in_order(slurm: Cluster) -> None:
    """Eight tasks of four ranks: one restarts in place, one is preempted, one is cancelled."""
    ward = Ward(slurm, "logs")
    ward.write("speaker.py", SPEAKER)
    written = ward.directory / "written"
    slurm.run(["mkdir", "-p", str(written)])
    spec = {
        "cluster": "bed",
        "entry": ["python", "speaker.py", str(written)],
        "resources": {"ntasks_per_node": RANKS, "time": "00:05:00", "mem": 500},
        "config": {"number": 0},
        "sweep": {"grid": {"config.number": list(range(RUNS))}},
    }
    ward.hpcrun("submit", ward.spec("spoken", spec))
    follow = ["logs", "spoken", "--follow", "--exit-with-run"]
    with ThreadPoolExecutor() as pool:
        printed = pool.submit(ward.hpcrun, *follow, check=False)
        records = pool.submit(ward.hpcrun, *follow, "--json", check=False)
        ward.wait(
            ["spoken"], lambda found: all(run["state"] == "running" for run in found), seconds=120
        )
        until(lambda: len(list(written.iterdir())) >= RUNS * RANKS, "all ranks' first words", 60)
        time.sleep(5)
        ward.hpcrun("cancel", f"spoken/{CANCELLED}", "--yes")
        ward.preempt(ward.status(f"spoken/{PREEMPTED}")[0]["nodes"])
        followed = [one.result() for one in (printed, records)]
    states = {run["run"]: run["state"] for run in ward.status("spoken")}
    assert states == {n: "cancelled" if n == CANCELLED else "completed" for n in range(RUNS)}
    expected = as_written(written)
    attempts = {run: max(a for n, a, _ in expected if n == run) for run in range(RUNS)}
    assert attempts[KILLED] > 1
    assert attempts[PREEMPTED] > 1
    for one, lines in zip(followed, (as_printed, as_records), strict=True):
        assert one.returncode == 1, one.stderr
        found = lines(one.stdout)
        assert found.keys() == expected.keys()
        for key, wanted in expected.items():
            # Slurm writes into the log too, and a rank that was ended may not have come to copying
            # what it had printed.
            mine = [line for line in found[key] if not line.startswith("slurmstepd")]
            assert mine[: len(wanted)] == wanted, key
            assert len(mine) - len(wanted) <= (attempts[key[0]] > key[1] or key[0] == CANCELLED)
    again = ward.hpcrun("logs", "spoken", "--attempt", "all").stdout
    assert as_printed(again) == as_printed(followed[0].stdout)
    folded = sum(line.startswith(f"0 r0-{RANKS - 1} ") for line in again.splitlines())
    assert folded == LINES, plural(folded, "line")
