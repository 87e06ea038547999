"""What a rank prints where its log is on a disk that is full."""

from __future__ import annotations

import subprocess
import sys

from tests.support.place import REPOSITORY

PROGRAM = """
import logging, sys, traceback
from hpcrun.run.protocol import output as lossy
lossy.drop_lines_on_full_disk()
print("said", flush=True)
print("snow \\u2603")
logging.basicConfig()
logging.warning("warned")
try:
    1 / 0
except ZeroDivisionError as error:
    traceback.print_exception(error)
sys.stdout.flush()
assert sys.stdout.fileno() == 1
assert not sys.stdout.isatty()
sys.stdout.buffer.write(b"bytes\\n")
sys.exit(7)
"""


def _run(**options: object) -> subprocess.CompletedProcess[bytes]:
    environment = {"PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=environment, check=False, **options)  # type: ignore[call-overload, no-any-return]


def test_a_full_disk_changes_nothing() -> None:
    with open("/dev/full", "wb") as full:
        assert _run(stdout=full, stderr=full).returncode == 7


def test_else_all_of_it_is_there_and_at_once() -> None:
    found = _run(capture_output=True)
    assert found.returncode == 7
    assert found.stdout == b"said\nsnow \\u2603\nbytes\n"
    assert b"warned" in found.stderr
    assert b"ZeroDivisionError" in found.stderr


def test_a_reader_that_is_gone_is_told_as_ever() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate()
    assert b"BrokenPipeError" in said
