"""``hpcrun init`` as it is typed, where Slurm's commands give the answers of two real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import command
from tests.support.slurm_shim import Shim

RECORDED = Path(__file__).parents[2] / "site" / "recorded"
WRITTEN = ["experiment.yaml", "spec.schema.json", "train.py"]


class Site:
    """A home, a directory to work in, and programs of Slurm's in PATH."""

    def __init__(self, base: Path) -> None:
        self.home, self.directory, self.programs = base / "home", base / "first", base / "bin"
        for path in (self.home, self.directory, self.programs):
            path.mkdir()
        self.slurm = Shim(self.programs)

    def has_slurm(self, version: str) -> None:
        """Have the commands answer as those of a version did."""
        for program, what in (("scontrol", "controller"), ("sacctmgr", "accounting")):
            text = (RECORDED / f"{what}-{version}.txt").read_text()
            self.slurm.answer(program, {"out": text})
        start = f"sbatch: Job 7 to start at {int(time.time())} using 4 processors on nodes n[1-2]"
        self.slurm.answer("sbatch", {"err": f"{start} in partition main\n"})
        self.slurm.answer("squeue", {})

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.programs}:/usr/bin:/bin" if self.slurm_is_there else "/none",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
        }

    @property
    def slurm_is_there(self) -> bool:
        return (self.programs / "sbatch").exists()

    def __call__(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return command.hpcrun(
            *arguments, cwd=self.directory, environment=self.environment, **options
        )

    def files(self) -> list[str]:
        """All that is in the home and in the directory, but for caches."""
        found = [one for place in (self.home, self.directory) for one in place.rglob("*")]
        cache = self.home / ".cache"
        return sorted(one.name for one in found if one.is_file() and cache not in one.parents)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(params=["22.05", "24.11"])
def cluster(request: pytest.FixtureRequest, site: Site) -> Site:
    site.has_slurm(request.param)
    return site


def test_a_profile_and_a_project_that_check_finds_nothing_wrong_with(cluster: Site) -> None:
    done = cluster("init")
    assert done.returncode == 0, done.stderr
    assert sorted(one.name for one in cluster.directory.iterdir()) == WRITTEN
    profile = cluster.home / ".config/hpcrun/clusters/testbed.yaml"
    assert "partition: main" in profile.read_text()
    assert "account: research" in profile.read_text()
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["found", "what", "learnt", "from"]
    assert lines[-2:] == ["next: hpcrun check", "      hpcrun submit"]
    assert f"written: {profile}" in lines
    planned = cluster("plan")
    assert planned.returncode == 0, planned.stderr
    assert "#SBATCH --partition=main" in planned.stdout
    assert "#SBATCH --nodes=2" in planned.stdout
    checked = cluster("check", "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    [report] = json.loads(checked.stdout)
    # The home of this test lies in /tmp.
    findings = [one for one in report["findings"] if "lies in /tmp" not in one["message"]]
    assert (report["cluster"], findings, report["skipped"]) == ("testbed", [], [])
    assert report["expected_start"] is not None


def test_twice_changes_nothing(cluster: Site) -> None:
    cluster("init")
    before = {path: path.read_bytes() for path in cluster.home.rglob("*") if path.is_file()}
    done = cluster("init")
    assert done.returncode == 0
    assert {path: path.read_bytes() for path in cluster.home.rglob("*") if path.is_file()} == before
    assert "is there already, and is kept" in done.stderr
    assert "unchanged: train.py" in done.stdout


def test_a_dry_run_prints_and_writes_nothing(cluster: Site) -> None:
    done = cluster("init", "--dry-run")
    assert done.returncode == 0
    assert cluster.files() == []
    assert "--- experiment.yaml (would be written)" in done.stdout
    assert "partition: main" in done.stdout
    assert "def train(session" in done.stdout
    assert "nothing was written" in done.stderr
    data = json.loads(cluster("init", "-n", "--json").stdout)
    assert data["profile"].endswith("/clusters/testbed.yaml")
    assert [one["action"] for one in data["files"]] == ["written"] * 5
    assert cluster.files() == []


def test_slurm_is_asked_twice_and_nothing_else_of_it_is_started(cluster: Site) -> None:
    cluster("init")
    assert sorted(call[0] for call in cluster.slurm.calls) == ["sacctmgr", "scontrol"]


def test_without_slurm_it_is_for_this_machine(site: Site) -> None:
    done = site("init")
    assert done.returncode == 0, done.stderr
    assert site.files() == WRITTEN
    assert "there is no Slurm here (no sbatch in PATH)" in done.stderr
    assert "cluster: local" in (site.directory / "experiment.yaml").read_text()
    assert site("plan").returncode == 0


def test_the_schema_is_what_hpcrun_schema_prints(site: Site) -> None:
    site("init")
    assert (site.directory / "spec.schema.json").read_text() == site("schema").stdout


@pytest.mark.parametrize(
    "answer",
    [
        {"err": "slurm_load_ctl_conf error: Unable to contact slurm controller", "code": 1},
        {"out": ""},
    ],
    ids=["no controller", "nothing"],
)
def test_a_slurm_that_does_not_answer(answer: dict[str, object], site: Site) -> None:
    site.has_slurm("24.11")
    site.slurm.answer("scontrol", answer)
    done = site("init")
    assert (done.returncode, done.stdout) == (4, "")
    assert "scontrol" in done.stderr
    assert "hpcrun init --local" in done.stderr
    assert site.files() == []
    assert site("init", "--local").returncode == 0
    assert site.files() == WRITTEN


def test_no_slurmdbd_is_said(site: Site) -> None:
    site.has_slurm("24.11")
    site.slurm.answer("sacctmgr", {"err": "sacctmgr: error: Connection refused", "code": 1})
    done = site("init")
    assert done.returncode == 0
    assert "accounts, QOS and their limits are not known: sacctmgr: error: Connec" in done.stderr
    profile = (site.home / ".config/hpcrun/clusters/testbed.yaml").read_text()
    assert "\n  account:" not in profile
    assert site("check").returncode == 0


def test_a_slow_slurm_is_waited_for_in_words(site: Site) -> None:
    site.has_slurm("24.11")
    text = (RECORDED / "controller-24.11.txt").read_text()
    site.slurm.answer("scontrol", {"out": text, "sleep": 4})
    done = site("init")
    assert done.returncode == 0
    assert "asking Slurm what this cluster is" in done.stderr


def test_ctrl_c_leaves_nothing(site: Site) -> None:
    site.has_slurm("24.11")
    site.slurm.answer("scontrol", {"sleep": 60})
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrun", "init"],
        cwd=site.directory,
        env=site.environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _until(lambda: "scontrol" in [call[0] for call in site.slurm.calls])
    time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in said) == (130, False)
    assert time.monotonic() - began < 10
    assert site.files() == []


def _until(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["experiment.yaml", "train.py"])
def test_somebodys_own_files_are_left_alone(name: str, cluster: Site) -> None:
    (cluster.directory / name).write_text("mine\n")
    done = cluster("init")
    assert (done.returncode, done.stdout) == (2, "")
    assert cluster.files() == [name]
    assert "--force" in done.stderr
    assert cluster("init", "--profile-only").returncode == 0
    assert cluster.files() == sorted([name, "profile.schema.json", "testbed.yaml"])
    assert cluster("init", "--force").returncode == 0
    assert (cluster.directory / name).read_text() != "mine\n"


def test_the_root_is_what_was_typed(cluster: Site, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    done = cluster("init", "--root", str(root))
    profile = (cluster.home / ".config/hpcrun/clusters/testbed.yaml").read_text()
    assert f"root: {root}" in profile
    assert f"next: export HPCRUN_ROOT={root}" in done.stdout


def test_what_is_odd_in_slurms_answers_stays_in_its_place(site: Site) -> None:
    site.has_slurm("24.11")
    text = (RECORDED / "controller-24.11.txt").read_text()
    text = text.replace("ClusterName             = testbed", "ClusterName = \x1b[31m../../evil: {x")
    text = text.replace("PartitionName=high", "PartitionName=hi\x1b]0;gh")
    assert "evil" in text
    assert "gh" in text
    site.slurm.answer("scontrol", {"out": text})
    done = site("init", "work")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    [profile] = (site.home / ".config/hpcrun/clusters").iterdir()
    assert profile.name == "c-31m..-..-evil-x.yaml"
    assert "\x1b" not in profile.read_text()
    planned = site("plan", "work/experiment.yaml")
    assert planned.returncode == 0, planned.stderr


def test_no_slow_library_is_imported(site: Site) -> None:
    script = (
        "import sys\n"
        "from hpcrun.cli.main import main\n"
        "try:\n    main(['init'])\nexcept SystemExit:\n    pass\n"
        "print([one for one in ('torch', 'deepspeed', 'submitit') if one in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=site.directory,
        env={**site.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
