"""Advice on a run that has not completed, by the kind of its cause."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from hpcrun.observe.diagnosis.attempts import CANCELLED, NO_END, RunStory
from hpcrun.observe.status import run_state
from hpcrun.policy import batch, causes, next_attempt, node_health, recovery, resume
from hpcrun.shared_dataclass import dataclass, replace
from hpcrun.slurm import pending_reason
from hpcrun.slurm.pending_reason import NEVER
from hpcrun.state import job_changes, submission_facts
from hpcrun.state.ledger import Attempt
from hpcrun.state.plan import RunPlan
from hpcrun.text import listed

_NEW_RUN = "values of deepspeed and config are part of what a run is: changed, it begins at step 0"
_FIGURES = (
    (re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)"), "it tried to allocate {}"),
    (re.compile(r"total capacity of ([\d.]+ ?\w+)|([\d.]+ ?\w+) total capacity"), "the GPU has {}"),
    (re.compile(r"of which ([\d.]+ ?\w+) is free|([\d.]+ ?\w+) free"), "{} were free"),
)
# Kinds whose advice needs no more than a run's name and what leads it on.
_OUTSIDE = "The run did nothing wrong. {go_on}."
_OTHER = "`hpcrun logs {name} --stream all --tail 50` may tell more. {go_on}."
_TEXTS = {
    causes.TIME_LIMIT: "{go_on}. resources.time is {time}: where no {save} fits in it, ask for "
    "more{every}.",
    causes.PREEMPTED: _OUTSIDE,
    causes.REQUEUED: _OUTSIDE,
    causes.SIGNAL: _OUTSIDE,
    causes.SAVED: _OUTSIDE,
    causes.SUPERVISOR_LOST: _OUTSIDE,
    causes.LAUNCH: "The ranks could not be started; `hpcrun logs {name} --stream batch` tells "
    "more, and `--stream agent` what each node said. {go_on}.",
    CANCELLED: "It stays cancelled until you want it again: {go_on}.",
    NO_END: "Nobody was left to record the end; the next start does so. `hpcrun logs {name} "
    "--stream batch` may tell more. {go_on}.",
}
# Nodes that are named, or left out.
_MOST_NODES = 4
# Words that say it -> what it is and what helps. {name}: the run; {on_node}, {exclude}: the ranks'
# nodes.
_TROUBLES = (
    (
        r"[Uu]ncorrectable (?:NVLink |ECC )?error|NVRM: Xid|f[ae]ll(?:en)? off the bus|NVLink error"
        r"|CUDA error: (?:unspecified launch failure|hardware)",
        "The GPU{on_node} is broken or was reset: tell those who run the site; with {exclude} the "
        "run does without that node",
    ),
    (
        r"CUDA-capable \S+ (?:is|are|is/are) busy or unavailable",
        "Another process has the GPU{on_node} (`hpcrun exec {name} nvidia-smi` shows it), or two "
        "ranks took one: each takes that of LOCAL_RANK. Where it follows one node, {exclude}",
    ),
    (
        r"invalid device ordinal|Duplicate GPU detected",
        "A rank takes a GPU that its node has not, or that of another rank: GPUs are numbered on "
        "each node, torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) takes a rank's own, and "
        "no more ranks may share a node than resources.gpus_per_node",
    ),
    (
        r"Stale (?:NFS )?file handle",
        "A file or directory that was in use is gone from its file server: replaced or removed "
        "from another host, or the export was mounted anew. What the program reads must stay for "
        "as long as it runs (the frozen code, environment.venv=frozen and copied data do)",
    ),
    (
        r"[Dd]isk quota exceeded|\bEDQUOT\b",
        "The quota of the file system that it wrote to is used up: `quota -s` (`lfs quota -h` on "
        "Lustre) tells it, `hpcrun clean` removes what old runs left, and checkpoint.keep bounds "
        "what this one keeps",
    ),
    (
        r"Input/output error|\bEIO\b|Transport endpoint is not connected|\bENOTCONN\b",
        "Storage{on_node} failed as it was read or written: mostly it passes by itself; where it "
        "follows one node, {exclude}, and tell those who run the site",
    ),
    (
        r"Read-only file system|\bEROFS\b",
        "What it writes to may only be read there{on_node}: a relative path is kept in the run's "
        "work directory, $HPCRUN_SCRATCH is the node's own, and a container has what "
        "environment.container.mounts names. A disk that had errors is mounted so, too: {exclude}",
    ),
    (
        r"insufficient shared memory|unable to (?:open|allocate|mmap) shared memory"
        r"|DataLoader worker .*killed by signal: Bus error|/dev/shm\S*['\"]?[:,].*No space left"
        r"|No space left on device[^\n]*/dev/shm|Error while creating shared memory",
        "Shared memory{on_node} is too small or full (`hpcrun exec {name} df -h /dev/shm` while it "
        "runs): fewer or no workers of the DataLoader, smaller batches, or in the program "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    (
        r"\bSIGBUS\b|\bBus error",
        "A file that was mapped into memory became shorter, or its storage is full: mostly "
        "two nodes write one cache (environment.variables with HF_HOME: '${{hpcrun:scratch}}/hf' "
        "gives each node its own), else /dev/shm or the disk{on_node} is full",
    ),
    (
        r"No space left on device|\bENOSPC\b",
        "A disk{on_node} is full. Where it is shared storage, `hpcrun clean` removes what old runs "
        "left; where it is the node's own, TMPDIR and caches belong on another one "
        "(environment.variables.TMPDIR)",
    ),
    (
        r"(?:[Aa]ddress|[Pp]ort) (?:\d+ )?(?:is )?already in use|\bEADDRINUSE\b"
        r"|server socket has failed to listen",
        "A port that the program names is another process's{on_node}: let it be chosen. hpcrun "
        "sets MASTER_ADDR and MASTER_PORT to a free one for each attempt: use them in place of a "
        "number (torchrun alone on a node: --standalone)",
    ),
    (
        r"\^M: bad interpreter|DOS line breaks|\$?'?\\r'?: command not found|\r: command not found"
        r"|\r'?: No such file or directory|syntax error near unexpected token `\S*\\r'",
        "The script has the line ends of Windows: `sed -i 's/\\r$//' SCRIPT` mends it",
    ),
    (
        r"pthread_create failed|Thread creation failed|can't start new thread"
        r"|fork: (?:retry: )?(?:Resource temporarily|Cannot allocate)|Errno 11\] Resource temp",
        "It may start no more processes or threads{on_node}: fewer workers of the DataLoader, "
        "environment.variables.OMP_NUM_THREADS=1, or environment.setup with `ulimit -u 65536`",
    ),
    (
        r"Error building extension|Unable to JIT load|CUDA_HOME (?:environment variable is not set"
        r"|does not exist)|CUDAMismatchException|Ninja is required|ninja: build stopped"
        r"|Failed to find C compiler"
        r"|fatal error: [\w./]+\.h: No such file|nvcc: (?:command )?not found|CUDA version"
        r" \([\d.]+\) (?:mismatches|has a minor)",
        "A compiled operator was not built{on_node}: that takes ninja, a C++ compiler and Python's "
        "headers, on GPUs also the nvcc of torch's CUDA (environment.setup: [module load gcc cuda]"
        "). DeepSpeed's Adam needs none with deepspeed.optimizer.params.torch_adam=true",
    ),
    (
        r"failed to map segment from shared object|\.so[\w.]*: cannot open shared object file: "
        r"Operation not permitted",
        "A library lies where nothing may be executed (a TMPDIR or home that is mounted noexec): "
        "environment.variables.TMPDIR (or TORCH_EXTENSIONS_DIR, TRITON_CACHE_DIR) has to name "
        "another place",
    ),
    (
        r"(?<!libcuda)\.so[\w.]*: cannot open shared object file|undefined symbol:"
        r"|symbol lookup error|version `(?!GLIBC)\S+' not found",
        "A compiled package does not find the library that it was built with{on_node}: load its "
        "module (environment.setup: [module load cuda]), or install the package anew beside "
        "the torch, CUDA and NCCL that are there",
    ),
    (
        r"PytorchStreamReader|failed finding central directory|UnpicklingError|HeaderTooLarge"
        r"|deserializing header|EOFError: Ran out of input|not a (?:zip|gzip|gzipped) file",
        "A file of weights or data is cut off or is none: a save or a download that was "
        "interrupted, a pointer of Git LFS, a page of HTML. `ls -l` tells its size; fetch it "
        "again, or load the one before (of hpcrun's own checkpoints a damaged one is passed over)",
    ),
    (
        r"loading state_dict|size mismatch for|(?:Missing|Unexpected) key\(s\) in state_dict",
        "The saved weights are of another model: code or config changed since. Change that back "
        "(`hpcrun show {name} --config`), begin anew by `hpcrun submit --new`, or have the "
        "program load what fits (strict=False)",
    ),
    (
        r"GatedRepoError|\b401 (?:Client Error|Unauthorized)|\b403 (?:Client Error|Forbidden)"
        r"|Invalid (?:user )?token|RepositoryNotFoundError|api_key not configured",
        "A server does not give it to you: a file with HF_TOKEN=... (WANDB_API_KEY=...) in it is "
        "environment.secrets_file; the terms of a gated model have to be accepted on its page; or "
        "its name is wrong",
    ),
    (
        r"no socket interface found|Unable to find interface|Invalid interface",
        "NCCL or gloo finds no interface of that name{on_node}. hpcrun sets NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME where you do not: take yours out of environment.variables and setup, "
        "or name one that all nodes have as fabric.fast_interface of the cluster profile",
    ),
    (
        r"DistStoreError|waiting for clients|client socket has (?:timed out|failed to connect)"
        r"|\d+/\d+ clients joined|Rendezvous(?:Timeout|Connection|Closed)Error|connectFullMesh"
        r"|Timed out initializing process group|store based barrier"
        r"|network addresses of .* cannot be retrieved|socketStartConnect|socketPollConnect",
        "Not all ranks met in time: one had not started or had ended (`hpcrun logs {name}` shows "
        "all), or its node does not reach rank 0's (`hpcrun doctor --nodes`). A program that "
        "starts ranks by itself has to start as many as hpcrun, or be the only one on a node",
    ),
    (
        r"\bncclSystemError|\bncclRemoteError|\bncclInternalError|NCCL (?:error|WARN)"
        r"|\bnccl(?:Unhandled|InvalidUsage)|DistBackendError|NCCL operations have failed"
        r"|NCCL communicator was aborted|Watchdog caught collective operation timeout"
        r"|Connection closed by (?:remote )?peer|Connection reset by peer",
        "A collective operation broke off: mostly another rank ended first (`hpcrun logs {name}` "
        "shows all), or a link failed (`hpcrun doctor --nodes` measures them; "
        "environment.variables.NCCL_DEBUG=INFO has NCCL say more)",
    ),
)
# They say by themselves what is wrong: a warning that was written before them is another matter.
_PROGRAMS_OWN_NAMES = """
ArithmeticError AssertionError AttributeError ImportError IndentationError IndexError LookupError
ModuleNotFoundError NameError NotImplementedError OverflowError RecursionError SyntaxError TypeError
UnboundLocalError UnicodeDecodeError UnicodeEncodeError ValueError ZeroDivisionError
"""
_PROGRAMS_OWN = frozenset(_PROGRAMS_OWN_NAMES.split())


@dataclass(frozen=True)
class _Case:
    """A run with something wrong, alone or as the example of several."""

    run: RunStory
    where: str
    several: bool

    @property
    def plan(self) -> RunPlan:
        one = self.run.selected
        changes = one.submission.changes if one.submission else {}
        return replace(one.run, spec=job_changes.apply(one.run.spec, changes))

    @property
    def bad(self) -> Attempt:
        """The newest attempt that ended badly; one of which nothing is known where none did."""
        return self.run.bad.attempt if self.run.bad else Attempt(0)

    @property
    def deepspeed(self) -> Mapping[str, Any]:
        """The DeepSpeed configuration, with the batch of the attempt that ended badly."""
        started = self.bad.started
        if "micro_batch" not in started:
            return self.plan.deepspeed
        now = (started.get("micro_batch"), started.get("accumulation"))
        return {**self.plan.deepspeed, **dict(zip(batch.KEYS[1:], now, strict=True))}

    @property
    def zero(self) -> Mapping[str, Any]:
        return _block(self.plan.deepspeed, "zero_optimization")

    @property
    def kept(self) -> int | None:
        """The step of the newest checkpoint; None for several runs, or if unknown."""
        return None if self.several or self.run.bad is None else self.run.bad.kept

    @property
    def is_permanent(self) -> bool:
        """It was not tried again, because no new start mends its error."""
        return self.bad.action == recovery.STOP and "permanent" in self.bad.cause

    @property
    def submit(self) -> str:
        """The command that submitted the run."""
        planned = self.run.selected.planned
        words = submission_facts.describe(planned.paths).get("argv") or ()
        if list(words[1:2]) not in (["submit"], ["run"]):
            words = ("", "submit", planned.plan.spec_file)
        return shlex.join(["hpcrun", *words[1:]])

    @property
    def lacking(self) -> str | None:
        """What the program misses that it had where it was submitted."""
        # It imports much of what submits, which other advice and `help` do without.
        from hpcrun.observe.diagnosis import left_behind

        selected, number = self.run.selected, self.bad.submission
        if number is None:
            return None
        facts = submission_facts.describe(selected.experiment.submission(number))
        return left_behind.explanation(self.bad.cause, facts, selected.plan, selected.paths.work)

    @property
    def has_checkpoints(self) -> bool:
        """The entry is a function, or its program was seen to have a session."""
        stories = self.run.attempts
        has_session = any(one.restored is not None and one.first is None for one in stories)
        return self.plan.entry.kind == "function" or has_session

    @property
    def again(self) -> str:
        """The words for what a new start does, where its first step is not known."""
        if self.has_checkpoints:
            return "goes on"
        return "resumes it" if resume.of_run(self.plan) else "starts it again"

    @property
    def again_from(self) -> str:
        """The words for what a new start does, with the step it begins at."""
        if not self.has_checkpoints:
            if resume.of_run(self.plan):
                return "resumes it, as recovery.resume says,"
            return (
                "starts it again (from nothing, unless it resumes by itself; recovery.resume can "
                "say how)"
            )
        if self.kept is None:
            return f"{self.again} from the newest checkpoint"
        saved = f"the checkpoint of step {self.kept:,}"
        return f"{self.again} from {saved if self.kept else 'step 0, as nothing was saved,'}"

    @property
    def go_on(self) -> str:
        return (
            f"`hpcrun requeue {self.where}` {self.again} with the code that was frozen, "
            "`hpcrun submit` with the code of now"
        )

    def format(self, text: str) -> str:
        """Fill in one of the `_TEXTS`."""
        return text.format(
            name=self.run.status.name,
            go_on=self.go_on,
            time=self.plan.resources.time,
            save="checkpoint" if self.has_checkpoints else "save",
            every=" or set checkpoint.every" if self.has_checkpoints else "",
            attempt=self.run.selected.paths.attempts_directory / str(self.bad.number or "N"),
        )


def advise(run: RunStory, where: str, *, several: bool = False) -> str | None:
    """Return the next step; None for a run that has completed, or with nothing wrong.

    ``where`` is a WHERE of the runs that share the advice; if they are ``several``, ``run`` is an
    example of them.
    """
    kind = run.kind
    if kind is None:
        return None
    case = _Case(run, where, several)
    text = _KINDS[kind](case) if kind in _KINDS else case.format(_TEXTS.get(kind, _OTHER))
    status = run.status
    if stuck := (status.reason or "").partition(NEVER)[2]:
        return pending_reason.of_job(f"It {NEVER}{stuck}.", None if several else status.job_id)
    if not status.over and status.state not in (run_state.UNKNOWN, run_state.CANCELLED):
        if kind not in causes.OWN or kind in (causes.TIME_LIMIT, causes.SAVED):
            return "Nothing needs to be done: it goes on by itself."
        return f"It goes on by itself. Should it end so again: {text}"
    if case.is_permanent:
        return text
    if case.bad.action == recovery.STOP and case.plan.recovery.requeue and kind != CANCELLED:
        text += (
            f" Its ends are counted from its last submission: `hpcrun requeue {where}` and "
            "`hpcrun submit` start the count anew."
        )
    return text


def _crash(case: _Case) -> str:
    rank, exception = case.bad.cause.get("rank"), case.bad.cause.get("exception")
    log = case.run.status.name + ("" if rank is None else f" --rank {rank}")
    if lacking := case.lacking:
        return f"{lacking}; then repeat `{case.submit}`, which {case.again_from}."
    if known := known_trouble(case.bad.cause, case.run.status.name):
        return f"{known}. {case.go_on}."
    first = f"Look at what the rank wrote: `hpcrun logs {log}`. Then fix it"
    if exception == "HpcrunError":
        first = "Change what the message above names"
    elif exception:
        first = f"{exception} is the program's own: fix it"
    if case.is_permanent:
        has_begun = any(one.reached for one in case.run.attempts)
        goes = case.again_from if has_begun else "starts it"
        return (
            f"{first} and repeat `{case.submit}`, which {goes} with the code of now. "
            f"`hpcrun requeue {case.where}` starts the frozen code again: enough where a package "
            "or a file outside the code was missing."
        )
    return f"{first} and `hpcrun submit` again, which {case.again_from} with the code of now."


def _memory(case: _Case) -> str:
    if causes.too_little(case.bad.cause) != "mem":
        return _gpu_memory(case)
    resources, ranks = case.plan.resources, case.plan.ranks_per_node
    more = "not set, so the partition's default holds: set it"
    if resources.mem:
        more = f"{resources.mem}: ask for more"
    text = (
        f"The memory of the node ran out; resources.mem is {more} and `hpcrun submit` again, which "
        f"{case.again_from.removesuffix(',')}."
    )
    if not case.plan.recovery.grow:
        text += " recovery.grow: {mem: 1.5} has the next start ask for more by itself."
    if ranks > 1:
        key = "gpus_per_node" if resources.gpus_per_node else "ntasks_per_node"
        text += (
            f" {ranks} ranks share a node: fewer of them (resources.{key}) on more nodes "
            "(resources.nodes) have more each."
        )
    if "cpu" in (_device(case, "offload_optimizer"), _device(case, "offload_param")):
        text += " What DeepSpeed offloads to the CPU is in this memory too."
    return text


def _gpu_memory(case: _Case) -> str:
    message = str(case.bad.cause.get("message") or "")
    found = [(pattern.search(message), words) for pattern, words in _FIGURES]
    figures = [words.format(next(filter(None, hit.groups()))) for hit, words in found if hit]
    text = "The memory of the GPU ran out" + (f" ({', '.join(figures)})" if figures else "") + "."
    ways = [*_smaller_batch(case.deepspeed), *_more_sharding(case)]
    ways.append("recompute activations in the model (activation checkpointing)")
    if case.deepspeed.get("train_micro_batch_size_per_gpu") == 1:
        ways.append("more nodes, which share the states of ZeRO and the accumulated micro batches")
    elif not case.plan.recovery.shrink_micro_batch:
        ways.append("recovery.shrink_micro_batch=3 lets the next attempt halve the micro batch")
    return f"{text} What lowers it: {'; '.join(ways)}. Note that {_NEW_RUN}."


def _smaller_batch(deepspeed: Mapping[str, Any]) -> list[str]:
    micro = deepspeed.get("train_micro_batch_size_per_gpu")
    if not isinstance(micro, int):
        return ["a smaller deepspeed.train_micro_batch_size_per_gpu"]
    if micro <= 1:
        return []
    factor = next(number for number in range(2, micro + 1) if micro % number == 0)
    accumulation = deepspeed.get("gradient_accumulation_steps") or 1
    if not isinstance(accumulation, int):
        return [f"a smaller deepspeed.train_micro_batch_size_per_gpu (now {micro})"]
    total = deepspeed.get("train_batch_size")
    return [
        f"deepspeed.train_micro_batch_size_per_gpu={micro // factor} with "
        f"deepspeed.gradient_accumulation_steps={accumulation * factor} (now {micro} and "
        f"{accumulation}), which keeps the global batch" + (f" of {total}" if total else "")
    ]


def _more_sharding(case: _Case) -> list[str]:
    stage, ranks = case.zero.get("stage") or 0, case.plan.world_size
    ways = []
    if isinstance(stage, int) and stage < 3 and ranks > 1:
        shards = ("the optimizer's state", "gradients too", "parameters too")[stage:]
        offered = ", ".join(f"{stage + 1 + i} shards {what}" for i, what in enumerate(shards))
        ways.append(
            f"deepspeed.zero_optimization.stage is {stage}: over the {ranks} ranks, {offered}"
        )
    if not _device(case, "offload_optimizer"):
        ways.append("deepspeed.zero_optimization.offload_optimizer={device: cpu} (stage 1 and up)")
    if stage == 3 and not _device(case, "offload_param"):
        ways.append("deepspeed.zero_optimization.offload_param={device: cpu}")
    return ways


def _block(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a block of the configuration; empty for one that the program fills in (``auto``)."""
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def _device(case: _Case, key: str) -> str | None:
    found = _block(case.zero, key).get("device")
    return str(found) if found not in (None, "none") else None


def _non_finite(case: _Case) -> str:
    deepspeed = case.plan.deepspeed
    optimizer = _block(_block(deepspeed, "optimizer"), "params")
    config = case.plan.config
    rate = "a lower learning rate or a longer warm-up"
    if "lr" in optimizer:
        rate = f"a lower learning rate (deepspeed.optimizer.params.lr is {optimizer['lr']})"
    elif "lr" in config:
        rate = f"a lower learning rate (config.lr is {config['lr']})"
    clip = deepspeed.get("gradient_clipping")
    clipping = f"a lower deepspeed.gradient_clipping (now {clip})"
    parts = [rate, clipping if clip else "deepspeed.gradient_clipping=1.0 (now none)"]
    if _block(deepspeed, "fp16").get("enabled"):
        parts.append("deepspeed.bf16.enabled=true in place of fp16, whose range is small")
    good = "The newest checkpoint" if case.kept is None else f"The checkpoint of step {case.kept:,}"
    good += " was saved while the loss was still finite."
    if case.kept == 0:
        good = "No checkpoint was saved before."
    return (
        f"{good} Look at the data of the steps before, or try {', '.join(parts)}. "
        f"Note that {_NEW_RUN}; a fix in the code alone goes on from the checkpoint. "
        f"{_without_batch(case)}"
    )


def _without_batch(case: _Case) -> str:
    """Say how a run that ended so goes on without such a batch."""
    key = next_attempt.ANSWERS[str(case.bad.cause["kind"])]
    if getattr(case.plan.recovery, key) == next_attempt.SKIP:
        told = next_attempt.left_out_words([one.attempt for one in case.run.attempts])
        told = told or "none so far, as the samples are not known"
        return f"recovery.{key} is skip: {told}. {case.go_on}."
    return (
        f"`hpcrun submit` with recovery.{key}=skip has it leave out the batch with which that "
        f"begins, where its samples are those of hpcrun.session(). {case.go_on}."
    )


def _node(case: _Case) -> str:
    nodes = ", ".join(case.bad.cause.get("nodes") or ())
    lost = f" ({nodes} was lost)" if nodes else ""
    return f"The run did nothing wrong{lost}. {case.go_on}."


def _bad_node(case: _Case) -> str:
    nodes = ", ".join(case.bad.cause.get("nodes") or ())
    text = f"The check at its start found {nodes or 'a node'} bad: tell those who run the site. "
    if case.bad.cause.get("response") == node_health.REFUSE:
        text += (
            "`health` in the cluster profile refuses such nodes: submit it again with "
            f"resources.exclude={nodes}, or have on_fault replace them. "
        )
    return f"{text}{case.go_on}."


def _storage(case: _Case) -> str:
    nodes = ", ".join(case.bad.cause.get("nodes") or ())
    text = "Shared storage could not be used"
    if nodes:
        text += f" on {nodes}, while other nodes of the job could: see the mount there"
    return f"{text}. {case.go_on}."


def _checkpoint(case: _Case) -> str:
    found = ""
    for event, what in (("quarantined", "Set aside as damaged"), ("passed_over", "Unreadable")):
        names = {
            str(each.get("checkpoint")): None
            for one in case.run.attempts
            for each in one.events
            if each["event"] == event
        }
        found += f"{what}: {', '.join(names)}. " if names else ""
    return (
        f"{found}The run's checkpoints are in {case.run.selected.paths.checkpoints}; it goes on "
        "from the newest that is whole. Without one, `hpcrun submit SPEC --new` begins a fresh run."
    )


def _replicas(case: _Case) -> str:
    return (
        "All ranks agreed at every checkpoint, so the newest is good. Where ranks differ again "
        "after the same number of steps, a reduction is missing: a program that changes weights or "
        "gradients on some ranks alone (after `if rank == 0`), or draws random numbers for them. "
        "Where it follows one node, its memory or a link is broken: leave it out with "
        "resources.exclude, and tell the site. Without ZeRO, unlike processors or GPUs may "
        "round an optimizer's step unlike: take deepspeed.zero_optimization.stage 1. Where it is "
        "the calls: ranks of session.fully_shard call its blocks in orders of their own (a layer "
        "that is dropped, an if on a rank's data), and gather parts of several as one. "
        f"{case.go_on}."
    )


def _hang(case: _Case) -> str:
    """Say where to look; a program without the session shows that it lives by what it writes."""
    if lock := case.bad.cause.get("lock"):
        return (
            "torch waits for this lock until it is removed, and nobody on the node held it. Where "
            f"no other job builds there: `rm {shlex.quote(str(lock))}`. With "
            "environment.variables.TORCH_EXTENSIONS_DIR a run meets no locks of others. "
            f"{case.go_on}."
        )
    calls = "calls session.step() or session.log() between"
    if case.plan.entry.kind != "function":
        calls = f"prints a line now and then (with hpcrun.session(), it {calls})"
    text = (
        "Look at where the ranks stood: {attempt}/stacks-*.txt, one file a rank. A run that is "
        "only slow there needs a longer recovery.hang_after (null if it waits by design), or "
        f"{calls}. "
    )
    return case.format(text + "{go_on}.")


_KINDS: dict[str, Callable[[_Case], str]] = {
    causes.RANK_CRASH: _crash,
    causes.OUT_OF_MEMORY: _memory,
    causes.NON_FINITE: _non_finite,
    causes.LOSS_SPIKE: _without_batch,
    causes.REPLICAS_DIFFER: _replicas,
    causes.NODE_FAILURE: _node,
    causes.BAD_NODE: _bad_node,
    causes.STORAGE: _storage,
    causes.BAD_CHECKPOINT: _checkpoint,
    causes.HANG: _hang,
}


def known_trouble(cause: Mapping[str, Any], name: str, flags: int = 0) -> str | None:
    """Return the trouble and what helps, as a sentence without its period; None for any other end.

    ``cause`` is that of a rank that ended badly, as the ledger has it; ``name`` the run's. With
    ``flags`` of `re`, such as IGNORECASE for what a person typed, words are found so.
    """
    said = " ".join(str(cause.get(name) or "") for name in ("exception", "message", "signal"))
    is_own = cause.get("exception") in _PROGRAMS_OWN
    written = "" if is_own else "\n".join(map(str, cause.get("log_tail") or ()))
    nodes = cause.get("failed_on") or [one for one in [cause.get("node")] if one]
    words = {
        "name": name,
        "on_node": f" of {listed(nodes, _MOST_NODES)}" if nodes else "",
        "exclude": "resources.exclude"
        + (f"={','.join(nodes)}" if 0 < len(nodes) <= _MOST_NODES else ""),
    }
    for text in (said, written):
        for pattern, sentence in _TROUBLES:
            if re.search(pattern, text, flags):
                return sentence.format(**words)
    return None
