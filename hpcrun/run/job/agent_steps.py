"""The steps that carry a job's agents.

Up to `MOST` nodes, each agent is a step of its own. A larger job divides its nodes into as many
groups, each of them one step, so that neither the batch host nor slurmctld has a client a node. A
node that does not answer as its step begins ends that step: its agents are started again, each in
a step of its own. One that is lost later costs the others nothing: srun's ``--no-kill``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from hpcrun.run.protocol.job_secret import JobSecret
from hpcrun.run.protocol.output import say
from hpcrun.state.layout import AttemptPaths, SubmissionPaths
from hpcrun.state.plan import RunPlan

if TYPE_CHECKING:
    from hpcrun.run.job.launchers import Launcher

# Steps of agents; the batch host's agent is one alone.
MOST = 16


class AgentStep:
    """The agents of some nodes, which were started together."""

    def __init__(self, nodes: Sequence[str], process: subprocess.Popen[bytes]) -> None:
        self.nodes, self.process = tuple(nodes), process

    def has_ended(self) -> bool:
        """Check whether no agent of it is left, as far as its srun says."""
        return self.process.poll() is not None


class AgentSteps:
    """All steps of agents of one start of a job; ``attempt`` has their logs.

    ``command`` returns the command line of the agents on some nodes.
    """

    def __init__(
        self,
        launcher: Launcher,
        attempt: AttemptPaths,
        secret: JobSecret,
        command: Callable[[Sequence[str]], list[str]],
    ) -> None:
        self._launcher, self._attempt, self._secret = launcher, attempt, secret
        self._command = command
        self._by_node: dict[str, AgentStep] = {}
        self.all: list[AgentStep] = []
        for nodes in launcher.agent_groups():
            self._start(nodes)

    def step_of(self, node: str) -> AgentStep:
        """Return the newest step that has a node's agent."""
        return self._by_node[node]

    def lose(self, node: str) -> None:
        """Note that a node does not answer; nobody waits for its srun, as Slurm does."""
        step = self.step_of(node)
        if len(step.nodes) == 1:
            step.process.kill()

    def restart(self, step: AgentStep, nodes: Iterable[str]) -> bool:
        """Start the agents of an ended step on these nodes, each alone; return whether it was done.

        That is never done for a node's own step, since what ended it may end it again.
        """
        wanted = {*nodes}
        left = [node for node in step.nodes if node in wanted]
        if len(step.nodes) == 1 or not left:
            return False
        say(f"the step of the agents on {step.nodes[0]} and {len(step.nodes) - 1} more ended")
        step.process.kill()
        step.process.wait()
        self.all.remove(step)
        for node in left:
            self._start([node])
        return True

    def _start(self, nodes: Sequence[str]) -> None:
        process = self._launcher.start_agents(nodes, self._attempt, self._command(nodes))
        self._secret.hand_over(process)
        step = AgentStep(nodes, process)
        self.all.append(step)
        self._by_node.update(dict.fromkeys(nodes, step))

    def are_leaving(self, connected: Collection[str], lost: Collection[str]) -> bool:
        """Check whether agents that were dismissed have not left yet, but for lost nodes."""
        for step in self.all:
            left = {*step.nodes}.difference(lost)
            # Its srun waits for the lost nodes, as Slurm does.
            if not (
                step.has_ended() if len(left) == len(step.nodes) else left.isdisjoint(connected)
            ):
                return True
        return False

    def end(self) -> None:
        """End the clients of all steps."""
        for step in self.all:
            step.process.kill()
            step.process.wait()


def groups(nodes: Sequence[str], alike: Mapping[str, object]) -> list[tuple[str, ...]]:
    """Return the nodes in at most `MOST` groups; the first of them, the batch host, is alone.

    Nodes of a group follow one another and have the same value in ``alike``: where many differ,
    there are more groups.
    """
    if len(nodes) <= MOST:
        return [(node,) for node in nodes]
    size = -(-(len(nodes) - 1) // (MOST - 1))
    found = [nodes[:1]]
    for _, part in groupby(nodes[1:], key=lambda node: alike[node]):
        own = [*part]
        found += [own[first : first + size] for first in range(0, len(own), size)]
    return [tuple(group) for group in found]


def command(
    launcher: Launcher,
    nodes: Sequence[str],
    submission: SubmissionPaths,
    run: RunPlan,
    attempt: int,
) -> list[str]:
    """Return the command line of the agents of nodes, but for the supervisor's address.

    Each finds its own name among them. ``attempt`` is the one that they begin with.
    """
    ranks = ",".join(str(launcher.places[node]) for node in nodes)
    words = [sys.executable, "-m", "hpcrun.run.agent", str(submission.directory)]
    words += ["--run", str(run.number), "--node", ",".join(nodes), "--node-rank", ranks]
    words += ["--job", str(launcher.port_seed), "--restarts", str(launcher.restart_count)]
    if launcher.requeues and not launcher.is_packed:
        words += ["--job-id", launcher.job_id]
    return [*words, "--attempt", str(attempt), "--batch-node", launcher.host]
