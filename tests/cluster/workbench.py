"""An ordinary user's desk on a test cluster: a profile, spec files, and the hpcrun command."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import yaml

from hpcrun.run.node import op_cache
from tests.support import command, operators
from tests.support.nursery import COMMANDS, Nursery
from tests.testbed import Cluster
from tests.testbed.bed import checked

REPOSITORY = Path(__file__).resolve().parents[2]

# A node that one test breaks is no suspect for the next one.
PROFILE = """
executor: slurm
suspects: {avoid: false}
fabric: {management_interface: eth0, fast_interface: ib0}
resources: {mem: 6000}
"""

LANGUAGE_MODEL: dict[str, Any] = {
    "entry": "language_model.py:train",
    "cluster": "bed",
    "config": {
        "seed": 1,
        "total_steps": 100,
        "evaluate_every": 0,
        "data_bytes": 2_000_000,
        "model": {"layers": 2, "width": 64, "heads": 4, "context": 32},
    },
    "deepspeed": {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 2.0e-3, "betas": [0.9, 0.95], "torch_adam": True},
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "warmup_max_lr": "${deepspeed.optimizer.params.lr}",
                "warmup_num_steps": 10,
                "total_num_steps": "${config.total_steps}",
            },
        },
    },
    "resources": {"nodes": 2, "ntasks_per_node": 2, "cpus_per_task": 1, "time": "00:20:00"},
    "checkpoint": {"every": 50},
    "objective": {"metric": "loss", "mode": "min"},
}


def runs_root(cluster: Cluster) -> Path:
    """Where experiments live; shared by all desks of a cluster, and with it what was compiled."""
    return Path(cluster.root) / "home" / "runs"


def give_operators(cluster: Cluster, cache: Path, root: Path | None = None) -> None:
    """Copy what was compiled on this machine, for a cluster that has its compiler and headers."""
    destination = (root or runs_root(cluster)) / ".hpcrun" / "torch_extensions"
    cluster.run(["mkdir", "-p", str(destination)])
    op_cache.copy(cache, operators.key(), destination / operators.key())
    subprocess.run(["chown", "-R", str(cluster.uid), str(destination)], check=True)


def commands(cluster: Cluster) -> Nursery:
    """Return the nursery of the commands of hpcrun on a login node; they run as the user."""

    def start(arguments: list[str], descriptor: int) -> subprocess.Popen[Any]:
        return cluster.popen(
            [cluster.python, *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
        )

    found = _commands.get(cluster)
    if found is None or not found.is_alive():
        found = _commands[cluster] = Nursery(start, COMMANDS)
    return found


_commands: WeakKeyDictionary[Cluster, Nursery] = WeakKeyDictionary()


class Workbench:
    """A directory of the cluster's ordinary user.

    Attributes
    ----------
    directory
        Where specs and code lie.
    root
        `runs_root`.
    environment
        Further variables of the hpcrun command.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.directory = Path(cluster.root) / "home" / name
        self.root = runs_root(cluster)
        self.environment: dict[str, str] = {}
        profiles = self.directory / "configs" / "clusters"
        cluster.run(["mkdir", "-p", str(profiles)])
        self.write("configs/clusters/bed.yaml", PROFILE)

    def write(self, name: str, text: str) -> Path:
        """A file of the user's."""
        path = self.directory / name
        path.write_text(text)
        shutil.chown(path, self.cluster.uid, self.cluster.uid)
        return path

    def copy_job(self, name: str) -> None:
        """One of the training programs that ship, as the user's own file."""
        self.write(name, (REPOSITORY / "jobs" / name).read_text())

    def spec(self, name: str, data: dict[str, Any]) -> Path:
        """A spec file."""
        return self.write(f"{name}.yaml", yaml.safe_dump({"name": name, **data}, sort_keys=False))

    def hpcrun(
        self, *arguments: str | Path, check: bool = True, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """The hpcrun command on the login node, as the user."""
        more = {"HPCRUN_ROOT": str(self.root), **self.environment}
        if "PYTHONPATH" not in more and self.cluster.settings.light:
            environment = {**self.cluster.environment(), **more}
            where = commands(self.cluster)
            done = command.forked(where, arguments, self.directory, environment, timeout)
            return checked(done) if check else done
        return self.cluster.run(
            [self.cluster.python, "-m", "hpcrun", *map(str, arguments)],
            env=more,
            cwd=str(self.directory),
            check=check,
            timeout=timeout,
        )

    def status(self, *where: str) -> list[dict[str, Any]]:
        """``hpcrun status --json``."""
        answer = json.loads(self.hpcrun("status", *where, "--json").stdout)
        assert isinstance(answer, list)
        return answer

    def explain(self, *where: str) -> str:
        """Everything that may tell why runs did not do what a test wants."""
        said = self.hpcrun("logs", *where, "--stream", "all", "--tail", "40", check=False)
        state = self.hpcrun("status", *where, check=False)
        asked = ["squeue --states=all", "sinfo --Node --long", "scontrol show job"]
        slurm = [self.cluster.run(one.split(), check=False).stdout for one in asked]
        why = self.hpcrun("why", *where, check=False)
        return "\n".join([one.stdout + one.stderr for one in (state, why, said)] + slurm)

    def metrics(self, name: str, run: int, attempt: int = 1) -> list[dict[str, Any]]:
        """What one attempt logged; nothing where it was ended before its first step."""
        path = self.root / name / "runs" / str(run) / "attempts" / str(attempt) / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def losses(self, name: str, run: int, attempt: int = 1) -> list[float]:
        """The loss of each step of one attempt."""
        return [record["loss"] for record in self.metrics(name, run, attempt)]
