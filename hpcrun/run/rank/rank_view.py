"""What a rank knows of the attempt that it belongs to, and which samples are its own."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hpcrun import feature
from hpcrun.errors import UsageError
from hpcrun.run.data import evaluation, order_record
from hpcrun.run.data.order_record import SampleOrder
from hpcrun.run.data.sample_loader import SampleLoader
from hpcrun.run.data.wait_record import DataWaits
from hpcrun.run.parallel import train_batch, ulysses
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.profile import step_recorder
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.rank import (
    device_precision,
    model_blocks,
    optimization,
    process_groups,
    replica_engine,
    rng,
    samples,
    sharded_engine,
)
from hpcrun.run.rank.collectives import Collectives
from hpcrun.run.rank.config import Config
from hpcrun.run.rank.replica_engine import ReplicaEngine
from hpcrun.run.rank.session_writer import SessionLogWriter
from hpcrun.run.rank.sharded_engine import ShardedEngine
from hpcrun.run.rank.torch_engine import check_model
from hpcrun.run.weights.averaged_weights import AveragedWeights
from hpcrun.state import session_log
from hpcrun.state.spec.blocks import SpecBlocks


class RankView:
    """A rank's place, configuration and samples; see `hpcrun.run.session.Session`."""

    def __init__(self, launch: Launch | None) -> None:
        self._launch = launch
        self.rank = int(os.environ.get("RANK", 0))
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        if launch and self.world_size != launch.world_size:
            # DeepSpeed's launcher leaves the variable as the worker has set it.
            self.local_world_size = int(os.environ.get("LOCAL_SIZE") or self.local_world_size)
        self.attempt = launch.attempt if launch else 0
        self.directory = Path(launch.directory) if launch else None
        self.scratch = Path(os.environ["HPCRUN_SCRATCH"]) if launch else None
        self._spec = SpecBlocks({})
        if launch:
            self._spec = SpecBlocks(launch.fill(launch.spec, launch.own_node))
        self.config = Config(self._spec.config)
        self.seed = int(self.config.get("seed") or 0)
        self.total_steps: int | None = None
        self.layout = RankLayout(self._spec.spec.get("parallel") or {}, self.world_size)
        self._engine: Any = None
        self._averaged: AveragedWeights | None = None
        self._took_part = False
        self.gave_samples = False
        self._fence = AttemptFence(launch.paths) if launch else None
        self._events = SessionLogWriter(launch, self.rank, self._fence)
        self._loaders: list[SampleLoader] = []
        self._ranks = Collectives(self.rank, self.world_size)
        self._waits = DataWaits(self._ranks, self._events)

    @property
    def finished_steps(self) -> int:
        """Optimizer steps that the engine has taken in the whole run; 0 before `restore`."""
        return int(getattr(self._engine, "global_steps", 0))

    @property
    def deepspeed_config(self) -> dict[str, Any]:
        return copy.deepcopy(self._spec.deepspeed)

    @property
    def device(self) -> Any:
        """``torch.device`` of this rank."""
        import torch

        if torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu":
            return torch.device("cuda", self.local_rank)
        return torch.device("cpu")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # What features add: such as ``session.staged(path)``.
        method = feature.session_method(name, self.__dict__.get("_launch"))
        if method is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return method

    def parameter_groups(self, model: Any, layers: str | None = None) -> list[dict[str, Any]]:
        """Return the model's parameters in the groups that ``optimization`` asks for.

        `Session.initialize` does so itself where it finds the layers; otherwise ``layers`` is the
        name of the module whose children they are, and this is its ``model_parameters``.
        """
        wanted, config = self._spec.optimization, self._spec.deepspeed
        return optimization.parameter_groups(model, wanted, config, layers)

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Give the model the averages of ``optimization.ema`` for an evaluation; on all ranks.

        At the end of the ``with`` block the model has its own weights again, to the bit. Before the
        first step these are the averaged ones, too. Buffers stay the model's.

        Raises
        ------
        UsageError
            Nothing is averaged: there is no ``optimization.ema``, or `restore` was not called.
        """
        if self._averaged is None:
            raise UsageError(
                "session.averaged_weights(): no weights are averaged",
                hint="set optimization.ema in the spec, such as 0.999, and call session.restore",
            )
        with self._averaged.in_place():
            yield

    def replicas(
        self, model: Any, optimizer: Any = None, *, lr_scheduler: Any = None, **options: Any
    ) -> ReplicaEngine:
        """Return an engine for a model that every rank holds whole, without DeepSpeed.

        Parameters
        ----------
        model
            On this rank's device.
        optimizer
            As of `fully_shard`.
        **options
            Of `hpcrun.run.rank.replica_engine.ReplicaEngine`: ``every``, ``outer``, ``hook``, …
            Batch and clipping are those of the DeepSpeed configuration, where there is one, and
            schedule and groups those of ``optimization``.

        Raises
        ------
        UsageError
            The options do not go together, or the spec asks for what this engine does not do.
        """
        wanted, config = self._spec.optimization, self._spec.deepspeed
        options = {**replica_engine.options_of(config, self.layout), **options}
        process_groups.begin(self.world_size, self.device)
        check_model(model, ReplicaEngine.made_by, {})
        model_blocks.compile_each(model, wanted, self.device)
        optimizer, schedule = optimization.make(model, config, wanted, optimizer, lr_scheduler)
        engine = ReplicaEngine(model, optimizer, lr_scheduler=schedule, **options)
        self._engine = engine
        return engine

    def fully_shard(
        self,
        model: Any,
        optimizer: Any = None,
        *,
        loss: Callable[..., Any] | None = None,
        **options: Any,
    ) -> ShardedEngine:
        """Return an engine for a model that torch's FSDP2 divides between all ranks; collective.

        Parameters
        ----------
        model, loss
            As of `Session.initialize`; the model is whole, in fp32.
        optimizer
            A torch optimizer of the model's parameters, or a function that makes one of them; None
            for the one of the spec.
        **options
            Of `hpcrun.run.rank.sharded_engine.make`: ``replicas``, ``tensor_plan`` for
            ``parallel.tensor``, ``blocks``, ``lr_scheduler``.
            Batch, clipping, precision, optimizer and ZeRO stage (3, or 2 to gather weights once a
            step) are those of the DeepSpeed configuration, schedule and groups ``optimization``'s.

        Raises
        ------
        UsageError
            The spec or the model asks for what this engine does not do, or nobody has tried.
        """
        spec, config = self._spec.spec, samples.without_auto(self._spec.deepspeed)
        options = {**sharded_engine.options_of(config, spec, self.layout), **options}
        process_groups.begin(self.world_size, self.device, alone=True)
        device_precision.check(spec, config, self.device)
        wanted, options["tensor"] = self._spec.optimization, self.layout.size["tensor"]
        options["loss"] = loss
        made = sharded_engine.make(model, optimizer, config, wanted, self.device, **options)
        self._engine = made
        return made

    def micro_batches(self, step: int) -> Iterator[list[int]]:
        """Yield this rank's samples of global batch ``step``; see `hpcrun.run.rank.samples`."""
        sizes = samples.batch_sizes(self._spec.deepspeed, self._engine)
        self.gave_samples = True
        left_out = self._launch.left_out if self._launch else ()
        number = samples.batch_number(step, sizes.train, left_out)
        place, _ = self._data_place()
        return step_recorder.mark_each(samples.micro_batches(sizes, number, place))

    def record_bad_step(self, step: int, cause: str, message: str) -> None:
        """Record from which step on a training went bad, and that step's batch where it is known.

        ``cause`` is the kind of the end that follows.
        """
        found: dict[str, Any] = {}
        if self.gave_samples and self._launch:
            whole = samples.batch_sizes(self._spec.deepspeed, self._engine).train
            found["batch"] = samples.batch_number(step, whole, self._launch.left_out)
            first = (found["batch"] - 1) * whole
            found["samples"] = [first, first + whole - 1]
            if self._loaders:
                found["epoch"] = self._loaders[0].epoch_of(first)
        self._events.write(session_log.BAD_STEP, step=step, cause=cause, message=message, **found)

    def loader(
        self,
        dataset: Any,
        num_workers: int = 0,
        *,
        shuffle: bool = True,
        length: int | None = None,
        pool: Callable[[int], int] | None = None,
        **options: Any,
    ) -> SampleLoader:
        """Return a loader of this run's samples: ``for batch in loader(step)``.

        It yields this rank's micro batches of a step, on its device. Their samples depend on the
        step alone, and what the dataset draws from random generators on the sample, so that they
        are the same after a restart, on another number of ranks and with other workers.

        Parameters
        ----------
        dataset
            A map-style dataset: ``dataset[index]`` and ``len(dataset)``.
        num_workers
            Processes that read ahead; with 0 the rank reads when it is asked.
        shuffle
            Each epoch in an order that follows from ``config.seed`` and its number; False: in that
            of the dataset. Epochs follow each other without a gap.
        length
            Examples in an epoch, the first of the dataset; None for all.
        pool
            For a curriculum: of how many of the first examples the samples of a step are drawn.
        **options
            Options of ``torch.utils.data.DataLoader``, such as ``collate_fn``, ``prefetch_factor``
            or ``worker_init_fn``. ``pin_memory`` is on where the rank has a GPU.

        Returns
        -------
        SampleLoader
            Called with a step; or iterated, in a loop of one's own with `Session.step`.

        Raises
        ------
        UsageError
            The dataset is empty or iterable, an option is the run's own, or (when the first step is
            asked for) the run took earlier steps with another order.
        """
        made = SampleLoader(
            self,
            dataset,
            num_workers,
            shuffle=shuffle,
            length=length,
            pool=pool,
            begin=partial(self._begin_data, len(self._loaders)),
            options=options,
        )
        self._loaders.append(made)
        return made

    def shard(self, count: int, batch: int = 1) -> Iterator[list[int]]:
        """Yield this rank's share of ``range(count)`` in batches: each sample is on one rank, once.

        The batches of ``batch`` consecutive samples are the same on any number of ranks, which take
        turns. Every rank gets as many, so that the last may be empty; nothing is padded. What is
        drawn at random in a batch follows from ``config.seed`` and its samples alone, and the
        training's generators are afterwards as they were.

        Parameters
        ----------
        count
            Samples of the evaluation, at least 1.
        batch
            Samples of a batch; the last of all may have fewer.
        """
        with rng.generators_kept():
            for indices in evaluation.batches(count, batch, *self._data_place()):
                rng.seed_all(rng.derive(self.seed, *indices[:1]))
                yield indices

    def total(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return sums over all ranks; collective, and the same on every rank.

        They are exact before they are rounded, so that they are the same to the last bit however
        the values are divided between ranks. Ranks that share a copy of the model count once.

        Parameters
        ----------
        values
            Names to the numbers of this rank's samples: a tensor of any shape, a sequence or one
            number. Every rank gives the same names; a rank without samples gives an empty one.

        Raises
        ------
        HpcrunError
            Ranks gave different names.
        """
        own = {name: evaluation.partial_sums(given) for name, given in values.items()}
        # Ranks of a sequence have other tokens of the same samples.
        size, part = self.layout.size["sequence"], self.layout.place(self.rank, "sequence")
        place = self._data_place()[0] * size + part
        return evaluation.totals(self._ranks.gather((place, own)))

    def _data_place(self) -> tuple[int, int]:
        """Return this rank's place among those that see different samples, and their number."""
        if self.layout.divided:
            return self.layout.place(self.rank, "data"), self.layout.size["data"]
        if not self._spec.deepspeed:
            return self.rank, self.world_size
        sizes = samples.batch_sizes(self._spec.deepspeed, self._engine)
        places = sizes.train // (sizes.micro * sizes.accumulation)
        own = self.rank if places == self.world_size else process_groups.data_rank()
        return own, places

    def _begin_data(self, number: int, order: SampleOrder, done: int) -> None:
        if self._launch is not None and self.rank == 0:
            order_record.begin(self._launch, self._events, number, order, done)

    def sequence_part(self, *tensors: Any, dim: int = 1) -> Any:
        """Return this rank's part of sequences; all of them without ``parallel.sequence``.

        Parameters
        ----------
        *tensors
            Tensors with the sequence along ``dim``, such as inputs and labels (batch, sequence).
            Labels are shifted before.

        Returns
        -------
        Tensor or tuple of Tensor
            As many as were given.

        Raises
        ------
        UsageError
            The sequence cannot be shared out evenly.
        """
        size = self.layout.size["sequence"]
        place = self.layout.place(self.rank, "sequence")
        self._took_part = True
        parts = []
        for tensor in tensors:
            if tensor.shape[dim] % size:
                raise UsageError(
                    f"a sequence of {tensor.shape[dim]} cannot be divided between {size} ranks "
                    "(parallel.sequence)",
                    hint="pad it, or take a length that is a multiple",
                )
            length = tensor.shape[dim] // size
            parts.append(tensor.narrow(dim, place * length, length).contiguous())
        return parts[0] if len(parts) == 1 else tuple(parts)

    def train_batch(self, step: int, read: Callable[[list[int]], Any] | SampleLoader) -> Any:
        """Take one optimizer step on this rank's share of global batch ``step``; collective.

        It is what a loop over `micro_batches` does, in a pipeline too, whose engine takes whole
        batches alone.

        Parameters
        ----------
        step
            The optimizer step, from 1.
        read
            Makes what the model is called with from a list of sample numbers: a tuple, a mapping or
            one value; or a loader, whose micro batches are that. In a pipeline a pair of inputs and
            labels.

        Returns
        -------
        Tensor
            The mean loss of this rank's micro batches, detached.
        """
        if not isinstance(read, SampleLoader):
            loss = train_batch.train_batch(self._engine, map(read, self.micro_batches(step)))
        elif "sequence" in self.layout.divided:
            raise UsageError(
                "parallel.sequence: what a loader gives are whole sequences",
                hint="give session.train_batch a function that returns session.sequence_part(…)",
            )
        else:
            loss = train_batch.train_batch(self._engine, read(step))
        ulysses.check_use(self.layout.divided, has_parts=self._took_part)
        return loss

    def eval_batch(self, batches: Iterable[Any]) -> Any:
        """Return the mean loss of this rank's micro batches without gradients; collective.

        Parameters
        ----------
        batches
            What the model is called with, as ``read`` of `train_batch` makes it.
        """
        with rng.generators_kept():
            return train_batch.eval_batch(self._engine, batches)
