"""Finds the line that starts the ranks, where it is certain what hpcrun starts in its place.

With it the lines that only make a rendezvous, which hpcrun makes itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from hpcrun.tools.init.convert.script_request import ScriptRequest
from hpcrun.tools.init.convert.shell_scan import ShellCommand, ShellScript, ShellWord, Statement
from hpcrun.tools.init.convert.variables import OF_SHAPE, UNKNOWN, Variables

_PYTHON = re.compile(r"python[\d.]*")
_LAUNCHERS = """
srun mpirun mpiexec mpiexec.hydra orterun ibrun jsrun aprun torchrun accelerate deepspeed horovodrun
composer colossalai ray julia Rscript apptainer singularity shifter enroot podman docker parallel
"""
_BEFORE = """
exec time env nohup command numactl timeout bash sh kernprof nsys stdbuf taskset uv conda
"""
_STARTERS, _WRAPPERS = frozenset(_LAUNCHERS.split()), frozenset(_BEFORE.split())
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
_RENDEZVOUS, _TORCH_VALUES = frozenset(_MEETS.split()), frozenset(_STAYS.split())
_MODULE = "torch.distributed.run"
_TORCH_FLAGS = frozenset(("standalone", "no_python", "run_path"))
# What hpcrun gives to each of its ranks.
_GIVEN = "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK"
OWN = frozenset(_GIVEN.split())
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Uncertain(Exception):
    """It is not certain what a launch line means; the message says why."""


@dataclass
class LaunchLine:
    """The line that starts the ranks, and what hpcrun starts in its place."""

    statement: Statement
    command: ShellCommand
    entry: list[str]
    args: list[str] = field(default_factory=list)
    framework: str | None = None
    dropped: list[str] = field(default_factory=list)
    """Options that hpcrun says in their place."""
    logs: list[str] = field(default_factory=list)
    """Options of srun that name files of its output."""


def starts(command: ShellCommand) -> bool:
    """Check whether a command may start a program that trains, or ranks of it."""
    names = [PurePath(word.text or "").name for word in command.words[:4]]
    if not names:
        return False
    found = names if names[0] in _WRAPPERS else names[:1]
    python = (name for name in found if _PYTHON.fullmatch(name) or name.endswith(".py"))
    is_known = not _STARTERS.isdisjoint(found) or any(python)
    return is_known or command.words[0].text is None


def find(script: ShellScript, variables: Variables, job: ScriptRequest) -> LaunchLine:
    """Return the launch line of a script; raise Uncertain where it is to stay as it is."""
    if script.problem:
        raise Uncertain(f"bash may read it otherwise: {script.problem}")
    if not job.is_certain:
        raise Uncertain("hpcrun's ranks would not be what its #SBATCH lines ask for")
    if script.positional:
        raise Uncertain(f"line {script.positional[0]} reads the script's arguments")
    if at := [f"line {number} has {one}" for one, number in script.templates.items()]:
        raise Uncertain(f"{at[0]}, which somebody fills in")
    found = [(each, one) for each in script.statements for one in each.commands if starts(one)]
    if len(found) != 1:
        raise Uncertain(f"{len(found) or 'no'} lines of it start programs that are known here")
    statement, command = found[0]
    place = f"line {script.line(command.start)}"
    if statement.simple is not command:
        raise Uncertain(f"{place} starts it together with other commands, or in the background")
    if command.is_redirected:
        raise Uncertain(f"{place} sends its output to a file")
    for one in script.commands:
        if one.program == "trap" and "EXIT" not in [word.text for word in one.words]:
            raise Uncertain(f"line {script.line(one.start)} waits for signals, which hpcrun gets")
        if one.program in ("exec", "wait", "sbatch"):
            raise Uncertain(f"line {script.line(one.start)} has {one.program}")
    if re.search(r"\$\?|PIPESTATUS", script.text[command.end :]):
        raise Uncertain(f"what follows {place} asks how it ended")
    line = LaunchLine(statement, command, [])
    try:
        _read([text for word in command.words for text in _certain(word, variables)], line, job)
    except Uncertain as why:
        raise Uncertain(f"{place}: {why}") from None
    return line


def _certain(word: ShellWord, variables: Variables) -> list[str]:
    found = variables.text(word)
    if found is None:
        raise Uncertain(f"only bash can tell what {word.raw[:60]} is")
    return found


def _read(words: list[str], line: LaunchLine, job: ScriptRequest) -> None:
    is_step = PurePath(words[0]).name == "srun"
    if is_step:
        words = _step(words[1:], line, job)
    if words[1:2] == ["-c"] and PurePath(words[0]).name in ("bash", "sh"):
        words = _inner(words[2:])
    at = _program_at(words)
    program, name = words[at:], PurePath(words[at]).name
    module = _MODULE in program[2:4] and "-m" in program[1:3]
    if name == "torchrun" or module:
        start = words.index(_MODULE) + 1 if module else at + 1
        _torchrun(words, start, line, job, is_step=is_step)
    elif _PYTHON.fullmatch(name):
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


def _step(words: list[str], line: LaunchLine, job: ScriptRequest) -> list[str]:
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


def _inner(texts: list[str]) -> list[str]:
    """Return the words of ``bash -c TEXT``, where it is one plain command."""
    inner = ShellScript(texts[0])
    command = inner.statements[0].simple if len(inner.statements) == len(texts) == 1 else None
    if inner.problem or command is None or command.is_redirected or command.assigned:
        raise Uncertain("the shell that it starts has more than one plain command")
    nothing = Variables(inner)
    return [text for word in command.words for text in _certain(word, nothing)]


def _program_at(words: list[str]) -> int:
    """Return the index of the program, which may be in a container."""
    names = [PurePath(word).name for word in words]
    if names and names[0] not in _CONTAINERS:
        return 0
    found = [at for at, name in enumerate(names) if name == "torchrun" or _PYTHON.fullmatch(name)]
    if len(found) != 1:
        raise Uncertain("it starts no program, or none of Python in its container")
    return found[0]


def _torchrun(
    words: list[str], start: int, line: LaunchLine, job: ScriptRequest, *, is_step: bool
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
        if plain in _RENDEZVOUS:
            if plain == "nnodes" and not _is_same(job, "nodes", value):
                raise Uncertain("torchrun has other nodes than the #SBATCH lines")
            line.dropped.append(given[0].split("=")[0])
        elif plain in _TORCH_VALUES or plain in _TORCH_FLAGS:
            nproc = value if plain == "nproc_per_node" else nproc
            kept += given
        else:
            raise Uncertain(f"torchrun has the option {name}")
    if not re.fullmatch(r"\d+|gpu|auto|cpu", nproc or ("1" if job.gpus <= 1 else "")):
        raise Uncertain("only a job can tell how many processes torchrun starts")
    if not words[used:] and not module:
        raise Uncertain("torchrun starts nothing")
    program = [*module, *words[used:]]
    split = len(module) or 1
    line.entry = [*words[:start], *kept, *program[:split]]
    line.args, line.framework = program[split:], "torchrun"


def _python(
    words: list[str], at: int, line: LaunchLine, job: ScriptRequest, *, is_step: bool
) -> None:
    split = at + 1
    while split < len(words) and words[split] in ("-u", "-O", "-B", "-s", "-E", "-I"):
        split += 1
    split += 2 if words[split : split + 1] == ["-m"] else 1
    if split > len(words) or words[split - 1].startswith("-"):
        raise Uncertain("python runs no file and no module")
    tasks = job.tasks or 1
    if not is_step and (job.nodes > 1 or tasks > 1):
        raise Uncertain("without srun it is one process, on the first node alone")
    if job.gpus > 1 and tasks == 1 and job.nodes == 1:
        line.framework = "single"
    elif job.gpus and tasks != job.gpus:
        raise Uncertain(f"{tasks} tasks of a node share its {job.gpus} GPUs in their own way")
    line.entry, line.args = words[:split], words[split:]


def rendezvous(script: ShellScript, launch: LaunchLine) -> list[Statement]:
    """Return statements that set, or print, nothing but what a rendezvous is made of.

    What they set is used by each other and by options that hpcrun says in the launcher's place,
    and nowhere else: without them nothing is lost.
    """
    words = {id(one): _names(script.text[one.start : one.end]) for one in script.statements}
    words[id(launch.statement)], seeds = _of_launch(launch)
    # What each sets, and what it shows.
    found: dict[int, tuple[set[str], set[str]]] = {}
    for one in script.statements:
        names = _set_by(one.simple) if one is not launch.statement else None
        if names is not None:
            shown = set() if names else _shown_by(script.text[one.start : one.end])
            found[id(one)] = names, shown
    while True:
        names = set().union(*(own for own, _ in found.values()))
        kept = set().union(*(own for key, own in words.items() if key not in found))
        left = {
            key: one for key, one in found.items() if not one[0] & kept and one[1] <= names - kept
        }
        if len(left) == len(found):
            break
        found = left
    wanted, size = {*OWN, *seeds}, -1
    taken: set[int] = set()
    while len(taken) != size:
        size = len(taken)
        taken = {key for key, (own, _) in found.items() if own & wanted}
        wanted.update(*(words[key] for key in taken))
    names = set().union(*(found[key][0] for key in taken))
    taken |= {key for key, (own, shown) in found.items() if not own and shown <= names}
    return [one for one in script.statements if id(one) in taken]


def _set_by(command: ShellCommand | None) -> set[str] | None:
    """Return the variables that a command sets and does no more; empty for a plain `echo`."""
    if command is None or command.is_redirected or (command.words and command.assigned):
        return None
    if not command.words or command.program == "echo":
        return set(command.assigned)
    if command.program != "export":
        return None
    # Others may be read by the program.
    names = {word.raw.partition("=")[0] for word in command.words[1:]}
    return names if names <= OWN else None


def _shown_by(text: str) -> set[str]:
    """Return the variables that an `echo` shows; a name that nobody has where it shows more."""
    names = set(re.findall(r"\$\{?([A-Za-z_]\w*)", text))
    return names if names and not re.search(r"\$\(|`|\$[^A-Za-z_{]", text) else {""}


def _names(text: str) -> set[str]:
    return set(_IDENTIFIER.findall(text))


def _of_launch(launch: LaunchLine) -> tuple[set[str], set[str]]:
    """Return the words of a launch line, and those of the options that hpcrun says itself."""
    kept: set[str] = set()
    dropped: set[str] = set()
    follows = False
    for word in launch.command.words:
        name, equals, _ = word.raw.partition("=")
        # An option of torchrun's that hpcrun gives in its place.
        is_own = name.startswith("-") and name.lstrip("-").replace("-", "_") in _RENDEZVOUS
        (dropped if is_own or follows else kept).update(_names(word.raw))
        follows = is_own and not equals
    return kept, dropped - kept
