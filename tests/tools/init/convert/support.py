"""The scripts of these tests, and the files that they name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sbatch"))
PROGRAM = 'print("trained")\n'
# What the scripts start and read, in their directory.
_PROGRAMS = (
    *("train.py", "finetune.py", "train_text_to_image.py", "main.py", "unet/train.py"),
    "megatron/pretrain_gpt.py",
)
_ZERO3 = {
    "zero_optimization": {"stage": 3},
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": "auto"},
}
_ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_offload_params: false
"""


def project(directory: Path) -> Path:
    """Make a directory with all scripts and what they name."""
    for name in _PROGRAMS:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROGRAM)
    (directory / "unet" / "__init__.py").touch()
    (directory / "environment.sh").write_text("export PROJECT=diffusion\n")
    (directory / "ds_zero3.json").write_text(json.dumps(_ZERO3))
    (directory / "accelerate.yaml").write_text(_ACCELERATE)
    for script in SCRIPTS:
        shutil.copy(script, directory / script.name)
    return directory
