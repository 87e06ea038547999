"""Train a decoder-only transformer that tensor, pipeline and sequence parallelism can divide.

Rotary embeddings, tied weights, and torch's scaled dot product attention, which takes its flash
kernel on GPUs. One definition for every `parallel` of the spec; docs/parallelism.md says which of
its parts make that so.
"""

from __future__ import annotations

import hashlib
import sysconfig
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

import hpcrun

BYTES = 256


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of features by their position: (batch, sequence, heads, head size)."""
    half = x.shape[-1] // 2
    rate = 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    angle = torch.arange(x.shape[1], device=x.device)[:, None, None] * rate
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention over whole sequences, of as many heads as this rank has."""
    query, key, value = (x.transpose(1, 2) for x in (rotated(query), rotated(key), value))
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return attended.transpose(1, 2).contiguous()


class Block(nn.Module):
    """Pre-norm self-attention and a feed-forward layer."""

    # How a tensor group divides the layers; the plan's words are those of Hugging Face.
    tensor_parallel_plan: ClassVar = {
        **dict.fromkeys(("query", "key", "value", "expand"), "colwise"),
        **dict.fromkeys(("project", "contract"), "rowwise"),
    }

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_size = width // heads
        linear = partial(nn.Linear, bias=False)
        self.norm_attention, self.norm_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.project = (linear(width, width) for _ in range(4))
        self.expand, self.contract = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, part of the sequence, width) -> the same shape."""
        batch, length, _ = x.shape
        normed = self.norm_attention(x)
        heads = (
            layer(normed).view(batch, length, -1, self.head_size)
            for layer in (self.query, self.key, self.value)
        )
        attended = hpcrun.ulysses_attention(attend, *heads)
        x = x + self.project(attended.reshape(batch, length, -1))
        return x + self.contract(functional.gelu(self.expand(self.norm_forward(x))))


class Unembedding(nn.Module):
    """Logits by the weights of the embedding, of which it has no copy."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> (batch, sequence, vocabulary)."""
        return functional.linear(x, self.embedding.weight)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean loss in nats per token."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def build_layers(layers: int, width: int, heads: int, vocabulary: int) -> nn.Sequential:
    """Return the layers in order: what a pipeline divides."""
    embedding = nn.Embedding(vocabulary, width)
    blocks = [Block(width, heads) for _ in range(layers)]
    model = nn.Sequential(embedding, *blocks, nn.LayerNorm(width), Unembedding(embedding))
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
    return model


def build_model(config: Any) -> nn.Sequential:
    """Return the model of bytes; `hpcrun estimate` counts it on the meta device."""
    return build_layers(**config.model, vocabulary=BYTES)


def sample_batch(config: Any, micro_batch: int) -> Tensor:
    """Return what the model is called with, in shape: `hpcrun estimate` follows one step of it."""
    return torch.zeros((micro_batch, config.context), dtype=torch.int64)


def sample_loss(config: Any, outputs: Tensor) -> Tensor:
    """Return the loss of what the model returned, in shape, for `hpcrun estimate` too."""
    return cross_entropy(outputs, outputs.new_zeros(outputs.shape[:-1], dtype=torch.int64))


def read_tokens(config: Any) -> tuple[Tensor, int]:
    """Return the standard library's modules as tokens, and the size of the vocabulary.

    ``config.tokenizer`` names a ``tokenizer.json`` for the package ``tokenizers``; without one,
    each byte is a token.
    """
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= config.data_bytes:
            break
    if config.tokenizer is None:
        return torch.frombuffer(text, dtype=torch.uint8)[: config.data_bytes].long(), BYTES
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(config.tokenizer)
    tokens = tokenizer.encode(text[: config.data_bytes].decode(errors="replace")).ids
    return torch.tensor(tokens), tokenizer.get_vocab_size()


def windows(tokens: Tensor, seed: int, indices: list[int], context: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels; where a window begins depends on (seed, index) alone."""
    rows = []
    for index in indices:
        digest = hashlib.blake2b(f"{seed},{index}".encode(), digest_size=8).digest()
        start = int.from_bytes(digest, "little") % (len(tokens) - context)
        rows.append(tokens[start : start + context + 1])
    found = torch.stack(rows)
    return found[:, :-1], found[:, 1:]


def train(session: hpcrun.Session) -> None:
    """Train to ``config.total_steps``; the configuration is configs/experiments/causal-…"""
    config = session.config
    tokens, vocabulary = read_tokens(config)
    training, held_out = tokens[: -len(tokens) // 20], tokens[-len(tokens) // 20 :]

    torch.manual_seed(session.seed)
    model = build_layers(**config.model, vocabulary=vocabulary)
    engine, _, _, scheduler = session.initialize(
        model=model, loss=cross_entropy, model_parameters=list(model.parameters())
    )
    session.restore(engine)

    def read(indices: list[int], tokens: Tensor = training, seed: int = session.seed) -> Any:
        inputs, labels = windows(tokens, seed, indices, config.context)
        return session.sequence_part(inputs.to(engine.device), labels.to(engine.device))

    held_batches = [[*range(8 * k, 8 * k + 8)] for k in range(4)]
    for step in session.steps(total=config.total_steps):
        loss = session.train_batch(step, read)
        session.log({"loss": loss, "lr": scheduler.get_last_lr()[0]}, step)
        if config.evaluate_every and step % config.evaluate_every == 0:
            held = session.eval_batch([read(indices, held_out, 0) for indices in held_batches])
            session.log({"eval/loss": held}, step)
            if session.rank == 0:
                print(f"step {step}/{config.total_steps}", flush=True)
