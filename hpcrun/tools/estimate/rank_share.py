"""The share of a model that one rank has: by stages, tensor groups and ZeRO. Pure.

Where it is not known how model-parallel ranks divide a model, it is the most that one may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcrun.tools.estimate.model_facts import ModelFacts
from hpcrun.tools.estimate.training_setup import TrainingSetup


@dataclass(frozen=True)
class Share:
    """Elements that one rank has of the parameters."""

    whole: int
    """All of them, on a rank of the model-parallel group."""
    part: int
    """Its partition, padding included; `whole` if ZeRO divides nothing."""
    touched: int
    """Elements of the parameters that lie in its partition, wholly or in part."""
    frozen: int
    frozen_part: int
    persistent: int
    """Elements of the small parameters that stage 3 keeps whole."""
    largest: int


def parts(model: ModelFacts, setup: TrainingSetup) -> list[tuple[ModelFacts, TrainingSetup]]:
    """Return the stages of a pipeline that are known, each with its setup; else the model alone."""
    if setup.stages == 1 or len(model.stages) != setup.stages:
        return [(model, setup)]
    own = replace(setup, model_ranks=setup.model_ranks // setup.stages, stages=1)
    begun = (min(setup.stages - place, setup.accumulation) for place in range(setup.stages))
    return [(replace(one, in_flight=n), own) for one, n in zip(model.stages, begun, strict=True)]


def is_known(model: ModelFacts, setup: TrainingSetup) -> bool:
    """Check whether it is known how model-parallel ranks divide the parameters."""
    return all(
        own.model_ranks == own.tensor and (own.tensor == 1 or part.divided is not None)
        for part, own in parts(model, setup)
    )


def _uneven(model: ModelFacts) -> float:
    """Return elements that may lie whole on one rank: embedding and head.

    Of a model of which only the number is known they are taken as a transformer's, whose layers
    (12 h^2 elements) are one for each 128 of its width h, with a vocabulary of 256,000.
    """
    if model.sizes:
        return sum(sorted((*model.sizes, *model.frozen_sizes))[-2:])
    width = model.hidden_size or (model.parameters * 128 / 12) ** (1 / 3)
    return 2 * width * (model.vocabulary or 256_000)


def _of_rank(
    sizes: Sequence[int],
    total: int,
    divided: Sequence[int] | None,
    setup: TrainingSetup,
    whole: float,
) -> tuple[list[int], int]:
    """Return the sizes of parameters on one rank, and their sum; ``whole`` are not divided."""
    of = setup.model_ranks
    if divided is not None and of == setup.tensor and len(divided) == len(sizes):
        found = [
            -(-size // of) if does else size for size, does in zip(sizes, divided, strict=True)
        ]
        return found, sum(found) if sizes else -(-total // of)
    found = [-(-size // of) for size in sizes]
    more = round(min(whole, total) * (1 - 1 / of))
    if found and more:
        found.append(more)
    return found, sum(found) if found else -(-total // of) + more


def share(model: ModelFacts, setup: TrainingSetup, *, even: bool = False) -> Share:
    """Return the share of the rank that holds most; where that is not known, the most it may be.

    ``even`` takes the ranks to divide all parameters evenly where it is not known.
    """
    ranks, uneven = setup.ranks, 0 if even else _uneven(model)
    sizes, whole = _of_rank(model.sizes, model.trainable, model.divided, setup, uneven)
    frozen_sizes, frozen = _of_rank(
        model.frozen_sizes, model.frozen, model.frozen_divided, setup, uneven
    )
    largest = max((*sizes, *frozen_sizes), default=0)
    if setup.stage == 3:
        part = sum(-(-size // ranks) for size in sizes) if sizes else -(-whole // ranks)
        kept = sum(size for size in (*sizes, *frozen_sizes) if size <= setup.persistence)
        if ranks == 1:
            kept = 0  # its part is the whole
        frozen_part = sum(-(-size // ranks) for size in frozen_sizes)
        frozen_part = frozen_part or -(-frozen // ranks)
        return Share(whole, part, part, frozen, frozen_part, kept, largest)
    if setup.stage == 0:
        return Share(whole, whole, whole, frozen, frozen, 0, largest)
    unit = 2 * ranks  # the flat buffer is a multiple of it
    part = -(-whole // unit) * unit // ranks
    touched = _touched(sizes, part) if sizes else part
    return Share(whole, part, touched, frozen, frozen, 0, largest)


def _touched(sizes: Sequence[int], part: int) -> int:
    """Return the most elements of parameters that one partition of ``part`` elements touches."""
    if not part:
        return 0
    touched: dict[int, int] = {}
    start = 0
    for size in sizes:
        if size:
            first, last = start // part, (start + size - 1) // part
            # Between its ends a parameter that is longer than a partition is alone.
            for one in {first, min(first + 1, last), last}:
                touched[one] = touched.get(one, 0) + size
        start += size
    return max(touched.values(), default=0)
