"""Selection of runs: WHERE arguments resolved to runs on disk.

A WHERE is an experiment (``NAME``; ``NAME/`` whatever else the word could mean), runs (``NAME/3``,
``NAME/0-3,7``), a pattern of these (``fine*``, ``*/3``), a job (``123``, ``123_4``), the spec file
that experiments were submitted from, or a directory of an experiment or a run, under any root;
several are a union. Words such as ``state=failed`` narrow it (`hpcrun.observe.read.filter`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from hpcrun.errors import BrokenFile, UsageError
from hpcrun.host import expand_home
from hpcrun.observe.read.journal_words import JournalCache, JournalWords
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.slurm.hostlist import expand_job_id, parse_ranges
from hpcrun.state import files, history, layout, permissions
from hpcrun.state.annotation_log import NOTHING, Annotation
from hpcrun.state.history import History, Planned
from hpcrun.state.journal import Job
from hpcrun.state.layout import ExperimentPaths, RunPaths, SubmissionPaths
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.text import Say, listed, range_text, ranges, shortened

_NUMBERS = "[0-9]{1,18}(?:-[0-9]{1,18})?"
_LIST = re.compile(rf"{_NUMBERS}(?:,{_NUMBERS})*")
_RUNS = re.compile(rf"(?P<name>[^/]+)/(?P<numbers>{_LIST.pattern})/?")
_NAME = re.compile(r"[A-Za-z][\w.+-]*")
_JOB = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,18}|_\[[0-9,:%-]{1,999}\])?|local:[0-9]{1,18}")
_PATTERN = re.compile(r"(?P<name>[^/.~][^/]*)(?:/(?P<runs>[^/]*))?")
_WILD = re.compile(r"[*?\[]")
_SPEC = (".yaml", ".yml")
# A plan's name and spec come first in its file.
_PLAN_HEAD = 1 << 14
_SPEC_FILE = re.compile(r'"spec_file": ?("(?:[^"\\\\]|\\\\.)*")')
_IN_WORDS = re.compile(r"([\w.-]+) (is not|not in|is|in) (\S+)")
_COLON = re.compile(r"([\w.]+):(\S+)")
# A name and numbers as other programs write them: study[0-3], study_0, study:0.
_NEARLY_RUNS = re.compile(r"(.+?)(?:\[|[_:#@])([0-9][0-9,-]*)\]?")
_FORMS = (
    "NAME, NAME/3, NAME/0-3, a pattern ('fine*', '*/3'), a job id (123 or 123_4), a spec file, or "
    "the directory of an experiment or run"
)


@dataclass(frozen=True)
class Selected:
    """One selected run."""

    experiment: ExperimentPaths
    run: RunPlan
    """Its plan, of the newest submission that contains its number."""
    paths: RunPaths
    planned: Planned
    """That submission and its plan."""
    submission: Job | None
    """The journals' last record of the run; None before it was submitted."""
    annotation: Annotation = NOTHING
    """Its tags and notes."""

    @property
    def name(self) -> str:
        """``NAME/3``."""
        return f"{self.experiment.name}/{self.run.number}"

    @property
    def job_id(self) -> str | None:
        """``123``, ``123_4`` or ``local:PID`` of the last submission; None before one."""
        return self.submission.job_id if self.submission else None

    @property
    def plan(self) -> Plan:
        return self.planned.plan

    def submissions(self) -> list[SubmissionPaths]:
        """Return the submissions of its newest plan, its jobs and its attempts, oldest first."""
        found = {self.planned.paths, *(paths for paths, _ in self._jobs())}
        return sorted(found, key=lambda paths: paths.number)

    def batch_logs(self) -> list[Path]:
        """Return the existing logs of the run's batch steps, of Slurm or the local executor."""
        found = {
            path
            for paths, job_id in self._jobs()
            for path in (paths.batch_log(job_id), paths.local_log(self.run.number))
        }
        return sorted(path for path in found if path.is_file())

    def _jobs(self) -> set[tuple[SubmissionPaths, str]]:
        from hpcrun.state import ledger

        found = set()
        if self.submission is not None:
            found.add((self.submission.paths, str(self.submission.job_id)))
        # A ledger that cannot be read names none.
        with contextlib.suppress(BrokenFile):
            for attempt in ledger.read(self.paths):
                if attempt.submission is not None:
                    paths = self.experiment.submission(attempt.submission)
                    found.add((paths, str(attempt.job_id)))
        return found


def have_begun(selected: Sequence[Selected]) -> list[bool]:
    """Check whether each run's directory exists, with one listing per experiment."""
    numbers: dict[int, set[int]] = {}
    for key, experiment in {id(one.experiment): one.experiment for one in selected}.items():
        numbers[key] = set()
        with contextlib.suppress(OSError):
            numbers[key].update(experiment.run_numbers())
    return [one.run.number in numbers[id(one.experiment)] for one in selected]


def mine(selected: Sequence[Selected]) -> list[Selected]:
    """Return the runs of the caller's own experiments."""
    own = {one for one in {each.experiment for each in selected} if _is_mine(one)}
    return [one for one in selected if one.experiment in own]


def where_arguments(selected: Iterable[Selected]) -> list[str]:
    """Return the words that name runs, ``NAME/0-3,7``: one for each experiment."""
    numbers: dict[str, list[int]] = {}
    for one in selected:
        numbers.setdefault(one.experiment.name, []).append(one.run.number)
    return [f"{name}/{','.join(ranges(these))}" for name, these in numbers.items()]


def as_where(selected: Iterable[Selected]) -> str:
    """Return runs as a WHERE."""
    return " ".join(where_arguments(selected))


def is_pattern(word: str) -> bool:
    """Check whether a word of WHERE stands for runs that it does not name, as ``fine*`` does."""
    return bool(_WILD.search(word)) and not is_job(word)


def is_job(word: str) -> bool:
    """Check whether a word of WHERE has the form of a job id."""
    return _JOB.fullmatch(word) is not None


def of_others(selected: Sequence[Selected]) -> dict[str, list[str]]:
    """Return owner -> experiments, for runs whose last submission is somebody else's."""
    found: dict[str, list[str]] = {}
    for paths in dict.fromkeys(one.planned.paths for one in selected):
        uid = permissions.owner(paths.directory)
        if uid not in (None, os.geteuid()):
            names = found.setdefault(permissions.user_name(uid), [])
            if paths.experiment.name not in names:
                names.append(paths.experiment.name)
    return found


@dataclass
class Finder:
    """Resolves WHERE arguments, reading each experiment once."""

    root: Path
    """The directory of experiments; directories given as WHERE may lie elsewhere."""
    warn: Say = lambda message: None
    """Called for each plan that cannot be read."""
    own: bool = False
    """Patterns stand for the caller's own experiments alone."""
    _histories: dict[Path, History] = field(default_factory=dict)
    _words: dict[ExperimentPaths, JournalWords | BrokenFile] | None = None

    @property
    def place(self) -> str:
        """The root in words, which say where it is not there."""
        is_there = os.path.isdir(self.root)  # noqa: PTH112 - `is_dir` may raise
        return f"{self.root}{'' if is_there else ' (no such directory)'}"

    def resolve(self, where: Sequence[str], *, default_newest: bool = True) -> list[Selected]:
        """Return the runs that ``where`` names, in the order given, each once.

        No names select the caller's newest experiment, if ``default_newest``. Raises UsageError if
        nothing matches, or an argument has none of the forms of a WHERE.
        """
        if not where:
            if not default_newest:
                raise UsageError("this command wants to be told which runs", hint=f"name {_FORMS}")
            return self.runs(self.newest())
        if len(where) == 1:
            return self._one(where[0])
        found: dict[Path, Selected] = {}
        broken: list[BrokenFile] = []
        for argument in where:
            try:
                for selected in self._one(argument):
                    found.setdefault(selected.paths.directory, selected)
            except BrokenFile as error:
                broken.append(error)
        if broken and not found:
            raise broken[0]
        for each in broken:
            self.warn(f"passed over: {each.message}")
        return list(found.values())

    def newest(self) -> ExperimentPaths:
        """Return the caller's newest experiment by its last submission.

        Raises UsageError if the caller has none under the root.
        """
        return self.by_submission()[-1]

    def by_submission(self, *, everyone: bool = False) -> list[ExperimentPaths]:
        """Return the caller's experiments, or those of ``everyone``, the last submitted one last.

        Raises UsageError if there are none.
        """
        found = []
        for each, words in self.words().items():
            if isinstance(words, BrokenFile):
                when, owner, _ = history.last_submission(each)
            else:
                when, owner = words.submitted, words.owner
            if everyone or owner in (None, os.geteuid()):
                found.append((when, each.name, each))
        if not found:
            names = _names([*self.words()])
            others = f"; it has experiments of others: {names}" if names else ""
            hint = "submit one with `hpcrun submit SPEC`, or name the root with --root"
            raise UsageError(
                f"you have no experiment under {self.place}{others}",
                hint=f"--all-users shows them; {hint}" if others else hint,
            )
        return [each for _, _, each in sorted(found, key=lambda one: one[:2])]

    def words(self) -> dict[ExperimentPaths, JournalWords | BrokenFile]:
        """Return what the journals of each experiment under the root say, by name, read once.

        An error stands for a journal that cannot be read.
        """
        if self._words is None:
            experiments = layout.experiments(self.root)
            found = JournalCache(self.root).words(experiments)
            self._words = dict(zip(experiments, found, strict=True))
        return self._words

    def runs(
        self, experiment: ExperimentPaths, numbers: Iterable[int] | None = None
    ) -> list[Selected]:
        """Return an experiment's runs by number: all, or those of ``numbers`` that exist."""
        known = self.history(experiment)
        wanted = sorted(known.runs if numbers is None else set(numbers))
        return [
            Selected(
                experiment=experiment,
                run=known.runs[number][1],
                paths=experiment.run(number),
                planned=known.runs[number][0],
                submission=known.submissions.get(number),
                annotation=known.annotations.get(number, NOTHING),
            )
            for number in wanted
            if number in known.runs
        ]

    def with_chains(self, selected: list[Selected], where: Sequence[str]) -> list[Selected]:
        """Insert, before runs of whole experiments, those of the experiments they depend on."""
        found: dict[Path, Selected] = {}
        seen: set[str] = set()

        def add_before(one: Selected) -> None:
            # The experiments that wait for others, and the names that are still to be followed.
            waiting: list[tuple[list[Selected], list[str]]] = [
                ([], [each.experiment for each in one.plan.depends_on])
            ]
            while waiting:
                runs, names = waiting[-1]
                if not names:
                    waiting.pop()
                    found.update((each.paths.directory, each) for each in runs)
                elif (name := names.pop(0)) not in seen and (before := self._chained(name)):
                    seen.add(name)
                    waiting.append(
                        (before, [each.experiment for each in before[-1].plan.depends_on])
                    )

        for one in selected:
            if (not where or one.experiment.name in where) and one.experiment.name not in seen:
                seen.add(one.experiment.name)
                add_before(one)
            found.setdefault(one.paths.directory, one)
        return list(found.values())

    def _chained(self, name: str) -> list[Selected]:
        experiment = self.named(name)
        try:
            return self.runs(experiment) if experiment else []
        except BrokenFile as error:
            self.warn(f"passed over: {error.message}")
            return []

    def history(self, experiment: ExperimentPaths) -> History:
        """Return all submissions of an experiment, read once."""
        key = experiment.directory
        if key not in self._histories:
            self._histories[key] = history.read(experiment, self.warn)
        return self._histories[key]

    def _one(self, argument: str) -> list[Selected]:
        name = argument.rstrip("/")
        if name != argument and (experiment := self.named(name)):
            return self._all(experiment)
        if is_job(argument):
            return self._job(argument)
        if (runs := _RUNS.fullmatch(argument)) and (experiment := self.named(runs["name"])):
            return self._numbered(experiment, runs["numbers"])
        experiment = self.named(argument) if _NAME.fullmatch(argument) else None
        submitted = self._spec(argument, experiment) if argument.endswith(_SPEC) else []
        if submitted:
            return submitted
        if experiment:
            return self._all(experiment)
        if _WILD.search(argument) and (pattern := _PATTERN.fullmatch(argument)):
            return self._matching(argument, pattern["name"], pattern["runs"])
        path = expand_home(argument)
        if os.path.isdir(path):  # noqa: PTH112 - `is_dir` would raise
            return self._directory(path)

        raise _no_match(self, argument)

    def named(self, name: str) -> ExperimentPaths | None:
        """Return the experiment of that very name under the root; None if there is none."""
        if name in ("", ".", "..") or "/" in name:
            return None
        experiment = layout.experiment(self.root, name)
        return experiment if experiment.exists else None

    def _matching(self, argument: str, name: str, numbers: str | None) -> list[Selected]:
        """Return the runs of a pattern of names and, behind a slash, of numbers."""
        everything = layout.experiments(self.root)
        experiments = [each for each in everything if fnmatchcase(each.name, name)]
        others = [one for one in experiments if self.own and not _is_mine(one)]
        if others:
            self.warn(f"left out, as they are another user's: {_names(others)}")
            experiments = [one for one in experiments if one not in others]
        if not experiments:
            from hpcrun.observe.read.filter import NothingMatches

            # A root that is there and empty is none that was mistyped.
            is_empty = not everything and self.root.is_dir()
            raise (NothingMatches if is_empty else UsageError)(
                f"no experiment {'of yours ' if others else ''}under {self.place} matches "
                f"{argument!r}",
                hint="to see those of others: hpcrun status --all-users"
                if others
                else f"experiments there: {_names(everything) or 'none'}",
            )
        spans = parse_ranges(numbers) if numbers and _LIST.fullmatch(numbers) else None
        found: list[Selected] = []
        there: list[str] = []
        for experiment in experiments:
            try:
                known = self.history(experiment).runs
            except BrokenFile as error:
                self.warn(f"passed over: {error.message}")
                continue
            there.append(f"{experiment.name} has {range_text(known)}")
            wanted = set(known)
            if spans is not None:
                wanted = {one for one in known if any(one in span for span in spans)}
            elif numbers:
                wanted = {one for one in known if fnmatchcase(str(one), numbers)}
            found += self.runs(experiment, wanted)
        if not found:
            runs = listed(there, 4, "; ", "; and {} more") or None
            raise UsageError(f"no run under {self.place} matches {argument!r}", hint=runs)
        return found

    def _spec(self, argument: str, named: ExperimentPaths | None) -> list[Selected]:
        """Return the runs whose newest plan was compiled from a spec file."""

        others = [one for one in layout.experiments(self.root) if one != named]
        matching = _submitted_from(others, argument)
        if named and matching:
            names = _names(list(matching))
            raise UsageError(
                f"{argument!r} could be the experiment of that name or the spec of {names}",
                hint=f"write {argument}/ for the experiment, or name {names}",
            )
        found: list[Selected] = []
        for experiment, spec in matching.items():
            file = _same_file(spec)
            found += [
                one for one in self.runs(experiment) if _same_file(one.plan.spec_file) == file
            ]
        return found

    def _all(self, experiment: ExperimentPaths) -> list[Selected]:
        if found := self.runs(experiment):
            return found
        raise BrokenFile(f"{experiment.directory} holds no plan yet: nothing was submitted")

    def _numbered(self, experiment: ExperimentPaths, text: str) -> list[Selected]:
        known = self.history(experiment).runs
        numbers: dict[int, None] = {}
        for part, span in zip(text.split(","), parse_ranges(text), strict=True):
            if not span:
                raise UsageError(f"{experiment.name}/{text}: the range {part} runs backwards")
            matching = [number for number in known if number in span]
            if not matching:
                raise UsageError(
                    f"{experiment.name} has no run {part}; its runs are {range_text(known)}"
                )
            numbers.update(dict.fromkeys(sorted(matching)))
        by_number = {one.run.number: one for one in self.runs(experiment, numbers)}
        return [by_number[number] for number in numbers]

    def _job(self, argument: str) -> list[Selected]:
        job_ids = {*expand_job_id(argument), argument}
        found: list[Selected] = []
        for experiment, words in self.words().items():
            try:
                if isinstance(words, BrokenFile):
                    raise words
                if numbers := words.runs_of(job_ids):
                    found += self.runs(experiment, numbers)
            except BrokenFile as error:
                self.warn(f"passed over: {error.message}")
        # Anybody under a shared root may write down the id of a job of mine.
        found = mine(found) or found
        named = self.named(argument)
        if found and named:
            raise UsageError(
                f"{argument!r} is an experiment and a job of {as_where(found)}",
                hint=f"write {argument}/ for the experiment, {as_where(found)} for the job",
            )
        if named:
            return self._all(named)
        if not found:
            raise UsageError(
                f"no run under {self.place} was submitted as job {argument}",
                hint="`hpcrun list` shows the experiments under the root; --root names another",
            )
        return found

    def _directory(self, path: Path) -> list[Selected]:
        full = path.absolute()
        if (found := layout.enclosing(full)) is not None:
            experiment, number = found
            return (
                self._all(experiment) if number is None else self._numbered(experiment, str(number))
            )
        under = layout.experiments(full)
        hint = f"WHERE is {_FORMS}"
        if under:
            hint = f"it is a root with {_names(under)}: --root {path}"
        raise UsageError(f"{path} is neither an experiment nor a run", hint=hint)


def is_name(text: str) -> bool:
    """Check whether a directory has the name of an experiment, which no shell reads as more."""
    return text.isascii() and _NAME.fullmatch(text) is not None


def _is_mine(experiment: ExperimentPaths) -> bool:
    return permissions.owner(experiment.directory) == os.geteuid()


def _names(experiments: Sequence[ExperimentPaths], most: int = 8) -> str:
    return listed([experiment.name for experiment in experiments], most)


def _submitted_from(
    experiments: Sequence[ExperimentPaths], argument: str
) -> dict[ExperimentPaths, str]:
    """Return the experiments that a spec file was submitted as, and its path in their plans.

    A name without a directory also stands for the one file of that name in another directory.
    Raises UsageError if experiments were submitted from several of these.
    """
    wanted = _same_file(expand_home(argument))
    alike: dict[ExperimentPaths, str] = {}
    exact: dict[ExperimentPaths, str] = {}
    for experiment in experiments:
        for paths in reversed(experiment.submissions()):
            spec = _spec_file(paths)
            if spec is not None and Path(spec).name == Path(argument).name:
                (exact if _same_file(spec) == wanted else alike).setdefault(experiment, spec)
    if exact or "/" in argument or os.path.isfile(argument):  # noqa: PTH113 - `is_file` may raise
        return exact
    places = dict.fromkeys(map(_same_file, alike.values()))
    if len(places) > 1:
        named = ", ".join(f"{one.name} (from {spec})" for one, spec in alike.items())
        raise UsageError(
            f"{argument!r} could be the spec of several experiments: {named}",
            hint="name the experiment, or the file with its directory",
        )
    return alike


def _spec_file(paths: SubmissionPaths) -> str | None:
    """Return the spec's path of a submission, without reading all of its plan; None if unknown."""
    with contextlib.suppress(OSError, ValueError):
        with files.open_stream(paths.plan) as stream:
            found = _SPEC_FILE.search(stream.read(_PLAN_HEAD).decode(errors="replace"))
        return str(json.loads(found[1])) if found else None
    return None


def _same_file(path: str | Path) -> str:
    """Return the path by which two names of one file are equal."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return str(path)


def _no_match(finder: Finder, argument: str) -> UsageError:
    """Return the error for a word that no form of a WHERE fits, with what may be meant."""
    from difflib import get_close_matches

    from hpcrun.observe.read.filter import METRIC
    from hpcrun.observe.status.run_state import STATES

    names = [experiment.name for experiment in layout.experiments(finder.root)]
    name = argument.partition("/")[0]
    if name in names:
        numbers = range_text(finder.history(layout.experiment(finder.root, name)).runs)
        return UsageError(
            f"{argument!r} is not a run of {name}; its runs are {numbers}",
            hint=f"write {name}/0 or {name}/0-3",
        )
    words = argument.split()
    if name.lower() == "all":
        hint = "all experiments are '*', all runs of one are its name"
    elif (colon := _COLON.fullmatch(argument)) and _key_short_for(finder, colon[1]):
        hint = f"a condition has another sign: {colon[1]}={colon[2]}"
    elif said := _IN_WORDS.fullmatch(argument):
        sign = "!=" if "not" in said[2] else "="
        hint = f"did you mean '{said[1]}{sign}{said[3]}'?"
    elif (near := _NEARLY_RUNS.fullmatch(argument)) and near[1] in names:
        hint = f"did you mean {near[1]}/{near[2]}?"
    elif len(words) > 1 and not set(STATES).isdisjoint(map(str.lower, words)):
        states = (f"state={word.lower()}" if word.lower() in STATES else word for word in words)
        hint = f"did you mean '{' '.join(states)}'?"
    elif argument.startswith(METRIC):
        hint = f"in quotes, as the shell takes < and > for files: '{argument}<VALUE'"
    elif argument.lower() in STATES:
        hint = f"for the runs in that state: state={argument.lower()}"
    elif argument and (key := _key_short_for(finder, argument)):
        hint = (
            f"{key} is a key: write {argument}=VALUE, or '{argument}>=VALUE' in quotes, as the "
            "shell takes < and > for files"
        )
    elif argument.endswith(_SPEC):
        hint = (
            f"nothing was submitted from that file: `hpcrun plan {argument}` shows its runs, "
            f"`hpcrun submit {argument}` submits them"
        )
    elif close := get_close_matches(name, names, n=3, cutoff=0.5):
        hint = f"did you mean {', '.join(close)}?"
    elif names:
        hint = f"experiments there: {listed(names, 8)}"
    else:
        hint = "there are no experiments; --root names another root"
    return UsageError(
        f"nothing under {finder.place} matches {shortened(argument, 200)!r}", hint=hint
    )


def _key_short_for(finder: Finder, word: str) -> str | None:
    """Return a key of the newest experiment that a word is short for."""
    from hpcrun.observe.read.filter import FACTS
    from hpcrun.observe.read.run_values import NOTE, TAG, flatten

    try:
        run = finder.runs(finder.newest())[0].run
    except (UsageError, IndexError):
        return None
    keys = (*run.swept, *FACTS, TAG, NOTE, *flatten(run.spec))
    return next((key for key in keys if f".{key}".endswith(f".{word}")), None)
