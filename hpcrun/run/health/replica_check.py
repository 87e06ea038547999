"""Compares replicas between ranks, so that no run goes on that trains wrong without a word.

Ranks that see different samples reduce their gradients to the same bits and so hold the same
weights. Where they do not, a reduction is missing (a layout that is set up wrong), or memory or a
link is broken; no loss tells, as each looks like training.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from hpcrun.errors import ReplicasDifferError
from hpcrun.run.checkpoint import deepspeed_io
from hpcrun.run.parallel import tensor_shards
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.rank.collectives import Collectives

# The part of a run's time that comparisons are planned for: half of the thousandth that they may
# take, as the first of an attempt come before it is known what they cost.
MOST_COST = 0.0005
# Sums are kept to 64 bits, as the hardware does.
_BITS = 1 << 64
# A parameter's place in the model counts, so that two that changed places are seen.
_ODD = 2654435761

# Of some ranks: the node and the checksums of each, the shortest step and the greatest cost.
_Answers = tuple[list[tuple[str, dict[str, int]]], float, float]


class ReplicaCheck:
    """Compares this rank with those that hold the same; every method is collective.

    Parameters
    ----------
    ranks
        All ranks.
    layout
        Which of them share a model.
    node
        This rank's, for the message.
    every
        Steps between two comparisons, ``auto`` for as many as keep their cost below `MOST_COST`;
        None for none at all.
    """

    def __init__(
        self, ranks: Collectives, layout: RankLayout, node: str, every: int | str | None
    ) -> None:
        self._ranks, self._layout, self._node, self._every = ranks, layout, node, every
        self._is_wanted = every is not None and ranks.world_size > 1
        self._next = 0
        self._agreed = 0
        self._cost = 0.0
        self._since: tuple[int, float] | None = None

    def after_step(self, engine: Any, step: int, seconds: float = 0.0) -> None:
        """Compare if it is due: after the first step of an attempt, and each so many.

        ``seconds`` is what this step took.

        Raises
        ------
        ReplicasDifferError
            Ranks that hold the same do not; on all ranks.
        """
        if self._is_wanted and step >= self._next:
            self.compare(engine, step, seconds)

    def compare(self, engine: Any, step: int, seconds: float = 0.0) -> None:
        """Compare now, unless this step has been; as `after_step`."""
        if not self._is_wanted or step == self._agreed or not _is_known(engine, self._layout):
            return
        began = time.perf_counter()
        own = digests(engine, self._layout, self._ranks.rank)
        if self._since is not None and step > self._since[0]:
            seconds = (began - self._since[1]) / (step - self._since[0])
        cost = self._cost or time.perf_counter() - began
        self._ranks.doing = f"comparing replicas after step {step}"
        found = self._ranks.reduce(([(self._node, own)], seconds, cost), _merge)

        def judge() -> tuple[str | None, float, float]:
            held, pace, cost = found
            return difference(held, self._agreed), pace, cost

        said, pace, cost = self._ranks.from_rank_0(judge, "replicas were not compared")
        if said:
            raise ReplicasDifferError(
                f"step {step}: {said}",
                hint="`hpcrun why` says what to look for; recovery.check_replicas turns this off",
            )
        self._agreed = step
        self._next = step + self._steps(pace, cost)
        now = time.perf_counter()
        self._since, self._cost = (step, now), now - began

    def _steps(self, pace: float, cost: float) -> int:
        """Return the steps to the next comparison, from the seconds of a step and of the last."""
        if isinstance(self._every, int):
            return self._every
        return max(1, math.ceil(cost / MOST_COST / pace)) if pace > 0 else 1


def _merge(one: _Answers, other: _Answers) -> _Answers:
    (held, pace, cost), (others, its_pace, its_cost) = one, other
    return held + others, min(pace, its_pace), max(cost, its_cost)


def digests(engine: Any, layout: RankLayout, rank: int) -> dict[str, int]:
    """Return this rank's checksums by name; ranks that have the same name have replicas of it.

    A name tells weights from the optimizer's state, and the stage, the part of a tensor group, the
    experts and the part of ZeRO 3 that they belong to.
    """
    import torch

    place = f"stage {layout.place(rank, 'pipeline')} tensor {layout.place(rank, 'tensor')}"
    if deepspeed_io.saves_whole(engine):
        # Each tensor tells its own place, and the rest is the same on all ranks.
        place = ""
    sums: dict[str, list[Any]] = defaultdict(list)
    for kind, part, tensor in _replicated_tensors(engine, rank, layout):
        sums[f"{kind} {place} {part}"].append(_sum_of_bits(torch, tensor))
    found: dict[str, int] = {}
    for name, tensors in sums.items():
        # One copy from the device for all.
        values = torch.stack(tensors).tolist()
        total = sum((2 * _ODD * number + 1) * value for number, value in enumerate(values))
        found[name] = total % _BITS
    return found


def difference(held: list[tuple[str, Mapping[str, int]]], agreed: int) -> str | None:
    """Describe the first checksum in which replicas differ, by rank and node; None if none does.

    Parameters
    ----------
    held
        Of each rank in order: its node, and its `digests`.
    agreed
        The last step at which all agreed; 0 if there is none.
    """
    for name in dict.fromkeys(name for _, found in held for name in found):
        groups: dict[int, list[int]] = defaultdict(list)
        for rank, (_, found) in enumerate(held):
            if name in found:
                groups[found[name]].append(rank)
        if len(groups) < 2:
            continue
        largest = max(groups.values(), key=len)
        others = [ranks for ranks in groups.values() if ranks is not largest]
        what = name.partition(" ")[0]
        since = f"at step {agreed} they agreed" if agreed else "they never agreed in this attempt"
        if all(len(ranks) < len(largest) for ranks in others):
            odd = sorted(rank for ranks in others for rank in ranks)
            rest = f"{len(largest)} other ranks that hold the same"
            return f"the {what} of {_ranks_text(odd, held)} are not those of {rest}; {since}"
        shown = ", ".join(_ranks_text(ranks, held) for ranks in sorted(groups.values()))
        return f"the {what} of ranks that should hold the same differ: {shown}; {since}"
    return None


def _ranks_text(ranks: list[int], held: list[tuple[str, Mapping[str, int]]]) -> str:
    shown = [f"rank {rank} ({held[rank][0]})" for rank in ranks[:4]]
    more = len(ranks) - len(shown)
    return " and ".join(shown) + (f" and {more} more" if more > 0 else "")


def _is_known(engine: Any, layout: RankLayout) -> bool:
    """Check whether the layout tells what ranks hold alike; a program may divide its model."""
    if not hasattr(engine, "module") or not hasattr(engine, "zero_optimization_stage"):
        return False
    if getattr(engine, "fixed_size", None):
        return False  # each rank has weights of its own
    if layout.divided:
        return deepspeed_io.parallel(engine) == layout.divided
    if getattr(engine, "has_moe_layers", False):
        return layout.experts > 1
    return deepspeed_io.model_division(engine) is None


def _replicated_tensors(
    engine: Any, rank: int, layout: RankLayout
) -> Iterator[tuple[str, str, Any]]:
    """Yield the kind, the part and a tensor of all that other ranks may hold, too."""
    parameters = list(engine.module.parameters())
    for parameter in parameters:
        part = _expert(parameter, rank, layout)
        shard = getattr(parameter, "ds_tensor", None)
        if shard is None:
            place = tensor_shards.replica_place(parameter)
            if not hasattr(parameter, "ds_id") and place is not None:
                yield "weights", f"{part}{place}", tensor_shards.own_part(parameter)
        elif getattr(shard.status, "name", "") == "AVAILABLE":
            group = parameter.ds_process_group
            yield "weights", f"{part} part {group.rank()} of {group.size()}", shard.data
    if engine.zero_optimization_stage() == 0:
        state = getattr(engine.optimizer, "state", None) or {}
        for parameter in parameters:
            for value in (state.get(parameter) or {}).values():
                place = tensor_shards.replica_place(value)
                if getattr(value, "numel", int)() > 1 and place is not None:
                    part = f"{_expert(parameter, rank, layout)}{place}"
                    yield "moments", part, tensor_shards.own_part(value)
    if any(tensor_shards.is_divided(parameter) for parameter in parameters):
        yield from _of_divided(engine)


def _of_divided(engine: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield what all ranks have alike of a model of which each holds a part."""
    import torch

    groups = engine.optimizer.param_groups
    steps = [state.get("step") for state in engine.optimizer.state.values()]
    values = [value for group in groups for _, value in sorted(group.items())] + steps
    numbers = [float(one) for one in values if isinstance(one, (int, float)) or _is_number(one)]
    device = next(engine.module.parameters()).device
    yield "hyperparameters", "", torch.tensor(numbers, dtype=torch.float64, device=device)
    yield "calls", "", torch.tensor([engine.calls], device=device)
    kept = engine.module.state_dict(keep_vars=True)
    for name, buffer in engine.module.named_buffers():
        if name in kept:
            yield "buffers", "", buffer


def _is_number(value: Any) -> bool:
    return hasattr(value, "numel") and value.numel() == 1


def _expert(parameter: Any, rank: int, layout: RankLayout) -> str:
    """Return which experts a parameter belongs to; nothing for one that all have."""
    is_shared = getattr(parameter, "allreduce", True)
    return "" if is_shared else f"experts {rank % layout.experts}"


def _sum_of_bits(torch: Any, tensor: Any) -> Any:
    """Return the sum of a tensor's bits as whole numbers: one changed bit changes it."""
    size = tensor.element_size()
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(size, torch.int64)
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
        whole = torch.int32 if flat.element_size() == 4 else torch.int64
    return flat.view(whole).sum(dtype=torch.int64)
