"""What a program writes on a real Slurm: its nodes share the runs' directory, and no /tmp."""

from __future__ import annotations

import pytest

from tests.cluster.test_ends import kill_rank, wait_until_clean
from tests.cluster.workbench import Workbench
from tests.support.waiting import until
from tests.testbed import Cluster

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import os, time
from pathlib import Path

rank, attempt = os.environ["RANK"], os.environ["HPCRUN_ATTEMPT"]
# By a relative path, as a Trainer's output; and below the code's own directory, resolved.
places = [Path(f"out/rank-{rank}.txt"), Path(__file__).resolve().parent / "logs" / f"{rank}.txt"]
for place in places:
    place.parent.mkdir(exist_ok=True)
    place.write_text((place.read_text() if place.exists() else "") + attempt)
print(Path("classes.txt").read_text(), *(place.read_text() for place in places), flush=True)
if attempt != "3":
    time.sleep(300)
"""


def test_a_requeue_and_a_restart_in_place_find_what_was_written(slurm22: Cluster) -> None:
    bench = Workbench(slurm22, "written")
    bench.write("train.py", SCRIPT)
    bench.write("classes.txt", "cat dog")
    resources = {"nodes": 2, "ntasks_per_node": 1, "time": "00:05:00", "mem": 500}
    spec = {"cluster": "bed", "entry": "train.py", "resources": resources}
    bench.hpcrun("submit", bench.spec("written", spec), "--new")
    run = bench.root / "written" / "runs" / "0"

    def printed(attempt: int) -> list[str]:
        logs = [run / "attempts" / str(attempt) / f"rank-0000{rank}.log" for rank in (0, 1)]
        try:
            until(lambda: all(log.exists() and log.read_text() for log in logs), "all ranks", 120)
        except TimeoutError as error:
            raise AssertionError(bench.explain("written")) from error
        return [log.read_text() for log in logs]

    assert printed(1) == ["cat dog 1 1\n"] * 2
    (found,) = bench.status("written")
    slurm22.run(["scontrol", "requeue", str(found["job_id"])])
    assert printed(2) == ["cat dog 12 12\n"] * 2
    (found,) = bench.status("written")
    kill_rank(slurm22, found["nodes"][1], 1)
    assert printed(3) == ["cat dog 123 123\n"] * 2
    until(lambda: bench.status("written")[0]["state"] == "completed", "the end", pause=0.5)
    names = [path for path in (run / "work").rglob("*") if not path.is_dir()]
    assert {str(path.relative_to(run / "work")): path.read_text() for path in names} == {
        **{"out/rank-0.txt": "123", "out/rank-1.txt": "123"},
        **{"logs/0.txt": "123", "logs/1.txt": "123"},
    }
    assert not any(path.is_symlink() for path in names)
    assert "Kept of what it wrote in its code's directory: logs/0.txt, logs/1.txt" in (
        bench.hpcrun("why", "written").stdout
    )
    wait_until_clean(slurm22)
