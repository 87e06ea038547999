"""One case of the covering array: a run is hurt, comes back, and ends as if nothing had been."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.policy import causes, recovery
from tests.cluster.disk import Disk, small_disk
from tests.cluster.faults import FAULTS, NODE, PLACES, RANK, Case, Fault, expected
from tests.cluster.injection import Injection
from tests.cluster.ward import ARRAY, SINGLE, STAGES, Reference, Ward
from tests.support.waiting import until
from tests.testbed import Cluster

STEPS, EVERY, STEP = 16, 5, 8

# From outside: for how many seconds, and how long a step takes so that the run sees all of it.
LASTS = {
    "power": 25.0,
    "links": 25.0,
    "fabric": 25.0,
    "full_disk": 2.5,
    "read_only_disk": 2.5,
    "controller": 3.0,
    "database_daemon": 3.0,
    "scontrol": 8.0,
}
PAUSES = {"full_disk": 0.8, "read_only_disk": 0.8, "controller": 0.5, "database_daemon": 0.5}

SPEC: dict[str, Any] = {
    "deepspeed": {"train_batch_size": 12},
    "resources": {"nodes": 3},
    "checkpoint": {"every": EVERY},
}


def reference(cluster: Cluster, stages: Collection[int] = STAGES) -> Reference:
    """What runs of three ranks end with that nothing happens to."""
    return Reference.make(Ward(cluster, "ward"), STEPS, stages, **SPEC)


@dataclass(frozen=True)
class Outcome:
    """What became of a run that was hurt.

    Attributes
    ----------
    kinds
        What ended each attempt; None for the one that completed.
    lost_steps
        Optimizer steps that were done again.
    cold_start, recovery
        Seconds from the launch of the first attempt's ranks to the first step, and from the fault
        to the first step of the attempt that followed; None where there was none.
    """

    kinds: list[str | None]
    lost_steps: int
    cold_start: float | None
    recovery: float | None


class Trial:
    """A case, on the cluster of its version.

    Parameters
    ----------
    name
        Of the experiment.
    """

    def __init__(self, reference: Reference, case: Case, name: str) -> None:
        self._case, self._name = case, name
        self._fault: Fault = FAULTS[case.fault]
        self._reference = reference
        self._cluster = reference.ward.cluster
        self._post = reference.ward.directory / f"post-{name}"
        self._ward: Ward

    def run(self) -> Outcome:
        """Do it, and see that all is as it should be."""
        self._cluster.run(["mkdir", "-p", str(self._post)])
        with self._desk() as disk:
            runs = self._submit()
            victim = runs[self._victim]
            until((self._post / "reached").exists, f"{self._case.phase} reached", 120)
            attempt = len(self._ward.attempts(victim))
            when = self._hurt(victim, disk, lambda: all(map(self._is_over, runs)))
            try:
                until(lambda: all(map(self._is_over, runs)), "the end of all runs", 200)
            except TimeoutError as error:
                stories = [_story(self._ward, run) for run in runs]
                explained = self._ward.explain(*runs)
                raise TimeoutError("\n".join([str(error), *stories, explained])) from None
            return self._judge(runs, victim, attempt, when)

    @property
    def _is_of_disk(self) -> bool:
        return (self._fault.from_outside or "").endswith("disk")

    @contextlib.contextmanager
    def _desk(self) -> Iterator[Disk | None]:
        if not self._is_of_disk:
            self._ward = self._reference.ward
            yield None
            return
        with small_disk(self._reference.ward) as disk:
            self._ward = disk.ward
            yield disk

    @property
    def _victim(self) -> int:
        """Of two elements; the first of an array has the array's own id."""
        return PLACES[self._case.place] % 2 if self._case.form == ARRAY else 0

    def _submit(self) -> list[str]:
        case, fault = self._case, self._fault
        outside = fault.from_outside
        at = {
            "armed": True,
            "phase": case.phase,
            "step": STEP,
            "rank": PLACES[case.place],
            "fault": fault.by_itself,
            "signpost": str(self._post),
            "waits": outside is not None,
        }
        alone = case.form == SINGLE
        spare = {"spare_nodes": 1} if fault.blames == NODE and alone else {}
        # Where only a requeue is left, scontrol is what it needs.
        policy = {"in_place": 0} if outside == "scontrol" and not alone else {}
        armed = [number == self._victim for number in range(1 if alone else 2)]
        config = {"at": at, "total_steps": STEPS, "pause": PAUSES.get(outside or "", 0.05)}
        return self._ward.submit_each(
            case.form,
            self._name,
            "config.at.armed",
            armed,
            config=config,
            deepspeed={**SPEC["deepspeed"], "zero_optimization": {"stage": case.stage}},
            resources={**SPEC["resources"], **spare},
            checkpoint=SPEC["checkpoint"],
            recovery={"hang_after": f"00:00:{12 if outside else 6:02}", **policy},
        )

    def _hurt(self, run: str, disk: Disk | None, over: Callable[[], bool]) -> float:
        """Have it happen; when it did, in seconds since the epoch."""
        outside = self._fault.from_outside
        if outside is None:
            return (self._post / "reached").stat().st_mtime
        node = self._ward.attempts(run)[-1].started["nodes"][PLACES[self._case.place]]
        with getattr(Injection(self._cluster, node, disk), outside)():
            when = time.time()
            (self._post / "go").touch()
            deadline = time.monotonic() + LASTS[outside]
            while time.monotonic() < deadline and not over():
                time.sleep(0.2)
        return when

    def _is_over(self, run: str) -> bool:
        """Nothing more happens to it."""
        attempts = self._ward.attempts(run)
        # The decision is the last that a supervisor writes.
        if not attempts or (decided := attempts[-1].decided) is None:
            return False
        return attempts[-1].outcome == causes.COMPLETED or decided["action"] == recovery.STOP

    def _judge(self, runs: Sequence[str], victim: str, hurt: int, when: float) -> Outcome:
        ward, case, fault = self._ward, self._case, self._fault
        stories = "\n".join(_story(ward, run) for run in runs)
        before: list[str | None] = ["rank_crash"] if case.phase == "restore" else []
        kinds = ward.kinds(victim)
        kind, blames = expected(case)
        assert kinds == [*before, *([kind] if kind else []), None], stories
        attempts = ward.attempts(victim)
        if kind:
            cause = attempts[hurt - 1].cause or {}
            place = PLACES[case.place]
            if blames == RANK:
                assert cause["rank"] == place, stories
            elif blames == NODE:
                assert attempts[hurt - 1].started["nodes"][place] in cause["nodes"], stories
        lost = ward.lost_steps(victim)
        assert all(0 <= steps <= EVERY for steps in lost), stories
        Reference(ward, self._reference.outcomes).assert_same(victim, case.stage)
        ward.assert_reconciled(victim)
        for other in runs:
            if other != victim:
                # It shares the nodes, and the disk.
                shared = fault.blames == NODE or self._is_of_disk
                assert shared or ward.kinds(other) == [None], stories
                Reference(ward, self._reference.outcomes).assert_same(other, case.stage)
        return Outcome(
            kinds=kinds,
            lost_steps=sum(lost),
            cold_start=self._to_first_step(victim, 1, attempts[0].workers_started),
            recovery=self._to_first_step(victim, hurt + 1, when) if kind else None,
        )

    def _to_first_step(self, run: str, attempt: int, since: float | None) -> float | None:
        """Seconds until an attempt's first step; one that was hurt as it started has none."""
        name, _, number = run.partition("/")
        records = self._ward.metrics(name, int(number), attempt)
        return float(records[0]["time"]) - since if records and since is not None else None


def _story(ward: Ward, run: str) -> str:
    """The attempts of a run, for the message of a failure."""
    lines = [f"{run}:"]
    for attempt in ward.attempts(run):
        decided = attempt.decided or {}
        lines.append(
            f"  {attempt.number} on {','.join(attempt.started.get('nodes', []))}: "
            f"{(attempt.cause or {}).get('kind')}: {(attempt.cause or {}).get('message')}; "
            f"{decided.get('action')}: {decided.get('reason')}"
        )
        lines += [f"    | {line}" for line in (attempt.cause or {}).get("log_tail") or ()]
    return "\n".join(lines)
