"""Whether the queue takes a job: arrays, the number of jobs, reservations, licences. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hpcrun.check.finding import ERROR, NOTE, WARNING, Finding
from hpcrun.check.job_request import JobRequest
from hpcrun.compile.source.problems import did_you_mean
from hpcrun.site.slurm_site import SlurmReservation, SlurmSite
from hpcrun.text import listed, plural, timestamp

_RESERVATION = "resources.reservation"


def array(request: JobRequest, site: SlurmSite) -> Iterator[Finding]:
    """Yield a finding for an array whose highest index Slurm refuses."""
    most, highest = site.number("MaxArraySize"), request.highest_index
    if most is not None and highest is not None and highest >= most:
        yield Finding(
            ERROR,
            "limits.max_array_size",
            f"an array with the index {highest}; this Slurm accepts up to {most - 1} "
            f"(MaxArraySize is {most})",
            f"set limits.max_array_size: {most} in the cluster profile, and hpcrun makes several "
            "arrays",
        )


def number_of_jobs(runs: int, site: SlurmSite) -> Iterator[Finding]:
    """Yield a finding where all runs together are more than slurmctld keeps."""
    most = site.number("MaxJobCount")
    if most is not None and runs >= most:
        yield Finding(
            WARNING,
            "sweep",
            f"{plural(runs, 'run', ',')}; this Slurm keeps {most:,} jobs of all users "
            "(MaxJobCount): submit sends the rest as jobs end, and stays until then",
            "sweep fewer values, or submit a part with --only",
        )


def reservation(request: JobRequest, site: SlurmSite) -> Iterator[Finding]:
    """Yield a finding for each reservation that does not exist, is closed, over, or too small."""
    for name in filter(None, request["reservation"].split(",")):
        one = site.reservations.get(name)
        if one is None:
            accepted = listed(sorted(site.reservations), 10) or "none"
            found = f"there is no reservation {name!r}; this cluster has {accepted}"
            yield Finding(ERROR, _RESERVATION, found, did_you_mean(name, site.reservations))
            continue
        yield from _closed(one, request, site)
        if one.end is not None and one.end <= time.time():
            found = f"the reservation {name} ended at {timestamp(one.end)}"
            yield Finding(ERROR, _RESERVATION, found, "leave it out, or name another")
        elif one.start is not None and one.start > time.time():
            found = f"the reservation {name} begins at {timestamp(one.start)}: the job waits for it"
            yield Finding(NOTE, _RESERVATION, found)
        if one.nodes and request.nodes > len(one.nodes) and "REPLACE" not in one.flags:
            found = f"found {plural(request.nodes, 'node')}; the reservation {name} has "
            found += str(len(one.nodes))
            yield Finding(ERROR, "resources.nodes", found, "ask for fewer, or leave it out")


def _closed(one: SlurmReservation, request: JobRequest, site: SlurmSite) -> Iterator[Finding]:
    account = request["account"] or site.default_account
    users = [name for name in one.users if not name.startswith("-")]
    accounts = [name for name in one.accounts if not name.startswith("-")]
    by_user = site.user in users or bool(site.groups & set(one.groups))
    closed = f"-{site.user}" in one.users or f"-{account}" in one.accounts
    if not closed and not (users or accounts or one.groups):
        return
    if closed or not (by_user or account in accounts):
        whose = listed([*users, *accounts, *one.groups], 6)
        found = f"the reservation {one.name} is for {whose}; you are {site.user}"
        found += f" with the account {account}" if account else ""
        yield Finding(ERROR, _RESERVATION, found, "leave it out, or ask its owner")


def licenses(request: JobRequest, site: SlurmSite) -> Iterator[Finding]:
    """Yield a finding for each licence that does not exist, or of which there are too few."""
    for name, wanted in request.licenses().items():
        there = site.licenses.get(name)
        key = request.key("licenses")
        if there is None:
            accepted = listed(sorted(site.licenses), 10) or "none"
            found = f"there is no licence {name!r}; this cluster has {accepted}"
            yield Finding(ERROR, key, found, did_you_mean(name, site.licenses))
        elif wanted > there:
            found = f"found {wanted} of the licence {name}; this cluster has {there}"
            yield Finding(ERROR, key, found, "ask for fewer")
