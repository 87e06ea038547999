"""An attacker who reaches a supervisor's port and knows no secret: ``stranger.py HOST PORT SEED``.

It connects and says everything that could hurt until its standard input ends. Then it prints what
it was told: nothing. Other users run it, with the system's Python.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import socket
import sys
import threading
import time

IDLE = 10_000
HEX = "0" * 64
OVER = threading.Event()
# What a stranger may say first. That of an agent is known to everybody who reads this program.
LINES = [
    b"[" * 400 + b"\n",
    b"[" * 100_000 + b"\n",
    b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"\n",
    b"1" * 100_000 + b"\n",
    b'{"type":"hello","node":"local0","token":"guess"}\n{"type":"signal","signal":"SIGTERM"}\n',
    b'{"type":"hello","node":["local0"],"token":null}\n',
    b"hpcrun-agent local0 " + HEX.encode() + b" " + HEX.encode() + b"\n",
    b"hpcrun-agent local0 " + HEX.encode() + b"\n",
    b"hpcrun-proof " + HEX.encode() + b"\n",
    b"hpcrun-agent " + b"n" * 300 + b" a b\n",
    b"hpcrun-agent \xff\xfe \x00 \x00\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\n" * 1000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"",
]


def connect(where: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(where, timeout=1)
    connection.settimeout(0.5)
    return connection


def talk(where: tuple[str, int], chance: random.Random, told: list[bytes]) -> None:
    """Say one thing after another, whole, torn, slowly and without an end."""
    while not OVER.is_set():
        with contextlib.suppress(OSError), connect(where) as connection:
            line = chance.choice([*LINES, chance.randbytes(chance.randrange(1, 3000)) + b"\n"])
            way = chance.randrange(4)
            if way == 0:
                for place in range(min(len(line), 40)):
                    connection.sendall(line[place : place + 1])
                    time.sleep(0.02)
            elif way == 1:
                connection.sendall(line[: chance.randrange(len(line) + 1)])
            elif way == 2:
                for _ in range(50):
                    connection.sendall(line.replace(b"\n", b"") or b"x" * 65536)
            else:
                connection.sendall(line)
            told.append(connection.recv(1000))


def stay(where: tuple[str, int]) -> int:
    """Open 10,000 connections that say nothing, and keep them; return how many there were."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kept: list[socket.socket] = []
    opened = 0
    while opened < IDLE and not OVER.is_set():
        with contextlib.suppress(OSError):
            kept.append(connect(where))
            opened += 1
        if len(kept) > min(IDLE, most - 100):
            kept.pop(0).close()
    OVER.wait()
    return opened


def main() -> None:
    where, first = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
    told: list[bytes] = []
    idle: list[int] = []
    threads = [
        threading.Thread(target=talk, args=(where, random.Random(seed), told))
        for seed in range(first, first + 4)
    ]
    threads.append(threading.Thread(target=lambda: idle.append(stay(where))))
    for thread in threads:
        thread.start()
    sys.stdin.read()
    OVER.set()
    for thread in threads:
        thread.join()
    said = sorted({text.decode("latin1") for text in told})
    print(json.dumps({"idle": sum(idle), "tries": len(told), "told": said}))


if __name__ == "__main__":
    main()
