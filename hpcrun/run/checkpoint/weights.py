"""What is asked of a model's weights before they are kept."""

from __future__ import annotations

from typing import Any


def are_finite(engine: Any) -> bool:
    """Whether all weights are that this rank holds whole."""
    import torch

    module = getattr(engine, "module", None)
    return module is None or all(
        bool(torch.isfinite(parameter).all())
        for parameter in module.parameters()
        if not hasattr(parameter, "ds_id")
    )
