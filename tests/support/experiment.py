"""Experiments on disk, made through the same modules that submission and supervisors use."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrun.host import current_user
from hpcrun.run.job import evidence
from hpcrun.state import files, layout, ledger, plan_file
from hpcrun.state.layout import AttemptPaths, RunPaths, SubmissionPaths
from hpcrun.state.plan import Array, Entry, Plan, RunPlan

HOUR = 3600
T0 = 1_700_000_000.0
TRAIN = Entry(kind="script", file="train.py", argv=("--lr=0.001",))


def age(root: Path) -> None:
    """Date all that is under a root an hour ago."""
    when = time.time() - HOUR
    for parent, _, names in os.walk(root):
        for path in (Path(parent), *(Path(parent, name) for name in names)):
            os.utime(path, (when, when), follow_symlinks=False)


class Experiment:
    """One experiment under ``root``; its methods add to it what a submission or a run would."""

    def __init__(self, root: Path, name: str = "study") -> None:
        self.name = name
        self.paths = layout.experiment(root, name)

    def submit(
        self,
        runs: Sequence[int] = (0,),
        *,
        swept: dict[int, dict[str, Any]] | None = None,
        job_id: str | None = "100",
        when: float = T0,
        spec: dict[str, Any] | None = None,
        world: int = 2,
        who: str | None = None,
        entry: Entry = TRAIN,
        repeats: Sequence[str] = (),
        **journal: Any,
    ) -> SubmissionPaths:
        """A submission of ``runs``; ``job_id=None`` leaves it planned, without a journal."""
        existing = self.paths.submissions()
        paths = self.paths.submission(len(existing) + 1)
        paths.directory.mkdir(parents=True)
        plan = Plan(
            name=self.name,
            spec_file=f"/home/someone/{self.name}.yaml",
            code_root="/home/someone",
            directory=".",
            cluster={"name": "generic", "executor": "slurm"},
            max_parallel=None,
            runs=tuple(
                _run(number, (swept or {}).get(number, {}), spec, world, entry) for number in runs
            ),
            arrays=(Array(tuple(runs), "#!/bin/bash\nexec true\n", 1.5),),
            repeats=tuple(repeats),
        )
        plan_file.write(plan, paths.plan)
        paths.script(0).write_text(plan.arrays[0].script)
        files.write_json(
            paths.submission,
            {
                "number": paths.number,
                "time": when,
                "user": who or current_user(),
                "host": "login",
                "argv": ["hpcrun", "submit", plan.spec_file],
                "hpcrun": "0",
                "python": {},
                "code": {"archive": "abc.tar.gz", "digest": "abc", "git": None, "files": 1},
            },
        )
        if job_id is not None:
            entry = {"event": "submitting", "time": when, "array": 0, "runs": list(runs)}
            files.append(paths.journal, entry)
            entry = {**entry, "event": "submitted", "job_id": job_id, **journal}
            files.append(paths.journal, entry)
        return paths

    def run(self, number: int = 0) -> RunPaths:
        return self.paths.run(number)

    def start(
        self,
        run: int = 0,
        attempt: int = 1,
        *,
        job_id: str = "100",
        submission: int = 1,
        when: float = T0 + 60,
        workers: bool = True,
        nodes: Sequence[str] = ("node1",),
        world: int = 2,
        restart_count: int = 0,
        spares: Sequence[str] = (),
        notice: str | None = None,
    ) -> AttemptPaths:
        """What a supervisor does when an attempt starts."""
        paths = self.run(run)
        found = paths.attempt(attempt)
        found.directory.mkdir(parents=True)
        files.append(
            paths.ledger,
            {
                **{"event": ledger.STARTED, "time": when, "attempt": attempt, "job_id": job_id},
                **{"submission": submission, "nodes": list(nodes)},
                **{"restart_count": restart_count},
                **{"host": nodes[0], "pid": 1, "world_size": world},
                **({"spare_nodes": list(spares)} if spares else {}),
            },
        )
        if workers:
            event = {"event": ledger.WORKERS, "time": when + 1, "attempt": attempt}
            files.append(paths.ledger, {**event, **({"notice": notice} if notice else {})})
        return found

    def end(self, run: int = 0, attempt: int = 1, outcome: str = "completed", **cause: Any) -> None:
        """What a supervisor does when an attempt ends."""
        paths = self.run(run)
        intents = {"completed": ledger.FINISHED, "pruned": ledger.PRUNED}
        if outcome in intents:
            ledger.set_intent(paths, intents[outcome])
        ledger.write(
            paths,
            ledger.ENDED,
            attempt,
            outcome=outcome,
            exit_code=0 if outcome in intents else 1,
            cause=cause or None,
            **dataclasses.asdict(evidence.progress(paths, paths.attempt(attempt))),
        )

    def log(self, run: int, attempt: int, rank: int, text: str) -> Path:
        path = self.run(run).attempt(attempt).rank_log(rank)
        with open(path, "a") as stream:
            stream.write(text)
        return path

    def metrics(
        self, run: int, attempt: int, steps: Sequence[int], restored: int | None = 0, **at: Any
    ) -> None:
        """Metrics lines; each value of ``at`` is a number or a function of the step."""
        paths = self.run(run).attempt(attempt)
        if restored is not None:
            files.append(
                paths.session,
                {"event": "started", "time": T0, "total_steps": 100, "world_size": 2},
            )
            files.append(paths.session, {"event": "restored", "time": T0, "step": restored})
        with open(paths.metrics, "a") as stream:
            for step in steps:
                values = {
                    name: value(step) if callable(value) else value for name, value in at.items()
                }
                stream.write(json.dumps({"step": step, "time": T0 + step, **values}) + "\n")


def _run(
    number: int, swept: dict[str, Any], spec: dict[str, Any] | None, world: int, entry: Entry
) -> RunPlan:
    full: dict[str, Any] = {
        "name": "study",
        "config": {"lr": 1e-3, "seed": 0, "model": {"name": "tiny", "depth": 2}},
        "resources": {"nodes": 1, "gpus_per_node": 0, "ntasks_per_node": world},
        "deepspeed": {"train_batch_size": 8, "optimizer": {"params": {"lr": 1e-3}}},
        "objective": {"metric": "loss", "mode": "min"},
        **(spec or {}),
    }
    full = json.loads(json.dumps(full))
    for key, value in swept.items():
        target = full
        *parents, leaf = key.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        target[leaf] = value
    label = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in swept.items())
    return RunPlan(number, f"{number:032x}", label, swept, entry, full)


def slurm_shim(directory: Path, *, squeue: str = "", sacct: str = "", fail: str = "") -> Path:
    """A stand-in for Slurm's clients, not Slurm: prints canned answers and logs its calls.

    Parameters
    ----------
    squeue, sacct
        What the commands print.
    fail
        When given, both print it to stderr and exit 1.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # Submitit asks whether there is srun.
    silent = dict.fromkeys(("sbatch", "scancel", "srun"), "")
    for name, answer in {"squeue": squeue, "sacct": sacct, **silent}.items():
        (directory / f"{name}.answer").write_text(answer)
        ending = f"echo '{fail}' >&2; exit 1" if fail else f"cat '{directory}/{name}.answer'"
        script = directory / name
        script.write_text(f"#!/bin/sh\necho \"{name} $*\" >> '{directory}/calls'\n{ending}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return directory


def shim_calls(directory: Path) -> list[str]:
    path = directory / "calls"
    return path.read_text().splitlines() if path.exists() else []


def path_with(directory: Path) -> str:
    return f"{directory}{os.pathsep}{os.environ['PATH']}"
