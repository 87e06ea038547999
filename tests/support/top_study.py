"""A made study for the screen of ``hpcrun top``: eight runs in all states; Slurm is a stand-in."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from hpcrun.state import files
from tests.support.experiment import Experiment, slurm_shim

GIB = 2**30
SQUEUE = """\
100_0|RUNNING|None|gpu-a01,gpu-a02|N/A
100_1|RUNNING|None|gpu-a03,gpu-a04|N/A
100_2|RUNNING|None|gpu-a05,gpu-a06|N/A
100_[6-7]|PENDING|Priority||2030-01-02T03:04:00
"""


class TopStudy:
    """The study ``ablation`` under ``root``, and the environment in which it is looked at."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.shim = slurm_shim(directory / "shim", squeue=SQUEUE)
        self.env = {
            "HPCRUN_ROOT": str(self.root),
            "PATH": f"{self.shim}{os.pathsep}{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(directory / "cache"),
        }
        self.experiment = study = Experiment(self.root, "ablation")
        now = time.time()
        rates = [1e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2e-3, 3e-3, 5e-3]
        study.submit(
            range(8),
            swept={run: {"config.lr": rate} for run, rate in enumerate(rates)},
            when=now - 2400,
            spec={"resources": {"nodes": 2, "gpus_per_node": 8, "ntasks_per_node": 8}},
        )
        for run, steps in ((0, 90), (1, 64), (2, 41), (3, 100), (4, 37), (5, 100)):
            nodes = (f"gpu-a{2 * run + 1:02}", f"gpu-a{2 * run + 2:02}")
            attempt = study.start(run, job_id=f"100_{run}", nodes=nodes, when=now - 20 * steps)
            if run == 1:
                study.end(1, outcome="failed", kind="preempted", message="preempted by job 88")
                attempt = study.start(1, 2, job_id="100_1", nodes=nodes, when=now - 900)
            session = {"event": "started", "time": now - 800, "total_steps": 100, "world_size": 16}
            restored = {"event": "restored", "time": now - 800, "step": 0}
            files.append(attempt.session, session, restored)
            for step in range(1, steps + 1):
                loss = 2.1 + 4 * math.exp(-step / (12 + 3 * run)) + 0.15 * math.sin(step * 1.7)
                line = {"step": step, "time": now - 8 * (steps - step), "loss": loss}
                files.append(attempt.metrics, {**line, "tokens": step * 524288})
            for index, node in enumerate(nodes):
                busy = [88 + (run + index + gpu) % 9 for gpu in range(8)]
                gpus = [
                    {"index": gpu, "utilization": each, "memory": (50 + each // 4) * GIB}
                    for gpu, each in enumerate(busy)
                ]
                for gpu in gpus:
                    gpu["memory_total"] = 80 * GIB
                sample = {"time": now - index, "cpu": 21.0 + run, "memory": 212 * GIB}
                files.append(attempt.telemetry(node), {**sample, "gpus": gpus})
            text = "".join(f"step {step} of 100\n" for step in range(1, steps + 1))
            study.log(run, 2 if run == 1 else 1, 0, text)
        study.end(3)
        study.end(5)
        study.end(
            4,
            outcome="failed",
            kind="out_of_memory",
            message="CUDA out of memory on rank 3",
            rank=3,
        )
