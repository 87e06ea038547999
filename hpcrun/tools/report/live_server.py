"""A report on loopback, read through ``ssh -L``: ``hpcrun report --serve``.

Others on the login node can connect to the port. They are turned away before a byte of theirs is
read, where the kernel says whose a connection is. What gets through needs the token in the address,
and a Host header that names loopback. One page is served, from memory, to GET and HEAD; the main
thread makes it anew while somebody looks.
"""

from __future__ import annotations

import hmac
import io
import os
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.text import Say

ADDRESS = "127.0.0.1"
_HOST = re.compile(rf"(?:{re.escape(ADDRESS)}|localhost)(?::[0-9]{{1,5}})?", re.IGNORECASE)
EVERY = 10.0
"""Seconds between two pages; more where making one takes longer."""

_CONNECTIONS = 16
_HEAD = 1 << 14  # bytes of a request
_HEAD_SECONDS, _SEND_SECONDS = 5.0, 60.0
_LOOKED = 30.0  # seconds after a request in which somebody looks
_ESTABLISHED = "01"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_MAPPED = "0000000000000000FFFF0000"  # an IPv4 address in a table of IPv6

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LiveReport(ThreadingTCPServer):
    """A ``page`` that ``make`` makes anew, at an address that only its reader knows."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, make: Callable[[], bytes], page: bytes, port: int = 0, every: float = EVERY
    ) -> None:
        self.make, self.page, self.every = make, page, every
        self.number = 1
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._wanted = threading.Event()
        self._looked = time.monotonic()
        self.path = f"/{secrets.token_urlsafe(24)}/"
        try:
            super().__init__((ADDRESS, port), _Request)
        except OSError as error:
            raise UsageError(
                f"--port {port}: {(error.strerror or str(error)).lower()}",
                hint="leave --port out, and a free one is chosen",
            ) from None
        self.port = int(self.server_address[1])

    @property
    def address(self) -> str:
        """The URL that a browser opens, token included."""
        return f"http://{ADDRESS}:{self.port}{self.path}"

    def run(self, say: Say) -> None:
        """Serve until the user interrupts; ``say`` is told what keeps a page from being made."""
        threading.Thread(target=self.serve_forever, name="live report", daemon=True).start()
        took = 0.0
        try:
            while True:
                time.sleep(max(self.every, 5 * took))
                while time.monotonic() - self._looked > _LOOKED:
                    self._wanted.clear()
                    self._wanted.wait()
                began = time.monotonic()
                try:
                    self.page = self.make()
                    self.number += 1
                except (HpcrunError, OSError) as error:
                    say(f"the page stays as it was: {getattr(error, 'message', error)}")
                took = time.monotonic() - began
        except KeyboardInterrupt:
            pass
        finally:
            self.shutdown()
            self.server_close()

    def looked(self) -> None:
        """Note that somebody reads the page."""
        self._looked = time.monotonic()
        self._wanted.set()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Turn away other users of this machine."""
        uid = uid_of(client_address, self.server_address)
        return uid is None or uid in (0, os.geteuid())

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or hang up where there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore what ends one connection: the reader's browser asks again."""


def uid_of(client: Any, server: Any) -> int | None:
    """Return the user id of a connection's other end on this machine; None if it is not known.

    A connection that its other end has closed is nobody's (-1): the kernel calls it root's.
    """
    wanted = [_hexadecimal(client), _hexadecimal(server)]
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if [field.removeprefix(_MAPPED) for field in fields[1:3]] == wanted:
                return int(fields[7]) if fields[3] == _ESTABLISHED else -1
    return None


def _hexadecimal(address: Any) -> str:
    """Write an address as /proc/net/tcp does: ``0100007F:1F90``."""
    [number] = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


class _Request(BaseHTTPRequestHandler):
    """The one request of a connection."""

    server: LiveReport
    server_version, sys_version = "hpcrun", ""

    def setup(self) -> None:
        """Read the head of the request: so many bytes in so many seconds, or nothing of it."""
        self.connection = self.request
        until, head = time.monotonic() + _HEAD_SECONDS, b""
        while b"\r\n\r\n" not in head and len(head) < _HEAD:
            self.connection.settimeout(max(0.001, until - time.monotonic()))
            if not (data := self.connection.recv(_HEAD - len(head))):
                break
            head += data
        self.rfile = io.BytesIO(head if b"\r\n\r\n" in head else b"")
        self.wfile = io.BytesIO()

    def handle(self) -> None:
        """Answer, or refuse."""
        self.close_connection = True
        self.raw_requestline = self.rfile.readline()
        if not self.parse_request():
            return
        hosts = self.headers.get_all("Host") or []
        if self.command not in ("GET", "HEAD"):
            self._send(405, b"only GET and HEAD\n", Allow="GET, HEAD")
        elif len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            self._send(403, b"only under the address that hpcrun printed\n")
        elif not hmac.compare_digest(
            self.path.encode("utf-8", "replace"), self.server.path.encode()
        ):
            self._send(404, b"nothing here: open the whole address that hpcrun printed\n")
        else:
            self._page()

    def finish(self) -> None:
        """Send the answer, all of it in bounded time."""
        self.connection.settimeout(_SEND_SECONDS)
        self.connection.sendall(self.wfile.getvalue())  # type: ignore[attr-defined]

    def _page(self) -> None:
        self.server.looked()
        number, page = self.server.number, self.server.page
        if self.headers.get("If-None-Match") == f'"{number}"':
            self._send(304, b"", ETag=f'"{number}"')
        else:
            self._send(200, page, "text/html; charset=utf-8", ETag=f'"{number}"')

    def _send(self, status: int, body: bytes, kind: str = "text/plain", **headers: str) -> None:
        self.send_response(status)
        length = {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in {**_HEADERS, **headers, **length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request, without repeating any of it."""
        self._send(code, b"not a request that this page answers\n")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing: neither what was asked for, nor the token in it."""
