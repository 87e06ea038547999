"""Calls for Python programs that submit and read runs: ``hpcrun.submit``, ``hpcrun.experiment``.

They do what the commands do, by the same code, in the program's own process. torch is never
imported. To add a call, write it here on top of what its command calls, name it in
``hpcrun/__init__.py`` and describe it in docs/python.md.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcrun import activity
from hpcrun.errors import UsageError
from hpcrun.host import expand_home
from hpcrun.observe import results
from hpcrun.observe.read import filter
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.observe.status.status import RunStatus, statuses
from hpcrun.slurm import patience
from hpcrun.state import layout, root_place
from hpcrun.text import Say


def tell(message: str) -> None:
    """Print a message for the person on standard error, as the commands do."""
    with activity.printing():
        print(message, file=sys.stderr, flush=True)


def _telling_on_stderr(say: Say) -> AbstractContextManager[None]:
    """Tell on standard error during the block what is done, unless messages go elsewhere."""
    return activity.tell_on(sys.stderr if say is tell else None)


class Experiment:
    """An experiment under a root, read anew at every call.

    `hpcrun.experiment` and `hpcrun.submit` return it. Conditions are those of ``--where``:
    ``"lr>=1e-3"``, ``"state=failed"``, ``"metric.loss<2"``.

    Attributes
    ----------
    name
        The experiment's name.
    directory
        Where its plans and runs lie.
    """

    def __init__(self, directory: Path, say: Say = tell) -> None:
        self._paths = layout.ExperimentPaths(directory)
        self._say = say

    def __repr__(self) -> str:
        return f"<experiment {self.name} in {self.directory.parent}>"

    @property
    def name(self) -> str:
        return self._paths.name

    @property
    def directory(self) -> Path:
        return self._paths.directory

    def runs(self, *conditions: str) -> list[RunStatus]:
        """Return the state of each run that meets all conditions, by number.

        Where Slurm does not answer within seconds, that is said, and states are those on disk.
        Raises UsageError for a condition that cannot be read, or that no run meets.
        """
        with self._reading():
            return statuses(self._selected(conditions), warn=self._say)

    def results(self, *conditions: str) -> list[dict[str, Any]]:
        """Return a row for each run: ``run``, swept keys, ``state``, ``step`` and metrics.

        A metric's name holds its last value; the objective has ``METRIC.first``, ``METRIC.best``
        and ``METRIC.best_step`` beside it. Every row has all columns; None is an empty cell. Raises
        as `runs`.
        """
        with self._reading():
            selected = self._selected(conditions)
            known = statuses(selected, warn=self._say)
            return results.collect(selected, known, warn=self._say).to_data()

    def frame(self, *conditions: str) -> Any:
        """Return `results` as a pandas DataFrame, indexed by run.

        Raises UsageError where pandas is not installed, and as `runs`.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise UsageError(
                "frame() makes a pandas DataFrame, and this Python has no pandas",
                hint="pip install pandas, or take the rows of results()",
            ) from None
        rows = self.results(*conditions)
        return pandas.DataFrame(rows).set_index("run")

    def wait(
        self, runs: Iterable[int] | None = None, *, timeout: float | None = None
    ) -> list[RunStatus]:
        """Wait until none of the runs is queued or running, and return their states.

        Parameters
        ----------
        runs
            Numbers of runs; None for all.
        timeout
            Seconds.

        Raises
        ------
        TimeoutError
            Some go on after that time.
        UsageError
            There is no such run.
        """
        from hpcrun.control.wait import wait

        numbers = [one.run.number for one in self._of(runs)]
        with _telling_on_stderr(self._say):
            wait(self._paths, numbers, say=self._say, timeout=timeout)
        with self._reading():
            return statuses(Finder(self._paths.root).runs(self._paths, numbers), warn=self._say)

    def logs(
        self,
        runs: Iterable[int] | int | None = None,
        *,
        rank: Iterable[int] | int | None = None,
        attempt: int | str | None = None,
        stream: str = "worker",
        tail: int | None = None,
        grep: str | None = None,
    ) -> Iterator[LogLine]:
        """Yield lines of logs as they are now, run by run, attempt by attempt, rank by rank.

        Parameters
        ----------
        runs
            Numbers of runs; None for all.
        rank
            Numbers of ranks; None for all.
        attempt
            A number from 1, ``"all"``, or None for the newest.
        stream
            ``worker`` (ranks), ``agent``, ``batch``, ``other`` or ``all``.
        tail
            At most so many of the last lines of each file.
        grep
            Only lines in which this regular expression finds something.

        Raises
        ------
        UsageError
            There is no such run, rank, attempt or stream, or the expression is wrong.
        """
        from hpcrun.observe.logs import log_files
        from hpcrun.observe.logs.render import LineFilter, Printer, read

        if stream not in (streams := ("worker", "agent", "batch", "other", "all")):
            raise UsageError(f"stream={stream!r} is none of {', '.join(streams)}")
        selected = self._of([runs] if isinstance(runs, int) else runs)
        ranks = [rank] if isinstance(rank, int) else rank
        choice = log_files.LogChoice(
            streams=stream,
            ranks=None if ranks is None else frozenset(ranks),
            attempt=attempt,
        )
        try:
            chosen = LineFilter(None if grep is None else re.compile(grep))
        except re.error as error:
            raise UsageError(f"grep={grep!r} is not a regular expression: {error}") from None
        if dropped := log_files.check(selected, choice):
            self._say(dropped)
        found = read(
            log_files.sources(selected, choice),
            Printer(selected, as_json=True),
            chosen,
            begin=None if tail is None else lambda one: one.begin_with(tail, bars=False),
            fold=False,
        )
        # A generator of its own, so that what is wrong is told before the first line is asked for.
        return (LogLine(**json.loads(line)) for part in found for line in part.splitlines())

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with _telling_on_stderr(self._say), patience.reading(self._say):
            yield

    def _of(self, runs: Iterable[int] | None) -> list[Selected]:
        """Return runs by their numbers, all of them for None; raise UsageError for others."""
        found = {one.run.number: one for one in self._selected(())}
        wanted = sorted(found if runs is None else set(runs))
        if missing := [number for number in wanted if number not in found]:
            raise UsageError(
                f"{self.name} has no run {missing[0]}: it has {min(found)} to {max(found)}"
            )
        return [found[number] for number in wanted]

    def _selected(self, conditions: Sequence[str]) -> list[Selected]:
        found = Finder(self._paths.root, warn=self._say).runs(self._paths)
        if not found:
            raise UsageError(
                f"no plan of {self.name} can be read in {self.directory}",
                hint="`hpcrun list` shows the experiments that can",
            )
        if not conditions:
            return found

        def look(runs: Sequence[Selected], values: bool) -> list[RunStatus]:
            return statuses(runs, warn=self._say, values=values)

        return filter.narrow(found, conditions, "condition", look=look, say=self._say)


def experiment(
    name: str, *, root: str | os.PathLike[str] | None = None, say: Say = tell
) -> Experiment:
    """Return an experiment that was submitted.

    Parameters
    ----------
    name
        Its name, its directory, or the spec file that it was submitted from.
    root
        The directory of experiments; by default ``HPCRUN_ROOT``, or ``~/hpcrun-runs``.
    say
        Takes messages for the person; by default they go to standard error.

    Raises
    ------
    UsageError
        There is no such experiment, or the spec was submitted as several.
    """
    place = root_place.default_root() if root is None else expand_home(os.fspath(root)).absolute()
    if root is None:
        root_place.tell_of_earlier(place, say)
    found = Finder(Path(os.path.realpath(place)), warn=say).resolve([name])
    several = list(dict.fromkeys(one.experiment for one in found))
    if len(several) > 1:
        names = ", ".join(one.name for one in several)
        raise UsageError(f"{name!r} stands for {len(several)} experiments: {names}; name one")
    return Experiment(several[0].directory, say)


@dataclass(frozen=True)
class LogLine:
    """A line of a log and where it comes from; None stands for what does not apply to its stream.

    Attributes
    ----------
    experiment, run
        The run's name is ``experiment/run``.
    attempt
        The attempt's number, from 1.
    rank
        The rank that wrote it.
    stream
        ``worker`` (ranks), ``agent``, ``batch`` or ``other``.
    node
        The name of the node, of an agent's line.
    line
        The text, without its end.
    """

    experiment: str
    run: int
    attempt: int | None
    rank: int | None
    stream: str
    node: str | None
    line: str


def submit(
    spec: str | os.PathLike[str],
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    sweeps: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    root: str | os.PathLike[str] | None = None,
    new: bool = False,
    check: bool = True,
    yes: bool = False,
    say: Say = tell,
) -> Experiment:
    """Submit every run of a spec that has neither completed nor is on its way, as the command does.

    Parameters
    ----------
    spec
        The spec file, or the name of a spec that the command would find too.
    overrides
        Values by key, such as ``{"config.lr": 1e-3}``, or as typed: ``["config.lr=1e-3"]``.
    sweeps
        Values to sweep by key, ``{"config.lr": [1e-3, 1e-4]}``, or as typed: ``["lr=1e-3,1e-4"]``.
    root
        The directory of experiments; by default ``HPCRUN_ROOT``, or what the cluster profile says.
    new
        Give every run a new number, even if the same run exists.
    check
        Ask the cluster first what it would refuse.
    yes
        Submit although it may cost more hours than the cluster profile lets pass unasked, or the
        default cluster is another than before.
    say
        Takes messages for the person; by default they go to standard error.

    Returns
    -------
    Experiment
        The spec's own, without those that it depends on, which are submitted before it.

    Raises
    ------
    SpecError
        The spec is wrong; nothing was submitted.
    UsageError
        It cannot be submitted, or ``yes`` is wanted.
    ClusterRefused, ClusterUnreachable
        Slurm refuses the jobs, or does not answer.
    """
    from hpcrun.compile import compile_chain
    from hpcrun.submission.cluster_choice import other_cluster
    from hpcrun.submission.most_hours import asks_first
    from hpcrun.submission.submit import Request, submit_chain

    typed = [*_words_of(overrides, json.dumps)]
    swept = [*_words_of(sweeps, lambda values: json.dumps(list(values))[1:-1])]
    named = os.environ.get("HPCRUN_ROOT") if root is None else os.fspath(root)
    place = expand_home(named).absolute() if named else None
    chain = compile_chain(
        os.fspath(spec), typed, swept, root=None if place is None else Path(os.path.realpath(place))
    )
    request = Request(["hpcrun.submit", os.fspath(spec), *typed, *swept], say, new)
    if found := other_cluster(chain):
        if not yes:
            raise UsageError(str(found), hint=f"{found.hint}; or say yes=True")
        say(str(found))
    with _telling_on_stderr(say), patience.acting(say):
        if not yes and (question := asks_first(chain, request)):
            raise UsageError(f"this would {', '.join(question)}", hint="say yes=True")
        if check:
            from hpcrun.check.check import SubmitCheck

            request = replace(request, check=SubmitCheck(say, [*typed, *swept]))
        done = submit_chain(chain, request)
    return Experiment(done[-1].directory, say)


def _words_of(
    given: Mapping[str, Any] | Sequence[str], written: Callable[[Any], str]
) -> Iterator[str]:
    """Yield the words that a person would type: JSON is YAML."""
    if isinstance(given, str):
        raise UsageError(
            f"found the text {given!r}; wanted are values by key",
            hint='write {"config.lr": 1e-3} or ["config.lr=1e-3"]',
        )
    if not isinstance(given, Mapping):
        yield from given
        return
    for key, value in given.items():
        try:
            yield f"{key}={written(value)}"
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the value of {key!r} cannot be written into a spec: {error}",
                hint="give numbers, texts, true, false, None, and lists and dicts of these",
            ) from None
