"""A desk from which runs are watched, hurt, and compared with runs that were not."""

from __future__ import annotations

import datetime
import itertools
import json
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import ledger
from hpcrun.state.layout import ExperimentPaths, RunPaths
from tests.cluster.workbench import REPOSITORY, Workbench
from tests.support.waiting import until
from tests.testbed import VERSIONS, Cluster

_JOBS = Path(__file__).parent / "jobs"
STAGES = [0, 1, 2, 3]
STEPS = 40
EVERY = 10

# Kind of end -> the states that accounting may have for it. The supervisor requeues a preempted job
# itself, before Slurm does.
STATES = {
    None: {"COMPLETED", "PREEMPTED"},
    "rank_crash": {"REQUEUED"},
    "hang": {"REQUEUED"},
    "bad_checkpoint": {"REQUEUED"},
    "launch": {"REQUEUED"},
    "out_of_memory": {"REQUEUED"},
    "requeued": {"REQUEUED"},
    "signal": {"REQUEUED"},
    "storage": {"REQUEUED"},
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
STAGE = "deepspeed.zero_optimization.stage"

# What the command line of a program of hpcrun's begins with; srun's holds it further on.
PROGRAM = "^[^ ]*python[^ ]* -m hpcrun.run."

# Resources of a run with a node that stands by.
SPARE: dict[str, Any] = {"spare_nodes": 1, "sbatch": {"exclusive": True}}

# How runs are submitted.
ARRAY, SINGLE = "array", "single"

# A WHERE of one experiment or run, or several.
Where = str | Sequence[str]


def _is_of(run: dict[str, Any], where: str) -> bool:
    return where in (run["experiment"], f"{run['experiment']}/{run['run']}")


def seconds(stamp: str) -> float:
    """Accounting's local time as seconds since the epoch."""
    return datetime.datetime.fromisoformat(stamp).timestamp()


def problem(check: Callable[[], object]) -> str:
    """What a check finds wrong, with its traceback; empty where that is nothing.

    For callers that are no tests: what pytest fails with is no Exception.
    """
    try:
        check()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # Without this checkout's path: it goes into results.
        return "".join(traceback.format_exception(error)).replace(f"{REPOSITORY}/", "")
    return ""


class Ward(Workbench):
    """The desk; its experiments are made of `SPEC`."""

    def get_ready(self, name: str = "warm", seconds: float = 240) -> None:
        """Write the training program, and have DeepSpeed's operator compiled."""
        for job in _JOBS.glob("*.py"):
            self.write(job.name, job.read_text())
        # The compiler needs more memory than the runs themselves.
        self.submit(name, resources={"mem": 6000}, config={"total_steps": 1})
        self.wait_for_end(name, seconds=seconds)

    def submit(self, name: str, *overrides: str, **changes: Any) -> None:
        """Submit `SPEC`, or what is left of it after changes at its first two levels."""
        spec = {
            **SPEC,
            **{
                key: {**SPEC[key], **value} if isinstance(SPEC.get(key), dict) else value
                for key, value in changes.items()
            },
        }
        self.hpcrun("submit", self.spec(name, spec), *overrides)

    def submit_each(
        self, form: str, name: str, key: str, values: Sequence[Any], **changes: Any
    ) -> list[str]:
        """Submit a run for each value of a key, as the elements of an array or as single jobs."""
        if form == ARRAY:
            self.submit(name, sweep={"grid": {key: list(values)}}, **changes)
            return [f"{name}/{number}" for number in range(len(values))]
        names = [f"{name}-{number}" for number in range(len(values))]
        for each, value in zip(names, values, strict=True):
            self.submit(each, f"{key}={value}", **changes)
        return [f"{each}/0" for each in names]

    def wait(
        self,
        runs: Where,
        holds: Callable[[list[dict[str, Any]]], bool],
        seconds: float = 240,
    ) -> list[dict[str, Any]]:
        """Wait until something holds of the runs' status, which comes in their order."""
        where = [runs] if isinstance(runs, str) else list(runs)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.status(*where)
            found.sort(key=lambda run: next(i for i, one in enumerate(where) if _is_of(run, one)))
            if holds(found):
                return found
            time.sleep(0.5)
        pytest.fail(f"{where} did not get there:\n{self.explain(*where)}")

    def wait_for_step(self, runs: Where, step: int) -> list[dict[str, Any]]:
        """Wait until every run has logged a step."""
        return self.wait(runs, lambda found: all((run["step"] or 0) >= step for run in found))

    def wait_for_end(
        self, runs: Where, state: str = "completed", seconds: float = 240
    ) -> list[dict[str, Any]]:
        """Wait until nothing more happens to any run, and find all of them in this state."""
        final = ("completed", "failed", "cancelled")
        ended = self.wait(runs, lambda found: all(run["state"] in final for run in found), seconds)
        where = [runs] if isinstance(runs, str) else runs
        assert {run["state"] for run in ended} == {state}, self.explain(*where)
        return ended

    def paths(self, run: str) -> RunPaths:
        """Where a run's files are; `NAME` stands for `NAME/0`."""
        name, _, number = run.partition("/")
        return ExperimentPaths(self.root / name).run(int(number or 0))

    def attempts(self, run: str) -> list[ledger.Attempt]:
        """The ledger of a run, with times as if the clock of its supervisor's node was right."""
        found = ledger.read(self.paths(run))
        for attempt in found:
            ahead = self.cluster.settings.ahead.get(attempt.started.get("host", ""), 0)
            for event in filter(None, (attempt.started, attempt.ended)):
                event["time"] -= ahead
            if attempt.workers_started is not None:
                attempt.workers_started -= ahead
        return found

    def kinds(self, run: str) -> list[str | None]:
        """What ended each attempt; None for the one that completed."""
        return [(attempt.cause or {}).get("kind") for attempt in self.attempts(run)]

    def outcome(self, run: str) -> tuple[list[str], dict[int, float]]:
        """The digest of each rank's state at the end, and the loss of each step."""
        directory = self.paths(run).directory
        digests = [
            json.loads((directory / f"digest-{rank}.json").read_text())["digest"]
            for rank in range(self.attempts(run)[-1].started["world_size"])
        ]
        return digests, self.step_losses(run)

    def step_losses(self, run: str) -> dict[int, float]:
        """The loss of each step, which must be the same in each attempt that did this step."""
        losses: dict[int, float] = {}
        for attempt in self.attempts(run):
            name, _, number = run.partition("/")
            for record in self.metrics(name, int(number or 0), attempt.number):
                if "ranks" in record:
                    continue
                known = losses.setdefault(record["step"], record["loss"])
                assert known == record["loss"], f"step {record['step']} was replayed differently"
        return losses

    def lost_steps(self, run: str) -> list[int]:
        """Of each attempt that was followed by another: the steps that this one had to replay."""
        pairs = [
            ((before.ended or {})["reached_step"], (after.ended or {})["restored_step"])
            for before, after in itertools.pairwise(self.attempts(run))
        ]
        # An attempt that ended before it had restored anything reached nothing.
        return [0 if None in pair else int(pair[0]) - int(pair[1]) for pair in pairs]

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

    def hurt_ranks(self, node: str, job: str, number: str = "KILL") -> None:
        """Signal the ranks of a job on a node, and none that only wait for the next attempt."""
        names = f"SLURM_JOB_ID={job}", f"SLURMD_NODENAME={node}"
        mine = [f"grep -qzx '{name}' /proc/$p/environ" for name in names]
        script = f"p=$(cat $f); {' && '.join(mine)} && kill -{number} $p"
        files = "/tmp/hpcrun-*/attempt-*/rank-*.pid"
        self.cluster.on(node, ["sh", "-c", f"for f in {files}; do {script}; done; true"])

    def preempt(self, nodes: list[str], seconds: float = 3) -> str:
        """Have whoever uses these nodes preempted; the job that takes them, and then sleeps."""
        command = ["--exclusive", "-o", "/dev/null", "--wrap", f"sleep {seconds:g}"]
        where = ["-p", "high", f"-N{len(nodes)}", "-w", ",".join(nodes)]
        return self.cluster.run(["sbatch", "--parsable", *where, *command]).stdout.strip()

    def assert_reconciled(self, run: str) -> None:
        """The ledger's attempts are accounting's starts of the job, of the same causes.

        Attempts that followed each other in one allocation are one start.
        """
        job_id = str(self.status(run)[0]["job_id"])
        until(
            lambda: "RUNNING" not in {row["State"] for row in self.cluster.sacct(job_id)},
            "the end in accounting",
            30,
        )
        rows = self.cluster.sacct(job_id)
        starts: list[dict[str, str]] = []
        for row in rows:
            if "." in row["JobID"] or row["Start"] == "Unknown":
                continue
            if starts and starts[-1]["State"] == "RESIZING":
                # A job that outlived a lost node has another record from there on.
                starts[-1] = {**row, "Start": starts[-1]["Start"]}
            else:
                starts.append(row)
        steps = {row["JobName"]: row["Start"] for row in rows if "hpcrun-workers" in row["JobName"]}
        attempts = self.attempts(run)
        for attempt in attempts:
            name = f"hpcrun-workers-{attempt.number}" + "-warm-group-0" * attempt.warm
            waited = (attempt.workers_started or 0.0) - seconds(steps[name])
            assert waited > 0 if attempt.warm else abs(waited) <= 2
        together = [[attempts[0]]]
        for before, attempt in itertools.pairwise(attempts):
            if ledger.same_start(before, attempt):
                assert (before.decided or {})["action"] == "restart"
                together[-1].append(attempt)
            else:
                together.append([attempt])
        # On 24.11 what finished after a preemption is started once more, and finds nothing to do.
        assert len(starts) - len(together) in (0, 1), "\n".join(map(str, rows))
        for group, row in zip(together, starts, strict=False):
            ended, cause = group[-1].ended or {}, group[-1].cause or {}
            state = row["State"].split()[0]
            # Without its batch host, a finished job is requeued so that it can complete.
            led = not cause and ledger.INSTEAD_OF in group[-1].started
            assert state in ("REQUEUED" if led else STATES[cause.get("kind")]), (cause, row)
            assert 0 <= group[0].started["time"] - seconds(row["Start"]) < 10
            # A later supervisor has it of Slurm, whatever the clock there.
            assert abs(ended["time"] - seconds(row["End"])) <= 60

    def raw_job_id(self, job_id: str) -> str:
        """The id that Slurm gave to an element of an array by itself."""
        shown = self.cluster.run(["squeue", "-h", "-j", job_id, "-o", "%A"]).stdout
        return shown.strip()


def compile_operators(cluster: Cluster) -> None:
    """Have DeepSpeed's operator compiled on a cluster that was not given it, for small runs."""
    if cluster.version != VERSIONS[0]:
        Ward(cluster, "compiling").get_ready()


@dataclass(frozen=True)
class Reference:
    """What runs of each ZeRO stage end with when they are left alone."""

    ward: Ward
    outcomes: dict[int, tuple[list[str], dict[int, float]]]

    def assert_same(self, run: str, stage: int = 1) -> None:
        """The run ended with the same weights, and had the same loss at each step."""
        digests, losses = self.ward.outcome(run)
        expected_digests, expected_losses = self.outcomes[stage]
        assert losses == expected_losses
        assert digests == expected_digests

    @classmethod
    def make(
        cls,
        ward: Ward,
        steps: int = STEPS,
        stages: Collection[int] = STAGES,
        **changes: Any,
    ) -> Reference:
        """Run each stage to its end, from a desk; ``changes`` as for `Ward.submit`."""
        ward.get_ready()
        config = {**changes.pop("config", {}), "pause": 0, "total_steps": steps}
        name = f"calm-{steps}"
        calm = ward.submit_each(ARRAY, name, STAGE, sorted(stages), config=config, **changes)
        ward.wait_for_end(calm, seconds=200 + steps)
        outcomes = dict(zip(sorted(stages), map(ward.outcome, calm), strict=True))
        done = [sorted(losses) for _, losses in outcomes.values()]
        assert all(steps_done == list(range(1, steps + 1)) for steps_done in done)
        return cls(ward, outcomes)
