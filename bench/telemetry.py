"""What telemetry and trackers cost: a training run with them, against the same without.

    python -m bench.telemetry [--pairs 10] [--steps 40] [--output bench/results] [--json]

Both runs of a pair are the local executor's, of two ranks each (real DeepSpeed on the CPU, gloo),
and take turns of a few steps. What samples and forwards for one stands still in the other's turns.
See bench/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.publish import add_options, circumstances, publish
from bench.training import MODEL, SPEC
from bench.training_report import Pair, bootstrap
from bench.turns import Referee
from hpcrun import layout, records
from hpcrun.cluster import processes
from hpcrun.cluster.processes import Process
from tests import operators

HERE = Path(__file__).parent
RANKS = 2
SIDES = ("on", "off")
# Ten times as often as by default, so that each turn has its share.
SAMPLED_EVERY = 1
WITH: dict[str, Any] = {
    "telemetry": {"every": SAMPLED_EVERY},
    "tracking": {"tensorboard": True, "wandb": {"mode": "offline"}},
}
WITHOUT: dict[str, Any] = {"telemetry": {"every": None}}
BEHIND = (b"hpcrun.run.agent", b"hpcrun.run.tracker", b"wandb-core")
OWN_TARGET, SLOWDOWN_TARGET = 0.5, 2.0
PATIENCE = 120.0


@dataclass(frozen=True)
class Behind:
    """Processor seconds of the processes behind the ranks, in all of a pair's measured turns.

    Attributes
    ----------
    agents, trackers
        Of which processes.
    elapsed
        Seconds of this side's turns.
    """

    agents: float
    trackers: float
    elapsed: float

    def share(self, seconds: float) -> float:
        """Per cent of the node's processors."""
        return 100 * seconds / (self.elapsed * (os.cpu_count() or 1))


class Bench:
    """The directory in which both sides run."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        self.options, self.root = options, directory / "root"
        self.code, self.socket = directory / "code", directory / "turns"
        self._submissions: dict[str, Path] = {}
        self.code.mkdir()
        operators.link(operators.build(), self.root)
        shutil.copy(HERE.parent / "jobs" / "language_model.py", self.code)
        for name in ("turns.py", "training_hpcrun.py"):
            shutil.copy(HERE / name, self.code)
        last = options.warm_up + options.steps
        self.pauses = [1, *range(options.warm_up + 1, last + 2, options.block)]
        for side, more in zip(SIDES, (WITH, WITHOUT), strict=True):
            config = {
                **SPEC["config"],
                # After the last measured step comes one more, whose beginning is that step's end.
                "total_steps": last + 1,
                "turns": str(self.socket),
                "side": side,
            }
            resources = {"nodes": 1, "ntasks_per_node": RANKS, "cpus_per_task": 1}
            spec = {**SPEC, "name": side, "cluster": "local", "config": config, **more}
            spec = {**spec, "resources": resources, "recovery": {"warm_after": None}}
            (self.code / f"{side}.yaml").write_text(yaml.safe_dump(spec))

    def pair(self, first: int) -> tuple[Pair, dict[str, Behind]]:
        """Both sides from their start to their end; side number ``first`` has the first turn."""
        load = os.getloadavg()[0]
        with Referee(self.socket, SIDES, RANKS) as referee:
            runs = {side: self._submit(side) for side in SIDES}
            try:
                referee.welcome(self.pauses)
                for side in SIDES:
                    referee.turn(side)
                self._until_forwarded(runs["on"])
                used = self._turns(referee, first)
                results = referee.end()
                counted = self._finished(runs["on"])
            except (OSError, ValueError) as error:
                logs = sorted(self.root.glob("*/runs/*/attempts/1/*.log"))
                said = "".join(f"\n{path}\n{path.read_text()[-2000:]}" for path in logs)
                raise RuntimeError(f"a side did not come to its end: {error}{said}") from error
        losses = {side: [rank["losses"] for rank in results[side]] for side in SIDES}
        if losses["on"] != losses["off"]:
            raise RuntimeError(f"the two sides did not do the same work: {losses}")
        self._check(runs["on"])
        steps = slice(self.options.warm_up, self.options.warm_up + self.options.steps)
        processor = {
            side: sum(sum(rank["processor"][steps]) for rank in results[side]) for side in SIDES
        }
        on = used["on"]
        pair = Pair(
            first=SIDES[first],
            load=load,
            block=self.options.block,
            hpcrun=results["on"][0]["seconds"][steps],
            bare=results["off"][0]["seconds"][steps],
            own_seconds=counted["own_seconds"],
            step_seconds=counted["step_seconds"] - results["on"][0]["waited"],
            background=on.share(on.agents + on.trackers),
            processor=100 * (processor["on"] / processor["off"] - 1),
        )
        return pair, used

    def _submit(self, side: str) -> layout.RunPaths:
        command = [
            sys.executable,
            "-m",
            "hpcrun",
            "submit",
            f"{side}.yaml",
            "--new",
            "--json",
            "--quiet",
        ]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "PATH": operators.PATH}
        submitted = subprocess.run(
            [*command, "--root", str(self.root)],
            cwd=self.code,
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        found = json.loads(submitted.stdout)
        experiment = layout.experiment(self.root, side)
        self._submissions[side] = experiment.submission(found["submission"]).directory
        return experiment.run(found["runs"][0]["run"])

    def _turns(self, referee: Referee, first: int) -> dict[str, Behind]:
        """All turns, with the processes behind the side whose turn it is not stopped."""
        behind = {side: self._behind(side) for side in SIDES}
        began = {side: _seconds(behind[side]) for side in SIDES}
        elapsed = dict.fromkeys(SIDES, 0.0)
        with contextlib.ExitStack() as stack:
            for found in behind.values():
                stack.callback(_signal, found, signal.SIGCONT)
                _signal(found, signal.SIGSTOP)
            for number in range(len(self.pauses) - 2):
                for place in (0, 1):
                    side = SIDES[(first + number + place) % 2]
                    start = time.monotonic()
                    _signal(behind[side], signal.SIGCONT)
                    referee.turn(side)
                    _signal(behind[side], signal.SIGSTOP)
                    elapsed[side] += time.monotonic() - start
            ended = {side: _seconds(behind[side]) for side in SIDES}
        return {
            side: Behind(
                *(after - before for before, after in zip(began[side], ended[side], strict=True)),
                elapsed=elapsed[side],
            )
            for side in SIDES
        }

    def _left(self, side: str) -> list[Process]:
        return list(processes.of_submission(self._submissions[side]))

    def _behind(self, side: str) -> list[tuple[Process, bool]]:
        """The processes of a side that sample and forward, and whether they are agents."""
        found = []
        for process in self._left(side):
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            if any(word in command for word in BEHIND):
                found.append((process, BEHIND[0] in command))
        return found

    def _until_forwarded(self, run: layout.RunPaths) -> None:
        """Importing the trackers' libraries is a part of the start."""
        for name in ("tensorboard", "wandb"):
            self._wait_for(run.tracker_state(name).exists)

    def _finished(self, run: layout.RunPaths) -> dict[str, Any]:
        def last() -> dict[str, Any]:
            found = records.last_line(run.attempt(1).session) or {}
            return found if found.get("event") == "finished" else {}

        return self._wait_for(last)

    def _wait_for(self, condition: Any) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{condition} did not come true")
            time.sleep(0.1)
        return found

    def _check(self, run: layout.RunPaths) -> None:
        """It was sampled, and all steps are in both trackers once its processes are gone."""
        self._wait_for(lambda: not any(map(self._left, SIDES)))
        last = self.options.warm_up + self.options.steps + 1
        for name in ("tensorboard", "wandb"):
            step = records.read_json(run.tracker_state(name))["place"]["step"]
            if step != last:
                raise RuntimeError(f"{name} was told of {step} steps of {last}")
        if not any(records.read_lines(run.attempt(1).telemetry("local0"))):
            raise RuntimeError("the node was not sampled")


def _signal(found: list[tuple[Process, bool]], number: int) -> None:
    for process, _ in found:
        process.signal(number)


def _seconds(found: list[tuple[Process, bool]]) -> tuple[float, float]:
    """Processor seconds so far, of agents and of the others."""
    totals = [0.0, 0.0]
    for process, is_agent in found:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        totals[0 if is_agent else 1] += ticks / os.sysconf("SC_CLK_TCK")
    return totals[0], totals[1]


def summary(pairs: list[tuple[Pair, dict[str, Behind]]]) -> dict[str, Any]:
    """All results as plain data."""
    measured = [pair for pair, _ in pairs]
    slowdowns = [pair.slowdown for pair in measured]
    totals = [pair.total_slowdown for pair in measured]
    own = 100 * sum(pair.own_seconds for pair in measured)
    own /= sum(pair.step_seconds for pair in measured)
    bound = bootstrap(slowdowns, statistics.median)[1]
    shares = {
        name: {
            side: statistics.median(
                used[side].share(getattr(used[side], name)) for _, used in pairs
            )
            for side in SIDES
        }
        for name in ("agents", "trackers")
    }
    return {
        "own_percent": {"all": own, "target": OWN_TARGET, "met": own <= OWN_TARGET},
        "slowdown_percent": {
            "median": statistics.median(slowdowns),
            "upper_bound_95": bound,
            "target": SLOWDOWN_TARGET,
            "met": bound <= SLOWDOWN_TARGET,
            "totals_median": statistics.median(totals),
            "totals_upper_bound_95": bootstrap(totals, statistics.median)[1],
        },
        "percent_of_the_node": shares,
        "pairs": [
            {**asdict(pair), "behind": {side: asdict(one) for side, one in used.items()}}
            for pair, used in pairs
        ],
    }


def lines(pairs: list[tuple[Pair, dict[str, Behind]]]) -> list[str]:
    """The table, and what it says."""
    shown = [
        f"{'pair':>4}  {'first':<5}  {'load':>5}  {'on ms':>8}  {'off ms':>8}  {'slowdown %':>10}"
        f"  {'of sums %':>9}  {'own time %':>10}  {'agent %':>8}  {'trackers %':>10}"
    ]
    for number, (pair, used) in enumerate(pairs, 1):
        on, off = (1000 * statistics.median(side) for side in (pair.hpcrun, pair.bare))
        behind = used["on"]
        agent, trackers = behind.share(behind.agents), behind.share(behind.trackers)
        shown.append(
            f"{number:>4}  {pair.first:<5}  {pair.load:>5.2f}  {on:>8.2f}  {off:>8.2f}"
            f"  {pair.slowdown:>+10.2f}  {pair.total_slowdown:>+9.2f}  {pair.own:>10.3f}"
            f"  {agent:>8.3f}  {trackers:>10.3f}"
        )
    found = summary(pairs)
    own, slowdown = found["own_percent"], found["slowdown_percent"]
    agents, trackers = (found["percent_of_the_node"][name] for name in ("agents", "trackers"))
    return [
        *shown,
        "",
        f"hpcrun's own time inside the steps: {own['all']:.3f} %"
        f" (target {OWN_TARGET:g} %: {_verdict(own['met'])})",
        f"slowdown, median of {len(pairs)} pairs: {slowdown['median']:+.2f} %; 95 % upper bound"
        f" {slowdown['upper_bound_95']:+.2f} %"
        f" (target {SLOWDOWN_TARGET:g} %: {_verdict(slowdown['met'])})",
        f"  of the sums of steps {slowdown['totals_median']:+.2f} %, bound"
        f" {slowdown['totals_upper_bound_95']:+.2f} %",
        f"of the node's processors: the agent {agents['on']:.3f} % ({agents['off']:.3f} % without"
        f" telemetry), the trackers {trackers['on']:.3f} %",
    ]


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench.telemetry")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40, help="measured steps a side and pair")
    parser.add_argument("--warm-up", type=int, default=10, help="steps before them")
    parser.add_argument("--block", type=int, default=5, help="steps of a turn")
    add_options(parser, "telemetry")
    options = parser.parse_args()
    if options.steps % options.block or options.pairs < 1:
        parser.error("--steps must be a multiple of --block, and --pairs at least 1")
    return options


@contextlib.contextmanager
def _bench(options: argparse.Namespace) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), options)
        try:
            yield bench
        finally:
            for submission in bench.root.glob("*/submissions/*"):
                processes.kill_all(submission)


def main() -> None:
    """Measure, print, and write the results where ``--output`` says."""
    options = parse()
    began = time.monotonic()
    pairs = []
    with _bench(options) as bench:
        for number in range(options.pairs + 1):
            found = bench.pair(number % 2)
            kind = f"pair {number} of {options.pairs}" if number else "rehearsal, not counted"
            message = f"{kind}: {found[0].slowdown:+.2f} %, {time.monotonic() - began:.0f} s"
            print(message, file=sys.stderr, flush=True)
            if number:
                pairs.append(found)
    setting = circumstances(
        seconds=round(time.monotonic() - began),
        ranks=RANKS,
        model=MODEL,
        pairs=options.pairs,
        warm_up=options.warm_up,
        steps=options.steps,
        block=options.block,
        sampled_every_seconds=SAMPLED_EVERY,
    )
    publish(options, "telemetry", setting, lines(pairs), **summary(pairs))


if __name__ == "__main__":
    main()
