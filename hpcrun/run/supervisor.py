"""The supervisor, one per job, in the batch step: runs attempt after attempt.

The next attempt begins in the same allocation where it can be used again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

from hpcrun import feature, python_packages
from hpcrun.container.rank_python import RankPython, image_facts
from hpcrun.errors import EXIT_FAILED, EXIT_OK, EXIT_SAVED, HpcrunError
from hpcrun.policy import causes, next_attempt, recovery
from hpcrun.policy.batch import Triple
from hpcrun.policy.causes import End, Evidence, JobFacts
from hpcrun.run.job import fewer_nodes, launchers, new_supervisor, notify
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.attempt import RunningAttempt
from hpcrun.run.job.attempt_end import AttemptEnd
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.job.stop_request import StopRequest
from hpcrun.run.job.warm_ranks import WarmRanks
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.attempt_fence import EXIT_STALE
from hpcrun.run.protocol.output import say
from hpcrun.run.tracking.tracker_processes import TrackerProcesses
from hpcrun.run.work import work_directory
from hpcrun.state import ledger, permissions, plan_file, submission_facts
from hpcrun.state.environment import frozen_environment
from hpcrun.state.layout import AttemptPaths, SubmissionPaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import listed


class Supervisor:
    """One start of one run's job: attempt after attempt, while its allocation can be used."""

    def __init__(
        self,
        submission: SubmissionPaths,
        number: int,
        instead_of: str | None = None,
        part: Sequence[str] = (),
    ) -> None:
        self.submission, self._instead_of, self._part = submission, instead_of, part
        self.plan = plan_file.read(submission.plan)
        permissions.use_profile(self.plan.cluster)
        if (whose := permissions.on_the_way(submission.plan)) and os.geteuid():
            raise HpcrunError(f"not started: {whose}, who could have put anything in its place")
        self.run = self.plan.run(number)
        self.paths = submission.experiment.run(number)
        self._agents: Agents | None = None
        self._warm_ranks: WarmRanks
        self._trackers: TrackerProcesses | None = None
        self._signals: list[str] = []

    def supervise(self) -> int:
        """Bring the run to its end, or as far as this job can, and return the job's exit code."""
        intent = ledger.intent(self.paths)
        if intent is not None:
            say(f"{self.plan.name}/{self.run.number} is {intent}; nothing to do")
            return EXIT_OK
        for number in (*stop_flag.SIGNALS, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._complete()
        self._ends = AttemptEnd(self.submission, self.run, self._launcher, self.plan.cluster)
        lost = () if self._instead_of is None else (self._instead_of,)
        concluded = self._ends.conclude_earlier(here=bool(lost))
        if concluded is not None and concluded.kind == recovery.STOP:
            say(f"not started again: {concluded.reason}")
            self._notify()
            return EXIT_FAILED
        if ledger.intent(self.paths) is not None:
            self._notify()
            return EXIT_OK
        elsewhere = lost and concluded is not None and concluded.kind != recovery.RESTART
        if concluded is not None and (concluded.grows or elsewhere):
            say(f"{concluded.kind}: {concluded.reason}")
            last = ledger.read(self.paths)[-1].number
            if self._ends.carry_out(concluded, last, End(causes.FAILED, EXIT_FAILED), lost):
                return EXIT_SAVED
            if elsewhere:
                return EXIT_FAILED
        try:
            return self._bring_to_end()
        finally:
            if self._trackers is not None:
                self._trackers.end()

    def _complete(self) -> None:
        """Have features complete the run; what they cannot is how its next attempt ends."""
        self._incomplete: HpcrunError | None = None
        try:
            found = [one.complete(self.run, self.submission) for one in feature.every().values()]
        except HpcrunError as error:
            self._incomplete = error
            return
        if any(found):
            self.plan = plan_file.read(self.submission.plan)
            self.run = self.plan.run(self.run.number)

    def _bring_to_end(self) -> int:
        run: RunPlan | None = self.run
        nodes: Sequence[str] = self._launcher.nodes[: self.run.nodes]
        if len(nodes) < self.run.nodes:
            run = fewer_nodes.to_fit(self.run, self.paths, len(nodes))
            assert run is not None
            nodes = nodes[: run.nodes]
        lost: Sequence[str] = ()
        is_replaced = False
        try:
            while True:
                assert run is not None
                run, smaller = self._in_smaller_batches(run)
                attempt = self._begin(run, nodes, smaller)
                # Nobody is told the values of a run that has none.
                if self._trackers is None and self._incomplete is None:
                    python = self._launcher.python
                    self._trackers = TrackerProcesses(self.submission, run, attempt, python)
                stop_request = StopRequest(run, self.paths, attempt, self._launcher, self._ends)
                end = self._attempt(run, attempt, nodes, stop_request)
                why = f": {end.message}" if end.cause else ""
                say(f"attempt {attempt.number} {end.outcome}{why}")
                if is_replaced := attempt.has_successor:
                    say("a later attempt has begun, and has recorded how this one ended")
                    return EXIT_STALE
                run, nodes = self._seats(run, end)
                here = run is not None and stop_request.leaves_time()
                action = self._ends.record(attempt.number, end, here=here)
                if action.kind != recovery.NOTHING:
                    say(f"{action.kind}: {action.reason}")
                if action.kind != recovery.RESTART or ledger.intent(self.paths) is not None:
                    break
        finally:
            if self._agents is not None:
                self._warm_ranks.end()
            if self._trackers is not None:
                self._trackers.ask_to_end()
            if self._agents is not None:
                lost = self._agents.lost
                # Agents that cannot be dismissed leave when they lose this process.
                with _best_effort():
                    self._agents.dismiss(leaves_steps=is_replaced)
        if action.kind != recovery.REQUEUE:
            # Other nodes remember a directory that is removed and made again as it was.
            work_directory.tidy(self.paths, self.plan.directory)
        goes_on = self._ends.carry_out(action, attempt.number, end, lost)
        self._notify(goes_on=goes_on)
        if goes_on:
            return EXIT_SAVED
        return end.exit_code if end.exit_code != EXIT_SAVED else EXIT_FAILED

    def _notify(self, *, goes_on: bool = False) -> None:
        with _best_effort():
            notify.tell(self.plan.name, self.run, self.paths, say, goes_on=goes_on)

    def _seats(self, last: RunPlan, end: End) -> tuple[RunPlan | None, Sequence[str]]:
        """Return the run as it could be restarted in this allocation, and on which nodes.

        A failure that it caused itself while it was shrunk may not come again at its full size.
        """
        if self._agents is None or (last.nodes < self.run.nodes and end.kind in causes.OWN):
            return None, ()
        nodes = self._agents.seats(self.run.nodes)
        if len(nodes) == self.run.nodes:
            return self.run, nodes
        run = fewer_nodes.to_fit(self.run, self.paths, len(nodes))
        return run, self._agents.seats(run.nodes) if run is not None else ()

    def _in_smaller_batches(self, run: RunPlan) -> tuple[RunPlan, dict[str, int]]:
        """Return the run with its micro batch halved after ends out of memory, and what to record.

        The global batch and each rank's share of it stay as they are.
        """
        planned, now = Triple.of_config(self.run.deepspeed), Triple.of_config(run.deepspeed)
        mine = [one for one in ledger.read(self.paths) if one.submission == self.submission.number]
        times = next_attempt.halvings(mine, self.run.recovery, planned)
        if not times or planned is None or now is None:
            return run, {}
        divided = now.within(planned.halved(times).micro)
        spec = {**run.spec, "deepspeed": {**run.deepspeed, **divided.as_keys()}}
        smaller = {"micro_batch": divided.micro, "accumulation": divided.accumulation}
        return replace(run, spec=spec), {**smaller, "planned_micro_batch": planned.micro}

    @cached_property
    def _launcher(self) -> Launcher:
        network = self.plan.cluster.get("fabric") or {}
        kind = launchers.launcher_class(self.plan.executor, has_part=bool(self._part))
        python = RankPython.of(self.submission, self.plan, self.run)
        only = self._part
        if self._instead_of is not None:
            only = new_supervisor.nodes_left(ledger.read(self.paths), self._instead_of)
        return kind(self.run, network, python, only)

    def _begin(
        self, run: RunPlan, nodes: Sequence[str], smaller: Mapping[str, int] | None = None
    ) -> AttemptPaths:
        """Claim the next attempt and put it on record, with its ``smaller`` micro batches.

        Raises HpcrunError if the file system takes no files: nothing of the attempt would be kept.
        """
        attempt: AttemptPaths | None = None
        try:
            attempt = self._claim()
            ledger.write(
                self.paths,
                ledger.STARTED,
                attempt.number,
                job_id=self._launcher.job_id,
                submission=self.submission.number,
                nodes=list(nodes),
                **self._spares(nodes),
                restart_count=self._launcher.restart_count,
                host=os.uname().nodename,
                pid=os.getpid(),
                world_size=run.world_size,
                **({} if self._instead_of is None else {ledger.INSTEAD_OF: self._instead_of}),
                **(smaller or {}),
                **self._changed_packages(),
            )
        except OSError as error:
            if attempt is not None:
                with contextlib.suppress(OSError):
                    attempt.directory.rmdir()
            raise HpcrunError(
                f"the attempt cannot be recorded: {error}",
                hint=f"make room, then: hpcrun requeue {shlex.quote(str(self.paths.directory))}",
            ) from error
        say(f"attempt {attempt.number} of {self.plan.name}/{self.run.number} on {listed(nodes, 8)}")
        return attempt

    def _changed_packages(self) -> dict[str, Any]:
        """Return how this Python differs from the job's as it was at submission, for the ledger.

        Where the environment was frozen then, that is on record, and packages of now do not matter.
        """
        known = submission_facts.describe(self.submission).get("packages")
        if (before := python_packages.read(known)) is None or (now := self._installed()) is None:
            return {}
        if self.run.environment.is_frozen:
            # Its ranks have the packages of then; this Python itself is not in every copy.
            before, now = ({"python": one.get("python", "")} for one in (before, now))
        changed = python_packages.difference(before, now)
        if changed:
            say(f"since it was submitted, packages of this Python changed: {listed(changed, 8)}")
        frozen = frozen_environment.read_record(self.submission)
        told = {} if frozen is None else {"environment": frozen.digest}
        return {**told, **({"packages_changed": changed} if changed else {})}

    def _installed(self) -> dict[str, str] | None:
        """Return the packages that the ranks' Python has now; None if it does not tell."""
        container = self.run.container
        if container is None:
            return python_packages.installed(sys.path)
        found = self._in_container
        return None if found is None else {**found, **image_facts(container)}

    @cached_property
    def _in_container(self) -> dict[str, str] | None:
        """The packages in the container, asked once: restarts in place do not wait for it."""
        python = self._launcher.python
        return python_packages.ask(python.command()) if python.is_anywhere else None

    def _spares(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        usable = self._launcher.nodes if self._agents is None else self._agents.usable
        spares = [node for node in usable if node not in nodes]
        return {"spare_nodes": spares} if spares else {}

    def _claim(self) -> AttemptPaths:
        """Take the next attempt's number; the directory's creation is the claim."""
        attempts = self.paths.attempts()
        number = attempts[-1].number + 1 if attempts else 1
        while True:
            attempt = self.paths.attempt(number)
            try:
                attempt.directory.mkdir(parents=True)
                return attempt
            except FileExistsError:
                number += 1

    def _attempt(
        self, run: RunPlan, attempt: AttemptPaths, nodes: Sequence[str], stop_request: StopRequest
    ) -> End:
        """Run one attempt and return how it ended."""
        try:
            if self._incomplete is not None:
                raise self._incomplete
            if self.run.environment.is_frozen:
                frozen_environment.of_submission(self.submission)
            if self._agents is None:
                self._agents = Agents(self._launcher, self.submission, self.run, attempt)
                self._warm_ranks = WarmRanks(self._launcher, self._agents)
                if self._instead_of is not None:
                    self._warm_ranks.adopt(self.paths.attempt(attempt.number - 1))
            stop_request.attach(self._agents, self._signals)
            parts = self._launcher, self._agents, stop_request, self._warm_ranks
            found = RunningAttempt(self.plan, run, attempt, *parts).bring_to_end(nodes)
        except feature.NotWanted as error:
            found = Evidence(not_wanted=error.message)
        except (HpcrunError, OSError) as error:
            found = Evidence(launch_error=str(error))
        job = JobFacts() if found.finished else self._ends.facts(attempt.number)
        return causes.decide(replace(found, intent=ledger.intent(self.paths), job=job))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(signal.Signals(number).name)


@contextlib.contextmanager
def _best_effort() -> Iterator[None]:
    """Log an error instead of raising it: the attempt's end stands as it is."""
    try:
        yield
    except Exception:
        say(traceback.format_exc())


def put_python_first_on_path() -> None:
    """Put this Python's directory (``python``, ninja) first, as activating its environment does."""
    directory = str(Path(sys.executable).parent)
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if entries[0] != directory:
        os.environ["PATH"] = os.pathsep.join([directory, *entries])


def allow_many_connections() -> None:
    """Raise the limit on descriptors: each agent takes two, and the usual soft limit is 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    parser = argparse.ArgumentParser(prog="hpcrun.run.supervisor")
    parser.add_argument("submission", type=Path)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--instead-of", help="the node that was lost with the supervisor before")
    parser.add_argument("--nodes", default="", help="those that the run has of a job of several")
    arguments = parser.parse_args()
    put_python_first_on_path()
    allow_many_connections()
    try:
        part = [node for node in arguments.nodes.split(",") if node]
        place = SubmissionPaths(arguments.submission), arguments.run, arguments.instead_of
        code = Supervisor(*place, part).supervise()
    except (HpcrunError, OSError) as error:
        say(f"error: {error}")
        code = EXIT_FAILED
    sys.exit(code)


if __name__ == "__main__":
    main()
