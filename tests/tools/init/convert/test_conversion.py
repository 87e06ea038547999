"""`hpcrun init --from`: what of a script is certain, and that all else stays as it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcrun.compile import compile_spec
from hpcrun.compile.target.sbatch_request import ASKED, DROPPED, SHELL, SPEC
from hpcrun.errors import UsageError
from hpcrun.tools.init.convert.conversion import MARK, Conversion, convert, read_script, shell_name
from tests.support.doc_blocks import blocks
from tests.tools.init.convert.support import SCRIPTS, project

RANKS = 'sh "$HPCRUN_RANKS" || exit'


def made(text: str) -> Conversion:
    """The conversion of a script."""
    return convert(text, Path("/nowhere/job.sbatch"), "experiment.sh")


def job(*lines: str, options: str = "") -> str:
    head = [f"#SBATCH {one}" for one in options.split("|") if one]
    return "\n".join(["#!/bin/bash", *head, *lines, ""])


def spec_of(text: str) -> dict[str, Any]:
    return yaml.safe_load(made(text).spec)


def lines_of(done: Conversion) -> list[str]:
    """The lines of the shell file that do something."""
    return [line for line in done.shell.split("\n") if line.strip() and line[:1] != "#"]


def is_verbatim(text: str) -> Conversion:
    """Check that a script stays as it is, to the byte, and starts its programs itself."""
    done = made(text)
    spec = yaml.safe_load(done.spec)
    assert (spec["entry"][-1], spec["framework"]) == ("experiment.sh", "batch")
    assert done.shell == text
    assert "batch_script" not in spec
    return done


# --- ten scripts


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_becomes_what_is_beside_it(script: Path) -> None:
    """To write them anew: python -m tests.tools.init.convert.golden."""
    done = convert(read_script(script), script, "experiment.sh")
    assert done.spec == script.with_suffix(".yaml").read_text()
    if "framework: batch" in done.spec:
        kept = {line for line in done.shell.split("\n") if "# was" not in line}
        assert kept >= {line for line in script.read_text().split("\n") if line[:1] != "#"}
    else:
        assert done.shell == script.with_suffix(".sh").read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_its_spec_is_planned(script: Path, tmp_path: Path) -> None:
    directory = project(tmp_path)
    done = convert(read_script(script), directory / script.name, "experiment.sh")
    (directory / "experiment.yaml").write_text(done.spec)
    (directory / "experiment.sh").write_text(done.shell)
    assert compile_spec(str(directory / "experiment.yaml"), [], []).runs


def test_the_page_shows_what_is_made() -> None:
    script, _, shell, spec = blocks("docs/from-sbatch.md")
    done = convert(script.text, Path("job.sbatch"), "experiment.sh")
    assert (done.spec, done.shell) == (spec.text, shell.text)


# --- certain


def test_paths_that_are_added_to_stay_as_they_are() -> None:
    names = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CPATH")
    exports = [f"export {name}=/opt/x:${name}" for name in names]
    done = made(job(*exports, "srun python train.py --lr=0.1"))
    assert lines_of(done) == [*exports, RANKS]
    spec = yaml.safe_load(done.spec)
    assert (spec["entry"], spec["args"]) == (["python", "train.py"], ["--lr=0.1"])
    assert spec["batch_script"] == "experiment.sh"
    assert "environment" not in spec


def test_a_launch_line_alone_needs_no_shell_file() -> None:
    done = made(job("srun python -m train --x 'a b' 3", options="--ntasks=2"))
    spec = yaml.safe_load(done.spec)
    assert (spec["entry"], spec["args"]) == (["python", "-m", "train"], ["--x", "a b", "3"])
    assert spec["resources"]["ntasks_per_node"] == 2
    assert (done.shell_file, "batch_script" in spec) == ("", False)


def test_lines_of_a_rendezvous_are_dropped_and_named() -> None:
    lines = (
        'nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )',
        "head=${nodes[0]}",
        'ip=$(srun -N1 -n1 -w "$head" hostname --ip-address)',
        "echo Node IP: $ip",
        "export MASTER_PORT=$((1024 + RANDOM % 64511))",
        "export DATA=$(cat /etc/data)",
        'srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 --rdzv_endpoint "$ip:29500" \\',
        "    train.py",
    )
    done = made(job(*lines, options="--nodes=2|--ntasks-per-node=1|--gpus-per-node=4"))
    assert lines_of(done) == ["export DATA=$(cat /etc/data)", RANKS]
    assert [one.line for one in done.fates if one.fate == DROPPED] == [5, 6, 7, 8, 9]
    assert "--rdzv_endpoint" in next(one.what for one in done.fates if one.line == 11)
    spec = yaml.safe_load(done.spec)
    assert spec["entry"] == ["torchrun", "--nproc_per_node=4", "train.py"]
    assert spec["framework"] == "torchrun"
    # All of it is there to be read, at its own place.
    assert done.shell.split("\n")[4] == MARK + lines[0]


def test_what_a_rendezvous_shares_with_others_stays() -> None:
    lines = ["export MASTER_ADDR=$(hostname)", "./tell $MASTER_ADDR", "srun python train.py"]
    assert lines_of(made(job(*lines))) == [*lines[:2], RANKS]


def test_what_follows_the_launch_line_stays_behind_it() -> None:
    lines = ["mkdir -p out", "srun python train.py", "cp -r out /archive", "mail -s done ada < log"]
    done = made(job(*lines))
    assert lines_of(done) == [lines[0], RANKS, *lines[2:]]
    assert any("runs once its ranks have ended well" in one for one in done.notes)


def test_variables_that_were_set_once_to_a_text_are_certain() -> None:
    lines = ("A=train.py", 'CMD="python -u $A --lr 0.1"', 'srun bash -c "$CMD"')
    spec = spec_of(job(*lines, options="--ntasks=2"))
    assert (spec["entry"], spec["args"]) == (["python", "-u", "train.py"], ["--lr", "0.1"])


@pytest.mark.parametrize(
    "before",
    [
        ["A=1", "A=2"],
        ["if x; then", "A=1", "fi"],
        ["A=$(cat a)"],
        ["A=1", "source env.sh"],
        ["A=1", "read A < f"],
        ["for A in 1; do :; done"],
        ["A=~/x"],
        ["A='*'"],
    ],
)
def test_other_variables_are_not(before: list[str]) -> None:
    is_verbatim(job(*before, "srun python train.py $A"))


def test_options_that_hpcrun_has_no_key_for_stay_raw() -> None:
    done = made(job("srun python a.py", options="--hint=nomultithread|--image=x:y|-L scratch"))
    given = {"hint": "nomultithread", "--image": "x:y", "licenses": "scratch"}
    assert yaml.safe_load(done.spec)["resources"]["sbatch"] == given


def test_chdir_and_export_become_lines_of_the_shell_file() -> None:
    done = made(job("srun python a.py", options="--chdir=/my code|--export=ALL,X=a b"))
    assert lines_of(done)[0].startswith("cd /my || exit")
    done = made(job("srun python a.py", options='--export=ALL,X="a b"'))
    assert lines_of(done)[0].startswith("export X='a b'")


# --- not certain


@pytest.mark.parametrize(
    "lines",
    [
        ["python prepare.py", "srun python train.py"],
        ["srun python train.py", "srun python train.py --more"],
        ["srun python train.py &", "wait"],
        ["exec srun python train.py"],
        ["srun python train.py | tee log"],
        ["srun python train.py > log 2>&1"],
        ["for i in 1 2; do srun python train.py $i; done"],
        ["if true; then", "srun python train.py", "fi"],
        ["run() { srun python train.py; }", "run"],
        ["run() {", "srun python train.py; }", "run", "run"],
        ["until srun python train.py; do sleep 1; done"],
        ["cd x && srun python train.py"],
        ["srun python train.py", "if [ $? = 0 ]; then mail; fi"],
        ["trap 'scontrol requeue $SLURM_JOB_ID' USR1", "srun python train.py"],
        ['ARGS=(--lr "0.1 0.2")', 'srun python train.py "${ARGS[@]}"'],
        ["srun python train.py $1"],
        ["srun python train.py $SCRATCH/data"],
        ["srun python train.py data/*.bin"],
        ["srun python train.py '${x}'"],
        ["srun --gres=gpu:1 python train.py"],
        ["srun -N1 -n1 hostname", "srun python train.py"],
        ["mpirun -np 4 python train.py"],
        ["srun ./program"],
        ["deepspeed --hostfile=h train.py"],
        ["accelerate launch --num_processes 2 train.py"],
        ["LAUNCH='python train.py'", "$UNKNOWN $LAUNCH"],
        ["srun bash -c 'cd x; python train.py'"],
        ["srun python train.py <<E", "#SBATCH --nodes=7", "E"],
        ["echo 'not closed", "srun python train.py"],
        ["python train.py"],
    ],
)
def test_a_script_that_is_not_certain_stays_as_it_is(lines: list[str]) -> None:
    done = is_verbatim(job(*lines, options="--nodes=2"))
    assert all(one.fate == SHELL for one in done.fates if one.line > 2)
    assert any("starts its programs itself: " in one for one in done.notes)


@pytest.mark.parametrize("prefix", ["time ", "NCCL_DEBUG=INFO ", "true; "])
def test_words_before_a_launch_line_stay_there(prefix: str) -> None:
    done = made(job(f"{prefix}srun python train.py", options="--nodes=2"))
    assert lines_of(done) == [prefix + RANKS]


def test_an_array_is_a_sweep_whose_runs_find_their_task() -> None:
    done = is_verbatim(job("python a.py $SLURM_ARRAY_TASK_ID", options="--array=0-6:2%2"))
    spec = yaml.safe_load(done.spec)
    assert spec["sweep"] == {"grid": {"config.task": [0, 2, 4, 6]}, "max_parallel": 2}
    assert spec["entry"][:2] == ["env", "SLURM_ARRAY_TASK_ID=${config.task}"]


def test_slurm_reads_no_options_after_the_first_command() -> None:
    done = is_verbatim(job("echo", "#SBATCH --nodes=9", options="--nodes=2"))
    assert yaml.safe_load(done.spec)["resources"]["nodes"] == 2
    assert (
        "after the first command, line 3" in next(one for one in done.fates if one.line == 4).what
    )


def test_a_template_is_asked_for() -> None:
    done = is_verbatim(
        job("srun {{ cmd }}", options="--nodes={{ nodes }}|--time={{ t }}|-J {{ n }}")
    )
    spec = yaml.safe_load(done.spec)
    assert (spec["resources"]["nodes"], spec["resources"]["time"]) == ("???", "???")
    assert "# hpcrun asks: line 2 has #SBATCH --nodes={{ nodes }}" in done.spec
    assert sorted(one.line for one in done.fates if one.fate == ASKED) == [2, 3, 4]


@pytest.mark.parametrize("words", ["{{ lr }}", '"{{lr|default(1)}}"', "{% if x %}--y{% endif %}"])
def test_a_template_in_a_launch_line_is_no_word(words: str) -> None:
    done = is_verbatim(job(f"srun python train.py --lr {words}", options="--nodes=2"))
    assert "# hpcrun asks: line 3 has {" in done.spec


def test_braces_that_bash_expands_are_no_template() -> None:
    done = made(job("echo {{1..3},{7..9}} '{{print $1}}'", "srun python a.py", options="-N 2"))
    assert yaml.safe_load(done.spec)["entry"] == ["python", "a.py"]


def test_arguments_of_a_function_are_its_own() -> None:
    done = made(job("say() {", '  echo "$1"', "}", "say x", "srun python a.py", options="-N 2"))
    assert yaml.safe_load(done.spec)["entry"] == ["python", "a.py"]
    assert not any(one.startswith("args") for one in done.asks)


def test_what_comes_from_outside_is_asked_for() -> None:
    done = made(job('echo "$1" "$DATA_DIR" "${MODE:-fast}" $HOME $SLURM_JOB_ID'))
    assert [one.partition(":")[0] for one in done.asks] == [
        *("resources.time", "args", "environment.variables.DATA_DIR"),
    ]
    assert "# hpcrun asks: args: line 2 reads the script's arguments" in done.spec
    assert any(one.endswith("environment.variables): MODE") for one in done.notes)


def test_secrets_are_neither_printed_nor_lost() -> None:
    text = job("export WANDB_API_KEY=0123456789abcdef", "srun python train.py")
    done = made(text)
    assert "0123456789abcdef" in done.shell
    assert all("0123456789abcdef" not in one.text for one in done.fates)
    assert any("environment.secrets_file" in one for one in done.notes)


# --- hostile


def test_line_ends_of_windows_are_said(tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_bytes(b"#!/bin/bash\r\n#SBATCH --nodes=2\r\nsrun python a.py | tee l\r\n")
    done = convert(read_script(path), path, "experiment.sh")
    assert "\r" not in done.shell
    assert yaml.safe_load(done.spec)["resources"]["nodes"] == 2
    assert any("CR LF" in one for one in done.notes)


def test_bytes_that_are_no_text_come_back(tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_bytes(b"#!/bin/bash\n#SBATCH -J \xff\xfe\necho \xe9\nsrun python \xff.py\n")
    done = convert(read_script(path), path, "experiment.sh")
    assert done.shell.encode("utf-8", "surrogateescape") == path.read_bytes()
    done.spec.encode()
    str(done.to_data()).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"srun python a.py\n", "does not begin with #!"),
        (b"#!/bin/bash\n\0", "NUL"),
        (b"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH hetjob\n", "heterogeneous"),
    ],
)
def test_what_is_no_script_is_refused(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=words):
        convert(read_script(path), path, "experiment.sh")


def test_a_script_of_another_language_stays_as_it_is() -> None:
    text = "#!/usr/bin/env python3\n#SBATCH --nodes=2\nimport os\nos.system('srun hostname')\n"
    done = made(text)
    assert yaml.safe_load(done.spec)["entry"] == ["/usr/bin/env", "python3", "experiment.sh"]
    assert done.shell == text


def test_tabs_and_no_last_line_end() -> None:
    done = made("#!/bin/bash -l\n#SBATCH\t--nodes=2\n\tmodule load x\n\tsrun\tpython\ta.py")
    assert yaml.safe_load(done.spec)["resources"]["nodes"] == 2
    assert lines_of(done) == ["\tmodule load x", f"\t{RANKS}"]


@pytest.mark.parametrize(
    "line", ["x" * 1_000_000, "srun python a.py " + "--x " * 250_000, "#SBATCH " + "a " * 500_000]
)
def test_a_line_of_a_megabyte_takes_no_seconds(line: str) -> None:
    begun = time.process_time()
    made(job(line))
    assert time.process_time() - begun < 4


_WORDS = st.sampled_from(
    [
        *(
            "srun",
            "python",
            "train.py",
            "torchrun",
            "--nnodes=2",
            "$A",
            '"$B"',
            "'c",
            '"d',
            "$(",
            ")",
        ),
        *(
            "if",
            "then",
            "fi",
            "for",
            "do",
            "done",
            "case",
            "esac",
            "{",
            "}",
            ";",
            "&",
            "|",
            "\n",
            "\n",
        ),
        *(
            "<<E",
            "E",
            "#",
            "#SBATCH",
            "--nodes=2",
            "export",
            "X=1",
            "\\",
            "\t",
            "é",
            "\udcff",
            "((",
            "[",
        ),
    ]
)


@given(st.lists(_WORDS, max_size=40), st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_line_is_lost(words: list[str], spaced: bool) -> None:
    text = "#!/bin/bash\n" + (" " if spaced else "").join(words) + "\n"
    done = made(text)
    yaml.safe_load(done.spec)
    spec = yaml.safe_load(done.spec)
    shown = [line.removeprefix(MARK) for line in done.shell.split("\n")]
    if spec.get("framework") == "batch":
        assert done.shell == text
    elif done.shell_file:
        assert [line for line in shown if RANKS not in line] == text.split("\n")
    covered = {at for one in done.fates for at in range(one.line, one.last + 1)}
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            assert number in covered
    assert {one.fate for one in done.fates} <= {ASKED, DROPPED, SHELL, SPEC}


def test_a_shell_file_never_replaces_the_script(tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    assert shell_name(spec, tmp_path / "job.sbatch") == "job.sh"
    assert shell_name(spec, tmp_path / "job.sh") == "job-job.sh"


def test_mail_types_add_up() -> None:
    text = job(
        "echo", options="--mail-type=begin|--mail-type=END,fail|--mail-type=end|--mail-user=me"
    )
    done = is_verbatim(text)
    assert yaml.safe_load(done.spec)["notify"]["mail_types"] == ["BEGIN", "END", "FAIL"]
    assert [one.fate for one in done.fates[1:5]] == [SPEC] * 4


@pytest.mark.parametrize("reader", ["while getopts a:b x; do :; done", "shift"])
def test_what_reads_arguments_without_their_names(reader: str) -> None:
    done = is_verbatim(job(reader, "srun python a.py", options="-N 2"))
    assert any(one.startswith("args: line 3 reads the script's arguments") for one in done.asks)


def test_a_default_of_its_own_may_come_from_outside() -> None:
    lines = (
        "# SIZE=7 sbatch this",
        "SIZE=${SIZE:-64}",
        ': "${NEXP:=10}"',
        "SEED=1",
        "X=${SEED:-2}",
    )
    done = is_verbatim(job(*lines, "echo $WIDTH # WIDTH=3"))
    assert any(one.endswith("(environment.variables): NEXP, SIZE") for one in done.notes)
    assert any(one.startswith("environment.variables.WIDTH") for one in done.asks)
    many = [f"${{V{number}:-1}}" for number in range(30)]
    assert is_verbatim(job(f"echo {' '.join(many)}")).notes[1].count("V") == 30


def test_all_placeholders_of_a_template_are_asked_for() -> None:
    done = is_verbatim(job("a {{ one }}", "b {{ two }} {{ one }}"))
    (asked,) = (one for one in done.asks if one.startswith("entry"))
    assert "line 2 has {{ one }}, line 3 has {{ two }} of a template" in asked


def test_tasks_are_kept_for_lines_that_read_their_number() -> None:
    line = "export HALF=$((SLURM_NTASKS_PER_NODE / 2))"
    options = "-N 2|--ntasks-per-node=4|--gres=gpu:4|-c 8"
    done = made(job(line, "srun python a.py", options=options))
    assert yaml.safe_load(done.spec)["resources"]["ntasks_per_node"] == 4


@pytest.mark.parametrize(
    ("options", "is_asked"), [("--gres=gpu:1", True), ("--exclusive", True), ("-N 1", False)]
)
def test_cpus_that_slurm_chose_are_asked_for(options: str, is_asked: bool) -> None:
    done = made(job("srun python a.py", options=options))
    assert any(one.startswith("resources.cpus_per_task") for one in done.asks) is is_asked
    # A script that starts its own programs has what it had.
    done = is_verbatim(job("python a.py", "python b.py", options=options))
    assert not any(one.startswith("resources.cpus_per_task") for one in done.asks)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pkill python", "line 3: it may end hpcrun's own processes"),
        ("srun --container-mounts=$PWD:/w true", "line 3: the files of the run's directory"),
        ("grep Error logs/train_$SLURM_JOB_ID.out", "line 3: what reads Slurm's log has none here"),
        ("# pkill python", ""),
        ("grep Error train.py", ""),
    ],
)
def test_lines_that_mean_something_else_here(line: str, said: str) -> None:
    notes = is_verbatim(
        job(line, "python a.py", "python b.py", options="-o logs/train_%j.out")
    ).notes
    assert [one for one in notes if said and one.startswith(said)] or not said
    assert len(notes) == 2 + bool(said)
