"""Paths that a plan names: what is there, what is not, and what other nodes do not see."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hpcrun import mounts
from hpcrun.check import path_checks
from hpcrun.check.finding import NOTE, WARNING
from hpcrun.mounts import MountPoint
from hpcrun.state import layout
from hpcrun.state.manifest import File, Manifest
from hpcrun.state.plan import Entry
from tests.support import plans
from tests.support.command import hpcrun

SHARED = {"executor": "local"}
SLURM = {"executor": "slurm"}


def found(cluster: dict[str, Any], *args: str, **config: Any) -> list[tuple[str, str, str]]:
    """Severity, key and message of each finding on one run."""
    [run] = plans.command_plan(Path("/code"), {0: ["true"]}).runs
    run = dataclasses.replace(run, spec={**run.spec, "config": config, "args": list(args)})
    return [
        (one.severity, one.key, f"{one.message}; {one.hint}")
        for one in path_checks.check_paths([run], cluster)
    ]


def test_what_is_there_and_what_is_no_path_is_passed_over(tmp_path: Path) -> None:
    there = str(tmp_path)
    values = {"data": there, "rate": 0.1, "text": "a/b", "url": "https://a/b", "null": None}
    rest = {"slash": "/", "later": "/${hpcrun:directory}/x", "dev": "/dev/null"}
    assert found(SHARED, "--x", f"--data={there}", **values, **rest) == []


def test_a_near_name_is_proposed(tmp_path: Path) -> None:
    (tmp_path / "imagenet").mkdir()
    [(severity, key, told)] = found(SHARED, data={"root": str(tmp_path / "imagnet")})
    assert (severity, key) == (WARNING, "config.data.root")
    assert f"did you mean {tmp_path / 'imagenet'}?" in told


def test_what_the_program_may_make_is_a_note(tmp_path: Path) -> None:
    [(severity, key, told)] = found(SHARED, f"--output={tmp_path / 'results'}")
    assert (severity, key) == (NOTE, "args")
    assert "is not there; all is well if the program makes it" in told


def test_a_path_without_its_directory_is_a_warning(tmp_path: Path) -> None:
    [(severity, _, told)] = found(SHARED, data=str(tmp_path / "no" / "such" / "file"))
    assert severity == WARNING
    assert f"is not there, nor is {tmp_path / 'no' / 'such'}" in told


@pytest.mark.parametrize("path", ["/tmp", "/tmp/data", "/dev/shm/../shm/x", "/var/tmp/a/b"])
def test_directories_of_one_machine(path: str) -> None:
    [(severity, _, told)] = found(SLURM, cache=path)
    assert severity == WARNING
    assert "which every machine usually has of its own" in told


def test_setup_lines_that_fail_and_a_wrong_path(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "spec.yaml").write_text(
        "name: study\nentry: train.py\ncluster: local\n"
        "config: {data: /nowhere/at/all}\nenvironment: {setup: [module load nope]}\n"
    )
    done = hpcrun("check", "spec.yaml", "--json", root=tmp_path / "root", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [report] = json.loads(done.stdout)
    told = {
        one["key"]: (one["severity"], one["place"], one["message"]) for one in report["findings"]
    }
    assert told["environment.setup"][:2] == (WARNING, "spec.yaml:5")
    assert "`module load nope` ended with exit code 127" in told["environment.setup"][2]
    assert told["config.data"][:2] == (WARNING, "spec.yaml:4")


@pytest.mark.parametrize(
    ("nodes", "kind", "environment", "told"),
    [
        (16, "nfs4", {}, "128 processes will import at once from /apps/venv/bin/python, on shared"),
        (15, "nfs4", {}, None),
        (16, "xfs", {}, None),
        (16, "nfs4", {"venv": "frozen"}, None),
        (16, "nfs4", {"container": {"image": "/images/torch.sif"}}, None),
    ],
)
def test_many_processes_that_import_from_shared_storage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    kind: str,
    environment: dict[str, Any],
    told: str | None,
) -> None:
    monkeypatch.setattr(
        mounts, "read", lambda: [MountPoint("/", "ext4"), MountPoint("/apps", kind)]
    )
    environment = {"python": "/apps/venv/bin/python", **environment}
    [run] = plans.command_plan(Path("/code"), {0: ["true"]}, environment=environment).runs
    resources = {**run.spec["resources"], "nodes": nodes, "ntasks_per_node": 8}
    run = dataclasses.replace(run, spec={**run.spec, "resources": resources})
    found = [one for one in path_checks.root(tmp_path, [run], SLURM) if one.severity == NOTE]
    assert [one.message.startswith(told or "-") for one in found] == ([True] if told else [])
    assert all("environment.venv=frozen" in str(one.hint) for one in found)


LUSTRE = "40 1 0:30 / /scratch rw - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/fs rw,flock\n"
NFS = "40 1 0:30 / /scratch rw - nfs4 server:/scratch rw,hard\n"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("mounted", "ranks", "stage", "largest", "told", "targets"),
    [
        (LUSTRE, 8192, 3, 0, "a save has 24,576 files, in one directory on Lustre", 1),
        (LUSTRE, 8192, 2, 0, "a save has 16,384 files, in one directory on Lustre", 1),
        (LUSTRE, 8192, None, 0, "a save has 8,192 files, in one directory on Lustre", 1),
        (LUSTRE, 256, 1, 5 * GIB, "a save has 512 files, in one directory on Lustre", 1),
        (LUSTRE, 255, 1, 5 * GIB, "a checkpoint has a file of 5.4 GB, on Lustre", 4),
        (LUSTRE, 255, 1, GIB, None, 0),
        (LUSTRE, 8, 3, 0, None, 0),
        (NFS, 8192, 3, 5 * GIB, None, 0),
        ("", 8192, 3, 5 * GIB, None, 0),
    ],
)
def test_files_of_a_save_on_lustre(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mounted: str,
    ranks: int,
    stage: int | None,
    largest: int,
    told: str | None,
    targets: int,
) -> None:
    (tmp_path / "mountinfo").write_text(f"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mounted}")
    read = mounts.read
    monkeypatch.setattr(mounts, "read", lambda: read(tmp_path / "mountinfo"))
    deepspeed = {} if stage is None else {"zero_optimization": {"stage": stage}}
    [run] = plans.command_plan(Path("/code"), {0: ["true"]}, deepspeed=deepspeed).runs
    resources = {**run.spec["resources"], "nodes": ranks, "ntasks_per_node": 1}
    command = dataclasses.replace(run, spec={**run.spec, "resources": resources})
    run = dataclasses.replace(command, entry=Entry("function", module="m", function="f"))
    saved = [Manifest(1, 1, 0.0, ranks, 1, 8, {"a": File(1), "b": File(largest)})]
    paths = layout.experiment(Path("/scratch/me's runs"), "study")
    found = list(path_checks.stripes(paths, [run], saved))
    line = f"mkdir -p '{paths.directory}' && lfs setstripe -c {targets} '{paths.directory}'"
    line = line.replace("me's", "me'\"'\"'s")
    assert [one.message for one in found] == ([told] if told else [])
    assert all(f"`{line}`" in str(one.hint) for one in found)
    # A program that saves for itself has files of its own.
    by_itself = list(path_checks.stripes(paths, [command], []))
    assert by_itself == []


def test_directories_that_are_there_are_striped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "read", lambda: [MountPoint("/", "lustre")])
    paths = layout.experiment(tmp_path, "study")
    paths.runs_directory.mkdir(parents=True)
    saved = [Manifest(1, 1, 0.0, 1, 0, 8, {"a": File(2 * GIB)})]
    [found] = path_checks.stripes(paths, [], saved)
    assert f"`find {paths.directory} -type d -exec lfs setstripe -c 4 {{}} \\;`" in str(found.hint)
