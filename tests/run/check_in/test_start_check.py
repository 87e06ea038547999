"""The check of an attempt's nodes: made trees of ``/sys``, agents by a stand-in, and the policies.

No machine here has an adapter: real links are shown in tests/cluster, adapters on trees alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.policy import node_health
from hpcrun.run.check_in import pairing, start_check
from hpcrun.run.check_in.node_links import NodeLinks
from hpcrun.run.check_in.start_check import StartCheck, StartRates
from hpcrun.run.fabric import adapters, link_check
from hpcrun.run.job.rank_places import NodesUnhealthy
from hpcrun.run.protocol.launch import LaunchNode
from hpcrun.slurm import requeue_nodes
from hpcrun.state import ledger
from hpcrun.state.layout import RunPaths
from hpcrun.state.spec.experiment import Resources
from tests.support import sysfs_tree
from tests.support.sysfs_tree import SysfsTree, rails

NODES = ("n1", "n2", "n3")
GOOD = 1e9


@pytest.fixture(autouse=True)
def _no_choice_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)


class Site:
    """A job on `NODES` and spares, as its supervisor sees it; ``slow`` are directions' rates."""

    def __init__(self, place: Path, *, spares: int = 0, **health: Any) -> None:
        self.spares = [f"s{number + 1}" for number in range(spares)]
        self.names = (*NODES, *self.spares)
        self.place, self.health = place, health
        self.trees: dict[str, Path] = {}
        self.interfaces = [("ib0", "name"), ("eth0", "")]
        self.fabric: dict[str, Any] = {}
        self.recovery = {"requeue": True, "in_place": 2}
        self.down: dict[str, list[str]] = {}
        self.silent: list[str] = []
        self.deaf: dict[str, str] = {}
        self.reports: dict[str, dict[str, Any]] = {}
        self.slow: dict[tuple[str, str], float | str] = {}
        self.measured: list[tuple[str, str]] = []
        self.given_up: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.paths = RunPaths(place / "run").attempt(1)
        self.paths.run.directory.mkdir()
        ledger.write(self.paths.run, ledger.STARTED, 1, submission=1, nodes=list(NODES))

    @property
    def links(self) -> Any:
        links = NodeLinks()
        for node in self.names:
            if node not in self.silent:
                own = [[name, "10.0.0.1", sign] for name, sign in self.interfaces]
                links.greet(node, {"interfaces": own, "down": self.down.get(node, [])})
        return links

    @property
    def usable(self) -> list[str]:
        return [node for node in self.names if node not in self.given_up]

    def give_up(self, nodes: Sequence[str]) -> None:
        self.given_up += nodes

    def send(self, node: str, message: dict[str, Any]) -> None:
        assert message == {"type": "listened"}

    def ask_each(
        self, questions: Mapping[str, dict[str, Any]], kind: str, limit: float
    ) -> dict[str, Any]:
        if kind == "listening":
            return {node: self.deaf.get(node, (node, 1)) for node in questions}
        answers: dict[str, Any] = {}
        for node, question in questions.items():
            peer = question["address"]
            self.measured.append((node, peer))
            rates = [self.slow.get(way, GOOD) for way in ((node, peer), (peer, node))]
            words = [one for one in rates if isinstance(one, str)]
            answers[node] = words[0] if words else (*rates, 1e-5)
        return answers

    def check(self, health: dict[str, Any] | None = None) -> NodesUnhealthy | None:
        run: Any = SimpleNamespace(
            resources=Resources(nodes=3),
            shared_nodes=len(self.names),
            recovery=SimpleNamespace(**self.recovery),
        )
        plan: Any = SimpleNamespace(cluster={"health": self.health if health is None else health})
        launcher: Any = SimpleNamespace(
            **{"is_one_machine": False, "is_slurm": True, "requeues": True, "job_id": "7"},
            **{"nodes": self.names, "fabric": self.fabric},
        )
        agents: Any = self
        check = StartCheck(plan, run, self.paths, launcher, agents)
        nodes = [self._node(name) for name in NODES]

        def record(event: str, **details: Any) -> None:
            assert event == ledger.HEALTH
            ledger.write(self.paths.run, event, 1, **details)
            self.records.append(details)

        try:
            check.greeted(NODES, record)
            check.prepared(nodes, record, time.time())
        except NodesUnhealthy as error:
            return error
        return None

    def _node(self, name: str) -> LaunchNode:
        tree = self.trees.get(name)
        report = tree and link_check.report({}, adapters.read(tree, patience=60))
        return LaunchNode(name, "", "", "ib0", "10.0.0.1", adapters=report)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Site]:
    def without(job: str, nodes: Sequence[str], needed: int, **_: Any) -> tuple[str, ...]:
        assert (job, needed) == ("7", 3)
        return tuple(nodes)

    monkeypatch.setattr(requeue_nodes, "without", without)
    return lambda **options: Site(tmp_path, **options)


def _down(tree: SysfsTree) -> None:
    tree.port("mlx5_3", state=sysfs_tree.DOWN)


def _init(tree: SysfsTree) -> None:
    tree.port("mlx5_3", state=sysfs_tree.INIT)


def _armed(tree: SysfsTree) -> None:
    tree.port("mlx5_3", state=sysfs_tree.ARMED)


def _half(tree: SysfsTree) -> None:
    tree.port("mlx5_3", rate=sysfs_tree.NDR_2X)


def _other_rate(tree: SysfsTree) -> None:
    for rail in range(4):
        tree.port(f"mlx5_{rail}", rate=sysfs_tree.HDR)


def _no_state(tree: SysfsTree) -> None:
    (tree.root / "class/infiniband/mlx5_3/ports/1/state").unlink()


# What is wrong with n2's tree of four rails; the kind of finding; whether it is a fault.
TREES: dict[str, tuple[Callable[[SysfsTree], None], str, bool]] = {
    "a port is down": (_down, "down", True),
    "a port is in INIT": (_init, "no_subnet_manager", True),
    "a port is ARMED": (_armed, "no_subnet_manager", True),
    "a port at half its width": (_half, "slow", False),
    "a node of another rate": (_other_rate, "differs", False),
    "a port that cannot be read": (_no_state, "unreadable", False),
}
# The policy, spares of the job, and what is done about a fault, or about a doubt.
POLICIES = {
    "replace, a spare": ("replace", 1, "replace"),
    "replace, no spare": ("replace", 0, "exclude"),
    "exclude, a spare": ("exclude", 1, "exclude"),
    "exclude, no spare": ("exclude", 0, "exclude"),
    "refuse": ("refuse", 1, "refuse"),
    "warn": ("warn", 1, None),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", TREES)
def test_fabric_policies(
    case: str, policy: str, site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it, kind, is_fault = TREES[case]
    value, spares, expected = POLICIES[policy]
    made = site(spares=spares)
    monkeypatch.setattr(requeue_nodes, "without", lambda job, nodes, needed, **_: tuple(nodes))
    for node in NODES:
        tree = rails(made.place / node, 4)
        made.trees[node] = made.place / node
        if node == "n2":
            break_it(tree)
    key = "on_fault" if is_fault else "on_doubt"
    other = "on_doubt" if is_fault else "on_fault"
    found = made.check({key: value, other: "warn"})
    assert (found and found.response) == expected
    (record,) = made.records
    assert record["action"] == (expected or node_health.GO_ON)
    assert {one["node"] for one in record["findings"]} == {"n2"}
    assert kind in [one["kind"] for one in record["findings"]]
    if found is not None:
        assert found.nodes == ("n2",)
        assert found.message.startswith("node n2: ")
        assert made.given_up == ["n2"]
    # As `why` reads it.
    assert ledger.read(made.paths.run)[0].health == {
        **{"event": "health", "attempt": 1, **record},
        "time": (ledger.read(made.paths.run)[0].health or {})["time"],
    }


def test_healthy_nodes_leave_no_record(site: Callable[..., Site]) -> None:
    made = site()
    for node in NODES:
        rails(made.place / node, 4)
        made.trees[node] = made.place / node
    assert made.check() is None
    assert made.records == []


def test_a_site_where_every_node_has_a_port_down(site: Callable[..., Site]) -> None:
    made = site()
    for node in NODES:
        _down(rails(made.place / node, 4))
        made.trees[node] = made.place / node
    assert made.check() is None
    assert made.records[0]["reason"] == "most nodes have it alike, so it is no node's fault"


def test_an_interface_that_is_down_is_seen_before_the_nodes_are_prepared(
    site: Callable[..., Site],
) -> None:
    made = site(spares=1)
    made.down = {"n3": ["ib0"], "n1": ["ib7"]}
    found = made.check()
    assert found is not None
    assert (found.nodes, found.response) == (("n3",), "replace")
    assert found.message == "node n3: its ib0 is down, and that of n1 is up"
    assert made.measured == []


@pytest.mark.parametrize("spares", [0, 1])
def test_a_node_that_sends_slowly(site: Callable[..., Site], spares: int) -> None:
    made = site(spares=spares)
    made.slow = {("n2", other): 6e6 for other in made.names}
    if spares == 0:
        found = made.check()
        assert found is not None
        assert found.message == "node n2: it sends 6.0 MB/s over ib0, its peers 1.0 GB/s"
        # Once in the ring, and each slow pair again.
        assert made.measured.count(("n1", "n2")) == 1 + start_check.AGAIN
    else:
        found = made.check()
        assert found is not None
        assert (found.nodes, found.response) == (("n2",), "replace")


def test_a_node_that_nobody_reaches(site: Callable[..., Site]) -> None:
    made = site()
    made.slow = {("n2", other): "No route to host" for other in made.names}
    made.slow |= {(other, "n2"): "No route to host" for other in made.names}
    found = made.check()
    assert found is not None
    assert found.message == "node n2: no other node reaches it over ib0: No route to host"


def test_links_of_which_none_works_are_no_nodes_fault(site: Callable[..., Site]) -> None:
    """A firewall, or a network without routes: the site is so."""
    made = site()
    ways = [(one, other) for one in NODES for other in NODES]
    made.slow = dict.fromkeys(ways, "Connection refused")
    assert made.check() is None
    (record,) = made.records
    assert record["reason"] == "most nodes have it alike, so it is no node's fault"
    assert "ib0 carries nothing: Connection refused" in record["findings"][0]["message"]


def test_a_node_that_cannot_listen_is_not_measured(site: Callable[..., Site]) -> None:
    made = site(spares=1)
    made.deaf = {"n2": "ib0 has no address", "s1": "ib0 has no address"}
    assert made.check() is None
    assert {*made.measured} == {("n1", "n3")}
    (record,) = made.records
    words = "its link cannot be measured: ib0 has no address"
    assert record["findings"] == [{"node": "n2", "kind": "slower_link", "message": words}]


def test_an_interface_that_the_job_does_not_use(site: Callable[..., Site]) -> None:
    made = site()
    made.interfaces = [("ib0", "name"), ("ib1", "name")]
    made.down = {"n2": ["ib1"]}
    assert made.check() is None
    made.interfaces, made.fabric = [("ib1", "name"), ("eth0", "")], {"fast_interface": "eth0"}
    assert made.check() is None
    made.fabric = {"fast_interface": "ib1"}
    assert made.check() is not None


SPARES: dict[str, tuple[Callable[[Site], Any], str | None]] = {
    "a good one": (lambda site: None, "replace"),
    "its interface is down": (lambda site: site.down.update(s1=["ib0"]), "exclude"),
    "it has not said hello yet": (lambda site: site.silent.append("s1"), "replace"),
    "its link cannot be measured": (lambda site: site.deaf.update(s1="no address"), "exclude"),
    "no restart in place": (lambda site: site.recovery.update(in_place=0), "exclude"),
    "no other start at all": (lambda site: site.recovery.update(requeue=False), None),
}


@pytest.mark.parametrize("case", SPARES)
def test_spares_that_can_take_a_place(
    case: str, site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requeue_nodes, "without", lambda job, nodes, needed, **_: tuple(nodes))
    made = site(spares=1)
    made.reports = {"n2": _report(0.0, None, ["not_writable", "its storage is gone"])}
    spoil, expected = SPARES[case]
    spoil(made)
    found = made.check()
    assert (found and found.response) == expected


@pytest.mark.parametrize("rate", [60e6, 150e6, 3e8])
def test_what_is_only_slower_requeues_nothing(site: Callable[..., Site], rate: float) -> None:
    made = site()
    made.slow = {("n2", other): rate for other in made.names}
    assert made.check() is None
    assert [one["kind"] for record in made.records for one in record["findings"]] == (
        ["slower_link"] if rate < 2e8 else []
    )


def test_noise_is_measured_away(site: Callable[..., Site], monkeypatch: Any) -> None:
    """A direction that was slow once, for what else its node had to do."""
    made = site()
    made.slow = {("n2", "n1"): 1e6, ("n2", "n3"): 1e6, ("n3", "n1"): 1e6}
    ask = made.ask_each

    def once(questions: Any, kind: str, limit: float) -> Any:
        answers = ask(questions, kind, limit)
        if kind == "measured" and len(made.measured) >= 3:
            made.slow = {}
        return answers

    monkeypatch.setattr(made, "ask_each", once)
    assert made.check() is None
    assert made.records == []


def test_nodes_without_an_answer_are_no_fault(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = site()
    monkeypatch.setattr(made, "ask_each", lambda questions, kind, limit: {})
    assert made.check() is None
    assert made.records == []


def _report(clock: float = 0.0, gpus: int | None = None, *findings: Any) -> dict[str, Any]:
    return {"findings": list(findings), "gpus": gpus, "clock": time.time() + clock}


@pytest.mark.parametrize(
    ("reports", "told"),
    [
        (
            {
                "n2": (
                    0.0,
                    None,
                    ["not_writable", "its shared storage cannot be written: Input/output error"],
                )
            },
            "its shared storage cannot",
        ),
        (
            {"n1": (0.0, 4), "n2": (0.0, 0), "n3": (0.0, 4)},
            "no GPU can be seen on it, and 4 on others",
        ),
        ({"n1": (0.0, 0), "n2": (0.0, 0), "n3": (0.0, 0)}, ""),
        ({"n1": (0.0, 4), "n2": (0.0, None), "n3": (0.0, 4)}, ""),
    ],
)
def test_what_nodes_report(site: Callable[..., Site], reports: dict[str, Any], told: str) -> None:
    made = site()
    made.reports = {node: _report(*parts) for node, parts in reports.items()}
    found = made.check()
    assert told in (found.message if found else "")
    assert bool(found) == bool(told)


@pytest.mark.parametrize(("ahead", "words"), [(60, "60 s ahead of"), (-90, "90 s behind")])
def test_a_clock_that_is_apart(site: Callable[..., Site], ahead: float, words: str) -> None:
    made = site()
    made.reports = {"n1": _report(), "n2": _report(ahead), "n3": _report(1.5)}
    assert made.check() is None
    ((finding,),) = [record["findings"] for record in made.records]
    assert (finding["node"], finding["kind"]) == ("n2", "clock")
    assert f"its clock is {words} that of n1" == finding["message"]


def test_the_budget_of_a_submission(site: Callable[..., Site]) -> None:
    """Counted from the ledger, so over all starts of the job."""
    made = site()
    made.down = {"n3": ["ib0"]}
    assert made.check() is not None
    cause = {"kind": "bad_node", "message": "x", "nodes": ["n9"]}
    for number in (2, 3, 4):
        ledger.write(made.paths.run, ledger.STARTED, number, submission=1)
        ledger.write(made.paths.run, ledger.ENDED, number, outcome="stopped", cause=cause)
    assert made.check() is None
    assert "health.budget is 3" in made.records[-1]["reason"]
    assert made.check({"budget": 9}) is not None


def test_it_can_be_turned_off(site: Callable[..., Site]) -> None:
    made = site()
    made.down = {"n3": ["ib0"]}
    assert made.check({"check": False}) is None
    assert made.records == []
    assert made.measured == []


def test_many_doubtful_links_are_no_single_nodes_fault() -> None:
    """A twentieth of the usual still is one: what is measured again are such pairs alone."""
    nodes = [f"n{number}" for number in range(64)]
    rates = StartRates(nodes)
    for number, pair in enumerate(pair for pairs in pairing.ring(nodes) for pair in pairs):
        rate = 150e6 if number % 2 else 1e9
        rates.add(pair, 5e6 if "n9" in pair else rate, 5e6 if "n9" in pair else rate, 1e-5)
    assert len(rates.doubtful_pairs()) > 20
    told = rates.settle()
    assert told == "34 of 64 pairs have a slow link, too many for a fault of single nodes"
    assert {*rates.doubtful_pairs()} == {("n8", "n9"), ("n10", "n9")}
    assert {one.node for one in start_check.link_findings(rates, "ib0", nodes)} == {"n9"}


def test_few_doubtful_links_are_told_each() -> None:
    nodes = [f"n{number}" for number in range(64)]
    rates = StartRates(nodes)
    for pair in (pair for pairs in pairing.ring(nodes) for pair in pairs):
        rates.add(pair, 150e6 if pair == ("n3", "n4") else 1e9, 1e9, 1e-5)
    assert rates.settle() == ""
    assert {one.node for one in start_check.link_findings(rates, "ib0", nodes)} == {"n3", "n4"}
