"""Faults in every phase of a run, and what became of each run: the table behind "it comes back".

    python -m bench.faults [--only TEXT]... [--output bench/results] [--json]

Brings up the test bed's Slurm (root) in two versions at the same time, and does the cases of
`tests.cluster.faults` on both. See bench/README.md. Exits with 1 where a case did not end as it
should.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from bench.publish import add_options, circumstances, publish
from hpcrun.run.protocol.heartbeat import SILENCE
from tests.cluster.faults import Case, cases
from tests.cluster.trial import Outcome, Trial, reference
from tests.cluster.ward import problem
from tests.testbed import VERSIONS, Cluster

NODES = 4
# Longer than KillWait, as by default: a job that is put back as a node that Slurm gave up returns
# would otherwise begin while that node still ends its last start, and be held for it.
CRED_EXPIRE = 12
COLUMNS = ("FAULT", "PHASE", "PLACE", "ZERO", "FORM", "SLURM", "ENDS", "LOST", "COLD", "BACK", "")


@dataclass(frozen=True)
class Row:
    """A case and how it went; ``problem`` is empty where all was as it should be."""

    case: Case
    outcome: Outcome | None
    problem: str
    seconds: float


class Campaign:
    """All cases, each version's one after the other."""

    def __init__(self, wanted: list[tuple[int, Case]]) -> None:
        self._wanted = wanted
        self._done = 0
        self._lock = threading.Lock()

    def run(self) -> list[Row]:
        """Do them; in the order of their numbers."""
        versions = [each for each in VERSIONS if any(c.slurm == each for _, c in self._wanted)]
        with ThreadPoolExecutor(len(versions)) as pool:
            rows = [row for found in pool.map(self._version, versions) for row in found]
        order = [case for _, case in self._wanted]
        return sorted(rows, key=lambda row: order.index(row.case))

    def _version(self, version: str) -> list[Row]:
        rows = []
        with Cluster(version, NODES, cred_expire=CRED_EXPIRE, light=True) as cluster:
            expected = reference(cluster)
            for number, case in self._wanted:
                if case.slurm == version:
                    rows.append(self._case(Trial(expected, case, f"fault-{number}"), case, cluster))
        return rows

    def _case(self, trial: Trial, case: Case, cluster: Cluster) -> Row:
        began = time.monotonic()
        found: list[Outcome] = []
        wrong = problem(lambda: found.append(trial.run()))
        if stuck := problem(cluster.reset):
            wrong += f"Slurm begins anew\n{stuck}"
            cluster.down()
            cluster.up()
        outcome = found[0] if found else None
        row = Row(case, outcome, wrong, time.monotonic() - began)
        with self._lock:
            self._done += 1
            verdict = f"WRONG\n{wrong}" if wrong else "as it should be"
            told = f"{self._done}/{len(self._wanted)} {case.name}: {verdict} ({row.seconds:.0f} s)"
            print(told, file=sys.stderr, flush=True)
        return row


def table(rows: list[Row]) -> list[str]:
    """For a person."""
    lines = [COLUMNS]
    for row in rows:
        case, outcome = row.case, row.outcome
        words = (case.fault, case.phase, case.place, str(case.stage), case.form, case.slurm)
        if outcome is None:
            lines.append((*words, "", "", "", "", "WRONG"))
            continue
        ends = ", ".join(kind or "completed" for kind in outcome.kinds)
        times = (outcome.cold_start, outcome.recovery)
        told = ("-" if seconds is None else f"{seconds:.1f}" for seconds in times)
        numbers = (str(outcome.lost_steps), *told)
        lines.append((*words, ends, *numbers, ""))
    widths = [max(len(line[index]) for line in lines) for index in range(len(COLUMNS))]
    return [
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def main() -> None:
    """Do the cases, print the table, and write it where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="cases whose name holds this")
    add_options(parser, "faults")
    options = parser.parse_args()
    wanted = [
        (number, case)
        for number, case in enumerate(cases(), 1)
        if not options.only or any(text in case.name for text in options.only)
    ]
    if not wanted:
        parser.error("no case has such a name")
    began = time.monotonic()
    rows = Campaign(wanted).run()
    wrong = sum(bool(row.problem) for row in rows)
    setting = circumstances(
        seconds=round(time.monotonic() - began),
        heartbeat_timeout=SILENCE,
        cases=len(rows),
        wrong=wrong,
    )
    publish(options, "faults", setting, table(rows), rows=[asdict(row) for row in rows])
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
