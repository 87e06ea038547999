"""Counts a model in a subprocess of the job's Python, bounded in time, that sees no GPU.

This runs the user's own code, on the machine where `hpcrun estimate` is typed, as the job would on
its nodes: never that of another user's spec.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hpcrun
from hpcrun import ask_python
from hpcrun.errors import UsageError
from hpcrun.submission.python_probe import in_job_environment
from hpcrun.text import duration, one_line, shortened
from hpcrun.tools.estimate import model_program

TIMEOUT = 300.0
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
        found = ask_python.ask(
            argv,
            timeout=timeout,
            environment=environment,
            given=json.dumps(asked),
            mark=model_program.MARK,
        )
    except OSError as error:
        raise UsageError(f"environment.python: {python[0]}: {error.strerror}", hint=GIVE) from None
    if found.code is None:
        raise UsageError(
            f"the model was not made within {duration(timeout)}, and its process was ended",
            hint=f"{GIVE}; or more time, estimate.timeout",
        )
    if found.data is None:
        why = f"the model was not made: its Python ended with code {found.code}{found.said(3)}"
    elif not isinstance(found.data, dict):
        why = "the program that counts the model gave no answer that can be read"
    elif "problem" in found.data:
        told = one_line(shortened(str(found.data["problem"]), 600))
        why = f"the model was not made: {told}"
    else:
        return found.data
    raise UsageError(why, hint=GIVE)


def _command(
    python: Sequence[str], setup: Sequence[str], variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    # As a file: the job's Python need not have hpcrun, nor may it find hpcrun's own modules.
    argv = [*python, os.path.realpath(model_program.__file__)]
    # The meta device takes no GPU; the user's code, as it is imported, gets none either.
    own = {**variables, **dict.fromkeys(_GPUS, ""), "PYTHONDONTWRITEBYTECODE": "1"}
    return in_job_environment(argv, setup, own)


def module_of(file: str | None, module: str) -> dict[str, Any]:
    """Return the part of a question that names a module, in a file if it is in one."""
    return {"module": module, "file": file, "paths": [str(Path(file).parent)] if file else []}
