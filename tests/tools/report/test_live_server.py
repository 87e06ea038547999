"""``hpcrun report --serve``: who gets the page, and who does not."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.errors import BrokenFile, UsageError
from hpcrun.tools.report import live_server
from hpcrun.tools.report.live_server import LiveReport
from tests.support.command import argv, hpcrun
from tests.support.experiment import Experiment, path_with, slurm_shim

PAGE = b"<!DOCTYPE html><main>the page</main>"


@pytest.fixture
def server() -> Iterator[LiveReport]:
    with LiveReport(lambda: PAGE, PAGE) as found:
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05}).start()
        yield found
        found.shutdown()


def sent(server: LiveReport, data: bytes) -> bytes:
    """What the server answers to these bytes until it hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while part := connection.recv(1 << 16):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def ask(
    server: LiveReport, path: str = "", method: str = "GET", host: str = "", more: str = ""
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a request, by default of the one that is right."""
    host = host or f"127.0.0.1:{server.port}"
    head = f"{method} {path or server.path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n"
    first, _, body = sent(server, head.encode()).partition(b"\r\n\r\n")
    status, *lines = first.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body


def test_who_has_the_address_gets_the_page(server: LiveReport) -> None:
    assert re.fullmatch(rf"http://127\.0\.0\.1:{server.port}/[\w-]{{32}}/", server.address)
    status, headers, body = ask(server)
    assert (status, body) == (200, PAGE)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Referrer-Policy"] == "no-referrer"  # the token stays here
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == "no-store"
    assert ask(server, host="localhost:9000")[0] == 200  # another port at the tunnel's near end
    assert ask(server, method="HEAD")[::2] == (200, b"")


def test_the_same_page_is_not_sent_twice(server: LiveReport) -> None:
    tag = ask(server)[1]["ETag"]
    assert ask(server, more=f"If-None-Match: {tag}\r\n")[::2] == (304, b"")
    server.page, server.number = b"newer", server.number + 1
    assert ask(server, more=f"If-None-Match: {tag}\r\n")[::2] == (200, b"newer")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"path": "/"}, 404),
        ({"path": "/favicon.ico"}, 404),
        ({"path": f"/{'x' * 32}/"}, 404),
        ({"path": "/../../etc/passwd"}, 404),
        ({"path": "/\xe9\xff"}, 404),
        ({"host": "evil.example:80"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"more": "Host: localhost\r\n"}, 403),
        ({"host": "localhost:pass@evil.example"}, 403),
        ({"host": "localhost:80:x"}, 403),
        ({"method": "POST"}, 405),
        ({"method": "OPTIONS"}, 405),
        ({"method": "get"}, 405),
    ],
)
def test_all_else_is_refused(server: LiveReport, change: dict[str, str], status: int) -> None:
    found, _, body = ask(server, **change)
    assert found == status
    assert PAGE not in body
    assert server.path.encode() not in body


def test_a_part_of_the_token_is_not_enough(server: LiveReport) -> None:
    for path in (server.path[:-2] + "/", server.path[:-1], server.path + "x", server.path * 2):
        assert ask(server, path)[0] == 404


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/" + b"1" * 9_000 + b".1\r\n\r\n",
        b"A B C D E\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000,
    ],
)
def test_what_is_no_request(server: LiveReport, data: bytes) -> None:
    assert b"the page" not in sent(server, data)
    assert ask(server)[0] == 200


def test_those_who_wait_hold_nobody_up(server: LiveReport, monkeypatch: pytest.MonkeyPatch) -> None:
    def connection() -> socket.socket:
        found = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        found.sendall(b"GET /")
        return found

    monkeypatch.setattr(live_server, "_HEAD_SECONDS", 600.0)
    held = [connection() for _ in range(live_server._CONNECTIONS - 1)]
    assert ask(server)[0] == 200
    held += [connection(), connection()]
    held[-1].settimeout(20)
    assert held[-1].recv(1) == b""  # there is no room for it
    held[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        held[0].recv(1)
    for each in held:
        each.close()
    monkeypatch.setattr(live_server, "_HEAD_SECONDS", 0.3)
    until = time.monotonic() + 20
    while not sent(server, f"GET {server.path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()):
        assert time.monotonic() < until
    with connection() as slow:
        assert slow.recv(1) == b""  # so long and no longer


def test_the_kernel_says_whose_a_connection_is(server: LiveReport) -> None:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    mapped = socket.socket(socket.AF_INET6)
    mapped.connect(("::ffff:127.0.0.1", server.port))
    for each in (client, mapped):
        address = ("127.0.0.1", each.getsockname()[1])
        assert live_server.uid_of(address, server.server_address) == os.geteuid()
        each.close()
    assert live_server.uid_of(("127.0.0.1", 1), server.server_address) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="takes two users")
def test_another_user_gets_nothing_even_with_the_token(server: LiveReport) -> None:
    code = (
        "import encodings.idna, os, socket, sys; os.setuid(int(sys.argv[1]))\n"
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[2])), 20)\n"
        "try:\n"
        "    s.sendall(f'GET {sys.argv[3]} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n'.encode())\n"
        "    print(s.recv(99))\n"
        "except ConnectionError: print(b'')"
    )
    answers = {
        user: subprocess.run(
            [sys.executable, "-c", code, user, str(server.port), server.path],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for user in ("0", "65534")
    }
    assert answers["0"].startswith("b'HTTP/1.0 200")
    assert answers["65534"] == "b''\n"


def test_a_page_that_cannot_be_made_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = iter([BrokenFile("half a plan"), b"newer", KeyboardInterrupt()])

    def make() -> bytes:
        found = next(pages)
        if isinstance(found, BaseException):
            raise found
        assert server.page == PAGE
        return found

    server = LiveReport(make, PAGE, every=0.0)
    said: list[str] = []
    server.run(said.append)
    assert said == ["the page stays as it was: half a plan"]
    assert (server.page, server.number) == (b"newer", 2)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_no_page_is_made_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_server, "_LOOKED", -1.0)
    made: list[int] = []
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        raise KeyboardInterrupt

    server = LiveReport(lambda: made.append(1) or PAGE, PAGE, every=0.0)  # type: ignore[func-returns-value]
    monkeypatch.setattr(server._wanted, "wait", wait)
    server.run(lambda message: None)
    assert waits.is_set()
    assert made == []


def test_a_port_that_is_taken(server: LiveReport) -> None:
    with pytest.raises(UsageError, match=f"--port {server.port}: address already in use"):
        LiveReport(lambda: PAGE, PAGE, port=server.port)


def test_the_command(tmp_path: Path) -> None:
    study = Experiment(tmp_path / "root")
    study.submit((0, 1))
    slurm_shim(tmp_path / "shim")
    environment = {**os.environ, "PATH": path_with(tmp_path / "shim")}
    environment["HPCRUN_ROOT"] = str(tmp_path / "root")
    process = subprocess.Popen(
        argv("report", "study", "--serve"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        tunnel, address = process.stdout.readline(), process.stdout.readline()
        port, path = re.findall(r"http://127\.0\.0\.1:(\d+)(/\S+/)\n", address)[0]
        assert re.search(rf"type:  ssh -N -L {port}:127\.0\.0\.1:{port} \S+@\S+\n$", tunnel)
        with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            answer = b""
            while part := connection.recv(1 << 16):
                answer += part
        assert answer.startswith(b"HTTP/1.0 200 OK")
        assert b'<html lang="en" data-live="10.0">' in answer
        assert b"connect-src &#39;self&#39;" in answer or b"connect-src 'self'" in answer
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Ctrl-C ends it" in messages
        assert "the address leads nowhere now" in messages
        assert path not in messages
        assert "Traceback" not in messages
    finally:
        process.kill()
    assert [one.name for one in tmp_path.glob("*.html")] == []


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    Experiment(tmp_path / "root").submit((0,))
    for arguments, told in {
        ("--serve", "-o", "x.html"): "--serve writes no file\n\nhint: leave -o and --force out",
        ("--port", "8000"): "--port is that of --serve\n\nhint: add --serve, or leave --port 8000",
        ("--serve", "--port", "70000"): "70000 is not in the range 1<=x<=65535",
    }.items():
        done = hpcrun("report", "study", *arguments, root=tmp_path / "root")
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr
