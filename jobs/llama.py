"""Pre-train a Llama-style language model on token files: one program from a laptop to many nodes.

`python llama.py OUT TEXT…` makes token files of texts, with a tokenizer of its own by the package
`tokenizers`: `config.data=OUT`. Else it trains on bytes of the Python standard library's sources.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import hpcrun

BYTES, END = 256, "<|end|>"


class Attention(nn.Module):
    """Causal self-attention, in which several heads of queries share one of keys and values."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, kv_heads * self.size, bias=False)
        self.values = nn.Linear(width, kv_heads * self.size, bias=False)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) -> the same shape."""
        queries, keys, values = (
            layer(x).unflatten(2, (-1, self.size)).transpose(1, 2)
            for layer in (self.queries, self.keys, self.values)
        )
        attended = functional.scaled_dot_product_attention(
            rotated(queries), rotated(keys), values, is_causal=True, enable_gqa=True
        )
        return self.project(attended.transpose(1, 2).flatten(2))


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of features by their position: (batch, heads, context, head size)."""
    half = x.shape[-1] // 2
    rate = 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    angle = torch.arange(x.shape[2], device=x.device)[:, None] * rate
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each on normed input and added to it."""

    def __init__(self, width: int, hidden: int, **heads: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_forward = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, **heads)
        self.gate, self.expand = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.contract = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) -> the same shape."""
        x = x + self.attention(self.norm_attention(x))
        normed = self.norm_forward(x)
        return x + self.contract(functional.silu(self.gate(normed)) * self.expand(normed))


class Llama(nn.Module):
    """Tokens in, logits of the next ones out; the embedding's weights are the last layer's, too."""

    def __init__(self, layers: int, vocabulary: int, width: int, **block: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, **block) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        for weight in (one for one in self.parameters() if one.dim() == 2):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, context) tokens as int64 -> (batch, context, vocabulary)."""
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def build_model(config: Any) -> Llama:
    """Return the model of a configuration; `hpcrun estimate` counts it on the meta device."""
    return Llama(**config.models[config.size])


def sample_batch(config: Any, micro_batch: int) -> Tensor:
    """Return what the model is called with, in shape: `hpcrun estimate` follows one step of it."""
    return torch.zeros((micro_batch, config.context), dtype=torch.int64)


def sample_loss(_: Any, logits: Tensor) -> Tensor:
    """Return the loss of what the model returned, in shape, for `hpcrun estimate` too."""
    return token_losses(logits, logits.new_zeros(logits.shape[:2], dtype=torch.int64)).mean()


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each token in nats: (batch * context,)."""
    scores = logits.flatten(0, 1).float()
    return functional.cross_entropy(scores, targets.flatten(), reduction="none")


def prepare(output: Path, texts: list[Path], vocabulary: int = 16_384) -> None:
    """Write train.bin, held_out.bin (every 20th text, from the first on) and tokenizer.json."""
    import numpy
    from tokenizers import ByteLevelBPETokenizer

    output.mkdir(parents=True, exist_ok=True)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([*map(str, texts)], vocabulary, special_tokens=[END])
    tokenizer.save(str(output / "tokenizer.json"))
    end = tokenizer.token_to_id(END)
    with (output / "train.bin").open("wb") as most, (output / "held_out.bin").open("wb") as rest:
        for number, path in enumerate(texts):
            tokens = [*tokenizer.encode(path.read_text(errors="replace")).ids, end]
            numpy.array(tokens, "uint16").tofile(most if number % 20 else rest)


def read_data(config: Any) -> tuple[Any, Any]:
    """Return windows of the training's tokens and of held-out ones, one token longer."""
    if config.data is None:
        paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        texts = [torch.frombuffer(bytearray(one.read_bytes()), dtype=torch.uint8) for one in paths]
        parts: list[Any] = [texts[::10], texts[9::20]]
    else:
        files = [Path(config.data) / f"{name}.bin" for name in ("train", "held_out")]
        parts = [hpcrun.TokenFiles(path, dtype="uint16") for path in files]
    options = {"overlap": 1, "vocabulary": config.models[config.size]["vocabulary"]}
    packed = partial(hpcrun.PackedDocuments, length=config.context + 1, **options)
    return packed(parts[0]), packed(parts[1])


@torch.no_grad()
def evaluate(session: hpcrun.Session, engine: Any, windows: Any, count: int) -> float:
    """Return the mean loss of the first windows, in nats a token: each counts once on all ranks."""
    engine.eval()
    together, losses = torch.stack([windows[i] for i in range(min(count, len(windows)))]), []
    for indices in session.shard(len(together), batch=8):
        tokens = together[indices].to(engine.device)
        losses += token_losses(engine(tokens[:, :-1]), tokens[:, 1:]).tolist()
    engine.train()
    return session.total({"loss": losses})["loss"] / together[:, 1:].numel()


@torch.no_grad()
def write_on(engine: Any, start: Tensor, config: Any) -> str:
    """Return a text that the model writes after a beginning; the same one on all ranks."""
    draw, tokens = torch.Generator().manual_seed(config.seed), start[None].to(engine.device)
    for _ in range(48):
        chances = functional.softmax(engine(tokens)[0, -1].float() / 0.8, dim=0).cpu()
        chosen = torch.multinomial(chances, 1, generator=draw)
        tokens = torch.cat((tokens, chosen[None].to(tokens.device)), dim=1)
    if config.data is None:
        return repr(bytes(tokens[0].tolist()).decode(errors="replace"))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{config.data}/tokenizer.json")
    return repr(tokenizer.decode(tokens[0].tolist()))


def train(session: hpcrun.Session) -> None:
    """Train to ``config.total_steps``; see configs/experiments/llama.yaml."""
    config = session.config
    training, held_out = read_data(config)
    torch.manual_seed(session.seed)
    model = build_model(config)
    engine, *_ = session.initialize(model=model, model_parameters=[*model.parameters()])
    session.restore(engine)
    loader = session.loader(training, num_workers=config.num_workers)
    for step in session.steps(total=config.total_steps):
        losses = []
        for tokens in loader(step):
            loss = token_losses(engine(tokens[:, :-1]), tokens[:, 1:]).mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        session.log({"loss": torch.stack(losses).mean()}, step=step)
        if step % config.evaluate_every == 0:
            found = evaluate(session, engine, held_out, config.evaluate_windows)
            session.log({"eval/loss": found}, step=step)
            text = write_on(engine, held_out[0][:16], config)
            if session.rank == 0:
                print(f"step {step}/{config.total_steps}: held out {found:.4f}: {text}", flush=True)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), [*map(Path, sys.argv[2:])])
