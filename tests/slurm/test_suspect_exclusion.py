"""The suspect nodes that a job excludes, with Slurm's answers by a stand-in (recorded forms)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcrun.slurm import client, suspect_exclusion
from hpcrun.state.spec.experiment import Resources
from hpcrun.state.suspect_nodes import SuspectChoice, SuspectNodes

NEVER = "allocation failure: Requested node configuration is not available"
STATES = {"n1": "idle", "n2": "mix", "n3": "alloc", "n4": "down*", "n5": "drain", "n6": "idle~"}

CLUSTER: dict[str, Any] = {"executor": "slurm", "sbatch": {}}

Ask = Callable[..., SuspectChoice]


class Site:
    """A site whose sbatch wants so many nodes of the first three."""

    def __init__(self, fit: int = 99) -> None:
        self.fit, self.calls = fit, list[Sequence[str]]()

    def command(self, argv: Sequence[str], *, timeout: float | None = None) -> str:
        self.calls.append(argv)
        if argv[0] == "sinfo" and argv[-1] == "--format=%P":
            return "debug\nmain*\n"
        if argv[0] == "sinfo":
            assert "--partition=main" in argv
            return "".join(
                f"{node}|{state}|8|16000|(null)|(null)\n" for node, state in STATES.items()
            )
        assert argv[:2] == ["sbatch", "--test-only"]
        out = argv[4].removeprefix("--exclude=").split(",")
        if len([node for node in ("n1", "n2", "n3") if node not in out]) < self.fit:
            raise client.CommandFailed(NEVER)
        return ""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site()
    monkeypatch.setattr(client, "command", site.command)
    return site


@pytest.fixture
def ask(site: Site, tmp_path: Path) -> Ask:
    def ask(needed: int = 2, script: bool = False, **more: Any) -> SuspectChoice:
        cluster = {**CLUSTER, **more.pop("cluster", {})}
        resources = Resources(**more)
        path = tmp_path / "script" if script else None
        parts = cluster, tmp_path, resources, needed
        return suspect_exclusion.left_out(*parts, script=path)

    return ask


def record(place: Path, *nodes: str) -> None:
    for node in nodes:
        SuspectNodes(place).record(node, "slow", "bad_node")


@pytest.mark.parametrize(
    ("state", "is_usable"),
    [("idle~", True), ("mix-", True), ("planned", True), ("idle*", False), ("idle$", False)],
)
def test_a_node_that_does_not_answer_is_not_counted(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, is_usable: bool
) -> None:
    """With n6 three nodes are left for three; without it n1 has to be used all the same."""
    monkeypatch.setitem(STATES, "n6", state)
    record(tmp_path, "n1")
    choice = ask(needed=3)
    assert (choice.nodes == ("n1",)) == is_usable


def test_without_entries_nothing_is_asked(site: Site, ask: Ask) -> None:
    assert ask() == SuspectChoice()
    assert site.calls == []


def test_a_node_of_the_default_partition_is_left_out(ask: Ask, tmp_path: Path) -> None:
    record(tmp_path, "n1", "elsewhere")
    choice = ask()
    assert choice.nodes == ("n1",)
    assert suspect_exclusion.exclusion(None, choice) == "n1"
    assert suspect_exclusion.exclusion("n[7-9]", choice) == "n[7-9],n1"
    assert suspect_exclusion.exclusion("n7", SuspectChoice()) is None


@pytest.mark.parametrize(("out", "both"), [((), ()), (("n2",), ("n1", "n2")), (("n1",), ("n1",))])
def test_a_requeued_job_goes_on_without_the_suspects(
    site: Site, tmp_path: Path, out: tuple[str, ...], both: tuple[str, ...]
) -> None:
    """An exclusion takes the place of the one that the job was submitted with."""
    record(tmp_path, "n1")
    assert suspect_exclusion.beside(out, CLUSTER, tmp_path, Resources(), 2) == both


@pytest.mark.parametrize(
    "more",
    [
        {"cluster": {"suspects": {"avoid": False}}},
        {"cluster": {"executor": "local"}},
        {"needed": 4},
        {"exclude": "n[1-2]"},
        {"sbatch": {"nodelist": "n[1-2]"}},
        {"cluster": {"sbatch": {"nodelist": "n1,n2"}}},
    ],
)
def test_what_keeps_a_suspect_node(more: dict[str, Any], ask: Ask, tmp_path: Path) -> None:
    # Of four nodes that are up, the job needs so many, names them, or excludes them itself.
    record(tmp_path, "n1")
    assert ask(**more).nodes == ()


def test_a_job_that_could_never_start_gets_its_nodes_back(
    site: Site, ask: Ask, tmp_path: Path
) -> None:
    site.fit = 2
    record(tmp_path, "n1", "n2")
    choice = ask(needed=2, script=True)
    assert len(choice.nodes) == 1
    assert choice.told[1].startswith("used all the same, as too few nodes like the job's")
    site.fit = 4
    # For another reason, it could not start at all.
    assert ask(needed=2, script=True).nodes == ()
