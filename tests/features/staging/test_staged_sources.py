"""What the paths of ``staging.paths`` name, and the files of each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.features.staging import FEATURE, staged_sources
from hpcrun.features.staging.staged_sources import StagedSource
from hpcrun.run.copies.copied_files import SourceProblem
from hpcrun.state.plan import Entry, RunPlan


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "images" / "train").mkdir(parents=True)
    for name in ("a.bin", "b.bin", "images/index", "images/train/0.tar"):
        (made / name).write_text(name)
    return made


def test_paths_and_globs_have_their_last_names(data: Path) -> None:
    found = staged_sources.find([f"{data}/images", f"{data}/*.bin", f"{data}/a.bin"])
    assert [source.name for source in found] == ["images", "a.bin", "b.bin"]
    assert [file.name for file in found[0].files()] == ["index", "train/0.tar"]
    assert [(file.name, file.size) for file in found[1].files()] == [("", 5)]


def test_what_is_not_there_is_named(data: Path) -> None:
    with pytest.raises(SourceProblem, match=r"a\.bim cannot be staged: No such file"):
        staged_sources.find([f"{data}/a.bim"])
    with pytest.raises(SourceProblem, match=r"nothing matches .*/\*\.npy"):
        staged_sources.find([f"{data}/*.npy"])
    os.mkfifo(data / "pipe")
    with pytest.raises(SourceProblem, match="no file and no directory"):
        staged_sources.find([f"{data}/pipe"])


def test_two_of_one_name_are_refused(data: Path) -> None:
    (data / "images" / "a.bin").touch()
    with pytest.raises(SourceProblem, match=r"would both be \$\{hpcrun:staged\}/a\.bin"):
        staged_sources.find([f"{data}/a.bin", f"{data}/images/a.bin"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_refused(data: Path) -> None:
    (data / "a.bin").chmod(0)
    with pytest.raises(SourceProblem, match="cannot be read by you"):
        staged_sources.find([f"{data}/a.bin"])


def test_what_cannot_be_listed_names_the_key(data: Path) -> None:
    (data / "images" / "gone").symlink_to(data / "nothing")
    with pytest.raises(SourceProblem, match=r"staging\.paths: .*images/gone cannot be read"):
        StagedSource("images", f"{data}/images").files()


def test_what_is_to_be_staged_is_there(tmp_path: Path) -> None:
    run, told = _run(str(tmp_path / "tokens")), list[str]()
    with pytest.raises(UsageError, match="tokens cannot be staged: No such file"):
        staged_sources.check([run], (), told.append)
    staged_sources.check([run], {"prepare"}, told.append)
    assert "run 0 will be refused by their nodes unless prepare makes it" in told[0]
    (tmp_path / "tokens").mkdir()
    staged_sources.check([run], (), pytest.fail)


def test_a_container_shows_sources_and_the_directories_above_globs() -> None:
    run = _run("/data/a/*/x-*.bin", "/other/file")
    assert FEATURE.mounts(run) == ["/data/a", "/other/file"]


def _run(*paths: str) -> RunPlan:
    spec = {"staging": {"paths": [*paths]}}
    return RunPlan(0, "", "", {}, Entry("command", argv=("true",)), spec)
