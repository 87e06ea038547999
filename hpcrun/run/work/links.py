"""Links between a run's ``work`` and a node's copy of the code, while an attempt runs.

In ``work`` they lead to the code, so that the program finds its code's files by relative path. In
the copy of the code they lead to what the program has written in earlier attempts, so that it finds
that beside its own ``__file__`` too, and goes on writing there. What the program has written is
never replaced: where it has the name of a file of the code, it is what both see.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from hpcrun import shared_look
from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import say
from hpcrun.state.node_layout import PREFIX, NodePaths, ScratchPaths
from hpcrun.state.plan import Entry

PYCACHE = "__pycache__"
# A directory of the code with at most so many entries, none of them a Python file, is a real one in
# `work`, as long as all of these together have not more. Each start of a run makes them on shared
# storage, each end removes them, and outputs of other programs among the code may be many.
_MOST_ENTRIES, _MOST_IN_ALL = 100, 300
_TARGET = re.compile(rf"(/.*)?/{PREFIX}[0-9a-f]{{12}}[^/]*/attempt-[0-9]+/code/(?P<name>.*)", re.S)
# The characters of a directory's name that all nodes have in common.
_START = len(PREFIX) + 12
# Most links of `adopt` in a copy of the code.
_MOST_ADOPTED = 10_000
_RANK = re.compile(r"rank-[0-9]{5,}")


def way(directory: str, entry: Entry) -> frozenset[str]:
    """Return the directories of the code that are real in ``work``, whatever they hold.

    They lead to the working directory and to the script.
    """
    places = [PurePosixPath(directory)]
    if entry.kind == "script" and entry.file is not None:
        places.append(PurePosixPath(entry.file).parent)
    return frozenset(str(one) for place in places for one in (place, *place.parents))


def code_path(directories: Collection[Path], secret: str, attempt: int) -> Path:
    """Return a path of the code that is to be there on all nodes of an attempt.

    ``directories`` are the agents' own. Where their paths differ, it is one with ``secret`` in its
    name, which nobody can have taken.
    """
    one, *others = set(directories)
    if others:
        bases = {each.parent for each in directories}
        base = one.parent if len(bases) == 1 else Path("/tmp")  # noqa: S108 - is there everywhere
        one = base / f"{one.name[:_START]}-{secret}"
    return ScratchPaths(NodePaths(one).attempt(attempt)).code


def fill(mirror: Path, code: Path, real: Collection[str], target: Path | None = None) -> None:
    """Link the code's files into a mirror of its root; directories of data become real ones.

    ``real`` is of `way`. ``target`` is the path of the copy of the code that links lead to, where
    that is another. Raises HpcrunError if something else is in the place of such a directory, or of
    the mirror.
    """
    shared_look.refresh(mirror)
    if not _is_directory(mirror):
        raise _in_the_way(mirror)
    target, left, waiting = target or code, _MOST_IN_ALL, deque([""])
    while waiting:
        above = waiting.popleft()
        with os.scandir(code / above) as entries:
            found = {one.name: one.is_dir(follow_symlinks=False) for one in entries}
        if any(name.endswith(".py") for name in found):
            # Python writes there what it compiles as it imports a module through a link.
            (code / above / PYCACHE).mkdir(exist_ok=True)
            found[PYCACHE] = False
        there = {*shared_look.names(mirror / above)}
        for each in sorted(found):
            name, is_directory = f"{above}/{each}".lstrip("/"), found[each]
            place = mirror / name
            is_there = each in there
            if is_there and is_code(place, name):
                place.unlink()
                is_there = False
            count = _entries(code / name) if is_directory and name not in real else 0
            if is_directory and not is_there and count <= left:
                place.mkdir(exist_ok=True)
            if is_directory and _is_directory(place):
                # Also one that another node has made.
                left = max(0, left - count)
                waiting.append(name)
            elif name in real:
                raise _in_the_way(place)
            elif not is_there:
                with contextlib.suppress(FileExistsError):
                    place.symlink_to(f"{target}/{name}")


def _in_the_way(place: Path) -> HpcrunError:
    return HpcrunError(
        f"{place} is no directory, which the run's working directory needs to be",
        hint="move what the program has written there out of the way",
    )


def directory_of_rank(launch: Launch, rank: int) -> Path:
    """Return a rank's working directory; one of its own is filled by itself."""
    mirror, directory = launch.mirror(rank), launch.directory_of(rank)
    if mirror != launch.run_paths.work:
        mirror.mkdir(exist_ok=True)
        code = Path(launch.node_of(rank).code)
        fill(mirror, code, way(launch.working_directory, launch.entry))
    # The others' is there, but a node may not have heard of it yet.
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _entries(directory: Path) -> int:
    """Return the number of a data directory's entries and itself; of any other one, too many."""
    names = os.listdir(directory)  # noqa: PTH208 - names alone
    is_data = len(names) <= _MOST_ENTRIES and not any(name.endswith(".py") for name in names)
    return 1 + len(names) if is_data else _MOST_IN_ALL + 1


def clear(mirror: Path, *, code: Path | None = None, only: Iterable[Path] = (Path("/"),)) -> None:
    """Remove the links of `fill`, and the directories that held nothing else.

    ``code`` is a copy of the code, where there is one: its directories are looked through.
    ``only`` are the copies of the code that the links lead to.
    """
    if _is_directory(mirror):
        _clear(mirror, "", code, tuple(f"{one}/".replace("//", "/") for one in only))


def _clear(place: Path, name: str, code: Path | None, only: tuple[str, ...]) -> bool:
    """Return whether there was a link in the directory or below it.

    One that the program has closed to its own user is left alone.
    """
    found, directories, files = False, [], 0
    with contextlib.suppress(PermissionError), os.scandir(place) as entries:
        for entry in entries:
            if entry.is_symlink():
                target = os.readlink(entry.path)  # noqa: PTH115 - a path of its own is slow
                if target.startswith(only) and _leads_to(target, f"{name}{entry.name}"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry.path)  # noqa: PTH108 - as above
                    found = True
            elif entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                files += 1
    # `fill` makes few directories in one without links, and the program may have very many.
    here = found or not name or (not files and len(directories) <= _MOST_ENTRIES)
    for each in directories:
        is_rank = not name and _RANK.fullmatch(each)
        if not (here or (code is not None and (code / name / each).is_dir())):
            continue
        if _clear(place / each, "" if is_rank else f"{name}{each}/", code, only):
            found = True
            with contextlib.suppress(OSError):
                (place / each).rmdir()
    return found


def adopt(work: Path, code: Path, *, of_ranks: bool = False) -> None:
    """Link what the program has written in ``work`` into a node's copy of the code.

    With ``of_ranks``, each rank has a working directory of its own in ``work``.
    """
    made, waiting = 0, deque([""])
    # Another node has just made it.
    shared_look.refresh(work)
    while waiting:
        above = waiting.popleft()
        of_code = {*os.listdir(code / above)}  # noqa: PTH208 - names alone
        with os.scandir(work / above) as entries:
            found = sorted(entries, key=lambda entry: entry.name not in of_code)
        for entry in found:
            name = f"{above}/{entry.name}".lstrip("/")
            if entry.is_symlink() and is_code(Path(entry.path), name):
                continue
            if of_ranks and not above and _RANK.fullmatch(entry.name):
                continue
            local = code / name
            if (made := made + 1) > _MOST_ADOPTED:
                say(f"{work} holds so much that not all of it is found beside the code's files")
                return
            if _is_directory(local):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name)
                    continue
                import shutil  # which most ranks never need

                shutil.rmtree(local)
            elif os.path.lexists(local):
                local.unlink()
            local.symlink_to(entry.path)


def is_code(link: Path, name: str) -> bool:
    """Check whether something in ``work`` is a link of `fill`, and not the program's.

    ``name`` is its path in the mirror.
    """
    try:
        return _leads_to(os.readlink(link), name)  # noqa: PTH115
    except OSError:
        return False


def leads_to_code(link: str) -> bool:
    """Check for a link to a file in any node's copy of the code; raise OSError if it is no link."""
    return _TARGET.fullmatch(os.readlink(link)) is not None  # noqa: PTH115 - thousands of them


def _leads_to(target: str, name: str) -> bool:
    found = _TARGET.fullmatch(target)
    return found is not None and found["name"] == name


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
