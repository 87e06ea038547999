"""Puts a spec together from what was read of a script."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.compile.target.command_line import EQUALS
from hpcrun.convert.draft import spec_text
from hpcrun.convert.draft.accelerate_options import AccelerateOptions
from hpcrun.convert.draft.job_environment import JobEnvironment
from hpcrun.convert.draft.job_resources import ScriptRequest, clock
from hpcrun.convert.draft.program_entry import ProgramEntry
from hpcrun.convert.draft.program_flags import nested, number, typed
from hpcrun.convert.draft.run_shape import RunShape
from hpcrun.convert.draft.spec_sweep import SweptRuns
from hpcrun.convert.draft.spec_text import Verbatim
from hpcrun.convert.draft.spec_words import SpecWords
from hpcrun.convert.script.launch_line import ProgramLaunch
from hpcrun.convert.script.walk_state import WalkResult

_SCHEMA = "# yaml-language-server: $schema=spec.schema.json"
_WIDTH = 98
_MOST_LEFT = 60


@dataclass
class SpecDraft:
    """What was read of a script."""

    name: str
    script: str
    """The script's file name."""
    job: ScriptRequest
    entry: ProgramEntry
    launch: ProgramLaunch
    shape: RunShape
    swept: SweptRuns
    environment: JobEnvironment
    accelerate: AccelerateOptions
    walk: WalkResult
    words: SpecWords
    line: int
    """The line of the program."""
    resume: dict[str, Any] | None = None


def compose(draft: SpecDraft, left: Sequence[str]) -> str:
    """Return the text of the spec; ``left`` is what could not be carried over."""
    comments: dict[str, str] = {}
    job, entry = draft.job, draft.entry
    spec: dict[str, Any] = {"name": draft.name}
    _comment(comments, "name", job.lines.get("name"))
    program, arguments = _entry(draft)
    spec["entry"] = program if isinstance(program, str) else _texts(program)
    _comment(comments, "entry", draft.line)
    if arguments:
        spec["args"] = _texts(arguments)
    framework = _framework(draft)
    if framework:
        spec["framework"] = framework
        if draft.launch.launcher:
            comments["framework"] = "hpcrun starts the ranks in the launcher's place"
    config = nested(entry.config, entry.style)
    config = {key: _typed(value) for key, value in config.items()}
    config.update(draft.swept.first)
    if config:
        spec["config"] = config
    if entry.style != EQUALS and config:
        spec["flags"] = entry.style
    _deepspeed(spec, comments, draft)
    spec["resources"] = _resources(draft, comments)
    if environment := _environment(draft):
        spec["environment"] = environment
    if recovery := _recovery(draft):
        spec["recovery"] = recovery
        _comment(comments, "recovery", job.lines.get("recovery.stop_signal"))
    if job.notify.get("mail"):
        spec["notify"] = dict(job.notify)
    if sweep := _sweep(draft):
        spec["sweep"] = sweep
        _comment(comments, "sweep", job.lines.get("sweep"))
    head = [_SCHEMA, f"# Made of {draft.script} by `hpcrun init --from`; a comment names its line."]
    text = "\n".join(head) + "\n" + spec_text.write(spec, comments)
    return text + _left(left)


def _comment(comments: dict[str, str], key: str, line: int | None) -> None:
    if line is not None:
        comments[key] = f"line {line}"


def _left(left: Sequence[str]) -> str:
    if not left:
        return ""
    lines = ["", "# Could not be carried over as it was:"]
    for one in left[:_MOST_LEFT]:
        lines += textwrap.wrap(
            one,
            _WIDTH,
            initial_indent="# - ",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    if len(left) > _MOST_LEFT:
        lines.append(f"# … and {len(left) - _MOST_LEFT} more: `hpcrun init --from` tells them.")
    return "\n".join(lines) + "\n"


def _texts(words: Sequence[str]) -> list[str]:
    """Return words that YAML reads as texts, numbers too."""
    return [Verbatim(word) if number(word) is not None else word for word in words]


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _typed(one) for key, one in value.items()}
    return typed(value)


def _entry(draft: SpecDraft) -> tuple[str | list[str], list[str]]:
    """Return the entry and its args; a command where args hold what is swept."""
    entry, args = draft.entry.entry, list(draft.entry.args)
    if not draft.swept.in_args:
        return entry, args
    for at, text in draft.swept.in_args.items():
        args[at] = text
    return (["python", entry] if isinstance(entry, str) else entry), args


def _framework(draft: SpecDraft) -> str | None:
    if draft.launch.launcher in ("accelerate", "deepspeed", "composer"):
        ranks = (draft.shape.ntasks_per_node or draft.shape.gpus_per_node or 1) * draft.shape.nodes
        no_rank = "no-local-rank" in draft.launch.options
        if draft.launch.launcher == "deepspeed" and no_rank:
            return None
        return draft.launch.launcher if ranks > 1 or draft.launch.launcher != "composer" else None
    return draft.shape.framework


def _deepspeed(spec: dict[str, Any], comments: dict[str, str], draft: SpecDraft) -> None:
    entry = draft.entry
    if size := entry.model_parallel_size:
        spec["model_parallel_size"] = size
    given = entry.deepspeed_config or draft.accelerate.deepspeed_config
    if given:
        spec["deepspeed_config"] = given
    if entry.deepspeed:
        spec["deepspeed"] = entry.deepspeed
        _comment(comments, "deepspeed", entry.document.node.line if entry.document else None)


def _resources(draft: SpecDraft, comments: dict[str, str]) -> dict[str, Any]:
    job, shape = draft.job, draft.shape
    found: dict[str, Any] = {"nodes": shape.nodes}
    if shape.gpus_per_node:
        found["gpus_per_node"] = shape.gpus_per_node
        if job.gpu_type:
            found["gpu_type"] = job.gpu_type
    if shape.ntasks_per_node:
        found["ntasks_per_node"] = shape.ntasks_per_node
    if shape.cpus_per_task:
        found["cpus_per_task"] = shape.cpus_per_task
    memory = {name: draft.launch.steps[name] for name in ("mem",) if name in draft.launch.steps}
    given = {**memory, **job.resources}
    for name in ("mem", "time", *(one for one in given if one not in ("mem", "time"))):
        if name in given:
            is_number = name == "time" or given[name].isdigit()
            found[name] = Verbatim(given[name]) if is_number else given[name]
    if "mem" not in found and job.sbatch.keys() & {"mem-per-cpu", "mem-per-gpu"}:
        # sbatch takes one of them alone, and a profile may have a default.
        found["mem"] = None
    if job.sbatch:
        found["sbatch"] = dict(job.sbatch)
    for key, line in job.lines.items():
        if key.startswith("resources.") and key.removeprefix("resources.") in found:
            _comment(comments, key, line)
    return found


def _environment(draft: SpecDraft) -> dict[str, Any]:
    walk, launch = draft.walk, draft.launch
    found: dict[str, Any] = {}
    setup = [text for text, _ in draft.environment.setup]
    in_container = bool(launch.wrapper)
    python: str | None = None
    if walk.python is not None and not in_container:
        python = draft.words.text(walk.python, "environment.python")
    elif (
        launch.python
        and not in_container
        and ("/" in launch.python or draft.environment.has_programs)
    ):
        python = draft.words.text(launch.python, "environment.python")
    if python:
        found["python"] = python
    if setup:
        found["setup"] = setup
    own = {
        name: text
        for name, value in launch.environment.items()
        if (text := _of_launch(draft, name, value)) is not None
    }
    variables = {
        **draft.job.variables,
        **draft.environment.variables,
        **draft.accelerate.variables,
        **own,
    }
    if variables:
        found["variables"] = {name: _text(value) for name, value in variables.items()}
    return found


def _of_launch(draft: SpecDraft, name: str, value: str) -> str | None:
    """Return a variable that stood before the command; None for one that hpcrun gives itself."""
    from hpcrun.convert.draft.job_environment import OWN

    if name in OWN or name.startswith(("SLURM_", "SRUN_", "SBATCH_")):
        return None
    if name == "CUDA_VISIBLE_DEVICES":
        return None
    return draft.words.text(value, name)


def _text(value: str) -> str:
    return Verbatim(value)


def _recovery(draft: SpecDraft) -> dict[str, Any]:
    job, walk = draft.job, draft.walk
    found = {key: value for key, value in job.recovery.items() if not key.startswith("_")}
    before = job.recovery.get("_batch_before")
    if walk.stop_signal and "stop_signal" not in found:
        found["stop_signal"] = walk.stop_signal
        if before:
            found["stop_before"] = clock(int(before))
    if "stop_before" in found:
        found["stop_before"] = Verbatim(found["stop_before"])
    if draft.resume:
        found["resume"] = {**draft.resume, "args": _texts(draft.resume["args"])}
    return found


def _sweep(draft: SpecDraft) -> dict[str, Any]:
    swept, job = draft.swept, draft.job
    found: dict[str, Any] = {}
    if swept.grid:
        found["grid"] = swept.grid
    if swept.zip:
        found["zip"] = swept.zip
    if found and job.parallel:
        found["max_parallel"] = job.parallel
    return found
