"""What runs that are over have left on disk and need no more: found, and removed."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.observe.read import run_files
from hpcrun.observe.read.selection import Finder, Selected
from hpcrun.observe.status import jobs, run_state
from hpcrun.observe.status.jobs import Answers, JobRef
from hpcrun.observe.status.status import RunStatus, deciding_job, statuses
from hpcrun.policy.retention import Retention
from hpcrun.state import files as state_files
from hpcrun.state import layout, manifest
from hpcrun.state.init_from import Origin
from hpcrun.state.manifest import Fault, Manifest
from hpcrun.text import Say

CHECKPOINT = "checkpoint"
INCOMPLETE = "incomplete checkpoint"
DAMAGED = "damaged checkpoint"
CONVERSION = "conversion"
TEMPORARY = "temporary file"
LOG = "log"

# Directories that are used as long as they are there.
_WHOLE = (CHECKPOINT, CONVERSION)


@dataclass(frozen=True)
class Choice:
    """What may go.

    Attributes
    ----------
    everything
        Every checkpoint, not only the old ones.
    logs
        What was printed, too.
    before
        Only of runs of which nothing was heard since then, in seconds since the epoch.
    """

    everything: bool = False
    logs: bool = False
    before: float | None = None


@dataclass(frozen=True)
class Item:
    """A file or directory that may go.

    Attributes
    ----------
    kind
        One of this module's constants.
    bytes
        Of all files in it.
    """

    kind: str
    path: Path
    bytes: int


@dataclass(frozen=True)
class Leftovers:
    """Of one run.

    Attributes
    ----------
    items
        What may go, in the order in which it does: the newest checkpoint last.
    spared
        Why the run is left alone, or something of it is; None where nothing is.
    """

    run: Selected
    status: RunStatus
    items: tuple[Item, ...] = ()
    spared: str | None = None

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    def to_data(self, removed: Collection[Path]) -> dict[str, Any]:
        """Plain data, for JSON, with what was ``removed``."""
        items = [
            {**vars(item), "path": str(item.path), "removed": item.path in removed}
            for item in self.items
        ]
        return {
            **{"experiment": self.status.experiment, "run": self.status.run},
            **{"state": self.status.state, "spared": self.spared},
            **{"items": items, "bytes": self.bytes},
        }


def find(selected: Sequence[Selected], choice: Choice, warn: Say) -> list[Leftovers]:
    """What may go of each run, in the order given.

    Of a completed run all checkpoints but the newest and those of ``checkpoint.keep_best``; of one
    that failed or was cancelled what its own ``checkpoint.keep…`` would remove, because it may go
    on. Nothing of a run that is not over, or of which that is not known.
    """
    needed: dict[Path, str] = {}
    unread: list[str] = []
    for root in dict.fromkeys(one.experiment.directory.parent for one in selected):
        needed.update(_needed(root, warn, unread))
    return [
        _of_run(one, status, choice, needed, unread)
        if spared is None
        else Leftovers(one, status, spared=spared)
        for one, status, spared in _over(selected, warn)
    ]


def remove(item: Item) -> None:
    """Remove a file or directory; what is whole stops looking so before anything else.

    Raises
    ------
    OSError
        It cannot be removed; some of it may be gone. What is gone already is no error.
    """
    path = item.path
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        shutil.rmtree(manifest.put_in_trash(path) if item.kind in _WHOLE else path)
    except FileNotFoundError:
        return


def _over(selected: Sequence[Selected], warn: Say) -> list[tuple[Selected, RunStatus, str | None]]:
    """Each run, its state, and why it is not over; None where it is for certain."""
    answers = Answers()

    def ask(refs: Sequence[JobRef]) -> Answers:
        nonlocal answers
        answers = jobs.ask(refs)
        return answers

    found = []
    for one, status in zip(selected, statuses(selected, warn=warn, ask=ask), strict=True):
        reason = None if status.over else f"{status.state}, not over"
        if reason is None and (ref := deciding_job(one)) is not None:
            # One that failed may be about to start again, which only the cluster knows.
            reason = answers.silence(ref.job_id)
        found.append((one, status, reason))
    return found


def _of_run(
    one: Selected,
    status: RunStatus,
    choice: Choice,
    needed: dict[Path, str],
    unread: Sequence[str],
) -> Leftovers:
    if choice.before is not None and not (status.updated and status.updated < choice.before):
        return Leftovers(one, status, spared="not that old")
    checkpoints = one.paths.checkpoints
    complete = manifest.complete(checkpoints)
    superfluous = _superfluous(one, status, choice, complete)
    kept = [path for path in superfluous if unread or path.resolve() in needed]
    spared = None
    if kept and unread:
        spared = f"what {', '.join(unread)} begins with is not known"
    elif kept:
        names = ", ".join(f"{path.name} ({needed[path.resolve()]})" for path in kept)
        spared = f"needed by runs that begin with it: {names}"
    items = [
        *_items(CONVERSION, [one.paths.universals]),
        *_items(DAMAGED, manifest.quarantined(checkpoints)),
        *_items(INCOMPLETE, _incomplete(checkpoints)),
        *_items(TEMPORARY, _temporaries(one)),
        *(_items(LOG, _logs(one)) if choice.logs else ()),
        *_items(CHECKPOINT, [path for path in reversed(superfluous) if path not in kept]),
    ]
    return Leftovers(one, status, tuple(items), spared)


def _superfluous(
    one: Selected, status: RunStatus, choice: Choice, complete: list[tuple[Path, Manifest]]
) -> list[Path]:
    """The complete checkpoints that may go, newest first."""
    if choice.everything:
        return [path for path, _ in complete]
    retention = Retention.of(one.run)
    if status.state == run_state.COMPLETED:
        retention = dataclasses.replace(retention, newest=1, every=None)
    return retention.superfluous(complete)


def _incomplete(checkpoints: Path) -> list[Path]:
    """Checkpoints that were never completed, are being removed, or cannot be what they say."""
    broken = [
        path
        for path, entry in manifest.scan(checkpoints)
        if isinstance(entry, Fault) and entry.lasting
    ]
    return [*manifest.trash(checkpoints), *manifest.abandoned(checkpoints), *broken]


def _temporaries(one: Selected) -> list[Path]:
    directories = [one.paths.directory, *(each.directory for each in one.paths.attempts())]
    return [path for directory in directories for path in state_files.temporaries(directory)]


def _logs(one: Selected) -> list[Path]:
    attempts = one.paths.attempts()
    printed = [path for attempt in attempts for path in (*attempt.logs(), attempt.log_sizes)]
    return [*printed, *run_files.batch_logs(one)]


def _items(kind: str, paths: Sequence[Path]) -> Iterator[Item]:
    for path in paths:
        if os.path.lexists(path):
            yield Item(kind, path, _size(path))


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a directory."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    files = (Path(parent, name) for parent, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_size for file in files)


def _needed(root: Path, warn: Say, unread: list[str]) -> dict[Path, str]:
    """Checkpoint -> a run under the root that began, or will begin, with it and is not over.

    Experiments of which that cannot be told are added to ``unread``.
    """
    finder = Finder(root)
    runs: list[Selected] = []
    for experiment in layout.experiments(root):
        try:
            of_it = finder.runs(experiment)
        except UsageError as error:
            warn(f"what the runs of {experiment.name} begin with is not known: {error.message}")
            unread.append(experiment.name)
            continue
        runs += [one for one in of_it if _begins_with(one)]
    found: dict[Path, str] = {}
    for one, _, going_on in _over(runs, lambda message: None):
        if going_on is not None and (path := _origin(one, root)) is not None:
            found[path.resolve()] = one.name
    return found


def _begins_with(one: Selected) -> str | None:
    """What the run's ``checkpoint.initialize_from`` says."""
    return one.run.checkpoint.initialize_from


def _origin(one: Selected, root: Path) -> Path | None:
    """The checkpoint that a run began with, or would begin with now."""
    try:
        return Path(state_files.read_json(one.paths.origin)["checkpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        return Origin.parse(_begins_with(one) or "").find(root)[0]
    except (ValueError, UsageError):
        return None
