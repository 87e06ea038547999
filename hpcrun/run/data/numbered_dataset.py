"""A map-style dataset that is read by the numbers of a run's samples, also in workers."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from hpcrun.run.data.mixture import Mixture
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import rng


class SampleRequest(NamedTuple):
    """One sample, as a worker is asked for it."""

    sample: int
    """Its number, counted over the whole run."""
    example: int
    """The index of what it is in the dataset."""


class NumberedDataset:
    """A dataset by sample: its example is read with generators seeded from (seed, sample).

    So what an augmentation draws is the same whichever worker, rank or attempt reads the sample.
    What ``collate_fn`` draws follows from the last sample of its micro batch.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed
        # One that the dataset would import first is not seeded for its first sample.
        with contextlib.suppress(ImportError):
            importlib.import_module("numpy")

    def __getitems__(self, requests: Sequence[SampleRequest]) -> list[Any]:
        """Return the examples of these samples; `torch.utils.data.DataLoader` calls this."""
        return [self._read(*request) for request in requests]

    def __getitem__(self, request: SampleRequest) -> Any:
        """Return the example of one sample."""
        return self._read(*request)

    def _read(self, sample: int, example: int) -> Any:
        rng.seed_host(rng.derive(self._seed, sample))
        try:
            return self._dataset[example]
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            is_mixture = isinstance(self._dataset, Mixture)
            name = self._dataset.name_of(example) if is_mixture else f"dataset[{example}]"
            tell(f"sample {sample} of the run, {name}, cannot be read: {message}")
            raise
