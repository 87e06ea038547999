"""From a compiled spec to jobs: what to do about each run, the frozen files, the executor's answer.

A submission that Slurm accepts nothing of leaves nothing behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from hpcrun.compile import Compiled, chain, extendable, freeze
from hpcrun.errors import ClusterUnreachable, UsageError
from hpcrun.slurm import client
from hpcrun.state import ledger, permissions
from hpcrun.state.layout import ExperimentPaths, experiment
from hpcrun.state.plan import Dependence, Plan, RunPlan
from hpcrun.submit import (
    code_changes,
    dependencies,
    feeder,
    lock,
    origins,
    run_actions,
    sizes,
    time_limit,
)
from hpcrun.submit.prepared import Prepared, Submitted
from hpcrun.submit.python_probe import Probe, probe
from hpcrun.submit.run_actions import Decision
from hpcrun.submit.submission_dir import Draft, check_root
from hpcrun.text import Say, plural, runs_text

# Of an experiment's runs, the numbers of those that are asked for.
Only = Callable[[ExperimentPaths, Sequence[RunPlan]], Collection[int]]


def submit(
    compiled: Compiled,
    *,
    new: bool = False,
    only: Only | None = None,
    depends_on: tuple[Dependence, ...] = (),
    argv: Sequence[str],
    say: Say,
) -> Submitted:
    """Submit what is neither completed nor on its way.

    Parameters
    ----------
    new
        Give every run a new number, even where the same was run before.
    only
        Which runs may be submitted; None for all.
    depends_on
        What the runs wait for.
    argv
        The command, for the record.
    say
        Takes messages for the person.

    Raises
    ------
    UsageError
        The root cannot be written to, the code cannot be frozen, the job's Python is of no use or
        the user is not in the profile's group.
    ClusterRefused
        Slurm refuses the job; nothing is left behind unless an earlier array was accepted.
    ClusterUnreachable
        Slurm was asked for and is not there; the same.
    Interrupted
        By Ctrl-C once something was submitted.
    """
    check_executor(compiled.cluster)
    check_root(compiled.root)
    permissions.use_umask(compiled.cluster)
    group = permissions.group_id(compiled.cluster)
    with lock.held(experiment(compiled.root, compiled.name), say, group) as renew:
        prepared = prepare(compiled, new=new, only=only, depends_on=depends_on, argv=argv, say=say)
        if prepared.draft is None:
            return prepared.result()
        return prepared.result(feeder.send(prepared, say, renew))


def submit_chain(
    compiled: Sequence[Compiled],
    *,
    new: bool = False,
    only: Only | None = None,
    argv: Sequence[str],
    say: Say,
) -> list[Submitted]:
    """`submit` experiments that depend on each other; ``new`` and ``only`` are about the last.

    Parameters
    ----------
    compiled
        As `hpcrun.compile.compile_chain` gives them.

    Raises
    ------
    HpcrunError
        As `submit`; what comes before may have been submitted by then.
    """
    done: dict[str, Submitted] = {}
    for one in compiled:
        is_last = one is compiled[-1]
        numbers = {file: before.numbers for file, before in done.items()}
        done[one.file] = submit(
            one,
            new=new and is_last,
            only=only if is_last else None,
            depends_on=chain.dependences(one, numbers),
            argv=argv,
            say=say,
        )
    return list(done.values())


def prepare(
    compiled: Compiled,
    *,
    new: bool = False,
    only: Only | None = None,
    depends_on: tuple[Dependence, ...] = (),
    argv: Sequence[str],
    say: Say,
) -> Prepared:
    """Decide about every run and write all files of a submission; nothing is submitted yet.

    The caller holds the experiment's `submit_lock`.

    Raises
    ------
    UsageError, ClusterUnreachable
        As `submit`; nothing is left behind.
    """
    check_root(compiled.root)
    paths = experiment(compiled.root, compiled.name)
    numbers = _numbers(compiled, paths, new)
    plan = freeze(compiled, numbers=numbers, select=(), depends_on=depends_on)
    dependencies.check(plan)
    decisions = run_actions.settle(paths, [run.number for run in plan.runs], say)
    if compiled.extendable:
        decisions = _extended(paths, plan, decisions, say)
    if only is not None:
        asked = only(paths, plan.runs)
        decisions = [
            dataclasses.replace(decision, action=run_actions.SKIPPED)
            if decision.is_submitted and decision.run not in asked
            else decision
            for decision in decisions
        ]
    older = _tell_of_older_code(paths, plan, decisions, say)
    chosen = {decision.run for decision in decisions if decision.is_submitted}
    if not chosen:
        say(summary(plan, decisions))
        return Prepared(paths, plan, decisions, None, older)
    runs = [run for run in plan.runs if run.number in chosen]
    time_limit.check(runs, paths)
    origins.check(runs, paths, coming={one.experiment for one in depends_on})
    resumed = {
        one.run for one in decisions if one.action in (run_actions.RESUMED, run_actions.EXTENDED)
    }
    sizes.check([run for run in runs if run.number in resumed], paths, say)
    found = probe_all(runs, plan.cluster)
    draft = Draft(paths)
    try:
        plan = freeze(
            compiled,
            submission=draft.paths.number,
            numbers=numbers,
            select=chosen,
            depends_on=depends_on,
        )
        frozen = draft.fill(plan, found, argv=argv)
        for note in frozen.notes:
            say(f"code: {note}")
        say(summary(plan, decisions))
    except BaseException:
        draft.discard()
        raise
    return Prepared(paths, plan, decisions, draft, older)


def _extended(
    paths: ExperimentPaths, plan: Plan, decisions: Sequence[Decision], say: Say
) -> list[Decision]:
    """With those that had completed, and have another value of an extendable key by now."""
    changed = run_actions.changed(paths, plan)
    over = [one for one in decisions if one.run in changed and one.action == run_actions.COMPLETED]
    run_actions.wait_for_ends(paths, over, say)
    living = [
        one.run for one in decisions if one.run in changed and one.action == run_actions.ATTACHED
    ]
    if living:
        say(
            f"{runs_text(living)}: queued or running with the values of before; repeat the "
            "command once they have ended"
        )
    return [
        dataclasses.replace(one, action=run_actions.EXTENDED)
        if one.run in changed and one.action == run_actions.COMPLETED
        else one
        for one in decisions
    ]


def _tell_of_older_code(
    paths: ExperimentPaths, plan: Plan, decisions: Sequence[Decision], say: Say
) -> frozenset[int]:
    """The completed runs whose code was another than that of now."""
    going_on = [
        one for one in decisions if one.action in (run_actions.RESUMED, run_actions.EXTENDED)
    ]
    over = [one for one in decisions if one.action == run_actions.COMPLETED]
    try:
        again, completed = code_changes.find(paths, plan, going_on, over)
    except UsageError as error:
        say(f"whether the code has changed is not known: {error.message}")
        return frozenset()
    for one in again:
        say(one.told("other code than these runs stopped with"))
    for one in completed:
        say(f"{one.told('completed under older code')} (--new runs them afresh)")
    return frozenset(run for one in completed for run in one.runs)


def check_executor(cluster: dict[str, Any]) -> None:
    """See that there is an sbatch where one is needed.

    Raises
    ------
    ClusterUnreachable
        There is none.
    """
    if cluster["executor"] == "slurm" and not client.available():
        raise ClusterUnreachable(
            f"the cluster profile '{cluster.get('name')}' submits to Slurm, and there is "
            "no sbatch on PATH",
            hint="run this on a login node of the cluster, or choose `cluster=local`",
        )


def preview(
    compiled: Compiled,
    *,
    new: bool = False,
    only: Only | None = None,
    depends_on: tuple[Dependence, ...] = (),
) -> Plan:
    """The plan that a submission would freeze now, as far as the disk alone tells.

    Nothing is written and no cluster is asked; runs that have completed are in no array.
    """
    check_root(compiled.root)
    paths = experiment(compiled.root, compiled.name)
    earlier = paths.submissions()
    numbers = _numbers(compiled, paths, new)
    plan = freeze(compiled, numbers=numbers, select=())
    extended = run_actions.changed(paths, plan) if compiled.extendable else set()
    asked = only(paths, plan.runs) if only else None

    def wanted(run: RunPlan) -> bool:
        left = ledger.intent(paths.run(run.number)) != ledger.FINISHED
        return (left or run.number in extended) and (asked is None or run.number in asked)

    return freeze(
        compiled,
        submission=earlier[-1].number + 1 if earlier else 1,
        numbers=numbers,
        select=wanted,
        depends_on=depends_on,
    )


def summary(plan: Plan, decisions: Sequence[Decision]) -> str:
    """How many runs, arrays and at most how many GPU-hours, in one line."""
    counts = {
        run_actions.NEW: "new",
        run_actions.RESUMED: "go on where they stopped",
        run_actions.EXTENDED: "had completed, and go on with another value",
        run_actions.ATTACHED: "are queued or running already",
        run_actions.CANCELLING: "are still being cancelled",
        run_actions.COMPLETED: "completed already",
        run_actions.SKIPPED: "left out by --only",
    }
    parts = []
    for action, told in counts.items():
        count = sum(decision.action == action for decision in decisions)
        if count:
            parts.append(f"{count} {told}")
    text = f"{plan.name}: {plural(len(decisions), 'run')} ({', '.join(parts)})"
    if not plan.arrays:
        return f"{text}; nothing to submit"
    if plan.cluster["executor"] == "local":
        return f"{text}; on this machine, {plan.max_parallel or 1} at a time"
    hours = sum(array.gpu_hours for array in plan.arrays)
    arrays = sum(array.is_array for array in plan.arrays)
    jobs = len(plan.arrays) - arrays
    shapes = [plural(arrays, "array")] if arrays else []
    shapes += [plural(jobs, "job")] if jobs else []
    return f"{text}; {' and '.join(shapes)}; at most {hours:,.10g} GPU-hours"


def _numbers(compiled: Compiled, paths: ExperimentPaths, new: bool) -> dict[str, int]:
    known = run_actions.numbers(paths)
    if compiled.extendable and not new:
        known = {**extendable.known(compiled, run_actions.plans(paths)), **known}
    if not new or not known:
        return known
    # An identity that no run has keeps all the numbers given so far from being given again.
    return {"": max(known.values())}


def probe_all(runs: Sequence[RunPlan], cluster: dict[str, Any]) -> Probe:
    """Look at each Python that the runs use, once; the first one's answer."""
    answers: dict[str, Probe] = {}
    for run in runs:
        own = run.spec["environment"]
        training = ("torch", "deepspeed") if run.entry.kind == "function" else ()
        needs = (*training, *run.trackers)
        key = repr((own["python"], own["setup"], own["variables"], needs))
        if key not in answers:
            answers[key] = probe(
                own["python"],
                setup=[*cluster["setup"], *own["setup"]],
                variables={**cluster["variables"], **own["variables"]},
                needs=needs,
            )
    return next(iter(answers.values()))
