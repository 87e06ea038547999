"""Node-local directories: an agent's own, and those of agents that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hpcrun.run.node.node_dir import NodeDir, sweep
from hpcrun.state.node_layout import NodePaths

HOLDER = """
import sys
from hpcrun.run.node.node_dir import NodeDir
print(NodeDir(sys.argv[1], "n1").path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def _hold(token: str) -> tuple[subprocess.Popen[str], Path]:
    command = [sys.executable, "-c", HOLDER, token]
    holder = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
    assert holder.stdout is not None
    return holder, Path(holder.stdout.readline().strip())


def test_agents_of_one_attempt_on_one_machine_have_one_each(base: Path) -> None:
    first, second = NodeDir("token", "n1"), NodeDir("token", "n2")
    assert second.path.name == f"{first.path.name}-n2"
    assert first.path.stat().st_mode & 0o777 == 0o700
    first.remove()
    assert list(base.iterdir()) == [second.path]


def test_the_next_agent_on_the_node_has_what_the_one_before_left(base: Path) -> None:
    """It was killed with its step."""
    killed = NodeDir("token", "n1")
    saves = NodePaths(killed.path).checkpoints
    saves.mkdir()
    (killed.begin(1) / "code").mkdir()
    os.close(killed._lock)  # as the kernel does
    following = NodeDir("token", "n1")
    assert following.path == killed.path
    assert saves.is_dir()
    assert list(following.begin(1).iterdir()) == []
    assert NodeDir("token", "n1").path != killed.path, "the one before it lives"
    following.remove()
    assert not killed.path.exists()


def test_the_code_is_found_at_one_path_on_all_nodes(base: Path) -> None:
    """Where nodes have temporary directories of different names."""
    mine, first = NodeDir("token", "n1"), base / "tmp-of-n0" / "hpcrun-token"
    first.parent.mkdir()
    code = mine.begin(1) / "code"
    code.mkdir()
    # A second agent of a machine finds it there.
    for agent in (mine, NodeDir("token", "n2"), mine):
        agent.show(code, first / "attempt-1" / "code")
    assert (first / "attempt-1" / "code").resolve() == code
    sweep(first.parent)
    assert first.exists(), "its agent lives"
    mine.remove()
    assert not first.exists()
    with pytest.raises(OSError, match="No such file"):
        mine.show(code, base / "nothing" / "hpcrun-token" / "attempt-1" / "code")


def test_what_a_killed_agent_left_goes_with_the_next_one(base: Path) -> None:
    killed, left = _hold("killed")
    living, used = _hold("living")
    (left / "code").mkdir()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    mine = NodeDir("mine", "n1")
    assert sorted(base.iterdir()) == sorted([mine.path, used])
    living.communicate("")


def test_what_a_killed_agent_left_without_a_lock_goes_once_it_is_old(base: Path) -> None:
    """It was killed as it made its directory, or as it rekilled it."""
    torn, new, other = (base / f"hpcrun-{name}" for name in ("0a" * 6, "1b" * 6 + "-n1", "other"))
    for directory in (torn, new, other):
        (directory / "attempt-1" / "code").mkdir(parents=True)
    for directory in (torn, other):
        os.utime(directory, (1, 1))
    sweep(base)
    assert sorted(base.iterdir()) == sorted([new, other])


def test_an_agent_that_is_killed_as_it_removes_its_directory_leaves_nothing_for_good(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = NodeDir("0c" * 6, "n1")
    (mine.path / "attempt-1").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("hpcrun.run.node.node_dir.shutil.rmtree", lambda *_, **__: None)
        mine.remove()
    assert not mine.path.exists()
    sweep(base)
    assert list(base.iterdir()) == []


def test_only_what_is_surely_a_dead_agents_own_is_swept(base: Path) -> None:
    unlocked, foreign, other = base / "hpcrun-new", base / "hpcrun-foreign", base / "else"
    for directory in (unlocked, foreign, other):
        directory.mkdir()
    for directory in (foreign, other):
        (directory / "lock").touch()
    link = base / "hpcrun-link"
    link.symlink_to(other)
    if os.geteuid() == 0:
        os.chown(foreign, 61500, 61500)
    else:
        (foreign / "lock").unlink()
    sweep(base)
    assert sorted(base.iterdir()) == sorted([unlocked, foreign, other, link])
