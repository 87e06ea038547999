"""Detects the framework of an entry from its words and its imports; nothing of it is executed."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from hpcrun import feature
from hpcrun.compile.source.marked_tree import Reporter
from hpcrun.compile.spec import schema
from hpcrun.compile.target import command_line
from hpcrun.compile.target.entry import MOST_PARSED, LocatedEntry, given_progress, program_text
from hpcrun.compile.target.lone_ranks import lone_ranks
from hpcrun.extensions import RECIPES
from hpcrun.policy import frameworks
from hpcrun.state import files
from hpcrun.state.spec.experiment import Spec
from hpcrun.text import agreeing, listed

_PYTHON = re.compile(r"python[0-9.]*")
_PROGRAM = re.compile(rf"(?:.*/)?{_PYTHON.pattern}|[^=]*\.py")
# Options of Python that take the next word as their value.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_TRAINERS = {
    f"transformers.{kind}{what}"
    for kind in ("", "Seq2Seq")
    for what in ("Trainer", "TrainingArguments")
}
# A program with one of these may import mpi4py for machines where its ranks have no other way.
_MEET_OTHERWISE = {"deepspeed", "hpcrun", "jax", "tensorflow", "torch"}
_LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}
# A program that does without other ranks where this variable is not set.
_ALONE = re.compile(rb"""environ\.get\(\s*["']RANK["']\s*,\s*["']?-1""")
_BEFORE = """
! apptainer conda do else env exec if ionice mamba micromamba nice nohup numactl pdm pipenv pixi
poetry setsid singularity srun stdbuf taskset then time timeout uv
"""
# Words that start the command after them.
_STARTERS = frozenset(_BEFORE.split())
_LAUNCHER = "{} starts processes of its own, in each of the {} ranks that hpcrun starts: "
_SCRIPT = "name the program itself as the entry, with framework: {name}"
# Options that recipes give, and parsers that take them unnamed.
_OPTIONS = {option for name in RECIPES.own for option in RECIPES.load(name).config}
_PARSERS = dict.fromkeys(("HfArgumentParser", "TrlParser"), "resume_from_checkpoint")
_PARSERS |= {"LightningCLI": "ckpt_path"}
_ONCE = "framework: torchrun starts it once a node"
_MEANING = {
    "accelerate": "its ranks are told that they train together, on CPUs too",
    "huggingface": "its ranks are told that they train together, on CPUs too",
    "jax": "its ranks find their coordinator in JAX_COORDINATOR_ADDRESS",
    "single": "its one process finds no RANK, and so does not look for others",
    "mpi": "its ranks are started as srun --mpi does, and find each other by Slurm's PMI",
    "lightning": "it takes its ranks from hpcrun, and does not have its job requeued itself",
    "tensorflow": "its ranks find each other in TF_CONFIG",
    "torchrun": "one process a node is started, with all its GPUs and torchrun's settings",
}


def detect(located: LocatedEntry, spec: dict[str, Any], directory: Path) -> tuple[str, str | None]:
    """Return the name of an entry's framework, and a note for the user.

    The name is ``auto`` where it is not sure: then nothing changes for the ranks. Relative paths of
    a command are relative to ``directory``.
    """
    resources = spec["resources"]
    words = spec["entry"] if located.kind == "command" else []
    launcher, tasks = _launcher(words), resources["ntasks_per_node"]
    per_node = tasks or resources["gpus_per_node"] or 1
    ranks = resources["nodes"] * per_node
    if launcher == "torchrun" and (tasks or 1) == 1:
        found: tuple[str, str] | None = (launcher, "the entry starts it")
    else:
        # Of one rank a node a command may know how to tell its launcher which it is.
        inside = _launcher_inside(words, directory) if ranks > 1 else None
        if inside is not None and inside[0] != frameworks.MPI and per_node == 1:
            inside = None
        if launcher is not None or inside is not None:
            name, where = inside or (str(launcher), "")
            shown = {"accelerate": "accelerate launch", frameworks.MPI: "mpirun"}.get(name, name)
            note = _LAUNCHER.format(f"{shown!r}{where}", ranks)
            note += (_ONCE if name == "torchrun" else _SCRIPT).format(name=name)
            return frameworks.AUTO, note if ranks > 1 else None
        found = _of_module(words) or _of_file(located, spec, directory, alone=ranks == 1)
    if found is None or _goes_its_own_way(found[0], spec):
        return frameworks.AUTO, None
    name, why = found
    same = "is the same without this note"
    if frameworks.of(name).resume and recipe(located, spec, directory) is None:
        same = "adds how it resumes, by an option that the program does not read"
    rest = f"'framework: none' switches that off, 'framework: {name}' {same}"
    return name, f"framework: {name} ({why}): {_MEANING[name]}; {rest}"


def lone(located: LocatedEntry, spec: dict[str, Any], directory: Path) -> str | None:
    """Return what to ask a person about a plain script with ranks that nothing joins."""
    path = _python_file(located, spec, directory) if located.kind != "function" else None
    if path is None or spec["framework"] != frameworks.AUTO or spec.get("roles"):
        return None
    wanted = spec["resources"]
    per_node = wanted["ntasks_per_node"] or wanted["gpus_per_node"] or 1
    return lone_ranks(path, wanted["nodes"] * per_node)


def recipe(located: LocatedEntry, spec: dict[str, Any], directory: Path) -> str | None:
    """Return the recipe by which an entry resumes whose spec names neither it nor a framework.

    It is that of the framework which the program imports, also one that torchrun or Accelerate
    starts. As a recipe adds an option, the program has to read that.
    """
    named = spec["framework"]
    if located.kind == "function" or named not in (frameworks.AUTO, "accelerate", "torchrun"):
        return None
    words = spec["entry"] if located.kind == "command" else []
    if _of_module(words):
        return frameworks.of("huggingface").resume
    path = _python_file(located, spec, directory)
    if path is None and _launcher(words):
        path = next((directory / word for word in words if word.endswith(".py")), None)
    uses = _Uses() if path is None else _of_path(path)
    found = frameworks.of(uses.framework).resume
    if _goes_its_own_way(uses.framework, spec):
        return None
    return found if found and uses.options.intersection(RECIPES.load(found).config) else None


def _goes_its_own_way(framework: str | None, spec: dict[str, Any]) -> bool:
    """Check for Lightning at SIGUSR1: it saves then only where it is alone with Slurm."""
    return framework == "lightning" and spec["recovery"]["stop_signal"] == "SIGUSR1"


def unused_progress(located: LocatedEntry, spec: dict[str, Any], directory: Path) -> str | None:
    """Return a note on ``progress`` where a script seems to have a session; None otherwise."""
    given = given_progress(spec) if located.kind != "function" else []
    path = _python_file(located, spec, directory) if given else None
    if path is None or not _of_path(path).has_session:
        return None
    return (
        f"progress.{given[0]} is not used if the session that {path.name} asks for begins: then "
        "steps, metrics and saves are the session's"
    )


def unused_checkpoint(located: LocatedEntry, spec: dict[str, Any], directory: Path) -> str | None:
    """Return a note on ``checkpoint`` where a script seems to have no session; None otherwise."""
    given = [f"checkpoint.{name}" for name in _OF_SESSIONS if spec["checkpoint"][name]]
    usual = schema.defaults(Spec)
    blocks = (name for name, one in feature.every().items() if one.of_sessions)
    given += [name for name in blocks if spec[name] != usual[name]]
    if not given or located.kind == "function":
        return None
    path = _python_file(located, spec, directory)
    if path is None or _of_path(path).has_session:
        return None
    return (
        f"{listed(given, 8)} {agreeing(len(given), 'acts', 'act')} where the program asks for "
        f"hpcrun.session(), which {path.name} does not do: what it saves by itself goes by options "
        "of its own"
    )


def check(
    name: str, kind: str, resources: dict[str, Any], report: Reporter, *, is_slurm: bool = True
) -> None:
    """Report a framework that does not go with the entry, the shape of the run or the cluster."""
    gpus, tasks = resources["gpus_per_node"], resources["ntasks_per_node"]
    if name == frameworks.MPI and not is_slurm and resources["nodes"] * (tasks or gpus or 1) > 1:
        found = "found mpi, whose ranks find each other by srun, and the cluster is this machine"
        report.at("framework", found, "choose a cluster with Slurm, by cluster=NAME, or one rank")
    framework, is_function = frameworks.of(name), kind == "function"
    if is_function and (framework.one_per_run or framework.one_per_node):
        place = "run" if framework.one_per_run else "node"
        found = f"{name} starts one process a {place}, and a function is called in each rank"
        report.at("framework", found, "make the entry a script or a command")
    elif is_function and tasks == 1 < gpus:
        found = f"found 1 with gpus_per_node={gpus}; with GPUs there is one rank per GPU"
        report.at("resources.ntasks_per_node", found, "leave ntasks_per_node out")
    elif framework.one_per_node and (tasks or 1) > 1:
        found = f"found {tasks} with framework {name}, which starts one process a node"
        hint = "leave it out" + ("; --nproc-per-node is torchrun's" if name == "torchrun" else "")
        report.at("resources.ntasks_per_node", found, hint)
    elif name == "single" and resources["nodes"] > 1:
        found = f"found {resources['nodes']} with framework single, which is one process"
        report.at("resources.nodes", found)


def doubt(name: str, located: LocatedEntry, resources: dict[str, Any]) -> str | None:
    """Return a note on a framework that the spec names and that does less than it seems to."""
    gpus = resources["gpus_per_node"]
    if name != "torchrun" or located.kind != "script" or gpus < 2 or located.file is None:
        return None
    return (
        f"framework: torchrun starts {located.file.name} once a node, with all {gpus} GPUs, and no "
        f"torchrun: for a process a GPU leave framework out, or name torchrun in the entry"
    )


def _launcher(words: Sequence[str]) -> str | None:
    """Return the launcher that a command starts, by its framework's name."""
    first = PurePath(words[0]).name if words else ""
    module = _python_module(words)
    if first == "torchrun" or module in ("torch.distributed.run", "torch.distributed.launch"):
        return "torchrun"
    if (first, *words[1:2]) == ("accelerate", "launch") or module == "accelerate.commands.launch":
        return "accelerate"
    if first in frameworks.MPI_LAUNCHERS:
        return frameworks.MPI
    return first if first in ("deepspeed", "composer") else None


def _launcher_inside(words: Sequence[str], directory: Path) -> tuple[str, str] | None:
    """Return the launcher that a command starts by a wrapper or a shell's script, and where."""
    found, where = _launcher_behind(words), ""
    if command_line.is_shell_script(words[:3]):
        found = _started_in(words[2])
    elif not found and words and command_line.SHELL.fullmatch(words[0]):
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        found = _started_by_file(directory / script, _version(directory / script))
        where = f" in {script}"
    return (found, where) if found else None


@functools.lru_cache(maxsize=64)
def _started_by_file(path: Path, version: tuple[int, int]) -> str | None:
    return _started_in(program_text(path) or "")


def _started_in(script: str) -> str | None:
    """Return the first launcher that a shell's script starts."""
    commands = re.split(r"[;&|()\n]+", script.replace("\\\n", " "))
    return next(filter(None, (_launcher_behind(command.split()) for command in commands)), None)


def _launcher_behind(words: Sequence[str]) -> str | None:
    """Return the launcher that a command starts, itself or through words such as ``srun``."""
    words = [*itertools.dropwhile(lambda word: "=" in word, words)]
    if words and PurePath(words[0]).name in _STARTERS:
        return next(filter(None, (_launcher(words[at:]) for at in range(1, len(words)))), None)
    return _launcher(words)


def _of_module(words: Sequence[str]) -> tuple[str, str] | None:
    """Return the framework of ``python -m MODULE``, and the reason."""
    module = _python_module(words) or ""
    if module.partition(".")[0] == "trl":
        return "huggingface", f"the entry is python -m {module}"
    return None


def _python_module(words: Sequence[str]) -> str | None:
    found = _python_target(words)
    return found[1] if found and found[0] == "-m" else None


def _python_target(words: Sequence[str]) -> tuple[str, str] | None:
    """Return ``("-m", module)`` or ``("", file)`` of a command that starts Python."""
    if words and PurePath(words[0]).name in _STARTERS:
        words = [*itertools.dropwhile(lambda word: not _PROGRAM.fullmatch(word), words)]
    if words and words[0].endswith(".py"):
        return "", words[0]
    if not words or not _PYTHON.fullmatch(PurePath(words[0]).name):
        return None
    rest = iter(words[1:])
    for word in rest:
        if word == "-m":
            return "-m", next(rest, "")
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            return "", word
        elif word == "-c":
            return None
    return None


def _of_file(
    located: LocatedEntry, spec: dict[str, Any], directory: Path, *, alone: bool
) -> tuple[str, str] | None:
    """Return the framework that a Python file imports, and the reason.

    ``alone``: the run has one rank, so that a program which can do without RANK is to do so.
    """
    path = _python_file(located, spec, directory)
    if path is None:
        return None
    found = _of_path(path)
    if found.framework is None and found.does_without and alone and located.kind != "function":
        return "single", f"{path.name} reads RANK only where it is set"
    return (found.framework, f"{path.name} imports it") if found.framework else None


def _python_file(located: LocatedEntry, spec: dict[str, Any], directory: Path) -> Path | None:
    """Return the Python file that an entry starts; None if that is not known."""
    words = spec["entry"] if located.kind == "command" else []
    path = located.file
    if path is None and (target := _python_target(words)):
        path = directory / (f"{target[1].replace('.', '/')}.py" if target[0] else target[1])
    return path if path and path.suffix == ".py" and any(_version(path)) else None


# Keys of ``checkpoint`` that only a session acts on.
_OF_SESSIONS = (
    "every",
    "nearby_every",
    "asynchronous",
    "initialize_from",
    "keep_every",
    "keep_best",
)


class _Uses(NamedTuple):
    """The framework and session that a file uses, by its imports and names."""

    framework: str | None = None
    does_without: bool = False
    """It does without RANK."""
    has_session: bool = False
    options: frozenset[str] = frozenset()
    """Options of recipes that the program takes."""


def _of_path(path: Path) -> _Uses:
    return _uses(path, _version(path))


def _version(path: Path) -> tuple[int, int]:
    """Return what tells a file from itself after an edit: a program may submit it again."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


@functools.lru_cache(maxsize=64)
def _uses(path: Path, version: tuple[int, int]) -> _Uses:
    try:
        source = files.read_bytes(path, MOST_PARSED)
        tree = ast.parse(source, str(path))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return _Uses()
    names = set(_names(tree))
    others = names & {"import:hpcrun", "import:deepspeed"}
    does_without = not others and _ALONE.search(source) is not None
    framework = _of_names(names)
    # The Trainer ignores what its parser took: who calls train hands it on.
    parsers = {} if framework == "huggingface" and "train" in names else _PARSERS
    options = frozenset(_OPTIONS.intersection(_options_read(tree, parsers)))
    return _Uses(framework, does_without, {"import:hpcrun", "session"} <= names, options)


def _of_names(names: set[str]) -> str | None:
    """Return the framework of a program by the modules and names that it uses; None if unsure."""
    found = set()
    roots = {name.partition(":")[2] for name in names if name.startswith("import:")}
    if roots & _LIGHTNING:
        found.add("lightning")
    elif "trl" in roots or names & _TRAINERS:
        found.add("huggingface")
    elif "accelerate.Accelerator" in names:
        found.add("accelerate")
    if "tensorflow" in roots and "MultiWorkerMirroredStrategy" in names:
        found.add("tensorflow")
    if {"jax.distributed", "initialize"} <= names:
        found.add("jax")
    if "mpi4py" in roots and not roots & _MEET_OTHERWISE:
        found.add(frameworks.MPI)
    return found.pop() if len(found) == 1 else None


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield ``import:ROOT`` for each module that is imported, ``ROOT.NAME``, and names alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import:{one.name.partition('.')[0]}" for one in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            root, *inner = node.module.split(".")
            yield f"import:{root}"
            for name in (*inner, *(one.name for one in node.names)):
                yield from (name, f"{root}.{name}")
        elif isinstance(node, ast.Attribute):
            yield node.attr
            if isinstance(node.value, ast.Name):
                yield f"{node.value.id}.{node.attr}"


def _options_read(tree: ast.AST, parsers: Mapping[str, str]) -> Iterator[str]:
    """Yield what may be options of a program: the names that it reads, not those that it gives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield parsers.get(node.id, node.id)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.lstrip("-").replace("-", "_")
