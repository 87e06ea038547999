"""``hpcrun init --from`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.convert.support import project
from tests.support.command import hpcrun

WRITTEN = "written: experiment.yaml"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return project(tmp_path)


def test_a_spec_is_written_and_planned(directory: Path) -> None:
    done = hpcrun("init", "--from", "torchrun_nodes.sbatch", cwd=directory)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == WRITTEN
    assert lines[-1] == "next: hpcrun check experiment.yaml"
    assert "could not be carried over: nothing" in lines
    assert "  lines 14-16: hpcrun gives its ranks what they need to meet" in lines
    assert "note: the 32 CPUs of each launcher are 8" in done.stderr
    assert (directory / "spec.schema.json").is_file()
    planned = hpcrun("plan", "experiment.yaml", "cluster=slurm", cwd=directory)
    assert planned.returncode == 0, planned.stderr
    assert "#SBATCH --gpus-per-node=a100:4" in planned.stdout


def test_what_was_left_out_is_told_with_its_line(directory: Path) -> None:
    done = hpcrun("init", "--from", "bash_c_ranks.sbatch", cwd=directory)
    told = done.stdout[done.stdout.index("could not be carried over: 2") :]
    assert "  line 9: #SBATCH --dependency=afterok:4711: it names a job" in told
    assert "  line 23: srun --cpu-bind=cores" in told


def test_a_dry_run_prints_the_spec_alone_on_stdout(directory: Path) -> None:
    done = hpcrun("init", "--from", "array_seeds.sbatch", "-n", cwd=directory)
    assert done.returncode == 0
    assert done.stdout.startswith("# yaml-language-server: $schema=")
    assert done.stdout.endswith("  max_parallel: 2\n")
    assert "nothing was written (--dry-run)" in done.stderr
    assert "carried over:" in done.stderr
    assert not (directory / "experiment.yaml").exists()


def test_json_has_every_line(directory: Path) -> None:
    done = hpcrun("init", "--from", "grid_loops.sbatch", "-o", "grid.yaml", "--json", cwd=directory)
    found = json.loads(done.stdout)
    assert (found["path"], found["action"], found["name"]) == ("grid.yaml", "written", "grid")
    assert found["spec"] == (directory / "grid.yaml").read_text()
    fates = {one["line"]: one["fate"] for one in found["lines"]}
    assert fates[18] == "could not be carried over"
    assert {2, 3, 4, 5, 6, 8, 9, 11, 12, 14} <= fates.keys()


def test_a_spec_that_is_there_is_kept(directory: Path) -> None:
    mine = directory / "experiment.yaml"
    mine.write_text("name: mine\n")
    done = hpcrun("init", "--from", "array_seeds.sbatch", cwd=directory)
    assert done.returncode == 2
    assert "experiment.yaml is there already, and differs; nothing was written" in done.stderr
    assert mine.read_text() == "name: mine\n"
    assert hpcrun("init", "--from", "array_seeds.sbatch", "--force", cwd=directory).returncode == 0
    assert "name: seeds" in mine.read_text()
    again = hpcrun("init", "--from", "array_seeds.sbatch", cwd=directory)
    assert again.stdout.startswith("unchanged: experiment.yaml")


def test_another_directory(directory: Path) -> None:
    """Paths of the spec are relative to where it is written."""
    done = hpcrun("init", "megatron", "--from", "megatron_document.sbatch", cwd=directory)
    assert done.returncode == 0, done.stderr
    assert "entry: pretrain_gpt.py" in (directory / "megatron/experiment.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "lacking.sbatch"], "lacking.sbatch cannot be read: No such file"),
        (["--from", "/dev/zero"], "not a regular file"),
        (["--from", "train.py"], "is no script for sbatch"),
        (["--from", "array_seeds.sbatch", "--local"], "--local and --profile-only are for a new"),
        (["-o", "x.yaml"], "-o names the spec that --from makes"),
    ],
)
def test_mistakes(arguments: list[str], words: str, directory: Path) -> None:
    done = hpcrun("init", *arguments, cwd=directory)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (directory / "experiment.yaml").exists()
