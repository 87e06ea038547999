"""Converts an sbatch script into a spec: ``convert`` is the way in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun.convert.draft import job_environment, job_resources, run_shape, spec_sweep
from hpcrun.convert.draft.accelerate_options import accelerate
from hpcrun.convert.draft.job_environment import JobEnvironment
from hpcrun.convert.draft.job_resources import ScriptRequest
from hpcrun.convert.draft.program_entry import ProgramEntry, ScriptPlace, entry
from hpcrun.convert.draft.spec_parts import SpecDraft, compose
from hpcrun.convert.draft.spec_words import SpecWords
from hpcrun.convert.line_fates import CARRIED, LEFT, NOT_NEEDED, LineFate, carried, quoted
from hpcrun.convert.script import sbatch_lines
from hpcrun.convert.script.script_walk import ScriptWalk
from hpcrun.convert.script.walk_state import StartedProgram, WalkResult
from hpcrun.convert.script_fates import ScriptFates
from hpcrun.convert.shell.shell_syntax import ParsedScript, parse
from hpcrun.convert.shell.shell_values import MARK
from hpcrun.errors import UsageError
from hpcrun.state import files
from hpcrun.text import listed, one_line, size

LARGEST = 1_000_000
_MOST_LINES = 20_000
_MOST_TASKS = 2_000
_MOST_STEPS = 200_000
_MARKS = str.maketrans({"\ue000": "\ufffd", "\ue001": "\ufffd", "\r": " "})
_TRAINS = re.compile(r"train|tune|main|run|fit|pretrain|sft", re.IGNORECASE)


@dataclass
class Conversion:
    """A spec made from a script, and what became of each line of the script."""

    spec: str
    """The text of the spec; empty where the script starts no program."""
    fates: list[LineFate]
    """In the order of the script."""
    lost: list[str] = field(default_factory=list)
    """What else could not be carried over as it was, each with its line."""
    notes: list[str] = field(default_factory=list)
    """What to know about the spec."""
    name: str = ""

    def of(self, fate: str) -> list[LineFate]:
        """Return the lines with that fate."""
        return [one for one in self.fates if one.fate == fate]

    def to_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            **{"name": self.name, "spec": self.spec, "lost": self.lost, "notes": self.notes},
            "lines": [one.to_data() for one in self.fates],
        }


def read_script(path: Path) -> str:
    """Return the text of a script; raise UsageError where it cannot be one."""
    try:
        data = files.read_bytes(path, LARGEST)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        hint = f"accepted is a script of up to {size(LARGEST)}"
        raise UsageError(f"--from: {path} cannot be read: {why}", hint=hint) from None
    if b"\x00" in data:
        raise UsageError(f"--from: {path} is no script: it holds NUL bytes")
    return data.decode("utf-8", "replace")


def convert(text: str, script: Path, directory: Path) -> Conversion:
    """Return the spec of a script; nothing of it is executed.

    Parameters
    ----------
    text
        The script.
    script
        Its path, which names the experiment and makes relative paths relative to the spec.
    directory
        The directory that the spec is for.

    Raises
    ------
    UsageError
        It is no script of bash for sbatch, or starts nothing that hpcrun could run.
    """
    text = text.translate(_MARKS)
    lines = text.split("\n")
    if len(lines) > _MOST_LINES:
        raise UsageError(f"--from: {script} has {len(lines):,} lines; accepted are {_MOST_LINES:,}")
    first = lines[0] if lines else ""
    if not first.startswith("#!"):
        raise UsageError(
            f"--from: {script} is no script for sbatch: its first line does not begin with #!"
        )
    if not re.search(r"\b(?:ba|da|k|z)?sh\b", first):
        raise UsageError(
            f"--from: {script} is no script of a shell: its first line is {quoted(first)}",
            hint="write a spec with this file as its entry; `hpcrun init` writes one to begin with",
        )
    parsed = parse(text)
    begun = min((node.line for node in parsed.nodes), default=None)
    job = job_resources.request(sbatch_lines.read(lines, begun))
    return _Converter(lines, parsed, job, script, directory).convert()


class _Converter:
    def __init__(
        self,
        lines: list[str],
        parsed: ParsedScript,
        job: ScriptRequest,
        script: Path,
        directory: Path,
    ) -> None:
        self._lines, self._parsed, self._job = lines, parsed, job
        self._script = script
        self._place = ScriptPlace(script, directory)
        self._name = _name(job.name or script.name.split(".")[0])
        self._lost: list[str] = []
        self._notes: list[str] = []

    def convert(self) -> Conversion:
        walk = self._walk(self._job.tasks[0] if self._job.tasks else None)
        chosen = _choose(walk)
        if chosen is None:
            fates = self._fates(walk, None, JobEnvironment(), set())
            left = [str(one) for one in fates if one.fate == LEFT][:5]
            raise UsageError(
                f"--from: {self._script} starts no program that hpcrun could run"
                + "".join(f"\n  {one}" for one in left),
                hint="write a spec with the program as its entry; see `hpcrun init`",
            )
        directory = self._start_directory(chosen)
        self._place.find(directory, chosen.launch.target)
        words = SpecWords(walk.unknowns, self._name)
        found = entry(self._located(chosen), walk, self._place, words)
        swept = self._sweep(walk, chosen)
        shape = run_shape.shape(self._job, chosen.launch)
        used = _closure(walk, chosen.reads)
        if found.document is not None:
            used |= _closure(walk, found.document.reads)
            node = found.document.node
            walk.fates[id(node)] = (node, carried(walk.fates[id(node)][1], "deepspeed"))
        environment = job_environment.environment(walk, used)
        more = accelerate(chosen.launch, self._place, directory)
        resume = self._resume(walk, used, words)
        if resume:
            used |= _closure(walk, walk.resume_reads)
        draft = SpecDraft(
            name=self._name,
            script=one_line(self._script.name),
            job=self._job,
            entry=found,
            launch=chosen.launch,
            shape=shape,
            swept=swept,
            environment=environment,
            accelerate=more,
            walk=walk,
            words=words,
            line=chosen.node.line,
            resume=resume,
        )
        fates = self._fates(walk, chosen, environment, used)
        place = f"line {chosen.node.line}"
        # What the words could not say is known once the spec was put together.
        compose(draft, [])
        remarks = [*words.lost, *shape.lost, *chosen.launch.lost, *more.lost]
        self._lost += [f"{place}: {one}" for one in dict.fromkeys(remarks)]
        named = walk.python is not None or environment.has_programs
        self._remark(walk, chosen, found, shape.notes, named)
        self._lost = [*map(one_line, self._lost)]
        spec = compose(draft, [*map(str, (one for one in fates if one.fate == LEFT)), *self._lost])
        names = [*dict.fromkeys(re.findall(r"\$\{oc\.env:(\w+)", spec))]
        if names:
            what = "taken from your shell as you type `hpcrun submit`: "
            self._notes.append(what + listed(names, 8))
        notes = [*map(one_line, self._notes)]
        return Conversion(spec, fates, self._lost, notes, self._name)

    def _fates(
        self,
        walk: WalkResult,
        chosen: StartedProgram | None,
        environment: JobEnvironment,
        used: set[str],
    ) -> list[LineFate]:
        made = ScriptFates(self._lines, self._parsed, walk, chosen, environment, used)
        return made.all(self._job.fates)

    def _walk(self, task: int | None) -> WalkResult:
        facts = self._job.facts()
        if task is not None:
            facts["SLURM_ARRAY_TASK_ID"] = str(task)
        return ScriptWalk(self._lines, facts).walk(self._parsed.nodes)

    def _start_directory(self, program: StartedProgram) -> str:
        """Return the program's directory, below that of --chdir."""
        above = self._job.directory
        is_absolute = program.directory.startswith(("/", "~")) or MARK.match(program.directory)
        if above is None or above == "." or is_absolute:
            return program.directory
        return above if program.directory == "." else f"{above}/{program.directory}"

    def _located(self, program: StartedProgram) -> StartedProgram:
        program.directory = self._start_directory(program)
        return program

    # --- sweeps

    def _sweep(self, walk: WalkResult, chosen: StartedProgram) -> spec_sweep.SweptRuns:
        tasks = self._job.tasks
        here = [one for one in walk.programs if one.node is chosen.node]
        entries: list[ProgramEntry] = []
        steps = 0 if len(tasks) <= _MOST_TASKS else _MOST_STEPS + 1
        for task in tasks:
            if steps <= _MOST_STEPS:
                followed = self._walk(task)
                steps += followed.steps
                entries += self._entries(followed, chosen)
        if steps > _MOST_STEPS:
            what = f"the {len(tasks):,} tasks of this array are too many to follow"
            self._job.fates.append(self._array_fate(LEFT, what, "write the sweep"))
            return spec_sweep.SweptRuns()
        if not tasks and len(here) > 1 and chosen.loops:
            entries = self._entries(walk, chosen)
        if len(entries) < 2:
            if len(tasks) == 1:
                self._job.fates.append(self._array_fate(NOT_NEEDED, "it is an array of one task"))
            elif tasks:
                what = f"of its {len(tasks)} tasks, one starts the program"
                self._job.fates.append(self._array_fate(LEFT, what))
            return spec_sweep.SweptRuns()
        swept = spec_sweep.sweep(entries)
        if chosen.loops and len(here) > 1 and (swept.grid or swept.zip):
            self._notes.append(
                "the steps of a loop ran one after the other, each as the one before had ended; "
                "the runs of a sweep wait for nothing (sweep.max_parallel: 1 keeps them apart)"
            )
        if swept.why_not:
            self._lost.append(
                f"line {chosen.node.line}: the {len(entries)} starts of the program: "
                f"{swept.why_not}; only the first is in the spec; write the sweep"
            )
            swept = spec_sweep.SweptRuns()
        if tasks:
            self._told_array(walk, tasks, swept)
        return swept

    def _entries(self, walk: WalkResult, chosen: StartedProgram) -> list[ProgramEntry]:
        quiet = SpecWords(walk.unknowns, self._name)
        found = [one for one in walk.programs if one.node is chosen.node]
        return [entry(self._located(one), walk, self._place, quiet) for one in found]

    def _array_fate(self, fate: str, what: str, hint: str | None = None) -> LineFate:
        line = self._job.lines["sweep"]
        return LineFate(line, line, quoted(self._lines[line - 1]), fate, what, hint)

    def _told_array(
        self, walk: WalkResult, tasks: Sequence[int], swept: spec_sweep.SweptRuns
    ) -> None:
        if swept.grid or swept.zip:
            fate = self._array_fate(CARRIED, "sweep")
        else:
            what = f"nothing in the program's line differs between the {len(tasks)} tasks"
            hint = (
                "if the program reads SLURM_ARRAY_TASK_ID itself, give it an option, and sweep it"
            )
            fate = self._array_fate(LEFT, what, hint)
        self._job.fates.append(fate)
        if len(tasks) < 2:
            return
        other = self._walk(tasks[1])
        for name, node in walk.exported.items():
            if walk.variables.get(name) != other.variables.get(name) and name in walk.variables:
                self._lost.append(
                    f"line {node.line}: {name} differs from task to task; give the program an "
                    "option, and sweep that"
                )

    def _resume(self, walk: WalkResult, used: set[str], words: SpecWords) -> dict[str, Any] | None:
        for path, variable, value in walk.resumes:
            when = words.text(path, "recovery.resume.when")
            given = [words.text(one, "recovery.resume.args") for one in value.split()]
            if variable in used and when and None not in given and "???" not in (when, *given):
                args = [str(one).replace(when, "${hpcrun:newest}") for one in given]
                return {"when": when, "args": args}
        return None

    # --- notes

    def _remark(
        self,
        walk: WalkResult,
        chosen: StartedProgram,
        found: ProgramEntry,
        more: Sequence[str],
        named_python: bool,
    ) -> None:
        if "time" not in self._job.resources:
            self._notes.append("the script has no --time: resources.time is hpcrun's 1 hour")
        is_file = chosen.launch.module is None and chosen.launch.target.endswith(".py")
        if (
            is_file
            and not self._place.is_found
            and not MARK.search(chosen.launch.target + chosen.directory)
            and not chosen.launch.target.startswith("/")
        ):
            self._notes.append(
                f"{chosen.launch.target} was not found; entry names it from {self._script.parent}"
            )
        if found.directory not in (".", "") and not found.directory.startswith(("/", "~", "$")):
            self._notes.append(
                f"the program ran in {found.directory}, which its relative paths mean; in the spec "
                f"they mean the spec's directory: `hpcrun init {found.directory} --from "
                f"{self._script.name}` writes it there"
            )
        for name, line in walk.assumed.items():
            self._notes.append(f"line {line}: read as if {name} were not set")
        launch = chosen.launch
        if not named_python and not launch.wrapper and launch.python == "python":
            self._notes.append(
                "the script took its Python from the shell in which sbatch was typed; the job's is "
                "that of environment.python, or the one that runs hpcrun"
            )
        if "local-rank" in chosen.launch.options:
            self._notes.append(
                "torch.distributed.launch gave the program --local_rank; hpcrun's ranks find "
                "LOCAL_RANK; `framework: deepspeed` gives the option too"
            )
        self._notes += more


def _name(text: str) -> str:
    """Return a name that an experiment may have."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100]
    return name if re.match(r"[A-Za-z]", name) else f"job-{name}" if name else "job"


def _choose(walk: WalkResult) -> StartedProgram | None:
    """Return the program that trains: the first of those that look most like it."""
    best: StartedProgram | None = None
    most = 0.0
    for one in walk.programs:
        words = one.launch.module or one.launch.target
        score = one.launch.score + (0.5 if _TRAINS.search(words) else 0.0)
        if score > most:
            best, most = one, score
    return best


def _closure(walk: WalkResult, reads: Iterable[str]) -> set[str]:
    """Return variables, and those that they are made of."""
    used: set[str] = set()
    waiting = set(reads)
    while waiting:
        name = waiting.pop()
        if name in used:
            continue
        used.add(name)
        if name in walk.assigned:
            waiting |= walk.assigned[name].reads
    return used
