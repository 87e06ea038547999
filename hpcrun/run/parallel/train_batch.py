"""One optimizer step, or one evaluation, of a model that is divided in whatever way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.run.protocol.output import tell


def train_batch(engine: Any, batches: Iterable[Any]) -> Any:
    """Train on this rank's share of a global batch, and return its mean loss, detached.

    Parameters
    ----------
    engine
        A DeepSpeed engine; its model returns the loss.
    batches
        What the model is called with for each micro batch: a tuple, a mapping or one value. In a
        pipeline the pair of inputs and labels; its first and last stage alone take them.
    """
    if _is_pipeline(engine):
        # The engine writes the next loss into the same tensor.
        return engine.train_batch(data_iter=_pairs(batches)).detach().clone()
    import torch

    losses = []
    for batch in batches:
        loss = _loss(engine, batch)
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def eval_batch(engine: Any, batches: Iterable[Any]) -> Any:
    """Return the mean loss of this rank's micro batches, as of `train_batch`, without gradients."""
    import torch

    given = list(batches)
    if _is_pipeline(engine):
        # Micro batches of another size than those of the training.
        engine.reset_activation_shape()
        loss = engine.eval_batch(_pairs(given), num_micro_batches=len(given))
        engine.reset_activation_shape()
        engine.train()
        return loss.detach().clone()
    was = engine.module.training
    engine.eval()
    with torch.no_grad():
        losses = [_loss(engine, batch).detach() for batch in given]
    engine.train(was)
    return torch.stack(losses).mean()


def watch_mode(engine: Any) -> None:
    """Tell of the first backward pass of a model that is in evaluation mode."""
    if not hasattr(engine, "backward"):
        return
    backward = engine.backward

    def watched(*arguments: Any, **named: Any) -> Any:
        if not engine.module.training:
            del engine.backward
            tell(
                "the model is trained in evaluation mode, without dropout and with the statistics "
                "of batch norm as they are; after an evaluation, engine.train() ends that"
            )
        return backward(*arguments, **named)

    engine.backward = watched


def _is_pipeline(engine: Any) -> bool:
    return bool(getattr(engine, "pipeline_parallelism", False))


def _pairs(batches: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for batch in batches:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise UsageError(
                "a pipeline's micro batch is a pair of inputs and labels, and the program's is "
                f"{type(batch).__name__}"
            )
        yield batch[0], batch[1]


def _loss(engine: Any, batch: Any) -> Any:
    if isinstance(batch, (tuple, list)):
        output = engine(*batch)
    elif isinstance(batch, Mapping):
        output = engine(**batch)
    else:
        output = engine(batch)
    loss = getattr(output, "loss", output)
    if getattr(loss, "numel", lambda: 0)() != 1:
        raise UsageError(
            f"the model returns {type(output).__name__}, and a loss is wanted",
            hint="return the loss, or give session.initialize(…, loss=…) a function of the outputs "
            "and labels",
        )
    return loss
