"""Entries are found without being imported."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError

BASE = "cluster: local\nenvironment: {python: /opt/bin/python}\n"


def compiled(project: Any, text: str, *overrides: str) -> Any:
    return compile_spec(project.write("spec.yaml", BASE + text), overrides)


def git(directory: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(directory), *arguments], check=True, capture_output=True)


def test_a_script_gets_arguments_then_flags(project: Any) -> None:
    text = (
        "entry: train.py\nargs: [--extra, x y]\nconfig: {lr: 2.0e-5, name: a 'b', fast: true, "
        "slow: false, none: null, n: 3, betas: [0.9, 0.95], out: '${hpcrun:directory}/o'}\n"
    )
    entry = compiled(project, text).runs[0].entry
    assert (entry.kind, entry.file) == ("script", "train.py")
    assert entry.argv == (
        "--extra",
        "x y",
        "--lr=2e-05",
        "--name=a 'b'",
        "--fast",
        "--n=3",
        "--betas=0.9,0.95",
        "--out=${hpcrun:directory}/o",
    )


def test_a_command_is_a_list_as_it_is(project: Any) -> None:
    entry = compiled(project, "entry: [bash, -c, 'echo $A; exit 3']\nargs: [x]\n").runs[0].entry
    assert entry.kind == "command"
    assert entry.argv == ("bash", "-c", "echo $A; exit 3", "x")


@pytest.mark.parametrize(
    ("entry", "module", "import_root"),
    [
        ("train:main", "train", "."),
        ("train.py:main", "train", "."),
        ("package.inner:run", "package.inner", "."),
        ("package:Trainer", "package", "."),
        ("src/other.py:run", "other", "src"),
        ("package.inner:imported", "package.inner", "."),
        ("package.inner:assigned", "package.inner", "."),
        ("package.inner:guarded", "package.inner", "."),
    ],
)
def test_functions_are_found(project: Any, entry: str, module: str, import_root: str) -> None:
    explode = "raise RuntimeError('imported')\n"
    project.write("package/__init__.py", explode + "class Trainer: ...\n")
    project.write(
        "package/inner.py",
        explode + "from x import y as imported\nassigned = imported\n"
        "if True:\n    def guarded(): ...\nasync def run(): ...\n",
    )
    project.write("src/other.py", "def run(): ...\n")
    found = compiled(project, f"entry: {entry}\n").runs[0].entry
    assert (found.kind, found.module) == ("function", module)
    assert (found.import_root, found.function) == (import_root, entry.rpartition(":")[2])


def test_an_installed_function_has_no_import_root(project: Any) -> None:
    entry = compiled(project, "entry: omegaconf.omegaconf:OmegaConf\n").runs[0].entry
    assert (entry.module, entry.import_root) == ("omegaconf.omegaconf", None)


def test_packages_of_the_job_s_python_are_searched(project: Any) -> None:
    site = project.directory / "venv/lib/python3.12/site-packages"
    project.write("venv/lib/python3.12/site-packages/remote/loop.py", "def run(): ...\n")
    assert site.is_dir()
    text = "entry: remote.loop:run\n"
    entry = compiled(project, text, "environment.python=venv/bin/python").runs[0].entry
    assert (entry.module, entry.import_root) == ("remote.loop", None)


def test_the_code_is_the_checkout_that_holds_the_entry(project: Any, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    found = compiled(project, "entry: train.py\n")
    assert found.code_root == str(tmp_path)
    assert (found.directory, found.runs[0].entry.file) == ("project", "project/train.py")


def test_a_checkout_that_ignores_the_entry_is_not_its_code(project: Any, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("project\n")
    found = compiled(project, "entry: train.py\n")
    assert (found.code_root, found.directory) == (str(project.directory), ".")


@pytest.mark.parametrize("entry", ["train.py", "train:main", "src/other.py:run"])
def test_identity_does_not_depend_on_the_code_root(
    project: Any, tmp_path: Path, entry: str
) -> None:
    project.write("src/other.py", "def run(session):\n    1\n")
    before = compiled(project, f"entry: {entry}\n")
    git(tmp_path, "init", "-q")
    after = compiled(project, f"entry: {entry}\n")
    assert before.code_root != after.code_root
    assert before.runs[0].identity == after.runs[0].identity
    explicit = compiled(project, f"entry: {entry}\ncode: {{root: ..}}\n")
    assert explicit.runs[0].identity == after.runs[0].identity
    other = compiled(project, "entry: train.py:main\nconfig: {x: 1}\n").runs[0]
    assert other.identity != after.runs[0].identity


def test_an_entry_outside_brings_its_own_directory(project: Any, tmp_path: Path) -> None:
    project.write("../jobs/model.py", "def train(session): ...\n")
    found = compiled(project, "entry: ../jobs/model.py:train\n")
    assert (found.code_root, found.directory) == (str(tmp_path / "jobs"), ".")
    assert found.runs[0].entry.import_root == "."


def test_code_root_wins_and_must_hold_the_entry(project: Any, tmp_path: Path) -> None:
    found = compiled(project, "entry: train.py\ncode: {root: ..}\n")
    assert (found.code_root, found.directory) == (str(tmp_path), "project")
    project.write("inner/x.py", "")
    with pytest.raises(SpecError, match="does not contain the entry"):
        compiled(project, "entry: train.py\ncode: {root: inner}\n")


def test_a_home_is_never_frozen_as_a_whole(project: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(project.directory))
    with pytest.raises(SpecError, match="would be all of"):
        compiled(project, "entry: train.py\n")


def test_paths_belong_to_the_file_that_says_them(project: Any) -> None:
    project.write("base/train.py", "")
    project.write("base/base.yaml", "entry: train.py\ndeepspeed_config: ../ds.json\n")
    found = compiled(project, "extends: base/base.yaml\ndeepspeed: {train_batch_size: 4}\n")
    assert found.runs[0].entry.file == "base/train.py"
    assert found.runs[0].spec["deepspeed"]["gradient_clipping"] == 1.0
