"""What runs and programs name that git ignores, in real checkouts, and the line to write."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.layout import ExperimentPaths, experiment
from hpcrun.state.plan import Plan
from hpcrun.submission.code import code_files, snapshot, unfrozen
from hpcrun.submission.code.unfrozen import Unfrozen
from tests.support.plans import command_plan


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    root.mkdir()
    for name in ("train.py", "spec.yaml"):
        (root / name).touch()
    git(root, "init")
    return root


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=m"]
    allowed = ["-c", "protocol.file.allow=always"]
    command = ["git", "-C", root, *identity, *allowed, *arguments]
    subprocess.run(command, check=True, capture_output=True)


def write(root: Path, *names: str, size: int = 10) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * size)


def paths(root: Path) -> ExperimentPaths:
    return experiment(root.parent / "root", "experiment")


def plan(root: Path, *args: str, **spec: Any) -> Plan:
    return command_plan(root, {0: ["python", "train.py", *args]}, args=[*args], **spec)


def find(root: Path, *args: str, **spec: Any) -> Unfrozen:
    return unfrozen.find(plan(root, *args, **spec), paths(root))


def named(found: Unfrozen) -> dict[str, str]:
    return {one.path: one.why for one in found.paths}


def frozen(root: Path, *args: str, **spec: Any) -> set[str]:
    made = plan(root, *args, **spec)
    scope = code_files.scope(made, paths(root))
    with tarfile.open(snapshot.freeze(scope, root.parent / "a").archive) as archive:
        return set(archive.getnames())


@pytest.mark.parametrize("by", [".gitignore", ".git/info/exclude", "global"])
def test_a_directory_that_git_ignores(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    file = code / by
    if by == "global":
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        file = tmp_path / ".config" / "git" / "ignore"
        file.parent.mkdir(parents=True)
    file.write_text("mydata\n")
    write(code, "mydata/train.bin", "mydata/val.bin", size=2_000_000)
    found = find(code, "--data=mydata/train.bin")
    assert named(found) == {"mydata/train.bin": "git ignores it"}
    assert found.line == "code: {link: [mydata]}"
    assert found.left_out == ("mydata",)
    assert "mydata/train.bin (args; git ignores it)" in found.message
    assert "code: {link: [mydata]}" in found.hint
    assert find(code, "--data=mydata/train.bin", code={"link": ["mydata"]}) == Unfrozen()


def test_what_is_frozen_is_not_told(code: Path) -> None:
    write(code, "data/x.csv", "more/y.csv")
    git(code, "add", "data")
    assert find(code, "data/x.csv", "more/y.csv", "data", "absent.csv").paths == ()


def test_a_small_file_is_included_and_then_frozen(code: Path) -> None:
    (code / ".gitignore").write_text("*.json\n")
    write(code, "cfg/splits.json", "cfg/a.py")
    found = find(code, "cfg/splits.json")
    assert found.line == "code: {include: [cfg/splits.json]}"
    kept = {"include": ["cfg/splits.json"]}
    assert find(code, "cfg/splits.json", code=kept).paths == ()
    assert "cfg/splits.json" in frozen(code, code=kept)
    assert "cfg/splits.json" not in frozen(code)


def test_a_directory_can_be_included(code: Path) -> None:
    (code / ".gitignore").write_text("cfg\n")
    write(code, "cfg/a.json", "cfg/b/c.json", "cfg/__pycache__/d.pyc")
    kept = {"include": ["cfg"]}
    assert frozen(code, code=kept) - frozen(code) == {"cfg/a.json", "cfg/b/c.json"}
    assert find(code, "cfg", code=kept).paths == ()


def test_a_large_file_is_linked_and_what_the_spec_has_stays(code: Path) -> None:
    (code / ".gitignore").write_text("*.bin\n/model\n")
    write(code, "tokens.bin", size=2_000_000)
    write(code, "model/weights")
    found = find(code, "tokens.bin", code={"link": ["model"]})
    assert found.line == "code: {link: [model, tokens.bin]}"


def test_a_directory_of_which_a_part_is_ignored(code: Path) -> None:
    (code / ".gitignore").write_text("*.bin\n*.pkl\n")
    write(code, "data/chars/prepare.py", "data/chars/train.bin", "data/words/prepare.py")
    (code / "train.py").write_text("import os\nd = os.path.join('data', dataset)\n")
    git(code, "add", "-A")
    found = find(code)
    assert [(one.path, one.where, one.missing) for one in found.paths] == [
        ("data", "train.py:2", ("data/chars/train.bin",))
    ]
    assert found.line == "code: {include: [data/chars/train.bin]}"
    write(code, "data/chars/val.bin", "data/chars/meta.pkl", "data/chars/more.pkl")
    found = find(code)
    assert found.line == "code: {link: [data/chars]}"
    assert "data/ but for data/chars/meta.pkl" in found.message
    assert find(code, code={"link": ["data"]}).paths == ()


def test_a_package_is_named_as_code(code: Path) -> None:
    (code / ".gitignore").write_text("*.so\n")
    write(code, "src/pkg/__init__.py", "src/pkg/fast.so")
    (code / "train.py").write_text("import pkg\nsys.path.insert(0, os.path.join('src', a))\n")
    assert find(code).paths == ()


def test_outputs_are_not_told(code: Path) -> None:
    (code / ".gitignore").write_text("out\nruns\nwandb\n")
    write(code, "out/a.pt", "runs/b", "wandb/c")
    (code / "train.py").write_text(
        "out_dir = 'out'\nwandb.init(dir='wandb')\nos.makedirs('runs')\n"
    )
    assert find(code, "--output_dir", "out", config={"log_dir": "runs"}).paths == ()
    assert named(find(code, "--init_from=out/a.pt")) == {"out/a.pt": "git ignores it"}


def test_a_path_outside_the_code(code: Path, tmp_path: Path) -> None:
    write(tmp_path, "data/x.csv")
    found = find(code, "../data/x.csv")
    assert named(found) == {"../data/x.csv": "outside the code"}
    assert (found.line, found.absolute) == ("", (str(code / "../data/x.csv"),))
    assert str(tmp_path) in found.hint


def test_relative_to_the_specs_directory(code: Path) -> None:
    (code / ".gitignore").write_text("data\n")
    write(code, "data/x.csv", size=2_000_000)
    write(code, "exp/spec.yaml")
    made = plan(code, "../data/x.csv")
    made = Plan(**{**vars(made), "spec_file": str(code / "exp/spec.yaml"), "directory": "exp"})
    found = unfrozen.find(made, paths(code))
    assert named(found) == {"../data/x.csv": "git ignores it"}
    assert found.line == "code: {link: [../data]}"


def test_beside_a_spec_that_is_not_in_the_code(code: Path, tmp_path: Path) -> None:
    write(tmp_path, "specs/spec.yaml", "specs/my.json")
    made = plan(code, "my.json")
    made = Plan(**{**vars(made), "spec_file": str(tmp_path / "specs" / "spec.yaml")})
    found = unfrozen.find(made, paths(code))
    assert named(found) == {"my.json": "outside the code"}
    assert found.line == "code: {link: [my.json]}"


def test_a_line_names_nothing_twice(code: Path) -> None:
    (code / ".gitignore").write_text("data\n")
    write(code, "data/a/x.csv", "data/b/y.csv")
    assert find(code, "data", "data/a", "data/b/y.csv").line == "code: {link: [data]}"


def test_links_out_of_the_tree(code: Path, tmp_path: Path) -> None:
    write(tmp_path, "far/data/x.csv")
    (code / "data").symlink_to(tmp_path / "far" / "data")
    assert find(code, "data/x.csv", "data").paths == ()
    (code / ".gitignore").write_text("data\n")
    found = find(code, "data")
    assert found.line == "code: {link: [data]}"


def test_what_a_submodule_ignores(code: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other, "a.py", ".gitignore")
    (other / ".gitignore").write_text("*.bin\n")
    git(other, "init")
    git(other, "add", "-A")
    git(other, "commit", "-m", "a")
    git(code, "submodule", "add", str(other), "sub")
    write(code, "sub/w.bin")
    found = find(code, "sub/w.bin", "sub/a.py")
    assert named(found) == {"sub/w.bin": "git ignores it"}
    assert found.left_out == ("sub/w.bin",)


def test_what_code_exclude_has(code: Path) -> None:
    write(code, "data/x.csv", size=2_000_000)
    found = find(code, "data/x.csv", code={"exclude": ["data"]})
    assert named(found) == {"data/x.csv": "code.exclude has it"}
    assert found.line == "code: {link: [data]}"


def test_without_git(tmp_path: Path) -> None:
    root = tmp_path / "code"
    write(root, "train.py", "spec.yaml", "data/x.csv")
    assert find(root, "data/x.csv").paths == ()
    assert named(find(root, "data/x.csv", code={"exclude": ["data"]})) == {
        "data/x.csv": "code.exclude has it"
    }


def test_a_sweep_is_told_once(code: Path) -> None:
    (code / ".gitignore").write_text("data\n")
    write(code, *(f"data/{n}.csv" for n in range(20)))
    made = command_plan(code, {n: ["python", "train.py"] for n in range(20)})
    for run in made.runs:
        run.spec["config"] = {"data": f"data/{run.number}.csv"}
    found = unfrozen.find(made, paths(code))
    assert len(found.paths) == 20
    assert len(found.message) < 400
    assert found.paths[3].runs == (3,)


def test_a_model_for_its_owner_alone_is_taken_or_told(code: Path) -> None:
    write(code, "model/config.json", "model/model.safetensors", "spec.yaml")
    (code / "model/model.safetensors").chmod(0o600)
    assert "model/model.safetensors" in frozen(code, "--model", "model")
    assert "model/model.safetensors" in frozen(code, config={"model_name_or_path": "./model"})
    assert "model/model.safetensors" not in frozen(code)
    (code / "train.py").write_text("M.from_pretrained('model')\n")
    found = find(code)
    assert [(one.path, one.why, one.missing) for one in found.paths] == [
        ("model", "only you may read it", ("model/model.safetensors",))
    ]
    kept = {"include": ["model/model.safetensors"]}
    assert found.line == "code: {include: [model/model.safetensors]}"
    assert find(code, code=kept).paths == ()
    assert "model/model.safetensors" in frozen(code, code=kept)


def test_a_key_is_left_out_though_it_is_named(code: Path) -> None:
    write(code, "server.pem", "spec.yaml")
    found = find(code, "--cert=server.pem")
    assert named(found) == {"server.pem": "it is named like a secret"}
    assert found.line == "code: {link: [server.pem]}"
    assert "server.pem" not in frozen(code, "--cert=server.pem")


def test_a_path_in_the_root_of_experiments(code: Path) -> None:
    write(code, "runs_root/other/a.pt")
    made = plan(code, "--init_from", "runs_root/other/a.pt")
    found = unfrozen.find(made, experiment(code / "runs_root", "experiment"))
    assert named(found) == {"runs_root/other/a.pt": "it lies in the root of experiments"}


def test_caches_and_environments_are_none_of_it(code: Path) -> None:
    (code / ".gitignore").write_text("env\n__pycache__\n*.pyc\n")
    write(code, "env/pyvenv.cfg", "env/bin/python", "__pycache__/a.pyc", "a.pyc")
    assert find(code, "env/bin/python").left_out == ()


def test_what_is_recorded_has_bounds(code: Path) -> None:
    (code / ".gitignore").write_text("*.bin\n")
    write(code, *(f"data/{n}.bin" for n in range(300)), "data/a.py", "z/0.bin", "z.bin")
    found = find(code)
    assert len(found.left_out) == 200
    assert found.left_out[:3] == ("z", "z.bin", "data/0.bin")


def test_names_that_yaml_would_read_otherwise(code: Path) -> None:
    (code / ".gitignore").write_text("my*\n123\n")
    write(code, "my data/x", "123/x")
    found = find(code, config={"data": ["my data", "123"]})
    assert found.line == "code: {link: ['my data', '123']}"


def test_the_code_of_all_runs_is_listed_once(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On shared storage a listing looks at each file; of a large tree that takes long."""
    write(code, "other.py", "mydata/a")
    (code / ".gitignore").write_text("mydata\nother.py\n")
    commands = {0: ["python", "train.py"], 1: ["python", "other.py"]}
    whole = command_plan(code, commands)
    entries = [
        replace(run, entry=replace(run.entry, file=run.entry.argv[-1])) for run in whole.runs
    ]
    whole = replace(whole, runs=tuple(entries))
    first = replace(whole, runs=whole.runs[:1])
    expected = snapshot.freeze(code_files.scope(whole, paths(code)), code.parent / "a")
    scope = unfrozen.find(first, paths(code), whole=whole).scope
    assert scope is not None
    monkeypatch.setattr(code_files, "find", None)
    found = snapshot.freeze(scope, code.parent / "b")
    assert found == replace(expected, archive=found.archive)
    assert found.git == expected.git
    assert found.git is not None
    assert found.git["dirty"] is True
    with tarfile.open(found.archive) as archive:
        assert set(archive.getnames()) == {".gitignore", "spec.yaml", "train.py", "other.py"}
