"""Real ranks of the tensor test on this machine, and ranks that go wrong."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hpcrun.tools.doctor.on_nodes import examiner
from hpcrun.tools.doctor.on_nodes.examiner import TensorRanks
from tests.support.waiting import until


def _places(count: int, **more: Any) -> list[dict[str, Any]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"address": "127.0.0.1", "port": port, "world_size": count, **more}
    common["environment"] = {"GLOO_SOCKET_IFNAME": "lo"}
    return [{**common, "rank": rank, "local_rank": rank} for rank in range(count)]


@pytest.mark.timeout(120)
def test_a_product_and_an_all_reduce() -> None:
    pytest.importorskip("torch")
    ranks = TensorRanks(_places(2, pairs=[[[0, 1]]]))
    try:
        until(lambda: not ranks.running, "both ranks ended", 90)
        results = ranks.results(90)
    finally:
        ranks.close()
    assert [sorted(one) for one in results] == [["allreduce", "devices", "gemm", "pairs"]] * 2, (
        results
    )
    assert all(one["gemm"] > 1e8 for one in results)
    for one in results:
        ((number, place, busbw),) = one["pairs"]
        assert (number, place) == (0, 0)
        assert busbw > 1e5
    rows = results[0]["allreduce"]
    assert [row["bytes"] for row in rows] == [1 << 16, 1 << 20, 1 << 24]
    for row in rows:
        assert row["algbw"] == pytest.approx(row["bytes"] / row["seconds"])
        # 2(n-1)/n is 1 for two ranks.
        assert row["busbw"] == pytest.approx(row["algbw"])


class _Stub:
    """Ranks that run other code in place of the module."""

    def __init__(self, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = examiner.subprocess.Popen

        def start(argv: list[str], **options: Any) -> Any:
            assert argv[1:] == ["-m", "hpcrun.tools.doctor.on_nodes.tensor_test"]
            return real([sys.executable, "-c", code], **options)

        monkeypatch.setattr(examiner.subprocess, "Popen", start)


@pytest.fixture
def until_closed() -> Iterator[list[TensorRanks]]:
    started: list[TensorRanks] = []
    yield started
    for one in started:
        one.close()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("print('hpcrun-tensor:{\"gemm\": 5}')", {"gemm": 5}),
        (
            "print('hpcrun-tensor:{\"gemm\": 5}', flush=True); raise SystemExit('CUDA error: 719')",
            {"gemm": 5, "error": "it ended with exit code 1: CUDA error: 719"},
        ),
        ("import os; os.kill(os.getpid(), 11)", {"error": "it ended with signal 11: "}),
        # Its last words are read after its end.
        (
            "import os, time\nif os.fork() == 0:\n    time.sleep(0.4)\n    print('at last')\n"
            "else:\n    os._exit(3)",
            {"error": "it ended with exit code 3: at last"},
        ),
        ("print('hpcrun-tensor:nonsense')", {}),
    ],
)
def test_ranks_that_end(
    code: str,
    found: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    until_closed: list[TensorRanks],
) -> None:
    _Stub(code, monkeypatch)
    ranks = TensorRanks(_places(1))
    until_closed.append(ranks)
    until(lambda: not ranks.running, "it ended", 20)
    assert ranks.results(20) == [found]


def test_a_rank_that_hangs_is_ended(
    monkeypatch: pytest.MonkeyPatch, until_closed: list[TensorRanks]
) -> None:
    _Stub("import time; time.sleep(600)", monkeypatch)
    ranks = TensorRanks(_places(1))
    until_closed.append(ranks)
    assert ranks.results(7) == [{"error": "it did not end within 7 s"}]
    began = time.monotonic()
    ranks.close()
    assert not ranks.running
    assert time.monotonic() - began < 5
