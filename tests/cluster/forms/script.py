"""An entry that is a plain DeepSpeed script with checkpoints of its own: no hpcrun in it."""

import argparse
import json
import os
import signal

import deepspeed
import torch
from problem import build_model, pause, read
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, required=True)
parser.add_argument("--total_steps", type=int, required=True)
parser.add_argument("--pause", type=float, default=0)
parser.add_argument("--output_dir", required=True)
parser.add_argument("--deepspeed", required=True)
parser.add_argument("--resume")
parser.add_argument("--verbose", action="store_true")
options = parser.parse_args()
assert options.verbose, "a flag that is true is given bare"

asked = []
signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
model = build_model(options.width)
engine, _, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=options.deepspeed
)
if options.resume == "latest":
    engine.load_checkpoint(options.output_dir)
micro = engine.train_micro_batch_size_per_gpu()
while engine.global_steps < options.total_steps:
    step, accumulation = engine.global_steps, engine.gradient_accumulation_steps()
    for index in range(accumulation):
        first = ((step * accumulation + index) * world_size + rank) * micro
        inputs, targets = read(list(range(first, first + micro)))
        loss = functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
    pause(options.pause)
    if rank == 0:
        with open(os.environ["HPCRUN_METRICS_FILE"], "a") as stream:
            stream.write(json.dumps({"step": engine.global_steps, "loss": loss.item()}) + "\n")
    if engine.global_steps % 5 == 0:
        engine.save_checkpoint(options.output_dir)
    stop = torch.tensor(len(asked))
    torch.distributed.all_reduce(stop)
    if stop and engine.global_steps < options.total_steps:
        engine.save_checkpoint(options.output_dir)
        break
print(f"rank {rank} reached step {engine.global_steps}")
