"""What an estimate says, as data: of an experiment, and of its runs that need the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrun.gpu_catalogue import Gpu
from hpcrun.tools.estimate import memory_formulas, run_costs
from hpcrun.tools.estimate.earlier_runs import MemoryTaken
from hpcrun.tools.estimate.fitting import Nearest, Setting
from hpcrun.tools.estimate.memory_formulas import Memory
from hpcrun.tools.estimate.model_facts import ModelFacts
from hpcrun.tools.estimate.run_costs import RunCosts
from hpcrun.tools.estimate.training_setup import TrainingSetup


@dataclass(frozen=True)
class Wishes:
    """What was asked beside the spec."""

    gpu: str | None = None
    parameters: str | None = None
    fit: bool = False
    utilization: float = run_costs.UTILIZATION
    taken: bool = False
    """Look what earlier runs took of memory, and ask accounting."""


@dataclass(frozen=True)
class ShapeEstimate:
    """The estimate of runs that need the same."""

    runs: tuple[int, ...]
    label: str
    """The swept values that they share."""
    setup: TrainingSetup
    ranks_per_node: int
    nodes: int
    gpu: Gpu | None
    """None: its ranks use processors, or the spec does not say which GPU."""
    on_cpu: bool
    model: ModelFacts | None = None
    problem: str | None = None
    """Why the model is not known."""
    hint: str | None = None
    memory: Memory | None = None
    own: Setting | None = None
    """Its setting on its GPU: the largest micro batch."""
    fits: bool | None = None
    host_memory: int | None = None
    """Bytes that the job asks for on each node; None for the partition's default."""
    fits_host: bool | None = None
    settings: Sequence[Setting] = ()
    """All others, judged for --fit."""
    nearest: Nearest | None = None
    elsewhere: Sequence[tuple[str, bool]] = ()
    """GPUs of the catalogue, and whether it fits them, if the spec names none."""
    costs: RunCosts | None = None
    taken: MemoryTaken | None = None
    """The memory that the likest earlier run of the program took."""
    taken_note: str | None = None
    """Why accounting does not tell, where telemetry does not either."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def took_fits_host(self) -> bool | None:
        """The memory of an earlier run's node fits what is asked now; None if unknown."""
        taken, asked = self.taken, self.host_memory
        if taken is None or asked is None:
            return None
        if taken.least > asked:
            return False
        return True if taken.node and taken.node[0] <= asked and taken.is_whole else None

    @property
    def took_fits_gpu(self) -> bool | None:
        """The same of a GPU."""
        taken, gpu = self.taken, self.gpu
        if taken is None or taken.gpu is None:
            return None
        used, total = taken.gpu
        # What a driver tells is some per cent more than what the data sheet says.
        fits = gpu is None or total <= 1.1 * gpu.memory or used <= gpu.memory
        return None if fits and not taken.is_whole else fits

    def to_data(self) -> dict[str, Any]:
        """Return plain data; unknown is null."""
        memory = self.memory
        return {
            "runs": list(self.runs),
            "label": self.label,
            "setup": self.setup.to_data(),
            "nodes": self.nodes,
            "ranks_per_node": self.ranks_per_node,
            "gpu": None if self.gpu is None else self.gpu.to_data(),
            "model": None if self.model is None else self.model.to_data(),
            "problem": self.problem,
            "memory": None
            if memory is None
            else {
                "gpu": memory.gpu.to_data(),
                "host_per_rank": memory.host.to_data(),
                "nvme_per_rank": round(memory.nvme),
                "needed_on_gpu": round(memory.on_gpu),
                "needed_on_gpu_least": None
                if memory.least is None
                else round(memory_formulas.with_context(memory.least)),
                "stage": memory.stage,
                "knows_activations": memory.knows_activations,
            },
            "fits": self.fits,
            "fits_host": self.fits_host,
            "largest_micro_batch": None
            if self.own is None or not self.own.memory.knows_activations
            else self.own.micro,
            "settings": [one.to_data() for one in self.settings],
            "nearest": None if self.nearest is None else self.nearest.to_data(),
            "fits_on": dict(self.elsewhere),
            "costs": None if self.costs is None else self.costs.to_data(),
            "taken": None
            if self.taken is None
            else {
                **self.taken.to_data(),
                "fits_host": self.took_fits_host,
                "fits_gpu": self.took_fits_gpu,
            },
            "taken_note": self.taken_note,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class EstimateReport:
    """The estimate of an experiment."""

    experiment: str
    cluster: str
    shapes: Sequence[ShapeEstimate]
    expected_start: float | None = None
    """Seconds since the epoch; None if unknown."""
    start_note: str | None = None
    """Why it is not known."""

    @property
    def is_empty(self) -> bool:
        """The model of no run is known, and no earlier one tells what it takes."""
        return all(one.model is None and one.taken is None for one in self.shapes)

    def to_data(self) -> dict[str, Any]:
        """Return plain data; unknown is null."""
        return {
            "experiment": self.experiment,
            "cluster": self.cluster,
            "shapes": [one.to_data() for one in self.shapes],
            "expected_start": self.expected_start,
            "start_note": self.start_note,
        }
