"""What the ranks of `bench.on_gpu` run: the causal language model of ``jobs``, hurt or measured.

`train` is an ordinary training through the session, which may be told to die, or to run out of
memory. `measure` makes one engine after the other in one process, and times and weighs each.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import sysconfig
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import causal_language_model as causal
import torch
from torch import Tensor, nn

import hpcrun

# What a GPU says; on processors it is said in its place.
NO_MEMORY = (
    "CUDA out of memory. Tried to allocate 98.25 GiB. GPU 0 has a total capacity of 79.18 GiB of "
    "which 60.01 GiB is free. (a stand-in of bench.on_gpu, as this rank has no GPU)"
)


class Trained(nn.Module):
    """The layers of the job, and the loss: tokens in, mean nats per token out."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layers = causal.build_layers(**config["model"], vocabulary=config["vocabulary"])

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, context + 1) -> scalar."""
        *body, norm, unembed = self.layers
        x = tokens[:, :-1]
        for layer in body:
            x = layer(x)
        return self.end(norm, unembed, x, tokens[:, 1:])

    def end(self, norm: nn.Module, unembed: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss from what the last block gives."""
        return causal.cross_entropy(unembed(norm(x)), labels)

    def compile_parts(self, backend: str) -> None:
        """Compile a block for all of them, which are alike, and the end with the loss."""
        for layer in self.layers:
            if isinstance(layer, causal.Block):
                layer.compile(backend=backend, dynamic=False)
        self.end = torch.compile(self.end, backend=backend, dynamic=False)  # type: ignore[method-assign]


def build_model(config: Any) -> Trained:
    """Return the model of a configuration; `hpcrun estimate` counts it on the meta device."""
    return Trained(config)


def sample_batch(config: Any, micro_batch: int) -> Tensor:
    """Return what the model is called with, in shape."""
    return torch.zeros((micro_batch, config["context"] + 1), dtype=torch.int64)


def read_tokens(limit: int, vocabulary: int) -> Tensor:
    """Return the standard library's modules, two bytes a token, as a tokenizer needs a file."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= 2 * limit:
            break
    pairs = torch.frombuffer(text[: 2 * limit], dtype=torch.uint8).long()
    return (pairs[0::2] * 128 + pairs[1::2]) % vocabulary


def windows(tokens: Tensor, seed: int, indices: list[int], context: int) -> Tensor:
    """Return windows of ``context + 1`` tokens."""
    inputs, labels = causal.windows(tokens, seed, indices, context)
    return torch.cat((inputs, labels[:, -1:]), dim=1)


def train(session: hpcrun.Session) -> None:
    """Train to ``config.total_steps``.

    At ``config.kill_at`` the first attempt kills itself. Micro batches above
    ``config.stand_in_above`` are too large for a rank without a GPU. After ``config.save_plainly``
    steps DeepSpeed's own save is timed.
    """
    config = session.config
    torch.use_deterministic_algorithms(config.deterministic)
    # DeepSpeed's buckets, a gigabyte at each step; nothing reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False
    tokens = read_tokens(config.tokens, config.vocabulary)
    torch.manual_seed(session.seed)
    with session.device:
        model = build_model(config)
    engine = make_engine(session, config.engine, model)
    session.restore(engine)
    micro = session.deepspeed_config["train_micro_batch_size_per_gpu"]
    if session.device.type == "cpu" and micro > config.stand_in_above:
        raise torch.OutOfMemoryError(NO_MEMORY)
    for step in session.steps(total=config.total_steps):
        if step == config.kill_at and session.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        losses = []
        for indices in session.micro_batches(step):
            batch = windows(tokens, session.seed, indices, config.context)
            loss = engine(batch.to(session.device))
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        session.log({"loss": torch.stack(losses).mean()}, step)
        if step == config.save_plainly:
            session.log({"plain_save": saved_plainly(engine, session.directory)}, step)


def make_engine(session: hpcrun.Session, engine: str, model: Trained, **config: Any) -> Any:
    """Return an engine of the model: ``deepspeed``, whose configuration may differ, or FSDP2's."""
    if engine == "fully_shard":
        return session.fully_shard(model)
    made, *_ = session.initialize(model=model, model_parameters=list(model.parameters()), **config)
    return made


def saved_plainly(engine: Any, directory: Path) -> float:
    """Return the seconds of DeepSpeed's own save, with fsync of what it wrote."""
    settle()
    target, began = directory / "plain", time.perf_counter()
    engine.save_checkpoint(str(target), tag="step", save_latest=False)
    for path in (target / "step").iterdir():
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
    seconds = time.perf_counter() - began
    shutil.rmtree(target)
    return seconds


def measure(session: hpcrun.Session) -> None:
    """Write a line for each of ``config.cases`` as soon as it is measured, or has failed."""
    kept = _tensors(session.device)
    with open(session.directory / "cases.jsonl", "a") as lines:
        for case in session.config.to_dict()["cases"]:
            try:
                found = measured(session, case)
            except Exception as error:  # the others go on
                found = {"error": str(error).strip() or type(error).__name__}
                traceback.print_exc()
            lines.write(json.dumps({"name": case["name"], **found}) + "\n")
            lines.flush()
            torch._dynamo.reset()
            gc.collect()
            if session.device.type == "cuda":
                _release(session.device, kept)
                torch.cuda.empty_cache()


def _tensors(device: torch.device) -> dict[int, Tensor]:
    """Return all plain tensors of a device by their ids."""
    gc.collect()
    # By their types: isinstance would ask proxies of what is gone.
    found = [one for one in gc.get_objects() if type(one) in (Tensor, nn.Parameter)]
    return {id(one): one for one in found if one.device.type == device.type}


def _release(device: torch.device, kept: dict[int, Tensor]) -> None:
    """Free all tensors of a GPU but ``kept``: hooks and the session hold an engine for longer.

    One that is still there would count in the peak of the next case. Not those of processors, which
    modules of torch have, too, that are imported as they are needed.
    """
    for key, one in _tensors(device).items():
        if key not in kept:
            with contextlib.suppress(RuntimeError):  # memory that torch did not allocate
                one.untyped_storage().resize_(0)


def measured(session: hpcrun.Session, case: dict[str, Any]) -> dict[str, Any]:
    """Return seconds a step, twice, and the peak of memory, of one engine."""
    on_gpu = session.device.type == "cuda"
    before = torch.cuda.memory_allocated() if on_gpu else 0
    torch.manual_seed(session.seed)
    with session.device:
        model = build_model(case)
    parameters = sum(one.numel() for one in model.parameters())
    config = {**session.deepspeed_config, **case["deepspeed"]}
    began = time.perf_counter()
    engine = make_engine(session, case["engine"], model, config=config)
    if case["compile"]:
        model.compile_parts(case["compile"])
    micro, context = config["train_micro_batch_size_per_gpu"], case["context"]
    tokens = read_tokens(500_000, case["vocabulary"])
    batches = endless([
        windows(tokens, 0, [*range(micro * k, micro * (k + 1))], context).to(session.device)
        for k in range(4)
    ])  # fmt: skip
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()

    def steps(count: int) -> tuple[float, float]:
        """Return seconds a step, and the last loss."""
        settle()
        start = time.perf_counter()
        for _ in range(count):
            loss = engine(next(batches))
            engine.backward(loss)
            engine.step()
        settle()
        return (time.perf_counter() - start) / count, float(loss)

    _, first = steps(1)
    steps(case["warm_up"])
    ready = time.perf_counter() - began
    times = [steps(case["steps"]) for _ in range(2)]
    found = {
        "parameters": parameters,
        "tokens": micro * context,
        "ready_seconds": ready,
        "step_seconds": [seconds for seconds, _ in times],
        "losses": [first, times[-1][1]],
        "allocated_before": before,
        "peak": torch.cuda.max_memory_allocated() if on_gpu else None,
        "optimizer": type(getattr(engine.optimizer, "optimizer", engine.optimizer)).__name__,
        "fp8_layers": sum(type(one).__name__ == "Float8Linear" for one in model.modules()),
    }
    if case["engine"] == "deepspeed":
        engine.destroy()
    return found


def endless(batches: list[Tensor]) -> Iterator[Tensor]:
    """Yield batches over and over."""
    while True:
        yield from batches


def settle() -> None:
    """Wait for what the GPU still has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
