"""A file of secrets that is not safe is refused at plan; others are named where they lie."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hpcrun.state.layout import experiment
from tests.support.command import hpcrun
from tests.support.users import STRANGER, needs_root

SECRET = "sesame"
SPEC = "entry: ['true']\ncluster: local\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC + "environment: {secrets_file: keys}\n")
    return path


def refused(spec: Path) -> str:
    """Return the words with which `hpcrun plan` refuses the file of secrets, within seconds."""
    done = hpcrun("plan", spec, timeout=20)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{spec}:3: environment.secrets_file: " in done.stderr
    assert SECRET not in done.stderr
    return done.stderr


def keys(spec: Path, text: str = f"A={SECRET}\n", mode: int = 0o600) -> Path:
    path = spec.with_name("keys")
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_fifo_as_secrets_file_is_refused_at_plan(spec: Path) -> None:
    os.mkfifo(spec.with_name("keys"), 0o600)
    assert "a FIFO, not a regular file" in refused(spec)


def test_a_directory_as_secrets_file_is_refused_at_plan(spec: Path) -> None:
    spec.with_name("keys").mkdir(0o700)
    assert "a directory, not a regular file" in refused(spec)


def test_a_device_as_secrets_file_is_refused_at_plan(spec: Path) -> None:
    spec.with_name("keys").symlink_to("/dev/zero")
    assert "a device, not a regular file" in refused(spec)


def test_a_huge_secrets_file_is_refused_at_plan(spec: Path) -> None:
    with keys(spec).open("r+b") as stream:
        stream.truncate(30_000_000_000)
    assert "larger than 1 MB" in refused(spec)


@pytest.mark.parametrize("text", [f"A=1\n{SECRET}\n", f"A=1\nB={SECRET}\0\n", f"A=1\n1B={SECRET}"])
def test_a_malformed_secrets_file_is_refused_at_plan(spec: Path, text: str) -> None:
    path = keys(spec, text)
    assert f"{path}:2 is not NAME=value" in refused(spec)


@needs_root
def test_another_users_secrets_file_is_refused_at_plan(spec: Path) -> None:
    STRANGER.owns(keys(spec))
    assert f"belongs to {STRANGER.name}, who can change it" in refused(spec)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_an_open_secrets_file_is_refused_at_plan(spec: Path, mode: int) -> None:
    path = keys(spec, mode=mode)
    said = refused(spec)
    assert str(path) in said
    assert "others" in said
    assert "(chmod 600 " in said


def test_a_secrets_file_of_ones_own_is_accepted(spec: Path) -> None:
    keys(spec)
    assert hpcrun("plan", spec).returncode == 0


def test_what_looks_like_a_secret_in_a_spec_is_named(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        SPEC + "args: [--api-key, sesame]\nflags: key=value\n"
        "config: {hub_token: sesame, pad_token: <pad>, steps: 7}\n"
        "environment:\n"
        "  setup: [export A_PASSWORD=sesame]\n"
        "  variables: {AWS_ACCESS_KEY_ID: sesame, GH_PAT: sesame, DB_PWD: sesame, AWS_REGION: eu,"
        " STORE: 's3://me:sesame@host/x'}\n"
        "sweep: {grid: {config.db.password: [sesame, open]}}\n"
    )
    spec.write_text(spec.read_text().replace("steps: 7", "steps: 7, db: {password: ''}"))
    done = hpcrun("plan", spec, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("this looks like a secret") == 1
    named = done.stderr.partition(": this looks")[0]
    assert named == (
        "args: --api-key, config.hub_token, config.db.password, environment.setup: A_PASSWORD, "
        "environment.variables.AWS_ACCESS_KEY_ID, environment.variables.GH_PAT, "
        "environment.variables.DB_PWD, environment.variables.STORE: a URL with a password"
    )
    assert SECRET not in done.stderr
    assert "environment.secrets_file" in done.stderr


def test_nobody_is_advised_to_let_a_group_write(tmp_path: Path) -> None:
    profiles = tmp_path / "configs" / "clusters"
    profiles.mkdir(parents=True)
    (profiles / "site.yaml").write_text("executor: local\nroot: /nowhere\numask: '27'\n")
    (tmp_path / "spec.yaml").write_text("entry: ['true']\ncluster: site\n")
    done = hpcrun("plan", tmp_path / "spec.yaml")
    assert done.returncode == 2
    assert '"0027"' in done.stderr
    assert "0007" not in done.stderr
    docs = Path(__file__).parents[2]
    for page in (docs / "README.md", *(docs / "docs").glob("*.md")):
        assert not [mask for mask in ("0007", "0002", "g+w") if mask in page.read_text()]


@pytest.mark.parametrize("profile", ["", 'umask: "0002"\n'])
def test_what_jobs_execute_is_nobody_elses_to_write(tmp_path: Path, profile: str) -> None:
    profiles = tmp_path / "configs" / "clusters"
    profiles.mkdir(parents=True)
    (profiles / "site.yaml").write_text(f"executor: local\nroot: /nowhere\n{profile}")
    (tmp_path / "spec.yaml").write_text("name: study\nentry: ['true']\ncluster: site\n")
    root = tmp_path / "root"
    arguments = ("submit", tmp_path / "spec.yaml", "--wait")
    done = hpcrun(*arguments, root=root, umask=0o002)
    assert done.returncode == 0, done.stderr
    paths = experiment(root, "study")
    executed = [paths.submission(1).package, paths.submission(1).plan, *paths.code.iterdir()]
    assert len(executed) == 3
    for path in executed:
        for each in (path, *path.parents):
            assert not each.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH), each
            if each == root:
                break


@needs_root
@pytest.mark.parametrize(
    "reference",
    ["${oc.env:HPCRUN_SESAME}", "${oc.${config.env}:HPCRUN_SESAME}", "in a DeepSpeed file"],
)
def test_variables_that_a_strangers_file_puts_into_the_plan_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.setenv("HPCRUN_SESAME", "7")
    spec, engine = tmp_path / "spec.yaml", tmp_path / "ds.json"
    theirs = spec
    text = f"{SPEC}config: {{env: env, a: '{reference}'}}\n"
    if "DeepSpeed" in reference:
        theirs, text = engine, SPEC + "deepspeed_config: ds.json\n"
        engine.write_text('{"train_batch_size": 8, "wandb": {"team": "${oc.env:HPCRUN_SESAME}"}}')
    spec.write_text(text)
    said = "the values of HPCRUN_SESAME in your environment are in the plan"
    own = hpcrun("plan", spec)
    assert (own.returncode, own.stderr) == (0, "")
    STRANGER.owns(theirs)
    done = hpcrun("plan", spec)
    assert (done.returncode, done.stdout) == (0, own.stdout)
    assert f"{said}, where everybody who may read the experiment" in done.stderr
    assert f"{theirs} belongs to " in done.stderr


@pytest.mark.parametrize("command", [["submit", "--dry-run"], ["submit"], ["run"]])
def test_what_looks_like_a_secret_is_named_once(
    spec: Path, tmp_path: Path, command: list[str]
) -> None:
    spec.write_text(SPEC + "args: [--api-key, sesame]\n")
    done = hpcrun(*command, spec, root=tmp_path / "root")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("this looks like a secret") == 1
