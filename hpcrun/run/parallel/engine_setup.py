"""``deepspeed.initialize`` for a model that is divided between ranks.

AutoTP of DeepSpeed 0.19.8 asserts the batch triple for all ranks, unless ``deepspeed.initialize``
is given the groups of ranks that hold one copy of the model together. What makes these, and what
holds them, is private (``deepspeed.utils.groups``); tests/run/parallel holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.policy import training_ways
from hpcrun.run.checkpoint import deepspeed_io
from hpcrun.run.parallel import expert_layer, pipeline_stages, tensor_rules, ulysses
from hpcrun.run.parallel.rank_layout import RankGroups, RankLayout
from hpcrun.state.spec.parallel_block import EXPERT

Engine = tuple[Any, Any, Any, Any]


def check_division(engine: Any, layout: RankLayout) -> None:
    """Raise UsageError for an engine that is not divided as the spec's ``parallel`` says."""
    if layout.divided and (made := deepspeed_io.parallel(engine)) != layout.divided:
        raise UsageError(
            f"the spec's parallel divides the model ({layout}), and this engine's is "
            f"divided by {', '.join(made) or 'nothing'}",
            hint="make the engine with session.initialize(…), or say model_parallel_size in "
            "place of parallel",
        )


def checked_stage(spec: Mapping[str, Any], config: Any) -> int | None:
    """Return ZeRO's stage; raise UsageError for what does not go with ``optimization.compile``."""
    if not isinstance(config, Mapping):
        return None
    for each in training_ways.of_compiled(spec, config):
        raise UsageError(f"{each.key} {each.found}", hint=each.hint)
    stage: int | None = (config.get("zero_optimization") or {}).get("stage")
    return stage


def initialize(
    model: Any, loss: Callable[..., Any] | None, arguments: dict[str, Any], layout: RankLayout
) -> Engine:
    """Divide a model by a layout, and make DeepSpeed's engine of it; collective.

    The model returns the loss, or with ``loss``, a function of outputs and labels, outputs;
    ``arguments`` are those of ``deepspeed.initialize``, with the configuration as ``config``.
    Raises UsageError if the model cannot be divided so, or would train wrong without a word.
    """
    import deepspeed

    config = arguments.get("config")
    if isinstance(config, Mapping):
        for each in training_ways.refusals(layout.asked, config):
            raise UsageError(f"{each.key} {each.found}", hint=each.hint)
    if not layout.divided:
        return _undivided(with_loss(model, loss), arguments, layout)
    if not isinstance(config, Mapping):
        raise UsageError(
            "parallel needs the DeepSpeed configuration as a mapping, which session.initialize "
            "fills in by itself",
            hint="leave out config=…, or give a dict",
        )
    groups = RankGroups(layout, _partition(config, layout))
    if "sequence" in layout.divided:
        ulysses.use(groups.group("sequence"))
    if "pipeline" in layout.divided or pipeline_stages.is_pipeline(model):
        made, arguments = _pipeline(model, loss, arguments, groups)
    else:
        made, arguments = _whole(with_loss(model, loss), arguments, groups)
    engine, optimizer, loader, scheduler = deepspeed.initialize(model=made, **arguments)
    if "tensor" in layout.divided:
        tensor_rules.check_divided(engine.module)
    deepspeed_io.note_parallel(engine, layout.divided)
    _check(engine)
    return engine, optimizer, loader, scheduler


def _partition(config: Mapping[str, Any], layout: RankLayout) -> str:
    """Return the name of the group that ZeRO 3 partitions over; a pipeline has no ZeRO 3."""
    zero = config.get("zero_optimization") or {}
    return "sequence_data" if zero.get("stage") == 3 and "sequence" in layout.divided else "data"


def tensor_parallel_size(config: Any) -> int:
    """Return ``tensor_parallel.autotp_size`` of a DeepSpeed configuration; 1 without it."""
    block = config.get("tensor_parallel") if isinstance(config, Mapping) else None
    size = block.get("autotp_size") if isinstance(block, Mapping) else None
    return size if isinstance(size, int) and size > 1 else 1


def _undivided(model: Any, arguments: dict[str, Any], layout: RankLayout) -> Engine:
    """Make an engine without ``parallel``; DeepSpeed's own keys and modules may divide it."""
    import deepspeed
    from deepspeed.utils import groups

    tensor = tensor_parallel_size(arguments.get("config"))
    if tensor > 1 and "mpu" not in arguments:
        groups._init_tp_mesh_device(tensor_model_parallel_size=tensor)
        arguments = {**arguments, "mpu": groups}
    expert_layer.check(model, layout.experts)
    arguments = expert_layer.with_groups(model, arguments)
    engine, optimizer, loader, scheduler = deepspeed.initialize(model=model, **arguments)
    if layout.experts > 1:
        deepspeed_io.note_parallel(engine, {EXPERT: layout.experts})
    _check(engine)
    return engine, optimizer, loader, scheduler


def _whole(model: Any, arguments: dict[str, Any], groups: RankGroups) -> tuple[Any, dict[str, Any]]:
    """Return the arguments of a model that each rank runs from its first layer to its last."""
    if "tensor" not in groups.layout.divided:
        return model, {**arguments, "mpu": groups}
    from deepspeed.utils import groups as of_deepspeed

    tensor_rules.use(groups.group("tensor"), groups.group("data"))
    if "sequence" in groups.layout.divided:
        groups.lend(of_deepspeed, "get_sequence_data_parallel_")
    config = arguments["config"]
    config = {**config, "tensor_parallel": _tensor_block(model, config, groups)}
    return model, {**arguments, "config": config, "mpu": of_deepspeed}


def _pipeline(
    model: Any, loss: Callable[..., Any] | None, arguments: dict[str, Any], groups: RankGroups
) -> tuple[Any, dict[str, Any]]:
    """Return a pipeline's stage and its arguments."""
    config = dict(arguments["config"])
    stages = groups.layout.size["pipeline"]
    if pipeline_stages.is_pipeline(model):
        if model.num_stages != stages or groups.layout.divided.keys() != {"pipeline"}:
            raise UsageError(
                f"the program's PipelineModule has {model.num_stages} stages, and parallel is "
                f"{groups.layout}: a PipelineModule goes with pipeline and data alone",
                hint=f"set parallel to {{pipeline: {model.num_stages}}}, or give the model as a "
                "torch.nn.Sequential with loss=…",
            )
        made = model
    elif loss is None:
        raise UsageError(
            "parallel.pipeline needs the loss as a function of outputs and labels, for the last "
            "stage",
            hint="call session.initialize(model=torch.nn.Sequential(…), loss=FUNCTION)",
        )
    else:
        made = pipeline_stages.staged(model, loss, groups, config.get("pipeline") or {})
    # What a rank sends on is whole: a part of the sequence, or the same in a tensor group.
    parts = {"pipe_partitioned": False, "grad_partitioned": False}
    config["pipeline"] = {**parts, **(config.get("pipeline") or {})}
    if "tensor" in groups.layout.divided:
        rules = _tensor_block(made, config, groups)
        tensor_rules.use(groups.group("tensor"), groups.group("data"))
        tensor_rules.divide(made, rules, groups.group("tensor"), groups.group("pipeline"))
    # The engine would divide the stage once more.
    config.pop("tensor_parallel", None)
    return made, {**_of_stage(made, arguments), "config": config}


def _tensor_block(model: Any, config: Mapping[str, Any], groups: RankGroups) -> dict[str, Any]:
    """Return DeepSpeed's ``tensor_parallel``, with the model's own plans where it names none."""
    block = dict(config.get("tensor_parallel") or {})
    if not block.keys() & {"partition_config", "preset_model"}:
        rules = tensor_rules.partition_config(model)
        block.update({} if rules is None else {"partition_config": rules})
    return {**block, "autotp_size": groups.layout.size["tensor"]}


def _of_stage(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the parameters of this stage alone."""
    given = arguments.get("model_parameters")
    own = {id(one) for one in model.parameters()}
    if given is None:
        return {**arguments, "model_parameters": [p for p in model.parameters() if p.requires_grad]}
    kept: list[Any] = []
    for each in given:
        if isinstance(each, Mapping):
            part = [one for one in each["params"] if id(one) in own]
            kept += [{**each, "params": part}] if part else []
        elif id(each) in own:
            kept.append(each)
    return {**arguments, "model_parameters": kept}


def with_loss(model: Any, loss: Callable[..., Any] | None) -> Any:
    """Return a module that returns the loss of a model's outputs."""
    if loss is None:
        return model
    import torch

    of_outputs = loss

    class ModelWithLoss(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        """Calls a model with the inputs, and the loss with what it returns and the labels.

        The layers of a Sequential are numbered, as in a pipeline, so that a checkpoint has one name
        for each parameter whatever the layout.
        """

        def __init__(self) -> None:
            super().__init__()
            is_sequence = isinstance(model, torch.nn.Sequential)
            for name, layer in enumerate(model) if is_sequence else [("model", model)]:
                self.add_module(str(name), layer)

        def forward(self, inputs: Any, labels: Any) -> Any:
            outputs = inputs
            for layer in self.children():
                outputs = layer(outputs)
            return of_outputs(outputs, labels)

    return ModelWithLoss()


def _check(engine: Any) -> None:
    """Raise UsageError for an engine that would train wrong without a word.

    A pipeline in fp32 without ZeRO clips every stage's gradients by the norm of the first one's
    parameters; DeepSpeed clips at 1.0 where the configuration says nothing.
    """
    clipping = float(engine.gradient_clipping() or 0.0)
    if (
        getattr(engine, "pipeline_parallelism", False)
        and getattr(engine, "num_stages", 1) > 1
        and engine.zero_optimization_stage() == 0
        and not (engine.bfloat16_enabled() or engine.fp16_enabled())
        and clipping > 0
    ):
        raise UsageError(
            f"this pipeline trains in fp32 without ZeRO, and clips gradients at {clipping:g}: "
            "DeepSpeed takes the norm of the first stage for that of all, so that the others train "
            "wrong",
            hint="set deepspeed.zero_optimization.stage to 1, or deepspeed.gradient_clipping to 0",
        )
