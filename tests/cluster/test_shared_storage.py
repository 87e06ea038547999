"""Runs on storage that caches as NFS does, with the times that nfs(5) has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hpcrun.state import ledger
from tests.cluster.ward import Ward
from tests.support.waiting import until
from tests.testbed import VERSIONS, Cluster
from tests.testbed.storage import REAL

pytestmark = pytest.mark.timeout(1200)

# Without torch: a rank starts in a tenth of a second.
PROGRAM = """
import json, os, signal, sys, time
attempt, rank = int(os.environ["HPCRUN_ATTEMPT"]), int(os.environ["RANK"])
for step in range(1, 5):
    time.sleep(0.25)
    if rank == 0:
        with open(os.environ["HPCRUN_METRICS_FILE"], "a") as file:
            file.write(json.dumps({"step": attempt * 10 + step, "loss": 1 / step}) + "\\n")
if attempt <= int(sys.argv[1]) and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
open("result.txt", "a").write(f"{attempt}\\n")
"""
SHORT = "import time; time.sleep(2); print('done')"
SPEC: dict[str, Any] = {
    "cluster": "bed",
    "resources": {"nodes": 2, "cpus_per_task": 1, "time": "00:20:00", "mem": 400},
}
ALONE = {"nodes": 1, "cpus_per_task": 1, "time": "00:10:00", "mem": 200}


@pytest.fixture(scope="module", params=VERSIONS)
def ward(request: pytest.FixtureRequest) -> Iterator[Ward]:
    with Cluster(request.param, storage=REAL, light=True) as cluster:
        yield Ward(cluster, "ward")


@pytest.fixture
def blind() -> Iterator[Ward]:
    """Storage on which opening a directory refreshes nothing."""
    with Cluster(storage=f"{REAL},blind", light=True) as cluster:
        yield Ward(cluster, "ward")


def _submit(ward: Ward, name: str, program: str, *flags: str, **changes: Any) -> None:
    ward.write(f"{name}.py", program)
    spec = {**SPEC, "entry": f"{name}.py", **changes}
    ward.hpcrun("submit", ward.spec(name, spec), *flags)


@pytest.mark.parametrize("restarts", [3, pytest.param(20, marks=pytest.mark.usually)])
def test_a_restart_in_place_stays_in_place(ward: Ward, restarts: int) -> None:
    name = f"killed-{restarts}"
    recovery = {"budgets": {"rank_crash": restarts + 1}}
    _submit(ward, name, PROGRAM, args=[str(restarts)], recovery=recovery)
    ward.wait_for_end(name, seconds=120 + 20 * restarts)
    attempts = ward.attempts(name)
    assert ward.kinds(name) == ["rank_crash"] * restarts + [None], ward.explain(name)
    assert all(ledger.same_start(attempts[0], other) for other in attempts)
    assert all(one.started["nodes"] == attempts[0].started["nodes"] for one in attempts)


def test_a_requeue_after_nodes_looked_for_it(ward: Ward) -> None:
    """`scontrol requeue`: the same nodes, which have just asked for a later attempt."""
    _submit(ward, "requeued", PROGRAM.replace("range(1, 5)", "range(1, 60)"), args=["0"])
    (run,) = ward.wait_for_step("requeued", 12)
    ward.cluster.run(["scontrol", "requeue", str(run["job_id"])])
    ward.wait_for_end("requeued")
    assert ward.kinds("requeued") == ["requeued", None], ward.explain("requeued")


def _all_completed(ward: Ward, name: str, number: int) -> None:
    runs = {"config": {"number": 0}, "sweep": {"grid": {"config.number": list(range(number))}}}
    began = time.monotonic()
    ward.write(f"{name}.py", SHORT)
    spec = ward.spec(name, {**SPEC, "resources": ALONE, "entry": f"{name}.py", **runs})
    waited = ward.hpcrun("submit", spec, "--wait", check=False, timeout=60 + 10 * number)
    print(f"{number} runs in {time.monotonic() - began:.0f} s", waited.stdout, waited.stderr)
    assert waited.returncode == 0, (waited.stdout, waited.stderr, ward.explain(name))
    assert "failed" not in waited.stdout
    # Nothing is submitted once more.
    jobs = len(ward.cluster.run(["sacct", "-nX"]).stdout.splitlines())
    again = ward.hpcrun("submit", spec, check=False)
    assert len(ward.cluster.run(["sacct", "-nX"]).stdout.splitlines()) == jobs, again.stderr
    assert {run["state"] for run in ward.status(name)} == {"completed"}


NUMBERS = [5, pytest.param(200, marks=pytest.mark.usually)]


@pytest.mark.parametrize("number", NUMBERS)
def test_short_runs_are_told_as_completed(ward: Ward, number: int) -> None:
    _all_completed(ward, f"short-{number}", number)


@pytest.mark.parametrize("number", NUMBERS)
def test_short_runs_where_opening_a_directory_refreshes_nothing(blind: Ward, number: int) -> None:
    _all_completed(blind, f"short-{number}", number)


@pytest.mark.usually
def test_many_short_runs_and_a_server_that_is_silent_in_the_middle(ward: Ward) -> None:
    def fall_silent() -> None:
        completed = ward.root / "interrupted" / "runs" / "40" / "intent.json"
        until(completed.exists, "a part of the runs", 900, pause=0.5)
        ward.cluster.silence_storage(True)
        time.sleep(20)
        ward.cluster.silence_storage(False)

    with ThreadPoolExecutor() as beside:
        silence = beside.submit(fall_silent)
        _all_completed(ward, "interrupted", 200)
        silence.result()


@pytest.mark.usually("24.11")
def test_a_server_that_is_silent_for_a_while(ward: Ward) -> None:
    """Calls hang as on a hard mount: nobody is given up for it, and nothing is lost."""
    program = PROGRAM.replace("range(1, 5)", "range(1, 60)")
    _submit(ward, "silent", program, args=["0"])
    ward.wait_for_step("silent", 12)
    ward.write("short.py", SHORT)
    runs = {"config": {"number": 0}, "sweep": {"grid": {"config.number": [1, 2, 3]}}}
    spec = ward.spec("short", {**SPEC, "resources": ALONE, "entry": "short.py", **runs})
    with ThreadPoolExecutor() as beside:
        waited = beside.submit(ward.hpcrun, "submit", spec, "--wait", check=False, timeout=300)
        until((ward.root / "short" / "runs").exists, "begun", 60)
        ward.cluster.silence_storage(True)
        time.sleep(20)
        ward.cluster.silence_storage(False)
        result = waited.result()
    assert result.returncode == 0, (result.stderr, ward.explain("short"))
    ward.wait_for_end(["silent", "short"])
    for name in ("silent", "short/0", "short/1", "short/2"):
        # A step that Slurm launched meanwhile is refused: credentials of this bed live for 5 s.
        assert set(ward.kinds(name)) <= {None, "launch"}, ward.explain("silent", "short")
