"""Specs made of sbatch scripts by `hpcrun init --from`, on a real Slurm."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.workbench import REPOSITORY, Workbench
from tests.testbed import VERSIONS, Cluster
from tests.tools.init.convert.support import SCRIPTS, project

pytestmark = [pytest.mark.timeout(400)]

# What a bed's nodes are said to be, so that they have room for what the scripts ask for.
NODES = {"cpus": 96, "memory_mb": 400_000, "gpus": 8}
# What a person changes who takes a script to another cluster: names of the site, and its software.
SITE = [
    *("cluster=bed", "resources.partition=main", "resources.account=null", "resources.qos=null"),
    *("resources.constraint=null", "resources.exclude=null", "resources.gpu_type=null"),
]
CERTAIN = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export KEPT=$(hostname)
mkdir -p sub && cd sub
echo once >> ../before
ulimit -n 777
srun python ../show.py a 'b c'
cat ../before > ../after
"""
# With a pipe it stays as it is.
VERBATIM = CERTAIN.replace("'b c'", "'b c' | tee ../log")
# Nobody says how many CPUs a task has: all of a whole node.
WHOLE = """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --exclusive
set -e
clear
srun nproc | cat
(env | grep PER_TASK) || true
"""
PROGRAM = """\
import os, sys, resource
print(sys.argv[1:], os.path.basename(os.getcwd()), os.environ["KEPT"],
      resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.environ["SLURM_PROCID"],
      os.environ["SLURM_NTASKS"], "WORLD_SIZE" in os.environ)
"""


def overrides(cluster: Cluster, spec: Path) -> list[str]:
    """The words after `check SPEC`: only keys that the spec's site gave are changed."""
    resources = yaml.safe_load(spec.read_text())["resources"]
    nodes = min(resources.get("nodes", 1), 4)
    more = [f"environment.python={cluster.python}", f"resources.nodes={nodes}"]
    if "gres" in resources.get("sbatch", {}):
        more.append("resources.sbatch.gres=null")
    return [*SITE, *more]


def test_ten_scripts(make_cluster: Callable[..., Cluster]) -> None:
    _check_all(make_cluster(VERSIONS[0], **NODES))


@pytest.mark.usually
def test_a_newer_slurm(make_cluster: Callable[..., Cluster]) -> None:
    _check_all(make_cluster(VERSIONS[1], **NODES))


@pytest.mark.parametrize("script", [CERTAIN, VERBATIM], ids=["certain", "as it is"])
def test_its_ranks_have_what_those_of_sbatch_had(
    script: str, make_cluster: Callable[..., Cluster]
) -> None:
    bench = Workbench(make_cluster(VERSIONS[0]), "ran")
    name = "verbatim" if "tee" in script else "certain"
    bench.write("show.py", PROGRAM)
    bench.write(f"{name}.sbatch", script)
    _own(bench)
    given = ["--partition=main", "--time=5", "--wait", "--output=itself.log"]
    path = f"{Path(bench.cluster.python).parent}:/usr/bin:/bin"
    bench.cluster.run(
        ["sbatch", *given, f"{name}.sbatch"], env={"PATH": path}, cwd=str(bench.directory)
    )
    itself = sorted((bench.directory / "itself.log").read_text().splitlines())
    _run(bench, "init", "--from", f"{name}.sbatch", "-o", f"{name}.yaml")
    shutil.rmtree(bench.directory / "sub")
    (bench.directory / "before").unlink()
    words = ["submit", f"{name}.yaml", "cluster=bed", "resources.time=00:05:00", "--wait"]
    done = _run(bench, *words, f"environment.python={bench.cluster.python}", check=False)
    assert done.returncode == 0, done.stderr
    status: list[dict[str, Any]] = json.loads(_run(bench, "status", name, "--json").stdout)
    work = Path(status[0]["directory"]) / "work"
    ranks = sorted((work.parent / "attempts/1").glob("rank-*.log"))
    shown = sorted(line for one in ranks for line in one.read_text().splitlines())
    wanted = [line.replace("True", "False") for line in itself]
    # hpcrun tells its own ranks how many they are.
    assert [line.replace("True", "False") for line in shown] == wanted
    assert len(shown) == 4
    assert (len(ranks), (work / "after").read_text()) == (1 if "tee" in script else 4, "once\n")


def test_steps_of_a_script_on_a_whole_node_have_all_of_it(slurm24: Cluster) -> None:
    bench = Workbench(slurm24, "whole")
    bench.write("whole.sbatch", WHOLE)
    _own(bench)
    given = ["--partition=main", "--time=5", "--wait", "--output=itself.log"]
    env = {"PATH": "/usr/bin:/bin", "TERM": "xterm"}
    slurm24.run(["sbatch", *given, "whole.sbatch"], env=env, cwd=str(bench.directory))
    itself = (bench.directory / "itself.log").read_text()
    assert int(itself.split()[-1][-1]) > 1
    _run(bench, "init", "--from", "whole.sbatch", "-o", "whole.yaml")
    words = ["cluster=bed", "resources.time=00:05:00", "resources.partition=main", "--wait"]
    done = _run(bench, "submit", "whole.yaml", *words, f"environment.python={slurm24.python}")
    assert done.returncode == 0, done.stderr
    (status,) = json.loads(_run(bench, "status", "whole", "--json").stdout)
    log = Path(status["directory"]) / "attempts/1/rank-00000.log"
    assert log.read_text() == itself


def _own(bench: Workbench) -> None:
    for path in (bench.directory, *bench.directory.rglob("*")):
        shutil.chown(path, bench.cluster.uid, bench.cluster.uid)


def _run(bench: Workbench, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """The hpcrun command in the shell of a user."""
    return bench.cluster.run(
        [bench.cluster.python, "-m", "hpcrun", *words],
        env={"HPCRUN_ROOT": str(bench.root), "PYTHONPATH": str(REPOSITORY)},
        cwd=str(bench.directory),
        check=check,
    )


def _check_all(cluster: Cluster) -> None:
    bench = Workbench(cluster, "scripts")
    project(bench.directory)
    _own(bench)
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
