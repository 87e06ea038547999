"""An hour of training under full load of the processors, with agents that are stopped: no alarm.

    python -m bench.false_alarms [--minutes 60] [--stopped 3] [--slurm 22.05]
        [--busy 4] [--output bench/results] [--json]

Brings up the test bed's Slurm (root) with two nodes and trains a run of two ranks on both, beside
``--busy`` busy processes for each processor. In turn each node's agent, the supervisor and then a
rank is stopped by SIGSTOP for a few seconds. Whatever is taken for a lost node or a hang is a
further attempt, and a rank that is said to hold up the others is in the ledger: exits with 1 if
there is one of either. See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import Any

from bench.publish import add_options, circumstances, publish
from tests.cluster.ward import Ward
from tests.testbed import VERSIONS, Cluster

PAUSE = 12.0
AGENT, SUPERVISOR, RANK = "hpcrun.run.agent", "hpcrun.run.supervisor", "hpcrun.run.worker"


def soak(ward: Ward, minutes: float, stopped: float) -> dict[str, Any]:
    """Train for so many minutes, and stop one process after the other."""
    ward.submit(
        "long",
        resources={"sbatch": {"exclusive": True}, "time": "02:00:00"},
        config={"pause": 0.2, "total_steps": 1_000_000},
    )
    (run,) = ward.wait_for_step("long", 3)
    nodes, job = run["nodes"], ward.raw_job_id(str(run["job_id"]))
    targets = [(nodes[0], AGENT), (nodes[1], AGENT), (nodes[0], SUPERVISOR), (nodes[1], RANK)]
    pauses, until = 0, time.monotonic() + minutes * 60
    while time.monotonic() < until and len(ward.attempts("long")) == 1:
        node, what = targets[pauses % len(targets)]
        ward.kill(node, what, job, "STOP")
        time.sleep(stopped)
        ward.kill(node, what, job, "CONT")
        pauses += 1
        time.sleep(PAUSE)
    load = os.getloadavg()[0]
    if len(ward.attempts("long")) > 1:
        print(ward.explain("long"), file=sys.stderr)
    (run,) = ward.status("long")
    ward.hpcrun("cancel", "long")
    ward.wait_for_end("long", "cancelled")
    return {
        "pauses": pauses,
        "steps": run["step"],
        "load": round(load, 1),
        "alarms": ward.kinds("long")[:-1],
        "named": [one.straggler for one in ward.attempts("long") if one.straggler],
    }


def main() -> None:
    """Measure, print, and write the results where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="how long the run trains")
    parser.add_argument("--stopped", type=float, default=3, help="seconds of each SIGSTOP")
    parser.add_argument("--busy", type=int, default=4, help="busy processes for each processor")
    parser.add_argument("--slurm", choices=VERSIONS, default=VERSIONS[0])
    add_options(parser, "false_alarms")
    options = parser.parse_args()
    with Cluster(options.slurm, nodes=2) as cluster:
        ward = Ward(cluster, "soak")
        ward.get_ready()
        count = options.busy * (os.cpu_count() or 1)
        busy = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(count)]
        try:
            found = soak(ward, options.minutes, options.stopped)
        finally:
            for process in busy:
                process.kill()
                process.wait()
    setting = circumstances(
        slurm=options.slurm, minutes=options.minutes, stopped=options.stopped, busy=count
    )
    lines = [f"{name}: {value}" for name, value in found.items()]
    publish(options, "false_alarms", setting, lines, **found)
    sys.exit(bool(found["alarms"] or found["named"]))


if __name__ == "__main__":
    main()
