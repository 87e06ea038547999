"""Which file system a path lies on, from mountinfo as kernels write it (no NFS is mounted here)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.observe.logs.follow import is_remote

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2
31 30 0:41 / /home/fast rw - ext4 /dev/sdb rw
32 22 0:42 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw
33 22 0:43 / /with\040space rw - fuse.sshfs host: rw
34 22 0:44 / /over rw - nfs old: rw
35 22 0:45 / /over rw - tmpfs tmpfs rw
torn line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/runs", False),
        ("/home", True),
        ("/home/someone/hpcrun", True),
        ("/homeless", False),
        ("/home/fast/x", False),
        ("/scratch/x", True),
        ("/with space/x", True),
        ("/over/x", False),
    ],
)
def test_is_remote(tmp_path: Path, path: str, expected: bool) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert is_remote(Path(path), mounts) is expected


def test_without_mountinfo(tmp_path: Path) -> None:
    assert not is_remote(tmp_path, tmp_path / "nothing")
