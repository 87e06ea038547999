"""The run's working directory: what programs write is there in the next attempt, and afterwards."""

from __future__ import annotations

import json
import os
import signal
import tarfile
from pathlib import Path

import pytest

from bench import footprint
from hpcrun.errors import HpcrunError
from hpcrun.run.work import work_directory
from hpcrun.run.work.work_directory import WorkDirectory
from hpcrun.state import files, ledger
from hpcrun.state.layout import RunPaths
from hpcrun.state.plan import Entry
from tests.support.place import Place
from tests.support.waiting import until


def written(work: Path) -> dict[str, str]:
    """What is in the working directory; no link may be left there."""
    found = [path for path in work.rglob("*") if not path.is_dir()]
    assert [str(path) for path in found if path.is_symlink()] == []
    return {str(path.relative_to(work)): path.read_text() for path in sorted(found)}


# As pytorch's imagenet example: its own checkpoint by a relative path, from rank 0.
IMAGENET = """
import argparse, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
parser.add_argument("--epochs", type=int)
arguments = parser.parse_args()
start, rank = 0, int(os.environ["RANK"])
if arguments.resume and os.path.isfile(arguments.resume):
    start = int(open(arguments.resume).read())
    print(f"=> loaded checkpoint '{arguments.resume}' (epoch {start})", flush=True)
elif arguments.resume:
    print(f"=> no checkpoint found at '{arguments.resume}'", flush=True)
for epoch in range(start, arguments.epochs):
    print(f"Epoch: [{epoch}]", flush=True)
    if rank == 0:
        with open("checkpoint.pth.tar.new", "w") as file:
            file.write(str(epoch + 1))
        os.replace("checkpoint.pth.tar.new", "checkpoint.pth.tar")
    if epoch == 2 and start == 0:
        while rank == 1 and not os.path.isfile("checkpoint.pth.tar"):
            time.sleep(0.01)
        time.sleep(0.2 if rank == 0 else 300)
        os.kill(os.getpid(), signal.SIGKILL)
assert open("configs/classes.txt").read() == "cat dog", "files of the code are found"
"""


def test_a_program_that_saves_to_a_relative_path_goes_on_from_there(place: Place) -> None:
    """Finding 1: it began at epoch 0 again, and ended with no checkpoint anywhere."""
    (place.code / "imagenet" / "configs").mkdir(parents=True)
    (place.code / "imagenet" / "main.py").write_text(IMAGENET)
    (place.code / "imagenet" / "configs" / "classes.txt").write_text("cat dog")
    argv = ("--epochs=5", "--resume", "checkpoint.pth.tar")
    entry = Entry("script", file="imagenet/main.py", argv=argv)
    place.submit(entry, ranks=2, directory="imagenet", recovery={})
    code, said = place.supervise()
    assert code == 0, said
    assert [place.attempt(number).outcome for number in (1, 2)] == ["failed", "completed"]
    assert "no checkpoint found" in place.output(0, 1)
    assert "loaded checkpoint 'checkpoint.pth.tar' (epoch 3)" in place.output(0, 2)
    assert place.output(0, 2).count("Epoch:") == 2
    assert written(place.run.work) == {"imagenet/checkpoint.pth.tar": "5"}


EVERYWHERE = """
import json, os, sys
from pathlib import Path
import pkg.module

here = Path(__file__)
assert here.is_symlink() and here.parent == Path.cwd(), (here, Path.cwd())
assert sys.argv[0] == str(here)
assert Path(sys.path[0]) == here.resolve().parent, "imports are node-local"
assert Path(pkg.module.__file__).is_relative_to(sys.path[0])
seen = {}
places = {
    "relative": Path("relative.txt"),
    "of the code": Path("logs/a.txt"),
    "beside the script": here.parent / "beside.txt",
    "resolved": here.resolve().parent / "resolved.txt",
    "in a package": Path(pkg.module.__file__).parent / "out" / "deep.txt",
    "over a file": here.resolve().parent / "state.json",
}
for name, path in places.items():
    path.parent.mkdir(exist_ok=True)
    seen[name] = path.read_text() if path.exists() else ""
    path.write_text(seen[name] + os.environ["HPCRUN_ATTEMPT"])
print(json.dumps(seen))
if os.environ["HPCRUN_ATTEMPT"] != "3":
    os.kill(os.getpid(), 9)
"""


def test_wherever_a_program_writes_it_finds_it_again(place: Place) -> None:
    (place.code / "pkg").mkdir()
    (place.code / "logs").mkdir()
    (place.code / "train.py").write_text(EVERYWHERE)
    (place.code / "pkg" / "module.py").write_text("")
    (place.code / "logs" / ".gitkeep").write_text("")
    (place.code / "state.json").write_text("code ")
    place.submit(Entry("script", file="train.py"), recovery={"in_place": 5, "max_failures": 5})
    code, said = place.supervise()
    assert code == 0, said + place.output()
    places = json.loads(place.output(0, 3))
    assert places.pop("over a file") == "code 12"
    assert set(places.values()) == {"12"}
    assert written(place.run.work) == {
        **{"relative.txt": "123", "logs/a.txt": "123", "beside.txt": "123"},
        **{"resolved.txt": "123", "pkg/out/deep.txt": "123", "state.json": "code 123"},
    }
    kept = place.attempt(1).kept
    assert kept is not None
    # In the second attempt they were on shared storage from the beginning.
    assert sorted(kept["names"]) == ["pkg/out/deep.txt", "resolved.txt", "state.json"]
    assert place.attempt(2).kept is None
    assert "3 files written in the code's directory" in said
    assert (place.code / "state.json").read_text() == "code "


def test_two_nodes_that_write_one_file_of_the_code_keep_both(place: Place) -> None:
    place.submit("cd ${hpcrun:code}; echo same >same; echo $RANK >own", nodes=2)
    exit_code, said = place.supervise()
    assert exit_code == 0, said
    assert written(place.run.work) == {"same": "same\n", "own": "0\n", "own.local1": "1\n"}
    kept = place.attempt().kept
    assert kept is not None
    assert (kept["files"], kept["apart"], kept["failed"]) == (3, ["own.local1"], [])


def test_ranks_with_a_directory_each(place: Place) -> None:
    (place.code / "names.txt").write_text("found")
    line = "cat names.txt; pwd; cat own 2>/dev/null; echo $RANK >>own; [ $HPCRUN_ATTEMPT = 2 ]"
    place.submit(line, nodes=2, recovery={}, working_directory="rank")
    code, said = place.supervise()
    assert code == 0, said
    for rank in (0, 1):
        mirror = place.run.rank_work(rank)
        assert place.output(rank, 2) == f"found{mirror}\n{rank}\n"
    assert written(place.run.work) == {
        "rank-00000/own": "0\n0\n",
        "rank-00001/own": "1\n1\n",
    }


def test_nothing_is_left_where_nothing_was_written(place: Place) -> None:
    (place.code / "exp" / "data").mkdir(parents=True)
    (place.code / "exp" / "data" / "x.csv").write_text("1")
    place.submit("cat data/x.csv", directory="exp")
    assert place.supervise()[0] == 0
    assert not place.run.work.exists()


def test_new_code_is_not_hidden_by_what_the_program_wrote_over_it(place: Place) -> None:
    """What was written over files of the code that have not changed stays in their place."""
    for name in ("settings.json", "state.json"):
        (place.code / name).write_text("code")
    top = 'cd "$(dirname "$(readlink -f show.sh)")"'
    (place.code / "show.sh").write_text("cat settings.json state.json")
    place.submit(f"bash show.sh; {top}; echo -n mine | tee settings.json >state.json; exit 3")
    assert place.supervise()[0] == 3
    (place.code / "settings.json").write_text("new ")
    place.submit("bash show.sh; ls")
    code, said = place.supervise()
    assert code == 0, said
    assert place.output(0, 2).startswith("new mine")
    name = "settings.json.attempt-1"
    told = "settings.json of the code has changed: what the program wrote over it is"
    assert f"{told} {place.run.work}/{name}" in said
    assert written(place.run.work) == {name: "mine", "state.json": "mine"}


def test_what_a_lost_supervisor_left_is_put_in_place_by_the_next(place: Place) -> None:
    (place.code / "go.sh").write_text('cat kept; echo $HPCRUN_ATTEMPT >"$(readlink -f go.sh)".out')
    place.submit("bash go.sh; cat go.sh.out; [ $HPCRUN_ATTEMPT = 2 ] || sleep 300", recovery={})
    supervisor = place.start()
    log = place.run.attempt(1).rank_log(0)
    until(lambda: log.exists() and log.read_text())
    assert place.run.work.joinpath("go.sh").is_symlink()
    os.kill(supervisor.pid, signal.SIGKILL)
    place.end(supervisor)
    kept = place.run.attempt(1).kept / "local0"
    assert written(kept) == {"go.sh.out": "1\n"}
    (kept / "kept").write_text("late\n")
    code, said = place.supervise()
    assert code == 0, said
    assert place.output(0, 2) == "late\n2\n"
    assert written(place.run.work) == {"go.sh.out": "2\n", "kept": "late\n"}
    assert not place.run.attempt(1).kept.exists()


def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "study" / "runs" / "3")
    run.attempt(1).directory.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    run.work.symlink_to(tmp_path / "elsewhere")
    (run.attempt(1).kept / "n1").mkdir(parents=True)
    (run.attempt(1).kept / "n1" / "model.pt").write_text("1")
    found = WorkDirectory(run.attempt(1), ".", of_ranks=False)
    with pytest.raises(HpcrunError, match="no directory of yours"):
        found.begin()
    found.end([], [])
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def keep(tmp_path: Path, node: str, name: str, text: str, moment: float = 1000.0) -> Path:
    path = tmp_path / "kept" / node / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (moment, moment))
    return tmp_path / "kept"


def test_an_older_file_does_not_replace_a_newer_one(tmp_path: Path, work: Path) -> None:
    (work / "a").write_text("of a later attempt")
    (work / "b").write_text("of an earlier attempt")
    os.utime(work / "b", (10, 10))
    keep(tmp_path, "n1", "a", "old")
    found = work_directory.put(keep(tmp_path, "n1", "b", "new"), work)
    assert written(work) == {"a": "of a later attempt", "a.n1": "old", "b": "new"}
    assert (found.files, found.names, found.apart) == (2, ["b"], ["a.n1"])
    assert not (tmp_path / "kept").exists()


def test_what_cannot_be_put_in_place_stays_and_costs_the_run_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was a launch error of every later attempt."""
    run = RunPaths(tmp_path / "study" / "runs" / "3")
    attempts = [run.attempt(number) for number in (1, 2, 3)]
    for attempt in attempts:
        attempt.directory.mkdir(parents=True)
    for name in ("out/x", "out.n1/x"):
        (run.work / name).mkdir(parents=True)
    for name in ("out", "later"):
        (attempts[0].kept / "n1" / name).parent.mkdir(parents=True, exist_ok=True)
        (attempts[0].kept / "n1" / name).write_text(name)
    WorkDirectory(attempts[0], ".", of_ranks=False).end([], ["model.pt: No space left"])
    WorkDirectory(attempts[1], ".", of_ranks=False).begin()
    assert (run.work / "later").read_text() == "later"
    assert (attempts[0].kept / "n1" / "out").read_text() == "out"
    [record] = files.read_lines(run.ledger)
    assert (record["files"], record["names"]) == (1, ["later"])
    where = attempts[0].kept / "n1"
    assert record["failed"] == [f"out: Is a directory; it is in {where}", "model.pt: No space left"]
    assert capfd.readouterr().out.count("not put into") == 2
    (run.work / "out.n1" / "x").rmdir()
    (run.work / "out.n1").rmdir()
    WorkDirectory(attempts[2], ".", of_ranks=False).begin()
    assert (run.work / "out.n1").read_text() == "out"
    assert not attempts[0].kept.exists()


def test_what_a_lost_node_keeps_late_is_put_in_place_by_the_last_attempt(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "study" / "runs" / "3")
    first, second = (WorkDirectory(run.attempt(one), ".", of_ranks=False) for one in (1, 2))
    for number in (1, 2):
        run.attempt(number).directory.mkdir(parents=True)
    first.end([], [])
    second.begin()
    (run.attempt(1).kept / "n1").mkdir(parents=True)
    (run.attempt(1).kept / "n1" / "late").write_text("it had lost its network")
    second.end([], ["model.pt: No space left"])
    assert (run.work / "late").read_text() == "it had lost its network"
    attempts = [attempt.kept for attempt in ledger.read(run)]
    assert [one and (one["names"], one["failed"]) for one in attempts] == [
        (["late"], []),
        ([], ["model.pt: No space left"]),
    ]


def test_a_link_that_a_lost_node_left_is_not_what_the_program_wrote(
    tmp_path: Path, work: Path
) -> None:
    gone = tmp_path / "hpcrun-0123456789ab" / "attempt-1" / "code"
    (work / "train.py").symlink_to(gone / "train.py")
    (work / "state.json").write_text("mine")
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as stream:
        for name in ("train.py", "state.json"):
            stream.addfile(tarfile.TarInfo(name))
    assert list(work_directory._digests(archive, work)) == ["state.json"]


def test_no_link_is_followed_out_of_the_working_directory(tmp_path: Path, work: Path) -> None:
    (tmp_path / "home").mkdir()
    (work / "data").symlink_to(tmp_path / "home")
    (work / "file").write_text("in the way")
    keep(tmp_path, "n1", "data/secret", "1")
    work_directory.put(keep(tmp_path, "n1", "file/x", "2"), work)
    assert list((tmp_path / "home").iterdir()) == []
    assert (work / "data.n1" / "secret").read_text() == "1"
    assert (work / "file.n1" / "x").read_text() == "2"


def test_an_archive_that_names_places_outside_changes_nothing(tmp_path: Path, work: Path) -> None:
    (tmp_path / "outside").write_text("1")
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as stream:
        for name in ("../outside", str(tmp_path / "outside")):
            stream.addfile(tarfile.TarInfo(name))
    assert work_directory._digests(archive, work) == {}


def test_the_record_of_what_was_kept(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "study" / "runs" / "3")
    run.attempt(1).directory.mkdir(parents=True)
    run.work.mkdir()
    WorkDirectory(run.attempt(1), ".", of_ranks=False).end([], ["model.pt: No space left"])
    [record] = files.read_lines(run.ledger)
    assert (record["event"], record["files"]) == ("kept", 0)
    assert record["failed"] == ["model.pt: No space left"]
    assert ledger.read(run)[0].kept == record


def test_what_a_short_run_adds_to_what_its_program_writes(tmp_path: Path) -> None:
    """Of a sweep of 1,000 runs: `python -m bench.footprint`."""
    found = footprint.measure(footprint.sweep(tmp_path, 4))
    assert (found["runs"], found["outputs"]) == (4, 4)
    assert found["files"] <= footprint.MOST_FILES, found["of one run"]
    assert found["bytes"] <= footprint.MOST_BYTES, found["of one run"]
    assert (found["archives of code"], found["copies of code"]) == (1, 0)
