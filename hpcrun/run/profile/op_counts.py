"""Counts of one step's operations: floating point operations, and the most bytes that it holds.

Both follow the operators that torch dispatches, on any device, so the step they look at is slow,
and no time of it counts. A matrix product of (m, k) by (k, n) is 2·m·k·n operations; what is
computed again for activation checkpointing counts again; attention counts without its mask.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Collection
from typing import Any

# The matrices that a CPU's peak is measured with, and the seconds of it.
_SIDE, _PEAK_SECONDS = 1024, 0.4


class OperationCounter:
    """Follows all operators of this process from `start` to `stop`."""

    def __init__(self) -> None:
        self.flops = 0
        # Bytes that came and went, in order, by the number of their storage.
        self._changes: list[tuple[int, int]] = []
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._older: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        # The numbers of those that a backward pass has made.
        self._backward: set[int] = set()
        self._in_backward: Callable[[], bool] = lambda: False
        self._counter: Any = None
        self._modes = contextlib.ExitStack()

    def start(self) -> None:
        """Begin to count."""
        import torch
        from torch.utils import flop_counter
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_iter

        note, note_older = self._note, self._note_older
        self._in_backward = lambda: torch._C._current_graph_task_id() != -1

        class Follow(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                for one in tree_iter((args, kwargs)):
                    if isinstance(one, torch.Tensor):
                        note_older(one)
                out = func(*args, **(kwargs or {}))
                for one in tree_iter(out):
                    if isinstance(one, torch.Tensor):
                        note(one)
                return out

        counter = flop_counter.FlopCounterMode(display=False)
        # Attention of CPUs, which torch's counter does not know, counts as that of GPUs.
        for way in ("", "_backward"):
            like = getattr(torch.ops.aten, f"_scaled_dot_product_flash_attention{way}")
            name = f"_scaled_dot_product_flash_attention_for_cpu{way}"
            if (operator := getattr(torch.ops.aten, name, None)) is not None:
                counter.flop_registry.setdefault(operator, counter.flop_registry[like])
        self._counter = self._modes.enter_context(counter)
        self._modes.enter_context(Follow())

    def stop(self) -> None:
        """End counting; `flops` has the sum."""
        self._modes.close()
        self.flops = int(self._counter.get_total_flops())

    def has_seen(self, storage: Any) -> bool:
        """Check whether a storage came since `start`."""
        return storage in self._numbers

    def most_held(self, gradients: Collection[Any]) -> tuple[int, int]:
        """Return the most bytes at once of what came since `start`, but for ``gradients``.

        Of activations, which is what forward passes made, and of what backward passes made, such
        as the buckets in which gradients are exchanged.
        """
        left_out = {self._numbers[one] for one in gradients if one in self._numbers}
        live, most = [0, 0], [0, 0]
        for change, number in self._changes:
            if number not in left_out:
                kind = number in self._backward
                live[kind] += change
                most[kind] = max(most[kind], live[kind])
        return most[0], most[1]

    def _note_older(self, tensor: Any) -> None:
        """Note what an operator is given and none has made: its views are no new memory."""
        storage = _storage(tensor)
        if storage is not None and storage not in self._numbers:
            self._older[storage] = True

    def _note(self, tensor: Any) -> None:
        storage = _storage(tensor)
        if storage is None or storage in self._numbers or storage in self._older:
            return
        number, size = len(self._changes), storage.nbytes()
        self._numbers[storage] = number
        self._changes.append((size, number))
        if self._in_backward():
            self._backward.add(number)
        weakref.finalize(storage, self._changes.append, (-size, number))


def _storage(tensor: Any) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a tensor of another kind has none
        return None


def measured_peak(dtype: Any) -> float:
    """Return the operations a second that matrix products reach on this CPU, as it is used now."""
    import torch

    first, second = (torch.randn(_SIDE, _SIDE).to(dtype) for _ in range(2))
    best, end = 0.0, time.perf_counter() + _PEAK_SECONDS
    while True:
        began = time.perf_counter()
        torch.mm(first, second)
        done = time.perf_counter()
        best = max(best, 2 * _SIDE**3 / (done - began))
        if done > end:
            return best
