"""Recipes of resuming: what must be there, and what a script or command is then started with."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from hpcrun.extensions import RECIPES
from hpcrun.policy import frameworks
from hpcrun.shared_dataclass import dataclass
from hpcrun.state.plan import RunPlan
from hpcrun.state.spec.recovery_block import Resume

NONE = "none"
"""The recipe's name that takes away that of ``framework``."""


@dataclass(frozen=True)
class Recipe:
    """The saves of one kind of program, and the option that resumes from them."""

    about: str
    """The programs, and what counts as complete."""
    when: tuple[str, ...]
    """Patterns; ``{OPTION}`` is the value of the program's own option."""
    config: Mapping[str, Any]
    """Flags that are replaced; None takes one away."""
    options: Mapping[str, str | None] = field(default_factory=dict)
    """Options of the program that name a directory, and their defaults; without a default the
    program has to be given one."""


ACCELERATE = Recipe(
    "Accelerate's complete examples (`accelerator.save_state`), which write the random states last",
    ("{output_dir}/epoch_*/random_states_0.pkl", "{output_dir}/step_*/random_states_0.pkl"),
    {"resume_from_checkpoint": "${hpcrun:newest_directory}"},
    {"output_dir": "."},
)
DEEPSPEED_CHECKPOINT = Recipe(
    "DeepSpeed's examples with `--checkpoint_dir` or `--load_checkpoint_dir`, such as "
    "HelloDeepSpeed; `latest` must name a checkpoint that is whole",
    ("{checkpoint_dir}/latest", "{checkpoint_dir}/*/latest"),
    {"checkpoint_dir": None, "load_checkpoint_dir": "${hpcrun:newest_directory}"},
    {"checkpoint_dir": None},
)
HF_TRAINER = Recipe(
    "scripts around Hugging Face's Trainer that pass `--resume_from_checkpoint` on; the "
    "Trainer writes `trainer_state.json` last",
    ("{output_dir}/checkpoint-*/trainer_state.json",),
    {"resume_from_checkpoint": "${hpcrun:newest_directory}"},
    {"output_dir": "trainer_output"},
)
IMAGENET = Recipe(
    "PyTorch's imagenet example and those after it, which save `checkpoint.pth.tar`",
    ("checkpoint.pth.tar", "model_best.pth.tar"),
    {"resume": "${hpcrun:newest}"},
)
LIGHTNING = Recipe(
    "Lightning's templates and `LightningCLI`, which take `ckpt_path`",
    ("**/*.ckpt",),
    {"ckpt_path": "${hpcrun:newest}"},
)
NANOGPT = Recipe(
    "nanoGPT and what is made from it: `ckpt.pt` in `out_dir`",
    ("{out_dir}/ckpt.pt",),
    {"init_from": "resume"},
    # Its configuration files name another, such as out-shakespeare-char.
    {"out_dir": "out*"},
)


def of(
    recovery: Mapping[str, Any], framework: object, argv: Sequence[str], detected: str | None = None
) -> Resume | None:
    """Return how a script or command resumes; None where the spec says nothing about it.

    Parameters
    ----------
    recovery
        The block of the spec, as plain data.
    framework
        The spec's ``framework``, whose recipe is the default.
    argv
        The program's arguments, in which a recipe finds the program's own options.
    detected
        The recipe of a program whose framework was detected, the default too.
    """
    given = recovery.get("resume")
    if given is None and (args := recovery.get("resume_args")):
        return Resume(args=list(args))
    if given is None:
        given = frameworks.of(framework).resume or detected
        if given is None or missing(given, argv):
            return None
    if isinstance(given, str):
        given = {"recipe": given}
    own = {name: value for name, value in given.items() if value or name == "instead"}
    name = own.pop("recipe", None)
    found = Resume(**own)
    if name == NONE:
        return None
    if isinstance(found.when, str):
        found.when = [found.when]
    if (recipe := _recipe(name)) is not None:
        found.when = found.when or patterns(recipe, argv)
        if not found.args and not found.config:
            found.config = dict(recipe.config)
    return found


def of_run(run: RunPlan) -> Resume | None:
    """Return how a run resumes, if it is a script or command; None where its spec does not say."""
    recovery, framework = run.spec.get("recovery") or {}, run.spec.get("framework")
    if run.entry.kind == "function":
        return None
    return of(recovery, framework, run.entry.argv, run.entry.recipe)


def recipe_of(run: RunPlan) -> str | None:
    """Return the name of the recipe by which a run resumes; None where it has none."""
    given = (run.spec.get("recovery") or {}).get("resume")
    if given is None:
        return frameworks.of(run.spec.get("framework")).resume or run.entry.recipe
    name = given.get("recipe") if isinstance(given, Mapping) else given
    return None if name in (None, NONE) else str(name)


def _recipe(name: str | None) -> Recipe | None:
    """Return a recipe, hpcrun's own or a package's; None for a name that is none."""
    return RECIPES.load(name) if name is not None and name in RECIPES else None


def missing(name: str, argv: Sequence[str]) -> str | None:
    """Return an option that the recipe of that name needs and the program is not given."""
    recipe = _recipe(name)
    return missing_option(recipe, argv) if recipe is not None else None


def missing_option(recipe: Recipe, argv: Sequence[str]) -> str | None:
    """Return an option that a recipe needs and the program is not given; None if there is none."""
    wanted = recipe.options.items()
    return next((one for one, default in wanted if _option(one, default, argv) is None), None)


def patterns(recipe: Recipe, argv: Sequence[str]) -> list[str]:
    """Return the patterns of a recipe for a program with these arguments."""
    values = {
        # What the program is given is a path, and a default a pattern.
        name: glob.escape(given) if (given := _option(name, None, argv)) else default or "."
        for name, default in recipe.options.items()
    }
    return [os.path.normpath(pattern.format(**values)) for pattern in recipe.when]


def without(name: str, argv: Sequence[str]) -> list[str]:
    """Return arguments without an option and its value, however they are written."""
    kept: list[str] = []
    skips = False
    dashed, spellings = _spellings(name)[:2], _spellings(name)
    for word in argv:
        option, equals, _ = word.partition("=")
        is_value = skips and not word.startswith("--")
        skips = word in dashed
        if not (is_value or skips or (equals and option in spellings)):
            kept.append(word)
    return kept


def _spellings(name: str) -> tuple[str, str, str]:
    """Return how an option may be written, with dashes and for Hydra."""
    return f"--{name}", f"--{name.replace('_', '-')}", name


def _option(name: str, default: str | None, argv: Sequence[str]) -> str | None:
    """Return the value of a program's option, however it is written; the last one counts."""
    spellings = _spellings(name)
    for word, following in reversed([*zip(argv, [*argv[1:], ""], strict=False)]):
        option, equals, value = word.partition("=")
        if option in spellings and equals:
            return value.strip("\"'")
        if word in spellings[:2] and following and not following.startswith("--"):
            return following
    return default
