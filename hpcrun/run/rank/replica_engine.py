"""A model that every rank holds whole, without DeepSpeed: torch's DDP, and cheaper forms of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.run.checkpoint.deepspeed_io import saved_buffers
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.rank.torch_engine import TorchEngine, batch_options, unmet
from hpcrun.run.weights.saved_weights import REPLICA
from hpcrun.text import listed

AVERAGE, DILOCO = "average", "diloco"
FP16, POWERSGD = "fp16", "powersgd"
# Steps of whole gradients before PowerSGD begins, as torch's documentation asks for.
_WHOLE_STEPS = 10
_SHOWN = 3


class ReplicaEngine(TorchEngine):
    """A model that all ranks hold whole, and how they agree on its weights; collective.

    Parameters
    ----------
    model, optimizer
        As of `TorchEngine`; rank 0's weights are used by all.
    every
        Optimizer steps between two agreements. With 1 gradients are averaged at each step (DDP);
        with more, each rank trains by itself in between, cuts its own gradients, and communicates
        so much less.
    outer
        With ``every`` above 1: ``average`` takes the mean of all weights (post-local SGD);
        ``diloco`` takes that as the direction of an outer step with Nesterov momentum.
    outer_lr, outer_momentum
        Of that outer step.
    hook
        How DDP sends gradients: ``fp16``, ``powersgd`` (of rank ``powersgd_rank``), or None.
    find_unused_parameters
        DDP's: parameters may be without gradients in a step.
    **options
        Of `TorchEngine`.
    """

    made_by = "session.replicas"

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        every: int = 1,
        outer: str = AVERAGE,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        hook: str | None = None,
        powersgd_rank: int = 2,
        find_unused_parameters: bool = False,
        **options: Any,
    ) -> None:
        import torch

        _check(every, outer, hook)
        super().__init__(model, optimizer, **options)
        self._every = every
        self._outer_lr, self._momentum = outer_lr, outer_momentum
        self._needs_all = self._world > 1 and every == 1 and not find_unused_parameters
        if self._world > 1 and every == 1:
            self._forward = torch.nn.parallel.DistributedDataParallel(
                model, find_unused_parameters=find_unused_parameters
            )
            self._register(hook, powersgd_rank)
        elif self._world > 1:
            for one in (*model.parameters(), *model.buffers()):
                torch.distributed.broadcast(one.data, 0)
        self._averaged = [one for one in model.parameters() if one.requires_grad]
        self._anchor: list[Any] = []
        self._velocity: list[Any] = []
        if every > 1 and outer == DILOCO:
            self._anchor = [one.detach().clone() for one in self._averaged]
            self._velocity = [torch.zeros_like(one) for one in self._anchor]

    @property
    def fixed_size(self) -> str | None:
        return "each rank has weights of its own between two agreements" if self._own else None

    @property
    def _own(self) -> bool:
        return self._world > 1 and self._every > 1

    def save_checkpoint(
        self, directory: str, tag: str, client_state: dict[str, Any], save_latest: bool
    ) -> None:
        """Write the state; rank 0's alone where all ranks have the same."""
        if self._rank and not self._own:
            return
        state = {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "outer": [self._anchor, self._velocity],
            "buffers": [name for name, _ in saved_buffers(self.module)],
            **self._course(),
        }
        self.checkpoint_engine.save(state, str(self._file(directory, tag)))

    def load_checkpoint(self, directory: str, tag: str) -> tuple[str, dict[str, Any]]:
        """Read what `save_checkpoint` wrote."""
        path = str(self._file(directory, tag))
        state = self.checkpoint_engine.load(path, map_location="cpu")
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for own, saved in zip((self._anchor, self._velocity), state["outer"], strict=True):
            for one, other in zip(own, saved, strict=True):
                one.copy_(other)
        self._take_course(state)
        return path, {}

    def _file(self, directory: str, tag: str) -> Path:
        return Path(directory, tag, f"{REPLICA}{self._rank if self._own else 0:05d}.pt")

    def _exchange(self) -> contextlib.AbstractContextManager[None]:
        if self._is_last or not hasattr(self._forward, "no_sync"):
            return contextlib.nullcontext()
        found: contextlib.AbstractContextManager[None] = self._forward.no_sync()
        return found

    def _clip(self) -> None:
        if self._needs_all:
            # Of the first step, which DDP would leave unreduced.
            self._needs_all = False
            named = self.module.named_parameters()
            unused = [name for name, one in named if one.requires_grad and one.grad is None]
            if unused:
                shown = listed(unused, _SHOWN, rest=", …")
                raise UsageError(
                    f"session.replicas: {shown} had no part in the loss, and DDP waits for that",
                    hint="freeze what is unused, or give the call find_unused_parameters=True",
                )
        super()._clip()

    def _agree(self) -> None:
        """Have all ranks take the mean of their weights, or the outer step it gives, if due."""
        if not self._own or self.global_steps % self._every:
            return
        import torch

        mean = torch.nn.utils.parameters_to_vector(self._averaged).detach() / self._world
        torch.distributed.all_reduce(mean)
        parts = mean.split([one.numel() for one in self._averaged])
        for one, part in zip(self._averaged, parts, strict=True):
            # Into what is there, of whichever type.
            one.data.copy_(part.view_as(one))
        outer = zip(self._averaged, self._anchor, self._velocity, strict=False)
        for one, anchor, velocity in outer:
            direction = anchor - one.detach()
            velocity.mul_(self._momentum).add_(direction)
            anchor.sub_(direction.add(velocity, alpha=self._momentum), alpha=self._outer_lr)
            one.data.copy_(anchor)

    def _register(self, hook: str | None, powersgd_rank: int) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if hook == FP16:
            self._forward.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif hook == POWERSGD:
            state = powerSGD_hook.PowerSGDState(
                None,
                matrix_approximation_rank=powersgd_rank,
                start_powerSGD_iter=_WHOLE_STEPS,
            )
            self._forward.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def options_of(config: Mapping[str, Any], layout: RankLayout) -> dict[str, Any]:
    """Return the arguments of a `ReplicaEngine` by a spec: batch and clipping.

    The DeepSpeed configuration may be empty; ``layout`` is the spec's ``parallel``. Raises
    UsageError for what only an engine of `Session.initialize` does.
    """
    asked = ["parallel"] if layout.asked else []
    if asked := [*asked, *(f"deepspeed.{key}" for key in unmet(config))]:
        raise UsageError(
            f"session.replicas holds the model whole and as it is given, and the spec has "
            f"{', '.join(asked)}, which it does not know",
            hint="leave it out of the spec (a schedule is optimization.warmup and .decay), or make "
            "the engine with session.initialize(…)",
        )
    return batch_options(config)


def _check(every: int, outer: str, hook: str | None) -> None:
    if every < 1:
        raise UsageError(f"every is {every}; accepted is a whole number of at least 1")
    if outer not in (AVERAGE, DILOCO):
        raise UsageError(f"outer is {outer!r}; accepted are {AVERAGE} and {DILOCO}")
    if hook not in (None, FP16, POWERSGD):
        raise UsageError(f"hook is {hook!r}; accepted are {FP16}, {POWERSGD} and None")
    if hook is not None and every > 1:
        raise UsageError(
            f"hook {hook} compresses gradients, and with every={every} ranks exchange none",
            hint="leave one of them out",
        )
