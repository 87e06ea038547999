"""What a plan's runs and programs name that is here and will not be there, in the frozen code.

Files that git ignores are not frozen, nor is what ``code.exclude`` names, what lies outside the
code's root, and secrets. A path that the program names is told with the line to write.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from hpcrun import activity
from hpcrun.policy import secret_names
from hpcrun.shared_dataclass import replace
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import Plan
from hpcrun.submission.code import code_files, named_paths
from hpcrun.submission.code.code_files import CodeScope
from hpcrun.submission.code.named_paths import NamedPath
from hpcrun.submission.code.secret_files import NAMED, SecretFiles
from hpcrun.text import listed, runs_text

IGNORED, EXCLUDED = "git ignores it", "code.exclude has it"
_OUTSIDE = "outside the code"
_ROOT = "it lies in the root of experiments"
# A file of at most so many bytes is frozen rather than linked.
_SMALL = 1_000_000
_MOST_PARTS, _SHOWN = 3, 4
# Of what is left out, so many names are recorded with a submission.
_MOST_RECORDED = 200
_MOST_LOOKED_AT = 2_000
_WORDS_OF_YAML = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


# A path that is named, why it is not frozen, and what of a directory is not.
_Lacking = tuple[NamedPath, str, list[str]]


@dataclass(frozen=True)
class UnfrozenPath:
    """A path that is named and that the job will not find, or not find whole."""

    path: str
    """As the spec would write it."""
    where: str
    """Where it is named."""
    why: str
    missing: tuple[str, ...]
    """What of a directory is missing; empty for all of it."""
    runs: tuple[int, ...]
    """The runs that name it; empty for all."""


@dataclass(frozen=True)
class Unfrozen:
    """All such paths of a plan."""

    paths: tuple[UnfrozenPath, ...] = ()
    link: tuple[str, ...] = ()
    """What ``code.link`` is to have, with what it has."""
    include: tuple[str, ...] = ()
    absolute: tuple[str, ...] = ()
    """What is to be named by its absolute path."""
    left_out: tuple[str, ...] = ()
    """All that is left out of the code, named or not: the first names, nearest the root."""
    scope: CodeScope | None = field(default=None, compare=False)
    """The part of the tree that is frozen, with its listing; None for a plan without runs."""

    @property
    def message(self) -> str:
        """One line that names them, by why and where."""
        groups: dict[str, dict[str, None]] = {}
        for one in self.paths:
            some = f", {runs_text(one.runs)}" if one.runs else ""
            what = f" but for {listed(one.missing, _MOST_PARTS)}" if one.missing else ""
            name = f"{one.path}{'/' if what else ''}{what}"
            groups.setdefault(f"{one.where}{some}; {one.why}", {})[name] = None
        told = [f"{listed([*names], _SHOWN)} ({of})" for of, names in groups.items()]
        return f"here, and not in the frozen code: {listed(told, _SHOWN, '; ')}"

    @property
    def told(self) -> str:
        """What to say of it, with what to write."""
        return f"code: {self.message}\n{self.hint}"

    @property
    def hint(self) -> str:
        """What to write in the spec if the program reads them."""
        told = []
        if line := self.line:
            told.append(f"if the program reads that, write `{line}` in the spec")
        if self.absolute:
            told.append(f"name by an absolute path: {listed(self.absolute, _SHOWN)}")
        return "; ".join(told)

    @property
    def line(self) -> str:
        """``code: {link: [data]}``; empty where no such line helps."""
        keys = (("link", self.link), ("include", self.include))
        parts = [f"{key}: [{', '.join(map(_quoted, paths))}]" for key, paths in keys if paths]
        return f"code: {{{', '.join(parts)}}}" if self.link or self.include else ""

    def to_data(self) -> dict[str, Any] | None:
        """Return it as plain data; None where nothing is missing."""
        if not self.paths:
            return None
        paths = [
            {**vars(one), "runs": [*one.runs], "missing": [*one.missing]} for one in self.paths
        ]
        return {"paths": paths, "line": self.line or None, "absolute": [*self.absolute]}


def find(plan: Plan, experiment: ExperimentPaths, *, whole: Plan | None = None) -> Unfrozen:
    """Return paths that a plan's runs name and the frozen code lacks; raise as `code_files.find`.

    ``whole`` is the plan with all runs whose code is frozen next, by the scope that is returned.
    """
    if not plan.runs:
        return Unfrozen()
    with activity.doing(f"looking at what is frozen of {plan.code_root}"):
        tree = CodeTree(whole or plan, experiment, is_next=whole is not None)
        named = named_paths.of_runs(plan)
        of_program, programs = named_paths.ProgramPaths(plan, tree.left_out).find()
        for path, one in of_program.items():
            named.setdefault(path, one)
        lacking = [*tree.lacking(named.values(), programs)]
        found = _Remedies(plan, tree.is_left_out).of(lacking) if lacking else Unfrozen()
    every = sorted(tree.left_out, key=lambda name: (name.count("/"), name))
    return replace(found, left_out=tuple(every[:_MOST_RECORDED]), scope=tree.scope)


def remedy(plan: Plan, path: str, left_out: Collection[str]) -> str:
    """Return the line to write for one path, relative to the root of the code, that is left out."""
    left, one = set(left_out), NamedPath(path, Path(plan.code_root, path), "")
    remedies = _Remedies(plan, lambda directory: not left.isdisjoint(around(directory)))
    return remedies.of([(one, IGNORED, [])]).line


class CodeTree:
    """The code of a plan: what of it will be frozen, and what is left out, and why."""

    def __init__(self, plan: Plan, experiment: ExperimentPaths, *, is_next: bool = False) -> None:
        self._root = Path(plan.code_root)
        scope = code_files.scope(plan, experiment)
        listing = code_files.find(scope, compared=is_next)
        self.scope = replace(scope, listing=listing)
        secrets = self._secrets(listing.paths, SecretFiles(scope))
        self._names = [name for name in listing.paths if name not in secrets]
        self._known = set(self._names)
        self._links = {plan.inside(link) for link in plan.runs[0].code.link}
        self._experiments = os.path.relpath(experiment.directory.parent, self._root)
        excluded = dict.fromkeys(listing.excluded, EXCLUDED)
        ignored = dict.fromkeys(code_files.ignored(listing, self._root), IGNORED)
        self.left_out = {
            name: why
            for name, why in {**excluded, **ignored, **secrets}.items()
            if self._links.isdisjoint(around(name)) and name not in self._known
            if not _is_within(name, self._experiments) and not self._below(name)
        }
        """What is left out, and why: files, and the uppermost of directories."""

    def _secrets(self, names: Sequence[str], rule: SecretFiles) -> dict[str, str]:
        """Return what is left out as a secret; of a large tree the modes of the first files."""
        found = {name: NAMED for name in names if rule.named(name)}
        for name in names[:_MOST_LOOKED_AT]:
            with contextlib.suppress(OSError):
                status = os.lstat(f"{self._root}/{name}")
                if stat.S_ISREG(status.st_mode) and (why := rule.why(name, status)):
                    found[name] = why
        return found

    def lacking(self, named: Iterable[NamedPath], programs: Collection[str]) -> Iterator[_Lacking]:
        """Yield paths that will not be there, why, and what of a directory is missing.

        A directory that holds one of the ``programs`` is named as code, not as data.
        """
        for one in named:
            if not self._links.isdisjoint(around(one.path)):
                continue
            if one.path.startswith(".."):
                yield one, _OUTSIDE, []
            elif self._is_behind_link(one.path):
                continue
            elif not one.place.is_dir():
                if why := self._why(one.path):
                    yield one, why, []
            elif not self._below(one.path):
                if (why := self._why(one.path)) and _has_files(one.place):
                    yield one, why, []
            elif any(_is_within(program, one.path) for program in programs):
                continue
            elif parts := self._parts(one.path):
                yield one, next(iter(parts.values())), [*parts]

    def is_left_out(self, directory: str) -> bool:
        """Check whether nothing of a directory will be frozen."""
        return not self._below(directory)

    def _below(self, directory: str) -> list[str]:
        """Return the first files of a directory that will be frozen."""
        begin = bisect.bisect_left(self._names, f"{directory}/")
        every = itertools.islice(self._names, begin, begin + _MOST_LOOKED_AT)
        return [*itertools.takewhile(lambda name: name.startswith(f"{directory}/"), every)]

    def _is_behind_link(self, path: str) -> bool:
        """Check for a link on the way that is frozen as one, to where it leads."""
        return any(up in self._known and (self._root / up).is_symlink() for up in around(path))

    def _why(self, path: str) -> str | None:
        """Return why a path is not frozen; None for a cache, and what is hpcrun's own."""
        if path in self._known:
            return None
        ups = around(path)
        if self._experiments in ups:
            return _ROOT
        found = next((self.left_out[up] for up in ups if up in self.left_out), None)
        if found or (self._root / path).exists():
            return found
        # The spec lies elsewhere, and this beside it.
        return _OUTSIDE

    def _parts(self, directory: str) -> dict[str, str]:
        """Return what of a directory is left out, and why."""
        return {
            name: why
            for name, why in self.left_out.items()
            if _is_within(name, directory) and (self._root / name).exists()
        }


class _Remedies:
    """The lines to write for what is missing."""

    def __init__(self, plan: Plan, is_left_out: Callable[[str], bool]) -> None:
        self._plan, self._is_left_out = plan, is_left_out
        self._root = Path(plan.code_root)
        code = plan.runs[0].code
        self._link, self._include = dict.fromkeys(code.link), dict.fromkeys(code.include)
        self._absolute: dict[str, None] = {}

    def of(self, lacking: Iterable[_Lacking]) -> Unfrozen:
        paths, before = [], (len(self._link), len(self._include))
        every = {run.number for run in self._plan.runs}
        for one, why, parts in lacking:
            runs = () if not one.runs or one.runs == every else tuple(sorted(one.runs))
            shown = self._relative(one.path)
            missing = tuple(map(self._relative, parts))
            paths.append(UnfrozenPath(shown, one.where, why, missing, runs))
            if one.path.startswith(".."):
                self._absolute[str(one.place.absolute())] = None
            else:
                self._add(one, parts)
        if (len(self._link), len(self._include)) == before:
            return Unfrozen(tuple(paths), absolute=(*self._absolute,))
        links = tuple(one for one in self._link if not self._is_linked(one))
        included = tuple(one for one in self._include if not self._is_linked(one))
        return Unfrozen(tuple(paths), links, included, (*self._absolute,))

    def _add(self, one: NamedPath, parts: list[str]) -> None:
        if len(parts) > _MOST_PARTS:
            common = os.path.commonpath([str(PurePosixPath(part).parent) for part in parts])
            self._link[self._relative(common)] = None
        elif parts:
            for part in parts:
                self._add_one(part, self._root / part)
        else:
            self._add_one(one.path, one.place)

    def _add_one(self, path: str, place: Path) -> None:
        """Freeze a small file; link a directory, a secret, a large file with those beside it."""
        beside = PurePosixPath(path).parent
        is_alone = str(beside) == "." or not self._is_left_out(str(beside))
        is_elsewhere = os.path.normpath(place) != str(self._root / path)
        stays = is_elsewhere or place.is_symlink() or secret_names.is_file(path)
        if stays or place.is_dir():
            self._link[self._relative(path)] = None
        elif _bytes(place if is_alone else place.parent) <= _SMALL:
            self._include[self._relative(path)] = None
        else:
            self._link[self._relative(path if is_alone else str(beside))] = None

    def _is_linked(self, path: str) -> bool:
        """Check whether a directory around a path is to be a link."""
        return any(up in self._link for up in around(path)[1:])

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self._plan.directory)


def around(path: str) -> list[str]:
    """Return a path and the directories around it."""
    return [path, *map(str, PurePosixPath(path).parents)][: path.count("/") + 1]


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _has_files(directory: Path) -> bool:
    walked = itertools.islice(os.walk(directory), _MOST_LOOKED_AT)
    return any(files for _, _, files in walked)


def _bytes(place: Path) -> int:
    """Return the size of a file, or of the first files of a directory: enough to call it large."""
    every = [place] if place.is_file() else itertools.islice(place.rglob("*"), _MOST_LOOKED_AT)
    found = 0
    for one in every:
        with contextlib.suppress(OSError):
            found += one.lstat().st_size
    return found


def _quoted(path: str) -> str:
    """Return a path as a list of YAML needs it."""
    is_plain = re.fullmatch(r"[A-Za-z_.][\w./-]*", path) and path.lower() not in _WORDS_OF_YAML
    return path if is_plain else "'" + path.replace("'", "''") + "'"
