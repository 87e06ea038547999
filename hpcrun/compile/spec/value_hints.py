"""Hints on values and keys that do not fit: what to write in their place."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
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
    "progress": "pattern",
}
# The same for a number.
_MAIN_NUMBER = {"resources.pack": "runs_per_node"}
MODES = {
    **dict.fromkeys(("maximize", "maximise", "maximum", "higher", "max"), "max"),
    **dict.fromkeys(("minimize", "minimise", "minimum", "lower", "min"), "min"),
}
"""A word for the better direction of a metric -> ``objective.mode``."""
# A word that others use for one that a key accepts.
_WORDS = {
    "framework": {
        **dict.fromkeys(("pytorch", "torch", "ddp"), "none: hpcrun starts one rank a GPU"),
        **dict.fromkeys(("transformers", "trl", "hf"), "huggingface"),
        **dict.fromkeys(("pytorch-lightning", "pl", "ptl"), "lightning"),
    },
    "flags": {
        **dict.fromkeys(("hydra", "omegaconf"), "key=value"),
        **dict.fromkeys(("argparse", "click", "typer", "space"), "--key value"),
        **dict.fromkeys(("equals", "absl", "fire"), "--key=value"),
    },
    "objective.mode": MODES,
    "precision": {"16-mixed": "fp16", "bf16-mixed": "bf16", "32-true": "fp32", "16": "fp16"},
    "roles.restart": {"always": "rank", "never": "ignore", "on-failure": "rank", "no": "ignore"},
    "environment.container.runtime": {
        "docker": "apptainer: it runs image: docker://NAME",
        "singularity": "apptainer",
        "enroot": "pyxis",
    },
    "tracking.wandb.mode": {"disabled": "no `wandb` at all (null)"},
}
# Keys that count optimizer steps, and the words for what other whole numbers count.
_IN_STEPS = ("checkpoint.every", "checkpoint.nearby_every", "checkpoint.keep_every")
_COUNTED = {
    *("step", "steps", "core", "cores", "cpu", "cpus", "gpu", "gpus", "node", "nodes", "task"),
    *("tasks", "rank", "ranks", "times", "x", "runs", "jobs", "s", "sec", "seconds"),
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
        text = (
            value
            if re.fullmatch(r"[\w.:/@+-]+", value)
            else "'{}'".format(value.replace("'", "''"))
        )
        return f"write {place}: {{{_MAIN_FIELD[full]}: {text}}}"
    if type(value) is int and full in _MAIN_NUMBER:
        return f"write {place}: {{{_MAIN_NUMBER[full]}: {value}}}"
    if isinstance(value, str) and len(fields) == 1 and isinstance(defaults[fields[0]], list):
        return f"write {place}: {{{fields[0]}: [{value}]}}"
    if value is True:
        return f"write {place}: {{}} for its defaults"
    if isinstance(value, str) and full == "environment":
        line, remark = conda_python(value)
        return f"write {place}: {{{line}}}{remark}"
    if full == "sweep" and (pairs := _pairs(value if isinstance(value, list) else [value])):
        swept = ", ".join(f"{name}: [{text}]" for name, text in pairs)
        return f"write sweep: {{grid: {{{swept}}}}}"
    return of_mapping(key, value)


def of_mapping(key: Key, value: Any) -> str | None:
    """Return the mapping to write in place of a list of ``key=value``, or of ``key:value``."""
    if isinstance(value, str) and (found := re.fullmatch(r"([A-Za-z][\w.]*):(\S+)", value)):
        return f"write {key[-1]}: {{{found[1]}: {found[2]}}}, with a blank after the colon"
    if dotted(key) == "config" and isinstance(value, str) and value.strip():
        return f"a file that the program reads is an argument: write args: [{value}]"
    if dotted(key) == "sweep.repeat":
        return "as in repeat: {config.seed: [0, 1, 2]}"
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        inner = {name: item for one in value for name, item in one.items()}
        return f"write {key[-1]}: {json.dumps(inner)}"
    pairs = _pairs(value if isinstance(value, list) else [])
    if not pairs:
        return None
    return f"write {key[-1]}: {{{', '.join(f'{name}: {text}' for name, text in pairs)}}}"


def _pairs(items: list[Any]) -> list[tuple[str, str]]:
    """Return names and texts of a list of ``key=value``; empty where one is something else."""
    pairs = [one.partition("=") for one in items if isinstance(one, str)]
    if len(pairs) < len(items) or not all(name and sign for name, sign, _ in pairs):
        return []
    return [(name.strip(), text.strip()) for name, _, text in pairs]


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
        is_path = full == "environment.venv" and isinstance(value, str) and value.strip("/ ")
        return f"write python: {value.rstrip('/')}/bin/python in its place" if is_path else None
    return f"did you mean {known if ' ' in known else repr(known)}?"


def of_number(key: Key, value: Any) -> str | None:
    """Return the whole number to write in place of a text; None where it is not known."""
    text = str(value)
    if key[-1:] == ("gpus_per_node",):
        match = re.fullmatch(r"(?:gpu:)?([A-Za-z][\w-]*):([1-9]\d*)", text)
        if match and match[1] != "cuda":
            return f"write gpus_per_node: {match[2]} and gpu_type: {match[1]}"
        return "write how many a node has, as `sinfo -o '%P %G'` tells it"
    if key[-1:] == ("nodes",) and re.fullmatch(r"\d+-\d+", text):
        return "a run has as many nodes from its start: write one number"
    found = re.fullmatch(r"\s*(\d{1,18})\s*([A-Za-z]+)\s*", text)
    if dotted(key) in _IN_STEPS and not (found and found[2].lower() in ("step", "steps")):
        return f"of optimizer steps, as in {key[-1]}: 500; no key counts time or epochs"
    return f"write {key[-1]}: {found[1]}" if found and found[2].lower() in _COUNTED else None


def of_union(key: Key, value: Any) -> str | None:
    """Return what to write where a name or a mapping was expected."""
    if dotted(key) != "recovery.resume":
        return None
    if value is True:
        return "as in hf-trainer, or {when: 'out/*.pt', args: [--resume]}"
    return "write none: an attempt begins from nothing" if value is False else None


def conda_python(name: str) -> tuple[str, str]:
    """Return the line that names a conda environment's Python, and a remark on its path."""
    return (
        f"python: /home/me/miniconda3/envs/{name}/bin/python",
        f", the path that `conda run -n {name} which python` prints; hpcrun help conda",
    )


def of_own_value(key: Key, value: Any) -> str | None:
    """Return where a value of the program's own stands, of a key at the top or below ``sweep``."""
    if key[0] == "sweep" and len(key) == 2 and isinstance(value, (str, int, float)):
        return f"write sweep: {{grid: {{{key[1]}: [{value}]}}}}"
    if len(key) > 1 or isinstance(value, dict):
        return None
    shown = json.dumps(value) if isinstance(value, (bool, list)) or value is None else value
    return f"what the program itself reads stands below config: `config: {{{key[0]}: {shown}}}`"


def _word(word: str) -> str:
    return json.dumps(word) if not re.fullmatch(r"[\w./=-]+", word) or word.isdecimal() else word
