"""The optimizers that DeepSpeed 0.19.8 makes, and what each takes: parameters, ZeRO stage, device.

A test compares the parameters with those of the installed torch and DeepSpeed, and trains what is
accepted on CPU ranks. A type with a dot, ``package.Class``, is made by ``session.initialize``.
"""

from __future__ import annotations

from typing import Any

from hpcrun.compile.source.marked_tree import Reporter, get_at
from hpcrun.compile.source.problems import did_you_mean, listing
from hpcrun.compile.target.deepspeed_keys import REMOVED_OPTIMIZERS, VERSION, table
from hpcrun.compile.target.draft import SpecDraft
from hpcrun.policy import batch

# torch.optim: the name is exact. Parameters of torch 2.13.
_TORCH = """
SGD: momentum dampening nesterov weight_decay differentiable fused
Adafactor: beta2_decay eps d weight_decay
NAdam: betas eps weight_decay momentum_decay decoupled_weight_decay capturable differentiable
RAdam: betas eps weight_decay decoupled_weight_decay capturable differentiable
RMSprop: alpha eps weight_decay momentum centered capturable differentiable
Adamax: betas eps weight_decay capturable differentiable
Adadelta: rho eps weight_decay capturable differentiable
ASGD: lambd alpha t0 weight_decay capturable differentiable
Rprop: etas step_sizes capturable differentiable
"""
# DeepSpeed's own, in any case: what the class of each device takes, and keys that DeepSpeed reads.
_ADAM = """betas eps weight_decay bias_correction amsgrad adam_w_mode fp32_optimizer_states
torch_adam foreach set_grad_none"""
_OWN = f"""
adam: {_ADAM.replace(chr(10), " ")}
adamw: {_ADAM.replace(chr(10), " ")}
adagrad: eps weight_decay amsgrad lr_decay initial_accumulator_value foreach maximize
lamb: betas eps weight_decay bias_correction eps_inside_sqrt max_coeff min_coeff amsgrad
lion: betas weight_decay set_grad_none fp32_optimizer_states
muon: momentum weight_decay ns_method betas eps muon_lr adam_lr adam_w_mode torch_adam foreach
    fp32_optimizer_states
"""
TORCH = table(_TORCH, "lr foreach maximize")
OWN = table(_OWN, "lr")
# With `torch_adam`, these are torch's.
_TORCH_ADAM = """
lr betas eps weight_decay amsgrad maximize foreach capturable differentiable fused torch_adam
adam_w_mode fp32_optimizer_states
"""
TORCH_ADAM = frozenset(_TORCH_ADAM.split())
# They need the package mup, which knows what they take.
_OF_MUP = ("muadam", "muadamw", "musgd")
NAMES = ("Adam", "AdamW", "Adagrad", "Lamb", "Lion", "Muon", *TORCH)
# Classes that no engine can use, and why.
_NEVER = {
    "LBFGS": "needs a closure, which DeepSpeed's step does not give it",
    "SparseAdam": "takes sparse gradients alone, which DeepSpeed does not make of dense ones",
}
# Optimizers whose step depends on the shape of each parameter: ZeRO gives them one flat piece of
# many, a different one for each number of ranks.
_BY_SHAPE = ("adafactor", "came", "galore", "lamb", "lars", "shampoo", "soap")
_UNTESTED = "zero_allow_untested_optimizer"


def check(draft: SpecDraft) -> None:
    """Report an optimizer that DeepSpeed would refuse or train wrong with, and what to use."""
    config, report = draft.config, draft.below
    name = get_at(config, ("optimizer", "type"))
    if name is None or name == batch.AUTO:
        return
    if not isinstance(name, str):
        report.at("optimizer.type", f"found {name!r}; accepted is a name, such as AdamW")
        return
    lowered, is_own = name.lower(), name.lower() in OWN
    if lowered in REMOVED_OPTIMIZERS:
        found = f"DeepSpeed {VERSION} has removed the optimizer {name}"
        report.at("optimizer.type", found, "use AdamW" if "adam" in lowered else "use Lamb")
        return
    if name in _NEVER:
        report.at("optimizer.type", f"{name} {_NEVER[name]}", "use AdamW")
        return
    is_library = "." in name
    if not (is_own or is_library or name in TORCH or lowered in _OF_MUP):
        _unknown(name, draft)
        return
    _check_params(name, draft)
    _check_place(name, config, draft.gpus, report)
    if is_library and draft.kind != "function":
        draft.note(
            f"deepspeed.optimizer.type {name} is made by session.initialize(…) alone: a program "
            "that does not call it is refused the name by DeepSpeed"
        )


def _unknown(name: str, draft: SpecDraft) -> None:
    hint = did_you_mean(name, NAMES)
    found = f"neither DeepSpeed {VERSION} nor torch.optim has an optimizer {name!r}"
    if hint is None and draft.kind != "function":
        draft.note(f"deepspeed.optimizer.type: {found}; known are {listing(NAMES)}")
        return
    accepted = f"accepted are {listing(NAMES)}, and package.Class of another library"
    draft.below.at("optimizer.type", f"{found}; {accepted}", hint)


def _check_params(name: str, draft: SpecDraft) -> None:
    """Report parameters that the optimizer does not take; of a library's, none are known."""
    config, report = draft.config, draft.below
    params = get_at(config, ("optimizer", "params"))
    if not isinstance(params, dict):
        return
    if "max_grad_norm" in params:
        hint = f"use deepspeed.gradient_clipping: {params['max_grad_norm']}"
        report.at("optimizer.params.max_grad_norm", "DeepSpeed refuses this key", hint)
    lowered = name.lower()
    accepted = OWN.get(lowered) or TORCH.get(name)
    is_adam = lowered in ("adam", "adamw")
    if is_adam and params.get("torch_adam") is True:
        accepted = TORCH_ADAM
    elif is_adam and params.get("amsgrad") is True:
        found = "DeepSpeed's own Adam has no amsgrad"
        report.at("optimizer.params.amsgrad", found, "set optimizer.params.torch_adam to true")
    if accepted is None:
        return
    for key in params:
        if key in accepted or key == "max_grad_norm" or str(key).startswith(("#", "_", "//")):
            continue
        found = f"the optimizer {name} does not take {key!r}; it takes {listing(sorted(accepted))}"
        if draft.kind == "function":
            report.at(("optimizer", "params", str(key)), found, did_you_mean(key, accepted))
        else:
            draft.note(f"deepspeed.optimizer.params: {found}")


def _check_place(name: str, config: dict[str, Any], gpus: int, report: Reporter) -> None:
    """Report an optimizer that does not run at this ZeRO stage, offload or device."""
    lowered = name.lower()
    is_library = "." in name
    last = lowered.rpartition(".")[2]
    stage = get_at(config, ("zero_optimization", "stage"), 0)
    stage = stage if type(stage) is int else 0
    device = get_at(config, ("zero_optimization", "offload_optimizer", "device"))
    offloads = stage >= 1 and device in ("cpu", "nvme")
    at = "optimizer.type"
    if stage >= 1 and last in _BY_SHAPE:
        found = (
            f"{name} computes with the shape of each parameter, and ZeRO {stage} gives it flat "
            "pieces of them, others for each number of ranks"
        )
        report.at(at, found, "set deepspeed.zero_optimization.stage to 0, or use AdamW")
    elif (
        stage == 3
        and lowered == "muon"
        and get_at(config, ("zero_optimization", "reduce_scatter"), True)
    ):
        found = "Muon does not run with reduce_scatter at ZeRO 3, where that is the default"
        hint = "set deepspeed.zero_optimization.reduce_scatter to false, or stage to 0, 1 or 2"
        report.at(at, found, hint)
    elif stage >= 1 and (is_library or name in TORCH) and config.get(_UNTESTED) is not True:
        found = f"DeepSpeed refuses {name} at ZeRO {stage} unless it is told that it may be used"
        report.at(at, found, f"set deepspeed.{_UNTESTED} to true, or stage to 0")
    elif is_library and offloads and config.get("zero_force_ds_cpu_optimizer") is not False:
        found = f"DeepSpeed refuses {name} with offload_optimizer unless it is told that it may"
        report.at(at, found, "set deepspeed.zero_force_ds_cpu_optimizer to false")
    elif gpus == 0 and lowered == "lamb":
        found = "DeepSpeed's Lamb runs on GPUs alone (gpus_per_node is 0)"
        report.at(at, found, "use a library's: pytorch_optimizer.Lamb, of pytorch-optimizer")
    elif gpus == 0 and lowered == "lion" and not offloads:
        found = "DeepSpeed's Lion runs on CPUs only with offload_optimizer (gpus_per_node is 0)"
        hint = (
            "set deepspeed.zero_optimization.offload_optimizer.device to cpu and stage to 1, 2 or "
            "3; or use a library's: pytorch_optimizer.Lion, of pytorch-optimizer"
        )
        report.at(at, found, hint)
