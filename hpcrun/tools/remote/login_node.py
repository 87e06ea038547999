"""A login node that ``ssh`` reaches: requests that are answered there, and commands that run there.

ssh is the user's own, with the user's configuration; HPCRUN_SSH names another program, or adds
options. One connection carries all of a command: its first session answers requests
(`other_end.serve`), and the command is another. Where the user's configuration shares connections,
that one is used; else one is shared for as long as this command lasts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hpcrun.errors import ClusterUnreachable, HpcrunError, UsageError
from hpcrun.text import shortened, visible
from hpcrun.tools.remote import own_copy

LOST = 255
"""The exit code of ssh where the connection is lost, or was never there."""

# What is read of a login shell's own words, and of an answer.
_MOST_WORDS, _MOST_ANSWER = 1 << 20, 64 << 20
_SILENT = 15
_DESTINATION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%\[\]/-]*")
# Nothing of the user's is lent to the other end, whatever the configuration says.
_NOTHING_LENT = ("ForwardAgent=no", "ForwardX11=no", "GSSAPIDelegateCredentials=no")

# Finds a Python that can run hpcrun, the one of an installed hpcrun before others, and starts it.
_FIND_PYTHON = r"""
own=$(command -v hpcrun 2>/dev/null) && own=$(sed -n '1s/^#! *\([^ ]*\).*/\1/p' "$own" 2>/dev/null)
for python in "$own" python3 python3.13 python3.12 python3.11 python3.10 python; do
  [ -n "$python" ] || continue
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' </dev/null 2>/dev/null || continue
  exec "$python" -c "$1" "$2"
done
echo "$2 null"
"""
# A login shell has what users of the site have: modules, Slurm's commands on PATH.
_LOGIN_SHELL = """
case "$SHELL" in */bash|*/zsh|*/ksh|*/fish) shell=$SHELL ;; *) shell=/bin/sh ;; esac
exec "$shell" -l -c "$1"
"""


def in_login_shell(command: str) -> str:
    """Return the line that runs a command of POSIX in a login shell, whatever shell reads it."""
    inner = f"exec /bin/sh -c {shlex.quote(command)}"
    return f"exec /bin/sh -c {shlex.quote(_LOGIN_SHELL)} sh {shlex.quote(inner)}"


def program() -> tuple[str, bytes]:
    """Return what the program of the other end is called there, by its content, and its text."""
    source = Path(__file__).with_name("other_end.py").read_bytes()
    return hashlib.sha256(source).hexdigest()[:12], source


class LoginNode:
    """A connection to a login node; a context manager, which ends what it has begun there.

    Raises UsageError if the destination is none that ssh takes, HpcrunError if it is not reached.
    """

    def __init__(self, destination: str, *, quick: bool = False) -> None:
        if not _DESTINATION.fullmatch(destination):
            shown = shortened(repr(destination), 80)
            raise UsageError(
                f"--on {shown} is no name of a host", hint="as `ssh` takes it: [USER@]HOST"
            )
        if destination.count(":") == 1 and not destination.startswith("ssh://"):
            raise UsageError(
                f"--on {destination}: a port is not typed so",
                hint=f"--on ssh://{destination}, or Port in ~/.ssh/config",
            )
        self.name = destination
        self._ssh = shlex.split(os.environ.get("HPCRUN_SSH") or "ssh")
        if not self._ssh or shutil.which(self._ssh[0]) is None:
            raise HpcrunError(
                f"{self._ssh[0] if self._ssh else 'ssh'}: no such command",
                hint="install OpenSSH's client; HPCRUN_SSH names another program",
            )
        self._options = [*_NOTHING_LENT]
        self._errors = subprocess.DEVNULL if quick else None
        if quick:
            self._options += ["BatchMode=yes", "ConnectTimeout=2"]
        self._mark = f"hpcrun-{secrets.token_hex(12)}"
        self._serving: subprocess.Popen[bytes] | None = None
        self._sockets: str | None = None

    def __enter__(self) -> LoginNode:
        configured = self._configuration()
        if configured.get("connecttimeout", "none") == "none":
            self._options.append(f"ConnectTimeout={_SILENT}")
        if configured.get("serveraliveinterval", "0") == "0":
            self._options.append(f"ServerAliveInterval={_SILENT}")
        if configured.get("controlpath", "none") == "none":
            self._sockets = tempfile.mkdtemp(prefix="hpcrun-")
            self._options += [f"ControlPath={self._sockets}/ssh", "ControlPersist=no"]
            first = ["ControlMaster=yes"]
        else:
            first = []
        boot = "import sys; exec(sys.stdin.buffer.read({}))"
        _, source = program()
        words = ["sh", boot.format(len(source)), self._mark]
        line = f"exec /bin/sh -c {shlex.quote(_FIND_PYTHON)} {shlex.join(words)}"
        try:
            self._serving = subprocess.Popen(
                [*self.ssh(*first), "-T", self.name, in_login_shell(line)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
            self._write(source)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._serving is not None:
            for stream in (self._serving.stdin, self._serving.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            try:
                self._serving.wait(3)
            except subprocess.TimeoutExpired:
                self._serving.kill()
                self._serving.wait()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def ssh(self, *options: str) -> list[str]:
        """Return ssh with the options of this connection and these."""
        return [*self._ssh, *(word for one in (*self._options, *options) for word in ("-o", one))]

    def _configuration(self) -> dict[str, str]:
        """Return what ssh has for this destination, by ``ssh -G``."""
        command = [*self._ssh, "-G", self.name]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        rows = done.stdout.decode("utf-8", "replace").splitlines()
        return {key: value for key, _, value in (row.partition(" ") for row in rows)}

    def ask(self, do: str, payload: bytes = b"", /, **request: Any) -> dict[str, Any]:
        """Return the answer to a request, a function of `other_end`, with the bytes behind it.

        Raises HpcrunError if it fails there, or the connection is lost.
        """
        line = json.dumps({"do": do, "bytes": len(payload), **request})
        self._write(line.encode() + b"\n" + payload)
        answer = self._answer()
        if answer is None:
            raise HpcrunError(
                f"{self.name} has no Python that hpcrun runs with on its PATH: 3.10 or newer",
                hint="load one in the login shell's start there, such as `module load python` in "
                "~/.bash_profile",
            )
        if "error" in answer:
            raise HpcrunError(f"on {self.name}: {visible(str(answer['error']))}")
        return answer

    def hello(self) -> dict[str, Any]:
        """Return what is there, by `other_end.hello`."""
        name, source = program()
        return self.ask("hello", source, program=name, copy=own_copy.digest())

    def fetch(self, out: IO[bytes], **request: Any) -> None:
        """Write a file that lies there to ``out``."""
        left = int(self.ask("fetch", **request)["bytes"])
        while left:
            data = self._stdout.read(min(left, 1 << 20))
            if not data:
                raise self.unreached()
            out.write(data)
            left -= len(data)

    def _answer(self) -> dict[str, Any] | None:
        """Read up to the next answer; None if there is no Python."""
        mark = f"{self._mark} ".encode()
        before = b""
        while line := self._stdout.readline(_MOST_ANSWER):
            if line.startswith(mark):
                try:
                    found = json.loads(line[len(mark) :])
                except ValueError:
                    break
                return found if found is None or isinstance(found, dict) else None
            before += line
            if len(before) > _MOST_WORDS:
                break
        raise self.unreached(before)

    def unreached(self, said: bytes = b"") -> ClusterUnreachable:
        """Return the error of a connection that does not answer."""
        words = visible(said.decode("utf-8", "replace")).strip()
        shown = f"; it said: {shortened(words, 400)}" if words else ""
        return ClusterUnreachable(
            f"{self.name} does not answer{shown}",
            hint=f"`{shlex.join([*self._ssh, self.name, 'true'])}` has to work",
        )

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._serving is not None
        assert self._serving.stdout is not None
        return self._serving.stdout

    def _write(self, data: bytes) -> None:
        assert self._serving is not None
        assert self._serving.stdin is not None
        # Why nobody reads it, the answer says, or its absence.
        with contextlib.suppress(OSError):
            self._serving.stdin.write(data)
            self._serving.stdin.flush()

    def start(
        self, far: Mapping[str, Any], task: Mapping[str, Any], *, terminal: bool, reads: bool
    ) -> tuple[subprocess.Popen[bytes], bytes]:
        """Start a task of `other_end.launch`; return ssh and the line that its output begins with.

        ``far`` is the answer of `hello`. ``terminal`` gives it one; ``reads`` gives it this
        command's input.
        """
        mark = f"hpcrun-{secrets.token_hex(12)}"
        words = [far["python"], far["program"], mark, json.dumps({**task, "watch": not terminal})]
        line = in_login_shell(f"exec {shlex.join(words)}")
        how = "-tt" if terminal else "-T" if reads else "-nT"
        process = subprocess.Popen(
            [*self.ssh("LogLevel=ERROR"), how, self.name, line],
            stdin=None if reads or terminal else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return process, mark.encode()

    def forward(self, port: int) -> None:
        """Forward a port of this machine's loopback to the same of the login node's.

        Raises HpcrunError if ssh cannot.
        """
        where = f"127.0.0.1:{port}:127.0.0.1:{port}"
        command = [*self.ssh(), "-O", "forward", "-L", where, self.name]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            said = visible(done.stderr.decode("utf-8", "replace")).strip()
            raise HpcrunError(f"port {port} is not forwarded to {self.name}: {said}")
