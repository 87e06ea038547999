"""``hpcrun top`` at a real terminal (tmux), typed by a person; Slurm's clients are stand-ins."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.cli.main import main
from hpcrun.state import ledger
from tests.support import command
from tests.support.experiment import shim_calls, slurm_shim
from tests.support.tmux import Tmux
from tests.support.top_study import TopStudy

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")


@pytest.fixture
def study(tmp_path: Path) -> TopStudy:
    return TopStudy(tmp_path)


def _shell(study: TopStudy, directory: Path, columns: int, rows: int) -> Iterator[Tmux]:
    """A shell at a terminal, with a line above the prompt."""
    with Tmux(["sh"], directory, columns=columns, rows=rows, env=study.env) as terminal:
        terminal.wait_for(lambda text: text.strip() != "")
        terminal.type("echo above; stty -g > before")
        terminal.press("Enter")
        terminal.wait_for("\nabove")
        yield terminal


@pytest.fixture
def small(study: TopStudy, tmp_path: Path) -> Iterator[Tmux]:
    yield from _shell(study, tmp_path / "terminal", 80, 24)


@pytest.fixture
def large(study: TopStudy, tmp_path: Path) -> Iterator[Tmux]:
    yield from _shell(study, tmp_path / "terminal", 200, 50)


def _type_command(terminal: Tmux, *arguments: str) -> None:
    typed = " ".join([sys.executable, "-m", "hpcrun", "top", *arguments])
    terminal.type(f"cd {Path(__file__).parents[3]}; {typed}; echo code=$?")
    terminal.press("Enter")


def _row(text: str, run: str) -> str:
    return next(line for line in text.splitlines() if f"{run} " in line)


def test_at_80_by_24(study: TopStudy, small: Tmux, tmp_path: Path) -> None:
    _type_command(small)
    text = small.wait_for(
        "ablation/7", "▁", "8 runs | by STATE | 3 running, 2 completed, 2 pending, 1 failed"
    )
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert {"RUN", "lr", "STATE", "CAUSE", "STEP", "loss", "TREND", "TOK/S", "ETA"} <= {
        *lines[2].split()
    }
    # Those at work come first, then trouble.
    assert [line[2:].split()[0] for line in lines[3:7]] == [
        f"ablation/{run}" for run in (0, 1, 2, 4)
    ]
    assert lines[3].startswith("> ")
    assert "64/100" in _row(text, "ablation/1")
    assert "preempted" in _row(text, "ablation/1")
    assert lines[-1].startswith("? help  / filter  Enter logs")

    # The filter is applied as one types.
    small.press("/")
    small.type("lr=")
    small.wait_for("(not applied)", "ablation/7")
    small.type("0.0003")
    small.wait_for("ablation/2", "filter lr=0.0003: 1", lambda text: "ablation/7" not in text)
    small.press("Enter")
    small.wait_for(lambda text: not text.splitlines()[-2].startswith("lr="))
    # Enter shows the logs of the only run there is, and goes on as lines come.
    small.press("Enter")
    small.wait_for("hpcrun logs ablation/2 -f", "step 41 of 100", "[following]")
    study.experiment.log(2, 1, 0, "a line that came later\n")
    small.wait_for("a line that came later")
    _back(small, "q")
    small.press("w")
    small.wait_for("hpcrun why ablation/2", "[ended]", "ablation/2: running, attempt 1")
    _back(small, "Escape")
    small.press("s")
    small.wait_for("hpcrun show ablation/2", "world_size")
    _back(small, "q")
    small.press("Escape")
    small.wait_for("ablation/7")

    small.press("2")
    text = small.wait_for("[2 queue]", "WHY")
    assert "ablation/6-7" in text
    assert "2030-01-02 03:04" in text
    assert "waits behind jobs of higher priority" in text
    small.press("3")
    text = small.wait_for("[3 nodes]", "gpu-a06", "GiB")
    assert "ablation/2" in _row(text, "gpu-a05")
    assert "%" in _row(text, "gpu-a05")
    small.press("?")
    small.wait_for("language of --where")
    _back(small, "q")
    small.press("q")
    text = small.wait_for("code=0")
    assert "\nabove" in text, "the terminal is not as it was"
    _check_modes(small)


def _back(terminal: Tmux, key: str) -> None:
    """Close a page."""
    terminal.press(key)
    terminal.wait_for("hpcrun top ")


def _check_modes(terminal: Tmux) -> None:
    """The terminal's modes are those of before."""
    terminal.type(
        'cd - >/dev/null; clear; [ "$(stty -g)" = "$(cat before)" ] && echo "same"" modes"'
    )
    terminal.press("Enter")
    terminal.wait_for("same modes")


def test_at_200_by_50(large: Tmux) -> None:
    _type_command(large)
    text = large.wait_for("ablation/7", "▁")
    header = text.splitlines()[2].split()
    assert {"ATTEMPT", "PROGRESS", "TREND", "TOK/S", "ETA", "QUEUED", "JOB", "NODES"} <= {*header}
    assert "gpu-a01,gpu-a02" in _row(text, "ablation/0")
    # What rows leave of its height has the end of the log of the run under the cursor.
    text = large.wait_for("ablation/0, rank 0 of attempt 1, its last lines", "step 90 of 100")
    assert "step 70 of 100" in text
    assert sum(not line.strip() for line in text.splitlines()) < 8
    large.press("j")
    large.wait_for("ablation/1, rank 0 of attempt 2", "step 64 of 100")
    large.press("t")
    large.wait_for(lambda text: "its last lines" not in text)
    large.press("t")
    large.wait_for("ablation/1, rank 0 of attempt 2")
    # Another size, there and back.
    large.resize(80, 24)
    large.wait_for(
        lambda text: "JOB" not in text.splitlines()[2] and "ETA" in text.splitlines()[2],
        lambda text: "its last lines" not in text,
    )
    large.resize(200, 50)
    large.wait_for(lambda text: "JOB" in text.splitlines()[2])
    # Ctrl-C leaves too.
    large.press("C-c")
    text = large.wait_for("code=130")
    assert "\nabove" in text
    assert "Traceback" not in text
    _check_modes(large)


def test_cancel_asks_and_names_the_runs(study: TopStudy, small: Tmux) -> None:
    _type_command(small)
    small.wait_for("ablation/7")
    small.press("Space", "Space")
    small.wait_for("2 marked", "*ablation/0", "*ablation/1")
    small.press("c")
    small.wait_for("Cancel 2 runs?", "ablation/0-1")
    small.press("n")
    small.wait_for(lambda text: "Cancel 2 runs?" not in text)
    assert not any(call.startswith("scancel") for call in shim_calls(study.shim))
    small.press("c")
    small.wait_for("Cancel 2 runs?")
    small.press("y")
    small.wait_for("hpcrun cancel ablation/0-1 --yes", "ablation/0: cancelled", "[ended]")
    assert any(call.startswith("scancel") for call in shim_calls(study.shim))
    paths = study.experiment.paths
    assert [ledger.intent(paths.run(run)) for run in (0, 1, 2)] == ["cancelled", "cancelled", None]
    small.press("q")
    small.wait_for("2 cancelled")


def test_a_silent_slurm_is_said_with_the_age_of_what_is_shown(study: TopStudy, small: Tmux) -> None:
    _type_command(small)
    small.wait_for("ablation/7", "2 pending")
    slurm_shim(study.shim, fail="Unable to contact slurm controller (connect failure)")
    text = small.wait_for("slurmctld does not answer", seconds=60)
    assert "ago" in next(line for line in text.splitlines() if "Slurm does not answer" in line)
    # The keys answer as before.
    small.press("3")
    small.wait_for("[3 nodes]", seconds=2)


def test_without_a_terminal(study: TopStudy) -> None:
    ended = command.hpcrun("top", env=study.env)
    assert ended.returncode == 2
    assert "top needs a terminal" in ended.stderr
    assert "hpcrun status" in ended.stderr


def test_without_textual(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "textual" else find(name)
    )
    with pytest.raises(SystemExit) as ended:
        main(["top"])
    assert ended.value.code == 2
    assert "pip install 'hpcrun[top]'" in capsys.readouterr().err
