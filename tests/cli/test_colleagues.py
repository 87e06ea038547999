"""Runs of one real user, read by another who shares a group with the first."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import command
from tests.support.needs_tool import needs_tool

# The Python of the tests may lie in root's home; that of the system does with its libraries.
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
MODULES = f"{Path(__file__).parents[2]}:{sysconfig.get_path('purelib')}"
TEAM = "users"
# Users of every Linux who own no file that matters here.
ALICE, BOB = "daemon", "bin"
PROGRAM = """
mkdir $HPCRUN_DIRECTORY/mine
echo kept > $HPCRUN_DIRECTORY/mine/file
echo '{"step": 1, "loss": 0.5}' >> $HPCRUN_METRICS_FILE
echo said
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")


def hpcrun(
    user: str, place: Path, *arguments: str, team: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run hpcrun as a user whose shell has a umask that gives nobody anything."""
    found = pwd.getpwnam(user)
    return command.hpcrun(
        *arguments,
        root=place / "root",
        cwd=place / "specs",
        python=PYTHON,
        user=found.pw_uid,
        group=found.pw_gid,
        extra_groups=[grp.getgrnam(TEAM).gr_gid] if team else [],
        umask=0o077,
        environment={"PATH": os.environ["PATH"], "PYTHONPATH": MODULES, "HOME": str(place)},
        env={"HPCRUN_CLUSTERS": str(place / "clusters")},
    )


def spec(place: Path, group: str = TEAM) -> None:
    profile = {"executor": "local", "umask": "0027", "group": group}
    (place / "clusters" / "site.yaml").write_text(json.dumps(profile))
    text = {"name": "study", "cluster": "site", "entry": ["bash", "-c", PROGRAM]}
    (place / "specs" / "study.yaml").write_text(json.dumps(text))


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """What everybody can reach, as directories of pytest are root's alone."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        for each in (place, place / "clusters", place / "specs"):
            each.mkdir(exist_ok=True)
            each.chmod(0o777)
        spec(place)
        if hpcrun(ALICE, place, "--version").returncode:
            pytest.skip("an ordinary user cannot use hpcrun with the system's Python")
        yield place


@pytest.fixture(scope="module")
def submitted(place: Path) -> Path:
    """The root with Alice's run, which is over."""
    done = hpcrun(ALICE, place, "submit", "study.yaml", "--wait")
    assert done.returncode == 0, done.stderr
    return place / "root"


def test_all_that_a_run_makes_is_the_groups_to_read(submitted: Path) -> None:
    group = grp.getgrnam(TEAM).gr_gid
    found = [submitted, *submitted.rglob("*")]
    names = {path.name for path in found}
    assert {"plan.json", "ledger.jsonl", "rank-00000.log", "file", "local.log"} <= names
    for path in found:
        status = path.stat()
        rights = stat.S_IMODE(status.st_mode)
        assert (status.st_gid, rights & 0o007) == (group, 0), path
        assert rights & 0o050 == (0o050 if path.is_dir() else 0o040), path


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "study"),
        ("logs", "study"),
        ("why", "study"),
        ("results", "study"),
        ("show", "study/0"),
        pytest.param(
            ("export", "study", "--dry-run", "-o", "study.tar.gz"), marks=needs_tool("export")
        ),
    ],
)
def test_a_colleague_reads(submitted: Path, arguments: tuple[str, ...]) -> None:
    before = sorted(submitted.rglob("*"))
    done = hpcrun(BOB, submitted.parent, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr.splitlines()[0] == f"runs of {ALICE}: study"
    own = hpcrun(ALICE, submitted.parent, *arguments)
    assert own.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    assert "runs of" not in own.stderr
    assert sorted(submitted.rglob("*")) == before


def test_list_says_whose_they_are(submitted: Path) -> None:
    found = json.loads(hpcrun(BOB, submitted.parent, "list", "--json").stdout)
    assert [(one["name"], one["user"]) for one in found] == [("study", ALICE)]


@pytest.mark.parametrize("command", ["cancel", "requeue", "clean", "delete"])
def test_a_colleague_changes_nothing(submitted: Path, command: str) -> None:
    done = hpcrun(BOB, submitted.parent, command, "study", "--yes")
    assert done.returncode == 2
    assert f"study: these runs are {ALICE}'s, and only {ALICE} can {command} them" in done.stderr


def test_a_colleague_may_tag_where_the_group_may_write(submitted: Path) -> None:
    place = submitted.parent
    done = hpcrun(BOB, place, "tag", "study", "+good")
    assert done.returncode == 2
    assert f"study: these runs are {ALICE}'s, and you may not write to" in done.stderr
    assert f'{ALICE} lets a group tag them: `umask: "0007"`' in done.stderr
    assert hpcrun(BOB, place, "rename", "study", "mine").returncode == 2
    assert hpcrun(ALICE, place, "tag", "study", "+good").returncode == 0
    # What the group may only read, it may not tag either.
    assert hpcrun(BOB, place, "note", "study", "-m", "text").returncode == 2
    (submitted / "study/annotations").chmod(0o2770)
    assert hpcrun(BOB, place, "tag", "study", "-good", "+bobs").returncode == 0
    assert hpcrun(BOB, place, "note", "study/0", "-m", "text").returncode == 0
    assert hpcrun(ALICE, place, "tag", "study").stdout == "study/0  bobs\n"
    [note] = json.loads(hpcrun(ALICE, place, "note", "study", "--json").stdout)[0]["notes"]
    assert (note["text"], note["user"]) == ("text", BOB)


def test_others_read_nothing(submitted: Path) -> None:
    done = hpcrun(BOB, submitted.parent, "status", "study", team=False)
    assert done.returncode != 0
    assert done.stdout == ""


def test_an_experiment_from_before_the_group_is_given_to_it(place: Path) -> None:
    root = place / "older"
    (place / "clusters" / "site.yaml").write_text(json.dumps({"executor": "local"}))
    try:
        done = hpcrun(ALICE, place, "submit", "study.yaml", "--wait", "--root", str(root))
        assert done.returncode == 0, done.stderr
    finally:
        spec(place)
    assert hpcrun(BOB, place, "status", "study", "--root", str(root)).returncode != 0
    root.chmod(0o755)
    done = hpcrun(ALICE, place, "submit", "study.yaml", "--new", "--wait", "--root", str(root))
    assert done.returncode == 0, done.stderr
    group = grp.getgrnam(TEAM).gr_gid
    for path in (root / "study").rglob("*"):
        if path.is_dir():
            assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode) & 0o050) == (group, 0o050)
    assert (root / "study/runs/1/ledger.jsonl").stat().st_gid == group


def test_what_was_cancelled_is_still_read(place: Path) -> None:
    root = place / "cancelled"
    done = hpcrun(ALICE, place, "submit", "study.yaml", "--wait", "--root", str(root))
    assert done.returncode == 0, done.stderr
    done = hpcrun(ALICE, place, "submit", "study.yaml", "--new", "--root", str(root))
    assert done.returncode == 0, done.stderr
    done = hpcrun(ALICE, place, "cancel", "study/1", "--yes", "--root", str(root))
    assert done.returncode == 0, done.stderr
    done = hpcrun(BOB, place, "status", "study", "--root", str(root))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("root", "has group: root, and you are not in it\n\nhint: yours are bin, users"),
        ("no-such", "has group: no-such, and there is no such group here"),
    ],
)
def test_a_group_that_is_not_mine(place: Path, group: str, message: str) -> None:
    spec(place, group)
    try:
        done = hpcrun(BOB, place, "submit", "study.yaml", "--root", str(place / "new"))
    finally:
        spec(place)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (place / "new").exists()
