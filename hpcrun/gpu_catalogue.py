"""The catalogue of GPUs: memory, bandwidth, peak rates by precision, and power.

Figures of the makers' data sheets (of NVIDIA's GPUs and DGX B200, of AMD's Instinct; for the 4090
the Ada architecture paper): dense rates, without sparsity; memory as the sheet says, in units of
10^9 bytes, which is 1 to 7 % less than what drivers report.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.shared_dataclass import asdict, dataclass

FP32, TF32, HALF, FP8 = "fp32", "tf32", "bf16", "fp8"


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU, as torch sees it: of an AMD MI250X that is one of its two halves."""

    name: str
    memory_gb: float
    """Memory in 10^9 bytes."""
    bandwidth_gb: float
    """Memory bandwidth in 10^9 bytes a second."""
    fp32: float
    """Peak of fp32 in 10^12 operations a second, without tensor cores."""
    tf32: float | None
    """Peak of matrices in TF32; None where there is no such unit."""
    half: float
    """Peak of matrices in bf16, or in fp16 where there is no bf16."""
    fp8: float | None
    """Peak of matrices in FP8."""
    watts: float
    """Power limit of the board."""
    bf16: bool = True
    """It computes in bf16."""
    other_names: tuple[str, ...] = ()
    """What clusters call it too."""

    @property
    def memory(self) -> int:
        """Memory in bytes."""
        return int(self.memory_gb * 1e9)

    def peak(self, precision: str) -> float:
        """Return operations a second of ``fp32`` (which uses TF32), ``bf16`` or ``fp16``."""
        rate = (self.tf32 or self.fp32) if precision == FP32 else self.half
        return rate * 1e12

    def computes(self, precision: str) -> bool:
        """Return whether it has units for ``fp32``, ``tf32``, ``bf16``, ``fp16`` or ``fp8``."""
        has = {TF32: self.tf32 is not None, HALF: self.bf16, FP8: self.fp8 is not None}
        return has.get(precision, True)

    def to_data(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "other_names": list(self.other_names)}


# name, GB, GB/s, fp32, tf32, bf16 or fp16, fp8, W
GPUS: tuple[Gpu, ...] = (
    Gpu("v100-16gb", 16, 900, 15.7, None, 125, None, 300, False, ("v100-sxm2-16gb",)),
    Gpu("v100-32gb", 32, 900, 15.7, None, 125, None, 300, False, ("v100", "v100-sxm2-32gb")),
    Gpu("t4", 16, 320, 8.1, None, 65, None, 70, False),
    Gpu("a10", 24, 600, 31.2, 62.5, 125, None, 150),
    Gpu("a30", 24, 933, 10.3, 82, 165, None, 165),
    Gpu("a40", 48, 696, 37.4, 74.8, 149.7, None, 300),
    Gpu("a100-40gb", 40, 1555, 19.5, 156, 312, None, 400, True, ("a100-sxm4-40gb", "a100_40gb")),
    Gpu("a100-80gb", 80, 2039, 19.5, 156, 312, None, 400, True, ("a100-sxm4-80gb", "a100_80gb")),
    Gpu("a100-pcie-80gb", 80, 1935, 19.5, 156, 312, None, 300),
    Gpu("rtx-a6000", 48, 768, 38.7, 77.4, 154.8, None, 300, True, ("a6000", "rtx_a6000")),
    Gpu("rtx-3090", 24, 936, 35.6, 35.6, 71, None, 350, True, ("3090", "rtx3090")),
    Gpu("rtx-4090", 24, 1008, 82.6, 82.6, 165.2, 330.3, 450, True, ("4090", "rtx4090")),
    Gpu("l4", 24, 300, 30.3, 60, 121, 242.5, 72),
    Gpu("l40", 48, 864, 90.5, 90.5, 181, 362, 300),
    Gpu("l40s", 48, 864, 91.6, 183, 362, 733, 350),
    Gpu("h100-pcie", 80, 2000, 51, 378, 756, 1513, 350),
    Gpu("h100", 80, 3350, 67, 494.7, 989.4, 1978.9, 700, True, ("h100-sxm", "h100-80gb")),
    Gpu("h100-nvl", 94, 3900, 60, 417.5, 835.5, 1670.5, 400),
    Gpu("gh200", 96, 4000, 67, 494.7, 989.4, 1978.9, 700, True, ("gh200-96gb",)),
    Gpu("h200", 141, 4800, 67, 494.7, 989.4, 1978.9, 700, True, ("h200-sxm", "h200-141gb")),
    Gpu("b200", 180, 8000, 75, 1100, 2250, 4500, 1000),
    Gpu("mi210", 64, 1638, 22.6, None, 181, None, 300),
    Gpu("mi250x", 64, 1638, 23.9, None, 191.5, None, 280, True, ("mi250x-gcd", "mi250")),
    Gpu("mi300x", 192, 5300, 163.4, 653.7, 1307.4, 2614.9, 750),
    Gpu("mi325x", 256, 6000, 163.4, 653.7, 1307.4, 2614.9, 1000),
)
# With less memory than others of that name.
_AMBIGUOUS = {"a100": "a100-40gb"}


def _normal(name: str) -> str:
    text = re.sub(r"[\s_/:]+", "-", name.strip().lower())
    return re.sub(r"^(?:nvidia|amd|tesla|instinct|geforce|gpu)-", "", text)


_BY_NAME = {_normal(name): gpu for gpu in GPUS for name in (gpu.name, *gpu.other_names)}


def find(name: str, key: str = "--gpu") -> Gpu:
    """Return the GPU of a name; raise UsageError with suggestions if the catalogue has none.

    ``key`` says where the name was written. ``a100`` alone is that with 40 GB, which is careful.
    """
    asked = _normal(name)
    if found := _BY_NAME.get(_AMBIGUOUS.get(asked, asked)):
        return found
    near = get_close_matches(asked, [*_BY_NAME], n=3, cutoff=0.5)
    near += [one for one in _BY_NAME if asked and (one.startswith(asked) or asked in one)]
    names = list(dict.fromkeys(_BY_NAME[one].name for one in near))[:4]
    known = ", ".join(gpu.name for gpu in GPUS)
    raise UsageError(
        f"{key}: there is no GPU {name!r} in the catalogue; there are {known}",
        hint=f"did you mean {' or '.join(names)}?"
        if names
        else "give the nearest of these by --gpu",
    )


def of_device(name: str) -> Gpu | None:
    """Return the GPU of the name that its driver gives it; None if the catalogue has none.

    Such names go on: ``NVIDIA H100 80GB HBM3`` is an h100, ``Tesla V100-SXM2-16GB`` a v100-16gb.
    """
    words = _normal(_normal(name)).split("-")
    for count in range(len(words), 0, -1):
        begin = "-".join(words[:count])
        if found := _BY_NAME.get(_AMBIGUOUS.get(begin, begin)):
            return found
    return None


def operations_per_token(trainable: int, frozen: int, attention: int) -> float:
    """Return the floating-point operations of a token, forward and backward.

    6 for each trainable parameter and 4 for a frozen one, and 12 for each of layers x width x
    length (``attention``) for the scores (arXiv:2204.02311, appendix B).
    """
    return 6.0 * trainable + 4.0 * frozen + 12.0 * attention


def is_ambiguous(name: str) -> bool:
    """Return whether a name stands for GPUs of different memory."""
    return _normal(name) in _AMBIGUOUS
