"""Start a job on many nodes of a real Slurm, beside srun of the same script, and lose one of them.

    python -m bench.many_nodes [--nodes 64] [--slurm 22.05] [--times 3] [--imports torch]
        [--output bench/results] [--json]

Brings up the test bed's Slurm (root) with a node more, the spare. Its nodes share the processors of
this machine: agents, which a cluster would start side by side, start one after another here.
``--imports`` is what the script imports first: a training script imports torch. See
bench/README.md.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.publish import add_options, circumstances, publish
from hpcrun.state import ledger
from hpcrun.state.layout import experiment
from tests.cluster.workbench import Workbench
from tests.support.waiting import until
from tests.testbed import Cluster

# What it says once it has imported what it needs: which rank, and when.
SCRIPT = """\
import os, signal, sys, time
import {imports}
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("rank", os.environ["SLURM_PROCID"], "began at", time.time(), flush=True)
time.sleep(float(sys.argv[1]))
"""
BEGAN = re.compile(r"^rank (\d+) began at ([0-9.]+)$", re.M)
PEER = """\
#!/bin/sh
#SBATCH --nodes={nodes} --ntasks-per-node=1 --exclusive --time=10 --job-name=peer
date +'srun began at %s.%N'
srun --output={directory}/peer-%t.log {python} work.py 1
"""
LIMIT = 600.0
ROWS = {
    "peer": "srun: to the last rank's line",
    "begun": "hpcrun: from its batch script on",
    "submitted": "hpcrun: from hpcrun submit on",
    "noticed": "a lost node: noticed",
    "ranks": "a lost node: the last rank's line, spare in its place",
}


def began(logs: Sequence[Path], ranks: int) -> float | None:
    """Return when the last of the ranks began; None while one of them has not."""
    found = {}
    for log in logs:
        if log.exists() and (match := BEGAN.search(log.read_text())):
            found[int(match[1])] = float(match[2])
    return max(found.values()) if len(found) == ranks else None


def last_line(logs: Callable[[], Sequence[Path]], ranks: int) -> float:
    """Wait until all ranks have begun, and return when the last one did."""
    until(lambda: began(logs(), ranks) is not None, "the ranks' lines", LIMIT, 0.2)
    found = began(logs(), ranks)
    assert found is not None
    return found


def peer(bench: Workbench, nodes: int, number: int) -> dict[str, float]:
    """Start the script by srun in an allocation of its own."""
    cluster, directory = bench.cluster, bench.directory / f"peer-{number}"
    cluster.run(["mkdir", str(directory)])
    text = PEER.format(nodes=nodes, directory=directory, python=cluster.python)
    script = bench.write(f"peer-{number}.sh", text)
    log = directory / "batch.log"
    argv = ["sbatch", "--wait", f"--output={log}", str(script)]
    cluster.run(argv, cwd=str(bench.directory), timeout=LIMIT)
    found = re.search(r"srun began at ([0-9.]+)", log.read_text())
    assert found, log.read_text()
    logs = [directory / f"peer-{rank}.log" for rank in range(nodes)]
    return {"peer": last_line(lambda: logs, nodes) - float(found[1])}


def ours(bench: Workbench, nodes: int, number: int, *, loses: bool) -> dict[str, float]:
    """Submit the script, and with ``loses`` have a node in the middle lose its power."""
    name = f"ours-{number}"
    resources: dict[str, Any] = {"nodes": nodes, "ntasks_per_node": 1, "gpus_per_node": 0}
    resources |= {"spare_nodes": 1, "time": "00:20:00", "mem": 500, "sbatch": {"exclusive": True}}
    spec = {"entry": "work.py", "args": [str(LIMIT if loses else 1)]}
    spec |= {"resources": resources, "environment": {"python": bench.cluster.python}}
    bench.spec(name, {**spec, "cluster": "bed"})
    typed = time.time()
    bench.hpcrun("submit", f"{name}.yaml")
    run = experiment(bench.root, name).run(0)

    def logs(attempt: int) -> Callable[[], list[Path]]:
        return lambda: list(run.attempt(attempt).rank_logs().values())

    last = last_line(logs(1), nodes)
    first = ledger.read(run)[0].started
    found = {"begun": last - first["time"], "submitted": last - typed}
    if loses:
        off = time.time()
        bench.cluster.power_off(first["nodes"][nodes // 2])
        last = last_line(logs(2), nodes)
        ended = ledger.read(run)[0].ended or {}
        found |= {"noticed": ended["time"] - off, "ranks": last - off}
        bench.hpcrun("cancel", name, "--yes")
    until(lambda: ledger.intent(run) is not None, "its end", LIMIT)
    return found


def main() -> None:
    """Measure, print, and write the results where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--times", type=int, default=3, help="samples; a node is lost in the last")
    parser.add_argument("--slurm", choices=["22.05", "24.11"], default="22.05")
    parser.add_argument("--imports", default="torch", help="modules that the script imports")
    add_options(parser, "many_nodes")
    options = parser.parse_args()
    samples: list[dict[str, float]] = []
    with Cluster(options.slurm, options.nodes + 1, light=False) as cluster:
        print(f"the bed is up: {cluster.start_seconds:.0f} s", file=sys.stderr, flush=True)
        bench = Workbench(cluster, "many")
        bench.write("work.py", SCRIPT.format(imports=options.imports))
        for number in range(options.times):
            sample = peer(bench, options.nodes, number)
            loses = number == options.times - 1
            sample |= ours(bench, options.nodes, number, loses=loses)
            print(sample, file=sys.stderr, flush=True)
            samples.append(sample)
    medians = {
        row: statistics.median([sample[row] for sample in samples if row in sample]) for row in ROWS
    }
    lines = [f"{ROWS[row]:<56}{seconds:8.2f} s" for row, seconds in medians.items()]
    lines.append(f"hpcrun's batch script beside srun: {medians['begun'] / medians['peer']:.2f}x")
    setting = circumstances(nodes=options.nodes, slurm=options.slurm, imports=options.imports)
    publish(options, f"many_nodes-{options.slurm}", setting, lines, samples=samples)


if __name__ == "__main__":
    main()
