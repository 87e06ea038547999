"""Selection of runs: WHERE arguments resolved to runs on disk.

A WHERE is an experiment (``NAME``; ``NAME/`` whatever else the word could mean), runs (``NAME/3``,
``NAME/0-3,7``), a pattern of these (``fine*``, ``*/3``), a job (``123``, ``123_4``), the spec file
that experiments were submitted from, or a directory of an experiment or a run, under any root;
several are a union. Words such as ``state=failed`` narrow it (`hpcrun.observe.read.filter`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from hpcrun.errors import BrokenFile, UsageError
from hpcrun.host import expand_home
from hpcrun.slurm.hostlist import expand_job_id, parse_ranges
from hpcrun.state import history, layout, permissions
from hpcrun.state.annotation_log import NOTHING, Annotation
from hpcrun.state.history import History, Planned
from hpcrun.state.journal import Job
from hpcrun.state.layout import ExperimentPaths, RunPaths
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.text import Say, listed, range_text, ranges

_NUMBERS = "[0-9]{1,18}(?:-[0-9]{1,18})?"
_LIST = re.compile(rf"{_NUMBERS}(?:,{_NUMBERS})*")
_RUNS = re.compile(rf"(?P<name>[^/]+)/(?P<numbers>{_LIST.pattern})/?")
_NAME = re.compile(r"[A-Za-z][\w.+-]*")
_JOB = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,18}|_\[[0-9,:%-]{1,999}\])?|local:[0-9]{1,18}")
_PATTERN = re.compile(r"(?P<name>[^/.~][^/]*)(?:/(?P<runs>[^/]*))?")
_WILD = re.compile(r"[*?\[]")
_SPEC = (".yaml", ".yml")
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


def begun(selected: Sequence[Selected]) -> list[bool]:
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


def as_where(selected: Iterable[Selected]) -> str:
    """Return runs as a WHERE: ``NAME/0-3,7``, one for each experiment."""
    numbers: dict[str, list[int]] = {}
    for one in selected:
        numbers.setdefault(one.experiment.name, []).append(one.run.number)
    return " ".join(f"{name}/{','.join(ranges(these))}" for name, these in numbers.items())


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
        all_of_them = layout.experiments(self.root)
        dated = [(history.last_submission(experiment), experiment) for experiment in all_of_them]
        mine = [(when, it) for (when, uid), it in dated if uid in (None, os.geteuid())]
        if not mine:
            others = f"; it has experiments of others: {_names(all_of_them)}" if all_of_them else ""
            raise UsageError(
                f"you have no experiment under {self.root}{others}",
                hint="submit one with `hpcrun submit SPEC`, or name the root with --root",
            )
        return max(mine, key=lambda pair: (pair[0], pair[1].name))[1]

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
        plans = {id(one.plan): one.plan for one in selected}
        if not any(plan.depends_on for plan in plans.values()):
            return selected
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
        from hpcrun.observe.read import no_match

        raise no_match.error(self, argument)

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
        if self.own and (others := [one for one in experiments if not _is_mine(one)]):
            self.warn(f"left out, as they are another user's: {_names(others)}")
            experiments = [one for one in experiments if one not in others]
        if not experiments:
            raise UsageError(
                f"no experiment under {self.root} matches {argument!r}",
                hint=f"experiments there: {_names(everything) or 'none'}",
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
            raise UsageError(f"no run under {self.root} matches {argument!r}", hint=runs)
        return found

    def _spec(self, argument: str, named: ExperimentPaths | None) -> list[Selected]:
        """Return the runs whose newest plan was compiled from a spec file."""
        from hpcrun.observe.read import spec_experiments

        others = [one for one in layout.experiments(self.root) if one != named]
        matching = spec_experiments.submitted_from(others, argument)
        if named and matching:
            names = _names(list(matching))
            raise UsageError(
                f"{argument!r} could be the experiment of that name or the spec of {names}",
                hint=f"write {argument}/ for the experiment, or name {names}",
            )
        found: list[Selected] = []
        for experiment, spec in matching.items():
            file = spec_experiments.same_file(spec)
            found += [
                one
                for one in self.runs(experiment)
                if spec_experiments.same_file(one.plan.spec_file) == file
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
        for experiment in layout.experiments(self.root):
            try:
                if numbers := history.runs_of_jobs(experiment, job_ids):
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
                f"no run under {self.root} was submitted as job {argument}",
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


def default_root() -> Path:
    """Return HPCRUN_ROOT, or ``~/hpcrun``."""
    return expand_home(os.environ.get("HPCRUN_ROOT") or "~/hpcrun").absolute()


def _is_mine(experiment: ExperimentPaths) -> bool:
    return permissions.owner(experiment.directory) == os.geteuid()


def _names(experiments: Sequence[ExperimentPaths], most: int = 8) -> str:
    return listed([experiment.name for experiment in experiments], most)
