"""Half an hour of random faults on a sweep of four runs, and what their time went to.

    python -m bench.chaos [--minutes 30] [--seed 1] [--slurm 24.11] [--against COMMIT]
        [--output DIRECTORY] [--json]

Brings up the test bed's Slurm (root); with ``--against`` twice, and the other commit's hpcrun has
the same at the same time. See bench/README.md. Exits with 1 where a run did not end
with the weights and losses of one that nothing happened to, or ledger and accounting disagree.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import against
from bench.faults import CRED_EXPIRE
from bench.publish import add_options, circumstances, publish
from hpcrun.observe.diagnosis import goodput
from hpcrun.state import ledger
from tests.cluster.injection import Injection
from tests.cluster.ward import ARRAY, PROGRAM, STAGE, STAGES, Reference, Ward, problem
from tests.testbed import Cluster

NODES = 6
PAUSE = 0.5
STEPS_A_MINUTE = 80
BETWEEN = (45.0, 90.0)
SPEC: dict[str, Any] = {
    "resources": {"spare_nodes": 1, "time": "03:00:00"},
    "checkpoint": {"every": 20},
    "recovery": {"hang_after": "00:00:15"},
}
RIGHT = "nothing: all complete, bits and accounting as they should be"
PARTS = (*goodput.WORDS, "wall", "share")


@dataclass(frozen=True)
class Target:
    """A run that trains, and one of its nodes."""

    run: str
    job: str
    raw_job: str
    node: str
    batch_host: str


@dataclass(frozen=True)
class Done:
    """A fault: at which second, what, to whom."""

    second: float
    fault: str
    run: str
    node: str


class Chaos:
    """Does faults to runs, one after the other."""

    def __init__(self, ward: Ward, runs: list[str], chance: random.Random) -> None:
        self._ward, self._runs, self._chance = ward, runs, chance
        self._began = time.monotonic()
        self.done: list[Done] = []

    def go_on(self, seconds: float) -> None:
        """For so long, or until every run is over."""
        deadline = self._began + seconds
        left: list[str] = []
        while time.monotonic() < deadline and not all(map(self._is_over, self._runs)):
            at = time.monotonic() + self._chance.uniform(*BETWEEN)
            # Each fault once, in any order, before any comes again.
            left = left or self._chance.sample(list(FAULTS), len(FAULTS))
            if (target := self._target()) is None:
                time.sleep(0.5)
                continue
            fault = left.pop()
            second = time.monotonic() - self._began
            self.done.append(Done(second, fault, target.run, target.node))
            told = f"{second:5.0f} s: {fault}: {target.run} on {target.node}"
            print(f"{self._ward.directory.name}: {told}", file=sys.stderr, flush=True)
            FAULTS[fault](self._ward, target)
            while time.monotonic() < min(at, deadline):
                time.sleep(0.5)

    def _is_over(self, run: str) -> bool:
        return ledger.intent(self._ward.paths(run)) is not None

    def _target(self) -> Target | None:
        """Any run of which the ranks are at work."""
        working = []
        for run in self._runs:
            attempts = self._ward.attempts(run)
            if attempts and attempts[-1].workers_started and not attempts[-1].ended:
                working.append((run, attempts[-1]))
        if not working:
            return None
        run, attempt = self._chance.choice(working)
        job, nodes = str(attempt.started["job_id"]), attempt.started["nodes"]
        node = self._chance.choice(nodes)
        try:
            raw = self._ward.raw_job_id(job)
        except subprocess.CalledProcessError:
            return None
        return Target(run, job, raw, node, attempt.started["host"]) if raw else None


def kills(what: str) -> Callable[[Ward, Target], None]:
    """A program of hpcrun's dies."""

    def kill(ward: Ward, target: Target) -> None:
        node = target.batch_host if what == "supervisor" else target.node
        ward.kill(node, f"{PROGRAM}{what}", target.raw_job)

    return kill


def signals(number: str) -> Callable[[Ward, Target], None]:
    """A signal to the ranks of a node."""

    def send(ward: Ward, target: Target) -> None:
        ward.hurt_ranks(target.node, target.raw_job, number)

    return send


def lasts(what: str, seconds: float) -> Callable[[Ward, Target], None]:
    """A fault of `Injection`, for a while."""

    def inject(ward: Ward, target: Target) -> None:
        with getattr(Injection(ward.cluster, target.node, None), what)():
            time.sleep(seconds)

    return inject


def command(*argv: str) -> Callable[[Ward, Target], None]:
    """A command of Slurm's on the job."""

    def run(ward: Ward, target: Target) -> None:
        ward.cluster.run([*argv, target.job], check=False)

    return run


def cut_off(ward: Ward, target: Target) -> None:
    """The node loses all its links, and is rebooted before it may be used again.

    Of a node that Slurm gave up and took back by itself, the slurmd of 24.11 may refuse to start a
    job again whose end it never heard of; the node is drained then, and the job held.
    """
    for interface in ("eth0", "ib0"):
        ward.cluster.link(target.node, interface, up=False)
    time.sleep(30)
    ward.cluster.power_off(target.node)
    ward.cluster.boot(target.node, wait=False)


def preempt(ward: Ward, target: Target) -> None:
    """Another job takes the node, and all that runs there has to leave."""
    ward.cluster.wait_job(ward.preempt([target.node]), timeout=120)


FAULTS: dict[str, Callable[[Ward, Target], None]] = {
    "a rank killed": signals("KILL"),
    "a rank segfaults": signals("SEGV"),
    "a rank stopped": signals("STOP"),
    "an agent killed": kills("agent"),
    "the supervisor killed": kills("supervisor"),
    "requeued by hand": command("scontrol", "requeue"),
    "signalled by hand": command("scancel", "--signal=USR2"),
    "a node preempted": preempt,
    "a node without power": lasts("power", 30),
    "a node without links": cut_off,
    "a node without fabric": lasts("fabric", 20),
    "no slurmctld": lasts("controller", 10),
    "no slurmdbd": lasts("database_daemon", 10),
}


@dataclass(frozen=True)
class Found:
    """The faults that a commit's runs met, the checks that failed then, and a row of each run."""

    minutes: float
    faults: list[Done]
    wrong: list[str]
    rows: list[dict[str, Any]]


def suffer(options: argparse.Namespace, checkout: Path | None, name: str) -> Found:
    """Hurt the runs of a commit for so long; ``checkout`` is None for this one's."""
    steps, seconds = round(options.minutes * STEPS_A_MINUTE), options.minutes * 60
    seen = against.visible({name: checkout})
    cluster = Cluster(options.slurm, NODES, cred_expire=CRED_EXPIRE, light=True, visible=seen)
    with cluster:
        ward = Ward(cluster, name)
        against.use(ward, checkout)
        expected = Reference.make(ward, steps, **SPEC)
        config = {"total_steps": steps, "pause": PAUSE}
        runs = ward.submit_each(ARRAY, "chaos", STAGE, STAGES, config=config, **SPEC)
        ward.wait_for_step(runs, 3)
        began = time.monotonic()
        chaos = Chaos(ward, runs, random.Random(options.seed))
        chaos.go_on(seconds)
        took = time.monotonic() - began
        wrong: list[str] = []
        if lost := problem(lambda: ward.wait_for_end(runs, seconds=seconds)):
            wrong.append(lost)
        for run, stage in zip(runs, STAGES, strict=True):
            wrong += filter(None, [problem(partial(expected.assert_same, run, stage))])
            wrong += filter(None, [problem(partial(ward.assert_reconciled, run))])
        print("\n".join(wrong), file=sys.stderr)
        return Found(took / 60, chaos.done, wrong, _rows(ward, runs))


def _rows(ward: Ward, runs: list[str]) -> list[dict[str, Any]]:
    told = json.loads(ward.hpcrun("why", *runs, "--json").stdout)
    rows = []
    for run, stage, found in zip(runs, STAGES, told, strict=True):
        kinds = Counter(kind for kind in ward.kinds(run) if kind)
        rows.append({"run": run, "zero": stage, "ends": dict(kinds), **found["goodput"]})
    return rows


def table(rows: list[dict[str, Any]], done: list[Done]) -> list[str]:
    """The faults and the runs' goodput, for a person."""
    lines = [f"{one.second:5.0f} s  {one.fault}: {one.run} on {one.node}" for one in done]
    lines += ["", f"{'run':<10}{'ZeRO':>5}" + "".join(f"{part:>10}" for part in PARTS)]
    for row in rows:
        numbers = "".join(f"{row[part]:>10.1f}" for part in PARTS[:-1])
        lines.append(f"{row['run']:<10}{row['zero']:>5}{numbers}{row['share']:>10.1%}")
    lines.append("")
    for row in rows:
        ends = ", ".join(f"{count} {kind}" for kind, count in sorted(row["ends"].items()))
        lines.append(f"{row['run']}: {sum(row['ends'].values()) + 1} attempts; {ends}")
    return lines


def main() -> None:
    """Do it, print the tables, and write them where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slurm", choices=["22.05", "24.11"], default="24.11")
    against.add_option(parser)
    add_options(parser, "chaos")
    options = parser.parse_args()
    with against.versions(options.against) as checkouts, ThreadPoolExecutor() as pool:
        begun = {
            commit: pool.submit(suffer, options, checkout, commit)
            for commit, checkout in checkouts.items()
        }
        found = {commit: each.result() for commit, each in begun.items()}
    now = found[against.NOW]
    setting = circumstances(
        minutes_of_faults=round(now.minutes, 1),
        faults=len(now.faults),
        seed=options.seed,
        slurm=options.slurm,
        nodes=NODES,
        cred_expire=CRED_EXPIRE,
        wrong="; ".join(now.wrong) or RIGHT,
    )
    lines = []
    for commit, each in found.items():
        if commit != against.NOW:
            lines += [f"{commit}, at the same time; wrong: {'; '.join(each.wrong) or RIGHT}", ""]
            lines += [*table(each.rows, each.faults), "", f"{against.NOW}:", ""]
    lines += table(now.rows, now.faults)
    data = {commit: asdict(each) for commit, each in found.items()}
    publish(options, "chaos", setting, lines, commits=data)
    sys.exit(1 if now.wrong else 0)


if __name__ == "__main__":
    main()
