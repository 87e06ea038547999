"""Links between the working directory and a copy of the code, in both directions."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.launch import LaunchNode
from hpcrun.run.work import links
from hpcrun.state.plan import Entry
from tests.support.nfs import Host
from tests.support.place import launch_of

START = "hpcrun-0123456789ab"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def copy(tmp_path: Path, *names: str, attempt: int = 1) -> Path:
    """A node's copy of the code with these files, each holding its name."""
    code = tmp_path / START / f"attempt-{attempt}" / "code"
    code.mkdir(parents=True)
    for name in names:
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    return code


def tree(place: Path) -> list[str]:
    """What is there: ``name`` of a file, ``name/`` of a directory, ``name@`` of a link."""
    found = []
    for above, directories, names in os.walk(place):
        for name in [*directories, *names]:
            path = Path(above, name)
            mark = "@" if path.is_symlink() else "/" if path.is_dir() else ""
            found.append(f"{path.relative_to(place)}{mark}")
    return sorted(found)


def test_the_way_leads_to_the_working_directory_and_to_the_script() -> None:
    script = Entry("script", file="tools/train/main.py")
    assert links.way("runs/a", script) == {".", "runs", "runs/a", "tools", "tools/train"}
    assert links.way(".", Entry("command", argv=("true",))) == {"."}


def test_files_of_the_code_are_found_and_directories_of_data_are_real(
    tmp_path: Path, work: Path
) -> None:
    code = copy(tmp_path, "train.py", "ds.json", "logs/.gitkeep", "pkg/a.py", "exp/one/x.yaml")
    links.fill(work, code, links.way("exp/one", Entry("command")))
    assert tree(work) == [
        *("__pycache__@", "ds.json@", "exp/", "exp/one/", "exp/one/x.yaml@"),
        *("logs/", "logs/.gitkeep@", "pkg@", "train.py@"),
    ]
    assert (work / "ds.json").read_text() == "ds.json"
    assert (work / "pkg" / "a.py").read_text() == "pkg/a.py"
    # A module that is imported through a link leaves nothing on shared storage.
    (work / "__pycache__" / "train.pyc").write_text("")
    assert (code / "__pycache__" / "train.pyc").exists()
    (work / "logs" / "a.log").write_text("written")
    links.clear(work, code=code, only=[code])
    assert tree(work) == ["logs/", "logs/a.log"]


def test_of_many_directories_as_many_are_real_as_hold_few_entries(
    tmp_path: Path, work: Path
) -> None:
    """Such as outputs of other programs among the code; another node makes no more of them."""
    outputs = [f"multirun/{n:02}/out/{name}" for n in range(90) for name in ("log", "result")]
    code = copy(tmp_path, "train.py", *outputs, *(f"logs/{n}" for n in range(60)))
    links.fill(work, code, links.way(".", Entry("command")))
    made = tree(work)
    # First what lies at the top, then what is in it, in the order of names.
    assert {"logs/", "multirun/", "multirun/00/", "multirun/00/out@", "multirun/89@"} <= {*made}
    assert len(made) <= links._MOST_IN_ALL + 3
    twin = tmp_path / "other" / START / "attempt-1"
    twin.mkdir(parents=True)
    (twin / "code").symlink_to(code)
    links.fill(work, twin / "code", links.way(".", Entry("command")), target=code)
    assert tree(work) == made
    assert (work / "multirun/89/out/log").read_text() == "multirun/89/out/log"
    links.clear(work, code=code, only=[code])
    assert tree(work) == []


def test_what_the_program_wrote_wins_and_directories_are_merged(tmp_path: Path, work: Path) -> None:
    (work / "state.json").write_text("the program's")
    (work / "pkg").mkdir()
    (work / "pkg" / "cache.bin").write_text("the program's")
    code = copy(tmp_path, "state.json", "pkg/a.py", "pkg/sub/b.py")
    links.fill(work, code, ["."])
    assert (work / "state.json").read_text() == "the program's"
    assert tree(work / "pkg") == ["__pycache__@", "a.py@", "cache.bin", "sub@"]
    links.clear(work)
    assert tree(work) == ["pkg/", "pkg/cache.bin", "state.json"]


def test_links_of_a_crash_are_replaced_and_those_of_others_stay(tmp_path: Path, work: Path) -> None:
    first = copy(tmp_path, "a.txt", "old.txt", "data/x.csv")
    links.fill(work, first, ["."])
    (work / "latest").symlink_to("step-100")
    (work / "aside").symlink_to(first / "a.txt")
    second = copy(tmp_path, "a.txt", "data/x.csv", attempt=2)
    links.clear(work, only=[second])
    assert "old.txt@" in tree(work)
    links.fill(work, second, ["."])
    assert (work / "a.txt").readlink() == second / "a.txt"
    assert (work / "data" / "x.csv").readlink() == second / "data/x.csv"
    links.clear(work)
    assert tree(work) == ["aside@", "latest@"]


def test_links_below_directories_that_hold_directories_alone_are_removed(
    tmp_path: Path, work: Path
) -> None:
    """Without the copy of the code, which went with its node."""
    code = copy(tmp_path, "exps/one/train.py", "data/sets/x.csv")
    links.fill(work, code, links.way("exps/one", Entry("command")))
    (work / "out" / "step-1").mkdir(parents=True)
    assert "exps/one/train.py@" in tree(work)
    assert "data/sets/x.csv@" in tree(work)
    links.clear(work, only=[code])
    assert tree(work) == ["out/", "out/step-1/"]


def test_a_directory_that_the_program_has_closed_is_left_alone(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a launch error of every later attempt."""
    links.fill(work, copy(tmp_path, "train.py"), ["."])
    (work / "closed").mkdir(mode=0o300)
    as_it_is = os.scandir

    def scandir(path: str | Path) -> object:
        # Root, who may run the tests, is refused nothing.
        if Path(path).stat().st_mode & 0o400 == 0:
            raise PermissionError(13, "Permission denied", str(path))
        return as_it_is(path)

    monkeypatch.setattr(os, "scandir", scandir)
    links.clear(work)
    monkeypatch.undo()
    assert tree(work) == ["closed/"]


def test_a_file_in_the_place_of_the_working_directory_is_told(tmp_path: Path, work: Path) -> None:
    (work / "exp").write_text("a file")
    with pytest.raises(HpcrunError, match=r"exp is no directory"):
        links.fill(work, copy(tmp_path, "exp/x.yaml"), ["exp"])


def test_each_rank_has_its_own_links(tmp_path: Path, work: Path) -> None:
    code = copy(tmp_path, "train.py", "logs/.gitkeep")
    for rank in (0, 1):
        mirror = work / f"rank-{rank:05d}"
        mirror.mkdir()
        links.fill(mirror, code, ["."])
    (work / "rank-00001" / "logs" / "a.log").write_text("written")
    links.clear(work, only=[code])
    assert tree(work) == ["rank-00001/", "rank-00001/logs/", "rank-00001/logs/a.log"]
    links.adopt(work, code, of_ranks=True)
    assert tree(code) == ["__pycache__/", "logs/", "logs/.gitkeep", "train.py"]


def test_a_link_in_the_place_of_a_ranks_directory_is_not_followed(tmp_path: Path) -> None:
    """A colleague with the group's rights may have made it."""
    code = copy(tmp_path, "exp/train.py")
    node = LaunchNode("n1", str(code), str(code.parent), "lo", "127.0.0.1")
    made = launch_of(tmp_path, nodes=(node,), working_directory="rank")
    launch = replace(made, working_directory="exp")
    (tmp_path / "home").mkdir()
    launch.run_paths.work.mkdir()
    launch.run_paths.rank_work(0).symlink_to(tmp_path / "home")
    with pytest.raises(HpcrunError, match="rank-00000 is no directory"):
        links.directory_of_rank(launch, 0)
    assert tree(tmp_path / "home") == []
    launch.run_paths.rank_work(0).unlink()
    assert links.directory_of_rank(launch, 0) == launch.run_paths.rank_work(0) / "exp"
    assert tree(launch.run_paths.work)[-1] == "rank-00000/exp/train.py@"


def test_the_code_has_what_the_program_wrote_before(tmp_path: Path, work: Path) -> None:
    code = copy(tmp_path, "train.py", "state.json", "pkg/a.py", "file/x")
    (work / "state.json").write_text("the program's")
    (work / "file").write_text("was a directory")
    (work / "pkg" / "out").mkdir(parents=True)
    links.fill(work, code, ["."])
    links.adopt(work, code)
    assert (code / "state.json").read_text() == "the program's"
    assert (code / "file").read_text() == "was a directory"
    (code / "pkg" / "out" / "new").write_text("beside the module")
    assert (work / "pkg" / "out" / "new").read_text() == "beside the module"
    assert (code / "train.py").read_text() == "train.py"


def test_of_very_many_files_those_in_place_of_the_codes_are_found(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(links, "_MOST_ADOPTED", 3)
    names = [f"{number}.json" for number in range(9)]
    code = copy(tmp_path, *names[::4])
    for name in names:
        (work / name).write_text("the program's")
    links.adopt(work, code)
    assert [(code / name).read_text() for name in names[::4]] == ["the program's"] * 3
    assert "not all of it is found" in capfd.readouterr().out


def test_a_path_that_all_nodes_can_have() -> None:
    one = Path("/scratch", START)
    assert links.code_path([one, one], "secret", 3) == one / "attempt-3" / "code"
    named = [one, Path(f"{one}-n2")]
    assert links.code_path(named, "secret", 1) == Path(f"{one}-secret/attempt-1/code")
    others = [Path("/scratch/n1", START), Path("/scratch/n2", START)]
    assert links.code_path(others, "secret", 1) == Path(f"/tmp/{START}-secret/attempt-1/code")


def test_what_another_node_has_just_made_in_a_mirror(
    two_hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    """This node looked for it before, and believes that it is not there."""
    other, here = two_hosts
    code = copy(tmp_path, "train.py", "data/a.txt")
    mirror = here / "work"
    assert not any(path.exists() for path in (mirror, mirror / "data", mirror / "train.py"))
    (other / "work" / "data").mkdir(parents=True)
    (other / "work" / "train.py").write_text("the program's own")
    links.fill(mirror, code, ["."])
    assert (mirror / "train.py").read_text() == "the program's own"
    assert (mirror / "data" / "a.txt").is_symlink()
