"""Whoever owns a directory above a run could have its job run anything: told, then refused.

`ME` submits; the directory above, or a link to it, is `STRANGER`'s. The same while a job waits in a
real Slurm is in tests/cluster/test_submission.py.
"""

from __future__ import annotations

import grp
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun.compile.target.sbatch_script import program_script
from hpcrun.state import permissions
from tests.support import users
from tests.support.users import ME, STRANGER, TEAM

pytestmark = users.needs_root


def _strangers_root(place: Path) -> Path:
    root = place / "lab" / "runs"
    ME.write(root / "mine")
    STRANGER.owns(place / "lab")
    ME.owns(root)
    return root


def _link_through_a_strangers_directory(place: Path) -> Path:
    STRANGER.write(place / "theirs" / "x")
    ME.write(place / "theirs" / "real" / "mine")
    ME.owns(place / "theirs" / "real")
    (place / "lab").symlink_to(place / "theirs" / "real")
    ME.owns(place / "lab")
    return place / "lab" / "runs"


WAYS = [_strangers_root, _link_through_a_strangers_directory]


@pytest.mark.parametrize("way", WAYS)
def test_submit_names_who_could_replace_a_run(
    open_place: Path, way: Callable[[Path], Path]
) -> None:
    root = way(open_place)
    spec = {"name": "study", "cluster": "local", "entry": ["true"]}
    file = ME.write(open_place / "specs" / "study.yaml", json.dumps(spec))
    for command in (["submit"], ["submit", "--dry-run"], ["check"], ["run"]):
        done = ME.hpcrun(*command, file, home=open_place, root=root)
        assert done.returncode, (command, done)
        said = done.stdout + done.stderr
        assert f"is {STRANGER.name}'s, who could put anything in place" in said, (command, said)
    assert not (root / "study").exists()


def test_the_group_that_the_profile_names_is_trusted(open_place: Path) -> None:
    root = _strangers_root(open_place)
    os.chown(open_place / "lab", STRANGER.uid, grp.getgrnam(TEAM).gr_gid)
    ME.write(open_place / "clusters" / "lab.yaml", f"executor: local\ngroup: {TEAM}\n")
    spec = {"name": "study", "cluster": "lab", "entry": ["true"]}
    file = ME.write(open_place / "specs" / "study.yaml", json.dumps(spec))
    where = {"HPCRUN_CLUSTERS": str(open_place / "clusters")}
    for team, code in ((True, 0), (False, 2)):
        done = ME.hpcrun("submit", file, "--wait", home=open_place, root=root, team=team, env=where)
        assert done.returncode == code, done


def _script(directory: Path, group: str = "") -> str:
    return program_script(
        parts=[{}],
        setup=[],
        variables={},
        package=str(directory / "hpcrun.zip"),
        guarded=[str(directory / "plan.json")],
        group=group,
        python="/bin/echo",
        program="it has begun",
    )


@pytest.mark.parametrize("theirs", ["study", "study/1", "study/1/plan.json", "study/1/hpcrun.zip"])
@pytest.mark.parametrize("as_link", [False, True])
def test_a_job_starts_nothing_that_a_stranger_has_put_there(
    open_place: Path, theirs: str, as_link: bool
) -> None:
    directory = open_place / "study" / "1"
    for name in ("plan.json", "hpcrun.zip"):
        ME.write(directory / name)
    script = _script(directory)

    def started() -> tuple[bool, int, str]:
        done = ME.run(["bash", "-c", script], home=open_place)
        return "it has begun" in done.stdout, done.returncode, done.stdout

    assert started()[:2] == (True, 0)
    planted = open_place / theirs
    if as_link:
        planted.rename(open_place / "moved")
        planted.symlink_to(open_place / "moved")
        STRANGER.owns(planted)
    else:
        os.chown(planted, STRANGER.uid, STRANGER.gid)
    has_begun, code, said = started()
    assert (has_begun, code) == (False, 1), said
    assert f"hpcrun: not started: {planted.name}, on the way to {directory}" in said
    assert f"is {STRANGER.name}'s" in said


def test_what_is_not_there_yet_is_nobodys(open_place: Path) -> None:
    ME.write(open_place / "mine" / "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permissions.os, "geteuid", lambda: ME.uid)
        assert permissions.on_the_way(open_place / "mine" / "later" / "still") is None
        (open_place / "mine" / "loop").symlink_to("loop")
        assert "root" not in str(permissions.on_the_way(open_place / "mine" / "loop" / "x"))
