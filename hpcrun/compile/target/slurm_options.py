"""The forms of values that Slurm accepts, and sbatch's options."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcrun.compile.source.marked_tree import Reporter
from hpcrun.compile.source.problems import did_you_mean, kind_of
from hpcrun.errors import HpcrunError
from hpcrun.policy.secret_names import VARIABLE
from hpcrun.slurm import hostlist
from hpcrun.slurm.parse import megabytes, parse_duration
from hpcrun.state.spec.run_blocks import Resources
from hpcrun.text import agreeing

NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
LONGEST_NAME = 128
_ACCENT = re.compile("[\u0300-\u036f]")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PART_OF_TIME = re.compile(
    r"((\d+(?:\.\d+)?)\s*"
    r"(days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![a-z])[\s,]*)"
)
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMGTkmgt])[A-Za-z]{0,8}")
_OPTION = re.compile(r"--[a-z][\w-]*", re.ASCII)
_GPU = re.compile(r"(?:^|,)\s*(?:gres[:/])?gpu", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# Environment variables that the job sets itself.
_SET_BY_JOB = """
RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT HPCRUN_ATTEMPT
HPCRUN_DIRECTORY HPCRUN_HOSTS HPCRUN_LAUNCH HPCRUN_METRICS_FILE HPCRUN_NODE_RANK HPCRUN_NODES
HPCRUN_PORTS HPCRUN_RANKS HPCRUN_RUN HPCRUN_SCRATCH HPCRUN_ROLE HPCRUN_ADDRESSES
"""
_OWNED_VARIABLES = frozenset(_SET_BY_JOB.split())
FORMS: dict[str, tuple[re.Pattern[str], str]] = {
    "gpu_type": (re.compile(r"[A-Za-z0-9_.-]+"), "the name of a type of GPU, such as a100"),
    "mem": (re.compile(r"\d+(?:[KMGTkmgt][Bb]?)?"), "a size such as 64G, 4000M, or 0"),
    "partition": (
        re.compile(r"[\w.+-]+(?:,[\w.+-]+)*"),
        "the name of a partition, or several separated by commas",
    ),
    "account": (re.compile(r"[\w.@+-]+"), "the name of an account"),
    "qos": (re.compile(r"[\w.+-]+"), "the name of a QOS"),
    "constraint": (
        re.compile(r"[\w.\-+&|*!,:=()\[\]]+"),
        "features joined by & or |, such as a100&nvlink",
    ),
    "reservation": (re.compile(r"[\w.+-]+(?:,[\w.+-]+)*"), "the name of a reservation"),
    "exclude": (re.compile(r"[\w.\-,\[\]]+"), "a host list such as node3,rack[0-1]n[07-11]"),
    "mpi": (re.compile(r"\w+", re.ASCII), "a type of `srun --mpi=list`, such as pmix or pmi2"),
}
# The least and the most of each; the most is more than any cluster has.
RANGES = {
    **{"nodes": (1, 1_000_000), "spare_nodes": (0, 1_000_000), "ntasks_per_node": (1, 10_000)},
    **{"cpus_per_task": (1, 10_000), "gpus_per_node": (0, 1_000), "node_has_gpus": (1, 1_000)},
}
_REQUEST = Resources.gpu_request
MOST_RANKS = 10_000_000
LONGEST_TIME = 3650 * 86400
_LARGEST_FACTOR = 100
_NO_LIMIT = ("UNLIMITED", "INFINITE", "NONE", "-1")
# Linux starts no program with one argument or variable of 131,072 bytes, or with 2 MB of them.
LONGEST_WORD, LONGEST_WORDS = 120_000, 1_500_000
# Options that a field of ``resources`` of the same name sets.
_SAME_NAME = """
account constraint cpus-per-task exclude mem mpi nodes ntasks-per-node partition qos reservation
time
"""
OWNED_BY_FIELD = {
    "array": "sweep.max_parallel (the array itself is made from the sweep)",
    "chdir": "code.root",
    "cpus-per-gpu": "resources.cpus_per_task",
    "export": "environment.variables",
    "export-file": "environment.variables",
    "get-user-env": "environment.setup",
    "gpus": "resources.gpus_per_node",
    "gpus-per-node": "resources.gpus_per_node and resources.gpu_type",
    "gpus-per-socket": "resources.gpus_per_node",
    "gpus-per-task": "resources.gpus_per_node",
    "job-name": "name",
    "ntasks": "resources.ntasks_per_node",
    "ntasks-per-gpu": "resources.gpus_per_node",
    **{name: f"resources.{name.replace('-', '_')}" for name in _SAME_NAME.split()},
}
_ONE_CLUSTER = "hpcrun asks one cluster only, the one that sbatch takes by default"
_IN_LOGS = "the logs are in the run's directory; see `hpcrun logs`"
_READ = "hpcrun reads sbatch's answer"
_NO_JOB = "it is not about a job"
OWNED = {
    **{"M": _ONE_CLUSTER, "clusters": _ONE_CLUSTER},
    **{"error": _IN_LOGS, "output": _IN_LOGS, "parsable": _READ, "quiet": _READ},
    **{"help": _NO_JOB, "usage": _NO_JOB, "version": _NO_JOB},
    "comment": "hpcrun keeps it for itself",
    "input": "jobs have no input",
    "kill-on-bad-exit": "hpcrun's supervisor ends the ranks of a failed run",
    "no-kill": "hpcrun decides what follows a lost node",
    "no-requeue": "hpcrun always sets --requeue",
    "open-mode": "hpcrun always appends",
    "requeue": "hpcrun always sets it",
    "signal": "hpcrun decides which signals its supervisor hears",
    "test-only": "use `hpcrun submit --dry-run`",
    "wait": "use `hpcrun submit --wait`",
    "wrap": "use 'entry'",
}
MAIL_TYPES = (
    *("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT"),
    *("TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"),
)
_OTHER = """
acctg-freq batch bb bbf begin cluster-constraint container container-id contiguous
core-spec cores-per-socket cpu-freq deadline delay-boot dependency distribution exclusive
extra-node-info gid gpu-bind gpu-freq gres gres-flags hint hold ignore-pbs immediate
kill-on-invalid-dep licenses mail-type mail-user mcs-label mem-bind mem-per-cpu mem-per-gpu
mincpus network nice nodefile nodelist ntasks-per-core ntasks-per-socket oom-kill-step overcommit
oversubscribe power prefer priority profile propagate reboot resv-ports segment sockets-per-node
spread-job stepmgr switches thread-spec threads-per-core time-min tmp tres-bind tres-per-task uid
use-min-nodes verbose wait-all-nodes wckey x11
"""
SBATCH_OPTIONS = frozenset(_OTHER.split()) | OWNED.keys() | OWNED_BY_FIELD.keys()


def check_time(value: Any, key: str, report: Reporter) -> None:
    """Report a time limit that Slurm would refuse, or read as something else."""
    length = parse_duration(value)
    if length == 0 or value.upper() in _NO_LIMIT:
        hint = "leave it out for no limit"
        if key == "time":
            hint = (
                "a run saves before its limit and goes on after it; `sinfo -o '%P %l'` lists the "
                "longest of each partition"
            )
        report.at(key, f"found {value!r}, no limit to Slurm; accepted is a limit above zero", hint)
    elif length is None:
        found = f"found {value!r}; accepted are minutes, HH:MM:SS, D-HH and D-HH:MM:SS"
        report.at(key, found, time_hint(value) or 'such as "12:00:00" or "2-00:00:00", in quotes')
    elif length > LONGEST_TIME:
        report.at(key, f"found {value!r}; accepted is at most {LONGEST_TIME // 86400} days")


def time_hint(text: str) -> str | None:
    """Return what to write for a length of time in words; None where that is not known."""
    form = time_form(text)
    return f'write "{form}", in quotes' if form else None


def check_resources(
    resources: dict[str, Any], report: Reporter, *, ranks_have_gpus: bool = True
) -> None:
    """Report what sbatch would refuse in a block of resources.

    One task of a node that has several GPUs is for `framework_detection.check` to judge; where not
    ``ranks_have_gpus``, the tasks are those of a batch script, which divides the GPUs itself.
    """
    for name, (least, most) in RANGES.items():
        report.at_least(name, resources[name], least, most)
    check_time(resources["time"], "time", report)
    for name, (form, accepted) in FORMS.items():
        value = resources[name]
        if value is None:
            continue
        if not form.fullmatch(value):
            better = size_form(value) if name == "mem" else None
            hint = f"write {better}" if better else None
            report.at(name, f"found {value!r}; accepted is {accepted}", hint)
        elif name == "exclude":
            _check_nodes(name, value, report)
    gpus, tasks = resources["gpus_per_node"], resources["ntasks_per_node"]
    if ranks_have_gpus and gpus > 0 and tasks not in (None, gpus, 1):
        found = f"found {tasks} with gpus_per_node={gpus}; with GPUs there is one rank per GPU"
        report.at("ntasks_per_node", found, "leave ntasks_per_node out")
    elif (ranks := resources["nodes"] * (tasks or gpus or 1)) > MOST_RANKS:
        report.at("nodes", f"found {ranks:,} ranks of one run; accepted are {MOST_RANKS:,}")
    check_gpus(resources, report)
    check_sbatch(resources["sbatch"], report.below("sbatch"))


def check_gpus(resources: dict[str, Any], report: Reporter) -> None:
    """Report GPUs that a node does not have, or that cannot be asked for in the way it says."""
    wanted, there, kind = (resources[k] for k in ("gpus_per_node", "node_has_gpus", "gpu_type"))
    if there is not None and wanted > there:
        found = f"found {wanted}; a node has {there} (resources.node_has_gpus)"
        report.at("gpus_per_node", found, f"type gpus_per_node={there} or less, and more nodes")
    if resources["gpu_request"] != "none":
        return
    if there is None:
        found = "is none, and node_has_gpus is not given: nobody else knows the GPUs of a node"
        report.at("gpu_request", found, "add node_has_gpus: N beside it")
    if kind is not None:
        found = f"found {kind}, and gpu_request is none: Slurm is not asked for a type"
        report.at("gpu_type", found, "choose nodes by resources.partition or resources.constraint")


def settle_here(resources: dict[str, Any], note: Callable[[str], object]) -> None:
    """Take out what is about Slurm alone, for a run on this machine."""
    if resources["gpu_request"] != _REQUEST or resources["node_has_gpus"] is not None:
        resources.update(gpu_request=_REQUEST, node_has_gpus=None)
        note("resources.gpu_request and node_has_gpus are about Slurm's nodes: not used here")
    if resources["pack"] is not None:
        resources.update(pack=None)
        note("resources.pack is about Slurm's jobs: not used here")


def tell_whole_nodes(spec: Mapping[str, Any], note: Callable[[str], object]) -> None:
    """Tell that jobs have the nodes of GPUs that Slurm does not know alone; roles are settled."""
    roles = (spec.get("roles") or {}).values()
    for one in (spec["resources"], *filter(None, (role["resources"] for role in roles))):
        if one["gpus_per_node"] and one["gpu_request"] == "none":
            used, there = one["gpus_per_node"], one["node_has_gpus"]
            idle = f", of which {used} {agreeing(used, 'is', 'are')} used" if used < there else ""
            note(
                "resources.gpu_request is none: the job has its nodes alone (--exclusive), and "
                f"GPU-hours count all {there} GPUs of a node{idle}"
            )


def tell_cpus(spec: Mapping[str, Any], note: Callable[[str], object]) -> None:
    """Tell that tasks with GPUs get one CPU each; the roles of ``spec`` are not settled yet."""
    wanted = spec["resources"]
    asking = [wanted, *(spec["roles"] or {}).values()]
    silent = any(one["gpus_per_node"] and not one["cpus_per_task"] for one in asking)
    if silent and wanted["cpus_per_task"] is None:
        note(
            "resources.cpus_per_task is not given, so each task gets one CPU beside its GPUs, for "
            "its threads (OMP_NUM_THREADS=1) and its data loading: type cpus_per_task=N; "
            "`sinfo -o '%P %c %G'` lists the CPUs and GPUs of nodes"
        )


def check_sbatch(options: dict[str, Any], report: Reporter) -> None:
    """Report options that sbatch does not have, and those that hpcrun owns."""
    for name, value in options.items():
        found, hint = None, None
        # sbatch takes the beginning of an option's name for it.
        known = any(one.startswith(name[2:]) for one in SBATCH_OPTIONS)
        plugin = name.startswith("--") and not known
        if plugin and _OPTION.fullmatch(name):
            pass  # of the site's own plugin
        elif name in OWNED_BY_FIELD:
            found, hint = "hpcrun sets this option", f"use {OWNED_BY_FIELD[name]}"
        elif name in OWNED:
            found = f"hpcrun owns this option: {OWNED[name]}"
        elif name not in SBATCH_OPTIONS:
            found = "sbatch has no such option; accepted are its long options, no dashes"
            bare = name.lstrip("-").replace("_", "-")
            near = did_you_mean(name, sorted(SBATCH_OPTIONS))
            hint = f"did you mean '{bare}'?" if bare in SBATCH_OPTIONS else near
        if found is None and isinstance(value, (dict, list)):
            found = f"found {kind_of(value)}; accepted is a string, a number or true"
        elif name == "gres" and _GPU.search(str(value)):
            found = f"found {value!r}; accepted is what is no GPU: nvme:1"
            hint = "use resources.gpus_per_node and resources.gpu_type"
        elif isinstance(value, str) and _CONTROL.search(value):
            found = f"found {value!r}; an option of sbatch is one line"
        if found is not None:
            report.at((name,), found, hint)
        elif name == "nodelist" and "/" not in str(value):  # with one it is a file's name
            _check_nodes(name, value, report)


def _check_nodes(name: str, value: Any, report: Reporter) -> None:
    """Report a host list that cannot be written out."""
    try:
        hostlist.expand(str(value or ""))
    except HpcrunError as error:
        report.at((name,), f"{error.message}; accepted is {FORMS['exclude'][1]}")


def check_grow(grow: dict[str, Any], resources: dict[str, Any], report: Reporter) -> None:
    """Report growth (``recovery.grow``) of what cannot grow, or by what is no factor."""
    readers = {"mem": megabytes, "time": parse_duration}
    if grow["mem"] is None and grow["time"] is None:
        report.at((), "says of neither mem nor time how much more is asked for", "as in mem: 1.5")
    for key, reader in readers.items():
        factor, most, now = grow[key], grow["most"].get(key), str(resources[key] or "")
        if factor is not None and not 1 < factor <= _LARGEST_FACTOR:
            accepted = f"more than 1, and at most {_LARGEST_FACTOR}"
            report.at(key, f"found {factor}; accepted is a factor of {accepted}")
        elif factor is not None and reader(now.upper()) is None and now:
            report.at(key, f"resources.{key} is {now}, which has nothing above it")
        elif factor is not None and key == "mem" and now and not int(megabytes(now.upper()) or 0):
            report.at(key, f"resources.mem is {now}, all of a node's", "leave one of both out")
        if most is None:
            continue
        limit = reader(most.upper())
        if limit is None:
            form = FORMS["mem"][1] if key == "mem" else 'a time such as "12:00:00"'
            better = size_form(most) if key == "mem" else time_form(most)
            hint = f'write "{better}"' if better else None
            report.at(f"most.{key}", f"found {most!r}; accepted is {form}", hint)
        elif factor is None:
            report.at(f"most.{key}", f"grow.{key} says by how much it grows, and is not given")
        elif limit <= (reader(now.upper()) or 0):
            report.at(f"most.{key}", f"found {most}, and resources.{key} is {now} already")
    for key in grow["most"].keys() - readers.keys():
        found, near = "accepted are mem and time", did_you_mean(key, sorted(readers))
        report.at(("most", key), found, near)


def check_words(words: Sequence[str], what: str, report: Reporter) -> None:
    """Report words that are too long, or too many, for Linux to start a program with."""
    if 4 * sum(map(len, words)) < LONGEST_WORD:  # for thousands of runs
        return
    total = 0
    for word in words:
        length = len(word) if word.isascii() else len(word.encode(errors="replace"))
        total += length + 9
        if length > LONGEST_WORD:
            found = f"{what} has {length:,} bytes; accepted are {LONGEST_WORD:,}"
            report.at((), found, "write it to a file, and give the file's path")
            return
    if total > LONGEST_WORDS:
        found = f"all of it has {total:,} bytes; accepted are {LONGEST_WORDS:,}"
        report.at((), found, "write it to a file, and give the file's path")


def check_setup(lines: list[str], report: Reporter) -> None:
    """Report setup lines that cannot be given to a shell."""
    check_words(["\n".join(lines)], "the setup", report)
    for index, line in enumerate(lines):
        if "\x00" in line:
            report.at(str(index), "the line holds a NUL character")


def check_variables(variables: dict[str, str], report: Reporter) -> None:
    """Report environment variables that a shell would refuse, hpcrun owns, or that are secrets."""
    check_words(["=".join(one) for one in variables.items()], "a variable", report)
    for name, value in variables.items():
        own = (name,)
        if not VARIABLE_NAME.fullmatch(name):
            report.at(own, f"found the name {name!r}; accepted are letters, digits and _")
        elif name in _OWNED_VARIABLES or name.startswith(("SLURM_", "SBATCH_")):
            report.at(own, "the job sets this variable itself", "leave it out")
        elif "\x00" in value:
            report.at(own, "the value holds a NUL character")
        elif VARIABLE.search(name) and value:
            report.at(
                own,
                "this looks like a secret, and variables are written to the script and to the "
                "controller's files",
                "put it in a file of mode 0600 and name that in environment.secrets_file",
            )


def plain_name(wanted: str) -> str:
    """Return the nearest name that an experiment may have, which names a directory, too."""
    bare = _ACCENT.sub("", unicodedata.normalize("NFKD", wanted))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", bare).strip("-.")[:LONGEST_NAME]
    return plain if NAME.fullmatch(plain) else f"job-{plain}"[:LONGEST_NAME].rstrip("-.")


def check_name(name: str, report: Reporter) -> None:
    """Report a ``name`` that cannot be a directory and a job's name."""
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        accepted = f"letters, digits, '.', '_' and '-', a letter first, {LONGEST_NAME} in all"
        hint = f"write name: {plain_name(name)}" if re.search("[A-Za-z0-9]", name) else None
        report.at("name", f"found {name!r}; accepted are {accepted}", hint)


def time_form(text: str) -> str | None:
    """Return Slurm's form of ``90m``, ``1 hour`` or ``2d12h``; None for other text."""
    parts = _PART_OF_TIME.findall(text.lower())
    if not parts or "".join(part for part, *_ in parts) != text.lower().strip():
        return None
    seconds = round(sum(float(number) * _SECONDS[unit[0]] for _, number, unit in parts))
    days, seconds = divmod(seconds, 86400)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days}-{clock}" if days else clock


def size_form(text: str) -> str | None:
    """Return Slurm's form of ``64 GB``, ``4TiB`` or ``1.5T``; None for other text."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    number, unit = float(found[1]), found[2].upper()
    if not number.is_integer() and unit != "K":
        number, unit = number * 1024, "KMGT"["KMGT".index(unit) - 1]
    return f"{number:.0f}{unit}"
