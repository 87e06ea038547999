"""The record of suspect nodes, by one user; what others may do to it is in tests/security."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.state.suspects import suspect_nodes
from hpcrun.state.suspects.suspect_nodes import DAY, MOST_NODES, SuspectNodes

NOW = time.time()


@pytest.fixture
def shared(tmp_path: Path) -> SuspectNodes:
    tmp_path.chmod(0o1777)
    return SuspectNodes(tmp_path, 2)


def test_an_entry_is_read_until_it_expires(shared: SuspectNodes) -> None:
    shared.record("node07", "ib0 has no carrier", "interface", now=NOW)
    (one,) = shared.read(now=NOW + 60).entries
    assert (one.node, one.reason, one.kind) == ("node07", "ib0 has no carrier", "interface")
    assert one.is_mine
    assert one.until == NOW + 2 * DAY
    assert one.told.startswith(f"node07: ib0 has no carrier (by {one.author}, until 20")
    assert shared.read(now=NOW + 2 * DAY + 1).entries == ()
    assert shared.read(now=NOW + 60).problems == ()


def test_the_newest_entry_of_a_node_counts(shared: SuspectNodes) -> None:
    shared.record("n1", "slow", "slow_link", now=NOW - 500)
    shared.record("n2", "gone", "node_failure", now=NOW - 400)
    shared.record("n1", "down", "interface", now=NOW - 300)
    found = [(one.node, one.reason) for one in shared.read(now=NOW).entries]
    assert found == [("n1", "down"), ("n2", "gone")]


def test_own_entries_are_cleared_by_hand(shared: SuspectNodes) -> None:
    for node in ("n1", "n2", "n3"):
        shared.record(node, "slow", "slow_link", now=NOW - 10)
    assert shared.clear(["n2", "other"], now=NOW - 5) == ["n2"]
    assert {one.node for one in shared.read(now=NOW).entries} == {"n1", "n3"}
    assert shared.clear(now=NOW) == ["n1", "n3"]
    assert shared.clear() == []
    shared.record("n2", "slow again", "slow_link", now=NOW)
    assert [one.node for one in shared.read(now=NOW).entries] == ["n2"]


def test_a_trusted_node_is_used_until_it_fails_again(shared: SuspectNodes) -> None:
    shared.record("n1", "slow", "slow_link", now=NOW - 10)
    shared.trust(["n1"], days=1, now=NOW - 5)
    reading = shared.read(now=NOW)
    assert reading.used == ()
    assert reading.trusted == {"n1": NOW - 5 + DAY}
    shared.record("n1", "slow again", "slow_link", now=NOW)
    assert [one.node for one in shared.read(now=NOW).used] == ["n1"]


@pytest.mark.parametrize("name", ["", "-w", "n1;rm", "n1,n2", "n[1-3]", "n1\n", "a" * 65, "n 1"])
def test_only_a_nodes_name_is_recorded(shared: SuspectNodes, name: str) -> None:
    with pytest.raises(HpcrunError, match="not the name of a node"):
        shared.record(name, "x", "other")
    with pytest.raises(HpcrunError, match="not the name of a node"):
        shared.trust([name])


def test_a_reason_is_one_short_line_without_escapes(shared: SuspectNodes) -> None:
    shared.record("n1", "bad\n\x1b[31mred" + "x" * 5000, "Not a kind", now=NOW)
    (one,) = shared.read(now=NOW).entries
    assert "\n" not in one.reason
    assert "\x1b" not in one.reason
    assert len(one.reason) < 300
    assert one.kind == "other"


def test_lines_that_nobody_of_us_wrote_are_passed_over(shared: SuspectNodes) -> None:
    shared.record("n1", "slow", "slow_link", now=NOW)
    own = shared.directory / f"{os.geteuid()}.jsonl"
    bad = [
        *("{", "[]", "null", '{"time": "x", "suspect": "n2"}', '{"suspect": "n2"}'),
        *(f'{{"time": {NOW}, "suspect": null}}', f'{{"time": {NOW}, "suspect": 7}}'),
        f'{{"time": {NOW}, "suspect": "n2", "trust": "n2", "until": {NOW + 9}}}',
        f'{{"time": {NOW + DAY}, "suspect": "n2", "until": {NOW + 2 * DAY}}}',
        f'{{"time": {NOW}, "suspect": "--exclude", "until": {NOW + 9}}}',
        f'{{"time": {NOW}, "suspect": "n3", "reason": null, "kind": null, "until": {NOW + 9}}}',
    ]
    with own.open("a") as stream:
        stream.write("\n".join(bad) + '\n{"time"')
    assert {one.node for one in shared.read(now=NOW).entries} == {"n1", "n3"}
    # After a torn line, too.
    shared.record("n4", "slow", "slow_link", now=NOW)
    assert {one.node for one in shared.read(now=NOW).entries} == {"n1", "n3", "n4"}


def test_nobody_is_believed_for_longer_than_the_profile_says(shared: SuspectNodes) -> None:
    shared.record("n1", "slow", "slow_link", now=NOW)
    short = SuspectNodes(shared.directory, 0.5)
    assert short.read(now=NOW).entries[0].until == NOW + DAY / 2
    assert SuspectNodes(shared.directory, 1e9).days == suspect_nodes.MOST_DAYS


def test_the_file_stays_small_and_keeps_what_counts(shared: SuspectNodes) -> None:
    shared.trust(["trusted"], days=1, now=NOW)
    shared.record("first", "x" * 190, "slow_link", now=NOW)
    for number in range(800):
        shared.record(f"n{number % 50}", "y" * 190, "slow_link", now=NOW + number / 1000)
    own = shared.directory / f"{os.geteuid()}.jsonl"
    assert own.stat().st_size < suspect_nodes.MOST_BYTES
    assert own.stat().st_mode & 0o777 == 0o644
    reading = shared.read(now=NOW + 1)
    assert {"first", "n49"} <= {one.node for one in reading.entries}
    assert len(reading.entries) == 51 <= MOST_NODES
    assert "trusted" in reading.trusted
    assert [path.name for path in shared.directory.iterdir()] == [own.name]


def test_without_a_shared_directory_it_is_the_users_own(tmp_path: Path) -> None:
    nodes = SuspectNodes.of({}, tmp_path / "root")
    assert nodes.read().entries == nodes.read().problems == ()
    nodes.record("n1", "slow", "slow_link")
    assert [one.node for one in nodes.read().entries] == ["n1"]
    assert (tmp_path / "root/.hpcrun/suspects").is_dir()
    shared = SuspectNodes.of({"suspects": {"directory": "/shared", "days": 5}}, tmp_path)
    assert (shared.directory, shared.days, shared.shared) == (Path("/shared"), 5, True)


def test_a_directory_that_is_not_there_is_told_once_with_its_remedy(tmp_path: Path) -> None:
    nodes = SuspectNodes(tmp_path / "none")
    (problem,) = nodes.read().problems
    assert "mkdir -m 1777" in problem
    assert "suspects.directory" in problem
    with pytest.raises(HpcrunError, match="mkdir -m 1777"):
        nodes.record("n1", "slow", "slow_link")
    assert "mkdir -m 1777" in str(nodes.problem())


def test_a_directory_without_the_sticky_bit_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    nodes = SuspectNodes(tmp_path)
    assert nodes.problem() is None
    assert "chmod +t" in nodes.read().problems[0]
