"""Find and remove what runs that are over have left on disk and need no more."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcrun import activity, shared_look
from hpcrun.control import removal
from hpcrun.errors import BrokenFile, HpcrunError, Interrupted, UsageError
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.observe.status import run_state, slurm_cache
from hpcrun.observe.status.jobs import Answers, JobRef
from hpcrun.observe.status.status import RunStatus, deciding_job, observe
from hpcrun.policy import causes
from hpcrun.policy.retention import Retention
from hpcrun.state import files, layout, manifest, permissions
from hpcrun.state.environment import frozen_environment
from hpcrun.state.environment.frozen_environment import FrozenEnvironment
from hpcrun.state.init_from import Origin
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.manifest import Fault, Manifest
from hpcrun.submission import lock
from hpcrun.text import Say, listed, plural, size

CHECKPOINT = "checkpoint"
INCOMPLETE = "incomplete checkpoint"
DAMAGED = "damaged checkpoint"
CONVERSION = "conversion"
TEMPORARY = "temporary file"
LOG = "log"

# Seconds for which a checkpoint without a manifest was not changed, on the storage's clock.
_SETTLED = shared_look.SEEN_WITHIN + 45
# Directories that others use as long as they exist.
_WHOLE = (CHECKPOINT, CONVERSION)
# Seconds in which a submit that uses an environment has written that down, and far more.
LATELY = 600.0


@dataclass(frozen=True)
class CleanupChoice:
    """A choice of the things to remove."""

    everything: bool = False
    """Every checkpoint, not only the old ones."""
    logs: bool = False
    """Logs, too."""
    before: float | None = None
    """Only of runs that were last updated before, in seconds since the epoch."""


@dataclass(frozen=True)
class Item:
    """A file or directory that may be removed."""

    kind: str
    """One of this module's constants."""
    path: Path
    bytes: int
    """Bytes of all files in it."""


@dataclass(frozen=True)
class Leftovers:
    """The items of one run."""

    run: Selected
    status: RunStatus
    items: tuple[Item, ...] = ()
    """In the order of removal: the newest checkpoint last."""
    spared: str | None = None
    """Why the run, or something of it, is left alone; None if nothing is."""

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    def to_data(self, removed: Collection[Path]) -> dict[str, Any]:
        """Return plain data for JSON, given the paths that were removed."""
        items = [
            {**vars(item), "path": str(item.path), "removed": item.path in removed}
            for item in self.items
        ]
        return {
            **{"experiment": self.status.experiment, "run": self.status.run},
            **{"state": self.status.state, "spared": self.spared},
            **{"items": items, "bytes": self.bytes},
        }


def find(selected: Sequence[Selected], choice: CleanupChoice, warn: Say) -> list[Leftovers]:
    """Return what may be removed of each run, in the order given.

    Of a completed run all checkpoints but the newest and those of ``checkpoint.keep_best``; of one
    that failed or was cancelled what its own ``checkpoint.keep…`` would remove, because it may go
    on. Nothing of a run that is not over, or of which that is not known.
    """
    needed = _Needed([*dict.fromkeys(one.experiment.root for one in selected)], warn)

    def look(told: tuple[Selected, RunStatus, str | None]) -> Leftovers:
        one, status, spared = told
        if spared is not None:
            return Leftovers(one, status, spared=spared)
        return _of_run(one, status, choice, needed)

    those = over(selected, warn)
    looks = shared_look.each(look, those)
    counted = activity.count(those, "looking what runs have left")
    return [found for _, found in zip(counted, looks, strict=True)]


@dataclass
class _Needed:
    """The checkpoints that runs under some roots begin with.

    All experiments there are read for them, once there is a checkpoint that may be removed.
    """

    roots: Collection[Path]
    warn: Say
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def why_kept(self, paths: Sequence[Path]) -> tuple[list[Path], str | None]:
        """Return which of these checkpoints are needed, or may be, and why; None for none."""
        if not paths:
            return [], None
        with self._lock:
            needed, unread = self._read
        if unread:
            return [*paths], f"what {', '.join(unread)} begins with is not known"
        kept = [path for path in paths if path.resolve() in needed]
        names = ", ".join(f"{path.name} ({needed[path.resolve()]})" for path in kept)
        return kept, f"needed by runs that begin with it: {names}" if kept else None

    @cached_property
    def _read(self) -> tuple[dict[Path, str], list[str]]:
        needed: dict[Path, str] = {}
        unread: list[str] = []
        for root in self.roots:
            needed.update(needed_checkpoints(root, self.warn, unread))
        return needed, unread


def spared_lines(spared: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return the names of runs that are left alone or keep something, one line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in spared:
        if reason:
            reasons.setdefault(reason, []).append(name)
    return [f"{listed(names, 6)}: {reason}" for reason, names in reasons.items()]


def remove_all(found: Sequence[Leftovers], choice: CleanupChoice, say: Say) -> list[Item]:
    """Remove the items that were found and may still go; return what was removed.

    The submit lock is held meanwhile. Raise Interrupted after Ctrl-C, HpcrunError if something
    cannot be removed, in which case all else was.
    """
    shown = {item.path for one in found for item in one.items}
    removed: list[Item] = []
    failed: list[str] = []

    def freed() -> str:
        return f"freed {size(sum(item.bytes for item in removed))}"

    try:
        for experiment in dict.fromkeys(one.run.experiment for one in found if one.items):
            numbers = [one.run.run.number for one in found if one.run.experiment == experiment]
            with lock.hold(experiment, say) as renew:
                # They may have been submitted again meanwhile.
                mine = Finder(experiment.root).runs(experiment, numbers)
                now = find(mine, choice, lambda message: None)
                for item in (item for one in now for item in one.items if item.path in shown):
                    if not renew():
                        failed.append(f"{experiment.directory}: somebody submits it meanwhile")
                        break
                    try:
                        remove(experiment, item)
                        removed.append(item)
                    except OSError as error:
                        failed.append(f"{item.path}: {error.strerror or error}")
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted: {freed()}; the same command goes on where this one stopped"
        ) from None
    say(freed())
    if failed:
        raise HpcrunError(
            f"{plural(len(failed), 'item')} cannot be removed: {listed(failed, 3, '; ', '; …')}",
            hint="repeat the command once that is mended",
        )
    return removed


def remove(experiment: ExperimentPaths, item: Item) -> None:
    """Remove a file or directory; what others use as long as it exists goes to the trash first.

    Raise OSError if it cannot be removed, when some of it may be gone; gone already is no error.
    """
    base = experiment.directory.resolve()
    path = base / item.path.relative_to(experiment.directory)
    with contextlib.suppress(FileNotFoundError):
        removal.remove(base, path, set_aside=item.kind in _WHOLE)


def over(selected: Sequence[Selected], warn: Say) -> list[tuple[Selected, RunStatus, str | None]]:
    """Return each run, its state, and why it may not be over; None if it is for certain."""
    answers = Answers()

    def ask(refs: Sequence[JobRef]) -> Answers:
        nonlocal answers
        answers = slurm_cache.ask(refs)
        return answers

    found = []
    told = observe(selected, warn=warn, ask=ask)
    for one, (status, attempts) in zip(selected, told, strict=True):
        reason = None if status.over else f"{status.state}, not over"
        # What has completed stays so, whatever Slurm says.
        last = attempts[-1] if attempts else None
        is_final = (
            last is not None and last.outcome in causes.GOOD_ENDS and last.job_id == one.job_id
        )
        if reason is None and not is_final and (ref := deciding_job(one)) is not None:
            # A failed run may be about to start again, which only the cluster knows.
            reason = answers.silence(ref.job_id)
        found.append((one, status, reason))
    return found


def _of_run(
    one: Selected,
    status: RunStatus,
    choice: CleanupChoice,
    needed: _Needed,
) -> Leftovers:
    if choice.before is not None and not (status.updated and status.updated < choice.before):
        return Leftovers(one, status, spared="not that old")
    attempts = one.paths.attempts()
    used = [one.paths.directory, *(attempt.directory for attempt in attempts)]
    batch = one.submissions() if choice.logs else ()
    checkpoints = one.paths.checkpoints
    has_some = shared_look.is_there(checkpoints)
    own = [*used, *(paths.directory for paths in batch)]
    own += [checkpoints, one.paths.universals] if has_some else []
    if (reason := _obstacle(one.experiment, own)) is not None:
        return Leftovers(one, status, spared=reason)
    items = [*_items(TEMPORARY, [path for each in used for path in files.temporaries(each)])]
    if choice.logs:
        logs = [path for attempt in attempts for path in (*attempt.logs(), attempt.log_sizes)]
        items += _items(LOG, [*logs, *one.batch_logs()])
    if not has_some:
        return Leftovers(one, status, tuple(items))
    complete = [each for each in manifest.complete(checkpoints) if not each[0].is_symlink()]
    superfluous = _superfluous(one, status, choice, complete)
    kept, spared = needed.why_kept(superfluous)
    items = [
        *_items(CONVERSION, [one.paths.universals]),
        *_items(DAMAGED, manifest.quarantined(checkpoints)),
        *_items(INCOMPLETE, _incomplete(checkpoints, _server_time(one.experiment) - _SETTLED)),
        *items,
        *_items(CHECKPOINT, [path for path in reversed(superfluous) if path not in kept]),
    ]
    return Leftovers(one, status, tuple(items), spared)


def _obstacle(experiment: ExperimentPaths, directories: Sequence[Path]) -> str | None:
    """Return which of an experiment's directories is a link or somebody else's; None if none is."""
    base = experiment.directory.resolve()
    return removal.obstacle(
        base, [base / one.relative_to(experiment.directory) for one in directories]
    )


def _superfluous(
    one: Selected, status: RunStatus, choice: CleanupChoice, complete: list[tuple[Path, Manifest]]
) -> list[Path]:
    """Return the complete checkpoints that may be removed, newest first."""
    if choice.everything:
        return [path for path, _ in complete]
    retention = Retention.of(one.run)
    if status.state in run_state.GOOD_ENDS:
        retention = retention.of_completed()
    return retention.superfluous(complete)


def _incomplete(checkpoints: Path, until: float) -> list[Path]:
    """Return checkpoints that were never completed, are being removed, or have a bad manifest.

    One that was changed after ``until`` may be whole: this host need not see its manifest yet.
    """
    broken = [
        path
        for path, entry in manifest.scan(checkpoints)
        if isinstance(entry, Fault) and entry.lasting
    ]
    unfinished = [path for path in manifest.abandoned(checkpoints) if path.lstat().st_mtime < until]
    return [*manifest.trash(checkpoints), *unfinished, *broken]


def _server_time(experiment: ExperimentPaths) -> float:
    """Return the time on the storage's clock at which the submit lock was last renewed.

    Without a lock, where nothing is removed, this host's own.
    """
    try:
        return max(owner.lstat().st_mtime for owner in experiment.submit_lock.iterdir())
    except (OSError, ValueError):
        return time.time()


def _items(kind: str, paths: Sequence[Path]) -> Iterator[Item]:
    """Return what is there; a link is left alone, as what it leads to is not the run's."""
    for path in paths:
        if os.path.lexists(path) and not path.is_symlink():
            yield Item(kind, path, measure(path)[0])


def measure(path: Path) -> tuple[int, int]:
    """Return the bytes and the number of a file, or of all files in a directory."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size, 1
    sizes = []
    for parent, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append(Path(parent, name).lstat().st_size)
    return sum(sizes), len(sizes)


def needed_checkpoints(root: Path, warn: Say, unread: list[str]) -> dict[Path, str]:
    """Map checkpoints to a run under the root that is initialized from them and not over.

    Experiments that cannot be read are added to ``unread``.
    """
    runs = [one for one in _runs(root, warn, unread) if one.run.checkpoint.initialize_from]
    found: dict[Path, str] = {}
    for one, _, going_on in over(runs, lambda message: None):
        if going_on is not None and (path := _origin(one, root)) is not None:
            found[path] = one.name
    return found


def _runs(
    root: Path, warn: Say = lambda message: None, unread: list[str] | None = None
) -> Iterator[Selected]:
    """Yield all runs under a root; experiments that cannot be read are added to ``unread``."""
    for experiment in layout.experiments(root):
        try:
            yield from Finder(root).runs(experiment)
        except UsageError as error:
            warn(f"what the runs of {experiment.name} begin with is not known: {error.message}")
            if unread is not None:
                unread.append(experiment.name)


def _origin(one: Selected, root: Path) -> Path | None:
    """Return the checkpoint that a run was, or would now be, initialized from, through all links.

    Runs of everybody under the root are asked, so that the file may hold anything.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RuntimeError):
        return Path(files.read_json(one.paths.origin)["checkpoint"]).resolve()
    with contextlib.suppress(OSError, ValueError, RuntimeError, UsageError):
        return Origin.parse(one.run.checkpoint.initialize_from or "").find(root)[0].resolve()
    return None


def holders(root: Path, selected: Sequence[Selected], warn: Say) -> dict[Path, str]:
    """Map the directories of runs under a root to what needs them, in words.

    That is runs that are not over and begin with their checkpoints, or wait for them; and links in
    the root, among an experiment's runs and among their checkpoints. An experiment that cannot be
    read could need any of them.
    """
    places = {str(one.paths.directory.resolve()): one.paths.directory for one in selected}
    unread: list[str] = []
    found: dict[Path, str] = {}
    for path, name in needed_checkpoints(root, warn, unread).items():
        if (place := _inside(str(path), places)) is not None:
            found[place] = f"{name} begins with it, and is not over"
    for run, name in _awaited(root, {one.experiment.name for one in selected}):
        found.setdefault(run, f"{name} waits for it")
    for link in _links(root, {str(one.experiment.directory) for one in selected}):
        place = _inside(os.path.realpath(link), places)
        if place is not None and _inside(os.path.realpath(link.parent), places) is None:
            found.setdefault(place, f"{link} is a link into it")
    if unread:
        why = f"what {', '.join(unread)} begins with is not known"
        found = {one.paths.directory: found.get(one.paths.directory, why) for one in selected}
    return found


def mentions(root: Path, name: str) -> list[str]:
    """Return the experiments whose newest plan names another one, to wait for it or begin with it.

    What cannot be read is passed over.
    """
    found: dict[str, None] = {}
    for one in _runs(root):
        with contextlib.suppress(UsageError):
            begin = (one.run.checkpoint.initialize_from or "").partition("@")[0]
            waits = {each.experiment for each in one.plan.depends_on}
            if name in waits or begin.partition("/")[0] == name:
                found[one.experiment.name] = None
    return list(found)


def _inside(path: str, places: dict[str, Path]) -> Path | None:
    """Return which of the places a path is or lies in."""
    while path not in places:
        above = os.path.dirname(path)  # noqa: PTH120 - of each link of a root
        if above == path:
            return None
        path = above
    return places[path]


def _awaited(root: Path, names: set[str]) -> Iterator[tuple[Path, str]]:
    """Yield the runs of these experiments that runs of others wait for, and these."""
    waiting = [
        one for one in _runs(root) if any(each.experiment in names for each in one.plan.depends_on)
    ]
    for one, _, going_on in over(waiting, lambda message: None) if waiting else ():
        for each in one.plan.depends_on:
            if going_on is not None and each.experiment in names:
                before = layout.experiment(root, each.experiment)
                yield from (
                    (before.run(run).directory, one.name) for run in each.of(one.run.number)
                )


def _links(root: Path, own: set[str]) -> Iterator[Path]:
    """Yield the links in a root, among runs and among checkpoints; ``own`` are the names of some
    experiments, which may be links themselves."""
    places = [root]
    for experiment in layout.experiments(root):
        places.append(experiment.runs_directory)
        places += [experiment.run(number).checkpoints for number in experiment.run_numbers()]
    for place in places:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            yield from (
                Path(one.path) for one in entries if one.is_symlink() and one.path not in own
            )


@dataclass(frozen=True)
class UnusedEnvironment:
    """A frozen environment that may be removed."""

    path: Path
    source: str
    """The place that it was frozen from; empty for one that was left half way."""
    bytes: int

    @property
    def name(self) -> str:
        return self.path.name.lstrip(".")[:12]

    def to_data(self, removed: bool) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**vars(self), "path": str(self.path), "removed": removed}


def referred_environments(experiments: Collection[ExperimentPaths]) -> set[str]:
    """Return the digests of the environments that submissions of these experiments have.

    Raises BrokenFile if the submissions of one of them cannot be listed.
    """
    found = (
        frozen_environment.read_record(one) for each in experiments for one in each.submissions()
    )
    return {one.digest for one in found if one is not None}


def unused_environments(
    root: Path, say: Say, only: Collection[str] | None = None
) -> list[UnusedEnvironment]:
    """Return this user's environments below a root that no submission has, and none used lately.

    Of the digests ``only``, where these are given; else what was left half way, too.
    """
    place = frozen_environment.shared_place(root)
    with activity.doing("looking which frozen environments no submission has"):
        there = [one for one in sorted(place.glob("*")) if permissions.owner(one) == os.geteuid()]
        if only is not None:
            there = [one for one in there if one.name in only]
        there += [] if only is not None else [*place.glob(".*.building"), *place.glob(".removed-*")]
        if not there:
            return []
        try:
            needed = referred_environments(layout.experiments(root))
        except BrokenFile as error:
            say(f"which frozen environments are needed is not known: {error.message}")
            return []
        found = []
        for path in there:
            if path.name in needed or permissions.owner(path) != os.geteuid():
                continue
            with contextlib.suppress(OSError):
                if _is_used_lately(path):
                    name = path.name.lstrip(".")[:12]
                    say(
                        f"left alone: frozen environment {name}: made or used in the last ten "
                        "minutes; `hpcrun clean --environments` removes it later"
                    )
                    continue
                found.append(UnusedEnvironment(path, _frozen_from(path), measure(path)[0]))
        return found


def remove_environments(
    found: Collection[UnusedEnvironment], root: Path, say: Say
) -> list[UnusedEnvironment]:
    """Remove those that may still go, and return them.

    Raises HpcrunError if some could not be removed; all others were.
    """
    still = {one.path for one in unused_environments(root, lambda message: None)}
    removed, failed = [], []
    with activity.doing("removing frozen environments"):
        for one in found:
            if one.path not in still:
                say(f"left alone: frozen environment {one.name}: it is used again")
                continue
            try:
                removal.remove(one.path.parent.resolve(), one.path.parent.resolve() / one.path.name)
                removed.append(one)
            except FileNotFoundError:
                removed.append(one)
            except OSError as error:
                failed.append(f"{one.path}: {error.strerror or error}")
    removal.check_all_removed(failed)
    return removed


def _is_used_lately(path: Path) -> bool:
    """Check the times of an environment's record, or of one that is being made."""
    record = frozen_environment.record(path)
    parts = [path, record] if shared_look.is_there(record) else [path, *path.iterdir()]
    return time.time() - max(one.lstat().st_mtime for one in parts) < LATELY


def _frozen_from(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        found = FrozenEnvironment.of(files.read_json(frozen_environment.record(path)))
        return "" if found is None else found.source
    return ""
