"""Checks the DeepSpeed configuration and solves its batch triple."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcrun import resources
from hpcrun.compile.source import yaml_reader
from hpcrun.compile.source.marked_tree import Key, Tree, dotted, get_at, keys
from hpcrun.compile.source.problems import Reporter, did_you_mean, kind_of, listing
from hpcrun.compile.target.deepspeed_keys import (
    BLOCKS,
    REMOVED,
    REMOVED_OPTIMIZERS,
    TOP_LEVEL,
    VERSION,
)
from hpcrun.host import expand_home, is_there
from hpcrun.policy import batch

# Keys whose "auto" DeepSpeed itself fills in.
_OWN_AUTO = {
    *("data_types.keep_in_fp32_modules", "pipeline.stages", "expert_parallel.score_apply"),
    *("expert_parallel.combine_impl", "expert_parallel.row_weighting_impl"),
    *("expert_parallel.score_func", "expert_parallel.top_k"),
    "expert_parallel.routed_scaling_factor",
}
_NOT_ONLY_BLOCKS = ("zero_optimization",)


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
        shown = value if value.startswith(("/", "~")) else str(Path(mark.file).parent / value)
        read = yaml_reader.read_yaml if is_yaml else yaml_reader.read_json
        return read(path, shown, report.problems)
    if "/" in value or value.endswith((".json", ".yaml", ".yml")):
        report.no_file(key, value, path, "*.json", most=8)
        return None
    known = resources.configs("deepspeed")
    if value not in known:
        found = f"found {value!r}; accepted are a JSON file and {listing(known)}"
        beside = sorted(one.name for one in path.parent.glob("*.json"))
        report.at(key, found, did_you_mean(value, [*known, *beside]))
        return None
    return yaml_reader.read_yaml(known[value], f"preset {value}", report.problems)


def without_nulls(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration without keys that are null: null removes a key of the file."""
    return {
        name: without_nulls(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if value is not None
    }


def check(config: dict[str, Any], kind: str | None, gpus: int, report: Reporter) -> None:
    """Report keys that DeepSpeed would ignore or refuse, and values that cannot work here.

    Parameters
    ----------
    kind
        The kind of the entry; None if it was not found.
    gpus
        GPUs of a node.
    report
        For keys below ``deepspeed``.
    """
    for name in config:
        _check_key((name,), TOP_LEVEL, report)
    for block, accepted in BLOCKS.items():
        key = tuple(block.split("."))
        inner = get_at(config, key)
        if isinstance(inner, dict):
            for name in inner:
                _check_key((*key, name), accepted, report)
        elif inner is not None and inner != batch.AUTO and block not in _NOT_ONLY_BLOCKS:
            report.at(key, f"found {kind_of(inner)} ({inner!r}); accepted is a mapping")
    _check_values(config, gpus, report)
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


def data_parallel(
    config: dict[str, Any], world_size: int, model_parallel: int | None, report: Reporter
) -> int | None:
    """Return the number of ranks that see different samples; None after a problem."""
    size = model_parallel
    if size is None:
        block = config.get("tensor_parallel")
        tensor = (block.get("autotp_size") if isinstance(block, dict) else None) or 1
        sequence = config.get("sequence_parallel_size") or 1
        if not isinstance(tensor, int) or not isinstance(sequence, int):
            return world_size
        size = max(1, tensor) * max(1, sequence)
    if size < 1 or world_size % size:
        found = f"{size} ranks that hold one copy of the model do not divide the {world_size} ranks"
        report.at("model_parallel_size", found)
        return None
    return world_size // size


def solve_batch(config: dict[str, Any], kind: str, ranks: int, report: Reporter) -> dict[str, Any]:
    """Return the configuration, the solved batch triple first.

    An empty configuration stays empty: the entry does not use DeepSpeed, or makes its own. A script
    whose three batch keys are all ``auto`` keeps them: Hugging Face's Trainer fills them in.

    Parameters
    ----------
    report
        For keys below ``deepspeed``.
    """
    if not config:
        return config
    given = [config.get(key) for key in batch.KEYS]
    if kind != "function" and all(value == batch.AUTO for value in given):
        return config
    try:
        triple = batch.solve(given[0], given[1], given[2], ranks)
    except batch.Unsolvable as error:
        hint = None
        if error.nearest:
            nearest = "; ".join(map(str, error.nearest))
            hint = f"nearest possible (train = micro x accumulation): {nearest}"
        # Point at a key in the spec rather than in the file under it.
        marked = [
            key for key in batch.KEYS if key in config and (*report.key, key) in report.tree.marks
        ]
        report.at(error.key or next(iter(marked), ()), str(error), hint)
        return config
    return {**triple.as_keys(), **{k: v for k, v in config.items() if k not in batch.KEYS}}


def _check_key(key: Key, accepted: frozenset[str], report: Reporter) -> None:
    full = dotted(key)
    is_top = len(key) == 1
    if full in REMOVED:
        report.at(key, f"DeepSpeed {VERSION} has removed this key", REMOVED[full])
    elif key[-1] not in accepted:
        where = "DeepSpeed" if is_top else f"DeepSpeed's {dotted(key[:-1])}"
        known = "" if is_top else f"; accepted are {listing(sorted(accepted), 15)}"
        hint = did_you_mean(key[-1], sorted(accepted))
        if hint is None and is_top:
            inside = [block for block, names in BLOCKS.items() if key[0] in names]
            hint = f"did you mean '{inside[0]}.{key[0]}'?" if len(inside) == 1 else None
        report.at(key, f"{where} {VERSION} does not know this key{known}", hint)


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
    kind = str(get_at(config, ("optimizer", "type"), ""))
    if kind.lower() in REMOVED_OPTIMIZERS:
        found = f"DeepSpeed {VERSION} has removed the optimizer {kind}"
        report.at("optimizer.type", found, "use AdamW")
