"""A run's spec while it is settled for its target: what the checks of this room have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from hpcrun.compile.source.marked_tree import Reporter
from hpcrun.shared_dataclass import dataclass

# What takes its batch and its precision from the program's own flags.
TRAINERS = ("accelerate", "composer", "huggingface", "lightning")
# What makes batches, optimizers and schedules of its own, of which a session knows nothing.
OWN_LOOPS = (*TRAINERS, "jax", "tensorflow")


@dataclass
class SpecDraft:
    """A checked spec whose target is known, with what its checks report to."""

    spec: dict[str, Any]
    """The checks put into it what the user left open."""
    kind: str | None
    """The kind of the entry; None if it was not found."""
    framework: str
    """The name of what the program trains with."""
    report: Reporter
    """For keys of the whole spec."""
    note: Callable[[str], object]
    """Takes what the user should know about a spec that is accepted."""

    @property
    def config(self) -> dict[str, Any]:
        """The DeepSpeed configuration; empty for a program without one."""
        found: dict[str, Any] = self.spec["deepspeed"]
        return found

    @cached_property
    def below(self) -> Reporter:
        """The reporter for keys of the DeepSpeed configuration."""
        return self.report.below("deepspeed")

    @cached_property
    def gpus(self) -> int:
        """GPUs of a node."""
        return int(self.spec["resources"]["gpus_per_node"])
