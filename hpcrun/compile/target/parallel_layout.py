"""Check how a model is divided between ranks, and solve how many see different samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcrun.compile.source.marked_tree import get_at
from hpcrun.compile.source.problems import Reporter
from hpcrun.policy import batch
from hpcrun.state.spec.parallel_block import EXPERT, divided, laid_out, model_ranks

# DeepSpeed's own keys for two of the axes.
_DEEPSPEED_KEYS = {
    "tensor": ("tensor_parallel", "autotp_size"),
    "sequence": ("sequence_parallel_size",),
}
# What DeepSpeed clips gradients at where the configuration says nothing.
_CLIPPING = 1.0


def data_parallel(
    spec: Mapping[str, Any],
    kind: str | None,
    per_node: int,
    report: Reporter,
) -> int | None:
    """Return the number of ranks that see different samples; None after a problem.

    Parameters
    ----------
    spec
        A resolved spec, with ``deepspeed`` as DeepSpeed will read it.
    kind
        The kind of the entry; None if it was not found.
    per_node
        Ranks of a node, counted as processes with a GPU each.
    """
    world_size: int = spec["resources"]["nodes"] * per_node
    sizes, config, whole = divided(spec["parallel"]), spec["deepspeed"], spec["model_parallel_size"]
    size: int = model_ranks(sizes)
    for axis, key in _DEEPSPEED_KEYS.items():
        given, wanted = get_at(config, key), sizes.get(axis, 1)
        if spec["parallel"] and isinstance(given, int) and given not in (0, wanted):
            found = f"is {given}, and parallel.{axis} {wanted}"
            report.at(("deepspeed", *key), found, f"leave it out: parallel.{axis} says it")
            return None
        if not spec["parallel"] and isinstance(given, int) and given > 1:
            size *= given
    if whole is not None:
        if sizes and whole != size:
            found = f"is {whole}, and parallel's axes make {size}"
            report.at("model_parallel_size", found, "leave it out: parallel says it")
            return None
        size = whole
    what = " x ".join(f"{axis} {number}" for axis, number in sizes.items())
    at = f"parallel.{next(iter(sizes))}" if sizes else "model_parallel_size"
    if size < 1 or world_size % size:
        copy = f"{size} ranks that hold one copy of the model" + (f" ({what})" if what else "")
        report.at(at, f"{copy} do not divide the {world_size} ranks")
        return None
    ranks, asked = world_size // size, (spec["parallel"] or {}).get("data", batch.AUTO)
    if asked not in (batch.AUTO, ranks):
        found = (
            f"found {asked}; {world_size} ranks with {size} to a copy of the model leave {ranks}"
        )
        fits, rest = divmod(asked * size, per_node)
        hint = f"ask for resources.nodes: {fits}, or leave it auto" if not rest and fits else None
        report.at("parallel.data", found, hint or "leave it auto")
        return None
    if kind is not None and "pipeline" in sizes:
        _check_stages(config, report)
        _check_groups(spec["optimization"], report)
    experts = laid_out(spec["parallel"]).get(EXPERT, 1)
    if experts > 1 and not _check_experts(experts, ranks, sizes, config, report):
        return None
    return ranks


def _check_experts(
    experts: int, ranks: int, sizes: Mapping[str, int], config: dict[str, Any], report: Reporter
) -> bool:
    """Report what DeepSpeed's MoE refuses, or trains wrong; return whether the ranks are right."""
    at = f"parallel.{EXPERT}"
    if ranks % experts:
        report.at(at, f"{experts} ranks do not divide the {ranks} that see different samples")
        return False
    if sizes:
        others = ", ".join(f"parallel.{axis}" for axis in sizes)
        report.at(at, f"does not go with {others}", "leave one of them out")
    stage = get_at(config, ("zero_optimization", "stage"), 0)
    key = "deepspeed.zero_optimization.stage"
    if stage == 3:
        report.at(key, "found 3, with which DeepSpeed's MoE does not work", "set it to 2")
    clipping = get_at(config, ("gradient_clipping",), _CLIPPING)
    if stage == 0 and clipping not in (0, batch.AUTO):
        found = f"is 0: with divided experts DeepSpeed does not clip (at {clipping:g}) then"
        report.at(key, found, "set it to 1, or deepspeed.gradient_clipping to 0")
    return True


def _check_stages(config: dict[str, Any], report: Reporter) -> None:
    """Report a configuration with which DeepSpeed refuses a pipeline, or trains it wrong."""
    stage = get_at(config, ("zero_optimization", "stage"), 0)
    if stage in (2, 3):
        report.at(
            "deepspeed.zero_optimization.stage",
            f"found {stage}; a pipeline keeps its gradients and parameters whole: accepted are 0 "
            "and 1",
            "set it to 1",
        )
    half = any(get_at(config, (name, "enabled")) is True for name in ("bf16", "fp16"))
    clipping = get_at(config, ("gradient_clipping",), _CLIPPING)
    if stage == 0 and not half and clipping not in (0, batch.AUTO):
        report.at(
            "deepspeed.zero_optimization.stage",
            f"is 0: in fp32 DeepSpeed clips all stages of a pipeline (at {clipping:g}) by the norm "
            "of the first one's gradients, so that the others train wrong",
            "set it to 1, or deepspeed.gradient_clipping to 0",
        )


def _check_groups(optimization: Mapping[str, Any], report: Reporter) -> None:
    """Report groups of parameters that each stage of a pipeline would have others of."""
    if optimization["layer_decay"] is not None:
        report.at(
            "optimization.layer_decay", "does not work with parallel.pipeline", "leave it out"
        )
    if optimization["weight_decay_on"] == "matrices":
        found = "matrices alone does not work with parallel.pipeline"
        report.at("optimization.weight_decay_on", found, "leave it out")


def tell(spec: Mapping[str, Any], kind: str, per_node: int, note: Callable[[str], object]) -> None:
    """Note what the user should know about a layout that is accepted, once its batch is solved."""
    sizes, config = divided(spec["parallel"]), spec["deepspeed"]
    if kind != "function" and laid_out(spec["parallel"]):
        note(
            "parallel: session.initialize divides the model; a program that calls DeepSpeed itself "
            "has to divide it alike, and only its batch is solved here"
        )
    if not sizes:
        return
    tensor, stages = sizes.get("tensor", 1), sizes.get("pipeline", 1)
    if per_node % tensor:
        note(
            f"parallel.tensor: groups of {tensor} ranks span nodes of {per_node}: what they reduce "
            "in every layer goes over the network"
        )
    accumulation = config.get(batch.ACCUMULATION)
    if stages > 1 and isinstance(accumulation, int) and accumulation < stages:
        idle = (stages - 1) / (accumulation + stages - 1)
        note(
            f"parallel.pipeline: {accumulation} micro batches in {stages} stages leave the ranks "
            f"idle for {idle:.0%} of a step; more {batch.ACCUMULATION} leave less"
        )
