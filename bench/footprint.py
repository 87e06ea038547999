"""Count the files and bytes that a sweep of short script runs leaves on shared storage, per run.

    python -m bench.footprint [--runs 1000] [--output bench/results/footprint.json]

A script reads a file of its code, writes one of its own by a relative path and prints a line; the
local executor runs it with every swept value. What the program itself wrote and printed is counted
apart from what hpcrun adds, and the frozen code must be there once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hpcrun.state import layout
from hpcrun.state.layout import ExperimentPaths, RunPaths

ROOT = Path(__file__).parent.parent
SCRIPT = """
import sys
from pathlib import Path
classes = Path("data/classes.txt").read_text()
Path("output.txt").write_text(" ".join([classes, *sys.argv[1:]]))
print("done")
"""
SPEC = """
entry: train.py
config: {lr: 0.1}
sweep: {grid: {config.lr: [%s]}}
resources: {ntasks_per_node: 1}
"""
MOST_FILES, MOST_BYTES = 5, 20_000


def sweep(directory: Path, runs: int) -> ExperimentPaths:
    """Run the script with so many swept values, and wait for all runs."""
    code = directory / "code"
    (code / "data").mkdir(parents=True)
    (code / "data" / "classes.txt").write_text("cat dog")
    (code / "train.py").write_text(SCRIPT)
    (code / "lib.py").write_text("# what other files of code there are\n" * 1000)
    values = ", ".join(f"{value}.5" for value in range(runs))
    (code / "footprint.yaml").write_text(SPEC % values)
    command = [sys.executable, "-m", "hpcrun", "submit", "footprint.yaml", "cluster=local"]
    root = directory / "root"
    done = subprocess.run(
        [*command, "--root", str(root), "--wait"],
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the sweep failed:\n{done.stdout}{done.stderr}")
    return layout.experiment(root, "footprint")


def added(run: RunPaths) -> dict[str, int]:
    """Return name -> bytes of the files that hpcrun adds to what a run's program wrote."""
    programs = {path for attempt in run.attempts() for path in attempt.rank_logs().values()}
    found = [path for path in run.directory.rglob("*") if path.is_symlink() or path.is_file()]
    mine = [path for path in found if run.work not in path.parents and path not in programs]
    for submission in run.experiment.submissions():
        mine += [path for path in [submission.local_log(run.number)] if path.exists()]
    return {str(path.relative_to(run.experiment.directory)): path.lstat().st_size for path in mine}


def measure(experiment: ExperimentPaths) -> dict[str, Any]:
    """Return what the runs of an experiment cost, and where its code is."""
    runs = [added(experiment.run(number)) for number in experiment.run_numbers()]
    copies = [path for path in experiment.directory.rglob("*") if path.name in ("lib.py", "data")]
    return {
        "runs": len(runs),
        "files": max(map(len, runs)),
        "bytes": max(sum(sizes.values()) for sizes in runs),
        "median bytes": statistics.median(sum(sizes.values()) for sizes in runs),
        "archives of code": len(list(experiment.code.iterdir())),
        "copies of code": len(copies),
        "outputs": sum((run.work / "output.txt").is_file() for run in _runs(experiment)),
        "of one run": runs[0],
    }


def _runs(experiment: ExperimentPaths) -> list[RunPaths]:
    return [experiment.run(number) for number in experiment.run_numbers()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.footprint", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        found = measure(sweep(Path(directory), arguments.runs))
    found["seconds"] = round(time.monotonic() - began)
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")
    print(f"target: at most {MOST_FILES} files and {MOST_BYTES:,} bytes a run, one archive of code")


if __name__ == "__main__":
    main()
