"""Slurm's reasons in words; a limit's by the grammar of its name."""

from __future__ import annotations

import pytest

from hpcrun.slurm.pending_reason import NEVER, in_words, of_job


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "Priority: waits behind jobs of higher priority"),
        ("(Licenses)", "Licenses: waits for a licence"),
        ("Odd", "Odd"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved", "waits for nodes: those that"),
        ("ReqNodeNotAvail, Reserved for maintenance", "maintenance: its nodes are reserved for ma"),
        ("ReqNodeNotAvail, UnavailableNodes:n_[1,3]", "n_[1,3]: nodes that it needs are not avail"),
        ("ReqNodeNotAvail, Odd", "ReqNodeNotAvail, Odd: a node that it needs is not available"),
        ("QOSMaxCpuPerUserLimit", "your jobs have the CPUs that its QOS allows: it waits"),
        ("QOSMaxJobsPerUserLimit", "as many of your jobs run as its QOS allows"),
        ("AssocMaxJobsLimit", "as many of your jobs run as its account allows"),
        ("QOSGrpCpuLimit", "all jobs of its QOS have the CPUs that its QOS allows"),
        ("AssocGrpCpuLimit", "all jobs of its account have the CPUs that its account allows"),
        ("AssocGrpCPURunMinutesLimit", "all jobs of its account have the CPUs x minutes that"),
        ("QOSMaxGRESPerUser", "your jobs have the GRES (GPUs) that its QOS allows"),
        ("MaxGRESPerAccount", "all jobs of its account have the GRES (GPUs) that its QOS allows"),
        ("AssocGrpBillingMinutes", "the budget of billing x minutes of its account is too"),
        ("AssocGrpCPUMinutesLimit", "another resources.account"),
        ("QOSGrpWallLimit", "the budget of time of its QOS is too little"),
    ],
)
def test_what_waits(reason: str, words: str) -> None:
    assert words in in_words(reason)
    assert NEVER not in in_words(reason)


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("DependencyNeverSatisfied", "`hpcrun cancel` it, and submit both again"),
        ("PartitionTimeLimit", "`hpcrun update` gives it less time"),
        ("JobHeldUser", "`scontrol release JOB` lets it go on"),
        ("job requeued in held state", "`scontrol release JOB` lets it go on"),
        ("BadConstraints", "`hpcrun check` tells which"),
        ("InvalidAccount", "another resources.account"),
        ("InvalidQOS", "another qos"),
        ("QOSMaxWallDurationPerJobLimit", "its QOS allows a job less time; "),
        ("AssocMaxWallDurationPerJobLimit", "its account allows a job less time; "),
        ("QOSMaxCpuPerJobLimit", "less resources.cpus_per_task"),
        ("QOSMaxGRESPerNode", "its QOS allows a node less GRES (GPUs)"),
        ("QOSMaxCpuMinutesPerJobLimit", "less CPUs x minutes"),
        ("QOSMinCpuNotSatisfied", "more resources.cpus_per_task"),
        ("QOSMinGRES", "more resources.gpus_per_node"),
    ],
)
def test_what_never_starts_is_told_apart(reason: str, what: str) -> None:
    assert in_words(reason).startswith(f"{reason}: {NEVER}")
    assert what in in_words(reason)


def test_what_is_to_be_typed_has_the_number_of_the_job() -> None:
    words = in_words("JobHeldUser")
    assert "`scontrol release 7_1` lets" in of_job(words, "7_1")
    assert of_job(words, None) == words


def test_every_limit_has_words() -> None:
    """As Slurm 25.05 composes their names (src/common/job_state_reason.c)."""
    counted = ("Billing", "BB", "CPU", "Cpu", "Energy", "GRES", "License", "Mem", "Memory", "Node")
    names = [f"{of}Grp{what}{over}" for what in counted for of in ("QOS", "Assoc")
             for over in ("", "Limit", "Minutes", "RunMinutes")]  # fmt: skip
    names += [f"QOSMax{what}{each}" for what in counted
              for each in ("PerUser", "PerJob", "PerNode", "MinutesPerJob")]  # fmt: skip
    names += [f"Max{what}{each}" for what in counted
              for each in ("PerAccount", "RunMinsPerAccount", "RunMinsPerUser")]  # fmt: skip
    names += [f"QOSMin{what}" for what in counted]
    assert [name for name in names if in_words(name) == name] == []
