"""`hpcrun profile` on a real Slurm: of a spec, and of a run that goes on meanwhile."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ward import Ward, compile_operators
from tests.cluster.workbench import LANGUAGE_MODEL, Workbench
from tests.testbed import Cluster

pytest.importorskip("deepspeed", reason="trains")
pytestmark = [pytest.mark.timeout(600), pytest.mark.usually]

SPEC: dict[str, Any] = {
    **LANGUAGE_MODEL,
    "resources": {"nodes": 2, "cpus_per_task": 1, "time": "00:10:00", "mem": 3000},
}


def _profiled(bench: Workbench, what: str | Path, name: str) -> tuple[dict[str, Any], str]:
    """What `hpcrun profile` found, and what it printed."""
    done = bench.hpcrun("profile", what, check=False)
    assert done.returncode == 0, done.stderr + bench.explain(name)
    (run,) = bench.status(name)
    assert (run["state"], len(run["nodes"])) == ("completed", 2)
    attempt = bench.root / name / "runs" / "0" / "attempts" / "1"
    found = json.loads((attempt / "profile.json").read_text())
    assert isinstance(found, dict)
    return found, done.stdout


def _assert_adds_up(found: dict[str, Any], printed: str) -> None:
    """Each rank's parts are the step that its program measured; the slowest rank is named."""
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert len({one["node"] for one in found["ranks"]}) == 2
    for one in found["ranks"]:
        assert sum(one["parts"].values()) == pytest.approx(one["step"], rel=0.05)
        assert min(one["parts"][part] for part in ("compute", "communication", "optimizer")) > 0
        assert one["problems"] == []
        with gzip.open(Path(found["directory"], one["trace"])) as stream:
            assert json.load(stream)["traceEvents"]
    slow = found["slowest"]
    if slow is None:
        assert "no rank is slower than the others by more than 2 %" in printed
    else:
        assert f"slowest: rank {slow['rank']} on {slow['node']}, for which" in printed


def test_a_spec_on_two_nodes(slurm: Cluster) -> None:
    compile_operators(slurm)
    bench = Workbench(slurm, "profile")
    bench.copy_job("language_model.py")
    _assert_adds_up(*_profiled(bench, bench.spec("fresh", SPEC), "fresh-profile"))


def test_a_run_that_goes_on_and_its_slow_rank(slurm: Cluster) -> None:
    ward = Ward(slurm, "profile-ward")
    ward.get_ready()
    lame = {"total_steps": 100_000, "pause": 0.01, "lame_rank": 1, "lame_seconds": 0.3}
    ward.submit("long", config=lame)
    (before,) = ward.wait_for_step("long", 2)
    found, printed = _profiled(ward, "long/0", "long-profile")
    _assert_adds_up(found, printed)
    slow = found["slowest"]
    assert (slow["rank"], slow["part"]) == (1, "host")
    assert slow["part_behind"] == pytest.approx(0.3, rel=0.3)
    # The run was only read.
    (run,) = ward.status("long")
    assert (run["state"], run["attempt"], run["job_id"]) == ("running", 1, before["job_id"])
    ward.wait_for_step("long", run["step"] + 2)
    ward.hpcrun("cancel", "long", "--yes")
    slurm.wait_job(str(run["job_id"]))
