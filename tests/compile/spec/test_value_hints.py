"""Values in the forms of other programs: what is told to write is written, and accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError

BASE = "name: e\nentry: train.py\ncluster: local\n"
# The block that the key is in, or nothing; what was written; what is to be written in its place.
ADVICE = [
    ("", "args: --out results", "[--out, results]"),
    ("", "args: --name 'two words' 3", '[--name, "two words", "3"]'),
    ("", "config: [lr=1, steps=5]", "config: {lr: 1, steps: 5}"),
    ("", "tracking: wandb", "tracking: {wandb: {}}"),
    ("", "tracking: tensorboard", "tracking: {tensorboard: true}"),
    ("", "objective: loss", "objective: {metric: loss}"),
    ("", "tags: baseline", "[baseline]"),
    ("tracking", "wandb: true", "wandb: {}"),
    ("tracking", "wandb: speech", "wandb: {project: speech}"),
    ("environment", "variables: [A=1, B=2]", "variables: {A: 1, B: 2}"),
    ("environment", "setup: module load cuda", "[module load cuda]"),
    ("resources", "gpus_per_node: a100:4", "gpus_per_node: 4 and gpu_type: a100"),
    ("objective", "mode: maximize", "'max'"),
]
TOLD = [
    ("framework: pytorch", "none: hpcrun starts one rank a GPU"),
    ("framework: transformers", "'huggingface'"),
    ("precision: bf16-mixed", "'bf16'"),
    ("seed: 3", "config: {seed: 3}"),
    ("output_dir: results", "config: {output_dir: results}"),
    ("use_amp: true", "config: {use_amp: true}"),
    ("partition: gpu", "'resources.partition'"),
    ("parallel: {tp: 2}", "'parallel.tensor'"),
    ("recovery: {max_retries: 3}", "'recovery.max_failures'"),
    ("checkpoint: {dir: out}", "hpcrun show RUN"),
    ("sweep: {parameters: {lr: {min: 0, max: 1}}}", "random: {samples: 20"),
    ("resources: {nodes: 1-4}", "write one number"),
    ("resources: {gpus_per_node: all}", "how many a node has"),
]


def _problem(directory: Path, text: str) -> str:
    (directory / "train.py").write_text("")
    (directory / "e.yaml").write_text(BASE + text)
    with pytest.raises(SpecError) as caught:
        compile_spec(directory / "e.yaml", root=directory / "root")
    return str(caught.value.problems[0].hint)


@pytest.mark.parametrize(("block", "written", "advice"), ADVICE)
def test_what_is_advised_is_accepted(block: str, written: str, advice: str, tmp_path: Path) -> None:
    metric = "metric: acc, " if block == "objective" else ""
    assert advice in _problem(tmp_path, f"{block}: {{{metric}{written}}}" if block else written)
    key = written.partition(":")[0]
    typed = advice.replace(" and ", ", ") if ":" in advice else f"{key}: {advice}"
    better = f"{block}: {{{metric}{typed}}}" if block else typed
    (tmp_path / "e.yaml").write_text(BASE + better)
    assert yaml.safe_load(BASE + better)
    assert compile_spec(tmp_path / "e.yaml", root=tmp_path / "root").runs


@pytest.mark.parametrize(("written", "told"), TOLD)
def test_other_words_are_known(written: str, told: str, tmp_path: Path) -> None:
    assert told in _problem(tmp_path, written)


def test_a_number_in_place_of_a_block_of_deepspeed_is_refused(tmp_path: Path) -> None:
    for typed, better in (
        ("zero_optimization: 2", "zero_optimization: {stage: 2}"),
        ("bf16: true", "bf16: {enabled: true}"),
    ):
        hint = _problem(tmp_path, f"deepspeed: {{train_batch_size: 8, {typed}}}")
        assert better in hint
        assert re.match("write ", hint)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (
            "resources: {time: 24}",
            '24 is read as 24 min, as sbatch does ("24:00:00"',
        ),
        (
            "recovery: {hang_after: 300}",
            '300 is read as 5 h 00 min, as sbatch does ("00:05:00"',
        ),
        ("resources: {mem: 64}", "64 is read as 64 MB, as sbatch does (64G is in GB)"),
        (
            "checkpoint: {every: 5}",
            "checkpoint.every acts where the program asks for",
        ),
        ("notify: {mail: a@example.org}", "notify.mail does nothing on this machine"),
    ],
)
def test_what_is_read_otherwise_or_does_nothing_is_told(
    written: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "e.yaml").write_text(BASE + written)
    notes = compile_spec(tmp_path / "e.yaml", root=tmp_path / "root").notes
    assert any(told in one for one in notes), notes


def test_what_is_plain_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import hpcrun\nhpcrun.session()\n")
    plain = 'resources: {time: "02:00:00", mem: 64G}\ncheckpoint: {every: 5}\n'
    (tmp_path / "e.yaml").write_text(BASE + plain)
    assert compile_spec(tmp_path / "e.yaml", root=tmp_path / "root").notes == ()
