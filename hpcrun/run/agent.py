"""The agent, one per node: prepares it, reports signals and progress.

The supervisor asks and the agent answers, in this order::

    agent       hello    its process and directory, extension key, interfaces that may reach other
                         nodes; down: fast ones that are not up; room: bytes that its copy of a
                         frozen environment lacks, and that its disk has
    supervisor  attempt  number: what follows is for this attempt
    supervisor  build    (one agent a key) compile DeepSpeed's operators into the cache
    agent       built
    supervisor  copy     what the node's disk is to have: a frozen environment, features' data
    agent       copying  done, total: bytes so far
    agent       copied   the report of `hpcrun.run.copies.node_copies`
    supervisor  prepare  fabric: the profile's block, with the interface that all nodes agreed on,
                         first: it is the first node of the attempt, alone: it is the only one,
                         devices: its GPUs where hpcrun shares them out, code: where all nodes are
                         to find the code
    agent       ready    the fields of launch.LaunchNode, and on the first node the port; health:
                         the report of `hpcrun.run.check_in.node_report`
    supervisor  listen   on an interface, for a short measurement of the link by another node
    agent       listening    its address and port, or an error
    supervisor  measure  the link to another node's address and port
    agent       measured     bytes per second in both directions, or an error
    supervisor  listened     nobody measures any more
    agent       met      (the first node's) somebody listens on the rendezvous' port, or on one that
                         was kept free for ranks
    supervisor  kill     end the ranks at once (Slurm no longer ends single steps of a job that it
                         is ending itself)
    agent       killed   none is left; gone: those that had ended by themselves, in mid-work
    supervisor  keep     no rank is left on any node
    agent       kept     what they wrote in the code's directory, but for: failed
    supervisor  stacks   the ranks hang: where are they?
    agent       stacks   rank -> its Python stacks; written beside the ranks' logs too; and the
                         locks of torch's builds that ranks wait for
    supervisor  end      send a signal to these ranks and what they started
    supervisor  hurt     fault injection: signal one rank
    supervisor  fall_silent  fault injection: behave like a node that lost its power
    supervisor  call     the warm ranks that an attempt started (of) are those of this attempt
                         (joins), or not needed; of another supervisor's, which wait for the lock
                         of another agent: at its directory, to be these ranks
    agent       ends     rank -> exit code of those that joined so, as they end
    supervisor  attempt  the next one in the same allocation, and so on
    supervisor  dismiss  the agent removes its node-local directory and leaves

Both send ``alive`` every `INTERVAL`, the agent only where nothing else was sent. The agent sends
the progress of its ranks (``pulse``, of `hpcrun.run.health.progress`; of ranks without a session
what `hpcrun.run.node.program_activity` sees; of a program whose steps are read, the number of slow
modules that it has ``imported``) with the state of its links to the fabric, and
``signal`` when its step receives one; the supervisor sends ``stop`` when the ranks are to save and
leave.
An agent that loses its supervisor without a ``dismiss`` ends the ranks of its node and sees to what
becomes of the job: `hpcrun.run.job.takeover`.
"""

from __future__ import annotations

import gc

from hpcrun.run import own_archive
from hpcrun.shared_dataclass import asdict, replace

if __name__ == "__main__":
    own_archive.read_once()
    # Imports leave no garbage behind: nobody looks for it until `main`.
    gc.disable()

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hpcrun import feature
from hpcrun.errors import HpcrunError
from hpcrun.policy import faults, frameworks
from hpcrun.run.check_in import node_report, patient_look
from hpcrun.run.check_in.link_test import LinkTest
from hpcrun.run.copies.environment_copy import EnvironmentCopy
from hpcrun.run.copies.node_copies import DataCopies
from hpcrun.run.health import progress
from hpcrun.run.node import network, program_activity, rank_processes, rendezvous_port, telemetry
from hpcrun.run.node.log_sizes import LogSizes
from hpcrun.run.node.node_dir import NodeDir
from hpcrun.run.node.prepare import NodePreparation
from hpcrun.run.node.program_activity import ProgramActivity
from hpcrun.run.node.rank_processes import RankEnds
from hpcrun.run.protocol import messages, stop_flag
from hpcrun.run.protocol.channel import Channel
from hpcrun.run.protocol.heartbeat import INTERVAL, SILENCE, Heartbeat, PeerLiveness
from hpcrun.run.protocol.job_secret import JobSecret
from hpcrun.run.protocol.output import say
from hpcrun.run.rank import warm_up
from hpcrun.run.work.node_work import NodeWork
from hpcrun.slurm.parse import parse_duration
from hpcrun.state.layout import AttemptPaths, SubmissionPaths
from hpcrun.state.node_layout import NodePaths, ScratchPaths
from hpcrun.state.plan import RunPlan

if TYPE_CHECKING:
    from hpcrun.run.program.program_reader import ProgramReader

RANKS_GONE = 10.0
# Seconds for which warm ranks wait for a new supervisor to call them, once it has begun.
_HAND_OVER = 60.0
SILENT_FOR = 120.0


class Agent:
    """One node's agent for one start of a job."""

    def __init__(self, arguments: argparse.Namespace, secret: JobSecret) -> None:
        self.node: str = arguments.node
        self.submission = SubmissionPaths(arguments.submission)
        plan = patient_look.read_plan(self.submission, arguments.run)
        self.run: RunPlan = plan.run(arguments.run)
        self._gpus = self.run.resources_of(arguments.node_rank).gpus_per_node
        self._node_dir = NodeDir(secret.start, self.node)
        base = self._node_dir.path
        sent = NodePaths(base).sent_environment
        environment = EnvironmentCopy.of_run(base.parent, self.submission, self.run, sent)
        place = (self.run, self.node, arguments.job, environment)
        self.preparation = NodePreparation(self.submission, plan, *place)
        self.attempt: int = arguments.attempt
        self.scratch = self._node_dir.begin(self.attempt)
        self._arguments, self._secret, self._began = arguments, secret, time.time()
        # The calls that warm ranks wait for, by the attempt in which these were started.
        self._calls: dict[int, warm_up.WarmRanksLock] = {}
        self._expect_warm_ranks()
        self._warm_ranks_went = threading.Event()
        # Those of this attempt that waited under another supervisor.
        self._joined: RankEnds | None = None
        self._signals: list[int] = []
        self._report_at, self._has_prepared = 0.0, False
        self._progress: dict[int, progress.RankProgress] = {}
        hang_after = parse_duration(self.run.recovery.hang_after or "") or 0.0
        self._log_sizes = LogSizes(program_activity.look_every(hang_after))
        self._programs = ProgramActivity(hang_after, leads=self.run.entry.kind != "function")
        self._telemetry: telemetry.NodeTelemetry | None = None
        # Where the ranks are to meet, on the first node; empty once they have.
        self._meeting_ports: tuple[int, ...] = ()
        self._working_directory, self._cluster = plan.directory, plan.cluster
        self._reader: ProgramReader | None = None
        self._link_test = LinkTest(secret)
        about = partial(patient_look.about, self.submission, "copy")
        copied = (one.copies(self.run, base) for one in feature.every().values())
        data = [one for one in copied if one is not None]
        self._copies = DataCopies(base.parent, data, environment, about)
        self._work = NodeWork(self.run, plan.directory, self.node, self._node_dir)
        self._down = network.down()  # looked at twice
        for number in stop_flag.SIGNALS:
            signal.signal(number, self._on_signal)

    def greet(self, channel: Channel) -> None:
        """Send the first message."""
        key, found = self.preparation.key, network.candidates()
        own = {"pid": os.getpid(), "directory": str(self._node_dir.path)}
        hello = {"type": "hello", **own, "extensions": key, "interfaces": found}
        hello["room"] = self._copies.room()
        channel.send({**hello, "down": [one for one in network.down() if one in self._down]})

    def serve(self, channel: Channel) -> None:
        """Answer the supervisor until it dismisses this agent, or is gone."""
        supervisor = PeerLiveness()
        heartbeat = Heartbeat(channel.send, channel.quiet)
        try:
            while not (channel.closed or supervisor.silent(channel.unacknowledged)):
                arrived = channel.receive(timeout=0.2)
                while self._signals:
                    name = signal.Signals(self._signals.pop(0)).name
                    channel.send({"type": "signal", "signal": name})
                self._report(channel)
                self._copies.turn(lambda told: channel.send({**told, "attempt": self.attempt}))
                if arrived:
                    supervisor.heard()
                for message in arrived:
                    if message["type"] == "dismiss":
                        return
                    if message["type"] == "fall_silent" and self._is_drill:
                        heartbeat.stop()
                        self._fall_silent()
                        return
                    self._act(message, channel)
                    supervisor.heard()
        finally:
            heartbeat.stop()
        # A failed send ends the loop before what had arrived by then was read.
        if any(message["type"] == "dismiss" for message in channel.receive(timeout=0)):
            return
        say("the supervisor is gone")
        # Ranks outlive Slurm's TERM: without this they would train on until its KILL.
        rank_processes.kill(self.scratch)
        rank_processes.gone(self.scratch, RANKS_GONE)
        self._work.close()
        # Imported where it is needed: 500 agents of a job begin at once.
        from hpcrun.run.job.takeover import Takeover

        self._arguments.attempt = self.attempt
        place = self.submission, self.run, self._cluster, self._secret, self._began
        takeover = Takeover(self._arguments, *place)
        threading.Thread(target=self._let_warm_ranks_go, daemon=True).start()
        if takeover.go_on(self.release, silent=not channel.closed):
            self._warm_ranks_went.wait(_HAND_OVER)

    def _let_warm_ranks_go(self) -> None:
        """Let those go that another agent of this node calls, of a new supervisor."""
        call = next(iter(reversed(self._calls.values())), None)
        while call is not None and not call.is_written():
            time.sleep(0.05)
        if call is not None:
            call.close()
        self._warm_ranks_went.set()

    def leave(self) -> None:
        """Remove what is node-local."""
        self.release()
        self._copies.close()
        self._node_dir.remove()

    def release(self) -> None:
        """Release what another agent of this node needs, but for copies, which it shares."""
        self._stop_telemetry()
        self._stop_reader()
        self._work.close()
        self._link_test.close()
        self.preparation.release_ports()

    @property
    def _paths(self) -> AttemptPaths:
        return self.submission.experiment.run(self.run.number).attempt(self.attempt)

    def _report(self, channel: Channel) -> None:
        """Send the ranks' progress, the links' state and the logs' sizes, every `INTERVAL`."""
        if time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + INTERVAL
        self._look_for_meeting(channel)
        before, self._progress = self._progress, progress.read(self.scratch)
        still = {
            rank: found.pid
            for rank, found in self._progress.items()
            if found.state != progress.GONE and rank in before and found.moves == before[rank].moves
        }
        # What a rank waits for may be a program that it has started.
        for rank, others in rank_processes.processor(self.scratch, still).items():
            found = self._progress[rank]
            self._progress[rank] = replace(found, processor=found.processor + others)
        ranks = {rank: asdict(found) for rank, found in self._progress.items()}
        trouble = self.preparation.link_trouble()
        logs = self._log_sizes.changed(self.scratch, self._paths)
        living = [rank for rank, one in self._progress.items() if one.state != progress.GONE]
        gpu = 0 if self._telemetry is None else self._telemetry.gpu
        programs = self._programs.changed(self.scratch, living, self._log_sizes.output(), gpu)
        imported = None if self._reader is None else self._reader.imported
        if ranks or logs or programs or imported is not None or self.preparation.watches_link:
            report = {"type": "pulse", "attempt": self.attempt, "ranks": ranks, "fabric": trouble}
            channel.send({**report, "logs": logs, "imported": imported, **programs})
        if self._joined is not None and (ends := self._joined.news()):
            channel.send({"type": "ends", "attempt": self.attempt, "ranks": ends})
        if files := self._work.writes():
            channel.send({"type": "writes", "attempt": self.attempt, "files": files})

    def _look_for_meeting(self, channel: Channel) -> None:
        if rendezvous_port.in_use(self._meeting_ports):
            self._meeting_ports = ()
            channel.send({"type": "met", "attempt": self.attempt})

    def _act(self, message: dict[str, Any], channel: Channel) -> None:
        if message["type"] == "alive":
            return
        if message["type"] == "stop":
            with contextlib.suppress(OSError):
                ScratchPaths(self.scratch).stop.touch()
            return
        try:
            answer = self.answer(message, channel)
        except (HpcrunError, OSError) as error:
            about = patient_look.about(self.submission, message["type"], error)
            answer = {"type": "failed", "message": str(error), "about": about}
        except Exception as error:
            _print_traceback()
            answer = {"type": "failed", "message": f"{type(error).__name__}: {error}"}
        if answer is not None:
            channel.send({**answer, "attempt": self.attempt})
        if message["type"] == "stacks":
            from hpcrun.run.health import rank_stacks

            try:
                rank_stacks.keep_native(self._paths, self.scratch, self._programs.processes)
            except Exception:
                _print_traceback()

    def answer(self, message: dict[str, Any], channel: Channel) -> dict[str, Any] | None:
        """Do what one message asks, and return the answer if there is one."""
        kind = message["type"]
        if kind == "attempt":
            newest = range(self.attempt, 1 << 31)
            self._begin(messages.number(message.get("number"), "number", newest))
            return None
        if kind == "kill":
            self._look_for_meeting(channel)
            before = progress.read(self.scratch)
            rank_processes.kill(self.scratch)
            if rank_processes.gone(self.scratch, RANKS_GONE):
                self._stop_reader()
                return {"type": "killed", "gone": progress.ended_too_early(before)}
            return {"type": "failed", "message": "its ranks cannot be ended"}
        if kind == "call":
            if (joins := message["joins"]) is not None:
                messages.number(joins, "joins", range(self.attempt, self.attempt + 1))
            launch = None if joins is None else str(self._paths.launch)
            if (at := message.get("at")) is not None:
                self._joined = RankEnds(self.scratch, message["ranks"])
                warm_up.call_for(Path(at), launch)
            elif (call := self._calls.pop(int(message["of"]), None)) is not None:
                call.release(launch)
            return None
        if kind == "hurt" and self._is_drill:
            rank = int(message["rank"])
            pulse = progress.living(self.scratch).get(rank)
            pid = pulse.pid if pulse else rank_processes.leader(self.scratch, rank)
            number = signal.Signals[message["signal"]]
            # Where the rank leads a shell or a script, that is what stops.
            (os.kill if pulse or number != signal.SIGSTOP else os.killpg)(pid, number)
            return None
        if kind == "end":
            rank_processes.end(self.scratch, message["ranks"], signal.Signals[message["signal"]])
            return None
        if kind == "keep":
            return {"type": "kept", "failed": self._work.close()}
        if kind == "stacks":
            from hpcrun.run.health import rank_stacks

            texts = rank_stacks.collect(self._paths, self.scratch, self._programs.processes)
            locks = self._programs.locks(self.scratch, texts)
            return {"type": "stacks", "ranks": texts, "locks": locks}
        if kind == "build":
            self.preparation.build(channel.hung_up)
            return {"type": "built"}
        if kind == "copy":
            self._copies.begin()
            return None
        if kind == "prepare":
            fabric, first, at = message["fabric"], message["first"], self._paths.directory
            look = partial(self._prepare, message), at, self.submission, channel.hung_up
            found, health = patient_look.patiently(*look)
            looks = first and frameworks.ranks_meet(self.run)
            self._meeting_ports = self.preparation.ports if looks else ()
            self._has_prepared = True
            if first and self.run.entry.kind != "function":
                from hpcrun.run.program.program_reader import ProgramReader

                self._stop_reader()
                own = self._paths, self._working_directory, self.scratch
                self._reader = ProgramReader(self.run, *own)
            self._start_telemetry(fabric, found["node"], message["devices"])
            self._programs.begin(*telemetry.links(fabric, found["node"]))
            return {"type": "ready", **found, "health": health}
        if kind in LinkTest.QUESTIONS:
            return self._link_test.answer(message)
        return {"type": "failed", "message": f"unknown message {kind!r}"}

    def _prepare(self, message: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Prepare this node, from the beginning; return what is said of it, and its health."""
        first, alone, place = message["first"], message["alone"], (self.scratch, self.attempt)
        found = self.preparation.prepare(*place, message["fabric"], first=first, alone=alone)
        self._work.open(self._paths, self.scratch, Path(message["code"]), first=first)
        at = self._paths.directory, self.scratch, self.node, message["devices"]
        return found, node_report.report(*at, wants=self._gpus, first_time=not self._has_prepared)

    @property
    def _is_drill(self) -> bool:
        return bool(self.run.spec.get(faults.KEY))

    def _begin(self, attempt: int) -> None:
        """Work for this attempt from now on."""
        if attempt != self.attempt:
            self._work.close()
            self._copies.stop()
            self.attempt = attempt
            self.scratch = self._node_dir.begin(attempt)
            self._expect_warm_ranks()
            self._joined = None
            self.preparation.reset()
            self._stop_telemetry()
            self._stop_reader()

    def _expect_warm_ranks(self) -> None:
        """Prepare the call of this attempt's warm ranks; those before the last come too late."""
        for attempt in sorted(self._calls)[:-1]:
            self._calls.pop(attempt).close()
        if warm_up.after(self.run) is not None:
            self._calls[self.attempt] = warm_up.WarmRanksLock(self.scratch)

    def _start_telemetry(
        self, network: dict[str, Any], node: dict[str, Any], devices: str | None
    ) -> None:
        path = self._paths.telemetry(self.node)
        try:
            self._telemetry = telemetry.begin(self.run, path, network, node, devices)
        except Exception as error:
            # A node whose counters cannot be read can still train.
            say(f"no telemetry of this node: {type(error).__name__}: {error}")

    def _stop_reader(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def _stop_telemetry(self) -> None:
        if self._telemetry is not None:
            self._telemetry.stop()
            self._telemetry = None

    def _fall_silent(self) -> None:
        """Behave like a node that lost its power, until somebody ends this agent."""
        say("drill: this agent says nothing more")
        # Nobody sees its ranks end either, before it is given up.
        time.sleep(SILENCE + 5)
        rank_processes.kill(self.scratch)
        time.sleep(SILENT_FOR)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            ScratchPaths(self.scratch).heard(number).touch()
        self._signals.append(number)


def _print_traceback() -> None:
    import traceback

    traceback.print_exc()


def find_node(arguments: argparse.Namespace) -> None:
    """Leave of the ``node`` and ``node_rank`` that a step of several nodes has those of this one.

    Raises SystemExit where it is none of them.
    """
    names = arguments.node.split(",")
    ranks = [int(rank) for rank in arguments.node_rank.split(",")]
    own = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    place = names.index(own) if own in names else 0
    if len(names) > 1 and own not in names:
        sys.exit(f"error: node {own} is none of those that the agents' step was started on")
    arguments.node, arguments.node_rank = names[place], ranks[place]


def main() -> None:
    gc.freeze()
    gc.enable()
    parser = argparse.ArgumentParser(prog="hpcrun.run.agent")
    parser.add_argument("submission", type=Path)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--node", required=True, help="this node, or several with this one")
    parser.add_argument("--node-rank", required=True, help="its place in the job, or one for each")
    parser.add_argument("--job-id", help="123 or 123_4, of a job that may be requeued")
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--batch-node", required=True, help="where the supervisor runs")
    parser.add_argument("--restarts", type=int, required=True, help="SLURM_RESTART_COUNT")
    parser.add_argument("--job", type=int, required=True, help="where to begin looking for a port")
    parser.add_argument("--supervisor", required=True, help="HOST:PORT")
    arguments = parser.parse_args()
    find_node(arguments)
    for number in (*stop_flag.SIGNALS, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        secret = JobSecret.take()
    except HpcrunError as error:
        sys.exit(f"error: {error}")
    agent = Agent(arguments, secret)
    try:
        channel = Channel.connect(arguments.supervisor, arguments.node, secret)
        agent.greet(channel)
        agent.serve(channel)
    finally:
        agent.leave()


if __name__ == "__main__":
    main()
