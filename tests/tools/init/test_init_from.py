"""``hpcrun init --from`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import hpcrun
from tests.tools.init.convert.support import project

# Each line would leave a file, in every way in which a shell runs something.
EVIL = """\
#!/bin/bash
#SBATCH --job-name=$(touch {ran}/name)
#SBATCH --nodes=1
#SBATCH --chdir=$(touch {ran}/chdir)
#SBATCH --export=A=$(touch {ran}/export)
touch {ran}/plain
export PATH=$(touch {ran}/dollar):$PATH
X=`touch {ran}/backtick`
source <(touch {ran}/process)
module load $(touch {ran}/module) || touch {ran}/or
cat <<E
$(touch {ran}/document)
E
cat > {ran}/redirect
f() {{ touch {ran}/function; }}; f
trap 'touch {ran}/trap' EXIT
eval touch {ran}/eval
: ${{Y:=$(touch {ran}/default)}} $((Z[$(touch {ran}/arithmetic)]))
{launch}
touch {ran}/after
"""
LAUNCHES = ("srun python train.py", "srun python train.py | tee log", "mpirun python train.py")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return project(tmp_path)


def test_a_spec_and_a_shell_file_are_written_and_planned(directory: Path) -> None:
    done = hpcrun("init", "--from", "torchrun_nodes.sbatch", cwd=directory)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["written: experiment.yaml", "written: experiment.sh"]
    assert lines[-1] == "next: hpcrun check experiment.yaml"
    assert any(
        line.startswith("  14 hosts=( $(scontrol") and "| dropped: " in line for line in lines
    )
    assert any(line.endswith("| as it is: experiment.sh") for line in lines)
    assert (directory / "spec.schema.json").is_file()
    planned = hpcrun("plan", "experiment.yaml", "cluster=slurm", cwd=directory)
    assert planned.returncode == 0, planned.stderr
    assert "#SBATCH --gpus-per-node=a100:4" in planned.stdout


@pytest.mark.parametrize("launch", LAUNCHES)
def test_no_command_of_a_script_runs(launch: str, directory: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ran.mkdir()
    (directory / "evil.sbatch").write_text(EVIL.format(ran=ran, launch=launch))
    more = ["name=evil", "resources.time=00:01:00", "cluster=local"]
    for words in (
        ["init", "--from", "evil.sbatch"],
        ["plan", "experiment.yaml", *more],
        ["check", "experiment.yaml", *more],
        ["submit", "experiment.yaml", *more, "--dry-run"],
    ):
        done = hpcrun(*words, cwd=directory)
        assert done.returncode == 0, (words, done.stderr)
        assert not list(ran.iterdir()), words


def test_what_is_asked_is_told_with_its_key(directory: Path) -> None:
    done = hpcrun("init", "--from", "requeue_trap.sbatch", cwd=directory)
    told = done.stdout[done.stdout.index("the spec asks, by comments at ") :]
    assert "  recovery.stop_signal: line 7 has #SBATCH --signal=B:USR1@120" in told
    assert "note: line 18: hpcrun requeues its runs itself" in done.stderr


def test_plan_names_the_keys_of_a_template(directory: Path) -> None:
    (directory / "t.sbatch").write_text(
        "#!/bin/bash\n#SBATCH -t 5\n#SBATCH --nodes={{ n }}\nsrun x\n"
    )
    assert hpcrun("init", "--from", "t.sbatch", cwd=directory).returncode == 0
    done = hpcrun("plan", "experiment.yaml", "cluster=slurm", cwd=directory)
    assert done.returncode == 2
    assert "resources.nodes: must be given (add resources.nodes=VALUE to the" in done.stderr
    words = ["cluster=slurm", "resources.nodes=2"]
    assert hpcrun("plan", "experiment.yaml", *words, cwd=directory).returncode == 0


def test_a_dry_run_prints_the_files_alone_on_stdout(directory: Path) -> None:
    done = hpcrun("init", "--from", "srun_python.sbatch", "-n", cwd=directory)
    assert done.returncode == 0
    assert done.stdout.startswith("# yaml-language-server: $schema=")
    assert "--- experiment.sh\n#!/bin/bash -l\n" in done.stdout
    assert "nothing was written (--dry-run)" in done.stderr
    assert "| name" in done.stderr
    assert not (directory / "experiment.yaml").exists()
    assert not (directory / "experiment.sh").exists()


def test_json_has_every_line(directory: Path) -> None:
    done = hpcrun("init", "--from", "grid_loops.sbatch", "-o", "grid.yaml", "--json", cwd=directory)
    found = json.loads(done.stdout)
    assert (found["path"], found["action"], found["name"]) == ("grid.yaml", "written", "grid")
    assert found["spec"] == (directory / "grid.yaml").read_text()
    assert found["shell"] == (directory / "grid.sh").read_text()
    fates = {one["line"]: one["fate"] for one in found["lines"]}
    assert fates.keys() >= {1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13, 14, 15, 16, 18}
    assert fates[18] == "as it is"


def test_files_that_are_there_are_kept(directory: Path) -> None:
    mine = directory / "experiment.sh"
    mine.write_text("mine\n")
    done = hpcrun("init", "--from", "array_seeds.sbatch", cwd=directory)
    assert done.returncode == 2
    assert "experiment.sh is there already, and differs; nothing was written" in done.stderr
    assert (mine.read_text(), (directory / "experiment.yaml").exists()) == ("mine\n", False)
    assert hpcrun("init", "--from", "array_seeds.sbatch", "--force", cwd=directory).returncode == 0
    assert "name: seeds" in (directory / "experiment.yaml").read_text()
    again = hpcrun("init", "--from", "array_seeds.sbatch", cwd=directory)
    assert again.stdout.startswith("unchanged: experiment.yaml\nunchanged: experiment.sh")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "lacking.sbatch"], "lacking.sbatch cannot be read: No such file"),
        (["--from", "."], "cannot be read: "),
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
