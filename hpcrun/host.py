"""This machine: the current user, and processes as /proc shows them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess


def current_user() -> str:
    """Return the login name, or the numeric id of a user without one."""
    import getpass  # ranks import this module, and never ask

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def expand_home(path: str | Path) -> Path:
    """Return a path with a home in place of ``~`` or ``~user``; as it is if there is no such user.

    ``Path.expanduser`` raises then.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111


def user_cache() -> Path:
    """Return this user's own cache of hpcrun's, which need not be visible to other nodes."""
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"), "hpcrun")  # noqa: PTH111


def is_there(test: Callable[[], bool]) -> bool:
    """Return a test of a path, such as ``path.is_file``; False for one that is too long for any."""
    try:
        return test()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def process_directories(proc: Path = Path("/proc")) -> Iterator[Path]:
    """Yield the directory of each process of this machine."""
    return (path for path in proc.iterdir() if path.name.isdigit())


def start_logged(command: Sequence[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, without input, with its output added to a log."""
    import subprocess  # ranks import this module, and start nothing

    session = {"stdin": subprocess.DEVNULL, "start_new_session": True, **options}
    with open(log, "ab") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, **session)


def start_piped(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a command in a session of its own, with pipes for its output as text.

    It has no input unless ``stdin`` is given. `end_session` ends it with all that it started.
    """
    import subprocess

    return subprocess.Popen(
        command,
        stdin=options.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        **options,
    )


def answer(
    process: subprocess.Popen[str], timeout: float | None, text: str | None = None
) -> tuple[str, str] | None:
    """Return output and errors of a command of `start_piped`, which is given ``text``, at its end.

    None after ``timeout`` seconds, if that is a number: then it is ended, as it is before an
    exception is raised.
    """
    import subprocess

    try:
        return process.communicate(text, timeout=timeout)
    except BaseException as error:
        end_session(process)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return None


def end_session(process: subprocess.Popen[str]) -> None:
    """End a command of `start_piped`; one on storage that does not answer ends later."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    with contextlib.suppress(Exception):
        process.wait(timeout=1)


@contextlib.contextmanager
def interrupted_from_outside() -> Iterator[None]:
    """Make TERM, and HUP of a terminal that is closed, act as Ctrl-C unless they are ignored."""
    import threading

    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) == signal.SIG_DFL:
                    signal.signal(number, signal.default_int_handler)
                    stack.callback(signal.signal, number, signal.SIG_DFL)
        yield


def process_stat(process: Path) -> list[str]:
    """Return the fields of ``/proc/PID/stat``, or of a thread's, from the state on.

    Raises OSError if the process is gone.
    """
    text = (process / "stat").read_text(errors="replace")
    # The name, in parentheses, may hold anything, parentheses and spaces too.
    return text[text.rindex(")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if gone or a zombie.

    Process id and start time together identify a process: a reused id has another start time.
    """
    try:
        fields = process_stat(Path(f"/proc/{pid}"))
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
