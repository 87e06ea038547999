"""The supervisor's side of a run's working directory: before and after each attempt."""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hpcrun import shared_look
from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.output import say
from hpcrun.run.work import links
from hpcrun.state import files, ledger, submission_facts
from hpcrun.state.layout import AttemptPaths, RunPaths
from hpcrun.text import listed, plural

_SHOWN = 5
_MOST_FAILED = 20


@dataclass
class Kept:
    """What was put into ``work`` of an attempt's files."""

    files: int = 0
    names: list[str] = field(default_factory=list)
    """Some of them."""
    apart: list[str] = field(default_factory=list)
    """Those that got another name: nodes wrote different files of one name."""
    failed: list[str] = field(default_factory=list)
    """The files that were left where they are, and why, and those that agents could not keep."""

    def add(self, name: str, wanted: str) -> None:
        self.files += 1
        if name != wanted:
            self.apart.append(name)
        elif len(self.names) < _SHOWN:
            self.names.append(name)


class WorkDirectory:
    """``RUN/work`` for one attempt, which has been claimed.

    ``directory`` is the working directory's name in it.
    """

    def __init__(self, attempt: AttemptPaths, directory: str, *, of_ranks: bool) -> None:
        self._attempt, self._run = attempt, attempt.run
        self._work, self._directory, self._of_ranks = attempt.run.work, directory, of_ranks

    def begin(self) -> None:
        """Make it ready: no link of an earlier attempt, and all that those have written.

        Raises HpcrunError if it cannot be made, or is another user's.
        """
        try:
            self._work.mkdir(exist_ok=True)
            found = self._work.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise HpcrunError(f"{self._work} is no directory of yours")
            links.clear(self._work)
            self._put_all(())
            self._set_aside()
            if not self._of_ranks:
                (self._work / self._directory).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HpcrunError(f"the working directory cannot be made: {error}") from error

    def end(self, copies: Sequence[Path], failed: Sequence[str]) -> None:
        """Remove the links to these copies of the code, and put in what the agents have kept.

        Best effort. ``failed`` is what they could not keep.
        """
        try:
            links.clear(self._work, only=copies)
            self._put_all(failed)
        except OSError as error:
            say(f"{self._work} is not in order yet, which the next attempt sees to: {error}")

    def _put_all(self, failed: Sequence[str]) -> None:
        """Put what this attempt's agents have kept into ``work``, and late ones of earlier ones."""
        for attempt in self._run.attempts():
            if attempt.number <= self._attempt.number:
                self._put(attempt, failed if attempt.number == self._attempt.number else ())

    def _put(self, attempt: AttemptPaths, failed: Sequence[str]) -> None:
        """Put what an attempt's agents have kept into ``work``, and record it."""
        kept = put(attempt.kept, self._work)
        if kept.failed:
            say(f"not put into {self._work}: {listed(kept.failed, _SHOWN, '; ')}")
        if attempt.number == self._attempt.number:
            kept.failed += failed
        elif not kept.files:
            # Its own supervisor has recorded what could not be put there.
            return
        if not kept.files and not kept.failed:
            return
        write = partial(ledger.write, self._run, ledger.KEPT, attempt.number, **vars(kept))
        files.patiently(write, say, "the ledger")
        if kept.files:
            what = f"{plural(kept.files, 'file')} written in the code's directory"
            say(f"kept in {self._work}: {what} ({listed([*kept.names, *kept.apart], _SHOWN)})")

    def _set_aside(self) -> None:
        """Rename what the program wrote over files of the code that have changed since.

        The code of now is what the user wants to run. What was written over files that are as they
        were stays.
        """
        before = [one for one in ledger.read(self._run) if one.submission is not None]
        if len(before) < 2 or before[-1].submission == before[-2].submission:
            return
        older, newer = (_archive(self._run, one) for one in before[-2:])
        if newer is None or older == newer:
            return
        for mirror in self._run.rank_works() if self._of_ranks else [self._work]:
            wanted = _digests(newer, mirror)
            was = _digests(older, mirror) if wanted and older is not None else {}
            for name in sorted(name for name, digest in wanted.items() if was.get(name) != digest):
                place = mirror / f"{name}.attempt-{before[-2].number}"
                os.replace(mirror / name, place)
                say(f"{name} of the code has changed: what the program wrote over it is {place}")


def tidy(run: RunPaths, directory: str) -> None:
    """Remove the directories of ``work`` that hold nothing, once no attempt follows."""
    place = run.work / directory
    while place.is_relative_to(run.work):
        with contextlib.suppress(OSError):
            place.rmdir()
        place = place.parent


def put(kept: Path, work: Path) -> Kept:
    """Move what agents have kept, a directory a node, to its places in ``work``.

    A file that the program wrote there itself since, or that another node wrote otherwise, is not
    replaced: both are there then, one with the node's name at its end. What cannot be moved stays.
    """
    found = Kept()
    if not shared_look.is_directory(kept) or work.is_symlink():
        return found
    mine: set[Path] = set()
    for node in sorted(kept.iterdir()):
        for above, directories, names in os.walk(node):
            # Other nodes' programs write there too, and what they wrote is not replaced.
            shared_look.refresh(work / Path(above).relative_to(node))
            linked = [name for name in directories if Path(above, name).is_symlink()]
            for name in sorted([*names, *linked]):
                if name.startswith(".") and name.endswith(".tmp"):
                    continue
                source = Path(above, name)
                relative = source.relative_to(node)
                try:
                    place = _move(source, work, relative, node.name, mine)
                except OSError as error:
                    found.failed.append(f"{relative}: {error.strerror}; it is in {node}")
                else:
                    if place is not None:
                        mine.add(place)
                        found.add(str(place.relative_to(work)), str(relative))
    if not found.failed:
        shutil.rmtree(kept, ignore_errors=True)
    elif (more := len(found.failed) - _MOST_FAILED) > 0:
        found.failed[_MOST_FAILED:] = [f"{more:,} more"]
    return found


def _move(
    source: Path, work: Path, relative: Path, node: str, mine: Collection[Path]
) -> Path | None:
    """Move a file of a node to its place; return that, None where the same file is there.

    ``mine`` are the places of other nodes' files.
    """
    place = _place(work, relative, node)
    if _exists(place, work) and not _replaces(source, place, place in mine):
        are_files = not (source.is_symlink() or place.is_symlink()) and place.is_file()
        if are_files and filecmp.cmp(source, place, shallow=False):
            return None
        place = place.with_name(f"{place.name}.{node}")
    if links.is_code(place, str(place.relative_to(work))):
        place.unlink()
    os.replace(source, place)
    return place


def _place(work: Path, relative: Path, node: str) -> Path:
    """Return the place of a file, in directories that are made, through no link."""
    place = work
    for part in relative.parts[:-1]:
        place /= part
        if links.is_code(place, str(place.relative_to(work))):
            place.unlink()
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            place = place.with_name(f"{part}.{node}")
        place.mkdir(exist_ok=True)
    return place / relative.name


def _exists(place: Path, work: Path) -> bool:
    return os.path.lexists(place) and not links.is_code(place, str(place.relative_to(work)))


def _replaces(source: Path, place: Path, from_now: bool) -> bool:
    """Check whether a kept file takes the place of one that is there."""
    if from_now or (place.is_dir() and not place.is_symlink()):
        return False
    return source.lstat().st_mtime_ns >= place.lstat().st_mtime_ns


def _archive(run: RunPaths, attempt: ledger.Attempt) -> Path | None:
    assert attempt.submission is not None
    submission = run.experiment.submission(attempt.submission)
    return run.experiment.frozen_code(submission_facts.facts(submission).get("code"))


def _digests(archive: Path, work: Path) -> dict[str, str]:
    """Return the content of those files of the code in whose place the program has put something.

    A directory of both is none. Empty if the archive cannot be read.
    """
    found: dict[str, str] = {}
    try:
        with (
            files.open_stream(archive) as stream,
            tarfile.open(fileobj=stream, mode="r|gz") as tar,
        ):
            for member in tar:
                name = _in_the_place_of(member.name, work)
                if name is not None:
                    content = tar.extractfile(member) if member.isfile() else None
                    data = content.read() if content else member.linkname.encode()
                    before = found.get(name, "")
                    found[name] = hashlib.sha256(before.encode() + data).hexdigest()
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        say(f"{archive} cannot be read: {error}")
        return {}
    return found


def _in_the_place_of(name: str, work: Path) -> str | None:
    """Return what in ``work`` is in the place of a file of the code, or of a directory above it."""
    parts = Path(name).parts
    if ".." in parts or name.startswith("/"):
        return None
    for count in range(1, len(parts) + 1):
        place = work.joinpath(*parts[:count])
        if not _exists(place, work):
            return None
        if count == len(parts) or place.is_symlink() or not place.is_dir():
            return str(place.relative_to(work))
    return None
