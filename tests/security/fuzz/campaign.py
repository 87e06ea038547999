"""Campaigns: many cases within limits of time and memory, and what they found."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[3]
SECONDS = 5.0
MEGABYTES = 500
# Cases of one process: click keeps the streams of each command that was called in it.
BLOCK = 50_000


class Hang(BaseException):
    """A case took longer than its limit; not an Exception, so that nobody handles it."""


@dataclass(frozen=True)
class Case:
    """One case: a number, under a seed."""

    seed: int
    number: int
    only: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.seed}:{self.number}"

    @property
    def target(self) -> str:
        from tests.security.fuzz import targets

        return targets.choose(random.Random(f"target:{self.name}"), self.only)


@dataclass
class Class:
    """The findings of one kind at one place of the code."""

    what: str
    """The exception or the promise, and the place that raised it."""
    example: int
    """A case that shows it, with as few mutations as any that did."""
    kept: list[int]
    """The mutations of that case that it takes."""
    detail: str
    count: int = 1
    targets: dict[str, int] = field(default_factory=dict)


@dataclass
class Result:
    """The cases of a campaign, their cost and what they found."""

    seed: int
    cases: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    findings: dict[str, Class] = field(default_factory=dict)
    slowest: float = 0.0
    """Processor seconds of the slowest case, which other load does not change."""
    slowest_case: int = 0
    peak_mb: float = 0.0
    """The most memory of a process that ran cases, over what it had before the first."""
    seconds: float = 0.0

    def add(self, found: Class) -> None:
        known = self.findings.get(found.what)
        if known is None:
            self.findings[found.what] = found
            return
        known.count += found.count
        for name, count in found.targets.items():
            known.targets[name] = known.targets.get(name, 0) + count
        if len(found.kept) < len(known.kept):
            known.example, known.kept, known.detail = found.example, found.kept, found.detail

    def to_data(self) -> dict[str, Any]:
        return {
            **{key: value for key, value in asdict(self).items() if key != "findings"},
            "targets": dict(sorted(self.targets.items())),
            "findings": [asdict(one) for one in self.findings.values()],
        }


def _alarm(_number: int, _frame: FrameType | None) -> None:
    raise Hang


def place(error: BaseException) -> str:
    """Return the exception, and the innermost line of hpcrun that raised it."""
    from tests.security.fuzz.world import Finding

    if isinstance(error, Finding):
        return error.kind
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "/hpcrun/" in one.filename and "/tests/" not in one.filename]
    if not ours:
        ours = frames[-1:]
    last = ours[-1]
    file = last.filename.rpartition("/hpcrun/")[2]
    return f"{type(error).__name__} at {file}:{last.name}"


class Runner:
    """Runs cases in this process, each within its limit of time.

    ``patience`` multiplies the limit of the clock on the wall, for machines that are busy.
    """

    def __init__(self, directory: Path, patience: float = 1.0) -> None:
        from tests.security.fuzz.world import World

        self.world = World(directory)
        self._limit = SECONDS * patience
        self.slowest = (0.0, 0)
        signal.signal(signal.SIGALRM, _alarm)

    def once(
        self, case: Case, kept: Collection[int] | None = None
    ) -> tuple[BaseException | None, Any]:
        """Run a case; return what went wrong, and its draw."""
        from tests.security.fuzz import targets
        from tests.security.fuzz.mutations import Draw

        draw = Draw(case.name, None if kept is None else frozenset(kept))
        error: BaseException | None = None
        signal.setitimer(signal.ITIMER_REAL, self._limit)
        began = time.process_time()
        try:
            targets.TARGETS[case.target][1](self.world, draw)
        except (Exception, Hang) as raised:
            error = raised
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        took = time.process_time() - began
        if error is None and took > SECONDS:
            error = Hang()
        if error is None and took > self.slowest[0]:
            self.slowest = took, case.number
        return error, draw

    def run(self, case: Case) -> Class | None:
        """Run a case and, if something went wrong, make it small."""
        error, draw = self.once(case)
        # A machine that is busy elsewhere makes no finding: what hangs does so again.
        for _ in range(2):
            if isinstance(error, Hang):
                error, draw = self.once(case)
        if error is None:
            return None
        what, kept = place(error), list(range(draw.made))
        for number in list(kept) if not isinstance(error, Hang) else ():
            fewer = [one for one in kept if one != number]
            again, shorter = self.once(case, fewer)
            if again is not None and place(again) == what:
                error, draw, kept = again, shorter, fewer
        text = str(error).strip().splitlines() or [""]
        notes = "\n".join(note[:400] for note in draw.notes)
        detail = f"{text[0][:300]}\n{notes}"
        return Class(what, case.number, kept, detail, 1, {case.target: 1})


def memory_mb() -> float:
    """Return the most memory that this process ever had."""
    # A process's ru_maxrss starts at what its parent ever had; VmHWM is its own.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def limit_memory() -> None:
    """Let this process take `MEGABYTES` more than it has."""
    status = Path("/proc/self/status").read_text()
    virtual = int(status.partition("VmSize:")[2].split()[0]) * 1024
    most = virtual + MEGABYTES * 1_000_000
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def work(
    numbers: Sequence[int], seed: int, only: tuple[str, ...], at: Path, patience: float = 1.0
) -> None:
    """Run cases in this process and print what they found, as lines of JSON.

    The number of the case that is running is in the file ``at``, for whoever outlives a crash.
    """
    # What functions print of their own accord is not among our lines.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with tempfile.TemporaryDirectory(prefix="hpcrun-fuzz-") as directory, open(at, "r+b") as mark:
        runner = Runner(Path(directory), patience)
        # What is imported late is not the first case's.
        for argv in (("list",), ("plan", "after.yaml")):
            runner.world.call(*argv, root=runner.world.root("study"))
        before = memory_mb()
        limit_memory()
        counts: dict[str, int] = {}
        for done, number in enumerate(numbers, 1):
            os.pwrite(mark.fileno(), f"{number:020d}".encode(), 0)
            case = Case(seed, number, only)
            counts[case.target] = counts.get(case.target, 0) + 1
            if found := runner.run(case):
                print(json.dumps({"found": asdict(found)}), file=out, flush=True)
            if done % 500 == 0 or done == len(numbers):
                gc.collect()
                line = {
                    "done": number,
                    "counts": counts,
                    "slowest": runner.slowest,
                    "peak": memory_mb() - before,
                }
                print(json.dumps(line), file=out, flush=True)
                counts = {}
        os.chdir("/")


def run(
    cases: int,
    seed: int = 17,
    *,
    first: int = 0,
    only: tuple[str, ...] = (),
    processes: int = 1,
    patience: float = 1.0,
    say: Any = None,
) -> Result:
    """Run cases in processes of their own, which may die of one and go on with the next."""
    began = time.monotonic()
    result = Result(seed)
    with tempfile.TemporaryDirectory(prefix="hpcrun-fuzz-parent-") as directory:
        share = -(-cases // processes)
        spans = [
            (first + start, first + min(start + share, cases)) for start in range(0, cases, share)
        ]
        workers = [
            _Worker(span, seed, only, patience, Path(directory, str(index)), result)
            for index, span in enumerate(spans)
        ]
        # Each has its turn, so a list: `any` alone would stop at the first that goes on.
        while [worker for worker in workers if worker.turn()]:
            if say is not None:
                say(result)
    result.seconds = time.monotonic() - began
    return result


class _Worker:
    """Processes that run a span of cases: one a block, another after a case that killed one."""

    def __init__(
        self,
        span: tuple[int, int],
        seed: int,
        only: tuple[str, ...],
        patience: float,
        at: Path,
        result: Result,
    ) -> None:
        self._next, self._end = span
        self._seed, self._only, self._patience = seed, only, patience
        self._at, self._result = at, result
        self._process: subprocess.Popen[str] | None = None

    def _start(self) -> subprocess.Popen[str]:
        self._at.write_bytes(b"-" * 20)
        end = min(self._next + BLOCK, self._end)
        words = ["--work", f"{self._next}-{end}", "--seed", str(self._seed)]
        words += ["--patience", str(self._patience), "--at", str(self._at)]
        words += [word for name in self._only for word in ("--target", name)]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.security.fuzz", *words],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def turn(self) -> bool:
        """Read one line; return False once all cases of the span have run."""
        if self._process is None:
            if self._next >= self._end:
                return False
            self._process = self._start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            self._take(json.loads(line))
            return True
        said = self._process.communicate()[1]
        code, self._process = self._process.returncode, None
        if code == 0:
            return self._next < self._end
        at = self._at.read_bytes()
        if not at.isdigit():
            raise RuntimeError(f"the fuzzer itself failed:\n{said}")
        # The process died: the case that it was in is a finding, and the next one goes on.
        number = int(at)
        last = (said.strip().splitlines() or ["no words"])[-1]
        case = Case(self._seed, number, self._only)
        what = f"the process died: exit code {code}, {last[:200]}"
        self._result.add(Class(what, number, [], said[-2000:], 1, {case.target: 1}))
        self._result.cases += number + 1 - self._next
        self._next = number + 1
        return True

    def _take(self, line: dict[str, Any]) -> None:
        if "found" in line:
            self._result.add(Class(**line["found"]))
            return
        result = self._result
        result.cases += line["done"] + 1 - self._next
        self._next = line["done"] + 1
        for name, count in line["counts"].items():
            result.targets[name] = result.targets.get(name, 0) + count
        if line["slowest"][0] > result.slowest:
            result.slowest, result.slowest_case = line["slowest"]
        result.peak_mb = max(result.peak_mb, line["peak"])


def replay(case: Case, kept: Collection[int] | None = None) -> Iterator[str]:
    """Run one case and tell what it threw and what came of it."""
    with tempfile.TemporaryDirectory(prefix="hpcrun-fuzz-") as directory:
        runner = Runner(Path(directory), patience=4)
        error, draw = runner.once(case, kept)
        yield f"case {case.number} of seed {case.seed}: {case.target}"
        yield from draw.notes
        if error is None:
            yield "nothing is wrong"
        else:
            yield "".join(traceback.format_exception(error)).rstrip()
            yield f"class: {place(error)}"
        os.chdir("/")
