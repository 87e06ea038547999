"""One attempt: nodes are prepared, ranks started, watched and ended."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Protocol

from hpcrun import feature
from hpcrun.errors import EXIT_SAVED, HpcrunError
from hpcrun.policy import frameworks, next_attempt
from hpcrun.policy.causes import Evidence
from hpcrun.run.check_in.start_check import StartCheck
from hpcrun.run.fabric import link_check
from hpcrun.run.job import evidence
from hpcrun.run.job.agents import Agents
from hpcrun.run.job.fault_injection import FaultInjection
from hpcrun.run.job.hang_watch import HangWatch, Hung, RankVanished
from hpcrun.run.job.launchers import Launcher
from hpcrun.run.job.rank_places import (
    NodesLost,
    NodesUnhealthy,
    NodesUnusable,
    NotBuilt,
    RankEnd,
    StorageUnseen,
    Workers,
)
from hpcrun.run.job.resume_source import StartOver, decided
from hpcrun.run.job.stop_request import EndNow, StopRequest
from hpcrun.run.job.warm_ranks import WarmRanks
from hpcrun.run.node.log_sizes import LogSizeRecord
from hpcrun.run.protocol.launch import Launch, LaunchNode
from hpcrun.run.protocol.output import say
from hpcrun.run.roles.role_launch import RoleLaunches
from hpcrun.run.roles.role_workers import RoleWorkers
from hpcrun.run.tracking.interface import identity
from hpcrun.run.work.shared_writes import SharedWrites
from hpcrun.run.work.work_directory import WorkDirectory
from hpcrun.slurm.background import BackgroundCall
from hpcrun.state import files, ledger, session_log
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.state.role_plan import role_of
from hpcrun.text import listed

# Seconds in which the peers of a rank that failed may leave their own records.
OTHERS_GRACE = 0.5
LEAVE_TOGETHER = 30.0
# Seconds in which ranks of other nodes may show that an error is not its node's.
SAME_ERROR_GRACE = 5.0
# Most seconds in which agents keep the files that the program wrote on their nodes.
KEEP_TAKES = 300.0
START_TRIES = 3
# Seconds after which ranks that ended badly would have met.
MEET_WITHIN = 300.0
# Seconds after which a search for what a program resumes from is told.
SEARCH_IS_LONG = 10.0
NOT_BUILT = "DeepSpeed's operators do not compile"
_SHOWN = 8


class EachTurn(Protocol):
    """A part of the supervisor with something to do while an attempt's ranks run.

    The loop of `RunningAttempt` turns several times a second; it lists the parts and their order. A
    part that needs longer intervals keeps the time itself.
    """

    def turn(self) -> None:
        """Do what is due. To end the attempt, raise: the exception carries the reason."""


class RunningAttempt:
    """An attempt that has been claimed; agents and warm ranks belong to the whole job."""

    def __init__(
        self,
        plan: Plan,
        run: RunPlan,
        paths: AttemptPaths,
        launcher: Launcher,
        agents: Agents,
        stop_request: StopRequest,
        warm_ranks: WarmRanks,
    ) -> None:
        self._plan, self._run, self._paths = plan, run, paths
        self._launcher, self._agents, self._stop_request = launcher, agents, stop_request
        self._warm_ranks = warm_ranks
        self._work = WorkDirectory(paths, plan.directory, of_ranks=run.has_rank_directories)
        self._copies: list[Path] = []
        # On each turn of every loop: messages first, since they may ask for a stop.
        self._always: tuple[EachTurn, ...] = (agents, stop_request)
        self._workers: Workers | None = None
        self._roles: RoleLaunches | None = None
        self._began = time.monotonic()
        made = (one.in_supervisor(run, paths, self._record) for one in feature.every().values())
        self._of_features = tuple(part for part in made if part is not None)

    def bring_to_end(self, nodes: Sequence[str]) -> Evidence:
        """Run it on these nodes until no rank is left, and return what was seen of its end."""
        code: int | None = None
        seen: dict[str, Any] = {}
        first: RankEnd | None = None
        ends: dict[int, RankEnd] = {}
        try:
            self._prepare(nodes)
            code = self._run_ranks(nodes)
        except EndNow as ended:
            say(str(ended))
        except NodesLost as error:
            say(str(error))
            seen.update(lost_nodes=error.nodes, cut_off=error.cut_off)
        except Hung as error:
            say(str(error))
            seen["hang"] = error.found
        except NodesUnhealthy as error:
            seen.update(launch_error=str(error), bad_nodes=error.nodes)
            seen.update(response=error.response, hardware=error.hardware)
        except NodesUnusable as error:
            seen.update(launch_error=str(error), unusable_nodes=error.nodes)
            seen.update(storage=isinstance(error, StorageUnseen))
            seen.update(permanent=NOT_BUILT if isinstance(error, NotBuilt) else None)
        except HpcrunError as error:
            seen["launch_error"] = str(error)
        except Exception as error:
            say(traceback.format_exc())
            seen["launch_error"] = f"{type(error).__name__}: {error}"
        finally:
            if self._workers is not None:
                # Whatever ends after this was killed.
                first, ends = self._workers.failure(), dict(self._workers.ends)
                # Also where srun has returned: it leaves a broken step while ranks live.
                self._agents.kill_ranks()
                # A rank's end may be noticed before the silence of its node.
                gone = {*self._agents.lost}.difference(self._workers.outlived)
                if lost := tuple(node for node in nodes if node in gone):
                    known = [node for node in seen.get("lost_nodes", ()) if node not in lost]
                    seen.update(lost_nodes=(*known, *lost), cut_off=None)
                if code != 0:
                    self._workers.kill(nodes_are_lost=bool(lost))
                self._start_over.look()
                self._record_if_alone(code)
            self._end_work()
        failure = None if self._workers is None else self._failure(self._workers, first)
        if failure is not None:
            found = evidence.alike(self._paths, failure, ends.values())
            node_of = self._agents.places.node_of
            failure["alike"] = {rank: node or node_of(rank) for rank, node in found.items()}
        finished = code == 0 and evidence.session(self._paths).finished
        is_program = self._run.entry.kind != "function"
        return Evidence(
            finished=finished,
            doubt=evidence.doubt(self._paths) if finished and is_program else None,
            exit_code=code,
            failure=failure,
            stop=self._stop_request.reason,
            signal=self._stop_request.signal,
            enough=self._stop_request.enough,
            **seen,
        )

    def _end_work(self) -> None:
        """Keep what the program wrote on its nodes, in the time that is left."""
        failed: list[str] = []
        if self._workers is not None:
            failed = self._agents.keep(min(KEEP_TAKES, self._stop_request.seconds_left()))
        copies = [one for one in (self._agents.shown_code, *self._copies) if one is not None]
        self._work.end(copies, failed)
        for part in self._of_features:
            part.end(self._stop_request.seconds_left())

    def _failure(self, workers: Workers, first: RankEnd | None) -> dict[str, Any] | None:
        # A script or command may end when it likes.
        gone = self._agents.gone if self._run.entry.kind == "function" else ()
        ends = {rank: workers.end_of(rank) for rank in (*workers.ends, *gone)}
        found = evidence.failure(self._paths, first, ends, gone)
        if found is None:
            return None
        if found.get("node") is None:
            found["node"] = self._agents.places.node_of(found["rank"])
        role = role_of(self._run.role_plans, found["rank"])
        found |= {} if role is None else {"role": role.shown(found["rank"])}
        one_machine, known = self._launcher.is_one_machine, (found, workers.ends)
        return found | evidence.permanent(self._run, self._paths, *known, one_machine=one_machine)

    def _may_be_its_nodes_fault(self, workers: Workers, first: RankEnd) -> bool:
        """Check for a permanent error that was seen on one node of several so far."""
        if len(self._agents.working) == 1 or not self._launcher.is_slurm:
            return False
        seen_on = (self._failure(workers, first) or {}).get("seen_on")
        return seen_on is not None and len(seen_on) == 1

    def _prepare(self, names: Sequence[str]) -> None:
        self._work.begin()
        check = StartCheck(self._plan, self._run, self._paths, self._launcher, self._agents)
        asked, turn = time.time(), self._stop_request.turn
        greeted = partial(check.greeted, names, self._record)
        nodes, port = self._agents.prepare(self._paths.number, names, turn, greeted)
        self._copies = [Path(node.code) for node in nodes]
        names = [f"{node.name} ({node.interface} {node.address})" for node in nodes]
        say(f"ready: {listed(names, _SHOWN)}, code in {self._agents.shown_code}")
        self._record_fabric(nodes)
        if copied := self._agents.copies.record():
            self._record(ledger.COPIED, **copied)
        check.prepared(nodes, self._record, asked)
        python = self._launcher.python
        planned = Launch(
            experiment=self._plan.name,
            run=self._run.number,
            label=self._run.label,
            attempt=self._paths.number,
            directory=str(self._paths.run.directory),
            spec=self._run.spec,
            entry=self._run.entry,
            working_directory=self._plan.directory,
            world_size=self._run.world_size,
            ranks_per_node=self._run.ranks_per_node,
            master_port=port,
            nodes=tuple(replace(node, adapters=None) for node in nodes),
            left_out=tuple(next_attempt.left_out(ledger.read(self._paths.run))),
            tracked=identity(self._paths.run),
            rank_python=asdict(python) if python.is_container else None,
        )
        if self._run.role_plans:
            self._roles = RoleLaunches(self._run, planned, planned.nodes)
            planned = self._roles.main
        for part in self._of_features:
            beginning = BackgroundCall(part.begin)
            while not beginning.wait(0.05):
                _turn(self._always)
            beginning.result()
        launch = self._resumed(planned)
        deepspeed = launch.fill(self._run.deepspeed, nodes[0])
        if deepspeed or launch.refers_to("deepspeed_config"):
            files.write_json(self._paths.deepspeed, deepspeed)
        if self._roles is None:
            launch.write()
        else:
            self._roles.complete(launch)
            self._roles.write()
        self._start_over = StartOver(launch, self._record)

    def _record_fabric(self, nodes: Sequence[LaunchNode]) -> None:
        """Record what the nodes said of their links; nothing where none has an adapter."""
        reports = {node.name: node.adapters for node in nodes}
        choices = link_check.choices(reports, {node.name: node.hca for node in nodes})
        found = link_check.compare(reports)
        for told in choices:
            say(f"fabric: {told}")
        for one in found:
            say(f"fabric: node {one['node']}: {one['message']}")
        if choices:
            most = link_check.MOST_RECORDED
            details = {"choices": choices[:most], "findings": found[:most], "count": len(found)}
            self._record(ledger.FABRIC, **details)

    def _resumed(self, launch: Launch) -> Launch:
        """Return the attempt as it goes on from earlier ones; looking takes long in large trees."""
        search, is_told = BackgroundCall(partial(decided, launch)), False
        while not search.wait(0.05):
            _turn(self._always)
            if not is_told and search.took > SEARCH_IS_LONG:
                is_told = True
                hint = "recovery.resume.when makes that short"
                say(f"looks for what attempt {launch.attempt} resumes from: {hint}")
        launch = search.result()
        if launch.resume is not None:
            details = {name: launch.resume[name] for name in launch.resume if name != "variables"}
            say(f"attempt {launch.attempt} {details['message']}")
            self._record(ledger.RESUME, **details)
        return launch

    def _run_ranks(self, nodes: Sequence[str]) -> int | None:
        """Start the ranks and return their exit code; None if they are to be killed.

        Raises HpcrunError if Slurm answers and does not start them.
        """
        refusals = 0
        while True:
            self._workers = self._warm_ranks.take(self._run, self._paths, nodes, self._stop_request)
            details: dict[str, Any] = {} if self._workers is None else {"warm": True}
            if notice := self._agents.links.notice:
                details["notice"] = notice
            if self._workers is None:
                self._workers = self._start_workers(nodes)
            self._began = time.monotonic()
            self._record(ledger.WORKERS, **details)
            code = self._watch(self._workers)
            refusal = self._workers.refusal() if code else None
            if refusal is None:
                return code
            say(f"the ranks could not be started: {refusal}")
            refusals += not self._wait_for_slurm()
            if refusals == START_TRIES:
                raise HpcrunError(f"Slurm does not start the ranks: {refusal}")

    def _start_workers(self, nodes: Sequence[str]) -> Workers:
        if self._roles is None:
            return self._launcher.start_workers(self._run, self._paths, nodes)
        parts = self._launcher, self._roles, self._agents, self._record
        stop_request = self._stop_request
        return RoleWorkers(self._run, self._paths, *parts, lambda: stop_request.reason is not None)

    def _record(self, event: str, **details: Any) -> None:
        write = partial(ledger.write, self._paths.run, event, self._paths.number, **details)
        files.patiently(write, say, "the ledger")

    def _record_if_alone(self, code: int | None) -> None:
        """Record that the ranks never met, unless they may have ended before they would have."""
        size, waited = self._run.main_ranks, time.monotonic() - self._began > MEET_WITHIN
        alone = frameworks.ranks_meet(self._run) and not self._agents.met
        if any(evidence.session(self._paths).of(session_log.ALONE)):
            say(f"MPI knew nothing of the {size} ranks")
            self._record(ledger.NEVER_MET, world_size=size)
        elif alone and (waited or (code == 0 and not self._met_before())):
            say(f"the {size} ranks never met")
            self._record(ledger.NEVER_MET, world_size=size)

    def _met_before(self) -> bool:
        """Check for an earlier attempt that had the time to meet: a finished program ends at once.

        One whose ranks did not meet in that time has a record of it.
        """
        return any(
            one.never_met is None
            and one.end.get("time", 0.0) - (one.workers_started or inf) > MEET_WITHIN
            for one in ledger.read(self._paths.run)
        )

    def _wait_for_slurm(self) -> bool:
        """Wait a moment, or for a controller that is down; return whether it was down."""
        was_down = False
        while True:
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline:
                _turn(self._always)
            if not self._launcher.is_unreachable():
                return was_down
            was_down = True

    def _watch(self, workers: Workers) -> int | None:
        """Wait for the ranks' end and return their exit code; None if they are to be killed."""
        each_turn: tuple[EachTurn, ...] = (
            *self._always,
            HangWatch(self._run, self._agents, self._record, lambda: workers.is_ending),
            FaultInjection(self._run, self._paths, self._agents, self._stop_request.hear),
            SharedWrites(self._agents.writes, self._record),
            LogSizeRecord(self._paths, self._run.world_size, self._agents.log_sizes),
            self._start_over,
            self._warm_ranks,
            *self._of_features,
        )
        while (code := workers.exit_code()) is None:
            try:
                _turn(each_turn)
            except RankVanished:
                return workers.exit_code()
            except feature.Enough as error:
                say(f"pruned: {error}")
                self._stop_request.end_early(str(error))
            except NodesLost as error:
                if not workers.outlives(error.nodes):
                    raise
                say(f"{error}: the run goes on without it")
            failure = workers.failure()
            if failure is None:
                continue
            # Ranks that saved leave together; the peers of one that failed would wait for ever.
            saved = failure.exit_code == EXIT_SAVED
            _wait_for_all(workers, LEAVE_TOGETHER if saved else OTHERS_GRACE)
            if not saved and self._may_be_its_nodes_fault(workers, failure):
                _wait_for_all(workers, SAME_ERROR_GRACE)
            return workers.exit_code()
        return code


def _wait_for_all(workers: Workers, most: float) -> None:
    deadline = time.monotonic() + most
    while time.monotonic() < deadline and workers.exit_code() is None:
        time.sleep(0.05)


def _turn(parts: Iterable[EachTurn]) -> None:
    for part in parts:
        part.turn()
