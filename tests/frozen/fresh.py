"""A small submission of now, on the local executor, and the names of all that it writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

FILE = "the_files_of_a_submission.json"

SPEC = {
    "name": "small",
    "cluster": "local",
    "entry": ["sh", "-c", "echo $RANK; test $PART != 2"],
    "config": {"part": 0},
    "environment": {"variables": {"PART": "${config.part}"}},
    "recovery": {"requeue": False},
    "telemetry": {"every": None},
    "resources": {"nodes": 2, "ntasks_per_node": 1, "time": "00:05:00"},
    # One rank in the run that fails: of several, those that are ended may leave no record.
    "sweep": {
        "points": [{"config.part": 1}, {"config.part": 2, "resources.nodes": 1}],
        "max_parallel": 2,
    },
}


def submit(directory: Path) -> dict[str, Any]:
    """Submit it and wait; what was said, which files there are, and which keys records have."""
    for name in ("home", "code", "t"):
        (directory / name).mkdir()
    (directory / "code" / "small.yaml").write_text(json.dumps(SPEC))
    variables = {"PATH": "/usr/bin:/bin", "USER": "ada", "LOGNAME": "ada", "LANG": "C.UTF-8"}
    variables["HPCRUN_PROGRESS"] = "0"
    checkout = str(Path(__file__).parents[2])
    answer = subprocess.run(
        [sys.executable, "-m", "hpcrun", "submit", "small.yaml", "--wait", "--root", "../root"],
        cwd=directory / "code",
        umask=0o022,
        env={
            **variables,
            "HOME": str(directory / "home"),
            "TMPDIR": str(directory / "t"),
            "PYTHONPATH": checkout,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    root = directory / "root"
    # Only a run of ten seconds says how long its logs were: one on a machine that is very busy.
    paths = [path for path in root.rglob("*") if path.name != "log-sizes.jsonl"]
    files = [path for path in paths if path.is_file()]
    return {
        "exit code": answer.returncode,
        "stdout": _plain(answer.stdout, directory).splitlines(),
        "stderr": _plain(answer.stderr, directory).splitlines(),
        "names": sorted(_plain(str(path.relative_to(root))) for path in paths),
        "modes": sorted({f"{path.suffix}: {path.stat().st_mode & 0o777:o}" for path in files}),
        "keys": {
            _plain(str(path.relative_to(root))): _keys(path)
            for path in sorted(files)
            if path.suffix in (".json", ".jsonl")
        },
    }


def _plain(text: str, directory: Path | None = None) -> str:
    if directory is not None:
        text = text.replace(os.path.realpath(directory), "/desk")
    text = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text)
    return re.sub(r"local:\d+", "local:PID", text)


def _keys(path: Path) -> list[str]:
    """The keys of each kind of record, in the order in which they are written."""
    if path.suffix == ".json":
        return list(json.loads(path.read_text()))
    found = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        keys = f"{record.get('event', '')}: {', '.join(record)}"
        if keys not in found:
            found.append(keys)
    return found
