"""From a fault to the first optimizer step after it: in place, with a spare node, and by a requeue.

    python -m bench.recovery [--times 5] [--slurm 22.05] [--against COMMIT]
        [--output bench/results] [--json]

Brings up the test bed's Slurm (root) with four nodes and Slurm's own delay of a requeue. Each time
a run of two ranks on two nodes is hurt once it has done a few steps. With ``--against`` on a local
disk: commits of before the bed's storage cached do not restart in place on it. See bench/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bench import against
from bench.publish import add_options, circumstances, publish
from hpcrun.run.protocol.heartbeat import SILENCE
from tests.cluster.ward import Ward
from tests.testbed import Cluster
from tests.testbed.storage import TENTH

# Slurm's default, in seconds; the test bed's own is shorter.
CRED_EXPIRE = 120
HURT_AT = 12
TARGET = 3.0


@dataclass(frozen=True)
class Case:
    """A fault, and what is done about it.

    Attributes
    ----------
    name
        For the table.
    target
        Seconds beyond the ranks' cold start that it may take; None for the peer.
    resources, recovery
        Blocks of the spec.
    power
        The place of the node that loses its power, links first: 0 is the batch host; None where a
        rank is killed.
    steps
        That are done before.
    """

    name: str
    target: float | None
    resources: dict[str, Any]
    recovery: dict[str, Any]
    power: int | None = None
    steps: int = HURT_AT


CASES = (
    Case("rank killed, restart in place", TARGET, {}, {}),
    # By then the warm ranks have imported all.
    Case("rank killed, warm ranks", TARGET, {}, {"warm_after": "00:00:01"}, steps=60),
    Case("node lost, spare in its place", TARGET + SILENCE, {"spare_nodes": 1}, {}, power=1),
    Case("batch host lost, spare in its place", TARGET + SILENCE, {"spare_nodes": 1}, {}, power=0),
    Case(
        "node lost, warm spare",
        TARGET,
        {"spare_nodes": 1},
        {"warm_after": "00:00:01"},
        power=1,
        steps=60,
    ),
    Case(
        "batch host lost, warm spare",
        TARGET,
        {"spare_nodes": 1},
        {"warm_after": "00:00:01"},
        power=0,
        steps=60,
    ),
    Case("rank killed, plain requeue", None, {}, {"in_place": 0}),
)


@dataclass(frozen=True)
class Sample:
    """One recovery, in seconds.

    Attributes
    ----------
    cold
        Cold start of the same run's first attempt: from the launch of its ranks to its first step.
    recovery
        From the fault to the first step of the attempt that followed.
    noticed, decided, begun
        From the fault until the end of the attempt, the start of the next and that of its ranks
        were on record.
    """

    cold: float
    recovery: float
    noticed: float
    decided: float
    begun: float

    @property
    def beyond(self) -> float:
        """What recovery took beyond a cold start."""
        return self.recovery - self.cold


def measure(ward: Ward, case: Case, name: str) -> Sample:
    """Hurt one run, and see when it goes on."""
    ward.submit(
        name,
        resources={"sbatch": {"exclusive": True}, **case.resources},
        recovery=case.recovery,
        config={"pause": 0.2, "total_steps": case.steps + 30},
    )
    (run,) = ward.wait_for_step(name, case.steps)
    node = run["nodes"][1 if case.power is None else case.power]
    fault = time.time()
    if case.power is not None:
        ward.cluster.power_off(node)
    else:
        ward.hurt_ranks(node, ward.raw_job_id(str(run["job_id"])))
    ward.wait_for_end(name, seconds=600)
    if case.power is not None:
        ward.cluster.boot(node)
    first, second = ward.attempts(name)
    steps = [float(ward.metrics(name, 0, number)[0]["time"]) for number in (1, 2)]
    began = float(first.workers_started or 0.0), float(second.workers_started or 0.0)
    return Sample(
        cold=steps[0] - began[0],
        recovery=steps[1] - fault,
        noticed=(first.ended or {})["time"] - fault,
        decided=second.started["time"] - fault,
        begun=began[1] - fault,
    )


def row(case: Case, version: str, samples: list[Sample]) -> dict[str, Any]:
    """A line of the table: medians."""

    def median(value: Callable[[Sample], float]) -> float:
        return round(statistics.median(map(value, samples)), 2)

    return {
        "case": case.name,
        "version": version,
        "times": len(samples),
        "cold_start": median(lambda sample: sample.cold),
        "recovery": median(lambda sample: sample.recovery),
        "beyond_cold_start": median(lambda sample: sample.beyond),
        "target": case.target,
        "noticed": median(lambda sample: sample.noticed),
        "decided": median(lambda sample: sample.decided),
        "begun": median(lambda sample: sample.begun),
        "samples": [asdict(sample) for sample in samples],
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """For a person."""
    columns = ("cold_start", "recovery", "beyond_cold_start", "target")
    lines = ["seconds, medians" + " " * 26 + "".join(f"{name:>19}" for name in columns)]
    for line in rows:
        values = ("-" if line[name] is None else f"{line[name]:.2f}" for name in columns)
        label = f"{line['case']:<36}{line['version']:<6}"
        lines.append(label + "".join(f"{value:>19}" for value in values))
    rows = [line for line in rows if line["version"] == against.NOW]
    peer = next((line["recovery"] for line in rows if line["target"] is None), None)
    for line in rows:
        if line["target"] is not None:
            verdict = "met" if line["beyond_cold_start"] <= line["target"] else "MISSED"
            faster = f", {peer / line['recovery']:.1f}x as fast as a requeue" if peer else ""
            lines.append(f"{line['case']}: target {verdict}{faster}")
    return lines


def main() -> None:
    """Measure, print, and write the results where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="samples of each case")
    parser.add_argument("--slurm", choices=["22.05", "24.11"], default="22.05")
    against.add_option(parser)
    add_options(parser, "recovery")
    options = parser.parse_args()
    began = time.monotonic()
    rows = []
    storage = "" if options.against else TENTH
    with (
        against.versions(options.against) as found,
        Cluster(
            options.slurm,
            cred_expire=CRED_EXPIRE,
            visible=against.visible(found),
            storage=storage,
        ) as cluster,
    ):
        wards = {version: Ward(cluster, version) for version in found}
        for version, ward in wards.items():
            against.use(ward, found[version])
            # One root: a second run of the same values would count as done.
            ward.get_ready(f"warm-{version}")
        for index, case in enumerate(CASES):
            samples: dict[str, list[Sample]] = {version: [] for version in wards}
            for number in range(options.times):
                for version, ward in wards.items():
                    last = measure(ward, case, f"case-{index}-{number}-{version}")
                    samples[version].append(last)
                    took = f"{last.recovery:.1f} s, cold start {last.cold:.1f} s"
                    print(
                        f"{case.name} {number + 1} {version}: {took}", file=sys.stderr, flush=True
                    )
            rows += [row(case, version, measured) for version, measured in samples.items()]
    setting = circumstances(
        seconds=round(time.monotonic() - began),
        slurm=options.slurm,
        storage=storage or "local disk",
        cred_expire=CRED_EXPIRE,
        heartbeat_timeout=SILENCE,
    )
    publish(options, "recovery", setting, table(rows), rows=rows)


if __name__ == "__main__":
    main()
