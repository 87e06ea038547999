"""Reads the words of a command that starts ranks: srun, torchrun and python, in a container too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from hpcrun.compile.target.sbatch_request import ScriptRequest

UNKNOWN = "\0"
"""Stands in a word for what only bash can tell, before the name of one of `OF_SHAPE`."""
# Variables of Slurm that say what the job's #SBATCH lines ask for.
OF_SHAPE = {"SLURM_NTASKS_PER_NODE": "per_node", "SLURM_CPUS_PER_TASK": "cpus"}
OF_SHAPE |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "nodes")
OF_SHAPE |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), "ntasks")
PYTHON = re.compile(r"python[\d.]*")
_CONTAINERS = frozenset(("apptainer", "singularity", "shifter"))
# Options of srun that say what the job's own say, or that are about what hpcrun does.
_SHAPES = {"N": "nodes", "n": "ntasks", "c": "cpus", "nodes": "nodes", "ntasks": "ntasks"}
_SHAPES |= {"cpus-per-task": "cpus", "ntasks-per-node": "per_node"}
_STEP_FLAGS = frozenset(("l", "label", "u", "unbuffered", "K", "kill-on-bad-exit"))
_STEP_OPTIONS = frozenset(("W", "wait", "jobid", *_STEP_FLAGS, *_SHAPES))
_STEP_LOGS = frozenset(("o", "output", "e", "error", "open-mode"))
# Options of torchrun that hpcrun gives it by PET_…; and those that stay.
_MEETS = "rdzv_id rdzv_backend rdzv_endpoint rdzv_conf node_rank master_addr master_port nnodes"
_STAYS = "nproc_per_node max_restarts monitor_interval start_method role tee log_dir redirects"
RENDEZVOUS, _TORCH_VALUES = frozenset(_MEETS.split()), frozenset(_STAYS.split())
MODULE = "torch.distributed.run"
_TORCH_FLAGS = frozenset(("standalone", "no_python", "run_path"))


class Uncertain(Exception):
    """It is not certain what a launch line means; the message says why."""


@dataclass(kw_only=True)
class LaunchWords:
    """What a command starts, as hpcrun starts it."""

    entry: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    framework: str | None = None
    dropped: list[str] = field(default_factory=list)
    """Options that hpcrun says in their place."""
    logs: list[str] = field(default_factory=list)
    """Options of srun that name files of its output."""


def read(
    words: list[str],
    line: LaunchWords,
    job: ScriptRequest,
    inner: Callable[[list[str]], list[str]] | None = None,
    *,
    is_typed: bool = False,
) -> None:
    """Fill in what the words of a command start; ``inner`` returns those of ``bash -c TEXT``.

    With ``is_typed`` it is what hpcrun is to start on each node, as if srun did, and the number of
    torchrun's processes is that of the GPUs. Raise `Uncertain`.
    """
    has_srun = PurePath(words[0]).name == "srun"
    is_step = has_srun or is_typed
    if has_srun:
        words = _step(words[1:], line, job)
    if inner and words[1:2] == ["-c"] and PurePath(words[0]).name in ("bash", "sh"):
        words = inner(words[2:])
    at = _program_at(words)
    program, name = words[at:], PurePath(words[at]).name
    module = MODULE in program[2:4] and "-m" in program[1:3]
    if name == "torchrun" or module:
        start = words.index(MODULE) + 1 if module else at + 1
        _torchrun(words, start, line, job, is_step=is_step, counts_gpus=is_typed)
    elif PYTHON.fullmatch(name):
        _python(words, at, line, job, is_step=is_step)
    else:
        raise Uncertain(f"{program[0]} may start ranks in its own way")
    for word in (*line.entry, *line.args):
        if UNKNOWN in word:
            raise Uncertain("only a job can tell some of its words")
        if "${" in word or not word.isprintable() or len(word) > 2000:
            raise Uncertain("a spec would read some of its words otherwise")


def _is_same(job: ScriptRequest, name: str, value: str) -> bool:
    """Check that a value of an option is what the #SBATCH lines say."""
    if value.startswith(UNKNOWN):
        return OF_SHAPE.get(value[1:]) == name
    known = {
        "nodes": job.nodes,
        "ntasks": job.nodes * (job.tasks or 1),
        "per_node": job.tasks or 1,
        "cpus": job.spec.get("resources.cpus_per_task", 1),
    }
    return value == str(known[name])


def _options(words: Sequence[str], flags: frozenset[str]) -> Iterator[tuple[str, str, int]]:
    """Yield name, value and number of words of the options at the beginning of words."""
    at = 0
    while at < len(words) and re.match("--?[^-]", words[at]):
        word = words[at]
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            name, value = word[1:2], word[2:].removeprefix("=")
            equals = value
        is_flag = name in flags
        if is_flag and value.strip("01"):
            raise Uncertain(f"it has the option {word}")
        if not is_flag and not equals and at + 1 == len(words):
            raise Uncertain(f"{word} has no value")
        count = 1 if is_flag or equals else 2
        yield name, value if count == 1 else words[at + 1], count
        at += count


def _step(words: list[str], line: LaunchWords, job: ScriptRequest) -> list[str]:
    """Read the options of srun; return what it starts."""
    used = 0
    for name, value, count in _options(words, _STEP_FLAGS):
        used += count
        if name in _STEP_LOGS:
            line.logs.append(name)
        elif name in _SHAPES and not _is_same(job, _SHAPES[name], value):
            raise Uncertain(f"srun's {name} is not what the #SBATCH lines say")
        elif name not in _STEP_OPTIONS:
            raise Uncertain(f"srun has the option {name}")
    return words[used:]


def _program_at(words: list[str]) -> int:
    """Return the index of the program, which may be in a container."""
    names = [PurePath(word).name for word in words]
    if names and names[0] not in _CONTAINERS:
        return 0
    found = [at for at, name in enumerate(names) if name == "torchrun" or PYTHON.fullmatch(name)]
    if len(found) != 1:
        raise Uncertain("it starts no program, or none of Python in its container")
    return found[0]


def _torchrun(
    words: list[str],
    start: int,
    line: LaunchWords,
    job: ScriptRequest,
    *,
    is_step: bool,
    counts_gpus: bool,
) -> None:
    if (job.tasks or 1) != 1 or (job.nodes > 1 and not is_step):
        raise Uncertain("it is not one torchrun on each node")
    kept, used, nproc, module = [], start, "", []
    for name, value, count in _options(words[start:], _TORCH_FLAGS):
        plain, given = name.replace("-", "_"), words[used : used + count]
        used += count
        if name == "m" or plain == "module":
            module = given
            break
        if plain in RENDEZVOUS:
            if plain == "nnodes" and not _is_same(job, "nodes", value):
                raise Uncertain("torchrun has other nodes than the #SBATCH lines")
            line.dropped.append(given[0].split("=")[0])
        elif plain in _TORCH_VALUES or plain in _TORCH_FLAGS:
            nproc = value if plain == "nproc_per_node" else nproc
            kept += given
        else:
            raise Uncertain(f"torchrun has the option {name}")
    if not re.fullmatch(
        r"\d+|gpu|auto|cpu", nproc or ("1" if job.gpus <= 1 or counts_gpus else "")
    ):
        raise Uncertain("only a job can tell how many processes torchrun starts")
    if not words[used:] and not module:
        raise Uncertain("torchrun starts nothing")
    program = [*module, *words[used:]]
    split = len(module) or 1
    line.entry = [*words[:start], *kept, *program[:split]]
    line.args, line.framework = program[split:], "torchrun"


def python_split(words: Sequence[str], at: int = 0) -> int:
    """Return the index behind the file or module that Python at ``at`` runs; raise `Uncertain`."""
    split = at + 1
    while split < len(words) and words[split] in ("-u", "-O", "-B", "-s", "-E", "-I"):
        split += 1
    split += 2 if words[split : split + 1] == ["-m"] else 1
    if split > len(words) or words[split - 1].startswith("-"):
        raise Uncertain("python runs no file and no module")
    return split


def _python(
    words: list[str], at: int, line: LaunchWords, job: ScriptRequest, *, is_step: bool
) -> None:
    split = python_split(words, at)
    tasks = job.tasks or 1
    if not is_step and (job.nodes > 1 or tasks > 1):
        raise Uncertain("without srun it is one process, on the first node alone")
    if job.gpus > 1 and tasks == 1 and job.nodes == 1:
        line.framework = "single"
    elif job.gpus and tasks != job.gpus:
        raise Uncertain(f"{tasks} tasks of a node share its {job.gpus} GPUs in their own way")
    line.entry, line.args = words[:split], words[split:]
