"""Converts an sbatch script into a spec and a shell file, and tells what became of each line.

`convert` makes the texts, and `converted` the files that ``hpcrun init --from`` writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcrun.compile.spec.spec_text import SpecText
from hpcrun.compile.target import sbatch_request
from hpcrun.compile.target.launch_words import Uncertain
from hpcrun.compile.target.sbatch_request import (
    ASKED,
    DROPPED,
    SHELL,
    SPEC,
    LineFate,
    ScriptRequest,
    is_secret,
    quoted,
)
from hpcrun.compile.target.slurm_options import plain_name
from hpcrun.errors import UsageError
from hpcrun.policy import frameworks
from hpcrun.state import files
from hpcrun.state.spec.blocks import RANKS
from hpcrun.text import one_line, plural, ranges, size, visible
from hpcrun.tools.init.convert.launch_line import LaunchLine, find, rendezvous
from hpcrun.tools.init.convert.shell_scan import ShellScript, Statement
from hpcrun.tools.init.convert.variables import Variables
from hpcrun.tools.init.starter import starter_text
from hpcrun.tools.init.starter.file_plan import KEPT, PlannedFile

LARGEST = 4_000_000  # what Slurm takes
MARK = "# hpcrun does this: "
START = f'sh "${RANKS}" || exit'
_SHELLS = re.compile(r"(?:\S*/)?(?:env\s+(?:-S\s+)?)?(?:\S*/)?(?:ba|da|k)?sh(?:\s|$)")
_WEIGHT = (DROPPED, SPEC, SHELL, ASKED)
_ENCODING = ("utf-8", "surrogateescape")
_FIRST = ("nodes", "ntasks_per_node", "gpus_per_node", "gpu_type", "cpus_per_task")
_BLOCKS = ("resources", "environment", "recovery", "notify", "sweep")
_NOTED = {
    r"\bscontrol\s+requeue|\bsbatch\b": "hpcrun requeues its runs itself, and knows of no job that "
    "a script makes",
    r"\b(?:pkill|killall)\b": "it may end hpcrun's own processes, which are Python's and yours: "
    "let it match the program's name alone (pkill -f train.py)",
    r"(?:mounts?[= ]|bind[= ]|-[Bv] ?)[^#]*\$\{?PWD\b": "the files of the run's directory are "
    "links into the node's $HPCRUN_SCRATCH: a container needs that, too",
}
_LEFT, _NUMBER = 58, 4


@dataclass
class Conversion:
    """A spec made from a script, its shell file, and what became of each line of the script."""

    name: str
    spec: str
    """The text of the spec."""
    shell_file: str
    """The name of the shell file, beside the spec; empty where nothing is left for one."""
    shell: str
    """Its text, with surrogates for bytes that are not UTF-8."""
    fates: list[LineFate]
    """In the order of the script."""
    notes: list[str] = field(default_factory=list)
    """What to know about the spec."""
    asks: list[str] = field(default_factory=list)
    """What the spec asks for."""

    def to_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        shell = self.shell.encode(*_ENCODING).decode(errors="replace")
        found = {**vars(self), "shell": shell, "lines": [dict(vars(one)) for one in self.fates]}
        return {name: value for name, value in found.items() if name != "fates"}


def read_script(path: Path) -> str:
    """Return the text of a script as it is, bytes that are not UTF-8 as surrogates.

    Raise UsageError where it cannot be one that sbatch takes.
    """
    try:
        data = files.read_bytes(path, LARGEST)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        hint = f"accepted is a script of up to {size(LARGEST)}"
        raise UsageError(f"--from: {path} cannot be read: {why}", hint=hint) from None
    if b"\x00" in data:
        raise UsageError(f"--from: {path} is no script: it holds NUL bytes")
    if not data.strip():
        raise UsageError(f"--from: {path} is empty")
    if not data.startswith(b"#!"):
        hint = "its first line names what runs it, such as #!/bin/bash"
        what = f"{path} is no script for sbatch: its first line does not begin with #!"
        raise UsageError(f"--from: {what}", hint=hint)
    return data.decode(*_ENCODING)


def convert(text: str, script: Path, shell_file: str) -> Conversion:
    """Return the spec and the shell file of a script, as `read_script` returns that.

    Its path names the experiment where the script does not. Raise UsageError where the job is
    heterogeneous.
    """
    return _Converter(text, script, shell_file).convert()


class _Converter:
    def __init__(self, text: str, script: Path, shell_file: str) -> None:
        self._notes: list[str] = []
        if "\r\n" in text:
            text = text.replace("\r\n", "\n")
            self._notes.append("its lines ended in CR LF, which sbatch refuses: now in LF")
        self._text, self._file = text, shell_file
        self._lines = text.split("\n")
        self._job: ScriptRequest = sbatch_request.request(self._lines)
        self._script = script
        self._shell = self._lines[0][2:].strip()
        self._is_shell = _SHELLS.match(self._shell) is not None
        self._scanned = ShellScript(text if self._is_shell else "")
        self._variables = Variables(self._scanned)
        self._fates: dict[int, LineFate] = {}
        self._out = SpecText(asks=dict(self._job.asks))

    def convert(self) -> Conversion:
        launch, dropped = None, []
        try:
            if not self._is_shell:
                raise Uncertain(f"it is a script for {self._shell}")
            launch = find(self._scanned, self._variables, self._job)
            dropped = rendezvous(self._scanned, launch)
        except Uncertain as why:
            what = f"{self._file} is the script as it is, which starts its programs itself"
            self._notes.append(f"{what}: {why}")
        body = self._body(launch, dropped)
        done = (line.strip() for part in body for line in part.split("\n"))
        has_body = launch is None or any(one and one[0] != "#" and one != START for one in done)
        for fate in self._job.fates:
            self._tell(fate)
        self._compose(launch, has_body=has_body)
        self._remark(launch)
        fates = self._all_fates(has_body=has_body)
        made = f"# Made of {one_line(self._script.name)} by `hpcrun init --from`; a comment names"
        head = f"# yaml-language-server: $schema={starter_text.SCHEMA}", f"{made} its line."
        spec = "".join(f"{line}\n" for line in (*head, *self._out.lines()))
        asks = [one_line(f"{key}: {text}") for key, text in self._out.asks.items()]
        name = str(self._out.values["name"])
        shell = "\n".join(body) if has_body else ""
        notes = [*map(one_line, self._notes)]
        return Conversion(name, spec, self._file if has_body else "", shell, fates, notes, asks)

    def _body(self, launch: LaunchLine | None, dropped: list[Statement]) -> list[str]:
        """Return the lines of the shell file, each at its place."""
        lines = list(self._lines)
        for number, text in self._job.shell.items():
            lines[number - 1] = f"{text}   {lines[number - 1]}"
        for one in dropped:
            numbers, before, after = self._around(one.start, one.end)
            # Unless other commands share its lines.
            if not before.strip() and re.fullmatch(r"[ \t;]*(#.*)?", after):
                for number in numbers:
                    lines[number - 1] = MARK + lines[number - 1]
                self._span(one.start, one.end, DROPPED, "hpcrun gives its ranks what they meet by")
        if launch is not None:
            command = launch.command
            numbers, _, after = self._around(launch.statement.start, command.end)
            start = command.prefix_end if command.assigned else command.start
            _, before, _ = self._around(start, start)
            gap = " " if command.assigned else ""
            for number in numbers:
                lines[number - 1] = MARK + lines[number - 1]
            lines[numbers[-1] - 1] += f"\n{before}{gap}{START}{after}"
            what = "entry, args" + (", framework" if launch.framework else "")
            if launch.dropped:
                what += f"; hpcrun says {', '.join(launch.dropped)}"
            if launch.logs:
                what += f"; srun's {', '.join(launch.logs)}: see `hpcrun logs`"
            self._span(launch.statement.start, command.end, SPEC, what)
        return lines

    def _around(self, start: int, end: int) -> tuple[range, str, str]:
        """Return the lines of a part of the script, and their text before and after it."""
        begin = self._text.rfind("\n", 0, start) + 1
        final = self._text.find("\n", end)
        final = len(self._text) if final < 0 else final
        first, last = self._scanned.line(start), self._scanned.line(max(start, end - 1))
        return range(first, last + 1), self._text[begin:start], self._text[end:final]

    def _span(self, start: int, end: int, fate: str, what: str) -> None:
        numbers, _, _ = self._around(start, end)
        self._tell(LineFate(numbers[0], numbers[-1], quoted(self._text[start:end]), fate, what))

    def _tell(self, fate: LineFate) -> None:
        before = self._fates.get(fate.line)
        if before is not None and before.what != fate.what:  # several options in one line
            worst = max(before.fate, fate.fate, key=_WEIGHT.index)
            fate = replace(fate, fate=worst, what=f"{before.what}; {fate.what}")
        self._fates[fate.line] = fate

    def _all_fates(self, *, has_body: bool) -> list[LineFate]:
        covered = {at for one in self._fates.values() for at in range(one.line, one.last + 1)}
        for number, line in enumerate(self._lines, 1):
            if number not in covered and line.strip() and (line.lstrip()[0] != "#" or number == 1):
                fate, what = (SHELL, self._file) if has_body else (DROPPED, "hpcrun needs no shell")
                self._fates[number] = LineFate(number, number, quoted(line), fate, what)
        return [self._fates[number] for number in sorted(self._fates)]

    def _compose(self, launch: LaunchLine | None, *, has_body: bool) -> None:
        job, values, out = self._job, self._out.values, self._out
        given = dict(job.spec)
        values["name"] = self._name(given.pop("name", None))
        if launch is None:
            values["entry"] = [*self._shell.split(None, 1), self._file]
            if tasks := job.array:
                own: dict[str, Any] = {"ID": "${config.task}", "COUNT": len(tasks)}
                own |= {"MIN": min(tasks), "MAX": max(tasks)}
                words = [f"SLURM_ARRAY_TASK_{name}={value}" for name, value in own.items()]
                values["entry"] = ["env", *words, *values["entry"]]
                values["config"] = {"task": tasks[0]}
            values["framework"] = frameworks.BATCH
            out.comments["framework"] = "one process, on the first node: it starts the others"
            given["recovery.hang_after"] = None
            out.comments["recovery.hang_after"] = "a script may wait in silence"
        else:
            values["entry"] = launch.entry
            out.comments["entry"] = f"line {self._scanned.line(launch.command.start)}"
            shell = self._file if has_body else None
            found = {"args": launch.args, "framework": launch.framework, "batch_script": shell}
            values.update({name: value for name, value in found.items() if value})
            out.comments["batch_script"] = "runs around the ranks, in the job alone"
            whole = job.gpus or "resources.sbatch.exclusive" in given
            if whole and "resources.cpus_per_task" not in given:
                what = (
                    "the script does not say, and had what Slurm gave; here each rank has one CPU"
                )
                out.asks.setdefault("resources.cpus_per_task", what)
        order = [f"resources.{name}" for name in _FIRST]
        order += sorted(
            given, key=lambda one: (_BLOCKS.index(one.partition(".")[0]), one.count("."))
        )
        values.update({name: given[name] for name in dict.fromkeys(order) if name in given})
        out.comments.update(
            {key: f"line {line}" for key, line in job.lines.items() if key in values}
        )
        self._ask_for_what_is_outside()

    def _name(self, given: str | None) -> str:
        """Return the experiment's name, which names a directory, too."""
        plain = plain_name(given or self._script.name.split(".")[0])
        if given not in (None, plain):
            self._notes.append(f"name is {plain}: the script's {one_line(str(given))} cannot be")
        return plain

    def _ask_for_what_is_outside(self) -> None:
        asks, positional = self._out.asks, self._scanned.positional
        if positional:
            what = f"line {positional[0]} reads the script's arguments"
            asks["args"] = f"{what}: those after its name on sbatch's command line"
        if found := [f"line {n} has {one}" for one, n in self._scanned.templates.items()]:
            what = f"{', '.join(found)} of a template"
            asks["entry"] = f"{what}: write into {self._file} what stands there"
        outside = self._variables.outside().items()
        for name, line in [(name, line) for name, (line, is_given) in outside if not is_given]:
            what = f"line {line} reads it and nothing sets it here; if it came from your shell: "
            asks[f"environment.variables.{name}"] = f"{what}{name}: ${{oc.env:{name}}}"

    def _remark(self, launch: LaunchLine | None) -> None:
        scanned, note = self._scanned, self._notes.append
        optional = sorted(name for name, one in self._variables.outside().items() if one[1])
        if optional:
            what = "taken from the job's environment if set there (environment.variables)"
            note(f"{what}: {', '.join(optional)}")
        if scanned.own_path:
            place = f"line {scanned.own_path[0]} reads the script's own path"
            note(f"{place}, which is that of {self._file} in the run's working directory")
        if found := scanned.reads.get("SLURM_SUBMIT_DIR"):
            what = "is the run's working directory, which has the code as it was submitted"
            note(f"line {found[0]}: SLURM_SUBMIT_DIR {what}; code.link names data beside it")
        bodies = [(n, one) for n, one in enumerate(self._lines, 1) if one.strip(" \t")[:1] != "#"]
        what = f"what looks like a secret is in {self._file}, and so in the frozen code"
        what += "; environment.secrets_file is its place"
        self._note_lines([n for n, line in bodies if is_secret(line)], what)
        for pattern, what in _NOTED.items():
            self._note_lines([n for n, line in bodies if re.search(pattern, line[:2000])], what)
        logs = {one.rsplit("/", 1)[-1].partition("%")[0] for one in self._job.logs}
        logs = {one for one in logs if len(one) > 2}
        what = "what reads Slurm's log has none here: it is `hpcrun logs --stream batch`'s"
        self._note_lines([n for n, line in bodies if any(one in line for one in logs)], what)
        if launch is None:
            note("each attempt runs the script from its beginning, as a requeued job does")
        elif scanned.statements[-1] is not launch.statement:
            note("what follows the launch line runs once its ranks have ended well")
        if self._job.array:
            what = f"the {plural(len(self._job.array), 'task')} of the array are runs of a sweep"
            note(f"{what}; SLURM_ARRAY_TASK_ID is config.task")

    def _note_lines(self, numbers: list[int], what: str) -> None:
        if numbers:
            place = f"line{'s'[: len(numbers) - 1]} {', '.join(ranges(numbers))}"
            self._notes.append(f"{place}: {what}")


def shell_name(spec: Path, script: Path) -> str:
    """Return the name of the shell file of a spec: never that of the script itself."""
    found = spec.with_suffix(".sh")
    return f"{spec.stem}-job.sh" if found.absolute() == script.absolute() else found.name


@dataclass(frozen=True)
class ConvertedSpec:
    """A converted script, and the files that are to be written."""

    script: Path
    conversion: Conversion
    spec: PlannedFile
    schema: PlannedFile
    shell: PlannedFile | None
    """None where the spec says all that the script does."""

    def write(self) -> None:
        """Write the schema and the shell file, and the spec that names them."""
        for one in filter(None, (self.schema, self.shell, self.spec)):
            one.write()

    def to_data(self, *, dry_run: bool) -> dict[str, Any]:
        """Return it for JSON."""
        action = "would be " + self.spec.action if dry_run else self.spec.action
        place = {"script": str(self.script), "path": str(self.spec.path), "action": action}
        return {**place, **self.conversion.to_data()}

    def lines(self) -> Iterator[str]:
        """Yield the script beside what became of each of its lines, and what the spec asks."""
        done = self.conversion
        yield f"{self.script.name:<{_LEFT + _NUMBER + 1}} | {self.spec.path.name}"
        for one in done.fates:
            text = one.text if len(one.text) <= _LEFT else f"{one.text[: _LEFT - 1]}…"
            number = str(one.line)
            what = one.what if one.fate == "in the spec" else f"{one.fate}: {one.what}"
            yield visible(f"{number:>{_NUMBER}} {text:<{_LEFT}} | {what}")
        if done.asks:
            yield f"the spec asks, by comments at {len(done.asks)} of its keys:"
            yield from (f"  {one}" for one in done.asks)


def converted(script: Path, directory: Path, spec: Path | None, *, force: bool) -> ConvertedSpec:
    """Convert a script, and plan its files: ``spec``, else ``experiment.yaml`` in a directory.

    Nothing is written; with ``force`` what is there may be replaced. Raise UsageError where the
    script cannot be converted, or a file is there already.
    """
    path = spec or directory / starter_text.SPEC
    done = convert(read_script(script), script, shell_name(path, script))
    texts = [(path, done.spec)]
    if done.shell_file:
        texts.append((path.with_name(done.shell_file), done.shell))
    planned = []
    for place, text in texts:
        try:
            planned.append(PlannedFile.of(place, text, force=force))
        except OSError as error:
            why = error.strerror or error
            raise UsageError(f"{place} cannot be read: {why}", hint="name another by -o") from None
        if planned[-1].action == KEPT:
            hint = "name another by -o FILE, have it replaced by --force, or see it by --dry-run"
            what = f"{place} is there already, and differs; nothing was written"
            raise UsageError(what, hint=hint)
    schema = path.parent / starter_text.SCHEMA
    made = PlannedFile.of(schema, starter_text.schema("spec"), force=force)
    return ConvertedSpec(script, done, planned[0], made, planned[1] if planned[1:] else None)
