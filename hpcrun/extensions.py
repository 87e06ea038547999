"""The kinds of what other packages add by name, each with hpcrun's own entries.

`hpcrun.registry` finds and imports an entry; docs/extending.md says how a package offers one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcrun.registry import Registry

if TYPE_CHECKING:
    from hpcrun.run.tracking.interface import Tracker

_TRACKING = "hpcrun.run.tracking"
TRACKERS: Registry[type[Tracker]] = Registry(
    "hpcrun.trackers",
    "tracker",
    {
        "tensorboard": f"{_TRACKING}.tensorboard_tracker:TensorBoardTracker",
        "wandb": f"{_TRACKING}.wandb_tracker:WandbTracker",
        "mlflow": f"{_TRACKING}.mlflow_tracker:MlflowTracker",
    },
    needs=("send", "close"),
)
"""The name is the key of the spec's ``tracking`` block, and that of the library."""
