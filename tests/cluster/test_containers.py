"""DeepSpeed training in containers on a real Slurm: Charliecloud and bubblewrap, on two nodes.

The image is the root directory of another Debian than the machine's (the one that the newer Slurm
is installed in), as a directory and as a squashfs; the Python with torch is mounted into it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ward import EVERY, Reference
from tests.testbed import VERSIONS
from tests.testbed.prerequisites import lower_root

pytestmark = [pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Images:
    """The images of a cluster, and what is mounted into them."""

    directory: Path
    squashfs: Path
    mounts: list[str]

    def block(self, kind: str, python: str) -> dict[str, Any]:
        """The spec's ``environment`` of a kind of container."""
        runtime = "bubblewrap" if kind == "bubblewrap" else "charliecloud"
        image = self.squashfs if kind == "squashfs" else self.directory
        return {
            "container": {
                **{"image": str(image), "runtime": runtime, "python": python},
                "mounts": self.mounts,
            }
        }


@pytest.fixture(scope="session")
def images(reference: Reference) -> Images:
    """Make both images; the places to mount at are in them, as Charliecloud 0.31 needs."""
    cluster = reference.ward.cluster
    place = Path(cluster.root) / "images"
    place.mkdir()
    directory = place / "debian"
    subprocess.run(["cp", "-a", lower_root(VERSIONS[1]), str(directory)], check=True)
    packages = {str(Path(path).parents[2]) for path in sys.path if path.endswith("site-packages")}
    mounts = sorted({sys.prefix, sys.base_prefix, *packages, str(cluster.root)})
    for path in mounts:
        (directory / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    # What is private in the real root, such as root's own home, an image shows to everybody.
    for path in (directory / "root", *(directory / "root").glob("**/")):
        path.chmod(0o755)
    squashfs = place / "debian.sqfs"
    packed = ["mksquashfs", str(directory), str(squashfs), "-quiet", "-no-progress", "-no-xattrs"]
    subprocess.run([*packed, "-comp", "zstd", "-Xcompression-level", "1"], check=True)
    for node in ("login", *cluster.nodes):
        # As on every system with FUSE; this machine's own has it for root alone.
        cluster.on(node, ["chmod", "666", "/dev/fuse"])
    return Images(directory, squashfs, mounts)


@pytest.mark.usually("24.11")
@pytest.mark.parametrize("kind", ["squashfs", "bubblewrap"])
def test_hurt_in_a_container(reference: Reference, images: Images, kind: str) -> None:
    _hurt(reference, images, kind)


@pytest.mark.usually
def test_hurt_in_an_image_that_is_a_directory(reference: Reference, images: Images) -> None:
    _hurt(reference, images, "directory")


def _hurt(reference: Reference, images: Images, kind: str) -> None:
    """A rank is killed and started again in place, then the run is preempted: to the bit."""
    ward = reference.ward
    cluster = ward.cluster
    name = f"contained-{kind}"
    environment = images.block(kind, cluster.python)
    # On the older Slurm the image's compiler is another than the machine's, and has work to do.
    resources = {"mem": 6000}
    telemetry = {"every": 2}  # attempt 1 may take less than the default's first sample
    ward.submit(name, environment=environment, resources=resources, telemetry=telemetry)
    (run,) = ward.wait_for_step(name, 12)
    where = (
        "import os, platform; "
        "print(os.environ['RANK'], platform.freedesktop_os_release()['VERSION_ID'])"
    )
    told = ward.hpcrun("exec", f"{name}/0", "--rank", "1", cluster.python, "-c", where).stdout
    assert told.split() == ["1", "13"]
    stacks = json.loads(ward.hpcrun("stacks", f"{name}/0", "--json").stdout)
    assert [(one["rank"], one["node"]) for one in stacks] == [*enumerate(run["nodes"])]
    assert all("survivor.py" in one["text"] for one in stacks)

    ward.hurt_ranks(run["nodes"][1], ward.raw_job_id(str(run["job_id"])))
    ward.wait(name, lambda found: found[0]["attempt"] == 2 and (found[0]["step"] or 0) >= 24)
    ward.preempt(run["nodes"])
    ward.wait_for_end(name)
    assert ward.kinds(name) == ["rank_crash", "preempted", None]
    crash = ward.attempts(name)[0].cause
    assert crash is not None
    assert (crash["rank"], crash["node"], crash["signal"]) == (1, run["nodes"][1], "SIGKILL")
    lost = ward.lost_steps(name)
    assert 0 <= lost[0] <= EVERY
    assert lost[1] == 0
    reference.assert_same(name, 1)
    ward.assert_reconciled(f"{name}/0")
    assert "SIGKILL" in ward.hpcrun("why", name).stdout
    samples = ward.paths(name).attempt(1).directory.glob("telemetry-*.jsonl")
    assert {path.stem for path in samples} == {f"telemetry-{node}" for node in run["nodes"]}
