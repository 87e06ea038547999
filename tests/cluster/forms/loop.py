"""An existing loop with three lines of hpcrun in it."""

import argparse

import deepspeed
from problem import build_model, pause, read
from torch.nn import functional

import hpcrun

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, required=True)
parser.add_argument("--total_steps", type=int, required=True)
parser.add_argument("--pause", type=float, default=0)
parser.add_argument("--deepspeed", required=True)
options = parser.parse_args()


class Loader:
    """A data loader of one's own, whose position has to come back."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        first = (self.position * session.world_size + session.rank) * micro
        self.position += 1
        return read(list(range(first, first + micro)))

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


model = build_model(options.width)
engine, _, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=options.deepspeed
)
micro = engine.train_micro_batch_size_per_gpu()
loader = Loader()

session = hpcrun.session(total_steps=options.total_steps)
session.restore(engine, loader=loader)
while engine.global_steps < options.total_steps:
    inputs, targets = next(loader)
    loss = functional.mse_loss(engine(inputs), targets)
    engine.backward(loss)
    engine.step()
    pause(options.pause)
    session.step({"loss": loss.detach()})
