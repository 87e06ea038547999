"""Counts a model in a subprocess of the job's Python, bounded in time, that sees no GPU.

This runs the user's own code, on the machine where `hpcrun estimate` is typed, as the job would on
its nodes: never that of another user's spec.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hpcrun
from hpcrun import host
from hpcrun.errors import UsageError
from hpcrun.submission.python_probe import in_job_environment
from hpcrun.text import duration, one_line, shortened
from hpcrun.tools.estimate import model_program

TIMEOUT = 300.0
# Of the answer: a list of sizes is the longest part of it.
_MOST_BYTES = 20_000_000
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
GIVE = "give the number: --parameters 7.5B, or estimate.parameters in the spec"


def ask(
    python: Sequence[str],
    question: Mapping[str, Any],
    *,
    precision: str,
    setup: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> dict[str, Any]:
    """Start ``python`` on the counting program, and return its answer.

    ``question`` has ``module``, ``file``, ``function`` and ``config``, or ``pretrained``. The
    job's ``setup`` lines of bash run first, and it gets the job's ``variables``. Raise UsageError
    if the model cannot be counted.
    """
    asked = {"function": None, "paths": [], "config": {}, **question, "dtype": _DTYPES[precision]}
    asked["hpcrun"] = str(Path(hpcrun.__file__).parent.parent)
    argv, environment = _command(python, setup, variables or {})
    try:
        process = host.start_piped(argv, cwd="/", env=environment, stdin=subprocess.PIPE)
    except OSError as error:
        raise UsageError(f"environment.python: {python[0]}: {error.strerror}", hint=GIVE) from None
    found = host.answer(process, timeout, json.dumps(asked))
    if found is None:
        raise UsageError(
            f"the model was not made within {duration(timeout)}, and its process was ended",
            hint=f"{GIVE}; or more time, estimate.timeout",
        )
    return _answer(*found, process.returncode)


def _command(
    python: Sequence[str], setup: Sequence[str], variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    # As a file: the job's Python need not have hpcrun, nor may it find hpcrun's own modules.
    argv = [*python, os.path.realpath(model_program.__file__)]
    # The meta device takes no GPU; the user's code, as it is imported, gets none either.
    own = {**variables, **dict.fromkeys(_GPUS, ""), "PYTHONDONTWRITEBYTECODE": "1"}
    return in_job_environment(argv, setup, own)


def _answer(output: str, words: str, code: int) -> dict[str, Any]:
    lines = [line for line in output.splitlines() if line.startswith(model_program.MARK)]
    if not lines or len(lines[-1]) > _MOST_BYTES:
        said = words.strip().splitlines()[-3:]
        told = "; it said:\n" + "\n".join(f"  {line}" for line in said) if said else ""
        raise UsageError(
            f"the model was not made: its Python ended with code {code}{told}", hint=GIVE
        )
    try:
        found = json.loads(lines[-1][len(model_program.MARK) :])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(
            "the program that counts the model gave no answer that can be read", hint=GIVE
        )
    if "problem" in found:
        raise UsageError(
            f"the model was not made: {one_line(shortened(str(found['problem']), 600))}", hint=GIVE
        )
    return found


def module_of(file: str | None, module: str) -> dict[str, Any]:
    """Return the part of a question that names a module, in a file if it is in one."""
    return {"module": module, "file": file, "paths": [str(Path(file).parent)] if file else []}
