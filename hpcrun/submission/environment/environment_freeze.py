"""Freeze the environment of a submission's Python, for `hpcrun submit`, and say what it would be.

Nothing is built or copied where the same is there already, of this or another experiment. The
archive is written once for each content, whole or not at all: in a directory of another name, which
is a lock too, so that a second submit waits for the first one while that lives. Nothing of it is
left by an error, Ctrl-C or a full disk; what a submit that was killed has left is removed by the
next one of that environment.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import secrets
import shutil
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hpcrun import activity, owner_lock, python_packages, shared_look
from hpcrun.errors import UsageError
from hpcrun.state import files, permissions
from hpcrun.state.environment import frozen_environment
from hpcrun.state.environment.frozen_environment import COPY, LOCK, FrozenEnvironment
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.plan import RunPlan
from hpcrun.state.spec.blocks import early
from hpcrun.submission.environment import environment_files, lock_build
from hpcrun.submission.environment.environment_files import (
    EnvironmentFiles,
    FrozenFile,
    PythonPlace,
)
from hpcrun.submission.environment.environment_files import list_files as listed_files
from hpcrun.submission.python_probe import Probe
from hpcrun.text import Say, plural, size, time_spent

_PAUSE, _RENEWED = 0.2, 2.0
# Seconds after which one that was begun on another host, and does not grow, was ended.
_STALE = 90.0
_BUFFER = 1 << 20
# Files that are read before it is their turn, how many, and by how many threads.
_SMALL, _AHEAD, _READERS = 1 << 20, 64, 16
_TRIES = 3


def description(run: RunPlan) -> str | None:
    """Return what would be frozen for a run, in words; None if nothing is."""
    own = run.environment
    if not own.is_frozen:
        return None
    if own.lock is not None:
        return f"frozen: built from {own.lock} for {own.python}"
    return f"frozen: a copy of what {own.python} has"


def check_lock(run: RunPlan) -> None:
    """Raise UsageError if the lock of a run's environment cannot be used; see `lock_build.read`."""
    if run.environment.lock is not None:
        lock_build.read(Path(run.environment.lock))


def freeze(
    run: RunPlan, cluster: Mapping[str, Any], experiment: ExperimentPaths, probe: Probe, say: Say
) -> FrozenEnvironment | None:
    """Freeze the environment that a run asks for; None if it asks for none.

    Raises UsageError if the Python is not to be started here, or its environment cannot be listed,
    built or kept.
    """
    own = run.environment
    if not own.is_frozen:
        return None
    if probe.unchecked is not None:
        raise UsageError(
            f"environment.venv: {own.python} cannot be frozen: {probe.unchecked}",
            hint="freeze an environment of your own, or leave out `environment.venv: frozen`",
        )
    setup = [*cluster["setup"], *own.setup]
    variables = {**cluster["variables"], **early(own.variables)}
    with activity.doing(f"asking {own.python} where its packages lie"):
        place = environment_files.ask_place(probe.executable, setup, variables)
    began = time.monotonic()
    if own.lock is None:
        found, is_new = _of_files(place, experiment, say)
    else:
        found, is_new = _of_lock(Path(own.lock), place, setup, variables, experiment, say)
    _check_needs(run, found)
    what = f"{size(found.bytes)} in {plural(found.files, 'file', ',')}, {found.name}"
    if is_new:
        took = time_spent(time.monotonic() - began)
        say(f"environment: froze that of {found.source} in {took} ({what})")
    else:
        say(f"environment: that of {found.source} is frozen already ({what})")
    return found


def _of_files(
    place: PythonPlace, experiment: ExperimentPaths, say: Say
) -> tuple[FrozenEnvironment, bool]:
    """Return the environment of what a Python has now, and whether it was copied now."""
    left = _TRIES
    while True:
        listed = _list_files(place, experiment)
        try:
            return _keep(listed.digest, COPY, place, listed, experiment, say)
        except FilesChanged as error:
            left -= 1
            if not left:
                raise
            say(f"environment: {error.message}; it is read again")


def _of_lock(
    path: Path,
    place: PythonPlace,
    setup: Sequence[str],
    variables: Mapping[str, str],
    experiment: ExperimentPaths,
    say: Say,
) -> tuple[FrozenEnvironment, bool]:
    lock = lock_build.read(path)
    digest = lock.digest(place)
    if (found := existing(experiment, digest)) is not None:
        return found, False
    with lock_build.built(lock, place, setup, variables, say) as built:
        listed = _list_files(built, experiment)
        found, is_new = _keep(digest, LOCK, built, listed, experiment, say, str(path))
    return found, is_new


def _list_files(place: PythonPlace, experiment: ExperimentPaths) -> EnvironmentFiles:
    counts = [0]
    with activity.doing(lambda: f"listing the files of {place.prefix}: {counts[-1]:,} so far"):
        return listed_files(place, [experiment.root], counts.append)


def _keep(
    digest: str,
    form: str,
    place: PythonPlace,
    listed: EnvironmentFiles,
    experiment: ExperimentPaths,
    say: Say,
    source: str | None = None,
) -> tuple[FrozenEnvironment, bool]:
    is_new = False

    def make(directory: Path, renew: Callable[[], None]) -> FrozenEnvironment:
        nonlocal is_new
        is_new = True
        length = write(listed, frozen_environment.archive(directory), renew)
        packages = {**python_packages.installed(place.paths), "python": place.version}
        is_inside = not any(one.link == os.path.realpath(place.base) for one in listed.files)
        return FrozenEnvironment(
            digest=digest,
            form=form,
            source=source or place.executable,
            base="" if is_inside else os.path.realpath(place.base),
            version=place.version,
            bytes=length,
            files=len(listed.files),
            moved=listed.moved,
            packages=packages,
        )

    for note in listed.notes:
        say(f"environment: {note}")
    return provide(experiment, digest, make, say), is_new


def _check_needs(run: RunPlan, found: FrozenEnvironment) -> None:
    """Raise UsageError if what was built from a lock lacks what the run's entry needs."""
    needs = ("torch", "deepspeed") if run.entry.kind == "function" else ()
    missing = [name for name in needs if name not in found.packages]
    if found.form == LOCK and missing:
        raise UsageError(
            f"environment.lock: {found.source} has no {' and '.join(missing)}, which a function "
            "entry needs",
            hint="add it, and write the lock anew",
        )


# Makes the archive in a directory; calls the function now and then.
Make = Callable[[Path, Callable[[], None]], FrozenEnvironment]


class FilesChanged(UsageError):
    """The files of an environment changed while they were frozen."""


def existing(experiment: ExperimentPaths, digest: str) -> FrozenEnvironment | None:
    """Return the environment of that name, whole and this user's; None if there is none."""
    directory = frozen_environment.find(experiment, digest)
    if directory is None:
        return None
    record = frozen_environment.record(directory)
    try:
        found = FrozenEnvironment.of(files.read_json(record))
        length = frozen_environment.archive(directory).stat().st_size
        if found is None or found.digest != digest or found.bytes != length:
            return None
        # `hpcrun clean` spares what was used lately.
        os.utime(record)
    except (OSError, ValueError):
        return None
    return found


def provide(experiment: ExperimentPaths, digest: str, make: Make, say: Say) -> FrozenEnvironment:
    """Return the environment of that name; have ``make`` make it if there is none.

    Raises UsageError if the disk is full, or the directory cannot be written to.
    """
    places = frozen_environment.places(experiment)
    place = permissions.usable_place(places, digest)
    if permissions.owner(place / digest) not in (None, os.geteuid()):
        # Root's, whose programs are trusted, but its archives belong to its own submissions.
        place = places[-1]
    try:
        with permissions.owner_writes():
            place.mkdir(parents=True, exist_ok=True)
            while (found := existing(experiment, digest)) is None:
                building = frozen_environment.building(place, digest)
                if _is_taken(building, say):
                    return _make_once(experiment, place, digest, make)
    except OSError as error:
        raise UsageError(
            f"{error.filename or place}: the environment cannot be frozen there: "
            f"{error.strerror or error}",
            hint="make room, or choose another root with --root DIR or HPCRUN_ROOT",
        ) from None
    return found


def _make_once(
    experiment: ExperimentPaths, place: Path, digest: str, make: Make
) -> FrozenEnvironment:
    building, target = frozen_environment.building(place, digest), place / digest
    owner = building / owner_lock.myself()
    try:
        owner.touch()
        found = existing(experiment, digest)
        if found is None:
            found = make(building, owner_lock.renewal(owner, _RENEWED))
            files.write_json(frozen_environment.record(building), found.to_data())
            owner.unlink(missing_ok=True)
            if shared_look.is_there(target):
                # It is not whole, or there would be nothing to make.
                _remove(target)
            building.rename(target)
        return found
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _is_taken(building: Path, say: Say) -> bool:
    """Take the directory in which to make an environment; wait while somebody else has it.

    Return False if it is gone, so that the environment may be there.
    """
    told, watch = False, owner_lock.OwnerWatch(building.parent, _STALE)
    with activity.doing("waiting for another submit, which freezes the same environment"):
        while True:
            try:
                building.mkdir(mode=0o700)
                return True
            except FileExistsError:
                pass
            names = [one for one in shared_look.names(building) if one.count(":") == 2]
            name = names[0] if names else ""
            try:
                is_left = watch.is_left(name, building / name)
            except OSError as error:
                if not shared_look.is_absence(error):
                    raise
                return False
            if is_left:
                _remove(building)
                continue
            if not told and name:
                told = True
                host, pid, _ = owner_lock.parts(name)
                say(f"process {pid} on {host} freezes the same environment; waiting for it")
            time.sleep(_PAUSE)


def _remove(directory: Path) -> None:
    """Remove a directory under another name, so that nobody takes it for a whole one."""
    aside = directory.with_name(f".removed-{secrets.token_hex(8)}")
    with contextlib.suppress(FileNotFoundError):
        directory.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def write(listed: EnvironmentFiles, path: Path, renew: Callable[[], None]) -> int:
    """Write the files of an environment into an archive, and return its size.

    Raises FilesChanged if a file is another than was listed, UsageError without room for them.
    """
    wanted, free = listed.bytes, shutil.disk_usage(path.parent).free
    if wanted > free:
        raise UsageError(
            f"the environment has {size(wanted)}, and {path.parent.parent} has room for "
            f"{size(free)}",
            hint="make room, or choose another root with --root DIR or HPCRUN_ROOT",
        )
    done = 0

    def so_far() -> str:
        return f"freezing the environment: {size(done)} of {size(wanted)}"

    with activity.doing(so_far), open(path, "xb", buffering=_BUFFER) as stream:
        os.fchmod(stream.fileno(), 0o600)
        form = tarfile.GNU_FORMAT
        with tarfile.open(fileobj=stream, mode="w|", format=form, bufsize=_BUFFER) as tar:
            tar.copybufsize = _BUFFER  # type: ignore[attr-defined]
            with ThreadPoolExecutor(_READERS) as pool:
                for one, content in _read_ahead(listed.files, pool):
                    _put(tar, one, content)
                    done += one.size
                    renew()
        stream.flush()
        os.fsync(stream.fileno())
        return os.fstat(stream.fileno()).st_size


def _read_ahead(
    listed: Sequence[FrozenFile], pool: ThreadPoolExecutor
) -> Iterator[tuple[FrozenFile, bytes | None]]:
    """Yield each file with its content; None for a link, or one to be read as it is written.

    Storage answers late, and to many at a time.
    """
    waiting: deque[tuple[FrozenFile, Future[bytes] | None]] = deque()
    files = iter(listed)
    try:
        while True:
            for one in itertools.islice(files, _AHEAD - len(waiting)):
                reads = one.link is None and one.content is None and one.size <= _SMALL
                waiting.append((one, pool.submit(_read, one) if reads else None))
            if not waiting:
                return
            one, future = waiting.popleft()
            yield one, one.content if future is None else future.result()
    finally:
        for _, future in waiting:
            if future is not None:
                future.cancel()


def _read(one: FrozenFile) -> bytes:
    with open(one.source, "rb") as source:
        found = os.fstat(source.fileno())
        content = source.read(one.size + 1)
    if (found.st_mtime_ns, len(content)) != (one.mtime_ns, one.size):
        raise _change_error(one)
    return content


def _put(tar: tarfile.TarFile, one: FrozenFile, content: bytes | None) -> None:
    info = tarfile.TarInfo(one.name)
    info.mtime = one.mtime_ns // 1_000_000_000
    info.mode = 0o700 if one.is_program else 0o600
    if one.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, one.link
        tar.addfile(info)
    elif content is not None:
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    else:
        with open(one.source, "rb") as source:
            before = os.fstat(source.fileno())
            if (before.st_size, before.st_mtime_ns) != (one.size, one.mtime_ns):
                raise _change_error(one)
            info.size = one.size
            try:
                tar.addfile(info, source)
            except OSError:
                # It was cut short meanwhile; anything else is of the archive, or of the disk.
                if os.fstat(source.fileno()).st_size < one.size:
                    raise _change_error(one) from None
                raise


def _change_error(one: FrozenFile) -> FilesChanged:
    return FilesChanged(
        f"{one.source} changed while the environment was frozen",
        hint="repeat the command once nobody installs packages any more",
    )
