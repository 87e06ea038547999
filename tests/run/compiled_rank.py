"""One rank that trains a model of two blocks in any of the ways of `test_model_blocks`."""

from __future__ import annotations

import os
from typing import Any

import deepspeed
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from hpcrun.run.rank import model_blocks, sharded_engine
from hpcrun.run.rank.replica_engine import ReplicaEngine
from hpcrun.state.spec.run_blocks import Optimization
from tests.run.rank import RANK, WORLD, main
from tests.run.sharded_rank import ShardedRank
from tests.run.two_blocks import CLIPPING, MICRO, RATE, Blocks, samples


class CompiledRank(ShardedRank):
    """A rank that does more of what it is told."""

    def way(
        self,
        engine: str,
        options: dict[str, Any],
        cache: str,
        *,
        half: bool = False,
        accumulation: int = 1,
        recomputes: str = "",
        compiled: bool = False,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Begin with an engine; ``options`` are its own."""
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(seed)
        model, wanted = Blocks(dropout, recomputes), Optimization(compile=compiled)
        device, batch = torch.device("cpu"), MICRO * WORLD * accumulation
        params = {"lr": RATE, "weight_decay": 0.01, "torch_adam": True}
        config: dict[str, Any] = {
            "train_batch_size": batch,
            "train_micro_batch_size_per_gpu": MICRO,
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": CLIPPING,
            "optimizer": {"type": "AdamW", "params": params},
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": half},
        }
        own = {"accumulation": accumulation, "train_batch": batch, "gradient_clipping": CLIPPING}
        self._dtype, self._others, self._accumulation = torch.float32, {}, accumulation
        if engine == "fully_shard":
            options = {**own, **options, "half": half}
            self._engine = sharded_engine.make(model, None, config, wanted, device, **options)
            return
        model_blocks.compile_each(model, wanted, device)
        if engine == "replicas":
            optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
            self._engine = ReplicaEngine(model, optimizer, **own, **options)
            return
        self._dtype = torch.bfloat16 if half else torch.float32
        self._engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=list(model.parameters()),
            config={**config, "zero_optimization": options},
        )

    def steps(self, number: int) -> list[float]:
        """Take optimizer steps on data that follow from them; the losses, over all ranks."""
        losses = []
        for _ in range(number):
            step = self._engine.global_steps
            torch.manual_seed(100 * step + RANK)
            total = 0.0
            for part in samples(step, self._accumulation).chunk(WORLD)[RANK].split(MICRO):
                x = part.to(self._dtype)
                loss = (self._engine(x).float() - x.flip(-1).float()).square().mean()
                self._engine.backward(loss)
                self._engine.step()
                total += loss.item() / self._accumulation
            both = torch.tensor(total)
            torch.distributed.all_reduce(both)
            losses.append(both.item() / WORLD)
        return losses

    def graphs(self) -> int:
        """Return the number of graphs that were compiled since the engine was made."""
        return int(counters["stats"]["unique_graphs"])

    def names(self) -> list[str]:
        """The names of what the model's state has."""
        return sorted(self._engine.module.state_dict())


if __name__ == "__main__":
    main(CompiledRank)
