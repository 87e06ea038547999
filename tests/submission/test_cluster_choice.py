"""A submit that names no cluster, where the default is another than it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hpcrun
from hpcrun.compile import compile_spec
from hpcrun.errors import UsageError
from hpcrun.submission.cluster_choice import other_cluster
from tests.support import command
from tests.support.desk import Desk

PROFILE = "executor: slurm\n"


def _desk(directory: Path) -> Desk:
    """A desk with runs in the queue of the cluster ``site``, whose spec names none."""
    desk = Desk(directory)
    profiles = directory / "code" / "configs" / "clusters"
    profiles.mkdir(parents=True)
    (profiles / "site.yaml").write_text(PROFILE)
    spec = directory / "code" / "e.yaml"
    spec.write_text(spec.read_text().replace('"cluster": "slurm", ', ""))
    assert desk.submit("cluster=site").returncode == 0
    return desk


def test_a_submit_is_refused_until_it_names_the_cluster(tmp_path: Path) -> None:
    desk = _desk(tmp_path)
    done = desk.submit()
    assert done.returncode == 2
    assert "e was last submitted to the cluster site; none is named now, and the default" in (
        done.stderr
    )
    assert "name it: cluster=site as before, or cluster=slurm; --yes submits" in done.stderr
    assert desk.submit("cluster=site").returncode == 0
    assert "name it: cluster=site" in desk.submit("--dry-run").stderr
    done = desk.submit("--yes")
    assert done.returncode == 0
    assert "the default here is slurm" in done.stderr


def test_what_ran_on_this_machine_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = _desk(tmp_path)
    root, code = tmp_path / "other", tmp_path / "code"
    words = ("submit", "e.yaml", "cluster=local", "--root", root, "-W")
    assert command.hpcrun(*words, cwd=code).returncode == 0
    monkeypatch.setenv("PATH", desk.environment["PATH"])
    chain = [compile_spec(str(code / "e.yaml"), (), (), root=root)]
    assert chain[0].has_default_cluster
    assert other_cluster(chain) is None
    named = compile_spec(str(code / "e.yaml"), ("cluster=slurm",), (), root=desk.root)
    assert other_cluster([named]) is None
    monkeypatch.chdir(code)
    with pytest.raises(UsageError, match=r"name it: cluster=site .*; or say yes=True"):
        hpcrun.submit("e.yaml", root=os.fspath(desk.root))
