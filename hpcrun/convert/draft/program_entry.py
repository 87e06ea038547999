"""The entry of a spec from the program that a script starts: its file, arguments and DeepSpeed."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun.convert.draft import program_flags
from hpcrun.convert.draft.program_flags import Values
from hpcrun.convert.draft.spec_words import MISSING, SpecWords, shell_entry
from hpcrun.convert.script.launch_line import ProgramLaunch
from hpcrun.convert.script.walk_state import StartedProgram, WalkResult, WrittenDocument
from hpcrun.convert.shell.shell_values import MARK, Unknown
from hpcrun.host import is_there

DEEPSPEED_CONFIG = Unknown("spec", "${hpcrun:deepspeed_config}")
_DEEPSPEED_OPTIONS = ("deepspeed", "deepspeed_config", "deepspeed-config", "ds_config")
_MODEL_PARALLEL = ("tensor-model-parallel-size", "pipeline-model-parallel-size")


@dataclass
class ProgramEntry:
    """What a program becomes in a spec."""

    entry: str | list[str] = ""
    args: list[str] = field(default_factory=list)
    config: dict[str, Values] = field(default_factory=dict)
    style: str = "--key=value"
    deepspeed_config: str | None = None
    deepspeed: dict[str, Any] = field(default_factory=dict)
    document: WrittenDocument | None = None
    """The here-document that DeepSpeed's configuration was."""
    model_parallel_size: int | None = None
    directory: str = "."
    """The directory that the program's relative paths mean, relative to the spec's."""


class ScriptPlace:
    """Where a script, its program and the spec are.

    Parameters
    ----------
    script
        The script's path.
    directory
        The directory of the spec.
    """

    def __init__(self, script: Path, directory: Path) -> None:
        self._here = Path(os.path.normpath(Path.cwd() / directory))
        self._script = Path(os.path.normpath(Path.cwd() / script)).parent
        self._base: Path | None = None

    def find(self, directory: str, target: str) -> None:
        """Find the directory in which sbatch was typed, by the file that it has to hold."""
        if MARK.search(directory + target) or target.startswith("/"):
            return
        for base in dict.fromkeys((self._here, self._script, *self._script.parents[:6])):
            if is_there((base / directory / target).is_file):
                self._base = base
                return

    def of(self, directory: str, path: str) -> str:
        """Return a path of the script as the spec writes it."""
        if path.startswith(("/", "~")) or MARK.match(path):
            return path
        if directory.startswith(("/", "~")) or MARK.match(directory):
            return os.path.normpath(f"{directory}/{path}")
        base = self._base or self._script
        found = os.path.relpath(base / directory / path, self._here)
        return found

    def path(self, directory: str, path: str) -> Path:
        """Return where a file of the script is."""
        return (self._base or self._script) / directory / path

    @property
    def is_found(self) -> bool:
        """Whether the program's file is there."""
        return self._base is not None


def entry(
    program: StartedProgram, walk: WalkResult, place: ScriptPlace, words: SpecWords
) -> ProgramEntry:
    """Return the entry, arguments and DeepSpeed configuration of a program."""
    launch = program.launch
    found = ProgramEntry(directory=place.of(program.directory, "."))
    target = launch.target
    if target and target != "-c" and (launch.python is not None or "/" in target):
        target = place.of(program.directory, target)
    args = _deepspeed(found, launch, program, walk, place, words)
    more = _arguments(found, args, words)
    found.model_parallel_size = _model_parallel(launch.args)
    start = [*_spec_texts(launch.wrapper, words, "the wrapper"), *_start(launch, target, words)]
    if more:
        found.entry = shell_entry(start, more)
    elif _is_script(launch, target):
        found.entry = start[-1]
    else:
        found.entry = start
    return found


def _is_script(launch: ProgramLaunch, target: str) -> bool:
    plain = launch.python is not None and launch.module is None and not launch.wrapper
    return plain and target.endswith(".py") and set(launch.python_options) <= {"-u"}


def _start(launch: ProgramLaunch, target: str, words: SpecWords) -> list[str]:
    """Return the words of a command that starts the program, without its arguments."""
    if launch.python is None:
        return _spec_texts([target], words, "the program")
    options = [one for one in launch.python_options if one != "-u"]
    start = [launch.python, *options]
    start += [target] if launch.module is None else ["-m", launch.module]
    return _spec_texts(start, words, "the program")


def _spec_texts(given: Sequence[str], words: SpecWords, what: str) -> list[str]:
    return [words.text(one, what) or words.unknowns.shown(one) for one in given]


def _arguments(found: ProgramEntry, args: Sequence[str], words: SpecWords) -> list[str]:
    """Divide the arguments into config, args, and words that a rank's own shell has to expand."""
    more: list[str] = []
    plain: list[str] = []
    for one in program_flags.items(args):
        if one.name is None and _is_arguments(one.words, words):
            words.lost.append(
                f"{words.unknowns.shown(one.words[0])}: the script's own arguments; give them to "
                "`hpcrun submit` as key=value"
            )
            continue
        what = one.name or (one.words[0] if one.words[0].startswith("-") else "")
        texts = [_argument(word, words, what) for word in one.words]
        if None not in texts:
            kept = [text for text in texts if text is not None]
            is_missing = any(text.endswith(MISSING) for text in kept)
            if is_missing and (one.name is None or one.style == ""):
                if len(kept) > 1 or one.words[0].startswith("-"):
                    plain += kept
                continue
            plain += kept
            continue
        in_shell = [words.in_shell(word) for word in one.words]
        if None in in_shell:
            shown = words.unknowns.shown(" ".join(one.words))
            words.lost.append(f"{shown}: only a job can tell it; write it into config")
        else:
            more += [text for text in in_shell if text is not None]
    flags = program_flags.divide(program_flags.items(plain))
    found.config, found.args, found.style = flags.config, flags.args, flags.style
    return more


def _is_arguments(given: Sequence[str], words: SpecWords) -> bool:
    """Check whether words are only ``$@`` or ``$1``."""
    found = words.unknowns.of(given[0])
    only = len(given) == 1 and MARK.sub("", given[0]) == "" and bool(found)
    return only and all(one.kind == "argument" for one in found)


def _argument(word: str, words: SpecWords, what: str) -> str | None:
    """Return an argument as the spec has it; of ``--key=value`` only the value may be missing."""
    name, equals, value = word.partition("=")
    if equals and MARK.search(value) and not MARK.search(name):
        text = words.text(value, name)
        return None if text is None else f"{name}={text}"
    return words.text(word, what)


def _deepspeed(
    found: ProgramEntry,
    launch: ProgramLaunch,
    program: StartedProgram,
    walk: WalkResult,
    place: ScriptPlace,
    words: SpecWords,
) -> list[str]:
    """Return the arguments with the path of hpcrun's DeepSpeed JSON in place of the script's."""
    args = list(launch.args)
    own = walk.unknowns.mark(DEEPSPEED_CONFIG)
    for at, word in enumerate(args):
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--") or name not in _DEEPSPEED_OPTIONS:
            continue
        if not equals:
            value = args[at + 1] if at + 1 < len(args) else ""
        if (
            not value
            or value.startswith("-")
            or not _configured(found, value, program, walk, place, words)
        ):
            continue
        if equals:
            args[at] = f"--{name}={own}"
        else:
            args[at + 1] = own
    given = launch.options.get("deepspeed-config-file")
    if given and found.deepspeed_config is None:
        _configured(found, given, program, walk, place, words)
    return args


def _configured(
    found: ProgramEntry,
    value: str,
    program: StartedProgram,
    walk: WalkResult,
    place: ScriptPlace,
    words: SpecWords,
) -> bool:
    """Take a DeepSpeed configuration over; False for what is no file of one."""
    if value in walk.documents:
        written = walk.documents[value]
        text, node = written.text, written.node
        if MARK.search(text) or len(text) > 100_000:
            words.lost.append(
                f"{walk.unknowns.shown(value)}, written in line {node.line}, holds what only a job "
                "can tell; write it into a file, named in deepspeed_config"
            )
            return False
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            words.lost.append(
                f"what line {node.line} writes is no JSON; name a file in deepspeed_config"
            )
            return False
        found.deepspeed, found.document = data, written
        return True
    if not re.search(r"\.(json|ya?ml)$", value):
        return False
    path = words.text(place.of(program.directory, value), "deepspeed_config")
    if path is None or path == MISSING:
        return False
    found.deepspeed_config = path
    return True


def _model_parallel(args: Sequence[str]) -> int | None:
    """Return the ranks that hold one copy of the model, by Megatron's options."""
    sizes = [1]
    for at, word in enumerate(args):
        name, _, value = word.lstrip("-").replace("_", "-").partition("=")
        if name in _MODEL_PARALLEL:
            text = value or (args[at + 1] if at + 1 < len(args) else "")
            if text.isdigit() and len(text) < 5:
                sizes.append(int(text))
    product = math.prod(sizes)
    return product if product > 1 else None
