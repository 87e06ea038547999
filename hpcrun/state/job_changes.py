"""What `hpcrun update` changes of queued jobs: the names, their values, and the same in a spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpcrun.shared_dataclass import dataclass
from hpcrun.state.patched import Patched

TIME, PARTITION, QOS, NICE = "time", "partition", "qos", "nice"
PRIORITY, MAX_PARALLEL = "priority", "max_parallel"
NONE = "none"
"""The value of `max_parallel` for no limit."""

# Forms of a length of time with a unit are no forms of Slurm's.
# Compiled when they are needed: agents import this module, and change nothing.
_DURATION = r"\d{1,9}|\d{1,9}:\d{1,2}(:\d{1,2})?|\d{1,5}-\d{1,2}(:\d{1,2}){0,2}"
_NAMES = r"[A-Za-z0-9][\w.,+-]{0,199}"
_MOST_NICE, _MOST_PRIORITY = 2_147_483_645, 4_294_967_293


def _number(least: int, most: int) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(r"-?\d{1,10}", text) is not None and least <= int(text) <= most


@dataclass(frozen=True)
class JobKey:
    """A property of a queued job that can be changed."""

    field: str
    """As ``scontrol update`` calls it."""
    spec: tuple[str, ...]
    """The key of a run's spec that asks for it; empty where no key of a run does."""
    accepted: str
    takes: Callable[[str], bool]


KEYS = {
    PARTITION: JobKey(
        "Partition",
        ("resources", "partition"),
        "a partition, or several: gpu,gpu2",
        lambda text: re.fullmatch(_NAMES, text) is not None,
    ),
    QOS: JobKey(
        "QOS",
        ("resources", "qos"),
        "the name of a QOS",
        lambda text: re.fullmatch(_NAMES, text) is not None,
    ),
    TIME: JobKey(
        "TimeLimit",
        ("resources", "time"),
        "a time such as 04:00:00, 2-00:00:00 or 90 (minutes)",
        lambda text: re.fullmatch(_DURATION, text) is not None and text.strip("0:-") != "",
    ),
    NICE: JobKey(
        "Nice",
        ("resources", "sbatch", "nice"),
        "a number: 100 lowers the priority by that",
        _number(-_MOST_NICE, _MOST_NICE),
    ),
    PRIORITY: JobKey(
        "Priority", (), "a number above 0 (`scontrol hold` holds)", _number(1, _MOST_PRIORITY)
    ),
    MAX_PARALLEL: JobKey(
        "ArrayTaskThrottle",
        (),
        "a number of runs, or none",
        lambda text: text == NONE or _number(1, 1_000_000)(text),
    ),
}
"""In the order in which Slurm is given them."""


@dataclass(frozen=True)
class JobChange:
    """A value that Slurm took for a job."""

    value: str
    time: float
    """When, in seconds since the epoch."""


def from_record(record: Mapping[str, Any]) -> dict[str, JobChange]:
    """Return the changes that a line of a journal tells of; what is none of ours is passed over."""
    found = record.get("changes") or {}
    moment = float(record.get("time") or 0.0)
    return {
        name: JobChange(value, moment)
        for name, value in found.items()
        if name in KEYS and isinstance(value, str) and KEYS[name].takes(value)
    }


def apply(spec: dict[str, Any], changes: Mapping[str, JobChange]) -> dict[str, Any]:
    """Return a run's spec with what its job was changed to; it shares all else."""
    told = {KEYS[name].spec: one.value for name, one in changes.items() if KEYS[name].spec}
    if not told:
        return spec
    patched = Patched(spec)
    for key, value in told.items():
        patched.put(key, value)
    return patched.data


def max_parallel(changes: Iterable[Mapping[str, JobChange]], planned: int | None) -> int | None:
    """Return the most runs at once: the newest change of any of them, else what was planned."""
    found = [one[MAX_PARALLEL] for one in changes if MAX_PARALLEL in one]
    if not found:
        return planned
    value = max(found, key=lambda one: one.time).value
    return None if value == NONE else int(value)


def in_words(changes: Mapping[str, JobChange]) -> str:
    """``time 04:00:00, partition long``; empty of nothing."""
    return ", ".join(f"{name} {one.value}" for name, one in changes.items())
