"""`hpcrun submit` on real Slurms of both versions, as an ordinary user."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state.layout import SubmissionPaths
from tests.support.waiting import until
from tests.testbed import VERSIONS, Cluster

TIME_LIMIT = "00:10:00"
# The second ordinary user.
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


class Workplace:
    """A directory of the ordinary user on the shared file system, and `hpcrun` in it."""

    def __init__(self, cluster: Cluster, name: str = "work") -> None:
        self.cluster = cluster
        self.directory = cluster.layout.home / f"{name}-{uuid.uuid4().hex[:8]}"
        cluster.run(["mkdir", str(self.directory)])
        self.root = self.directory / "root"
        self.code = self.directory / "code"
        cluster.run(["mkdir", str(self.code)])

    def write(self, name: str, text: str) -> None:
        """Write a file of the code, as the user."""
        self.cluster.run(["tee", str(self.code / name)], input=text)

    def spec(self, command: list[str], **more: Any) -> None:
        """Write `e.yaml`, whose entry is a command."""
        spec: dict[str, Any] = {
            "name": "e",
            "entry": command,
            "resources": {"time": TIME_LIMIT, "mem": "500M"},
            "environment": {"python": self.cluster.python},
        }
        spec["resources"] |= more.pop("resources", {})
        # JSON is YAML.
        self.write("e.yaml", json.dumps({**spec, **more}))

    def hpcrun(
        self, *arguments: str, env: dict[str, str] | None = None, root: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run hpcrun on the login node."""
        argv = [self.cluster.python, "-m", "hpcrun", *arguments, "--root", str(root or self.root)]
        return self.cluster.run(argv, cwd=self.code, env=env, check=False)

    def submit(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """Submit `e.yaml`; what `--json` says."""
        answer = self.hpcrun("submit", "e.yaml", "--json", *arguments, **options)
        assert answer.returncode == 0, answer.stderr
        submitted: dict[str, Any] = json.loads(answer.stdout)
        return submitted

    def rank_log(self, run: int = 0, attempt: int = 1) -> str:
        path = self.root / "e" / "runs" / str(run) / "attempts" / str(attempt)
        return (path / "rank-00000.log").read_text()

    def submission(self, number: int = 1) -> SubmissionPaths:
        return SubmissionPaths(self.root / "e" / "submissions" / str(number))


@pytest.fixture
def place(slurm: Cluster) -> Iterator[Workplace]:
    workplace = Workplace(slurm)
    yield workplace
    _remove(workplace)


def _remove(workplace: Workplace) -> None:
    slurm = workplace.cluster
    slurm.run(["scancel", "--me"], check=False)
    slurm.run(["chmod", "-R", "u+rwX", str(workplace.directory)], check=False)
    slurm.run(["rm", "-rf", str(workplace.directory)], check=False)


def _job(submitted: dict[str, Any]) -> str:
    job_id: str = submitted["arrays"][0]["job_id"]
    return job_id


def _wait(place: Workplace, submitted: dict[str, Any], timeout: float = 90) -> None:
    for run in submitted["runs"]:
        if run["action"] != "completed":
            place.cluster.wait_job(run["job_id"], timeout=timeout)


def _until_file(path: Path, holds: Callable[[str], bool] = bool) -> None:
    until(lambda: path.exists() and holds(path.read_text()), f"{path.name} written", 60)


@pytest.mark.usually("24.11")
def test_a_sweep_beyond_an_array_submitted_twice_at_once(place: Workplace) -> None:
    """Tasks are counted anew in each array; each run is in one of them, whoever submitted it."""
    place.cluster.run(["mkdir", "-p", str(place.code / "configs/clusters")])
    place.write("configs/clusters/small.yaml", "limits: {max_array_size: 3}\n")
    place.spec(
        ["sh", "-c", "echo $0", "value ${config.x}"],
        cluster="small",
        config={"x": 0},
        sweep={"grid": {"config.x": {"range": [8]}}, "max_parallel": 2},
    )
    argv = [place.cluster.python, "-m", "hpcrun", "submit", "e.yaml", "--json"]
    both = [
        place.cluster.popen(
            [*argv, "--root", str(place.root)],
            cwd=place.code,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = []
    for submit in both:
        said, complained = submit.communicate(timeout=120)
        assert submit.returncode == 0, complained
        answers.append(json.loads(said))
    arrays = [array for answer in answers for array in answer["arrays"]]
    assert [array["runs"] for array in arrays] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    jobs = {run["run"]: run["job_id"] for run in answers[0]["runs"]}
    assert jobs == {run["run"]: run["job_id"] for run in answers[1]["runs"]}
    assert [job.partition("_")[2] for job in jobs.values()] == [
        "0",
        "1",
        "2",
        "0",
        "1",
        "2",
        "0",
        "1",
    ]
    for answer in answers:
        _wait(place, answer)
    assert [place.rank_log(run) for run in range(8)] == [f"value {run}\n" for run in range(8)]
    told = json.loads(place.hpcrun("status", f"{jobs[4]}", "--json").stdout)
    assert [(run["run"], run["state"]) for run in told] == [(4, "completed")]
    again = place.submit()
    assert {run["action"] for run in again["runs"]} == {"completed"}


@pytest.mark.usually("22.05")
def test_an_array_runs_as_it_was_printed(place: Workplace) -> None:
    place.spec(
        ["sh", "-c", 'echo "$0 on $(hostname) as $(id -un)"', "value ${config.x}"],
        config={"x": 0},
        sweep={"grid": {"config.x": [10, 20, 30]}, "max_parallel": 2},
    )
    dry = place.hpcrun("submit", "e.yaml", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert not place.root.exists()
    planned = place.hpcrun("plan", "e.yaml")
    assert planned.stdout == dry.stdout
    submitted = place.submit()
    assert [run["action"] for run in submitted["runs"]] == ["new"] * 3
    job = _job(submitted)
    assert [run["job_id"] for run in submitted["runs"]] == [f"{job}_{n}" for n in range(3)]
    script = place.submission().script().read_text()
    assert script.rstrip("\n") in dry.stdout
    held = place.cluster.run(["scontrol", "write", "batch_script", job, "-"]).stdout
    assert held.rstrip("\n\0") == script.rstrip("\n")
    _wait(place, submitted)
    for run, value in enumerate((10, 20, 30)):
        assert place.rank_log(run).startswith(f"value {value} on n")
        assert place.rank_log(run).endswith(f"as {place.cluster.user}\n")
    again = place.submit()
    assert again["submission"] is None
    assert [run["action"] for run in again["runs"]] == ["completed"] * 3


@pytest.mark.usually("22.05")
def test_fifty_runs_are_as_many_files_as_one(place: Workplace) -> None:
    place.spec(
        ["sleep", "1000"],
        config={"x": 0},
        sweep={"grid": {"config.x": list(range(50))}, "max_parallel": 1},
        args=["${config.x}"],
    )
    submitted = place.submit(env={"SBATCH_HOLD": "1"})
    assert len(submitted["runs"]) == 50
    files = [path for path in place.root.rglob("*") if path.is_file()]
    names = {path.name for path in files if "slurm-" not in path.name}
    archive = json.loads(place.submission().submission.read_text())["code"]["archive"]
    assert names >= {
        *("plan.json", "submission.json", "hpcrun.zip", "script-0.sbatch", "journal.jsonl"),
        archive,
    }
    submission_files = [path for path in files if "runs" not in path.parts]
    assert len(submission_files) <= 8
    place.cluster.run(["scancel", _job(submitted)])


def test_nothing_of_the_submitter_leaks_into_the_job(place: Workplace) -> None:
    place.spec(
        ["env"],
        resources={"sbatch": {"hold": True}},
        environment={"python": place.cluster.python, "variables": {"MINE": "a 'b' $(c); \"d\""}},
    )
    secret = uuid.uuid4().hex
    leaking = {
        "MY_SECRET": secret,
        "PYTHONPATH": "/leaked",
        "LD_PRELOAD": "",
        "SLURM_CPU_BIND": "leaked",
        "SLURM_MEM_BIND": "leaked",
        "SBATCH_EXPORT": "ALL",
        "SBATCH_COMMENT": "leaked",
        "PMIX_RANK": "leaked",
    }
    submitted = place.submit(env=leaking)
    job = _job(submitted)
    state = str(place.cluster.layout.spool("login"))

    def holds(text: str) -> bool:
        grep = ["grep", "-rqF", text, state]
        return place.cluster.run(grep, user=False, check=False).returncode == 0

    assert holds(str(place.submission().directory))
    assert not holds(secret)
    place.cluster.run(["scontrol", "release", job])
    _wait(place, submitted)
    log = place.rank_log()
    assert secret not in log
    assert "leaked" not in log
    assert "MINE=a 'b' $(c); \"d\"\n" in log
    assert "SLURM_CONF=/etc/slurm/slurm.conf\n" in log
    for path in place.submission().directory.iterdir():
        assert secret.encode() not in path.read_bytes(), path
    shown = place.cluster.run(["scontrol", "show", "job", job], check=False).stdout
    assert "leaked" not in shown


def test_from_inside_an_allocation(place: Workplace) -> None:
    place.spec(["sh", "-c", "env; cat /proc/self/status"])
    argv = [place.cluster.python, "-m", "hpcrun", "submit", "e.yaml", "--json"]
    allocated = place.cluster.run(
        ["salloc", "-N1", "-n3", "--mem=100", *argv, "--root", str(place.root)],
        cwd=place.code,
        env={"SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_HINT": "nomultithread"},
    )
    submitted = json.loads(allocated.stdout)
    _wait(place, submitted)
    log = place.rank_log()
    assert f"SLURM_JOB_ID={_job(submitted)}\n" in log
    assert "SLURM_HINT" not in log
    assert "mask_cpu:0x1" not in log
    assert "SLURM_NTASKS=1\n" in log


@pytest.mark.usually("22.05")
def test_the_code_of_the_moment_of_submission(place: Workplace) -> None:
    place.write("what.sh", "echo the first version; sleep 0\n")
    place.spec(["sh", "what.sh"], resources={"sbatch": {"hold": True}})
    submitted = place.submit()
    place.write("what.sh", "echo the second version\n")
    place.cluster.run(["scontrol", "release", _job(submitted)])
    _wait(place, submitted)
    assert place.rank_log() == "the first version\n"


def test_a_path_full_of_traps(slurm: Cluster) -> None:
    place = Workplace(slurm, "a $(touch owned); & #x é")
    place.code = place.directory / 'it\'s "the" code'
    slurm.run(["mkdir", str(place.code)])
    try:
        trap = "$(touch owned) 'q' \"d\" ; `touch owned`\nline two"
        place.spec(["printf", "%s", "${config.x}"], config={"x": trap})
        submitted = place.submit()
        _wait(place, submitted)
        assert place.rank_log() == trap
        log = place.submission().batch_log(_job(submitted))
        assert "completed" in log.read_text()
        assert not list(place.directory.rglob("owned"))
        assert place.submit()["runs"][0]["action"] == "completed"
    finally:
        _remove(place)


@pytest.mark.usually("22.05")
def test_stopped_and_submitted_again(place: Workplace) -> None:
    place.write("long.sh", "echo attempt $HPCRUN_ATTEMPT; sleep ${1:-600}\n")
    place.spec(["sh", "long.sh"])
    first = place.submit()
    log = place.root / "e" / "runs" / "0" / "attempts" / "1" / "rank-00000.log"
    _until_file(log)
    attached = place.submit()
    assert attached["submission"] is None
    assert attached["runs"][0]["action"] == "attached"
    assert attached["runs"][0]["job_id"] == _job(first)
    cancelled = place.hpcrun("cancel", "e", "--yes")
    assert cancelled.returncode == 0, cancelled.stderr
    place.cluster.wait_job(_job(first))
    place.write("long.sh", "echo attempt $HPCRUN_ATTEMPT\n")
    second = place.submit("--wait")
    assert second["runs"][0]["action"] == "resumed"
    assert second["submission"] == 2
    assert place.rank_log(attempt=2) == "attempt 2\n"
    third = place.submit("--new")
    assert [(run["run"], run["action"]) for run in third["runs"]] == [(1, "new")]
    _wait(place, third)


@pytest.mark.usually("22.05")
def test_wait_tells_of_a_failure(place: Workplace) -> None:
    place.spec(
        ["sh", "-c", "exit $0", "${config.x}"],
        config={"x": 0},
        sweep={"grid": {"config.x": [0, 3]}},
    )
    answer = place.hpcrun("submit", "e.yaml", "--wait")
    assert answer.returncode == 1, answer.stderr
    assert "did not complete: e/1;" in answer.stderr


@pytest.mark.parametrize(
    ("resources", "says", "hints"),
    [
        ({"partition": "nope"}, "invalid partition specified: nope", "cancel, high, main"),
        ({"constraint": "nope"}, "Invalid feature", "resources.constraint"),
        ({"reservation": "nope"}, "reservation is invalid", "resources.reservation"),
        ({"gpus_per_node": 3}, "not available", "gpus_per_node"),
        ({"mem": "9000G"}, "Memory specification", "memory"),
    ],
)
def test_a_refusal(place: Workplace, resources: dict[str, Any], says: str, hints: str) -> None:
    """sbatch's own, where the check that finds it first is left out."""
    place.spec(["true"], resources=resources)
    answer = place.hpcrun("submit", "e.yaml", "--no-check")
    assert answer.returncode == 3, answer.stderr
    assert says in answer.stderr
    assert hints in answer.stderr
    assert not place.root.exists()


def test_a_part_is_refused(place: Workplace) -> None:
    place.spec(
        ["true"], config={"x": 0}, sweep={"grid": {"resources.mem": ["100M", "9000G", "200M"]}}
    )
    answer = place.hpcrun("submit", "e.yaml", "--no-check")
    assert answer.returncode == 3, answer.stderr
    assert "submitted: job" in answer.stderr
    assert "not submitted: runs 1-2" in answer.stderr
    events = [
        json.loads(line)["event"] for line in place.submission().journal.read_text().splitlines()
    ]
    assert events == ["submitting", "submitted", "submitting", "refused"]


@pytest.mark.usually("22.05")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_queue_without_room(version: str, make_cluster: Callable[..., Cluster]) -> None:
    """A limit of two jobs: the rest follows; Ctrl-C leaves it for the next submit."""
    cluster = make_cluster(version, 1, extra={"AccountingStorageEnforce": "limits"})
    _limit(cluster, 2)
    place = Workplace(cluster)
    sweep = {"grid": {"config.x": {"range": [5]}}}
    place.spec(["sh", "-c", "sleep 3; echo $0", "value ${config.x}"], config={"x": 0}, sweep=sweep)
    argv = [cluster.python, "-m", "hpcrun", "submit", "e.yaml", "--root", str(place.root)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    submit = cluster.popen(argv, cwd=place.code, **pipes)
    assert submit.stderr is not None
    said = []
    while "wait here" not in "".join(said[-1:]):
        said.append(submit.stderr.readline())
        assert said[-1], "".join(said)
    assert "SubmitJobLimit); 3 of 5 runs wait here" in said[-1]
    submit.send_signal(signal.SIGINT)
    _, rest = submit.communicate(timeout=60)
    assert submit.returncode == 130
    assert "submitted: job" in rest
    assert "not submitted: runs 2-4" in rest
    again = place.submit()
    assert sorted(run for array in again["arrays"] for run in array["runs"]) == [2, 3, 4]
    _wait(place, again)
    assert [place.rank_log(run) for run in range(5)] == [f"value {run}\n" for run in range(5)]


@pytest.mark.usually("22.05")
def test_who_waits_no_longer_leaves_the_jobs_in_the_queue(place: Workplace) -> None:
    """As the terminal is closed; one job runs and one waits, and both come to their ends."""
    go = place.code / "go"
    waits = 'until [ -e "$1" ]; do sleep 0.2; done; echo "done $0"'
    config = {"x": 0}
    place.spec(
        ["sh", "-c", waits, "${config.x}", str(go)],
        config=config,
        sweep={"grid": {"config.x": [1, 2]}, "max_parallel": 1},
    )
    argv = [place.cluster.python, "-m", "hpcrun", "submit", "e.yaml", "--wait"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    waiting = place.cluster.popen([*argv, "--root", str(place.root)], cwd=place.code, **pipes)
    begun = place.root / "e" / "runs" / "0" / "attempts" / "1" / "rank-00000.log"
    until(lambda: begun.exists() or waiting.poll() is not None, "the first run")
    waiting.send_signal(signal.SIGHUP)
    said, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 130, said
    assert "no longer waiting; the runs go on. `hpcrun status" in said
    found = json.loads(place.hpcrun("status", "e", "--json").stdout)
    assert [one["state"] for one in found] == ["running", "pending"]
    place.write("go", "")
    again = place.hpcrun("submit", "e.yaml", "--wait")
    assert again.returncode == 0, again.stderr
    assert [place.rank_log(run) for run in (0, 1)] == ["done 1\n", "done 2\n"]


def _limit(cluster: Cluster, jobs: int) -> None:
    """Have Slurm take no more jobs of the user than these."""
    entry = ["user", cluster.user, "set", f"MaxSubmitJobs={jobs}"]
    cluster.run(["sacctmgr", "-i", "modify", *entry], user=False)
    shown = ["scontrol", "show", "assoc_mgr", f"users={cluster.user}", "flags=assoc"]
    until(
        lambda: f"MaxSubmitJobs={jobs}(" in cluster.run(shown, user=False).stdout,
        "a limit in force",
        30,
    )


@pytest.mark.usually("22.05")
def test_experiments_that_depend_on_each_other(place: Workplace) -> None:
    """Task after task, then all; and what can never start is taken out of the queue."""
    log = place.directory / "log"

    def spec(name: str, does: str, runs: int, **more: Any) -> None:
        command = ["sh", "-c", f"{does}; echo {name}$0 >> {log}", "${config.x}"]
        sweep = {"sweep": {"grid": {"config.x": {"range": [runs]}}}} if runs > 1 else {}
        place.spec(command, name=name, config={"x": 0}, **sweep, **more)
        place.cluster.run(["mv", str(place.code / "e.yaml"), str(place.code / f"{name}.yaml")])

    def submit(name: str) -> dict[str, Any]:
        answer = place.hpcrun("submit", f"{name}.yaml", "--json")
        assert answer.returncode == 0, answer.stderr
        submitted: dict[str, Any] = json.loads(answer.stdout)
        return submitted

    # The second task of `a` ends only after the first of `b`.
    spec("a", f"[ $0 = 0 ] || until grep -q b0 {log}; do sleep 0.2; done", 2)
    spec("b", "true", 2, depends_on=[{"spec": "a.yaml", "each": True}])
    spec("c", "true", 1, depends_on="b.yaml")
    _wait(place, submit("c"))
    assert log.read_text().split() == ["a0", "b0", "a1", "b1", "c0"]

    spec("no", "exit 3", 1, recovery={"in_place": 0, "requeue": False})
    spec("never", "true", 1, depends_on="no.yaml")
    spec("anyway", "true", 1, depends_on=[{"spec": "no.yaml", "when": "end"}])
    never = submit("never")
    place.cluster.wait_job(_job(never), "CANCELLED", timeout=90)
    told = json.loads(place.hpcrun("status", "never", "--json").stdout)
    assert [(run["state"], run["reason"]) for run in told] == [
        ("failed", told[0]["reason"]),
        (
            "cancelled",
            "its job was cancelled in Slurm: no/0, which it depends on, has not completed",
        ),
    ]
    _wait(place, submit("anyway"))
    assert "anyway0" in log.read_text()


@pytest.mark.usually("24.11")
def test_slurmctld_is_down(place: Workplace) -> None:
    place.spec(["true"])
    place.cluster.stop_controller()
    began = time.monotonic()
    answer = place.hpcrun("submit", "e.yaml")
    assert answer.returncode == 4, answer.stderr
    assert "Unable to contact slurm controller" in answer.stderr
    assert "repeat the same command" in answer.stderr
    assert not place.root.exists()
    assert time.monotonic() - began < 60
    place.cluster.start_controller()
    _wait(place, place.submit())


def test_slurmdbd_is_down(place: Workplace) -> None:
    place.cluster.stop_database_daemon()
    place.spec(["false"])
    _wait(place, place.submit())
    assert place.submit()["runs"][0]["action"] == "resumed"
    place.cluster.start_database_daemon()


@pytest.mark.usually("22.05")
def test_no_slurm_where_slurm_was_asked_for(place: Workplace) -> None:
    place.spec(["true"], cluster="slurm")
    answer = place.hpcrun("submit", "e.yaml", env={"PATH": "/nonexistent"})
    assert answer.returncode == 4, answer.stderr
    assert "no sbatch on PATH" in answer.stderr
    assert not place.root.exists()


@pytest.mark.usually("22.05")
@pytest.mark.parametrize("where", ["root", "experiment"])
def test_a_directory_that_cannot_be_written_to(place: Workplace, where: str) -> None:
    place.spec(["true"])
    locked = place.directory / "locked"
    blocked = locked if where == "root" else locked / "e" / "submissions"
    place.cluster.run(["mkdir", "-p", str(blocked)])
    place.cluster.run(["chmod", "555", str(blocked)])
    answer = place.hpcrun("submit", "e.yaml", root=locked)
    assert answer.returncode == 2, answer.stderr
    assert "cannot be written: Permission denied" in answer.stderr
    assert "--root DIR" in answer.stderr
    assert list(blocked.iterdir()) == []


@pytest.mark.usually("22.05")
def test_code_that_cannot_be_read(place: Workplace) -> None:
    place.spec(["true"])
    place.write("secret.py", "")
    place.cluster.run(["chmod", "0", str(place.code / "secret.py")])
    answer = place.hpcrun("submit", "e.yaml")
    assert answer.returncode == 2, answer.stderr
    assert "secret.py: cannot be frozen with the code: Permission denied" in answer.stderr
    assert not place.root.exists()


def test_in_the_foreground_of_an_allocation(place: Workplace) -> None:
    place.spec(
        ["sh", "-c", "echo rank $RANK of $WORLD_SIZE on $(hostname) $SLURM_CPU_BIND"],
        resources={"nodes": 2, "ntasks_per_node": 2},
    )
    argv = [place.cluster.python, "-m", "hpcrun", "run", "e.yaml", "--root", str(place.root)]
    small = place.cluster.run(["salloc", "-N1", "-n4", *argv], cwd=place.code, check=False)
    assert small.returncode == 3, small.stderr
    assert "asks for 2 nodes (resources.nodes); the allocation" in small.stderr
    assert not place.root.exists()
    answer = place.cluster.run(
        ["salloc", "-N2", "--ntasks-per-node=2", *argv], cwd=place.code, check=False
    )
    assert answer.returncode == 0, answer.stderr
    lines = sorted(answer.stdout.splitlines())
    assert [line.partition(" on ")[0] for line in lines] == [
        f"r{rank} | rank {rank} of 4" for rank in range(4)
    ]
    assert len({line.split(" on ")[1] for line in lines}) == 2


@pytest.mark.usually("22.05")
def test_gpus_that_slurm_does_not_know(make_cluster: Callable[..., Cluster]) -> None:
    """No GRES: a job has its nodes alone, and its ranks find the GPUs by their numbers."""
    place = Workplace(make_cluster(VERSIONS[0], 2, gpus=0))
    place.spec(
        ["sh", "-c", "echo $LOCAL_RANK of $CUDA_VISIBLE_DEVICES on $(hostname)"],
        resources={"nodes": 2, "gpus_per_node": 2},
    )
    refused = place.hpcrun("submit", "e.yaml")
    assert refused.returncode == 3, refused.stderr
    assert "resources.gpu_request=none" in refused.stderr
    place.cluster.run(["mkdir", "-p", str(place.code / "configs/clusters")])
    asked = "{gpu_request: none, node_has_gpus: 2}"
    place.write("configs/clusters/whole.yaml", f"resources: {asked}\n")
    argv = [place.cluster.python, "-m", "hpcrun", "run", "e.yaml", "--root", str(place.root)]
    argv += ["cluster=whole"]
    shared = place.cluster.run(
        ["salloc", "-N2", "--ntasks-per-node=2", *argv], cwd=place.code, check=False
    )
    assert shared.returncode == 3, shared.stderr
    assert "salloc --exclusive" in shared.stderr
    assert not place.root.exists()
    alone = place.cluster.run(["salloc", "-N2", "--exclusive", *argv], cwd=place.code, check=False)
    assert alone.returncode == 0, alone.stderr
    expected = [f"{rank} of 0,1 on n{node}" for node in (1, 2) for rank in (0, 1)]
    assert sorted(line.split(" | ")[1] for line in alone.stdout.splitlines()) == sorted(expected)
    submitted = place.submit("cluster=whole", "name=job")
    _wait(place, submitted)
    logs = (place.root / "job" / "runs" / "0" / "attempts" / "1").glob("rank-*.log")
    assert sorted(log.read_text().strip() for log in logs) == sorted(expected)


INTERRUPT = """
import os, signal, subprocess, sys, time
process = subprocess.Popen(sys.argv[2:])
while process.poll() is None and not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
process.send_signal(signal.SIGINT)
process.wait()
"""


def test_what_an_interrupted_run_in_an_allocation_had_not_begun_is_free_again(
    place: Workplace,
) -> None:
    """The allocation lives on after Ctrl-C, and keeps no run busy that it does not run."""
    place.spec(["sh", "-c", 'sleep "$0"', "${config.x}"], config={"x": 0})
    place.write("interrupt.py", INTERRUPT)
    log = place.root / "e" / "runs" / "0" / "attempts" / "1" / "rank-00000.log"
    hpcrun = [place.cluster.python, "-m", "hpcrun"]
    sweep = ["--root", str(place.root), "--sweep", "config.x=60,0"]
    interrupted = [place.cluster.python, "interrupt.py", str(log), *hpcrun, "run", "e.yaml", *sweep]
    states = [*hpcrun, "status", "e", "--json", "--root", str(place.root)]
    lines = " ; ".join(shlex.join(words) for words in (interrupted, states))
    answer = place.cluster.run(
        ["salloc", "--nodes=1", "--mem=2000", "sh", "-c", lines], cwd=place.code, check=False
    )
    listed = json.loads(answer.stdout[answer.stdout.index("[") :])
    found = {run["run"]: run["state"] for run in listed}
    assert found[0] in ("failed", "cancelled"), answer
    assert found[1] == "planned", answer

    submitted = place.submit("--sweep", "config.x=60,0")
    assert [run["action"] for run in submitted["runs"]] == ["resumed", "new"]


@pytest.mark.usually("22.05")
def test_a_number_that_slurm_gave_to_another_job(slurm: Cluster) -> None:
    """As after a reset of Slurm's state: a journal's number is a stranger's, or my other job's."""
    sbatch = ["sbatch", "--parsable", "--mem=100M", "--output=/dev/null", "--wrap=sleep 600"]
    theirs = slurm.run([*NOBODY, *sbatch], user=False, cwd="/tmp").stdout.strip()
    mine = slurm.run(sbatch).stdout.strip()
    for number, whose in ((theirs, "of nobody in /tmp"), (mine, f"in {slurm.layout.home}")):
        slurm.wait_job(number, {"RUNNING"})
        place = Workplace(slurm)
        place.spec(["sleep", "600"], resources={"sbatch": {"hold": True}})
        (array,) = place.submit()["arrays"]
        slurm.run(["scancel", array["job_id"]])
        slurm.wait_job(array["job_id"])
        journal = str(place.submission().journal)
        slurm.run(["sed", "-i", f's/"job_id": *"[0-9]*"/"job_id": "{number}"/', journal])
        for command in ("status", "why"):
            said = " ".join(place.hpcrun(command, "e/0").stdout.split())
            assert "running" not in said, said
            assert f"given the number {number} to another of" in said, said
            assert whose in said
        again = place.hpcrun("requeue", "e/0", "--dry-run", "--json")
        assert '"would submit"' in again.stdout, again
        done = place.hpcrun("cancel", "e/0")
        assert whose in done.stderr, done
        assert place.hpcrun("requeue", "e/0").returncode == 0
        (run,) = json.loads(place.hpcrun("status", "e", "--json").stdout)
        assert run["job_id"] not in (theirs, mine)
        assert place.hpcrun("cancel", "e/0").returncode == 0
        slurm.wait_job(run["job_id"])
        slurm.wait_job(number, {"RUNNING"}, timeout=1)
    slurm.run(["scancel", theirs], user=False)
    _remove(place)


@pytest.mark.usually("24.11")
def test_a_stranger_renames_an_experiment_while_its_job_waits(
    slurm: Cluster, place: Workplace
) -> None:
    """Where everybody may rename: the job starts neither the stranger's plan nor their package."""
    slurm.run(["mkdir", place.root])
    slurm.run(["chmod", "777", place.root])
    ran = place.directory / "ran"
    place.spec(["touch", str(ran)], resources={"sbatch": {"hold": True}})
    submitted = place.hpcrun("submit", "e.yaml", "--json")
    assert f"{place.root}: every user may rename" in submitted.stderr
    (array,) = json.loads(submitted.stdout)["arrays"]
    swap = f"cd {shlex.quote(str(place.root))} && mv e mine && cp -r mine e && chmod -R a+rwX e"
    slurm.run([*NOBODY, "sh", "-c", swap], user=False, cwd="/tmp")
    slurm.run(["scontrol", "release", array["job_id"]])
    assert slurm.wait_job(array["job_id"]) == "FAILED"
    said = place.submission().batch_log(array["job_id"]).read_text()
    assert "hpcrun: not started: e, on the way to" in said, said
    assert "is nobody's" in said
    assert not ran.exists()
    back = f"cd {shlex.quote(str(place.root))} && rm -r e && mv mine e"
    slurm.run([*NOBODY, "sh", "-c", back], user=False, cwd="/tmp")


@pytest.mark.usually("22.05")
def test_all_files_follow_the_umask_of_the_profile(place: Workplace) -> None:
    """Those too that Slurm opens for its steps, and whatever the shell's own umask is."""
    place.cluster.run(["mkdir", "-p", str(place.code / "configs" / "clusters")])
    place.write("configs/clusters/site.yaml", json.dumps({"umask": "0027"}))
    place.spec(["sh", "-c", "umask; mkdir $HPCRUN_DIRECTORY/own"], cluster="site")
    command = [place.cluster.python, "-m", "hpcrun", "submit", "e.yaml", "--wait"]
    line = f"umask 077; exec {shlex.join(command)} --root {shlex.quote(str(place.root))}"
    place.cluster.run(["sh", "-c", line], cwd=place.code)
    assert place.rank_log().strip() == "0027"
    found = {path.name: path.stat().st_mode & 0o777 for path in place.root.rglob("*")}
    assert {"own", "rank-00000.log", "ledger.jsonl", "plan.json"} <= found.keys()
    assert any(name.startswith("slurm-") for name in found)
    assert set(found.values()) == {0o750, 0o640}


ENDS = """\
case "$1" in
killed) exec "$PYTHON" -m torch.distributed.run --nproc-per-node 1 killed.py ;;
piped) "$PYTHON" -c 'raise ValueError("batch 17 is bad")' 2>&1 | cat; echo done ;;
memory) "$PYTHON" -c 'x = b"x" * (2 << 30)'; sleep 2; echo went on ;;
esac
"""


def test_ends_that_a_launcher_or_a_shell_hides(place: Workplace) -> None:
    """torchrun's exit code is 1, whatever ended its process; a shell's that of its last command."""
    place.write("ends.sh", ENDS)
    place.write("killed.py", "import os\nos.kill(os.getpid(), 9)\n")
    place.spec(
        ["sh", "ends.sh", "${config.how}"],
        config={"how": "killed"},
        sweep={"grid": {"config.how": ["killed", "piped", "memory"]}},
        resources={"mem": "1G"},
        recovery={"max_failures": 1},
        environment={
            "python": place.cluster.python,
            "variables": {"PYTHON": place.cluster.python},
        },
    )
    answer = place.hpcrun("submit", "e.yaml", "--wait")
    assert answer.returncode == 1, answer.stderr
    killed, piped, memory = json.loads(place.hpcrun("status", "e", "--json").stdout)
    assert killed["cause"]["message"].endswith("was ended by SIGKILL"), killed
    assert piped["state"] == "completed", piped
    assert "ends with ValueError: batch 17 is bad; its exit code is 0" in piped["reason"], piped
    assert memory["cause"]["kind"] == "out_of_memory", (memory, place.rank_log(2))


# More than the first 350 MB; and than the first time, of a minute.
TOO_MUCH = """\
case "$1" in
mem) exec "$PYTHON" -c 'import time; x = b"x" * (500 << 20); print("fits"); time.sleep(7)' ;;
time) test "$HPCRUN_ATTEMPT" -gt 1 || sleep 600 ;;
esac
"""
# What a site's job_submit plugin may say to every `scontrol update` of a user's.
NO_CHANGES = """\
function slurm_job_submit(job, partitions, uid) return slurm.SUCCESS end
function slurm_job_modify(job, record, partitions, uid)
    if uid == 0 then return slurm.SUCCESS end
    slurm.log_user("jobs are not changed here")
    return slurm.ERROR
end
return slurm.SUCCESS
"""


def _grow(
    place: Workplace, second: str, most: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Submit a run that needs more memory, and another; their data of `why`."""
    python = place.cluster.python
    place.write("much.sh", TOO_MUCH)
    place.spec(
        ["sh", "much.sh", "${config.what}"],
        config={"what": "mem"},
        sweep={"grid": {"config.what": ["mem", second]}},
        resources={"mem": "350M", "time": "00:01:00"},
        recovery={"stop_before": "00:00:30", "grow": {"mem": 3, "time": 3, "most": most or {}}},
        environment={"python": python, "variables": {"PYTHON": python}},
    )
    answer = place.hpcrun("submit", "e.yaml", "--wait")
    assert answer.returncode == 0, place.hpcrun(
        "logs", "e/0", "--stream", "batch", "--tail", "60"
    ).stdout
    told: list[dict[str, Any]] = json.loads(place.hpcrun("why", "e", "--json").stdout)
    return told


def _asked(place: Workplace, job: str) -> list[str]:
    """Return the memory and the time limit that Slurm has of a job's last start."""
    sacct = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}"]
    rows = place.cluster.run([*sacct, "--format=ReqMem,Timelimit"]).stdout.splitlines()
    return rows[-1].split("|")


@pytest.mark.usually("24.11")
def test_more_is_asked_for_where_it_was_too_little(place: Workplace) -> None:
    runs = _grow(place, "time", {"mem": "800M"})
    expected = (("mem", "out_of_memory", "800M"), ("time", "time_limit", "0-00:03"))
    for run, (key, kind, now) in zip(runs, expected, strict=True):
        first, second = run["attempts"]
        assert first["cause"]["kind"] == kind, first
        assert f"with {key} {now} in place of" in first["decided"]["reason"], first
        assert second["outcome"] == "completed"
    assert place.rank_log(0, 2).strip() == "fits"
    found = json.loads(place.hpcrun("status", "e", "--json").stdout)
    assert _asked(place, found[0]["job_id"])[0].startswith("800M")
    assert _asked(place, found[1]["job_id"])[1] == "00:03:00"
    told = place.hpcrun("estimate", "e.yaml", "-v")
    assert "measured by e/0: 1 node x 1 rank" in told.stdout, told
    # Slurm takes a sample every five seconds.
    (largest,) = re.findall(r"largest task: (\d+) MB \(sacct's MaxRSS of ", told.stdout)
    assert 500 < int(largest) < 700, told
    cost = place.hpcrun("status", "e", "--cost").stdout
    assert "e/0 asked for mem 800M after attempt 1, in place of 350M" in cost, cost
    why = " ".join(place.hpcrun("why", "e/1").stdout.split())
    assert "with time 0-00:03 in place of 0-00:01" in why, why


REDUCE = """\
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1) * (1 + dist.get_rank())
dist.all_reduce(one)
print(f"{int(one)} by {os.environ['MASTER_ADDR']}", flush=True)
if not os.path.exists("again"):
    open("again", "w").close()
    os.kill(os.getpid(), 9)
"""


def test_nodes_with_ipv6_alone(make_cluster: Callable[..., Cluster]) -> None:
    """Agents, the check of links, the rendezvous, gloo, and a restart in place."""
    place = Workplace(make_cluster(VERSIONS[0], 2, ipv6=True))
    place.write("reduce.py", REDUCE)
    place.spec(["python", "reduce.py"], resources={"nodes": 2, "mem": "2G"})
    answer = place.hpcrun("submit", "e.yaml", "--wait")
    log = place.hpcrun("logs", "e", "--stream", "all", "--attempt", "all").stdout
    assert answer.returncode == 0, (answer.stderr, log)
    assert place.rank_log(attempt=2).strip() == "3 by fd87::11", log


# A site's wrapper: a banner with numbers before and after what sbatch itself says.
BANNER = """\
#!/bin/bash
echo "Quota: job 4711 of 9000; ticket 123456 is open since 2026"
real=$(PATH=${PATH#*:} command -v sbatch)
"$real" $OTHER "$@" || exit
echo "Submitted jobs today: 42"
echo "Questions: 555-0199" >&2
"""


@contextlib.contextmanager
def _second_controller(cluster: Cluster) -> Iterator[None]:
    """A slurmctld of another cluster that is in the same accounting, and has the bed's nodes."""
    place = cluster.layout
    text = (place.etc / "slurm.conf").read_text()
    for key, value in (
        ("ClusterName", "other"),
        ("StateSaveLocation", str(place.spool("other"))),
        ("SlurmctldPidFile", "/run/other.pid"),
        ("SlurmctldLogFile", str(place.logs / "other.log")),
    ):
        text = re.sub(f"^{key}=.*", f"{key}={value}", text, flags=re.MULTILINE)
    (place.etc / "other.conf").write_text(f"{text}SlurmctldPort=6827\n")
    cluster.run(["mkdir", "-p", str(place.spool("other"))], user=False)
    cluster.run(["sacctmgr", "-i", "add", "cluster", "other"], user=False)
    account = ["add", "user", cluster.user, "account=research", "cluster=other"]
    cluster.run(["sacctmgr", "-i", "add", "account", "research", "cluster=other"], user=False)
    cluster.run(["sacctmgr", "-i", *account], user=False)
    cluster.run(["slurmctld", "-f", str(place.etc / "other.conf")], user=False)
    known = ["sacctmgr", "--noheader", "show", "cluster", "other", "format=ControlPort"]
    until(lambda: cluster.run(known).stdout.strip() == "6827", "the other cluster known", 30)
    try:
        yield
    finally:
        cluster.run(["sh", "-c", "kill $(cat /run/other.pid)"], user=False)


def test_a_site_with_small_arrays_a_talking_sbatch_and_two_clusters(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(VERSIONS[0], 1, max_array_size=300)
    place = Workplace(cluster)
    place.write("sbatch", BANNER)
    wrapper = str(place.code / "sbatch")
    cluster.run(["chmod", "+x", wrapper])
    path = cluster.run(["sh", "-c", "echo $PATH"]).stdout.strip()
    wrapped = {"PATH": f"{place.code}:{path}"}
    held = {"sbatch": {"hold": True}}
    sweep = {"grid": {"config.x": {"range": [320]}}}
    place.spec(["true"], resources=held, config={"x": 0}, sweep=sweep)
    submitted = place.submit(env=wrapped)
    first, second = submitted["arrays"]
    assert len(first["runs"]) + len(second["runs"]) == 320
    assert max(len(array["runs"]) for array in (first, second)) <= 300
    queued = cluster.run(["squeue", "--me", "--noheader", "--format=%F"]).stdout.split()
    assert {first["job_id"], second["job_id"]} == {*queued}
    assert place.hpcrun("cancel", "e", "--yes", env=wrapped).returncode == 0

    place.spec(["true"], name="f", resources=held)
    with _second_controller(cluster):
        own = {"SLURM_CLUSTERS": "other"}
        spec = ["e.yaml", "name=f"]
        for command in (
            ["submit", *spec],
            ["submit", "--dry-run", *spec],
            ["check", *spec],
            ["doctor"],
        ):
            answer = place.hpcrun(*command, env=own)
            assert answer.returncode != 0, (command, answer)
            assert "SLURM_CLUSTERS is other" in answer.stderr, answer.stderr
            assert "unset SLURM_CLUSTERS" in answer.stderr
        sent = place.hpcrun(
            "submit", "e.yaml", "name=f", env={**wrapped, "OTHER": "--clusters=other"}
        )
        assert sent.returncode != 0, sent
        assert "sbatch sent the job to another cluster" in sent.stderr, sent.stderr
        (cancels,) = re.findall(r"`(scancel --clusters=other \d+)`", sent.stderr)
        cluster.run(cancels.split())
        there = ["squeue", "--clusters=other", "--me", "--noheader", "--format=%T"]
        assert "PENDING" not in cluster.run(there).stdout
        # Another shell submits here, as if nothing had been.
        assert place.hpcrun("submit", "e.yaml", "name=f").returncode == 0
    place.hpcrun("cancel", "f", "--yes")


@pytest.mark.parametrize(
    "version", [VERSIONS[0], pytest.param(VERSIONS[1], marks=pytest.mark.usually)]
)
def test_more_is_asked_for_by_a_new_job_where_slurm_changes_none(
    version: str, make_cluster: Callable[..., Cluster]
) -> None:
    site = {"job_submit.lua": NO_CHANGES}
    place = Workplace(make_cluster(version, 2, extra={"JobSubmitPlugins": "lua"}, files=site))
    told, _ = _grow(place, "nothing")
    found = json.loads(place.hpcrun("status", "e", "--json").stdout)
    before, after = (one["job_id"] for one in told["attempts"])
    assert before.endswith("_0")
    assert after.isdecimal()
    assert found[0]["job_id"] == after
    assert place.cluster.wait_job(before) == "CANCELLED"
    assert _asked(place, found[0]["job_id"])[0].startswith("1050M")
    log = place.hpcrun("logs", "e/0", "--attempt", "1", "--stream", "batch").stdout
    assert f"Slurm does not change job {before}" in log, log
