"""Faults in every phase of a run, and what became of each run: the table behind "it comes back".

    python -m bench.faults [--only TEXT]... [--against COMMIT] [--output bench/results] [--json]

Brings up the test bed's Slurm (root) in two versions at the same time, and does the cases of
`tests.cluster.faults` on both; with ``--against`` each with the other commit's hpcrun, then with
this one. See bench/README.md. Exits with 1 where a case did not end as it should.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import against
from bench.publish import add_options, circumstances, publish
from hpcrun.run.protocol.heartbeat import SILENCE
from tests.cluster.faults import Case, cases
from tests.cluster.trial import Outcome, Trial, reference
from tests.cluster.ward import Reference, Ward, problem
from tests.testbed import VERSIONS, Cluster

NODES = 4
# Longer than KillWait, as by default: a job that is put back as a node that Slurm gave up returns
# would otherwise begin while that node still ends its last start, and be held for it.
CRED_EXPIRE = 12
CASE = ("FAULT", "PHASE", "PLACE", "ZERO", "FORM", "SLURM", "COMMIT")
COLUMNS = (*CASE, "ENDS", "LOST", "COLD", "BACK", "")


@dataclass(frozen=True)
class Row:
    """A case and how it went; ``problem`` is empty where all was as it should be."""

    case: Case
    commit: str
    outcome: Outcome | None
    problem: str
    seconds: float


class Campaign:
    """All cases, each version's one after the other; ``commits`` is of `against.versions`."""

    def __init__(self, wanted: list[tuple[int, Case]], commits: dict[str, Path | None]) -> None:
        self._wanted, self._commits = wanted, commits
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
        seen = against.visible(self._commits)
        with Cluster(version, NODES, cred_expire=CRED_EXPIRE, light=True, visible=seen) as cluster:
            expected = reference(cluster)
            # What runs end with does not depend on the commit.
            desks = {against.NOW: expected}
            for commit, checkout in self._commits.items():
                if checkout:
                    ward = Ward(cluster, commit)
                    against.use(ward, checkout)
                    ward.get_ready(f"warm-{commit}")
                    desks[commit] = Reference(ward, expected.outcomes)
            for number, case in self._wanted:
                if case.slurm == version:
                    for commit in self._commits:
                        trial = Trial(desks[commit], case, f"fault-{number}-{commit}")
                        rows.append(self._case(trial, case, commit, cluster))
        return rows

    def _case(self, trial: Trial, case: Case, commit: str, cluster: Cluster) -> Row:
        began, bed = time.monotonic(), str(cluster.root)
        found: list[Outcome] = []
        wrong = problem(lambda: found.append(trial.run()))
        if stuck := problem(cluster.reset):
            wrong += f"Slurm begins anew\n{stuck}"
            cluster.down()
            cluster.up()
        outcome = found[0] if found else None
        # Without this machine's paths: it goes into results.
        wrong = wrong.replace(bed, "BED")
        row = Row(case, commit, outcome, wrong, time.monotonic() - began)
        with self._lock:
            self._done += 1
            verdict = f"WRONG\n{wrong}" if wrong else "as it should be"
            told = f"{self._done}/{len(self._wanted) * len(self._commits)} {case.name}, {commit}"
            print(f"{told}: {verdict} ({row.seconds:.0f} s)", file=sys.stderr, flush=True)
        return row


def table(rows: list[Row]) -> list[str]:
    """For a person."""
    lines: list[tuple[str, ...]] = [COLUMNS]
    for row in rows:
        case, outcome = row.case, row.outcome
        place = (case.phase, case.place, str(case.stage), case.form, case.slurm)
        words = (case.fault, *place, row.commit)
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


def compared(rows: list[Row], commits: list[str]) -> list[str]:
    """Return the two commits beside each other, in the cases that both came back in."""
    lines = [""]
    for commit in commits:
        wrong = [row for row in rows if row.commit == commit and row.problem]
        lines.append(f"{commit}: {len(wrong)} wrong")
    outcomes = {(row.case, row.commit): row.outcome for row in rows}
    for name in ("lost_steps", "cold_start", "recovery"):
        found = [
            [getattr(outcomes[row.case, commit], name, None) for commit in commits]
            for row in rows
            if row.commit == against.NOW
        ]
        both = [pair for pair in found if None not in pair]
        means = [statistics.fmean(each) for each in zip(*both, strict=True)]
        told = (f"{commit} {mean:.2f}" for commit, mean in zip(commits, means, strict=False))
        lines.append(f"{name}, mean of {len(both)} cases: {', '.join(told)}")
    return lines


def main() -> None:
    """Do the cases, print the table, and write it where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="cases whose name holds this")
    against.add_option(parser)
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
    with against.versions(options.against) as commits:
        rows = Campaign(wanted, commits).run()
    wrong = sum(bool(row.problem) and row.commit == against.NOW for row in rows)
    setting = circumstances(
        seconds=round(time.monotonic() - began),
        heartbeat_timeout=SILENCE,
        cases=len(wanted),
        wrong=wrong,
    )
    lines = [*table(rows), *(compared(rows, list(commits)) if options.against else ())]
    publish(options, "faults", setting, lines, rows=[asdict(row) for row in rows])
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
