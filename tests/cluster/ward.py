"""A desk from which runs are watched, hurt, and compared with runs that were not."""

from __future__ import annotations

import datetime
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcrun import ledger
from hpcrun.layout import ExperimentPaths
from tests.cluster.workbench import Workbench
from tests.testbed import Cluster
from tests.testbed.daemons import until

JOB = Path(__file__).parent / "jobs" / "survivor.py"
STAGES = [0, 1, 2, 3]
STEPS = 40
EVERY = 10

# Kind of end -> the states that accounting may have for it. The supervisor requeues a preempted job
# itself, before Slurm does.
STATES = {
    None: {"COMPLETED", "PREEMPTED"},
    "rank_crash": {"REQUEUED"},
    "requeued": {"REQUEUED"},
    "signal": {"REQUEUED"},
    "supervisor_lost": {"REQUEUED"},
    "time_limit": {"REQUEUED"},
    "preempted": {"REQUEUED", "PREEMPTED"},
    "node_failure": {"REQUEUED", "NODE_FAIL"},
}

SPEC: dict[str, Any] = {
    "entry": "survivor.py:train",
    "cluster": "bed",
    "config": {"seed": 1, "total_steps": STEPS, "pause": 0.35},
    "deepspeed": {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
    },
    "resources": {"nodes": 2, "cpus_per_task": 1, "time": "00:10:00", "mem": 2000},
    "checkpoint": {"every": EVERY},
}
BY_STAGE = {"grid": {"deepspeed.zero_optimization.stage": STAGES}}


def seconds(stamp: str) -> float:
    """Accounting's local time as seconds since the epoch."""
    return datetime.datetime.fromisoformat(stamp).timestamp()


class Ward(Workbench):
    """The desk; its experiments are made of `SPEC`."""

    def submit(self, name: str, **changes: Any) -> None:
        """Submit `SPEC`, or what is left of it after changes at its first two levels."""
        spec = {
            **SPEC,
            **{
                key: {**SPEC[key], **value} if isinstance(SPEC.get(key), dict) else value
                for key, value in changes.items()
            },
        }
        self.hpcrun("submit", self.spec(name, spec))

    def wait(
        self,
        name: str,
        holds: Callable[[list[dict[str, Any]]], bool],
        seconds: float = 240,
    ) -> list[dict[str, Any]]:
        """Wait until something holds of the runs' status."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            runs = self.status(name)
            if holds(runs):
                return runs
            time.sleep(0.5)
        pytest.fail(f"{name} did not get there:\n{self.explain(name)}")

    def wait_for_step(self, name: str, step: int) -> list[dict[str, Any]]:
        """Wait until every run has logged a step."""
        return self.wait(name, lambda runs: all((run["step"] or 0) >= step for run in runs))

    def wait_for_end(self, name: str, seconds: float = 240) -> list[dict[str, Any]]:
        """Wait until nothing more happens to any run."""
        final = ("completed", "failed", "cancelled")
        return self.wait(name, lambda runs: all(run["state"] in final for run in runs), seconds)

    def experiment(self, name: str) -> ExperimentPaths:
        return ExperimentPaths(self.root / name)

    def attempts(self, name: str, run: int = 0) -> list[ledger.Attempt]:
        """The ledger of a run."""
        return ledger.read(self.experiment(name).run(run))

    def kinds(self, name: str, run: int = 0) -> list[str | None]:
        """What ended each attempt; None for the one that completed."""
        return [(attempt.cause or {}).get("kind") for attempt in self.attempts(name, run)]

    def outcome(self, name: str, run: int = 0) -> tuple[list[str], dict[int, float]]:
        """The digest of each rank's state at the end, and the loss of each step."""
        directory = self.experiment(name).run(run).directory
        digests = [
            json.loads((directory / f"digest-{rank}.json").read_text())["digest"]
            for rank in range(2)
        ]
        losses: dict[int, float] = {}
        for attempt in self.attempts(name, run):
            for record in self.metrics(name, run, attempt.number):
                if "ranks" in record:
                    continue
                known = losses.setdefault(record["step"], record["loss"])
                assert known == record["loss"], f"step {record['step']} was replayed differently"
        return digests, losses

    def lost_steps(self, name: str, run: int = 0) -> list[int]:
        """Of each attempt that was followed by another: the steps that this one had to replay."""
        attempts = self.attempts(name, run)
        return [
            int((before.ended or {})["reached_step"]) - int((after.ended or {})["restored_step"])
            for before, after in itertools.pairwise(attempts)
        ]

    def kill(self, node: str, what: str, job: str | None = None, number: str = "KILL") -> None:
        """Signal the user's processes on a node whose command line holds ``what``."""
        mine = f"grep -qzx 'SLURM_JOB_ID={job}' $p/environ" if job else "true"
        self.cluster.on(
            node,
            [
                *("sh", "-c"),
                f"for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q '{what}'"
                f" && {mine} && kill -{number} ${{p#/proc/}}; done; true",
            ],
        )

    def preempt(self, nodes: list[str], seconds: float = 3) -> str:
        """Have whoever uses these nodes preempted; the job that takes them, and then sleeps."""
        command = ["--exclusive", "-o", "/dev/null", "--wrap", f"sleep {seconds:g}"]
        where = ["-p", "high", f"-N{len(nodes)}", "-w", ",".join(nodes)]
        return self.cluster.run(["sbatch", "--parsable", *where, *command]).stdout.strip()

    def assert_reconciled(self, name: str, run: int, job_id: str) -> None:
        """The ledger's attempts are accounting's starts of the job, of the same causes."""
        until(
            lambda: "RUNNING" not in {row["State"] for row in self.cluster.sacct(job_id)},
            "the end in accounting",
            30,
        )
        rows = self.cluster.sacct(job_id)
        starts = [row for row in rows if "." not in row["JobID"] and row["Start"] != "Unknown"]
        steps = {row["JobName"]: row["Start"] for row in rows if "hpcrun-workers" in row["JobName"]}
        attempts = self.attempts(name, run)
        for attempt in attempts:
            began = seconds(steps[f"hpcrun-workers-{attempt.number}"])
            assert abs((attempt.workers_started or 0.0) - began) <= 2
        # On 24.11 what finished after a preemption is started once more, and finds nothing to do.
        assert len(starts) - len(attempts) in (0, 1), "\n".join(map(str, rows))
        for attempt, row in zip(attempts, starts, strict=False):
            ended, cause = attempt.ended or {}, attempt.cause or {}
            state = row["State"].split()[0]
            assert state in STATES[cause.get("kind")], (cause, row)
            assert 0 <= attempt.started["time"] - seconds(row["Start"]) < 10
            assert abs(ended["time"] - seconds(row["End"])) <= 30

    def raw_job_id(self, job_id: str) -> str:
        """The id that Slurm gave to an element of an array by itself."""
        shown = self.cluster.run(["squeue", "-h", "-j", job_id, "-o", "%A"]).stdout
        return shown.strip()


@dataclass(frozen=True)
class Reference:
    """What runs of each ZeRO stage end with when they are left alone."""

    ward: Ward
    outcomes: list[tuple[list[str], dict[int, float]]]

    def assert_same(self, name: str, run: int, stage: int) -> None:
        digests, losses = self.ward.outcome(name, run)
        expected_digests, expected_losses = self.outcomes[stage]
        assert losses == expected_losses
        assert digests == expected_digests

    @classmethod
    def make(cls, cluster: Cluster) -> Reference:
        """Run each stage to its end on a cluster."""
        ward = Ward(cluster, "ward")
        ward.write("survivor.py", JOB.read_text())
        # The compiler of DeepSpeed's operator needs more memory than the runs themselves.
        ward.submit("warm", resources={"mem": 6000}, config={"total_steps": 1})
        assert [run["state"] for run in ward.wait_for_end("warm")] == ["completed"]
        ward.submit("calm", sweep=BY_STAGE, config={"pause": 0})
        assert [run["state"] for run in ward.wait_for_end("calm")] == ["completed"] * 4
        outcomes = [ward.outcome("calm", run) for run in range(4)]
        assert all(sorted(losses) == list(range(1, STEPS + 1)) for _, losses in outcomes)
        return cls(ward, outcomes)
