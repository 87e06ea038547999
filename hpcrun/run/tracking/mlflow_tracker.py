"""MLflow: one of its runs per run, on a tracking server or in a database."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrun.run.protocol.output import say
from hpcrun.run.tracking.interface import RunDescription, flat
from hpcrun.state.metrics_file import Line

_IDENTITY, _STEP = "hpcrun.identity", "hpcrun.step"
# Signs that MLflow refuses in names, and the most that it takes in one request.
_REFUSED = re.compile(r"[^\w\-. :/]", re.ASCII)
_METRICS, _PARAMETERS = 1000, 100
_NAME, _VALUE = 250, 6000
# How a run ended, and MLflow's status of it.
_STATUS = {"completed": "FINISHED", "failed": "FAILED", "cancelled": "KILLED", None: "SCHEDULED"}


class MlflowTracker:
    """Goes on with one run of MLflow in each forwarding process.

    A metric of MLflow is a history to which values are added, so steps that are done again keep the
    values sent first. A tag of the run has the last step that arrived.
    """

    def __init__(
        self, run: RunDescription, directory: Path, state: dict[str, Any], step: int
    ) -> None:
        from mlflow import MlflowClient, entities

        wanted = run.tracking["mlflow"]
        self._entities, self._client = entities, MlflowClient(tracking_uri=wanted["uri"])
        self._id = self._find(run, wanted)
        found = self._client.get_run(self._id).data
        self._sent = int(found.tags.get(_STEP, 0))
        self.starts_over = self._sent < int(state.get("sent", 0))
        self._open: int | None = None
        self._renamed: set[str] = set()
        self._client.update_run(self._id, status="RUNNING")
        self._describe(run, found.params)

    @property
    def state(self) -> dict[str, Any]:
        return {"sent": self._sent}

    def send(self, lines: Sequence[Line], kept: int | None) -> None:
        if kept is not None:
            self._open = None
        metrics, now = [], time.time()
        for line in lines:
            if line.step > self._sent or line.step == self._open:
                when = round(1000 * (now if line.time is None else line.time))
                for name, value in line.values.items():
                    metrics.append(self._entities.Metric(self._name(name), value, when, line.step))
                self._sent = self._open = line.step
        for begin in range(0, len(metrics), _METRICS):
            part, rest = metrics[begin : begin + _METRICS], metrics[begin + _METRICS :]
            reached = part[-1].step
            if rest and rest[0].step == reached:
                reached -= 1
            tag = self._entities.RunTag(_STEP, str(reached))
            self._client.log_batch(self._id, metrics=part, tags=[tag])

    def close(self, ended: str | None) -> None:
        self._client.update_run(self._id, status=_STATUS[ended])

    def _find(self, run: RunDescription, wanted: dict[str, Any]) -> str:
        """Return the id of this run's run of MLflow, made if there is none."""
        from mlflow.exceptions import MlflowException

        name = wanted["experiment"] or run.experiment
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                number = self._client.create_experiment(name)
            except MlflowException:
                # Another run of the sweep may have made it meanwhile.
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        if experiment is not None:
            number = experiment.experiment_id
        mine = f"tags.`{_IDENTITY}` = '{run.identity}'"
        found = self._client.search_runs([number], mine, max_results=1)
        if found:
            return str(found[0].info.run_id)
        tags = {**wanted["tags"], _IDENTITY: run.identity}
        return str(self._client.create_run(number, run_name=run.name, tags=tags).info.run_id)

    def _describe(self, run: RunDescription, known: dict[str, str]) -> None:
        """Add parameters that MLflow does not have; it lets nobody change one."""
        wanted = {self._name(name): str(value)[:_VALUE] for name, value in flat(run.parameters)}
        changed = [name for name, value in wanted.items() if known.get(name, value) != value]
        if changed:
            say(f"mlflow keeps the first value of {', '.join(changed)}")
        new = [self._entities.Param(*item) for item in wanted.items() if item[0] not in known]
        for begin in range(0, len(new), _PARAMETERS):
            self._client.log_batch(self._id, params=new[begin : begin + _PARAMETERS])

    def _name(self, name: str) -> str:
        """Return a name that MLflow takes."""
        taken = _REFUSED.sub("_", name)[:_NAME]
        if taken != name and name not in self._renamed:
            self._renamed.add(name)
            say(f"mlflow: {name} is called {taken} there")
        return taken
