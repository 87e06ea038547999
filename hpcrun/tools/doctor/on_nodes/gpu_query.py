"""GPUs of this node as ``nvidia-smi`` describes them: memory, ECC, driver, clocks, PCIe.

The program comes with the driver, so this needs no library. Fields that a board or a driver does
not know are left out. Tested on recorded answers, not on boards of each kind.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcrun import host

# Seconds for an answer: a driver that hangs is a finding.
PATIENCE = 20.0
# Name here -> nvidia-smi's; all are known to drivers from 450 on.
_FIELDS = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "memory": "memory.total",
    "memory_used": "memory.used",
    "utilization": "utilization.gpu",
    "ecc": "ecc.mode.current",
    "ecc_errors": "ecc.errors.uncorrected.volatile.total",
    "retired_pending": "retired_pages.pending",
    "clock": "clocks.sm",
    "clock_most": "clocks.max.sm",
    "pcie_width": "pcie.link.width.current",
    "pcie_width_most": "pcie.link.width.max",
    "temperature": "temperature.gpu",
}
_TEXTS = ("name", "uuid", "driver", "ecc", "retired_pending")
# Drivers from 535 on call them events; what slows a board down although it is asked to compute.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_SLOWDOWNS = {0x08: "HW slowdown", 0x40: "HW thermal slowdown", 0x80: "HW power brake"}
_MOST = 64

Ask = Callable[[Sequence[str]], str]


class GpuTrouble(Exception):
    """nvidia-smi is there and gives no answer; carries its words."""


def is_there() -> bool:
    """Check for a driver of NVIDIA's or its program on this node."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").is_dir()


def given() -> int | None:
    """Return how many GPUs Slurm gave this step, by its variables; None where it does not say.

    Parts of boards (MIG) are not counted: nvidia-smi lists boards.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        words = [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]
        if any(word.startswith("MIG-") for word in words):
            return None
        # What Slurm says where it gave none.
        if words and words != ["NoDevFiles"]:
            return len(words)
    return None


def read(ask: Ask | None = None) -> list[dict[str, Any]]:
    """Return the fields of each GPU that this step may see, unknown ones left out.

    Raises GpuTrouble where nvidia-smi fails, hangs or prints something else.
    """
    asked = _ask if ask is None else ask
    text = asked(["nvidia-smi", f"--query-gpu={','.join(_FIELDS.values())}", *_FORM])
    found = [_gpu(line) for line in text.splitlines()[:_MOST] if line.strip()]
    if not all(found):
        raise GpuTrouble(" ".join(text.split())[:300])
    slowdowns = _slowdowns(asked)
    if len(slowdowns) == len(found):
        for gpu, words in zip(found, slowdowns, strict=True):
            gpu.update({"slowdown": words} if words else {})
    return found


_FORM = ("--format=csv,noheader,nounits",)


def _ask(argv: Sequence[str]) -> str:
    try:
        process = host.start_piped(argv)
    except OSError as error:
        raise GpuTrouble(f"nvidia-smi: {error.strerror}") from None
    found = host.answer(process, PATIENCE)
    if found is None:
        raise GpuTrouble(f"nvidia-smi gave no answer within {PATIENCE:g} s")
    if process.returncode:
        said = " ".join("".join(found).split())[:300]
        raise GpuTrouble(f"nvidia-smi ended with exit code {process.returncode}: {said}")
    return found[0]


def _gpu(line: str) -> dict[str, Any]:
    """Return the fields of a line; empty for a line that is none."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(_FIELDS):
        return {}
    found: dict[str, Any] = {}
    for name, cell in zip(_FIELDS, cells, strict=True):
        # ``[N/A]``, ``[Not Supported]``, ``[Unknown Error]``, ``[GPU requires reset]``
        if cell.startswith("["):
            if "Unknown Error" in cell or "reset" in cell or "is lost" in cell:
                found["trouble"] = cell.strip("[]")
        elif name in _TEXTS:
            found[name] = "".join(filter(str.isprintable, cell))[:80]
        elif re.fullmatch(r"\d{1,12}", cell):
            found[name] = int(cell)
    return found


def _slowdowns(ask: Ask) -> list[str]:
    for field in _REASONS:
        with contextlib.suppress(GpuTrouble):
            lines = [
                line.strip()
                for line in ask(["nvidia-smi", f"--query-gpu={field}", *_FORM]).splitlines()
                if line.strip()
            ]
            if all(re.fullmatch(r"0x[0-9a-fA-F]{1,16}|\[.*\]", line) for line in lines):
                return [_words(line) for line in lines]
    return []


def _words(line: str) -> str:
    bits = int(line, 16) if line.startswith("0x") else 0
    return ", ".join(words for bit, words in _SLOWDOWNS.items() if bits & bit)
