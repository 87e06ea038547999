"""The environment of `make frameworks`: its lock, beside the versions of hpcrun's own tests."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from tests.frameworks.test_programs import python_of

HERE = Path(__file__).parent


def _pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    pairs = [line.split("==") for line in lines]
    return {re.sub("[-_.]+", "-", name).lower(): version for name, version in pairs}


def test_a_package_has_one_version_in_both_locks() -> None:
    ours, theirs = _pins(HERE.parents[1] / "constraints.txt"), _pins(HERE / "requirements.txt")
    shared = ours.keys() & theirs.keys()
    assert "torch" in shared
    assert {name: theirs[name] for name in shared} == {name: ours[name] for name in shared}


def test_the_environment_has_what_its_lock_names() -> None:
    python = python_of("frameworks")
    code = (
        "import importlib.metadata as m, json, sys\n"
        "print(json.dumps({n: m.version(n).partition('+')[0] for n in sys.argv[1:]}))"
    )
    pins = _pins(HERE / "requirements.txt")
    done = subprocess.run([python, "-c", code, *pins], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == pins
