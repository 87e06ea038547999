"""A real S3 server on this machine: rclone, which its package installs beside Python."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

KEY, SECRET = "hpcrun-tests", "made-up-secret"
_ON_PATH = [str(Path(sys.executable).parent), *(f"{one}/bin" for one in sys.path)]


def program() -> str | None:
    """The path of rclone; None where it is not installed."""
    return shutil.which("rclone", path=os.pathsep.join(_ON_PATH))


class S3Server:
    """One server, whose buckets are the directories in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "buckets"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "rclone.log"
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """What programs find the credentials by."""
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def make_bucket(self, name: str) -> None:
        """Make a bucket, as its user would: one that is made on its disk is seen late."""
        import s3fs

        made = s3fs.S3FileSystem(
            endpoint_url=self.endpoint, key=KEY, secret=SECRET, skip_instance_cache=True
        )
        made.mkdir(name)

    def look_again(self) -> None:
        """Have it see what a test has changed in its directory."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGHUP)
            time.sleep(0.1)

    def start(self, **variables: str) -> None:
        """Start it, at the same port each time, and wait until it answers."""
        rclone = program()
        assert rclone is not None
        command = [rclone, "serve", "s3", "--addr", f"127.0.0.1:{self.port}"]
        command += ["--config", "", "--vfs-cache-mode", "off", "--dir-cache-time", "1s"]
        environment = {**os.environ, "RCLONE_AUTH_KEY": f'"{KEY},{SECRET}"', **variables}
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [*command, str(self.directory)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 20
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it, as power that goes would."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Have it be silent: connections stay, and nobody answers."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def _answers(self) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self.port)) == 0
