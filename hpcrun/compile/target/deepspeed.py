"""Checks the DeepSpeed configuration and solves its batch triple."""

from __future__ import annotations

import functools
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hpcrun import resources
from hpcrun.compile.source import yaml_reader
from hpcrun.compile.source.marked_tree import Key, Reporter, SourceMark, Tree, dotted, get_at, keys
from hpcrun.compile.source.problems import did_you_mean, kind_of, listing
from hpcrun.compile.target.deepspeed_keys import (
    BLOCKS,
    LENIENT,
    REMOVED,
    TOP_LEVEL,
    VERSION,
    is_comment,
)
from hpcrun.compile.target.draft import SpecDraft
from hpcrun.host import expand_home, is_there
from hpcrun.policy import batch
from hpcrun.text import shortened

# Keys whose "auto" DeepSpeed itself fills in.
_OWN_AUTO = {
    "data_types.keep_in_fp32_modules",
    "pipeline.stages",
    "expert_parallel.score_apply",
    "expert_parallel.combine_impl",
    "expert_parallel.row_weighting_impl",
    "expert_parallel.score_func",
    "expert_parallel.top_k",
    "expert_parallel.routed_scaling_factor",
    "zero_optimization.zenflow.select_strategy",
    "zero_optimization.zenflow.select_interval",
    "zero_optimization.zenflow.update_interval",
}
_NOT_ONLY_BLOCKS = ("zero_optimization",)
# A script's key that DeepSpeed ignores is a typo if it is so similar to one that it knows.
_TYPO = 0.75
_MOST_IGNORED = 50


def read_file(value: Any, report: Reporter) -> Tree | None:
    """Read the configuration that ``deepspeed_config`` names; None after a problem."""
    key = "deepspeed_config"
    if not isinstance(value, str):
        hint = "DeepSpeed's own keys go below 'deepspeed'" if isinstance(value, dict) else None
        report.at(key, f"found {kind_of(value)}; accepted is a JSON file or a preset", hint)
        return None
    mark = report.mark(key)
    path = mark.directory / expand_home(value)
    if is_there(path.is_file):
        is_yaml = path.suffix in (".yaml", ".yml")
        read = yaml_reader.read_yaml if is_yaml else yaml_reader.read_json
        return read(path, _file_name(value, mark), report.problems)
    if "/" in value or value.endswith((".json", ".yaml", ".yml")):
        report.no_file(key, value, path, "*.json")
        return None
    known = resources.configs("deepspeed")
    if value not in known:
        found = f"found {value!r}; accepted are a JSON file and {listing(known)}"
        beside = sorted(one.name for one in path.parent.glob("*.json"))
        report.at(key, found, did_you_mean(value, [*known, *beside]))
        return None
    return yaml_reader.read_yaml(known[value], f"preset {value}", report.problems)


def _file_name(value: str, mark: SourceMark) -> str:
    """Return the name of the file in messages, and in the marks of its values."""
    return value if value.startswith(("/", "~")) else str(Path(mark.file).parent / value)


def keys_of_file(value: Any, report: Reporter) -> Callable[[Key], bool]:
    """Return a function that checks whether the file ``deepspeed_config`` alone gives a key."""
    if not isinstance(value, str):
        return lambda _: False
    names = (_file_name(value, report.mark("deepspeed_config")), f"preset {value}")
    return lambda key: report.mark(("deepspeed", *key)).file in names


def without_nulls(
    config: dict[str, Any], of_file: Callable[[Key], bool], key: Key = ()
) -> dict[str, Any]:
    """Return the configuration without the spec's nulls, each of which removes a key of the file.

    A null of the file itself is a value.
    """
    return {
        name: without_nulls(value, of_file, (*key, name)) if isinstance(value, dict) else value
        for name, value in config.items()
        if value is not None or of_file((*key, name))
    }


def check(draft: SpecDraft) -> None:
    """Report keys that DeepSpeed would ignore or refuse, and values that cannot work here.

    A script or command may read keys of its own, which a note tells, and fill in what is ``auto``.
    """
    config, kind, report = draft.config, draft.kind, draft.below
    ignored: list[Key] = []

    def look(key: Key, accepted: frozenset[str]) -> None:
        if len(ignored) <= _MOST_IGNORED and _is_ignored(key, accepted, kind, report):
            ignored.append(key)

    for name in config:
        look((name,), TOP_LEVEL)
    for block, accepted in BLOCKS.items():
        key = tuple(block.split("."))
        inner = get_at(config, key)
        if isinstance(inner, dict):
            for name in inner:
                look((*key, name), accepted)
        elif inner is not None and inner != batch.AUTO and block not in _NOT_ONLY_BLOCKS:
            hint = f"write {key[-1]}: {{enabled: true}}" if inner is True else None
            report.at(key, f"found {kind_of(inner)} ({inner!r}); accepted is a mapping", hint)
        elif type(inner) is int:
            hint = f"write zero_optimization: {{stage: {inner}}}"
            report.at(key, f"found a whole number ({inner}); accepted is a mapping", hint)
    for key in ignored[:_MOST_IGNORED]:
        mark = report.mark(key)
        place = mark.file if mark.line is None else f"{mark.file}:{mark.line}"
        draft.note(shortened(f"{place}: DeepSpeed {VERSION} ignores deepspeed.{dotted(key)}"))
    if len(ignored) > _MOST_IGNORED:
        found = f"is one of more than {_MOST_IGNORED} keys that DeepSpeed does not know"
        report.at(ignored[-1], found)
    _check_values(config, draft.gpus, report)
    if kind == "function":
        for key in keys(config):
            own = key[0] in batch.KEYS or dotted(key) in _OWN_AUTO
            if not own and get_at(config, key) == batch.AUTO:
                report.at(
                    key,
                    '"auto" is filled in by Hugging Face\'s Trainer; for a function hpcrun calls '
                    "DeepSpeed, which does not know it",
                    "give a value, or null to leave the key out",
                )


def solve_batch(draft: SpecDraft, ranks: int, of_file: Callable[[Key], bool]) -> dict[str, Any]:
    """Return the configuration, the solved batch triple first.

    An empty configuration stays empty: the entry does not use DeepSpeed, or makes its own. For a
    script or command, what only the file says about the batch (``of_file``) stays as it is written
    there: a Trainer fills in ``auto`` and what is absent, and DeepSpeed solves the rest. The spec's
    own batch keys are solved as for a function, unless that needs a number that only the program
    has.
    """
    config, kind = draft.config, draft.kind
    if not config:
        return config
    given = [config.get(key) for key in batch.KEYS]
    # The spec's own keys, where a problem is shown rather than in the file under them.
    own = [key for key in batch.KEYS if key in config and not of_file((key,))]
    if kind != "function":
        sizes = [value for value in given[:2] if value not in (None, batch.AUTO)]
        if not sizes and batch.AUTO not in given:
            draft.note("the DeepSpeed configuration has no batch size: the program has to give one")
        if not sizes or (not own and batch.AUTO in given):
            return config
    try:
        triple = batch.solve(given[0], given[1], given[2], ranks)
    except batch.Unsolvable as error:
        hint = None
        if error.nearest:
            nearest = "; ".join(map(str, error.nearest))
            hint = f"nearest possible (train = micro x accumulation): {nearest}"
        written = [*own, *(key for key in batch.KEYS if key in config)]
        draft.below.at(error.key or next(iter(written), ()), str(error), hint)
        return config
    if kind != "function" and not own:
        return config
    return {**triple.as_keys(), **{k: v for k, v in config.items() if k not in batch.KEYS}}


def _is_ignored(key: Key, accepted: frozenset[str], kind: str | None, report: Reporter) -> bool:
    """Report a key that is a mistake; return whether DeepSpeed only ignores it, and may."""
    full, name, block = dotted(key), key[-1], dotted(key[:-1])
    lenient = not block or block in LENIENT
    if full in REMOVED:
        report.at(key, f"DeepSpeed {VERSION} has removed this key", REMOVED[full])
    elif name not in accepted and not (lenient and is_comment(name)):
        hint, is_typo = _meant(name, block)
        if lenient and kind != "function" and not is_typo:
            return True
        where = f"DeepSpeed's {block}" if block else "DeepSpeed"
        known = f"; accepted are {listing(sorted(accepted), 15)}" if block else ""
        report.at(key, f"{where} {VERSION} does not know this key{known}", hint)
    return False


@functools.lru_cache(maxsize=1_000)
def _meant(name: str, block: str) -> tuple[str | None, bool]:
    """Return a hint at what an unknown key of a block should have been, and whether it is sure."""
    accepted = BLOCKS[block] if block else TOP_LEVEL
    hint = did_you_mean(name, sorted(accepted))
    if hint is not None and get_close_matches(name.lower(), accepted, 1, _TYPO):
        return hint, True
    inside = [one for one, names in BLOCKS.items() if name in names]
    if not block and len(inside) == 1:
        return f"did you mean '{inside[0]}.{name}'?", True
    return hint, False


def _check_values(config: dict[str, Any], gpus: int, report: Reporter) -> None:
    stage = get_at(config, ("zero_optimization", "stage"), 0)
    if stage != batch.AUTO and (isinstance(stage, bool) or stage not in (0, 1, 2, 3)):
        report.at("zero_optimization.stage", f"found {stage!r}; accepted are 0, 1, 2 and 3")
    fp16, bf16 = (get_at(config, (name, "enabled")) is True for name in ("fp16", "bf16"))
    if fp16 and bf16:
        found = "fp16 and bf16 cannot both be enabled"
        report.at("fp16.enabled", found, "set one of them to false")
    elif fp16 and gpus == 0:
        found = "fp16 does not run on CPUs (gpus_per_node is 0)"
        report.at("fp16.enabled", found, "use bf16, or ask for GPUs")
