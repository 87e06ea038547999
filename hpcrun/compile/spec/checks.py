"""Checks of a resolved spec beyond its types: ranges, forms, agreement."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

from hpcrun import feature
from hpcrun.compile.source.limits import LARGEST_FILE
from hpcrun.compile.source.marked_tree import Reporter, get_at, leaves
from hpcrun.compile.source.problems import did_you_mean
from hpcrun.compile.target import slurm_options
from hpcrun.container import runtimes
from hpcrun.container.runtimes import ContainerRuntime, Mount
from hpcrun.errors import HpcrunError
from hpcrun.extensions import RECIPES, RUNTIMES
from hpcrun.host import is_there
from hpcrun.policy import frameworks, resume, stop_lead_time
from hpcrun.slurm.parse import parse_duration
from hpcrun.state import annotation_log, files
from hpcrun.state.environment import secrets_file
from hpcrun.state.spec.blocks import RANKS, is_late
from hpcrun.state.spec.notify_block import EVENTS
from hpcrun.state.spec.parallel_block import DIVIDING, EXPERT
from hpcrun.state.spec.recovery_block import NEWEST, NEWEST_DIRECTORY, NEWEST_STEP

ADDRESS = re.compile(r"[^\s,@]+(?:@[^\s,@]+)?")
# Blocks that are used before an attempt starts.
_PLAN_TIME = (
    *("name", "cluster", "resources", "parallel", "model_parallel_size", "deepspeed_config"),
    *("checkpoint", "environment", "objective", "notify", "tracking", "code"),
    *feature.blocks(),
)
_SIZES = ("layers", "hidden_size", "heads", "vocabulary", "sequence_length", "total_steps")
AT_LEAST = {
    "model_parallel_size": 1,
    **{f"parallel.{axis}": 1 for axis in (*DIVIDING, EXPERT)},
    "checkpoint.every": 1,
    "checkpoint.nearby_every": 1,
    "checkpoint.keep": 1,
    "checkpoint.keep_every": 1,
    "checkpoint.keep_best": 0,
    "recovery.max_failures": 1,
    "recovery.in_place": 0,
    "recovery.check_replicas": 1,
    "recovery.non_finite_steps": 0,
    "progress.total": 1,
    "telemetry.every": 1,
    **{
        f"{name}.{key}": least
        for name, one in feature.every().items()
        for key, least in one.at_least.items()
    },
    **{f"estimate.{name}": 1 for name in _SIZES},
}
# Keys, and those without which they do nothing.
_ALONE = {
    "optimization.factor": "optimization.milestones",
    "recovery.spike": "recovery.on_spike",
    "notify.mail_types": "notify.mail",
    "notify.events": "notify.command",
}
_PLACEHOLDER = re.compile(r"\$\{hpcrun:(\w+)\}")
# In a project's name, where Weights & Biases puts it into addresses.
NOT_IN_PROJECTS = "/\\#?%:"
# The container runtime whose words stand in the spec.
_ANY_RUNTIME = "command"
# Where MLflow keeps runs.
_MLFLOW = ("https", "http", "sqlite", "postgresql", "mysql", "mssql")


def check(data: dict[str, Any], limits: dict[str, Any], report: Reporter) -> None:
    """Report every problem of a resolved spec that has nothing to do with entry or DeepSpeed."""
    for name in _PLAN_TIME:
        _no_placeholders(data[name], report.below(name))
    for name in ("entry", "args", "deepspeed", "environment", "roles"):
        _only_where_it_resumes(data[name], report.below(name))
    for one in feature.every().values():
        one.check(data, report)
    slurm_options.check_name(data["name"], report)
    for index, tag in enumerate(data["tags"]):
        if not annotation_log.is_tag(tag):
            report.at(f"tags.{index}", f"found {tag!r}; accepted are {annotation_log.ACCEPTED}")
    is_batch = data["framework"] == frameworks.BATCH
    wanted, at = data["resources"], report.below("resources")
    slurm_options.check_resources(wanted, at, ranks_have_gpus=not is_batch)
    check_limits(wanted, limits, at)
    for key, least in AT_LEAST.items():
        report.at_least(key, get_at(data, tuple(key.split("."))), least)
    _check_checkpoint(data["checkpoint"], report.below("checkpoint"))
    environment = data["environment"]
    slurm_options.check_variables(environment["variables"], report.below("environment.variables"))
    slurm_options.check_setup(environment["setup"], report.below("environment.setup"))
    if environment["python"] is not None:
        _check_python(environment["python"], report)
    _check_recovery(data, report.below("recovery"))
    _check_progress(data["progress"], report.below("progress"))
    _check_notify(data["notify"], report.below("notify"))
    _check_arguments(data, report)
    for key, other in _ALONE.items():
        if not get_at(data, tuple(other.split("."))):
            report.note_alone(key, other)
    if (wandb := data["tracking"]["wandb"]) and wandb["project"] is not None:
        _check_project(wandb["project"], report.below("tracking.wandb.project"))
    if data["tracking"]["mlflow"] is not None:
        _check_mlflow(data["tracking"]["mlflow"]["uri"], report.below("tracking.mlflow.uri"))
    if data["objective"] is not None and not data["objective"]["metric"].strip():
        report.at("objective.metric", "is empty; accepted is a metric's name")


def _check_python(python: str, report: Reporter) -> None:
    """Report a directory in place of the Python in it."""
    place = report.mark("environment.python").path(python)
    if is_there(place.is_dir):
        found = f"found {python}, a directory; accepted is a Python"
        near = [one for one in ("bin/python", "python") if is_there((place / one).exists)]
        hint = f"write {python.rstrip('/')}/{near[0]}" if near else "such as DIR/bin/python"
        report.at("environment.python", found, hint)


def _check_checkpoint(checkpoint: dict[str, Any], report: Reporter) -> None:
    nearby, every = checkpoint["nearby_every"], checkpoint["every"]
    if nearby is not None and (every is None or nearby >= every):
        report.at(
            "nearby_every",
            f"is {nearby}, and checkpoint.every {'null' if every is None else every}; accepted is "
            "less than that: the nodes' storage goes with the allocation",
        )
    if checkpoint["initialize_from"] is not None:
        from hpcrun.state.init_from import Origin

        try:
            Origin.parse(checkpoint["initialize_from"])
        except ValueError as error:
            report.at("initialize_from", str(error))


def settle_paths(data: dict[str, Any], directory: Path, report: Reporter) -> None:
    """Make the job's Python and the paths of code, secrets and notify absolute, in place."""

    def absolute(key: str, path: str) -> str:
        return str(report.mark(key).path(path))

    environment, code = data["environment"], data["code"]
    python = environment["python"]
    if python is None:
        environment["python"] = sys.executable
    elif not python.strip():
        report.at("environment.python", "is empty; accepted is a Python, or null")
    elif "/" in python:
        environment["python"] = absolute("environment.python", python)
    if environment["venv"] == "frozen" and environment["container"] is not None:
        hint = "an image does not change by itself: leave environment.venv out"
        report.at("environment.venv", "is frozen, and the ranks are in a container", hint)
    if environment["lock"] is not None:
        lock = environment["lock"] = absolute("environment.lock", environment["lock"])
        if environment["venv"] != "frozen":
            hint = "add `environment.venv: frozen`, or leave the lock out"
            report.at("environment.lock", "is given, and environment.venv is not frozen", hint)
        elif not is_there(Path(lock).is_file):
            report.at("environment.lock", f"there is no file {lock}")
    if environment["secrets_file"] is not None:
        secrets = absolute("environment.secrets_file", environment["secrets_file"])
        environment["secrets_file"] = secrets
        try:
            secrets_file.read(secrets)
        except HpcrunError as error:
            report.at(
                secrets_file.KEY, error.message.removeprefix(f"{secrets_file.KEY}: "), error.hint
            )
    if data["batch_script"] is not None:
        _check_batch_script(data, directory, report)
    if environment["container"] is not None:
        _settle_container(environment["container"], report.below("environment.container"))

    command = data["notify"]["command"]
    if command and "/" in command[0]:
        program = command[0] = absolute("notify.command", command[0])
        if not is_there(Path(program).is_file):
            hint = "a name without a slash is looked up on the node's PATH"
            report.at("notify.command.0", f"there is no file {program}", hint)
        elif not os.access(program, os.X_OK):
            hint = f"chmod +x {shlex.quote(program)}"
            report.at("notify.command.0", f"{program} is not executable", hint)
    if code["root"] is not None:
        root = code["root"] = absolute("code.root", code["root"])
        if not is_there(Path(root).is_dir):
            report.at("code.root", f"there is no directory {root}")
    for name in ("link", "include"):
        for index, path in enumerate(code[name]):
            if not is_there((directory / path).exists):
                report.at(f"code.{name}.{index}", f"there is no {path!r} in {directory}")


def _check_batch_script(data: dict[str, Any], directory: Path, report: Reporter) -> None:
    """Report a file that is not there, or that starts no ranks, and keys that exclude it."""
    name, line = data["batch_script"], f'sh "${RANKS}" || exit'
    text = b""
    if not Path(name).is_absolute() and ".." not in Path(name).parts:
        with contextlib.suppress(OSError, ValueError):
            text = files.read_bytes(directory / name, LARGEST_FILE)
    if not text:
        found = f"found {name!r}; accepted is the path of a shell file in the spec's directory"
        report.at("batch_script", found)
    elif RANKS.encode() not in text:
        hint = "where it starts them itself, name it in entry, with framework: batch"
        report.at("batch_script", f"{name} has no line that starts the ranks: {line}", hint)
    if data["framework"] == frameworks.BATCH:
        what = "is not used: with framework batch the entry starts the ranks"
        report.at("batch_script", what, "leave one of the two out")
    elif data["roles"]:
        report.at("batch_script", "cannot be used with roles", "leave it out")


def _settle_container(container: dict[str, Any], report: Reporter) -> None:
    """Make the paths of a container absolute, in place, and report what it lacks."""
    name = container["runtime"]
    if name is None:
        report.at(
            "runtime", f"is missing; accepted are {', '.join(RUNTIMES.names)}", "what your site has"
        )
    # As one whose images are files, to find what else is wrong.
    runtime = RUNTIMES.load(name or "bubblewrap")()
    _settle_image(container, runtime, report)
    if not container["python"].strip():
        report.at("python", "is empty; accepted is a Python of the image, such as python3")
    elif "/" in container["python"] and not container["python"].startswith("/"):
        report.at("python", f"found {container['python']!r}; accepted is a name, or all of a path")
    for index, text in enumerate(container["mounts"]):
        try:
            mount = Mount.parse(text)
        except ValueError as error:
            report.at(f"mounts.{index}", f"found {text!r}; {error}")
            continue
        source = str(report.mark(f"mounts.{index}").path(mount.source))
        # A relative source without a target has none that the container could know.
        target = source if mount.target == mount.source else mount.target
        container["mounts"][index] = Mount(source, target, mount.read_only).words
        if mount.read_only and not runtime.has_read_only_mounts:
            hint = "without :ro; or another runtime"
            report.at(f"mounts.{index}", f"found {text!r}; {name} has no such mounts", hint)
    if name == _ANY_RUNTIME and not container["command"]:
        hint = 'such as [podman, run, --rm, --network=host, "{mounts}", "{image}"]'
        report.at("command", "is empty; accepted are the words before the program", hint)
    if name != _ANY_RUNTIME and container["command"]:
        report.at("command", f"has no meaning with runtime: {name}", "remove it")


def _settle_image(container: dict[str, Any], runtime: ContainerRuntime, report: Reporter) -> None:
    """Make the path of the image absolute, unless the runtime fetches it by its name."""
    image, name = container["image"], container["runtime"]
    # What names no registry is a file to Apptainer, wherever it is started.
    by_name = runtime.fetches(image)
    if not image.strip():
        if runtime.needs_image:
            report.at("image", "is missing; accepted is the image that the ranks run in")
    elif "://" in image and not by_name:
        short = image.partition("://")[2]
        file = f"image.{runtime.image_suffix}"
        hint = f"`ch-image pull {short} && ch-convert {short} {file}` makes one"
        found = f"found {image!r}; {name} starts {runtime.image_kinds}, and fetches none"
        report.at("image", found, hint)
    elif runtimes.is_path(image) or not by_name:
        path = report.mark("image").path(image)
        container["image"] = str(path)
        if not is_there(path.exists):
            report.note("image", f"there is no file {image!r} on this machine", "jobs need it")


def check_in_code(code: dict[str, Any], directory: Path, root: Path, report: Reporter) -> None:
    """Report paths of ``code`` that do not lie below the code's root.

    They are relative to the spec's ``directory``, or to the root where that is not in the code.
    """
    base = directory if directory.is_relative_to(root) else root
    for name in ("link", "include"):
        for index, path in enumerate(code[name]):
            inside = os.path.relpath(os.path.normpath(base / path), root)
            there = [is_there((place / path).exists) for place in (directory, base)]
            if Path(path).is_absolute() or inside == "." or inside.split("/")[0] == "..":
                found = f"found {path!r}; accepted is a path below the code's root, {root}"
                hint = "an absolute path needs neither: it means the same in the job"
                report.at(f"code.{name}.{index}", found, hint)
            elif name == "include" and there == [True, False]:
                found = f"{path!r} lies beside the spec, and not in the code, {root}"
                report.at(f"code.{name}.{index}", found, "code.link shows it to the job")


def check_limits(resources: dict[str, Any], limits: dict[str, Any], report: Reporter) -> None:
    """Report a job that is larger or longer than the cluster's profile allows."""
    most_nodes, longest = limits["max_nodes"], limits["max_time"]
    nodes, spares = resources["nodes"], resources["spare_nodes"]
    accepted = "this cluster's profile accepts at most"
    if most_nodes is not None and nodes + spares > most_nodes:
        found = f"{nodes} and {spares} spare" if spares else nodes
        report.at("nodes", f"found {found}; {accepted} {most_nodes}")
    wanted = parse_duration(resources["time"])
    if longest is not None and wanted is not None and wanted > (parse_duration(longest) or wanted):
        report.at("time", f"found {resources['time']!r}; {accepted} {longest}")


def _check_budgets(budgets: dict[str, Any], report: Reporter) -> None:
    # Few specs have any, and the causes of ends take their time to import.
    from hpcrun.policy.causes import KINDS

    for kind, number in budgets.items():
        if kind not in KINDS:
            found = f"is no kind of end; accepted are {', '.join(sorted(KINDS))}"
            report.at((kind,), found, did_you_mean(kind, KINDS))
        else:
            report.at_least((kind,), number, 1)


def _check_recovery(data: dict[str, Any], report: Reporter) -> None:
    recovery = data["recovery"]
    if recovery["budgets"]:
        _check_budgets(recovery["budgets"], report.below("budgets"))
    if recovery["grow"] is not None:
        slurm_options.check_grow(recovery["grow"], data["resources"], report.below("grow"))
    if recovery["stop_signal"] is not None:
        _check_signal(recovery, report)
    if recovery["resume"] is not None or recovery["resume_args"]:
        _check_resume(recovery, report)
    for name, example in (("hang_after", "00:05:00"), ("warm_after", "00:01:00")):
        after = recovery[name]
        if after is not None and not 0 < (parse_duration(after) or 0) <= slurm_options.LONGEST_TIME:
            found = f'found {after!r}; accepted is a time such as "{example}"'
            report.at(name, found, slurm_options.time_hint(after) or "null for never")
    before = recovery["stop_before"]
    if before is None:
        return
    asked, limit = parse_duration(before), parse_duration(data["resources"]["time"])
    if not asked:
        found = f'found {before!r}; accepted is a time such as "00:05:00"'
        report.at("stop_before", found, slurm_options.time_hint(before))
    elif limit is not None and not stop_lead_time.leaves_enough(limit, asked):
        report.at(
            "stop_before",
            f"found {before!r}, which leaves less than half of resources.time "
            f"({data['resources']['time']!r}) for the run",
            "ask for more time, or save faster",
        )


def _check_resume(recovery: dict[str, Any], report: Reporter) -> None:
    """Report what is wrong with how a run resumes; ``recovery.resume.when`` becomes a list."""
    given = recovery["resume"]
    if given is None:
        _only_where_it_resumes(recovery["resume_args"], report.below("resume_args"))
        return
    if recovery["resume_args"]:
        found = "is short for resume: {args: […]}, and both are given"
        report.at("resume_args", found, "move them to recovery.resume.args")
    name = given if isinstance(given, str) else given["recipe"]
    if name not in (None, resume.NONE):
        key = "resume" if isinstance(given, str) else "resume.recipe"
        if not _is_recipe(name, report.below(key)):
            recovery["resume"] = None
            return
    if isinstance(given, str):
        return
    slurm_options.check_variables(given["environment"], report.below("resume.environment"))
    if isinstance(given["when"], str):
        given["when"] = [given["when"]]
    for index, pattern in enumerate(given["when"]):
        placeholders = _PLACEHOLDER.findall(pattern)
        if not pattern:
            report.at(f"resume.when.{index}", "is no pattern; accepted is such as out/*/last.pt")
        elif wrong := [one for one in placeholders if one != "directory"]:
            found = (
                f"found ${{hpcrun:{wrong[0]}}}; of these a pattern may have ${{hpcrun:directory}}"
            )
            report.at(f"resume.when.{index}", found)
    if not given["when"] and name in (None, resume.NONE):
        _only_where_it_resumes(given, report.below("resume"), "give recovery.resume.when")


def _is_recipe(name: str, report: Reporter) -> bool:
    """Check that there is a recipe, and that it can be loaded; report it if not."""
    if name not in RECIPES:
        accepted = (*RECIPES.names, resume.NONE)
        found = f"there is no recipe {name!r}; there are {', '.join(accepted)}"
        is_path = "." in name or "/" in name
        written = (
            f"{{when: '{name}', args: [--resume]}}" if is_path else "{when: PATTERN, args: […]}"
        )
        hint = None if is_path else did_you_mean(name, accepted)
        report.at((), found, hint or f"say it yourself: resume: {written}")
        return False
    try:
        RECIPES.load(name)
    except HpcrunError as error:
        report.at((), error.message, error.hint)
        return False
    return True


def _only_where_it_resumes(
    data: Any, report: Reporter, hint: str = "it can be used in recovery.resume"
) -> None:
    """Report the placeholders of the newest match of ``recovery.resume.when``."""
    for key, value in leaves(data):
        for name in (NEWEST_DIRECTORY, NEWEST_STEP, NEWEST):
            if isinstance(value, str) and f"${{hpcrun:{name}}}" in value:
                found = f"found ${{hpcrun:{name}}}, which is a match of recovery.resume.when"
                report.at(key, found, hint)


def _check_progress(progress: dict[str, Any], report: Reporter) -> None:
    pattern, source = progress["pattern"], progress["source"]
    if pattern is not None:
        try:
            groups = re.compile(pattern).groupindex
        except (re.error, RecursionError, OverflowError) as error:
            hint = "a group is named as in (?P<step>…)" if "?<" in pattern else None
            found = f"found {pattern!r}, which is no regular expression: {error}"
            report.at("pattern", found, hint)
        else:
            if not {"step", "one_step", "epoch"} & {*groups}:
                found = f"found {pattern!r}, which has no group named step, epoch or one_step"
                report.at("pattern", found, r"as in 'step (?P<step>\d+).* loss (?P<loss>\S+)'")
        if source not in ("auto", "log"):
            report.at("pattern", f"is not used, as progress.source is {source}; accepted is log")
    saved = progress["saved"]
    for index, glob in enumerate(saved if isinstance(saved, list) else [saved or "*"]):
        if not glob.strip("/ "):
            key = f"saved.{index}" if isinstance(saved, list) else "saved"
            report.at(key, f"found {glob!r}; accepted is a glob such as 'out/checkpoint-*'")


def _check_notify(notify: dict[str, Any], report: Reporter) -> None:
    for name, accepted in (("mail_types", slurm_options.MAIL_TYPES), ("events", EVENTS)):
        for index, found in enumerate(notify[name]):
            if found not in accepted:
                message = f"found {found!r}; accepted are {', '.join(accepted)}"
                report.at(f"{name}.{index}", message, did_you_mean(found, accepted))
    mail = notify["mail"]
    if mail is not None and not ADDRESS.fullmatch(mail):
        report.at("mail", f"found {mail!r}; accepted is one address, such as ada@example.org")
    if notify["command"] and not notify["command"][0].strip():
        report.at("command", "is empty; accepted is a program and its arguments")


# Signals that no process can catch, and the one that asks for the same.
_CATCHABLE = {"SIGKILL": "SIGTERM", "SIGSTOP": "SIGTSTP"}


def _check_signal(recovery: dict[str, Any], report: Reporter) -> None:
    wanted = recovery["stop_signal"]
    name = wanted.upper() if wanted.upper().startswith("SIG") else f"SIG{wanted.upper()}"
    known = sorted(one.name for one in signal.Signals if one.name not in _CATCHABLE)
    if name not in known:
        accepted = "the name of a signal that can be caught, as SIGUSR1"
        found = f"found {wanted!r}; accepted is {accepted}"
        by_number = {str(one.value): one.name for one in signal.Signals}
        near = by_number.get(wanted, name)
        report.at("stop_signal", found, did_you_mean(_CATCHABLE.get(near, near), known))
    recovery["stop_signal"] = name


def _check_project(project: str, report: Reporter) -> None:
    if wrong := [one for one in project if one in NOT_IN_PROJECTS]:
        accepted = f"a name without any of {' '.join(NOT_IN_PROJECTS)}"
        found = f"found {project!r}, with {wrong[0]!r}; accepted is {accepted}"
        report.at((), found, "a team is named by tracking.wandb.entity")
    elif not 0 < len(project) <= 128:
        report.at((), f"found {len(project)} characters; accepted are 1 to 128")


def _check_mlflow(uri: str, report: Reporter) -> None:
    scheme, separator, rest = uri.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0]
    if not separator or scheme.partition("+")[0] not in _MLFLOW:
        hint = "MLflow writes plain directories no more; sqlite:////PATH is one file for all runs"
        accepted = f"what begins with {', '.join(f'{one}://' for one in _MLFLOW)}"
        report.at((), f"found {uri!r}; accepted is {accepted}", hint)
    elif scheme == "sqlite" and not rest.startswith("//"):
        hint = f"write sqlite:////PATH, such as sqlite:////shared/{rest.lstrip('/')}"
        report.at((), f"found {uri!r}, a path that a job would look for in its own place", hint)
    elif ":" in user:
        hint = "MLFLOW_TRACKING_PASSWORD in environment.secrets_file is sent to a server"
        report.at((), "found a password, which everybody who may read the plan would see", hint)


def _check_arguments(data: dict[str, Any], report: Reporter) -> None:
    resume = data["recovery"]["resume"]
    for key, words in (
        ("entry", data["entry"]),
        ("args", data["args"]),
        ("recovery.resume_args", data["recovery"]["resume_args"]),
        ("recovery.resume.args", resume["args"] if isinstance(resume, dict) else None),
        ("recovery.resume.instead", resume["instead"] if isinstance(resume, dict) else None),
        ("notify.command", data["notify"]["command"]),
    ):
        if isinstance(words, list):
            slurm_options.check_words(words, "an argument", report.below(key))


def _no_placeholders(data: Any, report: Reporter) -> None:
    """Report values that are needed earlier; ranks set their environment's variables themselves."""
    for key, value in leaves(data):
        if is_late(value) and key[:1] != ("variables",):
            found = f"found {value!r}, which is known only as an attempt starts"
            hint = "it can be used in config, args, entry, deepspeed, environment.variables and "
            hint += "recovery.resume"
            report.at(key, found, hint)
