"""The ledger's record of what an attempt's nodes staged.

``nodes`` (how many), ``files`` and ``bytes`` of each, the bytes ``copied`` now on all of them,
``seconds`` on the ``slowest``, and ``notes``, the first of a ``count``: sources that ranks read
where they are, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcrun.fields import INDEX, NUMBER, TEXT, TEXTS, WHOLE, Kinds
from hpcrun.text import plural, size, time_spent

KINDS: Kinds = {
    **dict.fromkeys(("nodes", "files", "count"), INDEX),
    **dict.fromkeys(("bytes", "copied"), WHOLE),
    **{"seconds": NUMBER, "slowest": TEXT, "notes": TEXTS},
}


def sentence(found: Mapping[str, Any]) -> str:
    """Describe what staging came to, from its record."""
    nodes = found["nodes"]
    where = f"{plural(nodes, 'node')}" if nodes == 1 else f"each of {plural(nodes, 'node')}"
    what = f"{size(found['bytes'])} in {plural(found['files'], 'file', ',')}"
    text = f"staged {what} on {where} in {time_spent(found['seconds'])}"
    if nodes > 1:
        text += f" (the longest, on {found['slowest']})"
    if not found["copied"] and found["bytes"]:
        return f"{text}: all of it was there already"
    if found["copied"] < found["bytes"] * nodes:
        text += f", {size(found['copied'])} of it copied now"
    return text
