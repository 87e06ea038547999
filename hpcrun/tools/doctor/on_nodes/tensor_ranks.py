"""The ranks of `tensor_test` on one node: started, read and ended by the examiner."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

_MARK = "hpcrun-tensor:"
_LINE, _TAIL = 1 << 16, 2000


class TensorRanks:
    """One process a GPU, or one alone; `close` leaves none."""

    def __init__(self, places: list[dict[str, Any]]) -> None:
        self._found: list[dict[str, Any]] = [{} for _ in places]
        self._words = ["" for _ in places]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        for number, place in enumerate(places):
            process = subprocess.Popen(
                [sys.executable, "-m", "hpcrun.tools.doctor.on_nodes.tensor_test"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            self._processes.append(process)
            assert process.stdin is not None
            with contextlib.suppress(OSError), process.stdin as stream:
                stream.write(json.dumps(place).encode() + b"\n")
            reader = threading.Thread(target=self._read, args=(number,), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, number: int) -> None:
        stream = self._processes[number].stdout
        assert stream is not None
        while line := stream.readline(_LINE).decode(errors="replace"):
            if line.startswith(_MARK):
                with contextlib.suppress(ValueError):
                    self._found[number].update(json.loads(line[len(_MARK) :]))
            else:
                self._words[number] = (self._words[number] + line)[-_TAIL:]

    @property
    def running(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def results(self, patience: float) -> list[dict[str, Any]]:
        """Return what each rank found; ``error`` says why one did not come to its end."""
        answers = []
        for process, found, words, reader in zip(
            self._processes, self._found, self._words, self._readers, strict=True
        ):
            code = process.poll()
            if code is not None:
                reader.join(timeout=1)
            error = {}
            if code is None:
                error = {"error": f"it did not end within {patience:.0f} s"}
            elif code:
                last = [line for line in words.strip().splitlines() if line.strip()][-1:]
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                error = {"error": f"it ended with {how}: {''.join(last)[:300]}"}
            answers.append({**found, **error})
        return answers

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        until = time.monotonic() + 5
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
