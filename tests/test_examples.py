"""What README, docs and help show: run as printed, in an empty directory, or listed in `NOT_RUN`.

A block with a name is saved as that file, a spec or a part of one is planned, lines are typed. What
they print (a block in the language `text`) is compared but for its numbers. Where jobs would go to
Slurm, a stand-in takes them and they end at once; what ``hpcrun run`` and the examples of
``--help`` start is real, on this machine.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bench.first_minute import looks_like
from hpcrun.cli import commands
from hpcrun.cli.main import group
from hpcrun.state import layout, ledger
from hpcrun.state.history import plans
from hpcrun.state.spec.experiment import Spec
from hpcrun.submission.local import processes
from tests.support.away import is_gone
from tests.support.doc_blocks import PAGES, ROOT, Block, blocks
from tests.support.doc_reader import BASE, PROGRAM, Answer, Reader
from tests.support.experiment import Experiment
from tests.support.waiting import until

HELP = "--help"
TERMINAL = "needs a terminal: tests/tools/top/test_top.py"
DRAWING = "a drawing"
GENERATED = "drawn by docs/make_tree.py, and compared: tests/test_docs.py"
NETWORK = (
    "installs from the network; what is installed: tests/test_packaging.py, `make first-minute`"
)
PROFILES = "takes half a minute: tests/tools/perf/test_profile.py"
TUNES = "trials take a minute: tests/tools/perf/test_tune.py"
TRAINS = "trains with DeepSpeed for minutes: tests/test_training.py"
FAR = "needs a login node: tests/cluster/test_laptop.py"
NODES = "needs nodes of a Slurm: tests/cluster/test_doctor.py"
QUEUED = "jobs wait in a queue: tests/cli/test_update.py, tests/cluster/test_update.py"
CONVERTED = "an sbatch script, and its spec: tests/tools/init/convert/test_conversion.py"
SAVED = "needs a checkpoint: tests/tools/weights, tests/frameworks/test_llama_weights.py"
LIVE = "needs live ranks: tests/cli/test_exec.py, tests/cluster/test_beside.py"
SERVES = "serves until Ctrl-C: tests/tools/report/test_live_server.py"
# What `--help` prints, in docs/cli.md, is compared by tests/test_docs.py.
COMPARED = "Usage: hpcrun "
PRUNED = "needs trials that have ended: tests/tools/search, tests/features/point_search"
SEARCHES = dict.fromkeys(
    (
        "hpcrun search study",
        "hpcrun search study --best > best.yaml",
        "hpcrun search study --storage sqlite:///study.db",
    ),
    PRUNED,
)
# What is not run, and why: page -> a line to type, or the first line of another block.
NOT_RUN: dict[str, dict[str, str]] = {
    "docs/laptop.md": {
        "hpcrun --on login.example.org submit finetune.yaml": FAR,
        "hpcrun --on login.example.org logs -f finetune": FAR,
    },
    "docs/object-storage.md": {
        "PYTHONPATH=ROOT/NAME/submissions/1/hpcrun.zip python -m "
        "hpcrun.features.object_storage.process once ROOT/NAME/submissions/1 --run 3": (
            "tests/features/object_storage/test_feature.py does"
        ),
    },
    "README.md": {
        "make demo": TRAINS,
        "make test": "runs this",
        "python3 -m venv ~/venv": NETWORK,
        ". ~/venv/bin/activate": NETWORK,
        "pip install .": NETWORK,
    },
    "docs/architecture.md": {
        "experiment.yaml + cluster profile + key=value": DRAWING,
        "hpcrun/                  hpcrun: checked Slurm submissions of DeepSpeed training, seen "
        "through to their end.": GENERATED,
    },
    "docs/doctor.md": {
        "hpcrun doctor --nodes": NODES,
        "hpcrun doctor --nodes 4": NODES,
        "hpcrun doctor --nodes node[01-04]": NODES,
        "hpcrun doctor --nodes 4 --save-baseline": NODES,
    },
    "docs/estimate.md": {
        "run 0: 1 node x 2 h100; ZeRO 0, fp32, adamw, micro batch 1 x accumulation 1": "needs "
        "telemetry of GPUs, and accounts: tests/tools/estimate/test_earlier_runs.py",
    },
    "docs/extending.md": dict.fromkeys(
        (
            "[build-system]",
            "import sqlite3",
            "from hpcrun.container.runtimes import ContainerRuntime",
            "from hpcrun.testing import check_container_runtime",
            "tracking: {sqlite: {file: /shared/team/metrics.db}}",
            "environment:",
        ),
        "needs its packages: tests/test_extending.py",
    ),
    "docs/sweeps.md": {**SEARCHES, "hpcrun requeue study/3": PRUNED},
    "docs/roles.md": {
        "hpcrun logs parameters/0 --role server": "the stand-in starts two ranks of one kind: "
        "tests/cluster/test_roles.py",
    },
    "docs/from-sbatch.md": {
        "#!/bin/bash": CONVERTED,
        "hpcrun init --from job.sbatch": CONVERTED,
    },
    "docs/getting-started.md": {
        ".venv/bin/hpcrun run language-model config.total_steps=50 "
        "deepspeed.zero_optimization.stage=3": TRAINS,
    },
    "docs/finding-files.md": {"hpcrun weights study/0 -o out": SAVED},
    "docs/health.md": {
        "suspect node left out: node07: its ib0 is down, and that of node08 is up ("
        "until 2026-01-31 12:00)": "needs a bad node: tests/cluster/test_health.py",
    },
    "docs/jobs.md": {
        **dict.fromkeys(
            (
                "hpcrun run causal-language-model cluster=local config.total_steps=1000 "
                "resources.ntasks_per_node=2 deepspeed.train_micro_batch_size_per_gpu=8",
                "hpcrun run lora-fine-tuning cluster=local config.base=$PWD/base",
                "hpcrun run preference-tuning cluster=local config.base=$PWD/base",
                "hpcrun run image-classification cluster=local",
                "hpcrun run distillation cluster=local config.teacher.weights=$PWD/teacher",
            ),
            TRAINS,
        ),
        **dict.fromkeys(
            (
                "hpcrun weights causal-language-model/0 -o base --format pt",
                "hpcrun weights lora-fine-tuning/0 -o tuned --format pt",
                "python jobs/lora_fine_tuning.py tuned merged",
                "hpcrun weights image-classification/0 -o teacher --format pt",
            ),
            SAVED,
        ),
    },
    "docs/processes.md": {
        "sbatch script -> keeper -> supervisor -> srun -> agent   one a node, 16 steps at most": (
            DRAWING
        ),
    },
    "docs/profile.md": dict.fromkeys(
        (
            "hpcrun profile language-model",
            "hpcrun profile finetune/0 --steps 10 -o profile.html",
        ),
        PROFILES,
    ),
    "docs/report.md": {"hpcrun report finetune --serve": SERVES},
    "docs/tune.md": dict.fromkeys(
        (
            "hpcrun tune language-model",
            "hpcrun tune language-model --space deepspeed.zero_optimization.stage=0,1 --space "
            "deepspeed.train_micro_batch_size_per_gpu=2,4,8",
            "hpcrun scaling language-model --ranks 1,2,4",
        ),
        TUNES,
    ),
    "docs/top.md": {"pip install 'hpcrun[top]'": NETWORK, "hpcrun top": TERMINAL},
    "docs/working-directory.md": {
        "ROOT/NAME/runs/3/work/                 mirrors the root of the frozen code": DRAWING,
    },
    "docs/tracking.md": {
        "tensorboard --logdir ROOT/NAME/runs": "TensorBoard's, which serves until Ctrl-C",
        "wandb beta sync ROOT/NAME/runs/*/tracking/wandb": "needs the server of Weights & Biases",
        "PYTHONPATH=ROOT/NAME/submissions/1/hpcrun.zip python -m hpcrun.run.tracker wandb "
        "ROOT/NAME/submissions/1 --run 3 --once": "needs a run with W&B: tests/run/test_tracker.py",
    },
    "docs/weights.md": {
        "hpcrun weights study/0 -o out": SAVED,
        "hpcrun weights study/0@1200 -o out --dtype bf16": SAVED,
        "hpcrun weights study/0 --best --dry-run": SAVED,
        "from safetensors.torch import load_model": SAVED,
        "if session.rank == 0:": SAVED,
    },
    HELP: {
        **SEARCHES,
        "hpcrun on login.example.org submit finetune.yaml": FAR,
        "hpcrun on login.example.org logs -f finetune": FAR,
        **dict.fromkeys(
            (
                "hpcrun update finetune time=08:00:00",
                "hpcrun update finetune/0-3 partition=long qos=low",
                "hpcrun update finetune max_parallel=8 -n",
            ),
            QUEUED,
        ),
        "hpcrun profile language-model": PROFILES,
        "hpcrun profile finetune/0 --steps 10 -o profile.html": PROFILES,
        "hpcrun tune language-model": TUNES,
        "hpcrun scaling language-model --ranks 1,2,4": TUNES,
        "hpcrun tune language-model --time 00:05:00 -o fast.yaml": TUNES,
        "hpcrun weights finetune/0 -o out": SAVED,
        "hpcrun weights finetune/0@1200 -o out --dtype bf16": SAVED,
        "hpcrun init --from job.sbatch": CONVERTED,
        **dict.fromkeys(
            (
                "hpcrun exec finetune/0 nvidia-smi",
                "hpcrun exec finetune/0 --rank 5 env",
                "hpcrun shell finetune/0 --rank 5",
                "hpcrun stacks finetune/0",
            ),
            LIVE,
        ),
        "hpcrun run hello": "run as a line of README.md",
        "hpcrun top": TERMINAL,
        "hpcrun top finetune --where config.lr=3e-4": TERMINAL,
        "hpcrun drill finetune.yaml --fault kill-rank": "takes a minute: tests/tools/drill",
        "hpcrun doctor --nodes 4": NODES,
        "hpcrun doctor --nodes node[01-04]": NODES,
    },
}
# What a page leaves to the reader's program, and what stands there here.
FILLED_IN = {
    "...  # forward, engine.backward(loss), engine.step()": "engine.step()",
}
# What prose says of a key without a value of its own; a function, for which `BASE` has flags.
FORM = re.compile(r"\b(?:NAME|FILE|values)\b|…|^entry: [\w.]+:")
PRELUDE = """
import hpcrun
from tests.support.place import FakeEngine

class Loss:
    def detach(self):
        return 0.5

engine, loader, loss, n = FakeEngine(), None, Loss(), 3
"""


def _studies(reader: Reader) -> None:
    """Have experiments run: finetune, pretrain and study."""
    base = BASE.replace("name: base", "name: study")
    reader.write("study.yaml", base.replace("model: {", "model: {name: tiny, "))
    reader.write("train.py", PROGRAM)
    reader.type("hpcrun submit study.yaml --sweep lr=1e-3,3e-3,1e-2")
    reader.type("hpcrun submit study.yaml +name=pretrain")
    reader.type("hpcrun submit study.yaml +name=finetune --sweep lr=1e-3,2e-3 --sweep seed=0,1,2,3")
    _end_all(reader)


def _demo(reader: Reader) -> None:
    """Lay out what `make demo` leaves in a checkout."""
    (reader.directory / ".venv").mkdir()
    (reader.directory / ".venv" / "bin").symlink_to(reader.programs)
    demo = Experiment(reader.directory / "demo-runs", "demo")
    demo.submit(range(3), swept={run: {"config.lr": 1e-3 * (run + 1)} for run in range(3)})
    for run in range(3):
        demo.start(run)
        demo.metrics(run, 1, [60], loss=1.0)
        demo.end(run)


def _lock(reader: Reader) -> None:
    reader.write("requirements.lock", "torch==2.13.0\n")


def _roles(reader: Reader) -> None:
    for program in ("saving_trainer.py", "evaluator.py"):
        reader.write(program, (ROOT / "jobs" / program).read_text())


def _secrets_and_lock(reader: Reader) -> None:
    reader.write("wandb.env", "WANDB_API_KEY=1\n").chmod(0o600)
    reader.write("uv.lock", "")


def _studies_of_sessions(reader: Reader) -> None:
    _studies(reader)
    reader.write("train.py", "import hpcrun\n\nsession = hpcrun.session()\n")


# What no example is to end in.
EMPTY = "nothing to submit"
# What a page takes for granted.
BEFORE = {
    "docs/choosing-runs.md": _studies,
    "docs/cli.md": _studies,
    "docs/doctor.md": Reader.has_cluster,
    "docs/environment.md": _lock,
    "docs/finding-files.md": _studies,
    "docs/init.md": Reader.has_cluster,
    "docs/sweeps.md": _studies_of_sessions,
    "docs/when-runs-fail.md": _studies,
    "docs/getting-started.md": _demo,
    "docs/recipes.md": _secrets_and_lock,
    "docs/report.md": _studies,
    "docs/roles.md": _roles,
}


def _end_all(reader: Reader) -> None:
    """Have the jobs that the stand-in for Slurm took be over: the last run of each has failed."""
    for found in layout.experiments(reader.home / "hpcrun-runs"):
        runs = Experiment(found.root, found.name)
        planned = sorted({run.number for plan in plans(found).values() for run in plan.runs})
        for run in planned:
            if not runs.run(run).ledger.exists():
                runs.start(run, job_id=f"100_{run}", when=time.time())
                runs.metrics(run, 1, [1, 2], loss=0.5)
                failed = len(planned) > 1 and run == planned[-1]
                runs.end(run, **({"outcome": "failed", "kind": "out_of_memory"} if failed else {}))
                if failed:
                    ledger.write(runs.run(run), ledger.DECIDED, 1, action="stop", reason="enough")


def _work_through(reader: Reader, block: Block) -> Iterator[tuple[int, str, Answer]]:
    """Do what a block says; return each thing done with its line and what came of it."""
    left_out = NOT_RUN.get(block.page, {})
    if block.language == "text" and block.key not in left_out:
        yield block.line, block.key, _unsaid(block, reader.heard)
    elif block.is_shell:
        reader.heard = ""
        for number, line in block.commands():
            if line not in left_out:
                answer = reader.type(line)
                reader.heard += answer.output
                yield number, line, answer
                if " submit " in line:
                    _end_all(reader)
                    if EMPTY in answer.output:
                        yield number, line, Answer(1, answer.output)
    elif block.key not in left_out and not block.key.startswith(COMPARED):
        yield block.line, block.key, _use(reader, block)


def _unsaid(block: Block, said: str) -> Answer:
    """Compare what a page says that the lines above it print with what they did print, in order."""
    said = re.sub(rf"\b{re.escape(os.uname().nodename)}\b", "laptop", said)
    printed = map(_one_unit, said.splitlines())
    for line in map(_one_unit, block.text.splitlines()):
        wanted = looks_like(line)
        if line not in ("", "…") and not any(map(wanted.fullmatch, printed)):
            return Answer(1, f"not printed, or not in this order: {line}\nbut:\n{said}")
    return Answer(0, "")


def _one_unit(line: str) -> str:
    """Return a line with durations in one unit, as a busy machine takes minutes for seconds."""
    return re.sub(r"\b\d+ min\b", "0 s", " ".join(line.split()))


def _use(reader: Reader, block: Block) -> Answer:
    """Use the file that a block is."""
    if block.language == "yaml":
        return reader.plan(reader.save(block) if block.file else reader.fragment(block.text))
    if block.language == "python" and block.file:
        compile(block.text, block.file, "exec")  # a line of the page runs it
        reader.save(block)
        return Answer(0, "")
    if block.language == "python":
        text = block.text
        for left_open, own in FILLED_IN.items():
            text = text.replace(left_open, own)
        return reader.type(f"python {shlex.quote(str(reader.write('example.py', PRELUDE + text)))}")
    if block.language == "sh":
        assert block.file, f"{block.page}:{block.line}: the text does not say which file this is"
        reader.save(block)
        return reader.type(f"HPCRUN_RUN=a/1 HPCRUN_EVENT=failed HPCRUN_MESSAGE=b ./{block.file}")
    pytest.fail(f"{block.page}:{block.line}: nobody knows how to run it, and NOT_RUN has no reason")


def _wrong(page: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Do all that a page says, from top to bottom; return what did not go well."""
    reader = Reader(place, monkeypatch)
    BEFORE.get(page, lambda _: None)(reader)
    shown = blocks(page)
    for block in reversed(shown):
        if block.file and not block.adds:
            reader.save(block)
    return [
        f"{page}:{number}: {what}\n{answer.output}"
        for block in shown
        for number, what, answer in _work_through(reader, block)
        if answer.code
    ]


# Where a feature's folder was taken away, its examples are no examples.
THERE = [page for page in PAGES if blocks(page) and not is_gone(PAGES[page].read_text())]


@pytest.mark.parametrize("page", THERE)
def test_the_examples_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = _wrong(page, tmp_path, monkeypatch)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`a.yaml`:\n```yaml\nentry: train.py\nconfg: {}\n```\n", "bad.md:3: entry: train.py\n"),
        ("A part:\n```yaml\nrecovery: {max_failures: no}\n```\n", "recovery.max_failures"),
        (
            "```sh\nhpcrun help glossary   # words\nhpcrun status --al\n```\n",
            "bad.md:3: hpcrun status",
        ),
        ("```sh\nhpcrun list; exit 3\n```\n", "bad.md:2: hpcrun list; exit 3"),
        ("```sh\necho 3 runs\n```\n```text\n4 runs\n…\nmore\n```\n", "not in this order: more"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
    ],
)
def test_a_wrong_example_is_told(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.md").write_text(text)
    monkeypatch.setitem(PAGES, "bad.md", tmp_path / "bad.md")
    [wrong] = _wrong("bad.md", tmp_path / "reader", monkeypatch)
    assert said in wrong


def test_a_block_that_nobody_knows_how_to_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.md").write_text("```\n+---+\n```\n")
    monkeypatch.setitem(PAGES, "bad.md", tmp_path / "bad.md")
    with pytest.raises(pytest.fail.Exception, match=r"bad\.md:2: nobody knows how to run it"):
        _wrong("bad.md", tmp_path / "reader", monkeypatch)


FINETUNE = """\
name: finetune
entry: train.py
config: {lr: 1.0e-3, seed: 0}
cluster: local
resources: {ntasks_per_node: 1}
objective: {metric: loss, mode: min}
recovery: {max_failures: 1}
"""
# Its run with the greater rate fails.
TRAIN = """\
import json, os, sys

words = " ".join(sys.argv).replace("=", " ").split()
rate = float(words[words.index("--lr") + 1])
print("Error: none")
with open(os.environ["HPCRUN_METRICS_FILE"], "a") as metrics:
    print(json.dumps({"step": 1, "loss": 0.5 - rate}), file=metrics)
sys.exit(rate > 5e-4)
"""


def _until_all_are_over(root: Path) -> None:
    """Wait until no process works for any experiment under ``root``."""

    def left() -> list[processes.LocalProcess]:
        submissions = [one for found in layout.experiments(root) for one in found.submissions()]
        return [each for one in submissions for each in processes.of_submission(one.directory)]

    until(lambda: not left(), "the end of all runs", timeout=120.0)


def test_the_examples_of_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path, monkeypatch)
    reader.write("finetune.yaml", FINETUNE)
    reader.write("train.py", TRAIN)
    reader.has_cluster()
    root = reader.home / "hpcrun-runs"
    swept = reader.type("hpcrun submit finetune.yaml --sweep lr=1e-3,3e-4 --wait")
    assert swept.code == 1, swept.output
    wrong = []
    try:
        every = [line for one in commands.own_commands().values() for line in one.examples]
        # What takes the name away comes last.
        for line in sorted(every, key=lambda line: "finetune-old" in line):
            if line not in NOT_RUN[HELP]:
                answer = reader.type(line)
                if answer.code:
                    wrong.append(f"{line}\n{answer.output}")
                _until_all_are_over(root)
    finally:
        for found in layout.experiments(root):
            for submission in found.submissions():
                processes.kill_all(submission.directory)
    assert not wrong, "\n".join(wrong)


def _lines() -> Iterator[tuple[str, str]]:
    """Return each line of all examples with its page, and the first line of each other block."""
    for page in PAGES:
        for block in blocks(page):
            yield from ((page, line) for _, line in block.commands() if block.is_shell)
            if not block.is_shell:
                yield page, block.key
    for examples in (one.examples for one in commands.own_commands().values()):
        yield from ((HELP, line) for line in examples)


def _in_prose() -> Iterator[tuple[str, str]]:
    """Return what the prose of all pages sets as code, and the comments of shipped specs."""
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        yield from ((path.name, line) for line in re.findall(r"(?m)^# +(.*)", path.read_text()))
    for page, path in PAGES.items():
        prose = re.sub(r"(?ms)^ *```.*?```", "", path.read_text()).replace("``", "`")
        yield from ((page, " ".join(code.split())) for code in re.findall(r"`([^`]+)`", prose))


def _complaint(line: str) -> str | None:
    """Return what is wrong with a command line, or with the form of one; None if nothing is."""
    form = re.sub(r"[\[\]…]", " ", line.replace("\\|", " ").partition(" > ")[0])
    _, name, *arguments = shlex.split(re.sub(r"^hpcrun --on \S+", "hpcrun", form))
    above = click.Context(group, info_name="hpcrun", **group.context_settings)
    command = group.get_command(above, name)
    if command is None:
        return f"there is no command {name}"
    try:
        command.make_context(name, arguments, parent=above)
    except click.MissingParameter:
        pass
    except click.ClickException as error:
        return error.format_message()
    return None


def test_a_command_in_prose_is_understood() -> None:
    lines = [(page, line) for page, line in _in_prose() if line.startswith("hpcrun ")]
    lines = [(page, line) for page, line in lines if not is_gone(line)]
    assert len(lines) > 50
    wrong = {(page, line): said for page, line in lines if (said := _complaint(line))}
    assert wrong == {}


def test_a_part_of_a_spec_in_prose_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(tmp_path, monkeypatch)
    reader.write("pretrain.yaml", BASE.replace("name: base", "name: pretrain"))
    keys = "|".join(field.name for field in dataclasses.fields(Spec))
    parts = [(page, code) for page, code in _in_prose() if re.match(rf"({keys}): ", code)]
    parts = [(page, code) for page, code in parts if not FORM.search(code)]
    parts = [(page, code) for page, code in parts if not is_gone(code)]
    assert len(parts) > 20
    wrong = [
        f"{page}: {code}\n{answer.output}"
        for page, code in parts
        if (answer := reader.plan(reader.fragment(code))).code
    ]
    assert not wrong, "\n".join(wrong)


def test_only_what_is_shown_is_excused() -> None:
    shown = set(_lines())
    excused = {(page, line) for page, lines in NOT_RUN.items() for line in lines}
    assert {(page, line) for page, line in excused - shown if not is_gone(line)} == set()
