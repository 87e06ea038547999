"""The check of an attempt's nodes, from the supervisor: compares them, and acts on what is bad.

`StartCheck.greeted` is called once the agents have said hello, `StartCheck.prepared` once the nodes
are ready. Each raises `NodesUnhealthy` where the attempt is not to go on with its nodes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hpcrun.policy import causes, node_health
from hpcrun.policy.node_health import HealthFinding
from hpcrun.run.check_in import link_test, pairing
from hpcrun.run.check_in.pairing import Pair, PairRates
from hpcrun.run.fabric import link_check
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.job.rank_places import NodesUnhealthy
from hpcrun.run.protocol.launch import LaunchNode
from hpcrun.run.protocol.output import say
from hpcrun.slurm import requeue_nodes
from hpcrun.state import ledger
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.text import size

# Seconds of all links together, after which they are left as they are; of one answer; times that
# slow ones are measured again.
LINKS, ANSWER, AGAIN = 20.0, 8.0, 2
# Seconds by which a clock may be wrong.
CLOCKS = 5.0
# Part of the nodes' usual rate below which a link is a fault, and never above so many bytes per
# second; and below which it is a doubt. They are far from what noise does: a slow direction is
# measured again, and the best counts.
FAULT, FAULT_MOST, DOUBT = 0.05, 100e6, 0.2
# Part of the pairs, and their number, above which slow ones are how the fabric is, or how busy the
# nodes' processors are.
_MANY, _MANY_PAIRS = 0.25, 8
_MOST = link_check.MOST_RECORDED

Record = Callable[..., None]


class StartCheck:
    """The check of one attempt's nodes; nothing where the profile turns it off."""

    def __init__(
        self, plan: Plan, run: RunPlan, paths: AttemptPaths, launcher: Launcher, agents: Agents
    ) -> None:
        self._run, self._paths = run, paths
        self._launcher, self._agents = launcher, agents
        self._health: Mapping[str, Any] = plan.cluster.get("health") or {}
        self.is_on = bool(self._health.get("check", True)) and not launcher.is_one_machine
        self._found: list[HealthFinding] = []
        self._bad_spares: set[str] = set()

    def greeted(self, nodes: Sequence[str], record: Record) -> None:
        """Check what the agents said as they began: interfaces that are down."""
        if self.is_on:
            self._act(self._interfaces_down(nodes), nodes, record)

    def prepared(self, nodes: Sequence[LaunchNode], record: Record, asked: float) -> None:
        """Check what the nodes report, and their links; ``asked`` is when they were asked."""
        if not self.is_on:
            return
        names = [node.name for node in nodes]
        adapters = link_check.compare({node.name: node.adapters for node in nodes})
        found = [
            HealthFinding(str(one["node"]), str(one["kind"]), str(one["message"]))
            for one in adapters
        ]
        found += _of_reports(names, self._agents.reports, self._run, asked)
        if len(names) > 1 and self._launcher.is_slurm:
            found += self._of_links(nodes)
        self._act(found, names, record)

    def _act(self, found: Sequence[HealthFinding], nodes: Sequence[str], record: Record) -> None:
        new = [one for one in found if one not in self._found]
        self._found += new
        if not new:
            return
        decision = node_health.decide(
            self._found,
            nodes,
            self._health,
            spares=self._spares(nodes),
            spent=self._spent(),
            can_exclude=self._excludable,
        )
        for one in new:
            say(f"health: node {one.node}: {one.message}")
        say(f"health: {decision.action}: {decision.reason}")
        shown = [one.to_data() for one in self._found[:_MOST]]
        details = {"findings": shown, "count": len(self._found), "nodes": list(decision.nodes)}
        record(ledger.HEALTH, action=decision.action, reason=decision.reason, **details)
        if decision.action != node_health.GO_ON:
            self._agents.give_up(decision.nodes)
            broken = decision.hardware
            raise NodesUnhealthy(decision.message, decision.nodes, decision.action, broken)

    def _spares(self, nodes: Sequence[str]) -> int:
        """Return how many spares could take a place in this allocation; those known to be bad not.

        One that has not said hello yet may be a moment late. 0 where the run is not to be started
        again in this allocation.
        """
        if not self._run.recovery.requeue or not self._run.recovery.in_place:
            return 0
        usable = self._agents.usable
        down = {one.node for one in self._interfaces_down(usable)}
        out = {*nodes, *self._bad_spares, *down}
        return sum(node not in out for node in usable)

    def _interfaces_down(self, nodes: Sequence[str]) -> list[HealthFinding]:
        links, named = self._agents.links, self._launcher.fabric.get("fast_interface")
        if named is None and links.fast_on_all(nodes):
            return []  # these are used, whatever else is down
        return interfaces_down(nodes, links.up, links.down, named)

    def _spent(self) -> int:
        """Return how often this submission of the run has done without nodes."""
        attempts = ledger.read(self._paths.run)
        mine = next((one for one in attempts if one.number == self._paths.number), None)
        submission = None if mine is None else mine.submission
        return sum(one.kind == causes.BAD_NODE and one.submission == submission for one in attempts)

    def _excludable(self, nodes: Sequence[str]) -> Sequence[str]:
        if not self._launcher.requeues or not self._run.recovery.requeue:
            return ()
        kept, needed = self._run.resources.exclude, self._run.shared_nodes
        return requeue_nodes.without(self._launcher.job_id, nodes, needed, kept=kept, say=say)

    def _of_links(self, nodes: Sequence[LaunchNode]) -> list[HealthFinding]:
        """Have neighbours measure their links over the fast interface, spares too."""
        usual = Counter(node.interface for node in nodes).most_common(1)[0][0]
        own = {node.name: node.interface for node in nodes}
        # Spares that have not said hello yet are not waited for.
        spares = [node for node in self._agents.usable if node in self._agents.links.up]
        own |= {node: usual for node in spares if node not in own}
        deadline = time.monotonic() + LINKS
        found = self._listen(own, link_test.SECONDS)
        there = [node for node in self._launcher.nodes if isinstance(found.get(node), tuple)]
        problems = {node: str(found[node]) for node in found if node not in there}
        rates = StartRates(there)
        for pairs in pairing.ring(there):
            self._measure(pairs, found, rates, deadline)
        if told := rates.settle():
            say(f"links over {usual}: {told}")
        for _ in range(AGAIN):
            doubtful = rates.doubtful_pairs()
            if not doubtful or time.monotonic() > deadline:
                break
            asked = {node: own[node] for pair in doubtful for node in pair}
            where = self._listen(asked, link_test.LONGER)
            for pairs in _apart(doubtful):
                self._measure(pairs, where, rates, deadline)
        for node in own:
            self._agents.send(node, {"type": "listened"})
        if rates.rates:
            slowest, fastest = (size(int(one(rates.rates.values()))) for one in (min, max))
            say(f"links of {len(there)} nodes over {usual}: {slowest}/s to {fastest}/s")
        slow = link_findings(rates, usual, [*own])
        slow += [
            HealthFinding(node, node_health.SLOWER_LINK, f"its link cannot be measured: {problem}")
            for node, problem in problems.items()
        ]
        names = {node.name for node in nodes}
        self._bad_spares |= {one.node for one in slow} - names
        return [one for one in slow if one.node in names]

    def _listen(self, interfaces: Mapping[str, str], seconds: float) -> dict[str, Any]:
        """Tell nodes to listen; return the address and port of each, or the error as text."""
        questions = {
            node: {"type": "listen", "interface": name, "seconds": seconds}
            for node, name in interfaces.items()
        }
        return self._agents.ask_each(questions, "listening", ANSWER)

    def _measure(
        self,
        pairs: Sequence[Pair],
        where: Mapping[str, tuple[str, int]],
        rates: StartRates,
        deadline: float,
    ) -> None:
        limit = min(ANSWER, deadline - time.monotonic())
        if limit <= 0:
            return
        questions = {
            one: {"type": "measure", "address": where[other][0], "port": where[other][1]}
            for one, other in pairs
            if isinstance(where.get(other), tuple)
        }
        answers = self._agents.ask_each(questions, "measured", limit)
        for pair in pairs:
            answer = answers.get(pair[0])
            if isinstance(answer, tuple):
                rates.add(pair, *answer)
            elif answer is not None:
                rates.fail(pair, str(answer))


def _apart(pairs: Iterable[Pair]) -> Iterable[list[Pair]]:
    """Yield the pairs in rounds in which each node is in one pair."""
    left = list(pairs)
    while left:
        busy: set[str] = set()
        now: list[Pair] = []
        for pair in left:
            if not busy & {*pair}:
                now.append(pair)
                busy |= {*pair}
        done = {*now}
        left = [pair for pair in left if pair not in done]
        yield now


def interfaces_down(
    nodes: Sequence[str],
    up: Mapping[str, Sequence[str]],
    down: Mapping[str, Sequence[str]],
    named: str | None = None,
) -> list[HealthFinding]:
    """Return the nodes whose fast interface is down while another node's of that name is up.

    ``named`` is the interface that the cluster profile names: no other matters then.
    """
    found = []
    for node in nodes:
        for name in down.get(node, ()):
            if named not in (None, name):
                continue
            peers = [one for one in (*nodes, *up) if one != node and name in up.get(one, ())]
            if peers:
                words = f"its {name} is down, and that of {peers[0]} is up"
                found.append(HealthFinding(node, node_health.INTERFACE_DOWN, words))
    return found


def _of_reports(
    nodes: Sequence[str], reports: Mapping[str, Mapping[str, Any]], run: RunPlan, asked: float
) -> list[HealthFinding]:
    """Return what the nodes found wrong with themselves, and what shows beside the others."""
    answered = time.time()
    found = []
    known = {node: reports[node] for node in nodes if node in reports}
    most = max((own["gpus"] or 0 for own in known.values()), default=0)
    for node, own in known.items():
        found += [HealthFinding(node, kind, message) for kind, message in own["findings"]]
        if own["gpus"] == 0 and most > 0:
            message = f"no GPU can be seen on it, and {most} on others"
            found.append(HealthFinding(node, node_health.NO_GPU, message))
        ahead = max(own["clock"] - answered, asked - own["clock"], 0.0)
        if ahead > CLOCKS:
            which = "ahead of" if own["clock"] > answered else "behind"
            message = f"its clock is {ahead:.0f} s {which} that of {nodes[0]}"
            found.append(HealthFinding(node, node_health.CLOCK, message))
    return found


class StartRates(PairRates):
    """The rates that were measured at a start, with its own limit."""

    part = DOUBT
    parts: tuple[float, ...] = (FAULT, DOUBT)

    @property
    def limit(self) -> float:
        most = FAULT_MOST if self.part == FAULT else float("inf")
        return min(self.part * self.reference, most)

    def settle(self) -> str:
        """Look for faults alone from now on where doubts are many; return what to say of it."""
        doubtful, pairs = len(self.doubtful_pairs()), len(self.latencies) + len(self.errors)
        if doubtful <= max(_MANY_PAIRS, _MANY * pairs):
            return ""
        self.parts = (FAULT,)
        self.part = FAULT
        return f"{doubtful} of {pairs} pairs have a slow link, too many for a fault of single nodes"


def link_findings(rates: StartRates, interface: str, nodes: Sequence[str]) -> list[HealthFinding]:
    """Return the findings on these nodes; ``rates`` may have others, such as spares.

    Where no link works at all nobody knows whose fault that is: a firewall, or a network without
    routes, is the site's.
    """
    found: list[HealthFinding] = []
    works = rates.reference > 0
    for part in rates.parts:
        rates.part = part
        named = {one.node for one in found}
        for one in rates.findings():
            if one["kind"] != pairing.LATE and not named & {*one["nodes"]}:
                found += _of_link(one, interface, is_fault=works and part == FAULT)
    return [one for one in found if one.node in nodes]


def _of_link(one: dict[str, Any], interface: str, *, is_fault: bool) -> list[HealthFinding]:
    named, rate, usual = one["nodes"], one["rate"], one["reference"]
    error = f": {one['error']}" if one.get("error") else ""
    kind = node_health.SLOW_LINK
    if one["kind"] == pairing.UNREACHED:
        words = f"no other node reaches it over {interface}{error}"
    elif one["kind"] == pairing.SLOW_PAIR:
        kind = node_health.SLOW_PAIR
        carried = f"{size(int(rate))}/s" if rate else "nothing"
        words = f"between {' and '.join(named)}, {interface} carries {carried}"
        words += (f", and {size(int(usual))}/s elsewhere" if usual else "") + error
    else:
        does = "sends" if one["kind"] == pairing.SLOW_SENDER else "receives"
        words = f"it {does} {size(int(rate))}/s over {interface}, its peers {size(int(usual))}/s"
    return [
        HealthFinding(node, kind if is_fault else node_health.SLOWER_LINK, words) for node in named
    ]
