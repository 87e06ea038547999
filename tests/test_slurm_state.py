"""Slurm's words for the state of a job: no word is of two kinds."""

from __future__ import annotations

from hpcrun import slurm_state


def test_a_job_is_over_waits_or_holds_nodes() -> None:
    kinds = (slurm_state.TERMINAL, slurm_state.WAITING, slurm_state.HOLDS_NODES)
    assert sum(map(len, kinds)) == len(frozenset().union(*kinds))


def test_every_name_is_the_word_itself() -> None:
    words = {name: value for name, value in vars(slurm_state).items() if isinstance(value, str)}
    assert [name for name, value in words.items() if name[0] != "_" and name != value] == []
