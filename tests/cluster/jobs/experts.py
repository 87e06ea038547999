"""A causal language model of bytes whose feed-forward layers are mixtures of experts."""

import time
from functools import partial

import torch
from causal_language_model import BYTES, attend, cross_entropy, read_tokens, windows
from torch import nn

import hpcrun


def expert(width):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    def __init__(self, width, heads, experts):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        # Dropped tokens and random ones would depend on what else a rank has.
        options = {"k": 1, "drop_tokens": False, "use_rts": False}
        self.moe = hpcrun.expert_layer(width, partial(expert, width), experts, **options)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.into(self.norms[0](x)).view(batch, length, 3 * self.heads, -1)
        x = x + self.out(attend(*parts.chunk(3, dim=2)).reshape(batch, length, width))
        found, auxiliary, _ = self.moe(self.norms[1](x))
        return x + found, auxiliary


class Model(nn.Module):
    def __init__(self, layers, width, heads, experts):
        super().__init__()
        self.embed, self.unembed = nn.Embedding(BYTES, width), nn.Linear(width, BYTES)
        self.blocks = nn.ModuleList(Block(width, heads, experts) for _ in range(layers))

    def forward(self, tokens, labels):
        x, balance = self.embed(tokens), 0.0
        for block in self.blocks:
            x, auxiliary = block(x)
            balance = balance + auxiliary
        return cross_entropy(self.unembed(x), labels) + 0.01 * balance


def train(session):
    config = session.config
    tokens, _ = read_tokens(config)
    torch.manual_seed(session.seed)
    model = Model(**config.model)
    engine, *_ = session.initialize(model=model, model_parameters=list(model.parameters()))
    session.restore(engine)

    def read(indices):
        return windows(tokens, session.seed, indices, config.context)

    for step in session.steps(total=config.total_steps):
        session.log({"loss": session.train_batch(step, read)}, step)
        time.sleep(config.pause)
