"""What can be added by name: hpcrun's own entries of a kind, and those of installed packages.

A kind is a group of entry points, such as hpcrun.trackers; another package offers one as::

    [project.entry-points."hpcrun.trackers"]
    aim = "hpcrun_aim:AimTracker"

Own entries are literals, so that nothing is read from disk as long as one of them is asked for.
docs/extending.md says what an entry must have.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from hpcrun.errors import HpcrunError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import click

    from hpcrun.container.runtimes import ContainerRuntime
    from hpcrun.policy.frameworks import Framework
    from hpcrun.policy.resume import Recipe
    from hpcrun.run.program.progress_source import ProgressReader
    from hpcrun.run.tracking.interface import Tracker

T = TypeVar("T")


class Registry(Generic[T]):
    """The entries of one kind, by name; each is imported when somebody asks for it.

    ``group`` is that of the entry points, such as hpcrun.trackers; ``one`` is what messages call an
    entry, "tracker"; ``own`` maps the names of hpcrun's own entries, which go before those of
    packages, to ``module:attribute``; ``needs`` are the attributes that a package's entry must
    have; ``reserved`` are words that stand where a name may, such as ``auto``, and never name one.
    """

    def __init__(
        self,
        group: str,
        one: str,
        own: Mapping[str, str],
        needs: Collection[str] = (),
        reserved: Collection[str] = (),
    ) -> None:
        self.group, self.one, self._own = group, one, own
        self.own = list(own)  # the names, without a look at what is installed
        self.needs, self.reserved = needs, reserved

    @cached_property
    def _offered(self) -> dict[str, list[EntryPoint]]:
        from importlib.metadata import entry_points

        found: dict[str, list[EntryPoint]] = {}
        for offered in entry_points(group=self.group):
            if offered.name in self.reserved:
                continue
            found.setdefault(offered.name, []).append(offered)
        return found

    @property
    def names(self) -> list[str]:
        """Return all names, hpcrun's own first."""
        return [*self._own, *sorted(self._offered.keys() - self._own.keys())]

    def __contains__(self, name: object) -> bool:
        return name in self._own or (name not in self.reserved and name in self._offered)

    def package(self, name: str) -> str | None:
        """Return the package that offers an entry; None for hpcrun's own, or none such."""
        if name in self._own or name in self.reserved:
            return None
        return next(map(package_of, self._offered.get(name, ())), None)

    def load(self, name: str) -> T:
        """Import an entry and return it.

        Raises UsageError if there is none of that name, or two packages offer one; HpcrunError if
        the package's module cannot be imported, or its entry lacks what one of the kind needs.
        """
        if name in self._own:
            return cast(T, attribute_at(self._own[name]))
        offered = self._offered.get(name, [])
        if not offered:
            raise self._unknown(name)
        packages = sorted(set(map(package_of, offered)))
        if len(packages) > 1:
            raise UsageError(
                f"the {self.one} {name!r} is offered by {' and by '.join(packages)}",
                hint=f"uninstall one of them: pip uninstall {packages[-1]}",
            )
        place, which = offered[0].value, f"the {self.one} {name!r} of the package {packages[0]}"
        hint = f"upgrade or uninstall it: pip uninstall {packages[0]}"
        try:
            found = attribute_at(place)
        # Another package's code: whatever it raises as it is imported, it is named.
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
            raise HpcrunError(f"{which} cannot be loaded ({place}): {wrong}", hint=hint) from error
        if lacking := missing(found, self.needs):
            raise HpcrunError(
                f"{which} ({place}) has no {' and no '.join(lacking)}",
                hint=f"{hint}; its authors find what a package must have in docs/extending.md",
            )
        return cast(T, found)

    def _unknown(self, name: str) -> UsageError:
        from difflib import get_close_matches

        near = get_close_matches(name, self.names, n=1)
        meant = f"did you mean {near[0]!r}? Else " if near else ""
        return UsageError(
            f"there is no {self.one} {name!r}; there are: {', '.join(self.names)}",
            hint=f"{meant}a package that is installed beside hpcrun may offer one ({self.group})",
        )


def missing(entry: object, needs: Collection[str]) -> list[str]:
    """Return the names that an entry lacks of those that one of its kind needs.

    Of a class these are also what it leaves abstract.
    """
    abstract = getattr(entry, "__abstractmethods__", ())
    return [need for need in needs if not hasattr(entry, need) or need in abstract]


def package_of(offered: EntryPoint) -> str:
    """Return the name of the package that offers an entry point."""
    return offered.dist.name if offered.dist is not None else "an unknown package"


def attribute_at(place: str) -> Any:
    """Import what stands at ``module:attribute``."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


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

_FRAMEWORKS = "hpcrun.policy.frameworks"
FRAMEWORKS: Registry[Framework] = Registry(
    "hpcrun.frameworks",
    "framework",
    {
        "auto": f"{_FRAMEWORKS}:UNKNOWN",
        "none": f"{_FRAMEWORKS}:PLAIN",
        "accelerate": f"{_FRAMEWORKS}:ACCELERATE",
        "batch": f"{_FRAMEWORKS}:BATCH_SCRIPT",
        "composer": f"{_FRAMEWORKS}:COMPOSER",
        "deepspeed": f"{_FRAMEWORKS}:DEEPSPEED",
        "huggingface": f"{_FRAMEWORKS}:HUGGINGFACE",
        "jax": f"{_FRAMEWORKS}:JAX",
        "lightning": f"{_FRAMEWORKS}:LIGHTNING",
        "mpi": f"{_FRAMEWORKS}:MPI_PROGRAM",
        "single": f"{_FRAMEWORKS}:SINGLE",
        "tensorflow": f"{_FRAMEWORKS}:TENSORFLOW",
        "torchrun": f"{_FRAMEWORKS}:TORCHRUN",
    },
    needs=("name", "variables", "arguments", "hidden", "progress", "resume", "one_per_node"),
)
"""The name is the value of ``framework``."""

_RESUME = "hpcrun.policy.resume"
RECIPES: Registry[Recipe] = Registry(
    "hpcrun.resume_recipes",
    "recipe",
    {
        "accelerate": f"{_RESUME}:ACCELERATE",
        "deepspeed-checkpoint": f"{_RESUME}:DEEPSPEED_CHECKPOINT",
        "hf-trainer": f"{_RESUME}:HF_TRAINER",
        "imagenet": f"{_RESUME}:IMAGENET",
        "lightning": f"{_RESUME}:LIGHTNING",
        "nanogpt": f"{_RESUME}:NANOGPT",
    },
    needs=("when", "config", "options"),
    reserved=("none",),
)
"""The name is the value of ``recovery.resume``."""

_SOURCES = "hpcrun.run.program.sources"
READERS: Registry[type[ProgressReader]] = Registry(
    "hpcrun.progress_readers",
    "progress reader",
    {
        "trainer_state": f"{_SOURCES}.trainer_state:TrainerState",
        "tensorboard": f"{_SOURCES}.tensorboard_events:TensorBoardEvents",
        "lightning": f"{_SOURCES}.csv_log:LightningCsv",
        "keras_bar": f"{_SOURCES}.keras_bars:KerasBars",
        "progress_bar": f"{_SOURCES}.progress_bars:ProgressBars",
    },
    needs=("begin", "poll"),
    reserved=("auto", "none", "metrics_file", "log"),
)
"""In the order in which ``progress.source: auto`` tries hpcrun's own. A package's is tried where
``progress.source`` or the framework names it; of hpcrun's own the bars have no such names."""

COMMANDS: Registry[click.Command] = Registry(
    "hpcrun.commands", "command", {}, needs=("main", "params", "get_short_help_str")
)
"""The name is what is typed behind ``hpcrun``; its own are in `hpcrun.cli.commands`."""
