"""One run in full: its facts, script, DeepSpeed configuration and frozen code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcrun.errors import UsageError
from hpcrun.observe.read.selection import Selected
from hpcrun.state import files, permissions, submission_facts
from hpcrun.submission.code import frozen_code

if TYPE_CHECKING:
    from hpcrun.observe.status.status import RunStatus
    from hpcrun.state.ledger import Attempt


def summary(one: Selected, status: RunStatus) -> dict[str, Any]:
    """Return the facts about a run: how it is doing, and what was settled at its submission."""
    facts = submission_facts.describe(one.planned.paths)
    arrays = [index for index, array in enumerate(one.plan.arrays) if one.run.number in array.runs]
    scripts = [path for path in map(one.planned.paths.script, arrays) if os.path.exists(path)]  # noqa: PTH110
    uid = permissions.owner(one.planned.paths.directory)
    archive = one.experiment.frozen_code(facts.get("code"))
    git = (facts.get("code") or {}).get("git") or {}
    roles = {role.name: role.described for role in one.run.role_plans}
    changed = one.submission.changes if one.submission else {}
    changes = {name: each.value for name, each in changed.items()}
    return {
        "experiment": one.experiment.name,
        "run": one.run.number,
        "state": status.state,
        "reason": status.reason,
        "cause": status.cause,
        "attempt": status.attempt,
        "step": status.step,
        "total_steps": status.total_steps,
        "metrics": status.metrics,
        **one.annotation.to_data(),
        "label": one.run.label,
        "identity": one.run.identity,
        "swept": one.run.swept,
        "entry": entry(one),
        "nodes": one.run.nodes,
        "world_size": one.run.world_size,
        **({"roles": roles} if roles else {}),
        "cluster": one.plan.cluster.get("name"),
        "job_id": one.job_id,
        **({"changes": changes} if changes else {}),
        "submission": one.planned.paths.number,
        "submitted": facts.get("time"),
        "user": None if uid is None else permissions.user_name(uid),
        "spec": one.planned.spec_file,
        "script": str(scripts[0]) if scripts else None,
        "suspects": suspects(one),
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        "code": str(archive) if archive else None,
        "directory": str(one.paths.directory),
    }


def suspects(one: Selected) -> list[str]:
    """Return a sentence for each suspect node that sbatch was told to leave out."""
    return list(one.submission.record.get("suspects") or ()) if one.submission else []


def fabric(attempts: Sequence[Attempt]) -> dict[str, Any] | None:
    """Return what the newest attempt's nodes said of their links; None where they have none."""
    found = attempts[-1].fabric if attempts else None
    if found is None:
        return None
    findings = found["findings"]
    count = found.get("count") or len(findings)
    return {"choices": found["choices"], "findings": findings, "count": count}


def health(attempts: Sequence[Attempt]) -> dict[str, Any] | None:
    """Return what the newest check of a run's nodes found; None where nothing was wrong."""
    found = attempts[-1].health if attempts else None
    keys = ("action", "reason", "nodes", "findings", "count")
    return None if found is None else {key: found.get(key) for key in keys}


def entry(one: Selected) -> str:
    """Return what the run executes, as one would write it."""
    found = one.run.entry
    if found.kind == "function":
        return f"{found.module}:{found.function}"
    return " ".join([found.file, *found.argv] if found.file else found.argv)


def script(one: Selected) -> str:
    """Return the sbatch script that the run was, or would be, submitted with.

    Raises UsageError if the run belongs to the local executor.
    """
    for array in one.plan.arrays:
        if one.run.number in array.runs and array.script:
            return array.script
    raise UsageError(
        f"{one.name} has no sbatch script: it belongs to the local executor",
        hint="--config and --deepspeed show what it runs",
    )


def deepspeed(one: Selected) -> dict[str, Any]:
    """Return the DeepSpeed configuration of the newest attempt that has one, else the planned.

    Raises UsageError if the run has no DeepSpeed configuration.
    """
    for attempt in reversed(one.paths.attempts()):
        try:
            data = files.read_json(attempt.deepspeed)
        except (OSError, ValueError):
            continue
        if isinstance(data, dict):
            return data
    planned = one.run.spec.get("deepspeed")
    if not isinstance(planned, dict):
        raise UsageError(f"{one.name} has no DeepSpeed configuration")
    return planned


def code(one: Selected) -> dict[str, Any]:
    """Return the frozen code: ``archive``, ``digest``, ``git``, ``members`` (its files, by name).

    Raises UsageError if the submission did not record its code, or the archive cannot be read.
    """
    facts = submission_facts.describe(one.planned.paths).get("code")
    archive = one.experiment.frozen_code(facts)
    if facts is None or archive is None:
        raise UsageError(f"{one.planned.paths.submission} names no frozen code")
    members = sorted(member.name for member, _ in frozen_code.members(archive))
    return {**facts, "archive": str(archive), "members": members}
