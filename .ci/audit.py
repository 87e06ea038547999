"""Look up known vulnerabilities of the pinned dependencies, with pip-audit.

``python .ci/audit.py`` fails for one that is not in `ACCEPTED`. Where pip-audit cannot be installed
or no database answers, it says so, with what was tried, and succeeds: a machine without network
can test too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
# The identifier of a vulnerability -> why it does not concern hpcrun.
ACCEPTED: dict[str, str] = {}
SERVICES = ("pypi", "osv")
# Seconds for everything, and for one answer of a database.
LIMIT, PATIENCE = 50.0, 5


def pinned() -> list[str]:
    """Return ``NAME==VERSION`` of constraints.txt, and of what hpcrun needs, as installed."""
    text = (HERE / "constraints.txt").read_text()
    found = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))
    for requirement in metadata.requires("hpcrun") or []:
        name = re.match(r"[\w.-]+", requirement)
        if name is not None and "extra ==" not in requirement:
            found.setdefault(name[0].lower(), metadata.version(name[0]))
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def judge(report: dict[str, Any]) -> tuple[list[str], list[str], int]:
    """Return what pip-audit's report finds, what it knows nothing of, and how many it looked up."""
    found, unknown, count = [], [], 0
    for one in report["dependencies"]:
        if "skip_reason" in one:
            unknown.append(one["name"])
            continue
        count += 1
        for flaw in one["vulns"]:
            names = {flaw["id"], *flaw.get("aliases", ())}
            fixed = ", ".join(flaw.get("fix_versions") or ["no version"])
            if not names & ACCEPTED.keys():
                found.append(f"{one['name']} {one['version']}: {flaw['id']}, fixed in {fixed}")
    return found, unknown, count


def ask(tools: Path, requirements: Path, service: str, limit: float) -> dict[str, Any] | str:
    """Return pip-audit's report, or why there is none."""
    argv = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--no-deps"]
    argv += ["--disable-pip", "--format", "json", "--progress-spinner", "off"]
    argv += ["--timeout", str(PATIENCE), "--vulnerability-service", service]
    told = run(argv, limit, PYTHONPATH=str(tools))
    if isinstance(told, str):
        return told
    try:
        report: dict[str, Any] = json.loads(told.stdout)
    except ValueError:
        return (told.stderr.strip().splitlines() or [f"exit code {told.returncode}"])[-1]
    return report


def run(argv: list[str], limit: float, **variables: str) -> Any:
    """Run a command; return it, or why it gave no answer."""
    environment = {**os.environ, **variables}
    try:
        return subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {limit:g} s"


def main() -> int:
    wanted = pinned()
    with tempfile.TemporaryDirectory() as directory:
        tools, requirements = Path(directory, "tools"), Path(directory, "requirements.txt")
        requirements.write_text("\n".join(wanted))
        # Apart from the environment that the tests use: it brings libraries along.
        install = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        constraints = ["-c", str(HERE / "constraints.txt")]
        told = run([*install, *constraints, "--target", str(tools), "pip-audit"], LIMIT / 2)
        if isinstance(told, str) or told.returncode:
            why = told if isinstance(told, str) else (told.stderr.strip().splitlines() or ["?"])[-1]
            print(f"audit: dependencies are NOT checked: pip-audit cannot be installed: {why}")
            return 0
        for service in SERVICES:
            answer = ask(tools, requirements, service, LIMIT / 2 / len(SERVICES))
            if isinstance(answer, str):
                print(f"audit: the database {service!r} cannot be reached: {answer}")
                continue
            found, unknown, count = judge(answer)
            if unknown:
                print(f"audit: the database {service!r} does not know {', '.join(unknown)}")
            if found:
                print("audit: known vulnerabilities:", *found, sep="\n  ")
                return 1
            if count:
                print(f"audit: {count} of {len(wanted)} pinned dependencies have no known flaw")
                return 0
    print("audit: dependencies are NOT checked: no database answered for any of them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
