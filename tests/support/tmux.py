"""A terminal of any size, with a person who types: tmux, with a server and a socket of its own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SETTINGS = """\
set -g status off
set -g escape-time 0
set -g default-terminal screen-256color
set -g remain-on-exit on
"""


class Tmux:
    """One command at a terminal. ``with`` ends it and the server."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        *,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._socket = directory / "tmux"
        settings = directory / "tmux.conf"
        settings.write_text(SETTINGS)
        environment = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
        for name in ("TMUX", "COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        size = ("-x", str(columns), "-y", str(rows))
        subprocess.run(
            [*self._tmux("-f", str(settings)), "new-session", "-d", *size, "--", *command],
            env=environment,
            cwd=directory,
            check=True,
        )

    def __enter__(self) -> Tmux:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(self._tmux("kill-server"), capture_output=True, check=False)

    def type(self, text: str) -> None:
        """Type a text, as it is."""
        self._do("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: ``Enter``, ``Escape``, ``C-c``, ``Down``, ``F5``."""
        self._do("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._do("resize-window", "-x", str(columns), "-y", str(rows))

    @property
    def text(self) -> str:
        """The screen as it is, without colours."""
        return self._do("capture-pane", "-p")

    @property
    def colored(self) -> str:
        """The screen with the escape sequences of its colours."""
        return self._do("capture-pane", "-p", "-e")

    @property
    def pid(self) -> int:
        """The process of the command."""
        return int(self._do("display-message", "-p", "#{pane_pid}"))

    def wait_for(self, *wanted: str | Callable[[str], bool], seconds: float = 30) -> str:
        """Wait until the screen has all of these; return it."""
        deadline = time.monotonic() + seconds
        while True:
            text = self.text
            if all(one in text if isinstance(one, str) else one(text) for one in wanted):
                return text
            assert time.monotonic() < deadline, f"no {wanted!r} in\n{text}"
            time.sleep(0.03)

    def _tmux(self, *arguments: str) -> list[str]:
        return ["tmux", "-S", str(self._socket), *arguments]

    def _do(self, *arguments: str) -> str:
        done = subprocess.run(
            self._tmux(*arguments), capture_output=True, encoding="utf-8", check=True
        )
        return done.stdout
