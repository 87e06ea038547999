"""A model that shows whether anything was lost: dropout, momentum, a schedule, a forked helper.

Where ``config.fault`` says so, the first attempt that gets there does something bad; `phases` has
more places for that.
"""

import hashlib
import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time

import deepspeed
import torch
from phases import Phases
from torch.nn import functional


def train(session):
    config = session.config
    if config.get("compile_seconds"):
        subprocess.run(["sleep", str(config.compile_seconds)], check=True)
    phases = Phases(session)
    phases.reach("start-up")
    torch.manual_seed(int(config.seed))
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64),
        torch.nn.Tanh(),
        torch.nn.Dropout(float(config.get("dropout", 0.2))),
        torch.nn.Linear(64, 1),
    )
    # Longer than any run: `bench.false_alarms` trains for an hour.
    helper = multiprocessing.get_context("fork").Process(
        target=time.sleep, args=(86_400,), daemon=True
    )
    helper.start()
    engine, _, _, scheduler = session.initialize(model=model, model_parameters=model.parameters())
    phases.watch(engine)
    session.restore(engine, glutton=Glutton(session), phases=phases)
    for step in session.steps(total=int(config.total_steps)):
        phases.begin(step)
        misbehave(session, step)
        losses = []
        for indices in session.micro_batches(step):
            inputs = torch.stack([sample(index) for index in indices])
            loss = functional.mse_loss(engine(inputs), inputs.sum(1, keepdim=True))
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
            if len(losses) == 1:
                phases.reach("accumulation")
        value = torch.stack(losses).mean()
        if config.get("fault") == "nan" and step >= int(config.fault_step):
            value = value * float("nan")
        session.log({"loss": value, "lr": scheduler.get_last_lr()[0]}, step=step)
        if not helper.is_alive():
            raise RuntimeError(f"the forked helper died with {helper.exitcode}")
        time.sleep(float(config.pause))
        if config.get("lame_rank") == session.rank:
            time.sleep(float(config.lame_seconds))
    helper.terminate()
    helper.join()
    digest(session, engine)


def sample(index):
    return torch.randn(16, generator=torch.Generator().manual_seed(index))


def misbehave(session, step):
    """The fault of this spec, in the rank it names."""
    config = session.config
    kind = config.get("fault")
    if (
        not kind
        or step != int(config.fault_step)
        or session.rank != int(config.get("fault_rank", 0))
    ):
        return
    if kind == "always":
        raise ValueError("this cannot work")
    if kind == "memory" or (kind == "memory-once" and session.attempt == 1):
        take_all_memory()
    if session.attempt > 1 or kind == "nan":
        return
    if kind == "exception":
        raise ValueError("once is enough")
    if kind == "exit":
        sys.exit(3)
    if kind == "starve":
        queue.Queue().get()
    if kind == "loop":
        deadline = time.monotonic() + float(config.loop_seconds)
        while time.monotonic() < deadline:
            sum(range(1000))
    if kind in signal.Signals.__members__:
        os.kill(os.getpid(), getattr(signal, kind))


def take_all_memory():
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20)) * 64)


class Glutton:
    """A state of which the second save takes all memory, where the spec says so."""

    def __init__(self, session):
        named = session.rank == int(session.config.get("fault_rank", 0))
        self.hungry = named and session.config.get("fault") == "memory-in-save"
        self.hungry &= session.attempt == 1
        self.seconds = float(session.config.get("save_seconds", 0)) if named else 0
        self.saves = 0

    def state_dict(self):
        self.saves += 1
        time.sleep(self.seconds)
        if self.hungry and self.saves == 2:
            take_all_memory()
        return {}

    def load_state_dict(self, state):
        pass


def digest(session, engine):
    """The weights that this rank ended with."""
    parameters = list(engine.module.parameters())
    state = hashlib.sha256()
    # With ZeRO 3 each rank holds a part, which is padded with whatever the memory held.
    with deepspeed.zero.GatheredParameters(parameters):
        for parameter in parameters:
            state.update(parameter.detach().contiguous().numpy().tobytes())
    path = session.directory / f"digest-{session.rank}.json"
    path.write_text(json.dumps({"digest": state.hexdigest(), "attempt": session.attempt}))
