"""A cache of DeepSpeed's compiled operators, filled before ranks start.

DeepSpeed compiles its operators at first use into TORCH_EXTENSIONS_DIR and guards the build with a
lock file. A killed rank leaves that behind, and every later start waits for it for ever. So one
agent compiles into a directory of its own and renames it into the cache; each attempt then works on
its own copy. The root's cache may be another user's, whose operators would run as this one: those
are passed over, and the experiment has a cache of its own.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.state import files, permissions
from hpcrun.state.spec.blocks import SpecBlocks

_BUILD = """
import sys
from deepspeed.accelerator import get_accelerator
for name in sys.argv[1:]:
    builder = get_accelerator().create_op_builder(name)
    if builder is not None:
        builder.load(verbose=False)
"""
_TIMEOUT = 1800


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


def key(builders: list[str]) -> str | None:
    """Return a digest of what the compiled operators depend on; None without DeepSpeed.

    That is Python, torch, DeepSpeed, the builders, the models of the GPUs, and the processor's
    features, because DeepSpeed compiles with ``-march=native``.
    """
    try:
        versions = [metadata.version("torch"), metadata.version("deepspeed")]
    except metadata.PackageNotFoundError:
        return None
    flags = " ".join(sorted(next(_lines(Path("/proc/cpuinfo"), "flags", "Features"), "").split()))
    models: set[str] = set()
    parts = [platform.python_version(), sys.prefix, *versions, platform.machine(), flags, *builders]
    for path in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        models.update(_lines(path, "Model"))
    parts += sorted(models)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _lines(path: Path, *prefixes: str) -> Iterator[str]:
    with suppress(OSError):
        yield from (line for line in path.read_text().splitlines() if line.startswith(prefixes))


def usable(caches: Sequence[Path], name: str) -> Path:
    """Return the cache that holds the operators, or else where they may be compiled into.

    What another user made, or could change, is neither; the last of ``caches`` is always usable.
    """
    for cache in caches:
        if _is_own(cache / name):
            return cache
    for cache in caches[:-1]:
        with suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            taken = os.path.lexists(cache / name)
            if not taken and _is_own(cache.parent) and _is_own(cache) and os.access(cache, os.W_OK):
                return cache
    return caches[-1]


def _is_own(directory: Path) -> bool:
    with suppress(OSError):
        everybody = directory.stat().st_mode & stat.S_IWOTH
        return not everybody and permissions.stranger(directory) is None
    return False


def build(
    cache: Path, name: str, builders: list[str], given_up: Callable[[], bool] = lambda: False
) -> None:
    """Compile into ``cache / name`` unless it is there.

    ``given_up`` is called several times a second; True ends the compilers. Raises HpcrunError if
    the compiler failed (the message ends with its output), or it was given up.
    """
    final = cache / name
    if final.is_dir():
        return
    cache.mkdir(parents=True, exist_ok=True)
    temporary = cache / f".{name}.{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    try:
        code, output = _run([sys.executable, "-c", _BUILD, *builders], temporary, given_up)
        if code != 0:
            print(output, flush=True)
            lines = output.splitlines()
            errors = list(dict.fromkeys(line for line in lines if " error: " in line))
            tail = "\n".join(errors[:5] or lines[-10:])
            raise HpcrunError(
                f"DeepSpeed's {', '.join(builders)} do not compile on this node:\n{tail}",
                hint="the compiler was killed: ask for more memory with resources.mem"
                if "Killed" in tail
                else "the node needs a C++ compiler and ninja; load them in environment.setup",
            )
        try:
            temporary.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run(command: list[str], directory: Path, given_up: Callable[[], bool]) -> tuple[int, str]:
    """Run a command, and end its whole session with it; return its exit code and output."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "TORCH_EXTENSIONS_DIR": str(directory)},
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
