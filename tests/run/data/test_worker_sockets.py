"""A TMPDIR that is too long for the sockets of a DataLoader's workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.run.data import worker_sockets
from tests.support.place import Place

LONGEST = worker_sockets.LONGEST_TMPDIR
BIND = "from multiprocessing.connection import Listener; Listener(family='AF_UNIX')"


def _of_length(bytes_: int) -> Path:
    """A directory whose path has so many bytes."""
    directory = Path(f"/tmp/hpcrun-{os.getpid()}-".ljust(bytes_, "t"))
    directory.mkdir()
    return directory


@pytest.mark.parametrize(("bytes_", "code"), [(LONGEST, 0), (LONGEST + 1, 1)])
def test_the_limit_is_that_of_pythons_sockets(bytes_: int, code: int) -> None:
    directory = _of_length(bytes_)
    try:
        done = subprocess.run(
            [sys.executable, "-c", BIND],
            env={**os.environ, "TMPDIR": str(directory)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert ("AF_UNIX path too long" in done.stderr) == bool(code)
    finally:
        directory.rmdir()


@pytest.mark.parametrize("bytes_", [LONGEST, LONGEST + 1])
def test_rank_0_of_a_program_says_so_as_it_starts(place: Place, bytes_: int) -> None:
    place.submit("echo begins", ranks=2)
    directory = _of_length(bytes_)
    try:
        assert place.supervise(TMPDIR=str(directory))[0] == 0
    finally:
        directory.rmdir()
    told = (
        f"hpcrun: TMPDIR is {bytes_} bytes long: workers of a DataLoader (num_workers) cannot send "
        f"tensors, and a rank waits for them for ever; {LONGEST} are accepted, set "
        "environment.variables: {TMPDIR: /tmp}\n"
    )
    assert place.output(0) == told * (bytes_ > LONGEST) + "begins\n"
    assert place.output(1) == "begins\n"
