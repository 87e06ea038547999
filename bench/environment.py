"""Start many ranks from a virtual environment on slow shared storage, and from a frozen one.

    python -m bench.environment --output bench/results [--ranks 32] [--latency 1.0] [--rounds 2]

One node's ranks import torch, or with ``--modules N`` a package of so many small modules, from an
environment on shared storage, as a job does without more (``environment.venv: live``), and from the
node's own copy of it (``frozen``), each by `hpcrun submit` with its root on the same storage. The
storage is simulated by ``slow_storage.c``, a FUSE file system that passes on to a local disk and
answers each request ``--latency`` milliseconds late, 8 at a time, as many as a server of NFS has
threads unless it is told otherwise. Like a client of NFS, the kernel keeps names and attributes for
three seconds and contents until a file changes, and asks at each open. It is mounted anew, with
nothing kept, for each run. Other clients of the storage are not simulated. The Python itself, its
standard library and the temporary directory are on the local disk. Where ranks share processors, as
32 of them do on a small machine, the import of torch is bound by these, and seconds say little of
the storage: that is what ``--modules`` is for.

Each run has two attempts: the first start on the node, and a restart in place. Seconds are from the
attempt's claim until the last rank has torch; opens and other requests are those that reached the
storage meanwhile, from whichever process.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any

from hpcrun.state import layout, ledger
from hpcrun.text import plural

HERE = Path(__file__).parent
LIVE, FROZEN = "live", "frozen"
# What reached the storage, in the order of `.counters`.
COUNTERS = ("opens", "names", "reads", "bytes")
SERVER_THREADS = 8
MODULES_OF_A_PACKAGE = 50

PROGRAM = """
import json, os, sys, time
from pathlib import Path

began = time.time()
import {package} as package
ended = time.time()
attempt, rank, ranks = (os.environ[name] for name in ("HPCRUN_ATTEMPT", "RANK", "WORLD_SIZE"))
barrier = Path(os.environ["BARRIER"], attempt)
barrier.mkdir(exist_ok=True)
told = {{"began": began, "ended": ended, "file": package.__file__}}
new = barrier / (rank + ".new")
new.write_text(json.dumps(told))
new.rename(barrier / rank)
while sum("." not in name for name in os.listdir(barrier)) < int(ranks):
    time.sleep(0.2)
sys.exit(attempt == "1")
"""


class Storage:
    """The simulated storage: ``path`` is slow, ``behind`` the local directory behind it."""

    def __init__(self, directory: Path) -> None:
        self.behind, self.path = directory / "behind", directory / "shared"
        for each in (self.behind, self.path):
            each.mkdir()
        self._program = directory / "slow_storage"
        flags = subprocess.check_output(["pkg-config", "--cflags", "--libs", "fuse3"], text=True)
        command = ["gcc", "-O2", "-o", str(self._program), str(HERE / "slow_storage.c")]
        subprocess.run([*command, *flags.split()], check=True)

    @contextlib.contextmanager
    def mounted(self, latency: float) -> Iterator[None]:
        """Mount it during the block, with nothing kept from before."""
        words = [str(self._program), str(self.behind), str(self.path), str(int(latency * 1000))]
        words.append(str(SERVER_THREADS))
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        try:
            while not self.path.is_mount():
                assert process.poll() is None, "slow_storage ended"
                time.sleep(0.05)
            yield
        finally:
            while self.path.is_mount():
                subprocess.run(["umount", str(self.path)], stderr=subprocess.DEVNULL, check=False)
                time.sleep(0.2)
            process.terminate()
            process.wait(30)

    def counters(self) -> dict[str, int]:
        """Return the requests that have reached it since it was mounted."""
        found = (self.path / ".counters").read_text().split()
        return dict(zip(COUNTERS, map(int, found), strict=True))


class Watch:
    """The storage's counters over time."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._stop = storage, threading.Event()
        self._seen: list[tuple[float, dict[str, int]]] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self._seen.append((time.time(), self._storage.counters()))

    def between(self, began: float, ended: float) -> dict[str, int]:
        """Return the requests that reached the storage in this time."""
        first = [found for at, found in self._seen if at <= began][-1]
        last = next(found for at, found in self._seen if at >= ended)
        return {name: last[name] - first[name] for name in COUNTERS}


def make_environment(storage: Storage) -> tuple[int, int]:
    """Copy the packages of this Python's torch to the storage; return their files and bytes."""
    found = util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    packages = Path(found.origin).parents[1]
    venv.EnvBuilder(symlinks=True).create(storage.path / "venv")
    [site] = (storage.behind / "venv").glob("lib/python*/site-packages")
    shutil.copytree(packages, site, symlinks=True, dirs_exist_ok=True)
    # What they are besides, such as the checkout that they belong to, is not part of this.
    for path in site.glob("*.pth"):
        path.unlink()
    files = [path for path in site.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


def make_modules(storage: Storage, count: int) -> tuple[int, int]:
    """Make an environment with one package of small modules, compiled; return as above."""
    venv.EnvBuilder(symlinks=True).create(storage.path / "venv")
    [site] = (storage.behind / "venv").glob("lib/python*/site-packages")
    names = []
    for number in range(count):
        part, name = f"part{number // MODULES_OF_A_PACKAGE}", f"module{number}"
        place = site / "many" / part
        if not place.is_dir():
            place.mkdir(parents=True)
            (place / "__init__.py").touch()
        (place / f"{name}.py").write_text("".join(f"VALUE_{n} = {n}\n" for n in range(100)))
        names.append(f"import many.{part}.{name}\n")
    (site / "many" / "__init__.py").write_text("".join(names))
    compileall.compile_dir(site, quiet=1, stripdir=storage.behind, prependdir=storage.path)
    files = [path for path in site.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


def submit(
    storage: Storage, directory: Path, name: str, mode: str, ranks: int, package: str
) -> None:
    """Submit a run and wait for its end."""
    spec = {
        **{"name": name, "cluster": "local", "entry": "train.py"},
        **{"resources": {"ntasks_per_node": ranks}, "recovery": {"max_failures": 2}},
        "environment": {
            **{"python": str(storage.path / "venv" / "bin" / "python"), "venv": mode},
            "variables": {"BARRIER": str(directory / "barrier"), "OMP_NUM_THREADS": "1"},
        },
    }
    project = directory / "project"
    project.mkdir(exist_ok=True)
    (project / "train.py").write_text(PROGRAM.format(package=package))
    (project / f"{name}.yaml").write_text(json.dumps(spec))
    shutil.rmtree(directory / "barrier", ignore_errors=True)
    (directory / "barrier").mkdir()
    (directory / "tmp").mkdir(exist_ok=True)
    variables = {"HPCRUN_ROOT": str(storage.path / "root"), "TMPDIR": str(directory / "tmp")}
    done = subprocess.run(
        [sys.executable, "-m", "hpcrun", "submit", f"{name}.yaml", "--wait"],
        cwd=project,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def measured(
    storage: Storage,
    directory: Path,
    mode: str,
    ranks: int,
    package: str,
    latency: float,
    number: int,
) -> list[dict[str, Any]]:
    """Run the ranks once, and return what each of the two attempts took."""
    name = f"{mode}-{number}"
    with storage.mounted(latency), Watch(storage) as watch:
        submit(storage, directory, name, mode, ranks, package)
        time.sleep(0.2)
        run = layout.experiment(storage.behind / "root", name).run(0)
        found = []
        for attempt in ledger.read(run):
            places = (directory / "barrier" / str(attempt.number)).iterdir()
            told = [json.loads(path.read_text()) for path in places]
            assert len(told) == ranks
            at = str(storage.path)
            assert all(each["file"].startswith(at) is (mode == LIVE) for each in told)
            began, ended = attempt.started["time"], max(each["ended"] for each in told)
            record = {
                **{"mode": mode, "attempt": attempt.number, "seconds": ended - began},
                "import_seconds": statistics.median(e["ended"] - e["began"] for e in told),
                "staging_seconds": (attempt.staged or {}).get("seconds", 0.0),
                **watch.between(began, ended),
            }
            print(json.dumps(record), flush=True)
            found.append(record)
    return found


def middle(records: list[dict[str, Any]], mode: str, attempt: int) -> dict[str, float]:
    """The medians of all rounds."""
    mine = [one for one in records if (one["mode"], one["attempt"]) == (mode, attempt)]
    names = ("seconds", "import_seconds", "staging_seconds", *COUNTERS)
    return {name: statistics.median(one[name] for one in mine) for name in names}


def table(found: dict[str, Any]) -> str:
    """The result as people read it."""
    lines = [
        f"{found['ranks']} ranks of one node import {found['package']} (medians of "
        f"{plural(found['rounds'], 'round')}; the storage answers {found['server_threads']} "
        f"requests at once, each after {found['latency_ms']:g} ms; {found['processors']} "
        "processors)",
        f"the environment has {found['files']:,} files, {found['bytes'] / 1e9:.2f} GB; its first "
        f"submission froze it within {found['freeze_seconds']:.0f} s",
        "",
        f"{'':24}{'live':>12}{'frozen':>12}{'ratio':>10}",
    ]
    for attempt, name in ((1, "first start"), (2, "restart in place")):
        live, frozen = (found[mode][str(attempt)] for mode in (LIVE, FROZEN))
        rows = (
            ("seconds", "seconds to all", "{:,.1f}"),
            ("import_seconds", "of it the import", "{:,.1f}"),
            ("staging_seconds", "of it staging", "{:,.1f}"),
            ("opens", "file opens", "{:,.0f}"),
            ("names", "other questions", "{:,.0f}"),
            ("bytes", "bytes read", "{:,.0f}"),
        )
        lines.append(name)
        for key, label, form in rows:
            ratio = f"{live[key] / frozen[key]:,.2f}" if frozen[key] else ""
            shown = (form.format(live[key]), form.format(frozen[key]), ratio)
            lines.append("  {:22}{:>12}{:>12}{:>10}".format(label, *shown).rstrip())
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--latency", type=float, default=1.0, help="milliseconds of a request")
    parser.add_argument("--modules", type=int, help="import so many small ones, in place of torch")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--where", type=Path, help="a directory on a local disk")
    parser.add_argument("--output", type=Path, help="directory of the results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-environment-", dir=arguments.where) as made:
        directory = Path(made)
        storage = Storage(directory)
        package, told = "torch", f"torch {metadata.version('torch')}"
        with storage.mounted(0):
            if arguments.modules is None:
                files, size = make_environment(storage)
            else:
                package, told = "many", f"a package of {arguments.modules:,} small modules"
                files, size = make_modules(storage, arguments.modules)
        began = time.time()
        with storage.mounted(arguments.latency):
            submit(storage, directory, "freezes", FROZEN, 1, package)
        [record] = storage.behind.glob("root/.hpcrun/environments/*/environment.json")
        freeze_seconds = record.stat().st_mtime - began
        print(f"frozen after {freeze_seconds:.0f} s", flush=True)
        records = []
        for number in range(arguments.rounds):
            for mode in (LIVE, FROZEN):
                latency = arguments.latency
                place = (storage, directory, mode, arguments.ranks, package)
                records += measured(*place, latency, number)
    found = {
        **{"ranks": arguments.ranks, "latency_ms": arguments.latency, "rounds": arguments.rounds},
        **{"files": files, "bytes": size, "freeze_seconds": freeze_seconds},
        **{"package": told, "python": platform.python_version()},
        "server_threads": SERVER_THREADS,
        "processors": os.cpu_count(),
        **{mode: {str(n): middle(records, mode, n) for n in (1, 2)} for mode in (LIVE, FROZEN)},
        "records": records,
    }
    print(f"\n{table(found)}")
    if arguments.output is not None:
        name = "environment" if arguments.modules is None else "environment_modules"
        (arguments.output / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        (arguments.output / f"{name}.txt").write_text(table(found) + "\n")


if __name__ == "__main__":
    main()
