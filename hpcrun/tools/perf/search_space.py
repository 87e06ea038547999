"""The keys that a tuning varies, and their values. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcrun.compile.freeze import CompiledRun
from hpcrun.errors import UsageError
from hpcrun.policy import batch
from hpcrun.text import plural

MICRO = f"deepspeed.{batch.MICRO}"
STAGE = "deepspeed.zero_optimization.stage"
OFFLOAD = "deepspeed.zero_optimization.offload_optimizer.device"
# The blocks of a spec that differ between trials of one allocation.
BLOCKS = ("config", "deepspeed", "parallel")
# Values of a key that are tried where the user gives none, and combinations of all keys.
_MOST_MICROS, MOST = 6, 2_000


@dataclass(frozen=True)
class SpaceKey:
    """A key, with ``+`` where it is added, and the values that are tried, as they are typed."""

    key: str
    values: tuple[str, ...]


def parse(words: Sequence[str]) -> list[SpaceKey]:
    """Return the keys of ``--space key=a,b``; a comma within brackets or quotes is a value's.

    Raises UsageError for what is no key with values, or a key that needs another allocation.
    """
    found: dict[str, SpaceKey] = {}
    for word in words:
        key, equals, text = word.partition("=")
        key = key.strip()
        values = tuple(dict.fromkeys(one.strip() for one in _split(text)))
        if not equals or not all(key.split(".")) or "" in values:
            raise UsageError(
                f"--space: found {word!r}; accepted is key=a,b",
                hint=f"such as --space {STAGE}=0,1,2",
            )
        if key.removeprefix("+").partition(".")[0] not in BLOCKS:
            raise UsageError(
                f"--space: found {key}; accepted are keys below {', '.join(BLOCKS)}: all trials "
                "share one allocation",
                hint="compare numbers of nodes with `hpcrun scaling SPEC --nodes 1,2,4`",
            )
        if key.removeprefix("+") in found:
            raise UsageError(f"--space: {key} is given twice", hint=f"once: --space {key}=a,b")
        found[key.removeprefix("+")] = SpaceKey(key, values)
    return list(found.values())


def _split(text: str) -> Iterator[str]:
    depth, quote, start = 0, "", 0
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        else:
            depth += (sign in "[{") - (sign in "]}")
        if sign == "," and depth == 0 and not quote:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def usual(run: CompiledRun) -> list[SpaceKey]:
    """Return the keys that are tried by default: micro batch, ZeRO stage, and offload on GPUs."""
    found = []
    train = run.deepspeed.get(batch.TRAIN)
    ranks = run.main_ranks
    if isinstance(train, int):
        share = max(1, train // ranks)
        micros = [one for one in range(1, share + 1) if share % one == 0]
        found.append(SpaceKey(MICRO, tuple(map(str, micros[-_MOST_MICROS:]))))
    found.append(SpaceKey(STAGE, ("0", "1", "2", "3")))
    if run.resources.gpus_per_node:
        found.append(SpaceKey(OFFLOAD, ("none", "cpu")))
    return found


def combinations(keys: Sequence[SpaceKey]) -> list[dict[str, str]]:
    """Return every combination, key -> value; raise UsageError for more than `MOST`."""
    number = 1
    for one in keys:
        number *= len(one.values)
    if number > MOST:
        raise UsageError(
            f"the space has {number:,} combinations; accepted are at most {MOST:,}",
            hint="give fewer values: --space key=a,b",
        )
    if number < 1 or not keys:
        raise UsageError("there is nothing to vary", hint=f"such as --space {STAGE}=0,1,2")
    names = [one.key for one in keys]
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(one.values for one in keys))
    ]


def told(keys: Sequence[SpaceKey]) -> str:
    """Return the space in one line."""
    shown = " x ".join(f"{one.key.rpartition('.')[2]} ({len(one.values)})" for one in keys)
    return f"{plural(len(combinations(keys)), 'combination')}: {shown}"
