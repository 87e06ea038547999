"""Frameworks are detected from words and imports, where that is sure; nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError
from hpcrun.extensions import FRAMEWORKS
from hpcrun.policy import resume
from hpcrun.state.spec.experiment import Spec

BASE = "cluster: slurm\n"
PYTHON = "environment.python=/opt/bin/python"


def compiled(project: Any, text: str, script: str = "") -> Any:
    project.write("train.py", script)
    return compile_spec(project.write("spec.yaml", BASE + text), [PYTHON])


def test_the_spec_accepts_the_names_of_the_table() -> None:
    assert set(get_args(get_type_hints(Spec)["framework"])) == set(FRAMEWORKS.own)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("import lightning as L\n", "lightning"),
        (
            "from pytorch_lightning.callbacks import ModelCheckpoint\nimport transformers\n",
            "lightning",
        ),
        ("def main():\n    from lightning.pytorch import Trainer\n", "lightning"),
        ("from transformers import AutoModel, Trainer, TrainingArguments\n", "huggingface"),
        ("import transformers\ntransformers.Seq2SeqTrainer()\n", "huggingface"),
        ("from trl import SFTTrainer\n", "huggingface"),
        ("from accelerate import Accelerator\n", "accelerate"),
        (
            "import tensorflow as tf\nx = tf.distribute.MultiWorkerMirroredStrategy()\n",
            "tensorflow",
        ),
        ("import jax\njax.distributed.initialize()\n", "jax"),
        ("from mpi4py import MPI\n", "mpi"),
        ("import numpy\nimport mpi4py.MPI as MPI\n", "mpi"),
        # Nothing is sure here.
        ("import torch\n", "auto"),
        ("from transformers import AutoTokenizer\n", "auto"),
        ("from transformers import AutoTokenizer\nfrom mingpt import Trainer\n", "auto"),
        ("import accelerate\nfrom mine import Accelerator\n", "auto"),
        (
            "import jax\nimport torch\ntorch.distributed.barrier()\ndeepspeed.initialize()\n",
            "auto",
        ),
        ("from jax import distributed\ndistributed.initialize()\n", "jax"),
        ("from transformers.training_args import TrainingArguments\n", "huggingface"),
        ("import tensorflow as tf\n", "auto"),
        # For machines where its ranks have no other way.
        ("import torch\nif torch.version.hip:\n    from mpi4py import MPI\n", "auto"),
        ("import jax\n", "auto"),
        ("import accelerate\n", "auto"),
        ("'''\nimport lightning\n'''\n", "auto"),
        ("import lightning\nimport jax\njax.distributed.initialize()\n", "auto"),
        ("from .lightning import x\n", "auto"),
        ("import lightning(\n", "auto"),
        ("import lightning\n" + "# long\n" * 40_000, "auto"),
    ],
)
@pytest.mark.parametrize("entry", ["train.py", "[python3.11, -u, -X, dev, train.py, x]"])
def test_what_a_script_imports(project: Any, script: str, name: str, entry: str) -> None:
    found = compiled(project, f"entry: {entry}\n", script)
    assert found.runs[0].entry.framework == name
    noted = [note for note in found.notes if note.startswith("framework:")]
    assert len(noted) == (name != "auto")
    for note in noted:
        assert f"framework: {name} (train.py imports it)" in note
        assert "'framework: none' switches that off" in note


_ASKS = "ddp = int(os.environ.get('RANK', -1)) != -1\n"


@pytest.mark.parametrize(
    ("script", "resources", "name"),
    [
        (_ASKS, "{}", "single"),
        (_ASKS, "{gpus_per_node: 1}", "single"),
        (_ASKS, "{ntasks_per_node: 2}", "auto"),
        (_ASKS, "{nodes: 2}", "auto"),
        ("import hpcrun\n" + _ASKS, "{}", "auto"),
        ("import deepspeed\n" + _ASKS, "{}", "auto"),
        ("rank = int(os.environ.get('RANK', 0))\n", "{}", "auto"),
        ("rank = int(os.environ['RANK'])\n", "{}", "auto"),
    ],
)
def test_a_program_that_does_without_rank_finds_none_where_it_is_alone(
    project: Any, script: str, resources: str, name: str
) -> None:
    found = compiled(project, f"entry: train.py\nresources: {resources}\n", script)
    assert found.runs[0].entry.framework == name
    told = "framework: single (train.py reads RANK only where it is set)" in str(found.notes)
    assert told == (name == "single")


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("[torchrun, train.py]", "torchrun"),
        ("[/venv/bin/torchrun, --nproc-per-node, gpu, train.py]", "torchrun"),
        ("[python, -m, torch.distributed.run, train.py]", "torchrun"),
        ("[python, -m, trl.scripts.sft]", "huggingface"),
        ("[bash, -c, torchrun train.py]", "auto"),
        ("[python, -c, import lightning]", "auto"),
        ("[python, nowhere.py]", "auto"),
        ("[python, ../../../../dev/zero.py]", "auto"),
    ],
)
def test_the_words_of_a_command(project: Any, entry: str, name: str) -> None:
    found = compiled(project, f"entry: {entry}\n")
    assert found.runs[0].entry.framework == name
    assert ("framework: torchrun (the entry starts it)" in str(found.notes)) == (name == "torchrun")


@pytest.mark.parametrize(
    "entry",
    [
        *("[uv, run, --frozen, train.py]", "[nice, python, -u, train.py]", "[./train.py, x]"),
        "[conda, run, -n, env, /venv/bin/python3.11, train.py]",
        *("[python, -m, train]", "[env, A=b.py, python, -m, pkg.train, --lr=1]"),
    ],
)
def test_a_program_is_looked_into_however_python_starts_it(project: Any, entry: str) -> None:
    project.write("pkg/train.py", READS)
    run = compiled(project, f"entry: {entry}\n", READS).runs[0]
    assert run.entry.framework == "huggingface"
    assert run.entry.resumed == (*run.entry.argv, FROM_CHECKPOINT)


@pytest.mark.parametrize(
    "word", ["accelerate, launch", "deepspeed", "python, -m, accelerate.commands.launch"]
)
def test_a_launcher_in_each_rank_is_told(project: Any, word: str) -> None:
    text = f"entry: [{word}, train.py]\nresources: {{ntasks_per_node: 2}}\n"
    found = compiled(project, text)
    assert found.runs[0].entry.framework == "auto"
    (note,) = [one for one in found.notes if "processes of its own" in one]
    assert "in each of the 2 ranks" in note
    assert "name the program itself as the entry" in note
    assert not compiled(project, f"entry: [{word}, train.py]\n").notes


_SCRIPT = """\
# torchrun is started below
pip install deepspeed accelerate
export A=1; cd src
if true; then
    OMP_NUM_THREADS=1 exec {launcher} \\
        train.py "$@"
fi
"""


@pytest.mark.parametrize(
    ("entry", "launcher", "shown"),
    [
        ("[bash, launch.sh]", "torchrun --nproc-per-node=2", "'torchrun' in launch.sh"),
        ("[/bin/sh, -eu, launch.sh]", "accelerate launch", "'accelerate launch' in launch.sh"),
        ("[bash, launch.sh]", "srun -n 1 --gpus 2 deepspeed", "'deepspeed' in launch.sh"),
        ("[bash, launch.sh]", "python3 -u -m torch.distributed.run", "'torchrun' in launch.sh"),
        ('[bash, -c, "cd x && torchrun train.py"]', "", "'torchrun' starts"),
        ("[env, A=1, torchrun, train.py]", "", "'torchrun' starts"),
        ("[srun, -n, 1, /venv/bin/torchrun, train.py]", "", "'torchrun' starts"),
        ("[torchrun, train.py]", "", "'torchrun' starts"),
        # No launcher is started here.
        ("[bash, launch.sh]", "python train.py --by deepspeed", None),
        ("[bash, launch.sh]", "echo torchrun", None),
        ("[bash, nowhere.sh]", "", None),
        ("[bash, ../../../../dev/zero]", "", None),
        ("[bash, -c]", "", None),
        ("[bash]", "", None),
        ("[python, train.py, torchrun, x]", "", None),
    ],
)
def test_a_launcher_inside_a_command_is_told(
    project: Any, entry: str, launcher: str, shown: str | None
) -> None:
    project.write("launch.sh", _SCRIPT.format(launcher=launcher))
    text = f"entry: {entry}\nresources: {{nodes: 2, ntasks_per_node: 2}}\n"
    found = compiled(project, text)
    assert found.runs[0].entry.framework == "auto"
    (note,) = found.notes or ("",)
    assert (shown or "") in note
    if shown is not None:
        assert "starts processes of its own, in each of the 4 ranks that hpcrun starts" in note
        once = "framework: torchrun starts it once a node" in note
        assert once == ("torchrun" in shown)
    assert compiled(project, text + "framework: none\n").notes == ()
    alone = compiled(project, text.replace(", ntasks_per_node: 2", "")).notes
    assert not any("processes of its own" in one for one in alone)


def test_torchrun_that_nobody_starts_is_told(project: Any) -> None:
    """Seven of a node's eight GPUs were idle without a word."""
    text = "entry: train.py\nframework: torchrun\nresources: {gpus_per_node: 8, cpus_per_task: 9}\n"
    (note,) = compiled(project, text).notes
    assert "starts train.py once a node, with all 8 GPUs, and no torchrun" in note
    assert compiled(project, text.replace("train.py", "[torchrun, train.py]")).notes == ()
    assert compiled(project, text.replace("torchrun", "single")).notes == ()
    assert compiled(project, text.replace("8", "1")).notes == ()


def test_a_framework_that_is_named_is_not_detected(project: Any) -> None:
    found = compiled(project, "entry: train.py\nframework: none\n", "import lightning\n")
    assert found.runs[0].entry.framework == "none"
    assert found.notes == ()
    found = compiled(project, "entry: train.py\nframework: jax\n", "import lightning\n")
    assert found.runs[0].entry.framework == "jax"


def test_who_relies_on_lightnings_own_signal_keeps_it(project: Any) -> None:
    text = "entry: train.py\nrecovery: {stop_signal: SIGUSR1}\n"
    assert compiled(project, text, "import lightning\n").runs[0].entry.framework == "auto"


def test_the_identity_of_a_run_does_not_depend_on_it(project: Any) -> None:
    first, second = (
        compiled(project, f"entry: train.py\nframework: {name}\n").runs[0].identity
        for name in ("none", "lightning")
    )
    assert first == second


@pytest.mark.parametrize("name", ["torchrun", "single"])
def test_one_process_of_a_node_has_all_its_gpus(project: Any, name: str) -> None:
    text = (
        f"entry: [torchrun, train.py]\nframework: {name}\ndeepspeed: {{train_batch_size: 32, "
        "train_micro_batch_size_per_gpu: 4}\nresources: {nodes: 1, gpus_per_node: 4}\n"
    )
    run = compiled(project, text).runs[0]
    assert (run.ranks_per_node, run.world_size, run.resources.gpus_per_node) == (1, 1, 4)
    # DeepSpeed's ranks are the GPUs all the same.
    assert run.deepspeed["gradient_accumulation_steps"] == 2


def test_torchrun_of_several_nodes(project: Any) -> None:
    text = "entry: [torchrun, train.py]\nresources: {nodes: 2, gpus_per_node: 8}\n"
    run = compiled(project, text).runs[0]
    assert (run.entry.framework, run.ranks_per_node, run.world_size) == ("torchrun", 1, 2)


def test_torchrun_in_each_rank_of_a_node_is_left_alone(project: Any) -> None:
    text = "entry: [torchrun, train.py]\nresources: {ntasks_per_node: 2}\n"
    run = compiled(project, text).runs[0]
    assert (run.entry.framework, run.ranks_per_node) == ("auto", 2)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("framework: lightnin", "framework", "did you mean 'lightning'?"),
        (
            "framework: torchrun\nresources: {ntasks_per_node: 2}",
            "resources.ntasks_per_node",
            "starts one process a node",
        ),
        ("framework: single\nresources: {nodes: 2}", "resources.nodes", "one process"),
    ],
)
def test_what_does_not_go_together(
    project: Any, hpcrun: Callable[..., Any], text: str, key: str, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(project, f"entry: train.py\n{text}\n")
    (problem,) = caught.value.problems
    assert problem.key == key
    assert message in f"{problem.message} {problem.hint}"


@pytest.mark.parametrize("entry", ["[bash, -c, torchrun x.py]", "train.py"])
def test_any_launcher_may_be_one_task_of_a_node(project: Any, entry: str) -> None:
    text = f"entry: {entry}\nresources: {{gpus_per_node: 4, ntasks_per_node: 1}}\n"
    assert compiled(project, text).runs[0].ranks_per_node == 1


def test_a_function_is_called_in_each_rank(project: Any) -> None:
    text = "entry: train.py:f\nresources: {gpus_per_node: 4, ntasks_per_node: 1}\n"
    with pytest.raises(SpecError, match="with GPUs there is one rank per GPU"):
        compiled(project, text, "def f(session): ...\n")
    text = "entry: train.py:f\nframework: torchrun\n"
    with pytest.raises(SpecError, match="a function is called in each rank"):
        compiled(project, text, "def f(session): ...\n")


def test_plan_says_what_was_detected(project: Any, hpcrun: Callable[..., Any]) -> None:
    project.write("train.py", "import lightning\n")
    project.write("spec.yaml", BASE + "entry: train.py\n")
    answer = hpcrun("plan", "spec.yaml")
    assert answer.code == 0
    assert "framework: lightning (train.py imports it)" in answer.err
    assert hpcrun("plan", "spec.yaml", "framework=lightning").err == ""


def _documented() -> list[str]:
    page = Path(__file__).parents[3] / "docs" / "frameworks.md"
    return re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)


HF = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
READS = f"{HF}checkpoint = training_args.resume_from_checkpoint\n"
FIT = "import lightning\n"
CLI = "from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n"
FROM_CHECKPOINT = "--resume_from_checkpoint=${hpcrun:newest_directory}"
TRAINER = "from transformers import Trainer, TrainingArguments\n"


@pytest.mark.parametrize(
    ("script", "added"),
    [
        (READS, [FROM_CHECKPOINT]),
        (f"{HF}HfArgumentParser(TrainingArguments)\n", [FROM_CHECKPOINT]),
        (f"{TRAINER}add('--resume-from-checkpoint')\n", [FROM_CHECKPOINT]),
        (f"{TRAINER}class A:\n    resume_from_checkpoint: str\n", [FROM_CHECKPOINT]),
        (f"{TRAINER}def main(resume_from_checkpoint=None): ...\n", [FROM_CHECKPOINT]),
        (f"{FIT}fit(ckpt_path=cfg.get('ckpt_path'))\n", ["--ckpt_path=${hpcrun:newest}"]),
        (CLI, ["--ckpt_path=${hpcrun:newest}"]),
        # They give the option to somebody, and take none.
        (f"{TRAINER}Trainer().train(resume_from_checkpoint=True)\n", None),
        (f"{FIT}fit(ckpt_path='last')\n", None),
        # The Trainer ignores what HfArgumentParser took.
        (f"{HF}HfArgumentParser(TrainingArguments)\nTrainer(x).train()\n", None),
        ("import torch\nprint(args.ckpt_path)\n", None),
    ],
)
def test_a_detected_program_resumes_where_it_reads_the_option(
    project: Any, script: str, added: list[str] | None
) -> None:
    launched = (
        ("[python, train.py]", ""),
        ("[torchrun, --nproc-per-node=2, train.py]", "framework: torchrun\n"),
        ("[accelerate, launch, train.py]", ""),
    )
    for entry, more in (("train.py", ""), *launched):
        (run,) = compiled(project, f"entry: {entry}\n{more}", script).runs
        words = run.entry.argv
        assert run.entry.resumed == (None if added is None else (*words, *added)), entry


def test_a_detected_recipe_gives_way(project: Any) -> None:
    def resumed(text: str, script: str = READS) -> Any:
        return compiled(project, f"entry: train.py\n{text}", script).runs[0].entry.resumed

    assert resumed("framework: none\n") is None
    assert resumed("recovery: {resume: none}\n") is None
    assert resumed("recovery: {resume_args: [-r]}\n") == ("-r",)
    assert resumed("recovery: {resume: imagenet}\n") == ("--resume=${hpcrun:newest}",)
    assert resumed("recovery: {stop_signal: SIGUSR1}\n", CLI) is None


def test_what_is_named_and_what_is_detected_are_the_same(project: Any) -> None:
    named = compiled(project, "entry: train.py\nframework: huggingface\n", READS).runs[0]
    found = compiled(project, "entry: train.py\n", READS).runs[0]
    assert found.entry.resumed == named.entry.resumed
    assert resume.of_run(found) == resume.of_run(named)


def test_plan_shows_how_a_program_goes_on(project: Any, hpcrun: Callable[..., Any]) -> None:
    project.write("train.py", READS)
    project.write("spec.yaml", f"{BASE}entry: train.py\n")
    answer = hpcrun("plan", "spec.yaml", PYTHON)
    assert FROM_CHECKPOINT in answer.out
    assert "the same without this note" in answer.err
    project.write("train.py", TRAINER)
    answer = hpcrun("plan", "spec.yaml", PYTHON)
    assert "begins over from attempt 2 on" in answer.out
    assert "by an option that the program does not read" in answer.err


def test_every_framework_is_documented_with_a_spec() -> None:
    specs = "".join(_documented())
    named = set(re.findall(r"^framework: (\w+)$", specs, re.MULTILINE))
    assert named == {*FRAMEWORKS.own} - {"auto", "none"}


@pytest.mark.parametrize("text", _documented(), ids=lambda text: text.split()[1])
def test_the_specs_of_the_documentation(project: Any, text: str) -> None:
    entry = re.search(r"^entry: (\S+\.py)\b", text, re.MULTILINE)
    project.write(entry[1] if entry else "train.py", "")
    for linked in yaml.safe_load(text).get("code", {}).get("link", ()):
        project.write(f"{linked}/one", "")
    found = compiled(project, text)
    (run,) = found.runs
    assert run.entry.framework == run.spec["framework"]
    assert found.notes == ()


def test_progress_of_a_script_with_a_session_is_told(project: Any) -> None:
    text = "entry: train.py\nprogress: {total: 9}\n"
    script = "import hpcrun\nwith hpcrun.session() as session:\n    pass\n"
    (note,) = compiled(project, text, script).notes
    assert note.startswith("progress.total is not used if the session that train.py asks for")
    project.write("other.py", "import torch\n")
    assert compiled(project, text.replace("train", "other")).notes == ()
    assert compiled(project, "entry: train.py\n", script).notes == ()


def test_progress_of_a_function_is_refused(project: Any) -> None:
    text = "entry: train.py:main\nprogress:\n  pattern: 'step (?P<step>x)'\n  total: 9\n"
    with pytest.raises(SpecError) as error:
        compiled(project, text, "def main(run):\n    pass\n")
    first, second = error.value.problems
    assert (first.key, first.line) == ("progress.pattern", 4)
    assert first.message.startswith("is not used: a function's steps, metrics and saves are those")
    assert second.key == "progress.total"


@pytest.mark.parametrize(
    ("entry", "shape", "told"),
    [
        ("[mpirun, -np, 4, python, train.py]", "ntasks_per_node: 2", True),
        ("[mpiexec, ./solver]", "nodes: 2", True),
        ("[srun, /opt/mpi/bin/mpiexec.hydra, ./solver]", "nodes: 2", True),
        ("[bash, -c, 'cd x && mpirun ./solver']", "nodes: 2", True),
        # One rank, which starts the others.
        ("[mpirun, -np, 4, python, train.py]", "nodes: 1", False),
    ],
)
def test_mpirun_in_each_rank_is_told(project: Any, entry: str, shape: str, told: bool) -> None:
    found = compiled(project, f"entry: {entry}\nresources: {{{shape}}}\n")
    assert found.runs[0].entry.framework == "auto"
    notes = [one for one in found.notes if "in each of the 2 ranks" in one]
    assert len(notes) == told
    assert all("'mpirun'" in one and "framework: mpi" in one for one in notes)


def test_ranks_on_this_machine_have_no_pmi(project: Any) -> None:
    project.write("train.py", "from mpi4py import MPI\n")
    text = "cluster: local\nentry: train.py\nresources: {{ntasks_per_node: {}}}\n"
    assert compile_spec(project.write("one.yaml", text.format(1)), [PYTHON])
    for named in ("", "framework: mpi\n"):
        with pytest.raises(SpecError, match="found mpi, whose ranks find each other by srun"):
            compile_spec(project.write("spec.yaml", text.format(2) + named), [PYTHON])


def test_a_type_of_mpi_is_one_word(project: Any) -> None:
    with pytest.raises(SpecError, match=r"resources\.mpi: found 'pmix --x'.*srun --mpi=list"):
        compiled(project, "entry: train.py\nresources: {mpi: pmix --x}\n")
    with pytest.raises(SpecError, match=r"use resources\.mpi"):
        compiled(project, "entry: train.py\nresources: {sbatch: {mpi: pmix}}\n")
