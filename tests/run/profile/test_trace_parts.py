"""Each moment of a trace is counted once: synthetic traces, one a case."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.run.profile import trace_parts
from hpcrun.state.spec.profiling import COMMUNICATION, COMPUTE, DATA, HOST, OPTIMIZER

MAIN, GLOO, STREAM = 1, 2, 7


def _event(kind: str, name: str, begin: float, end: float, tid: int = MAIN, **args: Any) -> Any:
    """An event from second ``begin`` to ``end``."""
    times = {"ts": 1e9 + begin * 1e6, "dur": (end - begin) * 1e6}
    return {"ph": "X", "cat": kind, "name": name, "tid": tid, **times, "args": args}


def _op(name: str, begin: float, end: float, tid: int = MAIN) -> Any:
    return _event("cpu_op", name, begin, end, tid)


def _range(name: str, begin: float, end: float, tid: int = MAIN) -> Any:
    return _event("user_annotation", name, begin, end, tid)


def _gloo(begin: float, end: float) -> Any:
    return _range("gloo:all_reduce", begin, end, GLOO)


def _launch(at: float, correlation: int) -> Any:
    return _event("cuda_runtime", "cudaLaunchKernel", at, at + 0.01, correlation=correlation)


def _kernel(name: str, begin: float, end: float, correlation: int = 0, tid: int = STREAM) -> Any:
    return _event("kernel", name, begin, end, tid, correlation=correlation)


NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long)"

# A step of 10 seconds: its events, its parts that are not 0, and what is hidden.
CASES: dict[str, tuple[list[Any], dict[str, float], float]] = {
    "nothing": ([], {HOST: 10}, 0),
    "an operator": ([_op("aten::mm", 1, 4)], {COMPUTE: 3, HOST: 7}, 0),
    "operators inside each other count once": (
        [_op("aten::linear", 1, 4), _op("aten::addmm", 2, 3)],
        {COMPUTE: 3, HOST: 7},
        0,
    ),
    "threads at the same time count once": (
        [_op("aten::mm", 1, 4), _op("aten::mm", 2, 6, tid=3)],
        {COMPUTE: 5, HOST: 5},
        0,
    ),
    "communication alone is exposed": ([_gloo(2, 5)], {COMMUNICATION: 3, HOST: 7}, 0),
    "behind an operator it is hidden": (
        [_op("aten::mm", 1, 4), _gloo(3, 6)],
        {COMPUTE: 3, COMMUNICATION: 2, HOST: 5},
        1,
    ),
    "starting a collective is no computation": (
        [_op("c10d::allreduce_", 1, 4), _gloo(2, 4)],
        {COMMUNICATION: 2, HOST: 8},
        0,
    ),
    "a node of the backward pass may wait": (
        [
            _op("autograd::engine::evaluate_function: AccumulateGrad", 1, 9),
            _op("aten::mul", 2, 3),
            _gloo(3, 8),
        ],
        {COMPUTE: 1, COMMUNICATION: 5, HOST: 4},
        0,
    ),
    "an operator of another library": ([_op("mine::kernel", 1, 4)], {COMPUTE: 3, HOST: 7}, 0),
    "operators on a collective's own thread are its": (
        [_gloo(2, 5), _op("aten::add_", 3, 4, tid=GLOO)],
        {COMMUNICATION: 3, HOST: 7},
        0,
    ),
    "a message that the program's own thread sends": (
        [_range("gloo:send", 1, 2), _op("aten::mm", 3, 6)],
        {COMMUNICATION: 1, COMPUTE: 3, HOST: 6},
        0,
    ),
    "the optimizer's range, with and without operators": (
        [_range("Optimizer.step#AdamW.step", 6, 9), _op("aten::lerp_", 7, 8)],
        {OPTIMIZER: 3, HOST: 7},
        0,
    ),
    "an engine's step that waits for an all-gather": (
        [_range(trace_parts.ENGINE_STEP, 5, 10), _op("aten::add", 5, 6), _gloo(6, 9)],
        {OPTIMIZER: 2, COMMUNICATION: 3, HOST: 5},
        0,
    ),
    "a loader": (
        [_range("enumerate(DataLoader)#_Multi.__next__", 0, 2), _op("aten::stack", 1, 2)],
        {DATA: 2, HOST: 8},
        0,
    ),
    "a session's batch hides communication": (
        [_range(trace_parts.BATCH, 0, 2), _gloo(1, 3)],
        {DATA: 2, COMMUNICATION: 1, HOST: 7},
        1,
    ),
    "what is outside of the steps does not count": (
        [_op("aten::mm", -5, 1), _gloo(9, 15), _op("aten::mm", 20, 30)],
        {COMPUTE: 1, COMMUNICATION: 1, HOST: 8},
        0,
    ),
    "kernels decide, not operators": (
        [_op("aten::mm", 0, 9), _kernel("gemm", 2, 5)],
        {COMPUTE: 3, HOST: 7},
        0,
    ),
    "a kernel over NCCL's": (
        [_kernel("gemm", 2, 5), _kernel(NCCL, 4, 8, tid=20)],
        {COMPUTE: 3, COMMUNICATION: 3, HOST: 4},
        1,
    ),
    "kernels that the optimizer launched, which run after it": (
        [
            _range("Optimizer.step#FusedAdam.step", 1, 2),
            _launch(0.5, 1),
            _launch(1.5, 2),
            _kernel("gemm", 1, 4, correlation=1),
            _kernel("multi_tensor_apply", 4, 6, correlation=2),
        ],
        {COMPUTE: 3, OPTIMIZER: 2, HOST: 5},
        0,
    ),
    "copies to the device, hidden and not": (
        [
            _event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 3, 9),
            _kernel("gemm", 2, 5),
            _event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 5, 6, 9),
        ],
        {DATA: 2, COMPUTE: 4, HOST: 4},
        0,
    ),
    "a loader while the GPU idles": (
        [_range("enumerate(DataLoader)#_Single.__next__", 0, 4), _kernel("gemm", 3, 5)],
        {DATA: 3, COMPUTE: 2, HOST: 5},
        0,
    ),
    "a group of the CPUs beside the GPUs' is the host's": (
        [_gloo(0, 2), _kernel("gemm", 4, 5)],
        {COMPUTE: 1, HOST: 9},
        0,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_moment_counts_once(case: str) -> None:
    events, expected, hidden = CASES[case]
    found = trace_parts.step_parts([_range(trace_parts.STEP, 0, 10), *events])
    assert {part: value for part, value in found.parts.items() if value} == pytest.approx(expected)
    assert found.hidden == pytest.approx(hidden)
    assert sum(found.parts.values()) == pytest.approx(found.seconds) == pytest.approx(10)


def test_steps_are_one_window() -> None:
    marks = [_range(trace_parts.STEP, 0, 4), _range(trace_parts.STEP, 4, 9)]
    found = trace_parts.step_parts([*marks, _op("aten::mm", 3, 5)])
    assert (found.steps, found.seconds) == (2, pytest.approx(9))
    assert found.parts[COMPUTE] == pytest.approx(2)


def test_phases_and_collectives_are_told_by_name() -> None:
    events = [
        _range(trace_parts.STEP, 0, 10),
        _range(trace_parts.FORWARD, 1, 3),
        _range(trace_parts.BACKWARD, 3, 6),
        _range(trace_parts.ENGINE_STEP, 6, 8),
        _gloo(4, 5),
        _gloo(4.5, 6),
    ]
    found = trace_parts.step_parts(events)
    assert found.phases == pytest.approx({"forward": 2, "backward": 3, "step": 2})
    assert found.collectives == pytest.approx({"gloo:all_reduce": 2.5})
    assert not found.on_device


def test_a_trace_without_steps() -> None:
    with pytest.raises(trace_parts.NoStepsError):
        trace_parts.step_parts([_op("aten::mm", 0, 1), {"ph": "M", "name": "process_name"}])
