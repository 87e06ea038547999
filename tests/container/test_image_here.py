"""The image of a container before the queue: here, on nodes alone, or of no use to any rank."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from hpcrun import mounts
from hpcrun.check import file_checks
from hpcrun.compile.compiler import compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.container import image_here
from hpcrun.errors import UsageError
from hpcrun.mounts import MountPoint
from hpcrun.state.environment.environment_block import Container
from tests.support.command import hpcrun

NODES = "other nodes"


def image(path: Path | str, runtime: str = "charliecloud") -> Container:
    return Container(image=str(path), runtime=runtime)  # type: ignore[arg-type]


def test_what_is_here_and_what_has_no_path_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.sqfs").touch()
    for one in (image(tmp_path), image(tmp_path / "x.sqfs"), image("docker://a/b", "apptainer")):
        assert image_here.absent(one, None) is None
    assert image_here.absent(Container(runtime="command"), None) is None


@pytest.mark.parametrize("name", ["x.sif", "no/directory", "file/below"])
def test_where_the_ranks_run_here_an_absent_one_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as raised:
        image_here.absent(image(tmp_path / name), None)
    assert f"environment.container.image: there is no {tmp_path / name} on" in str(raised.value)
    assert "where the ranks run" in str(raised.value)


def test_nodes_may_have_one_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "torch-2.sif").symlink_to("gone")
    told = image_here.absent(image(tmp_path / "torch 2.sif"), NODES) or ""
    assert f"`srun ls -ld '{tmp_path}/torch 2.sif'` tells" in told
    assert f"did you mean {tmp_path}/torch-2.sif?" in told
    told = image_here.absent(image(tmp_path / "torch-2.sif"), NODES) or ""
    assert "(it is a link to gone)" in told


def test_what_is_absent_from_shared_storage_is_nowhere_unless_a_run_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "read", lambda: [MountPoint(str(tmp_path), "nfs4")])
    with pytest.raises(UsageError, match=r"which nodes see as it is here \(nfs4\)"):
        image_here.absent(image(tmp_path / "x.sif"), NODES)
    told = image_here.absent(image(tmp_path / "x.sif"), "prepare", made=True) or ""
    assert "do not start unless prepare makes it" in told


def test_one_that_cannot_be_read_or_is_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.sif").touch()
    with pytest.raises(UsageError, match="is no directory, as bubblewrap needs"):
        image_here.absent(image(tmp_path / "x.sif", "bubblewrap"), NODES)
    with pytest.raises(UsageError, match="cannot be looked at: File name too long"):
        image_here.absent(image(tmp_path / ("x" * 300)), NODES)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match=r"x\.sif cannot be read by you\n\nhint: `ls -ld"):
        image_here.absent(image(tmp_path / "x.sif"), NODES)


def _spec(directory: Path, cluster: str) -> Path:
    block = {"image": "nope.sif", "runtime": "charliecloud"}
    spec = {"name": "e", "entry": ["true"], "cluster": cluster, "environment": {"container": block}}
    (directory / "e.yaml").write_text(yaml.safe_dump(spec))
    return directory / "e.yaml"


def test_check_and_submit_name_the_key(tmp_path: Path) -> None:
    _spec(tmp_path, "local")
    done = hpcrun("check", "e.yaml", "--json", root=tmp_path / "root", cwd=tmp_path)
    [report] = json.loads(done.stdout)
    [one] = [one for one in report["findings"] if one["severity"] == "error"]
    assert (one["key"], one["place"]) == ("environment.container.image", "e.yaml:6")
    assert one["message"].startswith(f"there is no {tmp_path}/nope.sif on ")
    done = hpcrun("submit", "e.yaml", root=tmp_path / "root", cwd=tmp_path)
    assert done.returncode == 2
    assert "environment.container.image: there is no" in done.stderr


def test_check_warns_of_one_that_nodes_may_have(tmp_path: Path) -> None:
    compiled = compile_spec(_spec(tmp_path, "slurm"), root=tmp_path / "root")
    plan = freeze(compiled)
    found = {one.key: one for one in file_checks.findings(compiled, plan, plan.runs, ())}
    assert found["environment.container.image"].severity == "warning"
    assert found["environment.container.image"].message.startswith("there is no ")
