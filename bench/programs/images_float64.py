"""The image classification of ``jobs`` in float64: for `bench.jobs`, on several numbers of ranks.

In float32 the sums of 1, 2 and 4 ranks differ by their order, which batch norm amplifies from step
to step until an image at the edge of two classes changes sides.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def train(session: Any) -> None:
    """The entry: the shipped program, with twice the width of numbers."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))
    import image_classification as job
    import torch
    from deepspeed.accelerator import get_accelerator

    read, build = job.read_images, job.build_model

    def images() -> tuple[torch.Tensor, ...]:
        return tuple(one.double() if one.is_floating_point() else one for one in read())

    get_accelerator().supported_dtypes = lambda: [torch.float64]
    # Batch norm's sums in the program, and what DeepSpeed makes of a model.
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    job.read_images = images
    job.build_model = lambda config: build(config).double()
    job.train(session)
