"""Some of the cases of the covering array; `python -m bench.faults` does all of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import pytest

from tests.cluster.faults import FAULTS, PHASES, PLACES, Case, cases
from tests.cluster.trial import Trial, reference
from tests.cluster.ward import ARRAY, SINGLE, STAGES, Reference
from tests.testbed import VERSIONS, Cluster

# What no other test of this directory does.
CHOSEN = {
    ("os._exit(0)", "optimizer"),
    ("ib0", "forward"),
    ("disk read-only", "save"),
}


def _chosen() -> Iterator[tuple[int, Case]]:
    for number, case in enumerate(cases(), 1):
        if (case.fault, case.phase) in CHOSEN:
            yield number, case


@pytest.fixture(scope="session")
def three_ranks(slurm: Cluster) -> Reference:
    """What runs of three ranks end with."""
    return reference(slurm, {case.stage for _, case in _chosen() if case.slurm == slurm.version})


def test_all_pairs_of_values_are_there() -> None:
    factors = ("fault", "phase", "place", "stage", "form", "slurm")
    values = (FAULTS, PHASES, PLACES, STAGES, (SINGLE, ARRAY), VERSIONS)
    every = cases()
    assert len(every) <= 120
    for (one, ones), (other, others) in combinations(zip(factors, values, strict=True), 2):
        found = {(getattr(case, one), getattr(case, other)) for case in every}
        assert found == set(product(ones, others))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("slurm", "number", "case"),
    [pytest.param(case.slurm, number, case, id=case.name) for number, case in _chosen()],
    indirect=["slurm"],
)
def test_a_fault(three_ranks: Reference, number: int, case: Case) -> None:
    Trial(three_ranks, case, f"fault-{number}").run()
