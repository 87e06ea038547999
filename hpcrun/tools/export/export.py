"""The archive of an experiment without its checkpoints, as for a paper.

The archive has the tree of `hpcrun.state.layout`, so that hpcrun reads it, unpacked, as it reads
any experiment. Beside it lie a ``README.txt``, the files that this names, and the checksums. The
same files give the same bytes.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import shlex
import stat
import tarfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hpcrun import resources, text
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.observe import results
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status.status import RunStatus
from hpcrun.state import files as state_files
from hpcrun.state import history, session_log, submission_facts
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths
from hpcrun.submission.code import code_files, frozen_code
from hpcrun.submission.code.inside import LeftOut, open_inside
from hpcrun.submission.code.secret_files import READERS, NamedSecrets
from hpcrun.submission.code.snapshot import HashingStream
from hpcrun.text import Say, listed

_README = "export.txt.j2"
_SHOWN = 5


@dataclass(frozen=True)
class Member:
    """A file of the archive."""

    experiment: str
    name: str
    """Its path in the experiment's directory."""
    source: Path | bytes
    """The real path of the experiment's directory, below which the file lies; or the content."""
    bytes: int
    time: int
    """Its last change in whole seconds since the epoch."""

    @property
    def path(self) -> str:
        return f"{self.experiment}/{self.name}"


def members(
    selected: Sequence[Selected], statuses: Sequence[RunStatus], *, logs: bool, say: Say
) -> list[Member]:
    """List the files of the archive, without the checksums, grouped by experiment.

    ``logs`` includes all logs. ``say`` is called with a message on what is left out. Raises
    UsageError if two experiments, of different roots, have one name.
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
    """Write the archive; ``target`` is replaced once all of it is written.

    Only those who may read all of the files can read it. A file that grows meanwhile is taken as
    long as it was when its turn came. Returns every file, the checksums too, with its SHA-256.
    ``read`` is called with the number of bytes of each file. Raises HpcrunError if a file got
    shorter while it was read, or is none any more; OSError if a file cannot be read, or the archive
    cannot be written.
    """
    written: list[tuple[Member, str]] = []
    readers = READERS
    with (
        state_files.replacing(target) as stream,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        granted = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        os.fchmod(stream.fileno(), 0o600)
        for _, group in itertools.groupby(members, key=lambda member: member.experiment):
            mine = []
            for member in group:
                digest, mode = _add(archive, member)
                mine.append((member, digest))
                readers &= mode
                read(member.bytes)
            # As `sha256sum --check` reads them.
            sums = "".join(f"{digest}  {member.name}\n" for member, digest in mine)
            one = _make_member(mine[0][0].experiment, "SHA256SUMS", sums, mine[0][0].time)
            written += [*mine, (one, _add(archive, one)[0])]
        os.fchmod(stream.fileno(), granted & (0o600 | readers))
    return written


def _add(archive: tarfile.TarFile, member: Member) -> tuple[str, int]:
    """Add a file, and return its SHA-256 and its mode."""
    info = tarfile.TarInfo(member.path)
    info.mtime = member.time
    with _open_member(member) as (stream, mode):
        info.size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        hashing = HashingStream(stream)
        archive.addfile(info, hashing)  # type: ignore[arg-type]
    if hashing.bytes != info.size:
        raise HpcrunError(f"{info.name} got shorter while it was read", hint="repeat the command")
    return hashing.hexdigest(), mode


@contextlib.contextmanager
def _open_member(member: Member) -> Iterator[tuple[BinaryIO, int]]:
    if isinstance(member.source, bytes):
        yield io.BytesIO(member.source), READERS
        return
    try:
        descriptor, found = _open(member.source, member.name)
    except LeftOut as why:
        raise HpcrunError(f"{member.path}: {why}", hint="repeat the command") from None
    with open(descriptor, "rb") as stream:
        yield stream, found.st_mode


def _open(top: Path, name: str) -> tuple[int, os.stat_result]:
    """Open a file below the experiment's directory, as `open_inside`.

    One of another user than the experiment's does not belong to it: a hard link can be to any.
    """
    descriptor, found = open_inside(top, name)
    if found.st_uid != top.stat().st_uid:
        os.close(descriptor)
        raise LeftOut("it belongs to another user than the experiment")
    return descriptor, found


def _of_experiment(
    experiment: ExperimentPaths, part: Sequence[tuple[Selected, RunStatus]], logs: bool, say: Say
) -> list[Member]:
    runs = [one for one, _ in part]
    submitted = {paths for one in runs for paths in one.submissions()}
    submissions = sorted(submitted, key=lambda paths: paths.number)
    facts = {paths: submission_facts.describe(paths) for paths in submissions}
    paths = {path for each in submissions for path in _of_submission(each, facts[each], say)}
    paths.update(path for one in runs for path in _of_run(one, logs))
    paths.update(experiment.annotations.glob("*.jsonl"))
    copies = [*_copied(experiment, paths, say)]
    made = {
        "results.csv": text.visible(results.collect(runs, [status for _, status in part]).csv()),
        "versions.json": _json(_versions(facts, runs)),
        **{f"configurations/{one.run.number}.json": _json(one.run.spec) for one in runs},
    }
    newest = max((member.time for member in copies), default=0)
    found = [*copies, *(_make_member(experiment.name, *item, newest) for item in made.items())]
    about = text.visible(_readme(experiment.name, runs, facts, logs))
    readme = _make_member(experiment.name, "README.txt", about, newest)
    return [readme, *sorted(found, key=lambda member: member.name)]


def _copied(experiment: ExperimentPaths, paths: Collection[Path], say: Say) -> Iterator[Member]:
    """Yield the files that belong to the experiment; say which others there are."""
    others: dict[str, list[str]] = {}
    top = experiment.directory.resolve()
    for path in sorted(paths):
        name = path.relative_to(experiment.directory).as_posix()
        try:
            descriptor, found = _open(top, name)
            os.close(descriptor)
        except FileNotFoundError:
            continue
        except LeftOut as why:
            others.setdefault(str(why), []).append(name)
            continue
        yield Member(experiment.name, name, top, found.st_size, int(found.st_mtime))
    for what, names in others.items():
        say(f"left out: {listed(names, _SHOWN)} of {experiment.name}, {what}")


def _make_member(experiment: str, name: str, content: str, time: int) -> Member:
    data = content.encode(errors="surrogateescape")
    return Member(experiment, name, data, len(data), time)


def _of_submission(paths: SubmissionPaths, facts: dict[str, Any], say: Say) -> Iterator[Path]:
    """Yield the files of a submission, without frozen code that has a file of secrets in it."""
    yield from (paths.plan, paths.submission, paths.package, paths.journal, *paths.scripts())
    archive = paths.experiment.frozen_code(facts.get("code"))
    if archive is not None and os.path.exists(archive):  # noqa: PTH110 - `exists` may raise
        try:
            secret = _frozen_secret(paths, archive)
        except UsageError as error:
            say(f"left out: {error.message}")
            return
        if secret is None:
            yield archive
        else:
            say(f"left out: {archive}, because it holds {secret}")


def _frozen_secret(paths: SubmissionPaths, archive: Path) -> str | None:
    """Name a secret in a submission's frozen code: an older hpcrun froze those too."""
    plan = history.readable_plan(paths)
    if plan is None or not plan.runs:
        return None
    files = {run.environment.secrets_file for run in plan.runs}
    wanted = {
        os.path.relpath(path, plan.code_root)
        for file in filter(None, files)
        for path in (file, os.path.realpath(file))
    }
    code = plan.runs[0].code
    asked = [*code_files.needed(plan), *map(plan.inside, code.include)]
    rule = NamedSecrets(code.exclude, asked)
    for member, _ in frozen_code.members(archive):
        if member.name in wanted:
            return f"environment.secrets_file ({member.name})"
        if member.isfile() and rule.named(member.name):
            return f"{member.name}, which is named like a secret"
    return None


def _of_run(one: Selected, logs: bool) -> Iterator[Path]:
    yield from (one.paths.intent, one.paths.origin, one.paths.ledger)
    for attempt in one.paths.attempts():
        yield from attempt.records()
        if logs:
            yield from attempt.logs()
    if logs:
        yield from one.batch_logs()


def _versions(
    submissions: dict[SubmissionPaths, dict[str, Any]], runs: Sequence[Selected]
) -> dict[str, dict[str, Any]]:
    """List what each submission found, and what each attempt recorded that it trained with."""
    keys = ("time", "hpcrun", "python", "code")
    return {
        "submissions": {
            str(paths.number): {key: facts.get(key) for key in keys}
            for paths, facts in submissions.items()
        },
        "attempts": {
            f"{one.run.number}/{attempt.number}": event.record["versions"]
            for one in runs
            for attempt in one.paths.attempts()
            for event in session_log.read_any(attempt)
            if isinstance(event.record.get("versions"), dict)
        },
    }


def _readme(
    name: str,
    runs: Sequence[Selected],
    submissions: dict[SubmissionPaths, dict[str, Any]],
    logs: bool,
) -> str:
    """Render what is in the archive, and how it is read and run again."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(resources.directory("templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(_README).render(
        name=name,
        runs=text.runs_text([one.run.number for one in runs]),
        left_out=_left_out(runs, logs),
        submissions=[_submission(paths, facts) for paths, facts in submissions.items()],
    )


def _left_out(runs: Sequence[Selected], logs: bool) -> str:
    work = ["what the programs wrote"] if any(one.paths.work.is_dir() for one in runs) else []
    return " and ".join(["checkpoints", *([] if logs else ["logs"]), *work])


def _submission(paths: SubmissionPaths, facts: dict[str, Any]) -> dict[str, Any]:
    plan = history.readable_plan(paths)
    archive = paths.experiment.frozen_code(facts.get("code"))
    when = time.gmtime(float(facts.get("time") or 0))
    return {
        "number": paths.number,
        "when": time.strftime("%Y-%m-%d %H:%M UTC", when),
        "user": facts.get("user"),
        "archive": archive.name if archive else None,
        "spec": os.path.relpath(plan.spec_file, plan.code_root) if plan else "unknown",
        "command": shlex.join(str(word) for word in facts.get("argv") or ()),
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
