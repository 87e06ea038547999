"""Fine-tune a model of Python's sources on C++ headers with low-rank adapters (LoRA).

The base, on local disk, is what `hpcrun weights` exports of `causal-language-model`, and is frozen;
the headers are torch's own. `python lora_fine_tuning.py TUNED MERGED` adds the adapters of an
export to its weights: MERGED has the base's names and shapes. Needs causal_language_model.py.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from causal_language_model import BYTES, build_layers, cross_entropy
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    import hpcrun


class LoRALinear(nn.Linear):
    """A linear layer of the base, and beside it the product of two small matrices.

    The layer computes ``(weight + scale * up @ down) x``; ``up`` begins as zeros, so that the model
    begins as the base.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__(base.in_features, base.out_features, bias=False, device="meta")
        self.weight, self.bias = base.weight, base.bias
        like = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.down = nn.Parameter(torch.empty(rank, base.in_features, **like))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, **like))
        # Saved with the weights, so that `merged` needs no configuration.
        self.register_buffer("scale", torch.tensor(alpha / rank, **like))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) -> (…, out)."""
        added = functional.linear(functional.linear(x, self.down), self.up)
        return super().forward(x) + self.scale * added


def adapted(model: nn.Module, targets: list[str], rank: int, alpha: float) -> nn.Module:
    """Freeze a model and put adapters on its linear layers that have one of these last names."""
    model.requires_grad_(False)
    layers = [(name, one) for name, one in model.named_modules() if isinstance(one, nn.Linear)]
    found = [(name, layer) for name, layer in layers if name.rpartition(".")[2] in targets]
    if not found:
        there = sorted({name.rpartition(".")[2] for name, _ in layers})
        raise ValueError(f"config.lora.targets: no layer is called {targets}; there are {there}")
    for name, layer in found:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, LoRALinear(layer, rank, alpha))
    return model


def merged(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in which the adapters are added to the layers that they are beside."""
    found = dict(weights)
    for name in [name for name in weights if name.endswith(".down")]:
        layer = name.removesuffix(".down")
        down, up, scale = (
            found.pop(f"{layer}.{part}").double() for part in ("down", "up", "scale")
        )
        whole = weights[f"{layer}.weight"]
        found[f"{layer}.weight"] = (whole.double() + scale * up @ down).to(whole.dtype)
    return found


def read_weights(directory: Path) -> dict[str, Tensor]:
    """Return the weights that `hpcrun weights` wrote: safetensors, or torch's files."""
    weights: dict[str, Tensor] = {}
    for path in sorted(directory.glob("pytorch_model*.bin")):
        weights |= torch.load(path, weights_only=True)
    for path in sorted(directory.glob("model*.safetensors")):
        from safetensors.torch import load_file

        weights |= load_file(path)
    if not weights:
        raise FileNotFoundError(
            f"{directory} has no pytorch_model.bin and no model.safetensors; "
            f"type: hpcrun weights causal-language-model/0 -o {directory} --format pt"
        )
    return weights


def build_model(config: Any) -> nn.Module:
    """Return the model with its adapters; `hpcrun estimate` counts it on the meta device."""
    base = build_layers(**config.model, vocabulary=BYTES)
    return adapted(base, list(config.lora.targets), config.lora.rank, config.lora.alpha)


def read_base(model: nn.Module, directory: str | None) -> None:
    """Fill a model with adapters with the weights of its base."""
    if directory is None:
        raise ValueError(
            "config.base names no directory with the base's weights; type: hpcrun weights "
            "causal-language-model/0 -o base --format pt, then config.base=$PWD/base"
        )
    there = model.load_state_dict(read_weights(Path(directory)), strict=False)
    # Of tied weights safetensors has one name, and `named_parameters` gives that one.
    names = {name for name, one in model.named_parameters() if not one.requires_grad}
    missing = sorted(names.intersection(there.missing_keys))
    if missing or there.unexpected_keys:
        raise ValueError(
            f"{directory} is of another model than config.model: {missing} are missing there, "
            f"{there.unexpected_keys} unknown here"
        )


def sample_batch(config: Any, micro_batch: int) -> Tensor:
    """Return what the model is called with, in shape: `hpcrun estimate` follows one step of it."""
    return torch.zeros((micro_batch, config.context), dtype=torch.int64)


def read_headers() -> tuple[Tensor, Tensor]:
    """Return torch's C++ headers to train on, and held-out ones: every tenth file, as uint8."""
    paths = sorted((Path(torch.__file__).parent / "include" / "c10").rglob("*.h"))
    texts = [path.read_bytes() for path in paths]
    held_out = texts[9::10]
    training = [text for number, text in enumerate(texts) if number % 10 != 9]
    return (
        torch.frombuffer(bytearray().join(training), dtype=torch.uint8),
        torch.frombuffer(bytearray().join(held_out), dtype=torch.uint8),
    )


class Windows(torch.utils.data.Dataset):
    """Windows of a text, one after the other: bytes, and the bytes that follow each of them."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.text[index * self.context :][: self.context + 1].long()
        return window[:-1], window[1:]


@torch.no_grad()
def evaluate(session: hpcrun.Session, engine: Any, windows: Windows, count: int) -> float:
    """Return the mean loss of the first windows, in nats a byte: each counts once on all ranks."""
    engine.eval()
    losses = []
    pairs = [windows[index] for index in range(count)]
    inputs, wanted = (torch.stack(each) for each in zip(*pairs, strict=True))
    for indices in session.shard(count, batch=16):
        scores = engine(inputs[indices].to(engine.device)).flatten(0, 1).float()
        targets = wanted[indices].flatten().to(engine.device)
        losses += functional.cross_entropy(scores, targets, reduction="none").tolist()
    engine.train()
    return session.total({"loss": losses})["loss"] / wanted.numel()


def train(session: hpcrun.Session) -> None:
    """Train to ``config.total_steps``; see configs/experiments/lora-fine-tuning.yaml."""
    config = session.config
    training, held_out = (Windows(text, config.context) for text in read_headers())
    torch.manual_seed(session.seed)
    model = build_model(config)
    read_base(model, config.base)
    trained = [one for one in model.parameters() if one.requires_grad]
    engine, *_ = session.initialize(model=model, model_parameters=trained)
    base = evaluate(session, engine, held_out, config.evaluate_windows)
    session.restore(engine)
    loader = session.loader(training, num_workers=config.num_workers)
    if session.rank == 0:
        every, own = (sum(one.numel() for one in each) for each in (model.parameters(), trained))
        print(f"{own:,} of {every:,} parameters are trained; the base: {base:.4f}", flush=True)

    for step in session.steps(total=config.total_steps):
        losses = []
        for inputs, wanted in loader(step):
            loss = cross_entropy(engine(inputs), wanted)
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        session.log({"loss": torch.stack(losses).mean()}, step=step)
        if step % config.evaluate_every == 0:
            found = evaluate(session, engine, held_out, config.evaluate_windows)
            session.log({"eval/loss": found, "eval/base_loss": base}, step=step)
            if session.rank == 0:
                print(f"step {step}/{config.total_steps}: held out {found:.4f}", flush=True)


if __name__ == "__main__":
    output = Path(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    torch.save(merged(read_weights(Path(sys.argv[1]))), output / "pytorch_model.bin")
