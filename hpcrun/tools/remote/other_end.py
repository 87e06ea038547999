"""The end of ``hpcrun --on`` on the login node.

It is sent there as text and kept as a file, needs the standard library alone, and is started twice:
once to answer requests until its input ends (`serve`), and once a command (`launch`), whose streams
are the command's.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib
import io
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

# Seconds: an unused copy of hpcrun is kept; another command's bringing is waited for.
_KEPT = 30 * 86400.0
_PATIENCE = 20.0
# Seconds that a command has to end, once nobody reads it any more.
_LAST = 5.0
_LONGEST_TEXT = 1 << 20


def place() -> Path:
    """Return the directory of all that `--on` brings."""
    found = Path.home() / ".local" / "share" / "hpcrun" / "on"
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    return found


def checkout(key: str, name: str) -> Path:
    """Return the directory of a checkout that is brought here."""
    return place() / "checkouts" / key / name


def hello(request: dict[str, Any], payload: BinaryIO) -> dict[str, Any]:
    """Tell what is there: hpcrun, its copy of this content, git; keep this program as a file."""
    source = payload.read()
    program = place() / f"other_end-{request['program']}.py"
    if not program.is_file():
        _write(program, source)
    copy = place() / "copies" / request["copy"]
    with contextlib.suppress(OSError):
        os.utime(copy)
    return {
        "python": sys.executable,
        "home": str(Path.home()),
        "program": str(program),
        "copy": str(copy),
        "has_copy": copy.is_dir(),
        "own": _own_version(),
        "has_git": shutil.which("git") is not None,
    }


def _own_version() -> str | None:
    """Return the version of the hpcrun that this Python has; None without one."""
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("hpcrun")
    return None


def install(request: dict[str, Any], payload: BinaryIO) -> dict[str, Any]:
    """Unpack a copy of hpcrun into a directory of its own, and remove those that nobody uses."""
    copies = place() / "copies"
    copies.mkdir(mode=0o700, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=copies, prefix=".partial-"))
    try:
        with tarfile.open(fileobj=payload, mode="r|gz") as archive:
            for member in archive:
                _extract(archive, member, partial)
        with contextlib.suppress(OSError):  # another command was as fast
            partial.rename(copies / request["copy"])
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _remove_old(copies, "*")
    return {}


def look(request: dict[str, Any], _payload: BinaryIO) -> dict[str, Any]:
    """Tell where a checkout is, which code was brought of it last, and which commit."""
    top = checkout(request["key"], request["name"])
    record = _record(top)
    return {"top": str(top), "digest": record.get("digest"), "commit": record.get("commit")}


def bring(request: dict[str, Any], payload: BinaryIO) -> dict[str, Any]:
    """Make a checkout what the archive holds; what was brought before and is not in it goes."""
    top = checkout(request["key"], request["name"])
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(top.parent / "bringing.lock"):
        record = _record(top)
        names = []
        with tarfile.open(fileobj=payload, mode="r|gz") as archive:
            for member in archive:
                names.append(member.name)
                _extract(archive, member, top)
        for name in set(record.get("names", ())) - set(names):
            _remove(top, name)
        record.update(digest=request["digest"], names=names)
        if request["commit"] is None:
            shutil.rmtree(top / ".git", ignore_errors=True)
            record["commit"] = None
        _keep(top, record)
    return {}


def set_commit(request: dict[str, Any], payload: BinaryIO) -> dict[str, Any]:
    """Make a checkout one of git, of a commit without its history: its objects are the payload."""
    top = checkout(request["key"], request["name"])
    commit = request["commit"]
    objects = payload.read()
    with _alone(top.parent / "bringing.lock"):
        record = _record(top)
        if objects:
            shutil.rmtree(top / ".git", ignore_errors=True)
            _git(top, "init", "-q", "--template=")
            _git(top, "unpack-objects", "-q", given=objects)
            (top / ".git" / "shallow").write_text(f"{commit}\n")
        branch = request["branch"]
        if branch is None:
            (top / ".git" / "HEAD").write_text(f"{commit}\n")
        else:
            _git(top, "symbolic-ref", "HEAD", f"refs/heads/{branch}")
            _git(top, "update-ref", f"refs/heads/{branch}", commit)
        _git(top, "read-tree", commit)
        # What the code leaves out on purpose is no change; what was deleted is one.
        missing = set(_git(top, "ls-files", "-d", "-z").split(b"\0")) - {b""}
        missing -= {os.fsencode(name) for name in request["deleted"]}
        _git(top, "update-index", "--skip-worktree", "-z", "--stdin", given=b"\0".join(missing))
        record["commit"] = commit
        _keep(top, record)
    return {}


def written(request: dict[str, Any], _payload: BinaryIO) -> dict[str, Any]:
    """Return the files that a command has written in a checkout, by their endings: name -> text.

    From then on they are a part of it: what is not brought any more goes.
    """
    endings = tuple(request["endings"])
    top = checkout(request["key"], request["name"])
    since = _stamp(top).stat().st_mtime_ns
    record = _record(top)
    brought = set(record.get("names", ()))
    found = {}
    for directory, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(directory, name)
            told = path.lstat()
            if not name.endswith(endings) or not stat.S_ISREG(told.st_mode):
                continue
            inside = path.relative_to(top).as_posix()
            is_new = inside not in brought or told.st_mtime_ns > since
            if is_new and told.st_size <= _LONGEST_TEXT:
                found[inside] = path.read_text("utf-8", "replace")
    if found:
        _keep(top, {**record, "names": sorted(brought | found.keys())})
    return {"files": found}


def scratch(_request: dict[str, Any], _payload: BinaryIO) -> dict[str, Any]:
    """Make a directory for what a command writes or reads; it goes with the connection."""
    # Of ends that were killed.
    _remove_old(place(), "scratch-*")
    path = tempfile.mkdtemp(dir=place(), prefix="scratch-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return {"path": path}


def inventory(request: dict[str, Any], _payload: BinaryIO) -> dict[str, Any]:
    """Return the names of the files in a directory of `scratch`."""
    files = (one for one in Path(request["path"]).iterdir() if one.is_file())
    return {"files": sorted(one.name for one in files)}


def fetch(request: dict[str, Any], _payload: BinaryIO) -> dict[str, Any]:
    """Return a file of a directory of `scratch`, after its answer."""
    file = Path(request["path"], request["name"])
    return {"bytes": file.stat().st_size, "file": str(file)}


def ping(_request: dict[str, Any], _payload: BinaryIO) -> dict[str, Any]:
    """Answer."""
    return {}


def keep(request: dict[str, Any], payload: BinaryIO) -> dict[str, Any]:
    """Write a file into a directory of `scratch`, or a profile beside a checkout."""
    if "key" in request:
        directory = place() / "checkouts" / request["key"] / "clusters"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        directory = Path(request["path"])
    _write(directory / request["file"], payload.read())
    return {"path": str(directory / request["file"])}


_REQUESTS = {
    one.__name__: one
    for one in (
        *(hello, install, look, bring, set_commit, written),
        *(scratch, inventory, fetch, ping, keep),
    )
}


def serve(mark: str) -> None:
    """Answer requests, one a line with its payload behind it, until the input ends.

    Each answer is a line that begins with ``mark``, as login shells may print too.
    """
    source, out = sys.stdin.buffer, sys.stdout.buffer
    for line in iter(source.readline, b""):
        request = json.loads(line)
        payload = _Payload(source, request.get("bytes", 0))
        try:
            answer = _REQUESTS[request["do"]](request, io.BufferedReader(payload))
        except (OSError, ValueError, tarfile.TarError, subprocess.SubprocessError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        payload.skip()
        file = answer.pop("file", None)
        out.write(f"{mark} {json.dumps(answer)}\n".encode())
        if file is not None:
            with open(file, "rb") as stream:
                shutil.copyfileobj(stream, out, 1 << 20)
        out.flush()


class _Payload(io.RawIOBase):
    """The bytes behind a request."""

    def __init__(self, source: BinaryIO, left: int) -> None:
        self._source, self._left = source, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(min(len(buffer), self._left))
        if self._left and not data:
            raise EOFError("the connection ended")
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def skip(self) -> None:
        """Read what the request has left over."""
        while self._left:
            self.readinto(bytearray(1 << 20))


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, top: Path) -> None:
    """Make a file what a member of an archive is; one that is the same already stays."""
    target = top / member.name
    if member.name.startswith("/") or ".." in target.parts:
        raise ValueError(f"{member.name!r} leads out of the archive")
    for parent in reversed(target.relative_to(top).parents[:-1]):
        between = top / parent
        if between.is_symlink() or (between.exists() and not between.is_dir()):
            between.unlink()
        between.mkdir(exist_ok=True)
    if member.issym():
        _clear(target)
        target.symlink_to(member.linkname)
        return
    stream = archive.extractfile(member)
    data = stream.read() if stream else b""
    mode = member.mode & 0o777
    with contextlib.suppress(OSError):
        told = target.lstat()
        same = stat.S_ISREG(told.st_mode) and stat.S_IMODE(told.st_mode) == mode
        if same and told.st_size == len(data) and target.read_bytes() == data:
            return
    _clear(target)
    _write(target, data, mode)


def _remove_old(directory: Path, pattern: str) -> None:
    """Remove directories that nobody has used for long."""
    for one in directory.glob(pattern):
        if time.time() - one.stat().st_mtime > _KEPT:
            shutil.rmtree(one, ignore_errors=True)


def _clear(target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _remove(top: Path, name: str) -> None:
    """Remove a file, and the directories that it leaves empty."""
    path = top / name
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        while path.parent != top:
            path = path.parent
            path.rmdir()


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with open(descriptor, "wb") as stream:
        stream.write(data)
        os.fchmod(stream.fileno(), mode)
    Path(temporary).replace(path)


def _stamp(top: Path) -> Path:
    return top.parent / "brought.json"


def _record(top: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(_stamp(top).read_text()))
    return {}


def _keep(top: Path, record: dict[str, Any]) -> None:
    _write(_stamp(top), json.dumps(record).encode())


@contextlib.contextmanager
def _alone(lock: Path) -> Any:
    """Hold a lock; go on without it where somebody holds it for long."""
    with open(lock, "ab") as stream:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.1)
        yield


def _git(top: Path, *words: str, given: bytes = b"") -> bytes:
    environment = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    command = ["git", "-C", str(top), "-c", "core.hooksPath=/dev/null", *words]
    done = subprocess.run(command, input=given, env=environment, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise OSError(f"git {words[0]} failed: {said}")
    return done.stdout


def launch(mark: str, task: dict[str, Any]) -> None:
    """Run a command of hpcrun: ``task`` has its ``words``, ``cwd``, ``copy`` and ``variables``.

    What login shells have printed ends with ``mark``. Without a terminal, the command is
    interrupted once nobody reads its output any more, as a terminal that is closed does.
    """
    os.environ.update(task["variables"])
    for number in (1, 2) if task["watch"] else (1,):
        os.write(number, f"{mark}\n".encode())
    os.chdir(task["cwd"])
    if task["watch"]:
        threading.Thread(target=_watch, daemon=True).start()
    del sys.path[0]
    if task["copy"]:
        sys.path.insert(0, task["copy"])
    sys.argv = ["hpcrun", *task["words"]]
    importlib.import_module("hpcrun.__main__").main()


def _watch() -> None:
    """Wait until nobody reads stdout, and end this command with all that it started."""
    reader = select.poll()
    reader.register(1, 0)
    while not reader.poll():
        pass
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        os.killpg(0, number)
        time.sleep(_LAST)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        launch(sys.argv[1], json.loads(sys.argv[2]))
    else:
        serve(sys.argv[1])
