"""``hpcrun doctor``: asks Slurm, the storage and the job's Python, judges, and reports."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcrun import activity
from hpcrun.compile.spec.profile import LOCAL
from hpcrun.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, ClusterUnreachable
from hpcrun.host import current_user
from hpcrun.site import shared_storage, slurm_site
from hpcrun.site.slurm_site import SlurmSite
from hpcrun.slurm import client
from hpcrun.slurm.background import BackgroundCall
from hpcrun.state.suspect_nodes import SuspectNode, SuspectNodes
from hpcrun.tools.doctor import (
    doctor_profile,
    machine_facts,
    machine_promises,
    slurm_promises,
)
from hpcrun.tools.doctor.doctor_profile import DoctorProfile
from hpcrun.tools.doctor.promise import FAILS, VERDICTS, YOU, JudgedPromise, unknown

# Slurm's packages are there, and no slurm.conf.
_NO_CLUSTER = re.compile("configuration source|config_?source|failed to fetch config")
_ALONE = (
    "Slurm's commands are here without a slurm.conf: this machine is examined, as cluster=local"
)


@dataclass(frozen=True)
class Examination:
    """All promises, judged, and this user's suspect nodes."""

    cluster: str
    slurm: str | None
    """Slurm's version; None where there is none, or it does not answer."""
    judged: Sequence[JudgedPromise]
    suspects: Sequence[SuspectNode] = ()
    silent: str = ""
    """Why Slurm does not answer; empty if it does, or there is none."""
    notes: Sequence[str] = ()

    @property
    def worst_first(self) -> list[JudgedPromise]:
        return sorted(self.judged, key=lambda one: VERDICTS.index(one.judgement.verdict))

    @property
    def exit_code(self) -> int:
        """Return 1 if a promise does not hold, 4 if Slurm does not answer, else 0."""
        if any(one.judgement.verdict == FAILS for one in self.judged):
            return EXIT_FAILED
        return EXIT_UNREACHABLE if self.silent else EXIT_OK

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data; unknown is null."""
        return {
            "cluster": self.cluster,
            "slurm": self.slurm,
            "promises": [one.to_data() for one in self.judged],
            "suspects": [{**vars(one), "until": one.until} for one in self.suspects],
        }


def read_site(profile: DoctorProfile) -> SlurmSite:
    """Ask Slurm what it is; raise ClusterUnreachable if there is none, or it does not answer.

    Raises ClusterRefused if a variable names another cluster than this host's.
    """
    if not client.available():
        raise ClusterUnreachable(
            f"the cluster profile '{profile.name}' submits to Slurm, and there is no sbatch on "
            "PATH",
            hint="run this on a login node of the cluster, or examine this machine with "
            "`hpcrun doctor --cluster local`",
        )
    client.check_cluster()
    return slurm_site.read()


def examine(profile: DoctorProfile, python: str | None = None) -> Examination:
    """Judge every promise that can be judged from this machine; a silent Slurm leaves the rest.

    Raises ClusterUnreachable if the profile is for Slurm, and there is none on this machine.
    """
    site, silent = None, None
    try:
        site = read_site(profile) if profile.is_slurm else None
    except ClusterUnreachable as error:
        if not client.available():
            raise
        if _NO_CLUSTER.search(error.message) and not profile.is_named:
            alone = examine(doctor_profile.load(LOCAL, profile.root), python)
            return replace(alone, notes=(_ALONE,))
        silent = error
    asked = BackgroundCall(partial(machine_facts.ask_job_python, profile, python))
    with activity.doing(f"measuring the storage of {profile.root}"):
        # In this thread, so that Ctrl-C leaves nothing behind.
        stored = machine_facts.measure(profile.root)
        others = [machine_facts.measure(path) for path in _other_places(profile.root)]
    with activity.doing("asking the job's Python what it has"):
        asked.wait()
    facts = asked.result()
    judged: list[JudgedPromise] = []
    gpus = False
    if silent is not None:
        answer = unknown(f"Slurm does not answer: {silent.message}", silent.hint or "", YOU)
        judged.append(JudgedPromise("Slurm", "hpcrun works with this Slurm", answer))
    elif site is not None:
        judged += slurm_promises.judge(site, profile.data)
        has_own = profile.data["resources"]["gpu_request"] == "none"
        gpus = has_own or any(node.gpus for node in site.nodes.values())
    else:
        there = local_gpus()
        gpus = there > 0
        cpus, has_proc = len(os.sched_getaffinity(0)), Path("/proc/self/stat").is_file()
        judged += machine_promises.machine(cpus, there, has_proc=has_proc)
    judged += machine_promises.storage(stored, others, on_cluster=profile.is_slurm)
    judged += machine_promises.python(facts, machine_facts.own_libraries(), gpus=gpus)
    if profile.is_slurm:
        judged += machine_promises.not_known_here()
    return Examination(
        cluster=profile.name if site is None else f"{site.name} (profile {profile.name})",
        slurm=site.version if site is not None else None,
        judged=judged,
        suspects=SuspectNodes(profile.root).read() if profile.is_slurm else (),
        silent=silent.message if silent else "",
    )


def _other_places(root: Path) -> list[Path]:
    """Return at most two more directories of this user's, on shared file systems of their own."""
    found: list[Path] = []
    devices = {_device(root)}
    for place in shared_storage.read(os.environ, current_user()):
        path = Path(place.path)
        if place.is_usable and place.is_shared and _device(path) not in devices:
            devices.add(_device(path))
            found.append(path)
    return found[:2]


def _device(path: Path) -> int | None:
    there = next((one for one in (path, *path.parents) if one.exists()), path)
    try:
        return there.stat().st_dev
    except OSError:
        return None


def local_gpus(proc: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Return how many GPUs the driver knows on this machine."""
    return len([*proc.glob("*")])
