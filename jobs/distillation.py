"""Distil a trained network into one with a quarter of its parameters, on images without labels.

The teacher, on local disk, is what `hpcrun weights` exports of `image-classification`. The student
has the labels of a few images, and learns the teacher's scores of all of them at a temperature.
Needs image_classification.py beside it, and its images: `pip install scikit-learn`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from image_classification import Digits, Network, evaluate, read_images, sample_batch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    import hpcrun

__all__ = ["build_model", "sample_batch", "train"]
UNLABELLED = -100


def build_model(config: Any) -> Network:
    """Return the student; `hpcrun estimate` counts it on the meta device."""
    return Network(**config.model)


def read_teacher(config: Any, device: torch.device) -> Network:
    """Return the teacher, for inference, with the weights that `hpcrun weights` wrote."""
    if config.teacher.weights is None:
        raise ValueError(
            "config.teacher.weights names no directory with the teacher's weights; type: hpcrun "
            "weights image-classification/0 -o teacher --format pt, then "
            "config.teacher.weights=$PWD/teacher"
        )
    directory = Path(config.teacher.weights)
    if (directory / "model.safetensors").exists():
        from safetensors.torch import load_file

        weights = load_file(directory / "model.safetensors")
    else:
        weights = torch.load(directory / "pytorch_model.bin", weights_only=True)
    teacher = Network(**config.teacher.model)
    teacher.load_state_dict(weights)
    return teacher.to(device).eval().requires_grad_(False)


def distillation_loss(
    scores: Tensor, taught: Tensor, labels: Tensor, temperature: float, share: float
) -> Tensor:
    """Return the loss of scores (batch, classes): from the teacher's, and from labels there are.

    The teacher's part is the divergence of both distributions at the temperature, times its square:
    so its gradient has the size of the labels' part at any temperature. ``share`` is its weight.
    Both are means over the batch, in which an image without a label adds nothing to the second:
    so the mean over ranks is that of the global batch.
    """
    soft = functional.kl_div(
        functional.log_softmax(scores.float() / temperature, dim=1),
        functional.log_softmax(taught.float() / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    hard = functional.cross_entropy(
        scores.float(), labels, ignore_index=UNLABELLED, reduction="sum"
    )
    return share * temperature**2 * soft + (1 - share) * hard / len(labels)


def train(session: hpcrun.Session) -> None:
    """Train to ``config.total_steps``; see configs/experiments/distillation.yaml."""
    config = session.config
    images, labels, *held_out = read_images()
    labels[config.labelled :] = UNLABELLED
    teacher = read_teacher(config, session.device)
    torch.manual_seed(session.seed)
    model = build_model(config)
    if session.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    engine, *_ = session.initialize(model=model, model_parameters=list(model.parameters()))
    session.restore(engine)
    loader = session.loader(Digits(images, labels), num_workers=config.num_workers)
    if session.rank == 0:
        every = [sum(one.numel() for one in each.parameters()) for each in (teacher, model)]
        print(f"{every[0]:,} parameters teach {every[1]:,}", flush=True)

    for step in session.steps(total=config.total_steps):
        losses = []
        for inputs, wanted in loader(step):
            with torch.no_grad():
                taught = teacher(inputs)
            loss = distillation_loss(
                engine(inputs), taught, wanted, config.temperature, config.share
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
