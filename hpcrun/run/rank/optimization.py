"""What `session.initialize` makes of the spec's ``optimization``: schedule and parameter groups.

Also optimizers of libraries, which DeepSpeed does not know by name: ``package.Class``.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.state.spec.run_blocks import Optimization


def fill(model: Any, arguments: dict[str, Any], wanted: Optimization) -> dict[str, Any]:
    """Return the arguments of ``deepspeed.initialize`` with what the spec asks for.

    Raises UsageError if the program gives a schedule or an optimizer of its own, too.
    """
    config = arguments.get("config")
    if not isinstance(config, Mapping):
        return arguments
    filled = dict(arguments)
    if wanted.layer_decay is not None or wanted.weight_decay_on == "matrices":
        filled["model_parameters"] = _grouped(model, filled, wanted, config)
    name = _part(config, "type")
    if name is not None and filled.get("optimizer") is not None:
        raise UsageError(
            f"deepspeed.optimizer.type is {name}, and the program gives an optimizer, too",
            hint="leave optimizer out of the program's call, or set deepspeed.optimizer to null",
        )
    if isinstance(name, str) and "." in name:
        kind = _library_class(name)
        filled["optimizer"] = functools.partial(_make, kind, dict(_part(config, "params") or {}))
        filled["config"] = {key: value for key, value in config.items() if key != "optimizer"}
        if filled.get("model_parameters") is None:
            filled["model_parameters"] = list(model.parameters())
    if wanted.decay or wanted.warmup:
        if filled.get("lr_scheduler") is not None:
            raise UsageError(
                "the spec's optimization makes a schedule, and the program gives an "
                "lr_scheduler, too",
                hint="leave lr_scheduler out of the program's call, or set optimization.decay "
                "to null and optimization.warmup to 0",
            )
        filled["lr_scheduler"] = functools.partial(_schedule, wanted)
    return filled


def rate(wanted: Optimization, step: int) -> float:
    """Return the part of the learning rate with which the step after ``step`` finished ones goes.

    Steps of a warm-up of W have 1/W, 2/W, …, 1. A line and a cosine begin at 1 with the step after
    it, and would reach ``end`` with the step after the last.
    """
    total = wanted.total_steps or 0
    warmup = steps_of(wanted.warmup, total)
    if step < warmup:
        return (step + 1) / warmup
    if wanted.decay == "step":
        passed = sum(step >= steps_of(each, total) for each in wanted.milestones)
        return float(wanted.factor**passed)
    if wanted.decay not in ("linear", "cosine"):
        return 1.0
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    left = 1 - done if wanted.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return wanted.end + (1 - wanted.end) * left


def steps_of(given: float, total: int) -> int:
    """Return a number of steps, which is a fraction of all of them where it is below 1."""
    return round(given * total) if given < 1 else int(given)


def parameter_groups(
    model: Any, wanted: Optimization, config: Mapping[str, Any], layers: str | None = None
) -> list[dict[str, Any]]:
    """Return the trainable parameters as groups for an optimizer, in a fixed order.

    The model is whole on this rank, or divided by ZeRO 3. With ``layer_decay``, what comes after
    the last layer has the configuration's learning rate ``lr``, that layer ``lr * layer_decay``,
    the one before ``lr * layer_decay ** 2``, …, what comes before the first the least; ``layers``
    names the module whose children they are, None finds it. With ``weight_decay_on: matrices``
    weights of less than two dimensions do not decay. Raises UsageError where the layers are not
    known.
    """
    params, layer_decay = _part(config, "params"), wanted.layer_decay
    lr = params.get("lr") if isinstance(params, Mapping) else None
    matrices_only = wanted.weight_decay_on == "matrices"
    depth = _depths(model, layers) if layer_decay is not None else None
    most = max(depth.values(), default=0) if depth else 0
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        at = depth[name] if depth else 0
        plain = matrices_only and len(getattr(parameter, "ds_shape", parameter.shape)) < 2
        group = groups.setdefault((at, plain), {"params": []})
        group["params"].append(parameter)
        if layer_decay is not None and lr is not None:
            group["lr"] = lr * layer_decay ** (most - at)
        if plain:
            group["weight_decay"] = 0.0
    return [groups[key] for key in sorted(groups)]


def _depths(model: Any, layers: str | None) -> dict[str, int]:
    """Return parameter name -> layer: 0 is before the first of them, the highest after the last."""
    name = _layers(model) if layers is None else layers
    prefix = f"{name}." if name else ""
    depths: dict[str, int] = {}
    children = {child: n for n, (child, _) in enumerate(model.get_submodule(name).named_children())}
    last = 0
    for full, _ in model.named_parameters():
        child = full[len(prefix) :].partition(".")[0] if full.startswith(prefix) else None
        if child in children:
            last = depths[full] = children[child] + 1
        else:
            depths[full] = len(children) + 1 if last else 0
    return depths


def layer_lists(model: Any) -> list[str]:
    """Return the names of the outermost modules whose children are alike and have parameters."""
    from torch import nn

    found: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(f"{other}." if other else "") for other in found):
            continue
        children = (
            list(module.children()) if isinstance(module, (nn.ModuleList, nn.Sequential)) else []
        )
        alike = len(children) > 1 and len({type(child) for child in children}) == 1
        if alike and all(any(True for _ in child.parameters()) for child in children):
            found.append(name)
    return found


def _layers(model: Any) -> str:
    """Return the name of the one module whose children are alike; raise UsageError."""
    found = layer_lists(model)
    if len(found) != 1:
        several = (
            f"has several lists of layers ({', '.join(found)})"
            if found
            else "has no list of layers"
        )
        raise UsageError(
            f"optimization.layer_decay: the model {several}",
            hint="give session.initialize(…) model_parameters=session.parameter_groups(model, "
            'layers="model.encoder.layers")',
        )
    return found[0]


def _grouped(
    model: Any, arguments: Mapping[str, Any], wanted: Optimization, config: Mapping[str, Any]
) -> list[Any]:
    given = arguments.get("model_parameters")
    parameters = None if given is None else list(given)
    if parameters and isinstance(parameters[0], dict):
        return parameters  # the program's own, as of session.parameter_groups
    if arguments.get("optimizer") is not None:
        raise UsageError(
            "the spec's optimization makes parameter groups, and the program gives an optimizer "
            "that has its own",
            hint="make that with session.parameter_groups(model) and set optimization.layer_decay "
            "to null, or name the optimizer in deepspeed.optimizer",
        )
    if hasattr(model, "num_stages"):
        raise UsageError(
            "optimization.layer_decay and weight_decay_on do not work with a PipelineModule: each "
            "stage would have other groups",
            hint="leave them out",
        )
    groups = parameter_groups(model, wanted, config)
    if parameters is not None:
        kept = {id(parameter) for parameter in parameters}
        for group in groups:
            group["params"] = [each for each in group["params"] if id(each) in kept]
    return [group for group in groups if group["params"]]


def make(
    model: Any, config: Mapping[str, Any], wanted: Optimization, optimizer: Any, lr_scheduler: Any
) -> tuple[Any, Any]:
    """Return the optimizer and the schedule of an engine without DeepSpeed, as `fill` has them.

    ``optimizer`` is the program's, a function that makes one of parameters, or None for the spec's.
    """
    given = {"config": config, "optimizer": optimizer, "lr_scheduler": lr_scheduler}
    filled = fill(model, given, wanted)
    found = filled["optimizer"]
    if not hasattr(found, "param_groups"):
        trained = [one for one in model.parameters() if one.requires_grad]
        of = found or torch_optimizer(filled["config"])
        if not callable(of):
            raise UsageError(
                f"the optimizer is {of!r:.80}; accepted are a torch optimizer, a function that "
                "makes one of parameters, and None for deepspeed.optimizer",
                hint="torch.optim.AdamW(model.parameters(), lr=1e-3)",
            )
        found = of(filled.get("model_parameters") or trained)
    return found, filled["lr_scheduler"]


def torch_optimizer(config: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return a function that makes of parameters the optimizer that a configuration names.

    It is what DeepSpeed would take by that name, and torch's own. Raises UsageError where torch has
    none.
    """
    import torch

    name, params = _part(config, "type"), dict(_part(config, "params") or {})
    if not isinstance(name, str):
        raise UsageError(
            "neither the spec (deepspeed.optimizer) nor the program gives an optimizer",
            hint="set deepspeed.optimizer, or give the call an optimizer",
        )
    # DeepSpeed's Muon divides its work otherwise than torch's.
    kind = None if name.lower() == "muon" else getattr(torch.optim, name, None)
    if name.lower() in ("adam", "adamw"):
        decoupled = params.pop("adam_w_mode", True) or name.lower() == "adamw"
        kind = torch.optim.AdamW if decoupled else torch.optim.Adam
        if not params.pop("torch_adam", False):
            # As DeepSpeed's own Adam has it.
            params.setdefault("weight_decay", 0.0)
    if kind is None:
        raise UsageError(
            f"deepspeed.optimizer.type is {name}, which torch does not have",
            hint="name one of torch.optim, or a class of a library as package.Class",
        )
    return functools.partial(_make, kind, params)


def _part(config: Mapping[str, Any], key: str) -> Any:
    block = config.get("optimizer")
    return block.get(key) if isinstance(block, Mapping) else None


def _library_class(name: str) -> Any:
    module, _, short = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), short)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"deepspeed.optimizer.type: {name} cannot be imported in the job's Python: {error}",
            hint=f"install the library that has {module} there, or correct the name",
        ) from error


def _make(kind: Any, params: Mapping[str, Any], parameters: Any) -> Any:
    try:
        return kind(parameters, **params)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"deepspeed.optimizer.params: {kind.__name__} refuses them: {error}",
            hint="correct deepspeed.optimizer.params",
        ) from error


def _schedule(wanted: Optimization, optimizer: Any) -> Any:
    """Return the spec's schedule of an optimizer."""
    from torch.optim.lr_scheduler import LambdaLR

    # A partial, of which torch saves no state: what is restored is the step alone.
    return LambdaLR(optimizer, functools.partial(rate, wanted))
