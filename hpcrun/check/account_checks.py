"""Whether the account and the QOS are this user's, and the job is within their limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcrun.check.finding import ERROR, NOTE, WARNING, Finding
from hpcrun.check.job_request import JobRequest
from hpcrun.compile.source.problems import did_you_mean
from hpcrun.site.slurm_site import SlurmLimits, SlurmPartition, SlurmSite
from hpcrun.text import duration, listed, plural

_KEYS = {"node": "resources.nodes", "cpu": "resources.cpus_per_task", "mem": "resources.mem"}
_NOT_ENFORCED = "this Slurm does not enforce it (AccountingStorageEnforce)"


def are_mine(request: JobRequest, site: SlurmSite) -> Iterator[Finding]:
    """Yield a finding for an account or QOS that does not exist or is not this user's."""
    if site.associations is None or site.qos is None:
        return
    account, qos = request["account"], request["qos"]
    mine = list(dict.fromkeys(one.account for one in site.associations))
    enforced = site.enforces("associations")
    if account and account not in mine:
        yield _wrong(
            "resources.account",
            f"{site.user} may not charge the account {account!r}; yours are {_some(mine)}",
            did_you_mean(account, mine),
            enforced,
        )
    elif not account and not mine and enforced:
        yield Finding(
            ERROR,
            "resources.account",
            f"{site.user} has no account on this cluster, and jobs need one",
            "ask the administrators for an account",
        )
    if not qos:
        return
    enforced = site.enforces("qos")
    if qos not in site.qos:
        found = f"there is no QOS {qos!r}; this cluster has {_some(sorted(site.qos))}"
        yield _wrong("resources.qos", found, did_you_mean(qos, site.qos), enforced)
        return
    charged = account or site.default_account
    allowed = [one for own in site.associations_of(charged) for one in own.qos]
    if charged in mine and qos not in allowed:
        found = f"the account {charged} may not use the QOS {qos!r}; it may use {_some(allowed)}"
        yield _wrong("resources.qos", found, did_you_mean(qos, allowed), enforced)


def within_limits(
    request: JobRequest, partition: SlurmPartition, site: SlurmSite
) -> Iterator[Finding]:
    """Yield a finding for each limit of the association, its QOS and the partition's QOS."""
    enforced = site.enforces("limits")
    account = request["account"] or site.default_account
    ours = site.associations_of(account, partition.name)
    known = site.qos or {}
    qos = request["qos"] or site.qos_without(account, partition.name)
    in_order = (partition.qos, qos)
    if qos in known and "OverPartQOS" in known[qos].flags:
        in_order = (qos, partition.qos)
    every = [(f"the QOS {name}", known[name]) for name in in_order if name in known]
    every += [(f"the account {one.account}", one.limits) for one in ours]
    told: set[str] = set()
    # Of several limits of a kind, Slurm takes the first that is set, in this order.
    for whose, limits in every:
        for what, key, found, hint in _exceeded(request, limits, whose):
            if what not in told:
                yield _wrong(key, found, hint, enforced)
        told |= {"wall"} if limits.max_wall is not None else set()
        told |= {*limits.most, *(f"least {name}" for name in limits.least)}
    submits = [(whose, one.max_submit) for whose, one in every if one.max_submit is not None]
    for whose, most in submits[:1]:
        if request.elements > most:
            yield Finding(
                WARNING if most else ERROR,
                request.key("array"),
                f"{plural(request.elements, 'run')}; {whose} accepts {most} that wait or run at "
                "once: submit sends the rest as jobs end, and stays until then",
                "sweep fewer values, or submit a part with --only",
            )
    running = [(whose, one.max_jobs) for whose, one in every if one.max_jobs is not None]
    for whose, most in running[:1]:
        if request.elements > most:
            found = f"{plural(request.elements, 'run')}; {whose} has at most {most} run at once"
            yield Finding(NOTE, request.key("array"), found)


def _exceeded(
    request: JobRequest, limits: SlurmLimits, whose: str
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the limit, the key, what was found and a hint."""
    wanted, most = request.seconds, limits.max_wall
    if wanted is not None and most is not None and wanted > most:
        found = f"found {request['time']} ({duration(wanted)}); {whose} accepts at most "
        hint = "ask for less: hpcrun requeues a run at its time limit, and it goes on"
        yield "wall", "resources.time", f"{found}{duration(most)}", hint
    for name, amount in request.amounts().items():
        key = _KEYS.get(name, "resources.gpus_per_node")
        unit = " MB" if name == "mem" else ""
        if name in limits.most and amount > limits.most[name]:
            accepted = f"{limits.most[name]:g}{unit}"
            found = f"the job takes {amount:g}{unit} of {name}; {whose} accepts at most {accepted}"
            yield name, key, found, "ask for fewer nodes, or for less of each"
        if name in limits.least and amount < limits.least[name]:
            found = f"the job takes {amount:g}{unit} of {name}; {whose} accepts at least "
            yield (
                f"least {name}",
                key,
                f"{found}{limits.least[name]:g}{unit}",
                "ask for more, or use another QOS",
            )


def _wrong(key: str, found: str, hint: str | None, enforced: bool) -> Finding:
    if enforced:
        return Finding(ERROR, key, found, hint)
    return Finding(WARNING, key, f"{found}; {_NOT_ENFORCED}", hint)


def _some(names: Sequence[str]) -> str:
    return listed(list(dict.fromkeys(names)), 15) or "none"
