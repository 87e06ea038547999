"""Files that git ignores and that a spec names: told before the queue, and by `why` after it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.command import hpcrun

PROGRAM = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", default="data/x.csv")
print(open(parser.parse_args().data).read())
"""
TOLD = "data/x.csv (train.py:4; git ignores it)"
LINE = "code: {include: [data/x.csv]}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A clone, in which data were prepared that git ignores."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    (origin / ".gitignore").write_text("data\n")
    (origin / "train.py").write_text(PROGRAM)
    (origin / "spec.yaml").write_text("cluster: local\nentry: train.py\n")
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-C", str(origin)]
    for words in (["init"], ["add", "-A"], ["commit", "-m", "a"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    subprocess.run(["git", "clone", str(origin), str(clone)], check=True, capture_output=True)
    (clone / "data").mkdir()
    (clone / "data" / "x.csv").write_text("1,2\n")
    return clone


def test_before_the_queue(project: Path, tmp_path: Path) -> None:
    for command in (["plan"], ["submit", "--dry-run"]):
        done = hpcrun(*command, project / "spec.yaml", root=tmp_path / "root")
        assert TOLD in done.stderr
        assert LINE in done.stderr
        found = hpcrun(*command, project / "spec.yaml", "--json", root=tmp_path / "root")
        data = json.loads(found.stdout)["unfrozen"]
        assert data["line"] == LINE
        assert data["paths"] == [
            {
                **{"path": "data/x.csv", "where": "train.py:4", "why": "git ignores it"},
                **{"missing": [], "runs": []},
            }
        ]
    checked = hpcrun("check", project / "spec.yaml", "--json", root=tmp_path / "root")
    (finding,) = [one for one in json.loads(checked.stdout)[0]["findings"] if one["key"] == "code"]
    assert finding["severity"] == "warning"
    assert TOLD in finding["message"]
    assert LINE in finding["hint"]


def test_after_it(project: Path, tmp_path: Path) -> None:
    spec, root = project / "spec.yaml", tmp_path / "root"
    done = hpcrun("submit", spec, "--wait", "--json", root=root)
    assert json.loads(done.stdout)["unfrozen"]["line"] == LINE
    assert TOLD in done.stderr
    told = hpcrun("why", "spec", root=root).stdout
    assert f"data/x.csv is in {project} and is not in the frozen code: write `{LINE}`" in told
    advice = json.loads(hpcrun("why", "spec", "--json", root=root).stdout)[0]["advice"]
    assert LINE in advice
    for line in (LINE, "code: {link: [data]}"):
        spec.write_text(f"cluster: local\nentry: train.py\n{line}\n")
        done = hpcrun("submit", spec, "--wait", "--new", "--json", root=root)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["unfrozen"] is None


def test_a_variable_of_the_submitting_shell(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['MY_DATA'])\n")
    spec, root = tmp_path / "spec.yaml", tmp_path / "root"
    spec.write_text("cluster: local\nentry: train.py\nrecovery: {max_failures: 1}\n")
    shell = {"MY_DATA": "a-value-of-its-own"}
    hpcrun("submit", spec, "--wait", root=root, env=shell)
    told = hpcrun("why", "spec", root=root).stdout
    line = "environment: {variables: {MY_DATA: '${oc.env:MY_DATA}'}}"
    assert "MY_DATA was set in the shell that submitted; the job has only what the spec" in told
    assert f"write `{line}` in the spec" in told
    kept = (root / "spec" / "submissions" / "1" / "submission.json").read_text()
    assert "MY_DATA" in kept
    assert shell["MY_DATA"] not in kept
    spec.write_text(f"cluster: local\nentry: train.py\n{line}\n")
    assert hpcrun("submit", spec, "--wait", root=root, env=shell).returncode == 0


def test_beside_a_spec_that_is_not_in_the_code(project: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("3,4\n")
    spec, root = tmp_path / "spec.yaml", tmp_path / "root"
    given = f"cluster: local\nentry: {project}/train.py\nargs: [--data, mine.csv]\n"
    spec.write_text(given)
    hpcrun("submit", spec, "--wait", root=root)
    assert f"name {tmp_path}/mine.csv" in hpcrun("why", "spec", root=root).stdout
    spec.write_text(given + "code: {include: [mine.csv]}\n")
    assert "code.link shows it to the job" in hpcrun("plan", spec, root=root).stderr
    spec.write_text(given + "code: {include: [typo.csv]}\n")
    told = hpcrun("plan", spec, root=root).stderr
    assert "there is no 'typo.csv'" in told
    assert "typo.csv' lies beside the spec" not in told
    line = "code: {link: [mine.csv]}"
    spec.write_text(given)
    assert line in hpcrun("plan", spec, root=root).stderr
    spec.write_text(f"{given}{line}\n")
    done = hpcrun("submit", spec, "--wait", "--new", root=root)
    assert done.returncode == 0, done.stderr


def test_a_link_out_of_the_specs_directory(project: Path, tmp_path: Path) -> None:
    (project / "exp").mkdir()
    spec = project / "exp" / "spec.yaml"
    given = "args: [--data, ../data/x.csv]\ncode: {link: [../data]}\n"
    spec.write_text(f"cluster: local\nentry: ../train.py\n{given}")
    done = hpcrun("submit", spec, "--wait", root=tmp_path / "root")
    assert done.returncode == 0, done.stderr
    assert "1,2" in hpcrun("logs", "spec", root=tmp_path / "root").stdout
