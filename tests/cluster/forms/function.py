"""An entry that is a function."""

import torch
from problem import build_model, pause, read
from torch.nn import functional


def train(session):
    config = session.config
    model = build_model(config.model.width)
    engine, _, _, scheduler = session.initialize(model=model, model_parameters=model.parameters())
    session.restore(engine)
    for step in session.steps(total=config.total_steps):
        losses = []
        for indices in session.micro_batches(step):
            inputs, targets = read(indices)
            loss = functional.mse_loss(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        pause(config.pause)
        session.log(
            {"loss": torch.stack(losses).mean(), "lr": scheduler.get_last_lr()[0]}, step=step
        )
