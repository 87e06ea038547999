"""Optimizer steps are counted in programs that know nothing of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HEAD = f"""
import contextlib, sys
sys.path.insert(0, {str(ROOT)!r})
from hpcrun.run.profile.step_hooks import StepHooks

class Listener:
    taken = 0
    asked = []
    def stepping(self, optimizer, engine):
        self.asked.append((type(optimizer).__name__, engine is not None))
    def stepped(self):
        self.taken += 1
    def range(self, name):
        return contextlib.nullcontext()

listener = Listener()
StepHooks(listener).install()
assert "torch" not in sys.modules
"""


def _run(program: str, directory: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_first_optimizer_counts(tmp_path: Path) -> None:
    program = """
import torch
first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
one = torch.optim.SGD(first.parameters())
other = torch.optim.AdamW(second.parameters())
for _ in range(3):
    first(torch.ones(2)).sum().backward()
    second(torch.ones(2)).sum().backward()
    one.step()
    other.step()
print(listener.taken, {name for name, _ in listener.asked})
"""
    assert _run(program, tmp_path) == ["3 {'SGD'}"]


def test_an_engines_step_counts_once(tmp_path: Path) -> None:
    """However often it steps the optimizer inside; what it is hooked by is DeepSpeed's own."""
    program = """
import deepspeed.runtime.engine as engine, torch
own = engine.DeepSpeedEngine
assert own._take_model_step.__wrapped__ and own.forward.__wrapped__ and own.backward.__wrapped__
from deepspeed.runtime.pipe.engine import PipelineEngine
assert "_take_model_step" not in vars(PipelineEngine)

layer = torch.nn.Linear(2, 2)
inner = torch.optim.SGD(layer.parameters())
class Made(own):
    def __init__(self):
        pass
    def __del__(self):
        pass
hooked = own._take_model_step
def step_groups(self, *_):
    inner.step()
    inner.step()
from hpcrun.run.profile.step_hooks import StepHooks
class Fake:
    class DeepSpeedEngine:
        _take_model_step = step_groups
        forward = backward = id
hooks = StepHooks(listener)
hooks._hook_optimizers(sys.modules["torch.optim.optimizer"])
listener.taken = 0
hooks._hook_engine(Fake)
import torch.optim.optimizer as module
module._global_optimizer_post_hooks.popitem(last=False)
module._global_optimizer_pre_hooks.popitem(last=False)
made = Fake.DeepSpeedEngine()
for _ in range(2):
    made._take_model_step()
print(listener.taken, listener.asked)
"""
    said = _run(program, tmp_path)[-1]
    assert said == "2 [('SGD', True), ('SGD', True), ('SGD', True), ('SGD', True)]"
