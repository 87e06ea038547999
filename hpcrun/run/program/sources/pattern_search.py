"""The user's regular expression, applied in a process of its own that ends itself when it is slow.

A match holds Python's interpreter lock for as long as it takes, which nested repetition makes as
long as one likes: in the agent, it would silence the heartbeat of its node.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

# Lines that are searched in one go, and the seconds of processor time that this may take.
LINES, LIMIT = 50, 0.5
# Slow lines after which the pattern is not used any more.
MOST_SLOW = 3
_MOST_SHOWN = 120
# SIGPROF ends the process in mid-match. Signals of Slurm reach the whole step.
_CHILD = """
import json, re, signal, sys
signal.signal(signal.SIGPROF, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
for one in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(one, signal.SIG_IGN)
pattern = re.compile(sys.argv[1])
for lines in sys.stdin:
    signal.setitimer(signal.ITIMER_PROF, float(sys.argv[2]))
    for text in json.loads(lines):
        found = pattern.search(text)
        print(json.dumps(found and found.groupdict()), flush=True)
    signal.setitimer(signal.ITIMER_PROF, 0)
"""

Groups = dict[str, str | None]


class PatternSearch:
    """A pattern, and the process that searches for it; started where there is something to do."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._process: subprocess.Popen[str] | None = None
        self._slow = 0
        self.problem: str | None = None
        """Why the pattern is not used any more, in words."""

    def search(self, texts: Sequence[str]) -> Iterator[Groups | None]:
        """Yield the groups of the first match in each text; None without one. May raise OSError."""
        for at in range(0, len(texts), LINES):
            rest = texts[at : at + LINES]
            while rest and self.problem is None:
                for groups in self._answers(rest):
                    rest = rest[1:]
                    yield groups
                if rest:
                    self._give_up_on(rest[0])
                    rest = rest[1:]
                    yield None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _answers(self, texts: Sequence[str]) -> Iterator[Groups | None]:
        """Yield answers until the process has given all, or has ended."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CHILD, self._pattern, str(LIMIT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                start_new_session=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(texts) + "\n")
            process.stdin.flush()
        for _ in texts:
            if not (answer := process.stdout.readline()).endswith("\n"):
                return
            yield json.loads(answer)

    def _give_up_on(self, text: str) -> None:
        """Note that the process ended at a line; raise OSError if that was not the pattern's."""
        assert self._process is not None
        code = self._process.wait()
        self.close()
        if code != -signal.SIGPROF:
            raise ChildProcessError(f"the search of progress.pattern ended with code {code}")
        self._slow += 1
        if self._slow >= MOST_SLOW:
            shown = text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"
            self.problem = (
                f"it was {MOST_SLOW} times not done with a line after {LIMIT:g} s, last with "
                f"{shown!r}, and is not used any more in this attempt; write progress.pattern "
                "without repetition in repetition, such as (\\w+\\s?)*"
            )
