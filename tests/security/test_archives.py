"""Archives hold files of their tree alone, no secrets, and have no more readers than these."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.run.node.prepare import NodePreparation
from hpcrun.state.layout import experiment
from hpcrun.submission.code import code_files, snapshot
from hpcrun.submission.code.code_diff import CodeDiff
from hpcrun.submission.code.code_files import CodeScope
from tests.support.command import hpcrun
from tests.support.experiment import Experiment
from tests.support.needs_tool import needs_tool
from tests.support.plans import command_plan, submission_of
from tests.support.users import STRANGER, needs_root

SECRET = b"open sesame"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Code with a spec, and a secret that lies beside it."""
    root = tmp_path / "code"
    (root / "package").mkdir(parents=True)
    for name in ("spec.yaml", "train.py", "package/model.py"):
        (root / name).write_text("")
    (tmp_path / "id_rsa").write_bytes(SECRET)
    (tmp_path / "id_rsa").chmod(0o600)
    return root


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def freeze(tree: Path, mask: int = 0o022, **spec: Any) -> snapshot.Snapshot:
    """Freeze the code as a submission does."""
    plan = command_plan(tree, {0: ["true"]}, **spec)
    paths = experiment(tree.parent / "root", "experiment")
    with umask(mask):
        return snapshot.freeze(code_files.scope(plan, paths), paths.code)


def members(archive: Path) -> dict[str, bytes]:
    """Name -> content of all that an archive holds."""
    with tarfile.open(archive) as tar:
        files = ((one, tar.extractfile(one) if one.isfile() else None) for one in tar)
        return {one.name: stream.read() if stream else b"" for one, stream in files}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_link_out_of_the_code_brings_nothing_in(code: Path) -> None:
    (code / "notes").symlink_to("../id_rsa")
    frozen = freeze(code)
    with tarfile.open(frozen.archive) as tar:
        assert tar.getmember("notes").linkname == str(code.parent / "id_rsa")
    assert SECRET not in b"".join(members(frozen.archive).values())
    assert f"notes: a link, whose content is not frozen: {code.parent / 'id_rsa'}" in frozen.notes


def test_a_directory_that_becomes_a_link_brings_nothing_in(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = code.parent / "outside"
    outside.mkdir()
    (outside / "model.py").write_bytes(SECRET)
    listed = code_files.find

    def then_exchanged(*arguments: Any, **options: Any) -> Any:
        found = listed(*arguments, **options)
        shutil.rmtree(code / "package")
        (code / "package").symlink_to(outside)
        return found

    monkeypatch.setattr(code_files, "find", then_exchanged)
    frozen = freeze(code)
    assert SECRET not in b"".join(members(frozen.archive).values())
    assert "package/model.py: left out, it is reached through a symbolic link" in frozen.notes


def test_a_fifo_holds_up_nothing_and_is_named(code: Path) -> None:
    os.mkfifo(code / "pipe")
    (code / "to_pipe").symlink_to("pipe")
    (code.parent / "elsewhere").mkdir()
    os.mkfifo(code.parent / "elsewhere" / "pipe")
    (code / "out").symlink_to("../elsewhere/pipe")
    listed = code_files.find(CodeScope(code))
    frozen = freeze(code)
    assert {*members(frozen.archive)} == {"spec.yaml", "train.py", "package/model.py", "to_pipe"}
    assert {"pipe", "out"} <= {*listed.paths}
    for name in ("pipe", "out"):
        assert f"{name}: left out, it is not a regular file" in frozen.notes


def test_a_fifo_that_git_would_read_is_named_at_once(code: Path) -> None:
    subprocess.run(["git", "-C", str(code), "init", "-q"], check=True)
    os.mkfifo(code / "package" / ".gitignore")
    script = (
        "import sys; from pathlib import Path; from hpcrun.submission.code import code_files\n"
        "code_files.find(code_files.CodeScope(Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(code)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert f"{code}/package/.gitignore is not a regular file, and git waits for it" in done.stderr


@pytest.mark.parametrize("with_git", [False, True])
def test_files_of_secrets_are_left_out_by_whatever_name(code: Path, with_git: bool) -> None:
    names = (".env", ".netrc", ".aws/credentials", "deploy/id_ed25519", "deploy/server.pem")
    for name in names:
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_bytes(SECRET)
    (code / ".env.example").write_text("KEY=")
    secrets = code / "mine"
    secrets.write_bytes(b"A=" + SECRET)
    secrets.chmod(0o600)
    os.link(secrets, code / "readme.py")
    (code / "link.py").symlink_to("mine")
    key = code / "note.txt"
    key.write_bytes(SECRET)
    key.chmod(0o600)
    if with_git:
        subprocess.run(["git", "-C", str(code), "init", "-q"], check=True)
        subprocess.run(["git", "-C", str(code), "add", "."], check=True)
    frozen = freeze(code, environment={"secrets_file": str(secrets)})
    assert {*members(frozen.archive)} == {
        *("spec.yaml", "train.py", "package/model.py", ".env.example")
    }
    assert mode(frozen.archive) == 0o644
    assert {f"{name}: left out, it is named like a secret" for name in names} <= {*frozen.notes}
    for name, why in {
        "readme.py": "it is environment.secrets_file",
        "link.py": "it is environment.secrets_file",
        "note.txt": "only you may read it",
    }.items():
        assert f"{name}: left out, {why}" in frozen.notes
    assert "`code: {exclude: ['!.aws/credentials']}` in the spec freezes" in frozen.notes[-1]


def test_hard_links_to_the_secrets_of_the_home_are_left_out(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = code.parent / "home" / ".ssh"
    ssh.mkdir(parents=True)
    (ssh / "work").write_bytes(SECRET)
    os.link(ssh / "work", code / "helper.py")
    monkeypatch.setenv("HOME", str(ssh.parent))
    frozen = freeze(code)
    assert "helper.py" not in members(frozen.archive)
    assert "helper.py: left out, it is a hard link to a secret in your home directory" in (
        frozen.notes
    )


def test_a_secret_is_frozen_for_who_asks(code: Path) -> None:
    for name in (".env", "token.txt"):
        (code / name).write_bytes(SECRET)
        (code / name).chmod(0o600)
    frozen = freeze(code, code={"exclude": ["!.env", "!/token.txt"]})
    assert {".env", "token.txt"} <= {*members(frozen.archive)}
    assert mode(frozen.archive) == 0o600


def test_code_that_is_its_owners_alone_is_frozen_for_the_owner_alone(code: Path) -> None:
    (code / "data.txt").write_text("x")
    for name in ("spec.yaml", "train.py", "package/model.py", "data.txt"):
        (code / name).chmod(0o600)
    frozen = freeze(code, mask=0o022)
    assert {*members(frozen.archive)} == {"spec.yaml", "train.py", "package/model.py", "data.txt"}
    assert mode(frozen.archive) == 0o600
    # Under a umask of 077, nobody is told what is as it was asked for.
    assert freeze(code, mask=0o077).notes == ()
    for name in ("spec.yaml", "train.py", "package/model.py", "data.txt"):
        (code / name).chmod(0o644)
    again = freeze(code, mask=0o022)
    assert (again.archive, mode(again.archive)) == (frozen.archive, 0o644)


def test_a_module_keeps_its_readers_and_closes_the_archive(code: Path) -> None:
    (code / "train.py").chmod(0o640)
    frozen = freeze(code)
    assert mode(frozen.archive) == 0o640
    assert "can be read by no more users than train.py" in frozen.notes[-1]


def test_many_files_that_are_left_out_are_told_in_one_line(code: Path) -> None:
    for number in range(40):
        (code / f"{number:02}.pem").write_bytes(SECRET)
    notes = freeze(code).notes
    assert notes[0] == (
        "00.pem, 01.pem, 02.pem, 03.pem, 04.pem and 35 more: left out, it is named like a secret"
    )
    assert len(notes) == 2


@needs_root
def test_an_archive_that_somebody_else_put_there_is_not_used(code: Path) -> None:
    frozen = freeze(code)
    content = frozen.archive.read_bytes()
    frozen.archive.write_bytes(b"other code")
    STRANGER.owns(frozen.archive)
    assert freeze(code).archive.read_bytes() == content


def archive_of(*found: tuple[str, bytes | None, str]) -> bytes:
    """An archive of files (name, content) and links (name, None, target)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content, target in found:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info, io.BytesIO(content or b""))
    return stream.getvalue()


@pytest.mark.parametrize(
    "attack",
    [
        [("../outside/x", b"evil", "")],
        [("/{outside}/x", b"evil", "")],
        [("way", None, "{outside}"), ("way/x", b"evil", "")],
        [("way", None, "../../../.."), ("./way/{outside}/x", b"evil", "")],
    ],
)
def test_unpacking_on_a_node_writes_nothing_outside(
    code: Path, attack: list[tuple[str, bytes | None, str]]
) -> None:
    outside = code.parent / "outside"
    outside.mkdir()
    plan = command_plan(code, {0: ["true"]})
    submission = submission_of(plan, code.parent / "root")
    words = {"outside": str(outside).lstrip("/")}
    found = [
        (name.format(**words), content, target.format(outside=outside))
        for name, content, target in attack
    ]
    (archive,) = submission.experiment.code.iterdir()
    archive.write_bytes(archive_of(*found))
    with pytest.raises(HpcrunError, match="cannot be unpacked"):
        NodePreparation(submission, plan, plan.runs[0], "node1", 0)._unpack(outside.parent / "new")
    assert list(outside.iterdir()) == []


def test_an_archive_with_too_much_in_it_is_not_unpacked(code: Path) -> None:
    plan = command_plan(code, {0: ["true"]})
    submission = submission_of(plan, code.parent / "root")
    (archive,) = submission.experiment.code.iterdir()
    archive.write_bytes(bomb(300_000_000))
    with pytest.raises(HpcrunError, match="cannot be unpacked"):
        NodePreparation(submission, plan, plan.runs[0], "node1", 0)._unpack(code.parent / "new")
    assert not (code.parent / "new" / "zeros").exists()


def bomb(size: int) -> bytes:
    """An archive of one file of zeros: a thousandth of them on disk."""
    info = tarfile.TarInfo("zeros")
    info.size = size
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as packed:
        packed.write(info.tobuf())
        block = bytes(1 << 20)
        for _ in range(size >> 20):
            packed.write(block)
    return stream.getvalue()


def sparse() -> bytes:
    """An archive of one file that has no bytes, and says that it is a terabyte of zeros."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("zeros")
        info.pax_headers = {
            "GNU.sparse.major": "0",
            "GNU.sparse.minor": "1",
            "GNU.sparse.size": str(1 << 40),
            "GNU.sparse.map": "0,0",
        }
        tar.addfile(info, io.BytesIO())
    return stream.getvalue()


def nested() -> bytes:
    """An archive of nothing but headers that announce another header."""
    info = tarfile.TarInfo("a")
    info.type = tarfile.XHDTYPE
    return gzip.compress(info.tobuf() * 5000)


@needs_tool("report")
@pytest.mark.parametrize("attack", ["bomb", "sparse", "nested", "fifo", "torn"])
def test_a_colleagues_archive_of_code_costs_its_own_row(tmp_path: Path, attack: str) -> None:
    study = Experiment(tmp_path)
    study.submit((0, 1))
    study.paths.code.mkdir()
    archive = study.paths.code / "abc.tar.gz"
    if attack == "fifo":
        os.mkfifo(archive)
    else:
        archive.write_bytes(
            {
                "bomb": lambda: bomb(300_000_000),
                "sparse": sparse,
                "nested": nested,
                "torn": lambda: archive_of(("a", b"a" * 99, ""))[:-20],
            }[attack]()
        )

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    done = hpcrun("show", "study/0", "--code", root=tmp_path, timeout=30, preexec_fn=bounded)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"the frozen code {archive} cannot be read: " in done.stderr
    assert "Traceback" not in done.stderr
    target = tmp_path / "out.tar.gz"
    arguments = ("export", "-o", str(target))
    done = hpcrun(*arguments, root=tmp_path, timeout=30, preexec_fn=bounded)
    assert done.returncode == 0, done.stderr
    assert f"left out: the frozen code {archive} cannot be read: " in done.stderr
    assert "study/submissions/1/plan.json" in members(target)


def test_a_colleagues_archive_of_code_is_read_in_bounds_by_diff(tmp_path: Path) -> None:
    for name, data in (("torn", sparse()), ("large", bomb(300_000_000))):
        archive = tmp_path / f"{name}.tar.gz"
        archive.write_bytes(data)
        with pytest.raises(UsageError, match="unpacks to more than 100 MB"):
            snapshot.read(archive)


def test_a_diff_of_files_that_were_made_for_it_ends_within_seconds() -> None:
    # Each line comes as often as difflib still looks for all of them.
    lines = [f"{number % 100:02}\n" for number in range(19_000)]
    shuffled = random.Random(17).sample(lines, len(lines))
    before, after = (
        {f"{n}.py": "".join(each).encode() for n in range(9)} for each in (lines, shuffled)
    )
    began = time.monotonic()
    patch = CodeDiff({**before, "a": b"1\n"}, {**after, "a": b"2\n"}).patch()
    assert time.monotonic() - began < 15
    assert "8.py: differs in too many lines\n" in patch


@pytest.fixture
def study(tmp_path: Path) -> Experiment:
    """A run with an attempt, and a secret beside the root."""
    found = Experiment(tmp_path / "root")
    found.submit()
    found.start()
    found.metrics(0, 1, [1, 2], loss=1.0)
    found.log(0, 1, 0, "step 1\n")
    found.end(0, 1)
    (tmp_path / "id_rsa").write_bytes(SECRET)
    return found


def export(study: Experiment, *more: str) -> tuple[Path, str]:
    target = study.paths.root.parent / "out.tar.gz"
    done = hpcrun("export", "--logs", "-o", str(target), *more, root=study.paths.root, timeout=30)
    assert done.returncode == 0, done.stderr
    return target, done.stderr


@needs_tool("export")
def test_no_link_in_an_experiment_brings_a_file_into_its_export(study: Experiment) -> None:
    outside = study.paths.root.parent / "id_rsa"
    attempt = study.run().attempt(1)
    attempt.rank_log(1).symlink_to(outside)
    attempt.telemetry("node1").symlink_to(outside)
    other = outside.parent / "2"
    other.mkdir()
    (other / "launch.json").write_bytes(SECRET)
    study.run().attempt(2).directory.symlink_to(other)
    study.paths.submission(1).package.symlink_to(outside)
    archive, said = export(study)
    assert SECRET not in b"".join(members(archive).values())
    assert "study/runs/0/attempts/1/metrics.jsonl" in members(archive)
    for name in (
        *("runs/0/attempts/1/rank-00001.log", "runs/0/attempts/1/telemetry-node1.jsonl"),
        "submissions/1/hpcrun.zip",
    ):
        assert name in said
    assert "of study, it is a symbolic link" in said
    assert "runs/0/attempts/2/launch.json of study, it is reached through a symbolic link" in said


@needs_tool("export")
@needs_root
def test_another_users_file_in_an_experiment_is_not_exported(study: Experiment) -> None:
    path = study.run().attempt(1).telemetry("node1")
    path.write_bytes(SECRET)
    STRANGER.owns(path)
    archive, said = export(study)
    assert SECRET not in b"".join(members(archive).values())
    assert "telemetry-node1.jsonl of study, it belongs to another user" in said


@needs_tool("export")
def test_no_record_leads_an_export_out_of_the_experiment(study: Experiment) -> None:
    outside = study.paths.root.parent / "theirs.tar.gz"
    outside.write_bytes(archive_of(("x", SECRET, "")))
    paths = study.paths.submission(1)
    study.paths.code.mkdir()
    text = paths.submission.read_text()
    for name in ("../../theirs.tar.gz", str(outside)):
        paths.submission.write_text(text.replace("abc.tar.gz", name))
        archive, _ = export(study, "--force")
        assert not [one for one in members(archive) if one.endswith("theirs.tar.gz")]
        shown = hpcrun("show", "study/0", "--code", root=study.paths.root)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert "names no frozen code" in shown.stderr


@needs_tool("export")
def test_an_older_archive_with_secrets_in_it_is_not_exported(study: Experiment) -> None:
    study.paths.code.mkdir()
    frozen = study.paths.code / "abc.tar.gz"
    frozen.write_bytes(archive_of(("train.py", b"", ""), ("deploy/.env", SECRET, "")))
    archive, said = export(study)
    assert "study/code/abc.tar.gz" not in members(archive)
    assert f"left out: {frozen}, because it holds deploy/.env, which is named like a secret" in said


@needs_tool("export")
def test_an_export_has_no_more_readers_than_its_files(study: Experiment) -> None:
    study.run().attempt(1).metrics.chmod(0o640)
    with umask(0o022):
        assert mode(export(study)[0]) == 0o640
        study.run().ledger.chmod(0o600)
        assert mode(export(study, "--force")[0]) == 0o600


@needs_tool("export")
def test_what_is_no_file_is_left_out_of_an_export_and_named(study: Experiment) -> None:
    os.mkfifo(study.run().attempt(1).stacks(0))
    _, said = export(study)
    assert "runs/0/attempts/1/stacks-00000.txt of study, it is not a regular file" in said
