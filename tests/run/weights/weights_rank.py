"""One rank whose engine is of a kind that `hpcrun weights` reads, told what to do line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

from hpcrun.run.parallel import engine_setup
from hpcrun.run.parallel.rank_layout import RankLayout
from tests.run.rank import RANK, WORLD, Rank, main

SIZE, VOCABULARY = 8, 11
ADAM = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}


class Tied(torch.nn.Module):
    """Has tied weights, a frozen layer, a persistent buffer and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, SIZE)
        self.frozen = torch.nn.Linear(SIZE, SIZE).requires_grad_(False)
        self.up_proj = torch.nn.Linear(SIZE, 16, bias=False)
        self.down_proj = torch.nn.Linear(16, SIZE)
        self.norm = torch.nn.LayerNorm(SIZE)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("constant", torch.ones(1), persistent=False)
        self.head = torch.nn.Linear(SIZE, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.embed(tokens)) * self.constant.to(self.embed.weight.dtype)
        if self.training:
            self.seen += 0.5
            self.count += 1
        found: torch.Tensor = self.head(self.norm(x + self.down_proj(torch.relu(self.up_proj(x)))))
        return found


def layers() -> list[Any]:
    """The layers of a pipeline whose first and last share a weight."""

    def project(layer: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight)

    return [
        TiedLayerSpec("embed", torch.nn.Embedding, VOCABULARY, SIZE),
        LayerSpec(torch.nn.Linear, SIZE, SIZE),
        LayerSpec(torch.nn.LayerNorm, SIZE),
        TiedLayerSpec("embed", torch.nn.Embedding, VOCABULARY, SIZE, forward_fn=project),
    ]


def plain_pipeline() -> torch.nn.Module:
    """The same without DeepSpeed: `torch.nn.Sequential` names its layers as the pipeline does."""

    class Project(torch.nn.Embedding):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.weight)

    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, SIZE),
        torch.nn.Linear(SIZE, SIZE),
        torch.nn.LayerNorm(SIZE),
        Project(VOCABULARY, SIZE),
    )
    model[3].weight = model[0].weight
    return model


def tokens(step: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (4, 6), generator=torch.Generator().manual_seed(step))


def cost(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())


def _file(directory: str) -> Path:
    return Path(directory, "pytorch_model.bin")


class WeightsRank(Rank):
    """Trains models that are divided in all ways."""

    def tied(
        self, stage: int, kind: str = "fp32", tensor: int = 1, weights: str | None = None
    ) -> None:
        """Begin with `Tied`, perhaps divided by AutoTP, with exported ``weights``; fp32 or bf16."""
        torch.manual_seed(0)
        model = Tied()
        if weights is not None:
            model.load_state_dict(torch.load(_file(weights), weights_only=True))
        self._plain = Tied
        self._begin(model, stage, kind, tensor)

    def _begin(self, model: Any, stage: int, kind: str, tensor: int) -> None:
        config: dict[str, Any] = {
            "train_batch_size": 4 * WORLD // tensor,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "optimizer": ADAM,
            "bf16": {"enabled": kind == "bf16"},
        }
        if tensor > 1:
            config["tensor_parallel"] = {"autotp_size": tensor, **self._specs()}
        trained = [each for each in model.parameters() if each.requires_grad]
        arguments = {"model_parameters": trained, "config": config}
        self._engine, *_ = engine_setup.initialize(model, None, arguments, RankLayout({}, WORLD))
        self._others = {}
        self._pipeline = False

    def _specs(self) -> dict[str, Any]:
        specs = [
            {"patterns": [".*down_proj.weight$"], "partition_type": "row"},
            {"patterns": [".*up_proj.weight$"], "partition_type": "column"},
        ]
        return {"partition_config": {"use_default_specs": False, "layer_specs": specs}}

    def pipeline(self, stage: int, kind: str = "fp32") -> None:
        """Begin with a pipeline of two stages."""
        torch.manual_seed(0)
        model = PipelineModule(layers(), num_stages=2, loss_fn=cost, partition_method="uniform")
        self._plain = plain_pipeline
        config = {
            "train_batch_size": 8,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {"stage": stage},
            "gradient_clipping": 1.0 if stage else 0.0,
            "optimizer": ADAM,
            "bf16": {"enabled": kind == "bf16"},
        }
        arguments = {"model_parameters": [*model.parameters()], "config": config}
        self._engine, *_ = engine_setup.initialize(model, None, arguments, RankLayout({}, WORLD))
        self._others = {}
        self._pipeline = True

    def export(self, run: str, directory: str, dtype: str | None = None) -> dict[str, Any] | None:
        """Export the run's checkpoint as torch's file, on rank 0; what is in it."""
        if RANK:
            return None
        (checkpoint,) = Path(run, "checkpoints").glob("step-*")
        Path(directory).mkdir(parents=True)
        question = {
            **{"checkpoint": str(checkpoint), "target": directory, "record": "record.json"},
            **{"format": "pt", "dtype": dtype, "shard_bytes": 1 << 30, "beside": None, "about": {}},
        }
        from hpcrun.tools.weights import export_program

        return export_program.export(question, lambda **_: None)

    def advance(self, steps: int) -> None:
        """Take optimizer steps."""
        for step in range(steps):
            if self._pipeline:
                batches = [(tokens(100 * step + n), tokens(100 * step + n)) for n in range(2)]
                self._engine.train_batch(iter(batches))
                continue
            x = tokens(1000 * RANK * (self._engine.dp_world_size > 1) + step)
            loss = cost(self._logits(self._engine, x), x)
            self._engine.backward(loss)
            self._engine.step()

    def _logits(self, model: Any, x: torch.Tensor) -> Any:
        return model(x)

    def loss(self) -> str:
        """The engine's loss on a batch that all know, exactly."""
        x = tokens(7)
        if self._pipeline:
            loss = self._engine.eval_batch(iter([(x, x), (x, x)]))
            return float(loss).hex()
        self._engine.eval()
        with torch.no_grad():
            loss = cost(self._logits(self._engine, x), x)
        self._engine.train()
        return float(loss).hex()

    def plain_loss(self, directory: str) -> str:
        """The loss of the plain model with exported weights."""
        torch.manual_seed(99)
        model = self._plain()
        state = torch.load(_file(directory), weights_only=True)
        missing, unknown = model.load_state_dict(state, strict=False)
        # A pipeline saves a tied layer once.
        assert (missing, unknown) == (["3.weight"] if self._pipeline else [], [])
        (dtype,) = {value.dtype for name, value in state.items() if name.endswith("weight")}
        model = model.to(dtype).eval()
        with torch.no_grad():
            return float(cost(model(tokens(7)), tokens(7))).hex()


if __name__ == "__main__":
    main(WeightsRank)
