"""The job of ``hpcrun doctor --nodes``: from a directory below the root to its result.

Whatever happens, the job ends and the directory is removed: on an interrupt, on an error, and when
the job waits for longer than it may.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun import activity, host, shared_look, slurm_state
from hpcrun.compile.target import sbatch_script
from hpcrun.errors import ClusterRefused, ClusterUnreachable, HpcrunError, Interrupted
from hpcrun.slurm import client, queue
from hpcrun.slurm.queue import JobState
from hpcrun.state import files, permissions
from hpcrun.state.layout import slurm_path
from hpcrun.state.spec.blocks import early
from hpcrun.state.spec.run_blocks import Resources
from hpcrun.submission import sbatch
from hpcrun.submission.code import own_package
from hpcrun.text import Say, duration, plural
from hpcrun.tools.doctor.doctor_profile import DoctorProfile
from hpcrun.tools.doctor.node_choice import NodeChoice

_PREFIX = ".hpcrun-doctor-"
# Seconds between two looks at the queue; for the end of a job that has its result; for the result
# of a job that has ended, as storage may be late; and for which leftovers of a kill are kept.
_LOOK, _END, _LATE, _OLD = 2.0, 20.0, shared_look.SEEN_WITHIN, 86_400
# Seconds in which a job that runs gives a sign of life, as it does every 10 s, or its first node is
# gone: with --no-kill it would hold the others until its time limit. Storage may be late.
_SILENT = 100.0
_MOST_RESULT = 1 << 24


@dataclass(frozen=True)
class NodeTest:
    """What ``--nodes`` and its further options ask for."""

    words: str
    partition: str | None = None
    python: str | None = None
    minutes: int = 10
    """The job's time limit."""
    wait: float = 1800.0
    """Seconds for which it may wait in the queue, and for its nodes to boot."""
    tensor: bool = True
    """torch computes, too."""
    baseline: Path | None = None
    """The baseline's file; None for the root's."""
    saves: bool = False
    """Keep the result as the baseline."""


@dataclass(frozen=True)
class NodeJobRequest:
    """What the job is to do."""

    choice: NodeChoice
    test: NodeTest
    baseline_rate: float | None = None


def run(profile: DoctorProfile, request: NodeJobRequest, say: Say) -> dict[str, Any]:
    """Submit the job, wait for it, and return what the conductor found, with ``job``.

    Raises ClusterRefused or ClusterUnreachable if it cannot be submitted or does not start in time;
    HpcrunError if it ends without a result; Interrupted after Ctrl-C, when it is cancelled.
    """
    with _directory(profile.root) as directory, host.interrupted_from_outside():
        script = _prepare(directory, profile, request)
        job = ""
        try:
            with activity.doing("submitting the job"):
                job = sbatch.submit(script)
            nodes = plural(request.choice.count, "node")
            say(f"job {job}: {nodes} of {request.choice.partition}, Ctrl-C cancels it")
            result = _wait(job, directory, request)
            _let_end(job)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted: {_cancelled(job, script)}") from None
        except BaseException:
            _cancelled(job, script)
            raise
        return {**result, "job": job}


@contextlib.contextmanager
def _directory(root: Path) -> Iterator[Path]:
    """Make a directory that is this user's alone, and remove it, with what was made for it."""
    made = [path for path in (root, *root.parents) if not path.exists()]
    try:
        with permissions.owner_writes():
            root.mkdir(parents=True, exist_ok=True)
        _remove_old(root)
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    except OSError as error:
        raise ClusterRefused(
            f"the root {root} cannot be written: {error.strerror}",
            hint="choose another root: --root DIR, HPCRUN_ROOT, or `root:` of the profile",
        ) from None
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()


def _remove_old(root: Path) -> None:
    """Remove what a doctor that was killed has left."""
    for path in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            old = time.time() - path.lstat().st_mtime > _OLD
            if old and permissions.stranger(path) is None and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)


def _prepare(directory: Path, profile: DoctorProfile, request: NodeJobRequest) -> Path:
    """Write the package, the request and the script; return the script."""
    package = directory / "package.zip"
    own_package.write(package)
    asked = {
        "fabric": profile.data["fabric"],
        "gpus": _gpus(profile, request).gpus_option,
        "tensor": request.test.tensor,
        "baseline_rate": request.baseline_rate,
    }
    files.write_json(directory / "request.json", asked)
    text = sbatch_script.program_script(
        parts=[options(directory, profile, request)],
        setup=profile.data["setup"],
        variables=early(profile.data["variables"]),
        package=str(package),
        guarded=[str(directory / "request.json")],
        group=profile.data["group"] or "",
        python=request.test.python or sys.executable,
        program=f"hpcrun.tools.doctor.on_nodes.conductor {sbatch_script.quote(directory)}",
    )
    script = directory / "doctor.sbatch"
    files.write_bytes(script, text.encode())
    return script


def options(directory: Path, profile: DoctorProfile, request: NodeJobRequest) -> dict[str, Any]:
    """Return sbatch's long options -> values: whole nodes, of which one may die meanwhile."""
    wanted, choice = profile.data["resources"], request.choice
    found = {
        "job-name": "hpcrun-doctor",
        "nodes": choice.count,
        "nodelist": ",".join(choice.names) or None,
        "ntasks-per-node": 1,
        "exclusive": True,
        "mem": "0",
        "time": request.test.minutes,
        "partition": choice.partition,
        **{name: wanted.get(name) for name in ("account", "qos", "reservation")},
        # Nodes that were named are tested whatever the profile excludes.
        "exclude": None if choice.names else wanted.get("exclude"),
        "constraint": None if choice.names else wanted.get("constraint"),
        **profile.data["sbatch"],
        **sbatch_script.gpu_options(_gpus(profile, request), profile.data["sbatch"]),
        "no-kill": True,
        "no-requeue": True,
        "open-mode": "append",
        "export": "NIL",
        "chdir": directory.as_posix(),
        "output": f"{slurm_path(directory)}/job.log",
    }
    return {key: value for key, value in found.items() if value is not None and value is not False}


def _gpus(profile: DoctorProfile, request: NodeJobRequest) -> Resources:
    wanted = profile.data["resources"]["gpu_request"]
    return Resources(gpus_per_node=request.choice.gpus, gpu_request=wanted)


def _wait(job: str, directory: Path, request: NodeJobRequest) -> dict[str, Any]:
    """Wait for the result, and tell meanwhile what the job does."""
    began = time.monotonic()
    state = JobState(job, slurm_state.PENDING)
    ended: float | None = None
    life, since = (0, "", ""), began

    def told() -> str:
        if state.is_waiting:
            why = f" ({state.reason})" if state.reason not in ("", "None") else ""
            return f"job {job} waits for {plural(request.choice.count, 'node')}{why}"
        if state.state == slurm_state.CONFIGURING:
            return f"job {job} waits until {state.nodes or 'its nodes'} have booted"
        return f"job {job} on {state.nodes or 'its nodes'}: {_signs(directory)[1]}"

    with activity.doing(told):
        while True:
            result = _result(directory)
            if result is not None:
                return result
            with contextlib.suppress(ClusterUnreachable):
                state = queue.query([job]).get(job, state)
            now = time.monotonic()
            waits = state.is_waiting or state.state == slurm_state.CONFIGURING
            if state.is_over:
                ended = ended or now
                if now - ended > _LATE:
                    raise _without_result(job, state, directory)
            elif waits and now - began > request.test.wait:
                why = "its nodes boot" if state.state == slurm_state.CONFIGURING else state.reason
                waited = duration(request.test.wait)
                raise ClusterRefused(
                    f"job {job} has waited for {waited} ({why}), and was cancelled",
                    hint="--wait MINUTES waits longer; fewer nodes, or --partition, start sooner",
                )
            elif waits:
                # Silence begins when its nodes are there.
                since = now
            elif (new := _signs(directory)) != life:
                life, since = new, now
            elif now - since > _SILENT:
                raise HpcrunError(
                    f"job {job} on {state.nodes} has said nothing for {duration(now - since)} "
                    f"while {life[1]}, and was cancelled: {life[2] or 'its first node'} leads the "
                    "test, and fell silent",
                    hint=f"test without {life[2] or 'it'}: `hpcrun doctor --nodes NAMES`",
                )
            time.sleep(0.3 if state.is_over else _LOOK if now - began > 10 else 0.7)


def _signs(directory: Path) -> tuple[int, str, str]:
    """Return how many signs of life the job has given, what it does, and its first node."""
    try:
        found = files.read_json(directory / "progress.json", 4096)
        return int(found["beats"]), str(found["doing"]), str(found["node"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, "starting", ""


def _result(directory: Path) -> dict[str, Any] | None:
    path = directory / "result.json"
    try:
        # Its name is read, so that this host never holds its absence.
        if path.name not in shared_look.names(directory):
            return None
        found = files.read_json(path, _MOST_RESULT)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _without_result(job: str, state: JobState, directory: Path) -> HpcrunError:
    try:
        lines = files.read_tail(directory / "job.log", 4000).decode(errors="replace").splitlines()
    except OSError:
        return HpcrunError(
            f"job {job} ended as {state.state} on {state.nodes or 'its nodes'}, and nothing of it "
            f"is to be seen in {directory.parent}",
            hint="either the nodes do not see that directory: choose a root on shared storage "
            "(--root DIR, HPCRUN_ROOT, `root:` of the profile); or its first node is broken: "
            f"`hpcrun doctor --nodes` with other nodes than {state.nodes or 'these'} tells",
        )
    said = "\n".join(line for line in lines[-8:] if line.strip())
    return HpcrunError(
        f"job {job} ended as {state.state} without a result; its log ends with:\n{said}",
        hint="a longer time: --time MINUTES"
        if state.state == slurm_state.TIMEOUT
        else "the profile's setup lines and --python decide what the job runs",
    )


def _let_end(job: str) -> None:
    """Wait until a job is over, so that it writes nothing any more; then cancel it."""
    until = time.monotonic() + _END
    with activity.doing(f"job {job} is ending"):
        while time.monotonic() < until:
            with contextlib.suppress(ClusterUnreachable):
                state = queue.query([job]).get(job)
                if state is None or state.is_over:
                    return
            time.sleep(0.5)
    with contextlib.suppress(HpcrunError):
        client.cancel([job])


def _cancelled(job: str, script: Path) -> str:
    """Cancel the job, also one whose number is not known yet; return what was done, in words."""
    try:
        jobs = [job] if job else client.jobs_by_script().get(str(script), [])
        if not jobs:
            return "nothing was submitted"
        client.cancel(jobs)
    except HpcrunError as error:
        return f"the job {job} may still be queued: {error.message}; `scancel {job}` cancels it"
    with contextlib.suppress(KeyboardInterrupt):
        _let_end(jobs[0])
    return f"job {', '.join(jobs)} was cancelled"
