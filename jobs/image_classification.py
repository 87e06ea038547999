"""Train a small residual network with synchronised batch norm on scikit-learn's images of digits.

1,797 real images that come with a package: `pip install scikit-learn`. Four fifths are trained on;
the accuracy is that of the others. Put your own images into `read_images` and `Digits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

if TYPE_CHECKING:
    import hpcrun

CLASSES = 10


class SumOverRanks(torch.autograd.Function):
    """The sum of a tensor over all ranks, and of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the sum, in the shape of ``x``."""
        total = x.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of all ranks' losses, in the shape of ``gradient``."""
        total = gradient.clone()
        distributed.all_reduce(total)
        return total


class SyncedBatchNorm(nn.BatchNorm2d):
    """Batch norm with the mean and variance of all ranks' images.

    `torch.nn.SyncBatchNorm` does so on GPUs alone, and takes the place of this one there.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> the same shape."""
        if not (self.training and distributed.is_initialized()):
            return super().forward(x)
        images = x.float()
        sums = torch.stack([images.sum((0, 2, 3)), images.square().sum((0, 2, 3))])
        count = x.numel() // x.shape[1] * distributed.get_world_size()
        mean, square = SumOverRanks.apply(sums) / count
        variance = square - mean.square()
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        shift = self.bias - mean * scale
        return (images * scale[:, None, None] + shift[:, None, None]).to(x.dtype)


class Residual(nn.Module):
    """Two convolutions and a way around them; ``stride`` 2 halves the image."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            SyncedBatchNorm(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            SyncedBatchNorm(after),
        )
        self.around = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, before, height, width) -> (batch, after, height / stride, width / stride)."""
        return functional.relu(self.body(x) + self.around(x))


class Network(nn.Module):
    """Images in, a score for each class out."""

    def __init__(self, width: int, dropout: float, initialization: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            SyncedBatchNorm(width),
            nn.ReLU(),
            Residual(width, width, 1),
            Residual(width, 2 * width, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * width, CLASSES),
        )
        fill = {"he": nn.init.kaiming_normal_, "xavier": nn.init.xavier_normal_}[initialization]
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                fill(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, height, width) -> scores (batch, classes)."""
        return self.layers(images)


def build_model(config: Any) -> Network:
    """Return the model of a configuration; `hpcrun estimate` counts it on the meta device."""
    return Network(**config.model)


def sample_batch(config: Any, micro_batch: int) -> Tensor:
    """Return what the model is called with, in shape: `hpcrun estimate` follows one step of it."""
    return torch.zeros(micro_batch, 1, 8, 8)


def read_images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images and labels to train on, and held-out ones: every fifth.

    Images are float32 (n, 1, 8, 8) with mean 0 and deviation 1, labels int64 (n,).
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None]
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(found.target, dtype=torch.int64)
    held_out = torch.arange(len(labels)) % 5 == 4
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


class Digits(torch.utils.data.Dataset):
    """Images to train on, each moved by up to a pixel in both directions."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        down, right = torch.randint(0, 3, (2,)).tolist()
        edge = float(self.images.min())
        padded = functional.pad(self.images[index], (1, 1, 1, 1), value=edge)
        return padded[:, down : down + 8, right : right + 8], self.labels[index]


@torch.no_grad()
def evaluate(session: hpcrun.Session, engine: Any, images: Tensor, labels: Tensor) -> dict:
    """Return the accuracy and the mean loss of held-out images: each counts once on all ranks."""
    engine.eval()
    losses, right = [], []
    for indices in session.shard(len(labels), batch=60):
        wanted = labels[indices].to(engine.device)
        scores = engine(images[indices].to(engine.device))
        losses += functional.cross_entropy(scores, wanted, reduction="none").tolist()
        right += (scores.argmax(1) == wanted).tolist()
    engine.train()
    total = session.total({"loss": losses, "right": right})
    return {
        "eval/accuracy": total["right"] / len(labels),
        "eval/loss": total["loss"] / len(labels),
    }


def train(session: hpcrun.Session) -> None:
    """Train to ``config.total_steps``; see configs/experiments/image-classification.yaml."""
    config = session.config
    images, labels, *held_out = read_images()
    torch.manual_seed(session.seed)
    model = build_model(config)
    if session.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    engine, *_ = session.initialize(model=model, model_parameters=list(model.parameters()))
    session.restore(engine)
    loader = session.loader(Digits(images, labels), num_workers=config.num_workers)

    for step in session.steps(total=config.total_steps):
        losses = []
        for inputs, wanted in loader(step):
            loss = functional.cross_entropy(
                engine(inputs), wanted, label_smoothing=config.label_smoothing
            )
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        session.log({"loss": torch.stack(losses).mean()}, step=step)
        if step % config.evaluate_every == 0:
            found = evaluate(session, engine, *held_out)
            session.log(found, step=step)
            if session.rank == 0:
                print(f"step {step}/{config.total_steps}: {found}", flush=True)
