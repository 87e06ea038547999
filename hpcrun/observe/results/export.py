"""An experiment without its checkpoints, as one archive: for a paper, or for somebody else.

The archive has the tree of `hpcrun.state.layout`, so that hpcrun reads it, unpacked, as it reads
any experiment. Beside it lie a ``README.txt``, what it names, and the checksums. The same files
give the same bytes.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.observe.read import history, run_files
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.results import export_readme, results
from hpcrun.observe.status.status import RunStatus
from hpcrun.state import files as state_files
from hpcrun.state import session_log
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.submit.code.hashing import HashingStream
from hpcrun.text import Say


@dataclass(frozen=True)
class Member:
    """A file of the archive.

    Attributes
    ----------
    experiment, name
        The experiment that it belongs to, and its path in that one's directory.
    source
        The file that it is a copy of, or its content.
    bytes, time
        Its size, and when it was last changed, in whole seconds since the epoch.
    """

    experiment: str
    name: str
    source: Path | bytes
    bytes: int
    time: int

    @property
    def path(self) -> str:
        return f"{self.experiment}/{self.name}"


def members(
    selected: Sequence[Selected], statuses: Sequence[RunStatus], *, logs: bool, say: Say
) -> list[Member]:
    """What the archive of these runs has, but for the checksums; grouped by experiment.

    Parameters
    ----------
    logs
        With all that was printed.
    say
        Told of what is left out.

    Raises
    ------
    UsageError
        Two experiments, of different roots, have one name.
    """
    parts: dict[ExperimentPaths, list[tuple[Selected, RunStatus]]] = {}
    for one, status in zip(selected, statuses, strict=True):
        parts.setdefault(one.experiment, []).append((one, status))
    names = [experiment.name for experiment in parts]
    if len(set(names)) < len(names):
        raise UsageError(
            f"two of these experiments have one name ({', '.join(names)}), and would lie in one "
            "directory",
            hint="export each into a file of its own",
        )
    return [
        member
        for experiment, part in sorted(parts.items(), key=lambda item: item[0].name)
        for member in _of_experiment(experiment, part, logs, say)
    ]


def write(
    target: Path, members: Sequence[Member], read: Callable[[int], None]
) -> list[tuple[Member, str]]:
    """Write the archive; nothing is at ``target``, or what was there, until all of it is written.

    A file that grows meanwhile is taken as long as it was when its turn came.

    Parameters
    ----------
    read
        Told how many bytes each file had.

    Returns
    -------
    list
        Every file, the checksums too, with its SHA-256.

    Raises
    ------
    HpcrunError
        A file got shorter while it was read.
    OSError
        A file cannot be read, or the archive cannot be written.
    """
    written: list[tuple[Member, str]] = []
    with (
        state_files.replacing(target) as stream,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for _, group in itertools.groupby(members, key=lambda member: member.experiment):
            mine = []
            for member in group:
                mine.append((member, _add(archive, member)))
                read(member.bytes)
            sums = checksums(mine)
            written += [*mine, (sums, _add(archive, sums))]
    return written


def checksums(digests: Sequence[tuple[Member, str]]) -> Member:
    """The file of an experiment's checksums, as ``sha256sum --check`` reads it."""
    text = "".join(f"{digest}  {member.name}\n" for member, digest in digests)
    one = digests[0][0]
    return Member(one.experiment, export_readme.SUMS, text.encode(), len(text.encode()), one.time)


def _add(archive: tarfile.TarFile, member: Member) -> str:
    """Add a file; its SHA-256."""
    info = tarfile.TarInfo(member.path)
    info.mtime = member.time
    if isinstance(member.source, bytes):
        return _copy(archive, info, io.BytesIO(member.source), member.bytes)
    with open(member.source, "rb") as stream:
        return _copy(archive, info, stream, os.fstat(stream.fileno()).st_size)


def _copy(archive: tarfile.TarFile, info: tarfile.TarInfo, stream: BinaryIO, size: int) -> str:
    info.size = size
    hashing = HashingStream(stream)
    archive.addfile(info, hashing)  # type: ignore[arg-type]
    if hashing.bytes != size:
        raise HpcrunError(f"{info.name} got shorter while it was read", hint="repeat the command")
    return hashing.hexdigest()


def _of_experiment(
    experiment: ExperimentPaths, part: Sequence[tuple[Selected, RunStatus]], logs: bool, say: Say
) -> list[Member]:
    runs = [one for one, _ in part]
    submissions = sorted(
        {paths for one in runs for paths in run_files.submissions(one)},
        key=lambda paths: paths.number,
    )
    paths = sorted(
        {
            *_of_submissions(submissions),
            *_code(submissions, say),
            *(path for one in runs for path in _of_run(one, logs)),
        }
    )
    copies = [_copied(experiment, path) for path in paths if path.is_file()]
    newest = max(member.time for member in copies)

    def made(name: str, content: str) -> Member:
        data = content.encode()
        return Member(experiment.name, name, data, len(data), newest)

    table = results.collect(runs, [status for _, status in part])
    readme = export_readme.text(experiment.name, runs, submissions, logs=logs)
    return [
        made(export_readme.NAME, readme),
        *sorted(
            [
                *copies,
                made(export_readme.RESULTS, table.csv()),
                made(export_readme.VERSIONS, _json(_versions(submissions, runs))),
                *(made(export_readme.configuration(one), _json(one.run.spec)) for one in runs),
            ],
            key=lambda member: member.name,
        ),
    ]


def _copied(experiment: ExperimentPaths, path: Path) -> Member:
    found = path.stat()
    name = path.relative_to(experiment.directory).as_posix()
    return Member(experiment.name, name, path, found.st_size, int(found.st_mtime))


def _of_submissions(submissions: Sequence[SubmissionPaths]) -> Iterator[Path]:
    for paths in submissions:
        yield from (paths.plan, paths.submission, paths.package, paths.journal)
        yield from paths.scripts()


def _code(submissions: Sequence[SubmissionPaths], say: Say) -> Iterator[Path]:
    """The frozen code, but for archives that have a file of secrets in them."""
    for paths in submissions:
        archive = (history.describe(paths).get("code") or {}).get("archive")
        if not archive:
            continue
        path = paths.experiment.code / str(archive)
        secret = _frozen_secret(paths, path)
        if secret is None:
            yield path
        else:
            say(f"left out: {path}, because it holds environment.secrets_file ({secret})")


def _frozen_secret(paths: SubmissionPaths, archive: Path) -> str | None:
    """The secrets of a submission's runs in its frozen code, where an older hpcrun put them."""
    plan = run_files.plan(paths)
    runs = plan.runs if plan is not None else ()
    files = {(run.spec.get("environment") or {}).get("secrets_file") for run in runs}
    wanted = {
        os.path.relpath(path, plan.code_root)
        for file in files
        if file and plan is not None
        for path in (file, os.path.realpath(file))
    }
    if not wanted or not archive.is_file():
        return None
    with tarfile.open(archive) as tar:
        return next((name for name in tar.getnames() if name in wanted), None)


def _of_run(one: Selected, logs: bool) -> Iterator[Path]:
    yield from (one.paths.intent, one.paths.origin, one.paths.ledger)
    for attempt in one.paths.attempts():
        yield from attempt.records()
        if logs:
            yield from attempt.logs()
    if logs:
        yield from run_files.batch_logs(one)


def _versions(
    submissions: Sequence[SubmissionPaths], runs: Sequence[Selected]
) -> dict[str, dict[str, Any]]:
    """What each submission found, and what each attempt said that it trained with."""
    facts = {paths.number: history.describe(paths) for paths in submissions}
    keys = ("time", "hpcrun", "python", "code")
    return {
        "submissions": {
            str(number): {key: found.get(key) for key in keys} for number, found in facts.items()
        },
        "attempts": {
            f"{one.run.number}/{attempt.number}": event.record["versions"]
            for one in runs
            for attempt in one.paths.attempts()
            for event in session_log.read(attempt)
            if isinstance(event.record.get("versions"), dict)
        },
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
