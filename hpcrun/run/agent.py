"""The agent: one a node, a step of its own. Prepares its node, hears its signals, leaves last.

The supervisor asks and the agent answers, in this order::

    agent       hello    node, token, extension key
    supervisor  attempt  number: what follows is for this attempt
    supervisor  build    (one agent a key) compile DeepSpeed's operators into the cache
    agent       built
    supervisor  prepare  fabric: the profile's block, first: it is the first node of the attempt,
                         alone: it is the only one, devices: its GPUs where hpcrun shares them out
    agent       ready    what launch.Node holds, and on the first node the port
    supervisor  kill     the ranks are to be ended at once (Slurm no longer ends single steps of a
                         job that it is ending itself)
    agent       killed   none is left; gone: those that had ended by themselves, in mid-work
    supervisor  stacks   the ranks hang: what are they doing?
    agent       stacks   rank -> what it says; as files beside the ranks' logs too
    supervisor  hurt     in a drill: signal one rank
    supervisor  fall_silent  in a drill: be like a node that has lost its power
    supervisor  call     the warm ranks that an attempt started are those of the next, or not needed
    supervisor  attempt  the next one in the same allocation, and so on
    supervisor  dismiss  the agent removes its node-local directory and leaves

Both say ``alive`` every two seconds, and the agent how its ranks are (``pulse``, of
`hpcrun.run.health.progress`) and what is wrong with its link to the fabric. At any time the agent
may say ``signal`` (which its step received), and the supervisor ``stop`` (the ranks are to save and
leave).
An agent that loses its supervisor without a ``dismiss`` ends the ranks of its node and has its job
requeued.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tarfile
import threading
import time
import traceback
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.run.health import native_stack, progress
from hpcrun.run.job.takeover import Takeover
from hpcrun.run.node import log_sizes, op_cache, rank_processes, telemetry
from hpcrun.run.node import network as node_network
from hpcrun.run.node.node_dir import NodeDir
from hpcrun.run.node.rendezvous_port import PortReservation
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.channel import TOKEN_VARIABLE, Channel
from hpcrun.run.protocol.heartbeat import INTERVAL, SILENCE, Heartbeat, PeerLiveness
from hpcrun.run.protocol.output import say
from hpcrun.run.rank import warm_up
from hpcrun.state import files, plan_file
from hpcrun.state.layout import AttemptPaths, SubmissionPaths, extension_cache
from hpcrun.state.plan import RunPlan

RANKS_GONE = 10.0
# Seconds that ranks have to write down where they are, and what of its end goes over the wire.
STACKS_TAKE = 1.0
# Shorter than `hpcrun.run.job.agents` waits for an agent that is to end its ranks.
NATIVE_TAKE = 6.0
STACKS_MOST = 30_000
SILENT_FOR = 120.0


class Agent:
    """One node's agent for one start of a job."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.node: str = arguments.node
        self.job = arguments.job
        self.submission = SubmissionPaths(arguments.submission)
        self.plan = plan_file.read(self.submission.plan)
        self.run: RunPlan = self.plan.run(arguments.run)
        self.cache = extension_cache(self.submission)
        self.builders = _builders(self.run)
        self.key = op_cache.key(self.builders) if self.builders else None
        self._scratch = NodeDir(os.environ.get(TOKEN_VARIABLE, ""), self.node)
        self.attempt: int = arguments.attempt
        self.scratch = self._scratch.begin(self.attempt)
        self.reservation: PortReservation | None = None
        self.orphan = Takeover(arguments, self.submission, self.run)
        # Those that warm ranks may wait for, by the attempt in which these were started.
        self._calls: dict[int, warm_up.Call] = {}
        self._signals: list[int] = []
        self._report_at = 0.0
        self._pulses: dict[int, progress.RankProgress] = {}
        self._log_sizes = log_sizes.LogSizes()
        # Interface and adapters of the attempt, once they are known.
        self._network: tuple[str, str | None] | None = None
        self._telemetry: telemetry.NodeTelemetry | None = None
        for number in stop_flag.SIGNALS:
            signal.signal(number, self._hear)

    def serve(self, channel: Channel) -> None:
        """Answer the supervisor until it dismisses this agent, or is gone."""
        supervisor = PeerLiveness()
        heartbeat = Heartbeat(channel.send)
        try:
            while not channel.closed and not supervisor.silent():
                messages = channel.receive(timeout=0.2)
                while self._signals:
                    name = signal.Signals(self._signals.pop(0)).name
                    channel.send({"type": "signal", "signal": name})
                self._report(channel)
                if messages:
                    supervisor.heard()
                for message in messages:
                    if message["type"] == "dismiss":
                        return
                    if message["type"] == "fall_silent":
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
        self.orphan.requeue(silent=not channel.closed)

    def _report(self, channel: Channel) -> None:
        """Tell how the ranks of this node are, every so often."""
        if time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + INTERVAL
        before, self._pulses = self._pulses, progress.read(self.scratch)
        for rank, found in self._pulses.items():
            # What a rank waits for may be a program that it has started.
            still = rank in before and found.moves == before[rank].moves
            if still and found.state != progress.GONE:
                with contextlib.suppress(OSError, ValueError):
                    others = rank_processes.processor(
                        rank_processes.leader(self.scratch, rank), found.pid
                    )
                    self._pulses[rank] = replace(found, processor=found.processor + others)
        told = {rank: asdict(found) for rank, found in self._pulses.items()}
        cut_off = node_network.trouble(*self._network) if self._network else None
        logs = self._log_sizes.changed(self.scratch, self._paths)
        if told or logs or self._network:
            report = {"type": "pulse", "attempt": self.attempt, "ranks": told, "fabric": cut_off}
            channel.send({**report, "logs": logs})

    @property
    def _paths(self) -> AttemptPaths:
        return self.submission.experiment.run(self.run.number).attempt(self.attempt)

    def _hurt(self, rank: int, number: signal.Signals) -> None:
        """Signal the program of a rank."""
        found = progress.living(self.scratch).get(rank)
        os.kill(found.pid if found else rank_processes.leader(self.scratch, rank), number)

    def _fall_silent(self) -> None:
        """Do as a node does that has lost its power, until somebody ends this agent."""
        say("drill: this agent says nothing more")
        # Nobody sees its ranks end either, before it is given up.
        time.sleep(SILENCE + 5)
        rank_processes.kill(self.scratch)
        time.sleep(SILENT_FOR)

    def _stacks(self) -> dict[str, str]:
        """Have the ranks write down where they are; rank -> its words."""
        progress.ask_for_stacks(self.scratch)
        time.sleep(STACKS_TAKE)
        found = progress.stacks(self.scratch)
        self._keep_stacks(found)
        return {str(rank): text[-STACKS_MOST:] for rank, text in found.items()}

    def _keep_native_stacks(self) -> None:
        """Beside those of Python, which the supervisor has by now."""
        living = progress.living(self.scratch)
        with ThreadPoolExecutor(len(living) or 1) as pool:
            texts = pool.map(lambda one: native_stack.stacks(one.pid, NATIVE_TAKE), living.values())
            self._keep_stacks(dict(zip(living, texts, strict=True)))

    def _keep_stacks(self, found: dict[int, str]) -> None:
        paths = self._paths

        def keep() -> None:
            for rank, text in found.items():
                with contextlib.suppress(OSError), open(paths.stacks(rank), "a") as stream:
                    stream.write(text + "\n")

        # The shared storage may be what all of them wait for.
        threading.Thread(target=keep, daemon=True).start()

    def greet(self, channel: Channel) -> None:
        """Say who this is."""
        channel.send(
            {
                "type": "hello",
                "node": self.node,
                "token": os.environ.get(TOKEN_VARIABLE, ""),
                "pid": os.getpid(),
                "extensions": self.key,
            }
        )

    def _act(self, message: dict[str, Any], channel: Channel) -> None:
        if message["type"] == "alive":
            return
        if message["type"] == "stop":
            with contextlib.suppress(OSError):
                stop_flag.flag(self.scratch).touch()
            return
        try:
            answer = self.answer(message, channel)
        except (HpcrunError, OSError) as error:
            answer = {"type": "failed", "message": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"type": "failed", "message": f"{type(error).__name__}: {error}"}
        if answer is not None:
            channel.send({**answer, "attempt": self.attempt})
        if message["type"] == "stacks":
            try:
                self._keep_native_stacks()
            except Exception:
                traceback.print_exc()

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            stop_flag.heard(self.scratch, number).touch()
        self._signals.append(number)

    def answer(self, message: dict[str, Any], channel: Channel) -> dict[str, Any] | None:
        """Do what one message asks."""
        if message["type"] == "attempt":
            self._begin(int(message["number"]))
            return None
        if message["type"] == "kill":
            before = progress.read(self.scratch)
            rank_processes.kill(self.scratch)
            if rank_processes.gone(self.scratch, RANKS_GONE):
                return {"type": "killed", "gone": _ended_too_early(before)}
            return {"type": "failed", "message": "its ranks cannot be ended"}
        if message["type"] == "call":
            if (call := self._calls.pop(int(message["of"]), None)) is not None:
                call.make(message["launch"])
            return None
        if message["type"] == "hurt":
            self._hurt(int(message["rank"]), signal.Signals[message["signal"]])
            return None
        if message["type"] == "stacks":
            return {"type": "stacks", "ranks": self._stacks()}
        if message["type"] == "build":
            if not (self.cache / str(self.key)).is_dir():
                say(f"compiling {', '.join(self.builders)}")
            assert self.key is not None
            op_cache.build(self.cache, self.key, self.builders, channel.hung_up)
            return {"type": "built"}
        if message["type"] == "prepare":
            found = self.prepare(message["fabric"], message["first"], alone=message["alone"])
            self._sample(message["fabric"], found["node"], message["devices"])
            return {"type": "ready", **found}
        return {"type": "failed", "message": f"unknown message {message['type']!r}"}

    def _begin(self, attempt: int) -> None:
        """What follows is for this attempt."""
        if attempt != self.attempt:
            self.attempt = self.orphan.attempt = attempt
            self.scratch = self._scratch.begin(attempt)
            self._network = None
            self._sample_no_more()

    def prepare(self, network: dict[str, Any], first: bool, *, alone: bool) -> dict[str, Any]:
        """Unpack the code, find the fabric, copy the warm operators, reserve the port.

        Parameters
        ----------
        alone
            There is no other node, so that the fabric does not matter.
        """
        code = self.scratch / "code"
        self.unpack(code)
        interface, address = node_network.fast(network)
        hca = node_network.hca_filter(network)
        if not alone:
            watched = interface, node_network.usable(hca)
            if problem := node_network.trouble(*watched):
                raise HpcrunError(f"it is cut off from the fabric: {problem}")
            self._network = watched
        prepared: dict[str, Any] = {
            "name": self.node,
            "code": str(code),
            "scratch": str(self.scratch),
            "interface": interface,
            "address": address,
            "hca": hca,
        }
        if self.key:
            op_cache.copy(self.cache, self.key, self.scratch / "torch_extensions")
            prepared["extensions"] = str(self.scratch / "torch_extensions")
        self._expect_warm_ranks()
        answer: dict[str, Any] = {"node": prepared}
        if self.reservation:
            self.reservation.release()
            self.reservation = None
        if first:
            self.reservation = PortReservation(self.job + self.attempt)
            answer["port"] = self.reservation.port
        say(f"ready: {interface} {address}, code in {code}")
        return answer

    def _expect_warm_ranks(self) -> None:
        """Those of the attempt before are called after this one is prepared."""
        for attempt in sorted(self._calls)[:-1]:
            self._calls.pop(attempt).close()
        if warm_up.after(self.run) is not None:
            self._calls[self.attempt] = warm_up.Call(self.scratch)

    def unpack(self, destination: Path) -> None:
        """Unpack the frozen code, and link the data directories that the spec names."""
        destination.mkdir()
        frozen = files.read_json(self.submission.submission).get("code") or {}
        if frozen.get("archive"):
            archive = self.submission.experiment.code / frozen["archive"]
            try:
                with tarfile.open(archive) as stream:
                    if sys.version_info >= (3, 12):
                        stream.extractall(destination, filter="tar")
                    else:
                        stream.extractall(destination)
            except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
                raise HpcrunError(
                    f"{archive} cannot be unpacked into {destination}: {error}"
                ) from error
        directory = destination / self.plan.directory
        directory.mkdir(parents=True, exist_ok=True)
        original = Path(self.plan.code_root) / self.plan.directory
        for link in (self.run.spec.get("code") or {}).get("link") or []:
            target = directory / link
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(original / link)

    def _sample(self, network: dict[str, Any], node: dict[str, Any], devices: str | None) -> None:
        path = self._paths.telemetry(self.node)
        try:
            self._telemetry = telemetry.begin(self.run, path, network, node, devices)
        except Exception as error:
            # A node that cannot be looked at can still train.
            say(f"no telemetry of this node: {type(error).__name__}: {error}")

    def _sample_no_more(self) -> None:
        if self._telemetry is not None:
            self._telemetry.stop()
            self._telemetry = None

    def leave(self) -> None:
        """Remove what is node-local."""
        self._sample_no_more()
        if self.reservation:
            self.reservation.release()
        self._scratch.remove()


def _builders(run: RunPlan) -> list[str]:
    uses_deepspeed = run.entry.kind == "function" or bool(run.spec.get("deepspeed"))
    return op_cache.needed(run.spec) if uses_deepspeed else []


def _ended_too_early(found: dict[int, progress.RankProgress]) -> list[int]:
    """Ranks that have ended and never said that they were about to."""
    return [
        rank
        for rank, one in found.items()
        if one.state == progress.GONE and one.phase != progress.ENDING
    ]


def main() -> None:
    """Entry point of ``python -m hpcrun.run.agent``."""
    parser = argparse.ArgumentParser(prog="hpcrun.run.agent")
    parser.add_argument("submission", type=Path)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--node-rank", type=int, required=True)
    parser.add_argument("--job-id", help="123 or 123_4, of a job that may be requeued")
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--batch-node", required=True, help="where the supervisor runs")
    parser.add_argument("--restarts", type=int, required=True, help="SLURM_RESTART_COUNT")
    parser.add_argument("--job", type=int, required=True, help="where to begin looking for a port")
    parser.add_argument("--supervisor", required=True, help="HOST:PORT")
    arguments = parser.parse_args()
    for number in (*stop_flag.SIGNALS, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    agent = Agent(arguments)
    try:
        channel = Channel.connect(arguments.supervisor)
        agent.greet(channel)
        agent.serve(channel)
    finally:
        agent.leave()


if __name__ == "__main__":
    main()
