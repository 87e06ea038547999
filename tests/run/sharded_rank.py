"""One rank whose engine is of FSDP2, or what it is compared with, told what to do line by line."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import deepspeed
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
from torch.utils.checkpoint import checkpoint as checkpointed

from hpcrun.errors import ReplicasDifferError
from hpcrun.run.health.replica_check import ReplicaCheck
from hpcrun.run.parallel import train_batch
from hpcrun.run.parallel.rank_layout import RankLayout
from hpcrun.run.rank import sharded_engine
from hpcrun.run.rank.collectives import Collectives
from hpcrun.run.weights.averaged_weights import AveragedWeights
from hpcrun.state.spec.run_blocks import Optimization
from tests.run.rank import RANK, WORLD, Mixed, Rank, main

CONFIG = {"optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}}
CLIPPING = 0.5


class Layered(torch.nn.Module):
    """Has a list of layers, and a weight outside of it that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(7, 13, bias=False)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(13, 13), torch.nn.Tanh()) for _ in range(2)
        )
        self.again = torch.nn.Linear(7, 13, bias=False)
        self.again.weight = self.first.weight
        self.recomputes = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        for layer in self.layers:
            if self.recomputes:
                hidden = hidden + checkpointed(layer, hidden, use_reentrant=False)
            else:
                hidden = hidden + layer(hidden)
        found: torch.Tensor = hidden @ self.again.weight
        return found


class Noted(Layered):
    """Has a buffer that each rank would change by its own samples, and one of each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(7))
        self.register_buffer("cache", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += x.detach().mean(dim=0)
            self.cache = torch.zeros(RANK + 1)
        return super().forward(x)


class Attending(torch.nn.Module):
    """Two blocks of attention over 7 words; 2 heads of size 5: no part of 4 ranks is even."""

    def __init__(self, *, scaled: bool = False) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(8, 10)
        self.layers = torch.nn.ModuleList(_Block(scaled=scaled) for _ in range(2))
        self.norm, self.head = torch.nn.LayerNorm(10), torch.nn.Linear(10, 6)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))
        self.recomputes = False

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        self.seen += self.training
        hidden = self.words(words)
        for layer in self.layers:
            if self.recomputes:
                hidden = checkpointed(layer, hidden, use_reentrant=False)
            else:
                hidden = layer(hidden)
        found: torch.Tensor = self.head(self.norm(hidden)) * self.scale
        return found


class _Block(torch.nn.Module):
    def __init__(self, *, scaled: bool) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(10)
        self.query, self.value, self.out = (torch.nn.Linear(10, 10) for _ in range(3))
        # The gradient of a bias would be rounding alone.
        self.key = torch.nn.Linear(10, 10, bias=False)
        self.up, self.down = torch.nn.Linear(10, 14), torch.nn.Linear(14, 10)
        self.of_heads = torch.nn.LayerNorm(5) if scaled else torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        query, key, value = (
            each(normed).unflatten(2, (-1, 5)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        found = torch.nn.functional.scaled_dot_product_attention(self.of_heads(query), key, value)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        hidden: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return hidden


class Normed(Layered):
    """Has statistics that torch's kernels write, and ranks that call layers in orders of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = torch.nn.BatchNorm1d(7, momentum=0.5)
        self.instance = torch.nn.InstanceNorm1d(7, track_running_stats=True)
        self.swaps = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.swaps and RANK:
            self.layers = self.layers[::-1]
        found: torch.Tensor = super().forward(
            self.instance(self.batch(x).unsqueeze(-1).expand(-1, -1, 3)).mean(-1) + x
        )
        return found


MODELS: dict[str, Any] = {
    "normed": Normed,
    **{"layered": Layered, "noted": Noted, "mixed": Mixed, "attending": Attending},
    "scaled": functools.partial(Attending, scaled=True),
}


class Factored(torch.optim.SGD):
    """Keeps something of each row, as Adafactor does."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one]["rows"] = torch.zeros((*one.shape[:1], 2))
        super().step(closure)


class Plain:
    """What a script does with DDP by hand."""

    def __init__(self, model: Any) -> None:
        self.model = torch.nn.parallel.DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.global_steps = 0

    def __call__(self, x: torch.Tensor) -> Any:
        return self.model(x)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIPPING)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_steps += 1


class Losses:
    """An engine whose model returns the loss of its own outputs."""

    def __init__(self, engine: Any) -> None:
        self.module, self.train, self.eval = engine.module, engine.train, engine.eval
        self._engine = engine

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.int64:
            return _next_word(self._engine, x)
        loss: torch.Tensor = (self._engine(x) - x).square().mean()
        return loss


class ShardedRank(Rank):
    """A rank that does more of what it is told."""

    def sharded(
        self,
        seed: int = 0,
        model: str = "layered",
        recomputes: bool = False,
        optimization: dict[str, Any] | None = None,
        foreach: bool = False,
        factored: bool = False,
        **options: Any,
    ) -> None:
        """Begin with a model that FSDP2 divides; rank 0's weights are those of the seed."""
        torch.manual_seed(seed + RANK)
        made = MODELS[model]()
        made.recomputes = recomputes
        wanted = Optimization(**(optimization or {}))
        options = {"device": torch.device("cpu"), "train_batch": 12, **options}
        self._tensor = options.get("tensor", 1)
        if options.get("tensor_plan") == "sequence":
            options["tensor_plan"] = _of_sequences()
        # What torch takes on a GPU.
        optimizer: Any = None
        if foreach:
            optimizer = functools.partial(torch.optim.AdamW, lr=0.01, foreach=True)
        if factored:
            optimizer = functools.partial(Factored, lr=0.01)
        config = {} if optimizer else CONFIG
        self._engine = sharded_engine.make(made, optimizer, config, wanted, **options)
        self._dtype, self._others = torch.float32, {}

    def plain(self, seed: int = 0, model: str = "layered") -> None:
        """Begin with the same under torch's DDP, without hpcrun."""
        torch.manual_seed(seed)
        self._engine = Plain(MODELS[model]())
        self._dtype, self._others = torch.float32, {}

    def zero(self, stage: int, seed: int = 0, model: str = "layered") -> None:
        """Begin with the same under DeepSpeed."""
        torch.manual_seed(seed)
        made = MODELS[model]()
        config = {
            **CONFIG,
            "train_batch_size": 12,
            "train_micro_batch_size_per_gpu": 12 // WORLD,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "gradient_clipping": CLIPPING,
        }
        trained = [each for each in made.parameters() if each.requires_grad]
        self._engine, *_ = deepspeed.initialize(model=made, model_parameters=trained, config=config)
        self._dtype, self._others = torch.float32, {}

    def accumulate(self, steps: int, micro: int) -> list[float]:
        """Train on the same data as `train_mixed`, in so many micro batches; rank 0's losses."""
        losses = []
        for _ in range(steps):
            step = self._engine.global_steps
            x = torch.randn(12, 7, generator=torch.Generator().manual_seed(step))
            total = 0.0
            for part in x.chunk(WORLD)[RANK].chunk(micro):
                loss = (self._engine(part) - part).square().mean()
                self._engine.backward(loss)
                self._engine.step()
                total += loss.item() / micro
            both = torch.tensor(total)
            torch.distributed.all_reduce(both)
            losses.append(both.item() / WORLD)
        return losses

    def alone(self, steps: int, clipping: float) -> list[list[float]]:
        """Train `Attending` on this rank alone, without hpcrun: losses, norms of the gradients."""
        torch.manual_seed(0)
        self._alone = Attending()
        optimizer = torch.optim.AdamW(self._alone.parameters(), lr=0.01)
        losses = []
        for step in range(steps):
            loss = _next_word(self._alone, _words(step))
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self._alone.parameters(), clipping)
            optimizer.step()
            optimizer.zero_grad()
            losses.append([loss.item(), norm.item()])
        return losses

    def read_words(self, steps: int, micro: int = 1) -> list[list[float]]:
        """Train on what `alone` has, each tensor group on its share, and return the same."""
        losses = []
        for _ in range(steps):
            words = _words(self._engine.global_steps).chunk(WORLD // self._tensor)
            total = torch.zeros(())
            for part in words[RANK // self._tensor].chunk(micro):
                loss = _next_word(self._engine, part)
                self._engine.backward(loss)
                self._engine.step()
                total += loss.detach() / micro / WORLD
            torch.distributed.all_reduce(total)
            losses.append([total.item(), self._engine.get_global_grad_norm().item()])
        return losses

    def apart(self) -> float:
        """How far any weight is from that of `alone`, at most."""
        held, alone = self._engine._model_state(), self._alone.state_dict()
        held.pop("seen")
        return max(
            (each.full_tensor() - alone[name]).abs().max().item() for name, each in held.items()
        )

    @property
    def _reads_words(self) -> bool:
        return isinstance(getattr(self._engine, "module", None), Attending)

    def train_mixed(self, steps: int) -> list[Any]:
        if self._reads_words:
            return self.read_words(steps)
        return super().train_mixed(steps)

    def exchanges(self, steps: int, micro: int) -> int:
        """How often gradients were reduced in so many steps."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            self.accumulate(steps, micro)
        names = [each.name for each in profile.events()]
        return sum(name.startswith("c10d::") and "reduce_scatter" in name for name in names)

    def held(self) -> str:
        """Digest of all that a `ShardedEngine` holds, whole: the same on any number of ranks."""
        engine = self._engine
        names = engine._names()
        found: list[Any] = [(name, _whole(one)) for name, one in engine._model_state().items()]
        state = {names[id(one)]: each for one, each in engine.optimizer.state.items()}
        for name in sorted(state):
            found += [(name, key, _whole(one)) for key, one in sorted(state[name].items())]
        groups = [{**group, "params": None} for group in engine.optimizer.param_groups]
        text = repr([found, groups, engine.global_steps, engine._course()["scheduler"]])
        return hashlib.sha256(text.encode()).hexdigest()

    def weights(self) -> dict[str, list[str]]:
        """As `Rank.weights`, of this engine too, of what a checkpoint has of the model."""
        if not isinstance(self._engine, sharded_engine.ShardedEngine):
            found = super().weights().items()
            return {name: parts[:1] for name, parts in found if name != "cache"}
        held = [(name, repr(_whole(one))) for name, one in self._engine._model_state().items()]
        return {
            name: [text if name == "seen" else hashlib.sha256(text.encode()).hexdigest()]
            for name, text in held
        }

    def evaluate(self) -> float:
        """The loss without gradients; after it, all weights are divided again."""
        x = torch.randn(12, 7, generator=torch.Generator().manual_seed(99))
        x = _words(99) if self._reads_words else x
        loss = train_batch.eval_batch(Losses(self._engine), [x])
        assert all(hasattr(one, "placements") for one in self._engine.module.parameters())
        return float(loss)

    def average(self, updates: int) -> dict[str, bool]:
        """Take steps with `AveragedWeights`: as by hand, in use, given back, restored both ways."""
        decay, plain = 0.8, dict[str, torch.Tensor]()
        averaged = AveragedWeights(self._engine, decay, 1, RANK)
        for number in range(updates):
            self.train_mixed(1)
            averaged.update(number + 1)
            for name, each in self._engine.module.named_parameters():
                whole = each.detach().full_tensor().clone()
                plain[name] = plain.get(name, whole) * decay + (1 - decay) * whole
        before, own = self.held(), self.evaluate()
        with averaged.in_place():
            used = self.evaluate()
        found: list[Any] = [averaged.state_dict()]
        restored = AveragedWeights(self._engine, decay, 1, RANK)
        losses = []
        restored.load_state_dict(found[0])
        with restored.in_place():
            losses.append(self.evaluate())
        torch.distributed.broadcast_object_list(found)
        restored.load_state_dicts(found)
        with restored.in_place():
            losses.append(self.evaluate())
        saved = found[0]["weights"]
        return {
            "as by hand": all(torch.allclose(saved[name], plain[name]) for name in plain),
            "in use": used != own,
            "given back": self.held() == before and self.evaluate() == own,
            "restored": losses == [used, used],
        }

    def swap(self) -> None:
        """Have this rank call the model's layers in another order than rank 0."""
        self._engine.module.swaps = True

    def compare(self) -> str | None:
        """What the check of replicas says now."""
        layout = RankLayout({"tensor": self._tensor}, WORLD)
        check = ReplicaCheck(Collectives(RANK, WORLD), layout, f"n{RANK}", 1)
        try:
            check.compare(self._engine, self._engine.global_steps)
        except ReplicasDifferError as error:
            return error.message
        return None

    def plant(self, kind: str, rank: int, name: str | None = None) -> None:
        """Have one rank hold something else than the others: one bit, or a bit more."""
        if rank != RANK:
            return
        optimizer, module = self._engine.optimizer, self._engine.module
        with torch.no_grad():
            if kind == "weights":
                one = module.get_parameter(name) if name else next(module.parameters())
                one.to_local().view(torch.int32).view(-1)[-1] ^= 1
            elif kind == "moments":
                state = optimizer.state[module.get_parameter(name or "first.weight")]
                state["exp_avg"].to_local().view(torch.int32).view(-1)[0] ^= 1
            elif kind == "hyperparameters":
                optimizer.param_groups[0]["lr"] *= 1 + 1e-12
            else:
                module.seen.add_(1)


def _of_sequences() -> dict[str, Any]:
    """A plan by torch's own styles: between matrices each rank has a part of the words."""
    own, whole = Shard(1), Replicate()
    into, out = ColwiseParallel(input_layouts=own), RowwiseParallel(output_layouts=own)
    return {
        "words": RowwiseParallel(input_layouts=whole, output_layouts=own),
        "layers.*.norm": SequenceParallel(),
        **{f"layers.*.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "layers.*.up": into,
        **{f"layers.*.{name}": out for name in ("out", "down")},
        "norm": SequenceParallel(),
        "head": ColwiseParallel(output_layouts=whole),
    }


def _words(step: int) -> torch.Tensor:
    """12 samples of 7 words, of which a few follow each other."""
    first = torch.randint(0, 6, (12, 1), generator=torch.Generator().manual_seed(step))
    return (first + torch.arange(7)) % 6


def _next_word(model: Any, words: torch.Tensor) -> Any:
    found = model(words[:, :-1]).float().flatten(0, 1)
    return torch.nn.functional.cross_entropy(found, words[:, 1:].flatten())


def _whole(value: Any) -> Any:
    if not torch.is_tensor(value):
        return value
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).tolist()


if __name__ == "__main__":
    main(ShardedRank)
