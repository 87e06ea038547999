"""This hpcrun and the libraries it needs, as one archive that a directory elsewhere is made of.

Compiled modules stay behind: they are of this machine, and each library works without its own.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
import tarfile
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import hpcrun
from hpcrun import resources

_SHIPPED = {"templates": "", "configs": "", "jobs": "", "docs": ".md"}
# What commands need of the extras: the screen of `hpcrun top`, where it is installed.
_EXTRA = "top"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@functools.cache
def files() -> dict[str, Path]:
    """Return name in the archive -> file, of hpcrun and of all that it needs."""
    package = Path(hpcrun.__file__).resolve().parent
    found = {f"hpcrun/{name}": path for name, path in _below(package)}
    for kind, ending in _SHIPPED.items():
        for name, path in _below(resources.directory(kind)):
            if name.endswith(ending):
                found[f"hpcrun/_data/{kind}/{name}"] = path
    for distribution in _needed("hpcrun", set()):
        for file in distribution.files or ():
            name = file.as_posix()
            if not name.startswith("..") and not _is_left_out(name):
                found.setdefault(name, Path(str(file.locate())))
    return {name: path for name, path in found.items() if path.is_file()}


def _below(directory: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and not _is_left_out(name):
            yield name, path


def _is_left_out(name: str) -> bool:
    return "__pycache__" in name or name.endswith((*EXTENSION_SUFFIXES, ".so", ".pth"))


def _needed(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """Yield the distributions that one needs, and they; those that are not installed are left out.

    A requirement with a condition counts where its distribution is there.
    """
    try:
        requires = metadata.distribution(name).requires or []
    except metadata.PackageNotFoundError:
        return
    for requirement in requires:
        _, _, condition = requirement.partition(";")
        if "extra ==" in condition and not (name == "hpcrun" and _EXTRA in condition):
            continue
        needed = _NAME.match(requirement)
        if needed is None or needed[0].lower() in seen:
            continue
        seen.add(needed[0].lower())
        try:
            yield metadata.distribution(needed[0])
        except metadata.PackageNotFoundError:
            continue
        yield from _needed(needed[0], seen)


@functools.cache
def digest() -> str:
    """Return what names this content: version, and each file's name, size and time."""
    told = [(name, path.stat()) for name, path in sorted(files().items())]
    rows = [f"{name} {found.st_size} {found.st_mtime_ns}" for name, found in told]
    text = "\n".join([hpcrun.__version__, *rows])
    return f"{hpcrun.__version__}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def archive() -> bytes:
    """Return all files as a compressed tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as packed:
        for name, path in files().items():
            data = path.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            packed.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
