"""64 runs of a minute in one job (``resources.pack``), beside an array of 64 jobs.

    python -m bench.packing [--runs 64] [--seconds 60] [--per-node 4] [--slurm 22.05]
        [--output bench/results] [--json]

Brings up the test bed's Slurm (root) with four nodes, which take ``--per-node`` runs each at once.
Of the packed runs the rank of one is killed, one runs out of memory and one is cancelled; the
values of all others are compared, to the bit, with those of the array. See bench/README.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from statistics import median
from typing import Any

from bench.publish import add_options, circumstances, publish
from hpcrun.state import files
from tests.cluster.ward import Ward
from tests.support.waiting import until
from tests.testbed import VERSIONS, Cluster

NODES = 4
KILLED, OUT_OF_MEMORY, CANCELLED = 5, 6, 7
PROGRAM = """\
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=int)
parser.add_argument("--steps", type=int)
parser.add_argument("--hungry", type=int)
given = parser.parse_args()
try:
    begun, value = json.load(open("state.json"))
except OSError:
    begun, value = 0, given.x / 997
until = time.monotonic()
for step in range(begun + 1, given.steps + 1):
    until += 1
    time.sleep(max(0, until - time.monotonic()))
    for _ in range(1000):
        value = 3.9 * value * (1 - value)
    json.dump([step, value], open("state.new", "w"))
    os.replace("state.new", "state.json")
    print(f"step {step} loss {value!r}", flush=True)
    if given.x == given.hungry + 1 and step == 4:
        taken = bytearray(os.urandom(1 << 20) * 700)
"""


def spec(options: argparse.Namespace, *, packed: bool) -> dict[str, Any]:
    """Return the experiment; the array has no run that needs too much memory."""
    resources: dict[str, Any] = {"ntasks_per_node": 1, "mem": "300M", "time": "01:00:00"}
    if packed:
        resources["pack"] = {"runs_per_node": options.per_node, "nodes_per_job": NODES}
    hungry = OUT_OF_MEMORY if packed else -2
    return {
        "entry": "train.py",
        "cluster": "bed",
        "objective": {"metric": "loss"},
        "progress": {"pattern": r"step (?P<step>\d+) loss (?P<loss>\S+)"},
        "config": {"x": 0, "steps": options.seconds, "hungry": hungry},
        "resources": resources,
        "recovery": {"resume": {"when": "state.json"}, "budgets": {"out_of_memory": 1}},
        "sweep": {
            "grid": {"config.x": [*range(1, options.runs + 1)]},
            "max_parallel": NODES * options.per_node,
        },
    }


def measure(ward: Ward, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run an experiment to its end, hurt three runs of the packed one, and return its figures."""
    packed = name == "packed"
    ward.hpcrun("submit", ward.spec(name, spec(options, packed=packed)), timeout=300)
    if packed:
        found = ward.wait_for_step(f"{name}/{KILLED}", 3)
        ward.kill(found[0]["nodes"][0], f"^[^ ]*python[^ ]* .*train.py --x={KILLED + 1} ")
        ward.hpcrun("cancel", f"{name}/{CANCELLED}", "--yes")
    over = {"completed", "failed", "cancelled"}
    waves = math.ceil(options.runs / (NODES * options.per_node))
    limit = waves * options.seconds * 2 + 300
    until(lambda: all(one["state"] in over for one in ward.status(name)), f"{name} ends", limit, 5)
    runs = ward.status(name)
    spans: dict[int, tuple[float, float]] = {}
    values: dict[int, list[float]] = {}
    for number in range(options.runs):
        paths, attempts = ward.paths(f"{name}/{number}"), ward.attempts(f"{name}/{number}")
        spans[number] = (attempts[0].began or 0.0, float(attempts[-1].end["time"]))
        lines = [line for one in paths.attempts() for line in files.read_lines(one.metrics)]
        values[number] = [line["loss"] for line in lines if "loss" in line]
    return {
        "seconds": max(end for _, end in spans.values())
        - min(begin for begin, _ in spans.values()),
        "jobs": len({str(one["job_id"]) for one in runs}),
        "states": {number: one["state"] for number, one in enumerate(runs)},
        "causes": {
            number: one["cause"].get("kind") for number, one in enumerate(runs) if one["cause"]
        },
        "gap": median(gaps(ward, name, spans)),
        "values": values,
    }


def gaps(ward: Ward, name: str, spans: dict[int, tuple[float, float]]) -> list[float]:
    """Return the seconds between the end of a run and the first line of the next in its place."""
    ends: dict[str, list[float]] = defaultdict(list)
    found = []
    for number in sorted(spans, key=lambda one: spans[one][0]):
        first = ward.attempts(f"{name}/{number}")[0]
        node = first.nodes[0]
        before = [end for end in ends[node] if end <= spans[number][0] + 0.5]
        if before:
            last = max(before)
            ends[node].remove(last)
            lines = files.read_lines(ward.paths(f"{name}/{number}").attempt(1).metrics)
            steps = [float(line["time"]) for line in lines if "time" in line]
            found += [steps[0] - 1 - last] if steps else []
        ends[node].append(spans[number][1])
    return found or [math.nan]


def main() -> None:
    """Measure, print, and write the results where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=60, help="how long a run takes")
    parser.add_argument("--per-node", type=int, default=4, help="runs on a node at once")
    parser.add_argument("--slurm", choices=VERSIONS, default=VERSIONS[0])
    add_options(parser, "packing")
    options = parser.parse_args()
    with Cluster(options.slurm, nodes=NODES, cpus=options.per_node) as cluster:
        ward = Ward(cluster, "packing")
        ward.write("train.py", PROGRAM)
        array = measure(ward, "array", options)
        packed = measure(ward, "packed", options)
    hurt = {KILLED, OUT_OF_MEMORY, CANCELLED}
    alike = (n for n in range(options.runs) if n not in hurt)
    differ = [n for n in alike if array["values"][n] != packed["values"][n]]
    ideal = math.ceil(options.runs / (NODES * options.per_node)) * options.seconds
    setting = circumstances(
        slurm=options.slurm, runs=options.runs, seconds=options.seconds, per_node=options.per_node
    )
    lines = [
        f"ideal                {ideal:8.1f} s",
        *(
            f"{name:20} {one['seconds']:8.1f} s  {one['seconds'] / ideal:.2f}x  in {one['jobs']} "
            f"jobs; from a run's end to the next one's first step in its place {one['gap']:.1f} s"
            for name, one in (("an array", array), ("packed", packed))
        ),
        f"hurt: {packed['causes']}",
        f"runs that differ from those of the array: {differ or 'none'}",
    ]
    for one in (array, packed):
        del one["values"]
    publish(options, "packing", setting, lines, array=array, packed=packed, differ=differ)
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
