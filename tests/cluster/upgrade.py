"""Experiments that another revision of hpcrun submitted go on under this one, on a real Slurm.

``python -m tests.cluster.upgrade --revision 322fdd9 [--version 24.11]``, as root, in a clone that
has this revision. Its package submits; half-way, that of this checkout takes over on the login
node, while what Slurm starts again is still the other's, from the submission's ``hpcrun.zip``. Each
run must end as one of the other revision's that was left alone: with the same loss at each step,
and the same weights.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time

from tests.cluster.test_forms import form, prepare
from tests.cluster.ward import ARRAY, EVERY, STAGE, Reference, Ward
from tests.cluster.workbench import REPOSITORY, give_operators
from tests.support import operators
from tests.testbed import VERSIONS, Cluster

# By the number of the run in `study`; `solo` and `lost` have stage 1.
_STAGES = [1, 2, 3, 0]
_PAUSE = 2.0
# Run -> what ended its attempts, and the submission to which each belongs.
_EXPECTED: dict[str, tuple[list[str | None], list[int]]] = {
    "study/0": (["requeued", None], [1, 1]),
    "study/1": (["cancelled", None], [1, 3]),
    "study/2": (["cancelled", None], [1, 2]),
    "study/3": ([None], [1]),
    "solo/0": (["requeued", None], [1, 1]),
    "lost/0": (["supervisor_lost", None], [1, 2]),
    "script/0": (["requeued", None], [1, 1]),
    "script/1": (["cancelled", None], [1, 2]),
}
_ALL = "study solo lost script"
# What is typed while all run, when some are stopped, and after the end. Each must exit with 0.
_BESIDE = "stacks study/0; stacks script/0; exec solo/0 true; note solo -m half-way"
_READERS = f"""list --json; status {_ALL} --json; status {_ALL} --cost;
why {_ALL}; why {_ALL} --json; logs study/1 --stream all --attempt all --tail 5;
logs study/0 --tail 5; logs script/0; results study script --json;
show study/1; show study/1 --config; show study/1 --script; show study/1 --deepspeed;
show study/1 --code; diff study/0 study/1; requeue {_ALL} --dry-run;
cancel {_ALL} --dry-run; clean {_ALL} --dry-run;
submit study.yaml --dry-run; submit script.yaml --dry-run; estimate study.yaml;
report {_ALL} -o half.html; export {_ALL} -o half.tar.gz"""
_AFTER = f"""why {_ALL}; results {_ALL}; weights study/0 -o weights-0; weights study/1 -o weights-1;
clean {_ALL} --checkpoints all --logs --yes"""


class Upgrade:
    """The runs on a cluster, by the packages in two directories: ``before`` and this checkout."""

    def __init__(self, cluster: Cluster, before: str) -> None:
        self._began = time.monotonic()
        self._ward = Ward(cluster, "ward")
        self._ward.environment["PYTHONPATH"] = before

    def run(self) -> None:
        """Submit, act, wait; raise AssertionError unless each run ends as it should."""
        reference, losses = self._leave_alone()
        self._submit()
        self._take_over()
        self._ward.wait_for_end(_ALL.split(), seconds=600)
        self._say("all have completed")
        self._judge(reference, losses)
        self._type(_AFTER)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def _type(self, lines: str) -> None:
        for line in lines.split(";"):
            self._ward.hpcrun(*line.split())
        self._say(f"{len(lines.split(';'))} commands have answered")

    def _leave_alone(self) -> tuple[Reference, dict[int, float]]:
        """Return what runs of each stage, and of the script, end with."""
        ward = self._ward
        ward.get_ready(seconds=900)
        prepare(ward)
        script = form(ward, "script")
        script["recovery"]["stop_signal"] = "SIGUSR1"
        ward.hpcrun("submit", ward.spec("calm-script", script), "config.pause=0")
        runs = ward.submit_each(ARRAY, "calm", STAGE, _STAGES, config={"pause": 0})
        script["sweep"] = {"grid": {"config.pause": [_PAUSE, _PAUSE + 0.01]}}
        ward.spec("script", script)
        ward.wait_for_end([*runs, "calm-script"])
        outcomes = dict(zip(_STAGES, map(ward.outcome, runs), strict=True))
        return Reference(ward, outcomes), ward.step_losses("calm-script")

    def _submit(self) -> None:
        ward, config = self._ward, {"pause": _PAUSE}
        ward.submit("study", sweep={"grid": {STAGE: _STAGES}, "max_parallel": 3}, config=config)
        ward.submit("solo", config=config)
        ward.submit("lost", config=config, recovery={"requeue": False})
        ward.hpcrun("submit", "script.yaml")
        self._say("the other revision has submitted all")

    def _take_over(self) -> None:
        """Act on the runs by this checkout's package, once all that run are half-way."""
        ward, slurm = self._ward, self._ward.cluster
        running = [run for run in _EXPECTED if run != "study/3"]
        found = dict(zip(running, ward.wait_for_step(running, EVERY + 2), strict=True))
        self._say("steps: " + ", ".join(f"{name} {run['step']}" for name, run in found.items()))
        jobs = {name: str(run["job_id"]) for name, run in found.items()}
        ward.environment["PYTHONPATH"] = str(REPOSITORY)
        self._type(_BESIDE)
        for run in ("study/0", "script/0"):
            slurm.run(["scontrol", "requeue", jobs[run]])
        ward.kill(found["lost/0"]["nodes"][0], "hpcrun.run.keepe[r]", jobs["lost/0"])
        ward.hpcrun("requeue", "solo", "--yes")
        ward.hpcrun("cancel", "study/1-2", "script/1", "--yes")
        self._type(_READERS)
        slurm.wait_job(jobs["lost/0"])
        ward.hpcrun("requeue", "study/2", "--yes")
        for name in ("study", "lost", "script"):
            ward.hpcrun("submit", f"{name}.yaml")
        self._say("this checkout has submitted what was stopped")

    def _judge(self, reference: Reference, losses: dict[int, float]) -> None:
        ward = self._ward
        for (run, (kinds, submissions)), stage in zip(
            _EXPECTED.items(), [*_STAGES, 1, 1, None, None], strict=True
        ):
            attempts, (name, number) = ward.attempts(run), run.split("/")
            logs = [ward.metrics(name, int(number), one.number) for one in attempts]
            ends = [(log[0]["step"], log[-1]["step"]) for log in logs]
            steps = ", then ".join(f"{first}-{last}" for first, last in ends)
            print(f"{run}: steps {steps}, ended by {ward.kinds(run)}", flush=True)
            assert ward.kinds(run) == kinds, ward.explain(run)
            assert [one.submission for one in attempts] == submissions
            assert all(first > EVERY for first, _ in ends[1:]), "it began from nothing"
            if stage is None:
                assert ward.step_losses(run) == losses
            else:
                reference.assert_same(run, stage)


def main() -> None:
    """Run it on a cluster of each version, or of those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.upgrade")
    parser.add_argument("--revision", required=True)
    parser.add_argument("--version", action="append", choices=VERSIONS, help="of Slurm")
    asked = parser.parse_args()
    git = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", asked.revision]
    parts = ["hpcrun", "templates", "configs", "jobs"]
    packed = subprocess.run([*git, *parts], check=True, stdout=subprocess.PIPE).stdout
    for version in asked.version or VERSIONS:
        with tempfile.TemporaryDirectory() as before:
            subprocess.run(["tar", "-x", "-C", before], check=True, input=packed)
            with Cluster(version, light=True, visible=(before,)) as cluster:
                print(f"Slurm {version}, submitted by {asked.revision}", flush=True)
                if version == VERSIONS[0]:
                    give_operators(cluster, operators.build())
                Upgrade(cluster, before).run()


if __name__ == "__main__":
    main()
