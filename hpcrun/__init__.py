"""hpcrun: checked Slurm submissions of DeepSpeed training, seen through to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcrun.run.data.curriculum import Ramp
    from hpcrun.run.data.packed_documents import PackedDocuments
    from hpcrun.run.session import Session, session

__version__ = "0.1.0"
__all__ = ["PackedDocuments", "Ramp", "Session", "__version__", "session"]


def __getattr__(name: str) -> Any:
    if name in ("Session", "session"):
        from hpcrun.run import session as module

        return getattr(module, name)
    if name == "PackedDocuments":
        from hpcrun.run.data.packed_documents import PackedDocuments

        return PackedDocuments
    if name == "Ramp":
        from hpcrun.run.data.curriculum import Ramp

        return Ramp
    raise AttributeError(f"module 'hpcrun' has no attribute {name!r}")
