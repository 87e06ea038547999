"""A model that every rank holds whole, without DeepSpeed: torch's DDP, and cheaper forms of it.

The engine has what a session needs of one of DeepSpeed's: ``global_steps``, ``backward``, ``step``,
and files of its own in a checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.policy.batch import Triple
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.rank import optimization
from hpcrun.state.spec.run_blocks import Optimization

AVERAGE, DILOCO = "average", "diloco"
FP16, POWERSGD = "fp16", "powersgd"
# Steps of whole gradients before PowerSGD begins, as torch's documentation asks for.
_WHOLE_STEPS = 10


class ReplicaEngine:
    """A model, its optimizer, and how the ranks agree on its weights; collective.

    Parameters
    ----------
    model
        A ``torch.nn.Module`` on the rank's device; rank 0's weights are used by all.
    optimizer
        A torch optimizer of its parameters.
    accumulation
        Micro batches of one optimizer step.
    train_batch
        Samples of one optimizer step over all ranks, for the checkpoint's manifest.
    gradient_clipping
        The norm at which the gradients of a step are cut, over all parameters; 0: they are not.
        Where ranks exchange no gradients (``every``), each cuts its own.
    lr_scheduler
        A schedule of the optimizer, or a function that makes it one; it takes a step after each of
        the optimizer's, and is saved with it.
    every
        Optimizer steps between two agreements. With 1 gradients are averaged at each step (DDP);
        with more, each rank trains by itself in between, and communicates so much less.
    outer
        With ``every`` above 1: ``average`` takes the mean of all weights (post-local SGD);
        ``diloco`` takes that as the direction of an outer step with Nesterov momentum.
    outer_lr, outer_momentum
        Of that outer step.
    hook
        How DDP sends gradients: ``fp16``, ``powersgd`` (of rank ``powersgd_rank``), or None.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        accumulation: int = 1,
        train_batch: int = 0,
        gradient_clipping: float = 0.0,
        lr_scheduler: Any = None,
        every: int = 1,
        outer: str = AVERAGE,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        hook: str | None = None,
        powersgd_rank: int = 2,
    ) -> None:
        import torch

        _check(every, outer, hook)
        self.module, self.optimizer = model, optimizer
        self.global_steps = 0
        self.checkpoint_engine = TorchCheckpointEngine()
        self._accumulation, self._train_batch, self._every = accumulation, train_batch, every
        self._clipping = gradient_clipping
        self.lr_scheduler = lr_scheduler(optimizer) if callable(lr_scheduler) else lr_scheduler
        self._outer_lr, self._momentum = outer_lr, outer_momentum
        self._micro, self._norm = 0, None
        self._forward = model
        self._world, self._rank = 1, 0
        if torch.distributed.is_initialized():
            self._world, self._rank = (
                torch.distributed.get_world_size(),
                torch.distributed.get_rank(),
            )
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
        """Why another number of ranks cannot go on from its checkpoints; None if it can."""
        return "each rank has weights of its own between two agreements" if self._own else None

    @property
    def _own(self) -> bool:
        return self._world > 1 and self._every > 1

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # Whether DDP reduces after a backward is decided by the forward before it.
        with self._unsynchronised():
            return self._forward(*arguments, **named)

    def backward(self, loss: Any) -> None:
        """Add the gradients of a micro batch, the mean over those of a step."""
        with self._unsynchronised():
            (loss / self._accumulation).backward()

    def step(self) -> None:
        """Take the optimizer step after the last of its micro batches, and agree if it is due."""
        self._micro += 1
        if self._micro < self._accumulation:
            return
        self._micro = 0
        if self._clipping > 0:
            import torch

            parameters = self.module.parameters()
            self._norm = torch.nn.utils.clip_grad_norm_(parameters, self._clipping)
        self.optimizer.step()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        self.optimizer.zero_grad()
        self.global_steps += 1
        if self._own and self.global_steps % self._every == 0:
            self._agree()

    def get_global_grad_norm(self) -> Any:
        """Return the norm of the last step's gradients; None where they are not clipped."""
        return self._norm

    def zero_optimization_stage(self) -> int:
        return 0

    def train_batch_size(self) -> int:
        return self._train_batch

    def save_checkpoint(
        self, directory: str, tag: str, client_state: dict[str, Any], save_latest: bool
    ) -> None:
        """Write the state; rank 0's alone where all ranks have the same."""
        if self._rank and not self._own:
            return
        state = {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.lr_scheduler.state_dict() if self.lr_scheduler is not None else None,
            "outer": [self._anchor, self._velocity],
            "global_steps": self.global_steps,
        }
        self.checkpoint_engine.save(state, str(self._file(directory, tag)))

    def load_checkpoint(self, directory: str, tag: str) -> tuple[str, dict[str, Any]]:
        """Read what `save_checkpoint` wrote."""
        path = str(self._file(directory, tag))
        state = self.checkpoint_engine.load(path, map_location="cpu")
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        # Earlier saves have none.
        if self.lr_scheduler is not None and state.get("scheduler") is not None:
            self.lr_scheduler.load_state_dict(state["scheduler"])
        for own, saved in zip((self._anchor, self._velocity), state["outer"], strict=True):
            for one, other in zip(own, saved, strict=True):
                one.copy_(other)
        self.global_steps = state["global_steps"]
        return path, {}

    def _file(self, directory: str, tag: str) -> Path:
        return Path(directory, tag, f"replica-{self._rank if self._own else 0:05d}.pt")

    def _unsynchronised(self) -> contextlib.AbstractContextManager[None]:
        is_last = self._micro == self._accumulation - 1
        if is_last or not hasattr(self._forward, "no_sync"):
            return contextlib.nullcontext()
        found: contextlib.AbstractContextManager[None] = self._forward.no_sync()
        return found

    def _agree(self) -> None:
        """Have all ranks take the mean of their weights, or the outer step that it gives."""
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


class TorchCheckpointEngine:
    """Reads and writes by torch; named as DeepSpeed's, whose place it takes."""

    def save(self, state: Any, path: str) -> None:
        import torch

        torch.save(state, path)

    def load(self, path: str, map_location: Any = None) -> Any:
        import torch

        return torch.load(path, map_location=map_location, weights_only=True)


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
    found: dict[str, Any] = {}
    if (batch := Triple.known(config)) is not None:
        found.update(accumulation=batch.accumulation, train_batch=batch.train)
    if isinstance(clipping := config.get("gradient_clipping"), (int, float)):
        found["gradient_clipping"] = float(clipping)
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
