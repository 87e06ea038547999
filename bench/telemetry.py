"""What telemetry and trackers cost: steps of a training run with them, against steps without.

    python -m bench.telemetry [--pairs 10] [--steps 240] [--output bench/results] [--json]

Each pair is one run of two ranks (real DeepSpeed on the CPU, gloo; the local executor). What
samples and forwards for it works for a few steps and stands still for as many. See
bench/README.md.
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
from hpcrun.state import files, layout
from hpcrun.submission.local import processes
from hpcrun.submission.local.processes import LocalProcess
from tests.support import operators

HERE = Path(__file__).parent
RANKS = 2
SIDE = "trained"
# The order of turns, over and over: a drift of the machine's hits both alike.
PATTERN = ("on", "off", "off", "on")
# Ten times as often as by default, so that each turn has its share.
SAMPLED_EVERY = 1
WITH: dict[str, Any] = {
    "telemetry": {"every": SAMPLED_EVERY},
    "tracking": {"tensorboard": True, "wandb": {"mode": "offline"}},
}
BEHIND = (b"hpcrun.run.agent", b"hpcrun.run.tracker", b"wandb-core")
OWN_TARGET, SLOWDOWN_TARGET = 0.5, 2.0
PATIENCE = 120.0


@dataclass(frozen=True)
class Behind:
    """Processor seconds of the processes behind the ranks, in all of a pair's turns with them.

    Attributes
    ----------
    agents, trackers
        Of which processes.
    elapsed
        Seconds of these turns.
    """

    agents: float
    trackers: float
    elapsed: float

    def share(self, seconds: float) -> float:
        """Per cent of the node's processors."""
        return 100 * seconds / (self.elapsed * (os.cpu_count() or 1))


class Bench:
    """The directory in which the runs are."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        self.options, self.root = options, directory / "root"
        self.code, self.socket = directory / "code", directory / "turns"
        self._submission = directory
        self.code.mkdir()
        operators.link(operators.build(), self.root)
        shutil.copy(HERE.parent / "jobs" / "language_model.py", self.code)
        for name in ("turns.py", "training_hpcrun.py"):
            shutil.copy(HERE / name, self.code)
        # After the last measured step comes one more, whose beginning is that step's end.
        self.last = options.warm_up + 2 * options.steps + 1
        self.pauses = [1, *range(options.warm_up + 1, self.last + 1, options.block)]
        config = {
            **SPEC["config"],
            "total_steps": self.last,
            "turns": str(self.socket),
            "side": SIDE,
        }
        resources = {"nodes": 1, "ntasks_per_node": RANKS, "cpus_per_task": 1}
        spec = {**SPEC, "name": SIDE, "cluster": "local", "config": config, **WITH}
        spec = {**spec, "resources": resources, "recovery": {"warm_after": None}}
        (self.code / f"{SIDE}.yaml").write_text(yaml.safe_dump(spec))

    def pair(self, first: int) -> tuple[Pair, Behind]:
        """A run from its start to its end; ``first`` is where in the pattern it begins."""
        load = os.getloadavg()[0]
        with Referee(self.socket, (SIDE,), RANKS) as referee:
            run = self._submit()
            try:
                referee.welcome(self.pauses)
                referee.turn(SIDE)
                self._until_forwarded(run)
                sides, used = self._turns(referee, first)
                (rank, *others) = referee.end()[SIDE]
                counted = self._finished(run)
            except (OSError, ValueError) as error:
                logs = sorted(self.root.glob("*/runs/*/attempts/1/*.log"))
                said = "".join(f"\n{path}\n{path.read_text()[-2000:]}" for path in logs)
                raise RuntimeError(f"a run did not come to its end: {error}{said}") from error
        self._check(run)
        seconds = self._by_side(sides, rank["seconds"])
        processor = {
            side: sum(sum(self._by_side(sides, one["processor"])[side]) for one in (rank, *others))
            for side in ("on", "off")
        }
        pair = Pair(
            first=sides[0],
            load=load,
            block=self.options.block,
            hpcrun=seconds["on"],
            bare=seconds["off"],
            own_seconds=counted["own_seconds"],
            step_seconds=counted["step_seconds"] - rank["waited"],
            processor=100 * (processor["on"] / processor["off"] - 1),
            faults={
                name: statistics.fmean(self._by_side(sides, rank["faults"])[side])
                for name, side in (("hpcrun", "on"), ("bare", "off"))
            },
        )
        return pair, used

    def _by_side(self, sides: list[str], steps: list[float]) -> dict[str, list[float]]:
        """What was measured of each step, by what its turn was."""
        found: dict[str, list[float]] = {"on": [], "off": []}
        for number, side in enumerate(sides):
            start = self.options.warm_up + number * self.options.block
            found[side] += steps[start : start + self.options.block]
        return found

    def _submit(self) -> layout.RunPaths:
        command = [
            sys.executable,
            "-m",
            "hpcrun",
            "submit",
            f"{SIDE}.yaml",
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
        experiment = layout.experiment(self.root, SIDE)
        self._submission = experiment.submission(found["submission"]).directory
        return experiment.run(found["runs"][0]["run"])

    def _turns(self, referee: Referee, first: int) -> tuple[list[str], Behind]:
        """All turns; which of them had the processes behind the ranks, and what these used."""
        behind = self._behind()
        agents, trackers, elapsed = 0.0, 0.0, 0.0
        turns = len(self.pauses) - 2
        sides = [PATTERN[(2 * first + number) % len(PATTERN)] for number in range(turns)]
        with contextlib.ExitStack() as stack:
            stack.callback(_signal, behind, signal.SIGCONT)
            for side in sides:
                began, before = time.monotonic(), _seconds(behind)
                _signal(behind, signal.SIGCONT if side == "on" else signal.SIGSTOP)
                referee.turn(SIDE)
                if side == "on":
                    elapsed += time.monotonic() - began
                    after = _seconds(behind)
                    agents += after[0] - before[0]
                    trackers += after[1] - before[1]
        return sides, Behind(agents, trackers, elapsed)

    def _left(self) -> list[LocalProcess]:
        return list(processes.of_submission(self._submission))

    def _behind(self) -> list[tuple[LocalProcess, bool]]:
        """The processes that sample and forward, and whether they are agents."""
        found = []
        for process in self._left():
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
            found = files.last_line(run.attempt(1).session) or {}
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
        self._wait_for(lambda: not self._left())
        for name in ("tensorboard", "wandb"):
            step = files.read_json(run.tracker_state(name))["place"]["step"]
            if step != self.last:
                raise RuntimeError(f"{name} was told of {step} steps of {self.last}")
        if not any(files.read_lines(run.attempt(1).telemetry("local0"))):
            raise RuntimeError("the node was not sampled")


def _signal(found: list[tuple[LocalProcess, bool]], number: int) -> None:
    for process, _ in found:
        process.signal(number)


def _seconds(found: list[tuple[LocalProcess, bool]]) -> tuple[float, float]:
    """Processor seconds so far, of agents and of the others."""
    totals = [0.0, 0.0]
    for process, is_agent in found:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        totals[0 if is_agent else 1] += ticks / os.sysconf("SC_CLK_TCK")
    return totals[0], totals[1]


def summary(pairs: list[tuple[Pair, Behind]]) -> dict[str, Any]:
    """All results as plain data."""
    measured = [pair for pair, _ in pairs]
    slowdowns = [pair.slowdown for pair in measured]
    totals = [pair.total_slowdown for pair in measured]
    own = 100 * sum(pair.own_seconds for pair in measured)
    own /= sum(pair.step_seconds for pair in measured)
    bound = bootstrap(slowdowns, statistics.median)[1]
    shares = {
        name: statistics.median(used.share(getattr(used, name)) for _, used in pairs)
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
        "pairs": [{**asdict(pair), "behind": asdict(used)} for pair, used in pairs],
    }


def lines(pairs: list[tuple[Pair, Behind]]) -> list[str]:
    """The table, and what it says."""
    shown = [
        f"{'pair':>4}  {'first':<5}  {'load':>5}  {'on ms':>8}  {'off ms':>8}  {'slowdown %':>10}"
        f"  {'of sums %':>9}  {'own time %':>10}  {'agent %':>8}  {'trackers %':>10}"
    ]
    for number, (pair, used) in enumerate(pairs, 1):
        on, off = (1000 * statistics.median(side) for side in (pair.hpcrun, pair.bare))
        agent, trackers = used.share(used.agents), used.share(used.trackers)
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
        f"of the node's processors: the agent {agents:.3f} %, the trackers {trackers:.3f} %",
    ]


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bench.telemetry")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=240, help="measured steps of either kind")
    parser.add_argument("--warm-up", type=int, default=10, help="steps before them")
    parser.add_argument("--block", type=int, default=5, help="steps of a turn")
    add_options(parser, "telemetry")
    options = parser.parse_args()
    if options.steps % (2 * options.block) or options.pairs < 1:
        parser.error("--steps must be a multiple of twice --block, and --pairs at least 1")
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
