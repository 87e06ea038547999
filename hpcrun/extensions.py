"""The kinds of what other packages add by name, each with hpcrun's own entries.

`hpcrun.registry` finds and imports an entry; docs/extending.md says how a package offers one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcrun.registry import Registry

if TYPE_CHECKING:
    from hpcrun.container.runtimes import ContainerRuntime
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

_CONTAINER = "hpcrun.container.runtimes"
RUNTIMES: Registry[type[ContainerRuntime]] = Registry(
    "hpcrun.container_runtimes",
    "container runtime",
    {
        "apptainer": f"{_CONTAINER}:Apptainer",
        "bubblewrap": f"{_CONTAINER}:Bubblewrap",
        "charliecloud": f"{_CONTAINER}:Charliecloud",
        "command": f"{_CONTAINER}:OtherCommand",
        "pyxis": f"{_CONTAINER}:Pyxis",
    },
    needs=("programs", "is_of_srun", "fetches", "command_line", "srun_options"),
)
"""The name is the value of ``environment.container.runtime``."""
