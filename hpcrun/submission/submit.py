"""The orchestration of `hpcrun submit`, its dry run and `hpcrun run`.

Each walks a chain of experiments by `hpcrun.compile.chain.in_order`. A submission of which Slurm
accepts nothing leaves nothing behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun import feature
from hpcrun.compile import identity
from hpcrun.compile.chain import in_order
from hpcrun.compile.freeze import Compiled, CompiledRun, freeze
from hpcrun.errors import EXIT_OK, UsageError
from hpcrun.policy import resume
from hpcrun.shared_dataclass import replace
from hpcrun.slurm import suspect_exclusion
from hpcrun.state import chosen_point, history, permissions
from hpcrun.state.layout import ExperimentPaths, experiment
from hpcrun.state.plan import Dependence, Plan, RunPlan
from hpcrun.state.spec.executors import Executor
from hpcrun.submission import feeder, lock, preflight, run_actions, sbatch, unreached
from hpcrun.submission.code import unfrozen
from hpcrun.submission.environment import environment_freeze
from hpcrun.submission.feeder import Renew
from hpcrun.submission.run_actions import Decision
from hpcrun.submission.submission_dir import Draft, Prepared, Submitted
from hpcrun.text import Say, plural, runs_text

# Choose from an experiment's runs; returns the numbers.
Only = Callable[[ExperimentPaths, Sequence[RunPlan]], Collection[int]]
# Judge a plan whose arrays have the runs that are to be submitted.
Check = Callable[[Compiled, Plan], None]


@dataclass(frozen=True)
class Request:
    """A request to submit, beside the specs themselves."""

    argv: Sequence[str]
    """The command, for the record."""
    say: Say
    """Takes messages for the person."""
    new: bool = False
    """Give every run a new number, even if the same run exists."""
    only: Only | None = None
    """Chooses the runs that may be submitted; None for all."""
    check: Check | None = None
    """Raises an error if the cluster would refuse the plan; None for no such check."""
    avoid: bool = True
    """Leave out nodes whose hardware failed one of this user's jobs."""

    def of(self, chain: Sequence[Compiled], one: Compiled) -> Request:
        """Return the request for one experiment of a chain: the options are about the last."""
        if one is chain[-1]:
            return self
        return replace(self, new=False, only=None)


def submit_chain(chain: Sequence[Compiled], request: Request) -> list[Submitted]:
    """`submit` the experiments of a `hpcrun.compile.compile_chain`.

    If one fails, those before it have been submitted.
    """
    return list(in_order(chain, lambda one, waits: submit(one, request.of(chain, one), waits)))


@dataclass(frozen=True)
class Preview:
    """A submission as it would be made now."""

    plan: Plan
    """The plan as it would be frozen; its arrays have the runs that would be submitted."""
    decisions: Sequence[Decision]

    @property
    def numbers(self) -> tuple[str, tuple[int, ...]]:
        """The experiment's name and the numbers of all its runs."""
        return self.plan.numbers

    @property
    def submitted(self) -> Plan:
        """The plan of the runs that would be submitted alone."""
        return _of_runs(self.plan, {run for array in self.plan.arrays for run in array.runs})

    def to_data(self) -> dict[str, Any]:
        """Return the plan of what would be submitted, the action on each run, and their number."""
        return {
            **self.submitted.to_data(),
            "decisions": [{"run": one.run, "action": one.action} for one in self.decisions],
            "counts": dict(Counter(one.action for one in self.decisions)),
        }


def _of_runs(plan: Plan, chosen: Collection[int]) -> Plan:
    return replace(plan, runs=tuple(r for r in plan.runs if r.number in chosen))


def preview_chain(chain: Sequence[Compiled], request: Request) -> list[Preview]:
    """Return the submissions that `submit_chain` would make now.

    Nothing is written. Slurm is asked for a moment which runs are queued or running; where it does
    not answer, that is said, and the disk alone decides.
    """
    return list(in_order(chain, lambda one, waits: _preview(one, request.of(chain, one), waits)))


def run_chain(
    chain: Sequence[Compiled],
    request: Request,
    executor: Executor,
    bring_to_end: Callable[[Prepared], int],
) -> tuple[list[Submitted], int]:
    """Prepare the experiments of a chain, and run each to its end before the next.

    ``executor`` takes the place of the profile's.
    ``bring_to_end`` returns an exit code; one other than 0 ends the chain, and is returned.
    """

    def prepared(one: Compiled, waits: tuple[Dependence, ...]) -> Prepared:
        there = _with_executor(one, executor)
        with _submit_lock(there, request.say):
            return prepare(there, request.of(chain, one), waits)

    done: list[Submitted] = []
    code = EXIT_OK
    for each in in_order(chain, prepared):
        done.append(each.result())
        code = bring_to_end(each)
        if code != EXIT_OK:
            break
    return done, code


def submit(
    compiled: Compiled, request: Request, depends_on: tuple[Dependence, ...] = ()
) -> Submitted:
    """Submit the runs that have neither completed nor are queued or running.

    Raise UsageError if a check of `hpcrun.submission.preflight` fails, the code cannot be frozen or
    the user is not in the profile's group, and as `hpcrun.submission.feeder.send`.
    """
    preflight.check_executor(compiled.cluster)
    with _submit_lock(compiled, request.say) as renew:
        prepared = prepare(compiled, request, depends_on)
        if prepared.draft is None:
            return prepared.result()
        sent = feeder.send(prepared, request.say, renew, avoid=request.avoid)
        return prepared.result(sent)


def _submit_lock(compiled: Compiled, say: Say) -> AbstractContextManager[Renew]:
    """Return the experiment's lock, to be held with the umask and group of its profile."""
    preflight.check_root(compiled.root, compiled.cluster, say)
    permissions.use_profile(compiled.cluster)
    group = permissions.group_id(compiled.cluster)
    paths = experiment(compiled.root, compiled.name)
    preflight.check_directory(paths)
    return lock.hold(paths, say, group)


def prepare(
    compiled: Compiled, request: Request, depends_on: tuple[Dependence, ...] = ()
) -> Prepared:
    """Decide about every run and write all files of a submission; nothing is submitted yet.

    The caller holds the experiment's lock. Raises as `submit`, and leaves nothing behind then.
    """
    say = request.say
    compiled = _complete(compiled, say)
    paths = experiment(compiled.root, compiled.name)
    plans = history.plans(paths)
    numbers = _numbers(compiled, plans, request.new) if plans else {}
    plan = freeze(compiled, numbers=numbers, select=(), depends_on=depends_on)
    if depends_on:
        preflight.check_counterparts(plan)
    if plans:
        plan = chosen_point.apply_points(plan, paths)
        preflight.tell_earlier(plan, plans.values(), say)
    wanted = [run.number for run in plan.runs]
    permissions.check_mine(paths, wanted, "change")
    decisions = run_actions.settle(paths, wanted, say)
    decisions = _asked_for(compiled, request, plans, plan, decisions)
    over = [one for one in decisions if one.action == run_actions.EXTENDED]
    if over:
        run_actions.wait_for_ends(over, say)
    older = _report_other_code(paths, plans, plan, decisions, say) if plans else frozenset()
    chosen = {decision.run for decision in decisions if decision.is_submitted}
    if not chosen:
        say(summary(plan, decisions))
        if unsaid := unreached.other_annotations(plans, plan):
            say(unsaid)
        return Prepared(paths, plan, decisions, None, older)
    found = preflight.check_runs(
        [run for run in plan.runs if run.number in chosen],
        paths,
        plan.cluster,
        resumed={one.run for one in decisions if one.action in run_actions.GOING_ON},
        coming={one.experiment for one in depends_on},
        sources=compiled.sources,
        code_root=Path(compiled.code_root),
        say=say,
    )
    if request.check is not None:
        request.check(compiled, freeze(compiled, numbers=numbers, select=chosen))
    first = next(run for run in plan.runs if run.number in chosen)
    environment = environment_freeze.freeze(first, plan.cluster, paths, found, say)
    lacking = unfrozen.find(_of_runs(plan, chosen), paths, whole=plan)
    if lacking.paths:
        say(lacking.told)
    with Draft(paths) as draft:
        plan = freeze(
            compiled,
            submission=draft.paths.number,
            numbers=numbers,
            select=chosen,
            depends_on=depends_on,
        )
        notes = draft.fill(
            plan,
            found,
            argv=request.argv,
            environment=environment,
            lacking=lacking,
            typed=compiled.text,
        )
        for note in notes:
            say(f"code: {note}")
        say(summary(plan, decisions))
    return Prepared(paths, plan, decisions, draft, older, lacking)


def _complete(compiled: Compiled, say: Say) -> Compiled:
    """Return an experiment with what is looked up for its runs: by features, or of Slurm."""
    if compiled.runs[1:]:
        compiled = sbatch.with_array_size(compiled, say)
    runs: Sequence[CompiledRun] = compiled.runs
    for one in feature.features_of(runs[0].spec):
        runs = one.look_up(runs, compiled.root, say)
    return compiled if runs is compiled.runs else replace(compiled, runs=tuple(runs))


def _preview(compiled: Compiled, request: Request, depends_on: tuple[Dependence, ...]) -> Preview:
    preflight.check_root(compiled.root, compiled.cluster, request.say)
    compiled = _complete(compiled, request.say)
    paths = experiment(compiled.root, compiled.name)
    preflight.check_directory(paths)
    earlier = paths.submissions()
    plans = history.plans(paths)
    numbers = _numbers(compiled, plans, request.new)
    plan = chosen_point.apply_points(freeze(compiled, numbers=numbers, select=()), paths)
    preflight.tell_earlier(plan, plans.values(), request.say)
    decisions = run_actions.preview(paths, [run.number for run in plan.runs], request.say)
    decisions = _asked_for(compiled, request, plans, plan, decisions)
    for message in unreached.messages(plans, plan, decisions):
        request.say(message)
    plan = freeze(
        compiled,
        submission=earlier[-1].number + 1 if earlier else 1,
        numbers=numbers,
        select={decision.run for decision in decisions if decision.is_submitted},
        depends_on=depends_on,
    )
    request.say(summary(plan, decisions))
    if plan.arrays and (told := environment_freeze.description(plan.runs[0])):
        request.say(f"environment: would be {told}")
    if request.avoid:
        _tell_suspects(plan, compiled.root, request.say)
    return Preview(plan, decisions)


def _tell_suspects(plan: Plan, root: Path, say: Say) -> None:
    """Say which suspect nodes the arrays would leave out now."""
    runs = [plan.run(array.runs[0]) for array in plan.arrays]
    parts = ((plan.cluster, root, run.resources, run.shared_nodes) for run in runs)
    told = [one for part in parts for one in suspect_exclusion.left_out(*part).told]
    for one in dict.fromkeys(told):
        say(f"suspect node {one} (option --exclude of sbatch)")


def _asked_for(
    compiled: Compiled,
    request: Request,
    plans: Mapping[int, Plan],
    plan: Plan,
    decisions: list[Decision],
) -> list[Decision]:
    """Return the decisions with completed runs extended, and without what was not asked for."""
    if compiled.extendable:
        decisions = _extend(plans, plan, decisions, request.say)
    if request.only is None:
        return decisions
    asked = request.only(experiment(compiled.root, compiled.name), plan.runs)
    return [
        replace(decision, action=run_actions.SKIPPED)
        if decision.is_submitted and decision.run not in asked
        else decision
        for decision in decisions
    ]


def _with_executor(compiled: Compiled, executor: Executor) -> Compiled:
    if compiled.executor == executor:
        return compiled
    # The profile's interfaces are those of the cluster's nodes.
    own: dict[str, Any] = {"fabric": {}} if executor.is_here else {}
    cluster = {**compiled.cluster, "executor": executor.name, **own}
    return replace(compiled, cluster=cluster)


def _extend(
    plans: Mapping[int, Plan], plan: Plan, decisions: Sequence[Decision], say: Say
) -> list[Decision]:
    """Return the decisions, with completed runs extended if an extendable key has a new value."""
    jobs = {one.run: one.job for one in decisions if one.job is not None}
    changed = run_actions.changed_runs(jobs, plans, plan)
    living = [
        one.run for one in decisions if one.run in changed and one.action == run_actions.ATTACHED
    ]
    if living:
        say(
            f"{runs_text(living)}: queued or running with the values of before; repeat the "
            "command once they have ended"
        )
    return [
        replace(one, action=run_actions.EXTENDED)
        if one.run in changed and one.action == run_actions.COMPLETED
        else one
        for one in decisions
    ]


def _report_other_code(
    paths: ExperimentPaths,
    plans: Mapping[int, Plan],
    plan: Plan,
    decisions: Sequence[Decision],
    say: Say,
) -> frozenset[int]:
    """Report runs whose code differs from the code of now; return the completed ones.

    Of runs that are queued or running, all that was changed and does not reach them is reported.
    """
    going_on = [one for one in decisions if one.action in run_actions.GOING_ON]
    over = [one for one in decisions if one.action == run_actions.COMPLETED]
    living = [one for one in decisions if one.action == run_actions.ATTACHED]
    try:
        again, completed, queued = unreached.changed_code(paths, plan, going_on, over, living)
    except UsageError as error:
        say(f"whether the code has changed is not known: {error.message}")
        again, completed, queued = [], [], []
    for message in unreached.messages(plans, plan, decisions, queued):
        say(message)
    for one in again:
        say(one.told("other code than these runs stopped with"))
    for one in completed:
        say(f"{one.told('completed under older code')} (--new runs them afresh)")
    return frozenset(run for one in completed for run in one.runs)


_RESUMES, _STARTS_AGAIN = "resumes", "starts again"
# Of one run, and of several.
_WORDS = {
    run_actions.NEW: ("new", "new"),
    run_actions.RESUMED: ("goes on where it stopped", "go on where they stopped"),
    _RESUMES: ("resumes as recovery.resume says", "resume as recovery.resume says"),
    _STARTS_AGAIN: ("starts again", "start again"),
    run_actions.EXTENDED: (
        "had completed, and goes on with another value",
        "had completed, and go on with another value",
    ),
    run_actions.ATTACHED: ("is queued or running already", "are queued or running already"),
    run_actions.CANCELLING: ("is still being cancelled", "are still being cancelled"),
    run_actions.COMPLETED: ("completed already", "completed already"),
    run_actions.PRUNED: ("pruned already", "pruned already"),
    run_actions.SKIPPED: ("left out by --only", "left out by --only"),
}


def summary(plan: Plan, decisions: Sequence[Decision]) -> str:
    """Return one line: numbers of runs and arrays, and the most hours that they use."""
    number = Counter(decision.action for decision in decisions)
    resumed = (one for one in decisions if one.action == run_actions.RESUMED)
    anew = {one.run for one in resumed if not one.has_checkpoints}
    resumes = {run.number for run in plan.runs if run.number in anew and resume.of_run(run)}
    kinds = Counter(
        (_RESUMES if one.run in resumes else _STARTS_AGAIN) if one.run in anew else one.action
        for one in decisions
    )
    parts = [f"{kinds[kind]} {_WORDS[kind][kinds[kind] > 1]}" for kind in _WORDS if kinds[kind]]
    text = f"{plan.name}: {plural(len(decisions), 'run')} ({', '.join(parts)})"
    if not plan.arrays:
        again = sum(number[one] for one in run_actions.GOOD_ENDS) == len(decisions)
        return f"{text}; nothing to submit{' (--new runs them again)' if again else ''}"
    if plan.executor.is_here:
        return f"{text}; on this machine, {plan.max_parallel or 1} at a time"
    asked = [plan.run(array.runs[0]).resources for array in plan.arrays]
    queue = [f"cluster {plan.cluster.get('name')}"]
    for key in ("partition", "account"):
        names = dict.fromkeys(getattr(one, key) for one in asked)
        queue += [f"{key} {name}" if name else f"default {key}" for name in names]
    return f"{text}; {plan.shapes}; {plan.most_hours}; {', '.join(queue)}"


def _numbers(compiled: Compiled, plans: Mapping[int, Plan], new: bool) -> dict[str, int]:
    known = history.numbers(plans)
    if compiled.extendable and not new:
        known = {**identity.earlier_numbers(compiled, plans.values()), **known}
    if not new or not known:
        return known
    # An identity that no run has keeps all the numbers given so far from being given again.
    return {"": max(known.values())}
