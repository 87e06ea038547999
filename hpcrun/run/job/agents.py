"""The job's agents, seen from the supervisor: started, asked and dismissed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcrun import feature
from hpcrun.run.check_in.node_failures import NodeFailures, have_built
from hpcrun.run.check_in.node_links import NodeLinks
from hpcrun.run.copies.copy_reports import CopyReports
from hpcrun.run.health.program_hangs import NodeTraffic, RankActivity
from hpcrun.run.health.progress import RankProgress
from hpcrun.run.job import agent_steps
from hpcrun.run.job.agent_steps import AgentStep, AgentSteps
from hpcrun.run.job.archive_sending import ArchiveSending
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.job.rank_places import NodesLost, NodesUnusable, RankPlaces
from hpcrun.run.node import network
from hpcrun.run.node.rank_processes import START_VARIABLE
from hpcrun.run.protocol import messages
from hpcrun.run.protocol.heartbeat import Heartbeat, PeerLiveness
from hpcrun.run.protocol.job_secret import JobSecret
from hpcrun.run.protocol.launch import LaunchNode
from hpcrun.run.protocol.output import say
from hpcrun.run.protocol.switchboard import GONE, Switchboard
from hpcrun.run.work import links
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths, SubmissionPaths
from hpcrun.state.node_layout import NodePaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import listed

START_TIMEOUT = 300.0
LEAVE_TIMEOUT = 10.0
# Longer than an agent takes to report that it cannot end its ranks, native stacks included.
KILL_TIMEOUT = 18.0
STACKS_TIMEOUT = 5.0
# Seconds for what may take longer once Slurm sent a signal: less than a preemption's grace.
HURRY = 10.0
# A failure on all nodes is reported by all of them within so many seconds.
OTHERS_FAIL = 2.0
# Seconds between two looks for nodes that are silent.
SILENCE_EVERY = 0.5
# Seconds within which all agents of a step are gone that Slurm has ended.
STEP_ENDS = 1.0

Turn = Callable[[], None]


class Agents:
    """One agent a node for one start of a job; their logs are with its first attempt."""

    def __init__(
        self, launcher: Launcher, submission: SubmissionPaths, run: RunPlan, attempt: AttemptPaths
    ) -> None:
        self._launcher, self._run, self._number = launcher, run, attempt.number
        self.working: tuple[str, ...] = ()
        """The nodes of the newest attempt, in the order of NODE_RANK."""
        self.lost: list[str] = []
        """Nodes that fell silent in this start of the job."""
        self.signals: list[str] = []
        """Names of the signals that agents received and nobody has acted on yet."""
        self.pulses: dict[int, RankProgress] = {}
        """Rank -> its newest progress in this attempt."""
        self.programs: dict[int, RankActivity] = {}
        """Rank without a session -> what its node sees of it."""
        self.traffic: dict[str, NodeTraffic] = {}
        """Node -> the bytes that it has moved."""
        self.locks: dict[int, str] = {}
        """Rank that hangs -> the lock of a build that it waits for."""
        self.imported: int | None = None
        """Modules of slow packages that a program has whose steps are read; None before any."""
        self.log_sizes: dict[int, int] = {}
        """Rank -> the bytes of its log where it has grown."""
        self.met = False
        """Ranks of this attempt have used the port of the rendezvous, or one of their own."""
        self.links = NodeLinks()
        has_data = any(one.copies(run, Path()) for one in feature.every().values())
        self.copies = CopyReports(data=has_data, environment=run.environment.is_frozen)
        self._sending = ArchiveSending(launcher, submission, run)
        self.shown_code: Path | None = None
        """The path of the newest attempt's code that all of its nodes have."""
        self.writes: list[tuple[str, int]] = []
        """Files of the working directory that ranks were seen to write, each with the rank."""
        self.gone: list[int] = []
        """Ranks that had ended by themselves when `kill_ranks` was called."""
        self.ends: dict[int, int | None] = {}
        """Rank of `call_others` that has ended -> its exit code; None where it left none."""
        self.places = RankPlaces(run, ())
        """The nodes of this attempt's ranks."""
        self._directories: dict[str, Path] = {}
        self._unusable: set[str] = set()
        self.reports: dict[str, dict[str, Any]] = {}
        """Node of this attempt -> the report of `hpcrun.run.check_in.node_report`."""
        self._listeners: dict[str, PeerLiveness] = {}
        self._silence_at = 0.0
        # Kind of answer -> node -> what it says, in this attempt.
        self._answers: dict[str, dict[str, Any]] = {}
        self._failures = NodeFailures()
        # Nodes whose agent said something that it cannot have meant.
        self._broken: set[str] = set()
        self._asked = 0  # the number of the newest question of `ask_each`
        secret = JobSecret.new()
        self._start = os.environ[START_VARIABLE] = secret.start
        self._alias = secret.digest("code")[:12]
        self._interface, address = network.management(launcher.fabric)
        self._switchboard = Switchboard(address, secret, launcher.nodes)
        self._logs = {node: attempt.agent_log(node) for node in launcher.nodes}
        self._heartbeat = Heartbeat(self._switchboard.broadcast)
        # Nodes of steps of several whose agents ended, and when.
        self._gone_since: dict[str, float] = {}

        def command(nodes: Sequence[str]) -> list[str]:
            words = agent_steps.command(launcher, nodes, submission, run, self._number)
            return [*words, "--supervisor", self._switchboard.address]

        self._steps = AgentSteps(launcher, attempt, secret, command)

    @property
    def usable(self) -> list[str]:
        """The job's nodes that an attempt may use, in Slurm's order."""
        return [node for node in self._launcher.nodes if node not in self._unusable]

    def idle(self) -> dict[str, Path]:
        """Return the usable nodes that have no rank of this attempt, with its directory there.

        Only those that have copied what its ranks read.
        """
        return {
            node: self.scratch(node)
            for node in self._spares
            if not self.copies.are_wanted or node in self._answers.get("copied", {})
        }

    @property
    def _spares(self) -> list[str]:
        there, working = self._directories, {*self.working}
        return [node for node in self.usable if node in there and node not in working]

    def seats(self, most: int) -> tuple[str, ...]:
        """Return at most so many nodes for the next attempt, in Slurm's order.

        Usable nodes of the last attempt stay, and spares take the places of the others.
        """
        usable = self.usable
        working = {*self.working}
        chosen = {*sorted(usable, key=lambda node: node not in working)[:most]}
        return tuple(node for node in usable if node in chosen)

    def prepare(
        self, attempt: int, nodes: Sequence[str], between: Turn, greeted: Turn = lambda: None
    ) -> tuple[tuple[LaunchNode, ...], int]:
        """Prepare the nodes of an attempt; return them and the port of the rendezvous.

        ``between`` is called on each turn meanwhile, ``greeted`` once all have said hello; each
        raises to give up. Raises NodesUnusable if an agent failed, ended, or did not answer in
        time, NodesLost if one fell silent.
        """
        self._number, self.working, self.met = attempt, tuple(nodes), False
        self.imported = None
        self.places = RankPlaces(self._run, self.working)
        for kind in ("ready", "killed", "kept", "stacks", "copied"):
            self._answers.pop(kind, None)
        stale: list[Any] = [self.pulses, self.programs, self.traffic, self.locks, self.log_sizes]
        for old in (*stale, self.writes, self.gone, self.ends, self.links, self.reports):
            old.clear()
        self._switchboard.broadcast({"type": "attempt", "number": attempt})
        hello = self._gather(nodes, "hello", START_TIMEOUT, between)
        greeted()

        def turn() -> None:
            between()
            self.turn(0.1)

        self._sending.send(self._directories, self.lost, turn)
        if self.copies.begins(nodes):
            # Spare ones ahead: they are to go on at once.
            self._ask([*nodes, *self._spares], {"type": "copy"})
            self._gather(nodes, "copied", None, between)

        def build(asked: Sequence[str], waiting: Sequence[str]) -> None:
            self._ask(asked, {"type": "build"})
            self._gather(waiting, "built", None, between)

        have_built(hello, nodes, build, is_anywhere=self._launcher.compiles_alike)
        devices = {node: self._launcher.devices(node, self._run) for node in nodes}
        fabric = self.links.choose(self._launcher.fabric, nodes)
        self.shown_code = links.code_path(
            [self._directories[n] for n in nodes], self._alias, attempt
        )
        question = {"type": "prepare", "alone": len(nodes) == 1, "code": str(self.shown_code)}
        for node in nodes:
            asked = {"fabric": fabric[node], "devices": devices[node], "first": node == nodes[0]}
            self._ask([node], {**question, **asked})
        ready = self._gather(nodes, "ready", START_TIMEOUT, between)
        found = tuple(replace(ready[node][0], devices=devices[node]) for node in nodes)
        return found, ready[nodes[0]][1]

    def turn(self, seconds: float = 0.2) -> None:
        """Take in the messages that arrive within so many seconds.

        Raises NodesLost if nodes of the attempt were silent, or without the fabric, for too long;
        NodesUnusable if an agent was ended; HpcrunError if this process did not run meanwhile."""
        gone: list[str] = []
        for node, message in self._switchboard.poll(seconds):
            if node in self._unusable:
                if message["type"] == "hello":
                    # It was cut off for a while, and asks whether the supervisor lives.
                    self._switchboard.send(node, {"type": "dismiss"})
                continue
            self._listeners.setdefault(node, PeerLiveness()).heard()
            if message is GONE:
                gone.append(node)
            else:
                self._take_in_if_valid(node, message)
        silent = self._silent_nodes()
        if silent and (problem := network.trouble(self._interface, None)) is not None:
            # This node is cut off, not they.
            own = self._launcher.host
            self.give_up([own, *silent])
            raise NodesLost((own,), f"node {own} is cut off from the others: {problem}")
        for node in silent:
            self.lost.append(node)
            self._steps.lose(node)
        self.give_up(silent)
        gone = self._gone_alone(gone)
        gone_now = {*gone}
        ended = [node for node in self.working if node in gone_now]
        self.give_up(node for node in gone if node not in self.working)
        if lost := [node for node in self.working if node in silent]:
            self.give_up(ended)
            raise NodesLost(tuple(lost))
        if ended:
            self._heartbeat.check()
            why = f"the agent on node {ended[0]} was ended; see agent-{ended[0]}.log"
            raise self._unusable_nodes(why, ended)
        self._check_fabric()

    def _silent_nodes(self) -> list[str]:
        """Return the nodes that have been silent for too long; looked at twice a second."""
        if time.monotonic() < self._silence_at:
            return []
        self._silence_at = time.monotonic() + SILENCE_EVERY
        asked = self._switchboard.unacknowledged
        return [node for node, one in self._listeners.items() if one.silent(partial(asked, node))]

    def _gone_alone(self, gone: Collection[str]) -> list[str]:
        """Return those agents that ended while others of their step did not.

        Raises NodesUnusable if a whole step ended that has nodes of the attempt: its agents are
        started again, once.
        """
        alone: list[str] = []
        now = time.monotonic()
        for node in gone:
            if len(self._steps.step_of(node).nodes) > 1:
                self._gone_since[node] = now
            else:
                alone.append(node)
        for step in {self._steps.step_of(node) for node in self._gone_since}:
            own = [node for node in step.nodes if node in self._gone_since]
            others = {*step.nodes}.difference(self._unusable, own)
            is_late = now - min(self._gone_since[node] for node in own) > STEP_ENDS
            if others and not is_late:
                continue
            for node in own:
                del self._gone_since[node]
            # Slurm ends most of them at once, and the one that it has lost says nothing.
            has_ended = step.has_ended() or len(own) > len(others)
            if not (has_ended and self._restart(step)):
                alone += own
            elif not {*step.nodes}.isdisjoint(self.working):
                message = f"the step of the agents on {listed(step.nodes, 4)} was ended"
                raise NodesUnusable(message, ())
        return alone

    def _check_fabric(self) -> None:
        cut_off, message = self.links.cut_off(self.working)
        if cut_off and len(cut_off) == len(self.working):
            # No node's fault: the fabric itself is down.
            raise NodesUnusable(message, ())
        if cut_off:
            self.give_up(cut_off)
            raise NodesLost(tuple(cut_off), message)

    def ask_each(
        self, questions: Mapping[str, dict[str, Any]], kind: str, limit: float
    ) -> dict[str, Any]:
        """Ask nodes, and return what they answer within ``limit`` seconds; raise as `turn`."""
        answers = self._answers[kind] = {}
        self._asked += 1
        for node, question in questions.items():
            self._ask([node], {**question, "number": self._asked})
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and questions.keys() - answers - self._unusable:
            self.turn(0.1)
        return answers

    def send(self, node: str, message: dict[str, Any]) -> None:
        self._switchboard.send(node, message)

    def call(self, attempt: int, joins: int | None) -> None:
        """Tell the warm ranks of an attempt to join the newest one, or to leave (None)."""
        self._switchboard.broadcast({"type": "call", "of": attempt, "joins": joins})

    def call_others(self, attempt: int, joins: int | None, waiting: Mapping[str, str]) -> None:
        """Tell warm ranks of another supervisor's attempt to join the newest one, or to leave.

        ``waiting`` are their nodes, each with the directory of that attempt there.
        """
        for node, scratch in waiting.items():
            ranks = [] if joins is None else list(self.places.planned(node))
            question = {"type": "call", "of": attempt, "joins": joins, "at": scratch}
            self._ask([node], {**question, "ranks": ranks})

    def scratch(self, node: str) -> Path:
        """Return the directory of this attempt on a node that has said hello."""
        return NodePaths(self._directories[node]).attempt(self._number)

    def ask_to_stop(self) -> None:
        """Ask all ranks to save and leave after the same step."""
        self._switchboard.broadcast({"type": "stop"})

    def kill_ranks(self) -> None:
        """Have the agents end the ranks of their nodes, and wait for that.

        Nodes on which a rank cannot be ended are not used again.
        """
        self._answers.pop("killed", None)
        self._failures.clear()
        self.give_up(self._late("kill", "killed", KILL_TIMEOUT))
        self.gone = [rank for answer in self._answers["killed"].values() for rank in answer]

    def keep(self, limit: float) -> list[str]:
        """Have the agents keep what was written in their copies of the code.

        Returns what could not be kept, also for the lack of ``limit`` seconds, or after a signal.
        """
        began, nodes = time.monotonic(), self._late("keep", "kept", limit, hurry=True)
        late = [f"{node}: not done in {time.monotonic() - began:.0f} s" for node in nodes]
        return [*late, *(one for answer in self._answers["kept"].values() for one in answer)]

    def _late(self, question: str, kind: str, limit: float, hurry: bool = False) -> list[str]:
        """Ask all working nodes, and wait for their answers; return those that give none."""
        self._ask(self.working, {"type": question})
        deadline, answers = time.monotonic() + limit, self._answers.setdefault(kind, {})
        while waiting := [
            node for node in self.working if node not in answers and node not in self._unusable
        ]:
            if hurry and self.signals:
                hurry, deadline = False, min(deadline, time.monotonic() + HURRY)
            if time.monotonic() > deadline:
                return waiting
            self.give_up([node for node in waiting if node in self._failures.nodes])
            with contextlib.suppress(NodesLost, NodesUnusable):
                self.turn(0.05)
        return []

    def stacks(self) -> dict[int, str]:
        """Return the Python stacks of the ranks that can write them."""
        asked: dict[str, Any] = {node: {"type": "stacks"} for node in self.working}
        found = self.ask_each(asked, "stacks", STACKS_TIMEOUT).values()
        return {rank: text for answer in found for rank, text in answer.items()}

    def dismiss(self, *, leaves_steps: bool = False) -> None:
        """Have the agents clean their nodes and leave; wait at most `LEAVE_TIMEOUT`.

        With ``leaves_steps``, those that stay are not ended: one may lead the job.
        """
        self._heartbeat.stop()
        self._switchboard.broadcast({"type": "dismiss"})
        deadline = time.monotonic() + LEAVE_TIMEOUT + self.copies.removal_takes
        # Closing with unread messages would reset the connection, and an agent that missed its
        # dismissal would have the job requeued.
        channels = self._switchboard.channels
        while time.monotonic() < deadline and self._steps.are_leaving(channels, self.lost):
            for node, message in self._switchboard.poll(0.05):
                if message["type"] == "hello":
                    self._switchboard.send(node, {"type": "dismiss"})
        self._switchboard.close()
        if not leaves_steps:
            self._steps.end()
        files.remove_if_empty(*self._logs.values())

    def _take_in_if_valid(self, node: str, message: dict[str, Any]) -> None:
        try:
            self._take_in(node, message)
        except messages.BadMessage as error:
            if node not in self._broken:
                self._broken.add(node)
                kind = str(message["type"])[:40]
                say(f"the agent on node {node} is broken: {kind!r} with a wrong {error}; ignored")

    def _take_in(self, node: str, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "signal":
            self.signals.append(messages.signal_name(message))
        elif kind == "hello":
            self.links.greet(node, message)
            self._directories[node] = messages.directory(message, self._start)
            self._sending.rooms[node] = messages.room(message)
            self._answers.setdefault(kind, {})[node] = messages.extensions(message)
            self._switchboard.send(node, {"type": "attempt", "number": self._number})
            if self.copies.are_wanted and node in self._spares:
                self._ask([node], {"type": "copy"})
        elif kind != "alive" and message.get("attempt") == self._number:
            self._take_in_answer(node, kind, message)

    def _take_in_answer(self, node: str, kind: str, message: dict[str, Any]) -> None:
        """Take in what a node says of the newest attempt, in which it may have ranks."""
        answers, places = self._answers.setdefault, self.places
        ranks, possible = places.planned(node), places.possible(node)
        if kind == "pulse":
            pulses, sizes = messages.progress(message, possible), messages.log_sizes(message, ranks)
            programs, traffic = messages.activity(message, ranks), messages.traffic(message)
            problem, imported = messages.link_trouble(message), messages.imported(message)
            if node == self.working[0]:
                self.imported = imported
            self.pulses.update(places.own(node, pulses))
            self.programs.update(programs)
            self.traffic.update({} if traffic is None else {node: traffic})
            self.log_sizes.update(sizes)
            self.links.note(node, problem)
        elif kind == "writes":
            self.writes += messages.writes(message, ranks)
        elif kind == "failed":
            why, about = messages.failure(message)
            if node in self.working:
                self._failures.add(node, why, about)
            elif not about:
                self.give_up([node], f": {why}")
        elif kind == "ready":
            first = node == self.working[0]
            found = messages.ready(message, node, self._start, self._number, first=first)
            self.reports[node] = messages.node_report(message)
            answers(kind, {})[node] = found
        elif kind == "killed":
            answers(kind, {})[node] = messages.gone(message, possible)
        elif kind == "stacks":
            texts, locks = messages.stacks(message, possible), messages.locks(message, ranks)
            answers(kind, {})[node] = places.own(node, texts)
            self.locks.update(locks)
        elif kind == "ends":
            self.ends.update(messages.ends(message, ranks))
        elif kind == "met":
            self.met = True
        elif kind in ("listening", "measured"):
            if message.get("number") == self._asked:
                answers(kind, {})[node] = messages.link_answer(message)
        elif kind in CopyReports.KINDS:
            if self.copies.take_in(node, message):
                answers(kind, {})[node] = None
        elif kind in ("kept", "built"):
            answers(kind, {})[node] = messages.failed_files(message) if kind == "kept" else None
        else:
            raise messages.BadMessage("type")

    def give_up(self, nodes: Iterable[str], why: str = "") -> None:
        """Use these nodes no more."""
        for node in nodes:
            self._unusable.add(node)
            self._listeners.pop(node, None)
            if node not in self.working:
                say(f"the spare node {node} is of no more use{why}")

    def _ask(self, nodes: Iterable[str], question: dict[str, Any]) -> None:
        for node in nodes:
            self._switchboard.send(node, question)

    def _gather(
        self, nodes: Sequence[str], kind: str, timeout: float | None, between: Turn
    ) -> dict[str, Any]:
        """Wait for the answers of all nodes to a question."""
        answers = self._answers.setdefault(kind, {})
        deadline, failed = time.monotonic() + timeout if timeout else None, self._failures.nodes
        self._failures.clear()
        while missing := [node for node in nodes if node not in answers]:
            between()
            self.turn(0.2)
            for node in missing:
                step = self._steps.step_of(node)
                if node in answers or (code := step.process.poll()) is None:
                    continue
                if not self._restart(step):
                    self._failures.add_ended(node, code, self._logs[node])
            if failed and (deadline is None or deadline > time.monotonic() + OTHERS_FAIL):
                deadline = time.monotonic() + OTHERS_FAIL
            is_late = deadline is not None and time.monotonic() > deadline
            if is_late or failed >= {*missing}:
                break
        if self._failures.nodes:
            self._failures.check_shared(answers.keys() & nodes, self.give_up)
            raise self._unusable_nodes(self._failures.message, self._failures.at_fault)
        if missing:
            message = f"no answer within {timeout:.0f} s from the agents on {', '.join(missing)}"
            raise self._unusable_nodes(message, missing)
        return answers

    def _restart(self, step: AgentStep) -> bool:
        """Start the agents of a step again that ended; return whether that was done."""
        away = {*step.nodes}.difference(self._unusable, self._switchboard.channels)
        left = [node for node in away if self._steps.step_of(node) is step]
        is_done = self._steps.restart(step, left)
        for node in left if is_done else ():
            # Its next agent is waited for as its first.
            self._listeners.pop(node, None)
            self._answers.get("hello", {}).pop(node, None)
        return is_done

    def _unusable_nodes(self, message: str, nodes: Collection[str]) -> NodesUnusable:
        """Return the error of these nodes; a failure on all nodes is no node's fault."""
        others = {*self.usable}.difference(nodes)
        everywhere = set(self.working).issubset(nodes)
        if everywhere and (len(self.working) > 1 or not others):
            return NodesUnusable(message, ())
        self.give_up(nodes)
        return NodesUnusable(message, tuple(nodes))
