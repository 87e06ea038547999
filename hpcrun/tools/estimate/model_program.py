"""The program that counts a model; `model_source` beside it starts it with the job's Python.

Standard library and torch. The model is made on the meta device, which has shapes and no memory: no
weights are downloaded, no GPU is touched. A question comes as JSON on standard input, the answer
goes as one marked line to standard output.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

MARK = "hpcrun-model:"
# Names that are looked for in the module of a function entry.
BUILD, SAMPLE, LOSS = "build_model", "sample_batch", "sample_loss"
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
        loss = None
    else:
        model, sample, loss, more = _built(question, config, torch)
    found = {"torch": torch.__version__, **more, **_count(model)}
    try:
        found.update(_followed(model, sample, loss, question, torch))
    except Exception as error:  # the count stands without it
        found["activations_problem"] = f"{type(error).__name__}: {error}"[:500]
    # Runs that differ in other keys have the same model.
    found["read"] = sorted(read)
    return found


def _built(
    question: dict[str, Any], config: Any, torch: Any
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return the model that a function makes of ``config``, what makes a batch of it, its loss."""
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
        return model, None, None, more
    loss = getattr(module, LOSS, None)
    return model, lambda count: sample(config, count), loss and partial(loss, config), more


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


def _count(model: Any) -> dict[str, Any]:
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
            if one.requires_grad and one.ndim >= 2 and not re.search("embed|lm_head", name.lower())
        ),
    }


def _followed(
    model: Any, sample: Callable[[int], Any], loss: Any, question: dict[str, Any], torch: Any
) -> dict[str, Any]:
    """Return what a tensor group divides, the stages of a pipeline, and what a step of them holds.

    The latter is in ``peaks``, of the model or of each of ``stages``.
    """
    follower = _beside("step_follower")
    plan = follower.tensor_plan(model, question.get("tensor_parallel") or {}, torch)
    found: dict[str, Any] = {} if plan is None else _divisions(model, plan)
    model = model.to(getattr(torch, question["dtype"]))
    model.train()
    parts = [found]
    bounds: list[int] = []
    pipeline = question.get("pipeline") or {}
    if pipeline and isinstance(model, torch.nn.Sequential):
        bounds = stage_bounds([*model], pipeline["stages"], pipeline["partition"])
        names = {id(one): name for name, one in model.named_parameters()}
        parts = found["stages"] = []
        for first, last in itertools.pairwise(bounds):
            part = torch.nn.Sequential(*[*model][first:last])
            parts.append(_count(part))
            if plan is not None:
                named = [(name, names[id(one)]) for name, one in part.named_parameters()]
                parts[-1].update(
                    _divisions(part, {one: plan[of] for one, of in named if of in plan})
                )
    if sample is not None:
        try:
            with torch.device("meta"):
                steps = follower.Steps(model, sample, loss, plan, torch)
                every = steps.stages(bounds, pipeline["interval"]) if bounds else [steps.whole()]
            for part, peaks in zip(parts, every, strict=True):
                part["peaks"] = peaks
        except Exception as error:  # the count stands without it
            found["activations_problem"] = f"{type(error).__name__}: {error}"[:500]
    return found


def stage_bounds(layers: Sequence[Any], stages: int, method: str) -> list[int]:
    """Return where the stages of a pipeline begin and end, as DeepSpeed's PipelineModule has it."""
    if method.startswith("type:"):
        kind = re.compile(method.partition(":")[2], re.IGNORECASE)
        weights = [int(bool(kind.search(type(one).__name__))) for one in layers]
    elif method in ("parameters", "best"):
        weights = [
            sum(each.numel() for each in one.parameters() if each.requires_grad) for one in layers
        ]
    else:
        each, more = divmod(len(layers), stages)
        return [stage * each + min(stage, more) for stage in range(stages + 1)]
    return balanced(weights, stages)


def balanced(weights: Sequence[int], parts: int) -> list[int]:
    """Return the bounds of parts whose largest and smallest sums are nearest; the last of equals.

    This is ``deepspeed.runtime.utils.partition_balanced``.
    """
    count = len(weights)
    if count <= parts:
        return [min(part, count) for part in range(parts + 1)]
    sums = [0, *itertools.accumulate(weights)]
    # (end, parts) -> the largest and smallest sum, and where the last part begins.
    best: dict[tuple[int, int], tuple[float, float, int]] = {(0, 0): (0.0, float("inf"), 0)}
    for end in range(1, count + 1):
        for part in range(1, min(end, parts) + 1):
            for start in range(end):
                if (start, part - 1) not in best:
                    continue
                most, least, _ = best[start, part - 1]
                own = sums[end] - sums[start]
                made = (max(most, own), min(least, own), start)
                known = best.get((end, part))
                if known is None or known[0] - known[1] >= made[0] - made[1]:
                    best[end, part] = made
    bounds = [count]
    for part in range(parts, 0, -1):
        bounds.append(best[bounds[-1], part][2])
    return bounds[::-1]


def _divisions(model: Any, plan: Mapping[str, str]) -> dict[str, Any]:
    """Return which parameters a tensor group divides, 1 or 0, in the order of their sizes."""
    flags = [(int(name in plan), one.requires_grad) for name, one in model.named_parameters()]
    return {
        "divided": [flag for flag, learns in flags if learns][:_MOST_SIZES],
        "frozen_divided": [flag for flag, learns in flags if not learns][:_MOST_SIZES],
    }


def _beside(name: str) -> Any:
    """Load a module that lies beside this file, which need not be an installed hpcrun."""
    return _module(
        {"module": name, "file": str(Path(os.path.realpath(__file__)).parent / f"{name}.py")}
    )


def _place(error: BaseException) -> str:
    """Return ``train.py:12: `` of the innermost line of the user's own code."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        named = frame.f_code.co_filename
        file = inspect.getsourcefile(frame.f_code) or named
        is_own = "site-packages" not in file and file != __file__
        if is_own and not named.startswith("<"):
            found = f"{Path(file).name}:{line}: "
    return found


if __name__ == "__main__":
    main()
