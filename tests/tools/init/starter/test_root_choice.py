"""The root of experiments, by what is known of the places for files."""

from __future__ import annotations

from hpcrun.site.shared_storage import StoragePlace
from hpcrun.tools.init.starter import root_choice

GB = 10**9
HOME = StoragePlace("/home/ann", "$HOME", "nfs4", is_shared=True, free=500 * GB)
WORK = StoragePlace("/work/ann", "$WORK", "lustre", is_shared=True, free=900 * GB)
SCRATCH = StoragePlace("/scratch/ann/", "$SCRATCH", "beegfs", is_shared=True, free=900 * GB)
ENVIRON = {"HOME": "/home/ann"}


def test_work_comes_before_home_and_home_is_the_default() -> None:
    found = root_choice.choose([WORK, HOME], ENVIRON)
    assert (found.root, found.is_default, found.doubt) == ("/work/ann/hpcrun-runs", False, "")
    assert found.why == "$WORK: lustre, which nodes share, 900 GB free"
    found = root_choice.choose([HOME], ENVIRON)
    assert (found.root, found.path) == ("${oc.env:HOME}/hpcrun-runs", "/home/ann/hpcrun-runs")
    assert (found.is_default, found.doubt) == (True, "")
    assert "quotas are not seen" in found.why


def test_scratch_is_taken_with_a_doubt() -> None:
    found = root_choice.choose([SCRATCH, HOME], ENVIRON)
    assert found.root == "/scratch/ann/hpcrun-runs"
    assert "purged" in found.doubt


def test_what_is_full_not_shared_broken_or_oddly_named_is_passed_over() -> None:
    for one in (
        StoragePlace("/work/ann", "$WORK", "lustre", is_shared=True, free=10),
        StoragePlace("/work/ann", "$WORK", "ext4", is_shared=False, free=900 * GB),
        StoragePlace("/work/ann", "$WORK", problem="does not answer"),
        StoragePlace("/work/${x}", "$WORK", "lustre", is_shared=True, free=900 * GB),
    ):
        assert root_choice.choose([one, HOME], ENVIRON).path == "/home/ann/hpcrun-runs"


def test_a_home_that_may_not_be_shared_is_a_doubt() -> None:
    local = StoragePlace("/home/ann", "$HOME", "ext4", free=500 * GB)
    found = root_choice.choose([local], ENVIRON)
    assert found.is_default
    assert "whether nodes share it is not known" in found.why
    assert "on ext4" in found.doubt
    assert "--root DIR" in found.doubt
    broken = StoragePlace("/home/ann", "$HOME", problem="may not be written by you")
    assert "may not be written" in root_choice.choose([broken], ENVIRON).doubt
    assert "is not set" in root_choice.choose([], {}).doubt


def test_what_a_person_says_wins() -> None:
    found = root_choice.choose([WORK, HOME], {**ENVIRON, "HPCRUN_ROOT": "/team"})
    assert (found.root, found.is_default) == ("/team", True)
    found = root_choice.choose([WORK], {**ENVIRON, "HPCRUN_ROOT": "/team"}, "/typed")
    assert (found.root, found.why, found.is_default) == ("/typed", "--root", False)
