"""Seeds from (seed, step, rank), and the state of every generator."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Any

# Bytes of NumPy's state that differ once anything was drawn: 624 words and the place in them.
_NUMPY_WORDS = 625 * 4

# NumPy's own generator, and where its state lies: to ask for them takes longer than to seed.
_numpy_state: tuple[Any, int] | None = None
# What `seed_all` seeded with last, and NumPy's bytes just after.
_seeded: tuple[int, bytes | None] = (0, None)


def derive(*parts: int) -> int:
    """Return a 63-bit seed from integers such as (seed, step, rank); the same on every machine."""
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int) -> None:
    """Seed Python, NumPy where it is loaded, and torch on the CPU and on all accelerators.

    ``torch.manual_seed`` also records the calling stack for each kind of device that is absent,
    which takes much longer than the seeding itself.
    """
    import torch

    global _seeded
    seed_host(seed)
    _seeded = seed, _numpy_words()
    if _has_cuda():
        torch.cuda.manual_seed_all(seed)
    if (other := _other_accelerator()) is not None:
        other.manual_seed_all(seed)


def seed_host(seed: int) -> None:
    """Seed Python, NumPy where it is loaded, and torch on the CPU; allowed in forked processes."""
    import torch

    random.seed(seed)
    _seed_numpy(seed)
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def host_kept() -> Iterator[None]:
    """Restore, after a block, the generators that `seed_host` seeds.

    To copy NumPy's state takes ten times as long as to seed it, which does where nothing was drawn
    since `seed_all`.
    """
    seed, words = _seeded
    untouched = words is not None and words == _numpy_words()
    saved = _host_state(numpy_too=not untouched)
    try:
        yield
    finally:
        _restore_host(saved)
        if untouched:
            _seed_numpy(seed)


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Restore, after a block, all generators that `seed_all` seeds."""
    saved = state()
    try:
        yield
    finally:
        restore(saved)


def state() -> dict[str, Any]:
    """Return the state of the generators that `seed_all` seeds, and of DeepSpeed's named ones.

    The latter are those of ``deepspeed.checkpointing``, for dropout under model parallelism.
    """
    import torch

    saved = _host_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        saved["cuda"] = torch.cuda.get_rng_state_all()
        saved["cuda_device"] = torch.cuda.current_device()
    if (other := _other_accelerator()) is not None:
        saved[other.device_name()] = other.get_rng_state()
    if (tracker := _tracker()) is not None and (named := tracker.get_states()):
        saved["tracker"] = named
    return saved


def restore(saved: dict[str, Any]) -> None:
    """Restore what `state` returned."""
    import torch

    _restore_host(saved)
    if "cuda" in saved and torch.cuda.is_available():
        if len(saved["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(saved["cuda"])
        else:
            # The rank that saved saw other devices; the one it used is here too.
            torch.cuda.set_rng_state(saved["cuda"][saved["cuda_device"]])
    if (other := _other_accelerator()) is not None and other.device_name() in saved:
        other.set_rng_state(saved[other.device_name()])
    if (tracker := _tracker()) is not None and "tracker" in saved:
        tracker.set_states(saved["tracker"])


def _seed_numpy(seed: int) -> None:
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


def _numpy_words() -> bytes | None:
    """Return NumPy's state as bytes; None where it is not loaded, or is not what it comes with."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy.random, "get_bit_generator"):
        return None
    global _numpy_state
    generator = numpy.random.get_bit_generator()
    if _numpy_state is None or _numpy_state[0] is not generator:
        if type(generator) is not numpy.random.MT19937:
            return None
        _numpy_state = generator, generator.ctypes.state_address
    return ctypes.string_at(_numpy_state[1], _NUMPY_WORDS)


def _host_state(*, numpy_too: bool = True) -> dict[str, Any]:
    import torch

    saved: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if numpy_too and (numpy := sys.modules.get("numpy")) is not None:
        saved["numpy"] = numpy.random.get_state()
    return saved


def _restore_host(saved: dict[str, Any]) -> None:
    import torch

    random.setstate(saved["python"])
    torch.set_rng_state(saved["torch"])
    if (numpy := sys.modules.get("numpy")) is not None and "numpy" in saved:
        numpy.random.set_state(saved["numpy"])


@functools.cache
def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _other_accelerator() -> Any:
    """Return DeepSpeed's accelerator if it is loaded and neither the CPU nor CUDA, else None."""
    module = sys.modules.get("deepspeed.accelerator")
    found = None if module is None else module.get_accelerator()
    return None if found is None or found.device_name() in ("cpu", "cuda") else found


def _tracker() -> Any:
    module = sys.modules.get("deepspeed.runtime.activation_checkpointing.checkpointing")
    return None if module is None else module.get_cuda_rng_tracker()
