"""What hpcrun promises of storage, Python and this machine, judged by what was measured. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcrun.text import size
from hpcrun.tools.doctor.promise import (
    ADMINS,
    YOU,
    JudgedPromise,
    Judgement,
    fails,
    less,
    unknown,
    works,
)

# What the tests run with, as constraints.txt has it, and what is too old to be thought the same.
TESTED = {"torch": (2, 13), "deepspeed": (0, 19), "submitit": (1, 5), "omegaconf": (2, 4)}
_OLDEST = {"torch": (2, 1), "deepspeed": (0, 14), "submitit": (1, 5), "omegaconf": (2, 3)}
# Seconds of fsync and rename, bytes per second, and bytes that are free.
_SLOW_SYNC, _SLOW_WRITE, _LITTLE = 0.1, 100e6, 10e9


@dataclass(frozen=True)
class StorageFacts:
    """What was measured of one directory; None where it was not, or failed."""

    path: str
    kind: str | None = None
    """The file system's type, such as ``nfs4``."""
    is_remote: bool = False
    sync: float | None = None
    """Seconds to write 4 kB, fsync and rename them."""
    write: float | None = None
    """Bytes per second of one file with fsync."""
    free: int | None = None
    renames: bool = True
    """A rename replaces a file at once, and mkdir refuses a name that is there."""
    error: str | None = None


@dataclass(frozen=True)
class PythonFacts:
    """What the job's Python has; ``error`` is why it was not asked."""

    executable: str = ""
    version: str | None = None
    libraries: Mapping[str, str | None] | None = None
    tools: Mapping[str, str | None] | None = None
    """``c++``, ``ninja``, ``nvcc`` and ``Python.h`` -> where they are; None if missing."""
    error: str | None = None
    unchecked: str | None = None
    """Why it was not started, if it was not."""


def storage(
    facts: StorageFacts, others: Sequence[StorageFacts], *, on_cluster: bool
) -> list[JudgedPromise]:
    """Judge the root: whether it can hold records, whether nodes see it, and how fast it is.

    ``others`` are further places of this user's, which may be better ones.
    """
    return [
        JudgedPromise("root", "records of runs are whole, whatever dies", _records(facts)),
        JudgedPromise(
            "shared root", "nodes and this machine see the same files", _shared(facts, on_cluster)
        ),
        JudgedPromise(
            "storage speed", "records and checkpoints are written fast", _speed(facts, others)
        ),
    ]


def _records(facts: StorageFacts) -> Judgement:
    trouble = facts.error
    if not trouble and not facts.renames:
        trouble = "a rename or mkdir does not do what POSIX says, by which attempts are claimed "
        trouble += "and records replaced"
    if trouble:
        change = "another root: --root DIR, HPCRUN_ROOT, or `root:` of the profile"
        return fails(f"{facts.path}: {trouble}", change, YOU)
    if facts.free is not None and facts.free < _LITTLE:
        return less(
            f"{facts.path} has {size(facts.free)} left",
            "`hpcrun clean` removes old checkpoints; or another root",
            YOU,
        )
    room = "" if facts.free is None else f", {size(facts.free)} free"
    return works(f"{facts.path}{room}")


def _shared(facts: StorageFacts, on_cluster: bool) -> Judgement:
    kind = facts.kind or "an unknown file system"
    if not on_cluster:
        return works(f"runs are on this machine ({kind})")
    if facts.is_remote:
        return works(f"{kind}; whether nodes see it at once: `hpcrun doctor --nodes 2`")
    if facts.kind in ("tmpfs", "ramfs"):
        return fails(
            f"{facts.path} lies in this machine's memory ({kind})",
            "a root on shared storage: --root DIR, HPCRUN_ROOT, `root:` of the profile",
            YOU,
        )
    return unknown(
        f"{facts.path} lies on {kind}, which looks like a disk of this machine",
        "`hpcrun doctor --nodes 2` shows whether nodes see it",
        YOU,
    )


def _speed(facts: StorageFacts, others: Sequence[StorageFacts]) -> Judgement:
    if facts.sync is None:
        return unknown(f"{facts.path} was not measured" + (f": {facts.error}" * bool(facts.error)))
    beside = [f"{one.path}: {_rates_text(one)}" for one in others if one.sync is not None]
    found = "; ".join([_rates_text(facts), *beside])
    if facts.sync > _SLOW_SYNC:
        return less(
            f"{found}: every record of every run costs that",
            "a root on faster storage; ask why fsync is slow here",
            ADMINS,
        )
    if facts.write is not None and facts.write < _SLOW_WRITE:
        return less(
            found,
            "a root on storage for large files: --root DIR; "
            "checkpoint.asynchronous hides some of it",
            YOU,
        )
    return works(found)


def _rates_text(facts: StorageFacts) -> str:
    rate = "" if facts.write is None else f", one file with {size(int(facts.write))}/s"
    return f"fsync and rename take {(facts.sync or 0.0) * 1000:.3g} ms{rate}"


def python(facts: PythonFacts, own: Mapping[str, str | None], *, gpus: bool) -> list[JudgedPromise]:
    """Judge the job's Python, hpcrun's own libraries (``own``) and the compiler."""
    return [
        JudgedPromise("job's Python", "functions train with torch and DeepSpeed", _python(facts)),
        JudgedPromise(
            "libraries", "hpcrun's own libraries are those it is tested with", _libraries(own)
        ),
        JudgedPromise("compiler", "DeepSpeed can compile its operators", _compiler(facts, gpus)),
    ]


def _python(facts: PythonFacts) -> Judgement:
    if facts.error:
        return fails(
            facts.error, "`--python PATH` tries another; environment.python of a spec names it", YOU
        )
    if facts.libraries is None:
        return unknown(f"the job's Python was not asked: {facts.unchecked or 'no reason given'}")
    told, missing, old = [], [], []
    for name in ("torch", "deepspeed"):
        there = facts.libraries.get(name)
        if there is None:
            missing.append(name)
            continue
        told.append(f"{name} {there}")
        if (number := _number(there)) and number < _OLDEST[name]:
            old.append(f"{name} {there}")
    found = f"{facts.executable}, Python {facts.version}: {', '.join(told) or 'no torch'}"
    if missing:
        return less(
            f"{found}; without {' and '.join(missing)} scripts and commands run, functions do not",
            f"`{facts.executable} -m pip install {' '.join(missing)}`, or `--python PATH`",
            YOU,
        )
    if old:
        tested = ", ".join(f"{name} {_text(TESTED[name])}" for name in ("torch", "deepspeed"))
        return less(found, f"newer ones: hpcrun is tested with {tested}", YOU)
    return works(found)


def _libraries(own: Mapping[str, str | None]) -> Judgement:
    told = ", ".join(f"{name} {value or 'missing'}" for name, value in own.items())
    missing = [name for name, value in own.items() if value is None]
    if missing:
        return fails(told, f"`pip install {' '.join(missing)}` where hpcrun is installed", YOU)
    others = [
        f"{name} {_text(TESTED[name])}"
        for name, value in own.items()
        if name in TESTED
        and (number := _number(value or ""))
        and not _OLDEST[name] <= number <= TESTED[name]
    ]
    if others:
        return less(told, f"hpcrun is tested with {', '.join(others)}", YOU)
    return works(told)


def _compiler(facts: PythonFacts, gpus: bool) -> Judgement:
    if facts.tools is None:
        return unknown("it was not looked for, as the job's Python does not answer")
    wanted = ["c++", "ninja", "Python.h", *(["nvcc"] if gpus else [])]
    missing = [name for name in wanted if facts.tools.get(name) is None]
    if not missing:
        *first, last = [one.replace("c++", "g++") for one in wanted]
        return works(f"{', '.join(first)} and {last} are on this machine")
    how = {
        "c++": "a module with g++ in the profile's setup",
        "ninja": "`pip install ninja` in the job's Python",
        "Python.h": "Python's headers (python3-dev), or a Python that brings them",
        "nvcc": "a CUDA module in the profile's setup",
    }
    found = f"no {' and no '.join(missing)} on this machine after the profile's setup"
    change = "; ".join(how[name] for name in missing)
    if missing == ["nvcc"]:
        return less(f"{found}: fused optimizers are not compiled", change, YOU)
    return less(f"{found}: DeepSpeed's operators fail unless nodes have it", change, YOU)


def machine(cpus: int, gpus: int, *, has_proc: bool) -> list[JudgedPromise]:
    """Judge this machine for ``cluster=local``."""
    told = f"{gpus} GPUs" if gpus else "no GPU"
    there = works(f"{cpus} CPUs, {told}; runs of `cluster=local` are on this machine")
    proc = (
        works("/proc is there")
        if has_proc
        else fails("/proc is not mounted, by which hpcrun knows its processes", "mount it", ADMINS)
    )
    return [
        JudgedPromise("this machine", "runs can be on this machine", there),
        JudgedPromise("processes", "nothing of a run outlives it", proc),
    ]


def not_known_here() -> list[JudgedPromise]:
    """Return the promises that only compute nodes can show."""
    ask = "`hpcrun doctor --nodes 2`"
    return [
        JudgedPromise(name, promise, unknown("this machine cannot tell", ask, YOU))
        for name, promise in (
            ("visibility", "what one node writes, the others see at once"),
            ("fabric", "gradients go over the fast interface, at its speed"),
            ("clocks", "records of several nodes are in the right order"),
        )
    ]


def _number(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text)
    return (int(found[1]), int(found[2])) if found else None


def _text(number: tuple[int, int]) -> str:
    return f"{number[0]}.{number[1]}"
