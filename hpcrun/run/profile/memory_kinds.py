"""The memory of a rank by kind, when gradients are there and the optimizer is about to use them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

PARAMETERS, GRADIENTS = "parameters", "gradients"
OPTIMIZER_STATE, OTHER = "optimizer state", "other"


class MemoryCensus:
    """The storages of all tensors that live in this process as this is made.

    ``optimizer`` is torch's, ``engine`` DeepSpeed's or None; ``is_passing`` tells storages that
    only this step has, which are none of the `OTHER` ones.

    Attributes
    ----------
    bytes_of
        `PARAMETERS`, `GRADIENTS`, `OPTIMIZER_STATE` and `OTHER` -> bytes; each storage once.
    gradients
        The storages of gradients.
    """

    def __init__(self, optimizer: Any, engine: Any, is_passing: Callable[[Any], bool]) -> None:
        import torch

        self._tensor: type[Any] = torch.Tensor
        tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
        groups = [one for group in optimizer.param_groups for one in group["params"]]
        if engine is not None:
            module = list(engine.module.parameters())
            parameters = [*module, *self._tensors_at(module, "ds_tensor")]
        else:
            parameters = [one for one in tensors if isinstance(one, torch.nn.Parameter)]
        gradients = [*self._tensors_at([*parameters, *groups], "grad")]
        wrapper = getattr(engine, "optimizer", None)
        if wrapper is not None and wrapper is not optimizer:
            # In what DeepSpeed's optimizer calls a gradient: its buffers.
            buffers = [value for name, value in vars(wrapper).items() if "grad" in name.lower()]
            gradients += self._inside(buffers)
        kinds = {
            GRADIENTS: gradients,
            PARAMETERS: parameters,
            OPTIMIZER_STATE: [*groups, *self._inside(list(optimizer.state.values()))],
            OTHER: tensors,
        }
        seen: set[tuple[str, int]] = set()
        self.bytes_of = dict.fromkeys(kinds, 0)
        self.gradients: list[Any] = []
        for kind, found in kinds.items():
            for storage in self._storages(found, seen):
                if kind == OTHER and is_passing(storage):
                    continue
                self.bytes_of[kind] += storage.nbytes()
                if kind == GRADIENTS:
                    self.gradients.append(storage)

    def _tensors_at(self, tensors: Iterable[Any], name: str) -> Iterator[Any]:
        for one in tensors:
            found = getattr(one, name, None)
            if isinstance(found, self._tensor):
                yield found

    def _inside(self, value: Any, depth: int = 4) -> Iterator[Any]:
        if isinstance(value, self._tensor):
            yield value
        elif depth and isinstance(value, (dict, list, tuple)):
            for one in value.values() if isinstance(value, dict) else value:
                yield from self._inside(one, depth - 1)

    def _storages(self, tensors: Iterable[Any], seen: set[tuple[str, int]]) -> Iterator[Any]:
        """Yield the storages that were not seen; those of parts that other ranks have are empty."""
        for one in tensors:
            try:
                storage = getattr(one, "_local_tensor", one).untyped_storage()
                key = (str(storage.device), storage.data_ptr())
                size = storage.nbytes()
            except (NotImplementedError, RuntimeError):  # a tensor of another kind has no storage
                continue
            if size and key[1] and key not in seen:
                seen.add(key)
                yield storage
