"""Builds distributions of this checkout, and installs a wheel where there is nothing else."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def built(kind: str, source: Path, directory: Path) -> Path:
    """Build a distribution (``--wheel``, ``--sdist``) by its own back end, without the network."""
    arguments = [kind, "--no-isolation", "--outdir", str(directory), str(source)]
    done = subprocess.run(
        [sys.executable, "-m", "build", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = directory.glob("*.gz" if kind == "--sdist" else "*.whl")
    return made


def install(wheel: Path, environment: Path) -> Path:
    """Install a wheel and what it requires, without its extras; return the Python to use it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    for distribution in _required(wheel):
        _link(distribution, libraries(environment))
    return python


def libraries(environment: Path) -> Path:
    """Return the directory of an environment's libraries."""
    [found] = environment.glob("lib/python*/site-packages")
    return found


def _required(wheel: Path) -> set[str]:
    """Distributions that ``pip install`` of the wheel would bring along."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    waiting = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    found: set[str] = set()
    while waiting:
        requirement, _, marker = waiting.pop().partition(";")
        name = re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip())[0]).lower()
        if name in found or "extra" in marker:
            continue
        try:
            more = importlib.metadata.requires(name)
        except importlib.metadata.PackageNotFoundError:
            assert marker, f"{name} is required and not installed here"
            continue  # for another platform or another Python
        found.add(name)
        waiting += more or []
    return found


def _link(distribution: str, libraries: Path) -> None:
    """Show one installed distribution, and nothing else, in another environment."""
    files = importlib.metadata.files(distribution) or []
    for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
        source = Path(sysconfig.get_paths()["purelib"], top)
        target = libraries / top
        if not target.exists():
            target.symlink_to(source)
