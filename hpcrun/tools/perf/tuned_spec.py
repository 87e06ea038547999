"""The spec that a tuning ends with: ``extends: SPEC``, and the keys that were found."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hpcrun.compile import Compiled, CompiledRun, compile_spec
from hpcrun.errors import HpcrunError
from hpcrun.policy import batch
from hpcrun.tools.perf import written_file

_FIRST = "# Written by hpcrun tune"


def place(spec: str, base: Compiled, wanted: str | None) -> Path:
    """Return the path of the spec to write: beside SPEC, or here where that ships with hpcrun.

    Raises UsageError if a file is there that no tuning wrote, or the directory is missing.
    """
    if wanted is not None:
        path = Path(wanted).absolute()
    elif os.path.realpath(spec) == base.file:
        own = Path(spec)
        path = own.with_name(f"{own.stem}.tuned.yaml").absolute()
    else:
        path = Path.cwd() / f"{base.name}.tuned.yaml"
    written_file.check(path, _FIRST, "tune")
    return path


def text(
    path: Path,
    base: Compiled,
    typed: Sequence[str],
    values: Mapping[str, str],
    run: CompiledRun,
    comments: Sequence[str],
) -> str:
    """Return the spec: the typed overrides, a candidate's values and its batch sizes."""
    target = Path(base.file)
    near = path.parent in (target.parent, *target.parents) or path.parent == target.parent
    extends = os.path.relpath(target, path.parent) if near else str(target)
    data: dict[str, Any] = {"name": f"{base.name}-tuned", "extends": extends}
    pairs = [one.removeprefix("+").partition("=")[::2] for one in typed]
    pairs += [(key.removeprefix("+"), value) for key, value in values.items()]
    for key, value in pairs:
        _put(data, key.split("."), yaml.safe_load(value))
    for key in batch.KEYS:
        if isinstance(run.deepspeed.get(key), int):
            _put(data, ["deepspeed", key], run.deepspeed[key])
    head = [f"{_FIRST}: the fastest configuration that was measured.", *comments]
    lines = [head[0], *(f"# {one}" for one in head[1:])]
    body = yaml.safe_dump(data, sort_keys=False, width=100, allow_unicode=True)
    return "\n".join(lines) + "\n" + body


def write(path: Path, content: str, run: CompiledRun, root: Path) -> None:
    """Write the spec; raise HpcrunError if it does not compile to the configuration measured."""
    written_file.write(path, content)
    found = compile_spec(path, root=root).runs[0]
    if (found.config, found.deepspeed) != (run.config, run.deepspeed):
        raise HpcrunError(
            f"{path}: compiles to another configuration than the one that was measured",
            hint="compare: hpcrun plan with this file, and with the values of the table",
        )


def _put(data: dict[str, Any], key: Sequence[str], value: Any) -> None:
    for part in key[:-1]:
        inner = data.get(part)
        if not isinstance(inner, dict):
            inner = data[part] = {}
        data = inner
    data[key[-1]] = value
