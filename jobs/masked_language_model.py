"""Train a BERT-style masked language model on the bytes of the Python standard library's sources.

Of each window's bytes 15 % are to be guessed from both sides: 80 % of these are masked, 10 % are
replaced by another byte, 10 % are left. Windows have equally many, so that the mean over ranks is
that of the global batch. Put your own text into `read_text`.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    import hpcrun

MASK = 256
VOCABULARY = 257
IGNORED = -100


class MaskedLanguageModel(nn.Module):
    """Bytes in, the scores of each place's byte out: a transformer that sees both sides."""

    def __init__(
        self, layers: int, width: int, heads: int, context: int, dropout: float, deviation: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                *(width, heads, 4 * width, dropout),
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=deviation)

    def forward(self, text: Tensor) -> Tensor:
        """(batch, context) bytes as int64 -> scores (batch, context, vocabulary)."""
        x = self.tokens(text) + self.positions(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight, self.bias)


def build_model(config: Any) -> MaskedLanguageModel:
    """Return the model of a configuration; `hpcrun estimate` counts it on the meta device."""
    return MaskedLanguageModel(**config.model)


def sample_batch(config: Any, micro_batch: int) -> Tensor:
    """Return what the model is called with, in shape: `hpcrun estimate` follows one step of it."""
    return torch.zeros((micro_batch, config.model.context), dtype=torch.int64)


def read_text(limit: int) -> tuple[Tensor, Tensor]:
    """Return text to train on and held-out text, the last twentieth, as uint8.

    It is that of the standard library's modules, in the order of their paths.
    """
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    whole = torch.frombuffer(text, dtype=torch.uint8)[:limit]
    return whole[: -len(whole) // 20], whole[-len(whole) // 20 :]


class Windows(torch.utils.data.Dataset):
    """Windows of a text, one after the other, with masks drawn anew whenever one is read.

    The session seeds torch for each sample, so that masks are the same on any number of ranks.
    """

    def __init__(self, text: Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return len(self.text) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the text with masks and the bytes to guess, both (context,); others IGNORED."""
        wanted = self.text[index * self.context :][: self.context].long()
        place, how = torch.rand(2, self.context)
        shown = torch.where(how < 0.8, MASK, wanted)
        shown = torch.where(how >= 0.9, torch.randint(0, 256, (self.context,)), shown)
        guessed = place.argsort() < max(1, round(0.15 * self.context))
        return torch.where(guessed, shown, wanted), torch.where(guessed, wanted, IGNORED)


def masked_once(windows: Windows, count: int) -> tuple[Tensor, Tensor]:
    """Return the first ``count`` windows with one choice of masks, (count, context) each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shown, wanted = zip(*(windows[index] for index in range(count)), strict=True)
    return torch.stack(shown), torch.stack(wanted)


def loss_of(scores: Tensor, wanted: Tensor, **options: Any) -> Tensor:
    """Return the cross-entropy of the bytes to guess, in nats."""
    scores = scores.reshape(-1, VOCABULARY).float()
    return functional.cross_entropy(scores, wanted.reshape(-1), ignore_index=IGNORED, **options)


@torch.no_grad()
def evaluate(session: hpcrun.Session, engine: Any, shown: Tensor, wanted: Tensor) -> dict:
    """Return accuracy and mean loss of the bytes to guess: each counts once on all ranks."""
    engine.eval()
    losses, right = [], 0
    for indices in session.shard(len(shown), batch=16):
        targets = wanted[indices].to(engine.device)
        scores = engine(shown[indices].to(engine.device))
        losses += loss_of(scores, targets, reduction="none").tolist()
        right += int((scores.argmax(2) == targets).sum())
    engine.train()
    total, count = session.total({"loss": losses, "right": right}), int((wanted != IGNORED).sum())
    return {"eval/accuracy": total["right"] / count, "eval/loss": total["loss"] / count}


def train(session: hpcrun.Session) -> None:
    """Train to ``config.total_steps``; see configs/experiments/masked-language-model.yaml."""
    config = session.config
    training, held_out = read_text(config.data_bytes)
    held_out = masked_once(Windows(held_out, config.model.context), config.evaluate_windows)
    torch.manual_seed(session.seed)
    model = build_model(config)
    engine, *_ = session.initialize(model=model, model_parameters=list(model.parameters()))
    session.restore(engine)
    windows = Windows(training, config.model.context)
    loader = session.loader(windows, num_workers=config.num_workers)

    for step in session.steps(total=config.total_steps):
        losses = []
        for shown, wanted in loader(step):
            loss = loss_of(engine(shown), wanted, label_smoothing=config.label_smoothing)
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        session.log({"loss": torch.stack(losses).mean()}, step=step)
        if step % config.evaluate_every == 0:
            found = evaluate(session, engine, *held_out)
            session.log(found, step=step)
            if session.rank == 0:
                print(f"step {step}/{config.total_steps}: {found}", flush=True)
