"""Compile specs into plans: pure, the same input gives the same bytes.

``compile_spec`` reads, checks and resolves a spec, ``freeze.freeze`` numbers its runs and renders
their scripts.

In reading order: `compiler` (the steps, from file to checked runs), `run_template` (a run without
its ``config``, checked once for many), `identity` (the digest by which a run is known again, and
the values that it leaves out), `run_notes` (swept values that may not arrive), `added_keys` (what
installed packages add to the spec), `freeze` (numbers, job arrays and scripts) and `chain`
(``depends_on``). ``source`` reads files, ``spec`` knows the schema, ``sweep`` makes the points,
``target`` knows entries, DeepSpeed and sbatch.

To add a field of a spec, declare it in `hpcrun.state.spec.experiment`, check it in
``spec/checks.py``, and write the reference page anew with ``python -m
hpcrun.compile.spec.reference``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcrun.compile.compiler import compile_chain, compile_spec, default_root
    from hpcrun.compile.freeze import Compiled, CompiledRun

__all__ = ["Compiled", "CompiledRun", "compile_chain", "compile_spec", "default_root"]


def __getattr__(name: str) -> Any:
    """Import the compiler when it is first used: completion needs the schema alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "freeze" if name.startswith("Compiled") else "compiler"
    return getattr(importlib.import_module(f"hpcrun.compile.{module}"), name)
