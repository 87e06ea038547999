"""Links from a run to its metrics in trackers: W&B, TensorBoard, MLflow."""

from __future__ import annotations

import re
import shlex
from typing import Any, NamedTuple
from urllib.parse import quote

from hpcrun.observe.read.selection import Selected

WANDB = "https://wandb.ai"
# An address that a page may link to: what a spec names is another's text.
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.-]{1,253}(?::\d{1,5})?(?:/[\w./~%+-]*)?")


class TrackerLink(NamedTuple):
    """One place: an address to open, a command to type, or words alone."""

    name: str
    text: str
    address: str = ""
    command: str = ""


def of_run(one: Selected) -> list[TrackerLink]:
    """Return where a run's metrics are forwarded to, by its spec."""
    tracking = _mapping(one.run.spec.get("tracking"))
    found = []
    if tracking.get("tensorboard"):
        directory = shlex.quote(str(one.paths.tracking / "tensorboard"))
        found.append(TrackerLink("TensorBoard", "", command=f"tensorboard --logdir {directory}"))
    if isinstance(tracking.get("wandb"), dict):
        found.append(_wandb(one, tracking["wandb"]))
    if isinstance(tracking.get("mlflow"), dict):
        found.append(_mlflow(one, tracking["mlflow"]))
    return found


def _wandb(one: Selected, block: dict[str, Any]) -> TrackerLink:
    project = str(block.get("project") or one.experiment.name)
    if block.get("mode") == "offline":
        directory = shlex.quote(str(one.paths.tracking / "wandb"))
        return TrackerLink("W&B", "kept offline:", command=f"wandb beta sync {directory}")
    entity = block.get("entity")
    text = f"{entity}/{project}" if entity else f"project {project}, run {one.run.identity}"
    base = _variable(one, "WANDB_BASE_URL") or WANDB
    if not entity or not _ADDRESS.fullmatch(base):
        return TrackerLink("W&B", text)
    parts = (str(entity), project, "runs", one.run.identity)
    address = "/".join([base.rstrip("/"), *(quote(part, safe="") for part in parts)])
    return TrackerLink("W&B", text, address)


def _mlflow(one: Selected, block: dict[str, Any]) -> TrackerLink:
    server = str(block.get("uri") or "")
    text = f"experiment {block.get('experiment') or one.experiment.name}"
    if server.startswith("sqlite:"):
        command = f"mlflow ui --backend-store-uri {shlex.quote(server)}"
        return TrackerLink("MLflow", text, command=command)
    return TrackerLink("MLflow", text, server if _ADDRESS.fullmatch(server) else "")


def _variable(one: Selected, name: str) -> str:
    variables = _mapping(_mapping(one.run.spec.get("environment")).get("variables"))
    return str(variables.get(name) or "")


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
