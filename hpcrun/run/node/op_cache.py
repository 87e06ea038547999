"""A TORCH_EXTENSIONS_DIR that is warm before ranks start.

DeepSpeed compiles its operators at first use and guards the build with a lock file that a killed
rank leaves behind, on which every later start waits for ever. So one agent compiles into a
directory of its own and renames it into the cache under the experiments' root; each node then works
on a copy that belongs to one attempt alone.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from hpcrun.errors import HpcrunError
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
    """Names of the DeepSpeed op builders that a run's configuration will load.

    Parameters
    ----------
    spec
        The resolved spec.
    """
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
    """What the compiled operators depend on, as a hex digest; None where there is no DeepSpeed.

    Python, torch, DeepSpeed, the builders, the models of the GPUs, and the processor's features,
    because DeepSpeed compiles with ``-march=native``.
    """
    try:
        versions = [metadata.version("torch"), metadata.version("deepspeed")]
    except metadata.PackageNotFoundError:
        return None
    flags = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                flags = " ".join(sorted(line.split()))
                break
    except OSError:
        pass
    parts = [platform.python_version(), sys.prefix, *versions, platform.machine(), flags, *builders]
    parts += sorted({line for line in _gpu_models() if line})
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _gpu_models() -> list[str]:
    found = []
    for path in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        try:
            found += [line for line in path.read_text().splitlines() if line.startswith("Model")]
        except OSError:
            continue
    return found


def build(
    cache: Path,
    name: str,
    builders: list[str],
    given_up: Callable[[], bool] = lambda: False,
) -> None:
    """Compile into ``cache / name`` unless it is there.

    Parameters
    ----------
    given_up
        Asked again and again while it compiles; True ends the compilers.

    Raises
    ------
    HpcrunError
        The compiler failed, and the message ends with what it said; or it was given up.
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
    """Exit code and output of a command in a session of its own, which it does not outlive."""
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
    """Give an attempt its own copy; modification times are kept, so that nothing is rebuilt."""
    shutil.copytree(cache / name, destination, dirs_exist_ok=True)
