"""Reads sbatch's options, of a script's lines or typed ones, and makes keys of a spec of them.

What becomes of each line, here and elsewhere, is a `LineFate`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcrun.compile.target.slurm_options import (
    FORMS,
    MAIL_TYPES,
    OWNED,
    OWNED_BY_FIELD,
    RANGES,
    SBATCH_OPTIONS,
)
from hpcrun.errors import UsageError
from hpcrun.policy import secret_names
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.slurm.parse import parse_array, parse_duration, parse_gpus, parse_gres
from hpcrun.text import one_line, plural

_LETTERS = """
A=account a=array b=begin B=extra-node-info C=constraint c=cpus-per-task D=chdir d=dependency
e=error F=nodefile G=gpus H=hold h=help I=immediate i=input J=job-name k=no-kill L=licenses
M=clusters m=distribution N=nodes n=ntasks O=overcommit o=output p=partition Q=quiet q=qos
S=core-spec s=oversubscribe t=time u=usage V=version v=verbose W=wait w=nodelist x=exclude
"""
SHORT = dict(pair.split("=") for pair in _LETTERS.split())
_ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "share": "oversubscribe"}
# Options without a value; those in `_OPTIONAL` may have one, after an equals sign alone.
_NO_VALUE = """
contiguous get-user-env help hold ignore-pbs kill-on-invalid-dep no-requeue overcommit parsable
quiet reboot requeue spread-job test-only usage use-min-nodes verbose version wait stepmgr
"""
_MAY_HAVE = "exclusive immediate no-kill oversubscribe propagate nice x11"
_FLAGS, _OPTIONAL = frozenset(_NO_VALUE.split()), frozenset(_MAY_HAVE.split())
_TEMPLATE = re.compile(r"\{\{|\{%|<%|\$\{?\w")
_LONGEST = 10_000
SPEC, SHELL, DROPPED, ASKED = "in the spec", "as it is", "dropped", "asked for"
_MOST_SHOWN = 160
UNKNOWN = "???"
_SHAPE = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gres")
_GPUS = ("gpus", "gpus-per-node", "gpus-per-task")
_FIELDS = ("mem", "partition", "account", "qos", "constraint", "reservation", "exclude")
_LOGS = "hpcrun keeps the logs in the run's directory; see `hpcrun logs`"
_SIGNALS = (
    "hpcrun sends a program no signal unless this and recovery.stop_before say so, and then "
    "requeues the run: a program that saves at it, and a trap that requeues, are to be told"
)
_OUTPUT = "it is about sbatch's own output"
_WHY = {
    **dict.fromkeys(("output", "error"), _LOGS),
    "requeue": "hpcrun requeues by itself (recovery.requeue)",
    **dict.fromkeys(("parsable", "quiet", "wait", "test-only", "verbose"), _OUTPUT),
    "open-mode": "hpcrun always appends",
    "input": "jobs have no input",
    "no-kill": "resources.spare_nodes and recovery say what follows a lost node",
    "kill-on-bad-exit": "hpcrun ends the ranks of a failed run",
    "comment": "hpcrun keeps that field for itself; `notes` is yours",
    "get-user-env": "the job sources /etc/profile, and what environment.setup says",
}


@dataclass(frozen=True)
class LineFate:
    """The fate of a command of the script, or of one of its #SBATCH lines."""

    line: int
    last: int
    text: str
    """The line as it is written, shortened, without the values of secrets."""
    fate: str
    """``in the spec``, ``as it is``, ``dropped`` or ``asked for``."""
    what: str
    """The key, the shell file, why it was dropped, or what is in the way."""


def quoted(text: str) -> str:
    """Return a line of a script as it is shown: in one line, and without a secret."""
    shown = " ".join(text[: 4 * _MOST_SHOWN].replace("\\\n", " ").split())
    if is_secret(shown):
        shown = re.split(r"[=\s]", re.sub(r"^export ", "", shown))[0] + " …"
    shown = one_line(shown)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 1]}…"


def is_secret(text: str) -> bool:
    """Check whether a line holds what looks like a secret."""
    return any(True for _ in secret_names.places(text[:4000].split(" "), "line"))


@dataclass
class SbatchOption:
    """One option of a #SBATCH line."""

    name: str
    """The long one."""
    value: str
    line: int
    text: str
    """The line as it is shown."""
    is_known: bool = True
    """It can be read as sbatch would; false for templates that somebody fills in."""


def _read(lines: Sequence[str]) -> tuple[dict[str, SbatchOption], list[LineFate]]:
    """Return the options of the #SBATCH lines that count, and what becomes of the others.

    Slurm reads up to the first command. Raise UsageError where the job is heterogeneous.
    """
    found: dict[str, SbatchOption] = {}
    fates, first = [], None
    for number, line in enumerate(lines, 1):
        if not re.match(r"#SBATCH(?:\s|$)", line):
            if first is None and line.strip() and line[:1] != "#":
                first = number
            continue
        text = quoted(line)
        if first is not None:
            why = f"Slurm does not read it: it stands after the first command, line {first}"
            fates.append(LineFate(number, number, text, SHELL, why))
            continue
        if not {"hetjob", "packjob", ":"}.isdisjoint(line.split()):
            raise UsageError(
                f"line {number}: {text}: heterogeneous jobs cannot be converted",
                hint="write a spec with a role for each part, and `resources` in those on nodes "
                "of another kind: `hpcrun help roles`; or a spec for each, joined by depends_on",
            )
        for option in _options(line, number, text):
            if before := found.get(option.name):
                fate, why = DROPPED, f"line {number} gives --{option.name} again: the last counts"
                if option.name == "mail-type":
                    # The one option that adds up.
                    option.value = f"{before.value},{option.value}"
                    fate, why = SPEC, f"notify.mail_types, with line {number}"
                fates.append(LineFate(before.line, before.line, before.text, fate, why))
            found[option.name] = option
    return found, fates


def _options(line: str, number: int, text: str) -> Iterator[SbatchOption]:
    rest = line[len("#SBATCH") :].strip()
    if len(rest) > _LONGEST or _TEMPLATE.search(rest):
        # What fills it in later is not known: one option, whatever it is made of.
        name, value = re.match(r"-*([\w-]*)[= ]*(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
        full = _full(name if rest.startswith("--") else SHORT.get(name, name))
        yield SbatchOption(full, value[:80], number, text, is_known=False)
        return
    try:
        words = shlex.split(rest, comments=True)
    except ValueError:
        words = rest.split("#")[0].split()
    while words:
        yield take_option(words, number, text)


def take_option(words: list[str], number: int = 0, text: str = "") -> SbatchOption:
    """Take one option, and its value, from the beginning of words; what is none is not known."""
    word = words.pop(0)
    name, equals, value = word.lstrip("-").partition("=")
    if not word.startswith("-"):
        return SbatchOption("", word, number, text, is_known=False)
    if not word.startswith("--"):
        letter = word[1:2]
        name = SHORT.get(letter, letter)
        value = word[2:].removeprefix("=")
        equals = value
    name = _full(name)
    takes = name not in _FLAGS and name not in _OPTIONAL
    if not equals and takes and words and not words[0].startswith("--"):
        value = words.pop(0)
        word = f"{word} {value}"
    return SbatchOption(name, value, number, text or quoted(word))


def _full(name: str) -> str:
    """Return the long option that a name, or its beginning, means."""
    name = _ALIASES.get(name, name)
    if name in SBATCH_OPTIONS:
        return name
    known = [*SBATCH_OPTIONS, *_ALIASES]
    near = {_ALIASES.get(one, one) for one in known if name and one.startswith(name)}
    return near.pop() if len(near) == 1 else name


@dataclass
class ScriptRequest:
    """What a script asks of Slurm, as keys of a spec."""

    spec: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> value, `UNKNOWN` where a person has to say it."""
    lines: dict[str, int] = field(default_factory=dict)
    """Dotted key -> the line that gives it."""
    asks: dict[str, str] = field(default_factory=dict)
    """Dotted key -> what is asked there."""
    shell: dict[int, str] = field(default_factory=dict)
    """Line -> what stands there in the shell file."""
    fates: list[LineFate] = field(default_factory=list)
    nodes: int = 1
    tasks: int | None = None
    """Tasks of a node; None where the script does not say."""
    gpus: int = 0
    array: list[int] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    """The files that --output and --error name."""
    is_certain: bool = True
    """Its shape is known, and hpcrun's ranks would have what its tasks had."""

    def carry(self, one: SbatchOption, key: str, value: Any, remark: str = "") -> None:
        self.spec[key] = value
        self.lines[key] = one.line
        self._fate(one, SPEC, key + remark)

    def ask(self, one: SbatchOption, key: str, found: str, *, must: bool = False) -> None:
        """Ask for what a line says; ``must``: nothing can be planned without."""
        if must:
            self.spec[key] = UNKNOWN
        self.asks[key] = f"line {one.line} has {one.text}; {found}"
        self._fate(one, ASKED, f"{key}: {found}")

    def must_ask(self, one: SbatchOption, key: str, accepted: str) -> None:
        """Ask for what has to be known of the job's shape."""
        self.ask(one, key, f"accepted is {accepted}", must=True)
        self.is_certain = False

    def drop(self, one: SbatchOption, why: str) -> None:
        """Name a line that is not needed."""
        self._fate(one, DROPPED, why)

    def put(self, one: SbatchOption, shell: str, why: str) -> None:
        """Have a line of the shell file do what an option did."""
        before = self.shell.get(one.line)
        self.shell[one.line] = f"{before}; {shell}" if before else shell
        self._fate(one, SHELL, why)

    def _fate(self, one: SbatchOption, fate: str, what: str) -> None:
        self.fates.append(LineFate(one.line, one.line, one.text, fate, what))


def request(lines: Sequence[str]) -> ScriptRequest:
    """Return what the #SBATCH lines of a script ask for; each of them has a fate."""
    options, fates = _read(lines)
    job = of_options(options, fates)
    if "resources.time" not in job.spec:
        job.spec["resources.time"] = "01:00:00"
        job.asks["resources.time"] = "the script has no --time, and one hour is a guess"
    return job


def of_options(options: dict[str, SbatchOption], fates: Sequence[LineFate] = ()) -> ScriptRequest:
    """Return what options ask for, by their names; each has a fate, after those given."""
    job = ScriptRequest(fates=[*fates])
    for name, one in [*options.items()]:
        if not one.is_known and name not in _WHY:
            key = _key(options.pop(name).name)
            must = key.startswith("resources.") and not key.startswith("resources.sbatch")
            found = "only who fills it in can say this"
            job.ask(one, key or "resources.sbatch", found, must=must)
            job.is_certain = job.is_certain and not must
    _shape(job, options)
    for name, one in options.items():
        if name not in (*_SHAPE, *_GPUS):
            _option(job, name, one, one.value.strip())
    if "notify.mail_types" in job.spec and "notify.mail" not in job.spec:
        job.asks.setdefault("notify.mail", "to whom? without it there are no mails")
    return job


def _key(name: str) -> str:
    known = {"job-name": "name", "array": "sweep", "mail-user": "notify.mail"}
    known |= dict.fromkeys((*_GPUS, "gres"), "resources.gpus_per_node")
    known |= {one.replace("_", "-"): f"resources.{one}" for one in (*RANGES, *_FIELDS, "time")}
    return {**known, "ntasks": "resources.ntasks_per_node"}.get(name, f"resources.sbatch.{name}")


def _whole(one: SbatchOption | None) -> int | None:
    """Return the whole number of an option, above zero; None for anything else."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*", one.value) if one else None
    return int(found[1]) or None if found else None


def _shape(job: ScriptRequest, options: Mapping[str, SbatchOption]) -> None:
    """Read nodes, tasks, CPUs and GPUs, which depend on each other."""
    if one := options.get("nodes"):
        found = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", one.value)
        job.nodes = (int(found[1]) if found else 0) or 1
        if found is None or not int(found[1]):
            job.must_ask(one, "resources.nodes", "a whole number")
        else:
            job.carry(one, "resources.nodes", job.nodes)
            if found[2] and found[2] != found[1]:
                job.asks["resources.nodes"] = f"{one.value} nodes were asked for; which number?"
                job.is_certain = False
    _tasks(job, options)
    if one := options.get("cpus-per-task"):
        if cpus := _whole(one):
            job.carry(one, "resources.cpus_per_task", cpus)
        else:
            job.must_ask(one, "resources.cpus_per_task", "a whole number")
    _gpus(job, options)


def _tasks(job: ScriptRequest, options: Mapping[str, SbatchOption]) -> None:
    key = "resources.ntasks_per_node"
    per_node, total = options.get("ntasks-per-node"), options.get("ntasks")
    for one in filter(None, (total, per_node)):
        if _whole(one) is None:
            job.must_ask(one, key, "a whole number")
    if total and (count := _whole(total)):
        if each := _whole(per_node):
            # As Slurm takes as many nodes as the tasks fill.
            if "nodes" not in options and count % each == 0:
                job.nodes = count // each
                job.carry(total, "resources.nodes", job.nodes)
            else:
                job.drop(total, f"{key} times the nodes says it")
            if each * job.nodes != count:
                nodes = plural(job.nodes, "node")
                job.asks[key] = f"{total.text} wants {count} tasks in all, not {each} on {nodes}"
                job.is_certain = False
        else:
            job.tasks = -(-count // job.nodes)
            job.carry(total, key, job.tasks)
            if count % job.nodes:
                job.asks[key] = f"{count} tasks cannot be divided among {job.nodes} nodes"
                job.is_certain = False
            elif "nodes" not in options and count > 1:
                job.asks["resources.nodes"] = f"Slurm chose where the {count} tasks were; one node"
                job.spec["resources.nodes"] = 1
    if per_node and (count := _whole(per_node)):
        job.tasks = count
        job.carry(per_node, key, count)


def _gpus(job: ScriptRequest, options: Mapping[str, SbatchOption]) -> None:
    key = "resources.gpus_per_node"
    found: tuple[int, str | None] | None = None
    for name in _GPUS:
        one = options.get(name)
        if one is None:
            continue
        read = parse_gpus(one.value)
        if read is None:
            job.must_ask(one, key, "the GPUs of a node")
            continue
        count, tasks = read[0], job.tasks or 1
        if name == "gpus" and count % job.nodes:
            job.must_ask(one, key, f"a number that {job.nodes} nodes have alike")
            continue
        count = {"gpus": count // job.nodes, "gpus-per-task": count * tasks}.get(name, count)
        if found is None or name == "gpus-per-node":
            found = count, read[1]
        if name == "gpus-per-task" and tasks > 1:
            # Each task of the script's own steps sees its own alone; ranks of hpcrun see all.
            job.put(one, f"export SLURM_GPUS_PER_TASK={read[0]}", f"and {key}")
            job.is_certain = False
        else:
            job.carry(one, key, count)
    if one := options.get("gres"):
        read, others = parse_gres(one.value)
        if others:
            job.carry(one, "resources.sbatch.gres", others)
        if read is not None:
            found = read
            job.carry(one, key, read[0])
        elif re.search(r"(?:^|[,/\s])gpu\b", one.value, re.IGNORECASE):
            job.must_ask(one, key, "the GPUs of a node")
        elif not others:
            job.drop(one, "it asks for nothing")
    if found is not None:
        job.gpus = job.spec[key] = found[0]
        if found[1]:
            job.spec["resources.gpu_type"] = found[1]


def _option(job: ScriptRequest, name: str, one: SbatchOption, value: str) -> None:
    key = _key(name)
    if name in _FIELDS and not FORMS[name][0].fullmatch(value):
        job.ask(one, key, f"accepted is {FORMS[name][1]}", must=True)
    elif name == "time" and not parse_duration(value):
        accepted = "accepted are minutes, HH:MM:SS, D-HH and D-HH:MM:SS, above zero"
        job.ask(one, key, accepted, must=True)
    elif name == "mail-user" and not re.fullmatch(r"[^\s,@<>]+(?:@[^\s,@<>]+)?", value):
        job.ask(one, key, "accepted is one address")
    elif name in (*_FIELDS, "time", "mail-user", "job-name"):
        job.carry(one, key, value)
    elif name == "array":
        _array(job, one, value)
    elif name == "mail-type":
        kinds = [*dict.fromkeys(value.upper().replace(" ", "").split(","))]
        if {*kinds} <= {*MAIL_TYPES}:
            job.carry(one, "notify.mail_types", kinds)
        else:
            job.ask(one, "notify.mail_types", f"accepted are {', '.join(MAIL_TYPES[:6])}, …")
    elif name == "signal":
        job.ask(one, "recovery.stop_signal", _SIGNALS)
    elif name == "chdir" and value in (".", "./"):
        job.drop(one, "the job starts in the run's working directory")
    elif name == "chdir":
        job.put(one, f"cd {shlex.quote(value)} || exit", "as `cd`")
    elif name == "export":
        _export(job, one, value)
    elif name == "no-requeue":
        job.carry(one, "recovery.requeue", False)
    elif name == "dependency" and value != "singleton":
        job.ask(one, "depends_on", "the job that it names was there once: name its spec")
    elif name in _WHY:
        job.logs += [value] if name in ("output", "error") else []
        job.drop(one, _WHY[name])
    elif name in OWNED or name in OWNED_BY_FIELD:
        what = OWNED.get(name) or f"hpcrun says it by {OWNED_BY_FIELD[name]}"
        job.ask(one, key, what)
        job.is_certain = False
    elif name in SBATCH_OPTIONS:
        job.carry(one, f"resources.sbatch.{name}", value or True)
        if name.startswith("mem-per-"):
            job.spec["resources.mem"] = None  # Slurm wants one of them, and a profile may have it
    elif re.fullmatch(r"[a-z][\w-]*", name):
        # With its dashes, it is a plugin's of the site, which nobody here knows.
        job.carry(one, f"resources.sbatch.--{name}", value or True, ", which sbatch has not itself")
    else:
        job.ask(one, "resources.sbatch", "this is no option")


def _array(job: ScriptRequest, one: SbatchOption, value: str) -> None:
    read = parse_array(value)
    if read is None:
        job.ask(one, "sweep", "accepted are numbers such as 0-9%2")
        return
    job.array, parallel = read
    job.is_certain = False
    job.carry(one, "sweep.grid", {"config.task": job.array})
    if parallel:
        job.spec["sweep.max_parallel"] = parallel


def _export(job: ScriptRequest, one: SbatchOption, value: str) -> None:
    given = [part.strip().partition("=") for part in value.split(",")]
    new = {name: text for name, is_set, text in given if is_set and re.fullmatch(r"\w+", name)}
    others = [name for name, is_set, _ in given if not is_set and name.isidentifier()]
    others = [name for name in others if name.upper() not in ("ALL", "NONE", "NIL")]
    if new:
        lines = [f"export {name}={shlex.quote(text)}" for name, text in new.items()]
        job.put(one, "; ".join(lines), "as `export`")
    if others:
        what = f"{', '.join(others)} of the shell, as NAME: ${{oc.env:NAME}}"
        job.ask(one, "environment.variables", what)
    elif not new:
        job.drop(one, "a job of hpcrun has environment.variables, and nothing else of your shell")
