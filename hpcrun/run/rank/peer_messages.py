"""Messages between two ranks by gloo itself, outside of ``torch.distributed``.

Where a rank waits for another one outside of torch, it does so here: `health.progress.COLLECTIVE`
has this file's path, so that who waits is not taken for who fails, hangs or is slow.
"""

from __future__ import annotations

import pickle
from typing import Any, TypeAlias

# Bytes of a message's first part, which has all of a short value, and of the length in it.
_HEAD, _LENGTH = 1 << 10, 8
# What `wait` takes: gloo's work, and the tensor that is held until it is done.
Sending: TypeAlias = tuple[Any, Any]


def send(group: Any, value: Any, peer: int) -> list[Sending]:
    """Begin to send a value to another rank of a gloo process group."""
    data = pickle.dumps(value)
    data = (len(data).to_bytes(_LENGTH, "big") + data).ljust(_HEAD, b"\0")
    parts = [part for part in (data[:_HEAD], data[_HEAD:]) if part]
    return [give(group, part, peer, tag) for tag, part in enumerate(parts)]


def receive(group: Any, peer: int) -> Any:
    """Wait for a value that another rank sends, and return it."""
    head = bytes(take(group, _HEAD, peer))
    size, data = int.from_bytes(head[:_LENGTH], "big"), head[_LENGTH:]
    data += bytes(take(group, size - len(data), peer, 1)) if size > len(data) else b""
    return pickle.loads(data)  # noqa: S301 - of this attempt's own ranks


def give(group: Any, data: bytes, peer: int, tag: int = 0) -> Sending:
    """Begin to send bytes to another rank."""
    import torch

    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return group.send([tensor], peer, tag), tensor


def take(group: Any, size: int, peer: int, tag: int = 0) -> Any:
    """Wait for so many bytes from another rank, and return an array of them."""
    import torch

    tensor = torch.empty(size, dtype=torch.uint8)
    group.recv([tensor], peer, tag).wait()
    return tensor.numpy()


def wait(sent: list[Sending]) -> None:
    """Wait until the other ranks have what was sent."""
    for work, _ in sent:
        work.wait()
