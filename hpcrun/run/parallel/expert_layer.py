"""Mixture-of-experts layers, by DeepSpeed's MoE, with experts divided as ``parallel.expert`` says.

With an expert size of N, ranks N·k to N·k + N - 1 hold the experts together, each as many, and send
each other the tokens (`deepspeed.utils.groups._create_expert_and_data_parallel`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.run.protocol.launch import Launch
from hpcrun.state.spec.parallel_block import EXPERT, laid_out


def expert_layer(width: int, expert: Callable[[], Any], experts: int, **options: Any) -> Any:
    """Return DeepSpeed's MoE layer with ``experts`` experts, of which this rank has its share.

    Its result is ``(output, auxiliary loss, tokens of each expert)``, with the output in the shape
    of the input, (…, width). Experts are made in their order on every rank, so that they begin
    with the same weights whatever ``parallel.expert`` is.

    Parameters
    ----------
    expert
        Makes an expert: a ``torch.nn.Module`` from (…, width) to (…, width).
    **options
        What else ``deepspeed.moe.layer.MoE`` takes: ``k``, ``capacity_factor``, …

    Raises
    ------
    UsageError
        ``parallel.expert`` does not divide the number of experts, or ``ep_size`` is given.
    """
    import torch
    from deepspeed.moe.layer import MoE

    if "ep_size" in options:
        raise UsageError("hpcrun.expert_layer takes no ep_size", hint="set parallel.expert")
    size = _size()
    if experts < 1 or experts % size:
        raise UsageError(
            f"parallel.expert is {size}, which does not divide {experts} experts",
            hint="choose a number of experts that it divides",
        )
    share = experts // size
    first = int(os.environ.get("RANK", "0")) % size * share
    made = [expert() for _ in range(experts)][first : first + share]
    layer = MoE(width, made[0], num_experts=experts, ep_size=size, **options)
    with torch.no_grad():
        for own, wanted in zip(layer.deepspeed_moe.experts.deepspeed_experts, made, strict=True):
            own.load_state_dict(wanted.state_dict())
    return layer


def check(model: Any, size: int) -> None:
    """Raise UsageError for a model whose experts are not divided as the spec says."""
    layers = _layers(model)
    if size > 1 and not layers:
        raise UsageError(
            f"parallel.expert is {size}, and the model has no mixture-of-experts layer",
            hint="make them with hpcrun.expert_layer(…), or leave parallel.expert out",
        )
    for layer in layers:
        if layer.ep_size != size:
            raise UsageError(
                f"a mixture-of-experts layer has ep_size {layer.ep_size}, and parallel.expert is "
                f"{size}",
                hint="make it with hpcrun.expert_layer(…), or set parallel.expert",
            )


def with_groups(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``deepspeed.initialize`` with the experts' parameters apart.

    DeepSpeed averages their gradients over other ranks than those of the rest.
    """
    if not _layers(model) or arguments.get("optimizer") is not None:
        return arguments
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    given = arguments.get("model_parameters")
    if given is None:
        given = [one for one in model.parameters() if one.requires_grad]
    groups = split_params_into_different_moe_groups_for_optimizer(_with_names(list(given)))
    return {**arguments, "model_parameters": groups}


def _with_names(given: Sequence[Any]) -> list[dict[str, Any]]:
    """Return groups of parameters that have names, as DeepSpeed's split wants them."""
    if not any(isinstance(one, Mapping) for one in given):
        return [{"params": list(given), "name": "parameters"}]
    return [{"name": f"group {index}", **one} for index, one in enumerate(given)]


def _size() -> int:
    launch = Launch.current()
    return 1 if launch is None else laid_out(launch.spec.get("parallel")).get(EXPERT, 1)


def _layers(model: Any) -> list[Any]:
    return [one for one in model.modules() if type(one).__module__ == "deepspeed.moe.layer"]
