"""The paths that runs and their programs name and that are here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.plan import Plan
from hpcrun.submission.code import named_paths
from tests.support.plans import command_plan

FILES = ("mydata/train.bin", "data/x.csv", "data/y.csv", "out/old.pt", "plain.json", "train/a.txt")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def plan(code: Path, *argv: str, **spec: Any) -> Plan:
    return command_plan(code, {0: [*argv]}, entry=[*argv], **spec)


def test_arguments_configuration_and_variables(code: Path) -> None:
    made = plan(
        code,
        *("python", "train.py", "--data=mydata/train.bin", "--output_dir", "out", "mode=train"),
        args=["data.files=[data/x.csv,absent.csv]"],
        config={"a": {"b": [{"path": "data/y.csv"}]}, "split": "train"},
        environment={"variables": {"INDEX": "plain.json"}},
    )
    found = {path: one.where for path, one in named_paths.of_runs(made).items()}
    assert found == {
        "mydata/train.bin": "args",
        "data/x.csv": "args",
        "data/y.csv": "config.a.b.path",
        "plain.json": "environment.variables.INDEX",
    }


def test_which_runs_name_it(code: Path) -> None:
    made = command_plan(code, {0: ["a"], 1: ["a"], 2: ["a"]})
    for run, path in zip(made.runs, ("data/x.csv", "data/y.csv", "data/x.csv"), strict=True):
        run.spec["config"] = {"data": path}
    found = named_paths.of_runs(made)
    assert {path: one.runs for path, one in found.items()} == {
        "data/x.csv": {0, 2},
        "data/y.csv": {1},
    }


def of_program(code: Path, *argv: str, left_out: tuple[str, ...] = FILES) -> dict[str, str]:
    found, _ = named_paths.ProgramPaths(plan(code, *argv), left_out).find()
    return {path: one.where for path, one in found.items()}


def test_a_program_and_what_it_imports(code: Path) -> None:
    (code / "pkg").mkdir()
    (code / "pkg" / "__init__.py").touch()
    (code / "pkg" / "load.py").write_text("def load():\n    return open('data/x.csv')\n")
    (code / "train.py").write_text("from pkg.load import load\nopen('mydata/train.bin', 'rb')\n")
    (code / "other.py").write_text("open('data/y.csv')\n")
    found = {"mydata/train.bin": "train.py:2", "data/x.csv": "pkg/load.py:2"}
    assert of_program(code, "python", "train.py") == found
    (code / "run.sh").write_text("set -e\npython train.py --index plain.json\n")
    assert of_program(code, "bash", "run.sh") == {
        **found,
        "plain.json": "run.sh:2",
        "train.py": "run.sh:2",
    }
    assert of_program(code, "python", "-m", "pkg.load") == {"data/x.csv": "pkg/load.py:2"}


def test_a_default_that_is_not_used(code: Path) -> None:
    text = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', default='data')\n"
    )
    (code / "train.py").write_text(text)
    assert of_program(code, "python", "train.py") == {"data": "train.py:3"}
    assert of_program(code, "python", "train.py", "--data", "/else") == {}
    assert of_program(code, "python", "train.py", "--data=/else") == {}


def test_where_a_path_counts_from(code: Path) -> None:
    (code / "pkg").mkdir()
    (code / "pkg" / "train.py").write_text(
        "open('../data/x.csv')\nopen(Path(__file__).parent / '../data/y.csv')\n"
    )
    assert of_program(code, "python", "pkg/train.py") == {"data/y.csv": "pkg/train.py:2"}


def test_settings_that_arguments_or_the_program_name(code: Path) -> None:
    (code / "train.py").write_text(
        "import hydra\n@hydra.main(config_path='conf')\ndef main(): ...\n"
    )
    (code / "conf" / "data").mkdir(parents=True)
    (code / "conf" / "data" / "a.yaml").write_text("root: ${oc.env:X}/data/x.csv\nname: train\n")
    found = {"data/x.csv": "conf/data/a.yaml:1", "conf": "train.py:2"}
    assert of_program(code, "python", "train.py") == found
    (code / "a.json").write_text('{"train_file": "data/y.csv",\n "output_dir": "mydata"}\n')
    assert of_program(code, "python", "other.py", "a.json") == {"data/y.csv": "a.json:1"}


def test_what_it_writes_itself_is_not_missed(code: Path) -> None:
    (code / "train.py").write_text("np.save('data/x.csv', a)\nnp.load('data/x.csv')\n")
    assert of_program(code, "python", "train.py") == {}


def test_a_file_with_no_part_of_a_name_is_not_looked_through(code: Path) -> None:
    (code / "train.py").write_text("open('data/x.csv')\n")
    assert of_program(code, "python", "train.py", left_out=("else/where",)) == {}


def test_what_is_no_python_is_passed_over(code: Path) -> None:
    (code / "train.py").write_text("open('data/x.csv'\n")
    assert of_program(code, "python", "train.py") == {}
