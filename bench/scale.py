"""Measure how a job's start, restart, lost node, stop and end grow with its nodes.

    python -m bench.scale [--nodes 4,16,64,256] [--ranks 1] [--against COMMIT] [--output DIRECTORY]

The supervisor, two of the agents and the protocol are real, in one process each. srun, the other
nodes' agents and all ranks are stand-ins (`bench.scale_bed`): agents of 30 MB would not fit on this
machine, and no Slurm here has so many nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import against, publish
from hpcrun.state import layout

HERE = Path(__file__).parent
BED = HERE / "scale_bed"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# Seconds of training that are measured, after others in which the start is over.
SETTLED, MEASURED = 4.0, 12.0
LIMIT = 300.0
SPEC = """
name: scale
cluster: bed
entry: train:main
resources: {{nodes: {nodes}, spare_nodes: 1, ntasks_per_node: {ranks}, gpus_per_node: 0, time: 1-0}}
recovery: {{hang_after: "00:10:00"}}
environment: {{python: {python}}}
"""
PROFILE = """
executor: slurm
fabric: {management_interface: lo, fast_interface: lo}
health: {check: false}
"""
# What the supervisor asks of Slurm beside srun: a job that runs, and a requeue that is taken.
SCONTROL = """#!/bin/sh
case "$*" in
    *config*) echo 'SLURM_VERSION = 24.11.5' ;;
    *job*) echo 'JobId=1 JobState=RUNNING Restarts=0 StartTime=1 EndTime=4000000000' ;;
    *node*) echo 'NodeName=n State=DOWN' ;;
esac
"""
PHASES = ("start", "restart", "lost", "stop", "end")
ROWS = {
    "start": "start of the job",
    "restart": "restart in place",
    "noticed": "a lost node noticed",
    "lost": "its ranks started on the spare",
    "stop": "a stop agreed by all ranks",
    "end": "the end",
}


class Bed:
    """A job of so many nodes and a spare, of the hpcrun in ``checkout``."""

    def __init__(self, directory: Path, checkout: Path, nodes: int, ranks: int) -> None:
        self._directory, self._checkout, self.nodes, self._ranks = directory, checkout, nodes, ranks
        self.names = [f"n{number:04}" for number in range(1, nodes + 2)]
        self._real = ",".join(self.names[:2])
        commands = directory / "bin"
        commands.mkdir(parents=True)
        for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo"):
            says = "echo Submitted batch job 1" if name == "sbatch" else "true"
            text = SCONTROL if name == "scontrol" else f"#!/bin/sh\n{says}\n"
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        (commands / "srun").symlink_to(BED / "srun")
        self._environment = {
            **os.environ,
            **{"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(checkout)},
            **{"SCALE_BED": str(directory), "SCALE_REAL": self._real},
            **{"SCALE_PYTHON": sys.executable, "SCALE_RANK": str(BED / "rank.py")},
        }

    def submit(self) -> layout.SubmissionPaths:
        code = self._directory / "code"
        code.mkdir()
        (code / "train.py").write_text("def main(session):\n    pass\n")
        spec = SPEC.format(nodes=self.nodes, ranks=self._ranks, python=sys.executable)
        (code / "scale.yaml").write_text(spec)
        (code / "configs/clusters").mkdir(parents=True)
        (code / "configs/clusters/bed.yaml").write_text(PROFILE)
        root = self._directory / "root"
        argv = [sys.executable, "-m", "hpcrun", "submit", "scale.yaml", "--root", str(root)]
        done = subprocess.run(
            argv, cwd=code, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"the submission failed:\n{done.stdout}{done.stderr}")
        return layout.experiment(root, "scale").submission(1)

    @contextlib.contextmanager
    def crowd(self) -> Iterator[None]:
        os.mkfifo(self._directory / "inbox")
        (self._directory / "events").touch()
        argv = [sys.executable, str(BED / "crowd.py"), str(self._directory), self._real]
        process = subprocess.Popen(argv, env=self._environment)
        try:
            yield
        finally:
            self.tell("quit")
            process.wait()

    def tell(self, line: str) -> None:
        with (self._directory / "inbox").open("w") as stream:
            stream.write(line + "\n")

    def supervisor(self, submission: layout.SubmissionPaths) -> subprocess.Popen[bytes]:
        job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": ",".join(self.names)}
        argv = [sys.executable, "-m", "hpcrun.run.supervisor", str(submission.directory)]
        with self.log.open("wb") as stream:
            self._supervisor = subprocess.Popen(
                [*argv, "--run", "0"],
                # Python looks there first, and for the hpcrun of the checkout nowhere else.
                cwd=self._directory,
                env={**self._environment, **job},
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        return self._supervisor

    @property
    def log(self) -> Path:
        return self._directory / "supervisor.log"

    def events(self) -> list[dict[str, Any]]:
        text = (self._directory / "events").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def wait(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait for something; raise SystemExit if it does not come."""
        deadline = time.monotonic() + LIMIT
        while not is_there():
            is_over = self._supervisor.poll() is not None and what != "end"
            if is_over or time.monotonic() > deadline:
                raise SystemExit(f"{self.nodes} nodes: no {what}:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.02)

    def came(self, event: str, count: int) -> bool:
        found = self.events()
        if errors := [one for one in found if one["event"] == "error"]:
            raise SystemExit(f"an agent of the crowd failed: {errors[0]}")
        return [one["event"] for one in found].count(event) >= count


def processor(pid: int) -> float:
    """Return the seconds of processor time of a process so far; 0.0 of one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def processes() -> Iterator[tuple[int, int, bytes]]:
    """Yield id, parent and command line of each process, the arguments separated by NUL."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            yield int(path.name), int(fields[1]), (path / "cmdline").read_bytes()


def memory(pid: int) -> float:
    """Return the resident memory of a process, in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


def newest_agent(submission: layout.SubmissionPaths) -> int:
    """Return the process of the real agent that was started last, on the second node."""
    words = f"hpcrun.run.agent\0{submission.directory}\0".encode()
    python = os.fsencode(sys.executable)
    return max(pid for pid, _, line in processes() if line.startswith(python) and words in line)


def measure(directory: Path, checkout: Path, nodes: int, ranks: int) -> dict[str, Any]:
    """Lead one job through all phases; return seconds, processor seconds, processes and MB."""
    bed = Bed(directory, checkout, nodes, ranks)
    submission = bed.submit()
    found: dict[str, Any] = {"nodes": nodes, "ranks": ranks}
    with bed.crowd():
        began = time.monotonic()
        process = bed.supervisor(submission)
        pid, agent, before = process.pid, 0, (0.0, 0.0)

        def note(phase: str) -> None:
            nonlocal began, before
            now = processor(pid), processor(agent) if agent else 0.0
            found[phase] = {
                "seconds": round(time.monotonic() - began, 2),
                "supervisor": round(now[0] - before[0], 3),
                "agent": round(now[1] - before[1], 3),
            }
            began, before = time.monotonic(), now

        def pause(seconds: float) -> None:
            nonlocal began, before
            time.sleep(seconds)
            began, before = time.monotonic(), (processor(pid), processor(agent))

        try:
            bed.wait(lambda: bed.came("ranks", 1), "ranks")
            agent = newest_agent(submission)
            note("start")
            pause(SETTLED)
            time.sleep(MEASURED)
            note("training")
            sruns = [one for one, parent, line in processes() if parent == pid and b"/srun" in line]
            found["srun"] = len(sruns)
            found["srun MB"] = round(sum(map(memory, sruns)), 1)
            found["supervisor MB"] = round(memory(pid), 1)
            found["agent MB"] = round(memory(agent), 1)
            pause(0)
            bed.tell(f"crash {bed.names[2]}")
            bed.wait(lambda: bed.came("ranks", 2), "restart")
            note("restart")
            pause(SETTLED)
            bed.tell(f"silence {bed.names[3]}")
            bed.wait(lambda: "no sign of life from" in bed.log.read_text(), "lost node")
            found["noticed"] = {"seconds": round(time.monotonic() - began, 2)}
            bed.wait(lambda: bed.came("ranks", 3), "restart with the spare")
            if (newest := newest_agent(submission)) != agent:
                agent, before = newest, (before[0], 0.0)
            note("lost")
            found["lost"]["seconds"] -= found["noticed"]["seconds"]
            pause(SETTLED)
            left = sum(one["event"] == "left" for one in bed.events())
            os.kill(pid, signal.SIGUSR1)
            bed.wait(lambda: bed.came("left", left + 1), "stop")
            note("stop")
            bed.wait(lambda: process.poll() is not None or processor(pid) == 0.0, "end")
            found["end"] = {"seconds": round(time.monotonic() - began, 2)}
        finally:
            # Of a job that came to its end, there are none.
            for one, _, line in processes():
                if os.fsencode(directory) + b"/" in line and b"crowd.py" not in line:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(one, signal.SIGKILL)
            process.wait()
    return found


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """Return b of a x N**b by least squares of logarithms; None of fewer than two points."""
    known = [(math.log(n), math.log(value)) for n, value in points if value > 0]
    if len(known) < 2:
        return None
    mean_x = sum(x for x, _ in known) / len(known)
    mean_y = sum(y for _, y in known) / len(known)
    across = sum((x - mean_x) ** 2 for x, _ in known)
    return round(sum((x - mean_x) * (y - mean_y) for x, y in known) / across, 2)


def share(phase: dict[str, float], of: str) -> float:
    """Return the percentage of a core that a process took in a phase."""
    return 100 * phase[of] / phase["seconds"]


def table(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the lines of one table over all versions and numbers of nodes."""
    sizes = sorted({one["nodes"] for found in results.values() for one in found})
    head = "".join(f"{size:>10}" for size in sizes)
    lines = [f"{'':46}{'version':>11}{head}  exponent"]

    def row(what: str, value: Callable[[dict[str, Any]], float | None]) -> None:
        for version, found in results.items():
            cells = {one["nodes"]: value(one) for one in found}
            points = [(size, cells[size]) for size in sizes if cells.get(size)]
            fitted = exponent(points)  # type: ignore[arg-type]
            shown = "".join(
                f"{'-' if cells.get(size) is None else format(cells[size], '.3g'):>10}"
                for size in sizes
            )
            lines.append(f"{what:46}{version:>11}{shown}{'-' if fitted is None else fitted:>10}")

    for phase, words in ROWS.items():
        row(f"{words}, s", lambda one, of=phase: one[of]["seconds"])  # type: ignore[misc]
    for phase in ("start", "restart", "lost", "stop"):
        words = f"{phase}: processor of the supervisor, s"
        row(words, lambda one, of=phase: one[of]["supervisor"])  # type: ignore[misc]
    for part, words in (("supervisor", "the supervisor"), ("agent", "one agent")):
        words = f"training: share of a core, {words}, %"
        row(words, lambda one, of=part: share(one["training"], of))  # type: ignore[misc]
    row("one agent from its start to the ranks', s", lambda one: one["start"]["agent"])
    row("srun processes", lambda one: one["srun"])
    for name in ("supervisor MB", "agent MB"):
        row(name, lambda one, of=name: one[of])  # type: ignore[misc]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument("--nodes", default="4,16,64,256", help="numbers of nodes, at least 4")
    parser.add_argument("--ranks", type=int, default=1, help="ranks a node")
    against.add_option(parser)
    publish.add_options(parser, "scale")
    options = parser.parse_args()
    sizes = [int(size) for size in options.nodes.split(",")]
    results: dict[str, list[dict[str, Any]]] = {}
    with against.versions(options.against) as checkouts:
        for size in sizes:
            for version, checkout in checkouts.items():
                with against.open_directory("hpcrun-scale-") as directory:
                    found = measure(directory, checkout or against.REPOSITORY, size, options.ranks)
                print(f"{version}: {found}", file=sys.stderr, flush=True)
                results.setdefault(version, []).append(found)
    publish.publish(
        options,
        "scale",
        publish.circumstances(ranks_per_node=options.ranks, real_agents=2),
        table(results),
        results=results,
    )


if __name__ == "__main__":
    main()
