"""``environment.container``: its paths become absolute, and what it lacks is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcrun.compile.compiler import compile_spec
from hpcrun.compile.spec import json_schema
from hpcrun.errors import UsageError
from hpcrun.extensions import RUNTIMES
from tests.support import added_package


def _container(directory: Path, **given: Any) -> dict[str, Any]:
    spec = {"name": "e", "entry": ["true"], "cluster": "local", "environment": {"container": given}}
    (directory / "e.yaml").write_text(yaml.safe_dump(spec))
    run = compile_spec(directory / "e.yaml", root=directory / "root").runs[0]
    assert run.container is not None
    found: dict[str, Any] = run.spec["environment"]["container"]
    assert run.container.image == found["image"]
    return found


def test_an_image_is_not_frozen_again(tmp_path: Path) -> None:
    block = {"venv": "frozen", "container": {"image": "/i", "runtime": "bubblewrap"}}
    spec = {"name": "e", "entry": ["true"], "cluster": "local", "environment": block}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(spec))
    with pytest.raises(UsageError, match="is frozen, and the ranks are in a container"):
        compile_spec(tmp_path / "e.yaml", root=tmp_path / "root")


def test_paths_are_absolute(tmp_path: Path) -> None:
    given = {"image": "images/a.sqfs", "runtime": "charliecloud", "mounts": ["data", "/x:/y"]}
    found = _container(tmp_path, **given)
    assert found["image"] == str(tmp_path / "images/a.sqfs")
    assert found["mounts"] == [f"{tmp_path}/data:{tmp_path}/data", "/x:/y"]
    assert found["python"] == "python3"
    found = _container(tmp_path, image="docker://a/b", runtime="apptainer", mounts=["d:/d:ro"])
    assert found["image"] == "docker://a/b"
    assert found["mounts"] == [f"{tmp_path}/d:/d:ro"]
    found = _container(tmp_path, image="images/a", runtime="apptainer")
    assert found["image"] == str(tmp_path / "images/a")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"image": "x"}, "runtime: is missing; accepted are apptainer, bubblewrap, charliecloud"),
        ({"runtime": "docker"}, "accepted"),
        ({"runtime": "apptainer"}, "image: is missing"),
        ({"runtime": "bubblewrap", "image": "x", "python": " "}, "python: is empty"),
        ({"runtime": "bubblewrap", "image": "x", "python": "a/b"}, "accepted is a name, or all"),
        ({"runtime": "bubblewrap", "image": "x", "mounts": ["a:b"]}, "'b' is not absolute"),
        ({"runtime": "charliecloud", "image": "x", "mounts": ["a:/b:ro"]}, "has no such mounts"),
        (
            {"runtime": "charliecloud", "image": "docker://a/b"},
            "starts a directory or a squashfs, and fetches none (`ch-image pull a/b && ch-convert",
        ),
        ({"runtime": "bubblewrap", "image": "docker://a/b"}, "bubblewrap starts a directory, and"),
        ({"runtime": "command"}, "command: is empty; accepted are the words before the program"),
        ({"runtime": "pyxis", "image": "x", "command": ["x"]}, "has no meaning with runtime"),
        ({"runtime": "pyxis", "image": "x", "pyton": "x"}, "did you mean 'python'?"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        _container(tmp_path, **given)
    assert told in str(error.value)


MODULE = """
from hpcrun.container.runtimes import ContainerRuntime

class Enroot(ContainerRuntime):
    programs = ("enroot",)
    has_read_only_mounts = False

    def fetches(self, image):
        return image.startswith("docker://")

    def command_line(self, program, container, mounts):
        return [program.path, "start", container.image]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from added_package.on_path(tmp_path, monkeypatch)


def test_a_package_adds_a_runtime(place: Path) -> None:
    package = f"enroot_{place.name}"
    entry = f"enroot = {package}:Enroot"
    added_package.install(place, package, RUNTIMES.group, entry, MODULE)
    assert _container(place, image="docker://a/b", runtime="enroot")["image"] == "docker://a/b"
    assert _container(place, image="a", runtime="enroot")["image"] == f"{place}/a"
    with pytest.raises(UsageError, match="enroot has no such mounts"):
        _container(place, image="a", runtime="enroot", mounts=["/a:/b:ro"])
    with pytest.raises(UsageError, match=r"or enroot.*did you mean 'enroot'"):
        _container(place, image="a", runtime="enrot")
    words = json_schema.of("spec")["$defs"]["Container"]["properties"]["runtime"]["anyOf"][0]
    assert words["enum"] == [*RUNTIMES.own, "enroot"]


def test_a_package_without_a_command_line_is_refused(place: Path) -> None:
    package = f"bare_{place.name}"
    module = MODULE.partition("    def command_line")[0]
    added_package.install(place, package, RUNTIMES.group, f"bare = {package}:Enroot", module)
    with pytest.raises(UsageError, match=rf"the package {package} .* has no command_line"):
        _container(place, image="a", runtime="bare")
