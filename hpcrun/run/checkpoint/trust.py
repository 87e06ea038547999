"""The owner of a checkpoint, and loading of one without executing anything of it.

``torch.load`` and DeepSpeed execute what a pickle names. A run goes on from files of
`permissions.trusted_users` alone; of any other run, `init_weights` loads the tensors with
`tensors_only`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcrun.state import files, permissions
from hpcrun.state.manifest import Fault

# Enumerations that DeepSpeed compares with what it has read.
_PLAIN = "deepspeed.runtime.zero.config.ZeroStageEnum"


class Inert(dict[Any, Any]):
    """Stands in for an object of a class that is not loaded: it takes everything, does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> Inert:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Ignore the state."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def unnamed(directory: Path, names: Collection[str]) -> list[Path]:
    """Return the directory of a checkpoint and all in it, by path, but for files of these names.

    Raises OSError if a directory cannot be listed.
    """

    def fail(error: OSError) -> None:
        raise error

    found = [directory]
    for parent, inner, beside in os.walk(directory, onerror=fail):
        # No objects: there may be a hundred thousand.
        place = os.path.relpath(parent, directory)
        prefix = "" if place == os.curdir else f"{place}/"
        found += [Path(parent, each) for each in (*inner, *beside) if prefix + each not in names]
    return sorted(found)


def fault(directory: Path, paths: Iterable[Path] | None = None) -> Fault | None:
    """Return the fault of a checkpoint in which a file is another user's; None if none is.

    ``paths`` are what is looked at; None looks at all.
    """
    for path in unnamed(directory, ()) if paths is None else paths:
        try:
            owner = permissions.stranger(path)
        except FileNotFoundError:
            continue  # which the manifest tells
        except OSError as error:
            return Fault(f"{path.name} cannot be read: {error.strerror}", lasting=False)
        if owner is not None:
            what = "the checkpoint" if path == directory else str(path.relative_to(directory))
            return Fault(
                f"{what} belongs to {owner}, and to load it would execute what {owner} likes "
                "(checkpoint.initialize_from takes weights of others without that)",
                lasting=False,
            )
    return None


def load_tensors(path: str | Path, load: Callable[..., Any] | None = None) -> Any:
    """Load a file of ``torch.save`` without executing anything: other objects become `Inert`.

    ``load`` is ``torch.load``. Raises OSError if it is not a regular file, which DeepSpeed opens by
    its name alone; an exception of torch's if it is no such file, or names something of the
    operating system.
    """
    import torch
    from torch import serialization

    with files.open_stream(path) as stream:
        # This very file: whoever owns the directory may put a FIFO in its place.
        opened = f"/proc/self/fd/{stream.fileno()}"
        names = serialization.get_unsafe_globals_in_checkpoint(opened)
        known: list[Any] = [(Inert, name) for name in names if name != _PLAIN]
        if _PLAIN in names:
            from deepspeed.runtime.zero.config import ZeroStageEnum

            known.append((ZeroStageEnum, _PLAIN))
        with serialization.safe_globals(known):
            try:
                found = load or torch.load
                return found(opened, map_location="cpu", mmap=True, weights_only=True)
            except Exception as error:
                if type(error).__name__ != "UnpicklingError":
                    raise
                # torch advises to load it in a way that executes what is in it.
                why = str(error).partition("WeightsUnpickler error: ")[2].partition("\n")[0]
                said = why.partition(". Please use")[0].strip() or "it is no such file"
                raise type(error)(f"not a file of tensors alone: {said}") from None


@contextmanager
def tensors_only() -> Iterator[None]:
    """Replace ``torch.load``, which DeepSpeed calls too, by `load_tensors` meanwhile."""
    import torch

    original = torch.load

    torch.load = lambda file, *_, **__: load_tensors(file, original)
    try:
        yield
    finally:
        torch.load = original
