"""What an agent finds wrong with its node. NVML is a module that stands in for ``pynvml``."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.policy import node_health
from hpcrun.run.check_in import node_report
from hpcrun.run.protocol import messages

GB = 1 << 30


class Nvml(types.ModuleType):
    """``pynvml`` of a node: for each GPU its used memory, processes, ECC errors, or an error."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self, *gpus: Any) -> None:
        super().__init__("pynvml")
        self.gpus = gpus
        self.starts: Any = lambda: None

    def nvmlInit(self) -> None:
        self.starts()

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self.gpus[index]

    def nvmlDeviceGetMemoryInfo(self, gpu: Any) -> Any:
        if isinstance(gpu, str):
            raise self.NVMLError(gpu)
        return SimpleNamespace(used=gpu[0], total=80 * GB)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Any) -> list[object]:
        return [] if isinstance(gpu, str) else [object()] * gpu[1]

    def nvmlDeviceGetTotalEccErrors(self, gpu: Any, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        if isinstance(gpu, str) or gpu[2] is None:
            raise self.NVMLError_NotSupported("Not Supported")
        return int(gpu[2])


IDLE = (0, 0, 0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("shared", "scratch"):
        (tmp_path / name).mkdir()
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "version").write_text("NVRM version\n")
    monkeypatch.setattr(node_report, "_DRIVER", tmp_path / "version")
    monkeypatch.setattr(node_report, "AGAIN", 0.0)
    return tmp_path


def _report(
    place: Path, wants: int = 0, first_time: bool = True, without: str = ""
) -> dict[str, Any]:
    shared, scratch = place / "shared", place / "scratch"
    found = node_report.report(shared, scratch, "n1", None, wants=wants, first_time=first_time)
    as_sent = {**found, "findings": [list(one) for one in found["findings"]]}
    assert messages.node_report({"health": as_sent}) == as_sent
    left = [path for path in (shared, scratch) if path.name != without]
    assert [name for path in left for name in path.iterdir()] == []
    return found


def test_a_healthy_node_without_gpus(place: Path) -> None:
    began = time.monotonic()
    found = _report(place)
    assert (found["findings"], found["gpus"]) == ([], None)
    assert abs(found["clock"] - time.time()) < 5
    assert time.monotonic() - began < 1


def test_node_local_storage_that_cannot_be_written(place: Path) -> None:
    (place / "scratch").rmdir()
    found = _report(place, without="scratch")["findings"]
    told = "its node-local storage cannot be written: No such file or directory"
    assert found == [(node_health.NOT_WRITABLE, told)]


def test_an_error_of_shared_storage_is_raised(place: Path) -> None:
    (place / "shared").rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        _report(place)
    assert caught.value.filename == str(place / "shared" / ".check-n1")


def test_a_fault_that_is_gone_at_the_second_look(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [[(node_health.BROKEN_GPU, "GPU 0 does not answer: once")], []]
    monkeypatch.setattr(node_report, "of_gpus", lambda *_, **__: (1, looks.pop(0)))
    assert _report(place, wants=1)["findings"] == []
    assert looks == []


def test_storage_with_little_room(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def little(path: Path) -> Any:
        full = path.name == "scratch"
        return SimpleNamespace(
            f_bavail=5 if full else 1 << 20,
            f_frsize=1 << 20,
            **{"f_blocks": 1 << 30, "f_files": 1 << 20, "f_favail": 1 << 19},
        )

    monkeypatch.setattr(os, "statvfs", little)
    found = _report(place)["findings"]
    assert found == [(node_health.LITTLE_ROOM, "its node-local storage has 5.2 MB left")]


def test_a_file_system_that_does_not_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_report, "PATIENCE", 0.1)
    hangs = threading.Event()
    monkeypatch.setattr(node_report, "storage", lambda *_: hangs.wait(20) and [])
    assert [kind for kind, _ in _report(place)["findings"]] == [
        node_health.NOT_WRITABLE,  # the node's own
        node_health.SHARED_STORAGE,
    ]
    hangs.set()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_shared_file_system_is_no_nodes_fault(
    place: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", full)
    kinds = [
        [kind for kind, _ in node_report.storage(place, name, "n1")]
        for name in ("shared", "node-local")
    ]
    assert kinds == [[node_health.SHARED_STORAGE], [node_health.NOT_WRITABLE]]


@pytest.mark.parametrize(
    ("gpus", "wants", "kinds"),
    [
        ((IDLE, IDLE), 2, []),
        ((IDLE, IDLE), 4, [node_health.NO_GPU]),
        # Slurm may hide all of them from an agent: their number on other nodes tells.
        ((), 4, []),
        ((IDLE, (9 * GB, 0, 0)), 2, [node_health.BUSY_GPU]),
        ((IDLE, (5 * GB, 0, 0)), 2, []),
        ((IDLE, (70 * GB, 2, 0)), 2, [node_health.BUSY_GPU]),
        ((IDLE, (0, 0, 3)), 2, [node_health.ECC_ERRORS]),
        ((IDLE, (0, 0, None)), 2, []),
        ((IDLE, "GPU is lost"), 2, [node_health.BROKEN_GPU]),
    ],
)
def test_gpus(
    place: Path, monkeypatch: pytest.MonkeyPatch, gpus: Any, wants: int, kinds: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(*gpus))
    found = _report(place, wants)
    assert [kind for kind, _ in found["findings"]] == kinds
    assert found["gpus"] == len(gpus)


def test_memory_of_ranks_before_is_not_somebody_elses(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml((70 * GB, 1, 0)))
    assert _report(place, 1, first_time=False)["findings"] == []
    assert _report(place, 1)["findings"] == [
        (node_health.BUSY_GPU, "GPU 0 is used by 1 process already")
    ]


def test_a_node_without_a_driver_or_a_library(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert _report(place, 4)["gpus"] is None
    (place / "version").unlink()
    assert (_report(place, 4)["gpus"], _report(place)["gpus"]) == (0, None)


def test_a_driver_that_does_not_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_report, "PATIENCE", 0.1)
    nvml, hangs = Nvml(IDLE), threading.Event()
    nvml.starts = lambda: hangs.wait(20)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = _report(place, 1)
    assert found["findings"] == [(node_health.BUSY_GPU, "the driver of its GPUs does not answer")]
    assert found["gpus"] is None
    hangs.set()


def test_a_driver_that_fails(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(IDLE)

    def fails() -> None:
        raise Nvml.NVMLError("Driver/library version mismatch")

    nvml.starts = fails
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    ((kind, message),) = _report(place, 1)["findings"]
    assert kind == node_health.BROKEN_GPU
    assert message == "its GPUs do not answer: Driver/library version mismatch"
