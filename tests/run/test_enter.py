"""The program that becomes a command in a container, on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hpcrun.container.rank_python import NOT_PROBED
from hpcrun.state.environment.environment_block import Container
from tests.container import standins

# A runtime of which nothing is known but its words: it runs the program where it is.
BARE = {"runtime": "command", "command": ["env", "MARK=inside"]}
# Fails where a test that CI needs would be left out.
needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None and os.environ.get("HPCRUN_REQUIRE_CLUSTER") != "1",
    reason="no bubblewrap",
)


def _enter(
    *words: str, mounts: Any = (), probes: bool = False, **given: Any
) -> subprocess.CompletedProcess[str]:
    variables = given.pop("variables", {})
    told = {"container": asdict(Container(**given)), "given": sorted(variables)}
    told |= {"mounts": mounts, "probes": probes}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-m", "hpcrun.run.enter", json.dumps(told), "--", *words],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_the_host_set_for_its_programs_stays_outside() -> None:
    own = {"LD_LIBRARY_PATH": "/mine", "VIRTUAL_ENV": "/v", "KEPT": "1"}
    done = _enter("env", variables={**own}, **BARE)
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    # They were given by the user, all of them.
    assert found.items() >= {**own, "MARK": "inside"}.items()
    assert found["HPCRUN_OUTSIDE_PYTHONPATH"] == os.pathsep.join(sys.path)
    assert "PYTHONPATH" not in found
    assert found["USER"] == str(os.geteuid())


def test_a_signal_is_an_exit_code_and_slurms_are_ignored() -> None:
    assert _enter("sh", "-c", "kill -KILL $$", **BARE).returncode == 137
    assert _enter("sh", "-c", "exit 3", **BARE).returncode == 3
    done = _enter("sh", "-c", "kill -USR2 $$; kill -TERM $$; echo lives", **BARE)
    assert done.stdout == "lives\n"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"runtime": "charliecloud", "image": "/no/image"}, "image: there is no /no/image on"),
        ({"runtime": "bubblewrap", "image": "FILE"}, "is no directory, as bubblewrap needs"),
        ({**BARE, "mounts_": [["/no/data", "/data", False]]}, "mounts: there is no /no/data on"),
        ({**BARE, "command": ["no-such-runtime"]}, "no-such-runtime cannot be used: No such file"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    (tmp_path / "image").touch()
    mounts = given.pop("mounts_", [])
    given = {k: str(tmp_path / "image") if v == "FILE" else v for k, v in given.items()}
    done = _enter("true", mounts=mounts, **given)
    assert done.returncode == 127
    assert told in done.stdout
    assert "Traceback" not in done.stderr
    done = _enter("true", mounts=mounts, probes=True, **given)
    assert (NOT_PROBED in done.stdout) == (done.returncode == 0)


def test_a_runtime_that_is_not_there(tmp_path: Path) -> None:
    given = {"runtime": "apptainer", "image": str(tmp_path)}
    done = _enter("true", variables={"PATH": str(tmp_path)}, **given)
    assert "has no apptainer or singularity on PATH" in done.stdout
    assert "load it in environment.setup" in done.stdout


def test_apptainer_takes_the_command_line(tmp_path: Path) -> None:
    standins.apptainer(tmp_path)
    (tmp_path / "image.sif").touch()
    given = {"runtime": "apptainer", "image": str(tmp_path / "image.sif")}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ("sh", "-c", "echo $APPTAINER_CONTAINER; exit 4")
    done = _enter(*words, variables=path, mounts=[[str(tmp_path), "/data", True]], **given)
    assert (done.returncode, done.stdout) == (4, f"{tmp_path}/image.sif\n"), done.stderr
    done = _enter(*words, variables=path, **given, options=["--no-such-option"])
    assert "unrecognized arguments: --no-such-option" in done.stderr


@needs_bwrap
def test_bubblewrap_is_another_root(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.mkdir()
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (image / name).symlink_to(Path("/", name).readlink())
    (image / "etc").mkdir()
    (image / "etc" / "mark").write_text("of the image\n")
    (image / "usr").mkdir()
    (tmp_path / "data").mkdir()
    mounts = [["/usr", "/usr", True], [str(tmp_path / "data"), "/deep/data", False]]
    script = "cat /etc/mark; ls /; echo $PATH; echo written > /deep/data/file; kill -KILL $$"
    given = {"runtime": "bubblewrap", "image": str(image)}
    done = _enter("sh", "-c", script, mounts=mounts, **given)
    assert done.returncode == 137, done.stdout + done.stderr
    first, *names, path = done.stdout.splitlines()
    assert first == "of the image"
    assert "deep" in names
    assert "home" not in names
    assert path == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert (tmp_path / "data" / "file").read_text() == "written\n"
    done = _enter("sh", "-c", "echo > /usr/file", mounts=mounts, **given)
    assert done.returncode != 0
