"""What the person can do next about a run that has not completed, by the kind of its cause."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcrun.observe.status import run_state
from hpcrun.policy import causes, recovery

if TYPE_CHECKING:
    from hpcrun.observe.diagnosis.attempts import AttemptStory, RunStory

_NEW_RUN = "values of deepspeed and config are part of what a run is: changed, it begins at step 0"
_FIGURES = (
    (re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)"), "it tried to allocate {}"),
    (re.compile(r"total capacity of ([\d.]+ ?\w+)|([\d.]+ ?\w+) total capacity"), "the GPU has {}"),
    (re.compile(r"of which ([\d.]+ ?\w+) is free|([\d.]+ ?\w+) free"), "{} were free"),
)


@dataclass(frozen=True)
class _Case:
    """A run with something amiss.

    Attributes
    ----------
    run
        The run itself, or the example of several.
    where
        The runs that the advice is for, as a WHERE.
    several
        Whether these are more than one.
    bad
        The newest attempt that ended badly; None where none did.
    """

    run: RunStory
    where: str
    several: bool
    bad: AttemptStory | None

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.run.selected.run.spec

    @property
    def cause(self) -> Mapping[str, Any]:
        return (self.bad.attempt.cause if self.bad else None) or {}

    @property
    def resources(self) -> Mapping[str, Any]:
        return self.spec.get("resources") or {}

    @property
    def deepspeed(self) -> Mapping[str, Any]:
        return self.spec.get("deepspeed") or {}

    @property
    def kept(self) -> int | None:
        """The step of the newest checkpoint; None for several runs, or where nothing tells."""
        return None if self.several or self.bad is None else self.bad.kept

    @property
    def from_step(self) -> str:
        if self.kept is None:
            return "the newest checkpoint"
        return (
            f"the checkpoint of step {self.kept:,}"
            if self.kept
            else "step 0, as nothing was saved,"
        )

    @property
    def go_on(self) -> str:
        return (
            f"`hpcrun requeue {self.where}` goes on with the code that was frozen, "
            "`hpcrun submit` with the code of now"
        )


def advise(run: RunStory, where: str, *, several: bool = False) -> str | None:
    """The next step; None for a run that has completed, or with which nothing is amiss.

    Parameters
    ----------
    where
        The runs that share the advice, as a WHERE.
    several
        Whether these are more than one, of which ``run`` is an example.
    """
    kind = run.kind
    if kind is None:
        return None
    case = _Case(run, where, several, run.bad)
    text = _KINDS.get(kind, _other)(case)
    status = run.status
    if not status.over and status.state not in (run_state.UNKNOWN, run_state.CANCELLED):
        if kind not in causes.OWN or kind in (causes.TIME_LIMIT, causes.SAVED):
            return "Nothing needs to be done: it goes on by itself."
        return f"It goes on by itself. Should it end so again: {text}"
    action = ((case.bad.attempt.decided if case.bad else None) or {}).get("action")
    counted = (case.spec.get("recovery") or {}).get("requeue", True)
    if action == recovery.STOP and counted and kind != "cancelled":
        text += (
            f" Its ends are counted from its last submission: `hpcrun requeue {where}` and "
            "`hpcrun submit` start the count anew."
        )
    return text


def _crash(case: _Case) -> str:
    exception = case.cause.get("exception")
    if exception:
        return (
            f"{exception} is the program's own: fix it and `hpcrun submit` again, which goes on "
            f"from {case.from_step} with the code of now."
        )
    rank = case.cause.get("rank")
    option = "" if rank is None else f" --rank {rank}"
    return (
        f"Look at what the rank wrote: `hpcrun logs {case.run.status.name}{option}`. Then fix it "
        f"and `hpcrun submit` again, which goes on from {case.from_step} with the code of now."
    )


def _memory(case: _Case) -> str:
    exception = str(case.cause.get("exception") or "")
    if exception == "OutOfMemoryError":
        return _gpu_memory(case)
    resources = case.resources
    ranks = case.run.selected.run.ranks_per_node
    mem = resources.get("mem")
    text = (
        f"The memory of the node ran out; resources.mem is {mem}: ask for more and "
        if mem
        else "The memory of the node ran out; resources.mem is not set, so the partition's default "
        "holds: set it and "
    )
    text += f"`hpcrun submit` again, which goes on from {case.from_step}."
    if ranks > 1:
        key = "gpus_per_node" if resources.get("gpus_per_node") else "ntasks_per_node"
        text += (
            f" {ranks} ranks share a node: fewer of them (resources.{key}) on more nodes "
            "(resources.nodes) have more each."
        )
    if _offloads(case.deepspeed):
        text += " What DeepSpeed offloads to the CPU is in this memory too."
    return text


def _gpu_memory(case: _Case) -> str:
    message = str(case.cause.get("message") or "")
    found = [(pattern.search(message), words) for pattern, words in _FIGURES]
    figures = [words.format(next(filter(None, hit.groups()))) for hit, words in found if hit]
    text = "The memory of the GPU ran out" + (f" ({', '.join(figures)})" if figures else "") + "."
    ways = [*_smaller_batch(case.deepspeed), *_more_sharding(case)]
    ways.append("recompute activations in the model (activation checkpointing)")
    return f"{text} What lowers it: {'; '.join(ways)}. Note that {_NEW_RUN}."


def _smaller_batch(deepspeed: Mapping[str, Any]) -> list[str]:
    micro = deepspeed.get("train_micro_batch_size_per_gpu")
    if not isinstance(micro, int):
        return ["a smaller deepspeed.train_micro_batch_size_per_gpu"]
    if micro <= 1:
        return []
    factor = next(number for number in range(2, micro + 1) if micro % number == 0)
    accumulation = int(deepspeed.get("gradient_accumulation_steps") or 1)
    total = deepspeed.get("train_batch_size")
    return [
        f"deepspeed.train_micro_batch_size_per_gpu={micro // factor} with "
        f"deepspeed.gradient_accumulation_steps={accumulation * factor} (now {micro} and "
        f"{accumulation}), which keeps the global batch" + (f" of {total}" if total else "")
    ]


def _more_sharding(case: _Case) -> list[str]:
    zero = case.deepspeed.get("zero_optimization") or {}
    stage, ranks = int(zero.get("stage") or 0), case.run.selected.run.world_size
    ways = []
    if stage < 3 and ranks > 1:
        shards = ("the optimizer's state", "gradients too", "parameters too")[stage:]
        offered = ", ".join(f"{stage + 1 + i} shards {what}" for i, what in enumerate(shards))
        ways.append(
            f"deepspeed.zero_optimization.stage is {stage}: over the {ranks} ranks, {offered}"
        )
    if not _device(zero, "offload_optimizer"):
        ways.append("deepspeed.zero_optimization.offload_optimizer={device: cpu} (stage 1 and up)")
    if stage == 3 and not _device(zero, "offload_param"):
        ways.append("deepspeed.zero_optimization.offload_param={device: cpu}")
    return ways


def _offloads(deepspeed: Mapping[str, Any]) -> bool:
    zero = deepspeed.get("zero_optimization") or {}
    return any(_device(zero, key) == "cpu" for key in ("offload_optimizer", "offload_param"))


def _device(zero: Mapping[str, Any], key: str) -> str | None:
    found = (zero.get(key) or {}).get("device")
    return str(found) if found not in (None, "none") else None


def _non_finite(case: _Case) -> str:
    deepspeed = case.deepspeed
    parts = []
    optimizer = (deepspeed.get("optimizer") or {}).get("params") or {}
    config = case.spec.get("config") or {}
    if "lr" in optimizer:
        parts.append(f"a lower learning rate (deepspeed.optimizer.params.lr is {optimizer['lr']})")
    elif "lr" in config:
        parts.append(f"a lower learning rate (config.lr is {config['lr']})")
    else:
        parts.append("a lower learning rate or a longer warm-up")
    clip = deepspeed.get("gradient_clipping")
    parts.append(
        f"a lower deepspeed.gradient_clipping (now {clip})"
        if clip
        else "deepspeed.gradient_clipping=1.0 (now none)"
    )
    if (deepspeed.get("fp16") or {}).get("enabled"):
        parts.append("deepspeed.bf16.enabled=true in place of fp16, whose range is small")
    good = "The newest checkpoint" if case.kept is None else f"The checkpoint of step {case.kept:,}"
    good += " was saved while the loss was still finite."
    if case.kept == 0:
        good = "No checkpoint was saved before."
    return (
        f"{good} Look at the data of the steps before, or try {', '.join(parts)}. "
        f"Note that {_NEW_RUN}; a fix in the code alone goes on from the checkpoint."
    )


def _time_limit(case: _Case) -> str:
    asked = case.resources.get("time")
    return (
        f"{_sentence(case.go_on)} resources.time is {asked}: where no checkpoint fits in it, ask "
        "for more or set checkpoint.every."
    )


def _node(case: _Case) -> str:
    nodes = ", ".join(case.cause.get("nodes") or ())
    return f"The run did nothing wrong{f' ({nodes} was lost)' if nodes else ''}. " + _sentence(
        case.go_on
    )


def _outside(case: _Case) -> str:
    return f"The run did nothing wrong. {_sentence(case.go_on)}"


def _launch(case: _Case) -> str:
    return (
        f"The ranks could not be started; `hpcrun logs {case.run.status.name} --stream batch` "
        f"tells more, and `--stream agent` what each node said. {_sentence(case.go_on)}"
    )


def _checkpoint(case: _Case) -> str:
    told = ""
    for event, what in (("quarantined", "Set aside as damaged"), ("passed_over", "Unreadable")):
        names = {
            str(each.get("checkpoint")): None
            for one in case.run.attempts
            for each in one.events
            if each["event"] == event
        }
        told += f"{what}: {', '.join(names)}. " if names else ""
    return (
        f"{told}The run's checkpoints are in {case.run.selected.paths.checkpoints}; it goes on "
        "from the newest that is whole. Where none is, `hpcrun submit --new` begins a fresh run."
    )


def _hang(case: _Case) -> str:
    number = case.bad.attempt.number if case.bad else "N"
    directory = case.run.selected.paths.directory / "attempts" / str(number)
    return (
        f"Look at where the ranks stood: {directory}/stacks-*.txt, one file a rank. A run that is "
        "only slow there needs a longer recovery.hang_after, or calls session.step() or "
        f"session.log() between. {_sentence(case.go_on)}"
    )


def _cancelled(case: _Case) -> str:
    return f"It stays cancelled until you want it again: {case.go_on}."


def _no_end(case: _Case) -> str:
    name = case.run.status.name
    return (
        "Nobody was left to record the end; the next start does so. "
        f"`hpcrun logs {name} --stream batch` may tell more. {_sentence(case.go_on)}"
    )


def _other(case: _Case) -> str:
    return (
        f"`hpcrun logs {case.run.status.name} --stream all --tail 50` may tell more. "
        f"{_sentence(case.go_on)}"
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


_KINDS: dict[str, Callable[[_Case], str]] = {
    causes.RANK_CRASH: _crash,
    causes.OUT_OF_MEMORY: _memory,
    causes.NON_FINITE: _non_finite,
    causes.TIME_LIMIT: _time_limit,
    causes.NODE_FAILURE: _node,
    causes.PREEMPTED: _outside,
    causes.REQUEUED: _outside,
    causes.SIGNAL: _outside,
    causes.SAVED: _outside,
    causes.SUPERVISOR_LOST: _outside,
    causes.LAUNCH: _launch,
    causes.BAD_CHECKPOINT: _checkpoint,
    causes.HANG: _hang,
    "cancelled": _cancelled,
    "no_end": _no_end,
}
