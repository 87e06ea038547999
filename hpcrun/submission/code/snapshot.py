"""Archives of the user's code at submission.

An archive is named by its content. Inside git it holds the tracked files and the untracked ones
that are not ignored, as they are in the working tree; elsewhere everything except what `code_files`
leaves out. Equal files give equal archives, byte for byte (times and owners are constants).

Only regular files go in whose real path is below the root. Symbolic links: a link to a frozen file
or directory stays a link; a link to another file below the root becomes a copy of that file; any
other link stays a link, to its absolute path, so that nothing of what it leads to is frozen; a
broken link is left out. Secrets are left out by the rule of `secret_files`, and an archive can be
read only by those who may read every file in it. All that is not as it was in the tree is reported.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hpcrun import activity
from hpcrun.errors import UsageError
from hpcrun.state import files as state_files
from hpcrun.state.layout import SubmissionPaths
from hpcrun.submission.code import code_files, frozen_code
from hpcrun.submission.code.code_files import CodeScope
from hpcrun.submission.code.frozen_code import MOST_BYTES
from hpcrun.submission.code.inside import Inside, LeftOut
from hpcrun.submission.code.secret_files import HOLDS, NAMED, PRIVATE, READERS, SecretFiles
from hpcrun.text import listed, size


class HashingStream:
    """A binary stream that hashes and counts what is read from it or written to it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.bytes = 0

    def read(self, size: int) -> bytes:
        return self._update(self._stream.read(size))

    def write(self, data: Any) -> int:
        written: int = self._stream.write(self._update(data))
        return written

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _update(self, data: bytes) -> bytes:
        self._hash.update(data)
        self.bytes += len(data)
        return data


_SHOWN = 5
_TIME = 946_684_800  # 2000-01-01; zip files know no time before 1980


@dataclass(frozen=True)
class Snapshot:
    """A frozen archive of code."""

    archive: Path
    """The file, named by its content."""
    digest: str
    """SHA-256 of the uncompressed archive."""
    git: dict[str, Any] | None
    """``commit``, ``branch`` and ``dirty`` of the working tree; None outside git."""
    bytes: int
    """Size of the files, uncompressed."""
    files: int
    """Number of files, links included."""
    notes: tuple[str, ...] = ()
    """Messages for the user: files that were left out or changed while they were read."""

    def to_data(self) -> dict[str, Any]:
        """Return what ``submission.json`` keeps under ``code``."""
        data = {**vars(self), "archive": self.archive.name}
        del data["notes"]
        return data


class _Content:
    """The files to be frozen, and what there is to report about them."""

    def __init__(self, scope: CodeScope) -> None:
        self.root, self.real = scope.root, scope.root.resolve()
        self.listing = scope.listing or code_files.find(scope)
        self.secrets = SecretFiles(scope)
        # Who may read all of the files, and one of those that fewest may read.
        self.readers, self.private = READERS, ""
        self.sizes: dict[str, int] = {}
        self.bytes_read = 0
        self._reports: dict[str, dict[str, str]] = {}
        self.paths: list[str] = []
        for path in self.listing.paths:
            if self.secrets.named(path):
                self.left_out(path, NAMED)
            else:
                self.paths.append(path)
        # These files and the directories around them, up to the root.
        self.frozen = {".", *self.paths}
        for path in self.paths:
            while (path := path.rpartition("/")[0]) and path not in self.frozen:
                self.frozen.add(path)
        _check_size(self, self.paths)

    def report(self, name: str, what: str, which: str = "") -> None:
        """Report what became of a file; ``which`` adds to it what holds for this one alone."""
        self._reports.setdefault(what, {})[name] = which

    def left_out(self, name: str, why: str) -> None:
        self.sizes.pop(name, None)
        self.report(name, _not_in(why))

    def notes(self, granted: int) -> tuple[str, ...]:
        """Return all reports, many files with one report in one line.

        ``granted`` is the mode that the umask would give the archive.
        """
        found = list(self.listing.notes)
        for what, names in self._reports.items():
            if len(names) > _SHOWN:
                found.append(f"{listed([*names], _SHOWN)}: {what}")
            else:
                found += [f"{name}: {what}{which}" for name, which in names.items()]
        secret = [
            name for why in (NAMED, HOLDS, PRIVATE) for name in self._reports.get(_not_in(why), ())
        ]
        if secret:
            found.append(
                f"if the job needs it: `code: {{exclude: ['!{secret[0]}']}}` in the spec freezes "
                "such a file, and code.link shows it to the job where it lies"
            )
        if granted & READERS & ~self.readers:
            found.append(
                f"the frozen code can be read by no more users than {self.private}; "
                "`chmod a+r` lets others read it too"
            )
        return tuple(found)


def _not_in(why: str) -> str:
    return f"left out, {why}"


def freeze(scope: CodeScope, directory: Path) -> Snapshot:
    """Freeze the code as ``directory/SHA.tar.gz``, unless that exists already.

    The archive's names are relative to the code's root; ``directory`` is created if it does not
    exist. All files together may have at most `MOST_BYTES`. Raise UsageError if there is too
    much, a file cannot be read or a required one does not exist.
    """
    content = _Content(scope)
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{uuid.uuid4().hex[:12]}.tmp"
    try:
        with open(temporary, "xb") as stream:
            granted = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            os.fchmod(stream.fileno(), 0o600)
            digest, count = _write(content, stream)
            mode = granted & (0o600 | content.readers)
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())
        archive = directory / f"{digest}.tar.gz"
        if _is_mine(archive):
            temporary.unlink()
            archive.chmod(mode)
        else:
            os.replace(temporary, archive)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    total = sum(content.sizes.values())
    return Snapshot(archive, digest, content.listing.git, total, count, content.notes(granted))


def _is_mine(archive: Path) -> bool:
    """Return whether the archive is there already, written by this user."""
    try:
        found = archive.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def look(scope: CodeScope) -> dict[str, bytes]:
    """Return what `freeze` would freeze now: name -> content, or the target of a link."""
    return {info.name: _data(info, data) for info, data in _members(_Content(scope))}


def read(archive: Path) -> dict[str, bytes]:
    """Return the same of an archive; raise as `hpcrun.submission.code.frozen_code.members`."""
    return {info.name: _data(info, data) for info, data in frozen_code.members(archive)}


def read_record(submission: SubmissionPaths) -> dict[str, Any]:
    """Return the ``code`` of a submission's ``submission.json``, as `Snapshot.to_data` wrote it.

    Raise UsageError if it names no archive, or the archive is gone.
    """
    hint = "`hpcrun submit` goes on with the code of now"
    try:
        code = state_files.read_json(submission.submission).get("code")
    except (OSError, ValueError, AttributeError):
        code = None
    archive = submission.experiment.frozen_code(code)
    if archive is None:
        raise UsageError(f"{submission.submission} names no frozen code", hint=hint)
    if not archive.is_file():
        raise UsageError(f"the code that was frozen at submission is gone: {archive}", hint=hint)
    return dict(code)


def _data(info: tarfile.TarInfo, data: bytes) -> bytes:
    return f"link to {info.linkname}\n".encode() if info.issym() else data


def _check_size(content: _Content, paths: Sequence[str]) -> None:
    for name in paths:
        try:
            status = os.lstat(f"{content.root}/{name}")
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            content.sizes[name] = max(status.st_size, content.sizes.get(name, 0))
    total = sum(content.sizes.values())
    if total > MOST_BYTES:
        largest = sorted(content.sizes.items(), key=lambda item: (-item[1], item[0]))[:10]
        listed = "\n".join(f"  {_megabytes(size):>10}  {name}" for name, size in largest)
        raise UsageError(
            f"{content.root}: the code to freeze has {_megabytes(total)} in {len(paths)} files, "
            f"accepted are {_megabytes(MOST_BYTES)}; the largest:\n{listed}",
            hint="in the spec, `code: {link: [data]}` shows the job what it reads where it lies; "
            "`code: {exclude: ['*.pt']}`, or .gitignore, leaves out what it does not read",
        )


def _write(content: _Content, stream: IO[bytes]) -> tuple[str, int]:
    count = 0
    with gzip.GzipFile("", "wb", compresslevel=5, fileobj=stream, mtime=0) as compressed:
        hashing: Any = HashingStream(compressed)
        with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for info, data in _members(content):
                archive.addfile(info, io.BytesIO(data))
                count += 1
    return hashing.hexdigest(), count


def _members(content: _Content) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    total = sum(content.sizes.values())
    with (
        Inside(content.real) as inside,
        activity.doing(
            lambda: (
                f"reading the code, {content.root}: "
                f"{size(min(content.bytes_read, total))} of {size(total)}"
            )
        ),
    ):
        for name in content.paths:
            found = _member(content, inside, name)
            if found:
                yield found
                content.bytes_read += len(found[1])


def _member(content: _Content, inside: Inside, name: str) -> tuple[tarfile.TarInfo, bytes] | None:
    path = f"{content.root}/{name}"
    info = tarfile.TarInfo(name)
    info.mtime = _TIME
    real = name
    try:
        if os.path.islink(path):  # noqa: PTH114 - thousands of files
            real, target = _follow(content, name)
            if target is not None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
                return info, b""
        data, mode = _read(content, inside, name, real)
    except FileNotFoundError:
        content.left_out(name, "it vanished while the code was frozen")
        return None
    except LeftOut as why:
        content.left_out(name, str(why))
        return None
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be frozen with the code: {error.strerror}",
            hint=f"make it readable, or leave it out: `code: {{exclude: ['{name}']}}`",
        ) from None
    grew = len(data) > content.sizes.get(name, 0)
    content.sizes[name] = info.size = len(data)
    if grew:
        _check_size(content, list(content.sizes))
    if content.readers & ~mode:
        content.readers &= mode
        content.private = name
    info.mode = 0o755 if mode & stat.S_IXUSR else 0o644
    return info, data


def _follow(content: _Content, name: str) -> tuple[str, str | None]:
    """Return the file below the root that a link leads to, and what the link is stored as.

    The latter is None if a copy of the file is stored in its place.
    """
    path, root = content.root / name, content.real
    real = os.path.realpath(path)
    target = os.path.normpath(path.parent / path.readlink())
    if not path.exists():
        raise LeftOut("it is a link to nothing")
    for place, above in ((target, content.root), (real, root)):
        if os.path.relpath(place, above) in content.frozen:
            return name, os.path.relpath(place, (above / name).parent)
    if path.is_file() and Path(real).is_relative_to(root):
        return os.path.relpath(real, root), None
    if not (path.is_file() or path.is_dir()):
        raise LeftOut("it is not a regular file")
    content.report(name, "a link, whose content is not frozen", f": {real}")
    return name, real


def _read(content: _Content, inside: Inside, name: str, real: str) -> tuple[bytes, int]:
    """Return a file's bytes and mode; read again if it was written meanwhile."""
    for _ in range(3):
        descriptor, before = inside.open(real)
        with open(descriptor, "rb") as stream:
            if why := content.secrets.why(real, before):
                raise LeftOut(why)
            data = stream.read(MOST_BYTES + 1)
            if content.secrets.holds_one(real, data):
                raise LeftOut(HOLDS)
            after = os.fstat(descriptor)
        if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, len(data)):
            return data, after.st_mode
    content.report(name, "is being written; frozen as it was found")
    return data, after.st_mode


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
