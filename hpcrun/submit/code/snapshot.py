"""Archives of the user's code at submission, and of hpcrun itself.

An archive is named by its content. Inside git it holds the tracked files and the untracked ones
that are not ignored, as they are in the working tree; elsewhere everything except what `code_files`
leaves out. Equal files give equal archives, byte for byte (times and owners are constants).

Symbolic links: a link to a frozen file or directory stays a link; a link to any other file becomes
a copy of that file; a link to any other directory stays a link, to its absolute path, because such
directories hold data, and is reported; a broken link is left out and reported.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import uuid
import zipfile
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

import hpcrun
from hpcrun.errors import UsageError
from hpcrun.state import files as state_files
from hpcrun.state.layout import SubmissionPaths
from hpcrun.submit.code import code_files
from hpcrun.submit.code.code_files import CodeListing
from hpcrun.submit.code.hashing import HashingStream

DEFAULT_LIMIT = 100_000_000
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


@dataclass
class _Content:
    root: Path
    limit: int
    sizes: dict[str, int] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def freeze(
    root: Path,
    directory: Path,
    *,
    exclude: Sequence[str] = (),
    required: Collection[str] = (),
    without: Collection[Path] = (),
    limit: int = DEFAULT_LIMIT,
) -> Snapshot:
    """Freeze the code under ``root`` as ``directory/SHA.tar.gz``, unless that exists already.

    Raise UsageError if there is too much, a file cannot be read or a required one does not exist.

    The archive's names are relative to ``root``; ``directory`` is created if it does not exist.
    Files that match ``exclude``, patterns as in .gitignore, are left out; ``required`` (spec and
    entry, relative to ``root``) are frozen even if git ignores them; ``without`` never belongs to
    the code: the root of experiments, links, files of secrets. All files together may have at most
    ``limit`` bytes.
    """
    listing = code_files.find(root, exclude=exclude, required=required, without=without)
    content = _content(root, listing, limit)
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".{uuid.uuid4().hex[:12]}.tmp"
    try:
        with open(temporary, "xb") as stream:
            digest, count = _write(content, listing.paths, stream)
            stream.flush()
            os.fsync(stream.fileno())
        archive = directory / f"{digest}.tar.gz"
        if archive.exists():
            temporary.unlink()
        else:
            os.replace(temporary, archive)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    total = sum(content.sizes.values())
    return Snapshot(archive, digest, listing.git, total, count, tuple(content.notes))


def look(root: Path, **scope: Any) -> dict[str, bytes]:
    """Return what `freeze` would freeze now: name -> content, or the target of a link.

    The keyword parameters are ``exclude``, ``required`` and ``without``, as in `freeze`.
    """
    listing = code_files.find(root, **scope)
    content = _content(root, listing, DEFAULT_LIMIT)
    found = (_member(content, name) for name in listing.paths)
    return {info.name: _data(info, data) for info, data in filter(None, found)}


def read(archive: Path) -> dict[str, bytes]:
    """Return the same of an archive; raise UsageError if it cannot be read."""
    found = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is not None or member.issym():
                    found[member.name] = _data(member, stream.read() if stream else b"")
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        raise UsageError(f"the frozen code {archive} cannot be read: {error}") from None
    return found


def recorded(submission: SubmissionPaths) -> dict[str, Any]:
    """Return the ``code`` of a submission's ``submission.json``, as `Snapshot.to_data` wrote it.

    Raise UsageError if it names no archive, or the archive is gone.
    """
    hint = "`hpcrun submit` goes on with the code of now"
    try:
        code = state_files.read_json(submission.submission)["code"]
        archive = submission.experiment.code / str(code["archive"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{submission.submission} names no frozen code", hint=hint) from None
    if not archive.is_file():
        raise UsageError(f"the code that was frozen at submission is gone: {archive}", hint=hint)
    return dict(code)


def _data(info: tarfile.TarInfo, data: bytes) -> bytes:
    return f"link to {info.linkname}\n".encode() if info.issym() else data


def package(path: Path) -> None:
    """Write the running hpcrun to a zip file that Python imports from.

    ``PYTHONPATH=hpcrun.zip python -m hpcrun.run.supervisor`` then runs this version, whatever is
    installed, upgraded or removed later.
    """
    source = Path(hpcrun.__file__).resolve().parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(source.rglob("*.py")):
            name = file.relative_to(source)
            if name.parts[0] != "_data" and "__pycache__" not in name.parts:
                info = zipfile.ZipInfo(f"hpcrun/{name.as_posix()}", (2000, 1, 1, 0, 0, 0))
                info.external_attr = 0o644 << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, file.read_bytes())
    state_files.write_bytes(path, buffer.getvalue())


def _content(root: Path, listing: CodeListing, limit: int) -> _Content:
    names = {str(part) for path in listing.paths for part in (path, *PurePosixPath(path).parents)}
    content = _Content(root, limit, frozen=names, notes=list(listing.notes))
    _check_size(content, listing.paths)
    return content


def _check_size(content: _Content, paths: Sequence[str]) -> None:
    for name in paths:
        try:
            status = (content.root / name).stat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            content.sizes[name] = max(status.st_size, content.sizes.get(name, 0))
    total = sum(content.sizes.values())
    if total > content.limit:
        largest = sorted(content.sizes.items(), key=lambda item: (-item[1], item[0]))[:10]
        listed = "\n".join(f"  {_megabytes(size):>10}  {name}" for name, size in largest)
        raise UsageError(
            f"{content.root}: the code to freeze has {_megabytes(total)} in {len(paths)} files, "
            f"accepted are {_megabytes(content.limit)}; the largest:\n{listed}",
            hint="leave out what is not code: `code: {exclude: [data, '*.pt']}` in the spec, or "
            ".gitignore",
        )


def _write(content: _Content, members: Sequence[str], stream: IO[bytes]) -> tuple[str, int]:
    count = 0
    with gzip.GzipFile("", "wb", compresslevel=5, fileobj=stream, mtime=0) as compressed:
        hashing: Any = HashingStream(compressed)
        with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for name in members:
                found = _member(content, name)
                if found:
                    info, data = found
                    archive.addfile(info, io.BytesIO(data))
                    count += 1
    return hashing.hexdigest(), count


def _member(content: _Content, name: str) -> tuple[tarfile.TarInfo, bytes] | None:
    path = content.root / name
    info = tarfile.TarInfo(name)
    info.mtime = _TIME
    try:
        if path.is_symlink():
            target = _link_target(content, name)
            if target is not None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
                return info, b""
        if not path.is_file():
            if path.exists():
                content.notes.append(f"{name}: left out, it is not a regular file")
            elif path.is_symlink():
                content.notes.append(f"{name}: left out, a link to nothing")
            content.sizes.pop(name, None)
            return None
        data, mode = _read(content, name)
    except FileNotFoundError:
        content.sizes.pop(name, None)
        content.notes.append(f"{name}: left out, it vanished while the code was frozen")
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
    info.mode = 0o755 if mode & stat.S_IXUSR else 0o644
    return info, data


def _link_target(content: _Content, name: str) -> str | None:
    """Return what a link is stored as; None if its target is stored instead or does not exist."""
    path = content.root / name
    if not path.exists():
        return None
    target = os.path.normpath(path.parent / path.readlink())
    for place, root in ((target, content.root), (os.path.realpath(path), content.root.resolve())):
        if os.path.relpath(place, root) in content.frozen:
            return os.path.relpath(place, (root / name).parent)
    if path.is_dir():
        real = os.path.realpath(path)
        content.notes.append(f"{name}: a link to {real}, whose content is not frozen")
        return real
    return None


def _read(content: _Content, name: str) -> tuple[bytes, int]:
    """Return a file's bytes and mode; read again if it was written meanwhile."""
    path = content.root / name
    for _ in range(3):
        with open(path, "rb") as stream:
            before = os.fstat(stream.fileno())
            data = stream.read(content.limit + 1)
            after = os.fstat(stream.fileno())
        if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, len(data)):
            return data, after.st_mode
    content.notes.append(f"{name}: is being written; frozen as it was found")
    return data, after.st_mode


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
