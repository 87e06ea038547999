"""Stand-ins for Slurm's commands that answer by script. No Slurm is behind them.

They exist for what a real cluster does not do on demand: time-outs, refusals of accounts, daemons
that come back. Each call appends its arguments to ``calls`` and prints the next of its answers.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = (
    f"#!{sys.executable} -IS"
    + """
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
name = os.path.basename(__file__)
with open(os.path.join(here, "calls"), "a") as calls:
    call = {"argv": [name, *sys.argv[1:]], "environment": dict(os.environ)}
    calls.write(json.dumps(call) + "\\n")
path = os.path.join(here, name + ".json")
with open(path) as stream:
    answers = json.load(stream)
answer = answers[0]
if len(answers) > 1:
    with open(path, "w") as stream:
        json.dump(answers[1:], stream)
time.sleep(answer.get("sleep", 0))
sys.stdout.write(answer.get("out", ""))
sys.stderr.write(answer.get("err", ""))
sys.exit(answer.get("code", 0))
"""
)


@dataclass
class Shim:
    """A directory for the front of PATH."""

    directory: Path

    def answer(self, command: str, *answers: dict[str, object]) -> None:
        """Have a command give these answers in turn, the last one for ever."""
        program = self.directory / command
        program.write_text(_PROGRAM)
        program.chmod(0o755)
        (self.directory / f"{command}.json").write_text(json.dumps(answers))

    @property
    def calls(self) -> list[list[str]]:
        """What was called, with its arguments."""
        return [call["argv"] for call in self._calls()]

    @property
    def environments(self) -> list[dict[str, str]]:
        """The environment of each call."""
        return [call["environment"] for call in self._calls()]

    def _calls(self) -> list[dict[str, object]]:
        path = self.directory / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
