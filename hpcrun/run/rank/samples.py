"""Samples of a global batch by rank; samples are numbered over the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def micro_batches(
    deepspeed: Mapping[str, Any],
    step: int,
    rank: int,
    world_size: int,
    data_rank: Callable[[], int],
) -> Iterator[list[int]]:
    """Yield one rank's samples of global batch ``step``, one list for each micro batch.

    Batch ``step`` (from 1) of size B holds samples ``(step - 1) * B`` to ``step * B - 1``. A rank
    has the same share however it is divided into micro batches, and each sample belongs to one rank
    whatever the world size.

    ``deepspeed`` is the final configuration, with its three batch sizes. ``data_rank`` is called
    for the data-parallel rank if several ranks share a copy of the model.
    """
    micro = int(deepspeed["train_micro_batch_size_per_gpu"])
    share = micro * int(deepspeed["gradient_accumulation_steps"])
    batch = int(deepspeed["train_batch_size"])
    own = rank if batch == share * world_size else data_rank()
    first = (step - 1) * batch + own * share
    for start in range(first, first + share, micro):
        yield list(range(start, start + micro))
