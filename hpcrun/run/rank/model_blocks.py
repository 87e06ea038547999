"""A model's blocks: what FSDP2 divides each by itself, and `optimization.compile` compiles.

They are compiled in place, so that names and classes of modules stay, and with them those of
checkpoints. A form (shape, mode) that a block meets is compiled by itself; torch's limit of them is
an error here, since beyond it what is compiled would depend on the steps since the last restart.
"""

from __future__ import annotations

import collections
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.run.rank import optimization
from hpcrun.state.spec.run_blocks import Optimization
from hpcrun.text import listed

_SHOWN = 3
# Of each block, as torch counts them; alike ones share theirs.
_FORMS = 8


def find(model: Any, given: Sequence[Any] | None = None) -> list[Any]:
    """Return the blocks of a model, in its order; the model itself is none.

    ``given`` has their classes, or the names of these; None takes those that Hugging Face models
    name, else the children of lists of equal modules, else equal ones of a Sequential with others.
    Raises UsageError for a class that the model does not have.
    """
    wanted = given if given is not None else getattr(model, "_no_split_modules", None)
    if not wanted:
        lists = [model.get_submodule(name) for name in optimization.layer_lists(model)]
        return [child for each in lists for child in each.children()] or _among_others(model)
    names = {each if isinstance(each, str) else each.__name__ for each in wanted}
    found = [each for each in model.modules() if type(each).__name__ in names]
    if given is not None and (missing := names - {type(each).__name__ for each in found}):
        raise UsageError(
            f"blocks names {listed(sorted(missing), _SHOWN)}, and the model has no such module",
            hint="give the class of the model's layers",
        )
    return [each for each in found if each is not model]


def _among_others(model: Any) -> list[Any]:
    """Return the modules of a class of which a Sequential has several, and which have parts."""
    from torch import nn

    for module in model.modules():
        if isinstance(module, nn.Sequential):
            made = [child for child in module.children() if any(True for _ in child.children())]
            kinds = collections.Counter(map(type, made))
            if found := [child for child in made if kinds[type(child)] > 1]:
                return found
    return []


def is_compiled(model: Any) -> bool:
    """Check whether a model, or a part of it, is compiled by ``torch.compile``."""
    return any(
        type(each).__name__ == "OptimizedModule" or each._compiled_call_impl is not None
        for each in model.modules()
    )


def compile_each(
    model: Any,
    wanted: Optimization,
    device: Any,
    given: Sequence[Any] | None = None,
    *,
    stage: int | None = None,
) -> None:
    """Compile a model's blocks in place where the spec asks for that; before its engine is made.

    ``model`` and ``given`` are as of `find`, ``device`` is the rank's, ``stage`` ZeRO's where
    DeepSpeed is to make the engine. Raises UsageError if the model has no blocks, is of a kind that
    was never trained so, or the node lacks a compiler; a block raises it that meets more forms than
    torch compiles.
    """
    if not wanted.compile:
        return
    blocks = find(model, given)
    for found, hint in _refused(model, blocks, stage):
        raise UsageError(f"optimization.compile: {found}", hint=hint)
    import torch._dynamo

    if device.type == "cpu":
        _check_compiler()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for block in blocks:
        limit = _FORMS * len(blocks)
        compiled = torch.compile(block.forward, dynamic=False, recompile_limit=limit)
        block._compiled_call_impl = _with_forward(block, compiled)


def _refused(model: Any, blocks: Sequence[Any], stage: int | None) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a model, and a hint."""
    import torch

    leave_out = "set optimization.compile to false"
    if "recompile_limit" not in inspect.signature(torch.compile).parameters:
        found = f"torch {torch.__version__} cannot be told how many shapes it is to compile"
        yield found, f"take torch 2.13 in the job's Python, or {leave_out}"
    if stage == 3:
        yield (
            "with ZeRO 3 each module of a block has DeepSpeed's hooks, at which torch breaks the "
            "block, and of which it compiles so many and no more",
            "take ZeRO 2, or session.fully_shard(…), which divides weights as ZeRO 3 does",
        )
    if hasattr(model, "num_stages"):
        yield "the model is a pipeline, which nobody has tried with it", leave_out
    if any(not getattr(one, "allreduce", True) for one in model.parameters()):
        yield "the model has layers of experts, which nobody has tried with it", leave_out
    if is_compiled(model):
        yield "the program compiles the model, too", "leave torch.compile out of the program"
    if not blocks:
        yield (
            "the model has no blocks, equal modules that are children of a torch.nn.ModuleList or "
            "Sequential",
            f"keep its layers in a ModuleList, or {leave_out}",
        )


def _check_compiler() -> None:
    """Raise UsageError if inductor finds no C++ compiler, which it needs on processors."""
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler as error:
        raise UsageError(
            "optimization.compile: torch finds no C++ compiler on this node",
            hint="load one in environment.setup (g++ on PATH, or its path in CXX), or set "
            "optimization.compile to false",
        ) from error


def _with_forward(block: Any, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of a block by its compiled forward pass; a copy of the block has none.

    The engine's hooks stay outside: at one inside, torch would not compile a class of its own, such
    as a Sequential, as ``Module.compile`` does not either.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit

    attributes = block.__dict__

    def call(*arguments: Any, **named: Any) -> Any:
        own = attributes.get("forward")
        attributes["forward"] = compiled
        try:
            return block._call_impl(*arguments, **named)
        except FailOnRecompileLimitHit as error:
            raise UsageError(
                "optimization.compile: blocks meet more shapes, or other forms of a call, than "
                f"torch compiles ({_FORMS} for each block); the rest would not be compiled, and a "
                "restarted run would not go on to the bit",
                hint="give all micro batches one shape, such as by padding (TORCH_LOGS=recompiles "
                "tells what differs), or set optimization.compile to false",
            ) from error
        finally:
            del attributes["forward"]
            if own is not None:
                attributes["forward"] = own

    return call
