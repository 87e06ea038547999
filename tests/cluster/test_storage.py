"""Runs on a real Slurm whose shared file system is full, for a while or for good."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ward import Reference, Ward
from tests.testbed.layout import LOGIN

pytestmark = [pytest.mark.timeout(900), pytest.mark.usually]


@pytest.fixture
def small(reference: Reference, tmp_path: Path) -> Iterator[Ward]:
    """A desk whose experiments lie on one file system of 24 MiB on all machines and here."""
    ward = reference.ward
    cluster, there = ward.cluster, Path(ward.cluster.root) / "home" / "small"
    image = tmp_path / "image"
    with image.open("wb") as stream:
        stream.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image], check=True)
    attach = ["losetup", "--find", "--show", str(image)]
    device = subprocess.run(attach, check=True, capture_output=True, text=True).stdout.strip()
    machines = [LOGIN, *cluster.nodes]
    try:
        cluster.run(["mkdir", "-p", str(there)])
        subprocess.run(["mount", device, there], check=True)
        for machine in machines:
            cluster.run(["mount", device, str(there)], user=False, machine=machine)
        cluster.run(["chown", cluster.user, str(there)], user=False)
        # The compiler of DeepSpeed's operator needs more memory and room than the runs.
        cluster.run(["ln", "-s", str(ward.root / ".hpcrun"), str(there)])
        desk = Ward(cluster, "ward")
        desk.root = there
        yield desk
    finally:
        for machine in machines:
            cluster.run(["umount", "-l", str(there)], user=False, machine=machine, check=False)
        subprocess.run(["umount", "-l", there], check=False)
        subprocess.run(["losetup", "--detach", device], check=True)


def fill(ward: Ward) -> Path:
    """Leave no block free; the file that takes them."""
    filler = ward.root / "filler"
    for size in ("64k", "1k"):
        command = ["dd", "if=/dev/zero", f"of={filler}", f"bs={size}"]
        ward.cluster.run([*command, "oflag=append", "conv=notrunc"], check=False)
    return filler


def test_a_disk_that_is_full_for_a_while(reference: Reference, small: Ward) -> None:
    """Two saves fail meanwhile; neither the run nor a line of its metrics is lost."""
    small.submit("brim")
    small.wait_for_step("brim", 12)
    saved = sorted(path.name for path in small.paths("brim").checkpoints.iterdir())
    filler = fill(small)
    time.sleep(9)
    assert saved == sorted(path.name for path in small.paths("brim").checkpoints.iterdir())
    small.cluster.run(["rm", str(filler)])
    small.wait_for_end("brim")
    assert small.kinds("brim") == [None]
    Reference(small, reference.outcomes).assert_same("brim")
    why = small.hpcrun("why", "brim").stdout
    assert "No space left on device" in why


def test_a_disk_that_stays_full(reference: Reference, small: Ward) -> None:
    """The run stops, its checkpoint and ledger stay, and it goes on once there is room."""
    small.submit("spill")
    small.wait_for_step("spill", 12)
    filler = fill(small)
    (ended,) = small.wait_for_end("spill", "failed")
    assert "No space left on device" in small.hpcrun("logs", "spill", "--stream", "all").stdout
    assert ended["step"] >= 10
    small.cluster.run(["rm", str(filler)])
    small.hpcrun("requeue", "spill", "--yes")
    small.wait_for_end("spill")
    assert (small.attempts("spill")[-1].ended or {})["restored_step"] == 10
    Reference(small, reference.outcomes).assert_same("spill")
