"""What engines without DeepSpeed share, under the names that DeepSpeed's have.

A session asks an engine for no more, but for what it looks up of DeepSpeed alone.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.policy.batch import Triple
from hpcrun.run.parallel import tensor_shards
from hpcrun.run.rank import model_blocks

# Keys of a DeepSpeed configuration that mean the same here, and those that change no number.
_KNOWN = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("gradient_clipping", "optimizer"),
    *("steps_per_print", "wall_clock_breakdown", "dump_state", "memory_breakdown"),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
}
_KNOWN_OF_ZERO = {
    *("overlap_comm", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size"),
    *("allgather_partitions", "allgather_bucket_size", "sub_group_size"),
    *("stage3_max_live_parameters", "stage3_max_reuse_distance"),
    *("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"),
    *("stage3_gather_16bit_weights_on_model_save", "ignore_unused_parameters"),
}


class TorchEngine:
    """The steps of an engine without DeepSpeed; what exchanges gradients is a subclass's.

    Parameters
    ----------
    model
        A ``torch.nn.Module`` on the rank's device.
    optimizer
        A torch optimizer of its parameters, or of some of them.
    accumulation
        Micro batches of one optimizer step.
    train_batch
        Samples of one optimizer step over all ranks, for the checkpoint's manifest.
    gradient_clipping
        The norm at which the gradients of a step are cut, over all parameters; 0: they are not.
    lr_scheduler
        A schedule of the optimizer, or a function that makes it one; it takes a step after each of
        the optimizer's, and is saved with it.
    """

    made_by = ""
    """The session's method that makes it."""
    # Without clipping, too.
    _always_tells_norm = False

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        accumulation: int = 1,
        train_batch: int = 0,
        gradient_clipping: float = 0.0,
        lr_scheduler: Any = None,
    ) -> None:
        import torch

        self.module, self.optimizer = model, optimizer
        own = {id(one) for one in model.parameters()}
        if foreign := [one for one in self._trained() if id(one) not in own]:
            raise UsageError(
                f"{self.made_by}: {len(foreign)} of the optimizer's parameters are not the model's,"
                " so that ranks would neither agree on them nor save them",
                hint="make the optimizer of model.parameters(); a loss with weights of its own "
                "goes into the model",
            )
        self.lr_scheduler = lr_scheduler(optimizer) if callable(lr_scheduler) else lr_scheduler
        if getattr(self.lr_scheduler, "optimizer", optimizer) is not optimizer:
            raise UsageError(
                f"{self.made_by}: lr_scheduler is of another optimizer than the engine's, whose "
                "rate it would leave as it is",
                hint="give a function that makes it: lambda optimizer: "
                f"{type(self.lr_scheduler).__name__}(optimizer, …)",
            )
        self.global_steps = 0
        self.checkpoint_engine = TorchCheckpointEngine()
        self._accumulation, self._train_batch = accumulation, train_batch
        self._clipping = gradient_clipping
        self._micro, self._norm, self._had_backward = 0, None, False
        self._forward = model
        self._world, self._rank = 1, 0
        if torch.distributed.is_initialized():
            self._world = torch.distributed.get_world_size()
            self._rank = torch.distributed.get_rank()

    @property
    def device(self) -> Any:
        """The ``torch.device`` of the weights; what DeepSpeed's engines name so."""
        return next(self.module.parameters()).device

    @property
    def fixed_size(self) -> str | None:
        """Why another number of ranks cannot go on from its checkpoints; None if it can."""
        return None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # Whether DDP reduces after a backward is decided by the forward before it.
        with self._exchange():
            return self._forward(*arguments, **named)

    def backward(self, loss: Any) -> None:
        """Add the gradients of a micro batch, the mean over those of a step."""
        if getattr(loss, "numel", int)() != 1 or not loss.requires_grad:
            shape = f" of shape {list(loss.shape)}" if hasattr(loss, "shape") else ""
            raise UsageError(
                f"engine.backward: found a {type(loss).__name__}{shape}; accepted is a loss of one "
                "number that requires gradients",
                hint="give it loss.mean(), or output.loss; nothing after .detach() or .item()",
            )
        with self._exchange():
            (loss / self._accumulation).backward()
        self._had_backward = True

    def step(self) -> None:
        """Take the optimizer step after the last of its micro batches."""
        if not self._had_backward:
            raise UsageError(
                "engine.step() was called without engine.backward(loss) before it",
                hint="call both for each micro batch, in place of loss.backward(), of which nobody "
                "takes the mean",
            )
        self._had_backward = False
        self._micro += 1
        if self._micro < self._accumulation:
            return
        self._micro = 0
        self._clip()
        self.optimizer.step()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        # Of parameters that the optimizer does not train, too: they would add up.
        self.module.zero_grad()
        self.global_steps += 1
        self._agree()

    def train(self, mode: bool = True) -> None:
        self.module.train(mode)

    def eval(self) -> None:
        self.module.eval()

    def get_global_grad_norm(self) -> Any:
        """Return the norm of the last step's gradients; None where it was not computed."""
        return self._norm

    def zero_optimization_stage(self) -> int:
        return 0

    def train_batch_size(self) -> int:
        return self._train_batch

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._train_batch // self._accumulation // self._world

    def gradient_accumulation_steps(self) -> int:
        return self._accumulation

    def bfloat16_enabled(self) -> bool:
        return False

    @property
    def _is_last(self) -> bool:
        """Whether the micro batch that is under way is the last of its step."""
        return self._micro == self._accumulation - 1

    def _exchange(self) -> contextlib.AbstractContextManager[None]:
        """Have ranks exchange gradients in what follows if it is the last micro batch."""
        return contextlib.nullcontext()

    def _agree(self) -> None:
        """Do after an optimizer step what ranks need to hold the same."""

    def _clip(self) -> None:
        if not (self._clipping > 0 or self._always_tells_norm):
            return
        import torch

        most = self._clipping if self._clipping > 0 else math.inf
        # Those that are divided alike together: torch mixes no others.
        alike: dict[Any, list[Any]] = defaultdict(list)
        for one in self._trained():
            if one.grad is not None:
                alike[tensor_shards.division(one.grad)].append(one)
        norms = [
            tensor_shards.whole(torch.nn.utils.get_total_norm([one.grad for one in parameters]))
            for parameters in alike.values() or [[]]
        ]
        self._norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
        if most < math.inf:
            for parameters in alike.values():
                torch.nn.utils.clip_grads_with_norm_(parameters, most, self._norm)

    def _trained(self) -> list[Any]:
        """Return the optimizer's parameters."""
        return [one for group in self.optimizer.param_groups for one in group["params"]]

    def _course(self) -> dict[str, Any]:
        """Return how far the training is, for a checkpoint."""
        scheduler = self.lr_scheduler.state_dict() if self.lr_scheduler is not None else None
        return {"scheduler": scheduler, "global_steps": self.global_steps}

    def _take_course(self, state: Mapping[str, Any]) -> None:
        """Go on from what `_course` returned."""
        # Earlier saves have none.
        if self.lr_scheduler is not None and state.get("scheduler") is not None:
            self.lr_scheduler.load_state_dict(state["scheduler"])
        self.global_steps = state["global_steps"]


class TorchCheckpointEngine:
    """Reads and writes by torch; named as DeepSpeed's, whose place it takes."""

    def save(self, state: Any, path: str) -> None:
        import torch

        torch.save(state, path)

    def load(self, path: str, map_location: Any = None) -> Any:
        import torch

        # Schedules keep what they like; whose file it is was looked at (`trust`).
        return torch.load(path, map_location=map_location, weights_only=False)


def check_model(
    model: Any, made_by: str, more: Mapping[str, tuple[Callable[[Any], bool], str]]
) -> None:
    """Raise UsageError for a model that is not whole, or that something else has in hand.

    ``more`` has what no parameter may be, with a check of it and a hint.
    """
    import torch

    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    if any(isinstance(each, wrappers) for each in model.modules()):
        found, hint = "DistributedDataParallel wraps the model already", "give it wrapped.module"
        raise UsageError(f"{made_by}: {found}", hint=hint)
    if model_blocks.is_compiled(model):
        raise UsageError(
            f"{made_by}: the program compiles the model, which nobody has tried with it",
            hint="leave torch.compile out of it, and set optimization.compile to true in the spec",
        )
    problems: dict[str, tuple[Callable[[Any], bool], str]] = {
        "is on the device meta": (
            lambda one: one.is_meta,
            "build the model on the rank's device, such as under torch.device(session.device)",
        ),
        "is divided already": (
            lambda one: tensor_shards.is_divided(one) or hasattr(one, "ds_id"),
            "give the model whole, without fully_shard, parallelize_module or zero.Init",
        ),
        **more,
    }
    for name, parameter in model.named_parameters():
        for what, (is_so, hint) in problems.items():
            if is_so(parameter):
                raise UsageError(f"{made_by}: {name} {what}", hint=hint)


def batch_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a `TorchEngine` by a DeepSpeed configuration: batch and clipping."""
    found: dict[str, Any] = {}
    if (batch := Triple.of_config(config)) is not None:
        found.update(accumulation=batch.accumulation, train_batch=batch.train)
    if isinstance(clipping := config.get("gradient_clipping"), (int, float)):
        found["gradient_clipping"] = float(clipping)
    return found


def unmet(config: Mapping[str, Any], *known: str) -> Iterator[str]:
    """Yield the keys, of two blocks the inner ones, that turn on what an engine does not do.

    Besides those of ``known``, some are for all engines without DeepSpeed.
    """
    meant = {*_KNOWN, *known, *(f"zero_optimization.{name}" for name in _KNOWN_OF_ZERO)}
    for key, value in config.items():
        found = {key: value}
        if key in ("zero_optimization", "bf16") and value:
            found = {f"{key}.{name}": each for name, each in value.items()}
        yield from (name for name, each in found.items() if _is_on(each) and name not in meant)


def _is_on(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and value.get("enabled") is not False and value.get("device") != "none"
    return value not in (None, False)
