"""Utilization, memory, power and temperature of a job's GPUs, from NVML."""

from __future__ import annotations

import os
from typing import Any

from hpcrun.shared_dataclass import dataclass

_OF_STEP = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@dataclass(frozen=True)
class GpuState:
    """A GPU before ranks use it; what is not known is 0."""

    used: int
    """Bytes of memory."""
    total: int
    processes: int
    """Processes that compute on it."""
    ecc_errors: int
    """Uncorrected memory errors since it was reset."""
    trouble: str | None
    """NVML's words where it does not answer for this GPU."""


class Gpus:
    """The GPUs that this job has on its node.

    ``devices`` is CUDA_VISIBLE_DEVICES of the node's ranks, None where Slurm has set it here.
    Raises ImportError without ``pynvml`` (the package nvidia-ml-py), pynvml.NVMLError if there is
    no driver, or it does not answer.
    """

    def __init__(self, devices: str | None) -> None:
        import pynvml

        self._nvml = pynvml
        self.trouble: str | None = None
        """Why the last reading is incomplete; None if it is complete."""
        pynvml.nvmlInit()
        of_step = filter(None, map(os.environ.get, _OF_STEP))
        self._handles = self._find(devices or next(of_step, None))

    def _find(self, devices: str | None) -> list[Any]:
        count = int(self._nvml.nvmlDeviceGetCount())
        names = [name.strip() for name in (devices or "").split(",") if name.strip()]
        # Where other jobs' GPUs are hidden, the visible ones are numbered from 0.
        if not names or any(name.isdigit() and int(name) >= count for name in names):
            names = [str(number) for number in range(count)]
        return [
            self._nvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdigit()
            else self._nvml.nvmlDeviceGetHandleByUUID(name)
            for name in names
        ]

    def read(self) -> list[dict[str, Any]]:
        """Return the GPUs' part of a line of telemetry; unknown values are absent."""
        self.trouble = None
        return [{"index": place, **self._one(handle)} for place, handle in enumerate(self._handles)]

    def check(self) -> list[GpuState]:
        """Return the state of each GPU."""
        found = []
        for handle in self._handles:
            self.trouble = None
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
            trouble = self.trouble
            kinds = self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._nvml.NVML_VOLATILE_ECC
            # Boards and drivers that know none of these are no worse.
            processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
            errors = self._ask("nvmlDeviceGetTotalEccErrors", handle, *kinds)
            used, total = (0, 0) if memory is None else (int(memory.used), int(memory.total))
            count = len(processes or ())
            found.append(GpuState(used, total, count, int(errors or 0), trouble))
        return found

    def _one(self, handle: Any) -> dict[str, Any]:
        load = self._ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", handle)
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        found = {
            "index": self._ask("nvmlDeviceGetIndex", handle),
            "utilization": None if load is None else int(load.gpu),
            "memory": None if memory is None else int(memory.used),
            "memory_total": None if memory is None else int(memory.total),
            "power": None if milliwatts is None else round(milliwatts / 1000, 1),
            "temperature": self._ask("nvmlDeviceGetTemperature", handle, sensor),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _ask(self, question: str, *arguments: Any) -> Any:
        """Return NVML's answer; None if it has none, with the reason in ``trouble``."""
        try:
            return getattr(self._nvml, question)(*arguments)
        except self._nvml.NVMLError as error:
            # Some boards lack a sensor.
            if not isinstance(error, self._nvml.NVMLError_NotSupported):
                self.trouble = f"{question}: {error}"
            return None
