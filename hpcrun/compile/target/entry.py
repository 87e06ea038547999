"""Finds the code that a spec's ``entry`` names, without importing any of it."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import os
import re
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from hpcrun.compile.source import git, limits
from hpcrun.compile.source.marked_tree import Key, Reporter
from hpcrun.compile.source.problems import did_you_mean, listing
from hpcrun.compile.target.command_line import EQUALS, arguments
from hpcrun.host import expand_home, is_there
from hpcrun.policy import frameworks, resume
from hpcrun.shared_dataclass import dataclass
from hpcrun.state import files
from hpcrun.state.plan import Entry
from hpcrun.state.spec.run_blocks import Progress

FORMS = (
    "a script (train.py), a function (package.module:function or path/file.py:function), or a "
    "command as a list ([python, train.py])"
)
# A larger file is not parsed: an f-string takes the square of its length, and a kB takes one MB.
MOST_PARSED = 200_000
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_PLAIN = re.compile(r"-{0,2}[A-Za-z/.][\w./=-]*", re.ASCII)
SHELL_SIGNS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"}
"""Words that only a shell reads."""
_COMMAND = re.compile(r"^(?:\S*/)?(?:python[0-9.]*|bash|sh|torchrun|deepspeed|srun)\s")


def program_text(program: str | Path, most: int = MOST_PARSED) -> str | None:
    """Return the text of a program's file of at most ``most`` bytes; None if it cannot be read."""
    try:
        return files.read_bytes(expand_home(str(program)), most).decode(errors="replace")
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class LocatedEntry:
    """An entry before its arguments, and the code that it belongs to."""

    kind: str
    """``function``, ``script`` or ``command``."""
    # Of a function; otherwise None.
    module: str | None = None
    function: str | None = None
    file: Path | None = None
    """The file it was found in; None for a command or a function that is installed."""
    import_root: Path | None = None
    """The directory that the module is imported from; None when it is installed."""


def locate(
    entry: Any, directory: Path, root: Path | None, python: str | None, report: Reporter
) -> LocatedEntry | None:
    """Find the entry, with paths relative to ``directory``; None after a problem.

    Modules are looked for in ``root``, which is ``code.root``, and in the packages of the job's
    ``python`` too.
    """
    if not entry or (isinstance(entry, str) and not entry.strip()):
        report.at("entry", f"is missing; accepted is {FORMS}")
        return None
    if isinstance(entry, list):
        if _is_script(entry[0]) and is_there((directory / entry[0]).is_file):
            found = f"found a list that begins with a script, {entry[0]}, which is no program"
            report.at("entry", found, _advice(entry))
            return None
        has_blank = " " in entry[0].strip() and not is_there((directory / entry[0]).exists)
        if has_blank or entry[0] == "-m":
            found = f"the command's first word is {entry[0]!r}; accepted is a program alone"
            report.at("entry", found, _advice([*entry[0].split(), *entry[1:]]))
            return None
        if entry[0].strip():
            return LocatedEntry("command")
        report.at("entry", f"the command is empty; accepted is {FORMS}")
        return None
    target, colon, function = entry.rpartition(":")
    hint = None
    if not colon:
        if entry.endswith(".py") and not (_COMMAND.search(entry) or SHELL_SIGNS & {*entry.split()}):
            path = _file(entry, directory, report)
            return LocatedEntry("script", file=path) if path else None
        hint = _meant(entry, directory)
    elif function.isidentifier() and target:
        if target.endswith(".py") or "/" in target:
            return _in_file(target, function, directory, report)
        if _DOTTED.fullmatch(target):
            places = (directory, root, git.top_level(directory))
            roots = list(dict.fromkeys(path for path in places if path))
            return _in_module(target, function, roots, python, report)
    report.at("entry", f"found {entry!r}; accepted is {FORMS}", hint)
    return None


def _is_script(word: str) -> bool:
    return word.endswith(".py") and "/" not in word


def _meant(entry: str, directory: Path) -> str | None:
    """Return the hint for an entry that is no script, no function and no list."""
    if " " in entry:
        return _advice(entry.split())
    if entry.endswith(".ipynb"):
        return f"`jupyter nbconvert --to script {entry}` makes a script of it: its name, with .py"
    if is_there((directory / f"{entry}.py").is_file):
        return f"did you mean '{entry}.py'? For a function of it, add the function: {entry}:main"
    if entry.endswith((".sh", ".bash")) or is_there((directory / entry).is_file):
        return _advice(["bash" if entry.endswith("sh") else "PROGRAM", entry])
    module = entry.strip("/").replace("/", ".")
    if is_there((directory / module.replace(".", "/")).is_dir):
        return f"add the module and the function, {module}.MODULE:main, or {_as_module(module)}"
    if not _DOTTED.fullmatch(entry):
        return None
    return f"add the function: {entry}:main; or {_as_module(entry)}"


def _as_module(name: str) -> str:
    return f"as `python -m` runs it: [python, -m, {name}]"


def _advice(words: list[str]) -> str:
    """Return what to write of a command: a script has its arguments in ``args``."""
    if SHELL_SIGNS & {*words}:
        return f"write it for a shell: [sh, -c, {json.dumps(' '.join(words))}]"
    words = ["python", *words] if words[0] == "-m" else words
    shown = [json.dumps(one) if not _PLAIN.fullmatch(one) else one for one in words]
    if not _is_script(words[0]):
        return f"write the command as a list: [{', '.join(shown)}]"
    args = f" and args: [{', '.join(shown[1:])}]" if shown[1:] else ""
    return f"write entry: {words[0]}{args}"


def finish(
    located: LocatedEntry,
    root: Path,
    spec: dict[str, Any],
    config: Any,
    report: Reporter,
    referred: Collection[Key] = (),
    framework: str = frameworks.NONE,
    recipe: str | None = None,
) -> tuple[Entry, tuple[str, ...]]:
    """Return the plan's entry, with paths relative to the code root, and its identity's arguments.

    A command refers to the keys ``referred`` of ``config``; ``recipe`` is how the entry resumes, if
    that was detected.
    """
    if located.kind != "function":
        found = arguments(located.kind, spec, config, report, referred, recipe)
        file = None if located.file is None else _relative(located.file, root)
        entry = Entry(
            located.kind,
            file=file,
            argv=found.argv,
            framework=framework,
            resumed=found.resumed,
            recipe=recipe,
        )
        return entry, found.identity
    if spec["args"]:
        report.at("args", "a function takes no arguments", "put them in config: session.config")
    if spec["flags"] != EQUALS:
        report.at("flags", "a function takes no flags: its config is session.config")
    if spec["recovery"]["resume"] not in (None, resume.NONE):
        report.at("recovery.resume", "a function goes on by session.restore", "leave it out")
    for key in given_progress(spec):
        unused = "is not used: a function's steps, metrics and saves are those of its session"
        report.at(f"progress.{key}", unused, "leave it out")
    base = located.import_root
    import_root = None if base is None else _relative(base, root)
    function = Entry(
        "function",
        module=located.module,
        function=located.function,
        import_root=import_root,
        framework=framework,
    )
    return function, ()


def given_progress(spec: dict[str, Any]) -> list[str]:
    """Return the keys of ``progress`` that a spec sets to something else than their defaults."""
    usual = vars(Progress())
    return [key for key, value in spec["progress"].items() if value != usual[key]]


@functools.cache
def _relative(path: Path, root: Path) -> str:
    return os.path.relpath(path, root)


def code_root(
    configured: Path | None, directory: Path, located: LocatedEntry, report: Reporter
) -> Path:
    """Return the directory that is frozen at submission.

    ``code.root``, else the git checkout that holds the entry and the spec unless it ignores the
    entry, else the spec's directory, or the entry's where that is outside it.
    """
    file = located.file if located.import_root is not None or located.kind == "script" else None
    if configured is not None:
        if file is not None and not file.is_relative_to(configured):
            report.at("code.root", f"{configured} does not contain the entry, {file}")
        if configured == Path(configured.anchor):
            hint = "name the directory of the program"
            report.at("code.root", f"the code to freeze would be all of {configured}", hint)
        return configured
    anchor = file or directory
    checkout = git.top_level(anchor if anchor.is_dir() else anchor.parent)
    if checkout is not None and (file is None or not git.is_ignored(file, checkout)):
        return checkout
    root = directory if file is None or file.is_relative_to(directory) else file.parent
    if located.import_root is not None and not located.import_root.is_relative_to(root):
        root = located.import_root
    if root in (Path(root.anchor), Path.home()):
        hint = "put the experiment in a directory of its own, or set code.root"
        report.at("code.root", f"the code to freeze would be all of {root}", hint)
    return root


def _file(written: str, directory: Path, report: Reporter) -> Path | None:
    path = Path(os.path.normpath(directory / expand_home(written)))
    if is_there(path.is_file):
        return path
    report.no_file("entry", written, path, "*.py")
    return None


def _in_file(target: str, function: str, directory: Path, report: Reporter) -> LocatedEntry | None:
    path = _file(target if target.endswith(".py") else f"{target}.py", directory, report)
    if path is None:
        return None
    if not path.stem.isidentifier():
        found = f"{path.name} cannot be imported: {path.stem!r} is no Python name"
        report.at("entry", found, "rename the file, or run it as a script")
        return None
    if not _check_function(path, function, report):
        return None
    return LocatedEntry("function", path.stem, function, path, path.parent)


def _in_module(
    module: str, function: str, roots: list[Path], python: str | None, report: Reporter
) -> LocatedEntry | None:
    relative = Path(*module.split("."))
    for base in roots:
        for path in (base / f"{relative}.py", base / relative / "__init__.py"):
            if is_there(path.is_file):
                fine = _check_function(path, function, report)
                return LocatedEntry("function", module, function, path, base) if fine else None
    installed, origin = _installed(module, python)
    if installed:
        fine = origin is None or _check_function(origin, function, report)
        return LocatedEntry("function", module, function) if fine else None
    near = {
        ".".join([*module.split(".")[:-1], name])
        for base in roots
        for name in _modules(base / relative.parent)
    }
    found = f"there is no module {module!r} in {listing(map(str, roots))}, nor is it installed"
    report.at("entry", found, did_you_mean(module, sorted(near)))
    return None


def _installed(module: str, python: str | None) -> tuple[bool, Path | None]:
    """Return whether the job's Python has the module, and its source file, if any."""
    places: list[str] | None = [place for place in sys.path if place and place != str(Path.cwd())]
    if python and os.sep in python and os.path.realpath(python) != os.path.realpath(sys.executable):
        libraries = Path(python).parent.parent.glob("lib*/python3*/site-packages")
        places = [*map(str, sorted(libraries)), *(places or [])]
    spec = None
    for name in itertools.accumulate(module.split("."), "{}.{}".format):
        spec = PathFinder.find_spec(name, places) if places is not None else None
        if spec is None:
            return False, None
        inside = spec.submodule_search_locations
        places = list(inside) if inside is not None else None
    assert spec is not None
    is_source = spec.origin is not None and spec.origin.endswith(".py")
    return True, Path(str(spec.origin)) if is_source else None


def _check_function(path: Path, function: str, report: Reporter) -> bool:
    """Return whether a file defines or imports a function; report if it does not."""
    hint = None
    try:
        names = _names_in(files.read_bytes(path, limits.LARGEST_FILE), path, function)
    except SyntaxError as error:
        found = f"{path}, line {error.lineno}: Python syntax error: {error.msg}"
    except (RecursionError, MemoryError):
        found = f"{path} is nested too deeply to be read as Python"
    except (OSError, ValueError) as error:
        found = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
    else:
        if function in names or "*" in names:
            return True
        public = listing(sorted(name for name in names if not name.startswith("_")), 12)
        found = f"{path} has no {function!r}; it has {public or 'nothing'}"
        hint = did_you_mean(function, sorted(names))
    report.at("entry", found, hint)
    return False


def _names_in(source: bytes, path: Path, function: str) -> set[str]:
    """Return the names that a module defines; of a large one at most those that are looked for."""
    if len(source) > MOST_PARSED:
        words = {function: function, "import *": "*"}
        return {name for word, name in words.items() if word.encode() in source}
    return set(_names(ast.parse(source, str(path)).body))


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                yield from _names(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _names(handler.body)


def _modules(directory: Path) -> list[str]:
    if not is_there(directory.is_dir):
        return []
    found = [path for path in directory.iterdir() if path.suffix == ".py" or path.is_dir()]
    return [path.stem for path in found if path.stem.isidentifier()]
