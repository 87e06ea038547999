"""The DeepSpeed configuration: the user's file and block, checked, with the batch triple solved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcrun import resources
from hpcrun.compile.source import yaml_reader
from hpcrun.compile.source.marked_tree import Key, Tree
from hpcrun.compile.source.problems import Problems, did_you_mean, listing
from hpcrun.compile.source.yaml_reader import kind_of
from hpcrun.compile.target.deepspeed_keys import (
    BLOCKS,
    REMOVED,
    REMOVED_OPTIMIZERS,
    TOP_LEVEL,
    VERSION,
)
from hpcrun.policy import batch

_BLOCK: Key = ("deepspeed",)
_CONFIG: Key = ("deepspeed_config",)


def presets() -> dict[str, Path]:
    """Name -> file of the presets that ship."""
    directory = resources.directory("configs") / "deepspeed"
    return {path.stem: path for path in sorted(directory.glob("*.yaml"))}


def read_file(value: Any, tree: Tree, problems: Problems) -> Tree | None:
    """The configuration that ``deepspeed_config`` names; None after a mistake was noted."""
    if not isinstance(value, str):
        problems.at(
            tree,
            _CONFIG,
            f"found {kind_of(value)}; accepted is a JSON file or a preset",
            "DeepSpeed's own keys go below 'deepspeed'" if isinstance(value, dict) else None,
        )
        return None
    mark = tree.mark(_CONFIG)
    path = mark.directory / Path(value).expanduser()
    is_path = "/" in value or value.endswith((".json", ".yaml", ".yml"))
    if path.is_file() or is_path:
        if not path.is_file():
            siblings = _json_beside(path)
            hint = did_you_mean(path.name, siblings) or (
                f"there are {listing(siblings, 8)}" if siblings else None
            )
            problems.at(tree, _CONFIG, f"there is no file {value!r} in {path.parent}", hint)
            return None
        shown = _shown(mark.file, value)
        read = yaml_reader.read_yaml if path.suffix in (".yaml", ".yml") else yaml_reader.read_json
        return read(path, shown, problems)
    known = presets()
    if value not in known:
        problems.at(
            tree,
            _CONFIG,
            f"found {value!r}; accepted are a JSON file and {listing(known)}",
            did_you_mean(value, [*known, *_json_beside(path)]),
        )
        return None
    return yaml_reader.read_yaml(known[value], f"preset {value}", problems)


def without_nulls(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without keys that are null: that is how a file's key is taken out."""
    return {
        name: without_nulls(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if value is not None
    }


def check(
    config: dict[str, Any], kind: str | None, gpus: int, tree: Tree, problems: Problems
) -> None:
    """Note keys that DeepSpeed would ignore or refuse, and values that cannot work here."""
    for name in config:
        _check_key((name,), TOP_LEVEL, tree, problems)
    for block, accepted in BLOCKS.items():
        key = tuple(block.split("."))
        inner: Any = config
        for part in key:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            for name in inner:
                _check_key((*key, name), accepted, tree, problems)
        elif inner is not None and inner != batch.AUTO and block not in _NOT_ONLY_BLOCKS:
            problems.at(
                tree, (*_BLOCK, *key), f"found {kind_of(inner)} ({inner!r}); accepted is a mapping"
            )
    _check_values(config, gpus, tree, problems)
    if kind == "function":
        for key in _autos(config):
            if key[0] not in batch.KEYS:
                problems.at(
                    tree,
                    (*_BLOCK, *key),
                    '"auto" is filled in by Hugging Face\'s Trainer; for a function hpcrun calls '
                    "DeepSpeed, which does not know it",
                    "give a value, or null to leave the key out",
                )


_NOT_ONLY_BLOCKS = ("zero_optimization",)


def data_parallel(
    config: dict[str, Any],
    world_size: int,
    model_parallel: int | None,
    tree: Tree,
    problems: Problems,
) -> int | None:
    """Ranks that see different samples; None after a mistake was noted."""
    key: Key = ("model_parallel_size",)
    size = model_parallel
    if size is None:
        block = config.get("tensor_parallel")
        tensor = (block.get("autotp_size") if isinstance(block, dict) else None) or 1
        sequence = config.get("sequence_parallel_size") or 1
        if not isinstance(tensor, int) or not isinstance(sequence, int):
            return world_size
        size = max(1, tensor) * max(1, sequence)
    if size < 1 or world_size % size:
        problems.at(
            tree,
            key,
            f"{size} ranks that hold one copy of the model do not divide the {world_size} ranks",
        )
        return None
    return world_size // size


def solve_batch(
    config: dict[str, Any], kind: str, ranks: int, tree: Tree, problems: Problems
) -> dict[str, Any]:
    """The configuration, the solved batch triple first.

    An empty configuration stays empty: the entry does not use DeepSpeed, or makes its own. A script
    whose three batch keys are all ``auto`` keeps them: Hugging Face's Trainer fills them in.
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
            hint = "nearest possible (train = micro x accumulation): " + "; ".join(
                map(str, error.nearest)
            )
        at = (*_BLOCK, error.key) if error.key else _blame(config, tree)
        problems.at(tree, at, str(error), hint)
        return config
    return {**triple.as_keys(), **{k: v for k, v in config.items() if k not in batch.KEYS}}


def _blame(config: dict[str, Any], tree: Tree) -> Key:
    """The batch key to point at: one in the spec rather than in the file under it."""
    for key in batch.KEYS:
        if key in config and (*_BLOCK, key) in tree.marks:
            return (*_BLOCK, key)
    return _BLOCK


def _check_key(key: Key, accepted: frozenset[str], tree: Tree, problems: Problems) -> None:
    full = ".".join(key)
    if full in REMOVED:
        problems.at(
            tree, (*_BLOCK, *key), f"DeepSpeed {VERSION} has removed this key", REMOVED[full]
        )
    elif key[-1] not in accepted:
        where = "DeepSpeed" if len(key) == 1 else f"DeepSpeed's {'.'.join(key[:-1])}"
        known = "" if len(key) == 1 else f"; accepted are {listing(sorted(accepted), 15)}"
        hint = did_you_mean(key[-1], sorted(accepted))
        if hint is None and len(key) == 1:
            inside = [block for block, names in BLOCKS.items() if key[0] in names]
            hint = f"did you mean '{inside[0]}.{key[0]}'?" if len(inside) == 1 else None
        problems.at(tree, (*_BLOCK, *key), f"{where} {VERSION} does not know this key{known}", hint)


def _check_values(config: dict[str, Any], gpus: int, tree: Tree, problems: Problems) -> None:
    zero = config.get("zero_optimization")
    if isinstance(zero, dict):
        stage = zero.get("stage", 0)
        if stage != batch.AUTO and (isinstance(stage, bool) or stage not in (0, 1, 2, 3)):
            problems.at(
                tree,
                (*_BLOCK, "zero_optimization", "stage"),
                f"found {stage!r}; accepted are 0, 1, 2 and 3",
            )
    enabled = {
        name: (config.get(name) or {}).get("enabled") is True
        for name in ("fp16", "bf16")
        if isinstance(config.get(name) or {}, dict)
    }
    if enabled.get("fp16") and enabled.get("bf16"):
        problems.at(
            tree,
            (*_BLOCK, "fp16", "enabled"),
            "fp16 and bf16 cannot both be enabled",
            "set one of them to false",
        )
    elif enabled.get("fp16") and gpus == 0:
        problems.at(
            tree,
            (*_BLOCK, "fp16", "enabled"),
            "fp16 does not run on CPUs (gpus_per_node is 0)",
            "use bf16, or ask for GPUs",
        )
    optimizer = config.get("optimizer")
    if isinstance(optimizer, dict):
        kind = str(optimizer.get("type", ""))
        if kind.lower() in REMOVED_OPTIMIZERS:
            problems.at(
                tree,
                (*_BLOCK, "optimizer", "type"),
                f"DeepSpeed {VERSION} has removed the optimizer {kind}",
                "use AdamW",
            )


def _autos(value: Any, key: Key = ()) -> list[Key]:
    if isinstance(value, dict):
        found = [inner for name, item in value.items() for inner in _autos(item, (*key, name))]
        return [inner for inner in found if inner not in _OWN_AUTO]
    return [key] if value == batch.AUTO else []


_OWN_AUTO: tuple[Key, ...] = (
    ("data_types", "keep_in_fp32_modules"),
    ("pipeline", "stages"),
    *(
        ("expert_parallel", name)
        for name in (
            "score_apply",
            "combine_impl",
            "row_weighting_impl",
            "score_func",
            "top_k",
            "routed_scaling_factor",
        )
    ),
)


def _json_beside(path: Path) -> list[str]:
    if not path.parent.is_dir():
        return []
    return sorted(found.name for found in path.parent.iterdir() if found.suffix == ".json")


def _shown(file: str, value: str) -> str:
    return value if value.startswith(("/", "~")) else str(Path(file).parent / value)
