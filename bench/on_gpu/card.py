"""The card of this machine, and the sizes that suit it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcrun import gpu_catalogue

# In a process of its own: torch would hold memory of the card for as long as this one lives.
_ASK = """
import json, shutil, torch
from torch.utils.cpp_extension import CUDA_HOME
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "name": "cpu", "memory": 0,
         "nvcc": shutil.which("nvcc") or (CUDA_HOME and shutil.which(CUDA_HOME + "/bin/nvcc"))}
if torch.cuda.is_available():
    device = torch.cuda.get_device_properties(0)
    found.update(name=device.name, memory=device.total_memory,
                 capability=[device.major, device.minor])
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Model:
    """A causal language model, and how much of it a micro batch is."""

    layers: int
    width: int
    heads: int
    context: int
    micro: int
    vocabulary: int = 50304

    def config(self) -> dict[str, Any]:
        """Return the keys of ``config`` that make it."""
        model = {"layers": self.layers, "width": self.width, "heads": self.heads}
        return {"model": model, "context": self.context, "vocabulary": self.vocabulary}

    @property
    def sample_bytes(self) -> float:
        """Bytes of a sample's activations in bf16, roughly: 34 a place, and the logits."""
        layers = 34 * self.context * self.width * self.layers
        return layers + 10.0 * self.context * self.vocabulary

    def operations(self, parameters: int) -> float:
        """Return operations a token: 6 a parameter (tied ones once) and attention, unmasked."""
        return 6.0 * parameters + 12.0 * self.layers * self.width * self.context


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    models: dict[str, Model]
    """For memory and speed."""
    small: Model
    """For runs that are hurt."""
    middle: Model
    """For all else."""
    stages: tuple[int, ...]
    steps: int
    """Of a run that is hurt."""
    timed: int
    """Steps that are timed, twice."""
    turns: tuple[int, int, int]
    """Of the loop: steps before, turns of either side, and steps a turn."""
    save_every: int
    compiler: str
    """The backend of torch.compile."""
    tuned: tuple[tuple[int, ...], tuple[int, ...]]
    """Micro batches and stages that `tune` tries."""


ON_GPU = Sizes(
    models={
        "124M": Model(12, 768, 12, context=1024, micro=32),
        "350M": Model(24, 1024, 16, context=1024, micro=24),
        "1.3B": Model(24, 2048, 16, context=2048, micro=6),
    },
    small=Model(6, 512, 8, context=512, micro=16, vocabulary=4096),
    middle=Model(12, 768, 12, context=1024, micro=32),
    stages=(1, 2, 3),
    steps=60,
    timed=8,
    turns=(20, 20, 5),
    save_every=50,
    compiler="inductor",
    tuned=((8, 16, 32), (0, 1)),
)
_TINY = Model(2, 32, 2, context=16, micro=2, vocabulary=256)
TINY = Sizes(
    models={"tiny": _TINY},
    small=_TINY,
    middle=_TINY,
    stages=(2,),
    steps=12,
    timed=2,
    turns=(2, 4, 2),
    save_every=10,
    compiler="aot_eager",  # half a minute of a C++ compiler less
    tuned=((1, 2), (0,)),
)


@dataclass(frozen=True)
class Card:
    """The GPU, or the processors in its place."""

    name: str
    memory: int
    torch: str
    cuda: str | None
    nvcc: str | None
    capability: tuple[int, ...] = ()

    @classmethod
    def here(cls) -> Card:
        """Ask torch."""
        argv = [sys.executable, "-c", _ASK]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise SystemExit(f"torch does not start here:\n{done.stderr[-3000:]}")
        return cls(**json.loads(done.stdout.splitlines()[-1]))

    @property
    def on_gpu(self) -> bool:
        return self.name != "cpu"

    @property
    def known(self) -> gpu_catalogue.Gpu | None:
        """The catalogue's entry."""
        return gpu_catalogue.of_device(self.name)

    @property
    def slug(self) -> str:
        """The name in files, such as ``h100``."""
        if self.known is not None:
            return self.known.name
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def sizes(self) -> Sizes:
        return ON_GPU if self.on_gpu else TINY

    def setting(self) -> dict[str, Any]:
        """Return what a result has to say of the machine."""
        memory = next(
            line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemTotal")
        )  # fmt: skip
        own = {key: value for key, value in asdict(self).items() if key != "name"}
        return {
            **own,
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "memory_of_the_node": int(memory) * 1024,
        }
