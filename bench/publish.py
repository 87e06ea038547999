"""What a bench says in the end: on the terminal, and in the files that go with its results."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """``--json`` and ``--output``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--output", type=Path, help=f"directory for {name}.txt and {name}.json")


def circumstances(**more: Any) -> dict[str, Any]:
    """When and with what it was measured."""
    return {
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processors": os.cpu_count(),
        **{name: metadata.version(name) for name in ("torch", "deepspeed")},
        **more,
    }


def publish(
    options: argparse.Namespace,
    name: str,
    setting: dict[str, Any],
    lines: Sequence[str],
    **data: Any,
) -> None:
    """Print the results, and write them where ``--output`` says.

    Parameters
    ----------
    lines
        The tables, for a person.
    **data
        The same for a program.
    """
    text = "\n".join([*(f"{key}: {value}" for key, value in setting.items()), "", *lines])
    result = json.dumps({"setting": setting, **data}, indent=2)
    print(result if options.json else text)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / f"{name}.json").write_text(result + "\n")
        (options.output / f"{name}.txt").write_text(text + "\n")
