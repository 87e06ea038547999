"""Checks a plan against the cluster: asks it, judges, and reports all findings at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hpcrun import activity
from hpcrun.check import (
    account_checks,
    file_checks,
    node_checks,
    partition_checks,
    queue_checks,
)
from hpcrun.check.finding import ERROR, NOTE, WARNING, Finding, KeyPlaces, merge
from hpcrun.check.job_request import JobRequest
from hpcrun.compile.freeze import Compiled
from hpcrun.errors import (
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_USAGE,
    ClusterRefused,
    ClusterUnreachable,
    HpcrunError,
)
from hpcrun.site import slurm_site
from hpcrun.site.slurm_site import SlurmSite
from hpcrun.slurm import client, mpi_types, site_queries
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.submission import preflight, run_actions
from hpcrun.submission.submit import Preview
from hpcrun.text import Say, listed, plural

# Said of a job that would wait for nodes which are reserved, too.
_NOT_NOW = re.compile("node configuration is not available|nodes are busy|currently not available")
_TEST_ONLY = re.compile(r"^(?:sbatch: error: |allocation failure: |sbatch: )+", re.MULTILINE)


@dataclass(frozen=True)
class CheckReport:
    """The findings on one experiment."""

    experiment: str
    cluster: str
    """The profile's name."""
    slurm: str | None
    """Slurm's version; None where it was not asked."""
    runs: int
    """Number of runs that would be submitted."""
    of_cluster: Sequence[Finding] = ()
    of_spec: Sequence[Finding] = ()
    skipped: Sequence[str] = ()
    """Checks that could not be made, and why."""
    expected_start: float | None = None
    """When Slurm would start the largest job, in seconds since the epoch; None if unknown."""

    @property
    def findings(self) -> list[Finding]:
        """Return all of them, the worst first."""
        return merge([*self.of_cluster, *self.of_spec])

    @property
    def exit_code(self) -> int:
        """Return 0, 3 where the cluster refuses, 2 where the spec alone is wrong."""
        if any(one.severity == ERROR for one in self.of_cluster):
            return EXIT_REFUSED
        wrong = any(one.severity == ERROR for one in self.of_spec)
        return EXIT_USAGE if wrong else EXIT_OK

    def counts(self) -> str:
        """Return ``2 errors, 1 warning``."""
        of = [one.severity for one in self.findings]
        told = [plural(of.count(each), each) for each in (ERROR, WARNING, NOTE) if each in of]
        return ", ".join(told) or "nothing is wrong"

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data; unknown is null."""
        return {
            "experiment": self.experiment,
            "cluster": self.cluster,
            "slurm": self.slurm,
            "runs": self.runs,
            "findings": [one.to_data() for one in self.findings],
            "skipped": list(self.skipped),
            "expected_start": self.expected_start,
        }


def judge(plan: Plan, site: SlurmSite) -> Iterator[Finding]:
    """Yield what the cluster would refuse of a plan's arrays, keep waiting, or may. Pure."""
    yield from queue_checks.number_of_jobs(sum(len(one.runs) for one in plan.arrays), site)
    for array in plan.arrays:
        run = plan.run(array.runs[0])
        roles = [role.name for role in run.own_parts]
        requests = JobRequest.parts(array, roles)
        if run.resources.cpus_per_task is None and requests[0]["cpus-per-task"]:
            yield from node_checks.cpus_of_gpus(requests[0], site)
        if run.resources.has_whole_nodes:
            yield from node_checks.whole_nodes(requests[0], site)
        for request in requests:
            for found in judge_job(request, site):
                yield replace(found, runs=request.runs)


def judge_job(request: JobRequest, site: SlurmSite) -> Iterator[Finding]:
    """Yield what the cluster would refuse of one sbatch, keep waiting, or may. Pure."""
    yield from partition_checks.check_names(request, site)
    yield from node_checks.names(request, site)
    yield from account_checks.are_mine(request, site)
    yield from queue_checks.array(request, site)
    yield from queue_checks.reservation(request, site)
    yield from queue_checks.licenses(request, site)
    found: list[list[Finding]] = []
    for partition in partition_checks.candidates(request, site):
        found.append(
            [
                *partition_checks.usable(request, partition, site),
                *node_checks.there_are(request, partition, site),
                *account_checks.within_limits(request, partition, site),
            ]
        )
    # Of several partitions Slurm takes the one that can start it.
    good = [each for each in found if all(one.severity != ERROR for one in each)]
    if good:
        yield from min(good, key=len)
    else:
        yield from (one for each in found for one in each)


def mpi_types_are_there(plan: Plan) -> Iterator[Finding]:
    """Yield a finding for a type of MPI that srun does not know; it is asked if a run names one."""
    key, named = "resources.mpi", {run.number: run.resources.mpi for run in plan.runs}
    wanted = {name for name in named.values() if name} - {mpi_types.NONE}
    try:
        types = mpi_types.offered() if wanted else []
    except HpcrunError as error:
        yield Finding(NOTE, key, f"not checked: {error.message}")
        return
    for name in sorted(wanted):
        if not mpi_types.is_offered(name, types):
            said = f"srun knows no {name!r} (srun --mpi=list): it has {listed(types, 8) or 'none'}"
            hint = "leave it out, and hpcrun takes the one that the program's MPI knows"
            yield Finding(ERROR, key, said, hint, tuple(n for n in named if named[n] == name))


def check(compiled: Compiled, preview: Preview, overrides: Sequence[str]) -> CheckReport:
    """Check the runs of an experiment that would be submitted.

    Raise ClusterUnreachable if slurmctld does not answer.
    """
    plan = preview.plan
    chosen = {number for array in plan.arrays for number in array.runs}
    runs = [run for run in plan.runs if run.number in chosen]
    report = CheckReport(plan.name, str(plan.cluster.get("name")), None, len(runs))
    if not runs:
        return report
    resumed = {one.run for one in preview.decisions if one.action in run_actions.GOING_ON}
    places = KeyPlaces(compiled.sources, overrides)
    report = replace(
        report, of_spec=_with_places(file_checks.findings(compiled, plan, runs, resumed), places)
    )
    if plan.executor.is_here:
        said = f"the profile {report.cluster} runs on this machine: no cluster is asked"
        return replace(report, skipped=[said])
    preflight.check_executor(plan.cluster)
    site = slurm_site.read()
    found = [*judge(plan, site), *mpi_types_are_there(plan)]
    skipped = []
    if site.without_accounting:
        left_out = "accounts, QOS and their limits are not checked"
        skipped.append(f"{left_out}: {site.without_accounting}")
    start = None
    if any(one.severity == ERROR for one in found):
        skipped.append("the expected start is not asked for, as Slurm would refuse the job")
    else:
        with activity.doing("asking Slurm when it would start"):
            start, refused = _test(plan)
        found += refused
    return replace(
        report,
        slurm=site.version,
        of_cluster=_with_places(found, places),
        skipped=skipped,
        expected_start=start,
    )


def _with_places(found: Iterable[Finding], places: KeyPlaces) -> list[Finding]:
    return [replace(one, place=places.of(one.key)) for one in merge(found)]


def _test(plan: Plan) -> tuple[float | None, list[Finding]]:
    """Return when the largest job would start, and why Slurm refuses it."""
    runs: dict[int, RunPlan] = {run.number: run for run in plan.runs}
    largest = max(plan.arrays, key=lambda array: runs[array.runs[0]].all_nodes)
    try:
        said = site_queries.expected_start(largest.script)
    except client.CommandFailed as error:
        if client.is_unreachable(str(error)):
            return None, [Finding(NOTE, "", f"sbatch --test-only gave no answer: {error}")]
        words = " ".join(_TEST_ONLY.sub("", str(error)).split())
        hint = "this is Slurm's own answer (sbatch --test-only)"
        if _NOT_NOW.search(words):
            found = f"Slurm cannot tell when it would start: {words}"
            more = f"{hint}; nodes may be reserved or down, and the job waits for them"
            return None, [Finding(WARNING, "", found, more, largest.runs)]
        return None, [Finding(ERROR, "", f"Slurm refuses the job: {words}", hint, largest.runs)]
    return site_queries.start_time(said), []


class SubmitCheck:
    """The check inside ``submit``: its errors refuse the runs, and nothing is submitted.

    The cluster is asked once for a whole chain of experiments; one that does not answer is no
    reason to refuse, since `submit` waits for it.
    """

    def __init__(self, say: Say, overrides: Sequence[str]) -> None:
        self._say = say
        self._overrides = overrides

    def __call__(self, compiled: Compiled, plan: Plan) -> None:
        """Raise ClusterRefused with all findings if the cluster would refuse a run."""
        if plan.executor.is_here or not plan.cluster.get("check", True):
            return
        site = self._site
        if site is None:
            return
        judged = [*judge(plan, site), *mpi_types_are_there(plan)]
        found = _with_places(judged, KeyPlaces(compiled.sources, self._overrides))
        count = sum(len(array.runs) for array in plan.arrays)
        wrong = [one for one in found if one.severity == ERROR]
        if wrong:
            lines = "\n".join(one.lines(count) for one in wrong)
            raise ClusterRefused(
                f"{plan.name}: the cluster would refuse this:\n{lines}",
                hint="`hpcrun check` shows all that it finds; if it is wrong, --no-check submits "
                "all the same",
            )
        for one in found:
            self._say(one.lines(count))

    @cached_property
    def _site(self) -> SlurmSite | None:
        try:
            return slurm_site.read()
        except ClusterUnreachable as error:
            self._say(f"not checked against the cluster: {error.message}")
            return None
