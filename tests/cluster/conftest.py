"""Real Slurm clusters as fixtures. See tests/testbed for what they can do.

`slurm22` and `slurm24` are one cluster each per session; `slurm` runs a test on both;
`make_cluster(version, **options)` gives a test one of its own, with other settings.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.ward import STAGES, Reference, Ward
from tests.cluster.workbench import give_operators
from tests.support import operators, slurm_version
from tests.testbed import VERSIONS, Cluster, missing
from tests.testbed.layout import existing

_HERE = Path(__file__).parent

# A site that requeues jobs by their exit code; preemption that warns.
_EXTRA = {
    VERSIONS[0]: {"RequeueExit": "3"},
    VERSIONS[1]: {"PreemptParameters": "send_user_signal"},
}

# ZeRO stages that CI's tests on the newer Slurm compare.
_STAGES_OF_CI = [1, 3]

Clusters = dict[str, Cluster]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark all that needs a cluster, so that `-m "not cluster"` leaves it out."""
    if _HERE in item.path.parents:
        item.add_marker(pytest.mark.cluster)


def _require(version: str) -> None:
    reason = missing(version)
    if reason is None:
        return
    reason = f"no Slurm {version}: {reason}"
    if os.environ.get("HPCRUN_REQUIRE_CLUSTER") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """The clusters that are up, by version; they go down with the session."""
    up: Clusters = {}
    yield up
    for version, cluster in up.items():
        if _standing(version) is None:
            cluster.down()


def _standing(version: str) -> Cluster | None:
    """Return the bed of ``make cluster`` that $HPCRUN_BED names: it stays up between runs."""
    name = os.environ.get("HPCRUN_BED")
    for layout in existing() if name else ():
        state = json.loads(layout.state.read_text()) if layout.alive() else {}
        if state.get("by_hand") == name and state["settings"]["version"] == version:
            return Cluster.attach(layout)
    return None


def _cluster(version: str, clusters: Clusters) -> Cluster:
    _require(version)
    if version not in clusters and (standing := _standing(version)) is not None:
        clusters[version] = standing
    if version not in clusters:
        is_apart = version == VERSIONS[1] or os.environ.get("HPCRUN_THOROUGH") == "1"
        ahead = {"n1": 30} if is_apart else {}
        cluster = Cluster(version, extra=_EXTRA[version], light=True, ahead=ahead)
        cluster.up()
        clusters[version] = cluster
        if version == VERSIONS[0] and find_spec("deepspeed"):
            give_operators(cluster, operators.build())
    return clusters[version]


@pytest.fixture(scope="session")
def slurm22(clusters: Clusters) -> Cluster:
    """Slurm 22.05 with four nodes."""
    return _cluster(VERSIONS[0], clusters)


@pytest.fixture(scope="session")
def slurm24(clusters: Clusters) -> Cluster:
    """Slurm 24.11 with four nodes, of which the first has a clock that is 30 s ahead."""
    return _cluster(VERSIONS[1], clusters)


@pytest.fixture(scope="session", params=VERSIONS)
def slurm(request: pytest.FixtureRequest, clusters: Clusters) -> Cluster:
    """Each version in turn."""
    return _cluster(request.param, clusters)


@pytest.fixture(scope="session")
def reference(slurm: Cluster) -> Reference:
    """What runs end with that nothing happens to."""
    is_whole = slurm.version == VERSIONS[0] or os.environ.get("HPCRUN_THOROUGH") == "1"
    return Reference.make(Ward(slurm, "ward"), stages=STAGES if is_whole else _STAGES_OF_CI)


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Bring up clusters with settings of the test's own, for the time of the test."""
    made: list[Cluster] = []

    def make(version: str = VERSIONS[0], nodes: int = 4, **options: object) -> Cluster:
        _require(version)
        cluster = Cluster(version, nodes, light=True, **options)
        cluster.up()
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.down()


@pytest.fixture(autouse=True)
def _leave_clusters_as_they_were(
    request: pytest.FixtureRequest, clusters: Clusters
) -> Iterator[None]:
    yield
    names = request.fixturenames
    used = {version for fixture, version in slurm_version.FIXTURES.items() if fixture in names}
    if "slurm" in names:
        used.add(slurm_version.of(request.node))
    for version in used & set(clusters):
        cluster = clusters[version]
        try:
            cluster.reset()
        except Exception as error:
            warnings.warn(f"Slurm {version} begins anew after {error!r}", stacklevel=1)
            cluster.down()
            cluster.up()
