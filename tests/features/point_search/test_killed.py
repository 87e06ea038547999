"""A search of which whatever acts is killed before each of its writes, and then goes on.

It acts as it is submitted, as a run asks for its values, as a run tells its end, and as it is
pruned. No trial is lost, none has two points, none counts twice.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.compile.sweep import optuna_space
from hpcrun.feature import Enough
from hpcrun.features.point_search import choose, study
from hpcrun.features.point_search.pruning import Pruning
from hpcrun.policy import causes, recovery
from hpcrun.policy.causes import Evidence
from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.run.job.attempt_end import AttemptEnd
from hpcrun.state import chosen_point, ledger, manifest, plan_file
from hpcrun.state.layout import RunPaths, SubmissionPaths
from hpcrun.state.manifest import Manifest
from hpcrun.state.plan import SEARCH, RunPlan
from tests.support.desk import Desk, runs_of
from tests.support.experiment import Experiment
from tests.support.made_checkpoint import make_checkpoint
from tests.support.nursery import COMMANDS, nursery
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(600)

TRIALS = 14
STEPS = 9
COMPLETE = Evidence(finished=True, exit_code=0)
SPACE = {"x": {"uniform": [0, 1]}, "kind": ["a", "b"]}
# Of 200 places, those at which it is submitted: every second one, as each is two commands.
SUBMITS = 20


class Killer:
    """Ends this process before its Nth write, or in the middle of it."""

    def __init__(self, root: str, instant: int) -> None:
        self._root, self._left = root, instant
        self._write = os.write
        os.write = self._write_halves  # type: ignore[assignment]
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: Any) -> None:
        if event == "open":
            path, _, flags = arguments
            if not str(path).startswith(self._root) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in ("os.mkdir", "os.rename", "os.remove", "os.link", "subprocess.Popen"):
            return
        self._tick()

    def _tick(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    def _write_halves(self, descriptor: int, data: bytes) -> int:
        if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(self._root):
            return self._write(descriptor, data)
        written = self._write(descriptor, data[: len(data) // 2])
        self._tick()
        return written + self._write(descriptor, data[written:])


def die_at(instant: int, root: Path, act: Callable[[], object]) -> bool:
    """Act in a fork that is killed before its Nth write; return whether it came to that."""
    child = os.fork()
    if not child:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            Killer(str(root), instant)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0


def instants(root: Path, act: Callable[[], object]) -> Iterator[int]:
    """Yield each N at which an act was killed; who iterates puts all of it back."""
    for instant in itertools.count(1):
        if not die_at(instant, root, act):
            return
        yield instant


SUBMIT = """\
import runpy, sys
from tests.features.point_search.test_killed import Killer
instant, root = int(sys.argv[1]), sys.argv[2]
killer = Killer(root, instant)
sys.argv = ["hpcrun", "submit", "e.yaml", "--root", root]
try:
    runpy.run_module("hpcrun", run_name="__main__", alter_sys=True)
finally:
    open(root + ".left", "w").write(str(killer._left))
"""


class Search:
    """A search that was submitted to a queue behind which there is no Slurm."""

    def __init__(self, directory: Path, **search: Any) -> None:
        self.desk = Desk(directory)
        spec = {
            "name": "e",
            "cluster": "slurm",
            "entry": ["train", "--x=${config.x}"],
            "config": {"x": 0.5, "kind": "a"},
            "objective": {"metric": "loss"},
            "progress": {"pattern": r"step (?P<step>\d+)", "total": STEPS + 1},
            "environment": {"python": sys.executable},
            "sweep": {"search": {"space": SPACE, "trials": TRIALS, "parallel": 4, **search}},
        }
        (directory / "code" / "e.yaml").write_text(json.dumps(spec))
        self.experiment = Experiment(self.desk.root, "e")
        # Whether the run at hand is worse than all others.
        self.is_bad = False

    @property
    def submission(self) -> SubmissionPaths:
        return self.experiment.paths.submission(1)

    def run(self, number: int) -> RunPlan:
        return plan_file.read(self.submission.plan).run(number)

    def point(self, number: int) -> dict[str, Any] | None:
        found = chosen_point.read(self.experiment.run(number))
        return None if found is None else found.swept

    def values(self, number: int) -> dict[str, Any]:
        """What the study would give a run now."""
        return study.choose(self.run(number), self.experiment.paths)

    def ask(self, number: int) -> None:
        """What the supervisor starts as its run has no values."""
        sys.argv = ["choose", str(self.submission.directory), str(number)]
        choose.main()

    def trials(self) -> list[tuple[str, float | None, dict[str, Any]]]:
        """What Optuna is told of all runs."""
        plan = plan_file.read(self.submission.plan)
        frozen = plan.run(TRIALS - 1).spec[SEARCH]["space"]
        space = {key: optuna_space.distribution(form) for key, form in frozen.items()}
        asked = [one for one in plan.runs if one.swept]
        told = study._trials(asked, self.experiment.paths, space)
        return [(one.state.name, one.value, one.params) for one in told]

    def loss(self, number: int, step: int) -> float:
        point = self.point(number)
        assert point is not None
        return float(point["config.x"]) + 10 * self.is_bad + 1 / step

    def begin(self, number: int) -> int:
        """An attempt that has done all of its steps but the last; return its number."""
        attempt = len(ledger.read(self.experiment.run(number))) + 1
        self.experiment.start(number, attempt, job_id="local:1", nodes=("gone",))
        steps = range(1, STEPS + 1)
        self.experiment.metrics(number, attempt, steps, loss=lambda step: self.loss(number, step))
        return attempt

    def end(self, number: int, attempt: int, evidence: Evidence = COMPLETE) -> None:
        """What the supervisor does in the end."""
        end = causes.decide(evidence)
        action = self._ends(number).record(attempt, end)
        assert action.kind == recovery.NOTHING

    def prune(self, number: int, attempt: int) -> None:
        """The same of a run that falls behind."""
        paths = self.experiment.run(number)

        def record(event: str, **fields: Any) -> None:
            ledger.write(paths, event, attempt, **fields)

        part = Pruning(self.run(number), paths.attempt(attempt), record)
        part.turn()
        until(lambda: part._looking is not None and part._looking.wait(0), "a look", 10)
        with pytest.raises(Enough) as caught:
            part.turn()
        told = str(caught.value)
        self.end(number, attempt, Evidence(stop=causes.PRUNED, enough=told, exit_code=143))

    def start_again(self, number: int, end: Callable[[int, int], None]) -> None:
        """What the next supervisor of a run does whose last one was killed."""
        paths = self.experiment.run(number)
        if ledger.intent(paths) is None:
            concluded = self._ends(number).conclude_earlier()
            assert concluded is None or concluded.kind != recovery.STOP, concluded
        if ledger.intent(paths) is None:
            end(number, self.begin(number))

    def _ends(self, number: int) -> AttemptEnd:
        launcher: Any = SimpleNamespace(requeues=False, is_slurm=False, job_id="local:2")
        return AttemptEnd(self.submission, self.run(number), launcher, {})


def test_as_it_is_submitted(tmp_path: Path) -> None:
    every = Counter(range(TRIALS))
    killed = 0
    for instant in itertools.count(1, 2):
        search = Search(tmp_path / str(instant))
        root = search.desk.root
        environment = {**search.desk.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
        with open(tmp_path / "said", "wb") as said:
            child = nursery(of=COMMANDS).start(
                ["-c", SUBMIT, str(instant), str(root)],
                env=environment,
                output=said.fileno(),
                cwd=search.desk.directory / "code",
            )
            code = child.wait()
        assert code in (0, -signal.SIGKILL), (tmp_path / "said").read_text()
        again = search.desk.submit()
        assert again.returncode == 0, (instant, again.stderr)
        queued = [number for script in search.desk.scripts for number in runs_of(script)]
        assert Counter(queued) == every, (instant, again.stderr)
        shutil.rmtree(search.desk.directory)
        if code == 0:
            break
        killed += 1
    assert killed >= SUBMITS, killed


def test_as_a_run_asks_tells_and_is_pruned(tmp_path: Path) -> None:
    search = Search(tmp_path, prune="median")
    assert search.desk.submit().returncode == 0
    root, killed = search.experiment.paths.directory, Counter[str]()
    points: list[dict[str, Any]] = []
    told: list[Any] = []
    for number in range(TRIALS):
        one, expected = search.experiment.run(number), search.values(number)
        ask = functools.partial(search.ask, number)
        for _ in instants(root, ask):
            killed["ask"] += 1
            assert search.point(number) in (None, expected)
            shutil.rmtree(one.point.parent, ignore_errors=True)
        assert search.point(number) == expected
        points.append(expected)
        # Who asks for it once more, in view of more of the others, changes nothing.
        assert not die_at(0, root, ask)
        assert search.point(number) == expected
        end, way = (search.end, "tell") if number < 8 else (search.prune, "prune")
        search.is_bad = way == "prune"
        attempt = search.begin(number)
        assert search.trials() == [*told, ("RUNNING", None, expected)]
        state = "COMPLETE" if way == "tell" else "PRUNED"
        after = (state, pytest.approx(search.loss(number, STEPS)), expected)
        shutil.copytree(one.directory, tmp_path / "before")
        for _ in instants(root, functools.partial(end, number, attempt)):
            killed[way] += 1
            # Whoever asks at this instant is told of it as of one that runs, or has ended.
            assert search.trials() in ([*told, ("RUNNING", None, expected)], [*told, after])
            search.start_again(number, end)
            assert search.trials() == [*told, after]
            assert search.point(number) == expected
            ends = Counter(record.number for record in ledger.read(one) if record.ended)
            assert set(ends.values()) <= {1}
            shutil.rmtree(one.directory)
            shutil.copytree(tmp_path / "before", one.directory)
        # The last one lived.
        end(number, attempt)
        shutil.rmtree(tmp_path / "before")
        told.append(after)
        assert search.trials() == told
    assert len({json.dumps(point) for point in points}) == TRIALS
    assert killed["ask"] + killed["tell"] + killed["prune"] >= 200 - SUBMITS, killed


POPULATION = {"every": 3, "share": 0.5, "resample": 0.25}


def test_as_a_trial_of_a_population_begins(tmp_path: Path) -> None:
    """It has all of a parent or nothing; from the first whole instant on, always the same one."""
    search = Search(tmp_path, population=POPULATION)
    assert search.desk.submit("checkpoint.every=3").returncode == 0
    for number in range(4):
        search.ask(number)
        search.begin(number)
        _save(search, number, 6)
    killed = Counter[str]()
    for number in range(4, 7):
        run = search.experiment.run(number)
        assert not die_at(0, tmp_path, functools.partial(_start, search, number))
        expected = chosen_point.read(run)
        assert expected is not None
        assert expected.parent is not None
        shutil.rmtree(run.directory)
        for _ in instants(tmp_path, functools.partial(_start, search, number)):
            had = chosen_point.read(run)
            killed["before" if had is None else "after"] += 1
            assert had in (None, expected)
            # Its parent may remove what it has once the trial has its values.
            parent = search.experiment.run(expected.parent["run"]).checkpoints
            parent.rename(parent.with_name("aside"))
            if had is None:
                parent.with_name("aside").rename(parent)
            assert not die_at(0, tmp_path, functools.partial(_start, search, number))
            assert chosen_point.read(run) == expected
            assert _names(run) == {"point", "checkpoints"}
            (found,) = run.checkpoints.iterdir()
            entry = manifest.inspect_named(found)
            assert isinstance(entry, Manifest)
            assert not any(
                checkpoint_files.damage(found, name, file) for name, file in entry.files.items()
            )
            if had is not None:
                parent.with_name("aside").rename(parent)
            shutil.rmtree(run.directory)
        assert not die_at(0, tmp_path, functools.partial(_start, search, number))
    assert killed["before"] >= 30, killed
    assert killed["after"] >= 3, killed


def _start(search: Search, number: int) -> None:
    """What each start of a trial's job does before its attempt."""
    from hpcrun.features.point_search import inherited

    run = search.experiment.run(number)
    if chosen_point.read(run) is None:
        search.ask(number)
    inherited.settle(run)


def _save(search: Search, number: int, step: int) -> None:
    made = make_checkpoint(search.experiment.run(number).checkpoints, step)
    entry = manifest.read(made)
    assert entry is not None
    replace(entry, metrics={"loss": search.loss(number, step)}).write(made)


def _names(run: RunPaths) -> set[str]:
    return {path.name for path in run.directory.iterdir()}
