"""A node's part in the measurement of links, over the loopback interface."""

from __future__ import annotations

import time

import pytest

from hpcrun.run.check_in.link_test import LinkTest
from hpcrun.run.protocol import messages
from hpcrun.run.protocol.job_secret import JobSecret

LISTEN = {"type": "listen", "interface": "lo", "number": 1, "seconds": 0.03}


def _there(test: LinkTest) -> tuple[str, int]:
    answer = test.answer(LISTEN)
    assert answer is not None
    found = messages.link_answer(answer)
    assert found == ("127.0.0.1", answer["port"])
    return "127.0.0.1", answer["port"]


def test_two_nodes_measure_their_link_in_a_moment() -> None:
    secret = JobSecret.new()
    one, other = LinkTest(secret), LinkTest(secret)
    (_, _), (address, port) = _there(one), _there(other)
    began = time.monotonic()
    answer = one.answer({"type": "measure", "address": address, "port": port, "number": 2})
    assert time.monotonic() - began < 5
    assert answer is not None
    assert answer["number"] == 2
    found = messages.link_answer(answer)
    assert isinstance(found, tuple)
    assert min(found) > 0
    assert one.answer({"type": "listened"}) is None
    other.close()


def test_a_job_with_another_secret_measures_nothing() -> None:
    one, other = LinkTest(JobSecret.new()), LinkTest(JobSecret.new())
    _there(one)
    address, port = _there(other)
    answer = one.answer({"type": "measure", "address": address, "port": port, "number": 2})
    assert answer is not None
    assert "secret" in str(messages.link_answer(answer))
    one.close()
    other.close()


def test_what_goes_wrong_is_an_answer() -> None:
    test = LinkTest(JobSecret.new())
    answer = test.answer({**LISTEN, "interface": "none7"})
    assert answer == {"type": "listening", "number": 1, "error": "none7 has no address"}
    _, port = _there(test)
    test.close()
    answer = test.answer({"type": "measure", "address": "127.0.0.1", "port": port, "number": 2})
    assert answer == {"type": "measured", "number": 2, "error": "Connection refused"}
    answer = test.answer({"type": "measure", "address": "i", "port": 1, "number": 3})
    assert "error" in (answer or {})
    other = LinkTest(JobSecret.new())
    answer = other.answer({"type": "measure", "address": "127.0.0.1", "port": port, "number": 4})
    assert (answer or {})["error"] == "it has no address to measure from"


@pytest.mark.parametrize(
    "message",
    [
        {"type": "listening", "address": "elsewhere", "port": 1},
        {"type": "listening", "address": "10.0.0.1", "port": 0},
        {"type": "listening", "address": "10.0.0.1", "port": "1"},
        {"type": "measured", "sends": -1.0, "receives": 1.0, "latency": 1.0},
        {"type": "measured", "sends": float("nan"), "receives": 1.0, "latency": 1.0},
        {"type": "measured", "sends": 1.0, "receives": 1, "latency": 1.0},
        {"type": "measured", "error": 7},
    ],
)
def test_a_broken_agents_answers_are_refused(message: dict[str, object]) -> None:
    with pytest.raises(messages.BadMessage):
        messages.link_answer(message)


@pytest.mark.parametrize(
    "health",
    [
        *(None, [], {}, {"findings": [], "gpus": None}),
        {"findings": [["no such kind", "x"]], "gpus": None, "clock": 1.0},
        {"findings": [["clock", "x" * 500]], "gpus": None, "clock": 1.0},
        {"findings": [["clock", 1]], "gpus": None, "clock": 1.0},
        {"findings": [["clock", "x"]] * 100, "gpus": None, "clock": 1.0},
        {"findings": [], "gpus": -1, "clock": 1.0},
        {"findings": [], "gpus": None, "clock": float("inf")},
        {"findings": [], "gpus": None, "clock": 0.0, "more": 1},
    ],
)
def test_a_broken_agents_report_is_refused(health: object) -> None:
    with pytest.raises(messages.BadMessage):
        messages.node_report({"health": health})
