"""One rank with a tiny DeepSpeed engine, told what to do line by line (see `ranks.Ranks`)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from hpcrun import shared_look
from hpcrun.errors import HpcrunError
from hpcrun.policy.retention import Retention
from hpcrun.run.checkpoint import checkpoint_files, init_weights
from hpcrun.run.checkpoint import restore as checkpoint
from hpcrun.run.checkpoint.node_copy import NodeCopies
from hpcrun.run.checkpoint.own_settings import OwnSettings
from hpcrun.run.checkpoint.restore import CheckpointStore
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.rank import rng
from hpcrun.run.rank.collectives import Collectives
from hpcrun.run.rank.replica_engine import ReplicaEngine
from hpcrun.state import manifest
from hpcrun.state.layout import RunPaths
from hpcrun.state.manifest import Fault, Manifest
from tests.run import operations

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Counter:
    """A state of the user's, different on each rank."""

    def __init__(self) -> None:
        self.count = RANK * 100

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Hooked(Counter):
    """One that knows what to do with the states of another number of ranks."""

    def load_state_dicts(self, states: list[dict[str, int]]) -> None:
        self.count = sum(state["count"] for state in states)


class Common(Counter):
    """A state that is the same on all ranks."""

    def __init__(self) -> None:
        self.count = 7


class Mixed(torch.nn.Module):
    """Has all that a module can have: a buffer, a frozen layer, odd sizes, a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(7, 11)
        self.register_buffer("seen", torch.zeros(7))
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.frozen = torch.nn.Linear(11, 5).requires_grad_(False)
        self.last = torch.nn.Linear(5, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.mean(dim=0)
        hidden: torch.Tensor = self.frozen(torch.relu(self.first(x)))
        last: torch.Tensor = self.last(hidden) * self.scale
        return last


STATES = {"own": Counter, "hooked": Hooked, "common": Common}


class Rank:
    """What a rank can be told; every method is collective and returns plain data."""

    def engine(self, stage: int, seed: int = 0, lr: float = 0.01) -> None:
        """Begin with a new engine and new generators."""
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(8, 24), torch.nn.GELU(), torch.nn.Linear(24, 4)]
        model = torch.nn.Sequential(*layers)
        config = {
            "train_batch_size": 4 * WORLD,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": stage},
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": lr, "weight_decay": lr, "torch_adam": True},
            },
            "scheduler": {
                "type": "WarmupDecayLR",
                "params": {"warmup_max_lr": lr, "warmup_num_steps": 3, "total_num_steps": 20},
            },
        }
        self._engine, *_ = deepspeed.initialize(
            model=model, model_parameters=list(model.parameters()), config=config
        )
        self._others = {"counter": Counter()}
        rng.seed_all(rng.derive(seed, 0, RANK))

    def mixed(
        self,
        stage: int,
        seed: int = 0,
        bf16: bool = False,
        optimizer: str = "AdamW",
        states: dict[str, str] | None = None,
        zero: dict[str, Any] | None = None,
        autocast: str | None = None,
    ) -> None:
        """Begin with a new engine of another kind: see `Mixed`; three groups of parameters."""
        torch.manual_seed(seed)
        model = Mixed()
        trained = [
            each for each in model.parameters() if each.requires_grad and each is not model.scale
        ]
        groups = [
            {"params": [each for each in trained if each.ndim == 1], "lr": 0.02},
            {"params": [each for each in trained if each.ndim > 1], "weight_decay": 0.1},
            {"params": [model.scale], "lr": 0.03},
        ]
        config = {
            "train_batch_size": 12,
            "train_micro_batch_size_per_gpu": 12 // WORLD,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {
                "stage": stage,
                "stage3_param_persistence_threshold": 0,
                **(zero or {}),
            },
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": bf16},
            "torch_autocast": {"enabled": autocast is not None, "dtype": autocast or "bfloat16"},
        }
        self._engine, *_ = deepspeed.initialize(
            model=model, optimizer=getattr(torch.optim, optimizer)(groups, lr=0.01), config=config
        )
        self._dtype = torch.bfloat16 if bf16 else torch.float32
        self._others = {name: STATES[kind]() for name, kind in (states or {}).items()}

    def train_mixed(self, steps: int) -> list[float]:
        """Take optimizer steps on data that all worlds share; the losses, over all ranks."""
        losses = []
        for _ in range(steps):
            step = self._engine.global_steps
            x = torch.randn(12, 7, generator=torch.Generator().manual_seed(step))
            mine = x.chunk(WORLD)[RANK].to(self._dtype)
            loss = (self._engine(mine) - mine).square().mean()
            self._engine.backward(loss)
            self._engine.step()
            both = loss.detach().float().clone()
            torch.distributed.all_reduce(both)
            losses.append(both.item() / WORLD)
        return losses

    def replicas(
        self, seed: int = 0, *, counted: bool = False, kind: str = "", **options: Any
    ) -> None:
        """Begin with a model that every rank holds whole, without DeepSpeed.

        With ``counted``, `reductions` tells how often its gradients were reduced; it is small
        enough for one reduction a time. The ``kind`` is ``unused``, with a layer that is not
        called, or ``half``, with one in bf16.
        """
        torch.manual_seed(seed + RANK)
        model = torch.nn.Sequential(torch.nn.Linear(7, 16), torch.nn.Tanh(), torch.nn.Linear(16, 7))
        if kind == "unused":
            model[1].never = torch.nn.Linear(2, 2)
        elif kind == "half":
            model[2].bfloat16()
            model[2].register_forward_pre_hook(lambda _, given: (given[0].bfloat16(),))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self._engine = ReplicaEngine(model, optimizer, train_batch=12, **options)
        self._reductions = 0
        if counted:
            # torch reads a hook's annotations, and takes those of a lambda for right.
            self._engine._forward.register_comm_hook(None, lambda _, bucket: self._count(bucket))
        self._dtype, self._others = torch.float32, {}

    def _count(self, bucket: Any) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        self._reductions += 1
        return default_hooks.allreduce_hook(None, bucket)

    def types(self) -> list[str]:
        """The types of the weights."""
        return [str(one.dtype) for one in self._engine.module.parameters()]

    def reductions(self) -> int:
        """How often gradients were reduced since `replicas`."""
        return self._reductions

    def replica(self) -> str:
        """Digest of this rank's weights, optimizer and outer state."""
        engine = self._engine
        held = [engine.module.state_dict(), engine.optimizer.state_dict(), engine._velocity]
        torch.set_printoptions(precision=17, threshold=10**6)
        text = repr([held, engine._anchor, engine.global_steps])
        return hashlib.sha256(text.encode()).hexdigest()

    def overflow(self) -> None:
        """Take a step whose gradients are not finite, so that a loss scaler skips it."""
        x = torch.full((12 // WORLD, 7), 1e30)
        self._engine.backward((self._engine(x) - x).square().mean())
        self._engine.step()

    def scale(self) -> dict[str, Any]:
        """The state of the loss scaler of torch_autocast."""
        engine = self._engine
        own = engine.torch_autocast_z0_gradscaler or engine.optimizer.torch_autocast_gradscaler
        return dict(own.state_dict())

    def contents(self) -> dict[str, Any]:
        """All that the engine holds, whole and exactly, whatever the number of ranks."""
        found: dict[str, Any] = {}
        engine = self._engine
        stage = engine.zero_optimization_stage()
        if stage in (1, 2):
            # DeepSpeed links the first group's moments alone.
            engine.optimizer._hp_optimizer_states_linked = False
            engine.optimizer._lazy_init_hp_params_optimizer_state()
        for name, parameter in engine.module.named_parameters():
            if parameter.requires_grad and stage:
                parts = [safe_get_full_fp32_param(parameter)]
                for key in ("exp_avg", "exp_avg_sq"):
                    parts.append(safe_get_full_optimizer_state(parameter, key))
            else:
                with deepspeed.zero.GatheredParameters([parameter], enabled=stage == 3):
                    parts = [parameter.detach().float().clone()]
            found[name] = hashlib.sha256(repr([p.tolist() for p in parts]).encode()).hexdigest()
        for name, buffer in engine.module.named_buffers():
            found[name] = buffer.tolist()
        found["groups"] = [
            {key: group[key] for key in ("lr", "weight_decay", "betas", "eps")}
            for group in getattr(engine.optimizer, "optimizer", engine.optimizer).param_groups
        ]
        inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
        found["counts"] = sorted({float(state["step"]) for state in inner.state.values()})
        found["steps"] = engine.global_steps
        return found

    def counts(self) -> dict[str, int]:
        """The user's states."""
        return {name: state.count for name, state in self._others.items()}

    def train(self, steps: int) -> list[str]:
        """Take optimizer steps on random data; the losses, exactly."""
        losses = []
        for _ in range(steps * 2):
            x = torch.randn(2, 8) + random.random()
            loss = self._engine(x).square().mean()
            self._engine.backward(loss)
            self._engine.step()
            losses.append(loss.item().hex())
            self._others["counter"].count += 1
        return losses

    def digest(self) -> dict[str, Any]:
        """All that a resumed run needs, exactly."""
        weights, moments = hashlib.sha256(), hashlib.sha256()
        for parameter in self._engine.module.parameters():
            weights.update(safe_get_full_fp32_param(parameter).numpy().tobytes())
        for state in self._engine.optimizer.optimizer.state.values():
            for name, value in sorted(state.items()):
                moments.update(f"{name}={torch.as_tensor(value).tolist()}".encode())
        generators = repr((random.getstate(), torch.get_rng_state().tolist()))
        return {
            "weights": weights.hexdigest(),
            "moments": moments.hexdigest(),
            "generators": hashlib.sha256(generators.encode()).hexdigest(),
            "steps": self._engine.global_steps,
            "lr": [group["lr"] for group in self._engine.optimizer.param_groups],
            "count": self._others["counter"].count,
        }

    def save(self, run: str, step: int, attempt: int = 1, keep: int = 2) -> dict[str, Any]:
        """Save; what the manifest says, of which rank 0 alone has all files."""
        store = self._store(run, attempt, keep)
        saved = store.saver.save(self._engine, step, self._states(), {"loss": 1.5})
        store.saver.wait_for_removals()
        return {
            "world_size": saved.world_size,
            "stage": saved.zero_stage,
            "step": saved.step,
        }

    def save_behind(self, run: str, step: int, attempt: int = 1, keep: int = 2) -> None:
        """Begin a save behind the training."""
        if not hasattr(self, "_behind"):
            self._behind = self._store(run, attempt, keep)
        self._behind.saver.save_async(self._engine, step, self._states(), {})

    def settle(self) -> list[Any]:
        """Wait for it: its step and whether it is complete, or what went wrong."""
        outcome = self._behind.saver.outcome(patience=None)
        self._behind.saver.wait_for_removals()
        del self._behind
        assert outcome is not None
        assert outcome.seconds > 0
        if outcome.error is not None:
            raise outcome.error
        return [outcome.step, outcome.manifest is not None]

    def save_nearby(self, nodes: list[str], step: int, attempt: int = 1) -> int:
        """Save in the nodes' own storage; how many bytes."""
        return self._nearby(nodes, attempt).save(self._engine, step, self._states())

    def _nearby(self, nodes: list[str], attempt: int) -> NodeCopies:
        """``nodes`` are the directories of the ranks' nodes."""
        places = tuple(sorted(set(nodes)).index(node) for node in nodes)
        return NodeCopies(Path(nodes[RANK]), attempt, Collectives(RANK, WORLD), places)

    def settings(self) -> dict[str, list[float]]:
        """The rates and weight decays of the optimizer's groups."""
        groups = self._engine.optimizer.param_groups
        return {name: [float(each[name]) for each in groups] for name in ("lr", "weight_decay")}

    def restore(
        self,
        run: str,
        expected: bool = False,
        nodes: list[str] | None = None,
        inherits: bool = False,
        seen_within: float = shared_look.SEEN_WITHIN,
    ) -> list[Any]:
        """Restore, with settings of its own if it ``inherits``; step and name."""
        self._reports: list[str] = []

        def report(event: str, *, checkpoint: str, message: str) -> None:
            self._reports.append(f"{event}: {checkpoint} {message}")

        store = self._store(run, 2, 2, self._nearby(nodes, 2) if nodes else None)
        states = self._states()
        own = OwnSettings(self._engine, states)
        with mock.patch.object(shared_look, "SEEN_WITHIN", seen_within):
            found = store.restore(self._engine, states, expected=expected, report=report)
        if inherits:
            own.put_back()
        return list(found)

    def begin(self, run: str, origin: str) -> list[Any]:
        """Begin with another run's weights; the checkpoint's name and step."""
        ranks = Collectives(RANK, WORLD)
        directory, step = init_weights.initialize(self._engine, origin, RunPaths(Path(run)), ranks)
        return [directory.name, step]

    def weights(self) -> dict[str, list[str]]:
        """Name -> digests of the whole parameter, and of what the optimizer has for it."""
        stage = self._engine.zero_optimization_stage()
        found: dict[str, list[str]] = {}
        for name, parameter in self._engine.module.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], enabled=stage == 3):
                parts = [parameter.detach().float().clone()]
            if parameter.requires_grad and stage:
                parts.append(safe_get_full_fp32_param(parameter))
            found[name] = [hashlib.sha256(repr(p.tolist()).encode()).hexdigest() for p in parts]
        for name, buffer in self._engine.module.named_buffers():
            found[name] = [repr(buffer.tolist())]
        return found

    def full_disk(self, rank: int) -> None:
        """On one rank, what DeepSpeed writes next goes to a device that is full."""
        if rank == RANK:
            self._before_write(lambda path: path.symlink_to("/dev/full"))

    def full_disk_behind(self, rank: int) -> None:
        """On one rank, what is written behind the training goes to a device that is full."""
        original = checkpoint_files.MemoryFile.copy

        def copy(memory: checkpoint_files.MemoryFile, path: Path) -> manifest.File:
            checkpoint_files.MemoryFile.copy = original  # type: ignore[method-assign]
            path.symlink_to("/dev/full")
            return original(memory, path)

        if rank == RANK:
            checkpoint_files.MemoryFile.copy = copy  # type: ignore[method-assign]

    def full_disk_for_generators(self, rank: int) -> None:
        """On one rank, what hpcrun itself writes next goes to a device that is full."""
        if rank == RANK:
            self._before_write(
                lambda path: (path.parent / f"rank-{RANK:05d}.pt").symlink_to("/dev/full")
            )

    def die_at(self, rank: int, operation: str, path: str) -> None:
        """One rank is killed before an operation on a file whose path has ``path`` in it."""

        def tick(done: str, of: Path) -> None:
            if done == operation and path in str(of):
                os.kill(os.getpid(), signal.SIGKILL)

        if rank == RANK:
            operations.watch(tick)

    def fail_to_read(self, rank: int, path: str, times: int) -> None:
        """On one rank, files whose path has ``path`` in it cannot be read so many times."""
        original = torch.load
        left = times

        def load(file: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left and path in str(file):
                left -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return original(file, *arguments, **options)

        if rank == RANK:
            torch.load = load

    def lose_after_check(self, pattern: str) -> None:
        """Files of the next checkpoint that is restored vanish once they have been checked."""
        original = checkpoint.verify

        def verify(directory: Path, entry: Manifest, ranks: Collectives) -> Fault | None:
            checkpoint.verify = original
            found = original(directory, entry, ranks)
            if RANK == 0:
                for path in directory.glob(pattern):
                    path.unlink()
            torch.distributed.barrier()
            return found

        checkpoint.verify = verify

    def become(self, user: int) -> None:
        """Go on as another user, as far as files are concerned."""
        os.seteuid(user)

    def reports(self) -> list[str]:
        """What the last restore said of checkpoints that it did not use."""
        return self._reports

    def _before_write(self, act: Callable[[Path], object]) -> None:
        """Do something before the next file of a checkpoint, once."""
        original = checkpoint_files.save

        def save(state: Any, path: Path) -> manifest.File:
            checkpoint_files.save = original
            act(path)
            return original(state, path)

        checkpoint_files.save = save

    def _store(
        self, run: str, attempt: int, keep: int, nearby: NodeCopies | None = None
    ) -> CheckpointStore:
        paths = RunPaths(Path(run))
        fence = AttemptFence(paths.attempt(attempt))
        retention = Retention(newest=keep)
        return CheckpointStore(paths, attempt, Collectives(RANK, WORLD), fence, retention, nearby)

    def _states(self) -> dict[str, Any]:
        return dict(self._others)


def main(kind: type[Rank] = Rank) -> None:
    """Answer the lines of one descriptor on the other."""
    questions = os.fdopen(int(sys.argv[1]), "r")
    answers = os.fdopen(int(sys.argv[2]), "w")
    deepspeed.init_distributed(dist_backend="gloo")
    rank = kind()
    for line in questions:
        name, arguments = json.loads(line)
        try:
            answer = {"value": getattr(rank, name)(**arguments)}
        except HpcrunError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
