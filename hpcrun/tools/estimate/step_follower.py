"""Follows one step of a model in the job's Python, and adds up what lives at once, on any device.

`model_program` loads this file, which lies beside it: standard library and torch. Bytes come in
pairs: of tensors that each rank of a tensor group has whole, and of those that the group
divides, which a plan of the model's matrices tells from each other.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# How a tensor group divides a matrix: by its outputs, by its inputs, or so that what comes out of
# it is whole again.
COLUMN, ROW, GATHERED = "column", "row", "gathered"
_WORDS = {"colwise": COLUMN, "rowwise": ROW, "column": COLUMN, "row": ROW}
_GATHERS = ("colwise_rep", "colwise_gather_output")
_WHOLE = ("replicated_with_grad_allreduce", "embedding_rowwise", "skip")


def tensor_plan(model: Any, block: Mapping[str, Any], torch: Any) -> dict[str, str] | None:
    """Return how a tensor group divides each parameter, by name; None if nothing tells.

    What tells is, in DeepSpeed's order, ``tensor_parallel.partition_config`` of the configuration
    (``block``), the modules' ``tensor_parallel_plan``, and the plan of a Hugging Face model.
    """
    if block.get("preset_model"):
        return None
    if given := block.get("partition_config"):
        if given.get("use_default_specs") is not False:
            return None
        rules = [
            (pattern, str(one.get("partition_type", COLUMN)).lower())
            for one in given.get("layer_specs", ())
            for pattern in one.get("patterns", ())
        ]
        return _by_rules(model, rules, torch)
    names = {
        f"{name}.{child}" if name else child: style
        for name, module in model.named_modules()
        for child, style in (getattr(module, "tensor_parallel_plan", None) or {}).items()
    }
    if names:
        return _by_rules(
            model, [(re.escape(f"{one}.weight"), style) for one, style in names.items()], torch
        )
    plan = {
        **(getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}),
        **(getattr(type(model), "_tp_plan", None) or {}),
    }
    if not plan or not {*plan.values()} <= {*_WORDS, *_GATHERS, *_WHOLE}:
        return None
    rules = [
        (".*" + re.escape(name).replace(r"\*", ".*") + r"\.weight$", style)
        for name, style in plan.items()
    ]
    return _by_rules(model, rules, torch, vocabulary="embedding_rowwise" in plan.values())


def _by_rules(
    model: Any, rules: Sequence[tuple[str, str]], torch: Any, *, vocabulary: bool = False
) -> dict[str, str]:
    """Return the styles of the parameters whose weights match a rule; the first match counts."""
    modules = [*model.named_modules()]
    tied = {id(one.weight) for _, one in modules if isinstance(one, torch.nn.Embedding)}
    found: dict[str, str] = {}
    for name, module in modules:
        weight = getattr(module, "weight", None)
        if weight is None or weight.ndim != 2:
            continue
        full = f"{name}.weight"
        style = next((kind for pattern, kind in rules if re.match(pattern, full)), None)
        if style is None or style in _WHOLE:
            continue
        if isinstance(module, torch.nn.Embedding):
            style = GATHERED
        elif id(weight) in tied and style in _GATHERS:
            if not vocabulary:
                continue
            style = COLUMN  # DeepSpeed divides the vocabulary, and the loss with it
        found[full] = _WORDS.get(style, GATHERED)
        if found[full] != ROW:
            found[f"{name}.bias"] = found[full]
    return found


def follower(torch: Any, kept: Iterable[Any], styles: Mapping[int, str] | None = None) -> Any:
    """Return a dispatch mode that counts all storages that operators make, but for ``kept``.

    Its ``live`` is a pair of bytes, and ``peaks`` are those pairs of which none was less than
    another in both. ``styles`` are those of matrices, by ``id`` of their storage.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    ids = {id(one.untyped_storage()) for one in kept}
    known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
    matrices = styles or {}

    class Follower(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.live = [0, 0]
            self.peaks: list[list[int]] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            for one in tree_iter(out):
                if not isinstance(one, torch.Tensor):
                    continue
                storage = one.untyped_storage()
                if storage in known or id(storage) in ids:
                    continue
                known[storage] = divided = _is_divided(func, (args, kwargs))
                count = storage.nbytes()
                weakref.finalize(storage, self.free, divided, count)
                self.live[divided] += count
                self.note()
            return out

        def free(self, divided: bool, count: int) -> None:
            self.live[divided] -= count

        def note(self) -> None:
            whole, divided = self.live
            if not any(one[0] >= whole and one[1] >= divided for one in self.peaks):
                rest = [one for one in self.peaks if one[0] > whole or one[1] > divided]
                self.peaks = [*rest, [whole, divided]]

    def _is_divided(func: Any, given: Any) -> bool:
        """Check whether a tensor group divides what an operator makes.

        A divided matrix turns a whole tensor into a divided one, and the reverse.
        """
        style, divided = None, False
        for one in tree_iter(given):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                style = matrices.get(id(storage)) or style
                divided = divided or known.get(storage, False)
        if style is not None and "mm" in func.__name__:
            return style != GATHERED and not divided
        return divided

    return Follower()


class Steps:
    """Follows steps of one model.

    Parameters
    ----------
    model
        On the meta device, in the data type in which it trains.
    sample
        Makes what the model is called with, of so many samples.
    loss
        Makes the loss of what the model returns; None if that is the loss, or in place of it.
    plan
        The styles of `tensor_plan`.
    """

    def __init__(
        self,
        model: Any,
        sample: Callable[[int], Any],
        loss: Callable[[Any], Any] | None,
        plan: Mapping[str, str] | None,
        torch: Any,
    ) -> None:
        self._model, self._sample, self._loss, self._torch = model, sample, loss, torch
        torch.nn.functional.scaled_dot_product_attention = _fused_attention(torch)
        self._kept = [*model.parameters(), *model.buffers()]
        self._styles = {
            id(one.untyped_storage()): plan[name]
            for name, one in model.named_parameters(remove_duplicate=False)
            if plan and name in plan and name.endswith("weight")
        }
        self._learning = [one for one in model.parameters() if one.requires_grad]

    def whole(self) -> dict[str, Any]:
        """Follow the model as one rank runs it, without and with every block checkpointed.

        For one and two samples: ``{"whole": [a, b], "checkpointed": [a, b] or None}``.
        """
        whole = [self._one_rank(count) for count in (1, 2)]
        blocks = _checkpoint_blocks(self._model, self._torch)
        again = [self._one_rank(count) for count in (1, 2)] if blocks else None
        return {"whole": whole, "blocks": blocks, "checkpointed": again}

    def stages(self, bounds: Sequence[int], interval: int) -> list[dict[str, Any]]:
        """Follow each stage of a pipeline of layers with one micro batch, as `whole` does.

        ``interval`` is that of DeepSpeed's activation checkpointing, in layers.
        """
        found: list[dict[str, Any]] = []
        for every in (0, interval):
            passed = [self._sample(count) for count in (1, 2)]
            for stage, (first, last) in enumerate(itertools.pairwise(bounds)):
                both = [self._stage(one, first, last, every) for one in passed]
                passed = [out for _, out in both]
                if not every:
                    found.append({})
                found[stage]["checkpointed" if every else "whole"] = [one for one, _ in both]
        return found

    def _one_rank(self, count: int) -> dict[str, Any]:
        mode = follower(self._torch, self._kept, self._styles)
        batch = self._sample(count)
        with self._dropping(), mode:
            if isinstance(batch, dict):
                out = self._model(**batch)
            elif isinstance(batch, (list, tuple)):
                out = self._model(*batch)
            else:
                out = self._model(batch)
            loss = self._end(out)
            del out
            kept = [*mode.live]
            loss.backward()
            del loss
        return {"peaks": mode.peaks, "kept": kept}

    def _stage(self, given: Any, first: int, last: int, every: int) -> tuple[dict[str, Any], Any]:
        """Follow what DeepSpeed's PipelineEngine does with one micro batch on one stage.

        Also return what the stage sends on.
        """
        torch, layers = self._torch, [*self._model][first:last]
        mode = follower(torch, self._kept, self._styles)
        is_last = last == len(self._model)
        given = given if isinstance(given, tuple) else (given,)
        with self._dropping(), mode:
            # It receives into a buffer of its own, and computes with a copy of what it keeps.
            buffers = [torch.empty_like(one) for one in given] if first else []
            fixed = [*mode.live]
            received = tuple(one.clone().detach() for one in given)
            for one in received if first else ():
                one.requires_grad_(one.is_floating_point())
            inputs = tuple(one.clone() for one in received)
            out = self._forward(layers, first, inputs[0] if len(inputs) == 1 else inputs, every)
            del inputs
            sent = out if isinstance(out, tuple) else (out,)
            floats = [one for one in sent if one.is_floating_point()]
            if is_last:
                # The outputs of the micro batch before stay until the next ones come.
                buffers += [torch.empty_like(one) for one in floats]
                end = self._end(out)
                kept = [one - base for one, base in zip(mode.live, fixed, strict=True)]
                end.backward()
            else:
                kept = [one - base for one, base in zip(mode.live, fixed, strict=True)]
                buffers += [torch.empty_like(one) for one in floats]
                torch.autograd.backward(floats, buffers[-len(floats) :])
        passed = tuple(one.detach() for one in sent)
        return {"peaks": mode.peaks, "kept": kept}, passed[0] if len(passed) == 1 else passed

    def _forward(self, layers: Sequence[Any], first: int, x: Any, every: int) -> Any:
        from torch.utils.checkpoint import checkpoint

        def through(part: Sequence[Any], *given: Any) -> Any:
            x = given[0] if len(given) == 1 else given
            for layer in part:
                x = layer(x)
            return x

        # DeepSpeed checkpoints what has parameters of its own.
        before = {id(one) for layer in [*self._model][:first] for one in layer.parameters()}
        length = every or max(1, len(layers))
        for start in range(0, len(layers), length):
            part = layers[start : start + length]
            own = {id(one) for layer in part for one in layer.parameters()}
            given = x if isinstance(x, tuple) else (x,)
            if every and own - before:
                x = checkpoint(through, part, *given, use_reentrant=False, preserve_rng_state=False)
            else:
                x = through(part, *given)
            before |= own
        return x

    def _end(self, out: Any) -> Any:
        """Return the loss of what the model returned."""
        if self._loss is not None:
            out = self._loss(out)
        if not isinstance(out, (self._torch.Tensor, tuple)):
            out = getattr(out, "loss", None)
        if isinstance(out, tuple):
            out = out[0]
        if not isinstance(out, self._torch.Tensor):
            raise TypeError("the model returned no loss")
        return out if out.ndim == 0 else out.float().sum()

    def _dropping(self) -> Any:
        """Return a context in which gradients of parameters go as soon as they are there."""

        def drop(parameter: Any) -> None:
            parameter.grad = None

        stack = contextlib.ExitStack()
        for one in self._learning:
            stack.callback(one.register_post_accumulate_grad_hook(drop).remove)
        return stack


def _fused_attention(torch: Any) -> Callable[..., Any]:
    """Return attention that keeps what FlashAttention keeps: its inputs, its output, a norm."""

    class Fused(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, query: Any, key: Any, value: Any) -> Any:
            shape = (*query.shape[:-1], value.shape[-1])
            out = query.new_empty(shape)
            norms = query.new_empty(query.shape[:-1], dtype=torch.float32)
            context.save_for_backward(query, key, value, out, norms)
            return out

        @staticmethod
        def backward(context: Any, *gradient: Any) -> Any:
            return tuple(torch.empty_like(one) for one in context.saved_tensors[:3])

    def attention(query: Any, key: Any, value: Any, *_more: Any, **_options: Any) -> Any:
        return Fused.apply(query, key, value)

    return attention


def _checkpoint_blocks(model: Any, torch: Any) -> int:
    """Checkpoint the blocks that hold most of a model; return how many there are.

    Blocks are modules of one class that one list has several of.
    """
    from torch.utils.checkpoint import checkpoint

    groups: dict[Any, list[Any]] = {}
    for one in model.modules():
        if isinstance(one, (torch.nn.ModuleList, torch.nn.Sequential)):
            for child in one:
                groups.setdefault((id(one), type(child)), []).append(child)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return 0

    def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return checkpoint(
                forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs
            )

        return call

    blocks = max(
        several, key=lambda group: sum(one.numel() for each in group for one in each.parameters())
    )
    for block in blocks:
        block.forward = wrapped(block.forward)
    return len(blocks)
