"""The loader of a run's samples, as ``session.loader`` returns it.

Underneath is torch's own DataLoader, given batches of sample numbers: the micro batches of this
rank, one step after the other. So workers read ahead over the ends of steps and epochs.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.run.data import worker_sockets
from hpcrun.run.data.mixture import Mixture
from hpcrun.run.data.order_record import SampleOrder
from hpcrun.run.data.sample_order import examples_of
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import rng
from hpcrun.text import plural

if TYPE_CHECKING:
    from hpcrun.run.rank.rank_view import RankView

# Options of torch's DataLoader that follow from the run's numbering of samples.
_OURS = {
    *("batch_size", "batch_sampler", "sampler", "drop_last", "generator", "persistent_workers"),
    "in_order",
}
# Samples whose examples are found in one calculation, some hundred of which take as long as one.
_TOGETHER = 512
_OTHERS = (
    "an iterable dataset keeps its own place: see StatefulDataLoader and mosaicml-streaming in "
    "docs/data.md (`hpcrun help data`)"
)


class SampleLoader:
    """This rank's micro batches: ``loader(step)`` yields those of an optimizer step.

    The same step has the same samples whenever it is asked for. Steps in order cost nothing;
    with a jump, what was read ahead is dropped. ``for batch in loader`` yields all micro batches
    from the step after the engine's on.
    """

    def __init__(
        self,
        session: RankView,
        dataset: Any,
        num_workers: int,
        *,
        shuffle: bool,
        length: int | None,
        pool: Callable[[int], int] | None,
        begin: Callable[[SampleOrder, int], None],
        options: Mapping[str, Any],
    ) -> None:
        if taken := sorted(_OURS.intersection(options)):
            raise UsageError(
                f"session.loader takes no {' and no '.join(taken)}: the batches of a step are the "
                "run's own",
                hint="set deepspeed.train_batch_size and its parts in the spec",
            )
        self._session, self._begin, self._pool = session, begin, pool
        self._mixture = None
        if isinstance(dataset, Mixture):
            if length is not None or pool is not None:
                raise UsageError(
                    "session.loader takes no length and no pool for a Mixture, whose parts each "
                    "have an epoch of their own",
                    hint="give a torch.utils.data.Subset in place of the part that is to be "
                    "shorter",
                )
            dataset = self._mixture = dataset.ordered(session.seed, shuffle)
        parts = None if self._mixture is None else self._mixture.parts
        self._order = SampleOrder(_length(dataset, length), session.seed, shuffle, parts)
        self._in_process = num_workers == 0
        self._device = session.device
        self._step: int | None = None
        self._batches: Iterator[Any] = iter(())
        self._asked = self._begun = False
        self._waited = 0.0
        if num_workers:
            _check_temporary()
        if session.rank == 0:
            _tell_of_processors(num_workers, session.local_world_size)
        self._loader = self._make(dataset, num_workers, dict(options))

    def _make(self, dataset: Any, num_workers: int, options: dict[str, Any]) -> Any:
        import torch

        options.setdefault("pin_memory", self._device.type == "cuda")
        try:
            with _told_already():
                return torch.utils.data.DataLoader(
                    NumberedDataset(dataset, self._order.seed),
                    batch_sampler=_MicroBatches(self._requests),
                    num_workers=num_workers,
                    persistent_workers=num_workers > 0,
                    # The loader draws from it where it would draw from the training's own.
                    generator=torch.Generator(),
                    **options,
                )
        except (TypeError, ValueError) as error:
            raise UsageError(f"session.loader: {error}") from error

    def __call__(self, step: int) -> Iterator[Any]:
        """Yield this rank's micro batches of global batch ``step`` (from 1), on its device."""
        if not self._begun:
            self._begun = True
            self._begin(self._order, step - 1)
            self._tell_of_parts()
        if self._step != step:
            self._open(step)
        self._step = None
        for _ in self._session.micro_batches(step):
            yield self._next(step)
        self._step = step + 1

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's micro batches from the engine's next step on, to ``total_steps``."""
        step = self._session.finished_steps + 1
        while (total := self._session.total_steps) is None or step <= total:
            yield from self(step)
            step += 1

    def epoch_of(self, sample: int) -> int | None:
        """Return the epoch of a sample of the run, from 0; None with a curriculum or a mixture, in
        which none has an end.
        """
        if self._pool is not None or self._mixture is not None:
            return None
        return sample // self._order.samples

    def take_wait(self) -> float:
        """Return the seconds that this rank has waited for data since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def _tell_of_parts(self) -> None:
        """Tell how often the examples of a mixture's parts come until the last step."""
        session, total = self._session, self._session.total_steps
        if self._mixture is None or session.rank or total is None:
            return
        samples = next(session.micro_batches(total + 1))[0]
        counts, parts = self._mixture.counts(samples), self._mixture.parts
        often = ", ".join(f"{name} {counts[name] / parts[name][0]:.3g}" for name in parts)
        tell(f"session.loader: epochs of the mixture's parts in {plural(total, 'step')}: {often}")

    def _open(self, step: int) -> None:
        self._first = step
        began = time.perf_counter()
        with _told_already():
            self._batches = iter(self._loader)
        self._waited += time.perf_counter() - began

    def _requests(self) -> Iterator[list[SampleRequest]]:
        """Yield what to read, a list for each micro batch, to the last step if it is known."""
        order, step, ended = self._order, self._first, False
        while not ended:
            found: list[tuple[int, list[int]]] = []
            while not ended and sum(len(samples) for _, samples in found) < _TOGETHER:
                pool = order.samples if self._pool is None else self._checked_pool(step)
                found += [(pool, samples) for samples in self._session.micro_batches(step)]
                step += 1
                ended = (total := self._session.total_steps) is not None and step > total
            for pool, group in itertools.groupby(found, key=itemgetter(0)):
                micro_batches = [samples for _, samples in group]
                together = [*itertools.chain(*micro_batches)]
                examples = iter(
                    together
                    if self._mixture is not None
                    else examples_of(together, pool, order.seed, shuffle=order.shuffle)
                )
                for samples in micro_batches:
                    yield [*map(SampleRequest, samples, examples)]

    def _checked_pool(self, step: int) -> int:
        assert self._pool is not None
        pool = self._pool(step)
        if not isinstance(pool, int) or not 1 <= pool <= self._order.samples:
            raise UsageError(
                f"pool({step}) of session.loader is {pool!r}, and has to be a whole number from 1 "
                f"to the {self._order.samples:,} examples of the dataset"
            )
        return pool

    def _next(self, step: int) -> Any:
        began = time.perf_counter()
        try:
            if self._in_process:
                with rng.host_kept():
                    found = next(self._batches)
            else:
                found = next(self._batches)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise HpcrunError(
                f"a data worker of rank {self._session.rank} died while it read for step {step}: "
                f"{error}",
                hint="the kernel ends workers when memory is short: fewer of num_workers, or a "
                "smaller prefetch_factor; with num_workers=0 the rank reads by itself, and shows "
                "an error of the dataset's own libraries",
            ) from error
        if self._device.type != "cpu":
            found = _moved(found, self._device)
        self._waited += time.perf_counter() - began
        return found


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


class _MicroBatches:
    """The batch sampler: begins anew, at the step that is asked for, whenever it is iterated."""

    def __init__(self, requests: Callable[[], Iterator[list[SampleRequest]]]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[list[SampleRequest]]:
        return self._requests()


def _length(dataset: Any, length: int | None) -> int:
    """Return the examples of an epoch; raise UsageError for a dataset that cannot be numbered."""
    from torch.utils.data import IterableDataset

    name = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"session.loader takes a map-style dataset, with dataset[index] and len(dataset), and "
            f"{name} has no samples by number",
            hint=_OTHERS,
        )
    try:
        found = len(dataset)
    except TypeError:
        raise UsageError(
            f"session.loader takes a dataset that has a length, and {name} has none", hint=_OTHERS
        ) from None
    if found < 1:
        raise UsageError(f"session.loader was given an empty dataset ({name} of length 0)")
    if length is not None and not 1 <= length <= found:
        raise UsageError(
            f"session.loader(length={length!r}): the dataset has {found:,} examples, and length is "
            "how many of them an epoch has"
        )
    return found if length is None else length


def _check_temporary() -> None:
    """Raise UsageError for a TMPDIR with which a rank would wait for its workers for ever."""
    length = worker_sockets.too_long()
    if length is not None:
        raise UsageError(
            f"session.loader: workers cannot send tensors with a TMPDIR of {length} bytes "
            f"({tempfile.gettempdir()}); accepted are {worker_sockets.LONGEST_TMPDIR}",
            hint=f"set {worker_sockets.HINT}, or num_workers=0",
        )


def _tell_of_processors(num_workers: int, ranks: int) -> None:
    own = len(os.sched_getaffinity(0))
    if own == os.cpu_count():
        # Ranks are not bound to processors: they share all of them.
        own = max(1, own // ranks)
    if num_workers > own:
        tell(
            f"session.loader: {plural(num_workers, 'worker')} of each rank share "
            f"{plural(own, 'processor')} with it; resources.cpus_per_task has to be higher, or "
            "num_workers lower"
        )


@contextlib.contextmanager
def _told_already() -> Iterator[None]:
    """Keep torch from warning, on every rank, of what `_tell_of_processors` has told."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _moved(found: Any, device: Any) -> Any:
    """Return a batch on a device: tensors, and mappings, sequences and objects that hold them."""
    if hasattr(found, "to"):
        return found.to(device, non_blocking=True)
    if isinstance(found, Mapping):
        return {key: _moved(value, device) for key, value in found.items()}
    if isinstance(found, tuple) and hasattr(found, "_fields"):
        return type(found)(*(_moved(value, device) for value in found))
    if isinstance(found, (list, tuple)):
        return type(found)(_moved(value, device) for value in found)
    return found
