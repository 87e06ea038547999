"""Parts of `bench.on_gpu` about the speed of engines and their memory, one after the other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.on_gpu import commands
from bench.on_gpu.card import Model
from bench.on_gpu.desk import Desk
from bench.on_gpu.record import NotHereError, Part

# What others say of themselves, in their READMEs: of other sizes and numbers of GPUs.
OTHERS = {
    "nanochat": 50.0,
    "llm.c": 46.5,
    "llm-foundry, 1.3B, 2048 tokens, eight H100, bf16": 41.8,
}
# Of a prediction of memory.
WITHIN = 0.10


def case(
    name: str,
    model: Model,
    steps: int,
    *,
    stage: int = 1,
    backend: str | None = None,
    engine: str = "deepspeed",
) -> Any:
    """Return one of ``config.cases``; it is compiled by a ``backend``."""
    return {
        "name": name,
        "engine": engine,
        **model.config(),
        "compile": backend,
        "warm_up": 2,
        "steps": steps,
        "deepspeed": {
            "train_batch_size": model.micro,
            "train_micro_batch_size_per_gpu": model.micro,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": stage},
        },
    }


def measure(
    desk: Desk, part: Part, name: str, cases: Sequence[Any], told: Any, **more: Any
) -> list[dict[str, Any]]:
    """Have a rank measure cases, and tell each as soon as it is written."""
    adam = desk.adam.arguments(part)
    part.note(adam=desk.adam.told)
    spec = desk.spec(
        name,
        desk.sizes.middle,
        entry="program.py:measure",
        adam=adam,
        config={"cases": list(cases)},
        checkpoint={"every": None},
        **more,
    )
    path, seen = desk.run(name).directory / "cases.jsonl", 0
    found: list[dict[str, Any]] = []

    def look() -> None:
        nonlocal seen
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        for line in lines[seen:]:
            found.append(json.loads(line))
            part.note(cases=found)
            part.say(told(found[-1]))
        seen = len(lines)

    desk.hpcrun(part, "run", spec, "--new", "-q", meanwhile=look)
    if found and all("error" in one for one in found):
        raise RuntimeError(f"no case was measured: {found[0]['error']}")
    return found


class Estimates:
    """`hpcrun estimate` of all models and stages, on processors behind the first parts."""

    def __init__(self, desk: Desk, models: Mapping[str, Model], stages: Sequence[int]) -> None:
        self._desk = desk
        self._asked: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        known = desk.card.known
        gpu = ["--gpu", known.name if known else "h100"]
        # Whether DeepSpeed's own Adam will be there is not known yet: both are asked for.
        for name, model in models.items():
            spec = desk.spec(f"estimate-{name}", model)
            swept = "deepspeed.zero_optimization.stage=" + ",".join(map(str, stages))
            own = "deepspeed.optimizer.params.torch_adam=true,false"
            log = desk.code / f"estimate-{name}.out"
            words = ("estimate", spec, *gpu, "--sweep", swept, "--sweep", own, "--json")
            self._asked.append((name, desk.start(*words, log=log, behind=True), log))

    def of(self, part: Part) -> dict[tuple[str, int, bool], float]:
        """Return the predicted peak by model, stage, and whether Adam is torch's."""
        found = {}
        for name, started, log in self._asked:
            for shape in json.loads(self._desk.wait(part, started, log))["shapes"]:
                if shape["memory"] is None:
                    raise RuntimeError(f"estimate of {name}: {shape['problem']}")
                key = (name, shape["setup"]["stage"], shape["setup"]["is_torch"])
                found[key] = float(shape["memory"]["gpu"]["peak"])
        return found


def bf16(desk: Desk, part: Part, estimates: Estimates) -> None:
    """Time each size as it is and compiled, and weigh it at each ZeRO stage."""
    models, timed = desk.sizes.models, desk.sizes.timed
    cases = []
    for name, model in models.items():
        cases.append(case(f"{name} as it is", model, timed))
        cases.append(case(f"{name} compiled", model, timed, backend=desk.sizes.compiler))
    for name, model in models.items():
        for stage in desk.sizes.stages:
            if stage != 1:
                cases.append(case(f"{name} ZeRO {stage}", model, 1, stage=stage))
    of_others(part)
    found = measure(desk, part, "speed", cases, lambda one: line(desk, one))
    desk.speeds = {one["name"]: one for one in found if "error" not in one}
    _against_estimates(desk, part, found, estimates)


def fp8(desk: Desk, part: Part) -> None:
    """Time each size with linear layers in fp8, compiled."""
    if tuple(desk.card.capability) < (8, 9):
        raise NotHereError("no GPU with units for fp8")
    timed = desk.sizes.timed
    # The largest first, which gains most.
    models = reversed(desk.sizes.models.items())
    cases = [
        case(f"{name} fp8 compiled", model, timed, backend=desk.sizes.compiler)
        for name, model in models
    ]
    measure(desk, part, "fp8", cases, lambda one: line(desk, one), precision="fp8")
    part.say("MFU of the peak in bf16, so that it compares; fp8's own peak is twice as high")


def fully_shard(desk: Desk, part: Part) -> None:
    """Time each size under FSDP2, as it is and compiled, beside ZeRO 1; save behind a training."""
    engine, timed = "fully_shard", desk.sizes.timed
    cases = [
        case(f"{name} {how}", model, timed, backend=backend, engine=engine)
        for name, model in desk.sizes.models.items()
        for how, backend in (("as it is", None), ("compiled", desk.sizes.compiler))
    ]

    def told(found: dict[str, Any]) -> str:
        beside = desk.speeds.get(found["name"])
        return line(desk, found) + (f"; ZeRO 1: {_figures(desk, beside)}" if beside else "")

    measure(desk, part, engine, cases, told, stage=3)
    commands.save(desk, part, engine, stage=3)


def of_others(part: Part) -> None:
    """Say beside what the figures are to be seen."""
    told = "; ".join(f"{name} {percent:g} %" for name, percent in OTHERS.items())
    part.note(others=OTHERS)
    part.say(f"MFU that others tell of themselves: {told}")


def line(desk: Desk, found: dict[str, Any]) -> str:
    """Return what one case gave, with its MFU where the card's peak is known."""
    name = found["name"]
    if "error" in found:
        return f"{name}: failed: {found['error'].splitlines()[0][:200]}"
    told = f"{name:22} {_figures(desk, found)}"
    if found["fp8_layers"]:
        told += f", {found['fp8_layers']} layers in fp8"
    spread = max(found["step_seconds"]) / min(found["step_seconds"]) - 1
    return f"{told} (again: {spread:+.1%}; ready after {found['ready_seconds']:.0f} s)"


def _figures(desk: Desk, found: dict[str, Any]) -> str:
    """Return a case's time, MFU and peak; the MFU is noted in it."""
    model = desk.sizes.models[found["name"].split()[0]]
    seconds = min(found["step_seconds"])
    rate = found["tokens"] / seconds
    known = desk.card.known
    told = f"{1000 * seconds:8.1f} ms a step, {rate:10,.0f} tokens/s"
    if known is not None:
        found["mfu"] = rate * model.operations(found["parameters"]) / (known.half * 1e12)
        told += f", MFU {100 * found['mfu']:.1f} %"
    if found["peak"] is not None:
        told += f", at most {found['peak'] / 1e9:.2f} GB"
    return told


def _against_estimates(
    desk: Desk, part: Part, found: Sequence[dict[str, Any]], estimates: Estimates
) -> None:
    """Compare peaks with what `hpcrun estimate` said before."""
    predicted = estimates.of(part)
    is_torchs = "torch's" in desk.adam.told
    compared = []
    for one in found:
        name, _, how = one["name"].partition(" ")
        if "error" in one or how == "compiled":
            continue
        stage = int(how.removeprefix("ZeRO ")) if how.startswith("ZeRO") else 1
        said, most = predicted[name, stage, is_torchs], one["peak"]
        apart = None if most is None else said / most - 1
        compared.append({"model": name, "stage": stage, "predicted": said, "measured": most,
                         "apart": apart})  # fmt: skip
        told = "no peak is counted on processors" if most is None or apart is None\
            else f"allocated {most / 1e9:.2f} GB ({100 * apart:+.1f} %)"  # fmt: skip
        part.say(f"estimate of {name}, ZeRO {stage}: {said / 1e9:.2f} GB; {told}")
    part.note(estimates=compared)
    known = [one["apart"] for one in compared if one["apart"] is not None]
    if known:
        good = sum(abs(one) <= WITHIN for one in known)
        part.say(f"{good} of {len(known)} estimates are within {WITHIN:.0%}")
