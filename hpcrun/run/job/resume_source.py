"""The files that a script or command resumes from: looked for once, as an attempt starts."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hpcrun import shared_look
from hpcrun.policy import causes, resume
from hpcrun.run.program.file_search import FoundFile, walk
from hpcrun.run.program.save_watch import STEP, Place, place_of
from hpcrun.run.program.whole_saves import damage
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import say
from hpcrun.state import files, ledger, metrics_file, session_log
from hpcrun.state.layout import AttemptPaths, NamedFile, RunPaths
from hpcrun.state.spec.recovery_block import NEWEST_DIRECTORY, NEWEST_STEP, Resume
from hpcrun.text import listed

# What programs, and what watches them, write before anything is saved: by its name, and by that of
# a directory above it.
_NO_SAVES = re.compile(
    r"""
    .*\.(csv|err|html|lock|log|md|out|png|py|pyc|tsv|txt|ya?ml
        |arrow|cfg|ini|toml|sh|cc|cpp|cu|cuh|h|ninja|o|so|gif|jpe?g|pdf|svg
        |dmp|nsys-rep|qdrep|ncu-rep|prof|pid|sock|swp|tmp)
    | \..* | .*tfevents.* | .*\.trace\.json(\.gz)? | wandb-.*\.json | (vg)?core([._-].*)?
    | nccl_trace.*
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NO_SAVES_IN = re.compile(
    r"wandb|mlruns|__pycache__|(.*[_-])?caches?|torchinductor_.*|torch_extensions"
    r"|torch_compile_debug",
    re.IGNORECASE,
)
_OWN = frozenset(one._name for one in vars(RunPaths).values() if isinstance(one, NamedFile))
_LOOK_EVERY = 2.0
_ENDED = "attempt {}, which resumed, ended before its first step"


class _Nothing(Exception):
    """The attempt starts from nothing, for this reason."""


def decided(launch: Launch) -> Launch:
    """Return the attempt as its ranks start it: resumed, or as the first one was.

    ``launch.resume`` then has the fields of the ledger's ``resume``, and ``variables``. It
    stays None for a first attempt, for a function, and where the spec says nothing about resuming.
    """
    earlier = [one for one in launch.run_paths.attempts() if one.number < launch.attempt]
    if not earlier or launch.entry.kind == "function":
        return launch
    block, entry = launch.spec.get("recovery") or {}, launch.entry
    found = resume.of(block, launch.spec.get("framework"), entry.argv, entry.recipe)
    if found is None:
        return launch
    try:
        source, number, message = _source(found, launch, earlier)
    except _Nothing as nothing:
        reached = max(_without_none(map(_last_step, earlier)), default=None)
        message = f"starts from nothing: {nothing}"
        if reached is not None:
            message += f"; step {reached:,} had been reached"
        told = {"resumes": False, "message": message, "reached": reached}
        return dataclasses.replace(launch, resume=told)
    argv = (*entry.argv, *found.args) if entry.resumed is None else entry.resumed
    told = {"resumes": True, "message": message, "source": source and str(source), "step": number}
    started = dataclasses.replace(launch, entry=dataclasses.replace(entry, argv=argv), resume=told)
    new = [word for word in argv if word not in entry.argv]
    told = {**told, "arguments": started.fill(new, launch.nodes[0])}
    return dataclasses.replace(started, resume={**told, "variables": found.environment})


def _source(
    found: Resume, launch: Launch, earlier: Sequence[AttemptPaths]
) -> tuple[Path | None, int | None, str]:
    """Return the newest match, if any is asked for, its number, and words; raise `_Nothing`."""
    refused = _refused(launch, earlier)
    if not found.when:
        for attempt in refused.values():
            raise _Nothing(_ENDED.format(attempt))
        return None, None, f"resumes: {_trace(launch, earlier)}"
    if len(refused) > 1:
        attempts = listed([str(one) for one in sorted(refused.values())], 3)
        raise _Nothing(f"attempts {attempts}, which resumed, ended before their first steps")
    directory = launch.directory_of()
    words = repr([found.args, found.instead, found.config, found.environment])
    is_directory = f"${{hpcrun:{NEWEST_DIRECTORY}}}" in words
    is_numbered = f"${{hpcrun:{NEWEST_STEP}}}" in words
    damaged: list[str] = []
    matches = _newest_first(found.when, launch)
    for index, match in enumerate(matches):
        path = match.path
        why = damage(path)
        if why is None and str(path) in refused:
            why = f"is not taken again: {_ENDED.format(refused[str(path)])}"
        if why is None and is_directory and match.is_directorys:
            # The program reads all of it.
            why = damage(path.parent)
        if why is None and is_numbered and not match.place.numbers:
            why = f"tells no step, which ${{hpcrun:{NEWEST_STEP}}} is to be"
        if why is None:
            later = next((one for one in matches[index + 1 :] if one.place.kind == STEP), None)
            if later is not None and match.place.kind != STEP:
                step = later.place.numbers[0]
                damaged.append(f"newer than {_relative(later.path, directory)} of step {step:,}")
            more = f" ({listed(damaged, 3, '; ')})" if damaged else ""
            shown = _relative(path.parent if is_directory else path, directory)
            return path, _number(match, matches), f"resumes from {shown}{more}"
        damaged.append(f"{_relative(path, directory)} {why}")
    patterns = " or ".join(found.when)
    if damaged:
        raise _Nothing(f"of {patterns} {listed(damaged, 3, '; ')}")
    raise _Nothing(f"no file matches {patterns}")


def _number(match: _Match, matches: Sequence[_Match]) -> int | None:
    """Return the number of a save: of its name's the last that differs among its like."""
    series = [one.place.numbers for one in matches if one.place.kind == match.place.kind]
    own = match.place.numbers
    differ = [at for at, one in enumerate(own) if {each[at] for each in series} != {one}]
    return own[(differ or [-1])[-1]] if own else None


def _refused(launch: Launch, earlier: Sequence[AttemptPaths]) -> dict[str | None, int]:
    """Return what the last attempts resumed from that failed by themselves before any step.

    With each the attempt's number. Whether there was a step is known where an earlier attempt
    logged some; a program that ended with exit code 2 did not understand its arguments.
    """
    found: dict[str | None, int] = {}
    stepped = {one.number for one in earlier if _last_step(one) is not None}
    for one in reversed(ledger.read(launch.run_paths)):
        if one.number >= launch.attempt:
            continue
        told, code = one.resume or {}, one.cause.get("exit_code")
        crashed = one.kind == causes.RANK_CRASH and (stepped or code == causes.USAGE)
        if not (crashed and told.get("resumes")) or one.number in stepped:
            break
        found.setdefault(told.get("source"), one.number)
    return found


class _Match(NamedTuple):
    path: Path
    is_directorys: bool
    """Its directory is one save: the pattern chooses among such directories, as in
    ``checkpoint-*/trainer_state.json``. Where ``latest`` names the save, there are several in one.
    """
    place: Place
    modified: float


def _newest_first(patterns: Sequence[str], launch: Launch) -> list[_Match]:
    """Return the files and directories that match, the newest saves first.

    Of those that tell their step the highest, whenever it was touched; likewise those of epochs,
    and of names that differ in their numbers. Between such series, and where there is no number,
    the time of change decides.
    """
    found: dict[Path, _Match] = {}
    for pattern in patterns:
        above = PurePosixPath(pattern).parent.name
        chooses = above != "**" and glob.has_magic(above)
        for path in _matches(pattern, launch):
            with contextlib.suppress(OSError):
                # What is known of it without that may be of before its last save.
                shared_look.modified(path)
            with contextlib.suppress(OSError):
                state = path.stat()
                if stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode):
                    is_one = chooses and path.name != "latest"
                    is_there = stat.S_ISDIR(state.st_mode)
                    file = FoundFile(path, state.st_size, state.st_mtime, state.st_ino, is_there)
                    place = place_of(file, by_directory=is_one)
                    found[path] = _Match(path, is_one, place, state.st_mtime)
    series: dict[str, list[_Match]] = {}
    for match in sorted(
        found.values(), key=lambda one: (one.place.numbers, one.modified, one.path)
    ):
        series.setdefault(match.place.kind, []).append(match)
    ordered: list[_Match] = []
    while series:
        kind = max(series, key=lambda one: (series[one][-1].modified, one))
        ordered.append(series[kind].pop())
        if not series[kind]:
            del series[kind]
    return ordered


def _matches(pattern: str, launch: Launch) -> Iterator[Path]:
    """Yield what a pattern matches; not in the code, nor through links below a ``**``."""
    pattern = pattern.replace("${hpcrun:directory}", glob.escape(launch.directory))
    code = tuple(os.path.realpath(node.code) + os.sep for node in launch.nodes)
    head, stars, tail = pattern.partition("**/")
    places: Iterator[str] = iter([""])
    if stars:
        tops = _glob(head, launch.directory_of()) if head else [""]
        places = (place for top in tops for place, _, _ in walk(launch.directory_of() / top))
    for place in places:
        root = launch.directory_of() / place
        for name in _glob(tail if stars else pattern, root):
            path = root / name
            if not os.path.realpath(path).startswith(code):
                yield path


def _glob(pattern: str, root: Path) -> Iterator[str]:
    # Unlike `Path.glob` it takes absolute patterns.
    return glob.iglob(pattern, root_dir=root)  # noqa: PTH207


def _trace(launch: Launch, earlier: Sequence[AttemptPaths]) -> str:
    """Return what an earlier attempt may have saved, without a pattern; raise `_Nothing`."""
    for attempt in reversed(earlier):
        for event in reversed([*session_log.read_any(attempt).of(session_log.SAVED)]):
            return f"attempt {attempt.number} saved step {event.step}"
    began = min(_began(attempt) for attempt in earlier)
    places = [launch.run_paths.work]
    with os.scandir(launch.directory) as entries:
        places += [Path(entry.path) for entry in entries if entry.name not in _OWN]
    for place, since in [
        *((one, 0.0) for one in places),
        *((p, began) for p in _argument_paths(launch)),
    ]:
        if (left := _find_save(place, since)) is not None:
            return f"an earlier attempt left {_relative(left, launch.directory_of())}"
    stepped = next((one for one in earlier if _last_step(one) is not None), None)
    if stepped is not None and not _own_directories(launch):
        # It writes nothing here, and so elsewhere.
        return f"attempt {stepped.number} logged steps, and writes elsewhere"
    raise _Nothing(
        f"no earlier attempt has left a file in {launch.run_paths.work}, or where its arguments "
        "point; recovery.resume.when can name what must be there"
    )


def _began(attempt: AttemptPaths) -> float:
    try:
        return attempt.launch.stat().st_mtime
    except OSError:
        return time.time()


def _find_save(place: Path, since: float) -> Path | None:
    """Return a file, of this time or later, that may be something saved: neither link nor log."""
    if not place.is_dir():
        return place if _is_saved(place, since) else None
    inside = (
        Path(top, name)
        for top, _, names in walk(place)
        if not any(map(_NO_SAVES_IN.fullmatch, Path(top).relative_to(place).parts))
        for name in names
    )
    return next((path for path in inside if _is_saved(path, since)), None)


def _is_saved(path: Path, since: float) -> bool:
    if _NO_SAVES.fullmatch(path.name):
        return False
    try:
        found = path.lstat()
        if not (stat.S_ISREG(found.st_mode) and found.st_size and found.st_mtime >= since):
            return False
        with files.open_stream(path) as stream:
            # Not a core, nor anything else that a machine executes.
            return stream.read(4) != b"\x7fELF"
    except OSError:
        return False


def _argument_paths(launch: Launch) -> list[Path]:
    """Return the absolute paths among the arguments and the variables."""
    words = [*launch.entry.argv, *launch.environment.variables.values()]
    values = {value for word in words for value in (word, word.partition("=")[2])}
    known = [value for value in values if "${hpcrun:newest" not in value]
    filled = launch.fill(known, launch.nodes[0])
    return [Path(value) for value in filled if value.startswith("/") and value.strip("/")]


def _own_directories(launch: Launch) -> list[str]:
    """Return the directories that the program has made in its working directory."""
    directory = launch.directory_of()
    code = Path(launch.nodes[0].code) / launch.working_directory
    try:
        with os.scandir(directory) as entries:
            found = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    # A link leads from the copy of the code to what the program has made.
    of_code = {name for name in found if (code / name).exists() and not (code / name).is_symlink()}
    return [name for name in found if not name.startswith(".") and name not in of_code]


def _relative(path: Path, directory: Path) -> str:
    return str(path.relative_to(directory) if path.is_relative_to(directory) else path)


def _last_step(attempt: AttemptPaths) -> int | None:
    return metrics_file.last_step(attempt.metrics)


def _without_none(steps: Iterable[int | None]) -> list[int]:
    return [step for step in steps if step is not None]


class StartOver:
    """The watch for a script or command that begins again at the step of a first attempt.

    ``record`` writes an event of the ledger.
    """

    def __init__(self, launch: Launch, record: Callable[..., None]) -> None:
        self._launch, self._record = launch, record
        self._look_at = 0.0
        paths = launch.run_paths.attempts() if launch.entry.kind != "function" else []
        self._earlier = [one for one in paths if one.number < launch.attempt]
        has_stepped = any(_last_step(one) is not None for one in self._earlier)
        self._done = not has_stepped or (launch.resume or {}).get("reached") is not None

    def turn(self) -> None:
        """Look at the first step that is logged, once there is one."""
        if not self._done and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_EVERY
            self.look()

    def look(self) -> None:
        """Look now."""
        step = None if self._done else metrics_file.first_step(self._launch.paths.metrics)
        if step is None:
            return
        self._done = True
        told, log = self._launch.resume or {}, session_log.read_any(self._launch.paths)
        units = {None, log.unit}
        alike = [
            one
            for one in self._earlier
            if log.unit is None or session_log.read_any(one).unit in units
        ]
        first = min(
            _without_none(metrics_file.first_step(one.metrics) for one in alike), default=None
        )
        reached = max(_without_none(map(_last_step, alike)), default=0)
        # It may have saved before it first logged.
        is_first = step == first == reached and told.get("resumes")
        # A session knows by itself where it began.
        if first is None or step > first or is_first or log.restored_step is not None:
            return
        why = "say how it goes on, by recovery.resume"
        if told.get("resumes"):
            source = told.get("source") or "what had been saved"
            why = f"it did not go on from {source}, or counts anew from there"
        message = f"began over at step {step:,}, though step {reached:,} had been reached; {why}"
        say(f"attempt {self._launch.attempt} {message}")
        self._record(ledger.BEGAN_OVER, step=step, reached=reached, message=message)
