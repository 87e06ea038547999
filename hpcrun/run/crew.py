"""The agents of an attempt, seen from the supervisor: started, asked, and sent home."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.layout import AttemptPaths, SubmissionPaths
from hpcrun.plan import RunPlan
from hpcrun.run import fabric
from hpcrun.run.beat import Heartbeat, Listener
from hpcrun.run.channel import TOKEN_VARIABLE, Switchboard
from hpcrun.run.launch import Node
from hpcrun.run.launchers import Launcher

START_TIMEOUT = 300.0
LEAVE_TIMEOUT = 10.0
# What is wrong with all nodes is heard from all of them within this time.
OTHERS_FAIL = 2.0


class NodesLost(HpcrunError):
    """Agents fell silent: their nodes lost power or network."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        super().__init__(f"no sign of life from {', '.join(nodes)}")
        self.nodes = nodes


class NodesUnusable(HpcrunError):
    """Nodes could not be prepared, or lost their agents.

    Attributes
    ----------
    nodes
        Those that are worse than the others; empty where it is all of them.
    """

    def __init__(self, message: str, nodes: Collection[str], of: Collection[str]) -> None:
        super().__init__(message)
        self.nodes = tuple(nodes) if len(nodes) < len(of) else ()


class Crew:
    """One agent a node.

    Parameters
    ----------
    between
        Called often while the crew waits; raises to give up.

    Attributes
    ----------
    signals
        Names of the signals that agents heard and nobody has acted on yet.
    """

    def __init__(
        self,
        launcher: Launcher,
        submission: SubmissionPaths,
        run: RunPlan,
        attempt: AttemptPaths,
        between: Callable[[], None],
    ) -> None:
        self._launcher = launcher
        self._run = run
        self._between = between
        os.environ[TOKEN_VARIABLE] = secrets.token_hex(16)
        _, address = fabric.management(launcher.fabric)
        self._switchboard = Switchboard(address, os.environ[TOKEN_VARIABLE])
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._listeners: dict[str, Listener] = {}
        self.signals: list[str] = []
        self._heartbeat = Heartbeat(self._switchboard.broadcast)
        for rank, node in enumerate(launcher.nodes):
            command = [sys.executable, "-m", "hpcrun.run.agent", str(submission.directory)]
            command += ["--run", str(run.number), "--node", node, "--node-rank", str(rank)]
            command += ["--job", str(launcher.port_seed)]
            command += ["--job-id", launcher.job_id] if launcher.requeues else []
            command += ["--restarts", str(launcher.restart_count)]
            command += ["--attempt", str(attempt.number), "--batch-node", launcher.nodes[0]]
            command += ["--supervisor", self._switchboard.address]
            log = attempt.agent_log(node)
            self._agents[node] = launcher.start_agent(node, log, command)

    def prepare(self) -> tuple[tuple[Node, ...], int]:
        """Have every node prepared; the nodes, and the port of the rendezvous on the first.

        Raises
        ------
        NodesUnusable
            An agent failed, ended, or did not answer in time.
        """
        names = self._launcher.nodes
        hello = self._gather(names, "hello", START_TIMEOUT)
        builders = {hello[node].get("extensions"): node for node in reversed(names)}
        self._ask([node for key, node in builders.items() if key], "build", "built", None)
        ready = self._ask(names, "prepare", "ready", START_TIMEOUT, fabric=self._launcher.fabric)
        nodes = tuple(
            Node(**ready[node]["node"], devices=self._launcher.devices(index, self._run))
            for index, node in enumerate(names)
        )
        return nodes, int(ready[names[0]]["port"])

    def turn(self, seconds: float) -> list[tuple[str, dict[str, Any]]]:
        """Wait for messages up to so many seconds; heartbeats and signals are taken out.

        Raises
        ------
        NodesLost
            Nodes were silent for too long.
        NodesUnusable
            An agent said its last word: its node lives, and somebody or the kernel ended it.
        """
        answers = []
        for node, message in self._switchboard.poll(seconds):
            self._listeners.setdefault(node, Listener()).heard()
            if message["type"] == "signal":
                self.signals.append(str(message.get("signal")))
            elif message["type"] == "gone":
                raise NodesUnusable(
                    f"the agent on node {node} was ended; see agent-{node}.log",
                    [node],
                    self._launcher.nodes,
                )
            elif message["type"] != "alive":
                answers.append((node, message))
        silent = {node for node, listener in self._listeners.items() if listener.silent()}
        if silent:
            raise NodesLost(tuple(node for node in self._launcher.nodes if node in silent))
        return answers

    def ask_to_stop(self) -> None:
        """Have every rank save and leave after the same step."""
        self._switchboard.broadcast({"type": "stop"})

    def kill_ranks(self) -> None:
        """Have every agent end the ranks of its node."""
        self._switchboard.broadcast({"type": "kill"})

    def dismiss(self, lost: Collection[str] = ()) -> None:
        """Send the agents home, which makes them clean their nodes; wait for that, bounded.

        Parameters
        ----------
        lost
            Nodes whose agents are not waited for.
        """
        self._heartbeat.stop()
        self._switchboard.broadcast({"type": "dismiss"})
        deadline = time.monotonic() + LEAVE_TIMEOUT
        # What agents still say is read: closing on unread words would reset the connection, and an
        # agent that never got its dismissal would have the job requeued.
        while time.monotonic() < deadline and any(
            process.poll() is None for node, process in self._agents.items() if node not in lost
        ):
            for node, message in self._switchboard.poll(0.05):
                if message["type"] == "hello":
                    self._switchboard.send(node, {"type": "dismiss"})
        self._switchboard.close()
        for process in self._agents.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def _ask(
        self,
        nodes: Sequence[str],
        question: str,
        answer: str,
        timeout: float | None,
        **details: Any,
    ) -> dict[str, dict[str, Any]]:
        for node in nodes:
            self._switchboard.send(node, {"type": question, **details})
        return self._gather(nodes, answer, timeout)

    def _gather(
        self, nodes: Sequence[str], kind: str, timeout: float | None
    ) -> dict[str, dict[str, Any]]:
        deadline = time.monotonic() + timeout if timeout else None
        answers: dict[str, dict[str, Any]] = {}
        failed: dict[str, str] = {}
        while missing := [node for node in nodes if node not in answers and node not in failed]:
            self._between()
            for node, message in self.turn(0.2):
                if message["type"] == kind:
                    answers[node] = message
                elif message["type"] == "failed":
                    failed[node] = f"node {node} cannot be used: {message['message']}"
            for node in missing:
                code = self._agents[node].poll()
                if code is not None and node not in answers:
                    failed[node] = (
                        f"the agent on node {node} ended with exit code {code}; "
                        f"see agent-{node}.log"
                    )
            if failed and (deadline is None or deadline > time.monotonic() + OTHERS_FAIL):
                deadline = time.monotonic() + OTHERS_FAIL
            if deadline and time.monotonic() > deadline:
                break
        if failed:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            first = next(iter(failed.values()))
            raise NodesUnusable(first + more, failed, self._launcher.nodes)
        if missing:
            raise NodesUnusable(
                f"no answer within {timeout:.0f} s from the agents on {', '.join(missing)}",
                missing,
                self._launcher.nodes,
            )
        return answers
