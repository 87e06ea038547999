"""The relative paths that runs name and that are here: in arguments, configuration and program.

`of_runs` tells those of arguments, ``config`` and variables, `ProgramPaths` those that stand in the
programs themselves, in the modules of the code that they import and in files of settings that the
arguments name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcrun.compile.target.entry import MOST_PARSED
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.state import files
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.state.role_plan import ROLES
from hpcrun.submission.code import path_literals

_MOST_PATHS, _MOST_FILES, _MOST_SETTINGS, _MOST_PARTS = 20_000, 150, 100, 200
# Of programs, so many bytes are looked through, which takes a second or two.
_MOST_BYTES = 400_000
_SETTINGS = (".yaml", ".yml", ".json", ".toml", ".cfg", ".ini")
# Of a file that is no Python, or too much of it.
_UNREADABLE = (OSError, ValueError, SyntaxError, RecursionError, MemoryError)
_SHELL = (".sh", ".bash", ".sbatch", ".slurm")
_ARGUMENTS = "args"
_WITH_TEXT = (str, Mapping, list, tuple)
# A block, and the key or the objects in it.
_Place = tuple[Any, ...]


@dataclass
class NamedPath:
    """A path that is here, relative to the root of the code (``..`` where it lies outside)."""

    path: str
    place: Path
    """Where it is here."""
    where: str
    """``args``, ``config.data``, ``train.py:12``."""
    runs: set[int] = field(default_factory=set)
    """The runs that name it; empty for all."""


def of_runs(plan: Plan) -> dict[str, NamedPath]:
    """Return what arguments, ``config`` and ``environment.variables`` name to be read, by path."""
    found: dict[str, NamedPath] = {}
    base = plan.place("")
    seen: dict[tuple[str, str], NamedPath | None] = {}
    # Runs of a sweep share most values, as the same objects: each is looked at once.
    shared: dict[_Place, list[NamedPath]] = {}
    for run in plan.runs:
        for place, value in _values(run):
            if place in shared:
                for named in shared[place]:
                    named.runs.add(run.number)
                continue
            shared[place] = []
            for where, key, text in _texts(run, place, value):
                if (key, text) not in seen:
                    if len(seen) == _MOST_PATHS:
                        return found
                    seen[key, text] = None
                    if (path := _here(base, key, text)) and (inside := plan.inside(path)) != ".":
                        seen[key, text] = NamedPath(inside, base / path, where)
                if (one := seen[key, text]) is not None:
                    named = found.setdefault(one.path, one)
                    named.runs.add(run.number)
                    shared[place].append(named)
    return found


def _values(run: RunPlan) -> Iterator[tuple[_Place, Any]]:
    """Yield a run's values that may hold texts, each with what is equal where another run has it.

    The arguments, which are made of several, come first.
    """
    spec = run.spec
    yield (_ARGUMENTS, *(id(spec.get(key)) for key in ("entry", "args", ROLES))), None
    variables = (spec.get("environment") or {}).get("variables") or {}
    for block, values in (("config", run.config), ("environment.variables", variables)):
        for name, value in values.items():
            if isinstance(value, _WITH_TEXT):
                yield (block, name, id(value)), value


def _texts(run: RunPlan, place: _Place, value: Any) -> Iterator[tuple[str, str, str]]:
    """Yield where the texts of a value stand, their keys, and what may be paths in them."""
    block, name, *_ = place
    if block == _ARGUMENTS:
        entry = run.spec.get("entry")
        words = [*(entry if isinstance(entry, list) else ()), *(run.spec.get("args") or ())]
        words += itertools.chain.from_iterable(
            role.entry.argv for role in run.role_plans if role.entry is not None
        )
        for key, text in path_literals.in_words(map(str, words)):
            yield _ARGUMENTS, key, text
        return
    for full, text in _strings(f"{block}.{name}", value):
        for key, piece in path_literals.in_word(text, full[len(block) + 1 :]):
            yield full, key, piece


def _strings(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts at and below a key, those of lists under the key of the list."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _strings(f"{key}.{name}", inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(key, inner)


def _here(base: Path, key: str, text: str) -> str | None:
    """Return the path in a text, seen from ``base``, if it is here and seems to be read."""
    path = path_literals.clean(text)
    if path is None or (key and path_literals.is_bare(path) and not path_literals.says_path(key)):
        return None
    return path if _is_read(base / path, key, path) else None


def _is_read(place: Path, key: str, path: str) -> bool:
    """Check whether a path is here, and not one that the program writes."""
    try:
        is_there, is_directory = place.exists(), place.is_dir()
    except (OSError, ValueError):
        return False
    return is_there and not path_literals.is_output(key, path, is_directory=is_directory)


class ProgramPaths:
    """The files of a plan's programs, each read once, from the entries on.

    Of interest are paths outside the code and those that have to do with ``left_out``: a file in
    which no part of their names stands is not looked through.
    """

    def __init__(self, plan: Plan, left_out: Collection[str]) -> None:
        self._plan, self._root = plan, Path(plan.code_root)
        parts = sorted({part for path in left_out for part in path.split("/")})
        some = "|".join(map(re.escape, parts)) if len(parts) <= _MOST_PARTS else r"[^\s\"'/]+"
        self._of_interest = re.compile(rf"[\"'/](?:\.\.|{some})[\"'/]|config_path")
        self._bytes = 0
        self._listings: dict[str, frozenset[str]] = {}
        self._waiting: deque[str] = deque()
        self._read: set[str] = set()
        self._literals: list[tuple[str, path_literals.PathLiteral]] = []
        self._written: set[str] = set()
        self._given: set[str] = set()

    def find(self) -> tuple[dict[str, NamedPath], set[str]]:
        """Return what they name to be read, by path, and the files that were read."""
        self._begin()
        while self._waiting and len(self._read) < _MOST_FILES and self._bytes < _MOST_BYTES:
            file = self._waiting.popleft()
            if file not in self._read:
                self._read.add(file)
                with contextlib.suppress(*_UNREADABLE):
                    self._take(file, files.read_bytes(self._root / file, MOST_PARSED))
        found: dict[str, NamedPath] = {}
        for file, one in self._literals:
            path = path_literals.clean(one.text)
            if path is None or path in self._written or (one.option and one.key in self._given):
                continue
            for inside in self._places(file, path, anchored=one.is_anchored):
                place = self._root / inside
                if inside != "." and _is_read(place, one.key, path):
                    found.setdefault(inside, NamedPath(inside, place, f"{file}:{one.line}"))
        return found, self._read

    def _begin(self) -> None:
        for shape in {id(run.entry): run for run in self._plan.runs[:_MOST_SETTINGS]}.values():
            entries = [shape.entry, *(role.entry for role in shape.role_plans if role.entry)]
            for entry in entries:
                self._given |= {
                    _option(word) for word in entry.argv if "=" in word or word[:1] == "-"
                }
                if entry.module and entry.import_root is not None:
                    self._add_module(entry.import_root, entry.module)
                if entry.file:
                    self._add(entry.file)
                for before, word in itertools.pairwise(["", *entry.argv]):
                    if before == "-m":
                        self._add_module(self._plan.directory, word)
                    elif word.endswith((".py", *_SETTINGS, *_SHELL)):
                        self._add(self._plan.inside(word.rpartition("=")[2]))

    def _add(self, file: str) -> None:
        if not file.startswith("..") and (self._root / file).is_file():
            self._waiting.append(file)

    def _add_module(self, base: str, module: str) -> None:
        name = os.path.normpath(f"{base}/{module.replace('.', '/')}")
        above, _, last = name.rpartition("/")
        if f"{last}.py" in self._names(above):
            self._waiting.append(f"{name}.py")
        elif "__init__.py" in self._names(name):
            self._waiting.append(f"{name}/__init__.py")

    def _names(self, directory: str) -> frozenset[str]:
        """Return the names in a directory of the code; none where it is no such."""
        if directory not in self._listings:
            names: Iterable[str] = ()
            above, _, last = directory.rpartition("/")
            if not directory or (not directory.startswith("..") and last in self._names(above)):
                with contextlib.suppress(OSError):
                    names = os.listdir(self._root / directory)  # noqa: PTH208 - names alone
            self._listings[directory] = frozenset(names)
        return self._listings[directory]

    def _add_settings(self, file: str, literal: path_literals.PathLiteral) -> None:
        """Have the YAML files of a directory read that the program names as Hydra's."""
        path = path_literals.clean(literal.text)
        words = path_literals.words_of(f"{literal.key} {path}")
        if path is None or words.isdisjoint(("config", "configs", "conf")):
            return
        for place in self._places(file, path, anchored=True):
            if not place.startswith("..") and (self._root / place).is_dir():
                every = itertools.islice((self._root / place).rglob("*.yaml"), _MOST_SETTINGS)
                self._waiting.extend(one.relative_to(self._root).as_posix() for one in every)

    def _take(self, file: str, source: bytes) -> None:
        text = source.decode(errors="replace")
        if not file.endswith(".py"):
            self._take_text(file, text)
            return
        if self._of_interest.search(text):
            self._bytes += len(source)
            found = path_literals.read(source)
            self._literals += [(file, one) for one in found.literals]
            self._written |= {path_literals.clean(text) or "" for text in found.written}
            for one in found.literals:
                self._add_settings(file, one)
        above = os.path.dirname(file)  # noqa: PTH120 - relative, as text
        for level, module in path_literals.imports(text):
            base = above
            for _ in range(level - 1):
                base = os.path.dirname(base)  # noqa: PTH120
            for place in (base,) if level else (above, self._plan.directory, ".", "src"):
                self._add_module(place or ".", module)

    def _take_text(self, file: str, text: str) -> None:
        """Take the words of a shell's script or of settings; a program that it starts is read."""
        for line, key, word in path_literals.in_text(text):
            if word.endswith((".py", *_SHELL)):
                self._add(self._plan.inside(word))
            is_named = not path_literals.is_bare(word) or path_literals.says_path(key)
            if is_named:
                self._literals.append((file, path_literals.PathLiteral(word, line, key)))

    def _places(self, file: str, path: str, *, anchored: bool) -> Iterable[str]:
        """Return where a path may lie: seen from where the program starts, or lies and its root."""
        bases = [self._plan.directory]
        if anchored or not file.endswith(".py"):
            bases += [os.path.dirname(file), "."]  # noqa: PTH120
        return dict.fromkeys(os.path.normpath(f"{base or '.'}/{path}") for base in bases)


def _option(word: str) -> str:
    """Return the name of an option as its variable is called: ``--data-dir=x``: ``data_dir``."""
    return word.lstrip("-").partition("=")[0].replace("-", "_")
