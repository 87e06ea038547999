"""A model of few weights whose activations need memory for each sample: ``config.width`` floats."""

import torch
from torch import nn

LAYERS = 8


class Hungry(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scales = nn.Parameter(torch.ones(LAYERS))
        self.width = width

    def forward(self, samples):
        held = samples[:, None].expand(-1, self.width)
        for scale in self.scales:
            held = torch.tanh(held * scale)
        return held.square().mean()


def train(session):
    config = session.config
    if config.get("fault") == "error":
        raise NameError("attention is not defined")
    model = Hungry(int(config.width))
    engine, *_ = session.initialize(model=model, model_parameters=model.parameters())
    session.restore(engine)
    for step in session.steps(total=int(config.total_steps)):
        for indices in session.micro_batches(step):
            samples = torch.tensor(indices, dtype=torch.float32) / 1000
            loss = engine(samples)
            engine.backward(loss)
            engine.step()
        session.log({"loss": loss}, step=step)
