"""What is frozen of an environment, under which names, and what makes it another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.state.environment.environment_names import PYTHON, RECORD
from hpcrun.submission.environment import environment_files
from hpcrun.submission.environment.environment_files import EnvironmentFiles, FrozenFile
from tests.support.made_venv import MadeVenv


@pytest.fixture
def venv(tmp_path: Path) -> MadeVenv:
    made = MadeVenv(tmp_path / "venv")
    made.package("precise", "1.0")
    return made


def _listed(venv: MadeVenv, **variables: str) -> EnvironmentFiles:
    return environment_files.list_files(environment_files.ask_place(venv.python, (), variables))


def _by_name(listed: EnvironmentFiles) -> Mapping[str, FrozenFile]:
    return {one.name: one for one in listed.files}


def _unpacked(listed: EnvironmentFiles, directory: Path) -> Path:
    for one in listed.files:
        place = directory / one.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if one.link is not None:
            place.symlink_to(one.link)
            continue
        place.write_bytes(Path(one.source).read_bytes() if one.content is None else one.content)
        place.chmod(0o755 if one.is_program else 0o644)
    return directory


def _said(directory: Path, *argv: str, **variables: str) -> str:
    words = [str(directory / argv[0]), *argv[1:]]
    found = {"PATH": os.defpath, **variables}
    return subprocess.check_output(words, env=found, text=True, cwd="/").strip()


def test_it_runs_wherever_it_is_unpacked(venv: MadeVenv, tmp_path: Path) -> None:
    venv.script("short", "import precise, sys; print(sys.argv[1], precise.__file__)\n")
    long = f"""#!/bin/sh\n'''exec' "{venv.python}" "$0" "$@"\n' '''"""
    venv.script("long", "import precise; print(precise.__file__)\n", long)
    venv.script("flagged", "import sys; print(sys.flags.isolated)\n", f"#!{venv.python} -I")
    venv.script("other", "echo other\n", "#!/bin/sh")
    place = _unpacked(_listed(venv), tmp_path / "with a space")
    venv.directory.rename(tmp_path / "gone")
    module = str(place / venv.site.relative_to(venv.directory) / "precise" / "__init__.py")
    assert _said(place, PYTHON, "-c", "import precise; print(precise.__file__)") == module
    assert _said(place, "bin/short", "word") == f"word {module}"
    assert _said(place, "bin/long") == module
    assert _said(place, "bin/flagged") == "1"
    assert _said(place, "bin/other") == "other"
    assert _said(place, PYTHON, "-c", "import sys; print(sys.prefix)") == str(place)


def test_what_makes_it_another_one(venv: MadeVenv) -> None:
    first = _listed(venv).digest
    module = venv.site / "precise" / "__init__.py"
    assert _listed(venv).digest == first
    subprocess.run([venv.python, "-c", "import precise"], check=True, cwd="/", env={})
    assert any("__pycache__" in name for name in _by_name(_listed(venv)))
    assert _listed(venv).digest == first, "importing it changes nothing"
    found = module.stat()
    os.utime(module, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    second = _listed(venv).digest
    venv.package("another", "1.0")
    third = _listed(venv).digest
    module.chmod(0o755)
    assert len({first, second, third, _listed(venv).digest}) == 4


def test_sources_outside_come_along(venv: MadeVenv, tmp_path: Path) -> None:
    """A path of an editable installation, one of setuptools' finders, and PYTHONPATH."""
    for name in ("by_path", "by_finder", "by_variable"):
        package = tmp_path / f"src_{name}" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"FOUND = {name!r}\n")
    (tmp_path / "src_by_path" / ".git").mkdir()
    (tmp_path / "src_by_path" / ".git" / "config").write_text("left out")
    MadeVenv(tmp_path / "src_by_path" / "env")
    (tmp_path / "src_by_finder" / "one.py").write_text("FOUND = 'one'\n")
    (venv.site / "by_path.pth").write_text(f"{tmp_path / 'src_by_path'}\n")
    mapping = {
        "by_finder": str(tmp_path / "src_by_finder" / "by_finder"),
        "one": str(tmp_path / "src_by_finder" / "one.py"),
    }
    finder = "__editable___by_finder_1_0_finder"
    text = f"MAPPING: dict[str, str] = {mapping!r}\n"
    text += "def install(): import os; os.environ['LIVE'] = '1'\n"
    (venv.site / f"{finder}.py").write_text(text)
    (venv.site / "__editable__.by_finder.pth").write_text(f"import {finder}; {finder}.install()\n")
    (venv.site / "hook.pth").write_text("import os; os.environ['HOOK'] = 'ran'\n")
    venv.record("by_path", "1.0", tmp_path / "src_by_path")
    venv.record("by_finder", "1.0", tmp_path / "src_by_finder")
    venv.record("unknown", "1.0", tmp_path / "src_unknown")
    outside = str(tmp_path / "src_by_variable")
    listed = _listed(venv, PYTHONPATH=outside)
    assert not [name for name in _by_name(listed) if ".git" in name or "pyvenv.cfg" in name[1:]]
    [note] = listed.notes
    assert note.startswith(f"unknown is installed in a way that reads {tmp_path / 'src_unknown'}")
    place = _unpacked(listed, tmp_path / "unpacked")
    for name in ("by_path", "by_finder", "by_variable"):
        (tmp_path / f"src_{name}").rename(tmp_path / f"gone_{name}")
    assert json.loads((place / RECORD).read_text()) == {"moved": dict(listed.moved)}
    program = (
        "import os, one, by_path, by_finder, by_variable as last; "
        "assert 'LIVE' not in os.environ; "
        "print(by_path.FOUND, by_finder.FOUND, one.FOUND, last.FOUND, os.environ['HOOK'])"
    )
    moved = f"{place}/{listed.moved[outside]}"
    said = _said(place, PYTHON, "-c", program, PYTHONPATH=moved)
    assert said == "by_path by_finder one by_variable ran"


def test_links_that_leave_it_are_copied(venv: MadeVenv, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "deep").mkdir(parents=True)
    (cache / "module.py").write_text("FOUND = 'module'\n")
    (cache / "deep" / "__init__.py").write_text("FOUND = 'deep'\n")
    (venv.site / "module.py").symlink_to(cache / "module.py")
    (venv.site / "deep").symlink_to(cache / "deep")
    (venv.site / "inner").symlink_to("precise")
    (venv.site / "nothing").symlink_to(cache / "nothing")
    listed = _listed(venv)
    assert listed.notes == (f"{venv.site / 'nothing'} is a link to nothing, and left out",)
    place = _unpacked(listed, tmp_path / "unpacked")
    cache.rename(tmp_path / "gone")
    program = "import module, deep, inner; print(module.FOUND, deep.FOUND, inner.VERSION)"
    assert _said(place, PYTHON, "-c", program) == "module deep 1.0"
    assert (place / venv.site.relative_to(venv.directory) / "inner").is_symlink()


def test_a_directory_of_sources_that_holds_too_much(
    venv: MadeVenv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_files, "_SOURCES_MOST", 10)
    (tmp_path / "src").mkdir()
    for number in range(20):
        (tmp_path / "src" / f"{number}.dat").touch()
    (venv.site / "it.pth").write_text(f"{tmp_path / 'src'}\n")
    with pytest.raises(UsageError, match=r"src is on the import path .* more than 10 files"):
        _listed(venv)


def test_what_is_below_the_root_of_experiments_is_left_out(venv: MadeVenv) -> None:
    root = venv.directory / "runs"
    root.mkdir()
    (root / "checkpoint").write_text("large")
    place = environment_files.ask_place(venv.python, (), {})
    names = {one.name for one in environment_files.list_files(place, [root]).files}
    assert "runs/checkpoint" not in names
    assert "runs/checkpoint" in {one.name for one in environment_files.list_files(place).files}


def test_a_file_that_cannot_be_read(venv: MadeVenv, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    place = environment_files.ask_place(venv.python, (), {})
    monkeypatch.setattr("os.scandir", refused)
    with pytest.raises(UsageError, match=r"venv: cannot be frozen .*: Permission denied"):
        environment_files.list_files(place)


def test_a_virtual_environment_after_setup_lines(tmp_path: Path) -> None:
    venv = MadeVenv(tmp_path / "venv")
    (tmp_path / "more").mkdir()
    setup = ["echo setup lines may print", f"export PATH={venv.directory}/bin:$PATH"]
    found = environment_files.ask_place("python", setup, {"PYTHONPATH": str(tmp_path / "more")})
    assert found.is_virtual
    assert (found.prefix, found.base_prefix) == (str(venv.directory), sys.base_prefix)
    assert found.executable == venv.python
    assert found.packages == str(venv.site)
    assert found.paths[0] == str(tmp_path / "more")
    assert found.version == "{}.{}.{}".format(*sys.version_info[:3])


def test_a_program_that_says_nothing_of_it() -> None:
    with pytest.raises(UsageError, match="does not say where its packages lie"):
        environment_files.ask_place("/bin/true", (), {})
