"""Samples of a global batch by rank; samples are numbered over the whole run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.policy import batch
from hpcrun.policy.batch import Triple


def without_auto(deepspeed: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration for DeepSpeed; raise HpcrunError if batch sizes are left to a Trainer.

    DeepSpeed itself would compare the word with a number.
    """
    left = [key for key in batch.KEYS if deepspeed.get(key) == batch.AUTO]
    if left:
        raise HpcrunError(
            f'the DeepSpeed configuration has "auto" for {", ".join(left)}, which a Trainer fills '
            "in, and the session does not",
            hint="give a batch size below deepspeed in the spec, or pass config=…",
        )
    return deepspeed


def batch_sizes(deepspeed: Mapping[str, Any], engine: Any) -> Triple:
    """Return the three batch sizes of a configuration; those of the engine where it leaves some.

    A script's configuration may have ``auto``, or fewer of them. Raises HpcrunError without either.
    """
    if (known := Triple.of_config(deepspeed)) is not None:
        return known
    # An engine without DeepSpeed has 0 where nothing told it.
    if deepspeed and engine is not None and engine.train_batch_size():
        train, micro = engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()
        return Triple(train, micro, engine.gradient_accumulation_steps())
    if deepspeed:
        raise HpcrunError(
            "session.micro_batches() needs the batch sizes, which the DeepSpeed configuration "
            "leaves open",
            hint="give them below deepspeed in the spec, or call session.initialize(…) before",
        )
    raise HpcrunError(
        "session.micro_batches() needs the batch sizes, and this run has none; or this is outside "
        "hpcrun",
        hint="set deepspeed.train_batch_size in the spec, and start it with `hpcrun run SPEC`",
    )


def batch_number(step: int, whole: int, left_out: Sequence[Sequence[int]]) -> int:
    """Return the global batch of a step: those that are left out have no step, and later ones move.

    ``step`` counts from 1, as do the batches, of ``whole`` samples each. ``left_out`` has the first
    and last sample of each part of the data that is left out.
    """
    out = (range(first // whole + 1, last // whole + 2) for first, last in left_out)
    number = step
    for one in sorted({*itertools.chain(*out)}):
        number += one <= number
    return number


def micro_batches(sizes: Triple, step: int, place: int) -> Iterator[list[int]]:
    """Yield one rank's samples of global batch ``step``, one list for each micro batch.

    Batch ``step`` (from 1) of size B holds samples ``(step - 1) * B`` to ``step * B - 1``. A rank
    has the same share however it is divided into micro batches, and each sample belongs to one rank
    whatever the world size. ``place`` is the rank's among those that see different samples.
    """
    share = sizes.micro * sizes.accumulation
    first = (step - 1) * sizes.train + place * share
    for start in range(first, first + share, sizes.micro):
        yield list(range(start, start + sizes.micro))
