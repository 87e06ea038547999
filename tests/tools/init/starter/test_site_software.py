"""Modules and container images by the names of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.tools.init.starter import site_software as software


def _file(path: Path, text: str = "#%Module\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_modules_of_training_by_tree_and_version(tmp_path: Path) -> None:
    first, second = tmp_path / "core", tmp_path / "apps"
    for name in ("12.4", "9.2", "11.8.lua", ".version", "12.4~"):
        _file(first / "cuda" / name)
    _file(first / "gcc.lua")
    _file(first / "netcdf" / "4.9")
    _file(second / "ai" / "pytorch" / "2.3.lua")
    _file(second / "a" / "b" / "c" / "cuda" / "1")
    environ = {"MODULEPATH": f"{first}:{second}:{tmp_path}/none:relative"}
    found = software.read(environ, [])
    assert found.modules == (
        "cuda/9.2",
        "cuda/11.8",
        "cuda/12.4",
        "cuda/12.4~",
        "gcc",
        "ai/pytorch/2.3",
    )
    assert not found.is_cut


def test_a_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        _file(tmp_path / "gcc" / str(number))
    assert len(software.read({"MODULEPATH": str(tmp_path)}, []).modules) == 40
    monkeypatch.setattr(software, "_MOST_NAMES", 10)
    found = software.read({"MODULEPATH": str(tmp_path)}, [])
    assert (len(found.modules), found.is_cut) == (10, True)


def test_a_directory_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    loop = tmp_path / "cuda"
    loop.symlink_to(tmp_path)
    (tmp_path / "gcc").symlink_to(tmp_path / "nowhere")
    found = software.read({"MODULEPATH": str(tmp_path)}, [])
    # A link to nothing is a name as any other; one in a circle ends at the depth of names.
    assert "gcc" in found.modules


def test_the_loaded_module_that_a_python_comes_from(tmp_path: Path) -> None:
    modulefile = tmp_path / "pytorch-2.3"
    _file(modulefile, "#%Module\nprepend-path PATH /apps/pytorch/2.3/bin\n")
    environ = {"LOADEDMODULES": "gcc/13:pytorch/2.3", "_LMFILES_": f"/none:{modulefile}"}
    loaded = software.read(environ, []).loaded
    assert loaded == {"gcc/13": "/none", "pytorch/2.3": str(modulefile)}
    assert software.provider("/apps/pytorch/2.3/bin/python", loaded) == "pytorch/2.3"
    assert software.provider("/apps/pytorch/2.30/bin/python", loaded) is None
    assert software.provider("/home/me/venv/bin/python", loaded) is None
    assert software.read({"LOADEDMODULES": "gcc/13"}, []).loaded == {"gcc/13": ""}
    os.mkfifo(tmp_path / "fifo")
    assert software.provider("/apps/x/y/bin/python", {"odd": str(tmp_path / "fifo")}) is None


def test_images_in_the_places_that_are_given(tmp_path: Path) -> None:
    for name in ("pytorch.sif", "nemo.sqsh", "notes.txt"):
        (tmp_path / name).touch()
    found = software.read({}, [tmp_path, tmp_path / "none", tmp_path])
    assert {Path(one).name for one in found.images} == {"pytorch.sif", "nemo.sqsh"}
    assert len(found.images) == 2
