"""Partition, account, QOS and size of a first job, on clusters that are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcrun.site.slurm_site import SlurmSite
from hpcrun.tools.init.starter import job_choice
from hpcrun.tools.init.starter.job_choice import JobChoice
from tests.support import made_site
from tests.support.made_site import nodes, partition

CPU_NODES = nodes(["c1", "c2", "c3"])
GPU_NODES = nodes(["g1", "g2"], Gres="gpu:a100:4(S:0-1)", CPUTot="128", RealMemory="1000000")


def _choose(
    site: SlurmSite, given: Mapping[str, Any] | None = None, *, on_gpus: bool = True
) -> JobChoice:
    found = _maybe(site, given, on_gpus=on_gpus)
    assert found is not None
    return found


def _maybe(
    site: SlurmSite, given: Mapping[str, Any] | None = None, *, on_gpus: bool = True
) -> JobChoice | None:
    uses = job_choice.uses(site, given or {})
    return job_choice.choose(site, uses, given or {}, on_gpus=on_gpus)


def _problems(site: SlurmSite) -> dict[str, str]:
    return {one.name: one.problem for one in job_choice.uses(site, {}) if one.problem}


def _cluster(partitions: Sequence[str], **options: Any) -> SlurmSite:
    return made_site.site(partitions, [*CPU_NODES, *GPU_NODES], **options)


CPU = partition("cpu", "c[1-3]", Default="YES")
GPU = partition("gpu", "g[1-2]")


def test_the_default_partition_on_cpus() -> None:
    found = _choose(_cluster([GPU, CPU]), on_gpus=False)
    assert (found.use.name, found.why) == ("cpu", "the default partition")
    assert (found.nodes, found.gpus_per_node, found.cpus_per_task) == (2, 0, 1)
    assert (found.mem, found.minutes, found.doubts) == ("4000M", 15, ())


def test_a_partition_with_gpus_where_the_default_has_none() -> None:
    found = _choose(_cluster([CPU, GPU]))
    assert found.use.name == "gpu"
    assert found.why == "the default partition, cpu, has no GPUs"
    assert (found.nodes, found.gpus_per_node, found.cpus_per_task) == (2, 1, 8)
    assert found.mem == "16000M"


def test_no_default_partition() -> None:
    found = _choose(_cluster([partition("cpu", "c[1-3]"), GPU]), on_gpus=False)
    assert found.use.name == "cpu"  # it has more nodes
    assert "no default partition" in found.why


def test_a_cluster_without_gpus_trains_on_cpus() -> None:
    found = _choose(made_site.site([CPU], CPU_NODES))
    assert (found.use.name, found.gpus_per_node) == ("cpu", 0)


def test_one_node_where_two_cannot_be_had() -> None:
    found = _choose(_cluster([partition("cpu", "c1", Default="YES")]), on_gpus=False)
    assert found.nodes == 1
    found = _choose(_cluster([partition("cpu", "c[1-3]", MaxNodes="1")]), on_gpus=False)
    assert found.nodes == 1


def test_two_nodes_elsewhere_come_before_one_of_the_default() -> None:
    small = partition("cpu", "c1", Default="YES")
    found = _choose(_cluster([small, partition("more", "c[1-3]")]), on_gpus=False)
    assert (found.use.name, found.nodes) == ("more", 2)
    assert found.why == "the default partition, cpu, does not take a first job of yours"


def test_a_partition_that_wants_more_nodes() -> None:
    found = _choose(_cluster([partition("wide", "c[1-3]", MinNodes="3")]), on_gpus=False)
    assert found.nodes == 3


def test_sizes_are_within_those_of_nodes_and_partitions() -> None:
    small = nodes(["c1", "c2"], CPUTot="1", RealMemory="2000")
    site = made_site.site([partition("cpu", "c[1-2]", MaxTime="00:05:00")], small)
    found = _choose(site)
    assert (found.cpus_per_task, found.mem, found.minutes) == (1, "2000M", 5)
    limited = partition("cpu", "c[1-3]", MaxMemPerNode="3000", MaxCPUsPerNode="1")
    found = _choose(_cluster([limited]), on_gpus=False)
    assert (found.cpus_per_task, found.mem) == (1, "3000M")


def test_memory_that_slurm_limits_by_cpu_takes_more_cpus() -> None:
    found = _choose(_cluster([CPU], MaxMemPerCPU="1500"), on_gpus=False)
    assert (found.cpus_per_task, found.mem) == (3, "4000M")
    small = made_site.site([CPU], nodes(["c1", "c2", "c3"], CPUTot="2"), MaxMemPerCPU="1500")
    found = _choose(small)
    assert (found.cpus_per_task, found.mem) == (2, "3000M")


def test_memory_is_left_out_where_slurm_does_not_divide_it() -> None:
    """RealMemory is often 1 MB there, and a job that asks for more is refused."""
    site = made_site.site(
        [CPU], nodes(["c1", "c2", "c3"], RealMemory="1"), SelectTypeParameters="CR_CORE"
    )
    assert _choose(site).mem is None


def test_what_is_not_open_to_me_is_not_chosen_and_says_why() -> None:
    site = _cluster(
        [
            partition("ops", "c[1-3]", Default="YES", AllowGroups="root"),
            partition("drained", "c[1-3]", State="DRAIN"),
            partition("rich", "c[1-3]", AllowAccounts="rich"),
            partition("reserved", "c[1-3]", ReqResv="YES"),
            partition("odd|name", "c[1-3]"),
            partition("empty", "(null)"),
            partition("open", "c[1-2]"),
        ],
        accounts={"lab": "normal"},
        default_account="lab",
    )
    problems = _problems(site)
    assert problems.keys() == {"ops", "drained", "rich", "reserved", "odd|name", "empty"}
    assert "is for the groups root" in problems["ops"]
    assert "takes no jobs" in problems["drained"]
    assert "is for the accounts rich" in problems["rich"]
    assert "characters that no spec may have" in problems["odd|name"]
    assert _choose(site).use.name == "open"


def test_a_hidden_partition_comes_last() -> None:
    hidden = partition("hidden", "c[1-3]", Hidden="YES")
    site = _cluster([hidden, partition("open", "c[1-2]")])
    assert _choose(site, on_gpus=False).use.name == "open"
    assert _choose(_cluster([hidden]), on_gpus=False).use.partition.is_hidden


def test_the_account_that_a_partition_is_for() -> None:
    site = _cluster(
        [partition("rich", "c[1-3]", Default="YES", AllowAccounts="rich")],
        accounts={"lab": "normal", "rich": "normal"},
        default_account="lab",
    )
    found = _choose(site, on_gpus=False)
    assert (found.use.account, found.use.qos) == ("rich", "normal")


def test_an_account_without_doubts_comes_first() -> None:
    """Accounts above mine may be let in, and nobody tells which these are."""
    site = _cluster(
        [partition("rich", "c[1-3]", Default="YES", AllowAccounts="rich")],
        accounts={"lab": "normal", "rich": "normal"},
        default_account="lab",
        is_clear=False,
    )
    assert _choose(site, on_gpus=False).use.account == "rich"
    site = _cluster(
        [partition("rich", "c[1-3]", Default="YES", AllowAccounts="rich")],
        accounts={"lab": "normal"},
        default_account="lab",
        is_clear=False,
    )
    found = _choose(site, on_gpus=False)
    assert found.use.account == "lab"
    assert "is for the accounts rich" in found.doubts[0]


def test_the_qos_that_a_partition_is_for() -> None:
    site = _cluster(
        [partition("cpu", "c[1-3]", Default="YES", AllowQos="long")],
        accounts={"lab": "normal,long"},
        default_account="lab",
        default_qos="normal",
        qos={"normal": {}, "long": {}},
    )
    assert _choose(site, on_gpus=False).use.qos == "long"


def test_a_limit_of_the_qos_makes_the_job_smaller() -> None:
    site = _cluster(
        [CPU],
        accounts={"lab": "normal"},
        default_account="lab",
        qos={"normal": {"MaxTRES": "node=1"}},
        AccountingStorageEnforce="associations,limits,qos",
    )
    assert _choose(site, on_gpus=False).nodes == 1


def test_no_association_where_slurm_wants_one() -> None:
    site = _cluster([CPU], AccountingStorageEnforce="associations")
    assert _maybe(site) is None
    assert "has no account on this cluster" in _problems(site)["cpu"]
    found = _choose(_cluster([CPU]), on_gpus=False)
    assert (found.use.account, found.use.qos) == ("", "")


def test_without_slurmdbd_slurms_own_defaults_are_left() -> None:
    found = _choose(_cluster([CPU], without_accounting="no answer"), on_gpus=False)
    assert (found.use.name, found.use.account, found.use.qos) == ("cpu", "", "")


def test_nodes_that_are_out_are_a_doubt_and_those_up_are_preferred() -> None:
    down = nodes(["d1", "d2"], State="DOWN")
    site = made_site.site(
        [partition("sick", "d[1-2]", Default="YES"), partition("well", "c[1-3]")],
        [*CPU_NODES, *down],
    )
    assert _choose(site).use.name == "well"
    alone = made_site.site([partition("sick", "d[1-2]", Default="YES")], down)
    found = _choose(alone)
    assert found.use.name == "sick"
    assert found.doubts


def test_what_a_profile_says_is_kept() -> None:
    site = _cluster([CPU, GPU], accounts={"lab": "normal", "b": "normal"}, default_account="lab")
    found = _choose(site, {"partition": "gpu", "account": "b", "qos": None})
    assert (found.use.name, found.use.account, found.why) == ("gpu", "b", "as the profile says")
    assert _maybe(site, {"partition": "none"}) is None


def test_no_partition_and_no_nodes() -> None:
    assert _maybe(made_site.site([], [])) is None
    assert _maybe(made_site.site([partition("cpu", "x[1-2]")], [])) is None


def test_nodes_in_words() -> None:
    site = _cluster([CPU, GPU])
    told = job_choice.nodes_in_words(site, site.partitions["gpu"])
    assert told == "2 nodes of 128 CPUs + 977 GiB + 4 GPUs a100"
    mixed = partition("all", "c1,g1")
    told = job_choice.nodes_in_words(site, _cluster([mixed]).partitions["all"])
    assert told == "2 nodes of 64 CPUs + 500 GiB or of 128 CPUs + 977 GiB + 4 GPUs a100"
