"""A queue that has room for a part of a sweep only (tests/support/desk.py is that queue)."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from hpcrun import activity
from hpcrun.compile import compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.errors import ClusterRefused, Interrupted, UsageError
from hpcrun.state.layout import experiment
from hpcrun.submission import feeder, sbatch
from hpcrun.submission.submission_dir import Submitted
from hpcrun.submission.submit import Request, preview_chain, submit
from tests.support import command
from tests.support.desk import Desk, runs_of
from tests.support.slurm_shim import Shim

EACH_ONCE = Counter(["x=0", "x=1", "x=2", "x=7,nodes=2", "x=8,nodes=2"])


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk(tmp_path)
    monkeypatch.setattr(feeder, "PAUSES", (0.05, 0.1))
    monkeypatch.setenv("PATH", desk.environment["PATH"])
    monkeypatch.chdir(tmp_path / "code")
    return desk


def _put(desk: Desk, name: str, number: int) -> None:
    path = desk.directory / "bin" / name
    path.with_suffix(".new").write_text(str(number))
    path.with_suffix(".new").rename(path)


def _submit(desk: Desk, hear: Callable[[str], None] = print) -> Submitted:
    compiled = compile_spec(Path("e.yaml"), root=desk.root)
    return submit(compiled, Request(["hpcrun"], hear))


def _ends_one_after_the_other(
    desk: Desk, over: threading.Event, room: int = 2, since: Callable[[], bool] = lambda: True
) -> threading.Thread:
    """A job ends whenever the queue was full for a moment, once ``since`` is true."""

    def end() -> None:
        ended = 0
        while not over.wait(0.4):
            if since() and sum(len(runs_of(script)) for script in desk.scripts) - ended == room:
                ended += 1
                _put(desk, "over", ended)

    thread = threading.Thread(target=end)
    thread.start()
    return thread


def test_the_rest_follows_as_jobs_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    _put(desk, "room", 2)
    said: list[str] = []
    begun: list[str] = []
    doing = activity.doing

    def note(what: str | Callable[[], str]) -> AbstractContextManager[None]:
        begun.append(what() if callable(what) else what)
        return doing(what)

    monkeypatch.setattr(activity, "doing", note)
    over = threading.Event()

    def is_told() -> bool:
        return any("3 of 5 runs wait here" in line for line in said)

    thread = _ends_one_after_the_other(desk, over, since=is_told)
    try:
        submitted = _submit(desk, said.append)
    finally:
        over.set()
        thread.join()
    assert desk.queued() == EACH_ONCE
    assert sorted(run for array in submitted.arrays for run in array.runs) == [0, 1, 2, 3, 4]
    assert len({array.job_id for array in submitted.arrays}) == len(submitted.arrays)
    assert submitted.arrays[0].runs == (0, 1)
    assert any(
        "AssocMaxSubmitJobLimit" in line and "3 of 5 runs wait here" in line for line in said
    )
    # One wait, however often it is tried: else its length and its lines began anew each time.
    assert sum("still to submit" in what for what in begun) == 1
    assert "submitted job 100: runs 0-1 (2 of 5)" in said
    assert said[-1].endswith("(5 of 5)")
    by_run = {run.run: run.job_id for run in submitted.runs}
    assert by_run[1] == "100_1"
    _put(desk, "over", 0)
    assert "nothing to submit" in _told_again(desk)


def _told_again(desk: Desk) -> str:
    said: list[str] = []
    _submit(desk, said.append)
    return "\n".join(said)


def test_ctrl_c_says_what_was_submitted_and_the_same_command_goes_on(desk: Desk) -> None:
    _put(desk, "room", 2)

    def hear(line: str) -> None:
        if "wait here" in line:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as caught:
        _submit(desk, hear)
    assert "submitted: job 100: runs 0-1" in caught.value.message
    assert "not submitted: runs 2-4" in caught.value.message
    assert "the same command submits the rest" in (caught.value.hint or "")
    (desk.directory / "bin" / "room").unlink()
    _submit(desk)
    assert desk.queued() == EACH_ONCE


def test_ctrl_c_while_slurm_is_asked_waits_for_its_answer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = feeder.sbatch.submit

    def pressed(script: Path, *more: str | None, **options: int) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        return ask(script, *more, **options)

    monkeypatch.setattr(feeder.sbatch, "submit", pressed)
    with pytest.raises(
        Interrupted, match="submitted: job 100: runs 0-2\n    not submitted: runs 3-4"
    ):
        _submit(desk)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(feeder.sbatch, "submit", ask)
    _submit(desk)
    assert desk.queued() == EACH_ONCE


def test_ctrl_c_while_there_is_no_room_counts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """At MaxJobCount most of the time passes in sbatch, which then refuses."""
    _put(desk, "room", 0)
    ask = feeder.sbatch.submit

    def pressed(script: Path, *more: str | None, **options: int) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return ask(script, *more, **options)

    monkeypatch.setattr(feeder.sbatch, "submit", pressed)
    with pytest.raises(Interrupted, match="interrupted: nothing was submitted"):
        _submit(desk)
    assert not desk.root.exists()


def test_a_limit_that_no_end_of_a_job_lifts_is_a_refusal(desk: Desk) -> None:
    _put(desk, "room", 0)
    with pytest.raises(ClusterRefused, match="AssocMaxSubmitJobLimit"):
        _submit(desk)
    assert not desk.root.exists()


def test_an_answer_that_is_lost_while_it_waits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm took the job; it is looked for before it is submitted once more."""
    _put(desk, "room", 3)
    ask = feeder.sbatch.submit

    def lose(script: Path, *more: str | None, **options: int) -> str:
        job_id = ask(script, *more, **options)
        if job_id == "101":
            raise feeder.sbatch.NoAnswer("sbatch's answer got lost")
        return job_id

    monkeypatch.setattr(feeder.sbatch, "submit", lose)
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        if "wait here" in line:
            _put(desk, "over", 3)

    submitted = _submit(desk, hear)
    assert any(line.startswith("sbatch's answer got lost; ") for line in said)
    assert desk.queued() == EACH_ONCE
    assert sorted(run for array in submitted.arrays for run in array.runs) == [0, 1, 2, 3, 4]
    assert "nothing to submit" in _told_again(desk)


def test_ctrl_c_before_anything_was_accepted_leaves_nothing(desk: Desk) -> None:
    _put(desk, "room", 1)
    _put(desk, "over", -1)

    def hear(line: str) -> None:
        if "wait here" in line:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="interrupted: nothing was submitted"):
        _submit(desk, hear)
    assert not desk.root.exists()


def test_waiting_runs_are_shown_and_can_be_cancelled(desk: Desk) -> None:
    _put(desk, "room", 2)
    told: list[dict[str, Any]] = []

    def hpcrun(*arguments: str) -> str:
        answer = command.hpcrun(*arguments, root=desk.root)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def hear(line: str) -> None:
        if "wait here" in line:
            told.extend(json.loads(hpcrun("status", "e", "--json")))
            hpcrun("cancel", "e/2", "e/4", "--yes")
            _put(desk, "over", 2)

    submitted = _submit(desk, hear)
    assert [run["state"] for run in told] == ["pending"] * 2 + ["waiting"] * 3
    assert "waits for room in the queue, in the submit on" in told[2]["reason"]
    assert desk.queued() == EACH_ONCE - Counter(["x=2", "x=8,nodes=2"])
    assert [run.action for run in submitted.runs] == ["new", "new", "cancelled", "new", "cancelled"]
    after = json.loads(hpcrun("status", "e", "--json"))
    assert [run["state"] for run in after][2::2] == ["cancelled", "cancelled"]


def test_a_submit_that_lost_its_lock_stops(desk: Desk) -> None:
    """Held up for long, and another one went on in its place."""
    _put(desk, "room", 2)

    def hear(line: str) -> None:
        if "wait here" in line:
            (owner,) = experiment(desk.root, "e").submit_lock.iterdir()
            owner.rename(owner.with_name("else:1:1"))

    with pytest.raises(UsageError, match="another submit of e went on in place of this one"):
        _submit(desk, hear)
    assert sorted(run for script in desk.scripts for run in runs_of(script)) == [0, 1]


def test_pieces_keep_max_parallel(desk: Desk) -> None:
    """What may run at once is shared out; where that is less than one each, jobs go in turn."""
    desk.spec([0, 1, 2, 3, 4, 5], max_parallel=3)
    _submit(desk)
    texts = [script.read_text() for script in desk.scripts]
    assert ["--array=0-5%2" in texts[0], "--array=6-7%1" in texts[1]] == [True, True]
    calls = (desk.directory / "bin" / "calls").read_text().splitlines()
    assert not any("dependency" in call for call in calls)


def test_pieces_of_an_array_keep_max_parallel(desk: Desk) -> None:
    desk.spec([0, 1, 2, 3, 4, 5], max_parallel=3)
    _put(desk, "room", 3)
    over = threading.Event()
    thread = _ends_one_after_the_other(desk, over, 3)
    try:
        submitted = _submit(desk)
    finally:
        over.set()
        thread.join()
    taken = [array for array in submitted.arrays if array.array == 0]
    assert taken[0].runs == (0, 1, 2)
    calls = (desk.directory / "bin" / "calls").read_text().splitlines()
    waits = {call.split()[-1]: call for call in calls}
    second = str(desk.scripts[1])
    # Two of the first piece may run, so none of the second before they have ended.
    assert "--dependency=afterany:100 " in waits[second]


def test_more_arrays_than_may_run_at_once(desk: Desk) -> None:
    desk.spec([0, 1], max_parallel=1)
    _submit(desk)
    calls = (desk.directory / "bin" / "calls").read_text().splitlines()
    assert ["--dependency=afterany:100" in call for call in calls] == [False, True]


@pytest.mark.parametrize(
    ("answer", "limits", "sizes"),
    [
        ("MaxArraySize = 4", "", [4, 2]),
        ("MaxArraySize = 4001", "", [6]),
        ("MaxArraySize = 4001\nSchedulerParameters = defer,max_array_tasks=3", "", [3, 3]),
        ("MaxArraySize = 4001", "limits: {max_array_size: 5}", [5, 1]),
        ("MaxArraySize = 4", "limits: {max_array_size: 5}", [4, 2]),
        ("MaxArraySize = 0", "", [1] * 6),
        ("", "limits: {max_array_size: 5}", [5, 1]),
    ],
)
def test_arrays_are_as_long_as_slurm_takes_them(
    desk: Desk, shim: Shim, answer: str, limits: str, sizes: list[int]
) -> None:
    shim.answer("scontrol", {"out": answer, "code": not answer})
    Path("configs/clusters").mkdir(parents=True)
    Path("configs/clusters/mine.yaml").write_text(f"executor: slurm\n{limits}\n")
    spec = {"name": "a", "entry": ["true"], "cluster": "mine", "config": {"x": 0}}
    spec["sweep"] = {"grid": {"x": [*range(6)]}}
    Path("a.yaml").write_text(json.dumps(spec))
    said: list[str] = []
    found = sbatch.with_array_size(compile_spec(Path("a.yaml"), root=desk.root), said.append)
    assert [len(array.runs) for array in freeze(found).arrays] == sizes
    assert said == []


def test_a_length_of_arrays_that_is_guessed_is_told(desk: Desk, shim: Shim) -> None:
    shim.answer("scontrol", {"code": 1})
    spec = {"name": "a", "entry": ["true"], "cluster": "slurm", "config": {"x": 0}}
    spec["sweep"] = {"grid": {"x": {"range": [1001]}}}
    Path("a.yaml").write_text(json.dumps(spec))
    said: list[str] = []
    compiled = compile_spec(Path("a.yaml"), root=desk.root)
    assert sbatch.with_array_size(compiled, said.append) is compiled
    assert "MaxArraySize is not known" in "".join(said)


def test_submit_and_its_dry_run_ask_for_that_length(desk: Desk, shim: Shim) -> None:
    shim.answer("scontrol", {"out": "MaxArraySize = 2\n"})
    compiled = compile_spec(Path("e.yaml"), root=desk.root)
    (preview,) = preview_chain([compiled], Request(["hpcrun"], print))
    assert [array.runs for array in preview.plan.arrays] == [(0, 1), (2,), (3, 4)]
    assert [array.runs for array in _submit(desk).arrays] == [(0, 1), (2,), (3, 4)]
