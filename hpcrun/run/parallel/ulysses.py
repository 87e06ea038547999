"""Attention over sequences whose parts lie on several ranks, by DeepSpeed's Ulysses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcrun.errors import UsageError

# Of this process, once `engine_setup` has made groups with more than one rank to a sequence.
_group: Any = None
_is_used = False


def use(group: Any) -> None:
    """Let all attention of this process go over the ranks of a sequence group."""
    global _group
    _group = group


def check_use(divided: Mapping[str, int], *, has_parts: bool) -> None:
    """Raise UsageError after a step that took sequences for whole, or attended to parts alone.

    ``divided`` has the axes along which the model is divided: a stage of a pipeline may read no
    sequences, and have no attention. With ``has_parts`` the program has asked for this rank's part
    of sequences.
    """
    if "sequence" not in divided or "pipeline" in divided:
        return
    if not has_parts:
        raise UsageError(
            "parallel.sequence divides sequences, and this program took no part of one: each rank "
            "would train on all of it as if it were its part",
            hint="return session.sequence_part(inputs, labels) for what the model is called with",
        )
    if not _is_used:
        raise UsageError(
            "parallel.sequence divides sequences, and no attention of this model went through "
            "hpcrun.ulysses_attention: each rank attended to its own part alone",
            hint="call hpcrun.ulysses_attention(attend, query, key, value) in the model",
        )


def attention(local: Callable[[Any, Any, Any], Any], query: Any, key: Any, value: Any) -> Any:
    """Attend over whole sequences, wherever their parts are.

    Each rank has a part of the sequence and all heads; for ``local``, the ranks exchange them, so
    that it sees whole sequences of some heads. Without ``parallel.sequence`` it is just called.

    Parameters
    ----------
    local
        Takes query, key and value and returns the result, all (batch, sequence, heads, head size).
        What depends on positions, such as rotary embeddings, belongs in it.
    query, key, value
        (batch, part of the sequence, heads, head size).

    Returns
    -------
    Tensor
        (batch, part of the sequence, heads, head size).

    Raises
    ------
    UsageError
        The heads cannot be shared out evenly.
    """
    global _is_used
    _is_used = True
    if _group is None:
        return local(query, key, value)
    from deepspeed.sequence.layer import DistributedAttention

    size = _group.size()
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.shape[2] % size:
            raise UsageError(
                f"the {name} has {tensor.shape[2]} heads, and parallel.sequence is {size}: the "
                "heads have to be a multiple"
            )
    return DistributedAttention(local, _group, 2, 1)(query, key, value, 0)
