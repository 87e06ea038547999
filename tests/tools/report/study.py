"""Studies on disk as they would be after a day: what reports are made of in these tests."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.state import files, ledger
from hpcrun.state.layout import AttemptPaths
from tests.support.experiment import T0, Experiment, slurm_shim

HOUR = 3600.0
STEP = 9.0
NODES = ("node07", "node08")

CRASH = {
    "kind": "rank_crash",
    "message": "rank 5 on node07 was killed by signal 9",
    "rank": 5,
    "node": "node07",
    "signal": 9,
}
HANG = {"kind": "hang", "message": "no rank moved for 600 s; rank 11 on node08 is in read()"}
PREEMPTED = {"kind": "preempted", "message": "Slurm preempted the job"}
DIVERGED = {
    "kind": "non_finite_loss",
    "message": "the loss was not finite for 20 steps in a row",
    "rank": 0,
    "log_tail": [
        "step 1660: loss nan",
        "Traceback (most recent call last):",
        '  File "/home/ada/finetune/train.py", line 88, in <module>',
        "    session.step({'loss': loss})",
        "hpcrun.errors.NonFiniteLoss: \x1b[31mthe loss was not finite\x1b[0m for 20 steps in a row",
    ],
}
TRACKING = {"tensorboard": True, "wandb": {"entity": "ada-lab", "project": "llama"}}
EVIL = "</script><img src=x onerror=alert(1)>"


@dataclass(frozen=True)
class Part:
    """One attempt: from which step to which, how it ended, and seconds until the next begins."""

    first: int
    last: int
    outcome: str = "completed"
    cause: dict[str, Any] | None = None
    action: str = "nothing"
    gap: float = 0.0


def finetune(
    root: Path,
    *,
    runs: int = 20,
    points: int = 500,
    telemetry: bool = True,
    repeats: Sequence[str] = (),
) -> Experiment:
    """A sweep of learning rates, warm-ups and seeds on two nodes of eight GPUs.

    Run 3 was preempted, 7 lost a rank, 11 diverged, 15 hung twice; the last but one is running, the
    last waits in the queue.
    """
    study = Experiment(root / "root", "finetune")
    rates = (5e-6, 1e-5, 2e-5, 5e-5, 1e-4)
    swept = {
        run: {"config.lr": rates[run // 4 % 5], "config.warmup": (100, 500)[run // 2 % 2]}
        | {"config.seed": run % 2 + 2 * (run // 20)}
        for run in range(runs)
    }
    total = points * 10
    submitted = time.time() - 24 * HOUR
    directory = study.submit(
        range(runs),
        swept=swept,
        repeats=repeats,
        when=submitted,
        who="ada",
        spec={
            "name": "finetune",
            "config": {"model_name": "meta-llama/Llama-3.1-8B", "total_steps": total, "lr": 0.0},
            "resources": {"nodes": 2, "gpus_per_node": 8, "ntasks_per_node": None},
            "deepspeed": {
                "train_batch_size": 256,
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 4,
                "zero_optimization": {"stage": 2},
                "bf16": {"enabled": True},
            },
            "objective": {"metric": "eval/loss", "mode": "min"},
            "tracking": TRACKING,
        },
    )
    facts = files.read_json(directory.submission)
    git = {"commit": "3f9c2d1e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d", "branch": "main", "dirty": True}
    facts["code"] |= {"git": git, "digest": "9e107d9d372bb6826bd81d3542a419d6" * 2, "files": 42}
    facts["python"] = {"version": "3.11.9", "torch": "2.13.0", "deepspeed": "0.19.8"}
    facts["argv"] = ["hpcrun", "submit", "finetune.yaml"]
    files.write_json(directory.submission, facts)
    for run in range(runs - 1):
        start = submitted + HOUR * (0.4 + run % 7 * 0.6)
        _run(study, run, start, total, swept[run], telemetry, running=run == runs - 2)
    slurm_shim(
        root / "shim",
        squeue=f"100_{runs - 2}|RUNNING|None|n|N/A\n100_{runs - 1}|PENDING|Priority|n|N/A\n",
    )
    return study


def diverged(
    root: Path, *, name: str = "search", runs: int = 40, wild: Sequence[int] = (17,), **spec: Any
) -> Experiment:
    """A random search whose losses fall from 4 to some 2; those of ``wild`` runs grow by 10^6.

    ``grads`` spans decades in all runs. ``config.lr`` explains the loss, ``config.seed`` nothing.
    """
    study = Experiment(root / "root", name)
    draw = random.Random(7)
    swept = {
        run: {"config.lr": 10 ** draw.uniform(-5, -3), "config.seed": draw.randrange(1000)}
        for run in range(runs)
    }
    study.submit(range(runs), swept=swept, spec=spec)
    for run in range(runs):
        study.start(run)
        floor = 1.5 + (math.log10(swept[run]["config.lr"]) + 4) ** 2 + 0.02 * draw.random()
        much = 1e6 if run in wild else 1.0

        def loss(step: int, floor: float = floor, much: float = much) -> float:
            return (floor + (4 - floor) * math.exp(-step / 10)) * much ** min(1.0, step / 8)

        study.metrics(run, 1, range(1, 41), loss=loss, grads=lambda step: 10 ** (3 - step / 8))
        study.end(run)
    slurm_shim(root / "shim")
    return study


def hostile(study: Experiment) -> None:
    """Two runs of which everything that a user can name would be markup, were it not escaped."""
    submission = study.submit(
        (0, 1),
        swept={0: {"config.name": EVIL}, 1: {"config.name": "b", f"config.{EVIL}": EVIL}},
        who=EVIL,
        spec={
            "objective": {"metric": EVIL, "mode": "min"},
            "tracking": {
                "wandb": {"entity": EVIL, "project": EVIL},
                "mlflow": {"uri": "javascript:alert(1)", "experiment": EVIL},
            },
            "environment": {"variables": {"WANDB_BASE_URL": "javascript:alert(1)//"}},
        },
    )
    facts = files.read_json(submission.submission)
    facts["code"] = {"digest": EVIL, "git": {"commit": EVIL, "branch": EVIL}, "files": 1}
    files.write_json(submission.submission, {**facts, "argv": [EVIL], "host": EVIL})
    for run in (0, 1):
        attempt = study.start(run, 1, nodes=(EVIL,))
        study.metrics(run, 1, range(1, 9), **{EVIL: 1.0, "loss": lambda step: step / 3})
        files.append(attempt.session, {"event": "save_failed", "step": 3, "message": EVIL})
        files.append(attempt.telemetry("<img>"), {"time": T0, "cpu": 3.0})
        study.end(run, 1, "failed", kind=EVIL, message=EVIL, node=EVIL, rank=1, log_tail=[EVIL])


def _parts(run: int, total: int) -> list[Part]:
    middle, late = total // 2 + 467, total * 5 // 6 + 3
    return {
        3: [Part(0, middle, "stopped", PREEMPTED, "requeue", 1.6 * HOUR), Part(middle, total)],
        7: [Part(0, late, "failed", CRASH, "restart", 9.0), Part(_saved(late), total)],
        11: [Part(0, total // 3, "failed", DIVERGED, "stop")],
        15: [
            Part(0, middle, "failed", HANG, "restart", 12.0),
            Part(_saved(middle), late, "failed", HANG, "requeue", 0.7 * HOUR),
            Part(_saved(late), total),
        ],
    }.get(run % 20, [Part(0, total)])


def _saved(step: int) -> int:
    """The newest checkpoint that there is then."""
    return step // 500 * 500


def _run(
    study: Experiment,
    run: int,
    start: float,
    total: int,
    swept: dict[str, Any],
    telemetry: bool,
    running: bool,
) -> None:
    draw = random.Random(run)
    requeues = 0
    for number, part in enumerate(_parts(run, total), 1):
        last = int(part.last * 0.7) if running else part.last
        ready = start + 95 + draw.random() * 40
        if running:  # it has come so far by now
            ready = time.time() - (last - part.first) * STEP
            start = ready - 100
        paths = study.start(
            run,
            number,
            job_id=f"100_{run}",
            when=start,
            nodes=NODES,
            world=16,
            restart_count=requeues,
        )
        files.append(
            paths.session,
            {"event": "started", "time": ready - 9, "total_steps": total, "world_size": 16},
            {"event": "restored", "time": ready, "step": part.first, "seconds": 8.0},
        )
        paths.rank_log(0).write_text(f"run {run} of attempt {number}\nit trains\n")
        end = _train(paths, draw, part.first, last, ready, swept, total)
        if telemetry:
            _sample(paths, draw, start, end)
        if running:
            return
        end += 2.0 if part.cause != HANG else 600.0
        _end(study, run, number, part, end)
        start = end + part.gap
        requeues += part.action == "requeue"


def _train(
    paths: AttemptPaths,
    draw: random.Random,
    first: int,
    last: int,
    ready: float,
    swept: dict[str, Any],
    total: int,
) -> float:
    """Logs every tenth step, saves every five hundredth; returns when the last one was done."""
    rate = swept["config.lr"]
    floor = 1.62 + 0.09 * abs(math.log10(rate / 2e-5)) + 0.01 * swept["config.seed"]
    lines = []
    at = ready
    for step in range(first - first % 10 + 10, last + 1, 10):
        at = ready + (step - first) * STEP + draw.random()
        share = step / total
        warm = min(1.0, step / swept["config.warmup"])
        loss = floor + 1.3 * math.exp(-share * 30 * warm * (rate / 2e-5) ** 0.3)
        loss += 0.25 * math.exp(-4 * share) + draw.gauss(0, 0.035)
        if rate > 2e-5 and abs(share - 0.3) < 0.02:
            loss += 1.1 * (1 - abs(share - 0.3) / 0.02)
        line = {
            "step": step,
            "time": at,
            "loss": loss,
            "lr": rate * warm * (0.5 + 0.5 * math.cos(math.pi * share)),
            "tokens": step * 1_048_576,
            "tokens_per_second": 116_000 * (1 + draw.gauss(0, 0.02)),
            "step_seconds": STEP * (1 + draw.gauss(0, 0.02)),
        }
        if step % 250 == 0:
            line["eval/loss"] = floor + 0.06 + 0.25 * math.exp(-4 * share) + draw.gauss(0, 0.008)
        if step % 500 == 0:
            files.append(
                paths.session,
                {"event": "saved", "time": at, "step": step, "seconds": 70.0, "blocked": 24.0},
            )
        lines.append(line)
    files.append(paths.metrics, *lines)
    return at


def _end(study: Experiment, run: int, number: int, part: Part, when: float) -> None:
    paths = study.run(run)
    bad = part.outcome != "completed"
    fields = {"restored_step": part.first, "reached_step": part.last}
    fields["checkpoint_step"] = part.last if part.outcome == "stopped" else _saved(part.last)
    files.append(
        paths.ledger,
        {"event": ledger.ENDED, "time": when, "attempt": number, "outcome": part.outcome}
        | {"exit_code": int(bad), "cause": part.cause, **fields},
    )
    if not bad:
        ledger.set_intent(paths, ledger.FINISHED)
        return
    reason = "it goes on from its newest checkpoint"
    decided = {"action": part.action, "reason": reason, "exclude": []}
    files.append(
        paths.ledger, {"event": ledger.DECIDED, "time": when, "attempt": number, **decided}
    )


def _sample(paths: AttemptPaths, draw: random.Random, start: float, end: float) -> None:
    """Stands in for what agents sample of GPUs, which the tests have none of."""
    for place, node in enumerate(NODES):
        lines = []
        at = start
        while at < end:
            busy = at > start + 130
            gpus = [
                {
                    "index": index,
                    "utilization": draw.uniform(90, 99) if busy else 0.0,
                    "memory": (61 + index / 8) * 2**30 if busy else 2**30,
                    "memory_total": 80 * 2**30,
                    "power": draw.uniform(560, 640) if busy else 75.0,
                    "temperature": (61 if busy else 33) + draw.random() * 4 + place,
                }
                for index in range(8)
            ]
            speed = 2.1e9 if busy else 0.0
            lines.append(
                {"time": at, "cpu": draw.uniform(18, 26) if busy else 60.0, "gpus": gpus}
                | {"memory": 212 * 2**30, "memory_total": 1024 * 2**30}
                | {"network": [4e5, 3e5], "fabric": [speed * draw.uniform(0.9, 1), speed]}
            )
            at += 300.0
        files.append(paths.telemetry(node), *lines)


def department(root: Path, experiments: int, *, runs: int = 2) -> Path:
    """A year of a department: so many experiments on GPUs with prices, some of which went wrong."""
    draw = random.Random(3)
    now = time.time()
    for number in range(experiments):
        study = Experiment(root / "root", f"study-{number:04}")
        began = now - draw.uniform(1, 360) * 24 * HOUR
        resources = {"nodes": 1, "gpus_per_node": 8, "ntasks_per_node": None}
        directory = study.submit(range(runs), when=began, spec={"resources": resources})
        plan = files.read_json(directory.plan)
        plan["cluster"] |= {"prices": {"currency": "EUR", "gpu_hour": 2.5}}
        files.write_json(directory.plan, plan)
        for run in range(runs):
            start = began + draw.uniform(60, 2 * HOUR)
            attempt = study.start(run, when=start, world=8)
            ready = start + 90
            files.append(
                attempt.session,
                {"event": "started", "time": ready - 9, "total_steps": 400, "world_size": 8},
                {"event": "restored", "time": ready, "step": 0, "seconds": 2.0},
            )
            steps = draw.randrange(40, 400, 10)
            lines = [
                {"step": step, "time": ready + 60.0 * step, "loss": 2 + 9 / step}
                for step in range(10, steps + 1, 10)
            ]
            files.append(attempt.metrics, *lines)
            bad = number % 7 == 0 and run == 0
            cause = (CRASH, HANG)[number % 2] if bad else None
            fields = {"restored_step": 0, "reached_step": steps, "checkpoint_step": steps // 2}
            ended = {"time": ready + 60.0 * steps + 30, "attempt": 1, "exit_code": int(bad)}
            outcome = "failed" if bad else "completed"
            files.append(
                study.run(run).ledger,
                {"event": ledger.ENDED, "outcome": outcome, "cause": cause, **ended, **fields},
            )
            if not bad:
                ledger.set_intent(study.run(run), ledger.FINISHED)
    slurm_shim(root / "shim")
    return root / "root"
