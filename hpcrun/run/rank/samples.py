"""Which samples of a global batch are a rank's: samples are numbered over the whole run."""

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
    """One rank's samples of global batch ``step``, one list for each micro batch.

    Batch ``step`` (from 1) of size B holds samples ``(step - 1) * B`` to ``step * B - 1``. A rank
    has the same share however it is divided into micro batches, and each sample belongs to one rank
    whatever the world size.

    Parameters
    ----------
    deepspeed
        The final DeepSpeed configuration, with its three batch sizes.
    data_rank
        Asked for the rank in the data-parallel group where ranks share a copy of the model.
    """
    micro = int(deepspeed["train_micro_batch_size_per_gpu"])
    accumulation = int(deepspeed["gradient_accumulation_steps"])
    batch = int(deepspeed["train_batch_size"])
    share = micro * accumulation
    own = rank if batch == share * world_size else data_rank()
    first = (step - 1) * batch + own * share
    for index in range(accumulation):
        start = first + index * micro
        yield list(range(start, start + micro))
