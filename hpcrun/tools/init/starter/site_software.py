"""Modules and container images of a login node: names of files, none of which is executed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hpcrun.state import files

# Bounds of a search: seconds, names, and how deep a module's name is (``ai/pytorch/2.3``).
PATIENCE, _MOST_NAMES, _DEPTH = 2.0, 20_000, 3
_MOST_FOUND, _MODULEFILE = 40, 1 << 16
# What training is made of; longer words come first in a name such as cudatoolkit.
_OF_TRAINING = re.compile(
    r"(?:cuda|cudnn|nccl|rocm|rccl|gcc|pytorch|torch|deepspeed|python|anaconda|miniconda|miniforge"
    r"|mamba|apptainer|singularity|aws-ofi)[\w.+-]*",
    re.IGNORECASE,
)
_IMAGES = (".sif", ".sqsh")


@dataclass(frozen=True)
class SiteSoftware:
    """What a search found."""

    modules: tuple[str, ...] = ()
    """Modules that training may need, as ``module load`` takes them."""
    loaded: Mapping[str, str] | None = None
    """Modules that this shell has loaded -> the module's file; empty where that is not known."""
    images: tuple[str, ...] = ()
    """Paths of container images."""
    is_cut: bool = False
    """There was more than could be looked at in time."""


def read(environ: Mapping[str, str], directories: Sequence[Path]) -> SiteSoftware:
    """Return the modules below MODULEPATH, those loaded, and the images in some directories."""
    until = time.monotonic() + PATIENCE
    roots = [Path(one) for one in environ.get("MODULEPATH", "").split(":") if one.startswith("/")]
    found: dict[str, None] = {}
    is_cut = False
    names = chain.from_iterable(_names(root, "", _DEPTH) for root in dict.fromkeys(roots))
    for seen, name in enumerate(names, 1):
        is_cut = seen > _MOST_NAMES or time.monotonic() > until
        if is_cut:
            break
        if _OF_TRAINING.fullmatch(name.rpartition("/")[0].rpartition("/")[2] or name):
            found[name] = None
    return SiteSoftware(
        modules=tuple([*found][:_MOST_FOUND]),
        loaded=_loaded_modules(environ),
        images=tuple(_images(directories))[:_MOST_FOUND],
        is_cut=is_cut or len(found) > _MOST_FOUND,
    )


def _names(directory: Path, before: str, depth: int) -> Iterator[str]:
    """Yield the names of modules below a directory."""
    try:
        with os.scandir(directory) as entries:
            inside = sorted((one for one in entries if one.name[0] not in ".~"), key=_by_name)
    except OSError:
        return
    for entry in inside:
        name = f"{before}{entry.name}"
        try:
            is_directory = entry.is_dir()
        except OSError:
            continue
        if is_directory and depth > 1:
            yield from _names(directory / entry.name, f"{name}/", depth - 1)
        elif not is_directory:
            yield name.removesuffix(".lua")


def _by_name(entry: os.DirEntry[str]) -> list[tuple[int, str]]:
    parts = re.findall(r"[0-9]{1,9}|[^0-9]+", entry.name)
    return [(int(part), "") if part[0].isdecimal() else (-1, part) for part in parts]


def _loaded_modules(environ: Mapping[str, str]) -> dict[str, str]:
    names = [one for one in environ.get("LOADEDMODULES", "").split(":") if one]
    paths = [one for one in environ.get("_LMFILES_", "").split(":") if one]
    if len(paths) != len(names):
        paths = [""] * len(names)
    return dict(zip(names, paths, strict=True))


def provider(path: str, loaded: Mapping[str, str]) -> str | None:
    """Return the loaded module whose file names a directory around ``path``; None without one."""
    around = [str(one) for one in Path(path).parents if len(one.parts) > 3]
    for name, file in loaded.items():
        if not file.startswith("/"):
            continue
        try:
            text = files.read_bytes(Path(file), _MODULEFILE).decode(errors="replace")
        except OSError:
            continue
        if any(re.search(rf"{re.escape(one)}(?![\w.-])", text) for one in around):
            return name
    return None


def _images(directories: Sequence[Path]) -> Iterator[str]:
    for directory in dict.fromkeys(directories):
        try:
            with os.scandir(directory) as entries:
                for _, entry in zip(range(_MOST_NAMES), entries, strict=False):
                    if entry.name.endswith(_IMAGES):
                        yield f"{directory}/{entry.name}"
        except OSError:
            continue
