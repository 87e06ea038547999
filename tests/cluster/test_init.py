"""The first minutes on a new cluster: `hpcrun init && hpcrun submit`, from an installed wheel."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest
import yaml

from hpcrun.compile.spec import json_schema
from tests.cluster.workbench import give_operators
from tests.support import operators, wheels
from tests.testbed import VERSIONS, Cluster

pytest.importorskip("deepspeed", reason="trains")
pytestmark = pytest.mark.timeout(900)

FILES = ["experiment.yaml", "spec.schema.json", "train.py"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.built("--wheel", wheels.ROOT, tmp_path_factory.mktemp("wheel"))


@dataclass(frozen=True)
class Newcomer:
    """The ordinary user, with an environment of their own and no file of hpcrun's."""

    cluster: Cluster
    bin: Path
    directory: Path

    def type(self, line: str, *, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Type a line of bash in the directory, with the environment's programs in PATH."""
        return self.cluster.run(
            ["bash", "-c", line],
            env={"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin"},
            cwd=str(self.directory),
            timeout=timeout,
        )


@pytest.fixture
def newcomer(slurm: Cluster, wheel: Path) -> Iterator[Newcomer]:
    home = slurm.layout.home
    environment, directory = home / "newcomer", home / "first"
    python = wheels.install(wheel, environment)
    # torch, DeepSpeed and ninja, as `pip install 'hpcrun[train]'` would bring them along.
    own = sysconfig.get_paths()
    (wheels.libraries(environment) / "training.pth").write_text(f"{own['purelib']}\n")
    (python.parent / "ninja").symlink_to(Path(own["scripts"], "ninja"))
    slurm.run(["mkdir", str(directory)])
    if slurm.version == VERSIONS[0]:
        give_operators(slurm, operators.build(), home / "hpcrun-runs")
    # Other tests may have let files lie there.
    shutil.rmtree(home / ".config", ignore_errors=True)
    yield Newcomer(slurm, python.parent, directory)
    for path in (environment, directory, home / ".config", home / "hpcrun-runs"):
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.usually(VERSIONS[0])
def test_init_and_submit_train_on_two_nodes(newcomer: Newcomer) -> None:
    cluster = newcomer.cluster
    before = {node: cluster.interface_bytes(node)["ib0"][1] for node in cluster.nodes}
    done = newcomer.type("hpcrun init && hpcrun submit --wait")
    assert sorted(path.name for path in newcomer.directory.iterdir()) == FILES
    profile = cluster.layout.home / ".config/hpcrun/clusters/testbed.yaml"
    for of, path in (("profile", profile), ("spec", newcomer.directory / "experiment.yaml")):
        validator = jsonschema.Draft202012Validator(json_schema.of(of))
        validator.validate(yaml.safe_load(path.read_text()))
        assert path.stat().st_uid == cluster.uid
    [run] = json.loads(newcomer.type("hpcrun status --json").stdout)
    told = done.stdout + done.stderr + newcomer.type("hpcrun why; hpcrun logs --tail 40").stdout
    assert (run["experiment"], run["state"]) == ("first", "completed"), told
    assert (run["step"], run["total_steps"], len(run["nodes"])) == (200, 200, 2), told
    sent = {node: cluster.interface_bytes(node)["ib0"][1] for node in cluster.nodes}
    # The gradients, though nobody said which network is the fast one.
    assert [node for node in cluster.nodes if sent[node] - before[node] > 500_000] == run["nodes"]
    _check_that_it_learnt(newcomer)
    _check_what_comes_after(newcomer, profile)


def _check_that_it_learnt(newcomer: Newcomer) -> None:
    records = newcomer.cluster.layout.home / "hpcrun-runs/first/runs/0/attempts/1/metrics.jsonl"
    losses = [json.loads(line)["loss"] for line in records.read_text().splitlines()]
    assert len(losses) == 200
    assert sum(losses[-20:]) < sum(losses[:20]) / 4


def _check_what_comes_after(newcomer: Newcomer, profile: Path) -> None:
    """A profile that is complete, a second `init`, and the same training on this machine."""
    checked = newcomer.type("hpcrun check +name=again --json")
    [report] = json.loads(checked.stdout)
    assert (report["findings"], report["skipped"]) == ([], [])
    assert report["expected_start"] is not None
    assert "#SBATCH --partition=main" in newcomer.type("hpcrun plan").stdout
    before = profile.read_text()
    again = newcomer.type("hpcrun init && hpcrun submit")
    assert profile.read_text() == before
    assert "unchanged: experiment.yaml" in again.stdout
    assert "nothing to submit" in again.stdout + again.stderr
    here = newcomer.type("hpcrun run cluster=local nodes=1 config.total_steps=5 +name=here")
    assert "completed" in here.stdout + here.stderr
