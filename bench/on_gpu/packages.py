"""What `bench.on_gpu` needs beside torch: told, gathered as wheels, installed without a network.

`gather` is for a machine with a network and this project's own environment, whose versions it
takes; `install` and `lacking` for the one with the GPU. Standard library and pip.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

# Of pyproject.toml: dependencies, and the extra `train`.
ROOTS = (
    *("click", "jinja2", "omegaconf", "pathspec", "pyyaml", "rich", "submitit"),
    *("deepspeed", "ninja", "nvidia-ml-py", "xxhash"),
)
# For the part fp8 alone, in the newest release: no version of it is tested here.
OPTIONAL = ("torchao",)
# A machine with torch and CUDA has these, with all that they need.
SUPPLIED = ("torch", "numpy", "triton")
# Newest first; pip takes no wheel of another number than those that it is told.
PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 26, 24, 17, 12, 5)),
    *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"),
]


def _requirements() -> Any:
    with contextlib.suppress(ImportError):
        from packaging import requirements

        return requirements
    from pip._vendor.packaging import requirements as of_pip

    return of_pip


def _version(name: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _needed(roots: Sequence[str], python: str | None = None) -> Iterator[Any]:
    """Yield the requirements of all that is installed of some packages, those of torch left out."""
    parser = _requirements()
    marked = {"extra": ""}
    if python is not None:
        marked |= {"python_version": python, "python_full_version": f"{python}.0"}
    waiting, seen = [parser.Requirement(name) for name in roots], set()
    while waiting:
        one = waiting.pop(0)
        name = _normal(one.name)
        supplied = name in SUPPLIED or name.startswith("nvidia-cu")
        if supplied or (one.marker is not None and not one.marker.evaluate(marked)):
            continue
        yield one
        if name not in seen and _version(name) is not None:
            waiting += map(parser.Requirement, metadata.requires(name) or ())
        seen.add(name)


def lacking(roots: Sequence[str] = ROOTS) -> list[str]:
    """Return the requirements that nothing here meets, such as ``omegaconf``."""
    found = [name for name in SUPPLIED[:2] if _version(name) is None]
    for one in _needed(roots):
        version = _version(one.name)
        if version is None or not one.specifier.contains(version, prereleases=True):
            found.append(str(one).partition(";")[0].strip())
    return list(dict.fromkeys(found))


def told(lacks: Sequence[str]) -> str:
    """Return what to do about that."""
    version = ".".join(map(str, sys.version_info[:2]))
    return (
        f"beside torch this Python lacks {', '.join(lacks)} (and what these need). Where there is "
        f"a network: python -m bench.on_gpu --gather wheels --python-version {version}; then here: "
        "python -m bench.on_gpu --install-from wheels …"
    )


def gather(directory: Path, python: str, say: Callable[[str], None] = print) -> None:
    """Put wheels of all that is needed into a directory, in the versions of this Python.

    Parameters
    ----------
    python
        The version of the other machine's Python, such as ``3.12``.
    """
    if lacks := lacking():
        raise SystemExit(f"this Python lacks {', '.join(lacks)} itself: make test installs all")
    directory.mkdir(parents=True, exist_ok=True)
    names = {_normal(one.name) for one in _needed(ROOTS, python)}
    wanted = [f"{name}=={_version(name)}" for name in sorted(names)]
    for each in (*wanted, *OPTIONAL):
        if not _download(each, directory, python):
            _build(each, directory)
    total = 0
    for path in sorted(directory.glob("*.whl")):
        total += path.stat().st_size
        say(f"{path.stat().st_size / 2**20:7.2f} MiB  {path.name}")
    say(
        f"{total / 2**20:7.2f} MiB in {directory}, for Python {python} on x86-64 Linux. Not in it, "
        f"as a machine with torch has them: {', '.join(SUPPLIED)}, CUDA's libraries. On the other "
        f"machine, from this checkout: python -m bench.on_gpu --install-from {directory.name}"
    )


def _download(requirement: str, directory: Path, python: str) -> bool:
    """Download a wheel for the other Python; False where there is none."""
    abi = f"cp{python.replace('.', '')}"
    argv = ["download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(directory)]
    argv += ["--python-version", python, "--implementation", "cp"]
    argv += [word for one in (abi, "abi3", "none") for word in ("--abi", one)]
    argv += [word for one in PLATFORMS for word in ("--platform", one)]
    return _pip(*argv, requirement).returncode == 0


def _build(requirement: str, directory: Path) -> None:
    """Build a wheel from source, which has to suit any Python; DeepSpeed has no other."""
    argv = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w"]
    with tempfile.TemporaryDirectory() as made:
        done = _pip(*argv, made, requirement)
        found = [*Path(made).glob("*.whl")]
        if done.returncode or not found:
            raise SystemExit(f"there is no wheel of {requirement}:\n{done.stderr[-2000:]}")
        if not found[0].name.endswith("-none-any.whl"):
            raise SystemExit(f"{found[0].name} suits this Python alone, and there is no other")
        (directory / found[0].name).write_bytes(found[0].read_bytes())


def install(directory: Path, say: Callable[[str], None] = print) -> Path:
    """Install what is lacking here from gathered wheels, and return the directory for PYTHONPATH.

    What this Python has, it keeps.
    """
    site = Path(tempfile.mkdtemp(prefix="hpcrun-on-gpu-"))
    sys.path.insert(0, str(site))
    wheels = {_distribution(path): path for path in directory.glob("*.whl")}
    parser = _requirements()
    done: list[str] = []
    # What a package needs is known once it is there.
    while names := [_normal(parser.Requirement(one).name) for one in lacking((*ROOTS, *OPTIONAL))]:
        todo = [name for name in dict.fromkeys(names) if name in wheels and name not in done]
        if not todo:
            break
        argv = ["install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", str(site)]
        answer = _pip(*argv, *(str(wheels[name]) for name in todo))
        if answer.returncode:
            raise SystemExit(f"pip installs none of {', '.join(todo)}:\n{answer.stderr[-2000:]}")
        done += todo
        importlib.invalidate_caches()
    say(f"installed in {site}: {', '.join(done) or 'nothing, all is there'}")
    return site


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _distribution(path: Path) -> str:
    return _normal(path.name.partition("-")[0])


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)
