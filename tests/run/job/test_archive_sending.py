"""Archives that go to many nodes at once; `tests.cluster.test_many_nodes` has the real sbcast."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.run.job import archive_sending
from hpcrun.run.job.archive_sending import FROM_NODES, ArchiveSending
from hpcrun.slurm import client
from hpcrun.state.environment import frozen_environment
from hpcrun.state.layout import SubmissionPaths
from tests.support import plans

BYTES = 1_000
NODES = tuple(f"n{number}" for number in range(1, FROM_NODES + 1))
HOME = Path("/tmp/hpcrun-1")
HOMES = dict.fromkeys(NODES, HOME)
ROOMS: dict[str, tuple[int, int] | None] = dict.fromkeys(NODES, (BYTES, 2 * BYTES))
SENT = [("code", "sent-code.tar.gz"), ("environment.tar", "sent-environment.tar")]


class _Sbcast:
    """Notes what is sent; answers what a test wants, after ``seconds``."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.limits: list[float] = []
        self.problem: str | None = None
        self.seconds = 0.0

    def __call__(self, job: str, source: str, target: str, timeout: float) -> str | None:
        assert (job, Path(target).parent) == ("7", HOME)
        name = Path(source).name
        self.sent.append(("code" if name.endswith(".gz") else name, Path(target).name))
        self.limits.append(timeout)
        time.sleep(self.seconds)
        return self.problem


@pytest.fixture
def sbcast(monkeypatch: pytest.MonkeyPatch) -> _Sbcast:
    made = _Sbcast()
    monkeypatch.setattr(client, "broadcast", made)
    return made


@pytest.fixture
def submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SubmissionPaths:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)\n")
    archive = tmp_path / "environment.tar"
    found = SimpleNamespace(bytes=BYTES), archive
    monkeypatch.setattr(frozen_environment, "of_submission", lambda _: found)
    return plans.submission_of(plans.command_plan(code, {0: ["true"]}), tmp_path / "root")


def _sending(submission: SubmissionPaths, **launcher: Any) -> ArchiveSending:
    run: Any = SimpleNamespace(environment=SimpleNamespace(is_frozen=True))
    made: Any = SimpleNamespace(**{"nodes": NODES, "whole_job": "7", **launcher})
    found = ArchiveSending(made, submission, run)
    found.rooms.update(ROOMS)
    return found


def _turn() -> None:
    time.sleep(0.01)


def test_each_archive_goes_once(
    submission: SubmissionPaths, sbcast: _Sbcast, capfd: pytest.CaptureFixture[str]
) -> None:
    sending = _sending(submission)
    for _attempt in (1, 2):
        sending.send(HOMES, [], _turn)
    assert sbcast.sent == SENT
    assert sbcast.limits[1] == archive_sending.PATIENCE + BYTES / archive_sending.SLOWEST
    said = capfd.readouterr().out.splitlines()
    assert [("sbcast sent the frozen " in line, "16 nodes in 0." in line) for line in said] == [
        (True, True)
    ] * 2


@pytest.mark.parametrize(
    "launcher",
    [{"nodes": NODES[1:]}, {"whole_job": None}],
    ids=["few nodes", "another job, or none of Slurm's"],
)
def test_where_each_node_reads_by_itself(
    submission: SubmissionPaths, sbcast: _Sbcast, launcher: dict[str, Any]
) -> None:
    _sending(submission, **launcher).send(HOMES, [], _turn)
    assert sbcast.sent == []


@pytest.mark.parametrize(
    ("homes", "rooms", "lost", "sent", "told"),
    [
        ({"n3": HOME.with_name("other")}, {}, [], [], "agents have different directories"),
        ({"n3": None}, {}, [], [], "the agent on node n3 is not there"),
        ({}, {}, ["n5"], [], "node n5 is lost"),
        ({}, {"n4": (BYTES, 2 * BYTES - 1)}, [], SENT[:1], "the disk of node n4 has no room"),
        ({}, {"n4": (0, BYTES)}, [], SENT, ""),
        ({}, dict.fromkeys(NODES, (0, 0)), [], SENT[:1], ""),
    ],
)
def test_what_stands_against_it(
    submission: SubmissionPaths,
    sbcast: _Sbcast,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    homes: dict[str, Path | None],
    rooms: dict[str, tuple[int, int]],
    lost: list[str],
    sent: list[tuple[str, str]],
    told: str,
) -> None:
    monkeypatch.setattr(archive_sending, "SPARES_WITHIN", 0.1)
    sending = _sending(submission)
    sending.rooms.update(rooms)
    there = {node: home for node, home in {**HOMES, **homes}.items() if home is not None}
    for _attempt in (1, 2):
        sending.send(there, lost, _turn)
    assert sbcast.sent == sent
    said = capfd.readouterr().out
    # Of each archive that is not sent, once.
    assert said.count(f"is read from shared storage by nodes that lack it: {told}") == (
        2 - len(sent) if told else 0
    )


def test_an_sbcast_that_fails_is_told_and_not_repeated(
    submission: SubmissionPaths, sbcast: _Sbcast, capfd: pytest.CaptureFixture[str]
) -> None:
    sending, sbcast.problem = _sending(submission), "REQUEST_FILE_BCAST(n3): No space left"
    for _attempt in (1, 2):
        sending.send(HOMES, [], _turn)
    assert sbcast.sent == SENT
    said = capfd.readouterr().out
    assert said.count("by nodes that lack it: REQUEST_FILE_BCAST(n3): No space left") == 2
    assert "sbcast sent" not in said


def test_it_waits_for_spares(submission: SubmissionPaths, sbcast: _Sbcast) -> None:
    there = dict(HOMES)
    del there["n16"]
    _sending(submission).send(there, [], lambda: there.update(HOMES))
    assert sbcast.sent == SENT


@pytest.mark.parametrize(("lost", "sent"), [([], SENT), (["n2"], SENT[:1])])
def test_an_attempt_that_ends_meanwhile(
    submission: SubmissionPaths, sbcast: _Sbcast, lost: list[str], sent: list[tuple[str, str]]
) -> None:
    """The next one goes on from there, unless a node is lost, for which sbcast would wait long."""

    class Ended(Exception):
        pass

    def end() -> None:
        raise Ended

    sending, sbcast.seconds = _sending(submission), 0.3
    with pytest.raises(Ended):
        sending.send(HOMES, [], end)
    began = time.monotonic()
    sending.send(HOMES, lost, _turn)
    assert sbcast.sent == sent
    assert not lost or time.monotonic() - began < 0.1
