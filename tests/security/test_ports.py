"""Nothing that a peer without the job's secret sends does anything, and nobody learns the secret.

The same on a real Slurm: tests/cluster/test_ports.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcrun.run.node.node_dir import NodeDir
from hpcrun.run.node.rendezvous_port import PortReservation
from hpcrun.state import files
from hpcrun.state.plan import Entry
from tests.run.conftest import place as place
from tests.security import broken_agent
from tests.support import users
from tests.support.place import REPOSITORY, Place
from tests.support.users import STRANGER
from tests.support.waiting import until

HERE = Path(__file__).parent
BAD_SUPERVISOR = (str(HERE / "broken_agent.py"), "supervisor")

TRAINING = """
import time
import torch
from tests.support.place import FakeEngine

class Engine(FakeEngine):
    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(1)
        self.model = torch.nn.Linear(32, 1)
        self.optimizer_of_model = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.rank = rank

    def step(self):
        torch.manual_seed(1000 * self.global_steps + self.rank)
        batch = torch.randn(16, 32)
        loss = (self.model(batch)[:, 0] - batch.sum(1)).square().mean()
        loss.backward()
        for parameter in self.model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        self.optimizer_of_model.step()
        self.optimizer_of_model.zero_grad()
        super().step()
        return loss.detach()

def train(session):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    engine = Engine(session.rank)
    session.restore(engine)
    for step in session.steps(total=session.config.total_steps):
        loss = engine.step()
        time.sleep(0.02)
        session.log({"loss": loss}, step)
    print("weights", [value.hex() for value in engine.model.weight[0].tolist()], flush=True)
"""


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Place]]:
    """Two places with a function that trains 200 steps, on two nodes of one rank each."""
    made = []
    for name in ("alone", "attacked"):
        (tmp_path / name).mkdir()
        made.append(Place(tmp_path / name))
        (made[-1].code / "training.py").write_text(TRAINING)
        made[-1].submit(
            Entry("function", module="training", function="train", import_root="."),
            resources={"nodes": 2, "ntasks_per_node": 1, "gpus_per_node": 1, "cpus_per_task": 1},
            environment={"variables": {}},
            config={"total_steps": 200},
        )
    yield made
    for each in made:
        each.close()


def _outcome(place: Place) -> tuple[list[Any], str]:
    """The losses and the weights that a run ended with."""
    lines = files.read_lines(place.run.attempt(1).metrics)
    (weights,) = re.findall(r"weights .*", place.output())
    return [(line["step"], line["loss"]) for line in lines], weights


def _port(pid: int) -> int:
    """The port that a process listens on."""
    found: list[int] = []

    def look() -> bool:
        with contextlib.suppress(OSError):
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                    found.append(int(fields[1].rpartition(":")[2], 16))
        return bool(found)

    until(look, "a port", 20)
    return found[0]


@contextlib.contextmanager
def _stranger(port: int) -> Iterator[subprocess.Popen[str]]:
    """Somebody else on this machine, who attacks a port until he hears nothing more."""
    program = (HERE / "stranger.py").read_text()
    other = STRANGER.options(Path("/")) if os.geteuid() == 0 else {}
    argv = [users.PYTHON, "-c", program, "127.0.0.1", str(port), "0"]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True, cwd="/", **other) as process:
        yield process


def test_a_run_under_attack_ends_as_one_that_nobody_attacks(places: list[Place]) -> None:
    """Strangers say all that could hurt, 10,000 say nothing, and the agents themselves are broken.

    The losses of all steps and the weights are the same to the bit, after one attempt.
    """
    alone, attacked = places
    reference = alone.start()
    supervisor = attacked.start(program=BAD_SUPERVISOR, BROKEN="1")
    with _stranger(_port(supervisor.pid)) as stranger:
        until(lambda: len(attacked.steps(1)) > 50, "steps", 100)
        out, _ = stranger.communicate(timeout=60)
    code, said = attacked.end(supervisor)
    assert alone.end(reference)[0] == 0
    tried = json.loads(out)
    assert code == 0, said
    assert tried["idle"] == 10_000
    assert tried["tries"] > 20
    assert tried["told"] == [""]
    assert "attempt 1 completed" in said
    assert "Traceback" not in said
    assert len(attacked.steps(1)) == 200
    assert _outcome(attacked) == _outcome(alone)
    for node in ("local0", "local1"):
        assert said.count(f"the agent on node {node} is broken") == 1
    assert said.count("a connection from 127.0.0.1") == 1


def test_the_secret_is_in_no_process_file_or_log(place: Place, tmp_path: Path) -> None:
    """Ranks, setup and notify.command show their environment; every process's is read meanwhile."""
    told = tmp_path / "told"
    place.submit(
        "env; cat /proc/$PPID/environ /proc/$PPID/cmdline; sleep 1",
        nodes=2,
        notify={"command": ["env"], "events": ["finished"]},
    )
    supervisor = place.start(program=BAD_SUPERVISOR, TOLD=str(told))
    log = place.run.attempt(1).rank_log(1)
    until(lambda: log.exists() and "HPCRUN_RUN=" in log.read_text(), "ranks", 60)
    seen = b""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            mine = (process / "environ").read_bytes()
            if os.fsencode(place.root) in mine and process.name != str(os.getpid()):
                seen += mine + (process / "cmdline").read_bytes()
    code, said = place.end(supervisor)
    secret = told.read_text().split()[0]
    assert code == 0, said
    assert "HPCRUN_EVENT=finished" in said
    assert b"hpcrun.run.agent" in seen
    assert "HPCRUN_RUN=" in place.output()
    kept = [path.read_bytes() for path in place.root.rglob("*") if path.is_file()]
    for text in (said.encode(), seen, *kept):
        assert secret.encode() not in text


def _switchboard(nodes: int = 3) -> tuple[Any, Any]:
    from hpcrun.run.protocol.job_secret import JobSecret
    from hpcrun.run.protocol.switchboard import Switchboard

    secret = JobSecret.new()
    return Switchboard("127.0.0.1", secret, [f"n{number}" for number in range(nodes)]), secret


def _where(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _while_it_turns(board: Any, act: Callable[[], Any], limit: float = 60) -> Any:
    """Return what ``act`` returns while the supervisor turns, which hears nothing meanwhile."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()), daemon=True)
    thread.start()
    deadline = time.monotonic() + limit
    while thread.is_alive():
        assert board.poll(0.01) == []
        assert time.monotonic() < deadline
    return found[0]


def _descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@contextlib.contextmanager
def _all_descriptors() -> Iterator[None]:
    """Let this process and those that it starts open as many files as they can."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _hung_up(connection: socket.socket) -> bool:
    """Check whether the other side has closed a connection, without a word."""
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("seed", range(4))
def test_whatever_strangers_say_is_answered_by_hanging_up(seed: int) -> None:
    """Some of it begins as an agent's words do; none raises, is heard, or is kept."""
    board, secret = _switchboard()
    chance = random.Random(seed)
    numbers = "n0", "a" * 32
    hello = f"hpcrun-agent {' '.join(numbers)} {secret.digest('hpcrun-agent', *numbers)}\n".encode()
    before = _descriptors()

    def attack() -> int:
        count = 0
        for _ in range(150):
            line = bytearray(chance.choice([hello, b"[" * 3000, chance.randbytes(700), b"{" * 500]))
            for _ in range(chance.randrange(1, 4)):
                line[chance.randrange(len(line) - 1)] = chance.randrange(256)
            with socket.create_connection(_where(board.address), timeout=20) as stranger:
                with contextlib.suppress(OSError):
                    stranger.sendall(bytes(line).replace(b"\n", b"") + b"\n")
                count += _hung_up(stranger)
        return count

    try:
        # A byte that was changed to itself leaves the line of an agent.
        assert _while_it_turns(board, attack) >= 145
        assert board.channels == {}
        assert _descriptors() <= before + 1
    finally:
        board.close()


def test_an_agent_gets_in_among_ten_thousand_that_say_nothing() -> None:
    """Descriptors are bounded while they come, and the agent waits no longer than seconds."""
    from hpcrun.run.protocol.channel import Channel
    from hpcrun.run.protocol.switchboard import STRANGERS_MOST

    board, secret = _switchboard()
    argv = [sys.executable, "-c", (HERE / "stranger.py").read_text()]
    argv += [*map(str, _where(board.address)), "1"]
    kept = 0
    with (
        _all_descriptors(),
        contextlib.closing(board),
        subprocess.Popen(argv, stdin=-1, stdout=-1) as stranger,
    ):
        deadline = time.monotonic() + 60
        while kept < STRANGERS_MOST and time.monotonic() < deadline:
            assert board.poll(0.01) == []
            kept = max(kept, len(board._strangers))
        assert kept == STRANGERS_MOST
        began = time.monotonic()
        agents = [
            _while_it_turns(board, lambda: Channel.connect(board.address, "n1", secret)),
            _while_it_turns(board, lambda: Channel.connect(board.address, "n2", secret)),
        ]
        assert time.monotonic() - began < 20
        assert len(board._strangers) <= STRANGERS_MOST
        assert board.send("n1", {"type": "prepare"})
        assert agents[0].receive(5) == [{"type": "prepare"}]
        stranger.communicate(timeout=60)


def test_who_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcrun.run.protocol.switchboard.GREETING_TIMEOUT", 0.3)
    board, _ = _switchboard()
    with contextlib.closing(board), socket.create_connection(_where(board.address)) as idle:
        assert _while_it_turns(board, lambda: _hung_up(idle))


class _Between:
    """Somebody on the network between an agent and its supervisor, who changes what is said."""

    def __init__(self, board: Any, change: Callable[[bytes], bytes]) -> None:
        self.heard: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._board, self._change = board, change
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self) -> None:
        agent, _ = self._server.accept()
        supervisor = socket.create_connection(_where(self._board.address))

        def copy(source: socket.socket, target: socket.socket, changed: bool) -> None:
            with contextlib.suppress(OSError), target:
                while data := source.recv(65536):
                    self.heard.append(data)
                    target.sendall(self._change(data) if changed else data)

        threading.Thread(target=copy, args=(supervisor, agent, False), daemon=True).start()
        copy(agent, supervisor, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b'"pulse"', b'"ready"'),
        lambda data: data + data if b"pulse" in data else data,
        lambda data: data + b'{"type":"signal"}\n' if b"pulse" in data else data,
        lambda data: b"" if b"alive" in data else data,
    ],
    ids=["changed", "repeated", "put in", "left out"],
)
def test_words_of_others_in_an_agents_connection_end_it(change: Callable[[bytes], bytes]) -> None:
    from hpcrun.run.protocol.channel import Channel
    from hpcrun.run.protocol.switchboard import GONE

    board, secret = _switchboard()
    between = _Between(board, change)
    agent = _while_it_turns(board, lambda: Channel.connect(between.address, "n1", secret))
    agent.send({"type": "alive"})
    time.sleep(0.1)
    agent.send({"type": "pulse"})
    found: list[Any] = []
    deadline = time.monotonic() + 20
    while ("n1", GONE) not in found and time.monotonic() < deadline:
        found += board.poll(0.05)
    kinds = [message["type"] for _, message in found]
    assert kinds in (["alive", "gone"], ["alive", "pulse", "gone"], ["gone"])
    assert secret._text.encode() not in b"".join(between.heard)
    # What was heard can be said again by nobody.
    for line in (between.heard[0], b"".join(between.heard)):
        with socket.create_connection(_where(board.address)) as replayed:
            replayed.sendall(line)
            replayed.settimeout(1)
            _while_it_turns(board, lambda taken=replayed: _ends(taken))
    assert board.channels == {}
    board.close()


def _ends(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(OSError):
        while data := connection.recv(1000):
            found += data
    return found


def test_who_repeats_the_hello_of_a_live_node_takes_nothing_from_it() -> None:
    from hpcrun.run.protocol.channel import Channel

    board, secret = _switchboard()
    between = _Between(board, lambda data: data)
    agent = _while_it_turns(board, lambda: Channel.connect(between.address, "n1", secret))
    with socket.create_connection(_where(board.address)) as replayed:
        replayed.sendall(between.heard[0])
        answer = _while_it_turns(board, lambda: _ends(replayed))
        assert answer == b""
        assert board.send("n1", {"type": "prepare"})
        assert agent.receive(5) == [{"type": "prepare"}]
    assert list(board.channels) == ["n1"]
    board.close()


Answer = Callable[[socket.socket, bytes], object]


@contextlib.contextmanager
def _impostor(answer: Answer) -> Iterator[tuple[str, list[bytes]]]:
    """Listen where a supervisor did; give the address, and a list of what agents say there."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            with contextlib.suppress(OSError):
                while True:
                    agent, _ = server.accept()
                    with agent, contextlib.suppress(OSError):
                        heard.append(agent.recv(1000))
                        answer(agent, heard[-1])

        threading.Thread(target=pretend, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", heard


IMPOSTORS: dict[str, Answer] = {
    "says it is alive": lambda agent, _: agent.sendall(b'{"type":"alive"}\n{"type":"dismiss"}\n'),
    "repeats": lambda agent, hello: agent.sendall(hello),
    "guesses": lambda agent, _: agent.sendall(
        b"hpcrun-supervisor " + b"0" * 32 + b" " + b"0" * 64 + b"\n"
    ),
    "has no end": lambda agent, _: agent.sendall(b"x" * 100_000),
    "hangs up": lambda agent, _: None,
    "is slow": lambda agent, _: [(agent.sendall(b"h"), time.sleep(0.1)) for _ in range(100)],
}


@pytest.mark.parametrize("how", IMPOSTORS)
def test_an_orphaned_agent_tells_and_believes_nothing(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor is gone, and somebody else listens on that port."""
    from hpcrun.run.job.takeover import Takeover
    from hpcrun.run.protocol.job_secret import JobSecret

    monkeypatch.setattr("hpcrun.run.job.takeover._PATIENCE", 1.5)
    secret = JobSecret.new()
    with _impostor(IMPOSTORS[how]) as (address, heard):
        arguments = argparse.Namespace(attempt=1, node="n1", supervisor=address)
        submission: Any = SimpleNamespace(
            experiment=SimpleNamespace(run=lambda number: None), directory=Path("/")
        )
        run: Any = SimpleNamespace(number=3)
        began = time.monotonic()
        assert not Takeover(arguments, submission, run, {}, secret)._supervisor_answers()
        assert time.monotonic() - began < 15
    words = heard[0].split()
    assert words[:2] == [b"hpcrun-agent", b"n1"]
    assert secret._text.encode() not in b"".join(heard)


def test_an_agent_is_led_by_nobody_else(place: Place, tmp_path: Path) -> None:
    """A real agent whose supervisor's port somebody else has: it does nothing, and cleans up."""
    place.submit("true")
    words = b'{"type":"attempt","number":9}\n{"type":"kill"}\n'
    with _impostor(lambda agent, _: agent.sendall(words)) as (address, heard):
        agent = _agent(place, address)
        until(lambda: len(heard) > 2, "tries to connect", 30)
        agent.terminate()  # which it ignores before it has a supervisor
        agent.kill()
        agent.wait(20)
    assert "Traceback" not in (place.root / "agent.log").read_text()
    assert all(line.startswith(b"hpcrun-agent local0 ") for line in heard)
    assert [path.name for path in place.temporary.glob("hpcrun-*/attempt-9")] == []


def _agent(place: Place, address: str, secret: Any = None) -> subprocess.Popen[bytes]:
    from hpcrun.run.protocol.job_secret import JobSecret

    argv = [sys.executable, "-m", "hpcrun.run.agent", str(place.submission.directory), "--run=3"]
    argv += ["--node=local0", "--node-rank=0", "--attempt=1", "--batch-node=local0"]
    argv += ["--restarts=0", "--job=7", "--supervisor", address]
    environment = {**os.environ, "TMPDIR": str(place.temporary)}
    with (place.root / "agent.log").open("wb") as log:
        options: Any = {"stdout": log, "stderr": log, "env": environment, "cwd": REPOSITORY}
        agent: subprocess.Popen[bytes] = subprocess.Popen(argv, stdin=-1, **options)
    (secret or JobSecret.new()).hand_over(agent)
    agent.stdin = None
    return agent


def test_a_broken_supervisor_costs_an_agent_no_exception(place: Place) -> None:
    """One that proves itself, and says nonsense: each line is answered or passed over."""
    place.submit("true")
    board, secret = _switchboard()
    board._nodes = {"local0"}
    chance = random.Random(3)
    agent = _agent(place, board.address, secret)
    kinds = ["call", "attempt", "prepare", "hurt", "stacks", "fall_silent", "build", "x", ""]
    answers: list[dict[str, Any]] = []
    sent = 0
    deadline = time.monotonic() + 60
    while "local0" not in board.channels and time.monotonic() < deadline:
        board.poll(0.05)
    for _ in range(300):
        message = {**broken_agent.nonsense(chance), "type": chance.choice(kinds[:1] * 9 + kinds)}
        if message["type"] != "stacks":
            sent += 1
            assert board.send("local0", message)
            answers += [message for _, message in board.poll(0)]
    board.send("local0", {"type": "call", "of": 1, "joins": None, "launch": "/etc/passwd"})
    board.send("local0", {"type": "dismiss"})
    while agent.poll() is None and time.monotonic() < deadline:
        answers += [message for _, message in board.poll(0.05)]
    board.close()
    assert agent.wait(20) == 0
    assert place.scratch() == []
    assert len([one for one in answers if one["type"] == "failed"]) > sent / 3


def test_a_name_that_is_taken_costs_a_preference() -> None:
    """Somebody has taken the names of all ports."""
    start = random.randrange(10**6)
    preferred = PortReservation(start)
    preferred.release()
    with _all_descriptors(), contextlib.ExitStack() as taken:
        for port in range(preferred.port - 500, preferred.port + 1500):
            name = taken.enter_context(socket.socket(socket.AF_UNIX))
            with contextlib.suppress(OSError):
                name.bind(f"\0hpcrun-port-{port}")
        began = time.monotonic()
        found = PortReservation(start)
        assert time.monotonic() - began < 5
        assert found.port == preferred.port
        found.release()


def test_a_node_directory_that_somebody_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first = NodeDir("0123456789ab", "n1")
    (tmp_path / f"{first.path.name}-n1").symlink_to("/etc")
    second = NodeDir("0123456789ab", "n1")
    assert second.path.parent == tmp_path
    assert second.path not in (first.path, tmp_path / f"{first.path.name}-n1")
    assert second.path.stat().st_mode & 0o777 == 0o700
    second.remove()
    first.remove()


@users.needs_root
def test_a_process_of_somebody_else_is_no_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent of root's can read everybody's environment, and anybody can write such a one."""
    from hpcrun.run.node import rank_processes

    monkeypatch.setattr(rank_processes, "leaders", lambda scratch: {})
    options = STRANGER.options(Path("/"), env={"HPCRUN_SCRATCH": str(tmp_path)})
    with subprocess.Popen(["sleep", "60"], cwd="/", **options) as theirs:
        until(lambda: b"HPCRUN" in Path(f"/proc/{theirs.pid}/environ").read_bytes(), "sleep", 10)
        rank_processes.kill(tmp_path)
        assert rank_processes.gone(tmp_path, 0.1)
        assert theirs.poll() is None
        theirs.kill()
