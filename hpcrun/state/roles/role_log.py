"""The ledger's event ``role``: ranks ended badly or lost their node, and the run goes on.

``role``, ``ranks`` (those that are started anew, or given up), ``what`` (``restarted``, ``moved``
to another node, ``ignored``), ``why`` (a clause), ``node`` (where they are now), ``number`` (of the
role's restarts in the attempt so far), and of the rank that ended ``rank``, ``exit_code``,
``signal``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpcrun.fields import INDEX, INDICES, TEXT, WHOLE, Kinds
from hpcrun.text import listed, ranges

RESTARTED, MOVED, IGNORED = "restarted", "moved", "ignored"
KINDS: Kinds = {
    **dict.fromkeys(("role", "what", "why", "node", "signal"), TEXT),
    **{"ranks": INDICES, "number": INDEX, "rank": INDEX, "exit_code": WHOLE},
}
NEEDED = ("role", "what", "why", "ranks")
# So many are told one by one.
_TOLD = 8


def told(record: Mapping[str, Any]) -> str:
    """Return an event as a sentence."""
    ranks, node = record["ranks"], record.get("node")
    on = f" on {node}" if node else ""
    one = "rank" if len(ranks) == 1 else "ranks"
    who = f"{one} {','.join(ranges(ranks))}"
    then = {
        RESTARTED: f"{who} started anew{on}",
        MOVED: f"{who} moved{on and f' to {node}'}",
        IGNORED: f"the run goes on without {who}",
    }
    return f"role {record['role']}: {record['why']}; {then.get(record['what'], record['what'])}"


def summary(records: Iterable[Mapping[str, Any]]) -> str:
    """Return in words how often each role's ranks were restarted, moved or given up."""
    counts: dict[tuple[str, str], int] = {}
    for record in records:
        key = (record["role"], record["what"])
        counts[key] = counts.get(key, 0) + 1
    parts = [f"{role} {what} {number}x" for (role, what), number in counts.items()]
    return listed(parts, _TOLD)
