"""One run in full: what was planned, what was frozen, where things are."""

from __future__ import annotations

import tarfile
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.observe.read import history
from hpcrun.observe.read.selection import Selected
from hpcrun.state import files


def summary(one: Selected) -> dict[str, Any]:
    """The facts about a run that were settled when it was submitted."""
    facts = history.describe(one.planned.paths)
    array = array_index(one)
    code = facts.get("code") or {}
    script = one.planned.paths.script(array) if array is not None else None
    return {
        "experiment": one.experiment.name,
        "run": one.run.number,
        "label": one.run.label,
        "identity": one.run.identity,
        "swept": one.run.swept,
        "entry": entry(one),
        "nodes": one.run.nodes,
        "world_size": one.run.world_size,
        "cluster": one.plan.cluster.get("name"),
        "job_id": one.job_id,
        "submission": one.planned.paths.number,
        "submitted": facts.get("time"),
        "user": facts.get("user"),
        "spec": one.plan.spec_file,
        "script": str(script) if script is not None and script.exists() else None,
        "code": str(one.experiment.code / code["archive"]) if code.get("archive") else None,
        "directory": str(one.paths.directory),
    }


def entry(one: Selected) -> str:
    """What the run executes, as one would write it."""
    found = one.run.entry
    if found.kind == "function":
        return f"{found.module}:{found.function}"
    return " ".join([found.file, *found.argv] if found.file else found.argv)


def array_index(one: Selected) -> int | None:
    """The index of the plan's array that contains the run."""
    for index, array in enumerate(one.plan.arrays):
        if one.run.number in array.runs:
            return index
    return None


def script(one: Selected) -> str:
    """The sbatch script that the run was, or would be, submitted with.

    Raises
    ------
    UsageError
        The local executor has none.
    """
    array = array_index(one)
    text = one.plan.arrays[array].script if array is not None else ""
    if not text:
        raise UsageError(
            f"{one.name} has no sbatch script: it belongs to the local executor",
            hint="--config and --deepspeed show what it runs",
        )
    return text


def deepspeed(one: Selected) -> dict[str, Any]:
    """The final DeepSpeed configuration of the newest attempt that has one, else the planned.

    Raises
    ------
    UsageError
        The run has no DeepSpeed configuration.
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
    """The frozen code: ``archive``, ``digest``, ``git`` and ``members`` (its files, by name).

    Raises
    ------
    UsageError
        The submission did not record its code, or the archive cannot be read.
    """
    facts = history.describe(one.planned.paths).get("code")
    if not isinstance(facts, dict) or not facts.get("archive"):
        raise UsageError(f"{one.planned.paths.submission} names no frozen code")
    archive = one.experiment.code / str(facts["archive"])
    try:
        with tarfile.open(archive) as tar:
            members = sorted(member.name for member in tar if not member.isdir())
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UsageError(f"the frozen code {archive} cannot be read: {error}") from None
    return {**facts, "archive": str(archive), "members": members}
