"""``hpcrun doctor``: asks Slurm, the storage and the job's Python, judges, and reports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun import activity
from hpcrun.doctor import job_python, machine_promises, slurm_promises, storage_speed
from hpcrun.doctor.doctor_profile import DoctorProfile
from hpcrun.doctor.promise import FAILS, VERDICTS, JudgedPromise
from hpcrun.errors import EXIT_FAILED, EXIT_OK, ClusterUnreachable
from hpcrun.site import slurm_site
from hpcrun.site.slurm_site import SlurmSite
from hpcrun.slurm import client
from hpcrun.state.suspects.suspect_nodes import SuspectNodes, SuspectReading


@dataclass(frozen=True)
class Examination:
    """All promises, judged, and the record of suspect nodes."""

    cluster: str
    slurm: str | None
    """Slurm's version; None where there is none, or it was not asked."""
    judged: Sequence[JudgedPromise]
    suspects: SuspectReading
    suspects_place: Path

    @property
    def worst_first(self) -> list[JudgedPromise]:
        return sorted(self.judged, key=lambda one: VERDICTS.index(one.judgement.verdict))

    @property
    def exit_code(self) -> int:
        """Return 1 if a promise does not hold, else 0."""
        broken = any(one.judgement.verdict == FAILS for one in self.judged)
        return EXIT_FAILED if broken else EXIT_OK

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data; unknown is null."""
        return {
            "cluster": self.cluster,
            "slurm": self.slurm,
            "promises": [one.to_data() for one in self.judged],
            "suspects": suspects_data(self.suspects),
            "suspects_directory": str(self.suspects_place),
        }


def suspects_data(reading: SuspectReading) -> list[dict[str, Any]]:
    """Return the record of suspect nodes as plain data."""
    return [
        {
            "node": one.node,
            "reason": one.reason,
            "kind": one.kind,
            "by": one.author,
            "when": one.when,
            "until": one.until,
            "is_used": one in reading.used,
        }
        for one in reading.entries
    ]


def read_site(profile: DoctorProfile) -> SlurmSite:
    """Ask Slurm what it is; raise ClusterUnreachable if there is none, or it does not answer."""
    if not client.available():
        raise ClusterUnreachable(
            f"the cluster profile '{profile.name}' submits to Slurm, and there is no sbatch on "
            "PATH",
            hint="run this on a login node of the cluster, or examine this machine with "
            "`hpcrun doctor --cluster local`",
        )
    with activity.doing("asking Slurm what this cluster is"):
        return slurm_site.read()


def examine(profile: DoctorProfile, python: str | None = None) -> Examination:
    """Judge every promise that can be judged from this machine.

    Raises ClusterUnreachable if the profile is for Slurm, and Slurm does not answer.
    """
    site = read_site(profile) if profile.is_slurm else None
    with (
        ThreadPoolExecutor(2) as pool,
        activity.doing("measuring storage, asking the job's Python"),
    ):
        storage = pool.submit(storage_speed.measure, profile.root)
        asked = pool.submit(job_python.ask, profile, python)
        stored, facts = storage.result(), asked.result()
    judged: list[JudgedPromise] = []
    if site is not None:
        judged += slurm_promises.judge(site, profile.data)
        gpus = any(node.gpus for node in site.nodes.values())
    else:
        here = {"cpus": len(os.sched_getaffinity(0)), "gpus": local_gpus()}
        here["proc"] = Path("/proc/self/stat").is_file()
        judged += machine_promises.machine(here)
        gpus = bool(here["gpus"])
    judged += machine_promises.storage(stored, on_cluster=site is not None)
    judged += machine_promises.python(facts, job_python.own_libraries(), gpus=gpus)
    if site is not None:
        judged += machine_promises.not_known_here()
    record = SuspectNodes.of(profile.data, profile.root)
    return Examination(
        cluster=profile.name if site is None else f"{site.name} (profile {profile.name})",
        slurm=site.version if site is not None else None,
        judged=judged,
        suspects=record.read() if site is not None else SuspectReading(),
        suspects_place=record.directory,
    )


def local_gpus(proc: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Return how many GPUs the driver knows on this machine."""
    try:
        return len([*proc.iterdir()])
    except OSError:
        return 0
