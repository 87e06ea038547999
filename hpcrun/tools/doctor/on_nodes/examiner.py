"""The examiner, one per node of ``hpcrun doctor --nodes``: measures what the conductor asks for.

Messages, over an authenticated channel (`hpcrun.run.protocol.channel`). A question has an ``id``;
its answer has the same type and id, and an ``error`` where there is one::

    facts      (unasked) what `node_facts` reads
    ping       clock: the time here
    see        name, text, patience -> seconds until that file of another node was seen
    write      name, text -> the file is there; seconds: of fsync and rename here
    use        interface, address -> port, on which peers measure; trouble: of the link
    measure    address, port -> sends, receives, latency (`pair_link`)
    ports      seed -> port, free for a rendezvous
    tensor     places, patience -> ranks: what each rank of `tensor_test` found
    dismiss    leave

Both send ``alive``. An examiner that loses its conductor ends its ranks and leaves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hpcrun.errors import EXIT_FAILED, HpcrunError
from hpcrun.run.check_in import pair_link
from hpcrun.run.check_in.pair_link import PairListener
from hpcrun.run.node import network
from hpcrun.run.node.rendezvous_port import PortReservation
from hpcrun.run.protocol.channel import Channel
from hpcrun.run.protocol.heartbeat import Heartbeat, PeerLiveness
from hpcrun.run.protocol.job_secret import JobSecret
from hpcrun.run.protocol.output import say
from hpcrun.state import files
from hpcrun.tools.doctor.on_nodes import node_facts

_MARK = "hpcrun-tensor:"
_LINE, _TAIL = 1 << 16, 2000


class _TensorRank:
    """One process of the test, and what it says."""

    def __init__(self, place: dict[str, Any]) -> None:
        self._found: dict[str, Any] = {}
        self._words = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hpcrun.tools.doctor.on_nodes.tensor_test"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdin is not None
        with contextlib.suppress(OSError), self.process.stdin as stream:
            stream.write(json.dumps(place).encode() + b"\n")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        while line := stream.readline(_LINE).decode(errors="replace"):
            if line.startswith(_MARK):
                with contextlib.suppress(ValueError):
                    self._found.update(json.loads(line[len(_MARK) :]))
            else:
                self._words = (self._words + line)[-_TAIL:]

    def result(self, patience: float) -> dict[str, Any]:
        """Return what it found; ``error`` says why it did not come to its end."""
        code = self.process.poll()
        if code is None:
            return {**self._found, "error": f"it did not end within {patience:.0f} s"}
        self._reader.join(timeout=1)
        if code == 0:
            return self._found
        last = [line for line in self._words.strip().splitlines() if line.strip()][-1:]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return {**self._found, "error": f"it ended with {how}: {''.join(last)[:300]}"}


class TensorRanks:
    """One process a GPU, or one alone; `close` leaves none."""

    def __init__(self, places: list[dict[str, Any]]) -> None:
        self._ranks = [_TensorRank(place) for place in places]

    @property
    def running(self) -> bool:
        return any(one.process.poll() is None for one in self._ranks)

    def results(self, patience: float) -> list[dict[str, Any]]:
        """Return the results of each rank."""
        return [one.result(patience) for one in self._ranks]

    def close(self) -> None:
        for one in self._ranks:
            with contextlib.suppress(OSError):
                os.killpg(one.process.pid, signal.SIGKILL)
        until = time.monotonic() + 5
        for one in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.1, until - time.monotonic()))


class Examiner:
    """Answers the conductor's questions, one after the other."""

    def __init__(self, directory: Path, node: str, secret: JobSecret) -> None:
        self._directory, self._node, self._secret = directory, node, secret
        self._listener: PairListener | None = None
        self._address = ""
        self._ports: PortReservation | None = None
        self._ranks: TensorRanks | None = None
        self._ranks_until = self._patience = 0.0
        self._question: object = None

    def serve(self, channel: Channel) -> None:
        """Answer until it is dismissed, or the conductor is gone."""
        conductor = PeerLiveness()
        heartbeat = Heartbeat(channel.send)
        request = files.read_json(self._directory / "request.json")
        channel.send({"type": "facts", "facts": node_facts.read(request["fabric"])})
        try:
            while not channel.closed and not conductor.silent():
                for message in channel.receive(timeout=0.2):
                    conductor.heard()
                    if message["type"] == "dismiss":
                        return
                    answer = self._answer(message)
                    if answer is not None:
                        channel.send({"type": message["type"], "id": message.get("id"), **answer})
                    # A measurement takes seconds, in which nobody listened.
                    conductor.heard()
                self._look_at_ranks(channel)
        finally:
            heartbeat.stop()
            if self._ranks is not None:
                self._ranks.close()

    def _answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        kind = message["type"]
        if kind == "ping":
            return {"clock": time.time()}
        try:
            if kind == "see":
                path = self._directory / str(message["name"])
                return {"seconds": node_facts.wait_for(path, message["text"], message["patience"])}
            if kind == "write":
                took = node_facts.sync_seconds(self._directory, f"sync-{self._node}")
                path = self._directory / str(message["name"])
                files.write_bytes(path, str(message["text"]).encode())
                return {"seconds": took}
            if kind == "use":
                self._address = str(message["address"])
                trouble = network.trouble(str(message["interface"]), None)
                self._listener = PairListener(self._address, self._secret)
                return {"port": self._listener.port, "trouble": trouble}
            if kind == "measure":
                peer = str(message["address"]), int(message["port"])
                return vars(pair_link.measure(peer, self._address, self._secret))
            if kind == "ports":
                self._ports = PortReservation(int(message["seed"]))
                return {"port": self._ports.port}
        except (OSError, HpcrunError) as error:
            return {"error": str(error)}
        if kind == "tensor":
            self._ranks = TensorRanks(message["places"])
            self._patience = float(message["patience"])
            self._ranks_until = time.monotonic() + self._patience
            self._question = message.get("id")
        return None

    def _look_at_ranks(self, channel: Channel) -> None:
        if self._ranks is None or (self._ranks.running and time.monotonic() < self._ranks_until):
            return
        results = self._ranks.results(self._patience)
        self._ranks.close()
        self._ranks = None
        channel.send({"type": "tensor", "id": self._question, "ranks": results})


def main() -> None:
    """Entry point of ``python -m hpcrun.tools.doctor.on_nodes.examiner``."""
    parser = argparse.ArgumentParser(prog="hpcrun.tools.doctor.on_nodes.examiner")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--node", required=True)
    parser.add_argument("--conductor", required=True)
    arguments = parser.parse_args()
    try:
        secret = JobSecret.take()
        channel = Channel.connect(arguments.conductor, arguments.node, secret)
        try:
            Examiner(arguments.directory, arguments.node, secret).serve(channel)
        finally:
            channel.close()
    except (HpcrunError, OSError) as error:
        say(f"error: {error}")
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
