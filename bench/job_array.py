"""A sweep of 1,200 runs of a trivial command on a real Slurm: all accounted for at the end.

    python -m bench.job_array [--runs 1200] [--parallel 8] [--output bench/results] [--json]

The cluster's MaxArraySize is Slurm's default, so that it takes two arrays, and each keeps to its
share of `max_parallel`. Exits with 1 where a run is missing, was started twice or ran beside more
than `max_parallel`.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.publish import add_options, circumstances, publish
from hpcrun.state import files, ledger
from hpcrun.state.layout import ExperimentPaths
from tests.cluster.workbench import Workbench
from tests.testbed import VERSIONS, Cluster

LOOK_EVERY = 2.0


@dataclass(frozen=True)
class Outcome:
    """What became of the sweep.

    Attributes
    ----------
    submit_seconds
        From the command to its end.
    seconds
        From the command to the last run's end.
    arrays
        Sizes of the arrays.
    most_at_once
        The most tasks that squeue showed running.
    states
        Accounting's states of all tasks.
    completed, started_once
        Runs whose ledger says so.
    values
        Different lines that the runs' commands printed.
    """

    submit_seconds: float
    seconds: float
    arrays: list[int]
    most_at_once: int
    states: dict[str, int]
    completed: int
    started_once: int
    values: int


class Watch:
    """Counts the tasks that run, until it is told to stop."""

    def __init__(self, cluster: Cluster, runs: int) -> None:
        self._cluster, self._runs = cluster, runs
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count)
        self.most = 0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            answer = self._cluster.run(
                ["squeue", "-h", "-r", "-t", "running,pending", "-o", "%T"], check=False
            )
            states = Counter(answer.stdout.split())
            self.most = max(self.most, states["RUNNING"])
            left = sum(states.values())
            if sys.stderr.isatty():
                print(f"\r{self._runs - left} of {self._runs} ended", end="", file=sys.stderr)


def measure(cluster: Cluster, runs: int, parallel: int) -> Outcome:
    """Submit the sweep, wait for its end, and count."""
    bench = Workbench(cluster, "array")
    spec = {
        "entry": ["sh", "-c", "echo $0", "value ${config.x}"],
        "cluster": "bed",
        "config": {"x": 0},
        "resources": {"time": "00:10:00", "mem": "500M"},
        "environment": {"python": cluster.python},
        "sweep": {"grid": {"config.x": {"range": [runs]}}, "max_parallel": parallel},
    }
    path = bench.spec("array", spec)
    began = time.monotonic()
    submitted = json.loads(bench.hpcrun("submit", path, "--json").stdout)
    submit_seconds = time.monotonic() - began
    with Watch(cluster, runs) as watch:
        bench.hpcrun("submit", path, "--wait", timeout=4 * 3600, check=False)
    seconds = time.monotonic() - began
    ids = ",".join(array["job_id"] for array in submitted["arrays"])
    # Accounting hears of an end a moment after the controller knows it.
    time.sleep(5)
    rows = cluster.run(["sacct", "-nXPD", "-j", ids, "-o", "JobID,State"]).stdout.split()
    experiment = ExperimentPaths(bench.root / "array")
    attempts = [ledger.read(experiment.run(run)) for run in range(runs)]
    return Outcome(
        submit_seconds=round(submit_seconds, 2),
        seconds=round(seconds, 1),
        arrays=[len(array["runs"]) for array in submitted["arrays"]],
        most_at_once=watch.most,
        states=dict(Counter(row.partition("|")[2] for row in rows)),
        completed=sum(bool(each) and each[-1].outcome == "completed" for each in attempts),
        started_once=sum(len(each) == 1 for each in attempts),
        values=len({_said(experiment, run) for run in range(runs)}),
    )


def _said(experiment: ExperimentPaths, run: int) -> str:
    path: Path = experiment.run(run).attempt(1).rank_log(0)
    return files.read_tail(path, 1000).decode()


def wrong(outcome: Outcome, runs: int, parallel: int) -> list[str]:
    """What is not as it should be."""
    found = []
    if outcome.states != {"COMPLETED": runs}:
        found.append(f"accounting has {outcome.states}")
    for name in ("completed", "started_once", "values"):
        if getattr(outcome, name) != runs:
            found.append(f"{name} is {getattr(outcome, name)}")
    if outcome.most_at_once > parallel:
        found.append(f"{outcome.most_at_once} ran at once")
    return found


def main() -> None:
    """Do it, and write what became of it where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1200)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--slurm", choices=VERSIONS, default=VERSIONS[-1])
    add_options(parser, "array")
    options = parser.parse_args()
    with Cluster(options.slurm, 2) as cluster:
        outcome = measure(cluster, options.runs, options.parallel)
    problems = wrong(outcome, options.runs, options.parallel)
    setting = circumstances(slurm=options.slurm, runs=options.runs, max_parallel=options.parallel)
    lines = [f"{name}: {value}" for name, value in asdict(outcome).items()]
    lines += ["", f"WRONG: {'; '.join(problems)}" if problems else "all are accounted for"]
    publish(options, "job_array", setting, lines, outcome=asdict(outcome), problems=problems)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
