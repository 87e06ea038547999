"""Counts the optimizer steps of any program that imports torch, and calls for each.

Nothing of it is imported for that: once the program has imported torch's optimizers, or DeepSpeed's
engine, the modules are hooked. A step is one of a DeepSpeed engine, pipelines too, where there is
one; else one of the first optimizer that steps.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hpcrun.run.profile import trace_parts

if TYPE_CHECKING:
    from hpcrun.run.profile.step_recorder import StepRecorder

_OPTIMIZERS, _ENGINE = "torch.optim.optimizer", "deepspeed.runtime.engine"
# Private: it is what both kinds of engine take a step by. tests/run/profile holds it.
_TAKES_STEP = "_take_model_step"


class StepHooks:
    """The hooks in one process, which pass steps on to a listener."""

    def __init__(self, listener: StepRecorder) -> None:
        self._listener = listener
        self._engine: Any = None
        self._first: Any = None

    def install(self) -> None:
        """Hook the modules that are imported already; the others will be, as they are."""
        hooks: dict[str, Callable[[ModuleType], None]] = {
            _OPTIMIZERS: self._hook_optimizers,
            _ENGINE: self._hook_engine,
        }
        for name in hooks.keys() & sys.modules.keys():
            hooks.pop(name)(sys.modules[name])
        if hooks:
            sys.meta_path.insert(0, _AfterImport(hooks))

    def _hook_optimizers(self, module: ModuleType) -> None:
        module.register_optimizer_step_pre_hook(self._before_optimizer)
        module.register_optimizer_step_post_hook(self._after_optimizer)

    def _hook_engine(self, module: ModuleType) -> None:
        kind = module.DeepSpeedEngine
        takes_step, listener = getattr(kind, _TAKES_STEP), self._listener

        @functools.wraps(takes_step)
        def take_step(engine: Any, *arguments: Any, **options: Any) -> Any:
            self._engine = engine
            with listener.range(trace_parts.ENGINE_STEP):
                result = takes_step(engine, *arguments, **options)
            listener.stepped()
            return result

        setattr(kind, _TAKES_STEP, take_step)
        for name, mark in (("forward", trace_parts.FORWARD), ("backward", trace_parts.BACKWARD)):
            setattr(kind, name, _with_mark(getattr(kind, name), mark, listener))

    def _before_optimizer(self, optimizer: Any, *_: Any) -> None:
        if self._counts(optimizer) or self._engine is not None:
            self._listener.stepping(optimizer, self._engine)

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        if self._counts(optimizer):
            self._listener.stepped()

    def _counts(self, optimizer: Any) -> bool:
        """Check whether a step of this optimizer is one of the program's."""
        if self._engine is not None:
            # Engines step an optimizer several times, once for each group of parameters.
            return False
        if self._first is None:
            self._first = optimizer
        return optimizer is self._first


def _with_mark(function: Any, mark: str, listener: StepRecorder) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with listener.range(mark):
            return function(*arguments, **options)

    return call


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once a module of some name has been imported."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        hook = self._waiting.pop(fullname, None)
        # By the other finders: an editable installation has one, and so have other hooks.
        found = importlib.util.find_spec(fullname) if hook else None
        if hook is None or found is None or found.loader is None:
            if hook is not None:
                self._waiting[fullname] = hook
            return None
        loader = found.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            hook(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return found
