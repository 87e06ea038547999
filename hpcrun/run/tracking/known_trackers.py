"""The trackers by name, which is that of the library and of the spec's block."""

from __future__ import annotations

from hpcrun.run.tracking.interface import Tracker
from hpcrun.run.tracking.mlflow_tracker import MlflowTracker
from hpcrun.run.tracking.tensorboard_tracker import TensorBoardTracker
from hpcrun.run.tracking.wandb_tracker import WandbTracker

TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}
