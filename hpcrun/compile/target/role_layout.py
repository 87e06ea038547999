"""Lay out a run's roles: their programs, which ranks and nodes are whose, and the job's shape.

The main role is compiled as a run without roles is: it takes the top level's place. What the others
are is settled here, and frozen with them in the spec's ``roles``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcrun.compile.source.marked_tree import Reporter, dotted
from hpcrun.compile.spec import schema
from hpcrun.compile.target import entry
from hpcrun.compile.target.slurm_options import check_gpus, check_resources, check_words
from hpcrun.policy import frameworks
from hpcrun.state.role_plan import IGNORE, ROLES, SHAPE
from hpcrun.state.spec.experiment import Spec
from hpcrun.state.spec.run_blocks import Resources
from hpcrun.text import plural

# It becomes a part of file names and of environment variables.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
# The ranks of all roles but the main one; each has a process of its own on the batch node.
MOST_OTHERS = 192
# Keys of ``resources`` that all parts of a job have alike.
_OF_RUN = ("spare_nodes", "time")

Located = dict[str, entry.LocatedEntry]
Locate = Callable[[dict[str, Any], Reporter], "entry.LocatedEntry | None"]


def _main_of(roles: dict[str, Any]) -> str:
    """Return the name of the main role: the first one where none says that it is."""
    return next((name for name, role in roles.items() if role["main"]), next(iter(roles)))


def take_place(spec: dict[str, Any], report: Reporter) -> Reporter:
    """Put the main role in the top level's place, and all roles in order.

    Returns the reporter for its entry.
    """
    roles, main = spec[ROLES], _main_of(spec[ROLES])
    _check_names(roles, report.below(ROLES))
    role, below = roles[main], report.below((ROLES, main))
    spec[ROLES] = roles = {main: role, **{name: roles[name] for name in roles if name != main}}
    for name, one in roles.items():
        one["main"] = name == main
        _check(one, report.below((ROLES, name)))
    if role["restart"] == IGNORE:
        below.at("restart", "found ignore, and the run is done when this role is", "take it off")
    if spec["recovery"]["shrink"]:
        found = "a run with roles does not go on with fewer nodes"
        report.at("recovery.shrink", found, "a role's restart says what follows a lost node")
    if spec["recovery"]["grow"]:
        found = "a run with roles asks for the same again, as Slurm tells one part of it alone"
        report.at("recovery.grow", found, "give each role the memory that it needs")
    if role["first_node"]:
        below.at("first_node", f"found {role['first_node']}; the main role begins on node 0")
    wanted = spec["resources"]
    if role["resources"]:
        hint = "write its resources at the top level, and those of other roles below them"
        below.at("resources", "the main role's nodes are those of the top level", hint)
        role["resources"] = {}
    for name, one in roles.items():
        _settle_part(one, wanted, report.below((ROLES, name)))
    if wanted["spare_nodes"] and any(one["resources"] for one in roles.values()):
        found = f"found {wanted['spare_nodes']}, and a role has nodes of another kind"
        report.at("resources.spare_nodes", found, "a lost node of such a job is one for a requeue")
    for key in ("nodes", "gpus_per_node"):
        role[key] = wanted[key] if role[key] is None else role[key]
    if role["ntasks_per_node"] is role["ntasks"] is None:
        role["ntasks_per_node"] = wanted["ntasks_per_node"]
    nodes, per_node = _shape(role, wanted["nodes"], below)
    tasks = None if per_node == (role["gpus_per_node"] or 1) else per_node
    spec["resources"] = {
        **wanted,
        **{"nodes": nodes, "ntasks_per_node": tasks, "gpus_per_node": role["gpus_per_node"]},
    }
    if role["cpus_per_task"] is not None:
        spec["resources"]["cpus_per_task"] = role["cpus_per_task"]
    for one in roles.values():
        one["shares"] = not one["entry"]
        if one["shares"]:
            one.update(entry=spec["entry"], args=[*spec["args"], *one["args"]])
    spec.update(entry=role["entry"], args=role["args"])
    return report if role["shares"] else below


def settle(spec: dict[str, Any], locate: Locate, report: Reporter) -> Located:
    """Place the other roles and find their programs; give the job the shape of all of them.

    ``spec`` is checked, and its main role settled. Returns the programs by role.
    """
    roles, wanted = spec[ROLES], spec["resources"]
    if report.problems.under(ROLES, "resources"):
        return {}
    main, *others = roles
    own_cpus = wanted["cpus_per_task"] or 1
    per_node = wanted["ntasks_per_node"] or wanted["gpus_per_node"] or 1
    roles[main].update(
        nodes=wanted["nodes"], ntasks_per_node=per_node, ntasks=None, cpus_per_task=own_cpus
    )
    own_nodes, found = wanted["nodes"], {}
    shared = [role for role in roles.values() if not role["resources"]]
    shared_nodes = max(own_nodes, *(role["first_node"] + (role["nodes"] or 1) for role in shared))
    for name in others:
        role, below = roles[name], report.below((ROLES, name))
        most = 1 if role["resources"] else shared_nodes - role["first_node"]
        nodes, per_node = _shape(role, most, below)
        cpus = own_cpus if role["cpus_per_task"] is None else role["cpus_per_task"]
        role.update(nodes=nodes, ntasks_per_node=per_node, ntasks=None, cpus_per_task=cpus)
        located = locate({**spec, "entry": role["entry"]}, report if role["shares"] else below)
        if located is not None and located.kind == "function":
            hint = "make it a script or a command"
            below.at("entry", "found a function; only the main role may be one", hint)
        elif located is not None:
            found[name] = located
    _number(roles, shared_nodes, spec, report)
    return found


def freeze(
    spec: dict[str, Any], located: Located, root: Path, config: dict[str, Any], report: Reporter
) -> dict[str, Any]:
    """Return the spec's ``roles`` with the program of each for this ``config``."""
    found = {}
    for name, role in spec[ROLES].items():
        found[name] = {key: role[key] for key in role if key != "shares"}
        if name not in located:
            continue
        below = report.below((ROLES, name))
        own = _config(role, config)
        view = {
            **{**spec, "entry": role["entry"], "args": role["args"]},
            "recovery": {**spec["recovery"], "resume": None, "resume_args": []},
            "framework": frameworks.NONE,
        }
        program, _ = entry.finish(located[name], root, view, own, below)
        data = dataclasses.asdict(program)
        found[name].update(config=own, program={**data, "argv": list(program.argv)})
    return found


def config_of_main(spec: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the main role, which is the run's."""
    return _config(spec[ROLES][_main_of(spec[ROLES])], config)


def _config(role: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = role["config"]
    return _merge(config, own) if role["shares"] else own


def _merge(config: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    inner = [key for key in own if isinstance(own[key], dict) and isinstance(config.get(key), dict)]
    both = {key: _merge(config[key], own[key]) for key in inner}
    return {**config, **own, **both}


def computed(roles: dict[str, Any], root: Path, directory: Path) -> dict[str, Any]:
    """Return what the other roles compute, for the run's identity."""
    found = {}
    for name, role in roles.items():
        if (program := role.get("program")) is not None:
            file = program["file"] and os.path.relpath(root / program["file"], directory)
            found[name] = {"argv": program["argv"], "file": file, "config": role["config"]}
    return found


def _check_names(roles: dict[str, Any], report: Reporter) -> None:
    variables: dict[str, str] = {}
    for name in roles:
        if not _NAME.fullmatch(name):
            accepted = "letters, digits, '_' and '-', a letter first, 32 in all"
            report.at((name,), f"found the name {name!r}; accepted are {accepted}")
        other = variables.setdefault(variable(name), name)
        if other != name:
            report.at((name,), f"it and {other!r} would have the same environment variable")
    mains = [name for name, role in roles.items() if role["main"]]
    if len(mains) > 1:
        report.at((mains[1], "main"), f"found a second main role, beside {mains[0]!r}")


def variable(name: str) -> str:
    """Return a role's name as a part of an environment variable's."""
    return name.upper().replace("-", "_")


def _check(role: dict[str, Any], report: Reporter) -> None:
    for key in ("nodes", "ntasks_per_node", "ntasks", "cpus_per_task"):
        report.at_least(key, role[key], 1, 10_000)
    for key in ("first_node", "gpus_per_node", "budget", "stop_grace"):
        report.at_least(key, role[key], 0, 10_000)
    # What was reported is not reported again of the top level, whose place the main role takes.
    for key in (*SHAPE, "ntasks"):
        if report.problems.under(dotted((*report.key, key))):
            role[key] = None
    gpus, tasks = role["gpus_per_node"] or 0, role["ntasks_per_node"]
    if gpus and tasks not in (None, 1, gpus):
        found = f"found {tasks} with gpus_per_node={gpus}; with GPUs there is one rank per GPU"
        report.at("ntasks_per_node", found, "leave ntasks_per_node out")
    words = role["entry"] if isinstance(role["entry"], list) else []
    check_words([*words, *role["args"]], "an argument", report.below("args"))
    if any("\x00" in word for word in (*words, *role["args"])):
        report.at("args", "an argument holds a NUL character")


def _settle_part(role: dict[str, Any], wanted: dict[str, Any], report: Reporter) -> None:
    """Check the ``resources`` of a role; fill in the top level's, but for the job's shape."""
    own = role["resources"]
    if not own:
        return
    below = report.below("resources")
    for key in [key for key in own if key in (*SHAPE, *_OF_RUN)]:
        what, hint = "a role has its own", f"write {key} in the role, beside resources"
        if key in _OF_RUN:
            what, hint = "all parts of a job have the same", f"use resources.{key} of the top level"
        below.at(key, what, hint)
    if role["first_node"]:
        found = f"found {role['first_node']}; a role with resources has nodes of its own"
        report.at("first_node", found, "leave it out")
        role["first_node"] = 0
    checked = schema.SchemaChecker(report, Spec).block(own, Resources, ("resources",))
    given = {key: checked[key] for key in own if key in checked}
    role["resources"] = {**wanted, **given}
    if not report.problems.under(dotted(below.key)):
        gpus = {key: role["resources"][key] for key in ("gpu_type", "gpu_request", "node_has_gpus")}
        check_resources({**schema.defaults(Resources), **gpus, **given}, below)


def _shape(role: dict[str, Any], most: int, report: Reporter) -> tuple[int, int]:
    """Return the nodes of a role and its ranks on each, of at most so many nodes."""
    nodes, per_node, tasks = (role[key] for key in ("nodes", "ntasks_per_node", "ntasks"))
    if tasks is None:
        return nodes or 1, per_node or role["gpus_per_node"] or 1
    if nodes is None and per_node is not None and tasks % per_node == 0:
        nodes = tasks // per_node
    if nodes is None:
        nodes = max(
            (n for n in range(1, min(tasks, max(most, 1)) + 1) if tasks % n == 0), default=1
        )
    if tasks % nodes or (per_node or tasks // nodes) * nodes != tasks:
        spread = f"{plural(nodes, 'node')}" + (f" of {per_node}" if per_node else "")
        report.at("ntasks", f"found {tasks}, which is not divided evenly among {spread}")
    return nodes, max(1, tasks // nodes)


def _number(roles: dict[str, Any], all_nodes: int, spec: dict[str, Any], report: Reporter) -> None:
    """Number the ranks, GPUs and parts of the roles, and set the shape of the job's first part."""
    ranks, gpus, cpus = ([0] * all_nodes for _ in range(3))
    following = 0
    for role in roles.values():
        role["gpus_per_node"] = role["gpus_per_node"] or 0
        role.update(part=0, first_gpu=0, first_rank=following)
        following += role["nodes"] * role["ntasks_per_node"]
        if role["resources"]:
            continue
        own = range(role["first_node"], role["first_node"] + role["nodes"])
        all_nodes = max(all_nodes, own.stop)
        for counts in (ranks, gpus, cpus):
            counts += [0] * (own.stop - len(counts))
        role["first_gpu"] = max(gpus[node] for node in own)
        for node in own:
            ranks[node] += role["ntasks_per_node"]
            gpus[node] = role["first_gpu"] + role["gpus_per_node"]
            cpus[node] += role["ntasks_per_node"] * role["cpus_per_task"]
    main = next(iter(roles.values()))
    others = following - main["nodes"] * main["ntasks_per_node"]
    if others > MOST_OTHERS:
        found = f"found {others} ranks of roles beside the main one; accepted are {MOST_OTHERS}"
        report.at(ROLES, found, "make the role with the most ranks the main one")
    nodes = all_nodes
    parts = [role for role in roles.values() if role["resources"]]
    for number, role in enumerate(parts, start=1):
        role.update(part=number, first_node=nodes)
        role["resources"].update({key: role[key] for key in SHAPE})
        nodes += role["nodes"]
    most = max(ranks)
    spec["resources"] = {
        **spec["resources"],
        "nodes": all_nodes,
        "ntasks_per_node": most,
        "gpus_per_node": max(gpus),
        # So that the job has enough for the ranks of every node.
        "cpus_per_task": -(-max(cpus) // most),
    }
    check_gpus(spec["resources"], report.below("resources"))
    for name, role in roles.items():
        if role["part"]:
            check_gpus(role["resources"], report.below((ROLES, name)))
