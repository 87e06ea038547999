"""Loss curves of precisions and of cheaper communication beside fp32's: two ranks, gloo.

``python -m bench.precision --output bench/results`` trains one small language model on this
machine's standard library, 200 steps of each variant from the same weights on the same samples.
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpcrun.run.node.rendezvous_port import PortReservation
from hpcrun.run.rank.replica_engine import ReplicaEngine

RANKS, STEPS, MICRO, CONTEXT, WIDTH = 2, 200, 4, 32, 32
RATE = 3e-3
DEEPSPEED: dict[str, dict[str, Any]] = {
    "fp32, ZeRO 1": {"zero_optimization": {"stage": 1}},
    "bf16, ZeRO 1": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}},
    "bf16 gradients sent, ZeRO 1": {
        "zero_optimization": {"stage": 1},
        "communication_data_type": "bf16",
    },
    "fp16 by torch_autocast, ZeRO 0": {"torch_autocast": {"enabled": True, "dtype": "float16"}},
    "fp16 by torch_autocast, ZeRO 1": {
        "zero_optimization": {"stage": 1},
        "torch_autocast": {"enabled": True, "dtype": "float16"},
    },
}
REPLICAS: dict[str, dict[str, Any]] = {
    "fp32, DDP": {},
    "DDP, hook fp16": {"hook": "fp16"},
    "DDP, hook powersgd": {"hook": "powersgd"},
    "average every 8": {"every": 8, "outer": "average"},
    "diloco every 8": {"every": 8, "outer": "diloco"},
}


class Model(nn.Module):
    """A causal transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the next bytes of (batch, context + 1) whole numbers."""
        x = self.bytes(text[:, :-1]) + self.places.weight[: text.shape[1] - 1]
        mask = torch.full((CONTEXT, CONTEXT), float("-inf"), dtype=x.dtype).triu(1)
        out = self.head(self.layers(x, mask=mask))
        return functional.cross_entropy(out.flatten(0, 1).float(), text[:, 1:].flatten())


def samples(text: torch.Tensor, seed: int, count: int) -> torch.Tensor:
    """Return ``count`` stretches of the text, (count, context + 1)."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - CONTEXT - 1, (count,), generator=generator)
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts]).long()


def engine_of(name: str) -> Any:
    """Return the engine of a variant, its weights the same in all."""
    torch.manual_seed(0)
    model = Model()
    if name in REPLICAS:
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
        return ReplicaEngine(model, optimizer, **REPLICAS[name])
    import deepspeed

    config = {
        "train_batch_size": MICRO * RANKS,
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_clipping": 0.0,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": RATE, "weight_decay": 0.01, "torch_adam": True},
        },
        **DEEPSPEED[name],
    }
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def train(name: str, rank: int, text: torch.Tensor, held_out: torch.Tensor) -> dict[str, Any]:
    """Train a variant; its losses (means over the ranks) every ten steps, and the held-out one."""
    engine, curve, recent = engine_of(name), [], torch.zeros(())
    began = time.perf_counter()
    for step in range(1, STEPS + 1):
        mine = samples(text, step, MICRO * RANKS).chunk(RANKS)[rank]
        loss = engine(mine)
        engine.backward(loss)
        engine.step()
        recent += loss.detach().float() / 10
        if step % 10 == 0:
            torch.distributed.all_reduce(recent)
            curve.append(round(recent.item() / RANKS, 5))
            recent.zero_()
    seconds = time.perf_counter() - began
    with torch.no_grad():
        final = torch.stack([engine(part).float() for part in held_out.split(MICRO)]).mean()
    return {"loss": curve, "held_out": round(final.item(), 5), "seconds": round(seconds, 1)}


def work(rank: int, port: int, output: Path) -> None:
    """Train all variants, one after the other, as one of the ranks."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), DS_ACCELERATOR="cpu")
    torch.set_num_threads(1)
    import deepspeed

    deepspeed.init_distributed("gloo")
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    data = b"".join(path.read_bytes() for path in files)
    text = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    split = len(text) * 9 // 10
    held_out = samples(text[split:], 0, 64)
    found = {}
    for name in (*DEEPSPEED, *REPLICAS):
        found[name] = train(name, rank, text[:split], held_out)
        if rank == 0:
            last = found[name]
            print(f"{name:32} {last['loss'][-1]:.4f} held out {last['held_out']:.4f}", flush=True)
    if rank == 0:
        result = {
            "ranks": RANKS,
            "steps": STEPS,
            "samples_of_a_step": MICRO * RANKS,
            "context": CONTEXT,
            "parameters": sum(one.numel() for one in Model().parameters()),
            "bytes_of_text": len(data),
            "torch": torch.__version__,
            "deepspeed": deepspeed.__version__,
            "variants": found,
        }
        (output / "precision.json").write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="directory of the results")
    output = parser.parse_args().output
    port = PortReservation(os.getpid())
    number = port.port
    port.release()
    torch.multiprocessing.spawn(work, (number, output), nprocs=RANKS)


if __name__ == "__main__":
    main()
