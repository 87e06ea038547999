"""This module spares the tests' Python imports, which are half of the start of a rank.

Laid over its packages inside a bed that is `light`, and around the tests. MLflow is imported by
DeepSpeed's autotuner wherever it is installed, torch's compiler by the functions of its Muon and by
each optimizer: three of six seconds of processor time, in hundreds of ranks that compile nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def _as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    """Decorate nothing, with arguments or without."""
    return _as_it_is if function is None else function


@contextmanager
def _no_mlflow_is_found(_: ModuleType) -> Iterator[None]:
    if "mlflow" in sys.modules:
        yield
        return
    sys.modules["mlflow"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["mlflow"]


@contextmanager
def _no_muon_is_compiled(_: ModuleType) -> Iterator[None]:
    import torch

    before, torch.compile = torch.compile, _as_it_is
    try:
        yield
    finally:
        torch.compile = before


@contextmanager
def _no_function_is_hidden_from_the_compiler(module: ModuleType) -> Iterator[None]:
    yield
    module._disable_dynamo = _as_it_is  # type: ignore[attr-defined]


@contextmanager
def _no_graph_is_broken_by_a_step(module: ModuleType) -> Iterator[None]:
    import torch

    def use_grad(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def step(self: Any, *rest: Any, **named: Any) -> Any:
            with torch.set_grad_enabled(self.defaults["differentiable"]):
                return function(self, *rest, **named)

        return step

    yield
    module._use_grad_for_differentiable = use_grad  # type: ignore[attr-defined]


_AROUND: dict[str, Callable[[ModuleType], Any]] = {
    "deepspeed.autotuning.autotuner": _no_mlflow_is_found,
    "deepspeed.runtime.zero.muon.original_muon": _no_muon_is_compiled,
    "torch.optim.optimizer": _no_graph_is_broken_by_a_step,
    "torch._compile": _no_function_is_hidden_from_the_compiler,
}


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        around = _AROUND.pop(name, None)
        # The others', as hpcrun's own hook is one of them.
        spec = importlib.util.find_spec(name) if around else None
        if around is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def within(module: ModuleType) -> None:
            with around(module):
                execute(module)

        spec.loader.exec_module = within  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
