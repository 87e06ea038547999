"""Specs made of sbatch scripts by `hpcrun init --from`, checked on a real Slurm."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cluster.workbench import Workbench
from tests.convert.support import SCRIPTS, project
from tests.testbed import VERSIONS, Cluster

pytestmark = [pytest.mark.timeout(300)]

# What a bed's nodes are said to be, so that they have room for what the scripts ask for.
NODES = {"cpus": 96, "memory_mb": 400_000, "gpus": 8}
# What a person changes who takes a script to another cluster: names of the site, and its software.
SITE = [
    *("cluster=bed", "resources.partition=main", "resources.account=null", "resources.qos=null"),
    *("resources.constraint=null", "resources.exclude=null", "resources.gpu_type=null"),
    "environment.setup=[]",
]


def overrides(cluster: Cluster, spec: Path) -> list[str]:
    """The words after `check SPEC`: only keys that the spec's site gave are changed."""
    resources = yaml.safe_load(spec.read_text())["resources"]
    more = [f"environment.python={cluster.python}", f"resources.nodes={min(resources['nodes'], 4)}"]
    if "gres" in resources.get("sbatch", {}):
        more.append("resources.sbatch.gres=null")
    return [*SITE, *more]


def test_ten_scripts(make_cluster: Callable[..., Cluster]) -> None:
    _check_all(make_cluster(VERSIONS[0], **NODES))


@pytest.mark.usually
def test_a_newer_slurm(make_cluster: Callable[..., Cluster]) -> None:
    _check_all(make_cluster(VERSIONS[1], **NODES))


def _run(bench: Workbench, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """The hpcrun command in the shell of a user, in which the site sets SCRATCH."""
    return bench.cluster.run(
        [bench.cluster.python, "-m", "hpcrun", *words],
        env={"HPCRUN_ROOT": str(bench.root), "SCRATCH": str(bench.directory / "scratch")},
        cwd=str(bench.directory),
        check=check,
    )


def _check_all(cluster: Cluster) -> None:
    bench = Workbench(cluster, "scripts")
    project(bench.directory)
    for path in (bench.directory, *bench.directory.rglob("*")):
        shutil.chown(path, bench.cluster.uid, bench.cluster.uid)
    problems = []
    for script in SCRIPTS:
        spec = bench.directory / f"{script.stem}.yaml"
        _run(bench, "init", "--from", script.name, "-o", spec.name)
        assert spec.stat().st_uid == bench.cluster.uid
        words = ["check", spec.name, *overrides(bench.cluster, spec), "--json"]
        done = _run(bench, *words, check=False)
        report = json.loads(done.stdout)[-1] if done.stdout else {"findings": done.stderr}
        if done.returncode:
            problems.append(f"{script.name}: {done.returncode}, {report['findings']}")
    assert len(SCRIPTS) == 10
    assert not problems, "\n".join(problems)
    assert bench.cluster.run(["squeue", "--noheader"], check=False).stdout == ""
