"""The kinds of what other packages add by name, each with hpcrun's own entries.

`hpcrun.registry` finds and imports an entry; docs/extending.md says how a package offers one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcrun.registry import Registry

if TYPE_CHECKING:
    import click

    from hpcrun.container.runtimes import ContainerRuntime
    from hpcrun.policy.frameworks import Framework
    from hpcrun.policy.resume import Recipe
    from hpcrun.run.program.progress_source import ProgressReader
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
