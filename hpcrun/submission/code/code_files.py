"""The files of the user's code, listed by git where there is git, else by a walk."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun.compile.source import git
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.shared_dataclass import dataclass
from hpcrun.state import files
from hpcrun.state.layout import ExperimentPaths, is_archive
from hpcrun.state.plan import Entry, Plan
from hpcrun.submission.code import named_paths
from hpcrun.submission.code.frozen_code import MOST_FILES

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# Seconds for which git may look at all files.
_LONG = 120.0

_NEVER_TEXT = """
.git .hg .svn __pycache__ node_modules .ipynb_checkpoints .hpcrun .mypy_cache .ruff_cache
.pytest_cache .hypothesis .tox .nox
"""
_NEVER = frozenset(_NEVER_TEXT.split())
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
# What hpcrun writes in the directory of an experiment, beside its archives of code.
_EXPERIMENT = frozenset({"submissions", "runs", "submit.lock"})


@dataclass(frozen=True)
class CodeScope:
    """The part of a tree that is the code."""

    root: Path
    exclude: Sequence[str] = ()
    """Patterns, as in .gitignore, of files that are left out."""
    required: Collection[str] = ()
    """The spec and the entries, relative to the root: in it even if git ignores them."""
    include: Collection[str] = ()
    """Files and directories that are in it even if git ignores them."""
    named: Collection[str] = ()
    """Paths of the code that go in whatever their mode."""
    without: Collection[Path] = ()
    """What never belongs to it: the root of experiments, links."""
    secrets: Sequence[Path] = ()
    """The files of secrets that the spec names."""
    listing: CodeListing | None = None
    """The files of this part, once `find` has listed them."""


@dataclass(frozen=True)
class CodeListing:
    """The files of the code."""

    paths: list[str]
    """Relative to the root, sorted."""
    git: dict[str, Any] | None
    """``commit`` (None before the first), ``branch`` (None when detached) and ``dirty``; None when
    the files were not listed by git."""
    notes: tuple[str, ...] = ()
    """Messages for the user."""
    nested: tuple[Path, ...] = ()
    """Repositories below the root whose files are among them: submodules and others."""
    excluded: tuple[str, ...] = ()
    """What ``code.exclude`` leaves out: files, and the uppermost of directories."""


def find(scope: CodeScope, *, compared: bool = True) -> CodeListing:
    """List the files of the code.

    Without ``compared``, it is not asked whether the files differ from git's commit, and
    ``git["dirty"]`` is None. Raise UsageError if a required file is missing, a pattern is invalid,
    or there are too many files to be code.
    """
    notes: list[str] = []
    root, without = scope.root, [*scope.without, *scope.secrets]
    rules = _Filter(root, scope.exclude)
    nested: list[Path] = []
    state = _git_state(root, notes, compared=compared)
    paths = _git_files(root, nested) if state is not None else None
    if state is not None and paths:
        if compared:
            state["dirty"] = state["dirty"] or any(git.is_dirty(each) for each in nested)
    else:
        # Nothing listed: the directory as a whole is ignored by a repository around it.
        state = None
        paths = _walk(root, rules, without)
    forbidden = [part for directory in without if (part := _inside(root, directory))]
    chosen = {
        path
        for path in paths
        if not rules.leaves_out(path)
        and not any(path == part or path.startswith(part + "/") for part in forbidden)
    }
    for path in scope.required:
        if not (root / path).is_file():
            raise UsageError(f"{root / path}: the run needs this file, and it is not there")
        chosen |= _steps(root, path)
    for path in scope.include:
        chosen |= _included(root, path, without)
    if len(chosen) > MOST_FILES:
        raise _too_many(root)
    found = sorted(chosen), state, tuple(notes), tuple(nested)
    return CodeListing(*found, tuple(sorted(rules.matched)))


def ignored(listing: CodeListing, root: Path) -> list[str]:
    """Return what git ignores below ``root``: files, and the uppermost of directories, sorted.

    Caches and Python environments are none of it. Empty outside of git.
    """
    rules = _Filter(root, ())
    found: set[str] = set()
    for place in (root, *listing.nested) if listing.git is not None else ():
        options = ("--others", "--ignored", "--exclude-standard", "--directory", "-z")
        answer = git.ask(place, "ls-files", *options, timeout=_LONG)
        if answer is None or answer.returncode:
            continue
        above = "" if place == root else place.relative_to(root).as_posix() + "/"
        for raw in answer.stdout.split(b"\0"):
            name = above + os.fsdecode(raw)
            is_directory, name = name.endswith("/"), name.rstrip("/")
            left_out = rules.leaves_out_directory if is_directory else rules.leaves_out
            if raw and not left_out(name):
                found.add(name)
    return sorted(found)


def _included(root: Path, path: str, without: Collection[Path]) -> set[str]:
    """Return the files of a path of ``code.include``; raise UsageError if it is not there."""
    place = root / path
    if not place.exists():
        raise UsageError(f"code.include: {place} is not there")
    steps = _steps(root, path)
    if steps != {path} or place.is_symlink() or not place.is_dir():
        return steps
    return {f"{path}/{name}" for name in _walk(place, _Filter(place, ()), without)}


def _steps(root: Path, path: str) -> set[str]:
    """Return a required file without links on the way to it, and those links.

    What lies behind a link out of the root is reached through that link.
    """
    *parents, _ = path.split("/")
    for index in range(1, len(parents) + 1):
        link = "/".join(parents[:index])
        if (root / link).is_symlink():
            real = os.path.realpath(root / link)
            inside = os.path.relpath(real, root.resolve())
            if inside.startswith(".."):
                return {link}
            rest = path[len(link) + 1 :]
            return {link, *_steps(root, os.path.normpath(f"{inside}/{rest}"))}
    return {path}


def scope(plan: Plan, experiment: ExperimentPaths) -> CodeScope:
    """Return the part of the tree that a plan freezes."""
    code = plan.runs[0].code
    named = {run.environment.secrets_file for run in plan.runs}
    secrets = sorted({path for file in named if file for path in (file, os.path.realpath(file))})
    return CodeScope(
        Path(plan.code_root),
        exclude=code.exclude,
        required=needed(plan),
        include=[*map(plan.inside, code.include)],
        named=[*named_paths.of_runs(plan)],
        without=[experiment.directory.parent, *map(plan.place, code.link)],
        secrets=[*map(Path, secrets)],
    )


def needed(plan: Plan) -> list[str]:
    """Return the files that a plan's runs cannot do without: the spec and the entries."""
    root = Path(plan.code_root)
    required = {file for run in plan.runs for file in entry_files(run.entry, root)}
    spec = Path(plan.spec_file)
    if spec.is_relative_to(root) and not plan.is_typed:
        required.add(spec.relative_to(root).as_posix())
    return sorted(required)


def entry_files(entry: Entry, root: Path) -> set[str]:
    """Return the file of a script or function, if the code has it; no more than one."""
    if entry.kind != "function" or not entry.module or entry.import_root is None:
        return {entry.file} if entry.file else set()
    base = root / entry.import_root / Path(*entry.module.split("."))
    for candidate in (base.with_name(base.name + ".py"), base / "__init__.py"):
        if candidate.is_file():
            return {Path(os.path.relpath(candidate, root)).as_posix()}
    return set()


class _Filter:
    """Leave out Python environments, caches, and what matches patterns by the rules of .gitignore.

    As in git, no file of an excluded directory can be included again. What hpcrun wrote is left out
    under whichever root it lies: a program of the same name may lie beside it.
    """

    def __init__(self, root: Path, patterns: Sequence[str]) -> None:
        self._root = root
        self.matched: set[str] = set()
        self._spec: GitIgnoreSpec | None = None
        self._directories = {"": False}
        self._experiments: dict[str, bool] = {"": False}
        if patterns:
            # Slow to import, and needed only where the spec has patterns.
            from pathspec import GitIgnoreSpec

            try:
                # git knows no `./`, but people write it.
                lines = [re.sub(r"^(!?)\./", r"\1/", pattern) for pattern in patterns]
                self._spec = GitIgnoreSpec.from_lines(lines)
            except (ValueError, re.error) as error:
                raise UsageError(
                    f"code.exclude: {', '.join(map(repr, patterns))}: {error}",
                    hint="patterns are those of .gitignore: data/, *.pt, /notes, a/**/b, !keep.pt",
                ) from None

    def leaves_out(self, path: str) -> bool:
        return self._is_never_code(path) or self._matches(path)

    def leaves_out_directory(self, path: str) -> bool:
        if path not in self._directories:
            self._directories[path] = (
                self._is_never_code(path)
                or any((self._root / path / mark).exists() for mark in _ENVIRONMENT_MARKS)
                or self._matches(path + "/")
            )
        return self._directories[path]

    def _is_never_code(self, path: str) -> bool:
        """Check for what no pattern is needed: by the directory around it, its name, its origin."""
        parent, _, name = path.rpartition("/")
        return (
            self.leaves_out_directory(parent)
            or name in _NEVER
            or name.endswith(".pyc")
            or self._is_ours(parent, name)
        )

    def _is_ours(self, parent: str, name: str) -> bool:
        """Check whether hpcrun wrote this: a report, an export, a part of an experiment."""
        if name.endswith(".html"):
            return is_report(self._root / parent / name)
        if name.endswith((".tar.gz", ".tgz")) and _is_export(self._root / parent / name):
            return True
        above, _, last = parent.rpartition("/")
        if last == "code" and is_archive(name):
            parent = above
        elif name not in _EXPERIMENT:
            return False
        if parent not in self._experiments:
            found = False
            with contextlib.suppress(HpcrunError, OSError):
                submissions = ExperimentPaths(self._root / parent).submissions()
                found = any(one.submission.is_file() for one in submissions)
            self._experiments[parent] = found
        return self._experiments[parent]

    def _matches(self, path: str) -> bool:
        matches = self._spec is not None and self._spec.match_file(path)
        if matches:
            self.matched.add(path.rstrip("/"))
        return matches


def _inside(root: Path, directory: Path) -> str:
    """Return ``directory`` relative to ``root``, or "" if it is elsewhere; follow no link."""
    try:
        place = directory.parent.resolve() / directory.name
        relative = place.relative_to(root.resolve()).as_posix()
    except ValueError:
        return ""
    return "" if relative == "." else relative


def is_report(path: Path) -> bool:
    """Check whether a page is one of ``hpcrun report``."""
    with contextlib.suppress(OSError), files.open_stream(path) as page:
        return b'<meta name="generator" content="hpcrun report' in page.read(400)
    return False


def _is_export(path: Path) -> bool:
    """Check whether an archive is one of ``hpcrun export``, which begins with its README.txt."""
    with contextlib.suppress(OSError, zlib.error), files.open_stream(path) as archive:
        head = zlib.decompressobj(wbits=31).decompress(archive.read(4096), 4096)
        return b"/README.txt\0" in head and b"exported by hpcrun without" in head
    return False


def _walk(root: Path, rules: _Filter, without: Collection[Path]) -> list[str]:
    forbidden = {directory.resolve() for directory in without}
    paths: list[str] = []

    def failed(error: OSError) -> None:
        raise UsageError(
            f"{error.filename}: cannot be frozen with the code: {error.strerror}",
            hint="make it readable, or leave it out with `code: {exclude: […]}` in the spec",
        )

    for directory, names, here_files in os.walk(root, onerror=failed):
        here = Path(directory).relative_to(root).as_posix()
        prefix = "" if here == "." else here + "/"
        for name in list(names):
            path = Path(directory, name)
            if path.is_symlink():
                names.remove(name)
                here_files.append(name)
            elif rules.leaves_out_directory(prefix + name) or path.resolve() in forbidden:
                names.remove(name)
        paths += [prefix + name for name in here_files]
        if len(paths) > MOST_FILES:
            raise _too_many(root)
    return paths


def _too_many(root: Path) -> UsageError:
    return UsageError(
        f"{root}: there are more than {MOST_FILES} files; this is hardly only code",
        hint="put the spec and its code in a directory of their own, or leave out what is not "
        "code: `code: {exclude: [data]}`",
    )


def _git_state(root: Path, notes: list[str], *, compared: bool) -> dict[str, Any] | None:
    """Read commit, branch and dirtiness; None if git is missing or the root is in no repository."""
    inside = git.ask(root, "rev-parse", "--is-inside-work-tree")
    if inside is None:
        return None
    if inside.returncode:
        words = os.fsdecode(inside.stderr).strip().splitlines()
        if words and "not a git repository" not in words[0].lower():
            notes.append(f"git is of no use here, all files are taken: {words[0]}")
        return None
    if inside.stdout.strip() != b"true":
        return None
    return {
        "commit": git.line(root, "rev-parse", "--verify", "--quiet", "HEAD"),
        "branch": git.line(root, "symbolic-ref", "--short", "--quiet", "HEAD"),
        "dirty": git.is_dirty(root, timeout=_LONG) if compared else None,
    }


def _git_files(root: Path, nested: list[Path]) -> list[str] | None:
    """List what git tracks or does not ignore, including the files of ``nested`` repositories.

    The directories of those are added to it.
    """
    options = ("--cached", "--others", "--exclude-standard", "-z")
    listed = git.ask(root, "ls-files", *options, timeout=_LONG)
    if listed is None:
        # To go on without git would freeze all that it ignores.
        hint = f"does `git -C {root} ls-files --others` answer?"
        raise UsageError(f"{root}: git does not list the files", hint=hint)
    if listed.returncode:
        return None
    paths: set[str] = set()
    for raw in filter(None, listed.stdout.split(b"\0")):
        name = os.fsdecode(raw).rstrip("/")
        try:
            mode = os.lstat(f"{root}/{name}").st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode):
            # A submodule, or a repository that is not tracked by this one.
            path = root / name
            inner = _git_files(path, nested) if (path / ".git").exists() else None
            if inner is not None:
                nested.append(path)
            names = _walk(path, _Filter(path, ()), ()) if inner is None else inner
            paths.update(f"{name}/{each}" for each in names)
        else:
            paths.add(name)
    return sorted(paths)
