"""Python stacks of programs without a session: by a start-up file of theirs, or else by py-spy.

The ranks of scripts and commands find a directory with a ``sitecustomize.py`` in PYTHONPATH. Each
Python that starts with it has `faulthandler` write its stacks, on a signal, to a file in memory
that only this process has open. A process is sent the signal only while it has that file and a
handler, as the signal ends any other process. ``HPCRUN_STACKS=0`` leaves the directory out.

The same file has a process that leaves with its process group wait a moment, as a session does,
begins the profile of a rank that `hpcrun profile` looks at, and ends what waits for MPI's ranks. On
the node of a script's rank 0, the first Python notes what it imports of slow packages, for warm
ranks (`hpcrun.run.rank.warm_up`): a finder is asked at every import, and finds nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hpcrun.host import process_stat
from hpcrun.run.health.progress import STACKS_SIGNAL
from hpcrun.run.program import mpi_world
from hpcrun.run.rank import warm_up
from hpcrun.run.rank.process_groups import GLOO_SETTLES
from hpcrun.state import files
from hpcrun.state.spec import profiling

SWITCH = "HPCRUN_STACKS"
_FILE = "sitecustomize.py"
_MEMORY = "hpcrun-stacks"
_MOST = 1 << 20
# The most processes of a rank that are asked, and the seconds that all have to answer.
_MOST_PROCESSES = 32
_ANSWER = 1.0
_PAUSE = 0.1
# Python processes that serve the program.
_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver", b"compile_worker")
# For any Python, 2.7 too. A sitecustomize of the user's or the site's runs after it.
_START_UP = '''\
"""Stacks of a process that hangs, for hpcrun (docs/recovery.md). HPCRUN_STACKS=0 leaves it out."""
import os
import sys


def _register():
    import faulthandler
    import fcntl
    low = os.memfd_create("{name}-%d" % os.getpid())
    try:
        # Programs find the numbers that they would have found.
        stream = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 500)
    finally:
        os.close(low)
    faulthandler.register({signal}, stream, all_threads=True)


def _settle():
    """Let gloo's threads end: in the interpreter's teardown they abort it (pytorch#190489)."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        import time
        time.sleep({settles})


def _leave_mpi():
    if os.environ.get("{mpi}"):
        from hpcrun.run.program import mpi_world
        mpi_world.at_exit()


def _profile():
    if os.environ.get("{profiled}"):
        try:
            from hpcrun.run.profile import step_recorder
            step_recorder.begin()
        except Exception:
            error = sys.exc_info()[1]
            sys.stderr.write("hpcrun: this Python is not profiled: %s\\n" % error)


class _Imports(object):
    """Notes modules of slow packages, with what the program had changed when it imported them."""

    def __init__(self, path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self.path, self.variables, self.places = path, dict(os.environ._data), list(sys.path)
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            try:
                self.note(name)
            except Exception:
                pass

    def note(self, name):
        now, before, most = os.environ._data, self.variables, len(self.places)
        changed = []
        if now != before:
            names = set(now) | set(before)
            changed = [os.fsdecode(one) for one in names if now.get(one) != before.get(one)]
        # Python puts the directory of the script before them.
        if sys.path[-most:] != self.places or len(sys.path) > most + 1:
            changed.append("sys.path")
        stream = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(stream, (" ".join([name] + changed) + "\\n").encode())
        finally:
            os.close(stream)


def _run_the_next():
    own = sys.modules.pop("sitecustomize")
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    try:
        import sitecustomize
    except ImportError as error:
        sys.modules["sitecustomize"] = own
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    except BaseException:
        sys.modules["sitecustomize"] = own
        raise


try:
    import atexit
    # Registered before all others, it runs after them.
    atexit.register(_leave_mpi)
    atexit.register(_settle)
    _register()
except Exception:
    pass
_profile()
# Not where a warm rank, which has begun long ago, runs this file.
if __name__ == "sitecustomize":
    _run_the_next()
try:
    if {noted!r}:
        _Imports({noted!r})
except Exception:
    pass
'''


def write_start_up(directory: Path, noted: Path | None = None) -> None:
    """Write the start-up file into a new directory; imports are ``noted`` in a file, if any."""
    directory.mkdir(exist_ok=True)
    text = _START_UP.format(
        name=_MEMORY,
        signal=int(STACKS_SIGNAL),
        settles=GLOO_SETTLES,
        profiled=profiling.VARIABLE,
        mpi=mpi_world.VARIABLE,
        packages=sorted(warm_up.PACKAGES),
        noted=str(noted or ""),
    )
    (directory / _FILE).write_text(text)


def run_start_up(directory: Path) -> None:
    """Do in this process, which was warm, what it would have done as it began."""
    spec = importlib.util.spec_from_file_location("hpcrun_start_up", directory / _FILE)
    if spec is not None and spec.loader is not None and directory.is_dir():
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def stacks(pids: Collection[int], timeout: float) -> str:
    """Return the stacks of a rank's Python processes; that of the program itself comes last.

    ``pids`` has the children after their parents. py-spy is asked only where no process has the
    start-up file, and has ``timeout`` seconds. The text is empty where nobody can tell.
    """
    from concurrent.futures import ThreadPoolExecutor

    asked = pythons(pids)[-_MOST_PROCESSES:]
    for ask in (_by_signal, lambda pid: _by_py_spy(pid, timeout)):
        with ThreadPoolExecutor(max(1, len(asked))) as pool:
            texts = zip(asked, pool.map(ask, asked), strict=True)
            if found := [f"Process {pid}:\n{text}" for pid, text in texts if text]:
                return "\n".join(found)
    return ""


def pythons(pids: Collection[int]) -> list[int]:
    """Return the Python processes, those that only serve the program first."""
    return sorted((pid for pid in pids if _is_python(pid)), key=_helps, reverse=True)


def _is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "python" in Path(os.readlink(f"/proc/{pid}/exe")).name  # noqa: PTH115 - text
    return False


def _helps(pid: int) -> bool:
    """Check for a process that serves the program: a forked data loader, a tracker of resources."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        parent = process_stat(Path(f"/proc/{pid}"))[1]
        command = _command(pid)
        return command == _command(parent) or any(name in command for name in _HELPERS)
    return True


def _command(pid: int | str) -> bytes:
    return files.read_bytes(Path(f"/proc/{pid}/cmdline"), _MOST)


def _by_signal(pid: int) -> str:
    """Signal a process to write its stacks, if it has the start-up file's handler."""
    memory = _memory(pid)
    if memory is None or not _handles(pid):
        return ""
    with contextlib.suppress(OSError), open(memory, "rb") as stream:
        before = stream.seek(0, os.SEEK_END)
        os.kill(pid, STACKS_SIGNAL)
        size, deadline = before, time.monotonic() + _ANSWER
        while time.monotonic() < deadline:
            time.sleep(_PAUSE)
            last, size = size, stream.seek(0, os.SEEK_END)
            if size == last > before:
                break
        stream.seek(max(before, size - _MOST))
        return stream.read(_MOST).decode(errors="replace")
    return ""


def _memory(pid: int) -> Path | None:
    """Return the process's file in memory; it is closed where the process became another program.

    The name has the process's id: a forked child shares the file of its parent.
    """
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{_MEMORY}-{pid} "):  # noqa: PTH115 - text
                    return path
    return None


def _handles(pid: int) -> bool:
    """Check that the signal would not end the process, and that it can act on it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        caught = int(fields["SigCgt"], 16) >> (STACKS_SIGNAL - 1) & 1
        return bool(caught) and fields["State"][:1] not in "Tt"
    return False


def _by_py_spy(pid: int, timeout: float) -> str:
    """Return what py-spy reads from a process's memory, in the form of `faulthandler`."""
    import subprocess

    try:
        beside = Path(_command(pid).split(b"\0")[0].decode()).parent
        places = [str(Path(sys.executable).parent), str(beside), os.environ.get("PATH", "")]
        command = shutil.which("py-spy", path=os.pathsep.join(places))
        if command is None or not Path(command).is_absolute():
            return ""
        told = subprocess.run(
            [command, "dump", "--nonblocking", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=True,
        )
        threads = json.loads(told.stdout[:_MOST])
        threads.sort(key=lambda thread: thread.get("thread_name") == "MainThread")
        return "\n".join(map(_thread, threads))
    except (OSError, ValueError, subprocess.SubprocessError, AttributeError, KeyError, TypeError):
        return ""


def _thread(found: dict[str, Any]) -> str:
    """Return a thread of py-spy's as `faulthandler` would write it."""
    frames = [
        f'  File "{frame["filename"]}", line {frame["line"]} in {frame["name"]}'
        for frame in found["frames"]
    ]
    name = found.get("thread_name") or "?"
    return "\n".join([f"Thread {name} (most recent call first):", *frames])
