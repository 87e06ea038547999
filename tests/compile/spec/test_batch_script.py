"""What `batch_script` may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.compile import compile_spec
from hpcrun.errors import UsageError

LINE = 'sh "$HPCRUN_RANKS" || exit\n'
SPEC = "cluster: slurm\nentry: [python, train.py]\nbatch_script: around.sh\n"


def _compile(tmp_path: Path, spec: str, text: str | None = LINE) -> None:
    (tmp_path / "study.yaml").write_text(spec)
    if text is not None:
        (tmp_path / "around.sh").write_text(text)
    compile_spec(str(tmp_path / "study.yaml"), [], [])


def test_a_file_with_the_line_is_accepted(tmp_path: Path) -> None:
    _compile(tmp_path, SPEC)


@pytest.mark.parametrize(
    ("spec", "text", "words"),
    [
        (SPEC, None, "found 'around.sh'; accepted is the path of a shell file in the spec's"),
        (SPEC.replace("around.sh", "../around.sh"), LINE, "accepted is the path of a shell file"),
        (SPEC.replace("around.sh", "/etc/profile"), LINE, "accepted is the path of a shell file"),
        (SPEC, "module load x\n", "around.sh has no line that starts the ranks: sh"),
        (f"{SPEC}framework: batch\n", LINE, "with framework batch the entry starts the ranks"),
        (f"{SPEC}roles: {{a: {{args: [b]}}}}\n", LINE, "cannot be used with roles"),
    ],
)
def test_mistakes(spec: str, text: str | None, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        _compile(tmp_path, spec, text)
    assert words in str(error.value)


def test_framework_batch_takes_tasks_that_share_gpus(tmp_path: Path) -> None:
    batch = SPEC.replace("batch_script: around.sh", "framework: batch")
    shape = "resources: {nodes: 2, ntasks_per_node: 2, gpus_per_node: 8}\n"
    (tmp_path / "study.yaml").write_text(batch + shape)
    run = compile_spec(str(tmp_path / "study.yaml"), [], []).runs[0]
    assert (run.world_size, run.ranks_per_node) == (1, 2)
    with pytest.raises(UsageError, match="with GPUs there is one rank per GPU"):
        _compile(tmp_path, SPEC + shape)
