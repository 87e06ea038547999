"""`exec`, `shell` and `stacks` beside the ranks of a run on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.cli import exec
from hpcrun.control import beside_rank
from hpcrun.run.protocol.launch import Launch
from hpcrun.state import layout
from hpcrun.submission.local import processes
from tests.support import command
from tests.support.waiting import until

WAIT = """\
import os, pathlib, time

def wait_for_the_word():
    while not pathlib.Path("word").exists():
        time.sleep(0.05)

print("rank", os.environ["RANK"], flush=True)
wait_for_the_word()
print("said", flush=True)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of two ranks that wait until a file is there, and another that is over."""
    place = tmp_path_factory.mktemp("beside")
    (place / "wait.py").write_text(WAIT)
    spec = {
        **{"name": "e", "cluster": "local", "entry": "wait.py", "flags": "none"},
        **{"resources": {"ntasks_per_node": 2}, "environment": {"python": sys.executable}},
    }
    (place / "e.yaml").write_text(json.dumps(spec))
    (place / "over.yaml").write_text(json.dumps({**spec, "name": "over", "entry": ["true"]}))
    assert _hpcrun(place, "submit", "over.yaml", "--wait").returncode == 0
    assert _hpcrun(place, "submit", "e.yaml").returncode == 0
    until(lambda: "rank 1" in _hpcrun(place, "logs", "e").stdout, 60)
    yield place
    for name in ("e", "over"):
        for submission in layout.experiment(place / "root", name).submissions():
            processes.kill_all(submission.directory)


def _hpcrun(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "HPCRUN_")) or name == "HPCRUN_PROGRESS"
    }
    return command.hpcrun(
        *arguments, cwd=place, env={**environment, "HPCRUN_ROOT": str(place / "root")}
    )


def test_a_command_has_the_place_of_the_rank_and_takes_no_part(place: Path) -> None:
    shown = "echo $RANK/$WORLD_SIZE $HPCRUN_RUN ${HPCRUN_LAUNCH-none} ${HPCRUN_METRICS_FILE-none}"
    done = _hpcrun(place, "exec", "e/0", "--rank", "1", "sh", "-c", f"{shown}; pwd; exit 7")
    assert done.returncode == 7, done.stderr
    first, directory = done.stdout.splitlines()
    assert first == "1/2 e/0 none none"
    assert directory == str(place / "root" / "e" / "runs" / "0" / "work")
    done = _hpcrun(place, "exec", "e", "--", sys.executable, "-c", "import sys; print(sys.argv)")
    assert (done.returncode, done.stdout) == (0, "['-c']\n")


def test_a_program_with_a_session_beside_a_rank_is_no_rank(place: Path) -> None:
    program = "import hpcrun; print(hpcrun.session().rank, hpcrun.session().world_size)"
    done = _hpcrun(place, "exec", "e/0", "-r", "1", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() in (["0", "1"], ["1", "2"])
    assert not list((place / "root" / "e").rglob("session.jsonl"))


def test_stacks_of_all_ranks_together(place: Path) -> None:
    done = _hpcrun(place, "stacks", "e/0")
    assert done.returncode == 0, done.stderr
    title, first, *rest = done.stdout.splitlines()
    assert title == "rank 0-1 (2) on local0:"
    assert first.startswith("  File ")
    assert "in wait_for_the_word" in done.stdout
    assert rest[-1].endswith("in <module>")
    data = json.loads(_hpcrun(place, "stacks", "e/0", "--rank", "1", "--json").stdout)
    assert [(one["rank"], one["node"]) for one in data] == [(1, "local0")]
    assert "wait_for_the_word" in data[0]["text"]


@pytest.mark.skipif(
    not shutil.which("bwrap")
    or subprocess.run(
        ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"], capture_output=True, check=False
    ).returncode
    != 0,
    reason="takes bubblewrap and user namespaces",
)
def test_stacks_of_a_container_with_users_of_its_own(place: Path) -> None:
    """A container beside it may not look into it: the kernel lets its owner, outside, alone."""
    container = {
        **{"image": "/", "runtime": "bubblewrap", "options": ["--unshare-user"]},
        **{"python": sys.executable, "mounts": [str(Path(sys.prefix).resolve().parent)]},
    }
    spec = json.loads((place / "e.yaml").read_text())
    inside = {**spec, "name": "inside", "environment": {"container": container}}
    (place / "inside.yaml").write_text(json.dumps(inside))
    try:
        assert _hpcrun(place, "submit", "inside.yaml").returncode == 0
        until(lambda: "rank 1" in _hpcrun(place, "logs", "inside").stdout, 60)
        done = _hpcrun(place, "stacks", "inside/0")
        assert "rank 0-1 (2) on local0:" in done.stdout, done.stdout + done.stderr
        assert "in wait_for_the_word" in done.stdout
    finally:
        _hpcrun(place, "cancel", "inside", "--yes")


def test_ranks_that_do_not_tell_are_explained() -> None:
    launch = Launch.__new__(Launch)
    object.__setattr__(launch, "rank_python", {"srun": ["--container-image=x"]})
    object.__setattr__(launch, "first_rank", 0)
    live = beside_rank.LiveRun("e/0", (launch,), "123", (None,))
    told = exec._why_silent(live, beside_rank.RankStack(0, "n1", None))
    assert "in a container of Pyxis, into which another one beside it may not look" in told
    assert "`srun --jobid=123 --overlap --nodelist=n1 py-spy dump --pid PID`" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exec", "e/0"], "exec wants to be told which command"),
        (["exec", "e/0", "-r", "2", "true"], "e/0 has no rank 2: it has 0-1"),
        (
            ["exec", "over/0", "true"],
            "over/0 is completed (its 2 ranks never met: each worked alone): there is",
        ),
        (["stacks", "over"], "there is no rank to be beside"),
        (["stacks", "e", "--rank", "5"], "e/0 has no rank 5"),
        (["shell", "e/0"], "a shell wants a terminal"),
        (["exec", "nobody/0", "true"], "nobody"),
    ],
)
def test_what_cannot_be_is_told(place: Path, words: list[str], said: str) -> None:
    done = _hpcrun(place, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_command_that_is_not_there(place: Path) -> None:
    done = _hpcrun(place, "exec", "e/0", "no-such-command")
    assert (done.returncode, done.stdout) == (127, "")
    assert "'no-such-command' cannot be started: No such file or directory" in done.stderr


def test_the_run_goes_on_to_its_end(place: Path) -> None:
    (place / "root" / "e" / "runs" / "0" / "work" / "word").touch()
    done = _hpcrun(place, "submit", "e.yaml", "--wait")
    assert done.returncode == 0, done.stderr
    assert _hpcrun(place, "logs", "e").stdout.count("said") == 1
    done = _hpcrun(place, "why", "e/0")
    assert "1 attempt" in done.stdout, done.stdout
