"""Compare hpcrun's and DeepSpeed's verdicts on published configurations, as a Markdown table.

Each argument is NAME=DIRECTORY, a checkout; ``--within`` keeps the files whose paths match.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import logging
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError
from hpcrun.policy import batch

_MARKS = re.compile(r'"(?:zero_optimization|train_(?:micro_)?batch_size\w*|fp16|bf16)"')
_NUMBERS: dict[str, Any] = {"betas": [0.9, 0.999], "eps": 1e-8, "enabled": False}


def filled(value: Any, name: str = "") -> Any:
    """Return a configuration with plausible values for ``auto``, as a Trainer fills it in."""
    if isinstance(value, dict):
        return {key: filled(item, key) for key, item in value.items()}
    if value != batch.AUTO:
        return value
    return _NUMBERS.get(name, True if name.endswith("on_model_save") else 1)


def by_deepspeed(config: dict[str, Any]) -> str:
    """Return what the installed DeepSpeed refuses of a configuration; empty for nothing."""
    import torch
    from deepspeed.runtime import config as runtime

    config = filled(copy.deepcopy(config))
    if not config.keys() & {batch.TRAIN, batch.MICRO}:
        config[batch.MICRO] = 1
    config.pop("sequence_parallel_size", None)
    try:
        runtime.DeepSpeedConfig(config)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        key = re.search(r"'(\w+)'", str(error))
        extra = [one for one, two in itertools.pairwise(lines) if "Extra inputs" in two]
        return ", ".join(extra) or (key[1] if key else lines[0][:80])
    name = str((config.get("optimizer") or {}).get("type") or "adam")
    known = name.lower() in runtime.DEEPSPEED_OPTIMIZERS or hasattr(torch.optim, name)
    return "" if known else name


def by_hpcrun(config: dict[str, Any], directory: Path) -> tuple[str, list[str]]:
    """Return what hpcrun refuses of it for a script, and its notes."""
    (directory / "ds.json").write_text(json.dumps(config))
    (directory / "train.py").write_text("")
    tensor = (config.get("tensor_parallel") or {}).get("autotp_size", 1)
    ranks = tensor * config.get("sequence_parallel_size", 1)
    spec = directory / "spec.yaml"
    spec.write_text(
        "cluster: slurm\nentry: train.py\ndeepspeed_config: ds.json\n"
        f"resources: {{gpus_per_node: {ranks}}}\n"
    )
    try:
        compiled = compile_spec(spec)
    except SpecError as error:
        keys = [problem.key.removeprefix("deepspeed.") for problem in error.problems]
        if keys == ["optimizer.type"]:
            keys = [config["optimizer"]["type"]]
        return ", ".join(keys), []
    changed = compiled.runs[0].spec["deepspeed"] != config
    return "changed!" if changed else "", list(compiled.notes)


def configurations(directory: Path, within: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield the path and the content of each file; None where it is not JSON."""
    for path in sorted([*directory.rglob("*.json"), *directory.rglob("*.json.template")]):
        name = str(path.relative_to(directory))
        text = path.read_text(errors="replace")
        if not _MARKS.search(text) or not re.search(within, name):
            continue
        config: Any = None
        with contextlib.suppress(ValueError):
            config = json.loads(text)
        yield name, config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="+", metavar="NAME=DIRECTORY")
    parser.add_argument("--within", default="")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    total = agreed = 0
    print("| Repository | File | DeepSpeed refuses | hpcrun refuses | hpcrun tells |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for name, directory in (one.split("=", 1) for one in arguments.checkouts):
            for file, config in configurations(Path(directory), arguments.within):
                if config is None:
                    print(f"| {name} | `{file}` | not JSON | not JSON | |")
                    continue
                theirs = by_deepspeed(config)
                ours, notes = by_hpcrun(config, Path(temporary))
                total += 1
                agreed += bool(theirs) == bool(ours)
                told = "; ".join(note.replace(f"{temporary}/", "") for note in notes)
                print(f"| {name} | `{file}` | {theirs} | {ours} | {told} |")
    print(f"\n{total} files; of {agreed} both say the same.")


if __name__ == "__main__":
    main()
