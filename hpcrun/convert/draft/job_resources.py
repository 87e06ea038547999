"""Turns sbatch's options into ``resources``, ``notify`` and ``recovery`` of a spec."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from hpcrun.compile.target.slurm_options import FORMS, MAIL_TYPES, OWNED
from hpcrun.convert.line_fates import CARRIED, LEFT, NOT_NEEDED, LineFate
from hpcrun.convert.script import sbatch_lines
from hpcrun.convert.script.sbatch_lines import GpuRequest, SbatchLines, SbatchOption
from hpcrun.slurm.parse import parse_duration

_SHAPE = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gres", "ntasks-per-gpu")
_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
_SIGNAL = re.compile(r"(?:R?B?:)?(?:SIG)?([A-Z0-9]+)(?:@(\d{1,6}))?", re.IGNORECASE)
_NUMBERED = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT"}


@dataclass
class ScriptRequest:
    """What a script asks of Slurm."""

    resources: dict[str, Any] = field(default_factory=dict)
    sbatch: dict[str, Any] = field(default_factory=dict)
    notify: dict[str, Any] = field(default_factory=dict)
    recovery: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    directory: str | None = None
    nodes: int = 1
    tasks_per_node: int = 1
    has_tasks: bool = False
    cpus_per_task: int | None = None
    gpus_per_node: int = 0
    gpu_type: str | None = None
    tasks: list[int] = field(default_factory=list)
    """The tasks of its array; empty without one."""
    parallel: int | None = None
    lines: dict[str, int] = field(default_factory=dict)
    """Key of the spec -> the line that gives it."""
    fates: list[LineFate] = field(default_factory=list)

    def facts(self) -> dict[str, str]:
        """Return Slurm's variables in such a job."""
        nodes, tasks = str(self.nodes), str(self.tasks_per_node)
        total = str(self.nodes * self.tasks_per_node)
        found = {
            **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
            **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), total),
            **{"SLURM_NTASKS_PER_NODE": tasks, "SLURM_TASKS_PER_NODE": tasks},
            "SLURM_CPUS_PER_TASK": str(self.cpus_per_task or 1),
            "SLURM_SUBMIT_DIR": ".",
        }
        if self.gpus_per_node:
            count = str(self.gpus_per_node)
            found.update(dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), count))
            found["SLURM_GPUS"] = str(self.gpus_per_node * self.nodes)
        if self.name:
            found["SLURM_JOB_NAME"] = self.name
        if partition := self.resources.get("partition"):
            found["SLURM_JOB_PARTITION"] = partition
        if self.tasks:
            found["SLURM_ARRAY_TASK_COUNT"] = str(len(self.tasks))
            found["SLURM_ARRAY_TASK_MIN"] = str(min(self.tasks))
            found["SLURM_ARRAY_TASK_MAX"] = str(max(self.tasks))
        return found


def request(lines: SbatchLines) -> ScriptRequest:
    """Return what the options of a script ask for; each of its lines has a fate."""
    job = ScriptRequest(fates=list(lines.fates))
    _shape(job, lines)
    for name, option in lines.options.items():
        if name not in (*_SHAPE, *_GPUS):
            _option(job, name, option)
    if "mail_types" in job.notify and "mail" not in job.notify:
        del job.notify["mail_types"]
        one = lines.options["mail-type"]
        job.fates = [fate for fate in job.fates if fate.what != "notify.mail_types"]
        what = "there is no --mail-user with it"
        _note(job, one, LEFT, what, "name your address in notify.mail, and these in .mail_types")
    return job


def _note(
    job: ScriptRequest, one: SbatchOption, fate: str, what: str, hint: str | None = None
) -> None:
    job.fates.append(LineFate(one.line, one.line, one.text, fate, what, hint))


def _carry(job: ScriptRequest, one: SbatchOption, key: str, extra: str = "") -> None:
    job.lines.setdefault(key, one.line)
    _note(job, one, CARRIED, key + extra)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,9}", text.strip()) else None


def _shape(job: ScriptRequest, lines: SbatchLines) -> None:
    """Read nodes, tasks, CPUs and GPUs, which depend on each other."""
    options = lines.options
    if one := options.get("nodes"):
        found = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", one.value.strip())
        job.nodes = max(1, int(found[1])) if found else 1
        if found is None:
            _note(job, one, LEFT, f"found {one.value!r}", "write resources.nodes")
        else:
            extra = f" ({job.nodes}, the least of {one.value})" if found[2] else ""
            _carry(job, one, "resources.nodes", extra)
    per_node, total = _whole(lines.value("ntasks-per-node")), _whole(lines.value("ntasks"))
    job.has_tasks = per_node is not None or total is not None
    job.tasks_per_node = per_node or max(1, (total or 1) // job.nodes)
    if per_node is None and total and "nodes" in options and total % job.nodes:
        job.tasks_per_node = -(-total // job.nodes)
    for name in ("ntasks", "ntasks-per-node"):
        if one := options.get(name):
            _counted(job, one, "resources.ntasks_per_node")
    if one := options.get("cpus-per-task"):
        job.cpus_per_task = _whole(one.value)
        _counted(job, one, "resources.cpus_per_task")
    _gpus(job, lines)
    if one := options.get("ntasks-per-gpu"):
        each = _whole(one.value) or 1
        if per_node is None and total is None and job.gpus_per_node:
            job.tasks_per_node, job.has_tasks = each * job.gpus_per_node, True
        _counted(job, one, "resources.ntasks_per_node")


def _counted(job: ScriptRequest, one: SbatchOption, key: str) -> None:
    if _whole(one.value):
        _carry(job, one, key)
    else:
        _note(job, one, LEFT, f"found {one.value!r}; accepted is a whole number", f"write {key}")


def _gpus(job: ScriptRequest, lines: SbatchLines) -> None:
    options = lines.options
    found: GpuRequest | None = None
    for name in _GPUS:
        one = options.get(name)
        if one is None:
            continue
        read = sbatch_lines.gpus(one.value)
        if read is None or name == "gpus-per-socket":
            _note(job, one, LEFT, f"found {one.value!r}", "write resources.gpus_per_node")
            continue
        count = read.count
        if name == "gpus" and count % job.nodes:
            what = f"{count} GPUs on {job.nodes} nodes are not the same number on each"
            _note(job, one, LEFT, what, "write resources.gpus_per_node")
            continue
        if name == "gpus":
            count //= job.nodes
        elif name == "gpus-per-task":
            count *= job.tasks_per_node
        if found is None or name == "gpus-per-node":
            found = GpuRequest(count, read.kind)
        _carry(job, one, "resources.gpus_per_node")
    if one := options.get("gres"):
        read, others = sbatch_lines.gres(one.value)
        if read is not None:
            found = read
            _carry(job, one, "resources.gpus_per_node")
        if others:
            job.sbatch["gres"] = others
            job.lines["resources.sbatch.gres"] = one.line
            if read is None:
                _note(job, one, CARRIED, "resources.sbatch.gres")
        if read is None and re.search(r"(?:^|[,/\s])gpu\b", one.value, re.IGNORECASE):
            _note(job, one, LEFT, f"found {one.value!r}", "write resources.gpus_per_node")
        elif read is None and not others:
            _note(job, one, NOT_NEEDED, "it asks for nothing")
    if found is not None:
        job.gpus_per_node, job.gpu_type = found.count, found.kind


def _option(job: ScriptRequest, name: str, one: SbatchOption) -> None:
    value = one.value.strip()
    if name in _FIELDS:
        key = _FIELDS[name]
        form = FORMS.get(key)
        if form is not None and not form[0].fullmatch(value):
            _note(job, one, LEFT, f"found {value!r}; accepted is {form[1]}", f"resources.{key}")
        else:
            job.resources[key] = value
            _carry(job, one, f"resources.{key}")
    elif name == "time":
        _time(job, one, value)
    elif name == "job-name":
        job.name = value
        _carry(job, one, "name")
    elif name == "array":
        read = sbatch_lines.array_tasks(value)
        if read is None:
            _note(job, one, LEFT, f"found {value!r}", "write a sweep")
        else:
            job.tasks, job.parallel = read
            job.lines["sweep"] = one.line
    elif name in ("mail-user", "mail-type"):
        _mail(job, one, name, value)
    elif name == "signal":
        _signal(job, one, value)
    elif name == "chdir":
        job.directory = value
        _carry(job, one, "the paths of the spec")
    elif name == "export":
        _export(job, one, value)
    elif name == "no-requeue":
        job.recovery["requeue"] = False
        _carry(job, one, "recovery.requeue")
    elif name in _WHY:
        _note(job, one, NOT_NEEDED, _WHY[name])
    elif name == "dependency":
        if value == "singleton":
            job.sbatch["dependency"] = value
            _carry(job, one, "resources.sbatch.dependency")
        else:
            what = "it names a job that was there once"
            _note(job, one, LEFT, what, "name the spec that comes before in depends_on")
    elif name in OWNED:
        _note(job, one, LEFT, OWNED[name])
    elif name in ("cpus-per-gpu", "export-file", "get-user-env", "wrap"):
        _rest(job, name, one, value)
    else:
        job.sbatch[name] = True if value == "" else value
        _carry(job, one, f"resources.sbatch.{name}")


_FIELDS = {
    name: name
    for name in ("mem", "partition", "account", "qos", "constraint", "reservation", "exclude")
}
_LOGS = "hpcrun keeps the logs in the run's directory; see `hpcrun logs`"
_WHY = {
    **dict.fromkeys(("output", "error"), _LOGS),
    "requeue": "hpcrun requeues by itself (recovery.requeue)",
    **dict.fromkeys(("parsable", "quiet", "wait", "test-only"), "it is about sbatch's own output"),
    "open-mode": "hpcrun always appends",
    "input": "jobs have no input",
    "no-kill": "resources.spare_nodes and recovery say what follows a lost node",
    "kill-on-bad-exit": "hpcrun ends the ranks of a failed run",
    "verbose": "it is about sbatch's own output",
}


def _time(job: ScriptRequest, one: SbatchOption, value: str) -> None:
    seconds = parse_duration(value)
    if seconds:
        job.resources["time"] = value
        _carry(job, one, "resources.time")
    else:
        what = f"found {value!r}; accepted is a length of time above zero"
        _note(job, one, LEFT, what, "resources.time is 1 hour where it is not given")


def _mail(job: ScriptRequest, one: SbatchOption, name: str, value: str) -> None:
    if name == "mail-user":
        job.notify["mail"] = value
        _carry(job, one, "notify.mail")
        return
    kinds = [part.strip().upper() for part in value.split(",") if part.strip()]
    known = [kind for kind in kinds if kind in MAIL_TYPES]
    if not known:
        _note(job, one, LEFT, f"found {value!r}; accepted are {', '.join(MAIL_TYPES[:6])}, …")
        return
    job.notify["mail_types"] = known
    _carry(job, one, "notify.mail_types")
    if len(known) < len(kinds):
        unknown = [kind for kind in kinds if kind not in known]
        _note(job, one, LEFT, f"found {', '.join(unknown)}, which is no event of Slurm's mails")


def _signal(job: ScriptRequest, one: SbatchOption, value: str) -> None:
    found = _SIGNAL.fullmatch(value)
    before = value.partition(":")[0].upper() if ":" in value else ""
    if found is None:
        _note(job, one, LEFT, f"found {value!r}", "see recovery.stop_signal")
    elif "B" in before:
        why = "hpcrun itself hears that time is nearly over, and saves (recovery)"
        _note(job, one, NOT_NEEDED, why)
        if found[2]:
            job.recovery["_batch_before"] = int(found[2])
    else:
        name = _NUMBERED.get(found[1], found[1].upper())
        job.recovery["stop_signal"] = f"SIG{name}"
        job.recovery["stop_before"] = clock(int(found[2] or 60))
        job.lines["recovery.stop_signal"] = one.line
        _carry(job, one, "recovery.stop_signal and recovery.stop_before")


def clock(seconds: int) -> str:
    """Return seconds as ``HH:MM:SS``."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _export(job: ScriptRequest, one: SbatchOption, value: str) -> None:
    given = {}
    for part in value.split(","):
        name, equals, text = part.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            given[name] = text
    job.variables.update(given)
    if given:
        _carry(job, one, "environment.variables")
    why = "a job of hpcrun gets environment.variables, and nothing else of your shell"
    parts = [part.strip() for part in value.split(",")]
    names = [part.partition("=")[0] for part in parts]
    others = [one for one in names if one not in given]
    others = [one for one in others if one.upper() not in ("ALL", "NONE", "NIL", "")]
    if others:
        _note(job, one, LEFT, why, f"name {', '.join(others)} there, as ${{oc.env:NAME}}")
    elif not given:
        _note(job, one, NOT_NEEDED, why)


def _rest(job: ScriptRequest, name: str, one: SbatchOption, value: str) -> None:
    if name == "cpus-per-gpu" and _whole(value):
        if job.cpus_per_task is None:
            job.cpus_per_task = _whole(value)
        _carry(job, one, "resources.cpus_per_task", " (each rank has one GPU)")
    elif name == "get-user-env":
        _note(job, one, NOT_NEEDED, "the job sources /etc/profile, and environment.setup")
    else:
        _note(job, one, LEFT, f"--{name} has no counterpart", "write environment.variables")
