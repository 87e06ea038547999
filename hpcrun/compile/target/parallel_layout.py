"""Check how a model is divided between ranks, and solve how many see different samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcrun.compile.source.marked_tree import Reporter, get_at
from hpcrun.compile.target.draft import SpecDraft
from hpcrun.policy import batch, training_ways
from hpcrun.state.spec.parallel_block import EXPERT, divided_axes, laid_out, model_ranks

# DeepSpeed's own keys for two of the axes.
_DEEPSPEED_KEYS = {
    "tensor": ("tensor_parallel", "autotp_size"),
    "sequence": ("sequence_parallel_size",),
}


def data_parallel(draft: SpecDraft, per_node: int) -> int | None:
    """Return the number of ranks that see different samples; None after a problem.

    ``per_node`` are the ranks of a node, counted as processes with a GPU each.
    """
    spec, report = draft.spec, draft.report
    world_size: int = spec["resources"]["nodes"] * per_node
    sizes, config, whole = (
        divided_axes(spec["parallel"]),
        spec["deepspeed"],
        spec["model_parallel_size"],
    )
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
    experts = laid_out(spec["parallel"]).get(EXPERT, 1)
    if ranks % experts:
        found = f"{experts} ranks do not divide the {ranks} that see different samples"
        report.at(f"parallel.{EXPERT}", found)
        return None
    if draft.kind is not None:
        for each in training_ways.refusals(spec["parallel"], config):
            report.at(each.key, each.found, each.hint)
        if "pipeline" in sizes:
            _check_groups(spec["optimization"], report)
    return ranks


def _check_groups(optimization: Mapping[str, Any], report: Reporter) -> None:
    """Report groups of parameters that each stage of a pipeline would have others of."""
    if optimization["layer_decay"] is not None:
        report.at(
            "optimization.layer_decay", "does not work with parallel.pipeline", "leave it out"
        )
    if optimization["weight_decay_on"] == "matrices":
        found = "matrices alone does not work with parallel.pipeline"
        report.at("optimization.weight_decay_on", found, "leave it out")


def tell(draft: SpecDraft, per_node: int) -> None:
    """Note what the user should know about a layout that is accepted, once its batch is solved."""
    parallel, note = draft.spec["parallel"], draft.note
    sizes = divided_axes(parallel)
    if draft.kind != "function" and laid_out(parallel):
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
    accumulation = draft.config.get(batch.ACCUMULATION)
    if stages > 1 and isinstance(accumulation, int) and accumulation < stages:
        idle = (stages - 1) / (accumulation + stages - 1)
        note(
            f"parallel.pipeline: {accumulation} micro batches in {stages} stages leave the ranks "
            f"idle for {idle:.0%} of a step; more {batch.ACCUMULATION} leave less"
        )
