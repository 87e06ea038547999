"""The packages of docs/extending.md: built, installed and used as the page says."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import command, doc_blocks, wheels
from tests.support.doc_blocks import Block
from tests.support.place import REPOSITORY

PAGE = "docs/extending.md"
# In place of podman: it notes how it was called, and runs the command behind the image's name.
PODMAN = """#!/bin/sh
printf '%s\\n' "$@" > NOTED
while [ "$1" != IMAGE ]; do shift; done
shift
exec "$@"
"""
TRAIN = """
import json, os
for step in range(1, 4):
    with open(os.environ["HPCRUN_METRICS_FILE"], "a") as stream:
        stream.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
"""


@dataclass(frozen=True)
class Site:
    """A directory in which packages are installed, and one with an experiment."""

    packages: Path
    work: Path

    def python(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a Python that has them."""
        return subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=self.work,
            env={**os.environ, "PYTHONPATH": f"{self.packages}:{REPOSITORY}"},
            capture_output=True,
            text=True,
            check=False,
        )

    def hpcrun(self, *words: str) -> subprocess.CompletedProcess[str]:
        return command.hpcrun(
            *words,
            root=self.work / "root",
            cwd=self.work,
            env={"PYTHONPATH": f"{self.packages}:{REPOSITORY}"},
        )

    def spec(self, **more: Any) -> None:
        """Write an experiment whose program logs three steps."""
        (self.work / "train.py").write_text(TRAIN)
        spec = {
            "name": "e",
            "entry": ["python", "train.py"],
            "environment": {"python": sys.executable},
            "resources": {"time": "00:10:00"},
        }
        for key, value in more.items():
            spec[key] = {**spec.get(key, {}), **value}
        (self.work / "e.yaml").write_text(yaml.safe_dump(spec))


def _packages() -> dict[str, list[Block]]:
    """The packages of the page by their modules: pyproject.toml, module, test."""
    shown = doc_blocks.blocks(PAGE)
    modules = {block.file: block for block in shown if block.file and block.language == "python"}
    projects = [block for block in shown if block.language == "toml"]
    names = [name for name in modules if not name.startswith("test_")]
    return {
        name.removesuffix(".py"): [project, modules[name], modules[f"test_{name}"]]
        for project, name in zip(projects, names, strict=True)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as wheels, built without a network and unpacked as pip would."""
    place = tmp_path_factory.mktemp("extending")
    installed = place / "site"
    for name, (project, module, _) in _packages().items():
        source = place / name
        source.mkdir()
        (source / "pyproject.toml").write_text(project.text)
        (source / f"{name}.py").write_text(module.text)
        wheel = wheels.built("--wheel", source, place / f"{name}-wheel")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(installed)
    return installed


@pytest.fixture
def site(built: Path, tmp_path: Path) -> Site:
    return Site(built, tmp_path)


def test_each_is_as_short_as_the_page_promises() -> None:
    found = _packages()
    assert sorted(found) == ["hpcrun_count", "hpcrun_podman", "hpcrun_sqlite"]
    for project, module, _ in found.values():
        assert len(module.text.splitlines()) <= 30
        assert len(project.text.splitlines()) <= 15


@pytest.mark.parametrize("name", ["hpcrun_count", "hpcrun_podman", "hpcrun_sqlite"])
def test_they_pass_their_own_tests(site: Site, name: str) -> None:
    (site.work / f"test_{name}.py").write_text(_packages()[name][2].text)
    done = site.python("-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_{name}.py")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_metrics_reach_the_tracker(site: Site) -> None:
    file = site.work / "metrics.db"
    site.spec(tracking={"sqlite": {"file": str(file)}})
    done = site.hpcrun("submit", "e.yaml", "cluster=local", "--wait")
    assert done.returncode == 0, done.stderr
    rows = sqlite3.connect(file).execute("select step, value from rows where name = 'loss'")
    assert [*rows] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    [package] = (site.work / "root").glob("e/submissions/1/hpcrun.zip")
    names = zipfile.ZipFile(package).namelist()
    assert "hpcrun_sqlite.py" in names
    assert "hpcrun_podman.py" not in names


def test_ranks_start_in_the_runtime(site: Site) -> None:
    programs = site.work / "bin"
    programs.mkdir()
    image, noted = "docker.io/library/python:3", site.work / "noted"
    text = PODMAN.replace("NOTED", str(noted)).replace("IMAGE", image)
    (programs / "podman").write_text(text)
    (programs / "podman").chmod(0o755)
    container = {"runtime": "podman", "image": image, "python": sys.executable}
    setup = [f"export PATH={programs}:$PATH"]
    site.spec(environment={"container": container, "setup": setup})
    plan = site.hpcrun("plan", "e.yaml", "cluster=local")
    assert f"{image} (podman), for the ranks" in plan.stdout, plan.stderr
    done = site.hpcrun("submit", "e.yaml", "cluster=local", "--wait")
    assert done.returncode == 0, done.stderr
    words = noted.read_text().splitlines()
    assert words[:2] == ["run", "--rm"]
    assert f"--volume={site.work}/root:{site.work}/root" in words
    assert words[words.index(image) + 1] == "sh"


def test_a_setting_that_is_none_is_refused(site: Site) -> None:
    site.spec(tracking={"sqlite": {"fil": "/x"}})
    said = site.hpcrun("plan", "e.yaml", "cluster=local")
    assert said.returncode == 2
    assert "tracking.sqlite.fil: unknown key" in said.stderr
    assert "did you mean 'file'?" in said.stderr
    schema = json.loads(site.hpcrun("schema", "spec").stdout)
    assert "sqlite" in schema["$defs"]["Tracking"]["properties"]


def test_a_command_is_run_and_listed(site: Site) -> None:
    site.spec()
    assert site.hpcrun("submit", "e.yaml", "cluster=local", "--wait").returncode == 0
    counted = site.hpcrun("count", "e")
    assert counted.stdout == "     1 completed\n", counted.stderr
    listed = site.hpcrun("help").stdout
    assert "Of other packages:" in listed
    assert "How many runs of EXPERIMENT are in each state. (hpcrun-count)" in listed
    unknown = site.hpcrun("count", "nothing")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("error: ")
    assert "There is no command 'counts'" in site.hpcrun("counts").stderr
