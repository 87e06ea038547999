"""The rendered script: nothing from YAML reaches the shell unquoted, and values arrive intact."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.compile import compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.compile.target.sbatch_script import directive, quote
from hpcrun.errors import UsageError
from hpcrun.state.plan import Plan

EVIL = [
    "plain",
    "two words",
    "it's",
    'say "hi"',
    "$(touch PWNED)",
    "`touch PWNED`",
    "; touch PWNED;",
    "a\ntouch PWNED\n#",
    "\\",
    "${HOME}".replace("$", "\\$"),
    "$HOME",
    "* ? [a-z] {a,b} ~ ! # & | > <",
    "é ü 漢",
    "-n",
    "",
]
STUB = """\
#!{python} -E
import json, os, sys
found = {{name: value for name, value in os.environ.items()}}
json.dump([sys.argv[1:], found], open({answer!r}, "w"))
"""


def run_script(script: str, directory: Path, environment: dict[str, str]) -> None:
    path = directory / "job.sbatch"
    path.write_text(script)
    subprocess.run(["bash", str(path)], cwd=directory, env=environment, check=True, timeout=60)


@pytest.mark.parametrize("array", [False, True])
def test_values_arrive_and_nothing_else_happens(project: Any, tmp_path: Path, array: bool) -> None:
    odd = tmp_path / "odd; touch PWNED; 'dir' $(touch PWNED)"
    odd.mkdir()
    answer = odd / "answer.json"
    stub = odd / "py thon"
    stub.write_text(STUB.format(python=sys.executable, answer=str(answer)))
    stub.chmod(0o755)
    root = odd / "root 100%"
    variables = {f"V{index}": text for index, text in enumerate(EVIL)}
    spec = {
        "entry": "train.py",
        "cluster": "slurm",
        "config": {"text": "; touch PWNED"},
        "args": ["$(touch PWNED)"],
        "environment": {
            "python": str(stub),
            "variables": variables,
            "setup": ["export FROM_SETUP=yes"],
        },
    }
    path = project.write("odd.yaml", json.dumps(spec))
    sweeps = ["config.text=a,b"] if array else []
    plan = freeze(compile_spec(path, (), sweeps, root=root), submission=3)
    work = tmp_path / "work"
    work.mkdir()
    environment = {"SLURM_EXPORT_ENV": "NIL", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "7"}
    run_script(plan.arrays[0].script, work, environment)
    arguments, found = json.loads(answer.read_text())
    submission = root / "odd" / "submissions" / "3"
    run = "1" if array else "0"
    assert arguments == ["-m", "hpcrun.run.keeper", str(submission), "--run", run]
    for index, text in enumerate(EVIL):
        assert found[f"V{index}"] == text.replace("\\$", "$")
    assert found["PYTHONPATH"].split(":")[0] == str(submission / "hpcrun.zip")
    assert found["FROM_SETUP"] == "yes"
    assert "SLURM_EXPORT_ENV" not in found
    assert found["SLURM_JOB_ID"] == "7"
    assert found["HOME"]
    assert found["USER"]
    assert "/bin" in found["PATH"]
    assert not list(tmp_path.rglob("PWNED"))


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])))
def test_quoting_survives_the_shell(text: str) -> None:
    answer = subprocess.run(
        ["bash", "-c", f"printf %s {quote(text)}"], capture_output=True, check=True, timeout=20
    )
    assert answer.stdout.decode() == text


def _read_as_sbatch_does(text: str) -> str:
    """The argument parser of sbatch.c (_get_argument), for one option."""
    found, quoted, escaped = "", "", False
    for character in text:
        if escaped:
            found, escaped = found + character, False
        elif character == "\\":
            escaped = True
        elif quoted and character == quoted:
            quoted = ""
        elif not quoted and character in "'\"":
            quoted = character
        elif not quoted and (character == "#" or character.isspace()):
            break
        else:
            found += character
    return found


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_directives_survive_sbatch(text: str) -> None:
    assert _read_as_sbatch_does(directive("output", text)) == f"--output={text}"


@pytest.mark.parametrize("bad", ["a\nb", "a\x00", "\t", "\x7f", "a\r"])
def test_a_directive_is_one_line(bad: str) -> None:
    with pytest.raises(UsageError, match="sbatch --partition"):
        directive("partition", bad)


def test_sbatch_options_of_profile_and_spec(project: Any) -> None:
    project.write("configs/clusters/mine.yaml", "sbatch: {licenses: 'a:1', exclusive: true}\n")
    path = project.write(
        "spec.yaml",
        "entry: train.py\ncluster: mine\nresources:\n  mem: 0\n  constraint: a&b\n"
        "  sbatch: {licenses: 'b c'}\n",
    )
    script = freeze(compile_spec(path)).arrays[0].script
    header = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert '#SBATCH --licenses="b c"' in header
    assert "#SBATCH --exclusive" in header
    assert "#SBATCH --mem=0" in header
    assert "#SBATCH --constraint=a&b" in header
    for always in ("--requeue", "--open-mode=append", "--export=NIL", "--cpus-per-task=1"):
        assert f"#SBATCH {always}" in header


def test_a_script_that_starts_its_ranks_asks_for_no_cpus_of_its_own(project: Any) -> None:
    """On a whole node, or where GPUs bring CPUs, its steps have what Slurm gives."""
    text = "entry: [bash, job.sh]\ncluster: slurm\nframework: batch\n"
    project.write("job.sh", "srun nproc\n")
    for more, number in (("", 0), ("resources: {cpus_per_task: 1}\n", 1)):
        script = freeze(compile_spec(project.write("spec.yaml", text + more))).arrays[0].script
        assert script.count("#SBATCH --cpus-per-task=1\n") == number


def test_mail_of_slurm(project: Any) -> None:
    path = project.write(
        "spec.yaml",
        "entry: train.py\ncluster: slurm\nconfig: {x: 0}\nnotify: {mail: ada@example.org}\n"
        "sweep:\n  grid: {config.x: [0, 1, 2]}\n"
        "  when: [{match: {config.x: 2}, set: {notify.mail_types: [END, ARRAY_TASKS]}}]\n",
    )
    first, second = (array.script.splitlines() for array in freeze(compile_spec(path)).arrays)
    assert "#SBATCH --mail-user=ada@example.org" in first
    assert "#SBATCH --mail-type=END,FAIL,INVALID_DEPEND" in first
    assert "#SBATCH --mail-type=END,ARRAY_TASKS" in second
    plain = project.write("plain.yaml", "entry: train.py\ncluster: slurm\n")
    assert "--mail" not in freeze(compile_spec(plain)).arrays[0].script


def test_the_path_of_the_command_that_is_told_of_ends(project: Any) -> None:
    notify = "notify: {command: [./tell.sh, ./argument]}"
    project.write("tell.sh", "#!/bin/sh\n").chmod(0o755)
    path = project.write("spec.yaml", f"entry: train.py\ncluster: slurm\n{notify}\n")
    run = freeze(compile_spec(path)).runs[0]
    assert run.spec["notify"]["command"] == [str(project.directory / "tell.sh"), "./argument"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("gpus_per_node: 2", "2"),
        ("gpus_per_node: 2, gpu_type: a100", "a100:2"),
        ("gpus_per_node: 1, gpu_type: 1g.10gb", "1g.10gb:1"),
        ("gpu_type: a100", None),
    ],
)
def test_type_of_gpus(project: Any, wanted: str, expected: str | None) -> None:
    spec = f"entry: train.py\ncluster: slurm\nresources: {{{wanted}, sbatch: {{gres: 'nvme:1'}}}}\n"
    header = freeze(compile_spec(project.write("spec.yaml", spec))).arrays[0].script.splitlines()
    found = [line for line in header if line.startswith("#SBATCH --gpus-per-node")]
    assert found == ([f"#SBATCH --gpus-per-node={expected}"] if expected else [])
    assert "#SBATCH --gres=nvme:1" in header


def _asked(project: Any, resources: str, rest: str = "") -> Plan:
    spec = f"entry: train.py\ncluster: slurm\nresources: {{{resources}}}\n{rest}"
    return freeze(compile_spec(project.write("spec.yaml", spec)))


WHOLE = "gpus_per_node: 2, gpu_request: none, node_has_gpus: 8"


@pytest.mark.parametrize(
    ("resources", "expected", "hours"),
    [
        ("gpus_per_node: 2, node_has_gpus: 8", ["gpus-per-node=2"], 4),
        ("gpus_per_node: 2, gpu_request: gres", ["gres=gpu:2"], 4),
        ("gpus_per_node: 2, gpu_request: gres, gpu_type: a100", ["gres=gpu:a100:2"], 4),
        (
            "gpus_per_node: 2, gpu_request: gres, sbatch: {gres: 'nvme:1'}",
            ["gres=gpu:2,nvme:1"],
            4,
        ),
        (WHOLE, ["exclusive"], 16),
        (f"{WHOLE}, sbatch: {{exclusive: true}}", ["exclusive"], 16),
        ("gpu_request: none, node_has_gpus: 8", [], 0),
    ],
)
def test_the_ways_to_ask_for_gpus(
    project: Any, resources: str, expected: list[str], hours: int
) -> None:
    (array,) = _asked(project, f"nodes: 2, time: '01:00:00', {resources}").arrays
    found = re.findall(r"^#SBATCH --(gpus\S*|gres\S*|exclusive\S*)", array.script, re.MULTILINE)
    assert (found, array.gpu_hours) == (expected, hours)


def test_whole_nodes_are_told(project: Any) -> None:
    def notes(resources: str, cluster: str = "slurm") -> str:
        spec = f"entry: train.py\ncluster: {cluster}\nresources: {{{resources}}}\n"
        return "\n".join(compile_spec(project.write("spec.yaml", spec)).notes)

    assert "count all 8 GPUs of a node, of which 2 are used" in notes(WHOLE)
    assert "count all 2 GPUs of a node\n" in notes(WHOLE.replace("8", "2")) + "\n"
    assert "alone" not in notes("gpus_per_node: 2, node_has_gpus: 8")
    assert "not used here" in notes(WHOLE, "local")
    assert "alone" not in notes(WHOLE, "local")


@pytest.mark.parametrize("option", ["exclusive: user", "exclusive: false", "oversubscribe: true"])
def test_whole_nodes_that_would_be_shared_are_refused(project: Any, option: str) -> None:
    with pytest.raises(UsageError, match="two jobs on a node would use the same") as error:
        _asked(project, f"{WHOLE}, sbatch: {{{option}}}")
    assert option.partition(":")[0] in str(error.value.hint)


def test_a_part_of_other_nodes_has_them_alone(project: Any) -> None:
    project.write("serve.py", "")
    own = "{partition: dgx, gpu_request: none, node_has_gpus: 8}"
    roles = (
        "roles: {main: {}, serve: {entry: serve.py, gpus_per_node: 4, resources: " + own + "}}\n"
    )
    plan = _asked(project, "gpus_per_node: 2, time: '01:00:00'", roles)
    first, second = plan.arrays[0].script.split("#SBATCH hetjob")
    assert "--gpus-per-node=2" in first
    assert "--exclusive" not in first
    assert "--gpus-per-node" not in second
    assert "#SBATCH --exclusive" in second
    assert plan.runs[0].all_gpus == 2 + 8
