"""Four ends of a rank under three launchers on a real Slurm, and what hpcrun says of each.

``python -m tests.frameworks.endings_on_slurm --python PYTHON --output
bench/results/endings.json``, as root: both Slurms, a few minutes each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.cluster.ward import Ward
from tests.frameworks.on_slurm import visible_directories
from tests.testbed import VERSIONS, Cluster

PROGRAM = Path(__file__).parent / "programs" / "ending.py"
LAUNCHERS: dict[str, dict[str, Any]] = {
    "plain": {"entry": "ending.py"},
    "torchrun": {"entry": ["torchrun", "--nproc-per-node=1", "ending.py"], "framework": "torchrun"},
    "accelerate": {
        "entry": ["accelerate", "launch", "--cpu", "ending.py"],
        "framework": "accelerate",
    },
}
# How a rank ends -> the kind of cause, and words of its message.
EXPECTED = {
    "import": ("rank_crash", "No module named 'a_module_that_is_nowhere'"),
    "value": ("rank_crash", "ValueError: batch 17 is bad"),
    "killed": ("rank_crash", "SIGKILL"),
    "memory": ("out_of_memory", "memory"),
}


def endings(ward: Ward, launcher: str, python: str) -> list[dict[str, Any]]:
    """Run all ends under a launcher, and return what is said of them."""
    spec = {
        **LAUNCHERS[launcher],
        "cluster": "bed",
        "config": {"how": "value"},
        "sweep": {"grid": {"config.how": [*EXPECTED]}},
        "resources": {"nodes": 2, "ntasks_per_node": 1, "time": "00:10:00", "mem": 2000},
        "recovery": {"max_failures": 1},
        "environment": {"python": python},
    }
    name = f"ends-{launcher}"
    ward.hpcrun("submit", ward.spec(name, spec), "--wait", check=False)
    told = []
    for run, (how, (kind, words)) in zip(ward.status(name), EXPECTED.items(), strict=True):
        cause = run["cause"] or {}
        why = ward.hpcrun("why", f"{name}/{run['run']}").stdout
        right = (cause.get("kind"), words in str(cause.get("message"))) == (kind, True)
        found = {"launcher": launcher, "how": how, "state": run["state"], "right": right}
        told.append({**found, **{name: cause.get(name) for name in ("kind", "message")}})
        said = cause.get("message") if right else why
        print(launcher, how, "right" if right else "WRONG", said, sep=": ", flush=True)
    return told


def main() -> int:
    """Run all on both Slurms; return 1 if one is told wrongly."""
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks.endings_on_slurm")
    parser.add_argument("--python", default=sys.executable, help="of the programs")
    parser.add_argument("--version", action="append", choices=VERSIONS, help="(both)")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    told = []
    for version in asked.version or VERSIONS:
        with Cluster(version, visible=visible_directories(asked.python)) as cluster:
            ward = Ward(cluster, "endings")
            shutil.copy(PROGRAM, ward.directory)
            for launcher in LAUNCHERS:
                found = endings(ward, launcher, asked.python)
                told += [{"slurm": version, **one} for one in found]
    if asked.output:
        asked.output.write_text(json.dumps(told, indent=1) + "\n")
    return int(not all(one["right"] for one in told))


if __name__ == "__main__":
    sys.exit(main())
