"""The peer: the same training as a script of DeepSpeed and srun, without hpcrun.

Written as careful people write it: environment from SLURM_*, ``deepspeed.initialize`` with a JSON
file, the same data in the same order, and each step's loss, learning rate and tokens per second in
a file that rank 0 writes. By default the loss is rank 0's own, as in most such scripts;
``--loss average`` averages it over ranks first, which hpcrun does too.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path


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

    import deepspeed
    import torch
    from language_model import LanguageModel, read_text, sample
    from turns import Turns

    # Said by torch 2.13 about a call of DeepSpeed's at every collective of ZeRO.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    config = json.loads(arguments.config.read_text())
    settings = json.loads(arguments.deepspeed_config.read_text())
    turns = Turns(config["turns"], "bare")

    context, seed = config["model"]["context"], config["seed"]
    text = read_text(config["data_bytes"])
    text = text[: -len(text) // 20]
    torch.manual_seed(seed)
    model = LanguageModel(**config["model"])
    deepspeed.init_distributed()
    engine, _, _, scheduler = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=settings
    )
    batch = settings["train_batch_size"]
    micro = settings["train_micro_batch_size_per_gpu"]
    accumulation = settings["gradient_accumulation_steps"]

    all_losses = []
    with open(arguments.log, "w", buffering=1) as log:
        for step in range(1, config["total_steps"] + 1):
            turns.at(step)
            began = time.perf_counter()
            losses = []
            for index in range(accumulation):
                start = (step - 1) * batch + (rank * accumulation + index) * micro
                indices = list(range(start, start + micro))
                loss = engine(sample(text, seed, indices, context).to(engine.device))
                engine.backward(loss)
                engine.step()
                losses.append(loss.detach())
            seconds = time.perf_counter() - began
            mean = torch.stack(losses).mean()
            all_losses.append(mean)
            if arguments.loss == "average":
                mean = mean.clone()
                torch.distributed.all_reduce(mean)
                mean /= world_size
            if rank == 0:
                rate, speed = scheduler.get_last_lr()[0], batch * context / seconds
                log.write(f"step {step} loss {mean.item():.6f} lr {rate:.3e} {speed:.0f} tok/s\n")
    turns.finish(losses=[float(loss) for loss in all_losses])


if __name__ == "__main__":
    main()
