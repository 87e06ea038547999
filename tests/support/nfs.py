"""Hosts that share a directory as clients of NFS do, for tests in one process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.testbed import storage

# Short times; what is asserted is their order, and that a cache is kept at all.
TIMES = "acregmin=0.5,acregmax=2,acdirmin=1,acdirmax=2,writeback=1"
# As long as a test: what is seen before was asked for.
LONG = "acregmin=60,acregmax=60,acdirmin=60,acdirmax=60,writeback=30"


class Host:
    """A mounted client: ``path`` is the storage as this host sees it."""

    def __init__(self, path: Path, control: Path) -> None:
        self.path, self.client = path, storage.Client(control)

    def __truediv__(self, name: str) -> Path:
        return self.path / name


@pytest.fixture(scope="session")
def nfs_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("mounting a client takes root and /dev/fuse")
    if not (shutil.which("gcc") and Path("/usr/include/fuse3").is_dir()):
        pytest.skip("libfuse3 is not installed: tests/testbed/install.sh")
    made = tmp_path_factory.mktemp("nfs") / "nfs_client"
    storage.build(made)
    return made


@pytest.fixture
def mount(nfs_program: Path, tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Mount a client more, with options of nfs(5)."""
    (tmp_path / "server").mkdir(mode=0o777)
    (tmp_path / "server").chmod(0o777)
    hosts: list[Host] = []

    def make(options: str = TIMES) -> Host:
        path, control = tmp_path / f"host{len(hosts)}", tmp_path / f"control{len(hosts)}"
        path.mkdir()
        argv = [nfs_program, tmp_path / "server", path, control, options]
        subprocess.run(list(map(str, argv)), check=True)
        hosts.append(Host(path, control))
        return hosts[-1]

    yield make
    for host in hosts:
        host.client.silence(False)
        subprocess.run(["umount", "--lazy", str(host.path)], check=True)


@pytest.fixture
def two_hosts(mount: Callable[..., Host]) -> tuple[Host, Host]:
    """One that acts, and one that looks, and believes what it saw for longer than a test takes."""
    return mount(LONG), mount(LONG)
