"""Renders the sbatch script; its template decides nothing."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from typing import Any

from hpcrun import resources
from hpcrun.compile.target import packing
from hpcrun.compile.target.packing import PackShape
from hpcrun.errors import UsageError
from hpcrun.policy import frameworks
from hpcrun.state.layout import SubmissionPaths
from hpcrun.state.plan import RunPlan
from hpcrun.state.role_plan import RolePlan
from hpcrun.state.spec.blocks import early
from hpcrun.state.spec.run_blocks import Resources
from hpcrun.text import ranges, visible

TEMPLATE = "job.sbatch.j2"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SAFE = re.compile(r"[\w@%+=:,./&|*!\[\]()-]*", re.ASCII)


def script(
    name: str,
    cluster: dict[str, Any],
    runs: Sequence[RunPlan],
    parallel: int | None,
    submission: SubmissionPaths,
    offset: int = 0,
) -> str:
    """Render the script of one sbatch for an experiment's runs of one shape, by ascending number.

    Several become an array, of which ``parallel`` tasks may run at once (None for no limit), or
    share the job where their spec says so; ``offset`` is a run's number minus the index of its
    task. Raises UsageError if a value cannot be written into a script.
    """
    first = runs[0]
    own = first.environment
    array = None
    if len(runs) > 1 and first.pack is None:
        array = ",".join(ranges(run.number - offset for run in runs))
        if parallel is not None and parallel < len(runs):
            array += f"%{parallel}"
    task = f'"$((SLURM_ARRAY_TASK_ID + {offset}))"' if offset else '"$SLURM_ARRAY_TASK_ID"'
    run = str(first.number) if len(runs) == 1 else task
    program = f"hpcrun.run.keeper {quote(submission.directory)} --run {run}"
    packed = None
    if first.pack is not None:
        packed = packing.shape(first.pack, first.nodes, len(runs), parallel)
        numbers = ",".join(ranges(run.number for run in runs))
        program = (
            f"hpcrun.run.packed_job {quote(submission.directory)} --runs {numbers} "
            f"--per-node {packed.per_node} --at-once {packed.seats}"
        )
    return program_script(
        parts=[
            _options(name, cluster, first, array, submission, packed),
            *(_part_options(name, cluster, role, first) for role in first.own_parts),
        ],
        setup=[*cluster["setup"], *own.setup],
        variables={**cluster["variables"], **early(own.variables)},
        package=str(submission.package),
        guarded=[str(submission.plan)],
        group=cluster.get("group") or "",
        python=own.python,
        program=program,
    )


def program_script(
    *,
    parts: Sequence[dict[str, Any]],
    setup: Sequence[str],
    variables: dict[str, Any],
    package: str,
    guarded: Sequence[str],
    group: str,
    python: str | None,
    program: str,
) -> str:
    """Render the script of a program of hpcrun's own, ``python -m PROGRAM``.

    ``parts`` are sbatch's long options, for each part of the job; ``program`` is shell, its
    arguments quoted. The job ends if the package, one of the files ``guarded`` or a directory on
    the way is neither its user's, root's nor of the trusted ``group``. Raise UsageError if a value
    cannot be written into a script.
    """
    return str(
        _template().render(
            parts=parts,
            setup=setup,
            variables=variables,
            package=package,
            guarded=guarded,
            group=group,
            python=python,
            program=program,
        )
    )


@functools.cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(resources.directory("templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["shell"] = quote
    environment.filters["directive"] = directive
    return environment.get_template(TEMPLATE)


def _options(
    name: str,
    cluster: dict[str, Any],
    run: RunPlan,
    array: str | None,
    paths: SubmissionPaths,
    packed: PackShape | None,
) -> dict[str, Any]:
    """Return sbatch's long options -> values; true for one without a value."""
    wanted, shape = run.resources, (run.shared_nodes, run.ranks_per_node)
    outlives_nodes = run.outlives_nodes
    if packed is not None:
        wanted = packed.resources(wanted, run.ranks_per_node)
        shape = packed.nodes, packed.tasks(run.ranks_per_node)
        outlives_nodes = packed.outlives_nodes(run.recovery)
    # The steps of a script that starts its ranks itself have what Slurm gives.
    cpus = None if frameworks.of(run.entry.framework).one_per_run else 1
    found: dict[str, Any] = {
        "job-name": name,
        "array": array,
        **_run_options(cluster, run, wanted, *shape, cpus),
        # The job outlives a lost node where a spare can take its place, or other runs go on.
        "no-kill": True if outlives_nodes else None,
        "requeue": True,
        "open-mode": "append",
        "export": "NIL",
        # Python puts the working directory first on sys.path, so it is one that we fill.
        "chdir": paths.directory.as_posix(),
        "output": paths.batch_log_pattern(array is not None),
    }
    return _without_unset(found)


def _part_options(
    name: str, cluster: dict[str, Any], role: RolePlan, run: RunPlan
) -> dict[str, Any]:
    """Return sbatch's long options of the part of a role that has nodes of its own."""
    wanted = run.resources_of(role.first_node)
    return _without_unset(
        {
            "job-name": name,
            **_run_options(cluster, run, wanted, role.nodes, role.ranks_per_node),
            "requeue": True,
        }
    )


def _run_options(
    cluster: dict[str, Any],
    run: RunPlan,
    wanted: Resources,
    nodes: int,
    ranks_per_node: int,
    cpus: int | None = 1,
) -> dict[str, Any]:
    """Return a run's options of sbatch; ``cpus`` is the default of processors a rank."""
    others = {**cluster["sbatch"], **mail(run), **wanted.sbatch}
    gpus = gpu_options(wanted, others)
    return {
        "nodes": nodes,
        "ntasks-per-node": ranks_per_node,
        "cpus-per-task": wanted.cpus_per_task or cpus,
        **gpus,
        "mem": wanted.mem,
        "time": wanted.time,
        "partition": wanted.partition,
        "account": wanted.account,
        "qos": wanted.qos,
        "constraint": wanted.constraint,
        "reservation": wanted.reservation,
        "exclude": wanted.exclude,
        **others,
        **gpus,
    }


def gpu_options(wanted: Resources, others: dict[str, Any]) -> dict[str, Any]:
    """Return sbatch's options for GPUs; ``others`` are those that the user has given.

    Raises UsageError if a job that is to have whole nodes would share them.
    """
    if wanted.has_whole_nodes:
        for name, alone in (("exclusive", True), ("oversubscribe", False)):
            if others.get(name, alone) not in (alone, None):
                raise UsageError(
                    f"sbatch: found {name}: {others[name]}, and Slurm is not asked for GPUs "
                    "(resources.gpu_request: none): two jobs on a node would use the same ones",
                    hint=f"leave sbatch.{name} out: hpcrun sets --exclusive",
                )
        return {"exclusive": True}
    name, _, value = (wanted.gpus_option or "").partition("=")
    if name == "gres" and others.get(name):
        value += f",{others[name]}"
    return {name: value} if name else {}


def _without_unset(options: dict[str, Any]) -> dict[str, Any]:
    # With dashes it is an option of the site's own plugin.
    given = {name.removeprefix("--"): one for name, one in options.items()}
    return {name: one for name, one in given.items() if one is not None and one is not False}


def mail(run: RunPlan) -> dict[str, str]:
    """Return sbatch's options for the mails that Slurm sends about a run's job."""
    notify = run.notify
    if not notify.mail:
        return {}
    return {"mail-user": notify.mail, "mail-type": ",".join(notify.mail_types)}


def quote(value: Any) -> str:
    """Quote a value as one word of shell; raise UsageError if it holds a NUL."""
    text = str(value)
    if "\x00" in text:
        raise UsageError(f"{text!r} holds a NUL character, which no script can carry")
    return shlex.quote(text)


def directive(name: str, value: Any) -> str:
    """Return ``--name=value`` as sbatch reads it; raise UsageError if it does not fit in a line."""
    if value is True:
        return f"--{name}"
    text = str(value)
    if _CONTROL.search(text) or visible(text) != text:
        raise UsageError(f"sbatch --{name}: {text!r} holds a line break or a control character")
    if not _SAFE.fullmatch(text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"--{name}={text}"
