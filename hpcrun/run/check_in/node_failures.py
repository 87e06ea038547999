"""The nodes of an attempt that could not do what they were asked, and whose fault that is.

An error of shared storage is no node's by itself, nor is what the job brings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from pathlib import Path

from hpcrun.run.check_in.patient_look import BUILD, EXIT_STORAGE, STORAGE
from hpcrun.run.job.rank_places import NotBuilt, StorageUnseen
from hpcrun.state import files
from hpcrun.text import listed

_TAIL = 2_000
_SAID = {"": "cannot be used", STORAGE: "cannot use shared storage", BUILD: "cannot compile"}


class NodeFailures:
    """Node -> why it failed, and what that is about (`STORAGE`, `BUILD`; empty: the node)."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, str]] = {}
        self._ended: list[str] = []

    def clear(self) -> None:
        self._found.clear()
        self._ended.clear()

    @property
    def nodes(self) -> Set[str]:
        return self._found.keys()

    def add(self, node: str, why: str, about: str) -> None:
        """Add a node that says that it failed."""
        self._found[node] = f"node {node} {_SAID[about]}: {why}", about

    def add_ended(self, node: str, code: int, log: Path) -> None:
        """Add a node whose agent has ended.

        One that does not see the submission does not find hpcrun itself, which lies there.
        """
        said = b""
        with contextlib.suppress(OSError):
            said = files.read_tail(log, _TAIL)
        why = f"the agent on node {node} ended with exit code {code}; see {log.name}"
        is_blind = code == EXIT_STORAGE or b"No module named 'hpcrun'" in said
        self._found[node] = why, STORAGE if is_blind else ""
        self._ended.append(node)

    def check_shared(
        self, answered: Collection[str], give_up: Callable[[Collection[str]], None]
    ) -> None:
        """Raise NotBuilt or StorageUnseen where no node is at fault.

        Storage that nobody who has ``answered`` can see is unseen by all. Nodes without an agent
        are given up.
        """
        about = {found for _, found in self._found.values()}
        if about == {STORAGE}:
            give_up(self._ended)
            raise StorageUnseen(self.message, self._found if answered else ())
        if BUILD in about and "" not in about:
            failed = [node for node, (_, found) in self._found.items() if found == BUILD]
            raise NotBuilt(self._found[failed[0]][0], failed)

    @property
    def at_fault(self) -> list[str]:
        return [node for node, (_, about) in self._found.items() if not about]

    @property
    def message(self) -> str:
        blamed = self.at_fault or self._found
        return listed([self._found[node][0] for node in blamed], 1, rest=" (and {} more)")


def have_built(
    keys: Mapping[str, str | None],
    nodes: Sequence[str],
    build: Callable[[Sequence[str], Sequence[str]], object],
    *,
    is_anywhere: bool,
) -> None:
    """Have one node of each key compile DeepSpeed's operators, and another where it cannot.

    ``build`` is called with the nodes to ask, and with those to wait for; it raises NotBuilt. With
    ``is_anywhere``, all nodes have the same compiler. Raises NotBuilt with the nodes of one key
    that could not; with none of them, where no node can.
    """
    left: dict[str, list[str]] = {}
    for node in nodes:
        if key := keys[node]:
            left.setdefault(key, []).append(node)
    asked = waiting = [own.pop(0) for own in left.values()]
    failed: dict[str, str] = {}
    while asked:
        try:
            build(asked, waiting)
            return
        except NotBuilt as error:
            asked = []
            for node in error.nodes:
                key = str(keys[node])
                if is_anywhere or key in failed or not left[key]:
                    both = [failed[key], node] if key in failed else [node]
                    raise NotBuilt(error.message, () if is_anywhere else both) from None
                failed[key] = node
                asked.append(left[key].pop(0))
            waiting = [node for node in waiting if node not in error.nodes] + asked
