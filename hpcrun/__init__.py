"""hpcrun: checked Slurm submissions of DeepSpeed training, seen through to their end."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcrun.api import Experiment, LogLine, experiment, submit
    from hpcrun.observe.status.status import RunStatus
    from hpcrun.run.data.curriculum import Ramp
    from hpcrun.run.data.mixture import Mixture
    from hpcrun.run.data.packed_documents import PackedDocuments
    from hpcrun.run.data.tar_shards import TarShards
    from hpcrun.run.data.token_files import TokenFiles
    from hpcrun.run.parallel.expert_layer import expert_layer
    from hpcrun.run.parallel.ulysses import attention as ulysses_attention
    from hpcrun.run.session import Session, session

__version__ = "0.1.0"
__all__ = [
    "Experiment",
    "LogLine",
    "Mixture",
    "PackedDocuments",
    "Ramp",
    "RunStatus",
    "Session",
    "TarShards",
    "TokenFiles",
    "__version__",
    "experiment",
    "expert_layer",
    "session",
    "submit",
    "ulysses_attention",
]
# Public name -> its module, and its name there.
_FROM = {
    "Experiment": ("api", "Experiment"),
    "LogLine": ("api", "LogLine"),
    "Mixture": ("run.data.mixture", "Mixture"),
    "PackedDocuments": ("run.data.packed_documents", "PackedDocuments"),
    "Ramp": ("run.data.curriculum", "Ramp"),
    "RunStatus": ("observe.status.status", "RunStatus"),
    "Session": ("run.session", "Session"),
    "TarShards": ("run.data.tar_shards", "TarShards"),
    "TokenFiles": ("run.data.token_files", "TokenFiles"),
    "experiment": ("api", "experiment"),
    "expert_layer": ("run.parallel.expert_layer", "expert_layer"),
    "session": ("run.session", "session"),
    "submit": ("api", "submit"),
    "ulysses_attention": ("run.parallel.ulysses", "attention"),
}


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module 'hpcrun' has no attribute {name!r}")
    module, inside = _FROM[name]
    importlib.import_module("hpcrun.run.own_archive").read_once()
    return getattr(importlib.import_module(f"hpcrun.{module}"), inside)
