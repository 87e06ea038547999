"""The memory that earlier runs took: telemetry as agents write it, and rows of sacct's.

Telemetry is written by `NodeTelemetry` from files as kernels write them, with GPUs that are made
up. No Slurm is here: sacct is a stand-in that prints rows in Slurm's form.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from hpcrun.run.node.counters import Counters
from hpcrun.run.node.gpus import Gpus
from hpcrun.run.node.telemetry import NodeTelemetry
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.plan import Entry
from tests.support.command import hpcrun
from tests.support.experiment import Experiment, path_with, shim_calls, slurm_shim
from tests.support.waiting import until

GIB = 1 << 30
SPEC = """\
name: study
entry: train.py
cluster: site
config: {batch: 4}
resources: {nodes: 1, gpus_per_node: 2, time: "02:00:00", mem: 500G}
"""
PROFILE = "executor: slurm\nresources: {gpu_type: h100}\n"
SCRIPT = Entry(kind="script", file="train.py", argv=("--batch=4",))
ASKED = {"nodes": 1, "gpus_per_node": 2, "ntasks_per_node": None, "gpu_type": "h100"}
RAN: dict[str, Any] = {
    "config": {"batch": 4},
    "deepspeed": {},
    "resources": {**ASKED, "mem": "500G"},
}


class Place:
    """A directory with a spec, what was submitted of it, and a Slurm that is a stand-in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shim = path / "shim"
        self.study = Experiment(path / "root")
        (path / "configs/clusters").mkdir(parents=True)
        (path / "configs/clusters/site.yaml").write_text(PROFILE)
        (path / "train.py").write_text("print(1)\n")
        (path / "study.yaml").write_text(SPEC)
        slurm_shim(self.shim)

    def ran(self, job: str = "100", **changed: Any) -> AttemptPaths:
        """Submit and start a run of the script."""
        given: dict[str, Any] = {"spec": {**RAN, **changed}, "entry": SCRIPT, "job_id": job}
        number = self.study.submit((0,), **given).number
        attempt = len(self.study.run().attempts()) + 1
        return self.study.start(0, attempt, job_id=job, submission=number)

    def sample(
        self, paths: AttemptPaths, used: int, limit: int, gpus: Sequence[int] = (), node: str = "n1"
    ) -> None:
        """Have an agent's telemetry write some samples of a node."""
        root = self.path / f"node-{node}-{used}"
        job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
        for name, text in {
            "proc/meminfo": f"MemTotal: {2 << 30} kB\nMemAvailable: {1 << 30} kB",
            "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
            f"{job}/memory.current": used + 5,
            f"{job}/memory.max": limit,
            f"{job}/memory.stat": "anon 5\ninactive_file 5",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f"{text}\n")

        class MadeUp:
            trouble = None

            def read(self) -> list[dict[str, Any]]:
                return [
                    {"index": place, "utilization": 90, "memory": one, "memory_total": 80 * GIB}
                    for place, one in enumerate(gpus)
                ]

        made_up = cast("Callable[[], Gpus]", MadeUp) if gpus else None
        counters, path = Counters(None, None, root), paths.telemetry(node)
        before = path.stat().st_size if path.exists() else 0
        sampler = NodeTelemetry(path, counters, made_up, 0.02, 1)
        # The first write is after a second.
        until(lambda: path.exists() and path.stat().st_size > before, "a sample")
        sampler.stop()

    def sacct(self, *rows: str) -> None:
        """Have sacct print rows; ``OURS`` is the user and the directory of the submission."""
        ours = f"{os.getuid()}|{self.study.paths.submission(1).directory}"
        lines = []
        for row in rows:
            job, size, rest = row.split("|", 2)
            step = job.partition(".")[2]
            name = "study" if not step else "hpcrun-workers-1" if step.isdecimal() else step
            lines.append(f"{job}|{size}|{name}|{rest.replace('OURS', ours)}\n")
        slurm_shim(self.shim, sacct="".join(lines))

    def estimate(self, *arguments: str, code: int = 0) -> str:
        spec = (self.path / "study.yaml", *arguments)
        done = hpcrun("estimate", *map(str, spec), root=self.path / "root", cwd=self.path)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def taken(self, *arguments: str, code: int = 0) -> dict[str, Any] | None:
        (shape,) = json.loads(self.estimate(*arguments, "--json", code=code))["shapes"]
        found: dict[str, Any] | None = shape["taken"]
        return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    monkeypatch.setenv("PATH", path_with(made.shim))
    return made


def test_a_plain_script_says_what_it_took(place: Place) -> None:
    """The formulas know nothing of it, and what was measured is an answer."""
    paths = place.ran()
    place.sample(paths, 60 * GIB, 500 * GIB, [20 * GIB, 30 * GIB])
    place.sample(paths, 40 * GIB, 500 * GIB, node="n2")
    place.sacct(
        "100||OURS", "100.batch|59136K||", "100.extern|||", "100.0|7.50G||", "100.1|812.5M||"
    )
    told = place.estimate()
    assert (
        "  measured by study/0: 1 node x 2 ranks\n"
        "    memory of a node: 64.4 GB of 537 GB at most\n"
        "    largest task: 8.1 GB (sacct's MaxRSS of 100.0)\n"
        "    memory of a GPU: 32.2 GB of 85.9 GB at most\n"
        "    472 GB of resources.mem, 537 GB, were never used; resources.mem=75G has room\n"
        "    53.7 GB of a GPU were never used; a larger batch may fit\n"
        "  nothing says how many parameters the model has\n"
    ) in told
    (asked,) = [call for call in shim_calls(place.shim) if call.startswith("sacct")]
    assert "--duplicates --jobs=100 " in asked
    taken = place.taken()
    assert taken is not None
    assert (taken["node_bytes"], taken["node_total_bytes"]) == (60 * GIB, 500 * GIB)
    assert (taken["is_of_job"], taken["fits_host"], taken["fits_gpu"]) == (True, True, True)
    assert (taken["max_rss_bytes"], taken["max_rss_step"]) == (int(7.5 * GIB), "100.0")


def test_what_is_asked_now_is_too_little(place: Place) -> None:
    place.sample(place.ran(), 60 * GIB, 500 * GIB, [70 * GIB])
    told = place.estimate("resources.mem=32G", "--gpu", "a100-40gb")
    assert (
        "    more than resources.mem asks now, 34.4 GB: it would not fit as it ran; "
        "resources.mem=75G has room\n"
        "    more than a100-40gb has, 40.0 GB: it would not fit as it ran\n"
    ) in told
    swept = place.estimate("-s", "resources.mem=32G,400G")
    assert "\nrun 1: measured by study/0: 1 node x 2 ranks; memory of a node: 64.4 GB" in swept
    assert swept.count("it would not fit as it ran") == 1


def test_what_it_had_otherwise_is_said(place: Place) -> None:
    """Another batch is told, and nothing is said of what it leaves."""
    place.sample(place.ran(), 60 * GIB, 500 * GIB)
    told = place.estimate("config.batch=8", "resources.nodes=2")
    assert (
        "other than now: 1 node x 2 ranks (now 2 nodes x 2 ranks); other values of config" in told
    )
    assert "never used" not in told
    assert place.taken("entry=other.py", code=2) is None if _other(place) else True


def _other(place: Place) -> bool:
    (place.path / "other.py").write_text("print(2)\n")
    return True


def test_the_likest_run_is_told(place: Place) -> None:
    place.sample(place.ran(), 60 * GIB, 500 * GIB)
    other = Experiment(place.path / "root", "other")
    other.submit((0,), spec={**RAN, "config": {"batch": 64}}, entry=SCRIPT, job_id="200")
    place.sample(other.start(0, 1, job_id="200"), 90 * GIB, 500 * GIB)
    for batch, run in ((4, "study/0"), (64, "other/0")):
        taken = place.taken(f"config.batch={batch}")
        assert taken is not None
        assert (taken["run"], taken["differs"]) == (run, [])


def test_memory_of_the_whole_node_is_the_most_that_it_can_be(place: Place) -> None:
    """Without a limit of the job's own, others may be in it: more than is asked proves nothing."""
    place.sample(place.ran(), 60 * GIB, 2048 * GIB)
    taken = place.taken("resources.mem=32G")
    assert taken is not None
    assert (taken["is_of_job"], taken["fits_host"]) == (False, None)
    told = place.estimate()
    assert "64.4 GB of 2.2 TB at most, with all else that ran there" in told
    assert "resources.mem=75G has room" in told


def test_of_much_telemetry_the_newest_is_read(place: Place) -> None:
    """What came before may have been more: nothing is said of what was never used."""
    paths = place.ran()
    place.sample(paths, 60 * GIB, 500 * GIB)
    path = paths.telemetry("n1")
    line = path.read_text().splitlines()[0]
    path.write_text(f"{line}\n" * ((33 << 20) // len(line)))
    began = time.monotonic()
    told = place.estimate()
    assert time.monotonic() - began < 30
    assert "1 node x 2 ranks; of its telemetry the newest part was read\n" in told
    assert "64.4 GB of 537 GB" in told
    assert "never used" not in told


def test_a_run_that_ran_out_of_memory_has_no_advice_to_ask_for_less(place: Place) -> None:
    place.sample(place.ran(), 60 * GIB, 500 * GIB)
    place.study.end(0, 1, "failed", kind="out_of_memory", message="out of memory")
    told = place.estimate()
    assert "measured by study/0: 1 node x 2 ranks, ran out of memory" in told
    assert "never used" not in told


def test_a_run_that_a_job_number_alone_names_is_not_believed(place: Place) -> None:
    """Numbers are given anew after a reset: rows without our directory and user are others'."""
    place.ran()
    place.sacct("100||OURS/../9", "100.0|99G||", "100||12345|/root/study/submissions/1")
    assert place.taken(code=2) is None
    place.sacct("100||OURS", "100.0|10G||", "100||1|/home/else", "100.0|99G||", "100||OURS")
    taken = place.taken("resources.mem=8G")
    assert taken is not None
    assert (taken["node_bytes"], taken["max_rss_bytes"]) == (None, 10 * GIB)
    assert taken["fits_host"] is False


@pytest.mark.parametrize(
    "answer",
    [
        "Slurm accounting storage is disabled",
        "sacct: error: Problem talking to the database: Connection refused",
    ],
)
def test_accounting_that_does_not_answer_is_told_where_it_matters(
    place: Place, answer: str
) -> None:
    paths = place.ran()
    slurm_shim(place.shim, fail=answer)
    told = place.estimate(code=2)
    assert f"  what study/0 took of its nodes is not known: {answer}\n" in told
    place.sample(paths, 60 * GIB, 500 * GIB)
    told = place.estimate()
    assert "memory of a node: 64.4 GB" in told
    assert answer not in told.split("expected start")[0].split("Slurm does not say when")[0]


def test_accounting_that_hangs_is_waited_for_a_moment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.ran()
    (place.shim / "sacct").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setenv("HPCRUN_SLURM_TIMEOUT", "0.5")
    began = time.monotonic()
    assert "is not known: sacct gave no answer within 0.5 s" in place.estimate(code=2)
    assert time.monotonic() - began < 30


def test_nothing_measured_says_nothing(place: Place) -> None:
    assert place.taken(code=2) is None
    path = place.ran(job="local:7").telemetry("n1")
    path.write_text('{"memory": -5, "memory_total": 9}\n{"memory": "x"}\n{"gpus": 7}\n[1]\n{"mem')
    files.append(path, {"gpus": [{"memory": 9, "memory_total": 5}, None, {"memory": True}]})
    assert "took" not in place.estimate(code=2)
    assert not any(call.startswith("sacct") for call in shim_calls(place.shim))


def test_attempts_with_another_micro_batch_are_not_mixed(place: Place) -> None:
    """After out of memory, what the smaller micro batch took is what is told."""
    deepspeed = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}
    place.sample(place.ran(deepspeed=deepspeed), 90 * GIB, 500 * GIB)
    second = place.study.start(0, 2, job_id="100")
    ledger = place.study.run().ledger
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for line in lines:
        if line["attempt"] == 2 and line["event"] == "attempt_started":
            line["micro_batch"] = 4
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    place.sample(second, 60 * GIB, 500 * GIB)
    taken = place.taken()
    assert taken is not None
    assert (taken["micro_batch"], taken["node_bytes"]) == (4, 60 * GIB)
    assert taken["differs"][-1] == "micro batch 4, after it ran out of memory"
    # Both were starts of one job, which accounting does not tell apart.
    assert not any(call.startswith("sacct") for call in shim_calls(place.shim))


def test_programs_are_told_apart_by_a_commands_words(place: Place) -> None:
    words = ("bash", "run.sh", "--lr", "1")
    place.study.submit((0,), spec={**RAN, "config": {}}, entry=Entry(kind="command", argv=words))
    place.sample(place.study.start(), 60 * GIB, 500 * GIB)
    text = (place.path / "study.yaml").read_text().replace("config: {batch: 4}\n", "")
    for command, differs in (
        ("[bash, run.sh, --lr, '1']", []),
        ("[bash, run.sh, --lr, '2']", ["other arguments"]),
        ("[bash, else.sh]", None),
    ):
        spec = text.replace("entry: train.py", f"entry: {command}")
        (place.path / "study.yaml").write_text(spec)
        taken = place.taken(code=2 if differs is None else 0)
        assert (None if taken is None else taken["differs"]) == differs
