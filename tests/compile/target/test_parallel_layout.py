"""Models that are divided between ranks: the batch that is solved, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError
from hpcrun.state.spec.parallel_block import divided_axes, model_ranks

BASE = """cluster: local
entry: [program]
resources: {nodes: 2, ntasks_per_node: 4}
deepspeed: {train_batch_size: 32, train_micro_batch_size_per_gpu: 2, zero_optimization: {stage: 1}}
"""


def compiled(project: Any, text: str, *overrides: str) -> Any:
    return compile_spec(project.write("spec.yaml", BASE + text), overrides)


@pytest.mark.parametrize(
    ("block", "accumulation"),
    [
        ("{}", 2),
        ("{tensor: 2}", 4),
        ("{pipeline: 4}", 8),
        ("{sequence: 2, data: 4}", 4),
        ("{tensor: 2, pipeline: 2, data: auto}", 8),
        ("{tensor: 2, pipeline: 2, sequence: 2, data: 1}", 16),
        ("{expert: 4}", 2),
    ],
)
def test_the_batch_is_solved_for_the_ranks_that_see_different_samples(
    project: Any, block: str, accumulation: int
) -> None:
    config = compiled(project, f"parallel: {block}\n").runs[0].spec["deepspeed"]
    assert config["gradient_accumulation_steps"] == accumulation


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("parallel: {tensor: 3}", [], "parallel.tensor: 3 ranks that hold one copy of the model"),
        ("parallel: {tensor: 0}", [], "parallel.tensor: found 0; accepted is a whole number"),
        ("parallel: {expert: 0}", [], "parallel.expert: found 0; accepted is a whole number"),
        ("parallel: {expert: 3}", [], "3 ranks do not divide the 8 that see different samples"),
        ("parallel: {expert: 2, tensor: 2}", [], "does not go with parallel.tensor"),
        (
            "parallel: {expert: 2}",
            ["deepspeed.zero_optimization.stage=3"],
            "found 3, with which DeepSpeed's MoE does not work",
        ),
        (
            "parallel: {expert: 2}",
            ["deepspeed.zero_optimization.stage=0"],
            "with divided experts DeepSpeed does not clip (at 1) then",
        ),
        ("parallel: {tensor: 2, data: 8}", [], "found 8; 8 ranks with 2 to a copy of the model"),
        ("parallel: {tensor: 2, data: 8}", [], "ask for resources.nodes: 4"),
        ("parallel: {data: all}", [], "parallel.data: found a string"),
        ("parallel: {tensr: 2}", [], "did you mean 'tensor'"),
        (
            "parallel: {pipeline: 2}",
            ["deepspeed.zero_optimization.stage=2"],
            "a pipeline keeps its gradients and parameters whole",
        ),
        (
            "parallel: {pipeline: 2}",
            ["deepspeed.zero_optimization.stage=0"],
            "clips all stages of a pipeline (at 1) by the norm of the first",
        ),
        (
            "parallel: {tensor: 2}",
            ["+deepspeed.tensor_parallel.autotp_size=4"],
            "deepspeed.tensor_parallel.autotp_size: is 4, and parallel.tensor 2",
        ),
        ("parallel: {tensor: 2}\nmodel_parallel_size: 4", [], "is 4, and parallel's axes make 2"),
    ],
)
def test_layouts_that_cannot_be(
    project: Any, text: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(project, text + "\n", *overrides)
    assert message in str(caught.value)


def test_a_pipeline_without_zero_may_go_without_clipping_or_in_half_precision(
    project: Any,
) -> None:
    for more in ("deepspeed.gradient_clipping=0", "deepspeed.bf16.enabled=true"):
        given = ["deepspeed.zero_optimization.stage=0", f"+{more}"]
        assert compiled(project, "parallel: {pipeline: 2}\n", *given).runs


def test_what_a_layout_costs_is_told(project: Any) -> None:
    notes = "\n".join(compiled(project, "parallel: {tensor: 8, pipeline: 1}\n").notes)
    assert "groups of 8 ranks span nodes of 4" in notes
    notes = "\n".join(
        compiled(
            project, "parallel: {pipeline: 4}\n", "deepspeed.train_micro_batch_size_per_gpu=8"
        ).notes
    )
    assert "2 micro batches in 4 stages leave the ranks idle for 60% of a step" in notes
    assert "session.initialize divides the model" in notes


def test_the_layout_is_no_part_of_what_a_run_computes(project: Any) -> None:
    one, two = (
        compiled(project, f"parallel: {{tensor: {size}}}\n").runs[0].identity for size in (1, 2)
    )
    assert one == two


def test_axes_are_swept(project: Any) -> None:
    plan = compiled(project, "sweep: {grid: {parallel.tensor: [1, 2, 4]}}\n")
    sizes = [run.spec["deepspeed"]["gradient_accumulation_steps"] for run in plan.runs]
    assert sizes == [2, 4, 8]


def test_sizes_of_another_kind_divide_nothing() -> None:
    assert (
        divided_axes(None) == divided_axes({}) == divided_axes({"tensor": 1, "pipeline": "2"}) == {}
    )
    assert model_ranks({"tensor": 2, "sequence": 3, "data": 7}) == 6
