"""An Accelerate loop with the flags of its own examples, on synthetic data."""

import argparse
import time

import torch
from accelerate import Accelerator


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--checkpointing_steps", type=int, default=10)
    parser.add_argument("--resume_from_checkpoint")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.0)
    arguments = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(256, 8)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    if arguments.resume_from_checkpoint:
        accelerator.load_state(arguments.resume_from_checkpoint)
        step = int(arguments.resume_from_checkpoint.rstrip("/").rpartition("_")[2])
    accelerator.print(f"ranks {accelerator.num_processes}, from step {step}", flush=True)
    while step < arguments.steps:
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            time.sleep(arguments.pause)
            accelerator.print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step % arguments.checkpointing_steps == 0:
                accelerator.save_state(f"{arguments.output_dir}/step_{step}")
            if step == arguments.steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
