"""Keys that W&B, Hydra and other programs have, and what to write in their place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from hpcrun.compile.source.marked_tree import Key, dotted
from hpcrun.compile.spec.value_hints import MODES, conda_python
from hpcrun.compile.sweep import foreign_forms

# A block -> keys that other programs or earlier versions have there, and what is in their place.
_ELSEWHERE: Mapping[str, tuple[tuple[Collection[str], str], ...]] = {
    "checkpoint": (
        (
            ("dir", "directory", "path", "save_dir", "output_dir"),
            "checkpoints lie in the run's directory, which `hpcrun show RUN` tells: no key is "
            "needed",
        ),
        (
            ("interval", "frequency", "save_steps", "save_interval", "every_n_train_steps"),
            "write every: N, in optimizer steps",
        ),
        (
            ("minutes", "every_minutes", "seconds", "every_epoch", "every_n_epochs", "epochs"),
            "saves are counted in optimizer steps, every: N; before a time limit a run saves too",
        ),
    ),
    "environment.container": ((("name", "path", "sif"), "write image: PATH, and runtime: NAME"),),
    "environment": (
        (
            ("modules", "module", "module_load"),
            "modules are lines of its setup: `setup: [module load NAME]`",
        ),
    ),
    "": (
        (
            ("modules", "module_load"),
            "modules are shell lines: in a spec `environment: {setup: [module load NAME]}`, in a "
            "profile `setup: [module load NAME]`",
        ),
    ),
    "roles": (
        (
            ("depends_on", "after", "needs"),
            "the roles of a run start together, and wait for each other by themselves: delete it",
        ),
    ),
    "suspects": (
        (
            ("directory", "days", "others_share"),
            "earlier versions had this key; a node that failed a job of yours is left out of your "
            "submissions for 12 hours now, and nobody else's: delete it",
        ),
    ),
}
_CONDA = ("conda", "conda_env", "conda_environment", "mamba", "micromamba")
_VENVS = ("venv", "virtualenv", "uv", "poetry")
_IMAGES = ("image", "docker", "docker_image", "singularity", "apptainer", "sif")
_PACKAGES = ("pip", "requirements", "packages")
_BAYES = ("bayes", "bayesian", "optuna", "tpe", "hyperopt", "bohb", "sweeper")
_EARLY = ("early_terminate", "early_stopping", "hyperband", "asha", "pruner", "scheduler")
_COUNTS = ("samples", "num_samples", "n_samples", "n", "n_trials", "trials", "count", "run_cap")
_PARAMETERS = ("parameters", "parameter", "params", "keys")
_BLOCK_OF_SWEEP = re.compile(r"sweep(?:\.(?:union|when)\.\d+)*")
_OF_RANDOM = "as in random: {samples: 20, keys: {lr: {loguniform: [1e-5, 1e-2]}}}"
_SEARCH = "search: {space: {lr: {loguniform: [1e-5, 1e-1]}}, trials: 40}"
_NO_EARLY_END = "delete it: a search ends runs early, sweep: {search: {…, prune: halving}}"
# W&B's, with which it makes a command.
_MACROS = ("${env}", "${interpreter}", "${program}", "${args}", "${args_no_hyphens}")


def of_unknown(key: Key, value: Any = None, *, is_spec: bool = True) -> str | None:
    """Return a hint at what is in an unknown key's place; None where no other program has it.

    ``is_spec`` is false of a cluster profile.
    """
    block = "roles" if key[0] == "roles" and len(key) > 2 else dotted(key[:-1])
    word = str(key[-1])
    hint: str | None = None
    if block == "" and is_spec:
        hint = _at_the_top(word, value)
    elif _BLOCK_OF_SWEEP.fullmatch(block):
        hint = _in_sweep(word, value, "" if "." in block else "sweep: ")
    elif block in _OF_BLOCK:
        hint = _OF_BLOCK[block](word, value)
    if hint is not None:
        return hint
    return next((hint for words, hint in _ELSEWHERE.get(block, ()) if word in words), None)


def _at_the_top(word: str, value: Any) -> str | None:
    """Return what is written for a key of a W&B sweep's file, of Hydra's, or of a block."""
    if word == "defaults" and isinstance(value, list):
        return _of_defaults(value)
    if word == "hydra" and isinstance(value, dict):
        return (
            "settings of Hydra itself stay in the program's files; each run has a directory of "
            "its own: delete it. What a sweeper's params vary is sweep: {grid: {lr: [0.1, 1]}}"
        )
    if word == "program" and isinstance(value, str):
        return f"write entry: {value}"
    if (
        word == "command"
        and isinstance(value, list)
        and any(one is None or one in _MACROS for one in value)
    ):
        return "W&B's command is made of entry, args and config here: write entry: FILE"
    if word == "method" and value in ("grid", "random", "bayes"):
        return _of_method(value)
    if word in _EARLY[:2]:
        return _NO_EARLY_END
    if word == "run_cap":
        return f"so many points are drawn as sweep.random.samples says, {_OF_RANDOM}"
    if word == "metric" and isinstance(value, dict):
        return f"write {_objective(value)}"
    if word == "parameters" and isinstance(value, dict):
        swept = foreign_forms.of_parameters(value)
        return f"write {swept}" if swept else "did you mean 'config'?"
    if word == "container" and isinstance(value, str):
        word = "image"
    inside = _environment_key(word, value) if word != "pip" else None
    return f"write environment: {{{inside[0]}}}{inside[1]}" if inside else None


def _of_defaults(groups: list[Any]) -> str:
    """Return what stands in place of Hydra's list of defaults."""
    chosen = {
        name: option
        for one in groups
        if isinstance(one, dict) and len(one) == 1
        for name, option in one.items()
        if isinstance(option, str) and re.fullmatch(r"[\w./-]+", name)
    }
    inside = ", ".join(f"{name}: {option}" for name, option in chosen.items()) or "GROUP: OPTION"
    return (
        f"a Hydra program reads its own groups: write config: {{{inside}}} and flags: key=value. "
        "A spec builds on others by extends: FILE"
    )


def _of_method(value: Any) -> str:
    if value == "grid":
        return "delete it: keys below sweep: {grid: …} are a grid"
    if value == "bayes":
        return f"delete it: write sweep: {{{_SEARCH}}}"
    return f"delete it: points are drawn below sweep: {{random: …}}, {_OF_RANDOM}"


def _objective(metric: Mapping[str, Any]) -> str:
    """Return the spec's block for W&B's ``metric``."""
    name = metric.get("name", "loss")
    mode = MODES.get(str(metric.get("goal")).lower())
    return f"objective: {{metric: {name}{f', mode: {mode}' if mode else ''}}}"


def _in_objective(word: str, value: Any) -> str | None:
    if word in ("name", "key", "monitor", "quantity"):
        return _renamed("objective.metric", value)
    if word in ("goal", "direction"):
        mode = MODES.get(str(value).lower())
        return f"write mode: {mode}" if mode else "write mode: min, or mode: max"
    return None


def _in_sweep(word: str, value: Any, above: str) -> str | None:
    """Return what is written for a key of a sweep's block, which stands below ``above``."""
    form = foreign_forms.own_form(value)
    if word in _PARAMETERS:
        swept = foreign_forms.of_parameters(value)
        return f"write {swept}" if swept else f"name each key's values, {_OF_RANDOM}"
    if word == "method":
        return _of_method(value)
    if word == "metric" or word == "objective":
        found = value if isinstance(value, dict) else {"name": value or "loss"}
        return f"at the top of the spec write {_objective(found)}"
    if word in _BAYES:
        return f"write {_SEARCH}"
    if word in _EARLY:
        return _NO_EARLY_END
    if word in _COUNTS and form is None:
        return f"they are random's, {_OF_RANDOM}"
    if form is None and isinstance(value, dict) and len(value) == 1:
        # A form of hpcrun's own.
        ((name, bounds),) = value.items()
        is_own = name in ("range", "linspace", "geomspace", "choices")
        form = ("grid", f"{{{name}: {json.dumps(bounds)}}}") if is_own else None
    if form is None:
        return None
    swept = foreign_forms.whole([(word, form)])
    return f"write {swept if above else swept.removeprefix('sweep: {').removesuffix('}')}"


def _in_random(word: str, value: Any) -> str | None:
    if word in _COUNTS:
        return _renamed("sweep.random.samples", value)
    if word in _PARAMETERS:
        return f"write keys in its place, {_OF_RANDOM}"
    form = foreign_forms.own_form(value)
    return f"write keys: {{{word}: {form[1]}}}" if form else None


def _renamed(name: str, value: Any) -> str:
    """Return the line of a key that is called otherwise; its name, where no value is known."""
    return f"did you mean '{name}'?" if value is None else f"write {name.split('.')[-1]}: {value}"


def _in_environment(word: str, value: Any) -> str | None:
    found = _environment_key(word, value)
    return f"write {found[0]}{found[1]}" if found else None


def _environment_key(word: str, value: Any) -> tuple[str, str] | None:
    """Return what is written below ``environment`` for a key, and a remark; None if unknown."""
    given = value if isinstance(value, str) and value.strip() else ""
    if word in _CONDA:
        if "/" in given and not given.endswith((".yml", ".yaml")):
            return f"python: {given.rstrip('/')}/bin/python", ""
        return conda_python(given if re.fullmatch(r"[\w.-]+", given) else "NAME")
    if word in _VENVS:
        place = given.rstrip("/") or ("venv" if word == "virtualenv" else ".venv")
        return f"python: {place}/bin/python", "; hpcrun help venv"
    if word in _IMAGES:
        image = given or "PATH"
        if word.startswith("docker") and "://" not in image:
            image = f"docker://{given or 'NAME'}"
        return f"container: {{image: {image}, runtime: apptainer}}", ", or what your site has"
    if word in _PACKAGES:
        remark = "; hpcrun installs nothing, but builds what a lock names: hpcrun help lock"
        return "python: PATH", f", a Python that has them{remark}"
    return None


_OF_BLOCK: Mapping[str, Callable[[str, Any], str | None]] = {
    "objective": _in_objective,
    "environment": _in_environment,
    "sweep.random": _in_random,
}
