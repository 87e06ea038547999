"""What a session needs of an engine, and what those without DeepSpeed share.

A session asks an engine for no more than `Engine` has, but for what it looks up of DeepSpeed alone.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

from hpcrun.policy.batch import Triple
from hpcrun.run.parallel import tensor_shards


class Engine(Protocol):
    """An engine as the session knows it: DeepSpeed's, a `ReplicaEngine` or a `ShardedEngine`."""

    module: Any
    optimizer: Any
    lr_scheduler: Any
    checkpoint_engine: Any
    """Reads and writes single files: ``save(state, path)`` and ``load(path, map_location)``."""
    global_steps: int

    @property
    def device(self) -> Any: ...

    def __call__(self, *arguments: Any, **named: Any) -> Any: ...

    def backward(self, loss: Any) -> Any: ...

    def step(self) -> Any: ...

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...

    def get_global_grad_norm(self) -> Any: ...

    def zero_optimization_stage(self) -> int: ...

    def train_batch_size(self) -> int: ...

    def train_micro_batch_size_per_gpu(self) -> int: ...

    def gradient_accumulation_steps(self) -> int: ...

    def bfloat16_enabled(self) -> bool: ...

    def save_checkpoint(
        self, directory: str, tag: str, client_state: dict[str, Any], save_latest: bool
    ) -> Any: ...

    def load_checkpoint(self, directory: str, tag: str) -> tuple[Any, Any]: ...


class TorchEngine:
    """The steps of an engine without DeepSpeed; what exchanges gradients is a subclass's.

    Parameters
    ----------
    model
        A ``torch.nn.Module`` on the rank's device.
    optimizer
        A torch optimizer of its parameters.
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
        self.lr_scheduler = lr_scheduler(optimizer) if callable(lr_scheduler) else lr_scheduler
        self.global_steps = 0
        self.checkpoint_engine = TorchCheckpointEngine()
        self._accumulation, self._train_batch = accumulation, train_batch
        self._clipping = gradient_clipping
        self._micro, self._norm = 0, None
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
        with self._exchange():
            (loss / self._accumulation).backward()

    def step(self) -> None:
        """Take the optimizer step after the last of its micro batches."""
        self._micro += 1
        if self._micro < self._accumulation:
            return
        self._micro = 0
        self._clip()
        self.optimizer.step()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        self.optimizer.zero_grad()
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
        for one in self.module.parameters():
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

        return torch.load(path, map_location=map_location, weights_only=True)


def batch_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a `TorchEngine` by a DeepSpeed configuration: batch and clipping."""
    found: dict[str, Any] = {}
    if (batch := Triple.known(config)) is not None:
        found.update(accumulation=batch.accumulation, train_batch=batch.train)
    if isinstance(clipping := config.get("gradient_clipping"), (int, float)):
        found["gradient_clipping"] = float(clipping)
    return found
