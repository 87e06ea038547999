"""Counts what steps do, in the place of turns.py: the same for both programs, and by no clock.

`Turns` has the face of the other one, so that neither program is changed. From the top of step
`FIRST` to that of step ``FIRST + STEPS`` everything is counted that torch dispatches in the rank's
own thread (backward passes on processors included), and collectives that are given to gloo beside
the dispatcher.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# After what a session does once, at the eighth step; ten, as programs print at each tenth.
FIRST, STEPS = 9, 10
TOTAL = FIRST + STEPS
OPERATORS, COPIED, MADE = "operators", "bytes copied", "bytes made"
COLLECTIVES, SENT, READ = "collectives", "bytes in them", "numbers read"
WHAT = (OPERATORS, COPIED, MADE, COLLECTIVES, SENT, READ)
# What copies and no more, whatever its output is called.
_COPIES = {
    *("aten.copy_", "aten._to_copy", "aten.clone", "aten.cat", "aten._foreach_copy_"),
    *("fsdp.all_gather_copy_in", "fsdp.split_with_sizes_copy", "fsdp.chunk_cat"),
}
_WAITS = {"wait_tensor", "_wrap_tensor_autograd"}
# Methods of gloo's own groups, which hpcrun's metrics call without the dispatcher.
_DIRECT = ("allreduce", "broadcast", "allgather", "reduce_scatter", "send", "recv", "barrier")


class StepCounts(TorchDispatchMode):
    """Counts operators by name, and the bytes of those that copy, make or exchange tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # which comes again with the part that this rank has
        found = function(*arguments, **(named or {}))
        name = str(function).rpartition(".")[0]
        space, _, short = name.partition(".")
        given = [*arguments, *(named or {}).values()]
        self.names[name] += 1
        self.counts[OPERATORS] += 1
        self.counts[READ] += name == "aten._local_scalar_dense"
        if name in _COPIES:
            self.counts[COPIED] += _bytes(found) or max(map(_bytes, given))
        if "c10d" in space and short not in _WAITS:
            self.exchanged(given)
        known = {_storage(one) for one in _tensors(given)}
        made = {_storage(one): one for one in _tensors(found)}
        self.counts[MADE] += sum(_bytes(one) for key, one in made.items() if key not in known)
        return found

    def exchanged(self, given: Any) -> None:
        """Count a collective, and the bytes at its larger end."""
        self.counts[COLLECTIVES] += 1
        self.counts[SENT] += max(map(_bytes, given), default=0)


class Turns:
    """Counts steps where turns.py times them; ``path`` is the directory that gets the counts."""

    def __init__(self, path: str, side: str) -> None:
        self._file = Path(path, f"{side}-{os.environ['RANK']}.json")
        self._counts = StepCounts()
        self._is_on = False
        for name in _DIRECT:
            self._watch(name)
        if side == "hpcrun":
            from hpcrun.run.rank import metrics

            # As steps of a second and more have it: each its own all-reduce of metrics.
            metrics.WINDOW = 0.0

    def at(self, step: int) -> None:
        """Begin or end to count; called at the top of each step."""
        if step == FIRST:
            self._is_on = True
            self._counts.__enter__()
        elif step == TOTAL:
            self._counts.__exit__(None, None, None)
            self._is_on = False

    def finish(self, **results: Any) -> None:
        """Write the counts of all counted steps."""
        counted = {"counts": self._counts.counts, "names": self._counts.names}
        self._file.write_text(json.dumps({**counted, **results}))

    def _watch(self, name: str) -> None:
        backend = torch.distributed.ProcessGroupGloo
        method: Callable[..., Any] = getattr(backend, name)

        @wraps(method)
        def watched(group: Any, *arguments: Any, **named: Any) -> Any:
            if self._is_on:
                self._counts.names[f"gloo.{name}"] += 1
                self._counts.exchanged([*arguments, *named.values()])
            return method(group, *arguments, **named)

        setattr(backend, name, watched)


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, (list, tuple)):
        for one in found:
            yield from _tensors(one)


def _bytes(found: Any) -> int:
    return sum(one.numel() * one.element_size() for one in _tensors(found))


def _storage(one: torch.Tensor) -> int:
    return int(one.untyped_storage()._cdata)
