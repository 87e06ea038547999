"""The executors that a profile may name."""

from __future__ import annotations

from typing import get_args, get_type_hints

from hpcrun.state.spec.cluster_profile import Profile
from hpcrun.state.spec.executors import LOCAL, SLURM, Executor


def test_every_executor_of_a_profile_is_known() -> None:
    accepted = get_args(get_type_hints(Profile)["executor"])
    assert {name: Executor.of({"executor": name}) for name in accepted} == {
        "slurm": SLURM,
        "local": LOCAL,
    }


def test_runs_wait_in_a_queue_or_are_here() -> None:
    assert (SLURM.queues, SLURM.is_here) == (True, False)
    assert (LOCAL.queues, LOCAL.is_here) == (False, True)
