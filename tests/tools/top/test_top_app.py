"""The screen of ``hpcrun top`` without a terminal: what it shows, and what its keys do."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from hpcrun.errors import BrokenFile
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.observe.status.status import RunStatus, statuses
from hpcrun.text import Say
from hpcrun.tools.top import top_app
from hpcrun.tools.top.pages import CommandPage
from hpcrun.tools.top.row_list import RowList
from hpcrun.tools.top.top_app import TopApp
from hpcrun.tools.top.top_model import TopModel
from hpcrun.tools.top.views import take
from tests.support.top_study import TopStudy

Found = tuple[list[Selected], list[RunStatus]]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TopStudy:
    found = TopStudy(tmp_path)
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(top_app, "INTERVAL", 0.2)
    return found


def _look(study: TopStudy) -> Callable[[Say], Found]:
    def look(warn: Say) -> Found:
        selected = Finder(study.root, warn).resolve([])
        return selected, statuses(selected, warn=warn)

    return look


def _text(app: TopApp) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def _until(pilot: Pilot, *wanted: str | Callable[[str], bool]) -> str:  # type: ignore[type-arg]
    deadline = time.monotonic() + 30
    while True:
        await pilot.pause(0.02)
        assert isinstance(pilot.app, TopApp)
        text = _text(pilot.app)
        if all(one in text if isinstance(one, str) else one(text) for one in wanted):
            return text
        assert time.monotonic() < deadline, f"no {wanted!r} in\n{text}"


def _use(
    look: Callable[[Say], Found],
    person: Callable[[Pilot, TopApp], Awaitable[None]],  # type: ignore[type-arg]
    size: tuple[int, int] = (80, 24),
) -> TopApp:
    app = TopApp(look)

    async def go() -> None:
        async with app.run_test(size=size) as pilot:
            await _until(pilot, lambda text: "looking …" not in text)
            await person(pilot, app)

    asyncio.run(go())
    return app


def _runs(text: str) -> list[str]:
    return [line[2:].split()[0] for line in text.splitlines() if line[2:].startswith("ablation/")]


def test_sorted_by_another_column(study: TopStudy) -> None:
    async def person(pilot: Pilot, app: TopApp) -> None:  # type: ignore[type-arg]
        await _until(pilot, "by STATE", "ablation/7")
        await pilot.press("<")
        await _until(pilot, "by lr")
        await pilot.press("-")
        text = await _until(pilot, "by lr, reversed")
        assert _runs(text)[:2] == ["ablation/7", "ablation/6"]
        # The cursor is on the run on which it was.
        assert next(line for line in text.splitlines() if line.startswith(">")).split()[1] == (
            "ablation/0"
        )

    _use(_look(study), person)


def test_a_filter_that_is_wrong_or_meets_nothing_is_said(study: TopStudy) -> None:
    async def person(pilot: Pilot, app: TopApp) -> None:  # type: ignore[type-arg]
        await pilot.press("/", *"nonsense=1", "enter")
        text = await _until(pilot, "not applied")
        assert "nonsense" in text
        assert "ablation/7" in text
        await pilot.press("escape", "/", *"lr=0.005")
        text = await _until(pilot, "filter lr=0.005: 1")
        assert _runs(text) == ["ablation/7"]
        await pilot.press("enter", "escape", "/", *"state=failed or step>=90")
        text = await _until(pilot, "step>=90: 4")
        assert sorted(_runs(text)) == [f"ablation/{run}" for run in (0, 3, 4, 5)]
        await pilot.press("enter", "escape", "/", *"ablation/0-1 or */7")
        text = await _until(pilot, "*/7: 3")
        assert sorted(_runs(text)) == [f"ablation/{run}" for run in (0, 1, 7)]
        await pilot.press("enter", "escape")
        text = await _until(pilot, lambda text: "filter" not in text.splitlines()[1])
        assert len(_runs(text)) == 8

    _use(_look(study), person)


def test_files_that_vanish_leave_what_was_known(study: TopStudy) -> None:
    async def person(pilot: Pilot, app: TopApp) -> None:  # type: ignore[type-arg]
        shutil.rmtree(study.experiment.run(0).directory.parent)
        await _until(pilot, "8 runs |", lambda text: "STEP" not in text.splitlines()[2])
        await pilot.press("3", "1", "s", "q", "w", "q")
        shutil.rmtree(study.root)
        text = await _until(pilot, "you have no experiment under", "what is shown is")
        assert len(_runs(text)) == 8
        await pilot.press("3", "2", "1")
        await _until(pilot, "[1 runs]")

    app = _use(_look(study), person)
    assert app.return_value is None


def test_storage_that_is_slow_does_not_keep_keys_waiting(
    study: TopStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_app, "LONG", 0.3)
    look, slow, gate = _look(study), threading.Event(), threading.Event()

    def stuck(warn: Say) -> Found:
        if slow.is_set():
            gate.wait(30)
        return look(warn)

    async def person(pilot: Pilot, app: TopApp) -> None:  # type: ignore[type-arg]
        slow.set()
        await _until(pilot, "no answer of Slurm or the storage for", "what is shown is")
        began = time.monotonic()
        await pilot.press("2")
        assert "[2 queue]" in _text(app)
        assert time.monotonic() - began < 2
        slow.clear()
        gate.set()
        await _until(pilot, lambda text: "no answer" not in text)

    _use(stuck, person)


def test_what_cannot_be_read_is_said_and_read_again(study: TopStudy) -> None:
    look, broken = _look(study), threading.Event()

    def failing(warn: Say) -> Found:
        warn("passed over: a plan\nthat is torn")
        if broken.is_set():
            raise BrokenFile("plan.json cannot be read")
        return look(warn)

    async def person(pilot: Pilot, app: TopApp) -> None:  # type: ignore[type-arg]
        await _until(pilot, "passed over: a plan that is torn")
        broken.set()
        await _until(pilot, "plan.json cannot be read", "ablation/7")
        broken.clear()
        await _until(pilot, lambda text: "plan.json" not in text)

    _use(failing, person)


def test_a_bug_ends_the_screen_and_is_passed_on(study: TopStudy) -> None:
    def wrong(warn: Say) -> Found:
        raise ZeroDivisionError

    app = TopApp(wrong)

    async def go() -> None:
        async with app.run_test() as pilot:
            await pilot.pause(1)

    asyncio.run(go())
    assert isinstance(app.return_value, ZeroDivisionError)


def test_control_characters_are_shown_and_not_sent(study: TopStudy) -> None:
    study.experiment.submit(
        [8, 9], swept={8: {"config.lr": "a\x1b]0;owned\x07b"}, 9: {"config.lr": "[bold]x[/]"}}
    )
    study.experiment.log(2, 1, 0, "before \x1b[2J after\n")

    async def person(pilot: Pilot, app: TopApp) -> None:  # type: ignore[type-arg]
        text = await _until(pilot, "ablation/9")
        assert "\x1b" not in text
        assert "a\\x1b]0;owned\\x07b" in text
        assert "[bold]x[/]" in text
        await pilot.press("down", "down", "enter")
        text = await _until(pilot, "before ", " after")
        assert "\x1b" not in text
        assert isinstance(app.screen, CommandPage)
        pages.append(app.screen._process)

    pages: list[subprocess.Popen[str] | None] = []
    _use(_look(study), person, (120, 40))
    # The command on the page goes with the screen.
    assert pages[0] is not None
    assert pages[0].wait(30) < 0


def test_requeue_is_asked_with_the_hours_above_the_profiles_limit(study: TopStudy) -> None:
    plan = study.experiment.paths.submission(1).plan
    data = json.loads(plan.read_text())
    data["cluster"]["confirm_above"] = {"gpu_hours": 20, "cpu_hours": None}
    plan.write_text(json.dumps(data))
    model = TopModel()
    model.take(take(_look(study)), is_typed=False)
    assert model.question("requeue", [0]) == "Requeue 1 run?  ablation/0"
    assert model.question("requeue", [0, 1]) == (
        "Requeue 2 runs, at most 32 GPU-hours; the cluster profile 'generic' asks above 20 "
        "(confirm_above.gpu_hours)?  ablation/0-1"
    )
    assert model.question("cancel", [0, 1]) == "Cancel 2 runs?  ablation/0-1"


def test_only_what_can_be_cancelled_is_asked_about(study: TopStudy) -> None:
    async def person(pilot: Pilot, app: TopApp) -> None:  # type: ignore[type-arg]
        await _until(pilot, "ablation/7")
        await pilot.press("end", "up", "up", "up")
        await pilot.press("c")
        await _until(pilot, "nothing to cancel: ablation/3 is completed")
        await pilot.press("r")
        await _until(pilot, "nothing to requeue: ablation/3 is completed")
        await pilot.press("space", "space", "space", "c")
        await _until(pilot, "Cancel 1 run?", "ablation/6")
        await pilot.press("enter", "x")
        await _until(pilot, "Cancel 1 run?")
        await pilot.press("n")
        await _until(pilot, lambda text: "Cancel" not in text)
        await pilot.press("u")
        await _until(pilot, lambda text: "marked" not in text)

    _use(_look(study), person)


def test_a_look_that_is_due_while_the_screen_is_taken_down_draws_nothing(
    study: TopStudy,
) -> None:
    """Textual lets timers act while it removes widgets, and after it has removed the screen."""

    async def person(_pilot: Pilot, app: TopApp) -> None:  # type: ignore[type-arg]
        await app.screen.query(RowList).remove()
        app._tick()
        app.on_row_list_moved()

    app = _use(_look(study), person)
    app._tick()
    assert app.return_value is None


def test_requeue_says_what_the_command_says(study: TopStudy) -> None:
    """Slurm refuses: its words are shown, and the exit code."""
    scontrol = study.shim / "scontrol"
    scontrol.write_text("#!/bin/sh\necho 'Job is not requeueable' >&2\nexit 1\n")
    scontrol.chmod(0o755)

    async def person(pilot: Pilot, app: TopApp) -> None:  # type: ignore[type-arg]
        await _until(pilot, "ablation/7")
        await pilot.press("r")
        await _until(pilot, "Requeue 1 run?", "ablation/0")
        await pilot.press("y")
        said = "hpcrun requeue ablation/0 --yes", "Job is not requeueable", "ended with exit code 3"
        await _until(pilot, *said)
        await pilot.press("q")
        await _until(pilot, "[1 runs]")

    _use(_look(study), person, (160, 24))


def test_five_thousand_rows(study: TopStudy) -> None:
    """Only the visible rows are drawn: a key answers at once."""
    study.experiment.submit(range(5000), swept={n: {"config.lr": n * 1e-6} for n in range(5000)})

    async def person(pilot: Pilot, app: TopApp) -> None:  # type: ignore[type-arg]
        await _until(pilot, "of 5,000")
        await pilot.press("end")
        text = await _until(pilot, "rows 4,9")
        assert "-5,000 of 5,000" in text
        took = []
        for key in ("home", "pagedown", "down", "down", "pageup", "end", "up", "home", "down"):
            began = time.monotonic()
            await pilot.press(key)
            _text(app)
            took.append(time.monotonic() - began)
        # What a key takes, without the pauses of the pilot, is a few milliseconds.
        assert sorted(took)[len(took) // 2] < 0.5

    _use(_look(study), person)
