"""The program that counts a model; `hpcrun.estimate.model_counter` starts it with the job's Python.

Standard library and torch. The model is made on the meta device, which has shapes and no memory: no
weights are downloaded, no GPU is touched. A question comes as JSON on standard input, the answer
goes as one marked line to standard output.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

MARK = "hpcrun-model:"
# Names that are looked for in the module of a function entry.
BUILD, SAMPLE = "build_model", "sample_batch"
_MOST_SIZES = 200_000


class Unanswered(Exception):
    """The model cannot be counted, for a reason that the user can remove."""


class NotedConfig(Mapping[str, Any]):
    """The ``config`` of a spec as ``session.config`` shows it; it notes the keys that are read."""

    def __init__(self, data: dict[str, Any], read: set[str] | None = None) -> None:
        self.__dict__["_data"], self.__dict__["_read"] = data, read

    def __getitem__(self, key: str) -> Any:
        if self._read is not None:
            self._read.add(key)
        value = self._data[key]
        return NotedConfig(value) if isinstance(value, dict) else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._data:
            raise AttributeError(f"config has no key {name!r} (it has {', '.join(self._data)})")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data."""
        if self._read is not None:
            self._read.update(self._data)
        return dict(self._data)


def main() -> None:
    """Answer the question on standard input."""
    question = json.loads(sys.stdin.read())
    try:
        answer = _answer(question)
    except Unanswered as error:
        answer = {"problem": str(error)}
    except ImportError as error:
        answer = {"problem": f"{type(error).__name__}: {error}"}
    except (Exception, SystemExit) as error:
        answer = {"problem": f"{_place(error)}{type(error).__name__}: {error}"[:2000]}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    import torch

    # Not this file's directory, whose modules could hide the user's; hpcrun itself comes last.
    here = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
    others = [one for one in sys.path if os.path.realpath(one or ".") != here]
    sys.path[:] = [*question["paths"], *others, question["hpcrun"]]
    read: set[str] = set()
    config = NotedConfig(question["config"], read)
    if question.get("pretrained"):
        model, sample, more = _pretrained(question, torch)
    else:
        model, sample, more = _built(question, config, torch)
    found = {"torch": torch.__version__, **more, **_counted(model)}
    if sample is not None:
        try:
            with torch.device("meta"):
                found["peaks"] = _peaks(model, sample, question, torch)
        except Exception as error:  # the count stands without it
            found["activations_problem"] = f"{type(error).__name__}: {error}"[:500]
    # Runs that differ in other keys have the same model.
    found["read"] = sorted(read)
    return found


def _built(question: dict[str, Any], config: Any, torch: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return the model that a function makes of ``config``, and what makes a batch of it."""
    module = _module(question)
    name = question["function"] or BUILD
    build = getattr(module, name, None)
    if build is None:
        raise Unanswered(f"{question['module']} has no function {name}(config)")
    with torch.device("meta"):
        model = build(config)
    if not isinstance(model, torch.nn.Module):
        raise Unanswered(f"{name}(config) returned {type(model).__name__}, no torch.nn.Module")
    sample = getattr(module, SAMPLE, None)
    more = {"made_by": f"{question['module']}:{name}", "model": type(model).__name__}
    if sample is None:
        more["activations_problem"] = (
            f"{question['module']} has no function {SAMPLE}(config, micro_batch)"
        )
        return model, None, more
    return model, lambda count: sample(config, count), more


def _module(question: dict[str, Any]) -> Any:
    if question.get("file") is None:
        return importlib.import_module(question["module"])
    spec = importlib.util.spec_from_file_location(question["module"], question["file"])
    if spec is None or spec.loader is None:
        raise Unanswered(f"{question['file']} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[question["module"]] = module
    spec.loader.exec_module(module)
    return module


def _pretrained(question: dict[str, Any], torch: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return the model of a Hugging Face configuration; weights are neither read nor loaded."""
    name = question["pretrained"]
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise Unanswered(f"the job's Python has no transformers, which {name} needs") from None
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise Unanswered(f"the configuration of {name} cannot be read: {said[0]}") from None
    names = " ".join(config.architectures or ())
    makers = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM")
    suits = {"ConditionalGeneration": 1, "MaskedLM": 2}
    first = next((number for part, number in suits.items() if part in names), 0)
    model = None
    for maker in (makers[first], *makers, "AutoModel"):
        try:
            with torch.device("meta"):
                model = getattr(transformers, maker).from_config(config)
            break
        except (ValueError, AttributeError):
            continue
    if model is None:
        raise Unanswered(f"transformers has no model for the configuration of {name}")
    text = getattr(config, "text_config", None) or config
    length = question.get("sequence_length")
    known = int(getattr(text, "max_position_embeddings", None) or 2048)
    found = {
        "made_by": f"config.json of {name}",
        "model": type(model).__name__,
        "layers": getattr(text, "num_hidden_layers", None),
        "hidden_size": getattr(text, "hidden_size", None),
        "heads": getattr(text, "num_attention_heads", None),
        "vocabulary": getattr(text, "vocab_size", None),
        "sequence_length": length or min(known, 2048),
        "sequence_length_guessed": length is None,
    }
    length = found["sequence_length"]

    def sample(count: int) -> dict[str, Any]:
        tokens = torch.zeros((count, length), dtype=torch.long, device="meta")
        return {"input_ids": tokens, "labels": tokens}

    if not hasattr(model, "lm_head") and "AutoModelFor" not in maker:
        return model, None, {**found, "activations_problem": f"{maker} has no loss"}
    return model, sample, found


def _counted(model: Any) -> dict[str, Any]:
    """Count parameters; tied ones once, as ``model.parameters()`` yields them."""
    sizes = [(one.numel(), one.requires_grad) for one in model.parameters()]
    every = sum(1 for _ in model.named_parameters(remove_duplicate=False))
    return {
        "parameters": sum(number for number, _ in sizes),
        "trainable": sum(number for number, learns in sizes if learns),
        "sizes": [number for number, learns in sizes if learns][:_MOST_SIZES],
        "frozen_sizes": [number for number, learns in sizes if not learns][:_MOST_SIZES],
        "buffer_bytes": sum(one.numel() * one.element_size() for one in model.buffers()),
        "tied": every - len(sizes),
        # The rule of deepspeed.initialize.
        "muon_parameters": sum(
            one.numel()
            for name, one in model.named_parameters()
            if one.requires_grad and one.ndim >= 2 and not _is_adams(name.lower())
        ),
    }


def _is_adams(name: str) -> bool:
    return "embed" in name or "lm_head" in name


def _peaks(model: Any, sample: Callable[[int], Any], question: dict[str, Any], torch: Any) -> Any:
    """Return the bytes that forward and backward hold beside parameters and gradients, at most.

    For one and two samples, without and with every block checkpointed: ``{"whole": [a, b],
    "checkpointed": [a, b] or None}``.
    """
    kind = getattr(torch, question["dtype"])
    model = model.to(kind)
    model.train()
    torch.nn.functional.scaled_dot_product_attention = _fused_attention(torch)
    found: dict[str, Any] = {"whole": [_peak(model, sample(count), torch) for count in (1, 2)]}
    found["blocks"] = _checkpoint_blocks(model, torch)
    found["checkpointed"] = None
    if found["blocks"]:
        found["checkpointed"] = [_peak(model, sample(count), torch) for count in (1, 2)]
    return found


def _peak(model: Any, batch: Any, torch: Any) -> int:
    """Follow one forward and backward, and return the most bytes that lived at once."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    kept = {id(one.untyped_storage()) for one in (*model.parameters(), *model.buffers())}
    live = peak = 0
    known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def free(count: int) -> None:
        nonlocal live
        live -= count

    class Follow(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal live, peak
            out = func(*args, **(kwargs or {}))
            for one in tree_iter(out):
                if not isinstance(one, torch.Tensor):
                    continue
                storage = one.untyped_storage()
                if storage in known or id(storage) in kept:
                    continue
                known[storage] = count = storage.nbytes()
                weakref.finalize(storage, free, count)
                live += count
                peak = max(peak, live)
            return out

    def drop(parameter: Any) -> None:
        parameter.grad = None

    learning = [one for one in model.parameters() if one.requires_grad]
    hooks = [one.register_post_accumulate_grad_hook(drop) for one in learning]
    try:
        with Follow():
            loss = _loss(model, batch, torch)
            loss.backward()
            del loss
    finally:
        for hook in hooks:
            hook.remove()
    return peak


def _loss(model: Any, batch: Any, torch: Any) -> Any:
    if isinstance(batch, dict):
        out = model(**batch)
    elif isinstance(batch, (list, tuple)):
        out = model(*batch)
    else:
        out = model(batch)
    out = getattr(out, "loss", None) if not isinstance(out, (torch.Tensor, tuple)) else out
    if isinstance(out, tuple):
        out = out[0]
    if not isinstance(out, torch.Tensor):
        raise Unanswered("the model returned no loss")
    return out if out.ndim == 0 else out.float().sum()


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
    """Checkpoint each block of the longest list of equal blocks; return how many there are."""
    lists = [
        one
        for one in model.modules()
        if isinstance(one, (torch.nn.ModuleList, torch.nn.Sequential))
        and len(one) > 1
        and len({type(child) for child in one}) == 1
    ]
    if not lists:
        return 0
    # The one that holds most of the model.
    blocks = max(lists, key=lambda one: sum(each.numel() for each in one.parameters()))
    from torch.utils.checkpoint import checkpoint

    def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return checkpoint(
                forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs
            )

        return call

    for block in blocks:
        block.forward = wrapped(block.forward)
    return len(blocks)


def _place(error: BaseException) -> str:
    """Return ``train.py:12: `` of the innermost line of the user's own code."""
    frames = list(_frames(error))
    own = [
        (file, line) for file, line in frames if "site-packages" not in file and file != __file__
    ]
    return f"{Path(own[-1][0]).name}:{own[-1][1]}: " if own else ""


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith("<"):
            yield inspect.getsourcefile(code) or code.co_filename, trace.tb_lineno
        trace = trace.tb_next


if __name__ == "__main__":
    main()
