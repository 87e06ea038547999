"""What the paths of ``staging.paths`` name, as ranks find it, and as a run of two attempts does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.errors import UsageError
from hpcrun.features.staging import FEATURE, staged_data
from hpcrun.features.staging.staged_data import StagedData, StagedPaths, StagedSource
from hpcrun.run.copies.copied_files import SourceProblem
from hpcrun.state.plan import Entry, RunPlan
from tests.support.place import Place


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "images" / "train").mkdir(parents=True)
    for name in ("a.bin", "b.bin", "images/index", "images/train/0.tar"):
        (made / name).write_text(name)
    return made


def test_paths_and_globs_have_their_last_names(data: Path) -> None:
    found = staged_data.find([f"{data}/images", f"{data}/*.bin", f"{data}/a.bin"])
    assert [source.name for source in found] == ["images", "a.bin", "b.bin"]
    assert [file.name for file in found[0].files()] == ["index", "train/0.tar"]
    assert [(file.name, file.size) for file in found[1].files()] == [("", 5)]


def test_what_is_not_there_is_named(data: Path) -> None:
    with pytest.raises(SourceProblem, match=r"a\.bim cannot be staged: No such file"):
        staged_data.find([f"{data}/a.bim"])
    with pytest.raises(SourceProblem, match=r"nothing matches .*/\*\.npy"):
        staged_data.find([f"{data}/*.npy"])
    os.mkfifo(data / "pipe")
    with pytest.raises(SourceProblem, match="no file and no directory"):
        staged_data.find([f"{data}/pipe"])


def test_two_of_one_name_are_refused(data: Path) -> None:
    (data / "images" / "a.bin").touch()
    with pytest.raises(SourceProblem, match=r"would both be \$\{hpcrun:staged\}/a\.bin"):
        staged_data.find([f"{data}/a.bin", f"{data}/images/a.bin"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_refused(data: Path) -> None:
    (data / "a.bin").chmod(0)
    with pytest.raises(SourceProblem, match="cannot be read by you"):
        staged_data.find([f"{data}/a.bin"])


def test_what_cannot_be_listed_names_the_key(data: Path) -> None:
    (data / "images" / "gone").symlink_to(data / "nothing")
    with pytest.raises(SourceProblem, match=r"staging\.paths: .*images/gone cannot be read"):
        StagedSource("images", f"{data}/images").files()


def test_what_is_to_be_staged_is_there(tmp_path: Path) -> None:
    run, told = _run(str(tmp_path / "tokens")), list[str]()
    with pytest.raises(UsageError, match="tokens cannot be staged: No such file"):
        staged_data.check([run], (), told.append)
    staged_data.check([run], {"prepare"}, told.append)
    assert "run 0 will be refused by their nodes unless prepare makes it" in told[0]
    (tmp_path / "tokens").mkdir()
    staged_data.check([run], (), pytest.fail)


def test_a_container_shows_sources_and_the_directories_above_globs() -> None:
    run = _run("/data/a/*/x-*.bin", "/other/file")
    assert FEATURE.mounts(run) == ["/data/a", "/other/file"]


def _run(*paths: str) -> RunPlan:
    spec = {"staging": {"paths": [*paths]}}
    return RunPlan(0, "", "", {}, Entry("command", argv=("true",)), spec)


def test_paths_at_and_below_sources_are_on_the_node(tmp_path: Path) -> None:
    data, node = tmp_path / "data", tmp_path / "hpcrun-start"
    (data / "tokens").mkdir(parents=True)
    node.mkdir()
    (tmp_path / "link").symlink_to(data)
    shown = StagedData(node, [f"{data}/tok*"])
    (source,) = shown.sources()
    shown.show({source: tmp_path / "copy"})
    staged = StagedPaths(node).staged
    assert (staged / "tokens").readlink() == tmp_path / "copy"
    launch: Any = SimpleNamespace(
        own_node=SimpleNamespace(scratch=str(node / "attempt-1")),
        block=lambda _: SimpleNamespace(paths=["tok*"]),
    )
    assert staged_data.local(launch, data / "tokens") == staged / "tokens"
    found = staged_data.local(launch, tmp_path / "link" / "tokens" / "a" / "0.bin")
    assert found == staged / "tokens" / "a" / "0.bin"
    for other in (data, data / "tokens-2", Path("tokens")):
        assert staged_data.local(launch, other) == other
    assert staged_data.local(None, "tokens") == Path("tokens"), "outside hpcrun"


PROGRAM = """
import hpcrun, os, sys
session = hpcrun.session()
staged, local = sys.argv[1], session.staged("DATA/tokens/0.bin")
print("read", local.read_bytes() == open("DATA/tokens/0.bin", "rb").read(), flush=True)
assert str(local) == f"{staged}/tokens/0.bin" and staged == os.environ["HPCRUN_STAGED"]
assert str(session.staged("/etc/passwd")) == "/etc/passwd"
if session.attempt == 1:
    os._exit(3)
"""


def test_both_attempts_of_a_script_find_it(tmp_path: Path, place: Place) -> None:
    """A kill between: the second attempt copies nothing, and nothing is left at the end."""
    data = tmp_path / "data"
    (data / "tokens").mkdir(parents=True)
    (data / "tokens" / "0.bin").write_bytes(bytes(2_000))
    (place.code / "reading.py").write_text(PROGRAM.replace("DATA", str(data)))
    place.submit(
        f"exec {sys.executable} reading.py ${{hpcrun:staged}}",
        nodes=2,
        staging={"paths": [str(data / "tokens")]},
        recovery={"in_place": 2},
    )
    code, said = place.supervise(timeout=90)
    assert code == 0, said + place.output()
    assert "stages data on 2 nodes" in said
    for number in (1, 2):
        assert "read True" in place.output(attempt=number)
    first, second = (place.attempt(number).copied or {} for number in (1, 2))
    # Both nodes are this machine, which has one copy.
    assert (first["nodes"], first["bytes"], first["copied"], first["notes"]) == (
        2,
        2_000,
        2_000,
        [],
    )
    assert second["copied"] == 0
    assert "all of it was there already" in said
