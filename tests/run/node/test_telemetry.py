"""Telemetry of a node: lines of samples, and what must not keep them, or the agent, from going on.

There is no GPU here: NVML is a module that stands in for ``pynvml``, with its names.
"""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.node import telemetry
from hpcrun.run.node.counters import Counters
from hpcrun.run.node.gpus import Gpus
from hpcrun.run.node.telemetry import NodeTelemetry
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from tests.support.place import REPOSITORY, Place
from tests.support.waiting import until


class StandIn(types.ModuleType):
    """``pynvml`` of a node with some GPUs: the functions that are asked, with made-up answers."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self, count: int) -> None:
        super().__init__("pynvml")
        self.count = count
        self.broken: dict[str, Exception] = {}
        self.hangs = threading.Event()
        self.hangs.set()

    def __getattribute__(self, name: str) -> Any:
        broken = object.__getattribute__(self, "__dict__").get("broken", {})
        if name in broken:

            def fail(*_: Any) -> None:
                raise broken[name]

            return fail
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        return int(name.removeprefix("GPU-"))

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self.hangs.wait()
        return types.SimpleNamespace(gpu=90 + handle, memory=5)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return types.SimpleNamespace(used=10 + handle, total=100, free=90)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 412_340

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return 60 + handle


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(4)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        monkeypatch.delenv(name, raising=False)
    return made


def _indices(devices: str | None = None) -> list[int]:
    return [one["index"] for one in Gpus(devices).read()]


def test_what_a_gpu_does(nvml: StandIn) -> None:
    assert Gpus("2").read() == [
        {
            **{"index": 2, "utilization": 92, "memory": 12, "memory_total": 100},
            **{"power": 412.3, "temperature": 62},
        }
    ]


def test_only_the_jobs_gpus_are_read(nvml: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _indices() == [0, 1, 2, 3]
    assert _indices("1,3") == [1, 3]
    assert _indices("GPU-2") == [2]
    monkeypatch.setenv("SLURM_JOB_GPUS", "3")
    assert _indices() == [3]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert _indices() == [0, 1]
    # Slurm's cgroup hides the others: the numbers are those of the node, what is left counts anew.
    nvml.count = 2
    assert _indices("6,7") == [0, 1]


def test_a_sensor_that_a_board_lacks_is_no_trouble(nvml: StandIn) -> None:
    nvml.broken["nvmlDeviceGetPowerUsage"] = nvml.NVMLError_NotSupported("not supported")
    gpus = Gpus("0")
    assert "power" not in gpus.read()[0]
    assert gpus.trouble is None


def test_a_lost_gpu_is_told(nvml: StandIn) -> None:
    nvml.broken["nvmlDeviceGetMemoryInfo"] = nvml.NVMLError("GPU is lost")
    gpus = Gpus("0")
    assert gpus.read() == [{"index": 0, "utilization": 90, "power": 412.3, "temperature": 60}]
    assert gpus.trouble == "nvmlDeviceGetMemoryInfo: GPU is lost"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return AttemptPaths(tmp_path).telemetry("n1")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(telemetry, "say", found.append)
    return found


def sampling(
    path: Path, open_gpus: Callable[[], Gpus] | None = None, *, every: float = 0.02, nodes: int = 0
) -> NodeTelemetry:
    return NodeTelemetry(path, Counters(None, None), open_gpus, every, nodes)


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(files.read_lines(path))


def test_a_line_for_each_sample(path: Path) -> None:
    before = time.time() - 0.1
    one = sampling(path)
    until(lambda: len(_lines(path)) > 2)
    one.stop()
    lines = _lines(path)
    assert all({"time", "memory", "memory_total"} <= set(line) for line in lines)
    assert before < lines[0]["time"] <= lines[-1]["time"] < time.time() + 0.1
    assert all("gpus" not in line for line in lines)


def test_samples_of_many_nodes_share_a_write(path: Path) -> None:
    one = sampling(path, nodes=64)
    until(lambda: len(one._lines) > 3)
    assert not path.exists()
    one.stop()
    assert len(_lines(path)) > 3


def test_gpus_are_in_the_line(path: Path, nvml: StandIn, said: list[str]) -> None:
    one = sampling(path, lambda: Gpus("0,1"))
    until(lambda: _lines(path))
    one.stop()
    assert [gpu["utilization"] for gpu in _lines(path)[0]["gpus"]] == [90, 91]
    assert one.gpu == len(_lines(path)) * round(one._every * (90 + 91))
    assert said == []


def test_without_the_library_that_is_said_once(
    path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    one = sampling(path, lambda: Gpus(None))
    until(lambda: len(_lines(path)) > 2)
    one.stop()
    [only] = said
    assert only.startswith("telemetry lacks figures of the GPUs: ")
    assert only.endswith("the job's Python needs nvidia-ml-py")


def test_a_driver_that_fails_is_said_once_and_asked_again(
    path: Path, nvml: StandIn, said: list[str]
) -> None:
    nvml.broken["nvmlInit"] = nvml.NVMLError("Driver Not Loaded")
    one = sampling(path, lambda: Gpus(None))
    until(lambda: len(_lines(path)) > 2)
    nvml.broken.clear()
    until(lambda: "gpus" in _lines(path)[-1])
    one.stop()
    assert said == ["telemetry lacks figures of the GPUs: NVMLError: Driver Not Loaded"]


def test_a_driver_that_hangs_keeps_nothing_else(
    path: Path, nvml: StandIn, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "GPU_PATIENCE", 0.05)
    nvml.hangs.clear()
    one = sampling(path, lambda: Gpus("0"))
    until(lambda: len(_lines(path)) > 3)
    assert all("gpus" not in line and "memory" in line for line in _lines(path))
    nvml.hangs.set()
    until(lambda: "gpus" in _lines(path)[-1])
    one.stop()
    assert said == ["telemetry lacks figures of the GPUs: NVML gave no answer in 0.05 s"]


def test_storage_that_blocks_is_not_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    append = files.append

    def blocked(*arguments: Any) -> None:
        goes_on.wait()
        append(*arguments)

    monkeypatch.setattr(files, "append", blocked)
    monkeypatch.setattr(telemetry, "LEAVE", 0.1)
    one = sampling(path)
    until(lambda: len(one._lines) > 5)
    began = time.monotonic()
    one.stop()
    assert time.monotonic() - began < 2
    assert not path.exists()
    goes_on.set()
    until(lambda: len(_lines(path)) > 5)


def test_a_sample_costs_little(path: Path, nvml: StandIn) -> None:
    """Of one processor, less than 0.5 % at a sample every ten seconds."""
    one = sampling(path, lambda: Gpus(None), every=0.001)
    before = time.process_time()
    until(lambda: len(_lines(path)) > 50)
    one.stop()
    assert (time.process_time() - before) / len(_lines(path)) < 0.005 * 10


def test_a_run_is_sampled_on_each_node_in_each_attempt(place: Place) -> None:
    command = 'sleep 2.5; test "$HPCRUN_ATTEMPT" = 2'
    place.submit(command, nodes=2, telemetry={"every": 1}, recovery={"in_place": 2})
    assert place.supervise()[0] == 0, place.output()
    for attempt in (1, 2):
        for node in ("local0", "local1"):
            lines = _lines(place.run.attempt(attempt).telemetry(node))
            assert len(lines) > 1
            assert all(line["memory"] > 0 for line in lines)
            assert all("gpus" not in line and "fabric" not in line for line in lines)


def test_a_run_that_wants_none_has_none(place: Place) -> None:
    place.submit("sleep 0.3", telemetry={"every": None})
    assert place.supervise()[0] == 0
    assert not place.run.attempt(1).telemetry("local0").exists()


def test_gpus_are_asked_for_where_the_run_has_some(place: Place, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "pynvml.py").write_text("raise ImportError('it stands in for one that is broken')\n")
    resources = {"nodes": 1, "ntasks_per_node": 1, "gpus_per_node": 1, "cpus_per_task": 1}
    place.submit("sleep 1.5", telemetry={"every": 1}, resources=resources)
    paths = f"{REPOSITORY}:{library}"
    assert place.supervise(PYTHONPATH=paths)[0] == 0, place.output()
    log = place.run.attempt(1).agent_log("local0").read_text()
    assert log.count("it stands in for one that is broken") == 1
    assert _lines(place.run.attempt(1).telemetry("local0"))
