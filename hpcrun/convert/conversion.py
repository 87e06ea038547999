"""Converts an sbatch script into a spec and a shell file: ``convert`` is the way in."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun.compile.target.slurm_options import LONGEST_NAME, NAME
from hpcrun.convert import job_request, rendezvous, sbatch_lines
from hpcrun.convert.job_request import JobRequest
from hpcrun.convert.launch_line import LaunchLine, Uncertain, find
from hpcrun.convert.line_fates import ASKED, DROPPED, SHELL, SPEC, LineFate, has_secret, quoted
from hpcrun.convert.shell_scan import ShellScript, Statement
from hpcrun.convert.spec_text import SpecText
from hpcrun.convert.variables import Variables
from hpcrun.errors import UsageError
from hpcrun.policy import frameworks
from hpcrun.starter import project_text
from hpcrun.state import files
from hpcrun.state.spec.blocks import RANKS
from hpcrun.text import one_line, plural, ranges, size

LARGEST = 4_000_000  # what Slurm takes
MARK = "# hpcrun does this: "
_SHELLS = re.compile(r"(?:\S*/)?(?:env\s+(?:-S\s+)?)?(?:\S*/)?(?:ba|da|k)?sh(?:\s|$)")
_WEIGHT = (DROPPED, SPEC, SHELL, ASKED)
_ENCODING = ("utf-8", "surrogateescape")
_REMAKES = re.compile(r"\bscontrol\s+requeue|\bsbatch\b")


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
        return {
            **{"name": self.name, "spec": self.spec, "shell_file": self.shell_file},
            **{"shell": shell, "notes": self.notes, "asks": self.asks},
            "lines": [one.to_data() for one in self.fates],
        }


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
    """Return the spec and the shell file of a script; nothing of it is evaluated.

    Parameters
    ----------
    text
        The script, as `read_script` returns it.
    script
        Its path, which names the experiment where the script does not.
    shell_file
        The name of the shell file.

    Raises
    ------
    UsageError
        The job is heterogeneous.
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
        self._job: JobRequest = job_request.request(sbatch_lines.read(self._lines))
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
            dropped = rendezvous.lines(self._scanned, launch)
        except Uncertain as why:
            self._notes.append(
                f"{self._file} is the script as it is, which starts its programs itself: {why}"
            )
        body = self._body(launch, dropped)
        has_body = launch is None or self._leaves_something(body)
        for fate in self._job.fates:
            self._tell(fate)
        self._compose(launch, has_body=has_body)
        self._remark(launch)
        fates = self._all_fates(has_body=has_body)
        head = (
            f"# yaml-language-server: $schema={project_text.SCHEMA}",
            f"# Made of {one_line(self._script.name)} by `hpcrun init --from`; a comment names its "
            "line.",
        )
        spec = "".join(f"{line}\n" for line in (*head, *self._out.lines()))
        asks = [one_line(f"{key}: {text}") for key, text in self._out.asks.items()]
        name = str(self._out.values["name"])
        shell = "\n".join(body) if has_body else ""
        notes = [*map(one_line, self._notes)]
        return Conversion(name, spec, self._file if has_body else "", shell, fates, notes, asks)

    # --- the shell file

    def _body(self, launch: LaunchLine | None, dropped: list[Statement]) -> list[str]:
        """Return the lines of the shell file, each at its place."""
        lines = list(self._lines)
        for number, text in self._job.shell.items():
            lines[number - 1] = f"{text}   {lines[number - 1]}"
        for statement in dropped:
            if self._comment_out(lines, statement.start, statement.end, MARK):
                why = "hpcrun gives its ranks what they need to meet"
                self._span(statement.start, statement.end, DROPPED, why)
        if launch is not None:
            self._put_launch(lines, launch)
        return lines

    def _comment_out(self, lines: list[str], start: int, end: int, mark: str) -> bool:
        """Make comments of the lines that a statement has for itself."""
        first, last = self._scanned.line(start), self._scanned.line(max(start, end - 1))
        around = self._lines[first - 1 : last]
        begin = sum(len(line) + 1 for line in self._lines[: first - 1])
        before = self._text[begin:start]
        after = self._text[end : begin + sum(len(line) + 1 for line in around) - 1]
        if before.strip() or re.sub(r"^[ \t;]*(#.*)?$", "", after):
            return False
        for number in range(first, last + 1):
            lines[number - 1] = mark + lines[number - 1]
        return True

    def _put_launch(self, lines: list[str], launch: LaunchLine) -> None:
        command, statement = launch.command, launch.statement
        text = self._text
        first, last = self._scanned.line(statement.start), self._scanned.line(command.end - 1)
        begin = sum(len(line) + 1 for line in self._lines[: first - 1])
        end = begin + sum(len(line) + 1 for line in self._lines[first - 1 : last]) - 1
        before, after = text[begin : command.prefix_end], text[command.end : end]
        before = before if command.assigned else text[begin : command.start]
        gap = " " if command.assigned else ""
        line = f'{before}{gap}sh "${RANKS}" || exit{after}'
        for number in range(first, last + 1):
            lines[number - 1] = MARK + lines[number - 1]
        lines[last - 1] += f"\n{line}"
        what = "entry, args" + (", framework" if launch.framework else "")
        if launch.dropped:
            what += f"; hpcrun says {', '.join(launch.dropped)}"
        if launch.logs:
            what += f"; srun's {', '.join(launch.logs)}: see `hpcrun logs`"
        self._span(statement.start, command.end, SPEC, what)

    def _leaves_something(self, body: list[str]) -> bool:
        """Check whether the shell file does more than start the ranks."""
        starts = f'sh "${RANKS}" || exit'
        lines = [line.strip() for part in body for line in part.split("\n")]
        return any(line and line[0] != "#" and line != starts for line in lines)

    def _span(self, start: int, end: int, fate: str, what: str) -> None:
        first, last = self._scanned.line(start), self._scanned.line(max(start, end - 1))
        self._tell(LineFate(first, last, quoted(self._text[start:end]), fate, what))

    def _tell(self, fate: LineFate) -> None:
        before = self._fates.get(fate.line)
        if before is not None and before.what != fate.what:
            # Several options in one line.
            worst = max((before, fate), key=lambda one: _WEIGHT.index(one.fate))
            what = f"{before.what}; {fate.what}"
            fate = LineFate(fate.line, fate.last, fate.text, worst.fate, what)
        self._fates[fate.line] = fate

    def _all_fates(self, *, has_body: bool) -> list[LineFate]:
        covered = {at for one in self._fates.values() for at in range(one.line, one.last + 1)}
        for number, line in enumerate(self._lines, 1):
            is_directive = sbatch_lines.is_directive(line)
            bare = not line.strip() or (
                line.lstrip()[:1] == "#" and number > 1 and not is_directive
            )
            if number in covered or bare:
                continue
            fate, what = (SHELL, self._file) if has_body else (DROPPED, "nothing is left for it")
            self._fates[number] = LineFate(number, number, quoted(line), fate, what)
        return [self._fates[number] for number in sorted(self._fates)]

    # --- the spec

    def _compose(self, launch: LaunchLine | None, *, has_body: bool) -> None:
        job, values, out = self._job, self._out.values, self._out
        given = dict(job.spec)
        values["name"] = self._name(given.pop("name", None))
        task = "config.task"
        if launch is None:
            program = [*self._shell.split(None, 1), self._file]
            if job.array:
                lines = (
                    f"SLURM_ARRAY_TASK_ID=${{{task}}}",
                    f"SLURM_ARRAY_TASK_COUNT={len(job.array)}",
                )
                ends = (
                    f"SLURM_ARRAY_TASK_MIN={min(job.array)}",
                    f"SLURM_ARRAY_TASK_MAX={max(job.array)}",
                )
                program = ["env", *lines, *ends, *program]
                values["entry"], values["config"] = program, {"task": job.array[0]}
            values["entry"] = program
            values["framework"] = frameworks.BATCH
            out.comments["framework"] = "one process, on the first node: it starts the others"
        else:
            values["entry"], line = launch.entry, self._scanned.line(launch.command.start)
            out.comments["entry"] = f"line {line}"
            if launch.args:
                values["args"] = launch.args
            if launch.framework:
                values["framework"] = launch.framework
            if has_body:
                values["batch_script"] = self._file
                out.comments["batch_script"] = "runs around the ranks, in the job alone"
            given.pop("resources.ntasks_per_node", None)
            if launch.ntasks_per_node:
                given["resources.ntasks_per_node"] = launch.ntasks_per_node
        order = ("nodes", "ntasks_per_node", "gpus_per_node", "gpu_type", "cpus_per_task")
        first = [f"resources.{name}" for name in order if f"resources.{name}" in given]
        blocks = ("resources", "environment", "recovery", "notify", "sweep")
        rest = sorted(given, key=lambda one: (blocks.index(one.partition(".")[0]), one.count(".")))
        values.update({name: given[name] for name in dict.fromkeys((*first, *rest))})
        if launch is None and self._is_quiet():
            values["recovery.hang_after"] = None
            out.comments["recovery.hang_after"] = "a script may wait in silence"
        for key, line in job.lines.items():
            if key in values:
                out.comments[key] = f"line {line}"
        self._ask_for_what_is_outside()

    def _is_quiet(self) -> bool:
        return "recovery.hang_after" not in self._out.values

    def _name(self, given: str | None) -> str:
        """Return the experiment's name, which is to be a directory's."""
        wanted = given or self._script.name.split(".")[0]
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted).strip("-.")[:LONGEST_NAME]
        plain = plain if NAME.fullmatch(plain) else f"job-{plain}"[:LONGEST_NAME].rstrip("-.")
        if given not in (None, plain):
            self._notes.append(f"name is {plain}: the script's {one_line(str(given))} cannot be")
        return plain

    def _ask_for_what_is_outside(self) -> None:
        out, scanned = self._out, self._scanned
        if scanned.positional:
            what = f"line {scanned.positional[0]} reads the script's arguments"
            out.asks["args"] = f"{what}: those after its name on sbatch's command line"
        given = {}
        for name, (line, has_default) in self._variables.outside().items():
            if not has_default:
                given[name] = line
        for name, line in sorted(given.items(), key=lambda one: one[1])[:20]:
            what = f"line {line} reads it and nothing sets it here; if it came from your shell: "
            out.asks[f"environment.variables.{name}"] = f"{what}{name}: ${{oc.env:{name}}}"

    # --- notes

    def _remark(self, launch: LaunchLine | None) -> None:
        scanned, note = self._scanned, self._notes.append
        optional = [name for name, one in self._variables.outside().items() if one[1]]
        if optional:
            shown = ", ".join(sorted(optional)[:8])
            note(f"taken from the job's environment if set there (environment.variables): {shown}")
        if scanned.own_path:
            note(
                f"line {scanned.own_path[0]} reads the script's own path, which is now that of "
                f"{self._file} in the run's working directory"
            )
        if "SLURM_SUBMIT_DIR" in scanned.reads:
            line = scanned.reads["SLURM_SUBMIT_DIR"][0]
            note(
                f"line {line}: SLURM_SUBMIT_DIR is the run's working directory, which has the code "
                "as it was submitted; data beside it are named in code.link"
            )
        bodies = [n for n, line in enumerate(self._lines, 1) if line[:1] != "#" and line.strip()]
        again = [n for n in bodies if _REMAKES.search(self._lines[n - 1][:2000])]
        if again:
            where = ", ".join(ranges(again))
            note(
                f"line {where}: hpcrun requeues its runs itself, and knows nothing of jobs that "
                "a script submits or requeues"
            )
        secret = [n for n in bodies if has_secret(self._lines[n - 1])]
        if secret:
            lines = ", ".join(ranges(secret))
            note(
                f"{'lines' if len(secret) > 1 else 'line'} {lines}: what looks like a secret is "
                f"in {self._file}, and so in the frozen code; environment.secrets_file is its place"
            )
        if launch is None:
            note("each attempt runs the script from its beginning, as a requeued job does")
        elif len(self._scanned.statements) and self._follows(launch):
            note("what follows the launch line runs once its ranks have ended well")
        if self._job.array:
            what = f"the {plural(len(self._job.array), 'task')} of the array are runs of a sweep"
            note(f"{what}; SLURM_ARRAY_TASK_ID is config.task")

    def _follows(self, launch: LaunchLine) -> bool:
        return self._scanned.statements[-1] is not launch.statement


def shell_name(spec: Path, script: Path) -> str:
    """Return the name of the shell file of a spec: never that of the script itself."""
    found = f"{spec.stem}.sh"
    same = os.path.abspath(spec.with_name(found)) == os.path.abspath(script)  # noqa: PTH100
    return f"{spec.stem}-job.sh" if same else found
