"""Search of all that hpcrun says: pages, keys of specs and profiles, commands, and messages.

``hpcrun help WORDS`` asks it. What is pasted (a reason of Slurm's, an error) is recognised as `why`
would; all else is found in passages: a paragraph or a row of a page, a key, a command. They are
ranked by BM25 (Robertson and Zaragoza, 2009), with the words of their headings.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from hpcrun.cli import commands
from hpcrun.policy import causes
from hpcrun.text import signal_name

# BM25's saturation of a word that is repeated, and the part of a passage's length that counts.
_K1, _B = 1.2, 0.6
# How much more than in the text a word counts in a heading, and in a key or a command's names.
_HEADING, _NAME = 3, 4
# A passage that has few of the words that were asked for is worth less, by this power of its part.
_COVERAGE = 2.0
# What a word's other name counts beside the word that was typed.
_SYNONYM = 0.8
_WORD = re.compile(r"[a-z0-9]+(?:[._][a-z0-9]+)*")
_STOP_WORDS = """
a an and another are as ask at be by can could do does eight every first for four from get give gets
have how i if in is it its just many me much my need number of often on once one or our out please
should so some that the their them then there this to two up use used using want was way we what
when where which who why will with without would you your
"""
STOP = frozenset(_STOP_WORDS.split())
# A word of people who know other programs -> words of hpcrun's own pages, with blanks between.
SYNONYMS = {
    "abort": "cancel",
    "alter": "update change",
    "accuracy": "results metrics",
    "activate": "conda environment.python",
    "afterok": "afterok depends_on",
    "alert": "notify mail",
    "api": "python hpcrun.submit api",
    "archive": "export",
    "array": "sweep max_parallel",
    "broken": "bad node fail",
    "budget": "cost price prices",
    "callback": "notify",
    "charge": "account",
    "ckpt": "checkpoint",
    "colleague": "group share",
    "colleagues": "group share",
    "concurrent": "max_parallel",
    "conda": "environment.setup environment.python conda",
    "config": "config spec",
    "convert": "convert from-sbatch weights",
    "core": "cpus_per_task",
    "cores": "cpus_per_task",
    "cpus": "cpus_per_task",
    "crash": "fail",
    "crashed": "fail",
    "csv": "results csv",
    "curves": "report curves",
    "debug": "local run",
    "dependencies": "depends_on",
    "dependency": "depends_on",
    "die": "fail why",
    "died": "fail why",
    "dies": "dies lost",
    "disk": "disk clean",
    "docker": "container image",
    "email": "notify mail",
    "env": "environment variables",
    "epoch": "epoch step",
    "error": "error message why",
    "errors": "errors message",
    "everything": "all experiments",
    "extend": "change",
    "faq": "questions",
    "fine-tune": "initialize_from",
    "fit": "fit estimate",
    "folder": "directory",
    "format": "spec",
    "free": "clean delete",
    "gpus": "gpus_per_node",
    "gres": "gpus_per_node gpu_type",
    "grid": "sweep",
    "group": "group share",
    "hang": "hang stacks",
    "hung": "hang stacks",
    "hydra": "hydra key=value flags",
    "hyperparameter": "sweep",
    "interactive": "shell exec",
    "interface": "interface fabric",
    "job": "run job",
    "jobs": "run job",
    "keys": "specs keys",
    "kill": "cancel",
    "killed": "end fail",
    "laptop": "local without",
    "launch": "torchrun submit",
    "limit": "limit time max_parallel",
    "lmod": "module",
    "locally": "local without",
    "lr": "learning rate",
    "mail": "notify mail",
    "memory": "memory mem",
    "miniconda": "conda",
    "module": "environment.setup module",
    "modules": "environment.setup module",
    "money": "cost price",
    "monitor": "status top",
    "most": "most max_parallel",
    "multi": "nodes",
    "multinode": "nodes",
    "nnodes": "resources.nodes",
    "notebook": "python",
    "notification": "notify",
    "notify": "notify mail",
    "nvidia": "nvidia-smi exec GPU",
    "oom": "out_of_memory memory",
    "optuna": "sweep",
    "output": "logs output",
    "overrides": "overrides key=value flags",
    "parallel": "max_parallel parallel",
    "pd": "pending",
    "pending": "pending waits reason",
    "pip": "environment python packages",
    "plot": "report",
    "pretrained": "initialize_from",
    "printed": "logs rank",
    "progress": "status progress",
    "pytorch": "torch framework",
    "queue": "pending queued",
    "ray": "framework",
    "reference": "specs keys",
    "remove": "delete clean",
    "rerun": "requeue",
    "restart": "requeue restart",
    "resume": "resume checkpoint",
    "retry": "requeue",
    "sacct": "status why",
    "renice": "update nice priority",
    "scontrol": "update requeue show",
    "timelimit": "update resources.time time",
    "save": "save checkpoint",
    "scancel": "cancel",
    "search": "search sweep",
    "secret": "secrets_file",
    "sinfo": "check doctor",
    "singularity": "apptainer container",
    "slack": "notify command",
    "slow": "slow profile",
    "squeue": "status",
    "srun": "run",
    "ssd": "own disk",
    "stderr": "logs",
    "stdout": "logs",
    "stop": "cancel stop",
    "stored": "root",
    "stuck": "stuck hang",
    "submitit": "submit sbatch",
    "table": "results",
    "tail": "logs follow",
    "take": "take estimate",
    "threads": "cpus_per_task",
    "timeout": "time time_limit",
    "token": "secrets tokens secrets_file",
    "tokens": "secrets tokens secrets_file",
    "track": "tracking",
    "uncommitted": "uncommitted code",
    "utilisation": "telemetry gpu top",
    "utilization": "telemetry gpu top",
    "uv": "environment python venv uv",
    "venv": "environment.python venv",
    "virtualenv": "environment.python venv",
    "wait": "pending waits",
    "walltime": "resources.time time",
    "yaml": "spec YAML",
    "zero": "deepspeed zero_optimization",
}

# What an answer is worth beside others, by its topic: those first that say what to type.
WORTH = {
    **dict.fromkeys(("questions", "recipes"), 1.7),
    **dict.fromkeys(("architecture", "extending", "glossary", "processes", "security"), 0.6),
    **dict.fromkeys(("checkpoints", "observing", "records", "recovery-rules", "python"), 0.8),
}
_NODE_MEMORY = "The memory of a node ran out"
_MORE_MEMORY = (
    "Ask for more by `resources.mem`, or let the next start do so: `recovery: {grow: {mem: 1.5}}`. "
    "Fewer ranks or loader workers on a node have more each. `hpcrun why NAME` tells what that run "
    "had. Where a GPU's ran out, paste that message."
)
_GPU, _FULL = r"\b(?:cuda|gpus?|hip|vram)\b", r"(?:out.of.memory|memory.* full|\bOOM\b)"
# A message -> what it is called, and what it means.
_MESSAGES = (
    (
        r"oom.?kill",
        _NODE_MEMORY,
        _MORE_MEMORY,
    ),
    (
        rf"{causes.NO_GPU_MEMORY}|OutOfMemoryError|ErrorOutOfMemory|cudaErrorMemoryAllocation"
        rf"|{_GPU}.*{_FULL}|{_FULL}.*{_GPU}",
        "The memory of a GPU ran out",
        "`hpcrun why NAME` lists what lowers it for that run: smaller micro batches, more of ZeRO, "
        "offload. `recovery: {shrink_micro_batch: 3}` lets the next attempt halve the micro batch; "
        "`hpcrun estimate SPEC` tells before the queue what a run takes.",
    ),
    (
        r"out.of.memory|\bOOM\b|MemoryError|DefaultCPUAllocator|Cannot allocate memory",
        _NODE_MEMORY,
        _MORE_MEMORY,
    ),
    (
        r"DUE TO TIME.?LIMIT|(?-i:\bTIMEOUT\b(?!:))",
        "The job reached its time limit",
        "hpcrun saves before that and requeues; a run goes on from its newest checkpoint. Where no "
        "save fits in: more `resources.time`, a lower `checkpoint.every`, or `recovery: {grow: "
        "{time: 2}}`.",
    ),
    (
        r"DUE TO PREEMPTION|\bPREEMPTED\b|\bpreempt.* mean|what is preempt",
        "Slurm gave its nodes to a more important job (preemption)",
        "The run saves in the time that Slurm leaves, is requeued, and goes on by itself from its "
        "newest checkpoint.",
    ),
    (
        r"(?-i:NODE_FAIL)|DUE TO NODE FAILURE",
        "Slurm lost a node of the job",
        "The run did nothing wrong: it is requeued, and goes on from its newest checkpoint. "
        "`hpcrun why NAME` names the node; `resources.exclude` leaves it out.",
    ),
    (
        r"ChildFailedError|ProcessExitedException|ProcessRaisedException",
        "A process that torchrun or a spawn started ended badly",
        "The cause stands above that line, in the log of the process that failed first: `hpcrun "
        "why NAME` shows it, `hpcrun logs NAME --rank R` all of it.",
    ),
    (
        r"DataLoader worker .*killed by signal: Killed|\bSIGKILL\b|^(?:.*: )?Killed$",
        "A process was killed by SIGKILL (signal 9, exit code 137)",
        "Mostly because the memory of its node or job was full: `hpcrun why NAME` tells whether. "
        "Then ask for more by `resources.mem`, or let the next start do so: `recovery: {grow: "
        "{mem: 1.5}}`. Else Slurm or somebody ended it.",
    ),
    (
        r"\bSIGSEGV\b|segmentation fault|segfault",
        "A process was killed by SIGSEGV (signal 11, exit code 139)",
        "Its code or a library's touched memory that is not its own: mostly a compiled package "
        "that does not fit the others (torch, CUDA, NCCL), or a bug in it. `hpcrun logs NAME "
        "--rank R` has what it wrote last. `environment: {variables: {PYTHONFAULTHANDLER: "
        "\"1\"}}` has Python print where it was. Where it follows one node, `resources.exclude`.",
    ),
    (
        r"\bSIGTERM\b",
        "A process was asked to end by SIGTERM (signal 15, exit code 143)",
        "Somebody ended it: Slurm (time limit, preemption, scancel), or a launcher because another "
        "rank had ended first. `hpcrun why NAME` tells which.",
    ),
    (
        r"\bSIGABRT\b|Aborted \(core dumped\)",
        "A process ended itself by SIGABRT (signal 6, exit code 134)",
        "A library gave up: the cause stands above, often a C++ exception or NCCL's watchdog after "
        "another rank had ended. `hpcrun why NAME` shows which rank was first.",
    ),
    (
        r"ssh: |Could not resolve hostname|Permission denied \(publickey",
        "ssh does not reach the other machine",
        "`hpcrun --on CLUSTER` uses ssh as it is: `ssh CLUSTER` has to work first, so CLUSTER must "
        "be a host that `~/.ssh/config` knows, with a key that it accepts (`hpcrun help laptop`).",
    ),
    (
        r"(?-i:PermissionError|\bEACCES\b|Permission denied)",
        "A file may not be read, written or executed by you",
        "`ls -ld` on it and on the directories above tells who may. A script that is started "
        "directly needs `chmod +x`; what a group uses together, `group` and `umask` in the cluster "
        "profile (`hpcrun help sharing`).",
    ),
    (
        r"no module named|ModuleNotFoundError",
        "The Python of the job lacks a package",
        "`environment: {python: PATH}` names the Python that has it, by default the one that "
        "hpcrun runs in; else install it there: `PATH -m pip install PACKAGE`. `hpcrun check "
        "SPEC` looks before the queue (`hpcrun help environment`).",
    ),
    (
        r"GLIBC(?:XX)?_[\d.]+.? not found|Exec format error",
        "A program or library was built for another system",
        "The node's processor or its C library is another than where it was built: use a Python "
        "that was built for those nodes (`environment.python`), a container (`hpcrun help "
        "containers`), or nodes of one kind (`resources.constraint`).",
    ),
    (
        r"no kernel image|libcuda\.so|driver (?:version is insufficient|.*too old)|CUDA driver"
        r"|no CUDA-capable device|Found no NVIDIA driver",
        "torch, the driver and the GPU do not fit each other",
        "`hpcrun exec NAME nvidia-smi` shows the node's driver and the newest CUDA that it takes; "
        "torch in `environment.python` must be built for no newer, and for that GPU. Without "
        "libcuda or a GPU: does the job ask for one (`resources.gpus_per_node`)?",
    ),
    (
        r"illegal memory access|device-side assert|misaligned address",
        "A kernel on the GPU touched what it should not",
        "Mostly the program's: an index beyond a tensor or an embedding. `environment: "
        "{variables: {CUDA_LAUNCH_BLOCKING: \"1\"}}` makes the error stand where it arises. Where "
        "it follows one node, leave that out by `resources.exclude`.",
    ),
    (
        r"/dev/shm|shared memory",
        "Shared memory of the node is too small or full",
        "Fewer or no workers of the DataLoader, smaller batches, or in the program "
        "`torch.multiprocessing.set_sharing_strategy('file_system')`; `hpcrun exec NAME df -h "
        "/dev/shm` shows it while the run goes.",
    ),
    (
        r"too many open files|\bEMFILE\b",
        "A process has as many files open as it may",
        "`environment: {setup: [ulimit -n 65536]}` raises that up to the node's own limit; fewer "
        "workers of the DataLoader need fewer.",
    ),
    (
        r"FileNotFoundError|No such file or directory",
        "A file is not where the program looks for it",
        "The job runs in a copy of the code: data are named by their whole path, or from the "
        "spec's directory by `staging` (`hpcrun help working-directory`). Nodes see shared "
        "storage alone, not the login node's own disks.",
    ),
    (
        r"Read timed out|ConnectTimeout|ReadTimeout|Max retries exceeded|name resolution"
        r"|Network is unreachable|connection.{0,3}time(?:d )?.?out|HTTPSConnectionPool"
        r"|Could not resolve host",
        "A node does not reach a server",
        "Many compute nodes have no way to the internet: download on the login node to shared "
        "storage, and set HF_HOME, HF_HUB_OFFLINE or the site's proxy (https_proxy) in "
        "`environment.variables`. Between ranks: `hpcrun doctor --nodes` measures the links.",
    ),
    (
        r"Unable to contact slurm controller|Socket timed out on send/recv|slurm_load_jobs error",
        "Slurm itself does not answer",
        "Its controller is down or busy: `scontrol ping` tells, and those who run the site. Jobs "
        "that run go on; repeat the command later, `hpcrun submit` adds no run twice.",
    ),
    (
        r"Requested node configuration|More processors requested|nodes? count specification",
        "No node has what the job asks for",
        "Lower `resources` (gpus_per_node, cpus_per_task, mem, nodes) or name another "
        "`resources.partition`: `hpcrun check SPEC` says which does not fit.",
    ),
    (
        r"Unable to open file",
        "sbatch does not find the script",
        "hpcrun needs no script: `hpcrun submit SPEC` takes a YAML file, a Python script or a "
        "command, and `hpcrun init --from job.sh` makes a spec of an sbatch script.",
    ),
)
# Words in small letters that are messages though they stand alone.
_SIGNAL_ALONE = re.compile(r"preempted|killed|segfault|sig[a-z]{3,4}")
# Where a number stands for a signal, and how programs that died are reported.
_SIGNAL = re.compile(r"\bsignal[\s:=(]*(\d+)|\b0:(\d+)\b", re.IGNORECASE)
_CODE = re.compile(
    r"(?:\bexit(?:ed)?(?: with)?|code|status)[\s:=(]*(?:code|status)?[\s:=(]*(-?\d+)\b",
    re.IGNORECASE,
)


class Passage(NamedTuple):
    """A paragraph, a row, a key or a command: what is shown, and where it stands."""

    title: str
    text: str
    where: str
    """The command that shows all around it."""
    names: str = ""
    """Words by which it is known, beside those of title and text."""


def answers(words: str, pages: Mapping[str, str], most: int = 5) -> list[Passage]:
    """Return the passages that answer a question, the best first; none where no word is found.

    ``pages`` are those of the documentation, by topic, as Markdown.
    """
    told = _of_message(words)
    asked = _asked(words)
    index = _Index([*_of_commands(), *_of_pages(pages)])
    scores: dict[int, float] = {}
    met: dict[int, set[int]] = {}
    for place, group in enumerate(asked):
        best: dict[int, float] = {}
        for number, word in enumerate(group):
            # What was typed counts more than what it is called here.
            own = _SYNONYM if number else 1.0
            for one, part in index.weights(word):
                best[one] = max(best.get(one, 0.0), own * part)
        for one, part in best.items():
            scores[one] = scores.get(one, 0.0) + part
            met.setdefault(one, set()).add(place)

    def worth(one: int) -> float:
        topic = index.passages[one].where.removeprefix("hpcrun help ")
        coverage = math.pow(len(met[one]) / len(asked), _COVERAGE)
        return scores[one] * coverage * WORTH.get(topic, 1.0)

    ranked = sorted(scores, key=worth, reverse=True)
    # A key that was typed as it stands is what was asked for.
    typed = words.strip()
    key = next((one for one in index.passages if typed and one.names == typed), None)
    found: dict[str, Passage] = {}
    for passage in (told, key, *(index.passages[one] for one in ranked)):
        if passage is not None:
            found.setdefault(passage.title, passage)
    return [*found.values()][:most]


def _asked(words: str) -> list[list[str]]:
    """Return the words that say something, each with what else it may be called."""
    every = _words(words)
    found = []
    for word in [one for one in every if one not in STOP and not one.isdecimal()] or every:
        parts = re.split(r"[._]", word) if re.search(r"[._]", word) else []
        known = [SYNONYMS.get(one, SYNONYMS.get(_singular(one), "")) for one in (word, *parts)]
        others = map(stem, [*_words(" ".join(known)), *parts])
        found.append([*dict.fromkeys([stem(word), *others])])
    return found


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _singular(word: str) -> str:
    return word.removesuffix("s")


@functools.cache
def stem(word: str) -> str:
    """Return a word without the endings of English: queue, queued and queueing are one."""
    for ending in ("ing", "ion", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) > 2:
            word = word.removesuffix(ending)
            if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":
                word = word[:-1]
            break
    return word.removesuffix("e") if len(word) > 3 else word


class _Index:
    """All passages, and where each word is."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = passages
        self._counts: dict[str, dict[int, float]] = {}
        lengths = []
        for number, one in enumerate(passages):
            counts: Counter[str] = Counter()
            length = 0
            for text, worth in ((one.text, 1), (one.title, _HEADING), (one.names, _NAME)):
                for word in _words(text):
                    for part in {word, *re.split(r"[._]", word)}:
                        counts[stem(part)] += worth
                    length += 1
            lengths.append(length)
            for word, count in counts.items():
                self._counts.setdefault(word, {})[number] = count
        mean = sum(lengths) / max(1, len(lengths))
        self._norms = [_K1 * (1 - _B + _B * length / mean) for length in lengths]

    def weights(self, word: str) -> Iterator[tuple[int, float]]:
        """Yield each passage that has a word, and what it counts there."""
        places = self._counts.get(word, {})
        rarity = math.log(1 + (len(self.passages) - len(places) + 0.5) / (len(places) + 0.5))
        for number, count in places.items():
            yield number, rarity * count * (_K1 + 1) / (count + self._norms[number])


def _of_commands() -> Iterator[Passage]:
    for name, one in commands.known().items():
        examples = "\n".join(f"{line}  # {what}" for line, what in one.examples.items())
        text = f"{one.about}\n{examples}"
        yield Passage(f"hpcrun {name}", text, f"hpcrun help {name}", f"{name} {one.other_names}")


def _of_pages(pages: Mapping[str, str]) -> Iterator[Passage]:
    for topic, text in pages.items():
        blocks = _blocks(text)
        if topic == "recipes":  # what to type, and what happens when it is wrong, are one answer
            sections = groupby(blocks, key=lambda one: one[0])
            blocks = ((name, "\n".join(block for _, block in some)) for name, some in sections)
        for number, (headings, block) in enumerate(blocks):
            yield from _passages(block, headings, topic, is_first=number < 2)


def _of_message(words: str) -> Passage | None:
    """Return the meaning of a message that was pasted: a reason of Slurm's, or an error."""
    if words == words.lower() and " " not in words and not _SIGNAL_ALONE.fullmatch(words):
        return None
    from hpcrun.observe.diagnosis import advice
    from hpcrun.slurm import pending_reason

    words = _with_signal(words)
    said = words.strip("() ")
    if (reason := pending_reason.in_words(said)) != said:
        return Passage("Why a job waits", reason, "hpcrun status and hpcrun why have it of a run")
    for pattern, title, text in _MESSAGES:
        if re.search(pattern, words, re.IGNORECASE):
            return Passage(title, text, "hpcrun help recovery")
    if trouble := advice.known_trouble({"message": words}, "NAME"):
        return Passage("What the message means", f"{trouble}.", "hpcrun why NAME tells it of a run")
    return None


def _with_signal(words: str) -> str:
    """Return a message with the name of the signal that a number in it stands for."""
    number = 0
    if hit := _SIGNAL.search(words):
        number = int(hit[1] or hit[2])
    elif hit := _CODE.search(words):
        code = int(hit[1])
        number = -code if code < 0 else code - 128
    return f"{words} {signal_name(number)}" if 0 < number < 65 else words


def _passages(
    block: str, headings: Sequence[str], topic: str, *, is_first: bool
) -> Iterator[Passage]:
    """Yield a paragraph of a page, or the rows of a table, under its headings."""
    # In these a heading is all the name that is needed.
    alone = topic in ("questions", "recipes", "commands") and len(headings) > 1
    title = headings[-1] if alone else ": ".join(headings) or topic
    where = f"hpcrun help {topic}"
    rows = [line for line in block.splitlines() if line.startswith("|")]
    if len(rows) > 2:
        for row in rows[2:]:
            yield _of_row(row, title, where)
    else:
        yield Passage(title, block, where, title if alone else topic if is_first else "")


def _of_row(row: str, title: str, where: str) -> Passage:
    cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    key = cells[0].strip("`")
    if re.fullmatch(r"[a-z_A-Z]+(?:\.[a-z_A-Z]+)*", key) and len(cells) == 4:
        default = f", by default {cells[2].strip('`')}" if cells[2] else ""
        return Passage(key, f"{cells[1]}{default}. {cells[3]}", where, key)
    return Passage(f"{title}: {key}", ". ".join(filter(None, cells[1:])), where, key)


def _blocks(page: str) -> Iterator[tuple[list[str], str]]:
    """Yield what stands between blank lines, under its headings; fences are not divided."""
    headings: list[str] = []
    block: list[str] = []
    is_code = False
    for line in [*page.splitlines(), ""]:
        is_code ^= line.startswith("```")
        heading = None if is_code else re.match(r"(#+) (.*)", line)
        if is_code or (line.strip() and not heading):
            block.append(line)
            continue
        if block:
            yield headings, "\n".join(block)
            block = []
        if heading:
            headings = [*headings[: len(heading[1]) - 1], heading[2].replace("`", "").strip()]


def as_text(markdown: str) -> str:
    """Return Markdown without the addresses of its links and the signs of its fences."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown)
    lines = [line for line in text.splitlines() if not line.startswith("```")]
    return "\n".join(lines).replace("**", "").replace("`", "")
