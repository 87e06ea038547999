"""A model that every rank holds whole, without DeepSpeed: torch's DDP, and cheaper forms of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.rank import optimization
from hpcrun.run.rank.torch_engine import TorchEngine, batch_options
from hpcrun.state.spec.run_blocks import Optimization

AVERAGE, DILOCO = "average", "diloco"
FP16, POWERSGD = "fp16", "powersgd"
# Steps of whole gradients before PowerSGD begins, as torch's documentation asks for.
_WHOLE_STEPS = 10


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
        **options: Any,
    ) -> None:
        import torch

        _check(every, outer, hook)
        super().__init__(model, optimizer, **options)
        self._every = every
        self._outer_lr, self._momentum = outer_lr, outer_momentum
        if self._world > 1 and every == 1:
            self._forward = torch.nn.parallel.DistributedDataParallel(model)
            self._register(hook, powersgd_rank)
        elif self._world > 1:
            for one in (*model.parameters(), *model.buffers()):
                torch.distributed.broadcast(one.data, 0)
        self._anchor: list[Any] = []
        self._velocity: list[Any] = []
        if every > 1 and outer == DILOCO:
            self._anchor = [one.detach().clone() for one in model.parameters()]
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
        return Path(directory, tag, f"replica-{self._rank if self._own else 0:05d}.pt")

    def _exchange(self) -> contextlib.AbstractContextManager[None]:
        if self._is_last or not hasattr(self._forward, "no_sync"):
            return contextlib.nullcontext()
        found: contextlib.AbstractContextManager[None] = self._forward.no_sync()
        return found

    def _agree(self) -> None:
        """Have all ranks take the mean of their weights, or the outer step it gives, if due."""
        if not self._own or self.global_steps % self._every:
            return
        import torch

        parameters = list(self.module.parameters())
        mean = torch.nn.utils.parameters_to_vector(parameters).detach() / self._world
        torch.distributed.all_reduce(mean)
        torch.nn.utils.vector_to_parameters(mean, parameters)
        for one, anchor, velocity in zip(parameters, self._anchor, self._velocity, strict=False):
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


def options_of(
    config: Mapping[str, Any], wanted: Optimization, layout: RankLayout
) -> dict[str, Any]:
    """Return the arguments of a `ReplicaEngine` by a spec: batch, clipping and schedule.

    Parameters
    ----------
    config
        The DeepSpeed configuration, which may be empty.
    wanted
        The spec's ``optimization``.
    layout
        Its ``parallel``.

    Raises
    ------
    UsageError
        It says what only an engine of `Session.initialize` does.
    """
    stage = (config.get("zero_optimization") or {}).get("stage")
    asked = [
        ("parallel", bool(layout.asked)),
        ("deepspeed.zero_optimization.stage", stage not in (None, 0)),
        ("deepspeed.scheduler", bool(config.get("scheduler"))),
        *(
            (f"deepspeed.{name}.enabled", bool((config.get(name) or {}).get("enabled")))
            for name in ("fp16", "bf16", "torch_autocast")
        ),
    ]
    if unmet := [key for key, is_asked in asked if is_asked]:
        raise UsageError(
            f"session.replicas holds the model whole and as it is given, and the spec has "
            f"{', '.join(unmet)}, which it does not know",
            hint="leave it out of the spec (a schedule is optimization.warmup and .decay), or make "
            "the engine with session.initialize(…)",
        )
    found = batch_options(config)
    if wanted.decay or wanted.warmup:
        found["lr_scheduler"] = optimization.schedule(wanted)
    return found


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
