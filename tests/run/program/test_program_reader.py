"""Programs that never heard of hpcrun, on the local executor: what is known of them afterwards."""

from __future__ import annotations

import json
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrun.observe.diagnosis import narrative
from hpcrun.observe.diagnosis.attempts import RunStory, stories
from hpcrun.observe.read.selection import Finder
from hpcrun.state import files, ledger, session_log
from hpcrun.state.plan import Entry
from tests.support.place import Place
from tests.support.waiting import until
from tests.testbed import clock

# What each program has: steps of a known length, and its own record of when they began and ended.
HEAD = """
import atexit, json, os, sys, time
time.sleep(0.8)
def tell(began):
    own = {"began": began, "ended": time.time()}
    with open(os.environ["HPCRUN_DIRECTORY"] + "/truth.jsonl", "a") as stream:
        stream.write(json.dumps(own) + chr(10))
def train(steps, length, show, first=0):
    atexit.register(tell, time.time())
    for step in range(first + 1, steps + 1):
        time.sleep(length)
        show(step)
"""
TIMELESS = """
def show(step):
    with open(os.environ["HPCRUN_METRICS_FILE"], "a") as stream:
        stream.write('{"step": %d, "loss": 0.5}' % step + chr(10))
train(25, 0.1, show)
"""
PRINTED = """
def show(step):
    if step % 5 == 0:
        print(f"iter {step}/25: loss {1 / step:.3f}")
train(25, 0.1, show)
"""
# A writer that keeps its events back until it is closed, as torch's does for two minutes.
EVENTS = """
from pathlib import Path
sys.path.insert(0, os.environ["TESTS"])
from tests.support.event_files import event, write
kept = []
train(25, 0.1, lambda step: kept.append(event(step, time.time(), loss=0.5)))
write(Path("out/runs/events.out.tfevents.1.host.2.0"), *kept)
"""
BAR = """
def show(step):
    print(f"\\r {step * 4}%|##  | {step}/25 [00:00<00:04,  9it/s]", end="", file=sys.stderr)
train(25, 0.1, show)
print(file=sys.stderr)
"""


def _submit(place: Place, program: str, **spec: Any) -> None:
    (place.code / "train.py").write_text(HEAD + textwrap.dedent(program))
    place.submit(Entry("script", file="train.py"), **spec)


def _story(place: Place) -> RunStory:
    (found,) = stories(Finder(place.root).runs(place.experiment), values=True)
    return found


def _truth(place: Place) -> list[dict[str, float]]:
    return list(files.read_lines(place.run.directory / "truth.jsonl"))


REPOSITORY = str(Path(__file__).resolve().parents[3])


@pytest.mark.parametrize(
    ("program", "progress", "source"),
    [
        (TIMELESS, {}, "metrics_file"),
        (PRINTED, {"pattern": r"iter (?P<step>\d+)/(?P<total>\d+): loss (?P<loss>\S+)"}, "log"),
        (EVENTS, {}, "tensorboard"),
        (BAR, {}, "progress_bar"),
    ],
    ids=["lines without times", "a pattern", "event files", "a progress bar"],
)
def test_its_useful_time_is_known_to_five_percent(
    place: Place, program: str, progress: dict[str, Any], source: str
) -> None:
    _submit(place, program, progress=progress, environment={"variables": {}})
    code, said = place.supervise(TESTS=REPOSITORY)
    assert code == 0, said + place.output()
    story = _story(place)
    assert story.attempts[0].read_from is not None
    assert story.attempts[0].read_from["source"] == source
    assert (story.status.step, story.attempts[0].reached) == (25, 25)
    (truth,) = _truth(place)
    useful = truth["ended"] - truth["began"]
    spent = story.goodput(time.time())
    assert spent is not None
    # Its interpreter and its worker take a moment to end, whatever it did before.
    assert spent.useful == pytest.approx(useful, rel=0.05, abs=0.25)
    assert spent.startup > 0.7
    assert spent.running == 0
    told = " ".join(narrative.attempt(story.attempts[0], story, time.time()))
    assert f"({source})" in told


def test_a_program_that_shows_nothing_was_running(place: Place) -> None:
    _submit(place, "time.sleep(2)")
    assert place.supervise()[0] == 0
    story = _story(place)
    spent = story.goodput(time.time())
    assert spent is not None
    # Beside its two seconds, an interpreter begins and a worker ends; on a busy machine slowly.
    assert 2.0 < spent.running < 5.0
    assert spent.share is None
    assert "not known" in narrative.spent(spent)
    told = " ".join(narrative.attempt(story.attempts[0], story, time.time()))
    assert "shows no steps that hpcrun reads: set progress.pattern" in told


def test_one_that_failed_at_once_is_not_told_to_show_steps(place: Place) -> None:
    _submit(place, "time.sleep(1); raise ValueError('no such batch')")
    place.supervise()
    story = _story(place)
    assert story.attempts[0].read_from is not None
    told = " ".join(narrative.attempt(story.attempts[0], story, time.time()))
    assert "no such batch" in told
    assert "progress.pattern" not in told


def test_steps_that_are_no_numbers_are_told(place: Place) -> None:
    _submit(place, TIMELESS.replace('"step": %d', '"step": "%d"').replace("25", "3"))
    code, said = place.supervise()
    assert code == 0, said
    story = _story(place)
    assert (story.attempts[0].read_from or {}).get("path") == "attempts/1/metrics.jsonl"
    assert story.status.step is None
    told = " ".join(narrative.attempt(story.attempts[0], story, time.time()))
    assert "No line that it appended to $HPCRUN_METRICS_FILE has a whole number" in told
    assert "progress is read from" not in told


def test_what_is_left_is_estimated_and_it_is_known_to_live(place: Place) -> None:
    _submit(
        place,
        TIMELESS.replace("train(25, 0.1", "train(300, 0.1"),
        progress={"total": 300},
    )
    supervisor = place.start()
    try:
        until(lambda: (_story(place).status.step or 0) > 25, "25 steps")
        until(lambda: _story(place).status.remaining is not None, "the time that is left")
        status = _story(place).status
        assert status.step is not None
        assert status.remaining == pytest.approx((300 - status.step) * 0.1, rel=0.3)
        assert status.updated is not None
        assert time.time() - status.updated < 5
    finally:
        place.close()
        supervisor.communicate(timeout=30)


SAVING = """
out = "out"
os.makedirs(out, exist_ok=True)
before = sorted(int(name[11:]) for name in os.listdir(out))
first = before[-1] if before and RESUMES else 0
def show(step):
    if RESUMES:
        print(f"step {step} is done")
    else:
        with open(os.environ["HPCRUN_METRICS_FILE"], "a") as stream:
            stream.write('{"step": %d, "time": %f}' % (step, time.time()) + chr(10))
    if SAVES and step % 5 == 0:
        os.mkdir(f"{out}/checkpoint-{step}")
        open(f"{out}/checkpoint-{step}/model.bin", "w").close()
    if step == first + 8:
        time.sleep(WAITS if os.environ["HPCRUN_ATTEMPT"] == "1" else 0)
        os._exit(3)
train(25, 0.01, show, first)
"""


def _crashes(place: Place, resumes: bool, saves: bool, most: int, waits: float = 0.0) -> list[Any]:
    head = f"RESUMES, SAVES, WAITS = {resumes}, {saves}, {waits}\n"
    recovery = {"max_failures": most, "in_place": 9}
    pattern = {"pattern": r"step (?P<step>\d+) is done"}
    _submit(place, head + SAVING, recovery=recovery, progress=pattern if resumes else {})
    place.supervise(timeout=120)
    return ledger.read(place.run)


def test_steps_that_were_logged_are_not_saved_ones(place: Place) -> None:
    """``max_failures: 1`` allows no second attempt after an end without a save."""
    assert len(_crashes(place, resumes=False, saves=False, most=1)) == 1


def test_a_script_that_resumes_is_not_stopped_by_three_crashes(place: Place) -> None:
    attempts = _crashes(place, resumes=True, saves=True, most=3)
    assert attempts[-1].outcome == "completed"
    assert len(attempts) == 5
    first = [(one.end.get("first_step"), one.end.get("reached_step")) for one in attempts[:3]]
    assert first == [(1, 8), (6, 13), (11, 18)]


def test_saves_that_were_seen_let_it_go_on(place: Place) -> None:
    attempts = _crashes(place, resumes=True, saves=True, most=1, waits=5.5)
    assert len(attempts) == 2, "the second one's saves are not seen before its crash"
    assert attempts[0].end["checkpoint_step"] == 5
    log = session_log.read(place.run.attempt(1))
    (saved,) = log.of(session_log.SAVED)
    assert saved.record["checkpoint"] == "out/checkpoint-5"
    assert json.dumps(dict(saved.record))


ONE_SAVE = """
def show(step):
    print(f"iter {step}/14: loss 0.5", flush=True)
    if step == 6:
        os.makedirs("out")
        with open("out/ckpt.pt", "w") as stream:
            stream.write("weights")
train(14, 0.5, show)
"""


@pytest.mark.parametrize("ahead", [0, 30])
def test_a_save_has_the_step_after_which_it_was_written(
    place: Place, tmp_path: Path, ahead: int
) -> None:
    """Not the one at which it was seen, some steps later, also where the node's clock is wrong."""
    _submit(place, ONE_SAVE, progress={"pattern": r"iter (?P<step>\d+)/(?P<total>\d+): loss"})
    clock.build(tmp_path / "clock.so", ahead)
    code, said = place.supervise(LD_PRELOAD=str(tmp_path / "clock.so"))
    assert code == 0, said + place.output()
    (saved,) = session_log.read(place.run.attempt(1)).of(session_log.SAVED)
    assert saved.step == 6
    (truth,) = _truth(place)
    assert truth["began"] < saved.time < truth["ended"]
    assert truth["began"] - time.time() == pytest.approx(ahead, abs=20)


def test_a_save_outside_of_the_runs_directory(place: Place, tmp_path: Path) -> None:
    """The directory of the saves is made after the attempt has begun."""
    own = tmp_path / "scratch" / "out"
    pattern = r"iter (?P<step>\d+)/(?P<total>\d+): loss"
    progress = {"pattern": pattern, "saved": str(own / "*.pt")}
    _submit(place, ONE_SAVE.replace('"out', f'"{own}'), progress=progress)
    code, said = place.supervise()
    assert code == 0, said + place.output()
    (saved,) = session_log.read(place.run.attempt(1)).of(session_log.SAVED)
    assert (saved.step, saved.record["checkpoint"]) == (6, str(own / "ckpt.pt"))


MANY = """
from pathlib import Path
Path("out/last").mkdir(parents=True)
for number in range(5_001):
    Path(f"sample-{number}.txt").touch()
Path("out/last/checkpoint-7.pt").write_text("weights")
"""


@pytest.mark.parametrize("progress", [{"saved": "out/*/checkpoint-*.pt"}, {}], ids=["said", "not"])
def test_a_program_that_writes_very_many_files(place: Place, progress: dict[str, Any]) -> None:
    """Its saves were not seen, without a word, even where the spec says where they are."""
    (place.code / "train.py").write_text(MANY)
    place.submit(Entry("script", file="train.py"), progress=progress)
    code, said = place.supervise()
    assert code == 0, said + place.output()
    (log,) = place.run.attempt(1).directory.glob("agent-*.log")
    assert "more than 5,000 files and directories" in log.read_text()
    if progress:
        saves = [*session_log.read_any(place.run.attempt(1)).of(session_log.SAVED)]
        assert [one.step for one in saves] == [7]


# As HelloDeepSpeed: no line has a step, and DeepSpeed's `latest` names what was saved.
COUNTED = """
first = int(open("exp/latest").read()[11:]) if os.environ.get("GOES_ON") else 0
def show(step):
    print("Loss: 0.5")
    if step == 10:
        os.makedirs("exp/global_step10")
        open("exp/global_step10/model.pt", "w").write("weights")
        open("exp/latest", "w").write("global_step10")
    if step == 14 and not first:
        os._exit(3)
train(20, 0.02, show, first)
"""


def test_lines_without_a_number_are_counted_on_from_the_save(place: Place) -> None:
    resume = {"when": ["exp/latest"], "environment": {"GOES_ON": "1"}}
    progress = {"pattern": "(?P<one_step>Loss): (?P<loss>.*)"}
    _submit(place, COUNTED, progress=progress, recovery={"resume": resume, "in_place": 2})
    place.supervise(timeout=60)
    first, second = ledger.read(place.run)
    assert (first.end["first_step"], first.end["reached_step"]) == (1, 14)
    assert (second.end["first_step"], second.end["reached_step"]) == (11, 20)
    assert second.began_over is None


@pytest.mark.parametrize("directory", ["run", "rank"])
def test_files_of_the_code_are_no_saves_of_the_program(place: Place, directory: str) -> None:
    """A crash after each of them was one with progress, so that nothing stopped the run."""
    (place.code / "model.ckpt").write_text("pretrained")
    (place.code / "train.py").write_text("open('own.ckpt', 'w').write(open('model.ckpt').read())")
    place.submit(Entry("script", file="train.py"), working_directory=directory)
    code, said = place.supervise()
    assert code == 0, said + place.output()
    saves = session_log.read_any(place.run.attempt(1)).of(session_log.SAVED)
    assert [Path(one.record["checkpoint"]).name for one in saves] == ["own.ckpt"]


# Lightning's logger writes its rows when it is closed, by an exception too.
CLOSED_LATE = """
from pathlib import Path
kept = []
def show(step):
    kept.append(f"0,{step - 1},0.5")
    if step == 20:
        tell(0)
        try:
            raise RuntimeError("Connection closed by peer")
        finally:
            traceback.print_exc()
            time.sleep(1)
            Path("out/version_0").mkdir(parents=True)
            rows = ["epoch,step,loss", *kept, ""]
            Path("out/version_0/metrics.csv").write_text(chr(10).join(rows))
            time.sleep(3)
            os._exit(1)
import traceback
Path("out").mkdir()
train(40, 0.05, show)
"""


def test_rows_that_an_exception_wrote_are_no_work_after_it(place: Place) -> None:
    _submit(place, CLOSED_LATE, recovery={"in_place": 0, "requeue": False})
    place.supervise(timeout=60)
    story = _story(place)
    assert story.attempts[0].reached == 19
    spent = story.goodput(time.time())
    assert spent is not None
    assert spent.useful == 0, "nothing was kept"
    assert spent.lost < 20 * 0.05 + 1.5


LATE = """
def show(step):
    print(f"step {step} is done")
    if step == 20:
        tell(0)
        print("50%|##  |", end="", file=sys.stderr, flush=True)
        time.sleep(3)
        END
train(40, 0.05, show)
"""
ENDS = {
    "an exception": 'raise RuntimeError("Connection closed by peer")',
    "a line": 'print("UNAVAILABLE: peer is gone", flush=True); time.sleep(1); os._exit(1)',
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_what_is_printed_of_an_end_is_no_sign_of_work(place: Place, end: str) -> None:
    """A rank whose peer was killed had worked until it noticed that."""
    progress = {"pattern": r"step (?P<step>\d+) is done"}
    _submit(
        place,
        LATE.replace("END", end),
        progress=progress,
        recovery={"in_place": 0, "requeue": False},
    )
    place.supervise(timeout=60)
    spent = _story(place).goodput(time.time())
    assert spent is not None
    # Nothing was kept.
    assert (spent.useful, spent.lost) == (0, pytest.approx(20 * 0.05, abs=0.4))


# A bar of its batches, and a line for each epoch.
EPOCHS = """
resumed = os.path.exists("out/last.pt")
first = int(open("out/last.pt").read()) if resumed else 0
for epoch in range(first, 4):
    for batch in range(8):
        time.sleep(0.02)
        text = f"{12 * (batch + 1):3}%|##  | {batch + 1}/8 [00:00<00:04,  9it/s]"
        print("\\r" + text, end="", file=sys.stderr, flush=True)
        if os.environ["HPCRUN_ATTEMPT"] == DIES and epoch == first + WHEN and batch == 5:
            os._exit(3)
    print(f"Epoch {epoch}/4: loss {1 / (epoch + 1):.3f}", flush=True)
    if SAVES:
        os.makedirs("out", exist_ok=True)
        open("out/last.pt", "w").write(str(epoch + 1))
"""


def _epochs(place: Place, dies: int, when: int, saves: bool) -> RunStory:
    head = f"DIES, WHEN, SAVES = {str(dies)!r}, {when}, {saves}\n"
    progress = {"pattern": r"Epoch (?P<epoch>\d+)/(?P<total>\d+): loss (?P<loss>\S+)"}
    _submit(place, head + EPOCHS, progress=progress, recovery={"in_place": 2, "max_failures": 2})
    place.supervise(timeout=60)
    return _story(place)


def test_what_a_pattern_does_not_find_is_not_read_from_a_bar(place: Place) -> None:
    """A run was at step 192 of 8, and 190 steps were lost."""
    story = _epochs(place, dies=1, when=0, saves=False)
    first, second = story.attempts
    assert (first.reached, first.lost, second.reached, story.replayed) == (None, None, 4, 0)
    assert (story.status.step, story.status.total_steps) == (4, 4), "epochs from 0 are all done"
    told = " ".join(narrative.attempt(first, story, time.time()))
    assert "reached" not in told
    assert "progress.pattern" not in told


def test_an_attempt_that_resumes_goes_on_with_epochs_from_0(place: Place) -> None:
    story = _epochs(place, dies=1, when=2, saves=True)
    first, second = story.attempts
    assert (first.reached, second.first, second.reached) == (2, 3, 4)
    assert (second.restored, first.lost, story.replayed) == (2, 0, 0)
    assert second.attempt.began_over is None
    spent = story.goodput(time.time())
    assert spent is not None
    assert (spent.lost, spent.replayed) == (0, 0)


def test_what_was_never_kept_is_not_useful(place: Place) -> None:
    """68 % of such a run were called useful."""
    head = "DIES, WHEN, SAVES = os.environ['HPCRUN_ATTEMPT'], 2, False\n"
    progress = {"pattern": r"Epoch (?P<epoch>\d+)/(?P<total>\d+): loss (?P<loss>\S+)"}
    _submit(place, head + EPOCHS, progress=progress, recovery={"in_place": 2, "max_failures": 2})
    place.supervise(timeout=60)
    story = _story(place)
    assert [one.reached for one in story.attempts] == [2, 2]
    spent = story.goodput(time.time())
    assert spent is not None
    assert spent.useful == 0
    assert spent.lost > 0.2
    assert spent.replayed > 0.2
    told = narrative.spent(spent)
    assert "steps that were lost" in told
    assert "new steps" not in told


FAILING = {
    "a module that is missing": ("import no_such_module", 0.0),
    # What it did until then is not known.
    "an error": ("raise RuntimeError('no such data')", 2.5),
}


@pytest.mark.parametrize("name", FAILING)
def test_the_imports_of_a_start_that_fails_are_its_start(place: Place, name: str) -> None:
    """They were called idle, as nothing was printed meanwhile."""
    end, running = FAILING[name]
    _submit(place, f"time.sleep(2)\n{end}", recovery={"in_place": 0, "requeue": False})
    place.supervise(timeout=60)
    spent = _story(place).goodput(time.time())
    assert spent is not None
    assert spent.idle < 1.5
    assert spent.running + spent.startup > 2.5
    assert spent.running >= running
    assert bool(spent.running) == bool(running)


# Two calls of one program: the second counts what is left.
LEFT = """
done = int(open("done").read()) if os.path.exists("done") else 0
for number in range(20 - done):
    time.sleep(0.03)
    print(f"\\r{number * 5:3}%|##  | {number + 1}/{20 - done} [00:00<00:04,  9it/s]", end="")
    if done + number == 11 and not done:
        open("done", "w").write("10")
        os._exit(3)
print()
"""


def test_a_bar_of_what_is_left_goes_on_from_what_was_done(place: Place) -> None:
    _submit(place, LEFT, recovery={"in_place": 2})
    place.supervise(timeout=60)
    story = _story(place)
    first, second = story.attempts
    assert (first.reached, second.first, second.reached) == (12, 11, 20)
    assert (story.status.step, story.status.total_steps) == (20, 20)
    assert (first.lost, second.attempt.began_over) == (2, None)


KERAS = """
sys.path.insert(0, os.environ["TESTS"])
from pathlib import Path
from tests.support.event_files import event, write
kept = []
for epoch in (1, 2):
    print(f"Epoch {epoch}/2")
    for step in range(1, 9):
        time.sleep(0.1)
        more = " - val_loss: 0.5" * (step == 8)
        print(f"\\r{step}/8 ━━━━ 4s 14ms/step - loss: {1 / step:.4f}{more}", end="", flush=True)
    print()
    kept.append(event(epoch - 1, time.time(), epoch_loss=0.25))
    write(Path(f"out/runs/events.out.tfevents.{epoch}.host.2.0"), *kept[-1:])
    time.sleep(1.2)
"""


def test_the_bars_of_keras_count_batches_whatever_its_events_count(place: Place) -> None:
    _submit(place, KERAS)
    code, said = place.supervise(TESTS=REPOSITORY, PYTHONIOENCODING="utf-8")
    assert code == 0, said + place.output()
    story = _story(place)
    assert (story.status.step, story.status.total_steps) == (16, 16)
    metrics = story.status.metrics or {}
    assert (metrics["loss"], metrics["val_loss"], metrics["epoch_loss"]) == (0.125, 0.5, 0.25)
    assert (story.attempts[0].read_from or {})["source"] == "keras_bar"
