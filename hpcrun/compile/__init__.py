"""From a spec to a plan: pure, the same input gives the same bytes.

``compile_spec`` checks and resolves, ``freeze`` numbers the runs and renders scripts, and
``compile_plan`` is both.
"""

from __future__ import annotations

from hpcrun.compile.compiler import compile_chain, compile_plan, compile_spec, default_root
from hpcrun.compile.freeze import Compiled, CompiledRun, freeze

__all__ = [
    "Compiled",
    "CompiledRun",
    "compile_chain",
    "compile_plan",
    "compile_spec",
    "default_root",
    "freeze",
]
