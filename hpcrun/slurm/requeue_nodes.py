"""The nodes of a requeued job: wait for lost ones, exclude those it can spare.

Slurm 22.05 never gives back what a job held that was requeued while one of its nodes was dead and
not yet down: the job, or the next one, then waits for ever beside idle nodes. Seen with plain
``sbatch`` and ``scontrol requeue``, and not on 24.11. Waiting costs nothing: the job does not start
again before Slurm has found the node down.

A job that excludes too many nodes never starts again: Slurm takes the exclusion, finds that the
nodes left are too few, and holds the job for good (``BadConstraints``). Seen on 24.11. ``sbatch
--test-only`` reports that, but also for nodes that are only down for now, so nodes like those of
the job are counted first.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from hpcrun.slurm import client
from hpcrun.text import Say

# The first version that was seen to give everything back, here and within a job (`are_kept`).
_MENDED = (24, 11)
# Seconds beyond SlurmdTimeout in which Slurm has always found a node down.
_MARGIN = 60.0
# Slurm's own defaults.
_SLURMD_TIMEOUT = 300.0
_SLURMD_PORT = 6818
_USABLE = re.compile(r"idle|mix|alloc|comp")


def wait_until_known(nodes: Sequence[str], goes_on: Callable[[], bool]) -> None:
    """Wait until a requeue does no harm: Slurm has found the nodes down, or they live after all.

    ``nodes`` do not answer hpcrun. ``goes_on`` is called every two seconds; False ends the wait.
    """
    settings = client.configuration() if nodes else {}
    if not nodes or _is_mended(settings):
        return
    limit = float(settings.get("SlurmdTimeout", _SLURMD_TIMEOUT)) + _MARGIN
    port = int(settings.get("SlurmdPort", _SLURMD_PORT))
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline and goes_on():
        shown = [client.show("node", node) for node in nodes]
        if all(_is_down(node) or _answers(node, port) for node in shown):
            return
        time.sleep(2)


def are_kept() -> bool:
    """Check whether a job that outlives a node gets no processors back from steps of others.

    In Slurm 22.05, a step that ran as the job lost a node keeps its share after its end: a new one
    that does not ``--overlap`` waits for ever.
    """
    return not _is_mended(client.configuration())


def _is_mended(settings: Mapping[str, str]) -> bool:
    version = re.match(r"(\d+)\.(\d+)", settings.get("SLURM_VERSION", ""))
    return version is not None and (int(version[1]), int(version[2])) >= _MENDED


def is_lost(node: str) -> bool:
    """Check whether Slurm has lost a node, too: it is down, or does not answer."""
    state = client.show("node", node).get("State", "")
    return re.match(r"(?:DOWN|FAIL)\b|\w+\*|.*NOT_RESPONDING", state) is not None


def _is_down(shown: dict[str, str]) -> bool:
    return re.match(r"DOWN\b", shown.get("State", "")) is not None


def _answers(shown: dict[str, str], port: int) -> bool:
    """Check whether the node's slurmd takes connections, on its own ``Port`` where it has one."""
    try:
        where = (shown["NodeAddr"], int(shown.get("Port", port)))
        with socket.create_connection(where, timeout=2):
            return True
    except (KeyError, OSError):
        return False


def without(
    job: str, nodes: Sequence[str], needed: int, *, kept: str | None, say: Say
) -> tuple[str, ...]:
    """Return those nodes that a job can exclude and still be started some day.

    Nodes that Slurm could use now are given back before those it could not, the one that was lost
    first before the others. The job, ``123`` or ``123_4``, runs or waits, and has ``needed`` nodes;
    ``nodes`` come in the order in which they were lost, ``kept`` is the job's own ``--exclude``, a
    host list. Returns all of them if Slurm does not answer.
    """
    shown = client.show("job", job) if nodes else {}
    if "Command" not in shown or "Partition" not in shown:
        return tuple(nodes)
    script, partition = shown["Command"], shown["Partition"]
    usable = _alike(nodes, partition)
    if not kept and len(usable.keys() - set(nodes)) >= needed:
        return tuple(nodes)
    left = list(nodes)
    for back in sorted(nodes, key=lambda node: not usable.get(node)):
        out = ",".join(filter(None, (kept, *left)))
        if not client.leaves_too_few(script, partition, needed, out):
            break
        left.remove(back)
        say(f"{back} is not excluded: too few nodes would be left")
    return tuple(left)


def of_part(part: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return what a further part of a heterogeneous job is to exclude, beside its own; or nothing.

    ``part`` is its raw id. It excludes all of ``nodes`` that are like its own, or none.
    """
    shown = client.show("job", part)
    try:
        needed, partition = int(shown["NumNodes"].partition("-")[0]), shown["Partition"]
    except (KeyError, ValueError):
        return ()
    usable = _alike(nodes, partition)
    out = [node for node in nodes if node in usable]
    if not out or len(usable) - len(out) < needed:
        return ()
    own = shown.get("ExcNodeList", "")
    return (*([own] if own not in ("", "(null)") else []), *out)


def _alike(nodes: Sequence[str], partition: str) -> dict[str, bool]:
    """Return the partition's nodes of the same build as some of these -> whether usable now.

    The job was given these nodes, so others like them will do.
    """
    rows = client.nodes(partition)
    builds = {row["build"] for row in rows if row["name"] in nodes}
    return {
        row["name"]: bool(_USABLE.fullmatch(row["state"])) for row in rows if row["build"] in builds
    }
