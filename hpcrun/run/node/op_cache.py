"""A cache of DeepSpeed's compiled operators, filled before ranks start.

DeepSpeed compiles its operators at first use into TORCH_EXTENSIONS_DIR and guards the build with a
lock file. A killed rank leaves that behind, and every later start waits for it for ever. So one
agent compiles into a directory of its own and renames it into the user's cache, which all roots
share. From there they are copied into the root's, which every node sees, as it need not see the
user's; each attempt then works on its own copy. The root's cache may be another user's, whose
operators would run as this one: those are passed over, and the experiment has a cache of its own.

Where several would compile the same, a lock has all but one wait. It saves work and guards nothing:
who is in doubt whether its owner lives compiles too, and the first to be done is taken.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcrun import owner_lock, shared_look
from hpcrun.container.rank_python import RankPython
from hpcrun.errors import HpcrunError
from hpcrun.host import user_cache
from hpcrun.run.protocol.output import say
from hpcrun.state import files, permissions
from hpcrun.state.permissions import usable_place
from hpcrun.state.spec.blocks import SpecBlocks
from hpcrun.text import age, plural

_BUILD = """
import sys
from deepspeed.accelerator import get_accelerator
for name in sys.argv[1:]:
    builder = get_accelerator().create_op_builder(name)
    if builder is not None:
        builder.load(verbose=False)
"""
_KEY = """
import sys
from hpcrun.run.node import op_cache
answer = [op_cache.key(sys.argv[1:]) if sys.argv[1:] else None]
"""
# Seconds in which a container's Python answers, and operators compile.
_STARTS, _TIMEOUT = 300, 1800
# Seconds after which the lock of an owner on another node, who does not renew it, is stale: longer
# than clients of NFS keep a time of modification.
_STALE = 90.0
# Seconds between two renewals of the lock, and between two entries in the agent's log.
_RENEWED, _TOLD = 2.0, 10.0


def needed(spec: SpecBlocks) -> list[str]:
    """Return the names of the DeepSpeed op builders that a resolved spec will load."""
    deepspeed, gpus = spec.deepspeed, spec.resources.gpus_per_node
    offload = (deepspeed.get("zero_optimization") or {}).get("offload_optimizer") or {}
    optimizer = deepspeed.get("optimizer") or {}
    adam = str(optimizer.get("type", "")).lower() in ("adam", "adamw")
    own_adam = adam and not (optimizer.get("params") or {}).get("torch_adam", False)
    builders = [] if gpus else ["ShareMemCommBuilder"]
    if offload.get("device") == "cpu":
        builders.append("CPUAdamBuilder")
    elif own_adam:
        builders.append("FusedAdamBuilder")
    return builders


def key(builders: list[str], installed: Sequence[str] | None = None) -> str | None:
    """Return a digest of what the compiled operators depend on; None without DeepSpeed.

    ``installed`` takes the place of this Python's installations where ranks have another's.

    That is Python, the compiler, the installations of torch and DeepSpeed (ninja builds anew where
    their files lie elsewhere or are newer), the builders, the models of the GPUs, and the
    processor's features, because DeepSpeed compiles with ``-march=native``.
    """
    # Agents of programs without DeepSpeed do not pay for it.
    import hashlib
    import platform
    import sysconfig
    from importlib import metadata

    try:
        if installed is None:
            installed = [part for name in ("torch", "deepspeed") for part in _installation(name)]
    except metadata.PackageNotFoundError:
        return None
    flags = " ".join(sorted(next(_lines(Path("/proc/cpuinfo"), "flags", "Features"), "").split()))
    models: set[str] = set()
    python = (platform.python_version(), sysconfig.get_path("include"), platform.machine(), flags)
    parts = [*python, *installed, *_compiler(), *builders]
    for path in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        models.update(_lines(path, "Model"))
    parts += sorted(models)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def key_in_container(python: RankPython, builders: list[str]) -> str | None:
    """Return the key of the ranks' Python in a container, which also shows that it starts.

    Raises HpcrunError if it does not; the message ends with what was said.
    """
    from hpcrun import ask_python

    program = ask_python.program(_KEY)
    found = ask_python.ask(python.command(*program, *builders), timeout=_STARTS, cwd=None)
    if found.data is not None:
        (own,) = found.data
        return str(own) if own else None
    if found.code is None:
        raise HpcrunError(
            f"the container's Python gave no answer within {_STARTS} s",
            hint="start environment.container.image by hand on such a node",
        )
    said = "\n".join((found.errors or found.output).strip().splitlines()[-5:])
    raise HpcrunError(
        f"the container's Python does not start (exit code {found.code}):\n{said}",
        hint="see environment.container: image, runtime, python and mounts",
    )


def _installation(name: str) -> tuple[str, str, str]:
    """Return a library's version, its directory, and when it was installed there."""
    from importlib import metadata

    found = metadata.distribution(name)
    # Through a link ninja builds anew, as the compiler's words are others.
    directory = str(Path(str(found.locate_file(name))).absolute())
    written = ""
    with suppress(OSError):
        written = str(os.stat(Path(directory, "__init__.py")).st_mtime_ns)
    return found.version, directory, written


def _compiler() -> tuple[str, ...]:
    """Return what torch would call to compile, and the version that it reports."""
    import subprocess

    names = [os.environ.get(name, "") for name in ("CXX", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST")]
    version = ""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        argv = [*(shlex.split(names[0]) or ["c++"]), "--version"]
        asked = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False
        )
        version = asked.stdout.decode(errors="replace")
    return *names, version.partition("\n")[0]


def _lines(path: Path, *prefixes: str) -> Iterator[str]:
    with suppress(OSError):
        yield from (line for line in path.read_text().splitlines() if line.startswith(prefixes))


def of_user() -> Path:
    """Return this user's own cache, which need not be visible to other nodes."""
    return user_cache() / "operators"


def provide(
    caches: Sequence[Path],
    name: str,
    builders: list[str],
    given_up: Callable[[], bool] = lambda: False,
    python: RankPython | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Have the `usable` one of ``caches`` hold the operators: compiled for all roots of this user.

    ``python`` and ``environment`` are those of the ranks, where they are not this process's. A
    container sees the root's cache alone. Raises as `build`, and HpcrunError if one of the user's
    own files is a stranger's.
    """
    shared, own = usable_place(caches, name), of_user()
    if shared_look.is_directory(shared / name):
        return
    if (python and python.is_container) or usable_place((own, shared), name) == shared:
        build(shared, name, builders, given_up, python, environment)
        return
    build(own, name, builders, given_up, python, environment)
    with _directory(shared, name) as temporary:
        copy(own, name, temporary)


def build(
    cache: Path,
    name: str,
    builders: list[str],
    given_up: Callable[[], bool] = lambda: False,
    python: RankPython | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Compile into ``cache / name`` unless it is there, or somebody else is about to do so.

    ``python`` and ``environment`` are those of the ranks. ``given_up`` is called several times a
    second; True ends the compilers. Raises HpcrunError if the compiler failed (the message ends
    with its output), or it was given up.
    """
    if shared_look.is_directory(cache / name):
        return
    cache.mkdir(parents=True, exist_ok=True)
    with _turn(cache, name, given_up) as renew:
        if shared_look.is_directory(cache / name):
            return
        began, told = time.monotonic(), 0.0
        what = ", ".join(builders)
        say(f"compiling DeepSpeed's {what}: minutes, but once for this torch and kind of machine")
        with _directory(cache, name) as temporary:

            def turn() -> bool:
                nonlocal told
                renew()
                if (took := time.monotonic() - began) - told > _TOLD:
                    told = took
                    say(f"compiling DeepSpeed's {what}: {_progress(temporary)}{age(took)} so far")
                return given_up()

            command = (python or RankPython()).command("-c", _BUILD, *builders)
            code, output = _run(command, temporary, turn, environment or os.environ)
            if code != 0:
                print(output, flush=True)
                raise _failure(builders, output, inside=bool(python and python.is_container))
        say(f"compiled in {age(time.monotonic() - began)}; kept in {cache}")


def _failure(builders: list[str], output: str, *, inside: bool) -> HpcrunError:
    lines = output.splitlines()
    errors = list(dict.fromkeys(line for line in lines if " error: " in line))
    tail = "\n".join(errors[:5] or lines[-10:])
    return HpcrunError(
        f"DeepSpeed's {', '.join(builders)} do not compile on this node:\n{tail}",
        hint="the compiler was killed: ask for more memory with resources.mem"
        if "Killed" in tail
        else "the container's image needs a C++ compiler and ninja"
        if inside
        else "the node needs a C++ compiler and ninja; load them in environment.setup",
    )


@contextmanager
def _directory(cache: Path, name: str) -> Iterator[Path]:
    """Make a directory that becomes ``cache / name`` at the end of the block, unless that exists.

    An exception in the block leaves nothing behind.
    """
    cache.mkdir(parents=True, exist_ok=True)
    temporary = cache / f".{name}.{os.urandom(4).hex()}"
    temporary.mkdir()
    try:
        yield temporary
        try:
            temporary.rename(cache / name)
        except OSError as error:
            # Another was first.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _turn(cache: Path, name: str, given_up: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Hold the lock of a build, after waiting while its owner lives and has not built it.

    Yields a function that renews the lock, to be called several times a second. Without a lock,
    where none can be made, the block is entered too.
    """
    lock = cache / f".{name}.lock"
    owner, watch = owner_lock.myself(), owner_lock.OwnerWatch(cache, _STALE)
    made, began, told = False, time.monotonic(), -_TOLD
    while not (made or shared_look.is_directory(cache / name)):
        try:
            descriptor = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            if _is_left(lock, watch):
                say(f"{lock} was left by a build that was ended; removed")
                with suppress(OSError):
                    lock.unlink()
                continue
            if given_up():
                raise HpcrunError("waiting for DeepSpeed's operators was given up") from None
            if (took := time.monotonic() - began) - told > _TOLD:
                told = took
                say(f"another process compiles DeepSpeed's operators; waited {age(took)} for it")
            time.sleep(0.2)
        except OSError:
            break
        else:
            made = True
            with suppress(OSError):
                os.write(descriptor, owner.encode())
            os.close(descriptor)
    try:
        yield owner_lock.renewal(lock, _RENEWED) if made else lambda: None
    finally:
        if made:
            with suppress(OSError):
                if files.read_bytes(lock, 200) == owner.encode():
                    lock.unlink()


def _is_left(lock: Path, watch: owner_lock.OwnerWatch) -> bool:
    with suppress(OSError):
        return watch.is_left(files.read_bytes(lock, 200).decode(errors="replace"), lock)
    return False


def _progress(directory: Path) -> str:
    """Return how many of the files that ninja knows of are there: ``1 of 3 files, ``."""
    wanted, there = 0, 0
    for build in directory.glob("*/build.ninja"):
        with suppress(OSError):
            made = re.findall(r"^build (\S+):", build.read_text(), re.MULTILINE)
            wanted += len(made)
            there += sum((build.parent / each).exists() for each in made)
    return f"{there} of {plural(wanted, 'file')}, " if wanted else ""


def _run(
    command: list[str],
    directory: Path,
    given_up: Callable[[], bool],
    environment: Mapping[str, str],
) -> tuple[int, str]:
    """Run a command, and end its whole session with it; return its exit code and output."""
    import subprocess
    import tempfile

    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            env={**environment, "TORCH_EXTENSIONS_DIR": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + _TIMEOUT
        try:
            while process.poll() is None:
                if given_up():
                    raise HpcrunError("compiling DeepSpeed's operators was given up")
                if time.monotonic() > deadline:
                    raise HpcrunError(
                        f"compiling DeepSpeed's operators took more than {_TIMEOUT} s"
                    )
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return process.returncode, output.read()


def copy(cache: Path, name: str, destination: Path) -> None:
    """Copy the operators for an attempt, with modification times, so that nothing is rebuilt.

    Raises HpcrunError if one of the files is another user's.
    """
    shutil.copytree(cache / name, destination, dirs_exist_ok=True, copy_function=_copy_own)


def _copy_own(source: str, target: str) -> None:
    # The owner of the very file that is read: whoever owns the cache may exchange files.
    with files.open_stream(source) as stream, open(target, "wb") as copy:
        if os.fstat(stream.fileno()).st_uid not in permissions.trusted_users():
            raise HpcrunError(
                f"{source}, a compiled operator, is another user's",
                hint="remove the directory that it lies in, or take another root",
            )
        shutil.copyfileobj(stream, copy)
    shutil.copystat(source, target)
