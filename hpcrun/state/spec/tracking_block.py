"""The ``tracking`` block of a spec: where the logged metrics go."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from hpcrun.state.spec.spec_dataclass import spec_dataclass


@spec_dataclass
class Wandb:
    """Weights & Biases, by the package ``wandb`` of the job's Python. Each run is one of its runs,
    through all attempts."""

    project: str | None = None
    """The project; null for the experiment's name."""

    entity: str | None = None
    """The user or team; null for the account's default."""

    mode: Literal["online", "offline"] = "online"
    """``online`` sends to the server, with the ``WANDB_API_KEY`` of ``environment.secrets_file``;
    ``offline`` keeps what ``wandb sync`` sends later."""

    group: str | None = None
    """The runs' group; null for the experiment's name."""

    tags: list[str] = field(default_factory=list)
    """Tags of the runs."""


@spec_dataclass
class Mlflow:
    """MLflow, by the package ``mlflow`` or ``mlflow-skinny`` of the job's Python. Each run is one
    of its runs, through all attempts."""

    uri: str = ""
    """Its server or database: ``https://…``, ``sqlite:////shared/mlflow.db``;
    ``${oc.env:MLFLOW_TRACKING_URI}`` takes that of your shell. ``MLFLOW_TRACKING_PASSWORD`` or
    ``MLFLOW_TRACKING_TOKEN`` belong into ``environment.secrets_file``."""

    experiment: str | None = None
    """MLflow's experiment; null for this experiment's name."""

    tags: dict[str, str] = field(default_factory=dict)
    """Tags of the runs."""


@spec_dataclass
class Tracking:
    """Where the logged metrics go, beside the run's own files. This neither stops nor slows the
    training."""

    tensorboard: bool = False
    """Event files in the run's ``tracking/tensorboard``, by the package ``tensorboard`` of the
    job's Python."""

    wandb: Wandb | None = None
    """Weights & Biases; ``{}`` is enough, null is without."""

    mlflow: Mlflow | None = None
    """MLflow; ``{uri: …}`` is enough, null is without."""
