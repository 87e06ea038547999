"""The supervisor of a run whose agents are broken: they prove themselves, and say nonsense too.

``broken_agent.py supervisor …`` is a supervisor with a usual limit of descriptors. With $BROKEN it
starts ``broken_agent.py agent …`` in the place of its agents; with $TOLD it writes what it made by
chance into that file, the secret first.
"""

from __future__ import annotations

import os
import random
import resource
import secrets
import sys
import threading
import time
from typing import Any

SOUND = {"pid": 1, "step": 1, "phase": 1, "moves": 1, "looks": 1, "state": "S", "processor": 1}
ODD: list[Any] = [
    *(None, True, -1, 0, 7, 10**30, -(10**30), 1.5, float("nan"), float("inf"), "", "0", "²"),
    *("../../x", "/etc/passwd", "a" * 5000, "\ud800", "\0", [], [[]], {}, {"0": {}}, ["local0"]),
    *({"0": None}, {"1": SOUND}, {"-1": SOUND}, {"²": SOUND}, {"0": {**SOUND, "phase": 99}}),
    *({"0": {**SOUND, "step": "x"}}, {"0": {**SOUND, "state": "SS"}}, {"999999999999": SOUND}),
    {"0": [0]},
]
KINDS = [
    *("pulse", "hello", "ready", "built", "killed", "kept", "writes", "stacks", "signal", "gone"),
    *("dismiss", ""),
]
KEYS = [
    *("attempt", "ranks", "logs", "fabric", "gone", "node", "port", "signal", "extensions"),
    *("message", "launch", "number", "of", "joins", "interfaces", "directory", "failed", "files"),
]


def nonsense(chance: random.Random, attempt: int = 1) -> dict[str, Any]:
    """A message that no sound agent sends; ``signal`` and ``failed`` would mean something."""
    kind = chance.choice(KINDS)
    found: dict[str, Any] = {"type": kind, "attempt": chance.choice([attempt, attempt, 0, None])}
    for _ in range(chance.randrange(6)):
        found[chance.choice(KEYS)] = chance.choice(ODD)
    # What is left out may be sound by chance: then it is of the wrong type.
    wrong = {"pulse": "ranks", "ready": "node", "killed": "gone", "stacks": "ranks"}
    wrong.update(kept="failed", writes="files")
    if kind in wrong:
        found[wrong[kind]] = chance.choice([None, -1, "x", [[]], {"7": 1}, {"0": {}, "1": {}}])
    if kind in ("signal", "hello"):
        found["signal"] = found["extensions"] = chance.choice([7, [], "SIGKILL", "/etc", {}])
    return found


def agent() -> None:
    from hpcrun.run import agent as sound

    serve = sound.Agent.serve

    def serve_badly(self: sound.Agent, channel: Any) -> None:
        def talk() -> None:
            chance = random.Random(self.node)
            while not channel.closed:
                channel.send(nonsense(chance, self.attempt))
                time.sleep(0.005)

        threading.Thread(target=talk, daemon=True).start()
        serve(self, channel)

    sound.Agent.serve = serve_badly  # type: ignore[method-assign]
    sound.main()


def supervisor() -> None:
    made, token = os.environ.get("TOLD"), secrets.token_hex
    from hpcrun.run import supervisor as sound
    from hpcrun.run.job.launchers import LocalLauncher

    def token_hex(size: int | None = None) -> str:
        found = token(size)
        with open(str(made), "a") as stream:
            stream.write(found + "\n")
        return found

    if made:
        secrets.token_hex = token_hex
    start_agents = LocalLauncher.start_agents

    def start(self: LocalLauncher, nodes: Any, attempt: Any, command: Any) -> Any:
        at = command.index("hpcrun.run.agent")
        command = [command[0], __file__, "agent", *command[at + 1 :]]
        return start_agents(self, nodes, attempt, command)

    if os.environ.get("BROKEN"):
        LocalLauncher.start_agents = start  # type: ignore[method-assign]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    sound.main()


if __name__ == "__main__":
    act = sys.argv.pop(1)
    supervisor() if act == "supervisor" else agent()
