"""Calls to the file server of a step, a save, an attempt's start and a `status` of 1,000 runs.

    python -m bench.storage_calls [--against COMMIT] [--output bench/results] [--json]

On the test bed's Slurm, whose shared storage is mounted by a client that caches as NFS does, with
the times that nfs(5) has, and counts what it asks its server (root). See bench/README.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import against
from bench.publish import add_options, circumstances, publish
from tests.cluster.ward import Ward, Where
from tests.cluster.workbench import give_operators
from tests.support import operators
from tests.support.waiting import until
from tests.testbed import Cluster
from tests.testbed.storage import CALLS, REAL

RUNS = 1_000
STEPS, EVERY = 160, 20
# Counted between these, without a save.
FIRST, LAST = 30, 150
NODES = ("n1", "n2")
WRITE_RUNS = """
import sys
from pathlib import Path
from tests.support.experiment import T0, Experiment
root, runs = Path(sys.argv[1]), int(sys.argv[2])
study = Experiment(root, "many")
study.submit(range(runs), when=T0)
for run in range(runs):
    study.start(run)
    study.metrics(run, 1, [10, 20], loss=0.5)
    study.end(run)
"""


class Desk(Ward):
    """One that looks where the server is: an older hpcrun may be wrong about ends."""

    def wait_for_end(
        self, runs: Where, state: str = "completed", seconds: float = 240
    ) -> list[dict[str, Any]]:
        for run in [runs] if isinstance(runs, str) else runs:
            until(self.paths(run).intent.exists, f"{run} {state}", seconds, pause=0.2)
        return []


def calls(cluster: Cluster, machine: str) -> dict[str, int]:
    return cluster.storage_client(machine).calls()


def difference(after: dict[str, int], before: dict[str, int]) -> dict[str, float]:
    return {kind: after[kind] - before[kind] for kind in CALLS}


def divided(counts: dict[str, float], number: float) -> dict[str, float]:
    return {kind: round(count / number, 2) for kind, count in counts.items()}


def trained(ward: Ward, name: str, every: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return the calls of each node from the submission to the first step, and of a step."""
    cluster = ward.cluster
    began = {node: calls(cluster, node) for node in NODES}
    nodes = {"nodes": 2, "sbatch": {"nodelist": ",".join(NODES)}}
    config = {"pause": 0.25, "total_steps": STEPS}
    ward.submit(name, resources=nodes, config=config, checkpoint={"every": every})
    # The server's view: looking there costs no client a call.
    metrics = ward.paths(name).attempt(1).metrics

    def wait_for(step: int) -> dict[str, dict[str, int]]:
        deadline = time.monotonic() + 180
        while not metrics.exists() or metrics.read_text().count("\n") < step:
            if time.monotonic() > deadline:
                raise TimeoutError(ward.explain(name))
            time.sleep(0.02)
        return {node: calls(cluster, node) for node in NODES}

    started, first, last = (wait_for(step) for step in (1, FIRST, LAST))
    ward.wait_for_end(name)
    return {
        node: {
            "start": difference(started[node], began[node]),
            "step": divided(difference(last[node], first[node]), LAST - FIRST),
        }
        for node in NODES
    }


def looked(ward: Ward, checkout: Path) -> dict[str, dict[str, float]]:
    """Return the calls of `status` of many runs that have ended, at once and a second time.

    The runs are written by the version that looks at them: an older one knows fewer fields.
    """
    cluster = ward.cluster
    subprocess.run(
        [sys.executable, "-c", WRITE_RUNS, ward.root, str(RUNS)], cwd=checkout, check=True
    )
    subprocess.run(["chown", "-R", f"{cluster.uid}:{cluster.uid}", ward.root / "many"], check=True)
    found = {}
    for when in ("first", "again"):
        before = calls(cluster, "login")
        ward.hpcrun("status", "many")
        found[when] = difference(calls(cluster, "login"), before)
    return found


def measure(checkout: Path | None) -> dict[str, Any]:
    with Cluster(storage=REAL, visible=against.visible({"": checkout})) as cluster:
        ward = Desk(cluster, "calls")
        against.use(ward, checkout)
        give_operators(cluster, operators.build())
        ward.get_ready()
        calm, saving = trained(ward, "calm", 10_000), trained(ward, "saving", EVERY)
        saves = (LAST - FIRST) / EVERY
        result: dict[str, Any] = {
            "an attempt's start": {node: calm[node]["start"] for node in NODES},
            "a step": {node: calm[node]["step"] for node in NODES},
            "a save": {
                node: {
                    kind: round(
                        (saving[node]["step"][kind] - calm[node]["step"][kind])
                        * (LAST - FIRST)
                        / saves,
                        1,
                    )
                    for kind in CALLS
                }
                for node in NODES
            },
            f"status of {RUNS:,} runs": looked(ward, checkout or against.REPOSITORY),
        }
    return result


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    lines = [f"{'':44}" + "".join(f"{kind:>9}" for kind in (*CALLS, "all"))]
    for what in next(iter(results.values())):
        for where in next(iter(results.values()))[what]:
            for version, found in results.items():
                counts = found[what][where]
                numbers = [*counts.values(), sum(counts.values())]
                label = f"{what}, {where}, {version}"
                lines.append(f"{label:44}" + "".join(f"{number:>9.5g}" for number in numbers))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.storage_calls", description=__doc__)
    against.add_option(parser)
    add_options(parser, "storage_calls")
    options = parser.parse_args()
    with against.versions(options.against) as found:
        results = {version: measure(checkout) for version, checkout in found.items()}
    setting = circumstances(storage=REAL, nodes=len(NODES))
    publish(options, "storage_calls", setting, table(results), calls=results)


if __name__ == "__main__":
    main()
