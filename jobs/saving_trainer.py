"""A training loop that saves by itself, in whole files: the trainer of docs/roles.md."""

import argparse
import os
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--every", type=int, default=20)
options = parser.parse_args()
torch.manual_seed(0)
model, out = torch.nn.Linear(8, 1), Path("out")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
out.mkdir(exist_ok=True)
first = 0
if saved := sorted(out.glob("step-*.pt")):
    state = torch.load(saved[-1])
    model.load_state_dict(state["model"])
    first = state["step"]
for step in range(first + 1, options.steps + 1):
    x = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
    if step % options.every == 0:
        torch.save({"step": step, "model": model.state_dict()}, out / "new")
        os.replace(out / "new", out / f"step-{step:06d}.pt")
(out / "done").touch()
