"""A model that torch's FSDP2 divides between ranks, without DeepSpeed.

Weights, gradients and the optimizer's state are divided, as with ZeRO 3. What is refused here is
what no test covers; tests/run/rank/test_sharded_engine.py trains the rest, in pairs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.errors import CheckpointError, UsageError
from hpcrun.policy.training_ways import CLIPPING, Refusal
from hpcrun.run.checkpoint import deepspeed_io, shard_files
from hpcrun.run.checkpoint.deepspeed_io import saved_buffers
from hpcrun.run.parallel import engine_setup, tensor_shards
from hpcrun.run.parallel import tensor_plan as divided_modules
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.rank import model_blocks, optimization
from hpcrun.run.rank.torch_engine import TorchEngine, batch_options, check_model, unmet
from hpcrun.state.spec.run_blocks import Optimization
from hpcrun.text import listed

_SHOWN = 3
_TENSOR = "tensor"
_CALLS = (1 << 61) - 1
# How far gradients of ranks with the same weights may be apart by rounding, as a part of them.
_APART = 0.05
_INSTEAD = "leave it out, or make the engine with session.initialize(…)"


class ShardedEngine(TorchEngine):
    """A model that is divided between ranks; `make` divides it. Collective.

    Parameters
    ----------
    model
        A module that ``fully_shard`` has divided.
    optimizer
        A torch optimizer of its parameters.
    half
        It computes in bf16.
    tensor_group
        The process group of ranks that hold each matrix together; None without.
    **options
        Of `TorchEngine`.
    """

    made_by = "session.fully_shard"
    # A sum over ranks, without which no rank knows whether gradients are finite.
    _always_tells_norm = True

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        half: bool = False,
        tensor_group: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, **options)
        self._half, self._exchanges = half, True
        self._tensor, self._compared, self._is_savable = tensor_group, False, False
        if tensor_group is not None:
            self._world //= tensor_group.size()
            deepspeed_io.note_parallel(self, {_TENSOR: tensor_group.size()})
        self.calls = 0
        """Of blocks so far, with their order: ranks that differ mix up what they gather."""
        for number, block in enumerate(_divided_modules(model)):
            block.register_forward_pre_hook(functools.partial(self._note_call, number))
        # Buffers as all ranks have them: an object that is kept has its identity for itself.
        self._agreed: dict[str, tuple[Any, int]] = {}
        self._changed_buffers()
        # A forward pass without a backward pass leaves the root's weights whole, and then stale.
        model.register_forward_hook(lambda *_: self._reshard(only_without_gradients=True))

    def bfloat16_enabled(self) -> bool:
        return self._half

    def save_checkpoint(
        self, directory: str, tag: str, client_state: dict[str, Any], save_latest: bool
    ) -> None:
        """Write this rank's parts; rank 0 also how far the training is."""
        place = Path(directory, tag)
        self._reshard()
        divided, rest = self._optimizer_state()
        state = {
            shard_files.MODEL: self._model_state(),
            shard_files.OPTIMIZER: {"state": divided},
        }
        shard_files.write(state, place, self.checkpoint_engine.save)
        if self._rank == 0:
            named = zip(self.optimizer.param_groups, self._grouped_names(), strict=True)
            course = {
                "groups": [{**group, "params": names} for group, names in named],
                "rest": rest,
                "buffers": [name for name, _ in saved_buffers(self.module)],
                **self._course(),
                "tied": _aliases(self.module),
            }
            self.checkpoint_engine.save(course, str(place / shard_files.COURSE))

    def load_checkpoint(self, directory: str, tag: str) -> tuple[str, dict[str, Any]]:
        """Read what `save_checkpoint` wrote on any number of ranks, without the other ranks."""
        place = Path(directory, tag)
        course = self.checkpoint_engine.load(str(place / shard_files.COURSE), map_location="cpu")
        found = shard_files.index(place)
        self._reshard()
        model = self._model_state()
        _compare(model, shard_files.sizes(found))
        grouped = self._grouped_names()
        if [group["params"] for group in course["groups"]] != grouped:
            raise CheckpointError("the optimizer has other groups of parameters than were saved")
        numbers = {name: n for n, name in enumerate(itertools.chain(*grouped))}
        state = self._empty_state(shard_files.sizes(found))
        shard_files.read_into(
            {shard_files.MODEL: model, shard_files.OPTIMIZER: {"state": state}}, place, found
        )
        for name, rest in course["rest"].items():
            state.setdefault(name, {}).update(rest)
        groups = [
            {**group, "params": [numbers[name] for name in group["params"]]}
            for group in course["groups"]
        ]
        numbered = {numbers[name]: each for name, each in state.items()}
        self.optimizer.load_state_dict({"state": numbered, "param_groups": groups})
        self._take_course(course)
        self._changed_buffers()
        return str(place), {}

    def _exchange(self) -> contextlib.AbstractContextManager[None]:
        if self._is_last != self._exchanges:
            # All modules are asked.
            self._exchanges = self._is_last
            self.module.set_requires_gradient_sync(self._is_last)
            self.module.set_is_last_backward(self._is_last)
        return contextlib.nullcontext()

    def _clip(self) -> None:
        if self._tensor is not None:
            self._join_replicated()
        super()._clip()

    def _join_replicated(self) -> None:
        """Average gradients of what each rank of a tensor group holds, equal but for rounding."""
        import torch

        size, names, apart = self._tensor.size(), [], []
        for name, one in self.module.named_parameters():
            if one.grad is None or not tensor_shards.is_replicated(one, _TENSOR):
                continue
            own = tensor_shards.own_part(one.grad)
            mean = own / size
            torch.distributed.all_reduce(mean, group=self._tensor)
            if not self._compared:
                names.append(name)
                apart.append((own - mean).norm() > _APART * mean.norm())
            own.copy_(mean)
        self._compared = True
        if not names:
            return
        found = torch.stack(apart).float()
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        if wrong := [
            name for name, is_apart in zip(names, found.tolist(), strict=True) if is_apart
        ]:
            raise UsageError(
                "session.fully_shard: ranks of a tensor group have gradients of their own of "
                f"{listed(wrong, _SHOWN, rest=', …')}: it works on a part of what tensor_plan "
                "divides, or they read other samples",
                hint="have tensor_plan divide its module too, or not what it works on; read "
                "samples by session.micro_batches or session.loader",
            )

    def _agree(self) -> None:
        """Have all ranks take rank 0's buffers, of those that the step has changed."""
        import torch

        if not self._is_savable:
            # What is refused is so after the first step, not at a save an hour later.
            self._is_savable = bool(self._optimizer_state())
        for buffer in self._changed_buffers():
            torch.distributed.broadcast(buffer, 0)
        self._changed_buffers()

    def _changed_buffers(self) -> list[Any]:
        """Return the buffers that changed since the last call, the same ones on all ranks.

        torch's kernels write statistics of batch norm without a trace.
        """
        from torch.nn.modules.batchnorm import _NormBase

        norms = (each for each in self.module.modules() if isinstance(each, _NormBase))
        written = {id(one) for each in norms if each.training for one in each.buffers()}
        found = []
        for name, buffer in saved_buffers(self.module):
            before, version = self._agreed.get(name, (None, 0))
            if buffer is not before or buffer._version != version or id(buffer) in written:
                found.append(buffer)
            self._agreed[name] = buffer, buffer._version
        return found

    def _note_call(self, number: int, *_: Any) -> None:
        self.calls = (31 * self.calls + number + 1) % _CALLS

    def _reshard(self, *, only_without_gradients: bool = False) -> None:
        import torch

        if only_without_gradients and torch.is_grad_enabled():
            return
        for module in _divided_modules(self.module):
            module.reshard()

    def _model_state(self) -> dict[str, Any]:
        """Return parameters under their first names, and buffers."""
        named = (*self.module.named_parameters(), *saved_buffers(self.module))
        return {name: one.detach() for name, one in named}

    def _names(self) -> dict[int, str]:
        return {id(one): name for name, one in self.module.named_parameters()}

    def _grouped_names(self) -> list[list[str]]:
        """Return the names of the parameters in each of the optimizer's groups."""
        names = self._names()
        groups = self.optimizer.param_groups
        return [[names[id(one)] for one in group["params"]] for group in groups]

    def _optimizer_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the optimizer's tensors by parameter, and what else it keeps of each."""
        import torch

        names = self._names()
        divided: dict[str, dict[str, Any]] = {}
        rest: dict[str, dict[str, Any]] = {}
        for parameter, state in self.optimizer.state.items():
            for key, value in state.items():
                is_tensor = torch.is_tensor(value)
                as_parameter = tensor_shards.is_divided(value) and value.shape == parameter.shape
                if is_tensor and not as_parameter and value.numel() > 1:
                    raise CheckpointError(
                        f"{type(self.optimizer).__name__} keeps {key} in a form of its own on each "
                        "rank, which is not saved",
                        hint="take an optimizer that keeps tensors as large as the parameters, "
                        "such as torch.optim.AdamW",
                    )
                into = divided if is_tensor else rest
                into.setdefault(names[id(parameter)], {})[key] = value
        return divided, rest

    def _empty_state(self, sizes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return tensors for the state that a checkpoint has of the optimizer."""
        import torch

        state: dict[str, dict[str, Any]] = {}
        prefix = f"{shard_files.OPTIMIZER}.state."
        parameters = dict(self.module.named_parameters())
        for full, size in sizes.items():
            name, _, key = full.removeprefix(prefix).rpartition(".")
            if not full.startswith(prefix):
                continue
            like = parameters.get(name)
            if like is None:
                raise CheckpointError(f"it has state of {name}, which this model does not have")
            alike = size == like.shape
            made = torch.zeros_like(like) if alike else torch.zeros(size)
            state.setdefault(name, {})[key] = made.detach()
        return state


def make(
    model: Any,
    optimizer: Any,
    config: Mapping[str, Any],
    wanted: Optimization,
    device: Any,
    *,
    loss: Callable[..., Any] | None = None,
    replicas: int = 1,
    tensor: int = 1,
    tensor_plan: Mapping[str, Any] | None = None,
    blocks: Sequence[Any] | None = None,
    lr_scheduler: Any = None,
    reshard: bool = True,
    half: bool = False,
    **options: Any,
) -> ShardedEngine:
    """Divide a model between all ranks, block by block, and return its engine; collective.

    Parameters
    ----------
    model, optimizer, loss
        As of `hpcrun.run.rank.rank_view.RankView.fully_shard`; rank 0's weights are used.
    config, wanted
        The DeepSpeed configuration, of which ``optimizer`` counts, and the ``optimization`` block.
    device
        ``torch.device`` of the rank.
    replicas
        Groups of ranks that hold the model each: within one it is divided, between them gradients
        are averaged (torch's hybrid sharding). It divides the number of ranks.
    tensor
        Ranks, neighbours, that hold each matrix of a plan together (``parallel.tensor``).
    tensor_plan
        As of `hpcrun.run.parallel.tensor_plan.styles_of`.
    blocks
        As of `hpcrun.run.rank.model_blocks.find`: gathered, and compiled, one at a time.
    reshard
        Free a block's weights after its forward pass and gather them again for the backward pass.
    half
        Compute in bf16; weights, gradients' sums and the optimizer stay in fp32.
    lr_scheduler, **options
        Of `TorchEngine`.

    Raises
    ------
    UsageError
        The model or the optimizer is not known to train right so.
    """
    import torch

    ranks = torch.distributed.get_world_size()
    if replicas < 1 or ranks % replicas:
        raise UsageError(
            f"session.fully_shard: replicas is {replicas}, and there are {ranks} ranks",
            hint="give a whole number that divides the number of ranks",
        )
    if replicas > 1 and tensor > 1:
        raise UsageError(
            f"session.fully_shard: replicas is {replicas}, which nobody has tried with "
            "parallel.tensor",
            hint="leave replicas out",
        )
    styles = divided_modules.styles_of(model, tensor_plan, tensor)
    model = engine_setup.with_loss(model, loss)
    parts = model_blocks.find(model, blocks)
    _check(model, parts)
    model_blocks.compile_each(model, wanted, device, blocks)
    model.to(device)
    for one in (*model.parameters(), *model.buffers()):
        torch.distributed.broadcast(one.data, 0)
    before = {name: id(one) for name, one in model.named_parameters()}
    mesh = _mesh(device, replicas, tensor)
    if tensor > 1:
        divided_modules.divide(styles, model, mesh[_TENSOR])
        options["tensor_group"] = mesh[_TENSOR].get_group()
        mesh = mesh["shard"]
    _divide(model, parts, mesh, reshard=reshard, half=half)
    if hasattr(optimizer, "param_groups"):
        parameters = dict(model.named_parameters())
        _replace(optimizer, {key: parameters[name] for name, key in before.items()})
    optimizer, schedule = optimization.make(model, config, wanted, optimizer, lr_scheduler)
    return ShardedEngine(model, optimizer, half=half, lr_scheduler=schedule, **options)


def options_of(
    config: Mapping[str, Any], spec: Mapping[str, Any], layout: RankLayout
) -> dict[str, Any]:
    """Return the arguments of a `ShardedEngine` by a spec: batch, clipping, precision and stage.

    The DeepSpeed configuration may be empty; ``spec`` is all of the spec, ``layout`` its
    ``parallel``. Raises UsageError for what this engine does not do.
    """
    for each in refusals(config, spec, layout):
        raise UsageError(f"session.fully_shard: {each.key} {each.found}", hint=each.hint)
    found = batch_options(config)
    if config:
        # As DeepSpeed does.
        found.setdefault("gradient_clipping", CLIPPING)
    found["half"] = (config.get("bf16") or {}).get("enabled") is True
    found["reshard"] = (config.get("zero_optimization") or {}).get("stage") != 2
    return found


def refusals(
    config: Mapping[str, Any], spec: Mapping[str, Any], layout: RankLayout
) -> Iterator[Refusal]:
    """Yield what a spec asks for and this engine does not do, or nobody has tried with it."""
    if layout.asked.keys() - {_TENSOR}:
        found = f"is {layout}, and it knows tensor and data alone"
        yield Refusal("parallel", found, "leave the rest out, or use session.initialize(…)")
    if spec.get("precision") == "fp8":
        yield Refusal("precision", "is fp8, which nobody has tried with it", "take bf16")
    if (config.get("fp16") or {}).get("enabled"):
        found = "is true, and it has no loss scale"
        yield Refusal("deepspeed.fp16.enabled", found, "take precision: bf16")
    if (config.get("torch_autocast") or {}).get("enabled"):
        found = "is true, which nobody has tried with it"
        yield Refusal("deepspeed.torch_autocast.enabled", found, "take precision: bf16")
    if config.get("scheduler"):
        hint = "use optimization.warmup and .decay, or give it lr_scheduler=…"
        yield Refusal("deepspeed.scheduler", "is a schedule of DeepSpeed's", hint)
    if (stage := (config.get("zero_optimization") or {}).get("stage")) not in (None, 2, 3):
        found = f"is {stage}; accepted are 3, and 2, which keeps weights from forward to backward"
        yield Refusal("deepspeed.zero_optimization.stage", found, "take 3, or session.replicas(…)")
    for key in unmet(config, "bf16.enabled", "zero_optimization.stage", "scheduler", "fp16"):
        yield Refusal(f"deepspeed.{key}", "means nothing to it", _INSTEAD)


def _check(model: Any, parts: Sequence[Any]) -> None:
    """Raise UsageError for a model that would fail, or that no test covers."""
    import torch

    owners: dict[int, set[int]] = {}
    for number, part in enumerate(parts):
        for one in part.parameters():
            owners.setdefault(id(one), set()).add(number)
    inside = {id(each) for part in parts for each in part.modules()}
    for module in model.modules():
        for one in module.parameters(recurse=False) if id(module) not in inside else ():
            owners.setdefault(id(one), set()).add(-1)
    problems: dict[str, tuple[Callable[[Any], bool], str]] = {
        "is of an expert": (lambda one: not getattr(one, "allreduce", True), _INSTEAD),
        "is no fp32": (
            lambda one: one.requires_grad and str(one.dtype) != "torch.float32",
            "give the model in fp32, and set precision: bf16 to compute in that",
        ),
        "is not contiguous in memory, such as in channels_last": (
            lambda one: not one.is_contiguous(),
            "give it as parameter.data.contiguous(), or use session.replicas(…)",
        ),
        "is a single number without a dimension": (
            lambda one: one.ndim == 0,
            "give it the shape (1,)",
        ),
        "is shared between blocks, which are divided each by itself": (
            lambda one: len(owners[id(one)]) > 1,
            "name larger blocks=… that have all uses of it, or none",
        ),
    }
    check_model(model, ShardedEngine.made_by, problems)
    if hasattr(model, "num_stages"):
        raise UsageError("session.fully_shard: the model is a pipeline", hint=_INSTEAD)
    for name, module in model.named_modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            found = f"{name or 'the model'} has a get_extra_state(), which is not saved"
            raise UsageError(f"session.fully_shard: {found}", hint=_INSTEAD)


def _divided_modules(model: Any) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [each for each in model.modules() if isinstance(each, FSDPModule)]


def _aliases(model: Any) -> dict[str, str]:
    """Return the further names of parameters that are used twice -> their first names."""
    first = {id(one): name for name, one in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(one)] for name, one in every if first[id(one)] != name}


def _mesh(device: Any, replicas: int, tensor: int) -> Any:
    """Return the places of all ranks, as `RankLayout` has them."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    ranks = torch.distributed.get_world_size()
    sizes = {"shard": ranks}
    if replicas > 1:
        sizes = {"replicate": replicas, "shard": ranks // replicas}
    elif tensor > 1:
        sizes = {"shard": ranks // tensor, _TENSOR: tensor}
    mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    if tensor > 1:
        # So that norms are summed by one reduction, to the same bits on all ranks.
        mesh._flatten()
    return mesh


def _divide(model: Any, parts: Sequence[Any], mesh: Any, *, reshard: bool, half: bool) -> None:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if half:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    # What the root holds by itself is wanted first in the backward pass.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def _replace(optimizer: Any, divided: Mapping[int, Any]) -> None:
    """Give an optimizer the divided parameters in place of those it was made with."""
    if optimizer.state:
        raise UsageError(
            "session.fully_shard: the optimizer has state already, which would not be divided",
            hint="give a function that makes it: lambda parameters: "
            f"torch.optim.{type(optimizer).__name__}(parameters, …)",
        )
    for group in optimizer.param_groups:
        # What is not the model's is refused by the engine.
        group["params"] = [divided.get(id(one), one) for one in group["params"]]


def _compare(model: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
    prefix = f"{shard_files.MODEL}."
    saved = {n.removeprefix(prefix): s for n, s in sizes.items() if n.startswith(prefix)}
    own = {name: one.shape for name, one in model.items()}
    apart = [name for name in {**saved, **own} if saved.get(name) != own.get(name)]
    if apart:
        raise CheckpointError(f"it is of another model: {listed(apart, _SHOWN, rest=', …')}")
