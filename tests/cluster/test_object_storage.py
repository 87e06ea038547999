"""A run on a real Slurm whose checkpoints are copied, and come back to a root that was cleaned."""

from __future__ import annotations

import shutil

import pytest

from tests.cluster.ward import Reference
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.usually]


def test_a_root_that_was_cleaned(reference: Reference) -> None:
    """The next job fetches the newest copy, and the run ends as if nothing had been removed."""
    ward = reference.ward
    archive = ward.root.parent / "archive"
    archive.mkdir(mode=0o777)
    archive.chmod(0o777)
    ward.submit("archived", object_storage={"to": f"file://{archive}"})
    ward.wait_for_step("archived", 12)

    def copied() -> int:
        records = (one.of_features.get("checkpoint_copied") for one in ward.attempts("archived"))
        return max((one["newest"] for one in records if one), default=0)

    until(lambda: copied() >= 10, "copied", 60)
    assert "checkpoints copied up to step" in str(ward.status("archived")[0]["reason"])
    ward.hpcrun("cancel", "archived", "--yes")
    until(lambda: ward.attempts("archived")[-1].ended is not None, "ended", 60)
    newest = copied()
    shutil.rmtree(ward.paths("archived").checkpoints)
    ward.hpcrun("requeue", "archived", "--yes")
    ward.wait_for_end("archived")
    assert (ward.attempts("archived")[-1].ended or {})["restored_step"] == newest
    assert "it was fetched from file://" in ward.hpcrun("why", "archived").stdout
    reference.assert_same("archived")
