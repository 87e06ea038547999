"""The exponential moving average of an engine's weights, in fp32 (``optimization.ema``).

Every rank holds all of it, of a model of ``session.fully_shard`` its part; rank 0 saves it. The
average is torch's own (`torch.optim.swa_utils.get_ema_multi_avg_fn`), and begins with the weights
of its first step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.run.parallel import tensor_shards
from hpcrun.run.rank import process_groups
from hpcrun.state.spec.run_blocks import Optimization

STATE = "hpcrun_averaged_weights"
"""Its name among a rank's states in a checkpoint."""
WEIGHTS = "weights"


def of(wanted: Optimization, engine: Any, rank: int) -> AveragedWeights | None:
    """Return the average that a spec asks for, not begun yet; None where it asks for none."""
    if wanted.ema is None:
        return None
    return AveragedWeights(engine, wanted.ema, wanted.ema_every, rank)


class AveragedWeights:
    """The average of the trained parameters of an engine's model; collective.

    Raises UsageError for a model that no rank holds whole, or each rank has another one of.
    """

    def __init__(self, engine: Any, decay: float, every: int, rank: int) -> None:
        if why := _refusal(engine):
            raise UsageError(f"optimization.ema: {why}", hint="leave optimization.ema out")
        self._engine, self._decay, self._every, self._rank = engine, decay, every, rank
        self._average: dict[str, Any] = {}
        self._steps = 0
        self.is_in_use = False

    def update(self, step: int) -> None:
        """Take in the weights after an optimizer step, where one is due."""
        if self.is_in_use:
            raise HpcrunError(
                "an optimizer step was taken inside session.averaged_weights()",
                hint="train after the with block: in it the model has the averaged weights",
            )
        if step % self._every:
            return
        import torch
        from torch.optim.swa_utils import get_ema_multi_avg_fn

        with torch.no_grad():
            weights = [_fp32(parameter) for parameter in self._parameters.values()]
            if not self._average:
                names = self._parameters
                self._average = {n: w.clone() for n, w in zip(names, weights, strict=True)}
            else:
                # Fewer updates reach as far back.
                average = get_ema_multi_avg_fn(self._decay**self._every)
                average([*self._average.values()], weights, self._steps)
        self._steps += 1

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the averaged weights, and its own ones back at the end, to the bit."""
        import torch

        if self.is_in_use:
            raise HpcrunError("session.averaged_weights() is in use already")
        own: list[tuple[Any, Any]] = []
        with torch.no_grad():
            for name, parameter in self._parameters.items() if self._average else ():
                part = tensor_shards.own_part(parameter)
                own.append((part, part.clone()))
                part.copy_(self._average[name])
        self.is_in_use = True
        try:
            yield
        finally:
            with torch.no_grad():
                for part, before in own:
                    part.copy_(before)
            self.is_in_use = False

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank saves: all of it on rank 0, nothing elsewhere; collective."""
        if self.is_in_use:
            raise HpcrunError(
                "a save inside session.averaged_weights() would save the averaged weights",
                hint="save after the with block",
            )
        average: dict[str, Any] = {}
        for name, parameter in self._parameters.items() if self._average else ():
            whole = tensor_shards.whole_of(self._average[name], parameter)
            if self._rank == 0:
                average[name] = whole.cpu() if tensor_shards.is_divided(parameter) else whole
        return {WEIGHTS: average, "steps": self._steps} if self._rank == 0 else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what this rank saved, and rank 0's on all others; collective."""
        import torch

        found: list[Any] = [None]
        if self._rank == 0:
            found = [(list(state[WEIGHTS]), state["steps"])]
        if process_groups.distributed():
            torch.distributed.broadcast_object_list(found, src=0)
        names, self._steps = found[0]
        self._check(names)
        self._average = {}
        for name in names:
            like = self._parameters[name]
            whole = torch.empty(like.shape, dtype=torch.float32, device=like.device)
            if self._rank == 0:
                whole.copy_(state[WEIGHTS][name])
            if process_groups.distributed():
                torch.distributed.broadcast(whole, 0)
            self._average[name] = tensor_shards.part_like(whole, like)

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore what another number of ranks saved."""
        import torch

        state = states[0]
        self._check(list(state[WEIGHTS]))
        self._steps = state["steps"]
        for name, value in state[WEIGHTS].items():
            like = self._parameters[name]
            whole = value.to(like.device, torch.float32, copy=True)
            self._average[name] = tensor_shards.part_like(whole, like)

    @property
    def _parameters(self) -> dict[str, Any]:
        named = self._engine.module.named_parameters()
        return {name: each for name, each in named if each.requires_grad}

    def _check(self, names: Sequence[str]) -> None:
        if names and [*names] != [*self._parameters]:
            raise HpcrunError(
                "the averaged weights were saved of a model with other parameters",
                hint="restore with the model of before, or submit with --new",
            )


def _refusal(engine: Any) -> str | None:
    from hpcrun.run.checkpoint import deepspeed_io

    if deepspeed_io.saves_whole(engine):
        return None
    divided = [axis for axis in deepspeed_io.parallel(engine) if axis != "sequence"]
    if engine.zero_optimization_stage() == 3:
        return "with ZeRO 3 no rank has the whole weights"
    if divided or getattr(engine, "pipeline_parallelism", False):
        return "the model is divided, so that no rank has the whole weights"
    if getattr(engine, "has_moe_layers", False):
        return "the model has experts, which are on different ranks"
    return "each rank has weights of its own" if getattr(engine, "fixed_size", None) else None


def _fp32(parameter: Any) -> Any:
    """Return a rank's part of a parameter in fp32: the optimizer's copy where it has 16 bits."""
    import torch

    own = tensor_shards.own_part(parameter)
    if own.dtype == torch.float32:
        return own
    if hasattr(parameter, "_hp_mapping"):
        from deepspeed.utils import safe_get_full_fp32_param

        if (found := safe_get_full_fp32_param(parameter)) is not None:
            return found.to(own.device, torch.float32).view_as(own)
    return own.float()
