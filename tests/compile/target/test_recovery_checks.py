"""``recovery.shrink_micro_batch`` is refused where a smaller micro batch would not arrive."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError

BASE = (
    "cluster: local\nentry: train.py\nresources: {nodes: 2, ntasks_per_node: 2}\n"
    "recovery: {shrink_micro_batch: 2}\n"
)
BATCH = "deepspeed: {train_batch_size: 16, train_micro_batch_size_per_gpu: 2}\n"
ARGS = "args: ['${hpcrun:deepspeed_config}']\n"


def _notes(project: Any, text: str) -> str:
    compiled = compile_spec(project.write("spec.yaml", BASE + text))
    return "\n".join(one for one in compiled.notes if "shrink_micro_batch" in one)


def test_a_script_that_reads_the_configuration_gets_it(project: Any) -> None:
    assert _notes(project, BATCH + ARGS) == ""


def test_a_script_that_may_ask_the_session_is_told(project: Any) -> None:
    assert "the program has to ask the second" in _notes(project, BATCH)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "leaves train_batch_size, train_micro_batch_size_per_gpu, gradient_acc"),
        ("deepspeed: {train_micro_batch_size_per_gpu: auto}\n" + ARGS, "open"),
        (BATCH + ARGS + "framework: huggingface\n", "the batch of huggingface is in the program"),
        (BATCH + ARGS + "framework: lightning\n", "the batch of lightning is in the program's"),
    ],
    ids=["none", "auto", "Trainer", "Lightning"],
)
def test_where_it_would_not_arrive_it_is_refused(project: Any, text: str, found: str) -> None:
    with pytest.raises(SpecError) as caught:
        _notes(project, text)
    assert "recovery.shrink_micro_batch" in str(caught.value)
    assert found in str(caught.value)


def test_a_negative_number_is_refused(project: Any) -> None:
    spec = project.write("spec.yaml", BASE + BATCH)
    with pytest.raises(SpecError, match="shrink_micro_batch"):
        compile_spec(spec, ["recovery.shrink_micro_batch=-1"])
