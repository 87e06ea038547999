"""The whole command line of each runtime, as it is typed on a node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpcrun.container import runtimes
from hpcrun.container.runtimes import Mount, RuntimeProgram
from hpcrun.state.environment.environment_block import Container
from tests.container import standins

MOUNTS = [Mount("/tmp", "/tmp"), Mount("/data", "/mnt/data", True), Mount("/root/x", "/root/x")]
WORDS = ["env", "PYTHONPATH=/r/hpcrun.zip", "python3", "-m", "hpcrun.run.worker", "launch.json"]
KEPT = ["sh", "-c", '"$@"; exit $?', "hpcrun", *WORDS]


def _command(runtime: Any, image: str, **more: Any) -> list[str]:
    own = {name: more.pop(name) for name in ("can", "gpus") if name in more}
    container = Container(image=image, runtime=runtime, **more)
    return runtimes.command(container, RuntimeProgram(f"/usr/bin/{runtime}", **own), MOUNTS, WORDS)


def test_apptainer() -> None:
    found = _command("apptainer", "/i/torch.sif", gpus="nvidia", options=["--writable-tmpfs"])
    assert found == [
        *("/usr/bin/apptainer", "exec", "--no-home", "--nv"),
        *("--bind=/tmp:/tmp", "--bind=/data:/mnt/data:ro", "--bind=/root/x:/root/x"),
        *("--writable-tmpfs", "/i/torch.sif", *KEPT),
    ]
    assert _command("apptainer", "docker://pytorch/pytorch", home=True, gpus="amd")[1:5] == [
        *("exec", "--rocm", "--bind=/tmp:/tmp", "--bind=/data:/mnt/data:ro"),
    ]


def test_charliecloud() -> None:
    binds = ["--bind=/tmp:/tmp", "--bind=/data:/mnt/data", "--bind=/root/x:/root/x"]
    found = _command("charliecloud", "/i/torch.sqfs", options=["--set-env"])
    path = "/usr/bin/charliecloud"
    assert found == [path, *binds, "--set-env", "/i/torch.sqfs", "--", *KEPT]
    new = _command("charliecloud", "/i/torch.sqfs", home=True, can=lambda option: True)
    assert new == [path, "--write-fake", "--home", *binds, "/i/torch.sqfs", "--", *KEPT]


def test_bubblewrap_shows_the_image_in_an_empty_root(tmp_path: Path) -> None:
    for name in ("usr", "etc", "dev", "proc", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "etc" / "passwd").touch()
    assert _command("bubblewrap", str(tmp_path)) == [
        *("/usr/bin/bubblewrap", "--die-with-parent"),
        *("--ro-bind", f"{tmp_path}/etc", "/etc", "--symlink", "usr/lib", "/lib"),
        *("--ro-bind", f"{tmp_path}/usr", "/usr"),
        *("--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc", "--ro-bind", "/sys", "/sys"),
        *("--tmpfs", "/tmp", "--ro-bind", "/etc/passwd", "/etc/passwd"),
        *("--bind", "/tmp", "/tmp", "--ro-bind", "/data", "/mnt/data"),
        *("--bind", "/root/x", "/root/x", "--", *KEPT),
    ]


def test_any_other_command() -> None:
    found = _command(
        "command",
        "registry/torch:1",
        command=["podman", "run", "--rm", "{mounts}", "{image}"],
        mount_option=["-v", "{source}:{target}"],
    )
    assert found == [
        *("podman", "run", "--rm", "-v", "/tmp:/tmp", "-v", "/data:/mnt/data"),
        *("-v", "/root/x:/root/x", "registry/torch:1", *KEPT),
    ]


def test_pyxis_is_options_of_srun_that_it_has() -> None:
    container = Container(image="nvcr.io#nvidia/pytorch:25.09-py3", runtime="pyxis")
    options = runtimes.Pyxis().srun_options(container, MOUNTS)
    assert options == [
        "--container-image=nvcr.io#nvidia/pytorch:25.09-py3",
        "--container-mounts=/tmp:/tmp,/data:/mnt/data:ro,/root/x:/root/x",
        *("--no-container-mount-home", "--container-workdir=/"),
    ]
    told = standins.read_pyxis(options)
    assert told.container_workdir == "/"
    assert told.no_container_mount_home
    with pytest.raises(SystemExit):
        standins.read_pyxis([*options, "--container-pull=never"])
    at_home = Container(image="x", runtime="pyxis", home=True, options=["--container-writable"])
    assert standins.read_pyxis(runtimes.Pyxis().srun_options(at_home, MOUNTS)).container_writable


def test_mounts_are_read() -> None:
    assert Mount.parse("/data") == Mount("/data", "/data")
    assert Mount.parse("/data:/d:ro") == Mount("/data", "/d", True)
    assert Mount.parse("/data:/d:rw").words == "/data:/d"
    for wrong in ("", ":/d", "/data:d", "/data:/d:rx", "/a:/b:ro:x"):
        with pytest.raises(ValueError, match=re.escape("accepted is") + "|not absolute"):
            Mount.parse(wrong)


def test_what_is_a_path() -> None:
    assert all(map(runtimes.is_path, ("/i/x", "./x", "../x", "~/x", "x.sif", "x.sqsh")))
    assert not any(map(runtimes.is_path, ("docker://x", "nvcr.io#x:1", "python")))
