"""The owner, ``umask`` and ``group`` of an experiment's files.

An experiment is its directory's owner's, whatever the files in it say. Others read it; nobody but
the owner acts on it, root neither (who becomes that user for it: ``runuser -u USER``), and not even
the owner on what in it is somebody else's, is a link, or may be written by everybody. Whoever is in
the group that a profile's umask lets write is trusted as the owner is.

An experiment's directory gets the group of its cluster profile and the setgid bit, by which all
that is made in it later has that group. The umask is set by submit and by each supervisor, before
they write; Slurm passes it on to steps, and to the files that it opens for their output.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.errors import UsageError
from hpcrun.state.layout import ExperimentPaths
from hpcrun.state.spec.executors import Executor

_MOST_LINKS = 40
# The number of the profile's group.
_trusted_group: int | None = None


def use_profile(cluster: Mapping[str, Any]) -> None:
    """Apply the profile's umask to this process and all that it starts, and trust its group."""
    global _trusted_group
    with contextlib.suppress(UsageError):
        _trusted_group = group_id(cluster)
    if cluster.get("umask"):
        os.umask(int(cluster["umask"], 8))
        # sbatch and srun would pass on this one in place of the process's own.
        os.environ.pop("SLURM_UMASK", None)


@contextlib.contextmanager
def owner_writes() -> Iterator[None]:
    """Let nobody but the owner write to what is made meanwhile, whatever the umask lets them.

    That is the code that jobs execute, in the directories that it lies in: whoever writes to these
    has it executed as the owner.
    """
    before = umask()
    os.umask(before | 0o022)
    try:
        yield
    finally:
        os.umask(before)


def umask() -> int:
    """Return the umask of this process."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def group_id(cluster: Mapping[str, Any]) -> int | None:
    """Return the number of the profile's group; None if it names no group.

    Raises UsageError if there is no such group, or this user is not in it.
    """
    name = cluster.get("group")
    if not name:
        return None
    mine = {os.getegid(), *os.getgroups()}
    number: int | None = None
    with contextlib.suppress(KeyError):
        number = grp.getgrnam(name).gr_gid
    if number in mine:
        return number
    why = "there is no such group here" if number is None else "you are not in it"
    raise UsageError(
        f"the cluster profile '{cluster.get('name')}' has group: {name}, and {why}",
        hint=f"yours are {', '.join(sorted(map(_name, mine)))}; leave group out to keep your own",
    )


def owner(path: Path) -> int | None:
    """Return the id of the user whose file or link this is; None if it is not there."""
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def user_name(uid: int) -> str:
    """Return a user's login name, or the id of one without a name."""
    import pwd  # ranks import this module, and never ask

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


@functools.cache
def trusted_users() -> frozenset[int]:
    """Return whose programs and pickles this process may execute: its user's, root's, its own.

    Whoever owns the hpcrun that runs can make it do anything already.
    """
    here = next(place for place in Path(__file__).parents if place.exists())
    return frozenset({0, os.geteuid(), here.stat().st_uid})


def stranger(path: str | os.PathLike[str]) -> str | None:
    """Return the owner of a file, or of a link to it, who is not in `trusted_users`; else None.

    Raises OSError if there is no such file.
    """
    owners = (os.lstat(path).st_uid, os.stat(path).st_uid)
    return next((user_name(uid) for uid in owners if uid not in trusted_users()), None)


def foreign(paths: Iterable[Path]) -> str | None:
    """Return which of the files is another user's, in words; None if none is.

    What such a file says is executed in jobs alone.
    """
    for path in paths:
        try:
            owner = stranger(path)
        except OSError as error:
            return f"{path}: {error.strerror}"
        if owner is not None:
            return f"{path} belongs to {owner}"
    return None


def on_the_way(path: Path, group: int | None = None) -> str | None:
    """Return whose a file is, or a directory or link on the way to it; None for mine and root's.

    That owner can put anything in place of what lies below. What is of ``group``, or the profile's,
    is trusted as its members are. Parts that do not exist yet are passed over.
    """
    groups = {group, _trusted_group}
    here, rest, links = Path("/"), [*path.absolute().parts[1:]], 0
    trusted = {0, os.geteuid(), *_unmapped()}
    while True:
        try:
            found = here.lstat()
        except OSError:
            return None
        if found.st_uid not in trusted and found.st_gid not in groups:
            return f"{here} is {user_name(found.st_uid)}'s"
        if stat.S_ISLNK(found.st_mode) and links < _MOST_LINKS:
            links += 1
            target = here.readlink()
            here = Path("/") if target.is_absolute() else here.parent
            rest = [*(part for part in target.parts if part != "/"), *rest]
        elif not rest:
            return None
        else:
            name = rest.pop(0)
            here = here.parent if name == ".." else here / name


@functools.cache
def _unmapped() -> frozenset[int]:
    """Return the user that everybody outside looks like in a namespace that maps some users."""
    with contextlib.suppress(OSError, ValueError):
        ranges = Path("/proc/self/uid_map").read_text().split()
        if ranges[:2] != ["0", "0"] or int(ranges[2]) < 1 << 31:
            return frozenset({int(Path("/proc/sys/kernel/overflowuid").read_text())})
    return frozenset()


def is_planted(path: Path) -> bool:
    """Check whether this is a stranger's, in a directory where everybody may make files."""
    try:
        return bool(path.parent.stat().st_mode & stat.S_IWOTH) and stranger(path) is not None
    except OSError:
        return False


def check_mine(experiment: ExperimentPaths, runs: Iterable[int], verb: str) -> None:
    """Raise UsageError unless what an action reads and changes is this user's own, and no link.

    That is the experiment's directory, all of its submissions, and the directories of ``runs``,
    with the records in them. What does not exist is passed over.
    """
    uid = owner(experiment.directory)
    if uid in (0, os.geteuid()) and experiment.directory.is_symlink():
        # One's own name, or the administrator's, for an experiment on other storage.
        uid = os.stat(experiment.directory).st_uid
    if uid is None:
        return
    if uid != os.geteuid():
        name = user_name(uid)
        hint = "`hpcrun list` shows whose experiments are whose; reading them works"
        if os.geteuid() == 0:
            hint = f"root acts on nobody's runs but its own: runuser -u {name} -- hpcrun …"
        raise UsageError(
            f"{experiment.name}: these runs are {name}'s, and only {name} can {verb} them",
            hint=hint,
        )
    for path in _acted_on(experiment, runs):
        _check_one(path, experiment)


def check_hands(root: Path, cluster: Mapping[str, Any]) -> None:
    """Raise UsageError if another user owns a root or a directory above it.

    Jobs would run what its owner puts in place of theirs. On its own machine root is only told
    (`exposed`).
    """
    whose = on_the_way(root, group_id(cluster))
    if whose and (os.geteuid() or Executor.of(cluster).queues):
        raise UsageError(
            f"{whose}, who could put anything in place of what your jobs run under {root}",
            hint="take a root under directories of your own (--root DIR, HPCRUN_ROOT, `root:` of "
            "the profile), or have root own that one; `group:` of the profile names a group whose "
            "directories are trusted",
        )


def exposed(root: Path) -> str | None:
    """Return who could put something else in place of a root's experiments, and how to end that.

    None if nobody can but root, a group that this umask lets write, and owners of the directories,
    of whom root alone is told.
    """
    mask = umask()
    for path in (root, *root.parents):
        try:
            found = path.stat()
        except OSError:
            continue
        if os.geteuid() == 0 != found.st_uid:
            return f"{path} is {user_name(found.st_uid)}'s, who could have root's jobs run anything"
        if found.st_mode & stat.S_IWOTH:
            who = "every user"
        elif found.st_mode & mask & stat.S_IWGRP and not _is_own_group(found.st_gid):
            who = f"the group {_name(found.st_gid)}"
        else:
            continue
        if not found.st_mode & stat.S_ISVTX:
            return (
                f"{path}: {who} may rename what lies in it, and so have your jobs run something "
                f"else; `chmod +t {path}` ends that"
            )
    return None


def _is_own_group(gid: int) -> bool:
    return gid == 0 or _name(gid) == user_name(os.geteuid())


def _acted_on(experiment: ExperimentPaths, runs: Iterable[int]) -> Iterator[Path]:
    yield experiment.directory.resolve()
    yield from (experiment.submit_lock, experiment.code, *experiment.code.glob("*"))
    yield from (experiment.submissions_directory, experiment.runs_directory)
    for submission in experiment.submissions():
        yield from (submission.directory, submission.plan, submission.submission)
        yield from (submission.journal, submission.package)
    # A submission is of thousands of runs that have no directory yet.
    begun = set(experiment.run_numbers())
    for run in map(experiment.run, filter(begun.__contains__, runs)):
        yield from (run.directory, run.intent, run.ledger)


def _check_one(path: Path, experiment: ExperimentPaths) -> None:
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(found.st_mode):
        raise UsageError(
            f"{path} is a link to {os.readlink(path)}, and what acts on runs follows none",  # noqa: PTH115
            hint="put in its place what it links to, or remove it",
        )
    if found.st_uid != os.geteuid():
        raise UsageError(
            f"{path} is {user_name(found.st_uid)}'s, in an experiment of yours: hpcrun acts on "
            "nothing that somebody else wrote",
            hint="move it out of the experiment",
        )
    if found.st_mode & stat.S_IWOTH:
        raise UsageError(
            f"{path} may be written by every user, so it may be anyone's",
            hint=f"look who changed it, then: chmod -R o-w {experiment.directory}",
        )


def give(directories: Iterable[Path], group: int) -> None:
    """Give directories of this user, and all that is made in them later, to a group.

    Raises OSError if the file system refuses.
    """
    for directory in directories:
        found = directory.stat()
        if found.st_uid == os.geteuid() and not (
            found.st_gid == group and found.st_mode & stat.S_ISGID
        ):
            os.chown(directory, -1, group)
            directory.chmod(stat.S_IMODE(found.st_mode) | stat.S_ISGID)


def adopt(experiment: Path, group: int) -> None:
    """Give an experiment's existing directories to a group, which may read as the umask lets it.

    Files stay as they are. Raises OSError if the file system refuses.
    """
    found = experiment.stat()
    if found.st_gid == group and found.st_mode & stat.S_ISGID:
        return
    mask = umask()
    inside = [Path(parent) for parent, _, _ in os.walk(experiment) if Path(parent) != experiment]
    for directory in inside:
        mode = stat.S_IMODE(directory.stat().st_mode)
        if directory.stat().st_uid == os.geteuid():
            directory.chmod(mode | (0o755 & ~mask))
    # The experiment's own comes last: it marks that all of them are done.
    give([*inside, experiment], group)


def _name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def usable_place(places: Sequence[Path], name: str) -> Path:
    """Return the directory that holds ``name``, which others share by it, or where to make it.

    The root's comes first, and may be another user's, whose files would be executed as this one:
    what that user made, or could change, is passed over. The last of ``places`` is the
    experiment's own, and always usable.
    """
    for place in places:
        if is_own(place / name):
            return place
    for place in places[:-1]:
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            taken = os.path.lexists(place / name)
            if not taken and is_own(place.parent) and is_own(place) and os.access(place, os.W_OK):
                return place
    return places[-1]


def is_own(directory: Path) -> bool:
    """Check whether a directory is there, and is no stranger's to make or to change."""
    shared_look.refresh(directory)
    with contextlib.suppress(OSError):
        everybody = directory.stat().st_mode & stat.S_IWOTH
        return not everybody and stranger(directory) is None
    return False
