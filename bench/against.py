"""Another commit's hpcrun, measured beside this one's in the same run."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.workbench import PROFILE, Workbench

REPOSITORY = Path(__file__).resolve().parents[1]
NOW = "now"


def add_option(parser: argparse.ArgumentParser) -> None:
    """``--against``."""
    parser.add_argument("--against", metavar="COMMIT", help="another commit, in the same run")


@contextmanager
def open_directory(prefix: str) -> Iterator[Path]:
    """Return a temporary directory on a local disk that the bed's user reads."""
    with tempfile.TemporaryDirectory(prefix=prefix) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@contextmanager
def versions(commit: str | None) -> Iterator[dict[str, Path | None]]:
    """Return where the hpcrun of each version lies, the other commit's first; this one is None.

    A checkout of the other commit is there for as long.
    """
    if commit is None:
        yield {NOW: None}
        return
    with open_directory("hpcrun-bench-") as directory:
        other = directory / "other"
        worktree = ["git", "-C", REPOSITORY, "worktree"]
        subprocess.run([*worktree, "add", "--quiet", "--detach", other, commit], check=True)
        try:
            yield {commit[:9]: other, NOW: None}
        finally:
            subprocess.run([*worktree, "remove", "--force", other], check=True)


def visible(found: dict[str, Path | None]) -> tuple[str, ...]:
    """Return the directories that the machines of a bed have to see."""
    return tuple(str(path) for path in found.values() if path)


def use(desk: Workbench, checkout: Path | None) -> None:
    """Run the commands of a desk, and their jobs, with the hpcrun of a checkout."""
    if checkout:
        desk.environment["PYTHONPATH"] = str(checkout)
        # A key that older commits do not know.
        lines = [line for line in PROFILE.splitlines() if not line.startswith("suspects:")]
        desk.write("configs/clusters/bed.yaml", "\n".join(lines) + "\n")
