"""Metrics forwarded to trackers: the real TensorBoard, and the real Weights & Biases offline.

There is no server of Weights & Biases here; what is told to one is told to a module that stands in
for ``wandb``, and so are a library that raises and one that hangs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrun.container.rank_python import RankPython
from hpcrun.extensions import TRACKERS
from hpcrun.run import tracker as tracker_module
from hpcrun.run.tracker import MetricsForwarder, SupersededError
from hpcrun.run.tracking import tracker_processes, wandb_tracker
from hpcrun.run.tracking.interface import RunDescription
from hpcrun.state import files, ledger
from hpcrun.state.spec.experiment import Tracking
from tests.support.place import REPOSITORY, Place
from tests.support.waiting import until

OFFLINE = {"project": None, "entity": None, "mode": "offline", "group": None, "tags": ["a", "b"]}
BOTH = {"tensorboard": True, "wandb": OFFLINE}


class Log:
    """What attempts log, and what then is in the trackers."""

    def __init__(self, place: Place, **tracking: Any) -> None:
        place.submit(
            "true",
            tracking=tracking,
            config={"lr": 0.1, "model": {"layers": 4}, "data": ["x", 1], "nothing": None},
            deepspeed={"train_batch_size": 8, "bf16": {"enabled": True}},
            environment={"secrets_file": None},
        )
        self.place, self.run = place, place.run
        self._trackers: list[MetricsForwarder] = []

    def attempt(self, number: int, restored: int | None = 0) -> None:
        paths = self.run.attempt(number)
        paths.directory.mkdir(parents=True)
        ledger.write(self.run, ledger.STARTED, number, job_id="1")
        if restored is not None:
            files.append(paths.session, {"event": "restored", "time": 1.0, "step": restored})

    def log(self, attempt: int, *steps: int) -> None:
        """Lines whose ``loss`` tells attempt and step."""
        lines = [
            {"step": step, "time": 1e9 + step, "loss": attempt * 1000 + step} for step in steps
        ]
        files.append(self.run.attempt(attempt).metrics, *lines)

    def tracker(self, name: str, start: int = 1) -> MetricsForwarder:
        return MetricsForwarder(name, self.place.submission, 3, start)

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = files.read_json(self.run.tracker_state(name))
        return found

    def tensorboard(self, tag: str = "loss") -> list[tuple[int, float]]:
        """Step and value, as TensorBoard shows them."""
        return [(event.step, event.value) for event in accumulated(self.run.tracking).Scalars(tag)]

    def wandb(self, name: str = "loss") -> list[tuple[int, float]]:
        """Step and value, of all offline runs one after the other."""
        return [(step, row[name]) for step, row in rows(self.run.tracking) if name in row]

    def found(self, tracker: str) -> list[tuple[int, float]]:
        return self.tensorboard() if tracker == "tensorboard" else self.wandb()


def accumulated(tracking: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(
        str(tracking / "tensorboard"), size_guidance={"scalars": 0}, purge_orphaned_data=True
    )
    return found.Reload()


def rows(tracking: Path) -> list[tuple[int, dict[str, Any]]]:
    """Step and values of what offline runs of Weights & Biases hold."""
    return [
        (
            one.history.step.num,
            {"/".join(item.nested_key): json.loads(item.value_json) for item in one.history.item},
        )
        for path in wandb_tracker.offline_files(tracking / "wandb")
        for one in wandb_tracker.read_records(path)
        if one.HasField("history")
    ]


def values(attempt: int, first: int, last: int) -> list[tuple[int, float]]:
    return [(step, attempt * 1000 + step) for step in range(first, last + 1)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def log(place: Place) -> Log:
    return Log(place, **BOTH)


def test_every_tracker_of_the_spec_is_registered() -> None:
    assert TRACKERS.own == [each.name for each in dataclasses.fields(Tracking)]


def test_steps_that_are_done_over_again_replace_or_stay(log: Log) -> None:
    log.attempt(1)
    log.log(1, *range(1, 11))
    for name in BOTH:
        assert log.tracker(name).once() == 0
    log.log(1, 11, 12)
    log.attempt(2, restored=8)
    log.log(2, 9, 10, 11, 12, 13)
    log.attempt(3, restored=12)
    log.log(3, 13, 14)
    for name in BOTH:
        assert log.tracker(name, start=2).once() == 0
    replaced = [*values(1, 1, 8), *values(2, 9, 12), *values(3, 13, 14)]
    assert log.tensorboard() == replaced
    assert log.wandb() == [*values(1, 1, 12), *values(2, 13, 13), *values(3, 14, 14)]


def test_one_tracker_follows_a_restart_in_place(log: Log) -> None:
    """In one process, where a step of Weights & Biases is open until the next."""
    log.attempt(1)
    log.log(1, *range(1, 6))
    followers = {name: log.tracker(name) for name in BOTH}
    for one in followers.values():
        one.forward()
    files.append(log.run.attempt(1).metrics, {"step": 5, "eval": 0.5})
    for one in followers.values():
        one.forward()
    log.attempt(2, restored=4)
    log.log(2, 5, 6)
    for one in followers.values():
        assert one.once() == 0
    assert log.tensorboard() == [*values(1, 1, 4), *values(2, 5, 6)]
    assert log.tensorboard("eval") == []
    assert log.wandb() == [*values(1, 1, 5), *values(2, 6, 6)]
    assert log.wandb("eval") == [(5, 0.5)]
    assert len(list(log.run.tracking.glob("wandb/offline-run-*"))) == 1


def test_a_script_that_tells_no_restored_step(place: Place) -> None:
    log = Log(place, tensorboard=True)
    log.attempt(1, restored=None)
    log.log(1, 1, 2, 3)
    log.tracker("tensorboard").once()
    log.attempt(2, restored=None)
    log.log(2, 3, 4)
    log.tracker("tensorboard", start=2).once()
    assert log.tensorboard() == [*values(1, 1, 2), *values(2, 3, 4)]


class Killed(BaseException):
    """In place of a SIGKILL at a known instruction."""


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("moment", ["before it sends", "after it sent"])
def test_killed_between_sending_and_noting_it(
    log: Log, name: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.attempt(1)
    log.log(1, 1, 2, 3)
    one = log.tracker(name)
    one.forward()
    log.log(1, 4, 5)
    opened = one._tracker
    assert opened is not None
    send = opened.send

    def killed(*arguments: Any) -> None:
        if moment == "after it sent":
            send(*arguments)
        raise Killed

    monkeypatch.setattr(opened, "send", killed)
    with pytest.raises(Killed):
        one.forward()
    opened.close(None)
    log.log(1, 6)
    assert log.tracker(name, start=2).once() == 0
    assert log.found(name) == values(1, 1, 6)


FORWARD_AND_DIE = """
import os, signal, sys
from pathlib import Path
from hpcrun.state.layout import SubmissionPaths
from hpcrun.run.tracker import MetricsForwarder
MetricsForwarder(sys.argv[1], SubmissionPaths(Path(sys.argv[2])), 3, 1).forward()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", BOTH)
def test_killed_once_it_has_sent(log: Log, name: str) -> None:
    log.attempt(1)
    log.log(1, *range(1, 301))
    command = [sys.executable, "-c", FORWARD_AND_DIE, name, str(log.place.submission.directory)]
    killed = subprocess.run(command, cwd=REPOSITORY, check=False)
    assert killed.returncode == -signal.SIGKILL
    log.log(1, 301)
    assert log.tracker(name).once() == 0
    assert log.found(name) == values(1, 1, 301)


# Has the file open, and writes the rest of it a while later.
STILL_WRITES = """
import sys, time
with open(sys.argv[1], "ab") as stream:
    print("open", flush=True)
    rest = sys.stdin.buffer.read()
    time.sleep(1)
    stream.write(rest)
"""


def test_what_is_still_written_after_a_kill_is_waited_for(place: Place) -> None:
    """As wandb's own process does, which outlives the one that was killed."""
    log = Log(place, wandb=OFFLINE)
    log.attempt(1)
    log.log(1, 1, 2)
    log.tracker("wandb").once()
    (path,) = wandb_tracker.offline_files(log.run.tracking / "wandb")
    whole = path.read_bytes()
    os.truncate(path, len(whole) // 2)
    writer = [sys.executable, "-c", STILL_WRITES, str(path)]
    with subprocess.Popen(writer, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.stdin.write(whole[len(whole) // 2 :])
        process.stdin.close()
        log.log(1, 3)
        log.tracker("wandb").once()
    assert log.wandb() == values(1, 1, 3)


def test_what_was_synchronised_and_removed_is_not_sent_again(place: Place) -> None:
    log = Log(place, wandb=OFFLINE)
    log.attempt(1)
    log.log(1, 1, 2)
    log.tracker("wandb").once()
    for path in wandb_tracker.offline_files(log.run.tracking / "wandb"):
        shutil.rmtree(path.parent)
    log.log(1, 3)
    log.tracker("wandb").once()
    assert log.wandb() == values(1, 3, 3)


def test_files_of_another_format_are_taken_as_the_state_has_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(place, wandb=OFFLINE)
    log.attempt(1)
    log.log(1, 1, 2)
    log.tracker("wandb").once()
    log.log(1, 3)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "wandb.proto", None)
        log.tracker("wandb").once()
    assert log.wandb() == values(1, 1, 3)


def test_a_torn_event_is_cut_off(place: Place) -> None:
    log = Log(place, tensorboard=True)
    log.attempt(1)
    log.log(1, 1, 2)
    log.tracker("tensorboard").once()
    [path] = (log.run.tracking / "tensorboard").iterdir()
    with open(path, "ab") as stream:
        stream.write(b"\x30\x00\x00")
    (path.parent / "events.out.tfevents.0000000002.hpcrun").write_bytes(b"\x30\x00\x00")
    log.log(1, 3)
    log.tracker("tensorboard").once()
    assert log.tensorboard() == values(1, 1, 3)


def test_a_line_that_is_still_being_written_waits(place: Place) -> None:
    log = Log(place, tensorboard=True)
    log.attempt(1)
    log.log(1, 1)
    follower = log.tracker("tensorboard")
    with open(log.run.attempt(1).metrics, "a") as stream:
        stream.write('{"step": 2, "lo')
        stream.flush()
        follower.forward()
        stream.write('ss": 1002, "words": "no number"}\nno line at all\n')
    follower.once()
    assert log.tensorboard() == values(1, 1, 2)


def test_what_is_told_of_the_run(log: Log) -> None:
    log.attempt(1)
    log.log(1, 1)
    for name in BOTH:
        log.tracker(name).once()
    [path] = wandb_tracker.offline_files(log.run.tracking / "wandb")
    [run] = [record.run for record in wandb_tracker.read_records(path) if record.HasField("run")]
    config = {one.key: json.loads(one.value_json) for one in run.config.update}
    assert (run.project, run.run_group, run.display_name) == ("study", "study", "study/3")
    assert list(run.tags) == ["a", "b"]
    assert config["config"] == {
        **{"lr": 0.1, "model": {"layers": 4}, "data": ["x", 1], "nothing": None}
    }
    assert config["deepspeed"] == {"train_batch_size": 8}
    told = accumulated(log.run.tracking).SummaryMetadata("_hparams_/session_start_info")
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    data = HParamsPluginData.FromString(told.plugin_data.content).session_start_info.hparams
    assert {key: value.number_value or value.string_value for key, value in data.items()} == {
        "config.lr": 0.1,
        "config.model.layers": 4,
        "config.data": '["x", 1]',
        "deepspeed.train_batch_size": 8,
    }


def test_nothing_is_opened_before_there_is_something_to_send(log: Log) -> None:
    log.attempt(1)
    for name in BOTH:
        log.tracker(name).once()
    assert not log.run.tracking.exists()


def test_a_tracker_of_an_older_start_leaves(place: Place) -> None:
    log = Log(place, tensorboard=True)
    log.attempt(1)
    log.log(1, 1)
    older = log.tracker("tensorboard", start=1)
    older.forward()
    log.attempt(2, restored=1)
    log.log(2, 2)
    log.tracker("tensorboard", start=2).once()
    with pytest.raises(SupersededError):
        older.forward()
    assert log.tensorboard() == [*values(1, 1, 1), *values(2, 2, 2)]


class StandIn(types.ModuleType):
    """``wandb`` beside a server that keeps rows, some of which never arrive."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.rows: dict[str, list[tuple[int, float]]] = {}
        self.opened: list[dict[str, Any]] = []
        self.codes: list[int] = []
        self.arrives = True
        self.error: Exception | None = None

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def teardown(self) -> None:
        pass

    def finish(self, exit_code: int) -> None:
        self.codes.append(exit_code)

    def init(self, **arguments: Any) -> Any:
        if self.error:
            raise self.error
        self.opened.append(arguments)
        rows = self.rows.setdefault(arguments["id"], [])

        def log(values: dict[str, Any], step: int) -> None:
            if self.arrives:
                rows.append((step, values["loss"]))

        first = rows[-1][0] + 1 if rows else 0
        return types.SimpleNamespace(
            starting_step=first, dir="run/files", log=log, finish=self.finish
        )


@pytest.fixture
def online(place: Place, monkeypatch: pytest.MonkeyPatch) -> tuple[Log, StandIn]:
    wandb = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return Log(place, wandb={**OFFLINE, "mode": "online"}), wandb


def test_what_never_arrived_is_sent_again(online: tuple[Log, StandIn]) -> None:
    log, wandb = online
    log.attempt(1)
    log.log(1, 1, 2, 3)
    first = log.tracker("wandb")
    first.forward()
    wandb.arrives = False
    log.log(1, 4, 5)
    first.once()
    wandb.arrives = True
    log.attempt(2, restored=4)
    log.log(2, 5, 6)
    log.tracker("wandb", start=2).once()
    [rows] = wandb.rows.values()
    assert rows == [*values(1, 1, 5), *values(2, 6, 6)]
    assert [one["resume"] for one in wandb.opened] == ["allow", "allow"]


def test_a_run_that_failed_for_good_is_told_so(online: tuple[Log, StandIn]) -> None:
    log, wandb = online
    for number, end in enumerate(("requeue", "stop"), 1):
        log.attempt(number)
        log.log(number, number)
        cause = {"kind": "rank_crash", "message": "exit 1"}
        ledger.write(log.run, ledger.ENDED, number, outcome="failed", cause=cause)
        ledger.write(log.run, ledger.DECIDED, number, action=end, reason="of the test")
        log.tracker("wandb", start=number).once()
    assert wandb.codes == [0, 1]


def test_an_experiment_made_anew_is_another_run(online: tuple[Log, StandIn]) -> None:
    log, wandb = online
    for _ in range(2):
        log.attempt(1)
        log.log(1, 1)
        log.tracker("wandb").once()
        log.run.directory.rename(log.run.directory.with_name(f"gone-{len(wandb.rows)}"))
    assert len(wandb.rows) == 2


def test_a_run_that_is_lengthened_stays_the_same(online: tuple[Log, StandIn]) -> None:
    log, _ = online
    log.attempt(1)
    run = log.tracker("wandb")._run
    longer = dataclasses.replace(run, identity="another")
    one, other = (RunDescription.of("study", each, log.run).identity for each in (run, longer))
    assert one == other


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(tracker_module, "say", found.append)
    monkeypatch.setattr(tracker_module, "EVERY", 0.02)
    monkeypatch.setattr(tracker_module, "LONGEST_PAUSE", 0.02)
    return found


class Following:
    """`MetricsForwarder.follow` until it is let go."""

    def __init__(self, tracker: MetricsForwarder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes: list[int] = []
        ends = threading.Event()

        def listen() -> None:
            ends.wait()
            tracker._over.set()

        monkeypatch.setattr(tracker, "_listen", listen)
        self._ends = ends
        self._thread = threading.Thread(target=lambda: self.codes.append(tracker.follow()))
        self._thread.start()

    def end(self) -> int:
        self._ends.set()
        self._thread.join(30)
        return self.codes[0]


def test_a_library_that_raises_is_told_once_and_tried_again(
    online: tuple[Log, StandIn], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, wandb = online
    wandb.error = ValueError("no API key")
    log.attempt(1)
    log.log(1, 1, 2)
    following = Following(log.tracker("wandb"), monkeypatch)
    until(lambda: said)
    time.sleep(0.2)
    problem = log.run.tracker_problem("wandb")
    assert problem.read_text() == "ValueError: no API key; tried again"
    wandb.error = None
    until(lambda: wandb.rows)
    assert following.end() == 0
    assert not problem.exists()
    assert said == ["wandb: ValueError: no API key; tried again"]
    assert list(wandb.rows.values()) == [values(1, 1, 2)]


def test_a_library_that_is_not_there(
    online: tuple[Log, StandIn], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = online
    monkeypatch.setitem(sys.modules, "wandb", None)
    log.attempt(1)
    log.log(1, 1)
    following = Following(log.tracker("wandb"), monkeypatch)
    until(lambda: following.codes)
    assert following.end() == tracker_processes.EXIT_USELESS
    [only] = said
    assert only.startswith("wandb: ")
    assert only.endswith("; nothing is forwarded")
    problem = log.run.tracker_problem("wandb")
    assert f"wandb: {problem.read_text()}" == only
    # One that has nothing to send lacks nothing.
    monkeypatch.delitem(sys.modules, "wandb")
    shutil.rmtree(log.run.attempt(1).directory)
    log.tracker("wandb").once()
    assert not problem.exists()


def test_secrets_are_where_the_library_looks(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("WANDB_API_KEY=0123abc\n")
    secrets.chmod(0o600)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    place.submit("true", tracking={"wandb": OFFLINE}, environment={"secrets_file": str(secrets)})
    tracker_module.export_secrets(MetricsForwarder("wandb", place.submission, 3, 1)._run)
    assert os.environ["WANDB_API_KEY"] == "0123abc"


# The whole: a supervisor, its agents and ranks, and the trackers beside them.

STEPS = """
for step in $(seq $1 $2); do
    echo "{\\"step\\": $step, \\"loss\\": ${HPCRUN_ATTEMPT}00$step}" >> $HPCRUN_METRICS_FILE
done
"""


def _library(tmp_path: Path, text: str) -> dict[str, str]:
    """A ``wandb`` that stands in for the real one, in the job's Python."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "wandb.py").write_text(text)
    return {"PYTHONPATH": f"{REPOSITORY}:{library}"}


def test_a_run_that_is_restarted_is_one_run_in_both_trackers(place: Place) -> None:
    (place.code / "steps.sh").write_text(STEPS)
    first, second = "bash steps.sh 1 6; exit 1", "bash steps.sh 5 8"
    command = f"if test $HPCRUN_ATTEMPT = 1; then {first}; else {second}; fi"
    place.submit(command, tracking=BOTH, recovery={"in_place": 2})
    code, said = place.supervise()
    assert code == 0, said
    for name in BOTH:
        if told := place.run.attempt(1).tracker_log(name).read_text():
            # Where processors are busy, its library takes longer to start than the end waits.
            assert told.endswith(
                "does not return in time; what is left waits for the next start, or for --once\n"
            )
            assert MetricsForwarder(name, place.submission, 3, 1).once() == 0
    one, two = [(step, 1000 + step) for step in range(1, 7)], [(n, 2000 + n) for n in range(5, 9)]
    events = accumulated(place.run.tracking).Scalars("loss")
    assert [(event.step, event.value) for event in events] == [*one[:4], *two]
    found = [(step, row["loss"]) for step, row in rows(place.run.tracking)]
    assert found == [*one, *two[2:]]


def test_a_tracker_that_raises_at_every_call_costs_the_run_nothing(
    place: Place, tmp_path: Path
) -> None:
    place.submit(f"{STEPS.replace('$1', '1').replace('$2', '3')}", tracking={"wandb": OFFLINE})
    variables = _library(tmp_path, "def __getattr__(name): raise RuntimeError(f'no {name} today')")
    assert place.supervise(**variables)[0] == 0
    assert place.attempt().outcome == "completed"
    said = place.run.attempt(1).tracker_log("wandb").read_text()
    assert said.count("no init today; tried again") == 1
    assert len(place.steps(1)) == 3


def test_a_tracker_that_hangs_is_not_waited_for_by_the_run(place: Place, tmp_path: Path) -> None:
    place.submit(f"{STEPS.replace('$1', '1').replace('$2', '3')}", tracking={"wandb": OFFLINE})
    text = "import time\nprint('hangs', flush=True)\ntime.sleep(600)\n"
    supervisor = place.start(**_library(tmp_path, text))
    until(lambda: place.run.tracker_state("wandb") and ledger.read(place.run)[:1])
    until(lambda: place.attempt().outcome)
    assert place.attempt().outcome == "completed"
    assert ledger.intent(place.run) == ledger.FINISHED
    until(lambda: place.run.attempt(1).tracker_log("wandb").read_text() == "hangs\n")
    supervisor.kill()
    supervisor.communicate()


@pytest.fixture
def kept(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tracker_processes.TrackerProcesses]:
    """Trackers of a run whose one process does what is asked here."""

    def start(text: str) -> tracker_processes.TrackerProcesses:
        log = Log(place, wandb=OFFLINE)
        log.attempt(1)
        program = tmp_path / "python"
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        run = MetricsForwarder("wandb", place.submission, 3, 1)._run
        return tracker_processes.TrackerProcesses(
            place.submission, run, place.run.attempt(1), RankPython()
        )

    return start


def _starts(place: Place) -> int:
    path = place.run.attempt(1).tracker_log("wandb")
    return path.read_text().count("started") if path.exists() else 0


def test_a_tracker_that_dies_is_started_again(
    place: Place,
    kept: Callable[[str], tracker_processes.TrackerProcesses],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracker_processes, "PAUSE", 0.05)
    found = kept("echo started; kill -9 $$")
    until(lambda: _starts(place) > 2)
    found.end()


def test_one_that_is_of_no_use_is_not(
    place: Place,
    kept: Callable[[str], tracker_processes.TrackerProcesses],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracker_processes, "PAUSE", 0.01)
    found = kept(f"echo started; exit {tracker_processes.EXIT_USELESS}")
    until(lambda: _starts(place))
    time.sleep(0.3)
    found.end()
    assert _starts(place) == 1


def test_one_that_does_not_leave_is_killed(
    place: Place,
    kept: Callable[[str], tracker_processes.TrackerProcesses],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracker_processes, "PATIENCE", 0.5)
    found = kept("echo started; sleep 600 & wait")
    until(lambda: _starts(place))
    began = time.monotonic()
    found.end()
    assert time.monotonic() - began < 5
    [process] = found._processes.values()
    assert process.returncode == -signal.SIGKILL


def test_it_leaves_when_its_supervisor_is_gone(place: Place) -> None:
    """Its input ends then, however the supervisor ended."""
    Log(place, tensorboard=True).attempt(1)
    command = [sys.executable, "-m", "hpcrun.run.tracker", "tensorboard"]
    command += [str(place.submission.directory), "--run=3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=REPOSITORY) as process:
        assert process.stdin is not None
        until(lambda: _niceness(process.pid) == 19)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(10) == 0


HANGING = """
import sys
from hpcrun.run import tracker
setattr(tracker, sys.argv.pop(), 0.5)
tracker.main()
"""


@pytest.mark.parametrize(("limit", "how"), [("HANGS", "return;"), ("LEAVE", "return in time;")])
def test_it_ends_where_the_library_hangs(
    place: Place, tmp_path: Path, limit: str, how: str
) -> None:
    """Another process may have more luck, and this one's supervisor waits for a bounded time."""
    log = Log(place, wandb=OFFLINE)
    log.attempt(1)
    log.log(1, 1)
    variables = {**os.environ, **_library(tmp_path, "import time\ntime.sleep(600)\n")}
    command = [sys.executable, "-c", HANGING, "wandb", str(place.submission.directory), "--run=3"]
    with subprocess.Popen(
        [*command, limit], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if limit == "LEAVE":
            process.stdin.close()
        said = process.stdout.read()
    assert process.returncode == 1
    assert f"wandb: does not {how} what is left waits for the next start" in said


def _niceness(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])
