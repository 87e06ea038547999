"""Which nodes a job can do without, by what Slurm 22.05 and 24.11 answered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpcrun.slurm import client, requeue_nodes

NEVER = "allocation failure: Requested node configuration is not available"


class Site:
    """Nodes by name, with their states; Slurm finds a test submission startable on usable ones."""

    def __init__(self, needed: int, gpus: Sequence[str] = (), **states: str) -> None:
        self.needed, self.states, self.gpus = needed, states, gpus
        self.tried: list[str] = []

    def command(self, argv: Sequence[str], *, timeout: float | None = None) -> str:
        if argv[0] == "scontrol":
            return "JobId=7 Partition=main Command=/runs/a/script-0.sbatch\n"
        if argv[0] == "sinfo":
            return "".join(
                f"{node}|{state}|8|16000|{'gpu:2' if node in self.gpus else '(null)'}|(null)\n"
                for node, state in self.states.items()
            )
        assert argv[:4] == ["sbatch", "--test-only", "--partition=main", f"--nodes={self.needed}"]
        assert argv[-1] == "/runs/a/script-0.sbatch"
        excluded = argv[4].removeprefix("--exclude=")
        self.tried.append(excluded)
        free = [
            node
            for node, state in self.states.items()
            if state == "idle" and node not in excluded.split(",")
        ]
        if len(free) < self.needed:
            raise client.CommandFailed(NEVER)
        return ""


def excluded(
    site: Site, monkeypatch: pytest.MonkeyPatch, *nodes: str, kept: str | None = None
) -> tuple[str, ...]:
    monkeypatch.setattr(client, "command", site.command)
    said: list[str] = []
    left = requeue_nodes.without("7", nodes, site.needed, kept=kept, say=said.append)
    assert len(said) == len(nodes) - len(left)
    return left


def test_all_are_excluded_where_enough_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(2, n1="idle", n2="down*", n3="idle", n4="idle")
    assert excluded(site, monkeypatch, "n2", "n3") == ("n2", "n3")
    assert not site.tried


def test_a_node_that_is_there_is_given_back_before_one_that_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(3, n1="idle", n2="down*", n3="idle", n4="idle")
    assert excluded(site, monkeypatch, "n2", "n3") == ("n2",)
    assert site.tried == ["n2,n3", "n2"]


def test_the_oldest_loss_is_given_back_first(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(3, n1="idle", n2="idle", n3="idle", n4="idle")
    assert excluded(site, monkeypatch, "n3", "n2") == ("n2",)


def test_none_is_excluded_where_all_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(4, n1="idle", n2="down*", n3="idle", n4="idle")
    assert excluded(site, monkeypatch, "n2") == ()


def test_nodes_that_are_down_for_now_do_not_bring_a_bad_one_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(2, n1="idle", n2="idle", n3="down*", n4="drain")
    assert excluded(site, monkeypatch, "n2") == ("n2",)


def test_nodes_of_another_make_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(2, gpus=("n1", "n2"), n1="idle", n2="idle", n3="down*", n4="down*")
    assert excluded(site, monkeypatch, "n2") == ()


def test_the_specs_own_exclusions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(2, n1="idle", n2="down*", n3="idle", n4="idle")
    assert excluded(site, monkeypatch, "n2", kept="n3,n4") == ()
    assert site.tried == ["n3,n4,n2"]


def test_all_are_excluded_where_slurm_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(argv: Sequence[str], *, timeout: float | None = None) -> str:
        raise client.CommandFailed("Unable to contact slurm controller (connect failure)")

    monkeypatch.setattr(client, "command", down)
    assert requeue_nodes.without("7", ["n2"], 2, kept=None, say=pytest.fail) == ("n2",)
