"""The starter project's training: a small network learns what another one computes.

Put your own model and data into `build_model` and `batch`, and your loss into `train`; the rest
may stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    import hpcrun


def network(width: int) -> nn.Module:
    """Return a small network: 16 numbers in, one out."""
    return nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 1))


def build_model(config: Any) -> nn.Module:
    """Return your model. `hpcrun estimate` makes it too, without memory, to say what fits."""
    return network(config.width)


def sample_batch(config: Any, micro_batch: int) -> Tensor:
    """Return what the model is called with, in shape, for `hpcrun estimate`."""
    return torch.zeros(micro_batch, 16)


def batch(indices: list[int], teacher: nn.Module) -> tuple[Tensor, Tensor]:
    """Return inputs (len(indices), 16) and targets (len(indices), 1) of these samples.

    A sample depends on its index alone, so that a run that goes on sees what it would have seen.
    """
    rows = [torch.randn(16, generator=torch.Generator().manual_seed(index)) for index in indices]
    inputs = torch.stack(rows)
    with torch.no_grad():
        return inputs, teacher(inputs)


def train(session: hpcrun.Session) -> None:
    """Train to ``config.total_steps``; each rank of each node calls this once."""
    config = session.config
    torch.manual_seed(0)
    teacher = network(8)
    torch.manual_seed(session.seed)
    model = build_model(config)
    engine, *_ = session.initialize(model=model, model_parameters=list(model.parameters()))
    session.restore(engine)  # where this run was stopped, if it was

    for step in session.steps(total=config.total_steps):
        losses = []
        for indices in session.micro_batches(step):
            inputs, targets = batch(indices, teacher)
            outputs = engine(inputs.to(engine.device))
            loss = nn.functional.mse_loss(outputs, targets.to(engine.device))
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        session.log({"loss": torch.stack(losses).mean()}, step=step)
        if session.rank == 0 and step % 20 == 0:
            print(f"step {step}/{config.total_steps}: loss {losses[-1].item():.4f}", flush=True)
