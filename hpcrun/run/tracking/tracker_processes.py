"""The tracker processes of a run, as its supervisor starts and ends them.

They follow the run through all attempts of this start of the job. Only the end of the job waits for
them, for a bounded time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time

from hpcrun.container.rank_python import RankPython
from hpcrun.host import start_logged
from hpcrun.run.protocol.output import say
from hpcrun.state.layout import AttemptPaths, SubmissionPaths
from hpcrun.state.plan import RunPlan

# Exit code of a process that need not be started again.
EXIT_USELESS = 3
PAUSE, LONGEST_PAUSE = 60.0, 960.0
PATIENCE = 20.0


class TrackerProcesses:
    """One process per tracker of a run, restarted when it dies, in the ranks' Python.

    ``attempt`` is the first of this start of the job; the logs are in its directory.
    """

    def __init__(
        self, submission: SubmissionPaths, run: RunPlan, attempt: AttemptPaths, python: RankPython
    ) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._threads = []
        for name in run.trackers:
            # srun alone starts some containers: trackers are beside them then.
            start = python.command if python.is_anywhere else RankPython().command
            command = start("-m", "hpcrun.run.tracker", name, str(submission.directory))
            command += ["--run", str(run.number), "--start", str(attempt.number)]
            arguments = name, command, attempt
            thread = threading.Thread(target=self._keep, args=arguments, daemon=True)
            thread.start()
            self._threads.append(thread)

    def ask_to_end(self) -> None:
        """Have them send what is left and leave, without waiting."""
        with self._lock:
            self._over.set()
            for process in self._processes.values():
                _close_input(process)

    def end(self) -> None:
        """Wait until they have left; kill those still there after `PATIENCE` seconds."""
        self.ask_to_end()
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for name, process in self._processes.items():
            if process.poll() is None:
                say(f"the tracker {name} is not done after {PATIENCE:g} s, and is ended")
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for thread in self._threads:
            thread.join()

    def _keep(self, name: str, command: list[str], attempt: AttemptPaths) -> None:
        pause = PAUSE
        log = attempt.tracker_log(name)
        while True:
            with self._lock:
                if self._over.is_set():
                    return
                try:
                    # However this process ends, the tracker sees the end of the pipe.
                    process = start_logged(command, log, stdin=subprocess.PIPE)
                    self._processes[name] = process
                except OSError as error:
                    say(f"the tracker {name} cannot be started: {error}")
                    return
            code = process.wait()
            _close_input(process)
            if code in (0, EXIT_USELESS):
                return
            say(f"the tracker {name} ended with {code}; see {log.name}")
            if self._over.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
