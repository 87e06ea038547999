"""Hints on values and keys that do not fit: what to write in their place."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from hpcrun.compile.source.marked_tree import Key, dotted

# A block -> the field that a text in its place is meant for.
_MAIN_FIELD = {
    "fabric": "fast_interface",
    "tracking.wandb": "project",
    "tracking.mlflow": "uri",
    "objective": "metric",
    "code": "root",
    "notify": "mail",
}
# A word that others use for one that a key accepts.
_WORDS = {
    "framework": {
        **dict.fromkeys(("pytorch", "torch", "ddp"), "none: hpcrun starts one rank a GPU"),
        **dict.fromkeys(("transformers", "trl", "hf"), "huggingface"),
        **dict.fromkeys(("pytorch-lightning", "pl", "ptl"), "lightning"),
    },
    "objective.mode": {"maximize": "max", "minimize": "min", "higher": "max", "lower": "min"},
    "precision": {"16-mixed": "fp16", "bf16-mixed": "bf16", "32-true": "fp32", "16": "fp16"},
    "roles.restart": {"always": "rank", "never": "ignore", "on-failure": "rank", "no": "ignore"},
    "environment.container.runtime": {
        "docker": "apptainer: it runs image: docker://NAME",
        "singularity": "apptainer",
        "enroot": "pyxis",
    },
    "tracking.wandb.mode": {"disabled": "no `wandb` at all (null)"},
}
# A block -> keys that other programs or earlier versions have there, and what is in their place.
_ELSEWHERE: Mapping[str, tuple[Collection[str], str]] = {
    "sweep": (
        ("parameters", "method", "metric", "parameter"),
        "of a W&B sweep, `parameters` are `grid: {config.lr: [0.1, 1]}`, or with `method: random` "
        "`random: {samples: 20, keys: {config.lr: {uniform: [0.1, 1]}}}`, and `metric` is the "
        "spec's own `objective: {metric: loss, mode: min}`",
    ),
    "checkpoint": (
        ("dir", "directory", "path", "save_dir", "output_dir"),
        "checkpoints lie in the run's directory, which `hpcrun show RUN` tells: no key is needed",
    ),
    "environment.container": (("name", "path", "sif"), "write image: PATH, and runtime: NAME"),
    "environment": (
        ("modules", "module", "module_load"),
        "modules are lines of its setup: `setup: [module load NAME]`",
    ),
    "": (
        ("modules",),
        "modules are shell lines: in a spec `environment: {setup: [module load NAME]}`, in a "
        "profile `setup: [module load NAME]`",
    ),
    "roles": (
        ("depends_on", "after", "needs"),
        "the roles of a run start together, and wait for each other by themselves: delete it",
    ),
    "suspects": (
        ("directory", "days", "others_share"),
        "earlier versions had this key; a node that failed a job of yours is left out of your "
        "submissions for 12 hours now, and nobody else's: delete it",
    ),
}


def of_block(key: Key, value: Any, defaults: Mapping[str, Any]) -> str | None:
    """Return the line to write in place of a text, true or a list where a block was expected.

    ``defaults`` are those of the block's fields.
    """
    place, full, fields = key[-1:] and key[-1], dotted(key), [*defaults]
    if isinstance(value, str) and value in fields:
        inner = "true" if isinstance(defaults[value], bool) else "{}"
        return f"write {place}: {{{value}: {inner}}}"
    if isinstance(value, str) and full == "environment.container":
        return f"write {place}: {{image: {value}, runtime: apptainer}}, or what your site has"
    if isinstance(value, str) and full in _MAIN_FIELD:
        return f"write {place}: {{{_MAIN_FIELD[full]}: {value}}}"
    if isinstance(value, str) and len(fields) == 1 and isinstance(defaults[fields[0]], list):
        return f"write {place}: {{{fields[0]}: [{value}]}}"
    if value is True:
        return f"write {place}: {{}} for its defaults"
    return of_mapping(key, value)


def of_mapping(key: Key, value: Any) -> str | None:
    """Return the mapping to write in place of a list of ``key=value``."""
    items = value if isinstance(value, list) else ()
    pairs = [one.partition("=") for one in items if isinstance(one, str)]
    if not pairs or not all(name and sign for name, sign, _ in pairs):
        return None
    return f"write {key[-1]}: {{{', '.join(f'{name}: {text}' for name, _, text in pairs)}}}"


def of_list(key: Key, value: Any) -> str:
    """Return the list to write in place of one value."""
    words = value.split() if isinstance(value, str) else []
    if len(words) > 1 and key[-1:] and str(key[-1]).endswith("args"):
        try:
            return f"write a list of its words: [{', '.join(map(_word, shlex.split(value)))}]"
        except ValueError:
            return "write a list of its words"
    return f"write a list: [{value}]"


def of_word(key: Key, value: Any) -> str | None:
    """Return the word that another program's stands for; None if it is not known."""
    full = f"roles.{key[-1]}" if key[0] == "roles" else dotted(key)
    known = _WORDS.get(full, {}).get(str(value).lower())
    if known is None:
        return None
    return f"did you mean {known if ' ' in known else repr(known)}?"


def of_number(key: Key, value: Any) -> str | None:
    """Return the whole number to write in place of a text; None where it is not known."""
    text = str(value)
    if key[-1:] == ("gpus_per_node",):
        if match := re.fullmatch(r"(?:gpu:)?([A-Za-z][\w-]*):(\d+)", text):
            return f"write gpus_per_node: {match[2]} and gpu_type: {match[1]}"
        return "write how many a node has, as `sinfo -o '%P %G'` tells it"
    if key[-1:] == ("nodes",) and re.fullmatch(r"\d+-\d+", text):
        return "a run has as many nodes from its start: write one number"
    return None


def of_union(key: Key, value: Any) -> str | None:
    """Return what to write where a name or a mapping was expected."""
    if dotted(key) != "recovery.resume":
        return None
    if value is True:
        return "as in hf-trainer, or {when: 'out/*.pt', args: [--resume]}"
    return "write none: an attempt begins from nothing" if value is False else None


def of_unknown(key: Key) -> str | None:
    """Return a hint at the replacement of an unknown key; None where no other program has it."""
    block = "roles" if key[0] == "roles" and len(key) > 2 else dotted(key[:-1])
    if dotted(key) == "environment.image":
        return "write container: {image: PATH, runtime: apptainer}, or what your site has"
    keys, hint = _ELSEWHERE.get(block, ((), ""))
    return hint if key[-1] in keys else None


def of_own_value(key: Key, value: Any) -> str | None:
    """Return where a value of the program's own stands, of a key that is at the top of the spec."""
    if len(key) > 1 or isinstance(value, dict):
        return None
    shown = json.dumps(value) if isinstance(value, (bool, list)) or value is None else value
    return f"what the program itself reads stands below config: `config: {{{key[0]}: {shown}}}`"


def _word(word: str) -> str:
    return json.dumps(word) if not re.fullmatch(r"[\w./=-]+", word) or word.isdecimal() else word
