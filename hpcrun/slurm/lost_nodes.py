"""Nodes that do not answer, and whether Slurm knows.

Slurm 22.05 never gives back what a job held that was requeued while one of its nodes was dead and
not yet down: the job, or the next one, then waits for ever beside idle nodes. Seen with plain
``sbatch`` and ``scontrol requeue``, and not on 24.11. Waiting costs nothing: the job does not start
again before Slurm has found the node down.

Standard library only, as `hpcrun.slurm.job`.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Sequence

from hpcrun.slurm import client

# The first version that was seen to give everything back.
_MENDED = (24, 11)
# Seconds beyond SlurmdTimeout in which Slurm has always found a node down.
_MARGIN = 60.0
# Slurm's own defaults.
_SLURMD_TIMEOUT = 300.0
_SLURMD_PORT = 6818
_TIMEOUT = 8.0


def wait_until_known(nodes: Sequence[str], goes_on: Callable[[], bool]) -> None:
    """Wait until a requeue does no harm: Slurm has found the nodes down, or they live after all.

    Parameters
    ----------
    nodes
        Nodes of the job that do not answer hpcrun.
    goes_on
        Asked every two seconds; False ends the wait.
    """
    settings = client.configuration(timeout=_TIMEOUT) if nodes else {}
    version = re.match(r"(\d+)\.(\d+)", settings.get("SLURM_VERSION", ""))
    if not nodes or (version and (int(version[1]), int(version[2])) >= _MENDED):
        return
    limit = float(settings.get("SlurmdTimeout", _SLURMD_TIMEOUT)) + _MARGIN
    port = int(settings.get("SlurmdPort", _SLURMD_PORT))
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline and goes_on():
        shown = [client.show("node", node, timeout=_TIMEOUT) for node in nodes]
        if all(_is_down(node) or _answers(node, port) for node in shown):
            return
        time.sleep(2)


def _is_down(shown: dict[str, str]) -> bool:
    return re.match(r"DOWN\b", shown.get("State", "")) is not None


def _answers(shown: dict[str, str], port: int) -> bool:
    """Whether the node's slurmd takes connections. Its own ``Port`` is shown where it has one."""
    try:
        where = (shown["NodeAddr"], int(shown.get("Port", port)))
        with socket.create_connection(where, timeout=2):
            return True
    except KeyError:
        return False
    except OSError:
        return False
