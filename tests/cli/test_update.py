"""``hpcrun update`` as it is typed: Slurm is a shim here; tests/cluster has a real one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.state import history, journal
from hpcrun.state.layout import experiment
from tests.support import command
from tests.support.slurm_shim import Shim

PYTHON = sys.executable


class Place:
    """Job 50 in a queue: run 0 runs, runs 1 to 3 wait."""

    def __init__(self, directory: Path, shim: Shim) -> None:
        self.code, self.root, self.shim = directory / "code", directory / "root", shim
        self.code.mkdir()
        self.write("00:10:00")
        self.states = {0: "RUNNING", 1: "PENDING", 2: "PENDING", 3: "PENDING"}
        self.queue()
        shim.answer(
            "sbatch", {"out": "Submitted batch job 50\n"}, {"out": "Submitted batch job 60\n"}
        )
        done = self.hpcrun("submit", "e.yaml")
        assert done.returncode == 0, done.stderr
        assert "cluster slurm, default partition, default account" in done.stderr
        (shim.directory / "calls").unlink()

    def write(self, time: str, **sweep: object) -> None:
        spec = {
            "name": "e",
            "entry": ["true"],
            "config": {"x": 0},
            "environment": {"python": PYTHON},
            "resources": {"time": time},
            "sweep": {"grid": {"config.x": [0, 1, 2, 3]}, **sweep},
        }
        (self.code / "e.yaml").write_text(json.dumps(spec))

    def queue(self, shown: str = "", **row: str) -> None:
        """Have squeue show these jobs, first their states, then what was asked for of them."""
        states = "".join(f"50_{run}|{state}|None|n1|N/A\n" for run, state in self.states.items())
        now = {"time": "10:00", "partition": "main", "qos": "normal", "nice": "0", **row}
        form = f"{now['time']}|{now['partition']}|{now['qos']}|1|{now['nice']}"
        rows = shown or "".join(f"50_{run}|{state}|{form}\n" for run, state in self.states.items())
        self.shim.answer("squeue", {"out": states}, {"out": rows}, {"out": states})

    def hpcrun(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return command.hpcrun(*arguments, "--root", self.root, cwd=self.code)

    def update(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.hpcrun("update", *words)

    def asked(self) -> list[list[str]]:
        calls = self.shim.calls if (self.shim.directory / "calls").exists() else []
        return [call[2:] for call in calls if call[:2] == ["scontrol", "update"]]

    def changes(self) -> dict[int, dict[str, str]]:
        jobs = journal.newest_jobs(experiment(self.root, "e"))
        return {
            run: {name: one.value for name, one in job.changes.items()}
            for run, job in jobs.items()
            if job.changes
        }


@pytest.fixture
def place(tmp_path: Path, shim: Shim, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in ("HPCRUN_ROOT", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for program in ("srun", "sinfo", "sacct", "scontrol"):
        shim.answer(program, {})
    return Place(tmp_path, shim)


def test_a_dry_run_changes_nothing(place: Place) -> None:
    place.queue()
    done = place.update("e", "time=20", "partition=gpu", "-n")
    assert done.stdout.splitlines() == [
        "e/0: would be changed: time 00:10:00 -> 20 (20 min); partition stays, as it runs already "
        "(job 50_0)",
        *(
            f"e/{run}: would be changed: time 00:10:00 -> 20 (20 min), partition gpu (job 50_{run})"
            for run in (1, 2, 3)
        ),
    ]
    assert (done.returncode, place.asked(), place.changes()) == (0, [], {})


def test_tasks_of_an_array_are_changed_by_one_call(place: Place) -> None:
    place.queue(partition="gpu")
    done = place.update("e/1-2", "partition=gpu", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert place.asked() == [["jobid=50_[1-2]", "Partition=gpu"]]
    assert place.changes() == {1: {"partition": "gpu"}, 2: {"partition": "gpu"}}
    first = json.loads(done.stdout)[0]
    assert (first["run"], first["action"], first["changes"], first["before"], first["job_id"]) == (
        *(1, "updated", {"partition": "gpu"}),
        *({"partition": None}, "50_1"),
    )


def test_an_array_that_waits_is_changed_as_a_whole(place: Place) -> None:
    place.states.pop(0)
    place.queue(time="20:00", nice="5")
    # As Slurm says of an array that it has changed, of whose tasks one has ended.
    place.shim.answer("scontrol", {"err": "50_0: Job has already finished\n", "code": 1})
    done = place.update("e", "resources.time=00:20:00", "Nice=5", "max-parallel=2", "-y")
    assert done.returncode == 0, done.stderr
    assert "e/0: nothing is queued of it: its job is over (job 50_0)" in done.stdout
    assert place.asked() == [
        ["jobid=50", "TimeLimit=00:20:00", "Nice=5"],
        ["jobid=50", "ArrayTaskThrottle=2"],
    ]
    assert place.changes()[3] == {"time": "00:20:00", "nice": "5", "max_parallel": "2"}
    assert "changed" in place.hpcrun("show", "e/3").stdout
    assert "00:20:00" in place.hpcrun("status", "e/3", "--columns", "time").stdout


def test_what_slurm_shows_counts_and_not_its_exit_code(place: Place) -> None:
    place.queue()
    done = place.update("e/1", "qos=nosuch", "-y")
    assert (done.returncode, place.changes()) == (3, {})
    assert "Slurm did not take the QOS nosuch" in done.stderr
    # Of some tasks it is refused, and of some it is not.
    rows = "50_0|RUNNING|10:00|main|normal|1|0\n50_1|PENDING|20:00|main|normal|1|0\n"
    place.queue(rows)
    refusal = {"err": "50_0: Access/permission denied\n", "code": 1}
    place.shim.answer("scontrol", {}, refusal)
    done = place.update("e/0-1", "time=20", "-y")
    assert (done.returncode, place.changes()) == (3, {1: {"time": "20"}})
    assert "Slurm did not change 1 run as asked: only an administrator raises" in done.stderr


def test_a_limit_of_the_array_is_of_all_its_tasks(place: Place) -> None:
    place.queue()
    done = place.update("e/0,3", "max_parallel=none", "-y")
    assert done.returncode == 0, done.stderr
    assert "also of its tasks that were not named: 1-2" in done.stderr
    assert place.asked() == [["jobid=50", "ArrayTaskThrottle=0"]]
    assert place.changes() == {run: {"max_parallel": "none"} for run in range(4)}


def test_a_controller_that_is_away_is_said_and_nothing_written(place: Place) -> None:
    place.queue()
    down = "slurm_update error: Unable to contact slurm controller (connect failure)\n"
    place.shim.answer("scontrol", {"err": down, "code": 1})
    done = place.update("e/1", "time=20", "-y")
    assert (done.returncode, place.changes()) == (4, {})
    assert "repeat the same command" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("e", "tiem=5"), "did you mean time=5?"),
        (("e", "--", "walltme=5"), "did you mean time=5?"),
        (("e", "nodes=4"), "nodes=4 is none of what a queued job can have changed"),
        (("e",), "nothing to change was typed; accepted are partition, qos, time"),
        (("time=5",), "hpcrun update NAME time=5"),
        (("e", "time=5h"), "time: found '5h'; accepted is a time such as 04:00:00"),
        (("e", "max_parallel=0"), "max_parallel: found '0'; accepted is a number of runs, or none"),
        (("e", "time=5"), "this would update 4 runs: e/0-3; there is no terminal to ask on"),
        (("e/0", "partition=gpu"), "nothing was changed; e/0: partition stays, as it runs already"),
    ],
)
def test_what_cannot_be_done_says_what_to_type(
    place: Place, words: tuple[str, ...], told: str
) -> None:
    place.queue()
    done = place.update(*words)
    assert (done.returncode, place.asked()) == (2, [])
    assert told in done.stderr


def test_what_runs_on_this_machine_has_no_queue(place: Place) -> None:
    place.queue()
    assert place.hpcrun("submit", "e.yaml", "name=f", "cluster=local", "-W").returncode == 0
    done = place.update("f", "time=5")
    assert done.returncode == 2
    assert ": is on this machine, where nothing is queued in Slurm" in done.stderr


def test_a_submission_of_the_frozen_plan_keeps_it(place: Place) -> None:
    place.queue(time="20:00", partition="gpu", nice="5")
    words = ("time=00:20:00", "partition=gpu", "nice=5", "max_parallel=1")
    assert place.update("e/1-3", *words, "-y").returncode == 0
    place.states = dict.fromkeys((0, 1, 2, 3), "FAILED")
    place.queue()
    done = place.hpcrun("requeue", "e/1-3", "-y")
    assert done.returncode == 0, done.stderr
    assert "runs 1-3 keep what `hpcrun update` gave: max_parallel 1, nice 5, " in done.stderr
    paths = experiment(place.root, "e").submission(2)
    script = paths.script(0).read_text()
    for line in ("--time=00:20:00", "--partition=gpu", "--nice=5", "--array=1-3%1"):
        assert line in script
    plan = history.read_plan(paths)
    assert (plan.max_parallel, plan.run(1).resources.time) == (1, "00:20:00")


def test_submit_names_it_and_tells_what_it_undoes(place: Place) -> None:
    place.queue()
    place.write("00:20:00", max_parallel=2)
    typed = "`hpcrun update e/0-3 time=00:20:00 max_parallel=2`"
    assert f"to have them go on with it: {typed}\n" in place.hpcrun("submit", "e.yaml").stderr
    place.queue(time="20:00")
    assert place.update("e/1-3", "time=00:20:00", "max_parallel=2", "-y").returncode == 0
    place.queue()
    assert "hpcrun update e/0 time=00:20:00" in place.hpcrun("submit", "e.yaml").stderr
    place.write("00:30:00", max_parallel=2)
    place.states = dict.fromkeys((0, 1, 2, 3), "FAILED")
    place.queue()
    said = place.hpcrun("submit", "e.yaml").stderr
    assert "resources.time was 00:20:00 and is 00:30:00" in said


def test_another_cluster_is_not_dropped_in_silence(place: Place) -> None:
    place.queue()
    done = place.hpcrun("submit", "e.yaml", "cluster=local")
    assert "on the cluster slurm, and this does not move them here" in done.stderr
    assert "`hpcrun cancel e/0-3`, then this command again" in done.stderr
