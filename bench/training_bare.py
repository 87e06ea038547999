"""The peer: the same training as a script of srun and DeepSpeed or torch, without hpcrun.

Written as careful people write it: environment from SLURM_*, ``deepspeed.initialize`` with a JSON
file (or `Plain`, what a script does by hand with FSDP2 or DDP), and each step's loss, learning rate
and tokens (or images) per second in a file that rank 0 writes. By default the loss is rank 0's own,
as in most such scripts; ``--loss average`` averages it over ranks first, which hpcrun does too. The
causal models read the same data in the same order as hpcrun's side; the others go through torch's
DistributedSampler and DataLoader.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Share:
    """Divides each global batch between the ranks, for this one."""

    rank: int
    ranks: int
    batch: int
    micro: int

    @property
    def micro_batches(self) -> int:
        return self.batch // (self.micro * self.ranks)

    def indices(self, step: int) -> Iterator[list[int]]:
        """The numbers of this rank's samples in a step, a list for each micro batch."""
        for index in range(self.micro_batches):
            start = (step - 1) * self.batch
            start += (self.rank * self.micro_batches + index) * self.micro
            yield list(range(start, start + self.micro))


class Program:
    """A program of ``jobs``: its model, and the losses of this rank's micro batches of a step.

    Attributes
    ----------
    units
        Tokens of a sample, or 1 where samples are images: for the speed in the log.
    """

    model: Any
    units: int

    def __init__(self, config: dict[str, Any], share: Share) -> None:
        import torch

        self.config, self.share = config, share
        torch.manual_seed(config["seed"])
        self.prepare()

    def prepare(self) -> None:
        """Make the model and read the data."""
        raise NotImplementedError

    def losses(self, engine: Any, step: int) -> Iterator[Any]:
        """Yield the loss of each micro batch; the caller goes back through it before the next."""
        raise NotImplementedError

    def read(self, dataset: Any) -> Iterator[Any]:
        """Yield this rank's micro batches, epoch after epoch, as torch shuffles them."""
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler

        share = self.share
        sampler: Any = DistributedSampler(
            dataset, share.ranks, share.rank, seed=self.config["seed"]
        )
        loader: Any = DataLoader(dataset, share.micro, sampler=sampler, drop_last=True)
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            yield from loader
            epoch += 1


class LanguageModel(Program):
    """``jobs/language_model.py``: the model returns its loss."""

    def prepare(self) -> None:
        import language_model

        self.units = self.config["model"]["context"]
        text = language_model.read_text(self.config["data_bytes"])
        self.text = text[: -len(text) // 20]
        self.model = language_model.LanguageModel(**self.config["model"])

    def losses(self, engine: Any, step: int) -> Iterator[Any]:
        from language_model import sample

        for indices in self.share.indices(step):
            text = sample(self.text, self.config["seed"], indices, self.units)
            yield engine(text.to(engine.device))


class CausalLanguageModel(Program):
    """``jobs/causal_language_model.py``, not divided."""

    def prepare(self) -> None:
        import causal_language_model

        self.units = self.config["context"]
        tokens, vocabulary = causal_language_model.read_tokens(SimpleNamespace(**self.config))
        self.tokens = tokens[: -len(tokens) // 20]
        self.model = causal_language_model.build_layers(
            **self.config["model"], vocabulary=vocabulary
        )

    def losses(self, engine: Any, step: int) -> Iterator[Any]:
        from causal_language_model import cross_entropy, windows

        for indices in self.share.indices(step):
            inputs, labels = windows(self.tokens, self.config["seed"], indices, self.units)
            yield cross_entropy(engine(inputs.to(engine.device)), labels.to(engine.device))


class MaskedLanguageModel(Program):
    """``jobs/masked_language_model.py``; masks are drawn from torch's generator as it goes."""

    def prepare(self) -> None:
        import masked_language_model

        self.units = self.config["model"]["context"]
        training, _ = masked_language_model.read_text(self.config["data_bytes"])
        self.model = masked_language_model.MaskedLanguageModel(**self.config["model"])
        self.batches = self.read(masked_language_model.Windows(training, self.units))

    def losses(self, engine: Any, step: int) -> Iterator[Any]:
        from masked_language_model import loss_of

        smoothing = self.config["label_smoothing"]
        for _ in range(self.share.micro_batches):
            shown, wanted = (part.to(engine.device) for part in next(self.batches))
            yield loss_of(engine(shown), wanted, label_smoothing=smoothing)


class ImageClassification(Program):
    """``jobs/image_classification.py``; images are moved by torch's generator as it goes."""

    units = 1

    def prepare(self) -> None:
        from image_classification import Digits, Network, read_images

        images, labels, *_ = read_images()
        self.model = Network(**self.config["model"])
        self.batches = self.read(Digits(images, labels))

    def losses(self, engine: Any, step: int) -> Iterator[Any]:
        from torch.nn import functional

        smoothing = self.config["label_smoothing"]
        for _ in range(self.share.micro_batches):
            inputs, wanted = (part.to(engine.device) for part in next(self.batches))
            yield functional.cross_entropy(engine(inputs), wanted, label_smoothing=smoothing)


class Plain:
    """A model under torch's FSDP2 or DDP, and all that a script does around it by hand.

    Parameters
    ----------
    model
        Of ``jobs/language_model.py``.
    config
        Says which (``engine``), and the schedule: steps of its warm-up, and of the run.
    settings
        DeepSpeed's, of which the optimizer's arguments and the clipping are taken.
    micro_batches
        Of an optimizer step.
    """

    def __init__(
        self, model: Any, config: dict[str, Any], settings: dict[str, Any], micro_batches: int
    ) -> None:
        import torch
        from torch.distributed.fsdp import fully_shard

        self.is_sharded = config["engine"] == "fully_shard"
        if self.is_sharded:
            for block in model.blocks:
                fully_shard(block)
            self.model = fully_shard(model)
        else:
            self.model = torch.nn.parallel.DistributedDataParallel(model)
        self.device = next(model.parameters()).device
        given = settings["optimizer"]["params"]
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=given["lr"], betas=given["betas"]
        )
        warmup, total = config["warmup"], config["total_steps"]

        def rate(step: int) -> float:
            if step < warmup:
                return float((step + 1) / warmup)
            return max(0.0, 1 - (step - warmup) / (total - warmup))

        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.clipping, self.micro_batches = settings["gradient_clipping"], micro_batches
        self.done = 0

    def __call__(self, text: Any) -> Any:
        if self.micro_batches > 1:
            is_last = self.done % self.micro_batches == self.micro_batches - 1
            if self.is_sharded:
                self.model.set_requires_gradient_sync(is_last)
            else:
                self.model.require_backward_grad_sync = is_last
        return self.model(text)

    def backward(self, loss: Any) -> None:
        (loss / self.micro_batches).backward()

    def step(self) -> None:
        from torch.nn.utils import clip_grad_norm_

        self.done += 1
        if self.done % self.micro_batches == 0:
            clip_grad_norm_(self.model.parameters(), self.clipping)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()


PROGRAMS: dict[str, type[Program]] = {
    "language_model": LanguageModel,
    "causal_language_model": CausalLanguageModel,
    "masked_language_model": MaskedLanguageModel,
    "image_classification": ImageClassification,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed-config", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--loss", choices=["rank0", "average"], default="rank0")
    arguments = parser.parse_args()

    rank = int(os.environ["SLURM_PROCID"])
    world_size = int(os.environ["SLURM_NTASKS"])
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(world_size)
    os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]

    import torch
    from turns import Turns

    # Said by torch 2.13 about a call of DeepSpeed's at every collective of ZeRO.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    config = json.loads(arguments.config.read_text())
    settings = json.loads(arguments.deepspeed_config.read_text())
    turns = Turns(config["turns"], "bare")

    batch = settings["train_batch_size"]
    share = Share(rank, world_size, batch, settings["train_micro_batch_size_per_gpu"])
    program = PROGRAMS[config["program"]](config, share)
    engine: Any
    if config.get("engine", "deepspeed") == "deepspeed":
        import deepspeed

        deepspeed.init_distributed()
        engine, _, _, scheduler = deepspeed.initialize(
            model=program.model,
            model_parameters=list(program.model.parameters()),
            config=settings,
        )
    else:
        torch.distributed.init_process_group("gloo")
        engine = Plain(program.model, config, settings, share.micro_batches)
        scheduler = engine.scheduler

    # One tensor of them all, as in training_hpcrun.py.
    all_losses: Any = None
    # Of all ranks, one opens the file: on NFS, the others' handles may be stale.
    with open(arguments.log if rank == 0 else os.devnull, "w", buffering=1) as log:
        for step in range(1, config["total_steps"] + 1):
            turns.at(step)
            began = time.perf_counter()
            losses = []
            for loss in program.losses(engine, step):
                engine.backward(loss)
                engine.step()
                losses.append(loss.detach())
            seconds = time.perf_counter() - began
            mean = torch.stack(losses).mean()
            if all_losses is None:
                all_losses = mean.new_empty(config["total_steps"])
            all_losses[step - 1] = mean
            if arguments.loss == "average":
                mean = mean.clone()
                torch.distributed.all_reduce(mean)
                mean /= world_size
            if rank == 0:
                rate, speed = scheduler.get_last_lr()[0], batch * program.units / seconds
                log.write(f"step {step} loss {mean.item():.6f} lr {rate:.3e} {speed:.0f} /s\n")
    turns.finish(losses=all_losses.tolist())


if __name__ == "__main__":
    main()
