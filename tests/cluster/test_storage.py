"""Runs on a real Slurm whose shared file system is full, for a while or for good."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster.disk import Disk, small_disk
from tests.cluster.ward import Reference

pytestmark = [pytest.mark.timeout(900), pytest.mark.usually]


@pytest.fixture
def disk(reference: Reference) -> Iterator[Disk]:
    """A desk whose experiments lie on a small file system."""
    with small_disk(reference.ward) as found:
        yield found


def test_a_disk_that_is_full_for_a_while(reference: Reference, disk: Disk) -> None:
    """Two saves fail meanwhile; neither the run nor a line of its metrics is lost."""
    ward = disk.ward
    ward.submit("brim")
    ward.wait_for_step("brim", 12)
    saved = sorted(path.name for path in ward.paths("brim").checkpoints.iterdir())
    disk.fill()
    time.sleep(9)
    assert saved == sorted(path.name for path in ward.paths("brim").checkpoints.iterdir())
    disk.free()
    ward.wait_for_end("brim")
    assert ward.kinds("brim") == [None], ward.explain("brim")
    Reference(ward, reference.outcomes).assert_same("brim")
    why = ward.hpcrun("why", "brim").stdout
    assert "No space left on device" in why


def test_a_disk_that_stays_full(reference: Reference, disk: Disk) -> None:
    """The run stops, its checkpoint and ledger stay, and it goes on once there is room."""
    ward = disk.ward
    ward.submit("spill")
    ward.wait_for_step("spill", 12)
    disk.fill()
    (ended,) = ward.wait_for_end("spill", "failed")
    assert "No space left on device" in ward.hpcrun("logs", "spill", "--stream", "all").stdout
    assert ended["step"] >= 10
    disk.free()
    ward.hpcrun("requeue", "spill", "--yes")
    ward.wait_for_end("spill")
    restored = (ward.attempts("spill")[-1].ended or {})["restored_step"]
    assert restored == 10, ward.explain("spill")
    Reference(ward, reference.outcomes).assert_same("spill")
