"""What must hold between the values of a spec, beyond their types."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from pathlib import Path
from typing import Any

from hpcrun.compile.source.marked_tree import Key, Tree
from hpcrun.compile.source.problems import Problems, did_you_mean
from hpcrun.compile.spec.profile import OWNED_VARIABLES
from hpcrun.compile.target.slurm_options import (
    MAIL_TYPES,
    check_name,
    check_resources,
    check_variables,
)
from hpcrun.policy import notifications, stop_lead_time
from hpcrun.policy.causes import KINDS
from hpcrun.slurm.parse import parse_duration
from hpcrun.state.init_from import Origin

_ADDRESS = re.compile(r"[^\s,@]+(?:@[^\s,@]+)?")
_PLAN_TIME = (
    "name",
    "cluster",
    "resources",
    "model_parallel_size",
    "deepspeed_config",
    "checkpoint",
    "environment",
    "objective",
    "notify",
    "tracking",
    "code",
)
# In a project's name, where Weights & Biases puts it into addresses.
_NOT_IN_PROJECTS = "/\\#?%:"


def check(data: dict[str, Any], limits: dict[str, Any], tree: Tree, problems: Problems) -> None:
    """Note every mistake in a resolved spec that has nothing to do with entry or DeepSpeed."""
    for name in _PLAN_TIME:
        _no_placeholders(data[name], (name,), tree, problems)
    check_name(data["name"], ("name",), tree, problems)
    check_resources(data["resources"], ("resources",), tree, problems)
    _check_limits(data["resources"], limits, tree, problems)
    for key, least in (
        (("model_parallel_size",), 1),
        (("checkpoint", "every"), 1),
        (("checkpoint", "nearby_every"), 1),
        (("checkpoint", "keep"), 1),
        (("checkpoint", "keep_every"), 1),
        (("checkpoint", "keep_best"), 0),
        (("recovery", "max_failures"), 1),
        (("recovery", "in_place"), 0),
        (("recovery", "non_finite_steps"), 0),
        (("telemetry", "every"), 1),
    ):
        _at_least(data, key, least, tree, problems)
    _check_nearby(data["checkpoint"], tree, problems)
    _check_origin(data["checkpoint"]["initialize_from"], tree, problems)
    _check_environment(data["environment"], tree, problems)
    _check_recovery(data, tree, problems)
    _check_notify(data["notify"], tree, problems)
    _check_arguments(data, tree, problems)
    _check_tracking(data["tracking"], tree, problems)
    if data["objective"] is not None and not data["objective"]["metric"].strip():
        problems.at(tree, ("objective", "metric"), "is empty; accepted is a metric's name")


def _check_nearby(checkpoint: dict[str, Any], tree: Tree, problems: Problems) -> None:
    """What goes with the allocation is no checkpoint by itself."""
    nearby, every = checkpoint["nearby_every"], checkpoint["every"]
    if nearby is None or (every is not None and nearby < every):
        return
    problems.at(
        tree,
        ("checkpoint", "nearby_every"),
        f"is {nearby}, and checkpoint.every {'null' if every is None else every}; accepted is less "
        "than that: the nodes' storage goes with the allocation",
    )


def _check_origin(text: str | None, tree: Tree, problems: Problems) -> None:
    if text is None:
        return
    try:
        Origin.parse(text)
    except ValueError as error:
        problems.at(tree, ("checkpoint", "initialize_from"), str(error))


def check_sweep(sweep: dict[str, Any] | None, tree: Tree, problems: Problems) -> None:
    """Note mistakes of the sweep block itself."""
    if sweep is not None:
        _at_least({"sweep": sweep}, ("sweep", "max_parallel"), 1, tree, problems)


def settle_paths(data: dict[str, Any], directory: Path, tree: Tree, problems: Problems) -> None:
    """Make the job's Python and the paths of code, secrets and notify absolute, in place."""
    environment, code = data["environment"], data["code"]
    python = environment["python"]
    if python is None:
        environment["python"] = sys.executable
    elif not python.strip():
        problems.at(tree, ("environment", "python"), "is empty; accepted is a Python, or null")
    elif "/" in python:
        environment["python"] = str(_absolute(python, tree, ("environment", "python")))
    secrets = environment["secrets_file"]
    if secrets is not None:
        key: Key = ("environment", "secrets_file")
        path = _absolute(secrets, tree, key)
        environment["secrets_file"] = str(path)
        _check_secrets(path, key, tree, problems)
    command = data["notify"]["command"]
    if command and "/" in command[0]:
        command[0] = str(_absolute(command[0], tree, ("notify", "command")))
    if code["root"] is not None:
        root = _absolute(code["root"], tree, ("code", "root"))
        code["root"] = str(root)
        if not root.is_dir():
            problems.at(tree, ("code", "root"), f"there is no directory {root}")
    for index, link in enumerate(code["link"]):
        key = ("code", "link", str(index))
        if Path(link).is_absolute() or ".." in Path(link).parts or link in ("", "."):
            problems.at(
                tree,
                key,
                f"found {link!r}; accepted is a path in the spec's directory",
                "an absolute path needs no link: it means the same in the job",
            )
        elif not (directory / link).exists():
            problems.at(tree, key, f"there is no {link!r} in {directory}")


def _absolute(value: str, tree: Tree, key: Key) -> Path:
    base = tree.mark(key).directory
    return Path(os.path.normpath((base / Path(value).expanduser()).absolute()))


def _check_secrets(path: Path, key: Key, tree: Tree, problems: Problems) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        problems.at(tree, key, f"{path} cannot be read: {error.strerror}")
        return
    if stat.S_IMODE(mode) & 0o077:
        problems.at(
            tree,
            key,
            f"others may read {path} (mode {stat.S_IMODE(mode):04o})",
            f"chmod 600 {path.name}",
        )


def _check_limits(
    resources: dict[str, Any], limits: dict[str, Any], tree: Tree, problems: Problems
) -> None:
    most_nodes, longest = limits["max_nodes"], limits["max_time"]
    nodes, spares = resources["nodes"], resources["spare_nodes"]
    if most_nodes is not None and nodes + spares > most_nodes:
        found = f"{nodes} and {spares} spare" if spares else nodes
        problems.at(
            tree,
            ("resources", "nodes"),
            f"found {found}; this cluster's profile accepts at most {most_nodes}",
        )
    wanted = parse_duration(resources["time"])
    if longest is not None and wanted is not None and wanted > (parse_duration(longest) or wanted):
        problems.at(
            tree,
            ("resources", "time"),
            f"found {resources['time']!r}; this cluster's profile accepts at most {longest}",
        )


def _check_environment(environment: dict[str, Any], tree: Tree, problems: Problems) -> None:
    key: Key = ("environment", "variables")
    check_variables(environment["variables"], key, tree, problems, OWNED_VARIABLES)
    for index, line in enumerate(environment["setup"]):
        if "\x00" in line:
            problems.at(
                tree, ("environment", "setup", str(index)), "the line holds a NUL character"
            )


def _check_recovery(data: dict[str, Any], tree: Tree, problems: Problems) -> None:
    recovery = data["recovery"]
    for kind, number in recovery["budgets"].items():
        key: Key = ("recovery", "budgets", kind)
        if kind not in KINDS:
            problems.at(
                tree,
                key,
                f"is no kind of end; accepted are {', '.join(sorted(KINDS))}",
                did_you_mean(kind, KINDS),
            )
        elif number < 1:
            problems.at(tree, key, f"found {number}; accepted is a whole number from 1")
    _check_signal(recovery, tree, problems)
    for name, example in (("hang_after", "00:05:00"), ("warm_after", "00:01:00")):
        if (after := recovery[name]) is not None and not parse_duration(after):
            problems.at(
                tree,
                ("recovery", name),
                f'found {after!r}; accepted is a time such as "{example}"',
                "null for never",
            )
    before, key = recovery["stop_before"], ("recovery", "stop_before")
    if before is None:
        return
    asked, limit = parse_duration(before), parse_duration(data["resources"]["time"])
    if asked is None:
        problems.at(tree, key, f'found {before!r}; accepted is a time such as "00:05:00"')
    elif limit is not None and not stop_lead_time.leaves_enough(limit, asked):
        problems.at(
            tree,
            key,
            f"found {before!r}, which leaves less than half of resources.time "
            f"({data['resources']['time']!r}) for the run",
            "ask for more time, or save faster",
        )


def _check_notify(notify: dict[str, Any], tree: Tree, problems: Problems) -> None:
    for name, accepted in (("mail_types", MAIL_TYPES), ("events", notifications.EVENTS)):
        for index, found in enumerate(notify[name]):
            if found not in accepted:
                problems.at(
                    tree,
                    ("notify", name, str(index)),
                    f"found {found!r}; accepted are {', '.join(accepted)}",
                    did_you_mean(found, accepted),
                )
    mail = notify["mail"]
    if mail is not None and not _ADDRESS.fullmatch(mail):
        problems.at(
            tree,
            ("notify", "mail"),
            f"found {mail!r}; accepted is one address, such as ada@example.org",
        )
    if notify["command"] and not notify["command"][0].strip():
        problems.at(
            tree, ("notify", "command"), "is empty; accepted is a program and its arguments"
        )


def _check_signal(recovery: dict[str, Any], tree: Tree, problems: Problems) -> None:
    wanted = recovery["stop_signal"]
    if wanted is None:
        return
    name = wanted.upper() if wanted.upper().startswith("SIG") else f"SIG{wanted.upper()}"
    known = sorted(one.name for one in signal.Signals if one.name not in ("SIGKILL", "SIGSTOP"))
    if name not in known:
        problems.at(
            tree,
            ("recovery", "stop_signal"),
            f"found {wanted!r}; accepted is the name of a signal that can be caught, as SIGUSR1",
            did_you_mean(name, known),
        )
    recovery["stop_signal"] = name


def _check_tracking(tracking: dict[str, Any], tree: Tree, problems: Problems) -> None:
    wandb = tracking["wandb"]
    if wandb is None or wandb["project"] is None:
        return
    project, key = wandb["project"], ("tracking", "wandb", "project")
    if wrong := [one for one in project if one in _NOT_IN_PROJECTS]:
        problems.at(
            tree,
            key,
            f"found {project!r}, with {wrong[0]!r}; accepted is a name without any of "
            f"{' '.join(_NOT_IN_PROJECTS)}",
            "a team is named by tracking.wandb.entity",
        )
    elif not 0 < len(project) <= 128:
        problems.at(tree, key, f"found {len(project)} characters; accepted are 1 to 128")


def _check_arguments(data: dict[str, Any], tree: Tree, problems: Problems) -> None:
    entry = data["entry"] if isinstance(data["entry"], list) else []
    for key, items in (
        (("entry",), entry),
        (("args",), data["args"]),
        (("recovery", "resume_args"), data["recovery"]["resume_args"]),
        (("notify", "command"), data["notify"]["command"]),
    ):
        for index, item in enumerate(items):
            if "\x00" in item:
                problems.at(tree, (*key, str(index)), "an argument holds a NUL character")


def _no_placeholders(value: Any, key: Key, tree: Tree, problems: Problems) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _no_placeholders(item, (*key, name), tree, problems)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _no_placeholders(item, (*key, str(index)), tree, problems)
    elif isinstance(value, str) and "${hpcrun:" in value:
        problems.at(
            tree,
            key,
            f"found {value!r}, which is known only as an attempt starts",
            "it can be used in config, args, entry, deepspeed and recovery.resume_args",
        )


def _at_least(data: dict[str, Any], key: Key, least: int, tree: Tree, problems: Problems) -> None:
    value: Any = data
    for part in key:
        value = value[part]
    if value is not None and value < least:
        problems.at(tree, key, f"found {value}; accepted is a whole number from {least}")
