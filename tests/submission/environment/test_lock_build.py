"""Environments that are built from a lock, by uv and by pip."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.submission.environment import environment_files, lock_build
from tests.support.users import STRANGER, needs_root

# Acts as uv: it refuses what it does not know, and has pip do what it does.
UV = f"""#!{sys.executable}
import pathlib, subprocess, sys
log = pathlib.Path(__file__).with_name("log")
with open(log, "a") as stream:
    print(*sys.argv[1:], file=stream)
match sys.argv[1:]:
    case ["venv", "--quiet", "--no-project", "--python", python, target]:
        subprocess.run([python, "-m", "venv", "--without-pip", target], check=True)
    case ["export", "--frozen", "--quiet", "--no-dev", "--no-emit-project", "--project", project,
          "--format", "requirements-txt", "--output-file", out]:
        pathlib.Path(out).write_text(pathlib.Path(project, "uv.lock").read_text())
    case ["pip", "sync", "--quiet", "--link-mode", "copy", "--compile-bytecode",
          "--python", python, lock]:
        pip = [{sys.executable!r}, "-m", "pip", "--python", python, "install", "--no-deps", "-q"]
        subprocess.run([*pip, "-r", lock], check=True)
    case ["pip", "check", "--python", python]:
        pass
    case _:
        sys.exit("unknown arguments")
"""


def _wheel(directory: Path, name: str, version: str, requires: str = "") -> str:
    """Make a wheel of one module, and return its SHA-256."""
    directory.mkdir(exist_ok=True)
    path, record = directory / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        told = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        wheel.writestr(f"{record}/METADATA", told)
        wheel.writestr(
            f"{record}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{record}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    digest = _wheel(tmp_path / "wheels", "precise", "1.0", "Requires-Dist: absent\n")
    path = tmp_path / "requirements.lock"
    path.write_text(
        f"--no-index\n--find-links wheels\nprecise==1.0 \\\n    --hash=sha256:{digest}\n"
    )
    return path


@pytest.fixture(autouse=True)
def without_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def _built(path: Path, said: list[str]) -> list[str]:
    place = environment_files.ask_place(sys.executable, (), {})
    with lock_build.built(lock_build.read(path), place, (), {}, said.append) as built:
        site = Path(built.packages)
        assert built.version == place.version
        return sorted(one.name for one in site.iterdir() if one.name.startswith("precise"))


def test_pip_builds_it_without_the_network(lock: Path) -> None:
    said: list[str] = []
    assert _built(lock, said) == ["precise-1.0.dist-info", "precise.py"]
    assert "the lock is not complete" in said[0]
    assert "precise 1.0 requires absent, which is not installed" in said[0]


def test_uv_builds_it_where_there_is_one(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "uv.lock").write_text("precise==1.0\n")
    assert _built(tmp_path / "project" / "uv.lock", []) == ["precise-1.0.dist-info", "precise.py"]
    verbs = [line.split()[:2] for line in (tmp_path / "bin" / "log").read_text().splitlines()]
    assert [" ".join(words) for words in verbs] == [
        *("venv --quiet", "export --frozen", "pip sync", "pip check"),
    ]


@needs_root
def test_a_uv_of_another_user_is_not_started(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    uv = tmp_path / "bin" / "uv"
    uv.write_text("#!/bin/sh\ntouch started\n")
    uv.chmod(0o755)
    os.chown(uv, STRANGER.uid, STRANGER.gid)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    said: list[str] = []
    _built(lock, said)
    assert (
        said[0]
        == f"environment: {uv} belongs to {STRANGER.name}, and is not started; pip builds it"
    )
    assert not list(tmp_path.rglob("started"))


def test_a_lock_that_only_uv_reads(tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text("lock-version = '1.0'\n")
    with pytest.raises(UsageError, match="is installed by uv, and there is no uv"):
        _built(tmp_path / "pylock.toml", [])


def test_a_wrong_hash(lock: Path) -> None:
    _wheel(lock.parent / "wheels", "precise", "1.0", "Summary: another\n")
    with pytest.raises(UsageError, match=r"(?s)cannot be installed: python.*DO NOT MATCH"):
        _built(lock, [])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("numpy", "leaves the version open"),
        ("numpy>=2", "leaves the version open"),
        ("-e .", "a lock names each package itself"),
        ("-r other.txt", "a lock names each package itself"),
        ("--requirement=other.txt", "a lock names each package itself"),
    ],
)
def test_a_line_that_leaves_something_open(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(f"# numpy\n{line}\n")
    with pytest.raises(UsageError, match=problem):
        lock_build.read(path)


def test_lines_that_a_lock_may_have(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    lines = (
        *("--index-url https://example.org/simple", "", "# a remark", "numpy==2.0.1  # pinned"),
        *("a @ https://example.org/a.whl", "b@ https://example.org/b.whl", "--no-index"),
        *('c==1 ; python_version > "3.9" \\', "    --hash=sha256:00"),
    )
    path.write_text("\n".join(lines))
    assert lock_build.read(path).content == path.read_bytes()


@needs_root
def test_a_lock_of_another_user(lock: Path) -> None:
    os.chown(lock, STRANGER.uid, STRANGER.gid)
    with pytest.raises(UsageError, match=f"belongs to {STRANGER.name}"):
        lock_build.read(lock)


def test_what_names_it(lock: Path, tmp_path: Path) -> None:
    place = environment_files.ask_place(sys.executable, (), {})
    first = lock_build.read(lock).digest(place)
    copy = tmp_path / "copy.txt"
    copy.write_bytes(lock.read_bytes())
    assert lock_build.read(copy).digest(place) == first
    copy.write_bytes(lock.read_bytes() + b"# a remark\n")
    assert lock_build.read(copy).digest(place) != first
