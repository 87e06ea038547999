"""The job's secret, on its way from a supervisor to an agent."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from hpcrun.run.protocol.job_secret import JobSecret

# What an agent that has the secret shows of it, and what is left of its standard input.
AGENT = """
import os, subprocess, sys
from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.job_secret import JobSecret
try:
    print(JobSecret.take(float(sys.argv[1])).start, flush=True)
except HpcrunError as error:
    sys.exit(error.message)
print(repr(os.read(0, 100)), flush=True)
subprocess.run(["cat"])
"""


def _agent(patience: float = 20) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", AGENT, str(patience)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=-1, stderr=-1)


def test_it_reaches_the_agent_and_nothing_that_the_agent_starts() -> None:
    secret = JobSecret.new()
    agent = _agent()
    secret.hand_over(agent)
    assert agent.stdout is not None
    assert agent.stdout.read().decode().split() == [secret.start, "b''"]
    assert agent.wait(20) == 0
    assert agent.stderr is not None
    assert agent.stderr.read() == b""
    for stream in (agent.stdout, agent.stderr):
        stream.close()


@pytest.mark.parametrize("said", [b"", b"short\n", b"g" * 64 + b"\n", b"a" * 5000])
def test_where_it_is_not_there_the_agent_says_so(said: bytes) -> None:
    out, words = _agent().communicate(said, timeout=20)
    assert out == b""
    assert b"the supervisor, which starts agents, did not tell its secret" in words


def test_where_nothing_comes_the_agent_does_not_wait_for_ever() -> None:
    agent = _agent(0.2)
    began = time.monotonic()
    assert agent.wait(20) == 1
    assert time.monotonic() - began < 20
    assert agent.stderr is not None
    assert b"did not tell its secret" in agent.stderr.read()
    for stream in (agent.stdin, agent.stdout, agent.stderr):
        assert stream is not None
        stream.close()


def test_an_agent_that_has_ended_is_told_nothing() -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as ended:
        ended.wait()
        JobSecret.new().hand_over(ended)


def test_what_is_public_tells_nothing_of_it() -> None:
    text = os.urandom(32).hex()
    secret = JobSecret(text)
    shown = [secret.start, secret.digest("a", "b"), secret.key("a").hex()]
    assert len(set(shown)) == 3
    assert not any(text[place : place + 8] in one for one in shown for place in range(57))
    assert JobSecret(text).start == secret.start
    assert JobSecret.new().start != secret.start
