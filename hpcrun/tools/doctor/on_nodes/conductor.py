"""The conductor of ``hpcrun doctor --nodes``: one examiner a node, asked step by step.

``python -m hpcrun.tools.doctor.on_nodes.conductor DIRECTORY`` is the batch step of the job. It
reads ``request.json``, writes ``progress.json`` as it goes on, and ``result.json`` in the end. It
judges nothing but which pairs are worth another measurement; a node that does not answer costs its
own answers alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.errors import EXIT_FAILED, HpcrunError
from hpcrun.run.check_in import pairing
from hpcrun.run.check_in.pairing import Pair, PairRates
from hpcrun.run.fabric import link_check
from hpcrun.run.node import network
from hpcrun.run.protocol.heartbeat import Heartbeat, PeerLiveness
from hpcrun.run.protocol.job_secret import JobSecret
from hpcrun.run.protocol.output import say
from hpcrun.run.protocol.switchboard import GONE, Switchboard
from hpcrun.slurm import steps
from hpcrun.slurm.allocation import Allocation
from hpcrun.state import files
from hpcrun.state.layout import slurm_path
from hpcrun.text import listed, plural
from hpcrun.tools.doctor.on_nodes.node_facts import wait_for

_EXAMINER = "hpcrun.tools.doctor.on_nodes.examiner"
# Seconds for the answer of one pair.
PAIR = 25.0
# Times that slow pairs are measured again at once, and then one pair after the other, if there are
# no more than so many; further rounds.
_REPEATS, _ALONE, _MOST_ALONE, _FURTHER = 1, 2, 8, 3

Ask = Callable[[Mapping[str, dict[str, Any]], float], dict[str, dict[str, Any]]]
# Part of the others' bus bandwidth below which a pair is slow. Not tried on GPUs.
_ENOUGH = 0.7
# Seconds: for srun to start examiners, of an answer, until a file is seen elsewhere, and for all
# ranks of the tensor test.
START, ANSWER, SEEN, TENSOR = 60.0, 30.0, 20.0, 150.0
# Where some nodes are there, the others have so many more seconds; and more for each node.
_STRAGGLERS, _EACH = 30.0, 0.3
_PINGS = 5
_MORE_IN_STEP, _BEAT = 6.0, 10.0


class LinkRounds:
    """The rounds of one test.

    ``ports`` are where nodes listen, ``rates`` take what is measured; ``ask`` asks some nodes at
    once and returns the answers that come in time, ``progress`` tells what is done.
    """

    def __init__(
        self,
        what: str,
        ports: Mapping[str, tuple[str, int]],
        rates: PairRates,
        ask: Ask,
        progress: Callable[[str], None],
    ) -> None:
        self._what, self._ports, self._rates = what, ports, rates
        self._ask, self._progress = ask, progress

    def measure(self) -> None:
        """Go through all rounds, and measure again what was slow."""
        rates = self._rates
        rounds = pairing.rounds_of(rates.nodes)
        for number, pairs in enumerate(rounds, start=1):
            self._progress(f"measuring {self._what}, round {number} of {len(rounds)}")
            self._round(pairs)
        for _ in range(_REPEATS):
            self._again(rates.doubtful_pairs())
        # Other pairs take processors, and ways through the fabric.
        for _ in range(_ALONE):
            if len(rates.doubtful_pairs()) <= _MOST_ALONE:
                for pair in rates.doubtful_pairs():
                    self._again([pair])
        for _ in range(_FURTHER):
            pairs = rates.further_round()
            if not pairs:
                break
            self._progress(f"measuring {self._what}: {plural(len(pairs), 'more pair')}")
            self._round(pairs)
            met = {frozenset(pair) for pair in pairs}
            self._again([pair for pair in rates.doubtful_pairs() if frozenset(pair) in met])

    def _again(self, pairs: Sequence[Pair]) -> None:
        """Measure pairs once more, each node in one pair at a time."""
        left = list(pairs)
        while left:
            busy: set[str] = set()
            now = []
            for pair in left:
                if not busy & {*pair}:
                    now.append(pair)
                    busy |= {*pair}
            left = [pair for pair in left if pair not in now]
            told = listed([f"{one} and {other}" for one, other in now], 3)
            self._progress(f"measuring once more what was slow: {told}")
            self._round(now)

    def _round(self, pairs: Sequence[Pair]) -> None:
        questions = {
            one: {
                "type": "measure",
                "address": self._ports[other][0],
                "port": self._ports[other][1],
            }
            for one, other in pairs
        }
        answers = self._ask(questions, PAIR)
        for pair in pairs:
            answer = answers.get(pair[0], {"error": "no answer in time"})
            if "error" in answer:
                self._rates.fail(pair, str(answer["error"]))
            else:
                numbers = (answer["sends"], answer["receives"], answer["latency"])
                self._rates.add(pair, *map(float, numbers))


def rank_rounds(nodes: Sequence[str], each: int) -> list[list[list[int]]]:
    """Return rounds of the ranks of each pair; every node has ``each`` ranks, in order."""
    first = {node: place * each for place, node in enumerate(nodes)}
    return [
        [[first[node] + rank for node in pair for rank in range(each)] for pair in pairs]
        for pairs in pairing.rounds_of(nodes)
    ]


def slow_pairs(
    nodes: Sequence[str], ranks: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Return which nodes or pairs are slow; ``ranks`` is what those of each node found."""
    rates = PairRates(nodes, enough=_ENOUGH)
    names = pairing.rounds_of(nodes)
    for own in ranks.values():
        for number, place, busbw in (row for rank in own for row in rank.get("pairs", ())):
            rates.add(names[int(number)][int(place)], float(busbw), float(busbw), 0.0)
    found = []
    for one in rates.findings():
        # A bandwidth has no direction: a node is slow as a sender and as a receiver.
        if one["kind"] in (pairing.SLOW_SENDER, pairing.SLOW_PAIR):
            found.append({key: one[key] for key in ("nodes", "rate", "reference")})
    return found


class Conductor:
    """Asks the nodes of this job; `conduct` returns all that was found."""

    def __init__(self, directory: Path, request: Mapping[str, Any]) -> None:
        allocation = Allocation.current()
        self.nodes = allocation.nodes
        self._directory, self._request = directory, request
        self._fabric: dict[str, Any] = dict(request["fabric"])
        self._seed = int(allocation.job_id)
        self._number = 0
        self._doing, self._beats, self._beaten = "", 0, 0.0
        self.answers: dict[str, dict[str, Any]] = {node: {} for node in self.nodes}
        """Node -> all that it told, and ``error``."""
        self._gone: set[str] = set()
        self._listeners: dict[str, PeerLiveness] = {}
        secret = JobSecret.new()
        _, address = network.management(self._fabric)
        self._switchboard = Switchboard(address, secret, self.nodes)
        self._heartbeat = Heartbeat(self._switchboard.broadcast)
        self._steps: dict[str, subprocess.Popen[bytes]] = {}
        gpus = request.get("gpus")
        for node in self.nodes:
            command = [sys.executable, "-m", _EXAMINER, str(directory), "--node", node]
            command += ["--conductor", self._switchboard.address]
            cpus = allocation.cpus_per_node or 1
            log = slurm_path(directory / f"examiner-{node}.log")
            argv = steps.agent_argv([node], log, gpus, command, cpus=cpus)
            self._steps[node] = subprocess.Popen(
                argv, stdin=subprocess.PIPE, start_new_session=True
            )
            secret.hand_over(self._steps[node])

    def conduct(self) -> dict[str, Any]:
        began = time.monotonic()
        self._progress("starting a step on each node")
        self._gather_facts()
        self._progress("comparing clocks and files")
        self._compare_clocks()
        self._compare_files()
        interface, rates = self._measure_links()
        allreduce: dict[str, Any] = {}
        if self._request.get("tensor", True):
            allreduce = self._tensor(interface, rates)
        fabric = {node: self.answers[node].get("facts", {}).get("fabric") for node in self.alive}
        return {
            "nodes": self.answers,
            "interface": interface,
            "links": {
                "rates": [[*way, rate] for way, rate in rates.rates.items()],
                "latencies": [[*pair, one] for pair, one in rates.latencies.items()],
                "findings": rates.findings(),
                "reference": rates.reference,
            },
            "fabric": link_check.compare(fabric),
            "allreduce": allreduce,
            "seconds": time.monotonic() - began,
        }

    def close(self) -> None:
        """Dismiss the examiners and end what is left of them."""
        self._heartbeat.stop()
        self._switchboard.broadcast({"type": "dismiss"})
        until = time.monotonic() + _MORE_IN_STEP
        while time.monotonic() < until and any(one.poll() is None for one in self._steps.values()):
            self._switchboard.poll(0.1)
        self._switchboard.close()
        for process in self._steps.values():
            process.kill()
            process.wait()

    @property
    def alive(self) -> list[str]:
        """The nodes that answer, in Slurm's order."""
        return [node for node in self.nodes if node not in self._gone]

    def _progress(self, doing: str) -> None:
        say(doing)
        self._doing = doing
        self._beat()

    def _beat(self) -> None:
        """Write what is done, and that this process lives: on the login node nothing else tells."""
        self._beats, self._beaten = self._beats + 1, time.monotonic()
        try:
            path = self._directory / "progress.json"
            life = {"doing": self._doing, "beats": self._beats, "node": self.nodes[0]}
            files.write_json(path, life)
        except OSError as error:
            say(f"progress.json: {error}")

    # Questions

    def _gather_facts(self) -> None:
        heard: dict[str, dict[str, Any]] = {}
        more = _EACH * len(self.nodes)
        until = time.monotonic() + START + more
        while len(heard) < len(self.alive) and time.monotonic() < until:
            for node, message in self._poll():
                if message["type"] == "facts":
                    heard[node] = dict(message["facts"])
                    until = min(until, time.monotonic() + _STRAGGLERS + more)
            for node in self.alive:
                if node not in heard and self._steps[node].poll() is not None:
                    code = self._steps[node].returncode
                    self._lose(node, f"Slurm started no step there (srun: exit code {code})")
        for node in self.alive:
            if node in heard:
                self.answers[node]["facts"] = heard[node]
            else:
                self._lose(node, "no program there answered: Slurm, or the management network")

    def _ask(
        self, questions: Mapping[str, dict[str, Any]], patience: float
    ) -> dict[str, dict[str, Any]]:
        """Ask some nodes at once; return the answers that arrive in time."""
        self._number += 1
        number = self._number
        for node, question in questions.items():
            self._switchboard.send(node, {**question, "id": number})
        found: dict[str, dict[str, Any]] = {}
        until = time.monotonic() + patience
        while time.monotonic() < until:
            waiting = [node for node in questions if node not in found and node not in self._gone]
            if not waiting:
                break
            for node, message in self._poll(until - time.monotonic()):
                if message.get("id") == number:
                    found[node] = message
        return found

    def _poll(self, most: float = 0.2) -> list[tuple[str, dict[str, Any]]]:
        messages = []
        if time.monotonic() - self._beaten > _BEAT:
            self._beat()
        for node, message in self._switchboard.poll(max(0.0, min(0.2, most))):
            self._listeners.setdefault(node, PeerLiveness()).heard()
            if message is GONE:
                self._lose(node, "its program ended in the middle of the test")
            else:
                messages.append((node, message))
        for node, listener in self._listeners.items():
            if listener.silent():
                self._lose(node, "it fell silent in the middle of the test")
        return messages

    def _lose(self, node: str, why: str) -> None:
        if node not in self._gone:
            self._gone.add(node)
            self.answers[node].setdefault("error", why)
            say(f"{node}: {why}")

    # Steps

    def _compare_clocks(self) -> None:
        """Find how far each node's clock is ahead of this one's, by the quickest of some pings."""
        best: dict[str, tuple[float, float]] = {}
        for node in self.alive * _PINGS:
            began, now = time.monotonic(), time.time()
            answer = self._ask({node: {"type": "ping"}}, ANSWER / 3).get(node)
            took = time.monotonic() - began
            if answer and (node not in best or took < best[node][0]):
                best[node] = took, float(answer["clock"]) - now - took / 2
        for node, (took, ahead) in best.items():
            self.answers[node]["clock"] = {"ahead": ahead, "within": took / 2}

    def _compare_files(self) -> None:
        """See whether each node sees the others' files, and how long that and fsync take."""
        text = os.urandom(16).hex()
        path = self._directory / "from-conductor"
        files.write_bytes(path, text.encode())
        look = {"type": "see", "name": path.name, "text": text, "patience": SEEN}
        seen = self._ask(dict.fromkeys(self.alive, look), SEEN + ANSWER)
        writes = {
            node: {"type": "write", "name": f"from-{node}", "text": text} for node in self.alive
        }
        wrote = self._ask(writes, ANSWER)
        for node in self.alive:
            found: dict[str, Any] = {}
            if node in seen:
                found["sees"] = seen[node].get("seconds")
            if node in wrote:
                found["sync"] = wrote[node].get("seconds")
                found.update({"error": wrote[node]["error"]} if "error" in wrote[node] else {})
            self.answers[node]["storage"] = found
        until = time.monotonic() + SEEN
        waiting = [node for node in wrote if "error" not in wrote[node]]
        while waiting and time.monotonic() < until:
            looked = {one: self._directory / f"from-{one}" for one in waiting}
            waiting = [one for one in waiting if wait_for(looked[one], text, 0) is None]
            if waiting:
                self._poll()
        for node in wrote:
            self.answers[node]["storage"]["is_seen"] = node not in waiting

    def _interfaces(self) -> dict[str, tuple[str, str]]:
        """Return the fast interface of each node and its address.

        The one that the profile names; else the one that most nodes have, if it is a fast one.
        """
        known = {
            node: [tuple(one) for one in self.answers[node].get("facts", {}).get("interfaces", [])]
            for node in self.alive
        }
        wanted = self._fabric.get("fast_interface")
        if not wanted:
            fast = Counter(name for own in known.values() for name, _, sign in own if sign)
            every = Counter(name for own in known.values() for name, *_ in own[:1])
            wanted = next((name for name, _ in (fast or every).most_common(1)), None)
        found = {}
        for node, own in known.items():
            signed = [one for one in own if one[2]]
            mine = [one for one in own if one[0] == wanted]
            if not mine and not self._fabric.get("fast_interface"):
                # Names may differ: ibp65s0 here, ibp97s0 there.
                mine = signed
            if mine:
                found[node] = str(mine[0][0]), str(mine[0][1])
            else:
                self.answers[node]["link"] = f"it has no {wanted} with an address"
        return found

    def _measure_links(self) -> tuple[str | None, PairRates]:
        own = self._interfaces()
        names = Counter(name for name, _ in own.values())
        interface = names.most_common(1)[0][0] if names else None
        questions = {
            node: {"type": "use", "interface": name, "address": address}
            for node, (name, address) in own.items()
        }
        answers = self._ask(questions, ANSWER)
        for node, answer in answers.items():
            if trouble := answer.get("error") or answer.get("trouble"):
                self.answers[node]["link"] = str(trouble)
        ports = {
            node: (own[node][1], int(answer["port"]))
            for node, answer in answers.items()
            if "port" in answer and not answer.get("trouble")
        }
        nodes = [node for node in self.nodes if node in ports]
        rates = PairRates(nodes, self._request.get("baseline_rate"))
        LinkRounds(f"links over {interface}", ports, rates, self._ask, self._progress).measure()
        return interface, rates

    def _tensor(self, interface: str | None, rates: PairRates) -> dict[str, Any]:
        """Run the matrix products on all nodes, and an all-reduce over those without a fault."""
        able = [node for node in self.alive if "torch" in self.answers[node]["facts"]["libraries"]]
        if not able:
            return {"skipped": "the job's Python has no torch on these nodes"}
        ways = [{*one["nodes"]} for one in rates.findings()]
        bad = {node for nodes in ways if not nodes & self._gone for node in nodes}
        bad |= {node for node in able if "link" in self.answers[node]}
        together = [node for node in able if node in rates.nodes and node not in bad]
        per_node = {node: len(self.answers[node]["facts"]["gpus"] or []) or 1 for node in able}
        if len({per_node[node] for node in together}) > 1:
            usual = Counter(per_node[node] for node in together).most_common(1)[0][0]
            together = [node for node in together if per_node[node] == usual]
        wanted = len(together)
        together, address, port = self._rendezvous(together)
        able = [node for node in able if node not in self._gone]
        world = sum(per_node[node] for node in together)
        self._progress(f"computing on {plural(len(able), 'node')}, and an all-reduce")
        each = per_node[together[0]] if together else 1
        # On processors gloo uses TCP, which is measured already.
        has_gpus = any(self.answers[node]["facts"]["gpus"] for node in together)
        pairs = rank_rounds(together, each) if has_gpus else []
        questions, first = {}, 0
        for node in able:
            # A node outside of the all-reduce computes for itself.
            joins = node in together and port is not None and len(together) > 1
            places = []
            for local in range(per_node[node]):
                place: dict[str, Any] = {"rank": first + local, "local_rank": local}
                place |= {"address": address, "port": port, "world_size": world if joins else 1}
                place["pairs"] = pairs
                places.append({**place, "environment": self._environment(node)})
            first += per_node[node] if joins else 0
            questions[node] = {"type": "tensor", "places": places, "patience": TENSOR}
        answers = self._ask(questions, TENSOR + ANSWER)
        rows: list[Any] = []
        for node in able:
            ranks = answers.get(node, {}).get("ranks", [])
            self.answers[node]["tensor"] = ranks or [{"error": "no answer in time"}]
            rows = rows or next((one["allreduce"] for one in ranks if "allreduce" in one), [])
        found = {"rows": rows, "nodes": together, "ranks": world, "interface": interface}
        if wanted > 1 and len(together) < 2:
            found["omitted"] = "of its nodes too few are left, or the first one told no port"
        ranks_of = {node: self.answers[node]["tensor"] for node in together}
        return {**found, "pairs": slow_pairs(together, ranks_of)}

    def _rendezvous(self, nodes: Sequence[str]) -> tuple[list[str], str | None, int | None]:
        """Return who meets for the all-reduce, and where: at the first of them that lives.

        Nodes that die meanwhile are left out; nobody meets where that first one tells no port.
        """
        together = [node for node in nodes if node not in self._gone]
        while len(together) > 1:
            first = together[0]
            answer = self._ask({first: {"type": "ports", "seed": self._seed}}, ANSWER)
            port, own = answer.get(first, {}).get("port"), self._interfaces().get(first)
            together = [node for node in together if node not in self._gone]
            if first not in together:
                continue
            if port is None or own is None:
                return [], None, None
            return together, own[1], port
        return together, None, None

    def _environment(self, node: str) -> dict[str, str]:
        own = self._interfaces().get(node)
        found = {"GLOO_SOCKET_IFNAME": own[0], "NCCL_SOCKET_IFNAME": own[0]} if own else {}
        if hca := self.answers[node]["facts"].get("hca"):
            found.setdefault("NCCL_IB_HCA", os.environ.get("NCCL_IB_HCA", str(hca)))
        return found


def main() -> None:
    """Entry point of ``python -m hpcrun.tools.doctor.on_nodes.conductor``."""
    parser = argparse.ArgumentParser(prog="hpcrun.tools.doctor.on_nodes.conductor")
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    try:
        conductor = Conductor(directory, files.read_json(directory / "request.json"))
        try:
            result = conductor.conduct()
        finally:
            conductor.close()
        files.write_json(directory / "result.json", result)
    except (HpcrunError, OSError, ValueError) as error:
        say(f"error: {error}")
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
