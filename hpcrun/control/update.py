"""Change jobs in the queue as `scontrol update` does, and write down what Slurm took.

A requeue and a submission of the frozen plan keep what was changed: it stands in the submission's
journal (`hpcrun.state.job_changes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrun import slurm_state
from hpcrun.compile.freeze import shares
from hpcrun.errors import ClusterUnreachable
from hpcrun.observe.read.selection import Selected
from hpcrun.slurm import client, job_update, queue
from hpcrun.state import job_changes, journal, permissions
from hpcrun.state.job_changes import MAX_PARALLEL, PRIORITY, TIME
from hpcrun.text import Say, range_text

LEFT, WOULD, UPDATED, REFUSED = "left", "would update", "updated", "refused"
# What a job that runs can have changed.
_OF_RUNNING = (TIME, MAX_PARALLEL)


@dataclass(frozen=True)
class UpdateStep:
    """What becomes of one run's job."""

    selected: Selected
    state: str = ""
    """Slurm's word for the job's state; empty where it has none."""
    changes: dict[str, str] = field(default_factory=dict)
    """What is changed, or was."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the others are not, by name; under an empty one, why nothing is."""
    limit: str = ""
    """Its array's share of ``max_parallel``, as scontrol has it."""
    is_whole: bool = False
    """All of its array that lives waits, and is changed alike."""
    is_refused: bool = False
    """Slurm was asked, and did not make one of them."""

    @property
    def array(self) -> str:
        return str(self.selected.job_id).partition("_")[0]

    @property
    def task(self) -> int | None:
        task = str(self.selected.job_id).partition("_")[2]
        return int(task) if task else None

    def action(self, dry_run: bool) -> str:
        """Return ``updated``, ``would update``, ``refused`` or ``left``."""
        if self.changes:
            return WOULD if dry_run else UPDATED
        return REFUSED if self.is_refused else LEFT

    def to_data(self, dry_run: bool) -> dict[str, Any]:
        """Return what ``hpcrun update --json`` prints."""
        return {
            "experiment": self.selected.experiment.name,
            "run": self.selected.run.number,
            "action": self.action(dry_run),
            "changes": self.changes,
            "before": {name: self.before(name) for name in self.changes},
            "reason": "; ".join(self.reasons.values()) or None,
            "job_id": self.selected.job_id,
        }

    def before(self, name: str) -> str | None:
        """Return the value that the job had, as far as its plan and earlier updates tell."""
        job = self.selected.submission
        if job is not None and name in job.changes:
            return job.changes[name].value
        found: Any = self.selected.run.spec
        if name == MAX_PARALLEL:
            found = self.selected.plan.max_parallel
        for key in job_changes.KEYS[name].spec:
            found = (found or {}).get(key)
        plain = name == MAX_PARALLEL or job_changes.KEYS[name].spec
        return None if found is None or not plain else str(found)


def look(selected: Sequence[Selected], changes: Mapping[str, str], say: Say) -> list[UpdateStep]:
    """Return what `update` would do now; Slurm is asked where the jobs stand.

    Raises ClusterUnreachable if it does not answer.
    """
    steps = [UpdateStep(one, reasons=_without_job(one)) for one in selected]
    jobs = {step.array for step in steps if not step.reasons}
    states = queue.query(jobs, accounting=False)
    if states.controller_is_down:
        raise ClusterUnreachable(states.problems[0], hint="repeat the same command")
    steps = [step if step.reasons else _planned(step, states, changes) for step in steps]
    living: dict[str, set[int]] = {array: set() for array in jobs}
    for job_id, state in states.items():
        array, _, task = job_id.partition("_")
        if task and not state.is_over:
            living[array].add(int(task))
    if MAX_PARALLEL in changes:
        steps = _with_limits(steps, living, changes[MAX_PARALLEL], say)
    waiting = {step.selected.job_id for step in steps if _waits(step)}
    whole = {
        array
        for array, tasks in living.items()
        if all(f"{array}_{task}" in waiting for task in tasks)
    }
    return [dataclasses.replace(step, is_whole=step.array in whole) for step in steps]


def _without_job(one: Selected) -> dict[str, str]:
    """Return why a run has no job in Slurm's queue that is ours to change; empty if it has one."""
    job = one.submission
    if job is None:
        return {"": "was not submitted"}
    if job.is_local:
        return {"": "is on this machine, where nothing is queued in Slurm"}
    if job.foreground:
        return {"": "runs in an allocation of yours: `scontrol update` changes that"}
    if job.is_packed:
        return {"": f"shares job {job.job_id} with other runs: `scontrol update` changes that"}
    if job.job_id is None:
        waits = "waits for room in the queue, as its submit lives"
        return {"": waits if job.event == journal.WAITING else "has no job in the queue"}
    if one.run.own_parts:
        return {"": "has a job of several parts, of roles, which `scontrol update` changes by part"}
    return {}


def _planned(
    step: UpdateStep, states: Mapping[str, queue.JobState], changes: Mapping[str, str]
) -> UpdateStep:
    job = step.selected.submission
    state = states.get(str(step.selected.job_id))
    if state is None or state.is_over:
        return dataclasses.replace(step, reasons={"": "nothing is queued of it: its job is over"})
    assert job is not None
    if problem := queue.JobMark(job.paths.directory).problem(state):
        return dataclasses.replace(step, reasons={"": problem})
    possible = [name for name in changes if state.is_waiting or name in _OF_RUNNING]
    return dataclasses.replace(
        step,
        state=state.state,
        changes={name: changes[name] for name in possible},
        reasons={
            name: f"{name} stays, as it runs already" for name in changes if name not in possible
        },
    )


def _with_limits(
    steps: Sequence[UpdateStep], living: Mapping[str, set[int]], most: str, say: Say
) -> list[UpdateStep]:
    """Return the steps with each array's share of ``max_parallel``.

    Says which runs an array's limit is of that were not named.
    """
    named: dict[str, set[int]] = {}
    for step in steps:
        if MAX_PARALLEL in step.changes and step.task is not None:
            named.setdefault(step.array, set()).add(step.task)
    wanted = None if most == job_changes.NONE else int(most)
    limits: list[int | None] = [wanted]
    if len(named) > 1:
        limits = shares([len(living[array]) for array in named], wanted)
    shared = dict(zip(named, ["0" if one is None else str(one) for one in limits], strict=False))
    for array, tasks in named.items():
        if others := living[array] - tasks:
            say(
                f"max_parallel is of the whole array {array}, also of its tasks that were not "
                f"named: {range_text(others)}"
            )
        if len(named) > 1:
            share = shared[array]
            say(f"array {array}: {'no limit' if share == '0' else f'at most {share} at once'}")
    if wanted is not None and len(named) > wanted:
        say(f"each of {len(named)} arrays runs one at least: together more than {wanted}")
    found = []
    for step in steps:
        changes, reasons = dict(step.changes), dict(step.reasons)
        if MAX_PARALLEL in changes and step.task is None:
            del changes[MAX_PARALLEL]
            reasons[MAX_PARALLEL] = "max_parallel is of arrays, and it has a job of its own"
        limit = shared.get(step.array, "")
        found.append(dataclasses.replace(step, changes=changes, reasons=reasons, limit=limit))
    return found


def update(steps: Sequence[UpdateStep], changes: Mapping[str, str]) -> list[UpdateStep]:
    """Have Slurm make the changes of `look`, write down those that it made, and return them.

    One call for an array of which all that lives waits and is named, or for these tasks of it; one
    more for its tasks that run, and for its limit. Raises ClusterUnreachable if Slurm ceases to
    answer: what was changed before is written down, and the command may be repeated.
    """
    arrays: dict[str, list[UpdateStep]] = {}
    for step in steps:
        if step.changes:
            arrays.setdefault(step.array, []).append(step)
    problems: dict[tuple[str, bool], list[str]] = {}
    lost: ClusterUnreachable | None = None
    try:
        for array, these in arrays.items():
            for is_waiting in (True, False):
                group = [one for one in these if _waits(one) == is_waiting]
                wanted = {
                    name: value
                    for name, value in changes.items()
                    if name != MAX_PARALLEL and (is_waiting or name in _OF_RUNNING)
                }
                if group and wanted:
                    one_by_one = [one.task for one in group if not one.is_whole]
                    tasks = {task for task in one_by_one if task is not None}
                    problems[array, is_waiting] = job_update.update(array, tasks, wanted)
            if any(MAX_PARALLEL in one.changes for one in these):
                limit = {MAX_PARALLEL: these[0].limit}
                problems[f"{array} as a whole", True] = job_update.update(array, (), limit)
    except ClusterUnreachable as error:
        lost = error
    try:
        shown = job_update.values_in_queue(arrays) if arrays else {}
    except client.CommandFailed as error:
        raise client.refusal(f"squeue: {error}") from None
    done = [_outcome(step, shown, problems) if step.changes else step for step in steps]
    _write_down(done)
    if lost is not None:
        raise ClusterUnreachable(
            f"{lost.message}; what Slurm had changed before is written down",
            hint="repeat the same command",
        )
    return done


def _waits(step: UpdateStep) -> bool:
    return step.state in slurm_state.WAITING


def _outcome(
    step: UpdateStep,
    shown: Mapping[str, Mapping[str, str]],
    problems: Mapping[tuple[str, bool], Collection[str]],
) -> UpdateStep:
    """Return a step with what Slurm shows to be changed, and why the rest is not."""
    now = shown.get(str(step.selected.job_id))
    messages = [*problems.get((step.array, _waits(step)), ())]
    whole = problems.get((f"{step.array} as a whole", True))
    made: dict[str, str] = {}
    reasons = dict(step.reasons)
    for name, value in step.changes.items():
        if name == MAX_PARALLEL:
            is_made, said = whole == [], [*(whole or ())]
        elif name == PRIORITY:
            # Slurm goes on to compute some priorities.
            is_made, said = (step.array, _waits(step)) in problems and not messages, messages
        else:
            is_made, said = now is not None and job_update.has(now, name, value), messages
        if is_made:
            made[name] = value
        elif now is None:
            reasons[name] = f"{name}: its job has ended"
        else:
            reasons[name] = job_update.in_words(name, value, said, now["state"])
    is_refused = len(made) < len(step.changes)
    return dataclasses.replace(step, changes=made, reasons=reasons, is_refused=is_refused)


def _write_down(steps: Sequence[UpdateStep]) -> None:
    """Append what was changed to the submissions' journals, one line for runs with the same."""
    lines: dict[tuple[Any, ...], list[Selected]] = {}
    for step in steps:
        if step.changes:
            job = step.selected.submission
            assert job is not None
            key = (job.paths, job.record.get("array") or 0, *sorted(step.changes.items()))
            lines.setdefault(key, []).append(step.selected)
    for (paths, array, *changed), these in lines.items():
        permissions.use_profile(these[0].plan.cluster)
        changes = dict(changed)
        numbers = {one.run.number for one in these}
        if MAX_PARALLEL in changes:
            # It is of all tasks, also of those that were not named.
            limit = {MAX_PARALLEL: changes.pop(MAX_PARALLEL)}
            jobs = {str(one.job_id).partition("_")[0] for one in these}
            its = [
                run
                for run, job in journal.read(paths).items()
                if str(job.job_id).partition("_")[0] in jobs
            ]
            journal.write(paths, journal.UPDATED, array, sorted(its), changes=limit)
        if changes:
            journal.write(paths, journal.UPDATED, array, sorted(numbers), changes=changes)
