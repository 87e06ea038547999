"""Makes a spec of a command line without one: sbatch's options, and a program with its arguments.

The program gets the words that were typed. Options at their end become ``config``, so that they can
be swept, in an order of its own; all before them stay ``args``.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from hpcrun.compile.source.marked_tree import Key, Reporter, Tree, dotted, map_leaves, nest
from hpcrun.compile.source.problems import Problems, nearest_file
from hpcrun.compile.spec import compose
from hpcrun.compile.spec.short_keys import ShortKeys, has_key
from hpcrun.compile.spec.spec_text import SpecText, TypedSpec
from hpcrun.compile.sweep import values as sweep_values
from hpcrun.compile.target import command_line, launch_words, sbatch_request
from hpcrun.compile.target.entry import program_text
from hpcrun.compile.target.launch_words import LaunchWords, Uncertain
from hpcrun.compile.target.sbatch_request import SbatchOption, ScriptRequest
from hpcrun.compile.target.slurm_options import plain_name
from hpcrun.errors import UsageError
from hpcrun.host import expand_home, is_there
from hpcrun.policy import frameworks
from hpcrun.state import files
from hpcrun.state.plan import TYPED
from hpcrun.text import shortened

PYTHON, SHELL, SCRIPTS = ".py", (".sh", ".bash"), (".sbatch", ".slurm")
# Launchers that start ranks on this node alone, from where no other is reached.
_ON_ONE_NODE = ("accelerate", "deepspeed", "composer")
_NAME = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
HYDRA = re.compile(r"^\s*(?:import hydra\b|from hydra\b)", re.MULTILINE)
"""A program with this is one of Hydra's, and takes ``key=value``."""
_HYDRA = re.compile(r"\+{0,2}[A-Za-z_][\w.]*=\S*", re.ASCII)
# An option without a value, in the words of argparse or click: what follows it is another argument,
# whose place among others counts.
_FLAG = re.compile(
    r"""["']--([\w-]+)["'][^()]*(?:\bstore_(?:true|false|const)|\bcount\b|is_flag)"""
)
_MOST_READ = 100_000
_NUMBERS = re.compile(r"[-+.\de]+(?:,[-+.\de]+)+")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL | re.ASCII)
_REFERENCE = re.compile(r"(\\*)\$\{(?!hpcrun:)")
_SHAPE = re.compile(r"resources\.(nodes|ntasks_per_node|gpus_per_node)|gpus")
# Names of options whose value is a file of options.
_OF_OPTIONS = re.compile(
    r"(?:.*[-_.])?(?:config|cfg|conf|yaml|json|toml|preset|recipe|defaults?)(?:[-_.].*)?"
)
_INSTEAD = {
    "array": "an array is made of the runs of a sweep: --sweep KEY=A,B before the program",
    "chdir": "paths start in this directory: cd there first",
    "test-only": "`--dry-run` shows what would be submitted, `hpcrun check` asks the cluster",
    "help": "see `hpcrun submit --help`",
}
_INSTEAD |= {"usage": _INSTEAD["help"], "version": "see `hpcrun --version`"}


@dataclass
class TypedProgram:
    """What was typed in place of a spec."""

    program: Sequence[str]
    """Its words, at least one."""
    options: dict[str, SbatchOption] = field(default_factory=dict)
    """sbatch's, by their long names."""
    sweeps: Sequence[str] = ()
    """``key=a,b``, whose keys the program may have as options that were not typed."""
    notes: list[str] = field(default_factory=list)
    """What the person is told who typed it."""

    def spec(self, path: Path | None = None) -> TypedSpec:
        """Return the spec, as it would lie at ``path``, else in this directory.

        Raises UsageError where a word means what no spec says, with what to type.
        """
        variables = self._variables()
        while self.program and (found := _ASSIGNMENT.fullmatch(self.program[0])):
            variables[found[1]] = found[2]
            self.program = self.program[1:]
        if not self.program:
            raise UsageError("no program was typed", hint="it stands behind its variables")
        job = self._request()
        launch = self._launch(job)
        values: dict[str, Any] = {"name": self._name(job.spec.pop("name", None), launch)}
        values["entry"] = launch.entry[0] if launch.entry[0].endswith(PYTHON) else launch.entry
        values |= self._arguments(launch)
        values = {key: _literal(value) for key, value in values.items()}
        if launch.framework:
            values["framework"] = launch.framework
        values |= {key: value for key, value in job.spec.items() if value is not None}
        if variables:
            values["environment.variables"] = variables
        text = "".join(f"{line}\n" for line in SpecText(values).lines())
        return TypedSpec(text, path or Path.cwd() / f"{values['name']}{TYPED}", values)

    def _variables(self) -> dict[str, str]:
        """Take --export out of the options; return the variables that it gives values."""
        option = self.options.pop("export", None)
        parts = [part.strip().partition("=") for part in option.value.split(",")] if option else []
        asked = [name for name, is_set, _ in parts if not is_set]
        if passed := [name for name in asked if name.upper() not in ("ALL", "NONE", "NIL", "")]:
            values = ",".join(f'{name}="${name}"' for name in passed)
            raise UsageError(
                f"--export: {', '.join(passed)}: a value is given with each name",
                hint=f"type --export={values}",
            )
        if any(name.upper() == "ALL" for name in asked):
            self.notes.append(
                "--export=ALL: a job has the variables that --export=NAME=VALUE "
                "names, and nothing else of your shell"
            )
        return {name: text for name, is_set, text in parts if is_set}

    def _request(self) -> ScriptRequest:
        """Return what the options ask for, as keys; raise UsageError where no key can say it."""
        for name, what in _INSTEAD.items():
            if option := self.options.get(name):
                raise UsageError(f"{option.text}: {what}")
        job = sbatch_request.of_options(self.options)
        wrong = [f"{one.text}: {one.what}" for one in job.fates if one.fate == sbatch_request.ASKED]
        if not wrong and (job.shell or not job.is_certain):
            wrong = [f"{key}: {what}" for key, what in job.asks.items()]
            if not wrong and job.shell:
                wrong = ["--gpus-per-task: ranks of hpcrun see all GPUs of their node"]
        if wrong:
            hint = "leave it out, or write a spec: the key is in `hpcrun help spec`"
            if any("resources.time" in one for one in wrong):
                hint = "an hour is -t 60, -t 1:00:00 or -t 0-1"
            elif all(_SHAPE.search(one) for one in wrong):
                hint = "type a number that is the same on every node: -N 2 --gpus-per-node 4"
            raise UsageError("\n".join(wrong), hint=hint)
        self.notes += [
            f"{one.text}: {one.what}" for one in job.fates if one.fate == sbatch_request.DROPPED
        ]
        self.notes += [f"{key}: {what}" for key, what in job.asks.items()]
        return job

    def _launch(self, job: ScriptRequest) -> LaunchWords:
        """Return what the program's words start."""
        words = [*self.program]
        first, name = words[0], PurePath(words[0]).name
        suffix = PurePath(name).suffix
        is_python = launch_words.PYTHON.fullmatch(name) is not None
        if suffix in (PYTHON, *SHELL, *SCRIPTS):
            _check_program(first)
            entry = [first] if suffix == PYTHON else ["bash", first]
            return LaunchWords(entry=entry, args=words[1:])
        module = is_python and launch_words.MODULE in words[2:4]
        launch = LaunchWords()
        try:
            if name in ("torchrun", "srun") or module:
                launch_words.read(words, launch, job, is_typed=True)
                for word in launch.entry:
                    if word.endswith(PYTHON) and " " not in word:
                        _check_program(word)
                dropped = ", ".join([*launch.dropped, *(f"srun's {one}" for one in launch.logs)])
                if dropped:
                    self.notes.append(f"{dropped}: hpcrun says it in their place")
                return launch
            split = launch_words.python_split(words) if is_python else 0
        except Uncertain as why:
            hint = "type what it starts (python train.py), and its shape by options"
            if name == "torchrun" and (job.tasks or 1) > 1:
                hint = "leave -n and --ntasks-per-node out: torchrun starts the processes of a node"
            found = f"{shortened(shlex.join(words), 200)}: {why}"
            raise UsageError(found, hint=hint) from None
        if name in frameworks.MPI_LAUNCHERS or name in _ON_ONE_NODE:
            if name in _ON_ONE_NODE and job.nodes > 1:
                raise UsageError(
                    f"{name} would start on the first of {job.nodes} nodes alone",
                    hint=f"type {'' if name == 'deepspeed' else f'framework={name} and '}the "
                    "program without it: hpcrun starts its ranks on all nodes",
                )
            launch.framework = frameworks.BATCH
        if "/" not in first and shutil.which(first) is None:
            self.notes.append(f"{first} is not on PATH here; on the nodes it has to be")
        ends = (PYTHON, *SHELL)
        programs = [at for at, one in enumerate(words) if one.endswith(ends) and " " not in one]
        split = split or (programs[0] + 1 if programs else len(words))
        for word in words[:split]:
            if word.endswith(ends) and " " not in word:
                _check_program(word)
        launch.entry, launch.args = words[:split], words[split:]
        return launch

    def _name(self, given: str | None, launch: LaunchWords) -> str:
        """Return the experiment's name: -J, or that of the program."""
        *_, last = launch.entry
        is_module = launch.entry[-2:-1] == ["-m"]
        own = last.rpartition(".")[2] if is_module else PurePath(last).name.partition(".")[0]
        name = plain_name(given or own)
        if given not in (None, name):
            self.notes.append(f"name is {name}: {shortened(str(given), 60)} cannot be one")
        return name

    def _arguments(self, launch: LaunchWords) -> dict[str, Any]:
        """Return ``args``, ``config`` and ``flags`` that make the program's words again."""
        words, text = launch.args, program_text(launch.entry[-1], _MOST_READ) or ""
        flags = frozenset(found[1] for found in _FLAG.finditer(text))
        # Options at the end can be config; what stands before them are args, which come first.
        for split in range(_kept_in_order(words), len(words) + 1):
            # Behind a `--` config would not stay where it was typed.
            is_end = split == len(words) or "--" in words[:split]
            split = len(words) if is_end else split
            found = _config_of(words[split:], flags)
            if found is not None:
                break
        assert found is not None
        config, style = found
        if not config and HYDRA.search(text):
            style = command_line.HYDRA
        for name, value in config.items():
            if isinstance(value, str) and _NUMBERS.fullmatch(value):
                self.notes.append(f"{value} is one text; --sweep {name}={value} sweeps over it")
        self._check_swept(config, words[split:])
        self._add_swept(config, style)
        values = {"args": words[:split], "config": config, "flags": style}
        if style == command_line.EQUALS or not config:
            del values["flags"]
        return {name: value for name, value in values.items() if value}

    def _check_swept(self, config: Mapping[str, Any], words: Sequence[str]) -> None:
        """Raise UsageError if a swept value would take the place of more than a value."""
        for one in self.sweeps:
            name, _, values = one.partition("=")
            name = name.removeprefix("config.")
            typed = config.get(name)
            switches = {"true", "false"} & {value.strip().lower() for value in values.split(",")}
            is_more = isinstance(typed, list) or (switches and not isinstance(typed, bool))
            if name not in config or typed is None or not is_more:
                continue
            shown = shlex.join(map(str, typed if isinstance(typed, list) else [typed]))
            raise UsageError(
                f"--sweep {one}: --{name} is followed by {shown}, of which a swept value would "
                "take the place",
                hint="arguments stand before the options: "
                f"{shlex.join(_positional_first(words, name))}",
            )

    def _add_swept(self, config: dict[str, Any], style: str) -> None:
        """Add swept keys that are neither options that were typed nor keys of a spec."""
        is_hydra = style == command_line.HYDRA
        keys = ShortKeys(Tree({"config": config}))
        for one in self.sweeps:
            name = one.partition("=")[0].removeprefix("config.")
            key = tuple(name.split("."))
            typed = f"--{name}" in [word.partition("=")[0] for word in self.program]
            if not all(map(_NAME.fullmatch, key)) or (key[1:] and not is_hydra) or typed:
                continue
            if has_key(Tree({"config": config}), ("config", *key)) or keys.knows(key):
                continue
            block = config
            for one in key[:-1]:
                block = block.setdefault(one, {})
            block[key[-1]] = None
            word = f"{name}=…" if is_hydra else f"--{name}"
            self.notes.append(f"config.{name} is added, as it is swept: the program gets {word}")


def whole_text(made: TypedSpec, overrides: Sequence[str], sweeps: Sequence[str]) -> str:
    """Return a typed spec's text with what was typed beside the program, which it compiled with."""
    directory, unread = Path.cwd(), Problems()
    tree = Tree({})
    for name, value in made.values.items():
        tree = Tree(nest(tuple(name.split(".")), value)).over(tree)
    keys = ShortKeys(tree)
    for one in compose.parse_overrides(overrides, directory, unread):
        tree = (one if one.adds else one.at(keys.full(one.key))).value.over(tree)
    grid = {}
    for text in sweeps:
        name, _, listed = text.partition("=")
        given = sweep_values.parse_typed(listed, name, directory, unread)
        grid[dotted(keys.full(tuple(name.strip().split("."))))] = given and given.data["value"]
    if grid:
        tree = Tree({"sweep": {"grid": grid}}).over(tree)
    values: dict[str, Any] = {}
    for top, value in tree.data.items():
        is_block = isinstance(value, dict) and top != "config"
        values |= {f"{top}.{one}": value[one] for one in value} if is_block else {top: value}
    return "".join(f"{line}\n" for line in SpecText(values).lines())


def _positional_first(words: Sequence[str], name: str) -> list[str]:
    """Return the words with what follows an option's first value, or its switch, before all."""
    at = words.index(f"--{name}") + 1
    end = at
    while end < len(words) and not words[end].startswith("--"):
        end += 1
    begin = at if end - at == 1 else at + 1
    return [*words[begin:end], *words[:begin], *words[end:]]


def _kept_in_order(words: Sequence[str]) -> int:
    """Return how many words stay where they were typed: up to the last whose place counts.

    That is a file of other options, which those behind it change, and an option with its opposite.
    """
    kept = 0
    seen: dict[str, str] = {}
    for at, word in enumerate(words):
        name, equals, _ = word[2:].partition("=")
        if word[:2] != "--":
            continue
        base = re.sub(r"^no[-_]", "", name)
        if seen.setdefault(base, name) != name:
            kept = at + 1
        elif _OF_OPTIONS.fullmatch(name):
            has_value = not equals and at + 1 < len(words) and words[at + 1][:2] != "--"
            kept = at + 1 + has_value
    return kept


def _literal(value: Any) -> Any:
    """Return words of a program's as a spec has them, in which ``${`` asks for another value.

    hpcrun's own ``${hpcrun:…}`` stays one.
    """

    def literal(_key: Key, one: Any) -> Any:
        is_text = isinstance(one, str)
        return _REFERENCE.sub(lambda found: found[1] * 2 + r"\${", one) if is_text else one

    return map_leaves(literal, value)


def _check_program(written: str) -> None:
    """Raise UsageError if a program is not there, or is a script for sbatch."""
    path = expand_home(written)
    if not is_there(path.is_file):
        near = (str(path.with_name(one.name)) for one in path.parent.glob(f"*{path.suffix}"))
        raise UsageError(
            f"there is no program {written!r}",
            hint=nearest_file(written, sorted(near)) or "type its path from this directory",
        )
    if path.suffix == PYTHON:
        return
    head = b""
    try:
        head = files.read_bytes(path, _MOST_READ)
    except (OSError, ValueError) as error:
        raise UsageError(f"{written} cannot be read: {error}") from None
    if path.suffix in SCRIPTS or re.search(rb"^#SBATCH\s", head, re.MULTILINE):
        raise UsageError(
            f"{written} is a script for sbatch, whose lines are no program's",
            hint=f"hpcrun init --from {shlex.quote(written)} makes a spec of it",
        )


def _config_of(words: Sequence[str], flags: Set[str]) -> tuple[dict[str, Any], str] | None:
    """Return config and the style of flags that make exactly these words; None where none do."""
    styles: list[tuple[str, Mapping[str, Any] | None]] = [
        (command_line.EQUALS, _of_equals(words)),
        (command_line.WORDS, _of_words(words, flags)),
        (command_line.HYDRA, _of_hydra(words)),
    ]
    for style, config in styles:
        if config is None:
            continue
        problems = Problems()
        made = command_line.flags_of(config, style, Reporter(Tree({}), problems))
        if made == [*words] and not problems:
            return dict(config), style
    return None


def _of_equals(words: Iterable[str]) -> dict[str, Any] | None:
    """Return ``--key=value`` and ``--key`` by their keys; None where others are among them."""
    config: dict[str, Any] = {}
    for word in words:
        name, equals, value = word[2:].partition("=")
        if word[:2] != "--" or not _NAME.fullmatch(name) or name in config:
            return None
        config[name] = _value(value) if equals else True
    return config


def _of_words(words: Iterable[str], flags: Set[str]) -> dict[str, Any] | None:
    """Return ``--key value …`` and ``--key`` by their keys; None where others are among them."""
    found: dict[str, list[Any]] = {}
    name = ""
    for word in words:
        if word[:2] == "--":
            name = word[2:]
            if not _NAME.fullmatch(name) or name in found:
                return None
            found[name] = []
        elif not name or name in flags or re.match(r"-[A-Za-z]", word):
            return None
        else:
            found[name].append(_value(word))
    return {name: (one if one[1:] else one[0]) if one else True for name, one in found.items()}


def _of_hydra(words: Iterable[str]) -> dict[str, Any] | None:
    """Return Hydra's ``key=value`` as nested keys; None where others are among them."""
    config: dict[str, Any] = {}
    for word in words:
        if not _HYDRA.fullmatch(word) or word[0] == "+":
            return None
        name, _, value = word.partition("=")
        *above, last = name.split(".")
        block = config
        for one in above:
            block = block.setdefault(one, {})
            if not isinstance(block, dict):
                return None
        if last in block:
            return None
        block[last] = _value(value)
    return config


def _value(text: str) -> Any:
    """Return a number where Python writes it as it was typed; else the text."""
    for kind in (int, float):
        try:
            if str(number := kind(text)) == text and number - number == 0:
                return number
        except ValueError:
            continue
    return text
