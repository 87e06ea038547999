"""Attempts on the local executor, with real processes, from their claim to their end.

Every test ends with `Place.end`, which finds no process and no file left on the node.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.host import start_ticks
from hpcrun.policy import causes
from hpcrun.policy.causes import Evidence, JobFacts
from hpcrun.policy.recovery import Action
from hpcrun.run.job.attempt_end import AttemptEnd
from hpcrun.run.node import rendezvous_port
from hpcrun.run.protocol.attempt_fence import EXIT_STALE
from hpcrun.run.supervisor import Supervisor
from hpcrun.slurm import client
from hpcrun.state import files as state_files
from hpcrun.state import ledger, plan_file
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import Entry
from hpcrun.state.suspect_nodes import SuspectNodes
from hpcrun.submission.local import processes
from tests.support.place import REPOSITORY, RESOURCES, Place
from tests.support.waiting import until

FOREVER = "sleep 300"


def _events(place: Place) -> list[str]:
    return [record["event"] for record in state_files.read_lines(place.run.ledger)]


def test_a_run_that_completes(place: Place) -> None:
    place.submit('echo "hello from $RANK"', ranks=2)
    code, said = place.supervise()
    assert code == 0
    assert "attempt 1 completed" in said
    assert _events(place) == ["attempt_started", "workers_started", "attempt_ended", "decided"]
    attempt = place.attempt()
    assert attempt.outcome == "completed"
    assert attempt.decided is not None
    assert attempt.decided["action"] == "nothing"
    assert attempt.cause == {}
    assert attempt.started["nodes"] == ["local0"]
    assert attempt.started["world_size"] == 2
    assert attempt.started["submission"] == 1
    assert attempt.started["job_id"] == f"local:{attempt.started['pid']}"
    assert [place.output(rank) for rank in (0, 1)] == ["hello from 0\n", "hello from 1\n"]
    assert ledger.intent(place.run) == "finished"


def test_a_finished_run_is_never_run_again(place: Place) -> None:
    place.submit("true")
    place.supervise()
    written = place.run.ledger.read_bytes()
    code, said = place.supervise()
    assert code == 0
    assert "study/3 is finished; nothing to do" in said
    assert place.run.ledger.read_bytes() == written
    assert len(place.run.attempts()) == 1


def test_a_cancelled_run_stays_cancelled(place: Place) -> None:
    place.submit("true")
    ledger.set_intent(place.run, ledger.CANCELLED)
    code, said = place.supervise()
    assert code == 0
    assert "study/3 is cancelled; nothing to do" in said
    assert place.run.attempts() == []
    assert not place.run.ledger.exists()


def test_a_start_that_cannot_be_recorded_says_how_to_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit("true")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ledger, "write", full)
    supervisor = Supervisor(place.submission, 3)
    with pytest.raises(HpcrunError, match=r"cannot be recorded.*No space left") as caught:
        supervisor._begin(supervisor.run, ["local0"])
    assert f"hpcrun requeue {place.run.directory}" in str(caught.value.hint)


def test_the_first_rank_that_fails_is_named_and_the_others_end_at_once(place: Place) -> None:
    place.submit(f"if [ $RANK = 1 ]; then echo 'no such token'; exit 3; fi; {FOREVER}", ranks=3)
    code, said = place.supervise()
    assert code == 3
    cause = place.cause()
    assert cause["kind"] == "rank_crash"
    assert (cause["rank"], cause["node"], cause["exit_code"]) == (1, "local0", 3)
    assert cause["message"] == "rank 1 on local0 ended with exit code 3"
    assert cause["log_tail"] == ["no such token"]
    assert "attempt 1 failed: rank 1 on local0 ended with exit code 3" in said
    assert ledger.intent(place.run) is None
    assert [path.name for path in place.run.attempt(1).exit_records()] == ["exit-00001.json"]


def test_a_signal_that_ends_the_users_program(place: Place) -> None:
    place.submit(f"[ $RANK = 1 ] && kill -SEGV $$; {FOREVER}", ranks=2)
    code, _ = place.supervise()
    assert code == 1
    cause = place.cause()
    assert (cause["rank"], cause["signal"], cause["exit_code"]) == (1, "SIGSEGV", None)
    assert cause["message"] == "rank 1 on local0 was ended by SIGSEGV"


def test_a_rank_that_is_killed_and_can_say_nothing(place: Place) -> None:
    """The worker itself is killed; its orphaned program must not live on."""
    place.submit(f"[ $RANK = 0 ] && kill -KILL $PPID; {FOREVER}", ranks=2)
    code, _ = place.supervise()
    assert code == 1
    cause = place.cause()
    assert (cause["rank"], cause["node"], cause["signal"]) == (0, "local0", "SIGKILL")
    assert place.run.attempt(1).exit_records() == []


def test_a_rank_that_saved_and_wants_to_be_started_again(place: Place) -> None:
    place.submit("exit 75", recovery={})
    code, _ = place.supervise()
    assert code == 75
    assert place.attempt().decided["action"] == "requeue"  # type: ignore[index]
    assert place.attempt().outcome == "stopped"
    assert place.cause()["kind"] == "saved"
    assert ledger.intent(place.run) is None


def _restarted(place: Place, number: int = 1) -> None:
    decided = place.attempt(number).decided
    assert decided is not None
    assert decided["action"] == "restart"


def test_a_run_that_fails_once_is_restarted_where_it_is(place: Place) -> None:
    """By the same supervisor and the same agents, in fresh directories."""
    place.submit(
        "echo $HPCRUN_SCRATCH; echo $MASTER_PORT; touch mine; [ $HPCRUN_ATTEMPT = 2 ] || exit 3",
        nodes=2,
        recovery={},
    )
    code, said = place.supervise()
    assert code == 0
    assert "restart: it starts again" in said
    assert [attempt.outcome for attempt in ledger.read(place.run)] == ["failed", "completed"]
    _restarted(place)
    assert place.attempt(1).started["pid"] == place.attempt(2).started["pid"]
    first, second = place.output(0, 1).split(), place.output(0, 2).split()
    assert first[0] != second[0]
    assert not Path(first[0]).exists()
    assert said.count(" ready: local0") == 2
    # The agents had nothing to say.
    assert list(place.run.attempts_directory.glob("*/agent-*")) == []
    gap = place.attempt(2).started["time"] - place.attempt(1).ended["time"]  # type: ignore[index]
    assert gap < 20


def test_a_run_that_fails_the_same_way_stops_after_as_many_restarts(place: Place) -> None:
    place.submit("exit 4", recovery={"max_failures": 2})
    code, said = place.supervise()
    assert code == 4
    assert "recovery.max_failures is 2" in said
    assert len(ledger.read(place.run)) == 2


def test_without_restarts_in_place_it_asks_to_be_requeued(place: Place) -> None:
    place.submit("exit 4", recovery={"in_place": 0})
    assert place.supervise()[0] == 75
    assert len(ledger.read(place.run)) == 1


def test_ranks_that_ignore_everything_are_gone_before_the_next_begin(place: Place) -> None:
    place.submit(
        "trap '' TERM; [ $HPCRUN_ATTEMPT = 2 ] && exit 0; echo $$;"
        f"[ $RANK = 1 ] && sleep 0.5 && exit 3; {FOREVER}",
        ranks=2,
        recovery={},
    )
    supervisor = place.start()
    log = place.run.attempt(1).rank_log(0)
    until(lambda: log.exists() and log.read_text())
    shell = int(log.read_text())
    until(lambda: place.run.attempt(2).launch.exists())
    assert start_ticks(shell) is None
    assert place.end(supervisor)[0] == 0


def test_a_spare_takes_the_place_of_a_node_whose_agent_is_gone(place: Place) -> None:
    resources = {"nodes": 2, "spare_nodes": 1, "ntasks_per_node": 1}
    place.submit(
        f"echo $HPCRUN_SCRATCH; [ $HPCRUN_ATTEMPT = 2 ] || {FOREVER}",
        resources={**RESOURCES, **resources},
        recovery={},
    )
    supervisor = place.start()
    logs = [place.run.attempt(1).rank_log(rank) for rank in (0, 1)]
    until(lambda: all(log.exists() and log.read_text() for log in logs))
    place.kill_agent("local0")
    output, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0, output
    assert [attempt.started["nodes"] for attempt in ledger.read(place.run)] == [
        ["local0", "local1"],
        ["local1", "local2"],
    ]
    assert [attempt.spare_nodes for attempt in ledger.read(place.run)] == [["local2"], []]
    _restarted(place)
    assert place.cause()["nodes"] == ["local0"]


def test_a_run_shrinks_where_a_node_is_gone_and_no_spare_is_left(place: Place) -> None:
    # With GPUs nothing of DeepSpeed is compiled on the node.
    batch = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
    }
    place.submit(
        "echo $RANK/$WORLD_SIZE $HPCRUN_SCRATCH; "
        f"[ $HPCRUN_ATTEMPT = 2 ] && cat ${{hpcrun:deepspeed_config}} || {FOREVER}",
        resources={**RESOURCES, "nodes": 2, "gpus_per_node": 1},
        recovery={"shrink": True},
        deepspeed=batch,
    )
    supervisor = place.start(CUDA_VISIBLE_DEVICES="0,1")
    logs = [place.run.attempt(1).rank_log(rank) for rank in (0, 1)]
    until(lambda: all(log.exists() and log.read_text() for log in logs))
    place.kill_agent("local0")
    output, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0, output
    first, second = ledger.read(place.run)
    assert (first.started["world_size"], second.started["world_size"]) == (2, 1)
    assert second.started["nodes"] == ["local1"]
    assert place.output(0, 2).startswith("0/1 ")
    assert json.loads(place.output(0, 2).partition("\n")[2]) == {
        **batch,
        "gradient_accumulation_steps": 4,
    }


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_global_one(place: Place) -> None:
    # With GPUs nothing of DeepSpeed is compiled on the node.
    batch = {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
    }
    # Each sample takes 128 MB of the 320 MB that there are.
    program = (
        "import json, resource, sys; found = json.load(open(sys.argv[1])); "
        "resource.setrlimit(resource.RLIMIT_AS, (320 << 20, 320 << 20)); "
        "held = bytearray(found['train_micro_batch_size_per_gpu'] << 27); print(json.dumps(found))"
    )
    place.submit(
        f'exec {sys.executable} -c "{program}" ${{hpcrun:deepspeed_config}}',
        resources={**RESOURCES, "gpus_per_node": 1},
        recovery={"shrink_micro_batch": 2, "max_failures": 1, "budgets": {"out_of_memory": 1}},
        deepspeed=batch,
    )
    supervisor = place.start(CUDA_VISIBLE_DEVICES="0")
    said, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0, said
    first, second = ledger.read(place.run)
    assert first.kind == "out_of_memory"
    assert first.action == "restart"
    assert "micro_batch" not in first.started
    assert second.started["micro_batch"] == 2
    assert json.loads(place.output(0, 2)) == {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
    }
    assert "restart: it starts again, with micro batches of 2" in said


def test_a_spare_that_is_lost_is_missed_when_it_is_needed(place: Place) -> None:
    resources = {"nodes": 2, "spare_nodes": 1, "ntasks_per_node": 1}
    place.submit(f"echo began; {FOREVER}", resources={**RESOURCES, **resources}, recovery={})
    supervisor = place.start()
    logs = [place.run.attempt(1).rank_log(rank) for rank in (0, 1)]
    until(lambda: all(log.exists() and log.read_text() for log in logs))
    place.kill_agent("local2")
    time.sleep(1)
    assert supervisor.poll() is None
    place.kill_agent("local1")
    output, _ = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 75
    assert "the spare node local2 is of no more use" in output
    assert place.attempt().decided["action"] == "requeue"  # type: ignore[index]
    assert place.attempt().decided["exclude"] == ["local1"]  # type: ignore[index]


STUCK = """
import os, queue, time
import hpcrun
session = hpcrun.session(total_steps=9)
if session.attempt > 1:
    raise SystemExit
class Engine:
    global_steps = 0
engine = Engine()
session.restored_step = 0
session._engine = engine
for engine.global_steps in range(1, 10):
    session.step()
    if session.rank == 1 and engine.global_steps == 3:
        queue.Queue().get()
    time.sleep(0.2)
    while engine.global_steps == 5:
        time.sleep(60)
"""


def test_a_script_that_hangs_in_a_loop_of_its_own(place: Place) -> None:
    """The session is in a child of the rank's process: that is who is asked, and named."""
    (place.code / "train.py").write_text(STUCK)
    place.submit(
        Entry("script", file="train.py"),
        ranks=2,
        recovery={"hang_after": "00:00:05"},
        checkpoint={},
        deepspeed={},
    )
    code, said = place.supervise(120)
    assert code == 0, said
    cause = place.cause()
    assert cause["kind"] == "hang"
    assert "no rank has moved" in cause["message"]
    stacks = place.run.attempt(1).stacks(1)
    until(stacks.exists)
    assert "queue.py" in stacks.read_text()
    assert "train.py" in cause["message"]


def test_every_node_that_was_lost_is_excluded_whenever_it_was(place: Place) -> None:
    """Of the end that is being recorded the time is known as well as of those before it."""
    place.submit("true", recovery={})
    place.run.directory.mkdir(parents=True)
    run = plan_file.read(place.submission.plan).run(3)
    launcher: Any = SimpleNamespace(requeues=False, is_slurm=False, job_id="1")
    aftermath = AttemptEnd(place.submission, run, launcher, {})
    for number, node in ((1, "n1"), (2, "n2")):
        ledger.write(place.run, ledger.STARTED, number, submission=1)
        lost = Evidence(lost_nodes=(node,))
        action = aftermath.record(number, causes.decide(lost))
    assert action.exclude == ("n1", "n2")


def test_more_is_asked_for_once_for_each_amount(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a job whose supervisor was killed with it; not again where Slurm gave no more."""
    place.submit("true", recovery={"grow": {"mem": 1.5, "time": None, "most": {"mem": "4G"}}})
    place.run.directory.mkdir(parents=True)
    run = plan_file.read(place.submission.plan).run(3)
    launcher: Any = SimpleNamespace(requeues=True, is_slurm=True, job_id="7", is_packed=False)
    asked = iter(["500M", "750M", "750M"])
    monkeypatch.setattr(
        "hpcrun.slurm.job.growth",
        lambda job, key, factor, most: {
            **{"key": key, "field": "MinMemoryNode", "was": (was := next(asked))},
            "now": f"{float(was[:-1]) * factor:g}M",
        },
    )
    found = []
    for number in (1, 2, 3):
        ledger.write(place.run, ledger.STARTED, number, submission=1, job_id="7", time=1.0)
        lost = Evidence(supervisor_lost=True, job=JobFacts("OUT_OF_MEMORY", out_of_memory=True))
        action = AttemptEnd(place.submission, run, launcher, {}).record(
            number, causes.decide(lost), concluded=True
        )
        found.append((action.kind, (action.grow or {}).get("now")))
        assert (ledger.read(place.run)[-1].decided or {})["grow"] == action.grow
    assert found == [("requeue", "750M"), ("requeue", "1125M"), ("requeue", None)]
    assert "Slurm gave 750M again" in action.reason
    # A time limit is no matter of memory.
    ledger.write(place.run, ledger.STARTED, 4, submission=1, job_id="7")
    end = causes.decide(Evidence(stop=causes.TIME_LIMIT))
    assert AttemptEnd(place.submission, run, launcher, {}).record(4, end).grow is None


def test_the_start_after_a_killed_supervisor_asks_for_more_before_it_begins(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit("true", recovery={})
    place.run.directory.mkdir(parents=True)
    ledger.write(place.run, ledger.STARTED, 1, submission=1)
    more = Action("requeue", "", grow={"key": "mem", "was": "1M", "now": "2M"})
    asked: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(AttemptEnd, "conclude_earlier", lambda *_, **__: more)
    monkeypatch.setattr(AttemptEnd, "carry_out", lambda _, *given: [asked.append(given)] != [])
    assert Supervisor(place.submission, 3).supervise() == 75
    assert asked[0][:2] == (more, 1)
    assert len(ledger.read(place.run)) == 1


NO_GPU = Evidence(
    launch_error="node n1: no GPU; node n2: its disk is full",
    **{"bad_nodes": ("n1", "n2"), "response": "replace", "hardware": {"n1": "no GPU"}},
)


@pytest.mark.parametrize(
    ("evidence", "is_slurm", "drill", "state", "told"),
    [
        (Evidence(lost_nodes=("n1",)), True, False, "DOWN*", ["it did not answer any more"]),
        (Evidence(lost_nodes=("n1",)), True, False, "DOWN+NOT_RESPONDING", ["it did not answer"]),
        (Evidence(lost_nodes=("n1",)), True, False, "ALLOCATED", []),
        (Evidence(lost_nodes=("n1",)), True, False, "", []),
        (Evidence(lost_nodes=("n1",), cut_off="no carrier"), True, False, "", ["no carrier"]),
        (Evidence(lost_nodes=("n1",)), False, False, "DOWN*", []),
        (Evidence(lost_nodes=("n1",)), True, True, "DOWN*", []),
        (NO_GPU, True, False, "", ["no GPU"]),
        (NO_GPU, True, True, "", []),
        (Evidence(failure={"rank": 0, "node": "n1", "exit_code": 1}), True, False, "", []),
        (Evidence(launch_error="nobody answered"), True, False, "", []),
        (Evidence(launch_error="x", unusable_nodes=("n1",)), True, False, "", []),
        (Evidence(launch_error="x", unusable_nodes=("n1",), storage=True), True, False, "", []),
        (Evidence(launch_error="x", unusable_nodes=("n1",), permanent="x"), True, False, "", []),
    ],
)
def test_nodes_whose_hardware_ended_an_attempt_are_suspect(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    evidence: Evidence,
    is_slurm: bool,
    drill: bool,
    state: str,
    told: list[str],
) -> None:
    monkeypatch.setattr(client, "show", lambda *_: {"State": state} if state else {})
    place.submit("true", recovery={})
    place.run.directory.mkdir(parents=True)
    run = plan_file.read(place.submission.plan).run(3)
    if drill:
        run.spec["drill"] = [{"fault": "node"}]
    launcher: Any = SimpleNamespace(requeues=False, is_slurm=is_slurm, job_id="1")
    ledger.write(place.run, ledger.STARTED, 1, submission=1)
    AttemptEnd(place.submission, run, launcher, {}).record(1, causes.decide(evidence))
    found = SuspectNodes(place.submission.experiment.root).read()
    assert [one.node for one in found] == ["n1"] * len(told)
    assert all(one.reason.startswith(reason) for one, reason in zip(found, told, strict=True))


def test_a_node_that_falls_silent_twice_is_suspect(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "show", lambda *_: {})
    place.submit("true", recovery={})
    place.run.directory.mkdir(parents=True)
    run = plan_file.read(place.submission.plan).run(3)
    launcher: Any = SimpleNamespace(requeues=False, is_slurm=True, job_id="1")
    record = SuspectNodes(place.submission.experiment.root)
    for number, suspects in ((1, []), (2, ["n1"])):
        ledger.write(place.run, ledger.STARTED, number, submission=1)
        end = causes.decide(Evidence(lost_nodes=("n1",)))
        AttemptEnd(place.submission, run, launcher, {}).record(number, end)
        assert [one.node for one in record.read()] == suspects


def test_operators_that_compile_nowhere_end_the_run_at_once(place: Place) -> None:
    place.submit("true", nodes=2, deepspeed={"train_batch_size": 2}, recovery={})
    # It tells its version as a compiler does.
    code, said = place.supervise(120, CXX="echo")
    assert code == 1, said
    (attempt,) = ledger.read(place.run)
    assert (attempt.kind, attempt.action) == ("launch", "stop")
    assert attempt.cause["permanent"] == "DeepSpeed's operators do not compile"
    assert "nodes" not in attempt.cause
    assert "ShareMemCommBuilder do not compile" in attempt.cause["message"]


def test_a_program_finds_its_deepspeed_configuration_as_it_was_written(place: Place) -> None:
    config = {
        "_comment": "a Trainer's",
        "train_batch_size": "auto",
        "fp16": {"enabled": "auto"},
        "data_efficiency": {"data_routing": {"random_ltd": {"model_mask_name": None}}},
    }
    # With a GPU asked for, none of DeepSpeed's operators needs compiling.
    resources = {**RESOURCES, "gpus_per_node": 1}
    place.submit("cat ${hpcrun:deepspeed_config}", deepspeed=config, resources=resources)
    assert place.supervise()[0] == 0
    assert json.loads(place.output()) == config


def test_a_command_that_does_not_exist(place: Place) -> None:
    place.submit(Entry("command", argv=("./no-such-program", "--flag")))
    code, _ = place.supervise()
    assert code == 1
    message = place.cause()["message"]
    assert "the command './no-such-program' cannot be started: No such file" in message
    assert "relative paths are looked up in the run's working directory" in message
    log = place.run.attempt(1).rank_log(0).read_text()
    assert log.startswith("error: the command './no-such-program' cannot be started")
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("number", "outcome", "message", "intent"),
    [
        (signal.SIGTERM, "stopped", "asked to stop by SIGTERM", None),
        (signal.SIGINT, "cancelled", "interrupted by Ctrl-C", "cancelled"),
    ],
)
def test_a_signal_to_the_supervisor_ends_everything(
    place: Place, number: signal.Signals, outcome: str, message: str, intent: str | None
) -> None:
    place.submit(f"trap '' TERM INT; {FOREVER} & {FOREVER}", ranks=2)
    supervisor = place.start()
    until(lambda: "workers_started" in _events(place) and len(place.left()) >= 8)
    supervisor.send_signal(number)
    code, _ = place.end(supervisor)
    assert code == 1
    assert place.attempt().outcome == outcome
    assert place.cause()["message"] == message
    assert ledger.intent(place.run) == intent


def test_a_signal_before_the_ranks_are_started(place: Place) -> None:
    place.submit(FOREVER)
    supervisor = place.start()
    until(lambda: "attempt_started" in _events(place))
    supervisor.terminate()
    code, _ = place.end(supervisor)
    assert code == 1
    assert _events(place)[-2:] == ["attempt_ended", "decided"]
    assert place.cause()["message"] == "asked to stop by SIGTERM"


def test_cancelled_while_it_runs(place: Place) -> None:
    place.submit(FOREVER)
    supervisor = place.start()
    until(lambda: "workers_started" in _events(place))
    ledger.set_intent(place.run, ledger.CANCELLED)
    supervisor.terminate()
    code, _ = place.end(supervisor)
    assert code == 1
    assert place.attempt().outcome == "cancelled"
    assert place.cause()["message"] == "cancelled by the user"
    assert ledger.intent(place.run) == "cancelled"


def test_agents_clean_up_when_their_supervisor_is_gone(place: Place) -> None:
    place.submit(f"trap '' TERM; echo began; {FOREVER} & {FOREVER}", nodes=2)
    supervisor = place.start()
    ranks = [place.run.attempt(1).rank_log(rank) for rank in (0, 1)]
    until(lambda: all(log.exists() and "began" in log.read_text() for log in ranks))
    # Two agents' own, and the path at which the ranks of both find the code.
    assert len(place.scratch()) == 3
    supervisor.kill()
    supervisor.communicate()
    until(lambda: place.scratch() == [] and place.left() == [])
    assert place.attempt().ended is None


def test_the_code_of_the_moment_of_submission_is_found_in_the_working_directory(
    place: Place,
) -> None:
    (place.code / "lib.txt").write_text("frozen lib\n")
    study = place.code / "studies" / "one"
    study.mkdir(parents=True)
    (study / "data.txt").write_text("frozen data\n")
    place.submit("cat data.txt ../../lib.txt; pwd", directory="studies/one")
    (study / "data.txt").write_text("edited since\n")
    (place.code / "lib.txt").unlink()
    code, _ = place.supervise()
    assert code == 0
    data, lib, directory = place.output().splitlines()
    assert (data, lib) == ("frozen data", "frozen lib")
    assert directory == str(place.run.work / "studies" / "one")


def test_linked_data_is_where_it_was(place: Place) -> None:
    study = place.code / "study"
    (study / "deep").mkdir(parents=True)
    (study / "main.txt").write_text("code")
    code = {"link": ["data", "deep/more"]}
    place.submit("cat data/big.bin; echo out > deep/more/out.txt", directory="study", code=code)
    for name, text in (("data", "not frozen\n"), ("deep/more", "")):
        (study / name).mkdir()
        (study / name / "big.bin").write_text(text)
    assert place.supervise()[0] == 0
    assert place.output() == "not frozen\n"
    assert (study / "deep/more/out.txt").read_text() == "out\n"
    assert (study / "data/big.bin").exists()


PRINT = "import json, sys; print(json.dumps(sys.argv[1:]))"


def test_placeholders_are_filled_in_arguments_and_in_deepspeeds_json(place: Place) -> None:
    (place.code / "show.py").write_text(PRINT)
    argv = ("--out=${hpcrun:directory}/o", "${hpcrun:deepspeed_config}", "${hpcrun:attempt}")
    deepspeed = {"csv_monitor": {"output_path": "${hpcrun:directory}/csv"}}
    # With a GPU asked for, none of DeepSpeed's operators needs compiling.
    resources = {"nodes": 1, "ntasks_per_node": 1, "gpus_per_node": 1, "cpus_per_task": 1}
    entry = Entry("script", file="show.py", argv=(*argv, "$HOME;`x`", "${hpcrun:scratch}"))
    place.submit(entry, deepspeed=deepspeed, resources=resources)
    assert place.supervise()[0] == 0
    out, json_path, attempt, hostile, scratch = json.loads(place.output())
    assert out == f"--out={place.run.directory}/o"
    assert json_path == str(place.run.attempt(1).deepspeed)
    assert (attempt, hostile) == ("1", "$HOME;`x`")
    assert Path(scratch).parents[1] == place.temporary
    written = state_files.read_json(place.run.attempt(1).deepspeed)
    assert written == {"csv_monitor": {"output_path": f"{place.run.directory}/csv"}}


def test_an_unknown_placeholder_ends_the_attempt_by_name(place: Place) -> None:
    place.submit(Entry("command", argv=("echo", "${hpcrun:nope}")))
    assert place.supervise()[0] == 1
    assert "${hpcrun:nope} is not known; there are directory" in place.cause()["message"]


def test_resume_arguments_once_something_was_saved(place: Place) -> None:
    """The second attempt leaves a file; what looks like a log or lies in the code is none."""
    save = "a = os.environ['HPCRUN_DIRECTORY'] + '/saved.pt'; n = os.environ['HPCRUN_ATTEMPT']"
    program = f"{PRINT}; import os; {save}; n == '2' and open(a, 'w').write('x'); sys.exit(5)"
    entry = Entry("command", argv=("python3", "-c", program, "--lr=1"))
    place.submit(entry, recovery={"resume_args": ["--resume=${hpcrun:attempt}"]})
    assert place.supervise()[0] == 5
    assert [json.loads(place.output(attempt=number)) for number in (1, 2, 3)] == [
        ["--lr=1"],
        ["--lr=1"],
        ["--lr=1", "--resume=3"],
    ]
    assert [attempt.outcome for attempt in ledger.read(place.run)] == ["failed"] * 3


def test_variables_are_filled_in_for_ranks_alone(place: Place) -> None:
    given = {"OUT": "${hpcrun:directory}/o-${hpcrun:attempt}", "PYTHONPATH": "${hpcrun:code}/lib"}
    (place.code / "lib").mkdir()
    (place.code / "lib/own.py").write_text("import os, hpcrun; print(os.environ['OUT'])\n")
    entry = Entry("command", argv=("python3", "-c", "import own"))
    place.submit(entry, environment={"variables": given})
    assert place.supervise(PYTHONPATH=str(REPOSITORY))[0] == 0, place.output()
    assert place.output() == f"{place.run.directory}/o-1\n"


def test_a_script_talks_back_by_the_metrics_file(place: Place) -> None:
    place.submit(
        "for s in 1 2; do echo '{\"step\":'$s',\"loss\":0.5}' >>$HPCRUN_METRICS_FILE; done"
    )
    assert place.supervise()[0] == 0
    lines = list(state_files.read_lines(place.run.attempt(1).metrics))
    assert lines == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.5}]


def _environments(place: Place, ranks: int) -> list[dict[str, str]]:
    return [
        dict(line.split("=", 1) for line in place.output(rank).split("\0") if line)
        for rank in range(ranks)
    ]


def test_ranks_on_two_nodes(place: Place) -> None:
    place.submit("env -0", nodes=2, ranks=2)
    assert place.supervise()[0] == 0
    assert place.attempt().started["nodes"] == ["local0", "local1"]
    found = _environments(place, 4)
    names = ("RANK", "NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR")
    assert [tuple(each[name] for name in names) for each in found] == [
        ("0", "0", "0", "2", "4", "127.0.0.1"),
        ("1", "0", "1", "2", "4", "127.0.0.1"),
        ("2", "1", "0", "2", "4", "127.0.0.1"),
        ("3", "1", "1", "2", "4", "127.0.0.1"),
    ]
    (port,) = {each["MASTER_PORT"] for each in found}
    low, high = rendezvous_port.port_range()
    assert low <= int(port) < high
    first, second = found[0]["HPCRUN_SCRATCH"], found[2]["HPCRUN_SCRATCH"]
    assert first != second
    assert [each["HPCRUN_SCRATCH"] for each in found] == [first, first, second, second]
    assert all(each["GLOO_SOCKET_IFNAME"] == "lo" for each in found)
    assert {each["PWD"] for each in found} == {str(place.run.work)}


def test_each_gpu_goes_to_one_node(place: Place) -> None:
    resources = {"nodes": 2, "ntasks_per_node": 2, "gpus_per_node": 2, "cpus_per_task": 1}
    place.submit("echo $CUDA_VISIBLE_DEVICES", resources=resources)
    assert place.supervise()[0] == 0
    assert [place.output(rank) for rank in range(4)] == ["0,1\n", "0,1\n", "2,3\n", "2,3\n"]


def test_no_other_job_gets_the_port_while_a_run_lasts(place: Place) -> None:
    place.submit(f"echo $MASTER_PORT; {FOREVER}")
    supervisor = place.start()
    log = place.run.attempt(1).rank_log(0)
    until(lambda: log.exists() and log.read_text())
    port = int(log.read_text())
    low, high = rendezvous_port.port_range()
    seed = next(seed for seed in range(high - low) if low + seed * 16 % (high - low) == port)
    rival = rendezvous_port.PortReservation(seed)
    rival.release()
    assert rival.port != port
    supervisor.terminate()
    place.end(supervisor)


def test_secrets_reach_the_ranks_and_no_file(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secrets.env"
    secret.write_text("API_KEY='sesame open'\n")
    secret.chmod(0o600)
    place.submit("[ ${#API_KEY} = 11 ]", environment={"secrets_file": str(secret)})
    assert place.supervise()[0] == 0
    files = [path for path in place.root.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"sesame" in path.read_bytes()]


def test_secrets_that_others_can_read_stop_the_run(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secrets.env"
    secret.write_text("API_KEY=sesame\n")
    secret.chmod(0o644)
    place.submit("true", environment={"secrets_file": str(secret)})
    assert place.supervise()[0] == 1
    assert "can be read by others than its owner" in place.cause()["message"]


@pytest.mark.parametrize("key", ["fast_interface", "management_interface"])
def test_a_network_that_the_node_does_not_have(place: Place, key: str) -> None:
    place.submit("true", fabric={key: "nosuch0"})
    assert place.supervise()[0] == 1
    cause = place.cause()
    assert cause["kind"] == "launch"
    assert f"fabric.{key}: this node" in cause["message"]
    assert "'nosuch0'" in cause["message"]


def _no_archive(path: Path) -> None:
    path.unlink()


def _cut_archive(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2500])


@pytest.mark.parametrize(
    ("break_it", "kind", "told"),
    [
        # Looked for as long as a client of NFS may not see it.
        pytest.param(_no_archive, "storage", "use shared storage", marks=pytest.mark.usually),
        (_cut_archive, "launch", "be used"),
    ],
)
def test_code_that_cannot_be_unpacked(place: Place, break_it: Any, kind: str, told: str) -> None:
    (place.code / "random.bin").write_bytes(os.urandom(5000))
    place.submit("true", nodes=2)
    assert (place.experiment.code / "1.tar.gz").stat().st_size > 5000
    break_it(place.experiment.code / "1.tar.gz")
    assert place.supervise(150)[0] == 1
    assert place.cause()["kind"] == kind
    assert f" cannot {told}: " in place.cause()["message"]
    assert ".tar.gz" in place.cause()["message"]
    assert "workers_started" not in _events(place)


def test_one_that_was_replaced_meanwhile_records_nothing(place: Place) -> None:
    """As one is that did not run for a while: its successor has said how it ended."""
    place.submit(FOREVER, recovery={})
    supervisor = place.start()
    until(lambda: "workers_started" in _events(place))
    place.run.attempt(2).directory.mkdir()
    supervisor.terminate()
    code, said = place.end(supervisor)
    assert code == EXIT_STALE
    assert "a later attempt has begun" in said
    assert not {"attempt_ended", "decided"}.intersection(_events(place))


def test_a_run_has_one_live_attempt(place: Place) -> None:
    place.submit(FOREVER)
    first = place.start()
    until(lambda: "workers_started" in _events(place))
    second = place.start()
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "attempt 1 still runs as process" in said
    assert [attempt.number for attempt in ledger.read(place.run)] == [1]
    first.terminate()
    assert place.end(first)[0] == 1
    assert place.attempt().outcome == "stopped"


def test_the_end_of_a_supervisor_that_was_killed_is_recorded_by_the_next(place: Place) -> None:
    place.submit(FOREVER, recovery={})
    supervisor = place.start()
    until(lambda: "workers_started" in _events(place))
    supervisor.kill()
    supervisor.communicate()
    until(lambda: place.scratch() == [])
    processes.kill_all(place.submission.directory)
    place.submit("true", recovery={})
    code, said = place.supervise()
    assert code == 0
    assert "attempt 1 had ended without a word" in said
    assert place.cause(1)["kind"] == "supervisor_lost"
    assert place.attempt(2).outcome == "completed"


def test_a_run_whose_budget_a_lost_supervisor_has_spent_is_not_started(place: Place) -> None:
    place.submit(FOREVER, recovery={"budgets": {"supervisor_lost": 1}})
    supervisor = place.start()
    until(lambda: "workers_started" in _events(place))
    supervisor.kill()
    supervisor.communicate()
    until(lambda: place.scratch() == [])
    processes.kill_all(place.submission.directory)
    code, said = place.supervise()
    assert code == 1
    assert "recovery.budgets.supervisor_lost is 1" in said
    assert len(place.run.attempts()) == 1


def test_claims_at_one_moment_get_different_numbers(place: Place) -> None:
    place.submit("true")
    barrier = threading.Barrier(16)
    claimed: list[int] = []

    def claim() -> None:
        supervisor = Supervisor(SubmissionPaths(place.submission.directory), 3)
        barrier.wait()
        claimed.append(supervisor._claim().number)

    threads = [threading.Thread(target=claim) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == list(range(1, 17))


def test_a_run_that_is_not_in_the_plan(place: Place) -> None:
    place.submit("true")
    with pytest.raises(Exception, match="study: there is no run 7 in this plan"):
        Supervisor(SubmissionPaths(place.submission.directory), 7)
