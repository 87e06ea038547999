"""A small model of FSDP2, with dropout where its spec says so."""

import time

import torch
from torch import nn


def train(session):
    config = session.config
    torch.manual_seed(session.rank)
    dropout = float(config.dropout)
    blocks = [
        nn.Sequential(nn.Linear(16, 32), nn.Dropout(dropout), nn.Linear(32, 16)) for _ in range(3)
    ]
    engine = session.fully_shard(nn.Sequential(*blocks), loss=nn.functional.mse_loss)
    session.restore(engine)

    def read(samples):
        inputs = [torch.randn(16, generator=torch.Generator().manual_seed(n)) for n in samples]
        return torch.stack(inputs), torch.stack(inputs).flip(1)

    for step in session.steps(total=int(config.total_steps)):
        session.log({"loss": session.train_batch(step, read)}, step)
        time.sleep(float(config.pause))
