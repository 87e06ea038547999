"""hpcrun: checked Slurm submissions of DeepSpeed training, seen through to their end."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcrun.run.data.curriculum import Ramp
    from hpcrun.run.data.packed_documents import PackedDocuments
    from hpcrun.run.parallel.ulysses import attention as ulysses_attention
    from hpcrun.run.session import Session, session

__version__ = "0.1.0"
__all__ = ["PackedDocuments", "Ramp", "Session", "__version__", "session", "ulysses_attention"]
# Public name -> its module below `hpcrun.run`, and its name there.
_FROM = {
    "PackedDocuments": ("data.packed_documents", "PackedDocuments"),
    "Ramp": ("data.curriculum", "Ramp"),
    "Session": ("session", "Session"),
    "session": ("session", "session"),
    "ulysses_attention": ("parallel.ulysses", "attention"),
}


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module 'hpcrun' has no attribute {name!r}")
    module, inside = _FROM[name]
    return getattr(importlib.import_module(f"hpcrun.run.{module}"), inside)
