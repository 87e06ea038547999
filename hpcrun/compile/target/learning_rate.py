"""Checks the ``optimization`` block, and scales the learning rates of the DeepSpeed configuration.

What the ranks make of the rest is in `hpcrun.run.rank.optimization`.
"""

from __future__ import annotations

import math
from typing import Any

from hpcrun.compile.source.marked_tree import Key, Reporter, dotted, get_at
from hpcrun.compile.target.draft import OWN_LOOPS, SpecDraft
from hpcrun.policy import batch, training_ways
from hpcrun.state.spec.parallel_block import divided_axes

# Parameters of optimizers and schedulers that are learning rates.
_RATE_NAMES = """
lr muon_lr adam_lr warmup_min_lr warmup_max_lr cycle_min_lr cycle_max_lr lr_range_test_min_lr
eta_min base_lr max_lr min_lr
"""
_RATES = frozenset(_RATE_NAMES.split())
_NUMBERS = (int, float)
# DeepSpeed's schedulers that give all parameters one rate.
_ONE_RATE = ("LRRangeTest", "OneCycle", "WarmupDecayLR")


def settle(draft: SpecDraft) -> None:
    """Report what is wrong in ``optimization``, and put the scaled rates into ``deepspeed``.

    The batch triple is solved by now.
    """
    spec, config, report = draft.spec, draft.config, draft.report
    block = spec["optimization"]
    _check_schedule(block, config, report)
    _check_groups(block, config, report)
    _check_average(spec, report)
    for each in training_ways.of_compiled(spec, config) if block["compile"] else ():
        report.at(each.key, each.found, each.hint)
    if block["compile"] and get_at(config, ("zero_optimization", "stage")) == 3:
        draft.note("optimization.compile with ZeRO stage 3 is for session.fully_shard(…) alone")
    used = [key for key in ("warmup", "decay", "layer_decay", "ema", "compile") if block[key]]
    used += ["weight_decay_on"] if block["weight_decay_on"] != "all" else []
    if used and draft.framework in OWN_LOOPS:
        found = f"is made by session.{_maker(used[0])}(…), and {draft.framework} makes its own"
        report.at(f"optimization.{used[0]}", found, "give it to the program instead")
    elif used and draft.kind not in (None, "function"):
        draft.note(
            f"optimization.{used[0]} is made by session.{_maker(used[0])}(…) of hpcrun.session() "
            "alone: a program that does not call it trains without"
        )
    if not report.problems.under("optimization", "deepspeed"):
        _scale(draft)


def _maker(key: str) -> str:
    """Return the method of the session that makes what a key asks for."""
    return "restore" if key == "ema" else "initialize"


def _check_average(spec: dict[str, Any], report: Reporter) -> None:
    """Report an average of weights that no rank has whole."""
    ema, at = spec["optimization"]["ema"], "optimization.ema"
    report.at_least("optimization.ema_every", spec["optimization"]["ema_every"], 1)
    if ema is None:
        if spec["optimization"]["ema_every"] != 1:
            report.at("optimization.ema_every", "does nothing without optimization.ema")
        return
    if not 0 < ema < 1:
        report.at(at, f"found {ema}; accepted is a number between 0 and 1, such as 0.999")
    config, hint = spec["deepspeed"], "leave it out, or use ZeRO 0, 1 or 2"
    if get_at(config, ("zero_optimization", "stage")) == 3:
        report.at(at, "needs whole weights, and with ZeRO 3 no rank has them", hint)
    axes = [axis for axis in divided_axes(spec["parallel"]) if axis != "sequence"]
    autotp = get_at(config, ("tensor_parallel", "autotp_size"))
    if axes or (isinstance(autotp, int) and autotp > 1):
        named = " and ".join(f"parallel.{axis}" for axis in axes) or "tensor_parallel.autotp_size"
        report.at(at, f"needs whole weights, and {named} divides the model", "leave it out")


def _check_schedule(block: dict[str, Any], config: dict[str, Any], report: Reporter) -> None:
    below = report.below("optimization")
    total, decay = block["total_steps"], block["decay"]
    report.at_least("optimization.total_steps", total, 1)
    steps = [("warmup", block["warmup"])]
    steps += [(f"milestones.{n}", each) for n, each in enumerate(block["milestones"])]
    for key, value in steps:
        if not math.isfinite(value) or value < 0 or (value >= 1 and value != int(value)):
            found = f"found {value}; accepted is a whole number of steps, or a fraction below 1"
            below.at(key, found)
        elif 0 < value < 1 and total is None:
            _needs_total(key, below)
    for key, value in (("end", block["end"]), ("factor", block["factor"])):
        if not 0 <= value <= 1:
            below.at(key, f"found {value}; accepted is a number from 0 to 1")
    if decay in ("linear", "cosine") and total is None:
        _needs_total("decay", below)
    if block["end"] and decay not in ("linear", "cosine"):
        below.at("end", f"does nothing with decay: {decay or 'null'}", "use linear or cosine")
    if bool(block["milestones"]) != (decay == "step"):
        found = "decay: step and milestones go together"
        below.at("milestones", found, "decay: step, milestones: [0.5, 0.75]")
    if sorted(set(block["milestones"])) != block["milestones"]:
        below.at("milestones", f"found {block['milestones']}; accepted is an ascending list")
    scheduler = get_at(config, ("scheduler", "type"))
    if (decay or block["warmup"]) and scheduler is not None:
        found = f"deepspeed.scheduler is {scheduler}, and a run has one schedule"
        below.at("decay" if decay else "warmup", found, "set deepspeed.scheduler to null")
    warmup = block["warmup"]
    if total is not None and warmup >= 1 and warmup > total:
        below.at("warmup", f"found {warmup:g}, and total_steps {total}")


def _needs_total(key: str, report: Reporter) -> None:
    found = "needs optimization.total_steps, the optimizer steps of the run"
    report.at(key, found, "total_steps: ${config.total_steps}")


def _check_groups(block: dict[str, Any], config: dict[str, Any], report: Reporter) -> None:
    decay = block["layer_decay"]
    if decay is None:
        return
    at = "optimization.layer_decay"
    if not 0 < decay <= 1:
        report.at(at, f"found {decay}; accepted is a number above 0, up to 1")
    params = _params(config, "optimizer")
    if type(params.get("lr")) not in _NUMBERS:
        report.at(at, "needs the rate of the last layers", "give deepspeed.optimizer.params.lr")
    for key in ("muon_lr", "adam_lr"):
        if key in params:
            found = f"gives each layer one rate, and deepspeed.optimizer.params.{key} another"
            report.at(at, found, f"leave {key} out")
    scheduler = get_at(config, ("scheduler", "type"))
    fixed = get_at(config, ("scheduler", "params", "warmup_max_lr")) is not None
    if scheduler in _ONE_RATE or (scheduler == "WarmupLR" and fixed):
        found = f"deepspeed.scheduler {scheduler} gives all layers one rate"
        hint = "set deepspeed.scheduler to null, and optimization.decay to linear or cosine"
        report.at(at, found, hint)


def _scale(draft: SpecDraft) -> None:
    """Replace the learning rates of ``deepspeed`` by the scaled ones, and note them."""
    block, config, report = draft.spec["optimization"], draft.config, draft.report
    scale, reference = block["scale_lr"], block["reference_batch"]
    report.at_least("optimization.reference_batch", reference, 1)
    if (scale is None) != (reference is None):
        key = "reference_batch" if reference is None else "scale_lr"
        hint = "scale_lr: linear, reference_batch: 256"
        report.at(f"optimization.{key}", "scale_lr and reference_batch go together", hint)
        return
    if scale is None or reference < 1:
        return
    whole = config.get(batch.TRAIN)
    keys: list[Key] = [
        (part, "params", key)
        for part in ("optimizer", "scheduler")
        for key, value in _params(config, part).items()
        if key in _RATES and type(value) in _NUMBERS
    ]
    if type(whole) is not int or ("optimizer", "params", "lr") not in keys:
        missing = f"deepspeed.{batch.TRAIN}" if type(whole) is not int else _LR
        report.at("optimization.scale_lr", f"needs a number in {missing}", f"give {missing}")
        return
    ratio = whole / reference
    factor = ratio if scale == "linear" else math.sqrt(ratio)
    told = f"{whole}/{reference}" if scale == "linear" else f"sqrt({whole}/{reference})"
    for part in ("optimizer", "scheduler"):
        params = _params(config, part)
        scaled = {key: params[key] * factor for own, _, key in keys if own == part}
        if scaled:
            config = {**config, part: {**config[part], "params": {**params, **scaled}}}
    given = get_at(draft.config, ("optimizer", "params", "lr"))
    others = [f"deepspeed.{dotted(key)}" for key in keys if dotted(key) != "optimizer.params.lr"]
    also = f"; so are {', '.join(others)}" if others else ""
    draft.note(f"{_LR} is {given * factor:.6g} = {given:g} x {told} (optimization.scale_lr){also}")
    draft.spec["deepspeed"] = config


_LR = "deepspeed.optimizer.params.lr"


def _params(config: dict[str, Any], part: str) -> dict[str, Any]:
    found = get_at(config, (part, "params"), {})
    return found if isinstance(found, dict) else {}
