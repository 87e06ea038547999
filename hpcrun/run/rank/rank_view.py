"""What a rank knows of the attempt that it belongs to, and which samples are its own."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcrun.run.protocol.launch import Launch
from hpcrun.run.rank import process_groups, samples
from hpcrun.run.rank.config import Config
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
        self._engine: Any = None

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

    def micro_batches(self, step: int) -> Iterator[list[int]]:
        """Yield this rank's samples of global batch ``step``; see `hpcrun.run.rank.samples`."""
        sizes = samples.batch_sizes(self._spec.deepspeed, self._engine)
        return samples.micro_batches(
            sizes, step, self.rank, self.world_size, process_groups.data_rank
        )
