"""The code of the moment of submission, with real git and real files."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hpcrun import activity, resources
from hpcrun.errors import UsageError
from hpcrun.state.layout import experiment
from hpcrun.submission.code import code_files, snapshot
from hpcrun.submission.code.code_files import CodeScope
from hpcrun.submission.code.snapshot import HashingStream
from hpcrun.text import size
from tests.support.plans import command_plan
from tests.support.waiting import until


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    root.mkdir()
    (root / "train.py").write_text("print('one')\n")
    (root / "package").mkdir()
    (root / "package" / "model.py").write_text("")
    return root


def _git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=m"]
    subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)


def _names(frozen: snapshot.Snapshot) -> set[str]:
    with tarfile.open(frozen.archive) as archive:
        return set(archive.getnames())


def _unpack(frozen: snapshot.Snapshot, destination: Path) -> Path:
    with tarfile.open(frozen.archive) as archive:
        archive.extractall(destination, filter="tar")
    return destination


def test_same_content_same_archive(code: Path, tmp_path: Path) -> None:
    first = snapshot.freeze(CodeScope(code), tmp_path / "a")
    content = first.archive.read_bytes()
    os.utime(code / "train.py", (1, 1))
    (code / "train.py").chmod(0o640)
    second = snapshot.freeze(CodeScope(code), tmp_path / "b")
    assert second.archive.name == first.archive.name == f"{first.digest}.tar.gz"
    assert second.archive.read_bytes() == content
    (code / "train.py").write_text("print('two')\n")
    assert snapshot.freeze(CodeScope(code), tmp_path / "b").digest != first.digest


def test_an_archive_is_reused_and_no_temporary_is_left(code: Path, tmp_path: Path) -> None:
    first = snapshot.freeze(CodeScope(code), tmp_path / "a")
    before = first.archive.stat().st_mtime_ns
    snapshot.freeze(CodeScope(code), tmp_path / "a")
    assert first.archive.stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.archive.name]


def test_modes_and_odd_names(code: Path, tmp_path: Path) -> None:
    (code / "run me.sh").write_text("#!/bin/sh\n")
    (code / "run me.sh").chmod(0o755)
    (code / "new\nline 'quoted' $(x).py").write_text("x")
    odd = os.fsdecode(b"latin-\xe9.py")
    (code / odd).write_text("y")
    out = _unpack(snapshot.freeze(CodeScope(code), tmp_path / "a"), tmp_path / "out")
    assert (out / "run me.sh").stat().st_mode & 0o777 == 0o755
    assert (out / "train.py").stat().st_mode & 0o777 == 0o644
    assert (out / "new\nline 'quoted' $(x).py").read_text() == "x"
    assert (out / odd).read_text() == "y"


def test_git_takes_the_working_tree(code: Path, tmp_path: Path) -> None:
    (code / ".gitignore").write_text("ignored/\n*.log\n")
    (code / "gone.py").write_text("")
    _git(code, "init")
    _git(code, "add", ".")
    _git(code, "commit", "-m", "one")
    clean = snapshot.freeze(CodeScope(code), tmp_path / "a")
    assert clean.git is not None
    assert clean.git["dirty"] is False
    assert len(clean.git["commit"]) == 40
    assert clean.git["branch"] == "m"
    (code / "train.py").write_text("print('changed, not committed')\n")
    (code / "new.py").write_text("")
    (code / "gone.py").unlink()
    (code / "ignored").mkdir()
    (code / "ignored" / "data.bin").write_text("")
    (code / "out.log").write_text("")
    dirty = snapshot.freeze(CodeScope(code), tmp_path / "a")
    assert _names(dirty) == {".gitignore", "train.py", "package/model.py", "new.py"}
    assert dirty.git is not None
    assert dirty.git["dirty"] is True
    assert "changed" in (_unpack(dirty, tmp_path / "out") / "train.py").read_text()


def test_git_with_a_submodule_and_a_nested_repository(code: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "lib.py").write_text("")
    _git(library, "init")
    _git(library, "add", ".")
    _git(library, "commit", "-m", "one")
    _git(code, "init")
    _git(code, "-c", "protocol.file.allow=always", "submodule", "add", str(library), "sub")
    (code / "nested").mkdir()
    (code / "nested" / "own.py").write_text("")
    _git(code / "nested", "init")
    names = _names(snapshot.freeze(CodeScope(code), tmp_path / "a"))
    assert {"sub/lib.py", "nested/own.py", "train.py"} <= names
    assert not any(".git/" in name for name in names)


def test_a_directory_that_git_ignores_as_a_whole(code: Path, tmp_path: Path) -> None:
    _git(tmp_path, "init")
    (tmp_path / ".gitignore").write_text("*\n")
    frozen = snapshot.freeze(CodeScope(code), tmp_path / "a")
    assert frozen.git is None
    assert _names(frozen) == {"train.py", "package/model.py"}


def test_a_part_of_a_repository(code: Path, tmp_path: Path) -> None:
    _git(code, "init")
    assert _names(snapshot.freeze(CodeScope(code / "package"), tmp_path / "a")) == {"model.py"}


def test_variables_of_git_hooks_do_not_matter(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _git(code, "init")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert snapshot.freeze(CodeScope(code), tmp_path / "a").git is not None


def test_what_is_required_is_frozen_though_ignored(code: Path, tmp_path: Path) -> None:
    (code / ".gitignore").write_text("train.py\n")
    _git(code, "init")
    assert "train.py" in _names(
        snapshot.freeze(CodeScope(code, required=["train.py"]), tmp_path / "a")
    )
    with pytest.raises(UsageError, match="the run needs this file"):
        snapshot.freeze(CodeScope(code, required=["absent.py"]), tmp_path / "a")


@pytest.mark.parametrize("with_git", [False, True])
def test_what_is_never_code(code: Path, tmp_path: Path, with_git: bool) -> None:
    for name in ("venv/bin/python", "venv/pyvenv.cfg", "env/conda-meta/history", "env/bin/x"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("")
    for name in ("__pycache__/a.pyc", "node_modules/x/y.js", "package/old.pyc"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("")
    (code / "runs").mkdir()
    (code / "runs" / "ledger").write_text("")
    if with_git:
        _git(code, "init")
    frozen = snapshot.freeze(CodeScope(code, without=[code / "runs"]), tmp_path / "a")
    assert _names(frozen) == {"train.py", "package/model.py"}


@pytest.mark.parametrize("with_git", [False, True])
def test_what_hpcrun_wrote_is_no_code_whichever_root_it_is_in(
    code: Path, tmp_path: Path, with_git: bool
) -> None:
    """An experiment's directory may have the name of a package, whose files stay code."""
    archive = f"{'a' * 64}.tar.gz"
    ours = ("submissions/1/submission.json", "submissions/1/plan.json", "runs/0/work/x.py")
    for name in (*ours, f"code/{archive}", ".hpcrun/torch_extensions/k/x.so", "code/own.py"):
        for place in ("package", "package/deep"):
            (code / place / name).parent.mkdir(parents=True, exist_ok=True)
            (code / place / name).write_text("")
    for name in ("other/runs/x.py", f"other/code/{archive}", "other/submissions/x.py", "page.html"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("<!DOCTYPE html>")
    template = (resources.directory("templates") / "report" / "report.html.j2").read_text()
    made = template[template.index("<html") :]
    made = made.replace("{{ generator }} {{ version }}", "hpcrun report 1.0")
    (code / "report.html").write_text(made)
    if with_git:
        _git(code, "init")
    frozen = snapshot.freeze(CodeScope(code), tmp_path / "a")
    assert _names(frozen) == {
        *("train.py", "package/model.py", "package/code/own.py", "package/deep/code/own.py"),
        *("other/runs/x.py", f"other/code/{archive}", "other/submissions/x.py", "page.html"),
    }


def test_it_says_how_much_of_the_code_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, stream, read = tmp_path / "code", io.StringIO(), snapshot._read
    code.mkdir()
    for name in ("a.py", "b.py"):
        (code / name).write_text("#" * 2000)
    told = iter((f"0 B of {size(4000)} (", f"{size(2000)} of {size(4000)} ("))

    def slowly(content: Any, inside: Any, name: str, real: str) -> tuple[bytes, int]:
        expected = next(told)
        until(lambda: f"reading the code, {code}: {expected}" in stream.getvalue(), expected)
        return read(content, inside, name, real)

    monkeypatch.setattr(snapshot, "_read", slowly)
    monkeypatch.setattr(activity, "SILENCE", 0.0)
    monkeypatch.delenv(activity.VARIABLE, raising=False)
    with activity.tell_on(stream):
        snapshot.freeze(CodeScope(code), tmp_path / "a")
    assert next(told, None) is None


@pytest.mark.parametrize(
    ("glob", "left"),
    [
        ("data", {"a.pt", "deep/data.py", "deep/x.pt"}),
        ("data/", {"a.pt", "deep/data.py", "deep/x.pt"}),
        ("data/**", {"a.pt", "deep/data.py", "deep/x.pt"}),
        ("*.pt", {"data/x", "deep/data.py"}),
        ("deep/*.pt", {"data/x", "a.pt", "deep/data.py"}),
        ("/deep", {"data/x", "a.pt"}),
        ("./deep/data.py", {"data/x", "a.pt", "deep/x.pt"}),
    ],
)
def test_excluding(tmp_path: Path, glob: str, left: set[str]) -> None:
    code = tmp_path / "code"
    for name in ("data/x", "a.pt", "deep/data.py", "deep/x.pt"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("")
    assert _names(snapshot.freeze(CodeScope(code, exclude=[glob]), tmp_path / "a")) == left


@pytest.mark.parametrize("with_git", [False, True])
@pytest.mark.parametrize(
    ("patterns", "left_out"),
    [
        # The rules of .gitignore: a slash anchors, `*` stops at a slash, the last match decides.
        (["/notes"], {"notes"}),
        (["notes"], {"notes", "deep/notes", "deep/down/notes"}),
        (["deep/*.pt"], {"deep/a.pt"}),
        (["deep/**/*.pt"], {"deep/a.pt", "deep/down/a.pt"}),
        (["down/"], {"deep/down/a.pt", "deep/down/notes"}),
        (["notes/"], set()),
        (["*.pt", "!best.pt"], {"deep/a.pt", "deep/down/a.pt"}),
        (["deep/", "!deep/a.pt"], {"deep/a.pt", "deep/notes", "deep/down/a.pt", "deep/down/notes"}),
        (["deep/*", "!deep/a.pt"], {"deep/notes", "deep/down/a.pt", "deep/down/notes"}),
        (["[bn]o*", "# a.pt", ""], {"notes", "deep/notes", "deep/down/notes"}),
    ],
)
def test_excluding_as_gitignore_does(
    tmp_path: Path, patterns: list[str], left_out: set[str], with_git: bool
) -> None:
    code = tmp_path / "code"
    names = {"notes", "best.pt", "deep/a.pt", "deep/notes", "deep/down/a.pt", "deep/down/notes"}
    for name in names:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("")
    if with_git:
        _git(code, "init")
    frozen = snapshot.freeze(CodeScope(code, exclude=patterns), tmp_path / "a")
    assert names - _names(frozen) == left_out
    # git itself, asked for the same patterns.
    (code / ".gitignore").write_text("".join(f"{pattern}\n" for pattern in patterns))
    _git(code, "init")
    assert names - _names(snapshot.freeze(CodeScope(code), tmp_path / "a")) == left_out


@pytest.mark.parametrize("pattern", ["!", "data\\", "[z-a]"])
def test_a_pattern_that_is_none(code: Path, tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match=r"code\.exclude") as caught:
        snapshot.freeze(CodeScope(code, exclude=[pattern]), tmp_path / "a")
    assert ".gitignore" in str(caught.value.hint)


def test_files_of_secrets_are_no_code(code: Path, tmp_path: Path) -> None:
    (code / "mine").mkdir()
    (code / "mine" / "keys").write_text("A=b\n")
    (code / "linked").symlink_to("mine/keys")
    plan = command_plan(code, {0: ["true"]}, environment={"secrets_file": str(code / "linked")})
    (code / "spec.yaml").touch()
    frozen = snapshot.freeze(
        code_files.scope(plan, experiment(tmp_path / "root", "e")), tmp_path / "a"
    )
    assert _names(frozen) == {"train.py", "package/model.py", "spec.yaml"}
    assert frozen.notes == ()


def test_too_much(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code / "weights.pt").write_bytes(b"\0" * 3_000_000)
    monkeypatch.setattr(snapshot, "MOST_BYTES", 1_000_000)
    with pytest.raises(UsageError) as caught:
        snapshot.freeze(CodeScope(code), tmp_path / "a")
    assert "weights.pt" in caught.value.message
    assert "3.0 MB" in caught.value.message
    assert "accepted are 1.0 MB" in caught.value.message
    assert "exclude" in str(caught.value.hint)
    assert not (tmp_path / "a").exists()


def test_too_many(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_files, "MOST_FILES", 1)
    with pytest.raises(UsageError, match="hardly only code"):
        snapshot.freeze(CodeScope(code), tmp_path / "a")


def test_links(code: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "data").mkdir(parents=True)
    (outside / "tool.py").write_text("tool")
    (code / "inside.py").symlink_to("train.py")
    (code / "absolute.py").symlink_to(code / "train.py")
    (code / "pkg").symlink_to("package")
    (code / "tool.py").symlink_to(outside / "tool.py")
    (code / "data").symlink_to("../outside/data")
    (code / "broken").symlink_to("nowhere")
    (code / "loop").symlink_to("loop")
    frozen = snapshot.freeze(CodeScope(code), tmp_path / "a")
    out = _unpack(frozen, tmp_path / "out")
    assert (out / "inside.py").readlink() == Path("train.py")
    assert (out / "absolute.py").readlink() == Path("train.py")
    assert (out / "pkg" / "model.py").exists()
    assert (out / "tool.py").readlink() == outside / "tool.py"
    assert (out / "data").readlink() == outside / "data"
    assert not (out / "broken").is_symlink()
    assert {note.split(":")[0] for note in frozen.notes} == {"data", "tool.py", "broken", "loop"}


def test_what_is_required_may_lie_behind_links(code: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "train.py").write_text("outside")
    (code / "theirs").symlink_to("../outside")
    (code / "pkg").symlink_to("package")
    (code / "package" / ".gitignore").write_text("model.py\n")
    _git(code, "init")
    required = ["theirs/train.py", "pkg/model.py"]
    frozen = snapshot.freeze(CodeScope(code, required=required), tmp_path / "a")
    out = _unpack(frozen, tmp_path / "out")
    assert (out / "theirs").readlink() == outside
    assert (out / "pkg").readlink() == Path("package")
    assert (out / "package" / "model.py").is_file()


def test_a_link_to_what_is_not_frozen(code: Path, tmp_path: Path) -> None:
    (code / "weights").mkdir()
    (code / "weights" / "big").write_text("big")
    (code / "small").symlink_to("weights/big")
    (code / "all").symlink_to("weights")
    out = _unpack(
        snapshot.freeze(CodeScope(code, exclude=["weights"]), tmp_path / "a"), tmp_path / "out"
    )
    assert (out / "small").read_text() == "big"
    assert (out / "all").readlink() == code / "weights"


def test_what_is_no_regular_file(code: Path, tmp_path: Path) -> None:
    os.mkfifo(code / "pipe")
    frozen = snapshot.freeze(CodeScope(code), tmp_path / "a")
    assert "pipe" not in _names(frozen)
    assert frozen.notes == ("pipe: left out, it is not a regular file",)


def test_a_file_that_vanishes(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = snapshot._check_size

    def vanish(*arguments: object) -> None:
        original(*arguments)  # type: ignore[arg-type]
        (code / "train.py").unlink(missing_ok=True)

    monkeypatch.setattr(snapshot, "_check_size", vanish)
    frozen = snapshot.freeze(CodeScope(code), tmp_path / "a")
    assert _names(frozen) == {"package/model.py"}
    assert frozen.files == 1


def test_a_file_that_is_being_written(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(1000))
    original = os.fstat

    def restless(descriptor: int) -> os.stat_result:
        with open(code / "train.py", "a") as stream:
            stream.write(f"# {next(calls)}\n")
        return original(descriptor)

    monkeypatch.setattr(snapshot.os, "fstat", restless)
    frozen = snapshot.freeze(CodeScope(code), tmp_path / "a")
    monkeypatch.undo()
    assert "train.py: is being written; frozen as it was found" in frozen.notes
    assert (_unpack(frozen, tmp_path / "out") / "train.py").read_text().startswith("print")


def test_a_file_that_cannot_be_read(tmp_path: Path, code: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root reads everything; the cluster tests do this as an ordinary user")
    (code / "secret.py").chmod(0)
    with pytest.raises(UsageError, match="cannot be frozen"):
        snapshot.freeze(CodeScope(code), tmp_path / "a")


def test_what_is_read_is_hashed_and_counted() -> None:
    stream = HashingStream(io.BytesIO(b"some bytes"))
    assert stream.read(4) + stream.read(100) == b"some bytes"
    assert stream.bytes == 10
    assert stream.hexdigest() == hashlib.sha256(b"some bytes").hexdigest()


def test_what_is_written_is_hashed_and_passed_on() -> None:
    target = io.BytesIO()
    stream = HashingStream(target)
    assert stream.write(b"some ") + stream.write(b"bytes") == 10
    assert target.getvalue() == b"some bytes"
    assert stream.bytes == 10
    assert stream.hexdigest() == hashlib.sha256(b"some bytes").hexdigest()
