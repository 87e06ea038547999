"""Finds what a spec's ``entry`` names, without importing any of it."""

from __future__ import annotations

import ast
import functools
import math
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from hpcrun.compile.source import git
from hpcrun.compile.source.marked_tree import Key, Tree
from hpcrun.compile.source.problems import Problems, did_you_mean, listing
from hpcrun.state.plan import Entry

FORMS = (
    "a script (train.py), a function (package.module:function or path/file.py:function), or a "
    "command as a list ([python, train.py])"
)
_FLAG = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_COMMAND = re.compile(r"^(?:\S*/)?(?:python[0-9.]*|bash|sh|torchrun|deepspeed|srun)\s")
_KEY: Key = ("entry",)


@dataclass(frozen=True)
class Located:
    """An entry before its arguments, and the code that it belongs to.

    Attributes
    ----------
    kind
        ``function``, ``script`` or ``command``.
    module, function
        Of a function.
    file
        The file it was found in; None for a command or a function that is installed.
    import_root
        The directory that the module is imported from; None when it is installed.
    """

    kind: str
    module: str | None = None
    function: str | None = None
    file: Path | None = None
    import_root: Path | None = None


def locate(
    entry: Any,
    directory: Path,
    root: Path | None,
    python: str | None,
    tree: Tree,
    problems: Problems,
) -> Located | None:
    """Find the entry; None after a mistake was noted.

    Parameters
    ----------
    entry
        The spec's ``entry``.
    directory
        What its paths are relative to.
    root
        ``code.root``, also searched for modules; None for the checkout.
    python
        The job's Python, whose installed packages are searched too.
    """
    if not entry:
        problems.at(tree, _KEY, f"is missing; accepted is {FORMS}")
        return None
    if isinstance(entry, list):
        if not entry[0].strip():
            problems.at(tree, _KEY, f"the command is empty; accepted is {FORMS}")
            return None
        return Located("command")
    target, colon, function = entry.rpartition(":")
    if not colon:
        if entry.endswith(".py") and not _COMMAND.search(entry):
            return _script(entry, directory, tree, problems)
        hint = "write the command as a list" if " " in entry else None
        if _DOTTED.fullmatch(entry):
            hint = f"add the function: {entry}:main"
        problems.at(tree, _KEY, f"found {entry!r}; accepted is {FORMS}", hint)
        return None
    if not function.isidentifier() or not target:
        problems.at(tree, _KEY, f"found {entry!r}; accepted is {FORMS}")
        return None
    if target.endswith(".py") or "/" in target:
        return _in_file(target, function, directory, tree, problems)
    if not _DOTTED.fullmatch(target):
        problems.at(tree, _KEY, f"found {entry!r}; accepted is {FORMS}")
        return None
    return _in_module(target, function, directory, root, python, tree, problems)


def finish(
    located: Located,
    root: Path,
    entry: Any,
    config: dict[str, Any],
    args: list[str],
    tree: Tree,
    problems: Problems,
) -> Entry:
    """The plan's entry: paths relative to the code root, and the arguments."""
    if located.kind == "command":
        return Entry("command", argv=(*entry, *args))
    if located.kind == "script":
        assert located.file is not None
        flags = flags_of(config, tree, problems)
        return Entry("script", file=_relative(located.file, root), argv=(*flags, *args))
    if args:
        problems.at(
            tree, ("args",), "a function takes no arguments", "put them in config: session.config"
        )
    import_root = located.import_root
    return Entry(
        "function",
        module=located.module,
        function=located.function,
        import_root=None if import_root is None else _relative(import_root, root),
    )


@functools.cache
def _relative(path: Path, root: Path) -> str:
    return os.path.relpath(path, root)


def flags_of(config: dict[str, Any], tree: Tree, problems: Problems) -> list[str]:
    """A script's flags: ``--key=value``; true is bare, false and null are left out."""
    flags: list[str] = []
    for name, value in config.items():
        key = ("config", name)
        if not _FLAG.fullmatch(name):
            problems.at(tree, key, f"{name!r} cannot be the name of a flag", "use 'args'")
        elif value is None or value is False:
            continue
        elif value is True:
            flags.append(f"--{name}")
        elif isinstance(value, dict):
            problems.at(tree, key, "a nested mapping cannot be the flag of a script", "use 'args'")
        elif isinstance(value, list):
            words = [_word(item) for item in value]
            if any(word is None or "," in word for word in words):
                problems.at(
                    tree,
                    key,
                    "a list becomes --key=a,b: accepted are plain values, no commas",
                    "use 'args'",
                )
            else:
                flags.append(f"--{name}=" + ",".join(word for word in words if word is not None))
        else:
            flags.append(f"--{name}={_word(value)}")
    return flags


def _word(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, (str, int, float)) else None


def code_root(
    configured: Path | None, directory: Path, located: Located, tree: Tree, problems: Problems
) -> Path:
    """The directory that is frozen at submission.

    ``code.root``, else the git checkout that holds the entry and the spec unless it ignores the
    entry, else the spec's directory, or the entry's where that is outside it.
    """
    file = located.file if located.import_root is not None or located.kind == "script" else None
    if configured is not None:
        if file is not None and not file.is_relative_to(configured):
            problems.at(tree, ("code", "root"), f"{configured} does not contain the entry, {file}")
        return configured
    anchor = file or directory
    checkout = git.top_level(anchor if anchor.is_dir() else anchor.parent)
    if checkout is not None and (file is None or not git.is_ignored(file, checkout)):
        return checkout
    root = directory if file is None or file.is_relative_to(directory) else file.parent
    if located.import_root is not None and not located.import_root.is_relative_to(root):
        root = located.import_root
    if root in (Path(root.anchor), Path.home()):
        problems.at(
            tree,
            ("code", "root"),
            f"the code to freeze would be all of {root}",
            "put the experiment in a directory of its own, or set code.root",
        )
    return root


def _script(entry: str, directory: Path, tree: Tree, problems: Problems) -> Located | None:
    path = Path(os.path.normpath(directory / Path(entry).expanduser()))
    if not path.is_file():
        _missing_file(path, entry, tree, problems)
        return None
    return Located("script", file=path)


def _in_file(
    target: str, function: str, directory: Path, tree: Tree, problems: Problems
) -> Located | None:
    name = target if target.endswith(".py") else f"{target}.py"
    path = Path(os.path.normpath(directory / Path(name).expanduser()))
    if not path.is_file():
        _missing_file(path, name, tree, problems)
        return None
    if not path.stem.isidentifier():
        problems.at(
            tree,
            _KEY,
            f"{path.name} cannot be imported: {path.stem!r} is no Python name",
            "rename the file, or run it as a script",
        )
        return None
    if not _check_function(path, function, tree, problems):
        return None
    return Located("function", path.stem, function, path, path.parent)


def _in_module(
    module: str,
    function: str,
    directory: Path,
    root: Path | None,
    python: str | None,
    tree: Tree,
    problems: Problems,
) -> Located | None:
    checkout = git.top_level(directory)
    roots = list(dict.fromkeys(path for path in (directory, root, checkout) if path))
    relative = Path(*module.split("."))
    for base in roots:
        for path in (base / f"{relative}.py", base / relative / "__init__.py"):
            if path.is_file():
                fine = _check_function(path, function, tree, problems)
                return Located("function", module, function, path, base) if fine else None
    found, origin = _installed(module, python)
    if found:
        if origin is not None and not _check_function(origin, function, tree, problems):
            return None
        return Located("function", module, function)
    near = {
        ".".join([*module.split(".")[:-1], name])
        for base in roots
        for name in _modules(base / relative.parent)
    }
    problems.at(
        tree,
        _KEY,
        f"there is no module {module!r} in {listing(map(str, roots))}, nor is it installed",
        did_you_mean(module, sorted(near)),
    )
    return None


def _installed(module: str, python: str | None) -> tuple[bool, Path | None]:
    places: list[str] | None = [place for place in sys.path if place and place != str(Path.cwd())]
    if python and os.sep in python and os.path.realpath(python) != os.path.realpath(sys.executable):
        libraries = Path(python).parent.parent.glob("lib*/python3*/site-packages")
        places = [*map(str, sorted(libraries)), *(places or [])]
    parts = module.split(".")
    for index in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: index + 1]), places)
        if spec is None:
            return False, None
        if index == len(parts) - 1:
            is_source = spec.origin is not None and spec.origin.endswith(".py")
            return True, Path(str(spec.origin)) if is_source else None
        if spec.submodule_search_locations is None:
            return False, None
        places = list(spec.submodule_search_locations)
    return False, None


def _check_function(path: Path, function: str, tree: Tree, problems: Problems) -> bool:
    try:
        module = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        problems.at(tree, _KEY, f"{path}, line {error.lineno}: Python syntax error: {error.msg}")
        return False
    except (OSError, ValueError) as error:
        problems.at(tree, _KEY, f"{path} cannot be read: {error}")
        return False
    names = set(_names(module.body))
    if function in names or "*" in names:
        return True
    public = sorted(name for name in names if not name.startswith("_"))
    hint = did_you_mean(function, sorted(names))
    problems.at(
        tree, _KEY, f"{path} has no {function!r}; it has {listing(public, 12) or 'nothing'}", hint
    )
    return False


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
            yield from _names(node.body)
            yield from _names(getattr(node, "orelse", []))
            yield from _names(getattr(node, "finalbody", []))
            for handler in getattr(node, "handlers", []):
                yield from _names(handler.body)


def _modules(directory: Path) -> list[str]:
    if not directory.is_dir():
        return []
    found = [path for path in directory.iterdir() if path.suffix == ".py" or path.is_dir()]
    return [path.stem for path in found if path.stem.isidentifier()]


def _missing_file(path: Path, written: str, tree: Tree, problems: Problems) -> None:
    siblings = []
    if path.parent.is_dir():
        siblings = sorted(found.name for found in path.parent.iterdir() if found.suffix == ".py")
    hint = did_you_mean(path.name, siblings) or (
        f"there are {listing(siblings, 8)}" if siblings else None
    )
    problems.at(tree, _KEY, f"there is no file {written!r} in {path.parent}", hint)
