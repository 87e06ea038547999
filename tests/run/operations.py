"""The file operations of a process, one by one, so that it can be killed between any two."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Tick = Callable[[str, Path], None]

_OS = ("mkdir", "rename", "replace", "unlink", "rmdir", "open", "fsync")


def watch(tick: Tick) -> None:
    """Have ``tick(operation, path)`` called from now on, for the rest of this process.

    It is called before each operation, and once more when a file is half written. Path is what the
    operation leads to: the new name of a rename.
    """
    for name in _OS:
        setattr(os, name, _before(name, getattr(os, name), tick))
    for name in ("mkdir", "rename"):
        # Python 3.10 keeps references to os.mkdir and os.rename of its own.
        setattr(Path, name, _before(name, getattr(Path, name), tick))
    opener = builtins.open

    def open_(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wxa+"):
            tick("open", Path(str(file)))
        return opener(file, mode, *arguments, **options)

    builtins.open = io.open = open_  # type: ignore[assignment]
    torch.save = _written("save", torch.save, 1, tick)
    Path.write_text = _written("write", Path.write_text, 0, tick)  # type: ignore[method-assign]


def _before(name: str, original: Any, tick: Tick) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        subject = arguments[1] if name in ("rename", "replace") else arguments[0]
        directory = options.get("dir_fd")
        if isinstance(subject, int):
            path = _of_descriptor(subject)
        elif directory is not None:
            path = _of_descriptor(directory) / subject
        else:
            path = Path(subject)
        if not (name == "open" and _only_reads(arguments[1]) and not path.is_dir()):
            tick(name, path)
        return original(*arguments, **options)

    return call


def _only_reads(flags: int) -> bool:
    return flags & (os.O_ACCMODE | os.O_CREAT) == os.O_RDONLY


def _written(name: str, original: Any, position: int, tick: Tick) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        target = arguments[position]
        path = Path(getattr(target, "path", target))
        tick(name, path)
        answer = original(*arguments, **options)
        if path.is_file():
            whole = path.read_bytes()
            os.truncate(path, len(whole) // 2)
            tick(f"half {name}", path)
            path.write_bytes(whole)
        return answer

    return call


def _of_descriptor(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()
